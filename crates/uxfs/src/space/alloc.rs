//! Allocating and freeing extents.

use super::discard::with_freed;
use super::freetree::FreeTree;
use super::{Owner, agfl, await_freed, busy, kept, rmap};
use crate::ag;
use crate::btree::Cursor;
use crate::error::{Error, Result};
use crate::trans::{Buf, Deferred, Trans};
use std::time::Duration;
use uxfs_format::btree::FreeRec;
use uxfs_format::log::{IntentExtent, item};
use uxfs_format::{AgBlock, AgNumber, FsBlock};

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// As near to this as may be.
    pub near: FsBlock,
    /// Least blocks.
    pub min: u32,
    /// Most blocks.
    pub max: u32,
    /// The start is a multiple of this within its group.
    pub align: u32,
    /// Blocks that must be left in the group: what the same transaction takes after, for the tree that maps the extent.
    pub spare: u32,
    /// Whose it will be.
    pub owner: Owner,
}

/// Neighbours of the wanted place that are looked at before the choice goes by size.
const NEAR_STEPS: usize = 16;
/// Times that locked groups below are asked again before there is said to be no space, a millisecond apart.
const LAST_TRIES: usize = 200;
/// Times that blocks are looked for again that were reserved, and so are there, once more of them are usable: others may be faster.
const FREED_TRIES: usize = 64;
/// Extents by size that are looked at when alignment or busy extents cut them.
const SIZE_STEPS: usize = 256;

/// Allocates an extent of `min` to `max` blocks, out of the transaction's reservation.
///
/// # Locks
/// Waits for AGFs in rising order and keeps the one it allocates in; on an almost full volume it also asks for lower ones
/// again and again, for a moment: their holders may wait for ours.
///
/// # Errors
/// `NoSpace` if no group has `min` blocks in a row.
pub fn alloc(tp: &mut Trans, want: Want) -> Result<(FsBlock, u32)> {
    // Who wants more than one block in a row makes do with less.
    let again = if want.min > 1 { 1 } else { FREED_TRIES };
    let mut found = with_freed(&tp.vol.clone(), again, || alloc_anywhere(tp, want, false));
    if matches!(found, Err(Error::NoSpace)) && want.owner.is_bmbt() {
        // Half way through an operation, that is better than to shut the volume down.
        found = alloc_anywhere(tp, want, true);
    }
    found
}

/// `kept`: also out of what groups keep for other trees.
fn alloc_anywhere(tp: &mut Trans, want: Want, kept: bool) -> Result<(FsBlock, u32)> {
    let count = tp.vol.geo.agcount;
    let home = tp.vol.geo.fsb_agno(want.near).0.min(count - 1);
    let mut target = tp.vol.geo.fsb_agbno(want.near).0;
    // First whoever is free at once, then in rising order with waiting, and at last with the least that will do.
    let passes = [(false, want.max), (true, want.max), (true, want.min)];
    for (blocking, min) in passes.into_iter().chain((0..LAST_TRIES).map(|_| (true, want.min))) {
        let mut locked = false;
        for i in 0..count {
            let agno = AgNumber((home + i) % count);
            let may_wait = blocking && tp.highest_agf.is_none_or(|h| agno.0 >= h);
            if i > 0 {
                target = 0;
            }
            let w = Want { min: min.min(want.max), ..want };
            match in_group(tp, agno, target, w, may_wait, kept)? {
                Look::Found(b, n) => return Ok((tp.vol.geo.fsb(agno, AgBlock(b)), n)),
                Look::Locked => locked = true,
                Look::Lacking => {}
            }
        }
        target = tp.vol.geo.fsb_agbno(want.near).0;
        if blocking && min == want.min {
            if !locked {
                break;
            }
            uxfs_sync::explored::pause(Duration::from_millis(1));
        }
    }
    Err(Error::NoSpace)
}

/// Allocates one block of metadata that is logged, in group `agno`.
///
/// # Errors
/// `NoSpace`.
pub fn alloc_metadata(tp: &mut Trans, agno: AgNumber, near: AgBlock, owner: Owner) -> Result<AgBlock> {
    let w = Want { near: FsBlock(0), min: 1, max: 1, align: 1, spare: 0, owner };
    with_freed(&tp.vol.clone(), FREED_TRIES, || {
        let found = alloc_in_group(tp, agno, near.0, w, true)?;
        found.map(|(b, _)| AgBlock(b)).ok_or(Error::NoSpace)
    })
}

