//! Who has each block: the tree of reverse mappings.
//!
//! Blocks of metadata get and lose their owner in the link that allocates or frees them. Extents of files do so in a link of
//! their own, after the mapping changed.

use super::freetree::group_daddr;
use super::{Owner, agfl, kept};
use crate::ag;
use crate::btree::{CompareKeys, Cursor, Tree};
use crate::error::Result;
use crate::trans::{Buf, Deferred, Trans};
use std::cmp::Ordering;
use uxfs_format::btree::{RmapRec, TreeKind, rmap_flag, rmap_owner};
use uxfs_format::bytes::{get32, get64, put32, put64};
use uxfs_format::extent::Extent;
use uxfs_format::log::{IntentExtent, item, rmap_op};
use uxfs_format::{AgNumber, DiskAddr, FsBlock, Ino};

struct RmapTree {
    agno: AgNumber,
    agf: Buf,
}

fn put_half(b: &mut [u8], k: (u32, u64, u64)) {
    put32(b, 0, k.0);
    put64(b, 4, k.1);
    put64(b, 12, k.2);
}

fn get_half(b: &[u8]) -> (u32, u64, u64) {
    // Older kernels kept the bit in keys.
    (get32(b, 0), get64(b, 4), get64(b, 12) & !rmap_flag::UNWRITTEN)
}

impl Tree for RmapTree {
    type Rec = RmapRec;
    fn kind(&self) -> TreeKind {
        TreeKind::Rmap
    }
    fn decode(&self, b: &[u8]) -> RmapRec {
        RmapRec::decode(b)
    }
    fn encode(&self, r: &RmapRec, b: &mut [u8]) {
        r.encode(b);
    }
    fn put_key(&self, r: &RmapRec, b: &mut [u8]) {
        put_half(b, r.order());
        put_half(&mut b[20..], r.last_order());
    }
    fn cmp_high(&self) -> Option<CompareKeys> {
        Some(|a, b| get_half(a).cmp(&get_half(b)))
    }
    fn cmp_rec(&self, s: &RmapRec, t: &RmapRec) -> Ordering {
        s.order().cmp(&t.order())
    }
    fn cmp_key(&self, k: &[u8], t: &RmapRec) -> Ordering {
        get_half(k).cmp(&t.order())
    }
    fn root(&self) -> (Option<u64>, u16) {
        let a = ag::get_agf(&self.agf);
        (Some(u64::from(a.roots[2].get())), a.levels[2].get() as u16)
    }
    fn set_root(&mut self, tp: &mut Trans, ptr: Option<u64>, levels: u16) {
        ag::set_agf(tp, &self.agf, |a| {
            a.roots[2].set(ptr.unwrap_or(0) as u32);
            a.levels[2].set(u32::from(levels));
        });
    }
    fn daddr(&self, tp: &Trans, ptr: u64) -> Option<DiskAddr> {
        group_daddr(tp, self.agno, ptr)
    }
    fn owner(&self) -> u64 {
        u64::from(self.agno.0)
    }
    fn alloc(&mut self, tp: &mut Trans, _near: u64) -> Result<u64> {
        self.count(tp, 1);
        agfl::take_for_tree(tp, self.agno, &self.agf)
    }
    fn free(&mut self, tp: &mut Trans, ptr: u64) -> Result<()> {
        self.count(tp, -1);
        agfl::put_from_tree(tp, self.agno, &self.agf, ptr)
    }
}

impl RmapTree {
    /// Counts the tree's blocks; those it has are no longer kept for it.
    fn count(&self, tp: &mut Trans, by: i32) {
        ag::set_agf(tp, &self.agf, |a| a.rmap_blocks.set(a.rmap_blocks.get().saturating_add_signed(by)));
        kept::grew(&tp.vol, self.agno, TreeKind::Rmap, i64::from(by));
    }
}

fn cursor<'a>(tp: &'a mut Trans, agno: AgNumber, agf: &Buf) -> Cursor<'a, RmapTree> {
    Cursor::new(tp, RmapTree { agno, agf: agf.clone() })
}

