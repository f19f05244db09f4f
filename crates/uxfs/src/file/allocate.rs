//! Changes of what a file has blocks for, and where: fallocate in all its forms.
//!
//! Each extent is changed in a link or transaction of its own: after a crash a part of the range may be done, never half of
//! an extent. What was dirty in the range is settled first.

use super::read::read_under_lock;
use super::write::{Put, Source, put};
use super::writeback::{alloc_data, next_link, widened, write_back};
use super::{FileState, Files, How, MAX_SIZE, Why, drop_pages, has_data, touch, zero_part, zero_tail};
use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::trans::Trans;
use crate::volume::Volume;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uxfs_format::extent::{Extent, MAX_EXTENT};
use uxfs_format::inode::flag2;
use uxfs_format::{CheckpointSeq, FileBlock};
use uxfs_journal::{Hole, hole};

/// What fallocate does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Gives holes blocks that read as zeros; the file grows to the range's end unless `keep_size`.
    Reserve {
        /// The size stays.
        keep_size: bool,
    },
    /// Makes it a hole. The size stays.
    Punch,
    /// Makes it zeros that have blocks.
    Zero {
        /// The size stays.
        keep_size: bool,
    },
    /// Takes it out; what is behind moves up.
    Collapse,
    /// Puts a hole before what is at its begin, which moves back.
    Insert,
    /// Gives the file blocks of its own where it shares some.
    Unshare,
}

/// Changes `len` bytes of a regular file from `offset` on.
///
/// # Locks
/// The file's lock and the claim of all that is written back exclusively, `ilock` for each extent.
///
/// # Errors
/// `NoSpace`, [`Error::TooLarge`]; [`Error::Invalid`] for an empty range, or one that must lie on blocks and within the file
/// and does not.
pub fn allocate(files: &Arc<Files>, inode: &Arc<Inode>, what: Allocate, offset: u64, len: u64) -> Result<()> {
    inode.vol.check_writable()?;
    let end = offset.checked_add(len).filter(|e| *e <= MAX_SIZE).ok_or(Error::TooLarge)?;
    if len == 0 {
        return Err(Error::Invalid { what: "the range is empty" });
    }
    let st = files.state(inode);
    let _io = st.lock.all();
    let res = change(files, inode, st, what, offset..end);
    if !matches!(res, Err(Error::Invalid { .. } | Error::TooLarge)) {
        // Also where space ran out half-way.
        touch(inode, st);
        files.note_dirty(inode, st, How::default());
    }
    res
}

fn change(files: &Arc<Files>, inode: &Arc<Inode>, st: &FileState, what: Allocate, range: Range<u64>) -> Result<()> {
    let (offset, end, len) = (range.start, range.end, range.end - range.start);
    let bs = u64::from(inode.vol.geo.blocksize);
    let size = st.size.load(Ordering::Acquire);
    let whole =
        || if (offset | len).is_multiple_of(bs) { Ok(()) } else { Err(Error::Invalid { what: "the range does not lie on blocks" }) };
    match what {
        Allocate::Reserve { keep_size } => {
            reserve(inode, st, offset / bs, end.div_ceil(bs))?;
            grow(inode, st, if keep_size { size } else { size.max(end) })?;
        }
        Allocate::Punch => punch(inode, st, offset, end)?,
        Allocate::Zero { keep_size } => {
            punch(inode, st, offset, end)?;
            reserve(inode, st, offset / bs, end.div_ceil(bs))?;
            grow(inode, st, if keep_size { size } else { size.max(end) })?;
        }
        Allocate::Collapse => {
            whole()?;
            if end >= size {
                return Err(Error::Invalid { what: "the range reaches the end of the file: truncate it" });
            }
            write_back(files, inode, offset, u64::MAX, Why::Sync)?;
            punch(inode, st, offset, end)?;
            shift(inode, st, end / bs, len / bs, true)?;
            drop_pages(inode, st, offset / bs, u64::MAX);
            set_size(inode, st, size - len)?;
        }
        Allocate::Insert => {
            whole()?;
            if offset >= size {
                return Err(Error::Invalid { what: "the range begins behind the end of the file" });
            }
            let new = size.checked_add(len).filter(|s| *s <= MAX_SIZE).ok_or(Error::TooLarge)?;
            write_back(files, inode, offset, u64::MAX, Why::Sync)?;
            // The size first: extents behind the end could be taken for leftovers.
            set_size(inode, st, new)?;
            shift(inode, st, offset / bs, len / bs, false)?;
            drop_pages(inode, st, offset / bs, u64::MAX);
        }
        Allocate::Unshare => unshare(inode, st, offset / bs, end.min(size).div_ceil(bs))?,
    }
    Ok(())
}

