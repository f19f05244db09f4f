//! What all rooms of an open volume share.

use crate::counters::{Counters, Kept};
use crate::error::{Error, Result};
use foldhash::HashSet;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uxfs_buffer::BufferCache;
use uxfs_device::DeviceRef;
use uxfs_format::inode::Timestamp;
use uxfs_format::reservation::Reservations;
use uxfs_format::{Geometry, Ino, Lsn};
use uxfs_journal::Journal;
use uxfs_sync::{Chance, Clock};

/// Extents that wait for a checkpoint: (start, generation) to blocks.
pub type List = Mutex<BTreeMap<(u32, u64), u32>>;

/// In-memory state of an allocation group.
#[derive(Debug, Default)]
pub struct PerAg {
    /// Freed extents whose freeing is not durable: (start, generation) to blocks. File data may not use them yet.
    pub busy: List,
    /// Blocks that lost all owners but one, while that is not durable. Their owner may not write them in place yet.
    pub unshared: List,
    /// What its trees may still need.
    pub kept: Kept,
    /// The unlinked inode before one, where it is known: what removal from the middle of a list needs.
    pub unlinked_prev: Mutex<BTreeMap<u32, u32>>,
    /// First blocks of the inode clusters that were freed since the volume was opened and are none again: what lies there still looks like
    /// inodes to whoever comes with an old number.
    pub freed_clusters: Mutex<HashSet<u32>>,
}

/// An extent whose freeing is durable, as its group's list of busy ones knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Freed {
    /// The group.
    pub agno: u32,
    /// First block.
    pub start: u32,
    /// Blocks.
    pub len: u32,
    /// Tells it from others at the same place.
    pub generation: u64,
}

/// Extents on their way to being discarded.
#[derive(Debug, Default)]
pub struct Discards {
    /// What is to be done.
    pub queue: Mutex<DiscardQueue>,
    /// It changed.
    pub changed: Condvar,
    /// Bytes discarded.
    pub bytes: AtomicU64,
}

/// See [`Discards`].
#[derive(Debug, Default)]
pub struct DiscardQueue {
    /// Not yet begun.
    pub waiting: Vec<Freed>,
    /// Others are being discarded.
    pub running: bool,
    /// Nothing more will come.
    pub closed: bool,
}

/// An open volume below its inodes.
pub struct Volume {
    /// Sizes and features.
    pub geo: Geometry,
    /// What transactions reserve.
    pub res: Reservations,
    /// The device.
    pub dev: DeviceRef,
    /// Metadata buffers.
    pub bufs: BufferCache,
    /// The journal.
    pub journal: Arc<Journal>,
    /// Free blocks and inodes.
    pub counters: Counters,
    /// The groups.
    pub groups: Vec<PerAg>,
    /// Extents that were busy and can be used again, so far.
    pub usable_again: AtomicU64,
    /// The time.
    pub clock: Box<dyn Clock>,
    /// Chance, for inode generations.
    pub chance: Chance,
    /// True if nothing may be changed. Where a dirty volume is only read, its recovery may, in memory, and what closes it.
    pub read_only: AtomicBool,
    /// See [`crate::Options::reproducible`].
    pub reproducible: bool,
    /// See [`crate::Options::grpid`].
    pub grpid: bool,
    /// See [`crate::Options::wsync`].
    pub wsync: bool,
    /// What is freed is discarded, if the volume was opened so.
    pub discards: Option<Discards>,
}

impl Volume {
    /// The time now.
    pub fn now(&self) -> Timestamp {
        let (sec, nsec) = self.clock.now();
        Timestamp { sec, nsec }
    }
    /// The log position that a block bears whose last change is at `lsn`.
    pub fn stamp(&self, lsn: Lsn) -> Lsn {
        if self.reproducible { Lsn(0) } else { lsn }
    }
    /// True if nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }
    /// Fails if nothing may be changed.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Shutdown`].
    pub fn check_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        Ok(self.journal.shutdown.check()?)
    }
    /// An error about an inode.
    pub fn corrupt(&self, ino: Ino, what: &'static str) -> Error {
        Error::CorruptInode { ino, what }
    }
}
