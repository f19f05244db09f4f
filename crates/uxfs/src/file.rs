//! File data: a cache of pages, write-back, reading, truncation, fsync.
//!
//! 1. `size` is what users see; the core's size follows when the data up to it is on the device.
//! 2. A dirty page over a hole, or over shared blocks, has a block promised by the counters until it is written back, and
//!    the file the blocks that its extent tree may grow by.
//! 3. New blocks are mapped unwritten, filled, and then converted: a crash shows zeros, never what the blocks held before.
//! 4. The file's lock is taken before a claim of what is written back, and that before `ilock`.
//! 5. Whoever takes blocks from a file, or moves them, forgets their pages after that, too: somebody who reads ahead may have seen
//!    the blocks before.

mod ahead;
mod allocate;
mod clone;
mod direct;
mod dirty;
mod exchange;
mod flusher;
mod iolock;
mod memory;
mod pages;
mod read;
mod staged;
mod stretches;
mod write;
mod writeback;

pub use allocate::{Allocate, allocate};
pub use clone::{Place, share};
pub use direct::{read_direct, write_direct};
pub use dirty::Domain;
pub use exchange::{exchange, finish_exchange};
pub use flusher::{DropBehind, Why};
pub use iolock::IoLock;
pub use read::{Seek, read, seek};
pub use staged::{release_idle_staged, release_staged};
pub use write::{Source, with_given, write};
pub use writeback::{fsync, write_back};

use crate::error::{Error, Result};
use crate::inode::{Attached, Inode, Which};
use crate::map;
use crate::trans::Trans;
use crate::volume::Volume;
use ahead::{Ahead, Readers};
use dirty::{Account, Dirty};
use flusher::Flusher;
use iolock::FileLock;
use memory::Memory;
use pages::Pages;
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use writeback::Claims;

/// What the cache knows of one file.
pub struct FileState {
    pages: Arc<Pages>,
    /// Orders reads and writes of the file's content; taken before `ilock`.
    lock: FileLock,
    size: AtomicU64,
    /// Times were changed in memory and not logged.
    times: AtomicBool,
    /// What is being written back.
    claims: Claims,
    failures: Mutex<Failures>,
    /// Those that were told to whoever calls for the file by its number.
    told: Told,
    promise: Mutex<Promise>,
    ahead: Ahead,
    staged: staged::Staged,
    files: Arc<Files>,
}

/// Failures of a file's write-back.
#[derive(Default)]
struct Failures {
    count: u64,
    /// The last one's error.
    errno: i32,
    /// How many there were when somebody was told of them last.
    told: u64,
}

/// How many failures of a file's write-back somebody knows of.
#[derive(Debug, Default)]
pub struct Told(AtomicU64);

impl FileState {
    fn note_failure(&self, e: &Error) {
        let mut f = self.failures.lock();
        f.count += 1;
        f.errno = e.errno();
    }

    /// For somebody who opens the file: what nobody was told of yet is told to him, too.
    pub fn told(&self) -> Told {
        Told(AtomicU64::new(self.failures.lock().told))
    }

    /// Tells of failures since the last time.
    fn tell(&self, told: &Told) -> Result<()> {
        let mut f = self.failures.lock();
        if told.0.swap(f.count, Ordering::Relaxed) == f.count {
            return Ok(());
        }
        f.told = f.count;
        Err(Error::Io { at: uxfs_format::DiskAddr(0), error: std::io::Error::from_raw_os_error(f.errno) })
    }
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
    /// Promises a block to each of so many pages, and what the extent tree may need for them.
    fn promise_pages(&self, inode: &Inode, pages: u64) -> Result<()> {
        let mut p = self.promise.lock();
        let more = tree_growth(inode, p.pages + pages).saturating_sub(p.tree);
        inode.vol.counters.take_delayed(pages + more)?;
        p.pages += pages;
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

impl Attached for FileState {
    fn is_spent(&self) -> bool {
        // A failure is kept for whoever asks for the file by its number, too.
        self.failures.lock().count == 0 && self.pages.is_empty() && self.staged.lock().is_empty()
    }
}

impl Drop for FileState {
    fn drop(&mut self) {
        self.files.count_dirty(-(self.pages.dirty() as isize));
    }
}

/// How data is read or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// Through the cache.
    #[default]
    Buffered,
    /// Through the cache, and out of it again: what is written is written back at once, and nothing stays that nobody else uses.
    DropBehind,
    /// Past it: what is written is on the device when the call returns, though not yet durable.
    Direct,
}

uxfs_sync::named!(IoMode { Buffered = "buffered", DropBehind = "dontcache", Direct = "direct" });

impl IoMode {
    /// Its number where a name does not do: its place among all.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The mode of a number.
    pub fn of_number(n: u32) -> Option<IoMode> {
        IoMode::ALL.get(n as usize).copied()
    }
}

/// How data is read or written, and for whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// How.
    pub mode: IoMode,
    /// For whom: write-back shares the device out to domains.
    pub domain: Domain,
}

