//! Reading ahead of whoever reads a file from front to back: first by the reader itself, then by workers beside it.
//!
//! The reader that finds nothing in memory reads its own blocks and a window behind them. When it comes to that window, workers read the
//! next ones, each twice as long, and so on, some of them at once: so the device works while bytes are copied. Who comes to what is on
//! its way waits for it.

use super::read::{read_pages, written};
use super::{FileState, Files, Inode};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uxfs_sync::explored::{Condvar, wait};
use uxfs_sync::{Kick, Workers};

/// Bytes of the first window.
const FIRST: u64 = 128 << 10;
/// Bytes of the longest one.
pub const LONGEST: u64 = 2 << 20;
/// Windows of one file that are on their way at once.
const PENDING: usize = 3;
/// Threads that read ahead.
const WORKERS: usize = 3;

/// How far a file was read ahead, in blocks.
#[derive(Debug)]
pub struct Ahead {
    state: Mutex<State>,
    /// Who reads this block sets the next window off; `u64::MAX` for none.
    mark: AtomicU64,
    /// Something is on its way.
    pending: AtomicBool,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// A read that begins here follows what came before.
    next: u64,
    window: u64,
    /// Windows on their way, in the file's order.
    pending: Vec<Range<u64>>,
}

impl State {
    /// The window for who misses blocks from `first` on.
    fn window_at(&self, first: u64, block: u64) -> u64 {
        if first == self.next { (self.window * 2).clamp(FIRST / block, LONGEST / block) } else { 0 }
    }
}

impl Default for Ahead {
    fn default() -> Ahead {
        let (state, pending, arrived) = (Mutex::default(), AtomicBool::new(false), Condvar::new());
        Ahead { state, mark: AtomicU64::new(u64::MAX), pending, arrived }
    }
}

impl Ahead {
    /// Where to stop reading, if blocks `first..end` are missing; at `most` if that is before.
    pub fn plan(&self, first: u64, end: u64, block: u64, most: u64) -> u64 {
        let mut s = self.state.lock();
        s.window = s.window_at(first, block);
        s.next = end.max((first + s.window).min(most));
        self.mark.store(if s.window > 0 && s.next > end { end } else { u64::MAX }, Ordering::Relaxed);
        s.next
    }

    /// How many blocks [`plan`](Ahead::plan) would have read from `first` on.
    pub fn window(&self, first: u64, block: u64) -> u64 {
        self.state.lock().window_at(first, block)
    }

    /// The next windows, if it is time for them because somebody reads these blocks of the first `size`. They are on their way then.
    fn advance(&self, blocks: &Range<u64>, size: u64, block: u64) -> Vec<Range<u64>> {
        let mut new = Vec::new();
        if !blocks.contains(&self.mark.load(Ordering::Relaxed)) {
            return new;
        }
        let mut s = self.state.lock();
        if !blocks.contains(&self.mark.load(Ordering::Relaxed)) {
            return new;
        }
        while s.pending.len() < PENDING && s.next < size {
            s.window = (s.window * 2).clamp(FIRST / block, LONGEST / block);
            let window = s.next..(s.next + s.window).min(size);
            s.next = window.end;
            s.pending.push(window.clone());
            new.push(window);
        }
        // Whoever comes to the first one that is behind him has this done again.
        let mark = s.pending.iter().map(|p| p.start).find(|p| *p >= blocks.end);
        self.mark.store(mark.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.pending.store(!s.pending.is_empty(), Ordering::Release);
        new
    }

    /// A window is there, or will not come.
    fn arrived(&self, window: &Range<u64>) {
        let mut s = self.state.lock();
        s.pending.retain(|p| p != window);
        self.pending.store(!s.pending.is_empty(), Ordering::Release);
        self.arrived.notify_all();
    }

    /// Waits for what is on its way of some blocks.
    pub fn await_pending(&self, blocks: &Range<u64>) {
        if !self.pending.load(Ordering::Acquire) {
            return;
        }
        let mut s = self.state.lock();
        while s.pending.iter().any(|p| p.start < blocks.end && blocks.start < p.end) {
            wait(&self.arrived, &mut s);
        }
    }
}

/// A window to be read.
struct Job {
    inode: Arc<Inode>,
    blocks: Range<u64>,
    /// It is dropped when it was read.
    drop: bool,
}

/// The workers of a volume.
#[derive(Default)]
pub struct Readers {
    jobs: Kick<VecDeque<Job>>,
    workers: Workers,
}

impl Readers {
    /// Lets the workers end, and waits for that.
    pub fn stop(&self) {
        self.jobs.stop();
        let left = std::mem::take(&mut *self.jobs.lock());
        left.iter().for_each(forget);
        self.workers.join();
    }
}

/// A window is there, or will not come.
fn forget(job: &Job) {
    if let Some(st) = Files::known_state(&job.inode) {
        st.ahead.arrived(&job.blocks);
    }
}

impl Files {
    /// Somebody reads these blocks: sets the next windows off, if it is time for them.
    pub(super) fn read_ahead(self: &Arc<Self>, inode: &Arc<Inode>, st: &FileState, blocks: &Range<u64>, drop: bool) {
        let bs = u64::from(inode.vol.geo.blocksize);
        let size = st.size.load(Ordering::Acquire).div_ceil(bs);
        let windows = st.ahead.advance(blocks, size, bs);
        if windows.is_empty() {
            return;
        }
        let jobs = windows.into_iter().map(|blocks| Job { inode: inode.clone(), blocks, drop });
        let Readers { jobs: queue, workers } = &self.readers;
        workers.begin(WORKERS, "uxfs-ahead", || {
            let files = self.clone();
            || files.ahead_work()
        });
        let mut q = queue.lock();
        // Without a worker nobody would ever come for them.
        if queue.is_stopped() || workers.is_empty() {
            return jobs.for_each(|j| forget(&j));
        }
        q.extend(jobs);
        std::mem::drop(q);
        queue.ask();
    }

    fn ahead_work(self: Arc<Self>) {
        /// Also if it panics: who waits for the window reads it then.
        struct Arrives<'a>(&'a Job);
        impl Drop for Arrives<'_> {
            fn drop(&mut self) {
                forget(self.0);
            }
        }
        while let Some(job) = self.readers.jobs.next(VecDeque::pop_front) {
            let _arrives = Arrives(&job);
            let _op = job.inode.vol.journal.op().enter();
            let st = self.state(&job.inode);
            let bytes = (job.blocks.end - job.blocks.start) * u64::from(job.inode.vol.geo.blocksize);
            // Where memory is short nothing is read that nobody has asked for.
            let Some(_room) = self.memory.try_room(bytes as usize) else { continue };
            let n = st.pages.per_folio();
            let mut at = job.blocks.start;
            while at < job.blocks.end {
                let to = ((at / n + 1) * n).min(job.blocks.end);
                // Holes need no folio; what fails does so again when somebody asks for it.
                let read = written(&job.inode, at, to).and_then(|e| match e.is_empty() {
                    true => Ok(()),
                    false => read_pages(&job.inode, st, at..to, (0, job.drop), &mut []),
                });
                if read.is_err() {
                    break;
                }
                at = to;
            }
        }
    }
}
