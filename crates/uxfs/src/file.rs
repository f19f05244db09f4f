//! File data: a cache of what was written and has no place yet, write-back, reading, truncation, fsync.
//!
//! A page is *dirty* (to be written back) or *in flight* (its copy is being written); afterwards it is dropped, so memory is
//! bounded by the dirty limit. What is not in a page is read from the device.
//!
//! 1. `size` is what users see; the core's size follows when the data up to it is on the device.
//! 2. A dirty page over a hole, or over shared blocks, has a block promised by the counters until it is written back, and
//!    the file the blocks that its extent tree may grow by.
//! 3. New blocks are mapped unwritten, filled, and then converted: a crash shows zeros, never what the blocks held before.
//! 4. `iolock` is taken before the writer's `writeback` lock, and that before `ilock`.

mod allocate;
mod clone;
mod exchange;
mod staged;
mod writeback;

pub use allocate::{Allocate, allocate};
pub use clone::{Place, share};
pub use exchange::{exchange, finish_exchange};
pub use staged::{release_idle_staged, release_staged};
pub use writeback::{fsync, write_back};

use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::trans::Trans;
use crate::volume::Volume;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use uxfs_device::Class;
use uxfs_format::inode::flag2;

struct Page {
    data: Vec<u8>,
    dirty: bool,
    /// A block is promised for it.
    delayed: bool,
    /// A copy of it is being written.
    in_flight: bool,
}

/// What the cache knows of one file.
pub struct FileState {
    pages: Mutex<BTreeMap<u64, Page>>,
    size: AtomicU64,
    /// Times were changed in memory and not logged.
    times: AtomicBool,
    /// One write-back at a time.
    writeback: Mutex<()>,
    /// The first error of a write-back, until an fsync reports it.
    error: Mutex<Option<i32>>,
    promise: Mutex<Promise>,
    staged: staged::Staged,
    files: Arc<Files>,
}

/// Blocks that the counters promised to a file's dirty pages.
#[derive(Default)]
struct Promise {
    /// Pages that have one.
    pages: u64,
    /// Blocks for the extent tree, on top of one for each page.
    tree: u64,
}

/// Most blocks that the extent tree of a file grows by when `pages` blocks are mapped: a leaf splits
/// when it is full, so once for each leaf that is there, and for each half a leaf of new records.
fn tree_growth(inode: &Inode, pages: u64) -> u64 {
    if pages == 0 {
        return 0;
    }
    let half = (uxfs_format::btree::TreeKind::Bmap.shape().max(inode.vol.geo.blocksize, 0) / 2) as u64;
    let leaves = inode.data().core.nextents / half + 1;
    let splits = pages.min(leaves) + pages / half;
    splits + splits / half + u64::from(inode.vol.res.write_blocks)
}

impl FileState {
    /// Promises a block to a page, and what the extent tree may need for it.
    fn promise_page(&self, inode: &Inode) -> Result<()> {
        let mut p = self.promise.lock();
        let more = tree_growth(inode, p.pages + 1).saturating_sub(p.tree);
        inode.vol.counters.take_delayed(1 + more)?;
        p.pages += 1;
        p.tree += more;
        Ok(())
    }

    /// The promises of `pages` pages were kept or given up: the extent tree's share goes back.
    fn settle_pages(&self, inode: &Inode, pages: u64) {
        let mut p = self.promise.lock();
        p.pages = p.pages.saturating_sub(pages);
        let back = p.tree.saturating_sub(tree_growth(inode, p.pages));
        p.tree -= back;
        inode.vol.counters.settle_delayed(back, true);
    }

    /// Gives the promises of `pages` pages back.
    fn give_up_pages(&self, inode: &Inode, pages: u64) {
        inode.vol.counters.settle_delayed(pages, true);
        self.settle_pages(inode, pages);
    }
}

impl Drop for FileState {
    fn drop(&mut self) {
        let left = self.pages.get_mut().values().filter(|p| p.dirty).count();
        self.files.dirty_pages.fetch_sub(left, Ordering::AcqRel);
    }
}

/// Files with dirty data or times, and the order in which they became so.
#[derive(Default)]
struct Dirty {
    files: BTreeMap<u64, Arc<Inode>>,
    /// May name files that are clean by now.
    order: VecDeque<u64>,
}

