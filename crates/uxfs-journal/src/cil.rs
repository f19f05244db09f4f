//! Checkpoints: commits gather in memory, a push writes all of them as one.
//!
//! A context is *open* (commits go in), *switched* (its items' bytes are fixed), *streamed* (all records but the last
//! written), *durable* (commit record written with PREFLUSH and FUA) and *completed* (its items are in the AIL).
//!
//! 1. Contexts are streamed in the order of their numbers, and become durable in that order.
//! 2. A commit record is issued only after every earlier record has completed and a flush has made them durable, and all
//!    file data and metadata that completed before.
//! 3. A record without a flush before it carries the stable tail: the tail that was sampled before the last completed flush
//!    began. Log space is used again only up to a tail that a durable record carries.
//! 4. Switching and streaming need no lock of an item, so a thread that holds items may push.

use crate::ail::Ail;
use crate::budget::{Budget, CheckpointLimit, Who};
use crate::context::{Context, Gathered};
use crate::crowd::Crowd;
use crate::flush::JournalFlush;
use crate::hole::{Hole, hole};
use crate::item::{LogItem, Regions};
use crate::space::{Space, Ticket};
use crate::stats::{Stats, StatsSnapshot};
use crate::stream::{LogGeometry, SealedRecord, Stream, Tails};
use crate::writer::{LogWriter, Parts};
use crate::{JournalError, PanicGuard, Shutdown};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use uxfs_device::DeviceRef;
use uxfs_format::log::{self, BB};
use uxfs_format::reservation::with_headers;
use uxfs_format::{CheckpointSeq, Lsn};
use uxfs_sync::explored::{Condvar, Mutex, MutexGuard, RwLock, notify, pause, wait, wait_for};
use uxfs_sync::{Op, Workers};

/// Called when the checkpoint is durable (true), or never will be (false): busy extents hang on it.
pub type Payload = Box<dyn FnOnce(bool) + Send>;

/// How the journal works.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// Bytes of an in-core buffer, 16 to 256 KiB.
    pub bufsize: usize,
    /// In-core buffers, 2 to 8: records that may be on their way to the medium at once.
    pub buffers: usize,
    /// When caches are flushed.
    pub flush: JournalFlush,
    /// How large checkpoints become.
    pub limit: CheckpointLimit,
    /// Bytes of memory that checkpoints may pin, for [`CheckpointLimit::Budget`]. A volume allows a quarter of its memory at most.
    pub budget: u64,
    /// Bytes of memory that metadata which is durable in the log, and not yet home, should hold at most; twice that is never passed for long.
    /// A volume allows a quarter of its memory at most.
    pub dirty: u64,
    /// The lock around everything, which workers enter, too.
    pub op: Op,
}

impl Default for JournalConfig {
    fn default() -> Self {
        JournalConfig {
            bufsize: 32 << 10,
            buffers: 8,
            flush: JournalFlush::default(),
            limit: CheckpointLimit::default(),
            budget: 256 << 20,
            dirty: u64::MAX / 4,
            op: Op::default(),
        }
    }
}

impl JournalConfig {
    /// Checks the sizes, which are those that XFS takes.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self) -> Result<(), &'static str> {
        if !self.bufsize.is_power_of_two() || !(16 << 10..=256 << 10).contains(&self.bufsize) {
            return Err("a log buffer has 16, 32, 64, 128 or 256 KiB (logbsize)");
        }
        if !(2..=8).contains(&self.buffers) {
            return Err("there are 2 to 8 log buffers (logbufs)");
        }
        Ok(())
    }
}

/// An intent, the item that says that it is done, and that item's regions.
pub type Completion = (Arc<dyn LogItem>, Arc<dyn LogItem>, Regions);

/// What a transaction hands over.
#[derive(Default)]
pub struct Commit {
    /// Items with their formatted regions; empty regions for what is only ordered.
    pub items: Vec<(Arc<dyn LogItem>, Regions)>,
    /// Intents that are done, each with the item that says so: if the intent is still in this checkpoint, both vanish.
    pub done: Vec<Completion>,
    /// Called at durability.
    pub payloads: Vec<Payload>,
}

