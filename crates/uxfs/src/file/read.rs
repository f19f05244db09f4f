//! Reading: what pages hold, and what the device has for the rest. Whoever reads a file from front to back is read ahead of.

use super::pages::FOLIO;
use super::{FileState, Files};
use crate::error::Result;
use crate::inode::{Inode, Which};
use crate::map;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uxfs_format::extent::Extent;

/// Bytes that are copied at a time.
const COPIED: usize = 64 << 10;

/// Reads into `buf` from `offset`; returns how much there was before the end. With `drop`, nothing stays in memory that only this
/// read needed.
///
/// # Locks
/// Waits for the file's lock of the blocks that are read, then takes `ilock` shared for each run. None is held while bytes are copied,
/// but the file's.
///
/// # Errors
/// The device's; the file's extents are corrupt.
pub fn read(files: &Arc<Files>, inode: &Arc<Inode>, offset: u64, buf: &mut [u8], drop: bool) -> Result<usize> {
    let st = files.state(inode);
    locked(inode, st, offset, buf, |part| read_under_lock(inode, st, offset, part, drop))
}

/// Waits for the lock of what there is to read, and lets `fill` read it.
pub(super) fn locked(
    inode: &Inode,
    st: &FileState,
    offset: u64,
    buf: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<usize> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let end = offset.saturating_add(buf.len() as u64);
    loop {
        let size = st.size.load(Ordering::Acquire);
        if offset >= size || buf.is_empty() {
            return Ok(0);
        }
        let locked = offset - offset % bs..end.min(size).next_multiple_of(bs);
        let _io = st.lock.read(locked.clone());
        // It may have grown meanwhile, by a write that must be seen whole.
        let to = end.min(st.size.load(Ordering::Acquire));
        if to > locked.end {
            continue;
        }
        let n = to.saturating_sub(offset) as usize;
        if cfg!(debug_assertions) {
            // So that nobody gets to see what was not filled.
            buf[..n].fill(0xa5);
        }
        fill(&mut buf[..n])?;
        return Ok(n);
    }
}

/// As [`read`], for whoever has the lock already.
pub(super) fn read_under_lock(inode: &Arc<Inode>, st: &FileState, offset: u64, buf: &mut [u8], drop: bool) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    // What is being copied cannot be dropped meanwhile: a part at a time.
    if st.files.cfg.keep && buf.len() > COPIED {
        let mut parts = buf.chunks_mut(COPIED).enumerate();
        return parts.try_for_each(|(n, part)| read_under_lock(inode, st, offset + (n * COPIED) as u64, part, drop));
    }
    let end = offset + buf.len() as u64;
    let mut at = offset;
    if st.files.cfg.keep {
        let blocks = offset / bs..end.div_ceil(bs);
        st.files.read_ahead(inode, st, &blocks, drop);
        st.ahead.await_pending(&blocks);
    }
    while at < end {
        // First the page that is there, then what comes before it: a page that was not there is as the device has it.
        let found = st.pages.find(at / bs, end.div_ceil(bs), !drop);
        let (s, e) = found.as_ref().map_or((end, end), |p| ((p.first * bs).max(at), (p.end() * bs).min(end)));
        if at < s {
            read_missing(inode, st, at, &mut buf[(at - offset) as usize..(s - offset) as usize], drop)?;
        }
        if let Some(p) = found {
            let skip = (s - p.first * bs) as usize;
            buf[(s - offset) as usize..(e - offset) as usize].copy_from_slice(&p.bytes()[skip..skip + (e - s) as usize]);
        }
        at = e;
    }
    if drop {
        // The last block may be asked for again at once, unless all of it was read.
        let to = if end >= st.size.load(Ordering::Acquire) { end.div_ceil(bs) } else { end / bs };
        st.pages.drop_read(offset / bs, to);
    }
    Ok(())
}

/// The extents that hold data in blocks `first..end`.
pub(super) fn written(inode: &Arc<Inode>, first: u64, end: u64) -> Result<Vec<Extent>> {
    let _i = inode.lock_shared();
    map::load(inode, Which::Data)?;
    let d = inode.data();
    let start = d.data.extents.range(..=first).next_back().map_or(first, |x| *x.0);
    Ok(d.data.extents.range(start..end).map(|x| *x.1).filter(|e| e.end() > first && !e.unwritten).collect())
}

/// Where a block of an extent lies, in bytes.
pub(super) fn place(inode: &Inode, e: &Extent, block: u64) -> u64 {
    inode.vol.geo.fsb_daddr(e.at(block)).0 * 512
}

/// Reads what no page holds.
fn read_missing(inode: &Arc<Inode>, st: &FileState, offset: u64, buf: &mut [u8], drop: bool) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let (first, end) = (offset / bs, (offset + buf.len() as u64).div_ceil(bs));
    let to = if st.files.cfg.keep { end.max(first + st.ahead.window(first, bs)) } else { end };
    // Where memory is short, what is read goes to who asked and nowhere else.
    if st.files.cfg.keep
        && let Some(_room) = st.files.memory.try_room(((to - first) * bs) as usize)
    {
        return read_kept(inode, st, offset, buf, to, drop);
    }
    read_device(inode, offset, buf)
}