/// Allocates in one group; `None` if it has not what is wanted, or is locked and `wait` is false.
///
/// # Errors
/// The group is corrupt.
pub fn alloc_in_group(tp: &mut Trans, agno: AgNumber, near: u32, want: Want, wait: bool) -> Result<Option<(u32, u32)>> {
    // The inobt grew out of `spare` when its chunk was allocated; the other trees out of what is kept for them.
    let kept = matches!(want.owner, Owner::REFCOUNT | Owner::INOBT);
    Ok(match in_group(tp, agno, near, want, wait, kept)? {
        Look::Found(b, n) => Some((b, n)),
        Look::Locked | Look::Lacking => None,
    })
}

/// What a look into a group came to.
enum Look {
    /// Blocks were allocated: the first, and how many.
    Found(u32, u32),
    /// Somebody holds the AGF.
    Locked,
    /// The group has not what is wanted.
    Lacking,
}

fn in_group(tp: &mut Trans, agno: AgNumber, near: u32, want: Want, wait: bool, from_kept: bool) -> Result<Look> {
    let (before, highest) = (tp.joined_count(), tp.highest_agf);
    let agf = if wait { Some(ag::agf(tp, agno)?) } else { ag::try_agf(tp, agno)? };
    let Some(agf) = agf else { return Ok(Look::Locked) };
    // A look before the free list is touched: a group that cannot help stays clean, so another may be tried.
    let a = ag::get_agf(&agf);
    let least = agfl::least(tp, &agf);
    let kept = if from_kept { 0 } else { kept::now(&tp.vol, agno) };
    let usable = (a.freeblks.get() + a.flcount.get()).saturating_sub(least.max(a.flcount.get()) + kept);
    if usable < want.min + want.spare || a.longest.get() < want.min || pick(tp, agno, &agf, near, want)?.is_none() {
        // Its trees' blocks, too: who gets the group next needs them, and may hold what we wait for next.
        tp.release_since(before);
        tp.highest_agf = highest;
        return Ok(Look::Lacking);
    }
    let want = Want { max: want.max.min(usable - want.spare), ..want };
    if !tp.standalone(|tp| agfl::fix(tp, agno, &agf))? {
        return Ok(Look::Lacking);
    }
    let Some((rec, start, len)) = pick(tp, agno, &agf, near, want)? else { return Ok(Look::Lacking) };
    check_inside(tp, agno, &agf, rec)?;
    carve(tp, agno, &agf, rec, start, len)?;
    rmap::change(tp, agno, &agf, start, len, want.owner, true)?;
    tp.use_blocks(len);
    Ok(Look::Found(start, len))
}

/// Refuses a record of a tree that was damaged: what lies outside the group is not there to be had.
fn check_inside(tp: &Trans, agno: AgNumber, agf: &Buf, r: FreeRec) -> Result<()> {
    let end = u64::from(r.start) + u64::from(r.len);
    if r.start == 0 || end > u64::from(tp.vol.geo.ag_length(agno)) {
        return Err(ag::corrupt(agf, "has a free extent outside the group"));
    }
    Ok(())
}

fn tree(agno: AgNumber, agf: &Buf, by_size: bool) -> FreeTree {
    FreeTree { agno, agf: agf.clone(), by_size }
}

/// What of a free extent can be used: aligned, not busy, at most `max`, as near to `near` as it goes; for inodes where these may be.
fn usable(tp: &Trans, agno: AgNumber, r: FreeRec, near: u32, w: Want) -> Option<(u32, u32)> {
    let (mut start, mut len) = busy::trim(tp, agno, r.start, r.len);
    if w.owner == Owner::INODES {
        let range = tp.vol.geo.inode_blocks(agno);
        let end = range.end.min(start + len);
        start = start.max(range.start);
        len = end.saturating_sub(start);
    }
    if near > start && near < start + len && start + len - near >= w.max {
        (start, len) = (near, start + len - near);
    }
    let up = start.next_multiple_of(w.align.max(1)) - start;
    len = len.checked_sub(up)?.min(w.max);
    (len >= w.min).then_some((start + up, len))
}

