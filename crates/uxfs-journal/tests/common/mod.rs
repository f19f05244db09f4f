//! Items of the simplest kind, for tests of the journal alone.

#[cfg(not(uxfs_shuttle))]
pub mod found;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use uxfs_format::Lsn;
use uxfs_journal::*;
use uxfs_sync::explored::Mutex;

/// Their kind in the log.
pub const THING: u16 = 0x123b;
/// The volume's.
pub const UUID: [u8; 16] = [9; 16];

/// A log of `bytes` at the device's begin; behind it each item has a sector.
pub fn geometry(bytes: u64) -> LogGeometry {
    LogGeometry { start: 0, bbs: (bytes / 512) as u32, roundoff: 512, uuid: UUID }
}

/// Something with a version, of which the log gets many bytes.
pub struct Thing {
    pub number: u64,
    pub version: AtomicU64,
    /// Where it is written home.
    home: u64,
    state: ItemState,
    journal: Mutex<Weak<Journal>>,
    me: Mutex<Weak<Thing>>,
}

impl Thing {
    /// One of version 0 that lies behind a log of `log` bytes.
    pub fn new(j: &Arc<Journal>, log: u64, number: u64) -> Arc<Thing> {
        let t = Arc::new(Thing {
            number,
            version: AtomicU64::new(0),
            home: log + number * 512,
            state: ItemState::default(),
            journal: Mutex::new(Arc::downgrade(j)),
            me: Mutex::default(),
        });
        *t.me.lock() = Arc::downgrade(&t);
        t
    }

    fn regions(&self, version: u64, bytes: usize) -> Regions {
        let mut head = vec![0; 24];
        head[..2].copy_from_slice(&THING.to_le_bytes());
        head[2..4].copy_from_slice(&2u16.to_le_bytes());
        head[8..16].copy_from_slice(&self.number.to_le_bytes());
        head[16..].copy_from_slice(&version.to_le_bytes());
        [head, vec![version as u8; bytes]].into()
    }

    /// What commits a version, of which `bytes` are logged.
    pub fn commit(self: &Arc<Self>, version: u64, bytes: usize) -> Commit {
        // What is committed may be written home once it is durable: the version first, then the commit.
        self.version.store(version, Ordering::SeqCst);
        let item: Arc<dyn LogItem> = self.clone();
        Commit { items: vec![(item, self.regions(version, bytes))], ..Commit::default() }
    }
}

impl LogItem for Thing {
    fn state(&self) -> &ItemState {
        &self.state
    }
    fn committed(&self, lsn: Lsn, _: &Regions) -> Option<Lsn> {
        Some(lsn)
    }
    fn held_bytes(&self) -> u64 {
        512
    }
    fn push(&self) -> Push {
        if self.state.is_pinned() {
            return Push::Pinned;
        }
        let Some(at) = self.state.ail_lsn() else { return Push::Nothing };
        let mut sector = vec![0; 512];
        sector[..8].copy_from_slice(&self.version.load(Ordering::SeqCst).to_le_bytes());
        let (me, journal) = (self.me.lock().upgrade(), self.journal.lock().upgrade());
        let done = Box::new(move |ok| {
            if let (true, Some(me), Some(j)) = (ok, me, journal) {
                j.ail.remove_at(&*me, at);
            }
        });
        Push::Write(WriteUnit { pieces: vec![(self.home, sector)], done })
    }
}