/// All files of a volume with dirty data.
pub struct Files {
    dirty: Mutex<Dirty>,
    waiting: staged::Waiting,
    dirty_pages: AtomicUsize,
    /// Dirty pages beyond which a writer writes back before it goes on.
    limit: usize,
}

impl Files {
    /// At most about `limit_bytes` of dirty data.
    pub fn new(limit_bytes: usize, vol: &Volume) -> Arc<Files> {
        let limit = (limit_bytes / vol.geo.blocksize as usize).max(64);
        Arc::new(Files { dirty: Mutex::default(), waiting: Mutex::default(), dirty_pages: AtomicUsize::new(0), limit })
    }

    /// The state of a file.
    pub fn state(self: &Arc<Self>, inode: &Inode) -> Arc<FileState> {
        let attached = inode.attached.get_or_init(|| {
            Arc::new(FileState {
                pages: Mutex::default(),
                size: AtomicU64::new(inode.data().core.size),
                times: AtomicBool::new(false),
                writeback: Mutex::default(),
                error: Mutex::default(),
                promise: Mutex::default(),
                staged: Mutex::default(),
                files: self.clone(),
            })
        });
        match attached.clone().downcast::<FileState>() {
            Ok(s) => s,
            Err(_) => unreachable!("only this room attaches to inodes"),
        }
    }

    /// Files with dirty data or times.
    pub fn dirty(&self) -> Vec<Arc<Inode>> {
        self.dirty.lock().files.values().cloned().collect()
    }

    /// Lets go of all files, when nothing will be written any more.
    pub fn forget_all(&self) {
        let files = std::mem::take(&mut self.dirty.lock().files);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop((files, waiting));
    }

    fn note_dirty(&self, inode: &Arc<Inode>) {
        let mut d = self.dirty.lock();
        if let std::collections::btree_map::Entry::Vacant(v) = d.files.entry(inode.ino.0) {
            v.insert(inode.clone());
            d.order.push_back(inode.ino.0);
            // Files that were written back since leave their places in the line behind.
            if d.order.len() > 2 * d.files.len() + STALE_PLACES {
                let Dirty { files, order } = &mut *d;
                let mut seen = std::collections::HashSet::new();
                order.retain(|i| files.contains_key(i) && seen.insert(*i));
            }
        }
    }

    fn note_clean(&self, inode: &Inode) {
        self.dirty.lock().files.remove(&inode.ino.0);
    }

    /// The file that has been dirty longest; it goes to the end of the line.
    fn oldest(&self) -> Option<Arc<Inode>> {
        let mut d = self.dirty.lock();
        while let Some(ino) = d.order.pop_front() {
            if let Some(i) = d.files.get(&ino).cloned() {
                d.order.push_back(ino);
                return Some(i);
            }
        }
        None
    }

    /// Writes files back until there is room for more dirty data. Called before any lock is taken.
    ///
    /// # Errors
    /// The volume is shut down.
    fn throttle(self: &Arc<Self>, mine: &Arc<Inode>) -> Result<()> {
        if self.dirty_pages.load(Ordering::Acquire) <= self.limit {
            return Ok(());
        }
        // Somewhat below the limit, so that not every write meets it again.
        while self.dirty_pages.load(Ordering::Acquire) > self.limit - self.limit / 8 {
            mine.vol.check_writable()?;
            let Some(i) = self.oldest() else { return Ok(()) };
            write_back(self, &i, 0, u64::MAX, Class::Background)?;
        }
        Ok(())
    }
}

/// Bytes of a file as users see them. For what is no regular file, the core's.
pub fn size(files: &Arc<Files>, inode: &Inode) -> u64 {
    match inode.attached.get() {
        Some(_) => files.state(inode).size.load(Ordering::Acquire),
        None => inode.data().core.size,
    }
}

/// Blocks that are promised to a file and not yet its own.
pub fn promised(files: &Arc<Files>, inode: &Inode) -> u64 {
    inode.attached.get().map_or(0, |_| files.state(inode).promise.lock().pages)
}

/// Places of clean files in the line of dirty ones, before it is put in order.
const STALE_PLACES: usize = 4096;

/// Longest file.
pub const MAX_SIZE: u64 = i64::MAX as u64;

