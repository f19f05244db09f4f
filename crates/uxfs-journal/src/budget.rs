//! How much memory checkpoints may pin before they are durable.
//!
//! A transaction is promised what it may pin at most before it begins, and pins no more; durability gives it back.
//!
//! 1. `pinned + promised <= limit`; newcomers are promised something only up to three quarters of it.
//! 2. What is pinned becomes durable without any lock of an item, any log space or any promise: whoever waits makes the open
//!    checkpoint be written, so `pinned` falls to nothing in the end.
//! 3. A transaction that rolls holds locks, and no promise while it waits. Newcomers leave a quarter of the limit to those, also
//!    if each of them waits for a lock of one that rolls. So the first in the queue of those always goes on.
//! 4. Both queues are served in order.

use crate::hole::{Hole, hole};
use crate::line::{Line, Wanted, wait_in_line};
use crate::stats::Stats;
use crate::{JournalError, Shutdown};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use uxfs_sync::explored::{Condvar, Mutex, notify};

/// How large checkpoints become. All other code is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointLimit {
    /// An eighth of the log, as XFS did before Linux 5.7; memory has no bound.
    LogFraction,
    /// At most what 16 times all log buffers hold, 32 MiB, as XFS does since; a bound on what is logged in one checkpoint.
    Window,
    /// A bound on the memory that all checkpoints together pin.
    #[default]
    Budget,
}

uxfs_sync::named!(CheckpointLimit { Budget = "budget", Window = "window", LogFraction = "log-fraction" });

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// It holds no lock.
    Newcomer,
    /// It rolls on.
    Roller,
}

/// A right to pin, not yet used.
#[derive(Debug)]
pub(crate) struct Promise {
    who: Who,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Queues {
    /// Bytes promised to newcomers, and to those that roll.
    promised: [u64; 2],
    waiting: [Line; 2],
}

pub(crate) struct Budget {
    /// Bytes; `None` for no bound.
    limit: Option<u64>,
    pinned: AtomicI64,
    queues: Mutex<Queues>,
    changed: Condvar,
    shutdown: Arc<Shutdown>,
    stats: Arc<Stats>,
}

impl Budget {
    pub(crate) fn new(limit: Option<u64>, shutdown: Arc<Shutdown>, stats: Arc<Stats>) -> Budget {
        Budget { limit, pinned: AtomicI64::default(), queues: Mutex::default(), changed: Condvar::new(), shutdown, stats }
    }

    /// Bytes pinned now.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned.load(Ordering::Acquire).max(0) as u64
    }

    /// True if somebody waits: the open checkpoint should be written.
    pub(crate) fn has_waiters(&self) -> bool {
        self.limit.is_some() && self.queues.lock().waiting.iter().any(|q| !q.is_empty())
    }

    fn fits(&self, limit: u64, q: &Queues, who: Who, bytes: u64) -> bool {
        let [new, roll] = q.promised;
        let all = self.pinned() + new + roll + bytes;
        match who {
            // What is pinned counts against the newcomers' part, too: then there is less to wait for.
            Who::Newcomer => all <= limit / 4 * 3 || all <= limit && new + roll == 0 && self.pinned() == 0,
            Who::Roller => all <= limit,
        }
    }

    /// Promises that `bytes` may be pinned, or less if that is more than a quarter of the limit.
    ///
    /// # Errors
    /// The volume is shut down.
    pub(crate) fn promise(&self, who: Who, bytes: u64, push: &dyn Fn()) -> Result<Option<Promise>, JournalError> {
        let Some(limit) = self.limit else { return Ok(None) };
        let bytes = bytes.min(limit / 4);
        let i = who as usize;
        let wanted = Wanted {
            line: &|q: &mut Queues| &mut q.waiting[i],
            fits: &|q| self.fits(limit, q, who, bytes),
            ask: push,
            waits: &|| Stats::add(&self.stats.sleep_budget, 1),
        };
        let mut q = wait_in_line(&self.queues, &self.changed, &self.shutdown, &wanted)?;
        q.promised[i] += bytes;
        Ok(Some(Promise { who, bytes }))
    }

    /// A promise was kept, or is not needed.
    pub(crate) fn end(&self, p: Option<Promise>) {
        if let Some(p) = p {
            self.queues.lock().promised[p.who as usize] -= p.bytes;
            self.changed.notify_all();
        }
    }

    /// Bytes were pinned, or are no longer.
    pub(crate) fn pin(&self, bytes: i64) {
        let now = self.pinned.fetch_add(bytes, Ordering::AcqRel) + bytes;
        Stats::peak(&self.stats.pinned_peak, now.max(0) as u64);
        if bytes < 0 && self.limit.is_some() && !hole(Hole::SilentDurability) {
            self.wake();
        }
    }

    /// Wakes everybody who waits.
    pub(crate) fn wake(&self) {
        notify(&self.queues, &self.changed);
    }
}
