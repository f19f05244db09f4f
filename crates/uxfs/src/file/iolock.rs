//! Who may read and write a file's data at the same time.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::Range;
use uxfs_sync::{RangeGuard, RangeLock};

/// What reads and writes of one file exclude.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoLock {
    /// Writers exclude each other; readers see each block whole, and may see a write half done. As ext3 did it.
    Exclusive,
    /// Readers share, a writer is alone. As XFS in the kernel does it.
    Shared,
    /// Those whose ranges overlap exclude each other, unless both read.
    #[default]
    Range,
}

uxfs_sync::named!(IoLock { Exclusive = "exclusive", Shared = "shared", Range = "range" });

/// The lock of one file's data.
#[derive(Debug)]
pub struct FileLock {
    how: IoLock,
    ranges: RangeLock,
    whole: RwLock<()>,
}

/// Proof that it is held; given back when dropped.
#[must_use]
pub struct FileGuard<'a> {
    range: Option<RangeGuard<'a>>,
    _shared: Option<RwLockReadGuard<'a, ()>>,
    _whole: Option<RwLockWriteGuard<'a, ()>>,
}

impl FileGuard<'_> {
    /// The same, and nothing else.
    fn none() -> Self {
        FileGuard { range: None, _shared: None, _whole: None }
    }
}

impl FileLock {
    /// A lock that excludes what `how` says.
    pub fn new(how: IoLock) -> FileLock {
        FileLock { how, ranges: RangeLock::default(), whole: RwLock::new(()) }
    }

    /// Waits until bytes may be read.
    pub fn read(&self, bytes: Range<u64>) -> FileGuard<'_> {
        match self.how {
            IoLock::Range => FileGuard { range: Some(self.ranges.read(bytes)), ..FileGuard::none() },
            IoLock::Shared | IoLock::Exclusive => FileGuard { _shared: Some(self.shared()), ..FileGuard::none() },
        }
    }

    /// Waits until bytes may be written.
    pub fn write(&self, bytes: Range<u64>) -> FileGuard<'_> {
        match self.how {
            IoLock::Range => FileGuard { range: Some(self.ranges.write(bytes)), ..FileGuard::none() },
            IoLock::Shared => FileGuard { _whole: Some(self.alone()), ..FileGuard::none() },
            IoLock::Exclusive => FileGuard { range: Some(self.ranges.write(0..u64::MAX)), ..FileGuard::none() },
        }
    }

    /// Waits until whole blocks may be written past the cache; `uncached` says whether memory holds none of them.
    pub fn write_direct(&self, bytes: Range<u64>, uncached: impl Fn() -> bool) -> FileGuard<'_> {
        if self.how == IoLock::Shared {
            let shared = self.shared();
            if uncached() {
                return FileGuard { _shared: Some(shared), ..FileGuard::none() };
            }
        }
        self.write(bytes)
    }

    /// Waits until nobody else reads or writes: for what changes which blocks a file has, or its size downwards.
    pub fn all(&self) -> FileGuard<'_> {
        let mut guard = FileGuard::none();
        if self.how != IoLock::Shared {
            guard.range = Some(self.ranges.write(0..u64::MAX));
        }
        if self.how != IoLock::Range {
            guard._whole = Some(self.alone());
        }
        guard
    }

    fn shared(&self) -> RwLockReadGuard<'_, ()> {
        uxfs_sync::lock_shared(&self.whole)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        uxfs_sync::lock_alone(&self.whole)
    }
}
