//! How records reach the medium: which writes and flushes, in which order, and what is durable after them.
//!
//! 1. All records before a commit record have completed when it is issued, and what it relies on is durable before it.
//! 2. Of what was written to the log at most [`WINDOW`] bytes may still be lost. Recovery looks no further back than that
//!    from the newest block for one that is missing; behind it a lost record would make the volume unreadable.
//! 3. Log space is used again only up to a tail that was sampled before a completed flush began.

use crate::ail::Ail;
use crate::flush::JournalFlush;
use crate::hole::{Hole, hole};
use crate::space::Space;
use crate::stats::Stats;
use crate::stream::{LogGeometry, SealedRecord};
use crate::{JournalError, PanicGuard, RECHECK, Shutdown};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use uxfs_device::{Class, DeviceRef, WriteFlags, WriteRequest};
use uxfs_format::Lsn;

/// Bytes of the log that may be neither durable nor lost at once: what recovery searches, 8 buffers of 256 KiB.
const WINDOW: u64 = 2 << 20;

#[derive(Default)]
struct Flushes {
    started: u64,
    done: u64,
    running: bool,
}

/// Positions in bytes since the volume was opened.
#[derive(Default)]
struct Window {
    /// All before this is durable.
    durable: u64,
    /// All before this has been written, but for the record that is held.
    written: u64,
    /// Where sealed commit records begin that are not durable: what lies behind the first cannot become safe before it.
    held: VecDeque<u64>,
    flushing: bool,
}

impl Window {
    /// How far a flush that begins now makes the log safe.
    fn reach(&self) -> u64 {
        self.held.front().map_or(self.written, |h| self.written.min(*h))
    }
}

