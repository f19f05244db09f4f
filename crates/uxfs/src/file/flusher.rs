//! Write-back that nobody waits for: workers write the files that have been dirty longest, and writers wait for them where too much is
//! dirty.
//!
//! Above the *background* limit the workers write. Half-way from there to the *hard* limit writers begin to wait, each for as much as it
//! is about to make dirty, in the proportion in which the rest of the way is used up; nobody gets beyond the hard limit. They wait before
//! they take any lock, so whatever write-back needs, it gets.
//!
//! What is dropped behind its writer is written at once, and whoever writes it waits in the same way at a limit of its own, a tenth of
//! the other, which the domains that write so share.

use super::dirty::{Account, DROPPED, Fit, KEPT, Turn};
use super::writeback::write_some;
use super::{FileState, Files, How, Inode};
use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use uxfs_device::Class;
use uxfs_sync::explored::{Condvar, wait};
use uxfs_sync::{Kick, Workers};

/// Threads that write back. They wait for the device, not for processors.
const WORKERS: usize = 4;
/// Bytes of a file that are written before it is another one's turn.
const TURN: u64 = 4 << 20;

/// Bytes of a file that are dirty for each worker that has it, so that another one joins them.
const ENOUGH: u64 = 1 << 20;

/// Who writes back what is dropped behind its writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DropBehind {
    /// The writer, in each write. As the kernel did it first.
    Inline,
    /// The workers, as many pages as were written so, of the files that have been dirty longest, whosever they are. As it was proposed.
    FlusherOldest,
    /// The workers, of these files, in turn with others.
    #[default]
    FlusherOwn,
}

uxfs_sync::named!(DropBehind { Inline = "inline", FlusherOldest = "flusher-oldest", FlusherOwn = "flusher-own" });

/// Why data is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Time has passed.
    Periodic,
    /// Much is dirty.
    Background,
    /// Somebody waits for it to be durable, or for a file without anything dirty.
    Sync,
    /// It is dropped then.
    DropBehind,
    /// Space or memory is short.
    Space,
}

impl Why {
    /// How many there are.
    const COUNT: usize = 5;
    const NAMES: [&'static str; Why::COUNT] = [
        "writeback_periodic_bytes",
        "writeback_background_bytes",
        "writeback_sync_bytes",
        "writeback_dropbehind_bytes",
        "writeback_space_bytes",
    ];

    pub(super) fn class(self) -> Class {
        if self == Why::Sync { Class::Fsync } else { Class::Background }
    }

    /// True if somebody waits for it.
    pub(super) fn is_awaited(self) -> bool {
        !matches!(self, Why::Background | Why::DropBehind)
    }
}

#[derive(Default)]
struct State {
    /// Files that workers write just now, and how many do.
    busy: BTreeMap<u64, usize>,
    /// Pages that are to be written, of the files that have been dirty longest.
    oldest: u64,
    /// Pages that workers took on because too much was dirty.
    taken: u64,
}

/// The workers of a volume, and what they did.
pub struct Flusher {
    /// Wakes them.
    kick: Kick<State>,
    workers: Workers,
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
            kick: Kick::new(State::default()),
            workers: Workers::default(),
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

    /// Pages of a domain went to the device, or were lost on the way.
    pub fn note_written(&self, pages: u64, why: Why, account: &Account) {
        self.written[why as usize].fetch_add(pages, Ordering::AcqRel);
        account.written.fetch_add(pages, Ordering::AcqRel);
        if self.waiting.load(Ordering::Acquire) > 0 {
            drop(self.kick.lock());
            self.room.notify_all();
        }
    }

    /// Lets the workers end what they do, and waits for that.
    pub fn stop(&self) {
        self.kick.stop();
        self.workers.join();
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

/// Pages that are counted, and how far they may be.
struct Limit<'a> {
    /// How many there are.
    now: &'a dyn Fn() -> usize,
    /// How many were written so far.
    done: &'a dyn Fn() -> u64,
    /// Up to here nobody waits.
    free: usize,
    /// Nobody gets beyond.
    most: usize,
}

impl Files {
    /// Dirty pages above which the workers write: where others cache, no more wait here than make long runs, since they delay whoever
    /// asks for all to be durable (5 MiB of the default budget: streams with an fsync through a mount are 4 to 10 % faster than with 20).
    fn background(&self) -> usize {
        self.limit / if self.cfg.keep { 4 } else { 16 }
    }

    /// Wakes the workers; starts them if there are none yet.
    fn kick(self: &Arc<Self>) {
        self.flusher.workers.begin(WORKERS, "uxfs-flush", || {
            let files = self.clone();
            || files.flush_work()
        });
        self.flusher.kick.ask();
    }

    /// What there is to do, for a worker.
    fn look(self: &Arc<Self>, s: &mut State) -> Option<(Turn, u64)> {
        let over = (self.dirty_pages() as u64).saturating_sub((self.background() - self.background() / 8) as u64 + s.taken);
        let much = s.oldest > 0 || over > 0;
        let mut dirty = self.dirty.lock();
        if !much && dirty.all_behind() == 0 {
            return None;
        }
        let turn = dirty.turn(|line| much || line == DROPPED, |i, line| self.fit(i, line, &s.busy));
        drop(dirty);
        if turn.is_none() && s.busy.is_empty() {
            // Whatever there was is written.
            s.oldest = 0;
        }
        let turn = turn?;
        *s.busy.entry(turn.inode.ino.0).or_default() += 1;
        // Whoever writes behind is waited for soon: a batch each. Else no more than is too much: what is on its way at once delays who reads.
        let most = if turn.line == DROPPED { 1 } else { TURN / u64::from(turn.inode.vol.geo.blocksize) };
        let pages = most.min(if s.oldest > 0 { s.oldest } else { over.max(1) });
        s.oldest = s.oldest.saturating_sub(pages);
        s.taken += pages;
        Some((turn, pages))
    }