#[derive(Default)]
struct Order {
    /// Next context to be streamed.
    next_stream: u64,
    /// Last context that is completed.
    completed: u64,
    in_flight: u64,
    crowd: Crowd,
}

/// Pushes at once: one streams while one becomes durable; more would only make checkpoints smaller.
const MAX_IN_FLIGHT: u64 = 2;
/// Part of the log that the AIL keeps free.
const FREE_PART: u64 = 4;
/// Bytes and regions of a checkpoint that only says where the tail is.
const NOTHING: (i64, i64) = (16, 1);
/// Bytes that a transaction pins at most for each that it reserves: the buffer, which reservations count whole, and what is logged.
const PINS: u64 = 2;
/// Most bytes a context gathers before it is pushed: 8 buffers of 256 KiB in flight, 16 times.
const MAX_CONTEXT: u64 = 32 << 20;
/// Longest sleep of a worker: it looks then whether the journal is still there.
const IDLE: Duration = Duration::from_millis(100);

/// The journal of an open volume.
pub struct Journal {
    dev: DeviceRef,
    cfg: JournalConfig,
    geo: LogGeometry,
    writer: Arc<LogWriter>,
    /// The active item list.
    pub ail: Arc<Ail>,
    /// The latch that ends all writing.
    pub shutdown: Arc<Shutdown>,
    stats: Arc<Stats>,
    space: Arc<Space>,
    budget: Budget,
    context: RwLock<Context>,
    /// The last context that was switched.
    closed: Mutex<u64>,
    switched: Condvar,
    order: Mutex<Order>,
    ordered: Condvar,
    stream: Mutex<Stream>,
    soft_limit: u64,
    kick: Mutex<Kick>,
    kicked: Condvar,
    stop: AtomicBool,
    workers: Workers,
}

#[derive(Default)]
struct Kick {
    push_cil: bool,
    push_ail: bool,
}

impl Journal {
    /// Starts journaling at `head`; `tail` is where replay would begin until something is written.
    pub fn start(dev: DeviceRef, log_dev: DeviceRef, mut geo: LogGeometry, mut cfg: JournalConfig, head: Lsn, tail: Lsn) -> Arc<Journal> {
        // Records end where sectors of the medium do, so that none is read, changed and written again for the next.
        let sector = log_dev.sector_bytes();
        if sector.is_multiple_of(geo.roundoff) && geo.start.is_multiple_of(u64::from(sector)) {
            geo.roundoff = sector;
        }
        // A record is padded to the log's stripe unit: it, and the cycles that its header keeps, must have room for that.
        cfg.bufsize = cfg.bufsize.next_multiple_of(geo.roundoff.max(1) as usize);
        let shutdown = Arc::new(Shutdown::default());
        let stats = Arc::new(Stats::default());
        let eighth = geo.size() / 8;
        let (soft_limit, budget) = match cfg.limit {
            CheckpointLimit::LogFraction => (eighth, None),
            CheckpointLimit::Window => (eighth.min(MAX_CONTEXT), None),
            CheckpointLimit::Budget => (eighth, Some(cfg.budget)),
        };
        let budget = Budget::new(budget, shutdown.clone(), stats.clone());
        let ail = Arc::new(Ail::new(tail, shutdown.clone(), stats.clone()));
        let space = Arc::new(Space::new(geo.size(), head, tail, shutdown.clone(), stats.clone()));
        let writer = LogWriter::new(Parts {
            tail,
            devices: (dev.clone(), log_dev),
            geo: geo.clone(),
            policy: cfg.flush,
            buffers: cfg.buffers,
            ail: ail.clone(),
            space: space.clone(),
            shutdown: shutdown.clone(),
            stats: stats.clone(),
        });
        let j = Arc::new(Journal {
            ail,
            space,
            budget,
            writer,
            stream: Mutex::new(Stream::new(geo.clone(), cfg.bufsize, head)),
            context: RwLock::new(Context::new(1)),
            closed: Mutex::default(),
            order: Mutex::new(Order { next_stream: 1, ..Order::default() }),
            switched: Condvar::new(),
            ordered: Condvar::new(),
            kick: Mutex::default(),
            kicked: Condvar::new(),
            stop: AtomicBool::new(false),
            workers: Workers::default(),
            dev,
            cfg,
            geo,
            shutdown,
            stats,
            soft_limit,
        });
        let weak = Arc::downgrade(&j);
        j.shutdown.on_set(move || {
            if let Some(j) = weak.upgrade() {
                j.wake_all();
            }
        });
        // A checkpoint of nothing, which only says where the tail is, can always be written.
        j.space.force_grant(j.needed(NOTHING.0, NOTHING.1));
        let start = |name: &str, f: fn(&Journal)| {
            let weak = Arc::downgrade(&j);
            j.workers.start(name, move || {
                while let Some(j) = weak.upgrade() {
                    if j.stop.load(Ordering::Acquire) {
                        break;
                    }
                    let _guard = PanicGuard(j.shutdown.clone());
                    let _op = j.cfg.op.enter();
                    f(&j);
                }
            });
        };
        start("uxfs-cil", Journal::cil_work);
        start("uxfs-ail", Journal::ail_work);
        j
    }

