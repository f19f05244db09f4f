//! Sharing blocks between files: clone and dedupe.

use super::allocate::{punch, set_size};
use super::read::read_under_lock;
use super::writeback::write_back;
use super::{FileState, Files, How, Why, drop_pages, touch, zero_tail};
use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::space;
use crate::trans::Trans;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uxfs_format::FileBlock;
use uxfs_format::extent::Extent;
use uxfs_format::inode::flag2;

/// Bytes that are compared at a time.
const COMPARED: u64 = 256 << 10;

/// A place in a file.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The file.
    pub inode: &'a Arc<Inode>,
    /// Bytes from its begin.
    pub offset: u64,
}

/// Lets `to` have the blocks of `len` bytes from `from`; with `only_same` only if both hold the same bytes already. Returns
/// false if they do not.
///
/// # Locks
/// Both files' locks exclusively, in the order of their numbers; then as write-back and fallocate.
///
/// # Errors
/// [`Error::Unsupported`] on a volume without reflink; [`Error::Invalid`] for a range that does not lie on blocks (its end may
/// be that of the source), reaches beyond the source, or overlaps; `NoSpace`.
///
/// # Crash
/// A part of the range may be shared, from its begin on; the rest is as it was.
pub fn share(files: &Arc<Files>, from: Place<'_>, to: Place<'_>, len: u64, only_same: bool) -> Result<bool> {
    let vol = &to.inode.vol;
    vol.check_writable()?;
    if !vol.geo.reflink() {
        return Err(Error::Unsupported { what: "sharing blocks on a volume without reflink".into() });
    }
    let same_file = from.inode.ino == to.inode.ino;
    let (src, dst) = (files.state(from.inode), files.state(to.inode));
    let (a, b) = if from.inode.ino <= to.inode.ino { (&src, &dst) } else { (&dst, &src) };
    let _first = a.lock.all();
    let _second = (!same_file).then(|| b.lock.all());
    let bs = u64::from(vol.geo.blocksize);
    let (src_size, dst_size) = (src.size.load(Ordering::Acquire), dst.size.load(Ordering::Acquire));
    let end = from.offset.checked_add(len).filter(|e| *e <= src_size);
    let to_end = to.offset.checked_add(len).ok_or(Error::TooLarge)?;
    let Some(end) = end else { return Err(Error::Invalid { what: "the range reaches beyond the end of the source" }) };
    let tail_fits = end.is_multiple_of(bs) || (end == src_size && to_end >= dst_size);
    if !(from.offset | to.offset).is_multiple_of(bs) || !tail_fits {
        return Err(Error::Invalid { what: "the range does not lie on blocks" });
    }
    if same_file && from.offset < to_end && to.offset < end {
        return Err(Error::Invalid { what: "the ranges overlap" });
    }
    if only_same && (to_end > dst_size || !are_same(from, src, to, dst, len)?) {
        return Ok(false);
    }
    if to.offset > dst_size {
        zero_tail(to.inode, dst, dst_size)?;
    }
    for i in [from.inode, to.inode] {
        // Nothing dirty may be left: what was promised no blocks must not meet shared ones later.
        write_back(files, i, 0, u64::MAX, Why::Sync)?;
        mark_shared(i)?;
    }
    if !only_same {
        touch(to.inode, dst);
        files.note_dirty(to.inode, dst, How::default());
    }
    let blocks = len.div_ceil(bs);
    let (first, target) = (from.offset / bs, to.offset / bs);
    let mut at = first;
    while at < first + blocks {
        let next = next_extent(from.inode, at, first + blocks)?;
        let hole_end = next.map_or(first + blocks, |e| e.off.0);
        if hole_end > at {
            punch(to.inode, dst, (at - first + target) * bs, (hole_end - first + target) * bs)?;
        }
        let Some(e) = next else { break };
        let len = share_extent(to.inode, dst, Extent { off: FileBlock(e.off.0 - first + target), ..e })?;
        at = e.off.0 + u64::from(len);
    }
    if to_end > dst_size {
        set_size(to.inode, dst, to_end)?;
    }
    Ok(true)
}

/// Lets a file have an extent of another one, or of its own elsewhere, in place of the hole or the extent that it has there, as far as
/// that goes. Returns so many blocks. All is done in one link: a crash leaves the one or the other, and where there is no space nothing
/// has changed.
fn share_extent(inode: &Arc<Inode>, st: &FileState, e: Extent) -> Result<u32> {
    let vol = inode.vol.clone();
    if space::is_short(&vol, vol.geo.fsb_agno(e.start))? {
        return Err(Error::NoSpace);
    }
    let _one = st.claims.all();
    let mut tp = Trans::new(&vol, vol.res.write, 2 * vol.res.write_blocks + 1)?;
    let _i = inode.lock();
    map::load(inode, Which::Data)?;
    let end = {
        let d = inode.data();
        let next = || d.data.extents.range(e.off.0..).next().map(|x| *x.0);
        d.data.at(e.off.0).map(|old| old.end()).or_else(next).map_or(e.end(), |end| end.min(e.end()))
    };
    let e = Extent { len: (end - e.off.0) as u32, ..e };
    drop_pages(inode, st, e.off.0, end);
    inode.log(&mut tp, 0)?;
    map::unmap(&mut tp, inode, Which::Data, e.off.0, end, 1)?;
    space::defer_increase(&mut tp, e.start, e.len);
    map::map(&mut tp, inode, Which::Data, e)?;
    tp.commit()?;
    drop_pages(inode, st, e.off.0, end);
    Ok(e.len)
}

fn are_same(from: Place<'_>, src: &FileState, to: Place<'_>, dst: &FileState, len: u64) -> Result<bool> {
    let (mut a, mut b) = (vec![0; COMPARED as usize], vec![0; COMPARED as usize]);
    let mut done = 0;
    while done < len {
        let n = (len - done).min(COMPARED) as usize;
        read_under_lock(from.inode, src, from.offset + done, &mut a[..n], false)?;
        read_under_lock(to.inode, dst, to.offset + done, &mut b[..n], false)?;
        if a[..n] != b[..n] {
            return Ok(false);
        }
        done += n as u64;
    }
    Ok(true)
}

/// Says of an inode that it may have shared blocks.
fn mark_shared(inode: &Arc<Inode>) -> Result<()> {
    if inode.data().core.flags2 & flag2::REFLINK != 0 {
        return Ok(());
    }
    inode.change(|c| c.flags2 |= flag2::REFLINK)
}

/// The first written extent in `from..end` (blocks), cut to it.
fn next_extent(inode: &Arc<Inode>, from: u64, end: u64) -> Result<Option<Extent>> {
    if from >= end {
        return Ok(None);
    }
    let _i = inode.lock_shared();
    map::load(inode, Which::Data)?;
    let d = inode.data();
    let x = &d.data.extents;
    let first = x.range(..=from).next_back().map_or(from, |x| *x.0);
    let found = x.range(first..end).map(|x| *x.1).find(|e| e.end() > from && !e.unwritten);
    Ok(found.map(|e| {
        let (s, t) = (e.off.0.max(from), e.end().min(end));
        Extent { off: FileBlock(s), start: e.at(s), len: (t - s) as u32, unwritten: false }
    }))
}
