//! How records reach the medium: which writes and flushes, in which order, and what is durable after them.
//!
//! 1. All records before a commit record have completed when it is issued, and what it relies on is durable before it.
//! 2. Of what was written to the log at most [`WINDOW`] bytes may still be lost. Recovery looks no further back than that
//!    from the newest block for one that is missing; behind it a lost record would make the volume unreadable.
//! 3. A record bears only a tail that was sampled before a completed flush began. Log space is used again only up to the
//!    oldest tail that the last durable record bears, or one behind it.

use crate::ail::Ail;
use crate::flush::JournalFlush;
use crate::hole::{Hole, hole};
use crate::space::Space;
use crate::stats::Stats;
use crate::stream::{LogGeometry, SealedRecord};
use crate::{JournalError, PanicGuard, Shutdown};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uxfs_device::{Class, DeviceRef, WriteFlags, WriteRequest};
use uxfs_format::Lsn;
use uxfs_sync::explored::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use uxfs_sync::explored::{Condvar, Mutex, MutexGuard, notify, spawn_scoped, thread, wait};

/// Bytes of the log that may be neither durable nor lost at once: what recovery searches, 8 buffers of 256 KiB.
const WINDOW: u64 = 2 << 20;

struct Flushes {
    started: u64,
    done: u64,
    running: bool,
    stable: Lsn,
}

/// Positions in bytes since the volume was opened.
#[derive(Default)]
struct Window {
    /// All before this is durable.
    durable: u64,
    /// All before this was written, but for what is outstanding.
    written: u64,
    /// All before this is durable but for commit records that still wait for their turn.
    flushed: u64,
    /// Where the checkpoint that is being streamed will end, or somewhat before that.
    coming: u64,
    /// Where records begin that are not yet written.
    outstanding: BTreeSet<u64>,
    /// Where records begin that recovery may find to be the last one, and the tail of each.
    ends: BTreeMap<u64, Lsn>,
    flushing: bool,
}

impl Window {
    /// How far a flush that begins now makes the log safe.
    fn reach(&self) -> u64 {
        self.outstanding.first().copied().unwrap_or(self.written)
    }
}

/// Threads that write the records of a long checkpoint: while one waits for the medium, the other one's bytes are moved.
const LANES: usize = 2;

/// Records on their way to the lanes.
struct Queue {
    receive: Mutex<Receiver<SealedRecord>>,
    batch: usize,
}

impl Queue {
    /// Records that follow each other; none at the end.
    fn next(&self) -> Vec<SealedRecord> {
        let r = self.receive.lock();
        let mut batch: Vec<SealedRecord> = r.recv().into_iter().collect();
        while !batch.is_empty()
            && batch.len() < self.batch
            && let Ok(more) = r.try_recv()
        {
            batch.push(more);
        }
        batch
    }
}

/// The writing side of the journal.
pub(crate) struct LogWriter {
    dev: DeviceRef,
    log_dev: DeviceRef,
    /// The log has a device, and a cache, of its own.
    external: bool,
    geo: LogGeometry,
    policy: JournalFlush,
    /// Records that may be on their way or wait for it.
    buffers: usize,
    ail: Arc<Ail>,
    space: Arc<Space>,
    shutdown: Arc<Shutdown>,
    stats: Arc<Stats>,
    flushes: Mutex<Flushes>,
    flushed: Condvar,
    window: Mutex<Window>,
    moved: Condvar,
}

/// What a writer shares with the rest of the journal.
pub(crate) struct Parts {
    /// Where replay would begin now.
    pub(crate) tail: Lsn,
    pub(crate) devices: (DeviceRef, DeviceRef),
    pub(crate) geo: LogGeometry,
    pub(crate) policy: JournalFlush,
    pub(crate) buffers: usize,
    pub(crate) ail: Arc<Ail>,
    pub(crate) space: Arc<Space>,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) stats: Arc<Stats>,
}

