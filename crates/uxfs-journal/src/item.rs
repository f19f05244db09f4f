//! What is logged: the door through which the engine's items reach the journal.

use crate::ail::WriteUnit;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use uxfs_format::{CheckpointSeq, Lsn};
use uxfs_sync::explored::Mutex;

/// The regions of an item as they go into the log, the format region first; all of them in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// Each region behind its length: [`LENGTH`] bytes, in the machine's order.
    bytes: Vec<u8>,
    count: usize,
}

const LENGTH: usize = 4;

impl Regions {
    /// Makes room for `count` more regions with `bytes` bytes in all.
    pub fn reserve(&mut self, bytes: usize, count: usize) {
        self.bytes.reserve_exact(bytes + count * LENGTH);
    }

    /// Adds a region, which is padded to a multiple of four bytes.
    pub fn push(&mut self, region: &[u8]) {
        self.push_with(|b| b.extend_from_slice(region));
    }

    /// Adds the region that `put` writes behind what is there.
    pub fn push_with(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let at = self.bytes.len();
        self.bytes.extend([0; LENGTH]);
        put(&mut self.bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let len = (self.bytes.len() - at - LENGTH) as u32;
        self.bytes[at..at + LENGTH].copy_from_slice(&len.to_ne_bytes());
        self.count += 1;
    }

    /// The regions, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk::<LENGTH>()?;
            let (region, behind) = behind.split_at_checked(u32::from_ne_bytes(*len) as usize)?;
            rest = behind;
            Some(region)
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there are none: the item is only ordered.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of all regions.
    pub fn content(&self) -> usize {
        self.bytes.len() - self.count * LENGTH
    }
}

impl<const N: usize> From<[Vec<u8>; N]> for Regions {
    fn from(all: [Vec<u8>; N]) -> Regions {
        let mut r = Regions::default();
        r.reserve(all.iter().map(Vec::len).sum(), N);
        all.iter().for_each(|region| r.push(region));
        r
    }
}

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
