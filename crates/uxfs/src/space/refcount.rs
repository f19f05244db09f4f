//! Shared blocks: the reference count tree.
//!
//! A block in no record has one owner; a record says two or more, or that its blocks are staged for copy-on-write.

use super::freetree::group_daddr;
use super::{Owner, alloc, busy, defer_free, free_extent, kept, rmap};
use crate::ag;
use crate::btree::{Cursor, Tree};
use crate::error::Result;
use crate::trans::{Buf, Deferred, Trans};
use std::cmp::Ordering;
use uxfs_format::btree::{RefcountRec, TreeKind};
use uxfs_format::bytes::{get32, put32};
use uxfs_format::log::{IntentExtent, item, refcount_op};
use uxfs_format::{AgBlock, AgNumber, DiskAddr, FsBlock};

const COW: u32 = 1 << 31;
/// A count that is never changed again.
const PINNED: u32 = u32::MAX;

struct RefcountTree {
    agno: AgNumber,
    agf: Buf,
}

fn key(r: &RefcountRec) -> u32 {
    r.start | if r.cow { COW } else { 0 }
}

impl Tree for RefcountTree {
    type Rec = RefcountRec;
    fn kind(&self) -> TreeKind {
        TreeKind::Refcount
    }
    fn decode(&self, b: &[u8]) -> RefcountRec {
        let s = get32(b, 0);
        let start = s & !COW;
        // As with free extents: cut where no number could hold its end.
        RefcountRec { cow: s & COW != 0, start, len: get32(b, 4).min(u32::MAX - start), count: get32(b, 8) }
    }
    fn encode(&self, r: &RefcountRec, b: &mut [u8]) {
        put32(b, 0, key(r));
        put32(b, 4, r.len);
        put32(b, 8, r.count);
    }
    fn put_key(&self, r: &RefcountRec, b: &mut [u8]) {
        put32(b, 0, key(r));
    }
    fn cmp_rec(&self, s: &RefcountRec, t: &RefcountRec) -> Ordering {
        key(s).cmp(&key(t))
    }
    fn cmp_key(&self, k: &[u8], t: &RefcountRec) -> Ordering {
        get32(k, 0).cmp(&key(t))
    }
    fn root(&self) -> (Option<u64>, u16) {
        let a = ag::get_agf(&self.agf);
        (Some(u64::from(a.refcount_root.get())), a.refcount_level.get() as u16)
    }
    fn set_root(&mut self, tp: &mut Trans, ptr: Option<u64>, levels: u16) {
        ag::set_agf(tp, &self.agf, |a| {
            a.refcount_root.set(ptr.unwrap_or(0) as u32);
            a.refcount_level.set(u32::from(levels));
        });
    }
    fn daddr(&self, tp: &Trans, ptr: u64) -> Option<DiskAddr> {
        group_daddr(tp, self.agno, ptr)
    }
    fn owner(&self) -> u64 {
        u64::from(self.agno.0)
    }
    fn alloc(&mut self, tp: &mut Trans, near: u64) -> Result<u64> {
        // The link that finishes the intent reserved nothing for the tree: it draws on what the group keeps.
        if tp.blocks_left() == 0 {
            tp.vol.counters.take_from_reserve(1);
            tp.add_reserved(1);
        }
        let b = alloc::alloc_metadata(tp, self.agno, AgBlock(near as u32), Owner::REFCOUNT)?;
        self.count(tp, 1);
        Ok(u64::from(b.0))
    }
    fn free(&mut self, tp: &mut Trans, ptr: u64) -> Result<()> {
        self.count(tp, -1);
        let at = tp.vol.geo.fsb(self.agno, AgBlock(ptr as u32));
        free_extent(tp, at, 1, Owner::REFCOUNT)
    }
}

impl RefcountTree {
    fn count(&self, tp: &mut Trans, by: i32) {
        ag::set_agf(tp, &self.agf, |a| a.refcount_blocks.set(a.refcount_blocks.get().saturating_add_signed(by)));
        kept::grew(&tp.vol, self.agno, TreeKind::Refcount, i64::from(by));
    }
}

