//! Transactions: reserve, join, log, roll, commit, cancel.
//!
//! States: *clean* (nothing logged; may be dropped), *dirty* (something logged; dropping it shuts the volume down, unless
//! all of it may stay by itself), *committed*.
//!
//! 1. Buffers join locked and stay locked until the commit, or across a roll if they are held.
//! 2. What is logged was changed under its lock; inodes are locked by the caller, before and beyond the transaction.
//! 3. Deferred operations are finished in order, each in a link of its own, its intent logged in the link before.
//! 4. Blocks come out of the reservation made at the start, so allocation cannot fail for want of space half way.

mod bufitem;
mod change;
mod deferred;

pub use bufitem::{BufItem, CHUNK};
pub use deferred::{Deferred, Finish, IntentItem};

use crate::error::Result;
use crate::volume::Volume;
use std::sync::Arc;
use uxfs_buffer::Buffer;
use uxfs_format::reservation::Reservation;
use uxfs_format::{CheckpointSeq, DiskAddr, Kind};
use uxfs_journal::{Commit, Completion, ItemState, LogItem, Payload, Regions, Ticket};
use uxfs_sync::Held;

/// A shared buffer.
pub type Buf = Arc<Buffer>;

/// An item that formats itself when its transaction commits: the inode's, in a room above.
pub trait Loggable: LogItem {
    /// What goes into the log. The inode is locked.
    fn format(&self) -> Regions;
    /// True if its place was given up, in this link at the latest: later links must not log it, since recovery would look for
    /// it there.
    fn is_homeless(&self) -> bool;
    /// The item as the journal sees it.
    fn as_item(self: Arc<Self>) -> Arc<dyn LogItem>;
}

/// Address and basic blocks of a buffer.
type Key = (DiskAddr, u32);

struct Joined {
    key: Key,
    item: Arc<BufItem>,
    _held: Held,
    dirty: bool,
    keep: bool,
}

/// A running transaction.
pub struct Trans {
    /// The volume.
    pub vol: Arc<Volume>,
    ticket: Option<Ticket>,
    /// In the order in which they joined; they are formatted so. Few, so they are searched one by one.
    joined: Vec<Joined>,
    /// Inodes of the chain, in the order of their items' numbers; each link logs them all again. Few, too.
    items: Vec<Arc<dyn Loggable>>,
    extra: Vec<(Arc<dyn LogItem>, Regions)>,
    done: Vec<Completion>,
    payloads: Vec<Payload>,
    deferred: std::collections::VecDeque<Deferred>,
    reserved_blocks: i64,
    freed_blocks: u64,
    inodes: (i64, i64),
    /// Highest group whose AGF is locked: no lower one may be waited for.
    pub highest_agf: Option<u32>,
    dirty: bool,
    /// Something was changed that must not stay by itself.
    half_done: bool,
    /// What is changed now may stay by itself.
    standalone: bool,
    seq: CheckpointSeq,
}

impl Trans {
    /// Reserves log space and `blocks` blocks.
    ///
    /// # Locks
    /// The caller holds none that the AIL or a checkpoint could need.
    ///
    /// # Errors
    /// `NoSpace`; the volume is shut down or read-only.
    pub fn new(vol: &Arc<Volume>, res: Reservation, blocks: u32) -> Result<Trans> {
        vol.check_writable()?;
        vol.counters.take(u64::from(blocks))?;
        Self::with_blocks(vol, res, blocks).inspect_err(|_| vol.counters.give(u64::from(blocks)))
    }

    /// As [`Trans::new`] for what must succeed on a full volume: it draws on the blocks set aside.
    ///
    /// # Errors
    /// The volume is shut down or read-only.
    pub fn new_must_succeed(vol: &Arc<Volume>, res: Reservation, blocks: u32) -> Result<Trans> {
        vol.check_writable()?;
        if vol.counters.take(u64::from(blocks)).is_err() {
            vol.counters.take_from_reserve(u64::from(blocks));
        }
        Self::with_blocks(vol, res, blocks).inspect_err(|_| vol.counters.give(u64::from(blocks)))
    }

    /// Starts with blocks that were taken from the counters before: delayed allocation's.
    ///
    /// # Errors
    /// The volume is shut down.
    pub fn with_blocks(vol: &Arc<Volume>, res: Reservation, blocks: u32) -> Result<Trans> {
        uxfs_sync::step();
        let ticket = vol.journal.reserve(res.unit, res.count)?;
        Ok(Self::start(vol, Some(ticket), blocks))
    }