/// Chooses a free extent and the part of it to take.
fn pick(tp: &mut Trans, agno: AgNumber, agf: &Buf, near: u32, w: Want) -> Result<Option<(FreeRec, u32, u32)>> {
    let full = |u: Option<(u32, u32)>| u.filter(|u| u.1 == w.max);
    for forward in [false, true] {
        let mut c = Cursor::new(tp, tree(agno, agf, false));
        let at = FreeRec { start: near, len: 0 };
        let mut r = if forward { c.lookup_ge(&at)? } else { c.lookup_le(&at)? };
        for _ in 0..NEAR_STEPS {
            let Some(rec) = r else { break };
            if let Some((s, n)) = full(usable(c.tp, agno, rec, near, w)) {
                return Ok(Some((rec, s, n)));
            }
            if !forward {
                break;
            }
            r = c.next()?;
        }
    }
    let mut c = Cursor::new(tp, tree(agno, agf, true));
    let mut r = c.lookup_ge(&FreeRec { start: 0, len: w.max })?;
    for _ in 0..SIZE_STEPS {
        let Some(rec) = r else { break };
        if let Some((s, n)) = full(usable(c.tp, agno, rec, near, w)) {
            return Ok(Some((rec, s, n)));
        }
        r = c.next()?;
    }
    // Nothing is long enough: the longest that will do.
    let mut r = c.lookup_le(&FreeRec { start: u32::MAX, len: u32::MAX })?;
    let mut best: Option<(FreeRec, u32, u32)> = None;
    for _ in 0..SIZE_STEPS {
        let Some(rec) = r.filter(|r| r.len >= w.min && best.is_none_or(|b| r.len > b.2)) else { break };
        if let Some((s, n)) = usable(c.tp, agno, rec, near, w)
            && best.is_none_or(|b| n > b.2)
        {
            best = Some((rec, s, n));
        }
        r = c.prev()?;
    }
    Ok(best)
}

/// A block for the free list, out of the smallest free extent that is not busy.
pub(super) fn take_for_list(tp: &mut Trans, agno: AgNumber, agf: &Buf) -> Result<Option<u32>> {
    for forced in [false, true] {
        // Nobody frees anything here while this holds the AGF, but what is busy may become usable at any time.
        let was_busy = busy::is_any_in(&tp.vol, agno);
        let mut c = Cursor::new(tp, tree(agno, agf, true));
        let mut r = c.lookup_ge(&FreeRec { start: 0, len: 0 })?;
        let mut left = SIZE_STEPS;
        while let Some(rec) = r.filter(|_| left > 0) {
            let (start, len) = busy::trim(c.tp, agno, rec.start, rec.len);
            if len > 0 {
                check_inside(c.tp, agno, agf, rec)?;
                carve(tp, agno, agf, rec, start, 1)?;
                return Ok(Some(start));
            }
            left -= 1;
            // Small extents are often those that were freed last: the large ones behind them have something.
            r = if left == SIZE_STEPS / 2 { c.lookup_le(&FreeRec { start: u32::MAX, len: u32::MAX })? } else { c.next()? };
        }
        if forced || !was_busy {
            break;
        }
        await_freed(&tp.vol)?;
    }
    Ok(None)
}

fn insert(tp: &mut Trans, agno: AgNumber, agf: &Buf, r: FreeRec) -> Result<()> {
    for by_size in [false, true] {
        Cursor::new(tp, tree(agno, agf, by_size)).insert(&r)?;
    }
    Ok(())
}

fn remove(tp: &mut Trans, agno: AgNumber, agf: &Buf, r: FreeRec) -> Result<()> {
    for by_size in [false, true] {
        let mut c = Cursor::new(tp, tree(agno, agf, by_size));
        if c.lookup_eq(&r)? != Some(r) {
            return Err(ag::corrupt(agf, "has trees of free space that disagree"));
        }
        c.delete()?;
    }
    Ok(())
}

/// Notes the new number of free blocks and the longest extent.
fn settle(tp: &mut Trans, agno: AgNumber, agf: &Buf, change: i64) -> Result<()> {
    let last = Cursor::new(tp, tree(agno, agf, true)).lookup_le(&FreeRec { start: u32::MAX, len: u32::MAX })?;
    ag::set_agf(tp, agf, |a| {
        a.longest.set(last.map_or(0, |r| r.len));
        a.freeblks.set((i64::from(a.freeblks.get()) + change).max(0) as u32);
    });
    Ok(())
}

/// Takes `len` blocks from `start` out of the free extent `rec`.
fn carve(tp: &mut Trans, agno: AgNumber, agf: &Buf, rec: FreeRec, start: u32, len: u32) -> Result<()> {
    remove(tp, agno, agf, rec)?;
    if start > rec.start {
        insert(tp, agno, agf, FreeRec { start: rec.start, len: start - rec.start })?;
    }
    let (end, rec_end) = (start + len, rec.start + rec.len);
    if end < rec_end {
        insert(tp, agno, agf, FreeRec { start: end, len: rec_end - end })?;
    }
    settle(tp, agno, agf, -i64::from(len))
}