impl LogWriter {
    pub(crate) fn new(p: Parts) -> Arc<LogWriter> {
        let (dev, log_dev) = p.devices;
        let external = !Arc::ptr_eq(&dev, &log_dev);
        Arc::new(LogWriter {
            dev,
            log_dev,
            external,
            geo: p.geo,
            policy: p.policy,
            buffers: p.buffers,
            ail: p.ail,
            space: p.space,
            shutdown: p.shutdown,
            stats: p.stats,
            flushes: Mutex::new(Flushes { started: 0, done: 0, running: false, stable: p.tail }),
            flushed: Condvar::new(),
            window: Mutex::default(),
            moved: Condvar::new(),
        })
    }

    /// Wakes everybody who waits here, after a shutdown.
    pub(crate) fn wake(&self) {
        notify(&self.flushes, &self.flushed);
        notify(&self.window, &self.moved);
    }

    /// True if records bear, and space follows, the AIL's tail whether it was flushed or not.
    pub(crate) fn trusts_unflushed(&self) -> bool {
        self.policy == JournalFlush::AsPublished || hole(Hole::UnstableTail)
    }

    /// The tail that was sampled before the last completed flush began: what went home before it is durable.
    pub(crate) fn stable_tail(&self) -> Lsn {
        self.flushes.lock().stable
    }

    /// The tail of a record that begins at `at`; `flushed` if a flush will begin after this and complete before the record is
    /// written. From here on the record counts as one that recovery may find to be the last.
    fn begin_record(&self, at: u64, flushed: bool) -> Lsn {
        let mut w = self.window.lock();
        let tail = if flushed || self.trusts_unflushed() { self.ail.tail() } else { self.stable_tail() };
        let off = [Hole::EmptyAilTail, Hole::UnpublishedTail].into_iter().any(hole) || self.trusts_unflushed();
        debug_assert!(off || tail >= self.space.tail(), "rule 3: a record bears a tail that may be written over");
        w.outstanding.insert(at);
        w.ends.insert(at, tail);
        tail
    }

    /// The tail of a record within a checkpoint, which is about to be made.
    pub(crate) fn record_tail(&self, at: u64) -> Lsn {
        self.begin_record(at, self.policy.each_record())
    }

    /// The tail of a commit record, which is about to be made; `spans` if the checkpoint has records before it.
    pub(crate) fn commit_tail(&self, at: u64, spans: bool) -> Lsn {
        self.begin_record(at, self.policy.flushes_before_commit(spans))
    }

    /// A token for [`LogWriter::flush_since`]: data that has completed by now.
    pub(crate) fn flush_token(&self) -> u64 {
        self.flushes.lock().started + 1
    }

    /// Makes sure that a flush of the data device began after the token was taken and has completed; many callers share one.
    pub(crate) fn flush_since(&self, token: u64) -> Result<(), JournalError> {
        let mut f = self.flushes.lock();
        loop {
            if f.done >= token {
                return Ok(());
            }
            self.shutdown.check()?;
            if f.running {
                wait(&self.flushed, &mut f);
                continue;
            }
            f.running = true;
            f.started += 1;
            let n = f.started;
            drop(f);
            let tail = self.ail.tail();
            Stats::add(&self.stats.flushes, 1);
            let res = uxfs_sync::blocking(|| self.dev.flush());
            f = self.flushes.lock();
            f.running = false;
            self.flushed.notify_all();
            match res {
                Ok(()) => {
                    f.done = f.done.max(n);
                    f.stable = f.stable.max(tail);
                    if hole(Hole::UnpublishedTail) {
                        self.space.set_tail(tail);
                    }
                }
                Err(e) => {
                    drop(f);
                    self.shutdown.set(format!("device flush failed: {e}"));
                    return Err(JournalError::Io(e));
                }
            }
        }
    }