/// The thread that writes the records of a long checkpoint, and the way to it.
type Lane<'s> = (SyncSender<SealedRecord>, std::thread::ScopedJoinHandle<'s, Result<(), JournalError>>);

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
            flushes: Mutex::default(),
            flushed: Condvar::new(),
            window: Mutex::default(),
            moved: Condvar::new(),
        })
    }

    /// Wakes everybody who waits here, after a shutdown.
    pub(crate) fn wake(&self) {
        self.flushed.notify_all();
        self.moved.notify_all();
    }

    /// The tail that a record may bear which no flush goes before.
    pub(crate) fn unflushed_tail(&self) -> Lsn {
        if self.trusts_unflushed() { self.ail.tail() } else { self.space.tail() }
    }

    /// True if records bear, and space follows, the AIL's tail whether it was flushed or not.
    pub(crate) fn trusts_unflushed(&self) -> bool {
        self.policy == JournalFlush::AsPublished || hole(Hole::UnstableTail)
    }

    /// The tail of a record that is written with `flags`.
    pub(crate) fn tail_for(&self, flags: WriteFlags) -> Lsn {
        if flags.preflush { self.ail.tail() } else { self.unflushed_tail() }
    }

    /// The tail of a record within a checkpoint.
    pub(crate) fn record_tail(&self) -> Lsn {
        self.tail_for(WriteFlags { preflush: self.policy.each_record(), fua: false })
    }

    /// How a commit record is written; `spans` if the checkpoint has records before it.
    pub(crate) fn commit_flags(&self, spans: bool) -> WriteFlags {
        self.policy.commit(spans)
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
                uxfs_sync::blocking(|| self.flushed.wait(&mut f));
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
                    self.space.set_tail(tail);
                }
                Err(e) => {
                    self.shutdown.set(format!("device flush failed: {e}"));
                    return Err(JournalError::Io(e));
                }
            }
        }
    }

    /// What a variant does before the first record of a checkpoint.
    pub(crate) fn begin_checkpoint(&self) -> Result<(), JournalError> {
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
        let batch = self.buffers.div_ceil(2);
        let mut first: Vec<SealedRecord> = Vec::new();
        std::thread::scope(|s| {
            let mut lane: Option<Lane<'_>> = None;
            let made = produce(&mut |r| {
                if let Some((send, _)) = &lane {
                    return self.hand_over(send, r);
                }
                first.push(r);
                if first.len() < batch {
                    return Ok(());
                }
                let (send, receive) = sync_channel(self.buffers - batch);
                let work = move || self.write_lane(&receive, batch);
                match std::thread::Builder::new().name("uxfs-log".into()).spawn_scoped(s, work) {
                    Ok(thread) => {
                        lane = Some((send.clone(), thread));
                        first.drain(..).try_for_each(|r| self.hand_over(&send, r))
                    }
                    // The host has no thread for it: this one writes.
                    Err(_) => self.write_batch(&std::mem::take(&mut first)),
                }
            });
            let written = match lane {
                Some((send, thread)) => {
                    drop(send);
                    let res = uxfs_sync::blocking(|| thread.join());
                    res.unwrap_or_else(|_| Err(JournalError::Shutdown("a thread that writes the log panicked".into())))
                }
                None => self.write_batch(&first),
            };
            written.and(made)
        })
    }

    /// Gives a record to the thread that writes; waits while all buffers are in use.
    fn hand_over(&self, send: &SyncSender<SealedRecord>, r: SealedRecord) -> Result<(), JournalError> {
        let gone = || JournalError::Shutdown(self.shutdown.reason().unwrap_or("the log cannot be written").into());
        match send.try_send(r) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(r)) => {
                Stats::add(&self.stats.noiclogs, 1);
                uxfs_sync::blocking(|| send.send(r)).map_err(|_| gone())
            }
            Err(TrySendError::Disconnected(_)) => Err(gone()),
        }
    }

    fn write_lane(self: &Arc<Self>, rest: &Receiver<SealedRecord>, most: usize) -> Result<(), JournalError> {
        while let Ok(r) = rest.recv() {
            let mut batch = vec![r];
            while batch.len() < most
                && let Ok(r) = rest.try_recv()
            {
                batch.push(r);
            }
            self.write_batch(&batch)?;
        }
        Ok(())
    }

    fn write_batch(self: &Arc<Self>, records: &[SealedRecord]) -> Result<(), JournalError> {
        let Some(end) = records.last().map(SealedRecord::end) else { return Ok(()) };
        if self.policy.each_record() {
            return records.iter().try_for_each(|r| {
                self.check_room(r)?;
                self.write_flagged(r, WriteFlags { preflush: true, fua: true })
            });
        }
        self.make_room(end)?;
        let mut pieces = Vec::new();
        for r in records {
            self.check_room(r)?;
            let (at, n) = self.geo.place(r.lsn.block(), r.bytes.len());
            pieces.push(WriteRequest { offset: at, data: &r.bytes[..n] });
            if n < r.bytes.len() {
                pieces.push(WriteRequest { offset: self.geo.start, data: &r.bytes[n..] });
            }
        }
        uxfs_sync::blocking(|| self.log_dev.write_many(&pieces, Class::Journal))?;
        let mut w = self.window.lock();
        w.written = w.written.max(end);
        // Half of the window is full: its flush can go on beside the writing of the other half.
        let half = w.reach().saturating_sub(w.durable) > WINDOW / 2;
        if half && !w.flushing && self.bounds_window() {
            w.flushing = true;
            drop(w);
            let me = self.clone();
            let spawned = std::thread::Builder::new().name("uxfs-log-flush".into()).spawn(move || {
                let _guard = PanicGuard(me.shutdown.clone());
                me.flush_log();
            });
            if spawned.is_err() {
                self.window.lock().flushing = false;
            }
        }
        Ok(())
    }

    fn bounds_window(&self) -> bool {
        self.policy.is_safe() && !hole(Hole::UnboundedWindow)
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
            if w.flushing || w.reach() <= w.durable {
                uxfs_sync::blocking(|| self.moved.wait_for(&mut w, RECHECK));
                continue;
            }
            w.flushing = true;
            drop(w);
            self.flush_log();
            w = self.window.lock();
        }
        Ok(())
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

    /// Notes that a commit record is made and will be written with [`LogWriter::write_durable`].
    pub(crate) fn hold(&self, r: &SealedRecord) {
        self.window.lock().held.push_back(r.at);
    }

    /// Writes a commit record, or the last one of all.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn write_durable(self: &Arc<Self>, r: &SealedRecord, flags: WriteFlags) -> Result<(), JournalError> {
        // Until it is durable, it may itself be lost.
        self.make_room(r.end())?;
        self.write_flagged(r, flags)
    }

    fn submit(&self, r: &SealedRecord, flags: WriteFlags) -> std::io::Result<()> {
        let mut on_log =
            WriteFlags { preflush: flags.preflush && !hole(Hole::CommitWithoutPreflush), fua: flags.fua && !hole(Hole::CommitWithoutFua) };
        // With an external log a PREFLUSH of its device says nothing about the data device.
        if flags.preflush && self.external {
            if !hole(Hole::LogDeviceFlush) {
                Stats::add(&self.stats.flushes, 1);
                self.dev.flush()?;
            }
            on_log.preflush &= self.window.lock().durable < r.at;
        }
        Stats::add(&self.stats.flushes, u64::from(on_log.preflush));
        Stats::add(&self.stats.fua, u64::from(on_log.fua));
        let (at, len) = self.geo.place(r.lsn.block(), r.bytes.len());
        if len == r.bytes.len() {
            return self.log_dev.write(at, &r.bytes, on_log);
        }
        // Both halves may overwrite old tail blocks, so the flush goes before either.
        if on_log.preflush {
            self.log_dev.flush()?;
        }
        let fua = WriteFlags { preflush: false, fua: on_log.fua };
        self.log_dev.write(at, &r.bytes[..len], fua)?;
        self.log_dev.write(self.geo.start, &r.bytes[len..], fua)
    }

    /// Writes one record with a flush before it, or durably, or both; space and window follow.
    fn write_flagged(&self, r: &SealedRecord, flags: WriteFlags) -> Result<(), JournalError> {
        self.shutdown.check()?;
        let n = {
            let mut f = self.flushes.lock();
            f.started += u64::from(flags.preflush);
            f.started
        };
        uxfs_sync::blocking(|| self.submit(r, flags))?;
        if flags.preflush {
            let mut f = self.flushes.lock();
            f.done = f.done.max(n);
            self.flushed.notify_all();
            drop(f);
            self.space.set_tail(r.tail);
        }
        let mut w = self.window.lock();
        w.written = w.written.max(r.end());
        w.durable = w.durable.max(r.end());
        if w.held.front() == Some(&r.at) {
            w.held.pop_front();
        }
        self.moved.notify_all();
        Ok(())
    }
}
