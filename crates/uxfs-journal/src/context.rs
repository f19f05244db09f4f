//! The open checkpoint: what commits gather until it is written.
//!
//! Commits go on beside each other. Each holds the context shared, puts its items into one of several shards, and counts with atomics;
//! only who switches contexts holds it alone. Order ids bring the items of all shards back into the order of their commits.

use crate::cil::{Commit, Payload};
use crate::item::{LogItem, Regions};
use crate::stats::Stats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use uxfs_sync::explored::Mutex;

/// As many commits as this rarely come at the same time.
const SHARDS: usize = 16;

/// Items with the order ids of their first commits, and what is called at durability.
#[derive(Default)]
struct Shard {
    items: Vec<(u64, Arc<dyn LogItem>)>,
    payloads: Vec<Payload>,
}

#[derive(Default)]
pub(crate) struct Context {
    pub(crate) seq: u64,
    /// Order id of the next commit.
    order: AtomicU64,
    shards: [Mutex<Shard>; SHARDS],
    items: AtomicUsize,
    bytes: AtomicI64,
    regions: AtomicI64,
    /// Bytes of memory that became pinned with it.
    pinned: AtomicI64,
    /// Bytes of log space that its transactions brought.
    reserved: AtomicU64,
    /// Somebody waits until it is written, also if it shrinks.
    pub(crate) awaited: AtomicBool,
}

/// An item, and what is logged of it: nothing of an intent that vanished.
pub(crate) struct Logged {
    order: u64,
    pub(crate) item: Arc<dyn LogItem>,
    pub(crate) regions: Option<Regions>,
}

/// A context that no commit reaches any more.
pub(crate) struct Gathered {
    pub(crate) seq: u64,
    pub(crate) items: Vec<Logged>,
    pub(crate) payloads: Vec<Payload>,
    pub(crate) bytes: i64,
    pub(crate) reserved: u64,
}

impl Context {
    pub(crate) fn new(seq: u64) -> Context {
        Context { seq, ..Context::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::SeqCst)
    }

    pub(crate) fn pinned(&self) -> i64 {
        self.pinned.load(Ordering::SeqCst)
    }

    /// Bytes and regions that it logs. Of several commits the last one to ask sees what all of them brought.
    pub(crate) fn content(&self) -> (i64, i64) {
        (self.bytes(), self.regions.load(Ordering::SeqCst))
    }

    /// Says that it takes `needed` bytes of log space in all; returns what nobody has brought yet, which the caller must bring.
    pub(crate) fn charge(&self, needed: u64) -> u64 {
        needed.saturating_sub(self.reserved.fetch_max(needed, Ordering::SeqCst))
    }

    /// Puts a transaction in; returns the bytes of memory that it pins. The caller holds what it commits.
    pub(crate) fn put(&self, commit: Commit, stats: &Stats) -> i64 {
        let order = self.order.fetch_add(1, Ordering::SeqCst);
        let (mut items, mut bytes, mut regions, mut held) = (commit.items, 0, 0, 0);
        for (intent, done, logged) in commit.done {
            let s = intent.state();
            if s.seq.load(Ordering::Acquire) == self.seq
                && let Some(r) = s.shadow.lock().take()
            {
                bytes -= r.content() as i64;
                regions -= r.len() as i64;
                Stats::add(&stats.whiteouts, 1);
                continue;
            }
            items.push((done, logged));
        }
        let mut new = Vec::with_capacity(items.len());
        for (item, logged) in items {
            let s = item.state();
            bytes += logged.content() as i64;
            regions += logged.len() as i64;
            if let Some(old) = s.shadow.lock().replace(logged) {
                bytes -= old.content() as i64;
                regions -= old.len() as i64;
            }
            if s.seq.swap(self.seq, Ordering::AcqRel) != self.seq {
                if s.pins.fetch_add(1, Ordering::AcqRel) == 0 {
                    held += item.held_bytes() as i64;
                }
                new.push((order, item));
            }
        }
        self.items.fetch_add(new.len(), Ordering::SeqCst);
        {
            let mut shard = self.shards[order as usize % SHARDS].lock();
            shard.items.append(&mut new);
            shard.payloads.extend(commit.payloads);
        }
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.regions.fetch_add(regions, Ordering::SeqCst);
        self.pinned.fetch_add(held + bytes, Ordering::SeqCst);
        held + bytes
    }

    /// Takes everything out. What is logged of each item is taken now: the next commit may bring more of it.
    ///
    /// # Locks
    /// The caller held the context alone, and still keeps others from committing to the next one.
    pub(crate) fn gather(self) -> Gathered {
        let mut items = Vec::with_capacity(self.items.load(Ordering::SeqCst));
        let mut payloads = Vec::new();
        for s in &self.shards {
            let mut s = s.lock();
            payloads.append(&mut s.payloads);
            items.extend(s.items.drain(..).map(|(order, item)| {
                let regions = item.state().shadow.lock().take();
                Logged { order, item, regions }
            }));
        }
        Gathered { seq: self.seq, items, payloads, bytes: self.bytes(), reserved: self.reserved.load(Ordering::SeqCst) }
    }
}

impl Gathered {
    /// Brings the items into the order of their commits. Those of one commit lie together in one shard already.
    pub(crate) fn sort(&mut self) {
        self.items.sort_by_key(|i| i.order);
    }
}