    /// Whether a worker may write a file now.
    fn fit(self: &Arc<Self>, inode: &Inode, line: usize, busy: &BTreeMap<u64, usize>) -> Fit {
        let st = self.state(inode);
        let (dirty, behind) = (st.pages.dirty(), st.pages.behind.pages());
        let workers = busy.get(&inode.ino.0).copied().unwrap_or(0) as u64;
        if line == DROPPED && behind == 0 {
            return Fit::Gone;
        }
        // Several write one file if there is enough of it for each, and nobody writes its times while its data is on the way.
        let each = if line == DROPPED { ENOUGH / 4 } else { ENOUGH } / u64::from(inode.vol.geo.blocksize);
        let enough = if workers == 0 && !st.claims.any() { dirty > 0 || line == KEPT } else { dirty as u64 > workers * each };
        // What is to be dropped has its turns in the other line, if there is one.
        let one_line = self.cfg.drop_behind != DropBehind::FlusherOwn;
        if enough && (line == DROPPED || one_line || dirty == 0 || dirty > behind) { Fit::Now } else { Fit::Later }
    }

    /// What a worker does until it is stopped.
    fn flush_work(self: Arc<Self>) {
        while let Some((turn, pages)) = self.flusher.kick.next(|s| self.look(s)) {
            let inode = &turn.inode;
            let guard = PowerCut(inode);
            let _op = inode.vol.journal.op().enter();
            let why = if turn.line == DROPPED { Why::DropBehind } else { Why::Background };
            // The error is latched for the file's next fsync; what could not be written is not dirty any more.
            let done = write_some(&self, inode, 0, u64::MAX, why, pages);
            drop(guard);
            self.dirty.lock().settle(&turn, *done.as_ref().unwrap_or(&0));
            let mut s = self.flusher.kick.lock();
            s.taken -= pages;
            if let std::collections::btree_map::Entry::Occupied(mut e) = s.busy.entry(inode.ino.0) {
                *e.get_mut() -= 1;
                if *e.get() == 0 {
                    e.remove();
                }
            }
            drop(s);
            self.flusher.room.notify_all();
            if done.is_err() && inode.vol.journal.shutdown.reason().is_some() {
                return;
            }
        }
    }

    /// Somebody wrote what is dropped then.
    ///
    /// # Errors
    /// Those of write-back, where the writer does it.
    pub(super) fn kick_behind(self: &Arc<Self>, inode: &Arc<Inode>, bytes: Range<u64>) -> Result<()> {
        // Where blocks lie must not depend on who was faster.
        if self.cfg.drop_behind == DropBehind::Inline || inode.vol.reproducible {
            return write_some(self, inode, bytes.start, bytes.end, Why::DropBehind, u64::MAX).map(|_| ());
        }
        if self.cfg.drop_behind == DropBehind::FlusherOldest {
            let pages = bytes.end.div_ceil(u64::from(inode.vol.geo.blocksize)) - bytes.start / u64::from(inode.vol.geo.blocksize);
            self.flusher.kick.lock().oldest += pages;
        }
        self.kick();
        Ok(())
    }

    /// Waits until `pages` more may become dirty. The caller holds no lock.
    ///
    /// # Errors
    /// The volume is shut down.
    pub(super) fn throttle(self: &Arc<Self>, mine: &Arc<Inode>, st: &FileState, pages: usize, how: How) -> Result<()> {
        if mine.vol.reproducible {
            return self.throttle_alone(mine);
        }
        if how.drops() && self.cfg.drop_behind == DropBehind::FlusherOwn {
            let (account, most) = (st.pages.behind.account(), self.limit / 10);
            let free = most - most / 4;
            let now = || self.dirty.lock().behind(&account, free..most);
            let done = || account.written.load(Ordering::Acquire);
            self.wait_for(mine, pages, &Limit { now: &now, done: &done, free, most })?;
        }
        if self.dirty_pages() <= self.background() {
            return Ok(());
        }
        self.kick();
        let (now, done) = (|| self.dirty_pages(), || self.flusher.total());
        let free = (self.background() + self.limit) / 2;
        self.wait_for(mine, pages, &Limit { now: &now, done: &done, free, most: self.limit })
    }

    /// Waits, where more is there than is free, until as much more was written as is a share of what is about to come.
    fn wait_for(self: &Arc<Self>, mine: &Arc<Inode>, pages: usize, l: &Limit<'_>) -> Result<()> {
        let over = (l.now)().saturating_sub(l.free);
        if over == 0 {
            return Ok(());
        }
        self.flusher.throttled.fetch_add(1, Ordering::Relaxed);
        let share = pages.saturating_mul(over).div_ceil((l.most - l.free).max(1)).min(l.most);
        let goal = (l.done)() + share as u64;
        self.flusher.waiting.fetch_add(1, Ordering::AcqRel);
        let mut s = self.flusher.kick.lock();
        let res = loop {
            let now = (l.now)();
            if now <= l.free || (now <= l.most && (l.done)() >= goal) {
                break Ok(());
            }
            if let Err(e) = mine.vol.check_writable() {
                break Err(e);
            }
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
            let turn = self.dirty.lock().turn(|line| line == KEPT, |_, _| Fit::Now);
            let Some(turn) = turn else { return Ok(()) };
            write_some(self, &turn.inode, 0, u64::MAX, Why::Background, u64::MAX)?;
        }
        Ok(())
    }
}