/// Reads into `buf` from `offset`; returns how much there was before the end.
///
/// # Locks
/// Takes the file's `iolock` shared, then `ilock` shared for each run.
///
/// # Errors
/// The device's; the file's extents are corrupt.
pub fn read(files: &Arc<Files>, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let _io = inode.iolock.read();
    let st = files.state(inode);
    let size = st.size.load(Ordering::Acquire);
    let n = size.saturating_sub(offset).min(buf.len() as u64) as usize;
    read_under_lock(inode, &st, offset, &mut buf[..n])?;
    Ok(n)
}

fn read_under_lock(inode: &Arc<Inode>, st: &FileState, offset: u64, buf: &mut [u8]) -> Result<()> {
    if buf.is_empty() {
        return Ok(());
    }
    let bs = u64::from(inode.vol.geo.blocksize);
    // A page may be written back and dropped between the two steps, so the device is read under the write-back lock's
    // protection by order: first the pages that are there, then the rest; what was dropped in between is on the device.
    let cached = copy_pages(st, bs, offset, buf);
    if cached.iter().all(|c| *c) {
        return Ok(());
    }
    let first = offset / bs;
    let mut at = 0;
    while at < cached.len() {
        let run = cached[at..].iter().take_while(|c| **c == cached[at]).count();
        if !cached[at] {
            let from = (first + at as u64) * bs;
            let to = (first + (at + run) as u64) * bs;
            let (s, e) = (from.max(offset), to.min(offset + buf.len() as u64));
            read_device(inode, s, &mut buf[(s - offset) as usize..(e - offset) as usize])?;
        }
        at += run;
    }
    Ok(())
}

/// Copies what pages hold; says for each block whether one was there.
fn copy_pages(st: &FileState, bs: u64, offset: u64, buf: &mut [u8]) -> Vec<bool> {
    let (first, end) = (offset / bs, offset + buf.len() as u64);
    let mut cached = vec![false; (end.div_ceil(bs) - first) as usize];
    let pages = st.pages.lock();
    for (b, p) in pages.range(first..end.div_ceil(bs)) {
        let (s, e) = ((b * bs).max(offset), ((b + 1) * bs).min(end));
        let from = (s - b * bs) as usize;
        buf[(s - offset) as usize..(e - offset) as usize].copy_from_slice(&p.data[from..from + (e - s) as usize]);
        cached[(b - first) as usize] = true;
    }
    cached
}

/// Reads from the device: holes and unwritten extents are zeros.
fn read_device(inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let runs = {
        let _i = inode.lock_shared();
        map::load(inode, Which::Data)?;
        let d = inode.data();
        let (first, end) = (offset / bs, (offset + buf.len() as u64).div_ceil(bs));
        let start = d.data.extents.range(..=first).next_back().map_or(first, |x| *x.0);
        d.data.extents.range(start..end).map(|x| *x.1).filter(|e| e.end() > first && !e.unwritten).collect::<Vec<_>>()
    };
    buf.fill(0);
    let end = offset + buf.len() as u64;
    for e in runs {
        let (s, t) = ((e.off.0 * bs).max(offset), (e.end() * bs).min(end));
        let at = inode.vol.geo.fsb_daddr(e.start).0 * 512 + (s - e.off.0 * bs);
        let part = &mut buf[(s - offset) as usize..(t - offset) as usize];
        uxfs_sync::blocking(|| inode.vol.dev.read(at, part))?;
    }
    Ok(())
}

/// Writes `buf` at `offset`, or at the end if `append`. Returns where it went.
///
/// # Locks
/// Waits for dirty room first; then `iolock` exclusively, `ilock` shared for moments.
///
/// # Errors
/// `NoSpace` if no block can be promised; [`Error::TooLarge`].
pub fn write(files: &Arc<Files>, inode: &Arc<Inode>, offset: u64, buf: &[u8], append: bool) -> Result<u64> {
    inode.vol.check_writable()?;
    files.throttle(inode)?;
    let _io = inode.iolock.write();
    let st = files.state(inode);
    let size = st.size.load(Ordering::Acquire);
    let offset = if append { size } else { offset };
    let end = offset.checked_add(buf.len() as u64).filter(|e| *e <= MAX_SIZE).ok_or(Error::TooLarge)?;
    if buf.is_empty() {
        return Ok(offset);
    }
    if offset > size {
        zero_tail(inode, &st, size)?;
    }
    let bs = u64::from(inode.vol.geo.blocksize);
    let mut at = offset;
    while at < end {
        let block = at / bs;
        let to = ((block + 1) * bs).min(end);
        let src = &buf[(at - offset) as usize..(to - offset) as usize];
        write_page(inode, &st, block, (at - block * bs) as usize, src)?;
        at = to;
        st.size.fetch_max(at, Ordering::AcqRel);
    }
    touch(inode, &st);
    files.note_dirty(inode);
    Ok(offset)
}