    /// The lock around everything.
    pub fn op(&self) -> &Op {
        &self.cfg.op
    }

    /// Counters.
    pub fn stats(&self) -> StatsSnapshot {
        self.stats.snapshot()
    }

    /// Bytes of memory that checkpoints pin now.
    pub fn pinned_bytes(&self) -> u64 {
        self.budget.pinned()
    }

    /// Bytes of the log in use, and its size.
    pub fn usage(&self) -> (u64, u64) {
        (self.space.used_bytes(), self.geo.size())
    }

    /// Reserves space for a transaction that logs at most `unit` bytes in each of `count` links.
    ///
    /// # Locks
    /// The caller holds none: this may wait for a checkpoint and for metadata writes.
    ///
    /// # Errors
    /// The volume is shut down, or the log is too small.
    pub fn reserve(&self, unit: u64, count: u32) -> Result<Ticket, JournalError> {
        self.shutdown.check()?;
        self.throttle()?;
        self.ail.wait_below(2 * self.cfg.dirty, &|| self.want_room())?;
        let promise = self.budget.promise(Who::Newcomer, PINS * unit, &|| self.kick_cil())?;
        match self.space.reserve(self.with_headers(unit), count, &|| self.want_room()) {
            Ok(t) => Ok(Ticket { promise, ..t }),
            Err(e) => {
                self.budget.end(promise);
                Err(e)
            }
        }
    }

    /// True if a transaction of one link of `unit` bytes can ever begin while something at `held` holds the tail.
    pub fn fits_behind(&self, held: Lsn, unit: u64) -> bool {
        self.space.fits_behind(held, self.with_headers(unit) + self.needed(NOTHING.0, NOTHING.1))
    }

    fn with_headers(&self, unit: u64) -> u64 {
        with_headers(unit, self.cfg.bufsize as u64, u64::from(self.geo.roundoff))
    }

    /// Waits while the open context is far over its limit.
    fn throttle(&self) -> Result<(), JournalError> {
        let seq = {
            let ctx = self.context.read();
            if self.cfg.limit == CheckpointLimit::LogFraction || ctx.bytes() <= 2 * self.soft_limit as i64 {
                return Ok(());
            }
            ctx.awaited.store(true, Ordering::SeqCst);
            ctx.seq
        };
        Stats::add(&self.stats.throttled, 1);
        self.kick_cil();
        let mut closed = self.closed.lock();
        while *closed < seq {
            self.shutdown.check()?;
            wait(&self.switched, &mut closed);
        }
        Ok(())
    }

    fn kick_cil(&self) {
        self.kick.lock().push_cil = true;
        self.kicked.notify_all();
    }

    fn want_room(&self) {
        Stats::add(&self.stats.push_ail, 1);
        self.kick.lock().push_ail = true;
        self.kicked.notify_all();
    }