    /// For looking only: it holds buffers, and may change nothing.
    pub fn reader(vol: &Arc<Volume>) -> Trans {
        Self::start(vol, None, 0)
    }

    fn start(vol: &Arc<Volume>, ticket: Option<Ticket>, blocks: u32) -> Trans {
        Trans {
            vol: vol.clone(),
            ticket,
            joined: Vec::new(),
            items: Vec::new(),
            extra: Vec::new(),
            done: Vec::new(),
            payloads: Vec::new(),
            deferred: std::collections::VecDeque::new(),
            reserved_blocks: i64::from(blocks),
            freed_blocks: 0,
            inodes: (0, 0),
            highest_agf: None,
            dirty: false,
            half_done: false,
            standalone: false,
            seq: CheckpointSeq(0),
        }
    }

    /// Reads, locks and joins a buffer.
    ///
    /// # Errors
    /// The device's, or the block is corrupt.
    pub fn read_buf(&mut self, daddr: DiskAddr, bbs: u32, kind: Kind) -> Result<Buf> {
        self.read_maps(&[(daddr, bbs)], kind)
    }

    /// As [`Trans::read_buf`] for a block of several pieces.
    ///
    /// # Errors
    /// The same.
    pub fn read_maps(&mut self, maps: &[(DiskAddr, u32)], kind: Kind) -> Result<Buf> {
        let key = (maps[0].0, maps.iter().map(|m| m.1).sum());
        if let Some(j) = self.find(key) {
            return Ok(j.item.buf.clone());
        }
        let vol = self.vol.clone();
        let b = vol.bufs.read(maps, kind, &vol.geo)?;
        let held = b.hold.lock();
        Ok(self.join(b, held))
    }

    /// Locks and joins a buffer if nobody holds it.
    ///
    /// # Errors
    /// As [`Trans::read_buf`].
    pub fn try_read_buf(&mut self, daddr: DiskAddr, bbs: u32, kind: Kind) -> Result<Option<Buf>> {
        if self.find((daddr, bbs)).is_some() {
            return self.read_buf(daddr, bbs, kind).map(Some);
        }
        let b = self.vol.bufs.read(&[(daddr, bbs)], kind, &self.vol.geo)?;
        Ok(b.hold.try_lock().map(|held| self.join(b, held)))
    }

    /// Locks, zeroes and joins the buffer of a block that was just allocated.
    pub fn get_buf(&mut self, maps: &[(DiskAddr, u32)], kind: Kind) -> Buf {
        let key = (maps[0].0, maps.iter().map(|m| m.1).sum());
        let b = match self.find(key) {
            Some(j) => j.item.buf.clone(),
            None => {
                let b = self.vol.bufs.get(maps, kind);
                let held = b.hold.lock();
                self.join(b, held)
            }
        };
        b.set_kind(kind);
        self.vol.bufs.init(&b);
        BufItem::of(&b, &self.vol).reuse();
        b
    }

    fn join(&mut self, b: Buf, held: Held) -> Buf {
        let key = (b.daddr(), b.bbs());
        let item = BufItem::of(&b, &self.vol);
        self.joined.push(Joined { key, item, _held: held, dirty: false, keep: false });
        b
    }

    fn find(&self, key: Key) -> Option<&Joined> {
        self.joined.iter().find(|j| j.key == key)
    }

    /// True if the buffer has joined, and is locked since.
    pub fn has(&self, b: &Buf) -> bool {
        self.joined.iter().any(|j| Arc::ptr_eq(&j.item.buf, b))
    }

    fn joined(&mut self, b: &Buf) -> Option<&mut Joined> {
        let j = self.joined.iter_mut().find(|j| Arc::ptr_eq(&j.item.buf, b));
        debug_assert!(j.is_some(), "a buffer is logged that did not join");
        j
    }

    /// Says that something changed that this link logs.
    pub fn note_change(&mut self) {
        self.dirty = true;
        self.half_done |= !self.standalone;
    }

    /// Runs changes that are whole in themselves: if the transaction is given up after them, they are kept.
    pub fn standalone<R>(&mut self, changes: impl FnOnce(&mut Trans) -> R) -> R {
        let before = std::mem::replace(&mut self.standalone, true);
        let r = changes(self);
        self.standalone = before;
        r
    }