/// The record of the same owner that has block `at.start`, at the same place of the file.
fn covering(c: &mut Cursor<'_, RmapTree>, at: &RmapRec) -> Result<Option<RmapRec>> {
    let mut found = None;
    let place = |r: &RmapRec| if r.counts_offsets() { r.offset.wrapping_add(u64::from(at.start - r.start)) } else { r.offset };
    c.visit_under(&|key| get_half(key).0 <= at.start && get_half(&key[20..]).0 >= at.start, &mut |r| {
        let inside = r.start <= at.start && at.start - r.start < r.len;
        if inside && r.owner == at.owner && (place(&r) ^ at.offset) & !rmap_flag::UNWRITTEN == 0 {
            found = Some(r);
        }
        found.is_none()
    })?;
    Ok(found)
}

/// Enters an owner, joined with what it has to the left and right.
fn enter(tp: &mut Trans, agno: AgNumber, agf: &Buf, mut r: RmapRec) -> Result<()> {
    let mut c = cursor(tp, agno, agf);
    let step = u64::from(r.counts_offsets());
    let joins = |l: &RmapRec| l.offset & rmap_flag::UNWRITTEN == r.offset & rmap_flag::UNWRITTEN;
    let has_left = r.start > 0 && (step == 0 || r.offset & !(rmap_flag::ATTR_FORK | rmap_flag::UNWRITTEN) > 0);
    let (mut left, mut right) = (None, None);
    if has_left {
        let before = RmapRec { start: r.start - 1, len: 1, owner: r.owner, offset: r.offset - step };
        left = covering(&mut c, &before)?.filter(|l| l.end() == r.start && joins(l));
    }
    let after = RmapRec { start: r.end(), offset: r.next_offset(), ..r };
    if let Some(n) = c.lookup_eq(&after)?.filter(joins) {
        right = Some(n);
    }
    if let Some(n) = right {
        c.delete()?;
        r.len = r.len.saturating_add(n.len);
    }
    match left {
        Some(l) => {
            if c.lookup_eq(&l)? != Some(l) {
                return Err(ag::corrupt(agf, "has an rmapbt that is out of order"));
            }
            c.update(&RmapRec { len: l.len.saturating_add(r.len), ..l })
        }
        None => c.insert(&r),
    }
}

/// Takes an owner off; the record has the whole extent.
fn leave(tp: &mut Trans, agno: AgNumber, agf: &Buf, r: RmapRec) -> Result<()> {
    let mut c = cursor(tp, agno, agf);
    let found = covering(&mut c, &r)?.filter(|f| f.end() >= r.end());
    let Some(f) = found else { return Err(ag::corrupt(agf, "has no record of an owner that gives blocks up")) };
    cut_out(&mut c, agf, f, r.start, r.len)
}

/// Takes a part out of a record.
fn cut_out(c: &mut Cursor<'_, RmapTree>, agf: &Buf, f: RmapRec, start: u32, len: u32) -> Result<()> {
    if c.lookup_eq(&f)? != Some(f) {
        return Err(ag::corrupt(agf, "has an rmapbt that is out of order"));
    }
    let (before, end) = (start - f.start, start.saturating_add(len));
    if before > 0 {
        c.update(&RmapRec { len: before, ..f })?;
    } else {
        c.delete()?;
    }
    if end < f.end() {
        let front = RmapRec { len: end - f.start, ..f };
        c.insert(&RmapRec { start: end, len: f.end() - end, owner: f.owner, offset: front.next_offset() })?;
    }
    Ok(())
}

