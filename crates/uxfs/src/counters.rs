//! Free blocks and inodes of the whole volume, in memory; the superblock's are right only after a clean unmount.
//!
//! A block is *free*, *reserved* (by a running transaction) or *delayed* (promised to dirty data that has no place yet).
//! Reserved and delayed blocks are not free, so a promise never fails later.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicI64, Ordering};

/// Blocks that a group keeps for trees that must be able to grow, beyond those that they have (`space/kept.rs`).
#[derive(Debug, Default)]
pub struct Kept {
    /// For the rmapbt.
    pub rmap: AtomicI64,
    /// For the refcountbt and the finobt.
    pub others: AtomicI64,
}

/// Counters of one volume.
#[derive(Debug, Default)]
pub struct Counters {
    free: AtomicI64,
    icount: AtomicI64,
    ifree: AtomicI64,
    /// Blocks that nobody gets who can do without: what the groups keep, and what operations draw on that must succeed.
    set_aside: AtomicI64,
    /// Blocks of the trees of free space: counted as free, but nobody can have them.
    in_trees: AtomicI64,
    delayed: AtomicI64,
}

impl Counters {
    /// Sets all, from the superblock or from the groups' headers.
    pub fn set(&self, free: u64, icount: u64, ifree: u64, set_aside: u64, in_trees: u64) {
        self.in_trees.store(in_trees as i64, Ordering::SeqCst);
        self.free.store(free as i64, Ordering::SeqCst);
        self.icount.store(icount as i64, Ordering::SeqCst);
        self.ifree.store(ifree as i64, Ordering::SeqCst);
        self.set_aside.store(set_aside as i64, Ordering::SeqCst);
    }

    fn unavailable(&self) -> i64 {
        self.set_aside.load(Ordering::Relaxed) + self.in_trees.load(Ordering::Relaxed)
    }

    /// The trees of free space grew or shrank.
    pub fn trees_changed(&self, by: i64) {
        self.in_trees.fetch_add(by, Ordering::Relaxed);
    }

    /// More or less is to be kept for the groups' trees.
    pub fn aside_changed(&self, by: i64) {
        self.set_aside.fetch_add(by, Ordering::Relaxed);
    }

    /// Takes `n` blocks out of the free ones.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn take(&self, n: u64) -> Result<()> {
        let aside = self.unavailable();
        let ok = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |f| (f - n as i64 >= aside).then_some(f - n as i64));
        ok.map(|_| ()).map_err(|_| Error::NoSpace)
    }

    /// Takes blocks for an operation that must succeed on a full volume, from what was set aside.
    pub fn take_from_reserve(&self, n: u64) {
        self.free.fetch_sub(n as i64, Ordering::AcqRel);
    }

    /// Gives blocks back.
    pub fn give(&self, n: u64) {
        self.free.fetch_add(n as i64, Ordering::AcqRel);
    }

    /// Takes blocks for data that has no place yet.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn take_delayed(&self, n: u64) -> Result<()> {
        self.take(n)?;
        self.delayed.fetch_add(n as i64, Ordering::AcqRel);
        Ok(())
    }

    /// A transaction's blocks become promises again. They are not given back in between: somebody else could take them.
    pub fn promise_again(&self, n: u64) {
        self.delayed.fetch_add(n as i64, Ordering::AcqRel);
    }

    /// Gives delayed blocks back, or turns them into a transaction's reservation.
    pub fn settle_delayed(&self, n: u64, back: bool) {
        self.delayed.fetch_sub(n as i64, Ordering::AcqRel);
        if back {
            self.give(n);
        }
    }

    /// Blocks that are promised to data.
    pub fn promised(&self) -> i64 {
        self.delayed.load(Ordering::Acquire)
    }

    /// Counts inodes that were allocated and freed.
    pub fn add_inodes(&self, count: i64, free: i64) {
        self.icount.fetch_add(count, Ordering::AcqRel);
        self.ifree.fetch_add(free, Ordering::AcqRel);
    }

    /// Free blocks as the superblock counts them, inodes, free inodes. Right only while no transaction runs.
    pub fn for_superblock(&self) -> (u64, u64, u64) {
        let free = self.free.load(Ordering::SeqCst) + self.delayed.load(Ordering::SeqCst);
        (free.max(0) as u64, self.icount.load(Ordering::SeqCst).max(0) as u64, self.ifree.load(Ordering::SeqCst).max(0) as u64)
    }

    /// Free blocks that a user may still fill, inodes, free inodes.
    pub fn for_statfs(&self) -> (u64, u64, u64) {
        let free = self.free.load(Ordering::SeqCst) - self.unavailable();
        (free.max(0) as u64, self.icount.load(Ordering::SeqCst).max(0) as u64, self.ifree.load(Ordering::SeqCst).max(0) as u64)
    }
}