impl How {
    /// True if what is written is dropped then.
    fn drops(self) -> bool {
        self.mode == IoMode::DropBehind
    }
}

impl From<IoMode> for How {
    fn from(mode: IoMode) -> How {
        How { mode, domain: Domain::default() }
    }
}

/// How the data of files is cached and locked.
#[derive(Clone, Copy, Debug)]
pub struct FileConfig {
    /// Bytes of memory for file data; at most two thirds of that are dirty.
    pub memory: usize,
    /// What was read, or written back, is kept while there is room.
    pub keep: bool,
    /// What reads and writes of one file exclude.
    pub lock: IoLock,
    /// Who writes back what is dropped then.
    pub drop_behind: DropBehind,
}

/// The files of a volume that have dirty data, and what all files share.
pub struct Files {
    cfg: FileConfig,
    dirty: Mutex<Dirty>,
    waiting: staged::Waiting,
    memory: Arc<Memory>,
    flusher: Flusher,
    readers: Readers,
    /// Pages that are dirty or being written.
    /// Below zero for a moment where pages are written back before they are counted.
    dirty_pages: AtomicIsize,
    dirty_peak: AtomicUsize,
    /// The domain of what nobody has written yet.
    nobody: Arc<Account>,
    /// Most pages that may be so.
    limit: usize,
}

impl Files {
    /// None yet.
    pub fn new(cfg: FileConfig, vol: &Volume) -> Arc<Files> {
        let limit = (cfg.memory / 3 * 2 / vol.geo.blocksize as usize).max(64);
        let memory = Memory::new(cfg.memory);
        Arc::new(Files {
            cfg,
            dirty: Mutex::default(),
            waiting: Mutex::default(),
            memory,
            flusher: Flusher::default(),
            readers: Readers::default(),
            dirty_pages: AtomicIsize::new(0),
            dirty_peak: AtomicUsize::new(0),
            nobody: Arc::default(),
            limit,
        })
    }

    /// Counters of file data: what memory holds, what is dirty, what was written back and why, who waited.
    pub fn stats(&self, block: u64) -> Vec<(&'static str, u64)> {
        let mut all = vec![
            ("file_bytes", self.memory.used() as u64),
            ("file_bytes_peak", self.memory.peak() as u64),
            ("file_spare_bytes", self.memory.spare_bytes() as u64),
            ("file_folios", self.memory.folios() as u64),
            ("dirty_bytes", self.dirty_pages() as u64 * block),
            ("dirty_bytes_peak", self.dirty_peak.load(Ordering::Relaxed) as u64 * block),
            ("dirty_behind_bytes", self.dirty.lock().all_behind() as u64 * block),
            ("writers_throttled", self.flusher.throttled.load(Ordering::Relaxed)),
        ];
        all.extend(self.flusher.entries(block));
        all
    }

