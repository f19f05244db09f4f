//! Write-back that nobody waits for: workers write the files that have been dirty longest, and writers wait for them where too much is
//! dirty.
//!
//! Above the *background* limit the workers write. Half-way from there to the *hard* limit writers begin to wait, each for as much as it
//! is about to make dirty, in the proportion in which the rest of the way is used up; nobody gets beyond the hard limit. They wait before
//! they take any lock, so whatever write-back needs, it gets.

use super::writeback::write_back;
use super::{Files, Inode};
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use uxfs_device::Class;
use uxfs_sync::explored::{Condvar, wait};

/// Threads that write back. They wait for the device, not for processors.
const WORKERS: usize = 4;

/// Why data is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Time has passed.
    Periodic,
    /// Much is dirty.
    Background,
    /// Somebody waits for it to be durable, or for a file without anything dirty.
    Sync,
    /// Space or memory is short.
    Space,
}

impl Why {
    /// How many there are.
    const COUNT: usize = 4;
    const NAMES: [&'static str; Why::COUNT] =
        ["writeback_periodic_bytes", "writeback_background_bytes", "writeback_sync_bytes", "writeback_space_bytes"];

    pub(super) fn class(self) -> Class {
        if self == Why::Sync { Class::Fsync } else { Class::Background }
    }
}

#[derive(Default)]
struct State {
    /// Files that a worker writes just now.
    busy: BTreeSet<u64>,
    workers: Vec<JoinHandle<()>>,
    /// No worker is to begin anything any more.
    stopped: bool,
}

/// The workers of a volume, and what they did.
pub struct Flusher {
    state: Mutex<State>,
    /// There may be something to write.
    work: Condvar,
    /// Something was written.
    room: Condvar,
    waiting: AtomicUsize,
    /// Pages written, by reason.
    written: [AtomicU64; Why::COUNT],
    /// Times that a writer waited.
    pub throttled: AtomicU64,
}

impl Default for Flusher {
    fn default() -> Flusher {
        Flusher {
            state: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            waiting: AtomicUsize::new(0),
            written: Default::default(),
            throttled: AtomicU64::new(0),
        }
    }
}

impl Flusher {
    fn total(&self) -> u64 {
        self.written.iter().map(|w| w.load(Ordering::Acquire)).sum()
    }

    /// Pages that were written for each reason, by name.
    pub fn entries(&self, block: u64) -> Vec<(&'static str, u64)> {
        Why::NAMES.into_iter().zip(self.written.iter().map(|w| w.load(Ordering::Relaxed) * block)).collect()
    }

    /// Pages went to the device, or were lost on the way.
    pub fn note_written(&self, pages: u64, why: Why) {
        self.written[why as usize].fetch_add(pages, Ordering::AcqRel);
        if self.waiting.load(Ordering::Acquire) > 0 {
            drop(self.state.lock());
            self.room.notify_all();
        }
    }

    /// Lets the workers end what they do, and waits for that.
    pub fn stop(&self) {
        let workers = {
            let mut s = self.state.lock();
            s.stopped = true;
            self.work.notify_all();
            std::mem::take(&mut s.workers)
        };
        let me = std::thread::current().id();
        for w in workers.into_iter().filter(|w| w.thread().id() != me) {
            let _ = w.join();
        }
    }
}

/// A worker that panics is a power cut: nothing more is written.
struct PowerCut<'a>(&'a Inode);

impl Drop for PowerCut<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.vol.journal.fail("a thread that writes files back panicked");
        }
    }
}

impl Files {
    /// Dirty pages above which the workers write.
    fn background(&self) -> usize {
        self.limit / 4
    }

    fn dirty_pages(&self) -> usize {
        self.dirty_pages.load(Ordering::Acquire)
    }

    /// Wakes the workers; starts them if there are none yet.
    fn kick(self: &Arc<Self>) {
        let mut s = self.flusher.state.lock();
        if s.workers.is_empty() && !s.stopped {
            for n in 0..WORKERS {
                let files = self.clone();
                let started = std::thread::Builder::new().name(format!("uxfs-flush{n}")).spawn(move || files.flush_work());
                s.workers.extend(started.ok());
            }
        }
        self.flusher.work.notify_all();
    }

    /// What a worker does until it is stopped.
    fn flush_work(self: Arc<Self>) {
        loop {
            let inode = {
                let mut s = self.flusher.state.lock();
                loop {
                    if s.stopped {
                        return;
                    }
                    let wanted = self.dirty_pages() > self.background() - self.background() / 8;
                    if let Some(i) = wanted.then(|| self.oldest(&s.busy)).flatten() {
                        s.busy.insert(i.ino.0);
                        break i;
                    }
                    self.flusher.work.wait(&mut s);
                }
            };
            let guard = PowerCut(&inode);
            // The error is latched for the file's next fsync; what could not be written is not dirty any more.
            let failed = write_back(&self, &inode, 0, u64::MAX, Why::Background).is_err();
            drop(guard);
            self.flusher.state.lock().busy.remove(&inode.ino.0);
            self.flusher.room.notify_all();
            if failed && inode.vol.journal.shutdown.reason().is_some() {
                return;
            }
        }
    }

    /// Waits until `pages` more may become dirty. The caller holds no lock.
    ///
    /// # Errors
    /// The volume is shut down.
    pub(super) fn throttle(self: &Arc<Self>, mine: &Arc<Inode>, pages: usize) -> Result<()> {
        if self.dirty_pages() <= self.background() {
            return Ok(());
        }
        if mine.vol.reproducible {
            return self.throttle_alone(mine);
        }
        self.kick();
        let free = (self.background() + self.limit) / 2;
        let over = self.dirty_pages().saturating_sub(free);
        if over == 0 {
            return Ok(());
        }
        self.flusher.throttled.fetch_add(1, Ordering::Relaxed);
        let share = pages.saturating_mul(over).div_ceil(self.limit - free).min(self.limit);
        let goal = self.flusher.total() + share as u64;
        self.flusher.waiting.fetch_add(1, Ordering::AcqRel);
        let mut s = self.flusher.state.lock();
        let res = loop {
            let dirty = self.dirty_pages();
            if dirty <= free || (dirty <= self.limit && self.flusher.total() >= goal) {
                break Ok(());
            }
            if let Err(e) = mine.vol.check_writable() {
                break Err(e);
            }
            self.flusher.work.notify_all();
            wait(&self.flusher.room, &mut s);
        };
        drop(s);
        self.flusher.waiting.fetch_sub(1, Ordering::AcqRel);
        res
    }

    /// The same without workers: where blocks lie must not depend on who was faster.
    fn throttle_alone(self: &Arc<Self>, mine: &Arc<Inode>) -> Result<()> {
        if self.dirty_pages() <= self.limit {
            return Ok(());
        }
        // Somewhat below the limit, so that not every write meets it again.
        while self.dirty_pages() > self.limit - self.limit / 8 {
            mine.vol.check_writable()?;
            let Some(i) = self.oldest(&BTreeSet::new()) else { return Ok(()) };
            write_back(self, &i, 0, u64::MAX, Why::Background)?;
        }
        Ok(())
    }
}
