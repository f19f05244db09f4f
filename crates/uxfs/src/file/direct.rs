//! Reads and writes that leave nothing in memory, and agree with what is there.
//!
//! A read writes back what is dirty in its range first. A write goes in place where the file has blocks of its own there that hold data;
//! else, and for the parts of blocks at its ends, it goes through pages, which are written back and forgotten before it returns.

use super::read::{place, read_device, written};
use super::write::{Source, begin, put_all};
use super::writeback::write_back;
use super::{FileState, Files, How, Why, drop_pages, touch, zero_tail};
use crate::error::{Error, Result};
use crate::inode::Inode;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uxfs_device::{Class, WriteRequest};
use uxfs_format::extent::Extent;
use uxfs_format::inode::flag2;

/// As [`read`](super::read()), past the cache.
///
/// # Locks
/// Waits for the file's lock of the blocks that are read, then as write-back.
///
/// # Errors
/// As [`read`](super::read()); those of write-back.
pub fn read_direct(files: &Arc<Files>, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let st = files.state(inode);
    super::read::locked(inode, st, offset, buf, |part| {
        let end = offset + part.len() as u64;
        settle(files, inode, st, offset..end)?;
        read_device(inode, offset, part)
    })
}

/// Writes back what is dirty in a range of bytes.
fn settle(files: &Arc<Files>, inode: &Arc<Inode>, st: &FileState, bytes: Range<u64>) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    match st.pages.next_unwritten(bytes.start / bs, bytes.end.div_ceil(bs)) {
        Some(_) => write_back(files, inode, bytes.start, bytes.end, Why::Sync),
        None => Ok(()),
    }
}

/// As [`write`](super::write()), past the cache. What it wrote is on the device, but not yet durable.
///
/// # Locks
/// As [`write`](super::write()), then as write-back.
///
/// # Errors
/// As [`write`](super::write()); the device's.
pub fn write_direct(files: &Arc<Files>, inode: &Arc<Inode>, offset: u64, src: Source<'_>, append: bool, how: How) -> Result<Range<u64>> {
    let st = files.state(inode);
    let bs = u64::from(inode.vol.geo.blocksize);
    let begun = begin(files, inode, st, (offset, src.len() as u64), append, how)?;
    let at = begun.at;
    if src.is_empty() {
        return Ok(at..at);
    }
    let (end, size) = (at + src.len() as u64, st.size.load(Ordering::Acquire));
    let whole = at.next_multiple_of(bs)..end - end % bs;
    let part = |r: Range<u64>| src.part((r.start - at) as usize..(r.end - at) as usize);
    let res = if at > size { zero_tail(inode, st, size) } else { Ok(()) };
    let in_place = if end <= size && !whole.is_empty() { own_blocks(inode, whole.start / bs..whole.end / bs)? } else { None };
    let put = |r: Range<u64>| Ok(r.start + put_all(files, inode, st, r.start, part(r), how)? as u64);
    let res = res.and_then(|()| match &in_place {
        Some(_) => put(at..whole.start).and_then(|_| match put(whole.end..end) {
            // The block of the end is not there, and there is none to be had.
            Err(Error::NoSpace) => Ok(whole.end),
            r => r,
        }),
        None => put(at..end),
    });
    touch(inode, st);
    files.note_dirty(inode, st, how);
    let end = res?;
    settle(files, inode, st, at..end)?;
    if let Some(extents) = in_place {
        write_in_place(inode, &extents, whole.start, &part(whole.clone()))?;
    }
    // After the write: whoever read ahead meanwhile may have seen what was there before.
    drop_pages(inode, st, at / bs, end.div_ceil(bs));
    Ok(at..end)
}

/// The extents of a range of blocks, if all of it holds data that is no other file's.
fn own_blocks(inode: &Arc<Inode>, blocks: Range<u64>) -> Result<Option<Vec<Extent>>> {
    if inode.data().core.flags2 & flag2::REFLINK != 0 {
        return Ok(None);
    }
    let all = written(inode, blocks.start, blocks.end)?;
    let mut next = blocks.start;
    for e in &all {
        if e.off.0 > next {
            return Ok(None);
        }
        next = e.end();
    }
    Ok((next >= blocks.end).then_some(all))
}

fn write_in_place(inode: &Arc<Inode>, extents: &[Extent], offset: u64, data: &[u8]) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let end = offset + data.len() as u64;
    let request = |e: &Extent| {
        let (s, t) = ((e.off.0 * bs).max(offset), (e.end() * bs).min(end));
        WriteRequest { offset: place(inode, e, s / bs), data: &data[(s - offset) as usize..(t - offset) as usize] }
    };
    let requests: Vec<_> = extents.iter().map(request).collect();
    inode.vol.journal.shutdown.check()?;
    Ok(uxfs_sync::blocking(|| inode.vol.dev.write_many(&requests, Class::Fsync))?)
}