fn cursor<'a>(tp: &'a mut Trans, agno: AgNumber, agf: &Buf) -> Cursor<'a, RefcountTree> {
    Cursor::new(tp, RefcountTree { agno, agf: agf.clone() })
}

fn at(start: u32, cow: bool) -> RefcountRec {
    RefcountRec { cow, start, len: 0, count: 0 }
}

/// The record of shared blocks that covers `block`, or the next one behind it.
fn covering_or_next(c: &mut Cursor<'_, RefcountTree>, block: u32) -> Result<Option<RefcountRec>> {
    if let Some(r) = c.lookup_le(&at(block, false))?
        && !r.cow
        && r.start + r.len > block
    {
        return Ok(Some(r));
    }
    Ok(c.lookup_ge(&at(block, false))?.filter(|r| !r.cow))
}

/// The first run within an extent that must not be written in place: it is shared, or was until a transaction that is not durable
/// yet. (offset into it, blocks).
///
/// # Locks
/// Takes the group's AGF and keeps it.
///
/// # Errors
/// The tree is corrupt.
pub fn first_shared(tp: &mut Trans, start: FsBlock, len: u32) -> Result<Option<(u32, u32)>> {
    if !tp.vol.geo.reflink() {
        return Ok(None);
    }
    let (agno, agbno) = (tp.vol.geo.fsb_agno(start), tp.vol.geo.fsb_agbno(start).0);
    let agf = ag::agf(tp, agno)?;
    let mut c = cursor(tp, agno, &agf);
    let shared = covering_or_next(&mut c, agbno)?.and_then(|r| {
        let (from, to) = (r.start.max(agbno), (r.start + r.len).min(agbno + len));
        (from < to).then(|| (from - agbno, to - from))
    });
    // The one that begins first; of two the longer.
    let unshared = busy::first_unshared(tp, agno, agbno, len);
    Ok(shared.into_iter().chain(unshared).min_by_key(|(at, n)| (*at, u32::MAX - n)))
}

/// Inserts a record, joined with neighbours of the same count.
fn insert_joined(c: &mut Cursor<'_, RefcountTree>, mut r: RefcountRec) -> Result<()> {
    let same = |a: &RefcountRec, b: &RefcountRec| a.cow == b.cow && a.count == b.count && a.start + a.len == b.start;
    if r.start > 0
        && let Some(l) = c.lookup_le(&at(r.start - 1, r.cow))?
        && same(&l, &r)
    {
        c.delete()?;
        r = RefcountRec { start: l.start, len: l.len + r.len, ..r };
    }
    if let Some(n) = c.lookup_ge(&at(r.start + r.len, r.cow))?
        && same(&r, &n)
    {
        c.delete()?;
        r.len += n.len;
    }
    c.insert(&r)
}

/// Changes the number of owners of an extent by one; blocks that lose the last are freed.
fn adjust(tp: &mut Trans, start: FsBlock, len: u32, up: bool) -> Result<()> {
    let (agno, first) = (tp.vol.geo.fsb_agno(start), tp.vol.geo.fsb_agbno(start).0);
    let agf = ag::agf(tp, agno)?;
    let (mut at_block, end) = (first, first + len);
    while at_block < end {
        let mut c = cursor(tp, agno, &agf);
        let r = covering_or_next(&mut c, at_block)?;
        let (n, count) = match r {
            Some(r) if r.start <= at_block => ((r.start + r.len).min(end) - at_block, r.count),
            Some(r) => (r.start.min(end) - at_block, 1),
            None => (end - at_block, 1),
        };
        if count != PINNED {
            let new = if up { count + 1 } else { count - 1 };
            if let Some(r) = r.filter(|_| count > 1) {
                c.lookup_eq(&r)?;
                c.delete()?;
                if r.start < at_block {
                    c.insert(&RefcountRec { len: at_block - r.start, ..r })?;
                }
                if r.start + r.len > at_block + n {
                    c.insert(&RefcountRec { start: at_block + n, len: r.start + r.len - at_block - n, ..r })?;
                }
            }
            if !up && new == 1 {
                busy::mark_unshared(tp, agno, at_block, n);
            }
            let mut c = cursor(tp, agno, &agf);
            if new > 1 {
                insert_joined(&mut c, RefcountRec { cow: false, start: at_block, len: n, count: new })?;
            } else if new == 0 {
                let at = tp.vol.geo.fsb(agno, AgBlock(at_block));
                defer_free(tp, at, n, Owner::FILE);
            }
        }
        at_block += n;
    }
    Ok(())
}