fn touch(inode: &Inode, st: &FileState) {
    let now = inode.vol.now();
    let mut d = inode.data();
    d.core.mtime = now;
    d.core.ctime = now;
    st.times.store(true, Ordering::Release);
}

/// True if writing block `block` takes a new one: a hole, or shared blocks.
fn needs_block(inode: &Arc<Inode>, block: u64) -> Result<bool> {
    let _i = inode.lock_shared();
    map::load(inode, Which::Data)?;
    let d = inode.data();
    Ok(d.data.at(block).is_none() || d.core.flags2 & flag2::REFLINK != 0)
}

/// Changes a part of a page; reads the rest in if need be.
fn write_page(inode: &Arc<Inode>, st: &FileState, block: u64, from: usize, src: &[u8]) -> Result<()> {
    let bs = inode.vol.geo.blocksize as usize;
    let put = |p: &mut Page| {
        p.data[from..from + src.len()].copy_from_slice(src);
        if !p.dirty {
            p.dirty = true;
            st.files.dirty_pages.fetch_add(1, Ordering::AcqRel);
        }
    };
    {
        let mut pages = st.pages.lock();
        if let Some(p) = pages.get_mut(&block)
            && (p.dirty || !p.in_flight)
        {
            put(p);
            return Ok(());
        }
    }
    // A page in flight has given its promise to the write-back: it needs another only where that one's blocks are shared.
    let delayed = needs_block(inode, block)?;
    if delayed {
        st.promise_page(inode)?;
    }
    let mut data = vec![0; bs];
    if src.len() < bs {
        let start = block * bs as u64;
        if let Err(e) = read_under_lock(inode, st, start, &mut data) {
            if delayed {
                st.give_up_pages(inode, 1);
            }
            return Err(e);
        }
        // Bytes past the end are whatever the last block held; they are not part of the file.
        let size = st.size.load(Ordering::Acquire);
        if start + bs as u64 > size {
            data[size.saturating_sub(start).min(bs as u64) as usize..].fill(0);
        }
    }
    let mut pages = st.pages.lock();
    let p = pages.entry(block).or_insert(Page { data, dirty: false, delayed: false, in_flight: false });
    let spare = delayed && p.delayed;
    p.delayed |= delayed;
    put(p);
    drop(pages);
    if spare {
        st.give_up_pages(inode, 1);
    }
    Ok(())
}

/// Zeroes from `size` to the end of its block, where a file is about to grow beyond.
fn zero_tail(inode: &Arc<Inode>, st: &FileState, size: u64) -> Result<()> {
    zero_part(inode, st, size, size.next_multiple_of(u64::from(inode.vol.geo.blocksize)))
}

/// Zeroes `from..to`, which lie in one block, if anything is stored there.
fn zero_part(inode: &Arc<Inode>, st: &FileState, from: u64, to: u64) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let block = from / bs;
    if from < to && has_data(inode, st, block)? {
        write_page(inode, st, block, (from - block * bs) as usize, &vec![0; (to - from) as usize])?;
    }
    Ok(())
}

fn has_data(inode: &Arc<Inode>, st: &FileState, block: u64) -> Result<bool> {
    if st.pages.lock().contains_key(&block) {
        return Ok(true);
    }
    let _i = inode.lock_shared();
    map::load(inode, Which::Data)?;
    Ok(inode.data().data.at(block).is_some_and(|e| !e.unwritten))
}