    /// Bytes that a context of that content takes in the log, headers and padding included.
    fn needed(&self, bytes: i64, regions: i64) -> u64 {
        let hsize = (BB * self.cfg.bufsize.div_ceil(log::CYCLE_SPAN)) as u64;
        let content = (bytes + 12 * (regions + 3) + 16).max(0) as u64;
        let payload = self.cfg.bufsize as u64 - hsize - 32;
        let records = content.div_ceil(payload) + 1;
        content + records * (hsize + 12 + 32) + 2 * u64::from(self.geo.roundoff)
    }

    /// Puts a transaction into the open checkpoint. Its items are pinned until that is durable.
    ///
    /// The space it needs moves from the ticket to the checkpoint; the ticket stays the caller's, to roll or release.
    pub fn commit(&self, ticket: &mut Ticket, commit: Commit) -> CheckpointSeq {
        let ctx = self.context.read();
        // What it pins takes the place of the promise.
        let pins = ctx.put(commit, &self.stats);
        self.budget.pin(pins);
        self.budget.end(ticket.promise.take());
        let (bytes, regions) = ctx.content();
        let due = ctx.charge(self.needed(bytes, regions));
        if ticket.left < due {
            Stats::add(&self.stats.overruns, 1);
            self.space.force_grant(due - ticket.left);
            ticket.left = due;
        }
        ticket.left -= due;
        let (seq, full) = (ctx.seq, self.is_full(&ctx));
        drop(ctx);
        if full {
            self.kick_cil();
        }
        CheckpointSeq(seq)
    }

    /// True if a context should be written: it holds enough, or others wait for the memory that it pins.
    fn is_full(&self, ctx: &Context) -> bool {
        let bound = self.cfg.limit == CheckpointLimit::Budget;
        ctx.bytes() > self.soft_limit as i64
            || ctx.awaited.load(Ordering::SeqCst)
            // One gathers while one is written, and both fit what newcomers may have.
            || bound && (ctx.pinned() > (self.cfg.budget / 8 * 3) as i64 || !ctx.is_empty() && self.budget.has_waiters())
    }

    /// Makes the next link of a rolling transaction ready; may wait for space, and for memory.
    ///
    /// # Errors
    /// The volume is shut down.
    pub fn regrant(&self, ticket: &mut Ticket) -> Result<(), JournalError> {
        self.budget.end(ticket.promise.take());
        ticket.promise = self.budget.promise(Who::Roller, PINS * ticket.unit, &|| self.kick_cil())?;
        self.space.regrant(ticket, &|| self.want_room())
    }

    /// Gives back what a ticket did not use.
    pub fn release(&self, mut ticket: Ticket) {
        self.budget.end(ticket.promise.take());
        self.space.release(ticket);
    }

    /// The number of the open checkpoint.
    pub fn current(&self) -> CheckpointSeq {
        CheckpointSeq(self.context.read().seq)
    }

    /// Waits until checkpoint `seq` is durable, and starts it if it is still open.
    ///
    /// # Errors
    /// The volume is shut down; then nothing is known to be durable.
    pub fn force(&self, seq: CheckpointSeq) -> Result<(), JournalError> {
        Stats::add(&self.stats.force, 1);
        if self.order.lock().completed >= seq.0 {
            return Ok(());
        }
        Stats::add(&self.stats.force_sleep, 1);
        self.order.lock().crowd.enter();
        let res = self.force_open(seq);
        self.order.lock().crowd.leave();
        res
    }

    fn force_open(&self, seq: CheckpointSeq) -> Result<(), JournalError> {
        let mut joined = false;
        loop {
            self.shutdown.check()?;
            let ctx = self.context.read();
            if ctx.seq == seq.0 && ctx.is_empty() {
                return Ok(());
            }
            let open = ctx.seq <= seq.0 && !hole(Hole::UnpushedForce);
            drop(ctx);
            let mut o = self.order.lock();
            if o.completed >= seq.0 {
                return Ok(());
            }
            if open && o.crowd.lead(seq.0, !joined) {
                self.linger(o, seq.0);
                let begun = Instant::now();
                let res = self.push(seq.0, false);
                self.order.lock().crowd.led(seq.0, begun.elapsed());
                self.ordered.notify_all();
                res?;
            } else if self.shutdown.reason().is_none() {
                if open && !joined {
                    // Who leads may wait for just this.
                    self.ordered.notify_all();
                }
                wait(&self.ordered, &mut o);
            }
            joined = true;
        }
    }

