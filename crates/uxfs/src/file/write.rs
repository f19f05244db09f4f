//! Writing into the cache: blocks are promised, pages put in place, the device is not touched but for what a write changes in part.

use super::iolock::FileGuard;
use super::memory::{Buf, PIECE, Room};
use super::pages::{FOLIO, Installed, Need};
use super::read::read_under_lock;
use super::writeback::write_back;
use super::{FileState, Files, How, IoMode, MAX_SIZE, Why, touch, zero_tail};
use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use smallvec::{SmallVec, smallvec};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uxfs_format::inode::flag2;
use uxfs_journal::{Hole, hole};

/// Where a write goes, and the bytes that have to be locked for it.
fn plan(st: &FileState, offset: u64, len: u64, append: bool, bs: u64) -> Result<(u64, Range<u64>)> {
    let size = st.size.load(Ordering::Acquire);
    let at = if append { size } else { offset };
    let end = at.checked_add(len).filter(|e| *e <= MAX_SIZE).ok_or(Error::TooLarge)?;
    let floor = |x: u64| x - x % bs;
    // What grows changes the last block, and all that comes behind.
    Ok((at, if end > size || append { floor(at.min(size))..u64::MAX } else { floor(at)..end.next_multiple_of(bs) }))
}

/// A write that may go on.
pub(super) struct Begun<'a> {
    /// Where it goes.
    pub at: u64,
    _io: FileGuard<'a>,
    _room: Room<'a>,
}

/// Waits for everything that a write needs.
pub(super) fn begin<'a>(
    files: &'a Arc<Files>,
    inode: &Arc<Inode>,
    st: &'a FileState,
    (offset, len): (u64, u64),
    append: bool,
    how: How,
) -> Result<Begun<'a>> {
    inode.vol.check_writable()?;
    let bs = u64::from(inode.vol.geo.blocksize);
    // In this order: no more than has room gets by the limit of what may be dirty at once.
    let room = files.memory.room(len.saturating_add(2 * bs) as usize);
    files.throttle(inode, st, len.div_ceil(bs) as usize, how)?;
    loop {
        let (at, range) = plan(st, offset, len, append, bs)?;
        // Beside others only where nothing but whole blocks changes, and nothing in memory.
        let plain = how.mode == IoMode::Direct && range.end < u64::MAX && (at | len).is_multiple_of(bs);
        let io = match plain {
            true => st.lock.write_direct(range.clone(), || st.pages.find(range.start / bs, range.end / bs, false).is_none()),
            false => st.lock.write(range.clone()),
        };
        // The size may have changed before the lock was there.
        let (at, needed) = plan(st, offset, len, append, bs)?;
        if range.start <= needed.start && needed.end <= range.end {
            // What was dirty when room was made may be clean now.
            if files.memory.is_short() {
                files.memory.make_room();
            }
            return Ok(Begun { at, _io: io, _room: room });
        }
    }
}

/// Bytes that are to be written.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    bytes: &'a [u8],
    /// What they lie in, and where they begin there, if pages may keep it.
    home: Option<(&'a Arc<Buf>, usize)>,
}