    /// Notes bytes `from..to` of a buffer as changed.
    pub fn log(&mut self, b: &Buf, from: usize, to: usize) {
        self.note_change();
        if let Some(j) = self.joined(b) {
            j.dirty = true;
            j.item.mark(from, to);
        }
    }

    /// Notes a whole buffer as changed.
    pub fn log_all(&mut self, b: &Buf) {
        let len = b.bbs() as usize * 512;
        self.log(b, 0, len);
    }

    /// Notes a next-unlinked field of an inode cluster as changed.
    pub fn log_inode_buf(&mut self, b: &Buf, from: usize, to: usize) {
        self.log(b, from, to);
        if let Some(j) = self.joined(b) {
            j.item.set_inode_buf();
        }
    }

    /// Makes a buffer reach its home in log order without logging its bytes: new inode chunks, whose bytes follow from
    /// an item of their own.
    pub fn order_buf(&mut self, b: &Buf) {
        self.note_change();
        if let Some(j) = self.joined(b) {
            j.dirty = true;
            j.item.set_ordered();
        }
    }

    /// Says that a buffer's block is freed: its images in the log are not to be replayed.
    pub fn invalidate(&mut self, b: &Buf) {
        self.note_change();
        if let Some(j) = self.joined(b) {
            j.dirty = true;
            j.item.cancel();
        }
    }

    /// Keeps a buffer locked and joined across rolls.
    pub fn hold_buf(&mut self, b: &Buf) {
        if let Some(j) = self.joined(b) {
            j.keep = true;
        }
    }

    /// Buffers that have joined so far, for [`Trans::release_since`].
    pub fn joined_count(&self) -> usize {
        self.joined.len()
    }

    /// Lets go of all buffers that joined since there were `count`, but those that were changed or are kept.
    pub fn release_since(&mut self, count: usize) {
        let later = self.joined.split_off(count.min(self.joined.len()));
        self.joined.extend(later.into_iter().filter(|j| j.dirty || j.keep));
    }

    /// True if the chain logs this inode already.
    pub fn logs(&self, item: &ItemState) -> bool {
        self.items.iter().any(|i| i.state().id == item.id)
    }

    /// Logs an inode, which the chain does not log yet, in this link and all later ones; it is formatted at each commit.
    pub fn log_item(&mut self, item: Arc<dyn Loggable>) {
        self.note_change();
        let id = item.state().id;
        let at = self.items.partition_point(|i| i.state().id < id);
        self.items.insert(at, item);
    }

    /// Logs an item that is formatted already.
    pub fn log_regions(&mut self, item: Arc<dyn LogItem>, regions: Regions) {
        self.note_change();
        self.extra.push((item, regions));
    }

    /// Logs that an intent is done.
    pub fn log_done(&mut self, intent: &Arc<IntentItem>) {
        self.note_change();
        let (done, regions) = intent.done();
        self.done.push((intent.clone(), done, regions));
    }

    /// Calls back when the link that runs now is durable, or never will be.
    pub fn on_durable(&mut self, p: Payload) {
        self.payloads.push(p);
    }

    /// Queues an operation for after this link.
    pub fn defer(&mut self, d: Deferred) {
        self.note_change();
        self.deferred.push_back(d);
    }

    /// Logs the intent of an operation in this link: a crash does it. A later link defers the operation, or calls it off.
    pub fn intend(&mut self, mut d: Deferred) -> Deferred {
        d.log_intent(self);
        d
    }

    /// Logs that an operation that was intended will not be done.
    pub fn call_off(&mut self, d: &Deferred) {
        d.log_done(self);
    }

    /// Counts `n` blocks as allocated, out of the reservation.
    pub fn use_blocks(&mut self, n: u32) {
        self.reserved_blocks -= i64::from(n);
        debug_assert!(self.reserved_blocks >= 0, "more blocks were allocated than reserved");
    }

    /// Adds blocks that were taken from the counters to the reservation.
    pub fn add_reserved(&mut self, n: u32) {
        self.reserved_blocks += i64::from(n);
    }

    /// Takes `n` blocks out of the reservation; they are the caller's to give back.
    pub fn return_reserved(&mut self, n: u32) {
        self.reserved_blocks -= i64::from(n);
    }