    /// Waits for others who are about to force the open checkpoint `seq`, too, if there are any: at most until what is in flight is durable,
    /// and a little longer for those who waited for that.
    fn linger(&self, mut o: MutexGuard<'_, Order>, seq: u64) {
        let (begun, mut idle) = (Instant::now(), None);
        while o.crowd.is_incomplete() && !cfg!(uxfs_shuttle) && self.shutdown.reason().is_none() && o.next_stream <= seq {
            let left = match o.in_flight {
                0 => (o.crowd.cost() / 8).saturating_sub(idle.get_or_insert_with(Instant::now).elapsed()),
                _ => o.crowd.cost().saturating_sub(begun.elapsed()),
            };
            if left.is_zero() {
                break;
            }
            wait_for(&self.ordered, &mut o, left);
        }
        o.crowd.gathered();
    }

    /// Makes everything committed so far durable.
    ///
    /// # Errors
    /// The volume is shut down.
    pub fn force_all(&self) -> Result<(), JournalError> {
        let ctx = self.context.read();
        let ready = if ctx.is_empty() { ctx.seq - 1 } else { ctx.seq };
        drop(ctx);
        self.force(CheckpointSeq(ready))
    }

    /// A token for [`Journal::flush_since`]: data that has completed by now.
    pub fn flush_token(&self) -> u64 {
        self.writer.flush_token()
    }

    /// Makes sure that a flush of the data device began after the token was taken and has completed; many callers share one.
    ///
    /// # Errors
    /// The flush failed, which shuts the volume down.
    pub fn flush_since(&self, token: u64) -> Result<(), JournalError> {
        self.writer.flush_since(token).inspect_err(|e| self.fail(e.to_string()))
    }

    /// Writes a checkpoint even if there is nothing in it, so that the log says where its tail is now.
    ///
    /// # Errors
    /// The volume is shut down.
    pub fn say_tail(&self) -> Result<(), JournalError> {
        let seq = self.current().0;
        self.push(seq, true)
    }

    /// Sets the latch and wakes everybody who waits.
    ///
    /// # Locks
    /// The caller holds none of the journal's.
    pub fn fail(&self, why: impl Into<String>) {
        self.shutdown.set(why);
    }

    fn wake_all(&self) {
        self.space.wake();
        self.budget.wake();
        self.ail.wake();
        notify(&self.closed, &self.switched);
        notify(&self.order, &self.ordered);
        self.writer.wake();
        notify(&self.kick, &self.kicked);
    }

    /// Writes the open context `seq` as a checkpoint; returns when it is completed, or at once if another thread has it, or if
    /// there is nothing in it and `even_empty` is false.
    fn push(&self, seq: u64, even_empty: bool) -> Result<(), JournalError> {
        // Half a checkpoint would let all others wait for it.
        let _guard = PanicGuard(self.shutdown.clone());
        {
            let mut o = self.order.lock();
            while o.in_flight >= MAX_IN_FLIGHT {
                self.shutdown.check()?;
                if o.completed >= seq {
                    return Ok(());
                }
                wait(&self.ordered, &mut o);
            }
            o.in_flight += 1;
            Stats::peak(&self.stats.in_flight_peak, o.in_flight);
        }
        let gathered = {
            let mut ctx = self.context.write();
            if ctx.seq > seq || ctx.is_empty() && !even_empty {
                None
            } else {
                if ctx.is_empty() {
                    // Out of what is always kept for it, and gives way to it again when the tail moves.
                    self.space.force_grant(ctx.charge(self.needed(NOTHING.0, NOTHING.1)));
                }
                let next = Context::new(ctx.seq + 1);
                let gathered = std::mem::replace(&mut *ctx, next).gather();
                *self.closed.lock() = gathered.seq;
                self.switched.notify_all();
                Some(gathered)
            }
        };
        let res = gathered.map_or(Ok(()), |g| self.write_context(g));
        self.order.lock().in_flight -= 1;
        self.ordered.notify_all();
        if let Err(e) = &res {
            self.fail(e.to_string());
        }
        res
    }