/// Reads what the device has: holes and unwritten extents are zeros.
pub(super) fn read_device(inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let end = offset + buf.len() as u64;
    if buf.is_empty() {
        return Ok(());
    }
    let part = |r: Range<u64>| (r.start - offset) as usize..(r.end - offset) as usize;
    let mut filled = offset;
    for e in written(inode, offset / bs, end.div_ceil(bs))? {
        let (s, t) = ((e.off.0 * bs).max(offset), (e.end() * bs).min(end));
        let at = place(inode, &e, s / bs) + s % bs;
        buf[part(filled..s)].fill(0);
        uxfs_sync::blocking(|| inode.vol.dev.read(at, &mut buf[part(s..t)]))?;
        filled = t;
    }
    buf[part(filled..end)].fill(0);
    Ok(())
}

/// Reads in whole blocks that become pages, and some of those that follow, at most before `most`.
fn read_kept(inode: &Arc<Inode>, st: &FileState, offset: u64, buf: &mut [u8], most: u64, drop: bool) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let (first, end) = (offset / bs, (offset + buf.len() as u64).div_ceil(bs));
    let last = st.size.load(Ordering::Acquire).div_ceil(bs).max(end);
    let ahead = st.ahead.plan(first, end, bs, most).min(last);
    buf.fill(0);
    let mut at = first;
    while at < ahead {
        // A folio at a time: what was written or taken from it meanwhile is not kept.
        let to = ((at / st.pages.per_folio() + 1) * st.pages.per_folio()).min(ahead);
        // Holes need no folio.
        if !written(inode, at, to)?.is_empty() {
            read_pages(inode, st, at..to, (offset, drop), buf)?;
        }
        at = to;
    }
    Ok(())
}

/// Reads blocks of one folio, keeps them, until they were read with `drop`, and copies what of them belongs into `buf`, which is the
/// file's at `offset`.
pub(super) fn read_pages(
    inode: &Arc<Inode>,
    st: &FileState,
    blocks: Range<u64>,
    (offset, drop): (u64, bool),
    buf: &mut [u8],
) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let end = offset + buf.len() as u64;
    let ticket = st.pages.ticket(blocks.start);
    for e in written(inode, blocks.start, blocks.end)? {
        let (first, to) = (e.off.0.max(blocks.start), e.end().min(blocks.end));
        let len = ((to - first) * bs) as usize;
        debug_assert!(len <= FOLIO);
        let at = place(inode, &e, first);
        let read = st.files.memory.read(len, |into| uxfs_sync::blocking(|| inode.vol.dev.read(at, into)));
        // Nobody asked for what lies ahead: it fails when somebody does.
        if first * bs >= end && read.is_err() {
            return Ok(());
        }
        let mut next = first;
        for page in read? {
            st.pages.keep(&ticket, next, &page, drop);
            let (from, behind) = (next * bs, next * bs + page.bytes().len() as u64);
            let (s, t) = (from.max(offset), behind.min(end));
            if s < t {
                buf[(s - offset) as usize..(t - offset) as usize].copy_from_slice(&page.bytes()[(s - from) as usize..(t - from) as usize]);
            }
            next = behind / bs;
        }
    }
    Ok(())
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is stored.
    Data,
    /// The next byte that is not; the end of the file counts as a hole.
    Hole,
}

/// Finds data or a hole from `offset` on; `None` if there is none before the end.
///
/// # Errors
/// The fork is corrupt.
pub fn seek(files: &Arc<Files>, inode: &Arc<Inode>, offset: u64, what: Seek) -> Result<Option<u64>> {
    let st = files.state(inode);
    let _io = st.lock.read(0..u64::MAX);
    let size = st.size.load(Ordering::Acquire);
    if offset >= size {
        return Ok(None);
    }
    let bs = u64::from(inode.vol.geo.blocksize);
    let _i = inode.lock_shared();
    map::load(inode, Which::Data)?;
    let d = inode.data();
    let mut block = offset / bs;
    while block * bs < size {
        let e = d.data.at(block).filter(|e| !e.unwritten);
        let data = e.is_some() || st.pages.next_unwritten(block, block + 1).is_some();
        if data == (what == Seek::Data) {
            return Ok(Some((block * bs).max(offset)));
        }
        block = match e {
            Some(e) => e.end(),
            None if data => block + 1,
            None => {
                let extent = d.data.extents.range(block + 1..).find(|x| !x.1.unwritten).map_or(u64::MAX, |x| *x.0);
                st.pages.next_unwritten(block + 1, extent).unwrap_or(extent)
            }
        };
        if block == u64::MAX {
            break;
        }
    }
    Ok((what == Seek::Hole).then_some(size))
}
