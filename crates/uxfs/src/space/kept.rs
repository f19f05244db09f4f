//! Blocks that a group keeps for trees that must be able to grow on a full volume.
//!
//! A reference count, an owner or a free inode is entered in a link that cannot be given up any more, and in the group where its
//! blocks lie: if the tree found no block there, the volume would be shut down, and recovery, which comes to the same link, could not
//! open it again. So files, inodes and the trees that map files leave to each group what its refcountbt, finobt and rmapbt may still need.

use crate::ag;
use crate::error::Result;
use crate::trans::Trans;
use crate::volume::Volume;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use uxfs_format::ag::{Agf, Agi};
use uxfs_format::btree::TreeKind;
use uxfs_format::superblock::ro_compat;
use uxfs_format::{AgNumber, Geometry};

/// A group shares no more blocks once less than this part of what it kept is left.
const CRITICAL: i64 = 10;

/// Blocks of a tree of `records` whose blocks are filled by half, as badly as a tree can be.
fn largest(g: &Geometry, kind: TreeKind, records: u64) -> u64 {
    let least = |level: u16| (kind.shape().max(g.blocksize, level) as u64 / 2).max(2);
    let mut level = records.div_ceil(least(0));
    let mut blocks = level;
    while level > 1 {
        level = level.div_ceil(least(1));
        blocks += level;
    }
    blocks
}

/// Blocks that a tree of a group has at most; 0 for a tree that the volume has not.
fn most(g: &Geometry, agno: AgNumber, kind: TreeKind) -> i64 {
    // The log's blocks are nobody's else.
    let log = if g.logstart.0 != 0 && g.fsb_agno(g.logstart) == agno { g.logblocks } else { 0 };
    let blocks = u64::from(g.ag_length(agno).saturating_sub(log));
    let n = match kind {
        TreeKind::Rmap if g.rmapbt() => largest(g, kind, blocks).max(blocks / 100),
        TreeKind::Refcount if g.reflink() => largest(g, kind, blocks),
        TreeKind::Fino if g.finobt() => largest(g, kind, (blocks << g.inopblog) / 64),
        _ => 0,
    };
    n as i64
}

fn counter(vol: &Volume, agno: AgNumber, kind: TreeKind) -> Option<&AtomicI64> {
    let kept = &vol.groups.get(agno.0 as usize)?.kept;
    match kind {
        TreeKind::Rmap => Some(&kept.rmap),
        TreeKind::Refcount | TreeKind::Fino => Some(&kept.others),
        _ => None,
    }
}

/// Works out what a group keeps, from what its trees have already. Returns the blocks.
pub fn load(vol: &Volume, agno: AgNumber, agf: &Agf, agi: &Agi) -> u64 {
    let g = &vol.geo;
    let inobtcount = g.has_ro(ro_compat::INOBTCNT);
    let rest = |kind, has: u32| (most(g, agno, kind) - i64::from(has)).max(0);
    // The rmapbt's root is not counted among the blocks of the trees of free space, from which it comes.
    let rmap = rest(TreeKind::Rmap, agf.rmap_blocks.get().saturating_sub(1));
    let finobt = rest(TreeKind::Fino, if inobtcount { agi.fblocks.get() } else { 1 });
    let others = rest(TreeKind::Refcount, agf.refcount_blocks.get()) + finobt;
    if let Some(p) = vol.groups.get(agno.0 as usize) {
        p.kept.rmap.store(rmap, Ordering::Relaxed);
        p.kept.others.store(others, Ordering::Relaxed);
    }
    (rmap + others) as u64
}

/// A tree grew by `by` blocks, out of what its group keeps. Other trees than those three grow out of what is free.
pub fn grew(vol: &Volume, agno: AgNumber, kind: TreeKind, by: i64) {
    if let Some(c) = counter(vol, agno, kind) {
        let before = c.fetch_sub(by, Ordering::Relaxed);
        vol.counters.aside_changed((before - by).max(0) - before.max(0));
    }
}

/// Blocks that a group keeps now.
pub(super) fn now(vol: &Volume, agno: AgNumber) -> u32 {
    let sum = vol.groups.get(agno.0 as usize).map_or(0, |p| {
        let kept = [&p.kept.rmap, &p.kept.others];
        kept.iter().map(|c| c.load(Ordering::Relaxed).max(0)).sum()
    });
    u32::try_from(sum).unwrap_or(u32::MAX)
}

/// True if blocks of a group get no further owners: its trees could need more than there is. Blocks with several owners may need
/// more records than any tree keeps room for, and a volume may have been filled by somebody who keeps nothing.
///
/// # Locks
/// The group's AGF, for a moment.
///
/// # Errors
/// The device's; the group is corrupt.
pub fn is_short(vol: &Arc<Volume>, agno: AgNumber) -> Result<bool> {
    let g = &vol.geo;
    let left = |kind| counter(vol, agno, kind).map_or(0, |c| c.load(Ordering::Relaxed));
    let owners = most(g, agno, TreeKind::Rmap);
    let others = most(g, agno, TreeKind::Refcount) + most(g, agno, TreeKind::Fino);
    if left(TreeKind::Rmap) < owners / CRITICAL || left(TreeKind::Refcount) < others / CRITICAL {
        return Ok(true);
    }
    let mut tp = Trans::reader(vol);
    let agf = ag::agf(&mut tp, agno)?;
    let free = i64::from(ag::get_agf(&agf).freeblks.get());
    Ok(free < i64::from(super::agfl::least(&tp, &agf)) + (owners + others) / CRITICAL)
}