/// Sets the size of a file; frees what lies behind.
///
/// # Locks
/// `iolock`, the write-back lock, `ilock`, all exclusively.
///
/// # Errors
/// [`Error::TooLarge`]; the device's; the fork is corrupt.
pub fn truncate(files: &Arc<Files>, inode: &Arc<Inode>, new: u64) -> Result<()> {
    inode.vol.check_writable()?;
    if new > MAX_SIZE {
        return Err(Error::TooLarge);
    }
    let _io = inode.iolock.write();
    let st = files.state(inode);
    let old = st.size.load(Ordering::Acquire);
    zero_tail(inode, &st, old.min(new))?;
    let _one = st.writeback.lock();
    let bs = u64::from(inode.vol.geo.blocksize);
    drop_pages(inode, &st, new.div_ceil(bs), u64::MAX);
    st.size.store(new, Ordering::Release);
    let vol = inode.vol.clone();
    let mut tp = Trans::new_must_succeed(&vol, vol.res.itruncate, vol.res.write_blocks)?;
    let _i = inode.lock();
    let now = vol.now();
    {
        let mut d = inode.data();
        d.core.size = new;
        d.core.mtime = now;
        d.core.ctime = now;
    }
    inode.log(&mut tp, 0)?;
    if new < old {
        free_behind(&mut tp, inode, new.div_ceil(bs))?;
    }
    tp.commit()?;
    if st.pages.lock().values().any(|p| p.dirty) {
        files.note_dirty(inode);
    }
    Ok(())
}

/// Unmaps everything from block `from` on, a link for every two extents.
pub(crate) fn free_behind(tp: &mut Trans, inode: &Arc<Inode>, from: u64) -> Result<()> {
    map::load(inode, Which::Data)?;
    loop {
        let done = map::unmap(tp, inode, Which::Data, from, u64::MAX, 2)?;
        tp.finish_deferred()?;
        if done {
            return Ok(());
        }
        tp.roll()?;
        inode.log(tp, 0)?;
    }
}

/// Forgets the pages `from..end`, dirty or not.
fn drop_pages(inode: &Inode, st: &FileState, from: u64, end: u64) {
    let gone = {
        let mut pages = st.pages.lock();
        let mut gone = pages.split_off(&from);
        let mut behind = gone.split_off(&end);
        pages.append(&mut behind);
        gone
    };
    let delayed = gone.values().filter(|p| p.delayed).count() as u64;
    st.give_up_pages(inode, delayed);
    st.files.dirty_pages.fetch_sub(gone.values().filter(|p| p.dirty).count(), Ordering::AcqRel);
}

/// Forgets all data of a file that is going away.
pub(crate) fn forget(files: &Arc<Files>, inode: &Arc<Inode>) {
    if inode.attached.get().is_some() {
        let st = files.state(inode);
        let _one = st.writeback.lock();
        drop_pages(inode, &st, 0, u64::MAX);
        st.times.store(false, Ordering::Release);
        st.size.store(0, Ordering::Release);
    }
    files.note_clean(inode);
}

/// A new file begins under this number: what the cache knew of the old one counts no more.
pub(crate) fn begin(files: &Arc<Files>, inode: &Arc<Inode>) {
    if inode.attached.get().is_some() {
        files.state(inode).size.store(inode.data().core.size, Ordering::Release);
    }
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
    let _io = inode.iolock.read();
    let st = files.state(inode);
    let size = st.size.load(Ordering::Acquire);
    if offset >= size {
        return Ok(None);
    }
    let bs = u64::from(inode.vol.geo.blocksize);
    let _i = inode.lock_shared();
    map::load(inode, Which::Data)?;
    let (d, pages) = (inode.data(), st.pages.lock());
    let mut block = offset / bs;
    while block * bs < size {
        let e = d.data.at(block).filter(|e| !e.unwritten);
        let data = e.is_some() || pages.contains_key(&block);
        if data == (what == Seek::Data) {
            return Ok(Some((block * bs).max(offset)));
        }
        let next_extent = d.data.extents.range(block + 1..).find(|x| !x.1.unwritten).map_or(u64::MAX, |x| *x.0);
        let next_page = pages.range(block + 1..).next().map_or(u64::MAX, |p| *p.0);
        block = match e {
            Some(e) => e.end(),
            None if data => block + 1,
            None => next_extent.min(next_page),
        };
        if block == u64::MAX {
            break;
        }
    }
    Ok((what == Seek::Hole).then_some(size))
}
