//! What is logged: the door through which the engine's items reach the journal.

use crate::ail::WriteUnit;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use uxfs_format::{CheckpointSeq, Lsn};
use uxfs_sync::explored::Mutex;

/// The regions of an item as they go into the log, the format region first. Each is a multiple of four bytes.
pub type Regions = Vec<Vec<u8>>;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The journal's part of an item.
///
/// States: *clean* (in no checkpoint, not in the AIL), *in a checkpoint* (pinned), *in the AIL* (durable in the log, not
/// home). An item may be in the AIL and in one or two checkpoints at once.
#[derive(Debug)]
pub struct ItemState {
    /// Tells items apart, in the order in which they were made.
    pub id: u64,
    /// Position in the AIL; 0 if not there. Changes under the AIL's lock.
    pub(crate) ail_lsn: AtomicU64,
    /// Last checkpoint that it was committed to.
    pub(crate) seq: AtomicU64,
    /// Checkpoints not yet durable that it is in.
    pub(crate) pins: AtomicU32,
    /// What the current checkpoint will write of it.
    pub(crate) shadow: Mutex<Option<Regions>>,
}

impl Default for ItemState {
    fn default() -> Self {
        ItemState {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            ail_lsn: AtomicU64::new(0),
            seq: AtomicU64::new(0),
            pins: AtomicU32::new(0),
            shadow: Mutex::default(),
        }
    }
}

impl ItemState {
    /// True while a checkpoint that it is in is not durable: it may not be written home.
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }
    /// True if, besides the checkpoint that completes now, a later one holds it.
    pub fn is_logged_again(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 1
    }
    /// Its position in the AIL, if it is there.
    pub fn ail_lsn(&self) -> Option<Lsn> {
        match self.ail_lsn.load(Ordering::Acquire) {
            0 => None,
            l => Some(Lsn(l)),
        }
    }
    /// The last checkpoint that it was committed to, if any.
    pub fn seq(&self) -> CheckpointSeq {
        CheckpointSeq(self.seq.load(Ordering::Acquire))
    }
}

/// What became of an attempt to write an item home.
pub enum Push {
    /// To be written; the unit's `done` takes the item out of the AIL.
    Write(WriteUnit),
    /// In a checkpoint that is not durable.
    Pinned,
    /// In use by a transaction or by a write.
    Locked,
    /// It leaves the AIL in another way.
    Nothing,
}

/// Something that transactions log.
pub trait LogItem: Send + Sync {
    /// The journal's part.
    fn state(&self) -> &ItemState;

    /// A checkpoint that holds `logged` of it is durable at `lsn`. Returns where in the AIL it belongs now, `None` for
    /// nowhere: `lsn`, or an earlier position if what was logged there is not all logged again.
    ///
    /// Only `logged` says what is durable; the item may have gone on in a later checkpoint or in a running transaction.
    fn committed(&self, lsn: Lsn, logged: &Regions) -> Option<Lsn>;

    /// Tries to write the item home; waits for no lock, but for the device if it [is cold](LogItem::is_cold).
    fn push(&self) -> Push;

    /// True if that would read something first, which is not in memory.
    fn is_cold(&self) -> bool {
        false
    }

    /// Reads that, and keeps it in memory as long as what is returned lives.
    fn warm(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Bytes of memory that cannot be given up while the item is pinned, beside what it logs; always the same.
    fn held_bytes(&self) -> u64 {
        0
    }
}
