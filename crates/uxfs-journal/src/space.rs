//! Log space: who may still write how much.
//!
//! Two counters of granted bytes. *reserve* counts all that was promised, *write* what running transactions may still
//! need at once; a transaction that rolls on waits on *write* only, so it cannot be shut out by newcomers.
//!
//! 1. `used + write <= size`, where `used` is the distance from the stable tail to the head.
//! 2. Waiters are served in order, newcomers behind those who wait.
//! 3. Whoever waits has the AIL pushed to make room.

use crate::budget::Promise;
use crate::line::{Line, Wanted, wait_in_line};
use crate::stats::Stats;
use crate::{JournalError, Shutdown};
use std::sync::Arc;
use uxfs_format::Lsn;
use uxfs_sync::explored::{Condvar, Mutex, notify};

/// The right of a transaction to log.
#[derive(Debug)]
pub struct Ticket {
    /// Bytes each link may log, headers included.
    pub(crate) unit: u64,
    /// Links still paid for.
    pub(crate) count: u32,
    /// Bytes that the running link may still log.
    pub(crate) left: u64,
    /// What the running link may still pin.
    pub(crate) promise: Option<Promise>,
}

#[derive(Debug, Default)]
struct Counters {
    reserve: u64,
    write: u64,
    head: Lsn,
    tail: Lsn,
    reserve_line: Line,
    write_line: Line,
}

/// The space of one log.
pub(crate) struct Space {
    size: u64,
    counters: Mutex<Counters>,
    changed: Condvar,
    shutdown: Arc<Shutdown>,
    stats: Arc<Stats>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Reserve,
    Write,
}

impl Space {
    pub(crate) fn new(size: u64, head: Lsn, tail: Lsn, shutdown: Arc<Shutdown>, stats: Arc<Stats>) -> Space {
        let counters = Mutex::new(Counters { head, tail, ..Counters::default() });
        Space { size, counters, changed: Condvar::new(), shutdown, stats }
    }

    /// Bytes between two positions of the log.
    pub(crate) fn distance(size: u64, tail: Lsn, head: Lsn) -> u64 {
        let (t, h) = (u64::from(tail.block()) * 512, u64::from(head.block()) * 512);
        if head.cycle() == tail.cycle() { h.saturating_sub(t) } else { (size + h).saturating_sub(t) }
    }

    fn used(&self, c: &Counters) -> u64 {
        Self::distance(self.size, c.tail, c.head)
    }

    /// Bytes of the log in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used(&self.counters.lock())
    }

    /// True if somebody waits for room.
    pub(crate) fn has_waiters(&self) -> bool {
        let c = self.counters.lock();
        !c.reserve_line.is_empty() || !c.write_line.is_empty()
    }

    /// True if `bytes` fit behind a tail at `tail`, however much else is granted.
    pub(crate) fn fits_behind(&self, tail: Lsn, bytes: u64) -> bool {
        Self::distance(self.size, tail, self.counters.lock().head) + bytes <= self.size
    }

    fn fits(&self, c: &Counters, head: Head, need: u64) -> bool {
        let granted = if head == Head::Reserve { c.reserve } else { c.write };
        self.used(c) + granted + need <= self.size
    }

    fn wait(&self, head: Head, need: u64, push: &dyn Fn()) -> Result<(), JournalError> {
        Stats::add(&self.stats.try_logspace, 1);
        let wanted = Wanted {
            line: &|c: &mut Counters| if head == Head::Reserve { &mut c.reserve_line } else { &mut c.write_line },
            fits: &|c| self.fits(c, head, need),
            ask: push,
            waits: &|| Stats::add(&self.stats.sleep_logspace, 1),
        };
        let mut c = wait_in_line(&self.counters, &self.changed, &self.shutdown, &wanted)?;
        if head == Head::Reserve {
            c.reserve += need;
        }
        c.write += need;
        Ok(())
    }

    /// Reserves `unit` bytes `count` times.
    pub(crate) fn reserve(&self, unit: u64, count: u32, push: &dyn Fn()) -> Result<Ticket, JournalError> {
        let need = unit * u64::from(count);
        if need > self.size / 2 {
            return Err(JournalError::Unsupported(format!("a reservation of {need} bytes does not fit a log of {} bytes", self.size)));
        }
        self.wait(Head::Reserve, need, push)?;
        Ok(Ticket { unit, count, left: unit, promise: None })
    }

    /// Ends a link of a rolling transaction and makes the next one ready.
    pub(crate) fn regrant(&self, t: &mut Ticket, push: &dyn Fn()) -> Result<(), JournalError> {
        {
            let mut c = self.counters.lock();
            let unused = std::mem::take(&mut t.left);
            c.reserve = c.reserve.saturating_sub(unused);
            c.write = c.write.saturating_sub(unused);
            t.count = t.count.saturating_sub(1);
            self.changed.notify_all();
            if t.count == 0 {
                c.reserve += t.unit;
            }
        }
        if t.count == 0 {
            // Waits on the write counter only; the reserve counter was charged above whatever it says.
            if let Err(e) = self.wait(Head::Write, t.unit, push) {
                let mut c = self.counters.lock();
                c.reserve = c.reserve.saturating_sub(t.unit);
                return Err(e);
            }
            t.count = 1;
        }
        t.left = t.unit;
        Ok(())
    }

    /// Gives back what a ticket did not use.
    pub(crate) fn release(&self, t: Ticket) {
        let rest = t.left + t.unit * u64::from(t.count.saturating_sub(1));
        self.give_back(rest);
    }

    /// Gives granted bytes back: a ticket's rest, or a checkpoint's once the head moved over it.
    pub(crate) fn give_back(&self, bytes: u64) {
        let mut c = self.counters.lock();
        c.reserve = c.reserve.saturating_sub(bytes);
        c.write = c.write.saturating_sub(bytes);
        self.changed.notify_all();
    }

    /// Grants bytes without asking: for an overrun, which is counted.
    pub(crate) fn force_grant(&self, bytes: u64) {
        let mut c = self.counters.lock();
        c.reserve += bytes;
        c.write += bytes;
    }

    pub(crate) fn set_head(&self, head: Lsn) {
        let mut c = self.counters.lock();
        c.head = head;
        Stats::peak(&self.stats.used_peak, self.used(&c));
    }

    /// Moves the stable tail forward.
    pub(crate) fn set_tail(&self, tail: Lsn) {
        let mut c = self.counters.lock();
        if tail > c.tail {
            c.tail = tail;
            self.changed.notify_all();
        }
    }

    pub(crate) fn tail(&self) -> Lsn {
        self.counters.lock().tail
    }

    /// Waits until `bytes` more can be written without running over the stable tail. Granted space makes sure of it; this
    /// is the assertion's waiting form for overruns.
    pub(crate) fn room_for(&self, bytes: u64) -> bool {
        let c = self.counters.lock();
        self.used(&c) + bytes <= self.size
    }

    /// Wakes everybody, after a shutdown.
    pub(crate) fn wake(&self) {
        notify(&self.counters, &self.changed);
    }
}