    /// What a variant does before the first record of a checkpoint, which will end at about `end`.
    pub(crate) fn begin_checkpoint(&self, end: u64) -> Result<(), JournalError> {
        self.window.lock().coming = end;
        if self.policy.at_start() {
            self.flush_since(self.flush_token())?;
        }
        Ok(())
    }

    /// Runs `produce`, which hands over the records of a checkpoint but its last, and returns when all of them are written.
    ///
    /// Few records are written together by this thread; of many, the first are written while the others are made.
    pub(crate) fn write_records<T>(
        self: &Arc<Self>,
        produce: impl FnOnce(&mut dyn FnMut(SealedRecord) -> Result<(), JournalError>) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let few = self.buffers.div_ceil(2);
        let mut first: Vec<SealedRecord> = Vec::new();
        let (send, receive) = sync_channel(self.buffers - few);
        let queue = Queue { receive: Mutex::new(receive), batch: few.div_ceil(LANES) };
        thread::scope(|s| {
            let mut lanes = Vec::new();
            let mut send = Some(send);
            let made = produce(&mut |r| {
                if !lanes.is_empty() {
                    return self.hand_over(send.as_ref(), r);
                }
                first.push(r);
                if first.len() < few {
                    return Ok(());
                }
                // A policy by which each record waits for the one before has nothing to gain from two.
                let n = if self.policy.each_record() { 1 } else { LANES };
                for _ in 0..n {
                    lanes.extend(spawn_scoped(s, "uxfs-log", || self.write_lane(&queue)));
                }
                match lanes.is_empty() {
                    false => first.drain(..).try_for_each(|r| self.hand_over(send.as_ref(), r)),
                    // The host has no thread for it: this one writes.
                    true => self.write_batch(&std::mem::take(&mut first)),
                }
            });
            send.take();
            let mut written = if lanes.is_empty() { self.write_batch(&first) } else { Ok(()) };
            for l in lanes {
                let res = uxfs_sync::blocking(|| l.join());
                written = written.and(res.unwrap_or_else(|_| Err(JournalError::Shutdown("a thread that writes the log panicked".into()))));
            }
            written.and(made)
        })
    }