/// Finishes an intent about reference counts.
///
/// # Errors
/// The tree is corrupt, or no block is to be had for it.
pub fn finish_refcount(tp: &mut Trans, e: &IntentExtent) -> Result<()> {
    match e.flags & 0xff {
        refcount_op::INCREASE => adjust(tp, e.start, e.len, true),
        refcount_op::DECREASE => adjust(tp, e.start, e.len, false),
        refcount_op::ALLOC_COW => stage(tp, e.start, e.len, true),
        refcount_op::FREE_COW => stage(tp, e.start, e.len, false),
        _ => Ok(()),
    }
}

/// Enters or removes the refcountbt's record of blocks staged for copy-on-write.
fn stage(tp: &mut Trans, start: FsBlock, len: u32, add: bool) -> Result<()> {
    let (agno, first) = (tp.vol.geo.fsb_agno(start), tp.vol.geo.fsb_agbno(start).0);
    let agf = ag::agf(tp, agno)?;
    let mut c = cursor(tp, agno, &agf);
    if add {
        return insert_joined(&mut c, RefcountRec { cow: true, start: first, len, count: 1 });
    }
    let r = c.lookup_le(&at(first, true))?.filter(|r| r.cow && r.start + r.len >= first + len);
    let Some(r) = r else { return Err(ag::corrupt(&agf, "has no record of staged blocks that are to be released")) };
    c.delete()?;
    if r.start < first {
        c.insert(&RefcountRec { len: first - r.start, ..r })?;
    }
    let (end, r_end) = (first + len, r.start + r.len);
    if end < r_end {
        c.insert(&RefcountRec { start: end, len: r_end - end, ..r })?;
    }
    Ok(())
}

/// Gives an extent one owner more in a link of its own.
pub fn defer_increase(tp: &mut Trans, start: FsBlock, len: u32) {
    tp.defer(Deferred::new(item::CUI, IntentExtent::new(start, len, refcount_op::INCREASE), finish_refcount));
}

/// Takes one owner off an extent in a link of its own.
pub fn defer_decrease(tp: &mut Trans, start: FsBlock, len: u32) {
    tp.defer(Deferred::new(item::CUI, IntentExtent::new(start, len, refcount_op::DECREASE), finish_refcount));
}

/// Enters an extent that was just allocated as staged: in the refcountbt and in the rmapbt, each in a link of its own.
pub fn alloc_cow_staging(tp: &mut Trans, start: FsBlock, len: u32) {
    tp.defer(Deferred::new(item::CUI, IntentExtent::new(start, len, refcount_op::ALLOC_COW), finish_refcount));
    rmap::defer_staged(tp, start, len, true);
}

/// Removes a staged extent's records, since it has an owner now.
pub fn defer_free_cow(tp: &mut Trans, start: FsBlock, len: u32) {
    rmap::defer_staged(tp, start, len, false);
    tp.defer(Deferred::new(item::CUI, IntentExtent::new(start, len, refcount_op::FREE_COW), finish_refcount));
}

/// Frees staged blocks that nobody will use. The intent about their owner comes before the one that frees them.
pub fn free_staged(tp: &mut Trans, start: FsBlock, len: u32) {
    defer_free_cow(tp, start, len);
    defer_free(tp, start, len, Owner::FILE);
}

/// Frees what a crash left staged in a group, one extent; returns false when none is left.
///
/// # Errors
/// The tree is corrupt.
pub fn free_all_cow_staging(tp: &mut Trans, agno: AgNumber) -> Result<bool> {
    if !tp.vol.geo.reflink() {
        return Ok(false);
    }
    let agf = ag::agf(tp, agno)?;
    let Some(r) = cursor(tp, agno, &agf).lookup_ge(&at(0, true))? else { return Ok(false) };
    let start = tp.vol.geo.fsb(agno, AgBlock(r.start));
    free_staged(tp, start, r.len);
    Ok(true)
}