    fn wait_order(&self, ready: impl Fn(&Order) -> bool) -> Result<(), JournalError> {
        let mut o = self.order.lock();
        while !ready(&o) {
            self.shutdown.check()?;
            wait(&self.ordered, &mut o);
        }
        Ok(())
    }

    fn write_context(&self, mut ctx: Gathered) -> Result<(), JournalError> {
        ctx.sort();
        let nothing = log::nothing_done();
        let mut regions: Vec<&[u8]> = ctx.items.iter().filter_map(|i| i.regions.as_ref()).flat_map(Regions::iter).collect();
        if regions.is_empty() {
            regions.push(&nothing);
        }
        let streamed = self.wait_order(|o| o.next_stream == ctx.seq).and_then(|()| self.stream_context(&ctx, &regions));
        let durable = streamed.and_then(|(start, last, spans)| {
            // The stream is given up before the wait, so the next context fills buffers while this one is flushed.
            self.order.lock().next_stream = ctx.seq + 1;
            self.ordered.notify_all();
            self.writer.flush_before_commit(&last, spans)?;
            let ahead = if hole(Hole::FutureWait) { ctx.seq + 1 } else { ctx.seq };
            self.wait_order(|o| o.completed + 1 == ctx.seq && o.next_stream > ahead)?;
            self.writer.write_durable(&last)?;
            Ok((start, last.lsn))
        });
        let ok = durable.is_ok();
        if let Ok((start, commit)) = durable {
            let live: Vec<_> = ctx.items.iter().filter_map(|i| Some((&i.item, i.regions.as_ref()?))).collect();
            let begin = Instant::now();
            self.ail.insert_checkpoint(&live, start, commit);
            Stats::add(&self.stats.insert_us, begin.elapsed().as_micros() as u64);
            Stats::add(&self.stats.checkpoint_items, live.len() as u64);
        }
        let free = |i: &Arc<dyn LogItem>| if i.state().pins.fetch_sub(1, Ordering::AcqRel) == 1 { i.held_bytes() as i64 } else { 0 };
        let held: i64 = ctx.items.iter().map(|i| free(&i.item)).sum();
        drop(ctx.items);
        self.budget.pin(-held - ctx.bytes);
        for p in ctx.payloads {
            p(ok);
        }
        Stats::add(&self.stats.checkpoints, 1);
        Stats::add(&self.stats.checkpoint_bytes, ctx.bytes.max(0) as u64);
        if ok {
            let mut o = self.order.lock();
            debug_assert_eq!(o.completed + 1, ctx.seq, "rule 2: checkpoints become durable in order");
            o.completed = ctx.seq;
            drop(o);
            self.ordered.notify_all();
            if self.space.has_waiters() || self.over_target() {
                self.want_room();
            }
        }
        durable.map(|_| ())
    }

    /// Cuts the context into records and writes all but the last. Returns the position of the start, the last record, and
    /// whether there were others.
    fn stream_context(&self, ctx: &Gathered, regions: &[&[u8]]) -> Result<(Lsn, SealedRecord, bool), JournalError> {
        let mut s = self.stream.lock();
        self.writer.begin_checkpoint(s.position() + ctx.reserved)?;
        let tid = (ctx.seq as u32).wrapping_mul(0x9e37_79b9) | 1;
        let mut total = 0u64;
        let (start, last) = self.writer.write_records(|emit| {
            let mut counted = |r: SealedRecord| {
                total += r.bytes.len() as u64;
                emit(r)
            };
            let tails = Tails { record: &|at| self.writer.record_tail(at), commit: &|at, spans| self.writer.commit_tail(at, spans) };
            s.checkpoint(tid, regions, tails, &self.stats, &mut counted)
        })?;
        if total + last.bytes.len() as u64 > ctx.reserved {
            Stats::add(&self.stats.overruns, 1);
        }
        self.space.set_head(s.head);
        drop(s);
        self.space.give_back(ctx.reserved);
        if self.writer.trusts_unflushed() {
            self.space.set_tail(self.ail.tail());
        }
        Ok((start, last, total > 0))
    }