    /// Blocks still reserved.
    pub fn blocks_left(&self) -> u32 {
        self.reserved_blocks.max(0) as u32
    }

    /// Counts `n` blocks as freed; they become free at the commit.
    pub fn free_blocks(&mut self, n: u32) {
        self.freed_blocks += u64::from(n);
    }

    /// Counts inodes as allocated and free.
    pub fn count_inodes(&mut self, count: i64, free: i64) {
        self.inodes.0 += count;
        self.inodes.1 += free;
    }

    /// Gives the running link to the journal.
    fn commit_link(&mut self, last: bool) -> Result<()> {
        let Some(ticket) = self.ticket.as_mut() else { return Ok(()) };
        let mut commit = Commit::default();
        if self.dirty {
            commit.items.reserve(self.joined.len() + self.items.len() + self.extra.len());
            let changed = self.joined.iter().filter(|j| j.dirty);
            commit.items.extend(changed.map(|j| (j.item.clone() as Arc<dyn LogItem>, j.item.format())));
            commit.items.extend(self.items.iter().map(|i| (i.clone().as_item(), i.format())));
            commit.items.append(&mut self.extra);
            commit.done = std::mem::take(&mut self.done);
            commit.payloads = std::mem::take(&mut self.payloads);
            self.seq = self.vol.journal.commit(ticket, commit);
        }
        self.items.retain(|i| !i.is_homeless());
        self.vol.counters.give(std::mem::take(&mut self.freed_blocks));
        let (count, free) = std::mem::take(&mut self.inodes);
        self.vol.counters.add_inodes(count, free);
        self.joined.retain_mut(|j| {
            j.dirty = false;
            j.keep && !last
        });
        self.highest_agf = None;
        self.dirty = false;
        self.half_done = false;
        Ok(())
    }

    /// Commits the running link and goes on with a new one: buffers are unlocked but those held, inodes stay.
    ///
    /// The inodes of the chain are logged again in the next link, so the log's tail never waits for the chain's end; but one whose
    /// chunk was freed is not (docs/journal.md, 10).
    ///
    /// # Errors
    /// The volume is shut down.
    pub fn roll(&mut self) -> Result<()> {
        // What is still to be done must survive a crash between the links.
        let mut waiting = std::mem::take(&mut self.deferred);
        waiting.iter_mut().for_each(|d| d.log_intent(self));
        self.deferred = waiting;
        self.commit_link(false)?;
        if let Some(t) = self.ticket.as_mut() {
            uxfs_sync::step();
            self.vol.journal.regrant(t)?;
        }
        Ok(())
    }

    /// Finishes deferred operations and commits. Returns the checkpoint that everything is in.
    ///
    /// # Errors
    /// A deferred operation failed, which shuts the volume down.
    pub fn commit(mut self) -> Result<CheckpointSeq> {
        self.finish_deferred()?;
        self.commit_link(true)?;
        self.close();
        Ok(self.seq)
    }

    /// Finishes deferred operations; afterwards the transaction goes on.
    ///
    /// # Errors
    /// The operation's.
    pub fn finish_deferred(&mut self) -> Result<()> {
        let mut ready: std::collections::VecDeque<Deferred> = std::collections::VecDeque::new();
        loop {
            while let Some(mut d) = self.deferred.pop_front() {
                d.log_intent(self);
                ready.push_back(d);
            }
            let Some(d) = ready.pop_front() else { return Ok(()) };
            self.roll()?;
            // Relogging the chain's inodes keeps them from holding the tail back.
            self.dirty = true;
            d.finish(self)?;
        }
    }

    fn close(&mut self) {
        if let Some(t) = self.ticket.take() {
            self.vol.journal.release(t);
        }
        self.vol.counters.give(self.reserved_blocks.max(0) as u64);
        self.reserved_blocks = 0;
    }
}

impl Drop for Trans {
    fn drop(&mut self) {
        if self.ticket.is_none() {
            return;
        }
        let kept = self.dirty && !self.half_done && self.finish_deferred().and_then(|()| self.commit_link(true)).is_ok();
        if self.dirty && !kept {
            // What was changed in memory cannot be taken back: as after a power cut, only the log counts now.
            self.vol.journal.fail("a transaction was cancelled after it had changed something");
        }
        self.close();
    }
}