/// Gives each hole in `first..end` (blocks) unwritten blocks.
fn reserve(inode: &Arc<Inode>, st: &FileState, first: u64, end: u64) -> Result<()> {
    let (first, end) = widened(inode, first, end);
    let _one = st.claims.all();
    let vol = &inode.vol;
    let hole = |from: u64| -> Result<Option<(u64, u64)>> {
        let _i = inode.lock_shared();
        map::load(inode, Which::Data)?;
        let d = inode.data();
        let mut at = from;
        while at < end {
            match d.data.at(at) {
                Some(e) => at = e.end(),
                None => return Ok(Some((at, d.data.extents.range(at..).next().map_or(end, |x| *x.0).min(end)))),
            }
        }
        Ok(None)
    };
    let (mut at, mut need) = (first, 0);
    while let Some((from, to)) = hole(at)? {
        need += to - from;
        at = to;
    }
    // Told at once if it cannot fit, rather than after the volume was filled.
    vol.counters.take(need)?;
    vol.counters.give(need);
    at = first;
    while let Some((from, to)) = hole(at)? {
        let len = (to - from).min(u64::from(MAX_EXTENT)) as u32;
        let mut tp = Trans::new(vol, vol.res.write, len + vol.res.write_blocks + 1)?;
        let _i = inode.lock();
        let (start, got) = alloc_data(&mut tp, inode, from, len)?;
        map::map(&mut tp, inode, Which::Data, Extent { off: FileBlock(from), start, len: got, unwritten: true })?;
        tp.commit()?;
        at = from + u64::from(got);
    }
    Ok(())
}

/// Makes bytes `offset..end` read as zeros, and frees the blocks that lie in them as a whole.
pub(super) fn punch(inode: &Arc<Inode>, st: &FileState, offset: u64, end: u64) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let size = st.size.load(Ordering::Acquire);
    let (first, last) = (offset.div_ceil(bs), end / bs);
    if first > last {
        return zero_part(inode, st, offset, end.min(size));
    }
    zero_part(inode, st, offset, (first * bs).min(size))?;
    zero_part(inode, st, last * bs, end.min(size))?;
    if first == last {
        return Ok(());
    }
    // Pages that would take the core's size with them do not go before they have.
    if size.min(end) > inode.data().core.size {
        write_back(&st.files, inode, 0, u64::MAX, Why::Sync)?;
    }
    let _one = st.claims.all();
    drop_pages(inode, st, first, last);
    let vol = inode.vol.clone();
    let mut tp = Trans::new_must_succeed(&vol, vol.res.itruncate, 2 * vol.res.write_blocks)?;
    let _i = inode.lock();
    map::load(inode, Which::Data)?;
    inode.log(&mut tp, 0)?;
    while !map::unmap(&mut tp, inode, Which::Data, first, last, 1)? {
        next_link(&mut tp, inode)?;
    }
    tp.commit()?;
    drop_pages(inode, st, first, last);
    Ok(())
}

/// Lets a file grow; what lies between reads as zeros.
fn grow(inode: &Arc<Inode>, st: &FileState, new: u64) -> Result<()> {
    let old = st.size.load(Ordering::Acquire);
    if new <= old {
        return Ok(());
    }
    zero_tail(inode, st, old)?;
    set_size(inode, st, new)
}

pub(super) fn set_size(inode: &Arc<Inode>, st: &FileState, new: u64) -> Result<()> {
    let _one = st.claims.all();
    inode.change(|c| c.size = new)?;
    st.size.store(new, Ordering::Release);
    Ok(())
}

/// Moves every extent from block `from` on by `by` blocks, up or back, one in each link.
fn shift(inode: &Arc<Inode>, st: &FileState, from: u64, by: u64, up: bool) -> Result<()> {
    let _one = st.claims.all();
    let vol = inode.vol.clone();
    let mut tp = Trans::new_must_succeed(&vol, vol.res.write, 2 * vol.res.write_blocks)?;
    let locked = inode.lock();
    map::load(inode, Which::Data)?;
    inode.log(&mut tp, 0)?;
    map::split_at(&mut tp, inode, from)?;
    next_link(&mut tp, inode)?;
    // In the order in which the place of each is free: from the front upwards, from the back backwards.
    let mut left: Vec<Extent> = inode.data().data.extents.range(from..).map(|x| *x.1).collect();
    if up {
        left.reverse();
    }
    while let Some(e) = left.pop() {
        let piece = map::unmap_piece(&mut tp, inode, Which::Data, &e, e.off.0, e.end())?;
        let off = FileBlock(if up { e.off.0 - by } else { e.off.0 + by });
        map::map(&mut tp, inode, Which::Data, Extent { off, ..piece })?;
        next_link(&mut tp, inode)?;
    }
    let seq = tp.commit()?;
    drop(locked);
    force_move(&vol, seq)
}

/// Makes durable that blocks moved. Nothing may be written in place before: after a crash it would be found where they were.
pub(super) fn force_move(vol: &Volume, seq: CheckpointSeq) -> Result<()> {
    if hole(Hole::UnforcedMove) { Ok(()) } else { Ok(vol.journal.force(seq)?) }
}

/// Makes shared blocks in `first..end` dirty, so that write-back gives them a place of their own.
fn unshare(inode: &Arc<Inode>, st: &FileState, first: u64, end: u64) -> Result<()> {
    if inode.data().core.flags2 & flag2::REFLINK == 0 {
        return Ok(());
    }
    let bs = inode.vol.geo.blocksize as usize;
    let mut data = vec![0; bs];
    for block in first..end {
        if has_data(inode, st, block)? {
            read_under_lock(inode, st, block * bs as u64, &mut data, false)?;
            put(inode, st, block * bs as u64, Source::lent(&data), Put::default())?;
        }
    }
    Ok(())
}