    fn over_target(&self) -> bool {
        let (used, size) = self.usage();
        used > size - size / FREE_PART || self.is_dirty()
    }

    fn is_dirty(&self) -> bool {
        self.ail.held() > self.cfg.dirty
    }

    fn cil_work(&self) {
        {
            let mut k = self.kick.lock();
            if !k.push_cil && !self.stop.load(Ordering::Acquire) {
                wait_for(&self.kicked, &mut k, IDLE);
            }
            if !std::mem::take(&mut k.push_cil) {
                return;
            }
        }
        let ctx = self.context.read();
        if self.is_full(&ctx) {
            let seq = ctx.seq;
            drop(ctx);
            let _ = self.push(seq, false);
        }
    }

    fn ail_work(&self) {
        {
            let mut k = self.kick.lock();
            if !k.push_ail && !self.stop.load(Ordering::Acquire) {
                wait_for(&self.kicked, &mut k, IDLE);
            }
            if !std::mem::take(&mut k.push_ail) && !self.over_target() {
                return;
            }
        }
        if self.shutdown.reason().is_some() {
            pause(Duration::from_millis(5));
            return;
        }
        let waiters = self.space.has_waiters();
        let _ = self.push_ail(if waiters { 2 } else { FREE_PART });
        if !waiters && !self.over_target() {
            return;
        }
        // Liveness: a tail that moved counts only when a record bears it, and those who wait write none.
        if self.writer.trusts_unflushed() {
            self.space.set_tail(self.ail.tail());
        } else if waiters && self.ail.tail() > self.space.tail() && !hole(Hole::SilentTail) {
            let _ = self.say_tail();
        }
        if self.space.has_waiters() || self.over_target() {
            pause(Duration::from_millis(1));
            self.kick.lock().push_ail = true;
        }
    }

    /// Writes the oldest `1/part` of the log's size home, or the oldest quarter of the items if they hold too much memory.
    fn push_ail(&self, part: u64) -> Result<(), JournalError> {
        let tail = self.ail.tail();
        let far = u64::from(tail.block()) + u64::from(self.geo.bbs) / part;
        let bbs = u64::from(self.geo.bbs);
        let target = if far >= bbs { Lsn::new(tail.cycle() + 1, (far - bbs) as u32) } else { Lsn::new(tail.cycle(), far as u32) };
        let target = if self.is_dirty() { target.max(self.ail.quarter()) } else { target };
        let (_, pinned) = self.ail.push_to(target, &self.dev)?;
        if pinned > 0 && !hole(Hole::PinnedNotForced) {
            self.force_all()?;
        }
        Ok(())
    }

    /// Makes everything durable, then writes it all home and flushes: afterwards the AIL is empty.
    ///
    /// # Errors
    /// The volume is shut down.
    pub fn quiesce(&self) -> Result<(), JournalError> {
        loop {
            self.force_all()?;
            let (written, _) = self.ail.push_to(Lsn(u64::MAX), &self.dev)?;
            if self.ail.is_empty() {
                break;
            }
            if written == 0 {
                pause(Duration::from_millis(1));
            }
            self.shutdown.check()?;
        }
        self.flush_since(self.flush_token())
    }

    /// Writes the record that says that the volume was unmounted. The caller has quiesced, and nothing runs any more.
    ///
    /// # Errors
    /// The volume is shut down.
    pub fn unmount(&self) -> Result<(), JournalError> {
        self.quiesce()?;
        let mut s = self.stream.lock();
        let r = s.unmount(self.ail.tail(), &self.stats);
        self.writer.flush_since(self.writer.flush_token())?;
        self.writer.write_durable(&r)
    }

    /// Stops the workers. Nothing is written any more.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        notify(&self.kick, &self.kicked);
        self.workers.join();
        // Items know the volume, which knows the journal: what is left in its lists would keep all of them alive.
        self.ail.clear();
        let mut ctx = self.context.write();
        let next = Context::new(ctx.seq);
        let left = std::mem::replace(&mut *ctx, next).gather();
        drop(ctx);
        drop(left);
    }
}