    /// So many bytes for data that will be given away, whatever they are.
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        self.memory.filled(bytes)
    }

    /// Gives memory back that nobody used since the last call.
    pub fn rest(&self) {
        self.memory.rest();
    }

    /// Stops what writes back by itself.
    pub fn stop(&self) {
        self.readers.stop();
        self.flusher.stop();
    }

    /// The state of a file, if it has any.
    fn known_state(inode: &Inode) -> Option<&FileState> {
        let attached: &dyn Any = &**inode.attached.get()?;
        attached.downcast_ref()
    }

    /// The state of a file.
    pub fn state<'a>(self: &Arc<Self>, inode: &'a Inode) -> &'a FileState {
        inode.attached.get_or_init(|| {
            Box::new(FileState {
                pages: Pages::new(&self.memory, inode.vol.geo.blocksize as usize, self.nobody.clone()),
                lock: FileLock::new(self.cfg.lock),
                size: AtomicU64::new(inode.data().core.size),
                times: AtomicBool::new(false),
                claims: Claims::default(),
                failures: Mutex::default(),
                told: Told::default(),
                promise: Mutex::default(),
                ahead: Ahead::default(),
                staged: Mutex::default(),
                files: self.clone(),
            })
        });
        match Self::known_state(inode) {
            Some(s) => s,
            None => unreachable!("only this room attaches to inodes"),
        }
    }

    /// Files with dirty data or times.
    pub fn dirty(&self) -> Vec<Arc<Inode>> {
        self.dirty.lock().all()
    }

    /// Lets go of all files, when nothing will be written any more.
    pub fn forget_all(&self) {
        let files = self.dirty.lock().take_all();
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop((files, waiting));
    }

    /// Dirty pages of all files.
    fn dirty_pages(&self) -> usize {
        usize::try_from(self.dirty_pages.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// More pages are dirty, or fewer.
    fn count_dirty(&self, pages: isize) {
        let now = usize::try_from(self.dirty_pages.fetch_add(pages, Ordering::AcqRel) + pages).unwrap_or(0);
        if now > self.dirty_peak.load(Ordering::Relaxed) {
            self.dirty_peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    fn note_dirty(&self, inode: &Arc<Inode>, st: &FileState, how: How) {
        // Only one policy knows of domains, and of files whose pages are to be dropped.
        let own = self.cfg.drop_behind == DropBehind::FlusherOwn;
        let domain = if own { how.domain } else { Domain::default() };
        self.dirty.lock().add(inode, &st.pages.behind, domain, own && how.drops());
    }

    /// Takes a file off the list if it is clean. Whoever writes makes pages dirty first and notes that then.
    fn note_clean(&self, inode: &Inode, is_clean: impl FnOnce() -> bool) {
        let mut dirty = self.dirty.lock();
        if is_clean() {
            dirty.remove(inode.ino.0);
        }
    }
}

/// Bytes of a file as users see them. For what is no regular file, the core's.
pub fn size(inode: &Inode) -> u64 {
    match Files::known_state(inode) {
        Some(st) => st.size.load(Ordering::Acquire),
        None => inode.data().core.size,
    }
}

/// Blocks that are promised to a file and not yet its own.
pub fn promised(inode: &Inode) -> u64 {
    Files::known_state(inode).map_or(0, |st| st.promise.lock().pages)
}

/// Longest file.
pub const MAX_SIZE: u64 = i64::MAX as u64;

fn touch(inode: &Inode, st: &FileState) {
    let now = inode.vol.now();
    let mut d = inode.data();
    d.core.mtime = now;
    d.core.ctime = now;
    st.times.store(true, Ordering::Release);
}

/// Zeroes from `size` to the end of its block, where a file is about to grow beyond.
fn zero_tail(inode: &Arc<Inode>, st: &FileState, size: u64) -> Result<()> {
    zero_part(inode, st, size, size.next_multiple_of(u64::from(inode.vol.geo.blocksize)))
}

/// Zeroes `from..to`, which lie in one block, if anything is stored there. The file is listed as dirty then, whatever its caller finds next.
fn zero_part(inode: &Arc<Inode>, st: &FileState, from: u64, to: u64) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let block = from / bs;
    if from < to && has_data(inode, st, block)? {
        // One block: all of it, or an error.
        write::put(inode, st, from, Source::lent(&vec![0; (to - from) as usize]), write::Put::default())?;
        st.files.note_dirty(inode, st, How::default());
    }
    Ok(())
}

fn has_data(inode: &Arc<Inode>, st: &FileState, block: u64) -> Result<bool> {
    if st.pages.next_unwritten(block, block + 1).is_some() {
        return Ok(true);
    }
    let _i = inode.lock_shared();
    map::load(inode, Which::Data)?;
    Ok(inode.data().data.at(block).is_some_and(|e| !e.unwritten))
}

/// Sets the size of a file; frees what lies behind.
///
/// # Locks
/// The file's lock, the claim of all that is written back, `ilock`, all exclusively.
///
/// # Errors
/// [`Error::TooLarge`]; the device's; the fork is corrupt.
pub fn truncate(files: &Arc<Files>, inode: &Arc<Inode>, new: u64) -> Result<()> {
    inode.vol.check_writable()?;
    if new > MAX_SIZE {
        return Err(Error::TooLarge);
    }
    let st = files.state(inode);
    let _io = st.lock.all();
    let old = st.size.load(Ordering::Acquire);
    zero_tail(inode, st, old.min(new))?;
    let _one = st.claims.all();
    let bs = u64::from(inode.vol.geo.blocksize);
    drop_pages(inode, st, new.div_ceil(bs), u64::MAX);
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
    drop_pages(inode, st, new.div_ceil(bs), u64::MAX);
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
    let (dirty, delayed) = st.pages.forget(from, end);
    st.give_up_pages(inode, delayed);
    st.files.count_dirty(-(dirty as isize));
}

/// Forgets all data of a file that is going away.
pub(crate) fn forget(files: &Arc<Files>, inode: &Arc<Inode>) {
    if let Some(st) = Files::known_state(inode) {
        let _one = st.claims.all();
        drop_pages(inode, st, 0, u64::MAX);
        st.times.store(false, Ordering::Release);
        st.size.store(0, Ordering::Release);
    }
    files.note_clean(inode, || true);
}

/// A new file begins under this number: what the cache knew of the old one counts no more.
pub(crate) fn begin(inode: &Inode) {
    if let Some(st) = Files::known_state(inode) {
        st.size.store(inode.data().core.size, Ordering::Release);
    }
}