    /// Gives a record to the thread that writes; waits while all buffers are in use.
    fn hand_over(&self, send: Option<&SyncSender<SealedRecord>>, r: SealedRecord) -> Result<(), JournalError> {
        let gone = || JournalError::Shutdown(self.shutdown.reason().unwrap_or("the log cannot be written").into());
        let Some(send) = send else { return Err(gone()) };
        match send.try_send(r) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(r)) => {
                Stats::add(&self.stats.noiclogs, 1);
                uxfs_sync::blocking(|| send.send(r)).map_err(|_| gone())
            }
            Err(TrySendError::Disconnected(_)) => Err(gone()),
        }
    }

    fn write_lane(self: &Arc<Self>, queue: &Queue) -> Result<(), JournalError> {
        let mut res = Ok(());
        loop {
            let batch = queue.next();
            if batch.is_empty() {
                return res;
            }
            // After a failure it goes on to take records, or whoever makes them would wait for ever.
            res = res.and_then(|()| self.write_batch(&batch));
            if let Err(e) = &res {
                self.shutdown.set(format!("the log cannot be written: {e}"));
            }
        }
    }

    /// True if a record begins the log anew, with its first byte or a later one.
    fn turns(&self, r: &SealedRecord) -> bool {
        let block = r.lsn.block();
        block == 0 || self.geo.place(block, r.bytes.len()).1 < r.bytes.len()
    }

    fn write_batch(self: &Arc<Self>, records: &[SealedRecord]) -> Result<(), JournalError> {
        if self.policy.each_record() {
            return records.iter().try_for_each(|r| {
                self.check_room(r)?;
                self.flush_before(r)?;
                self.write_durable(r)
            });
        }
        records.chunk_by(|a, b| !self.turns(a) && !self.turns(b)).try_for_each(|group| self.write_group(group))
    }

    /// Writes records of which only the first, if it is alone, begins the log anew.
    fn write_group(self: &Arc<Self>, records: &[SealedRecord]) -> Result<(), JournalError> {
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(()) };
        records.iter().try_for_each(|r| self.check_room(r))?;
        self.make_room(last.end())?;
        debug_assert!(!self.bounds_window() || self.in_danger(last.end()) <= WINDOW, "rule 14: more than a window may be lost");
        if self.turns(first) {
            self.await_durable(first.at)?;
            self.write_halves(first, WriteFlags::default())?;
        } else {
            let piece = |r: &'_ SealedRecord| self.geo.place(r.lsn.block(), 0).0;
            let pieces: Vec<_> = records.iter().map(|r| WriteRequest { offset: piece(r), data: &r.bytes }).collect();
            uxfs_sync::blocking(|| self.log_dev.write_many(&pieces, Class::Journal))?;
        }
        let mut w = self.window.lock();
        w.outstanding.retain(|at| !(first.at..last.end()).contains(at));
        w.written = w.written.max(last.end());
        self.moved.notify_all();
        // Half of the window is full: its flush can go on beside the writing of the other half. What is left may fit the window: then the
        // commit record's flush comes soon enough, and need not wait for this one.
        let half = w.reach().saturating_sub(w.durable) >= WINDOW / 2;
        let fits = w.coming <= w.durable + WINDOW;
        if half && !fits && !w.flushing && self.bounds_window() {
            w.flushing = true;
            drop(w);
            let me = self.clone();
            let spawned = thread::Builder::new().name("uxfs-log-flush".into()).spawn(move || {
                uxfs_sync::on_any_cpu();
                let _guard = PanicGuard(me.shutdown.clone());
                me.flush_log();
            });
            if spawned.is_err() {
                self.window.lock().flushing = false;
                self.moved.notify_all();
            }
        }
        Ok(())
    }

    /// Writes a record that may run past the log's end. What lies before the end is durable before anything lies behind it:
    /// recovery takes a log whose begin is newer than its end, and whose end was never written, for none.
    fn write_halves(&self, r: &SealedRecord, flags: WriteFlags) -> Result<(), JournalError> {
        let (at, len) = self.geo.place(r.lsn.block(), r.bytes.len());
        uxfs_sync::blocking(|| {
            if len == r.bytes.len() {
                return self.log_dev.write(at, &r.bytes, flags);
            }
            let first = WriteFlags { fua: !hole(Hole::EarlyTurn), ..flags };
            self.log_dev.write(at, &r.bytes[..len], first)?;
            self.log_dev.write(self.geo.start, &r.bytes[len..], flags)
        })?;
        Ok(())
    }

    fn bounds_window(&self) -> bool {
        self.policy.is_safe() && !hole(Hole::UnboundedWindow)
    }

    /// Bytes of the log before `end` that may still be lost.
    fn in_danger(&self, end: u64) -> u64 {
        end.saturating_sub(self.window.lock().durable)
    }

    fn check_room(&self, r: &SealedRecord) -> Result<(), JournalError> {
        if self.space.room_for(r.bytes.len() as u64) {
            return Ok(());
        }
        Err(JournalError::Corrupt { block: r.lsn.block(), what: "log space was promised twice".into() })
    }

    /// Waits until the log may be written up to `end` with no more than a window of it in danger.
    fn make_room(&self, end: u64) -> Result<(), JournalError> {
        let mut w = self.window.lock();
        while self.bounds_window() && end - w.durable > WINDOW {
            self.shutdown.check()?;
            w = self.flush_or_wait(w);
        }
        Ok(())
    }

    /// Waits until all of the log before a position is durable.
    fn await_durable(&self, at: u64) -> Result<(), JournalError> {
        let mut w = self.window.lock();
        while w.durable < at && !hole(Hole::EarlyTurn) {
            self.shutdown.check()?;
            w = self.flush_or_wait(w);
        }
        Ok(())
    }

    /// Flushes what can be made safe now, or waits until there is something.
    fn flush_or_wait<'w>(&'w self, mut w: MutexGuard<'w, Window>) -> MutexGuard<'w, Window> {
        if w.flushing || w.reach() <= w.durable {
            wait(&self.moved, &mut w);
            return w;
        }
        w.flushing = true;
        drop(w);
        self.flush_log();
        self.window.lock()
    }

    /// Flushes the log's device; whoever calls has set `flushing`.
    fn flush_log(&self) {
        let reach = self.window.lock().reach();
        let res = if self.external {
            Stats::add(&self.stats.flushes, 1);
            uxfs_sync::blocking(|| self.log_dev.flush()).map_err(JournalError::Io)
        } else {
            self.flush_since(self.flush_token())
        };
        if let Err(e) = &res {
            self.shutdown.set(format!("flushing the log failed: {e}"));
        }
        let mut w = self.window.lock();
        w.flushing = false;
        if res.is_ok() {
            w.durable = w.durable.max(reach);
        }
        self.moved.notify_all();
    }

    /// Makes durable all that record `r`, a commit record, relies on: what went home before its tail was sampled, file data,
    /// and the log before it.
    ///
    /// # Errors
    /// A flush failed.
    pub(crate) fn flush_before_commit(&self, r: &SealedRecord, spans: bool) -> Result<(), JournalError> {
        if self.policy.flushes_before_commit(spans) { self.flush_before(r) } else { Ok(()) }
    }

    fn flush_before(&self, r: &SealedRecord) -> Result<(), JournalError> {
        if hole(Hole::CommitWithoutPreflush) {
            return Ok(());
        }
        let reach = self.window.lock().reach();
        // With an external log a flush of its device says nothing about the data device.
        if !self.external || !hole(Hole::LogDeviceFlush) {
            self.flush_since(self.flush_token())?;
        }
        if self.external && self.window.lock().durable < r.at {
            Stats::add(&self.stats.flushes, 1);
            uxfs_sync::blocking(|| self.log_dev.flush())?;
        }
        let mut w = self.window.lock();
        w.durable = w.durable.max(reach);
        w.flushed = w.flushed.max(r.at);
        self.moved.notify_all();
        Ok(())
    }

    /// Writes a record durably. What it relies on has been flushed. Log space may be used again up to its tail.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn write_durable(&self, r: &SealedRecord) -> Result<(), JournalError> {
        self.shutdown.check()?;
        {
            let mut w = self.window.lock();
            let before = w.durable.max(w.flushed);
            debug_assert!(before >= r.at || hole(Hole::CommitWithoutPreflush), "rule 1: a commit record before what it relies on");
            // The commit records before it have had their turns, but for a record within a checkpoint.
            if w.outstanding.first().is_none_or(|at| *at >= r.at) {
                w.durable = w.durable.max(before.min(r.at));
            }
        }
        // Until it is durable, it may itself be lost.
        self.make_room(r.end())?;
        if self.turns(r) {
            self.await_durable(r.at)?;
        }
        self.write_halves(r, WriteFlags { preflush: false, fua: !hole(Hole::CommitWithoutFua) })?;
        Stats::add(&self.stats.fua, 1);
        let mut w = self.window.lock();
        w.outstanding.remove(&r.at);
        w.written = w.written.max(r.end());
        // A commit record before it may still be waiting for its turn.
        if w.outstanding.first().is_none_or(|at| *at > r.at) {
            w.durable = w.durable.max(r.end());
            // Those behind it may bear older tails, if they were made before the flush that this one relied on.
            w.ends = w.ends.split_off(&r.end());
            let tail = w.ends.values().copied().fold(r.tail, Lsn::min);
            self.space.set_tail(if hole(Hole::UnpublishedTail) { r.tail } else { tail });
        }
        self.moved.notify_all();
        Ok(())
    }
}