/// Frees an extent now: into the trees, busy until durable.
///
/// # Locks
/// Takes the group's AGF and keeps it.
///
/// # Errors
/// The extent is free already, or lies outside its group.
pub fn free_now(tp: &mut Trans, agno: AgNumber, start: AgBlock, len: u32, owner: Owner) -> Result<()> {
    let agf = ag::agf(tp, agno)?;
    agfl::fix(tp, agno, &agf)?;
    let (start, end) = (start.0, u64::from(start.0) + u64::from(len));
    if start == 0 || len == 0 || end > u64::from(tp.vol.geo.ag_length(agno)) {
        return Err(ag::corrupt(&agf, "is to free blocks outside the group"));
    }
    rmap::change(tp, agno, &agf, start, len, owner, false)?;
    let end = end as u32;
    let mut c = Cursor::new(tp, tree(agno, &agf, false));
    let left = c.lookup_le(&FreeRec { start, len: 0 })?;
    let right = c.lookup_ge(&FreeRec { start, len: 0 })?;
    if left.is_some_and(|l| l.start + l.len > start) || right.is_some_and(|r| r.start < end) {
        return Err(ag::corrupt(&agf, "is to free blocks that are free already"));
    }
    let mut r = FreeRec { start, len };
    if let Some(l) = left.filter(|l| l.start + l.len == start) {
        remove(tp, agno, &agf, l)?;
        r = FreeRec { start: l.start, len: r.len + l.len };
    }
    if let Some(x) = right.filter(|x| x.start == end) {
        remove(tp, agno, &agf, x)?;
        r.len += x.len;
    }
    insert(tp, agno, &agf, r)?;
    settle(tp, agno, &agf, i64::from(len))?;
    busy::mark(tp, agno, start, len);
    Ok(())
}

/// Frees an extent and counts its blocks as free.
///
/// # Errors
/// As [`free_now`].
pub fn free_extent(tp: &mut Trans, start: FsBlock, len: u32, owner: Owner) -> Result<()> {
    if !tp.vol.geo.valid_fsb(start, len) {
        let c =
            uxfs_format::Corruption { structure: "extent", place: uxfs_format::DiskAddr(0), what: "to be freed lies outside the volume" };
        return Err(Error::Corrupt(c));
    }
    let (agno, agbno) = (tp.vol.geo.fsb_agno(start), tp.vol.geo.fsb_agbno(start));
    free_now(tp, agno, agbno, len, owner)?;
    tp.free_blocks(len);
    Ok(())
}

/// An extent that a crash kept from being freed: the log does not tell whose it was.
pub fn whoever_has(e: &IntentExtent) -> IntentExtent {
    IntentExtent { owner: Owner::UNKNOWN.id, ..*e }
}

/// Finishes an intent to free an extent.
///
/// # Errors
/// As [`free_extent`].
pub fn finish_free(tp: &mut Trans, e: &IntentExtent) -> Result<()> {
    free_extent(tp, e.start, e.len, Owner { id: e.owner, offset: e.offset })
}

/// Frees a block of the free list, which is counted as free already.
fn finish_free_agfl(tp: &mut Trans, e: &IntentExtent) -> Result<()> {
    let (agno, agbno) = (tp.vol.geo.fsb_agno(e.start), tp.vol.geo.fsb_agbno(e.start));
    free_now(tp, agno, agbno, e.len, Owner::AG)
}

/// The operation that frees an extent.
pub fn to_free(start: FsBlock, len: u32, owner: Owner) -> Deferred {
    let e = IntentExtent { owner: owner.id, offset: owner.offset, ..IntentExtent::new(start, len, 0) };
    Deferred::new(item::EFI, e, finish_free)
}

/// Frees an extent in a link of its own.
pub fn defer_free(tp: &mut Trans, start: FsBlock, len: u32, owner: Owner) {
    tp.defer(to_free(start, len, owner));
}

pub(super) fn defer_free_agfl(tp: &mut Trans, agno: AgNumber, block: u32) {
    let at = tp.vol.geo.fsb(agno, AgBlock(block));
    tp.defer(Deferred::new(item::EFI, IntentExtent::new(at, 1, 0), finish_free_agfl));
}