/// Notes that an extent of the group, which the transaction has locked, got or lost an owner.
///
/// # Errors
/// The tree is corrupt.
pub(super) fn change(tp: &mut Trans, agno: AgNumber, agf: &Buf, start: u32, len: u32, owner: Owner, add: bool) -> Result<()> {
    if !tp.vol.geo.rmapbt() || owner.id == rmap_owner::NULL {
        return Ok(());
    }
    if owner.id == rmap_owner::UNKNOWN {
        return forget_all(tp, agno, agf, start, len);
    }
    let r = RmapRec { start, len, owner: owner.id, offset: owner.offset };
    if add { enter(tp, agno, agf, r) } else { leave(tp, agno, agf, r) }
}

/// Takes whatever owners are left off an extent that a crash kept from being freed.
fn forget_all(tp: &mut Trans, agno: AgNumber, agf: &Buf, start: u32, len: u32) -> Result<()> {
    let mut c = cursor(tp, agno, agf);
    let end = start.saturating_add(len);
    let mut found = Vec::new();
    c.visit_under(&|key| get_half(key).0 < end && get_half(&key[20..]).0 >= start, &mut |r| {
        if r.start < end && r.end() > start {
            found.push(r);
        }
        true
    })?;
    for f in found {
        let (from, to) = (f.start.max(start), f.end().min(end));
        cut_out(&mut c, agf, f, from, to - from)?;
    }
    Ok(())
}

/// Finishes an intent about reverse mappings.
///
/// # Locks
/// Takes the group's AGF and keeps it.
///
/// # Errors
/// The tree is corrupt, or there is no block for it.
pub fn finish_rmap(tp: &mut Trans, e: &IntentExtent) -> Result<()> {
    let (agno, start) = (tp.vol.geo.fsb_agno(e.start), tp.vol.geo.fsb_agbno(e.start).0);
    let agf = ag::agf(tp, agno)?;
    agfl::fix(tp, agno, &agf)?;
    let flag = |bit: u32, to: u64| if e.flags & bit != 0 { to } else { 0 };
    let fork = flag(rmap_op::ATTR_FORK, rmap_flag::ATTR_FORK) | flag(rmap_op::BMBT, rmap_flag::BMBT);
    let unwritten = flag(rmap_op::UNWRITTEN, rmap_flag::UNWRITTEN);
    let offset = if rmap_owner::is_metadata(e.owner) { 0 } else { e.offset };
    let r = RmapRec { start, len: e.len, owner: e.owner, offset: offset | fork | unwritten };
    match e.flags & 0xff {
        rmap_op::MAP | rmap_op::MAP_SHARED | rmap_op::ALLOC => enter(tp, agno, &agf, r),
        rmap_op::UNMAP | rmap_op::UNMAP_SHARED | rmap_op::FREE => leave(tp, agno, &agf, r),
        rmap_op::CONVERT | rmap_op::CONVERT_SHARED => {
            leave(tp, agno, &agf, r)?;
            enter(tp, agno, &agf, r)
        }
        _ => Err(ag::corrupt(&agf, "is to follow an unknown intent about owners")),
    }
}

/// Notes a change of a file's mapping, in a link of its own: `op` without regard to sharing.
pub fn defer_rmap(tp: &mut Trans, op: u32, ino: Ino, attr_fork: bool, e: &Extent) {
    if !tp.vol.geo.rmapbt() {
        return;
    }
    let flag = |on: bool, bit: u32| if on { bit } else { 0 };
    let flags = op | flag(attr_fork, rmap_op::ATTR_FORK) | flag(e.unwritten, rmap_op::UNWRITTEN);
    let x = IntentExtent { owner: ino.0, start: e.start, offset: e.off.0, len: e.len, flags };
    tp.defer(Deferred::new(item::RUI, x, finish_rmap));
}

/// Notes that blocks are, or are no longer, staged for copy-on-write.
pub(super) fn defer_staged(tp: &mut Trans, start: FsBlock, len: u32, add: bool) {
    if !tp.vol.geo.rmapbt() {
        return;
    }
    let flags = if add { rmap_op::ALLOC } else { rmap_op::FREE };
    tp.defer(Deferred::new(item::RUI, IntentExtent { owner: rmap_owner::COW, start, offset: 0, len, flags }, finish_rmap));
}