impl<'a> Source<'a> {
    /// Somebody's, who keeps them.
    pub fn lent(bytes: &'a [u8]) -> Source<'a> {
        Source { bytes, home: None }
    }

    /// A part of what was given away. Pages keep it if that takes little more memory than copies of the bytes.
    fn given(buf: &'a Arc<Buf>, part: Range<usize>) -> Source<'a> {
        let is_most = part.len() >= buf.size() - buf.size() / 4;
        Source { bytes: &buf.bytes()[part.clone()], home: is_most.then_some((buf, part.start)) }
    }

    /// Some of them.
    pub(super) fn part(self, r: Range<usize>) -> Source<'a> {
        Source { home: self.home.map(|(buf, at)| (buf, at + r.start)), bytes: &self.bytes[r] }
    }
}

impl Deref for Source<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// Runs `write` with a part of a buffer that is given away. More than a folio would stay until all of it is written back: that is copied.
pub fn with_given<T>(files: &Files, buffer: Vec<u8>, part: Range<usize>, write: impl FnOnce(Source<'_>) -> T) -> T {
    if buffer.capacity() > FOLIO {
        return write(Source::lent(&buffer[part]));
    }
    let buf = files.memory.given(buffer);
    write(Source::given(&buf, part))
}

/// Writes `src` at `offset`, or at the end if `append`. Returns where it went: less of it where space ran out on the way.
///
/// # Locks
/// Waits for dirty room first; then for the file's lock of the blocks that are written, to the end of all if the file grows; `ilock`
/// shared for moments.
///
/// # Errors
/// `NoSpace` if no block can be promised; [`Error::TooLarge`].
pub fn write(files: &Arc<Files>, inode: &Arc<Inode>, offset: u64, src: Source<'_>, append: bool, how: How) -> Result<Range<u64>> {
    let st = files.state(inode);
    let begun = begin(files, inode, st, (offset, src.len() as u64), append, how)?;
    let at = begun.at;
    if src.is_empty() {
        return Ok(at..at);
    }
    let size = st.size.load(Ordering::Acquire);
    let res = if at > size { zero_tail(inode, st, size) } else { Ok(()) };
    let res = res.and_then(|()| put_all(files, inode, st, at, src, how));
    // Also if it failed half-way: what was written is dirty.
    touch(inode, st);
    files.note_dirty(inode, st, how);
    let done = at..at + res? as u64;
    // Without the locks.
    drop(begun);
    if how.drops() {
        files.kick_behind(inode, done.clone())?;
    }
    Ok(done)
}

/// Makes pages of bytes, and lets the file grow to their end. Returns how many: fewer where space ran out, but for none.
pub(super) fn put_all(files: &Arc<Files>, inode: &Arc<Inode>, st: &FileState, offset: u64, src: Source<'_>, how: How) -> Result<usize> {
    let end = offset + src.len() as u64;
    let mut at = offset;
    while at < end {
        let to = (at / FOLIO as u64 + 1).saturating_mul(FOLIO as u64).min(end);
        let part = src.part((at - offset) as usize..(to - offset) as usize);
        let done = match put(inode, st, at, part, Put { grow: true, drop: how.drops() }) {
            Err(Error::NoSpace) if at > offset => 0,
            r => r?,
        };
        at += done as u64;
        if done < part.len() {
            break;
        }
        if at < end {
            make_room(files, inode, st, how)?;
        }
    }
    Ok((at - offset) as usize)
}

/// Sees to it that one write, however long, does not take more memory than there is.
fn make_room(files: &Arc<Files>, inode: &Arc<Inode>, st: &FileState, how: How) -> Result<()> {
    files.memory.make_room();
    if files.memory.is_short() {
        // Listed first: the write-back takes it from the list only if nothing is left.
        files.note_dirty(inode, st, how);
        write_back(files, inode, 0, u64::MAX, Why::Space)?;
        files.memory.make_room();
    }
    Ok(())
}

/// What blocks from `first` on need; of those that are dirty nothing is asked.
fn needs(inode: &Arc<Inode>, first: u64, dirty: &[bool]) -> Result<Vec<Need>> {
    let mut out = vec![Need::WasDirty; dirty.len()];
    if dirty.iter().all(|d| *d) {
        return Ok(out);
    }
    let _i = inode.lock_shared();
    map::load(inode, Which::Data)?;
    let d = inode.data();
    let shares = d.core.flags2 & flag2::REFLINK != 0;
    let mut extent = d.data.at(first);
    for (i, need) in out.iter_mut().enumerate().filter(|(i, _)| !dirty[*i]) {
        let block = first + i as u64;
        if extent.is_none_or(|e| e.end() <= block) {
            extent = d.data.at(block);
        }
        *need = if extent.is_none() || shares { Need::Promised } else { Need::Nothing };
    }
    Ok(out)
}

/// What becomes of bytes that are written.
#[derive(Clone, Copy, Default)]
pub(super) struct Put {
    /// The file grows to their end.
    pub grow: bool,
    /// They are dropped when they were written back.
    pub drop: bool,
}

/// Makes pages of bytes that lie in one folio. Returns how many: fewer where space ran out, but for none.
pub(super) fn put(inode: &Arc<Inode>, st: &FileState, offset: u64, src: Source<'_>, how: Put) -> Result<usize> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let end = offset + src.len() as u64;
    let (first, to) = (offset / bs, end.div_ceil(bs));
    let mut wanted = needs(inode, first, &st.pages.are_dirty(first, to))?;
    if let Err(e) = promise(inode, st, &wanted) {
        // Not for all of them: perhaps for some.
        let middle = (first + to) / 2 * bs;
        if !matches!(e, Error::NoSpace) || to - first < 2 {
            return Err(e);
        }
        let cut = (middle - offset) as usize;
        let (begin, rest) = (src.part(0..cut), src.part(cut..src.len()));
        let done = put(inode, st, offset, begin, how)?;
        if done < begin.len() {
            return Ok(done);
        }
        return match put(inode, st, middle, rest, how) {
            Err(Error::NoSpace) => Ok(done),
            more => Ok(done + more?),
        };
    }
    let bufs = match src.home {
        Some((buf, at)) if (offset | end).is_multiple_of(bs) => {
            buf.count();
            smallvec![(buf.clone(), at, wanted.len())]
        }
        _ => compose(inode, st, offset, src, how.drop).inspect_err(|_| st.give_up_pages(inode, promised(&wanted)))?,
    };
    let late = hole(Hole::LateSize);
    if how.grow && !late {
        // Before the pages are there: whoever writes the last one back takes the size with it, and nobody comes after.
        st.size.fetch_max(end, Ordering::AcqRel);
    }
    loop {
        let (mut done, mut from) = (Installed::default(), 0);
        for (buf, at, blocks) in &bufs {
            let some = &wanted[from..from + blocks];
            done += st.pages.write(first + from as u64, (buf, *at), some, how.drop);
            from += blocks;
        }
        st.files.count_dirty(done.newly_dirty as isize);
        if done.spare > 0 {
            st.give_up_pages(inode, done.spare);
        }
        if done.undecided.is_empty() {
            break;
        }
        // Written back in the meantime: they are asked about now.
        let dirty: Vec<bool> = (first..to).map(|b| done.undecided.binary_search(&b).is_err()).collect();
        wanted = needs(inode, first, &dirty)?;
        wanted.iter_mut().zip(&dirty).filter(|x| *x.1).for_each(|x| *x.0 = Need::Done);
        promise(inode, st, &wanted)?;
    }
    if how.grow && late {
        std::thread::sleep(std::time::Duration::from_micros(100));
        st.size.fetch_max(end, Ordering::AcqRel);
    }
    Ok(src.len())
}

fn promised(needs: &[Need]) -> u64 {
    needs.iter().filter(|n| **n == Need::Promised).count() as u64
}

fn promise(inode: &Arc<Inode>, st: &FileState, needs: &[Need]) -> Result<()> {
    match promised(needs) {
        0 => Ok(()),
        n => st.promise_pages(inode, n),
    }
}

/// A buffer, where in it whole blocks begin, and how many.
type Blocks = (Arc<Buf>, usize, usize);

/// Whole blocks: what is written, and around it what the first and the last block hold.
fn compose(inode: &Arc<Inode>, st: &FileState, offset: u64, src: Source<'_>, drop: bool) -> Result<SmallVec<[Blocks; 1]>> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let (end, size) = (offset + src.len() as u64, st.size.load(Ordering::Acquire));
    // Bytes past the end are whatever the last block held; they are not part of the file.
    let old = |bytes: &mut Vec<u8>, from: u64, to: u64| -> Result<()> {
        let at = bytes.len();
        bytes.resize(at + (to - from) as usize, 0);
        let n = size.saturating_sub(from).min(to - from) as usize;
        if n > 0 { read_under_lock(inode, st, from, &mut bytes[at..at + n], drop) } else { Ok(()) }
    };
    let (mut bufs, mut at) = (SmallVec::new(), offset);
    while at < end {
        let to = (at / PIECE as u64 + 1).saturating_mul(PIECE as u64).min(end);
        let (start, stop) = (at - at % bs, to.next_multiple_of(bs));
        let mut bytes = st.files.memory.vec((stop - start) as usize);
        old(&mut bytes, start, at)?;
        bytes.extend_from_slice(&src[(at - offset) as usize..(to - offset) as usize]);
        old(&mut bytes, to, stop)?;
        bufs.push((st.files.memory.buf(bytes), 0, ((stop - start) / bs) as usize));
        at = to;
    }
    Ok(bufs)
}
