//! Metadata buffers: a cache of verified blocks.
//!
//! States of a buffer: *absent* (got, not read), *valid* (read and verified, or initialised by its new owner), *stale* (its
//! block was freed; the cache forgets it). Who holds [`Buffer::hold`] may change its bytes; everybody who may see the
//! owning inode or header may read them. The cache never decides to write.
//!
//! 1. A buffer that somebody refers to stays in the cache, so there is one buffer for one place.
//! 2. Bytes come in through [`Kind::verify`] and go out through it.
//! 3. Whoever writes a buffer home holds it until the write has ended, so a block is never freed and used again under a
//!    write that is still in flight.

use foldhash::HashMap;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::any::Any;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use uxfs_device::DeviceRef;
use uxfs_format::{Corruption, DiskAddr, Geometry, Kind};
use uxfs_sync::Hold;

/// Why a buffer cannot be had.
#[derive(Debug)]
pub enum BufferError {
    /// The device failed.
    Io {
        /// Where.
        at: DiskAddr,
        /// How.
        error: io::Error,
    },
    /// The block is not what it should be.
    Corrupt(Corruption),
}

/// What a log item leaves with its buffer: the engine's, this crate does not look into it.
pub type Attachment = Weak<dyn Any + Send + Sync>;

/// A metadata block, or several in a row that make one directory block.
pub struct Buffer {
    /// Where it lies; basic blocks of each piece.
    pub maps: Vec<(DiskAddr, u32)>,
    /// Held by whoever changes it or writes it home.
    pub hold: Hold,
    kind: Mutex<Kind>,
    data: RwLock<Vec<u8>>,
    valid: AtomicBool,
    loading: Mutex<()>,
    used: AtomicBool,
    attachment: Mutex<Option<Attachment>>,
}

impl Buffer {
    fn new(maps: Vec<(DiskAddr, u32)>, kind: Kind) -> Buffer {
        let bytes = maps.iter().map(|m| m.1 as usize * 512).sum();
        Buffer {
            maps,
            hold: Hold::default(),
            kind: Mutex::new(kind),
            data: RwLock::new(vec![0; bytes]),
            valid: AtomicBool::new(false),
            loading: Mutex::default(),
            used: AtomicBool::new(true),
            attachment: Mutex::default(),
        }
    }
    /// Its first address.
    pub fn daddr(&self) -> DiskAddr {
        self.maps[0].0
    }
    /// Basic blocks in all.
    pub fn bbs(&self) -> u32 {
        self.maps.iter().map(|m| m.1).sum()
    }
    /// What it is.
    pub fn kind(&self) -> Kind {
        *self.kind.lock()
    }
    /// Sets what it is: a block that changes its form keeps its place.
    pub fn set_kind(&self, k: Kind) {
        *self.kind.lock() = k;
    }
    /// Its bytes, for reading.
    pub fn data(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.data.read()
    }
    /// Its bytes, for changing by its holder.
    pub fn data_mut(&self) -> RwLockWriteGuard<'_, Vec<u8>> {
        self.data.write()
    }
    /// What the engine attached, if it still lives.
    pub fn attachment(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.attachment.lock().as_ref().and_then(Weak::upgrade)
    }
    /// Attaches; the attachment keeps the buffer alive, not the other way round.
    pub fn attach(&self, a: Attachment) {
        *self.attachment.lock() = Some(a);
    }
}

type Key = (DiskAddr, u32);
const SHARDS: usize = 16;

#[derive(Default)]
struct Shard {
    buffers: HashMap<Key, Arc<Buffer>>,
    /// Buffers that came since it was last looked through: an eighth of it, before that is done again.
    new: usize,
}

/// All buffers of a volume, at most about `budget` bytes of those that nobody refers to.
pub struct BufferCache {
    dev: DeviceRef,
    shards: Vec<Mutex<Shard>>,
    bytes: AtomicUsize,
    budget: usize,
    reads: AtomicU64,
}

impl BufferCache {
    /// A cache over `dev`.
    pub fn new(dev: DeviceRef, budget: usize) -> BufferCache {
        BufferCache {
            dev,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes: AtomicUsize::new(0),
            budget,
            reads: AtomicU64::new(0),
        }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[(key.0.0 / 8) as usize % SHARDS]
    }

    /// Gets the buffer of a place without reading it.
    pub fn get(&self, maps: &[(DiskAddr, u32)], kind: Kind) -> Arc<Buffer> {
        let key = (maps[0].0, maps.iter().map(|m| m.1).sum());
        let mut shard = self.shard(key).lock();
        if let Some(b) = shard.buffers.get(&key) {
            b.used.store(true, Ordering::Relaxed);
            return b.clone();
        }
        let b = Arc::new(Buffer::new(maps.to_vec(), kind));
        shard.buffers.insert(key, b.clone());
        shard.new += 1;
        let total = self.bytes.fetch_add(key.1 as usize * 512, Ordering::Relaxed);
        if total > self.budget && shard.new > shard.buffers.len() / 8 {
            self.evict(&mut shard);
        }
        b
    }

    /// Forgets buffers of a shard that nobody refers to and nobody asked for lately.
    fn evict(&self, shard: &mut Shard) {
        let mut freed = 0;
        shard.new = 0;
        shard.buffers.retain(|key, b| {
            let keep = Arc::strong_count(b) > 1 || b.used.swap(false, Ordering::Relaxed);
            if !keep {
                freed += key.1 as usize * 512;
            }
            keep
        });
        self.bytes.fetch_sub(freed, Ordering::Relaxed);
    }

    /// True if the buffer of a place is there and valid.
    pub fn has(&self, maps: &[(DiskAddr, u32)]) -> bool {
        let key = (maps[0].0, maps.iter().map(|m| m.1).sum());
        self.shard(key).lock().buffers.get(&key).is_some_and(|b| b.valid.load(Ordering::Acquire))
    }

    /// Reads and verifies a buffer, unless it is valid already.
    ///
    /// # Errors
    /// [`BufferError`], with the place. A buffer that is valid as another kind than asked for is corrupt.
    pub fn read(&self, maps: &[(DiskAddr, u32)], kind: Kind, g: &Geometry) -> Result<Arc<Buffer>, BufferError> {
        let b = self.get(maps, kind);
        if !b.valid.load(Ordering::Acquire) {
            let one = uxfs_sync::lock(&b.loading);
            if !b.valid.load(Ordering::Acquire) {
                self.load(&b, kind, g)?;
            }
            drop(one);
            return Ok(b);
        }
        let have = b.kind();
        if have == kind || kind == Kind::DaAny && have.is_da() {
            return Ok(b);
        }
        if have != Kind::DaAny && kind != Kind::DaAny {
            let what = "is in use as something else";
            return Err(BufferError::Corrupt(Corruption { structure: kind.name(), place: b.daddr(), what }));
        }
        // Known by a name that says little: the bytes decide.
        kind.verify(&b.data(), b.daddr(), g, false).map_err(BufferError::Corrupt)?;
        Ok(b)
    }

    fn load(&self, b: &Arc<Buffer>, kind: Kind, g: &Geometry) -> Result<(), BufferError> {
        let mut bytes = vec![0; b.bbs() as usize * 512];
        let mut done = 0;
        for (at, bbs) in &b.maps {
            let n = *bbs as usize * 512;
            let part = &mut bytes[done..done + n];
            uxfs_sync::blocking(|| self.dev.read(at.0 * 512, part)).map_err(|error| BufferError::Io { at: *at, error })?;
            done += n;
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        kind.adopt(&mut bytes, g);
        kind.verify(&bytes, b.daddr(), g, true).map_err(BufferError::Corrupt)?;
        let known = if kind == Kind::DaAny { Kind::sniff(&bytes).unwrap_or(kind) } else { kind };
        b.set_kind(known);
        *b.data.write() = bytes;
        b.valid.store(true, Ordering::Release);
        Ok(())
    }

    /// Zeroes the buffer of a block that was just allocated, whatever it held; the caller holds it. Somebody who reads what lay there before
    /// has it first.
    pub fn init(&self, b: &Buffer) {
        let _one = uxfs_sync::lock(&b.loading);
        b.data.write().fill(0);
        b.valid.store(true, Ordering::Release);
    }

    /// Forgets a buffer whose block was freed, if nobody but the cache and its log item refers to it.
    pub fn forget_unused(&self, b: &Arc<Buffer>) {
        let key = (b.daddr(), b.bbs());
        let mut shard = self.shard(key).lock();
        if shard.buffers.get(&key).is_some_and(|x| Arc::ptr_eq(x, b) && Arc::strong_count(x) <= 2) {
            shard.buffers.remove(&key);
            self.bytes.fetch_sub(key.1 as usize * 512, Ordering::Relaxed);
        }
    }

    /// Forgets everything; for after recovery changed the device underneath.
    pub fn clear(&self) {
        for s in &self.shards {
            s.lock().buffers.clear();
        }
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Bytes of all buffers in memory.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Buffers read from the device so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;
    use uxfs_device::{Device, Memory, WriteFlags};

    /// A device whose reads wait until they may go on.
    struct Gate {
        dev: Memory,
        reached: Barrier,
        go_on: Barrier,
    }

    impl Device for Gate {
        fn size_bytes(&self) -> u64 {
            self.dev.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.dev.read(offset, buf)?;
            self.reached.wait();
            self.go_on.wait();
            Ok(())
        }
        fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
            self.dev.write(offset, data, flags)
        }
        fn flush(&self) -> io::Result<()> {
            self.dev.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
            self.dev.discard(offset, len)
        }
    }

    #[test]
    fn a_read_that_is_on_its_way_does_not_undo_what_a_new_owner_writes() {
        let dev = Memory::new(64 << 20);
        uxfs_mkfs::format(&dev, &uxfs_mkfs::Options::new(64 << 20, [5; 16])).unwrap();
        let mut head = vec![0; 4096];
        dev.read(0, &mut head).unwrap();
        let (g, _) = Geometry::parse(&head).unwrap();
        let block = g.agino_agbno(g.ino_agino(g.rootino));
        let place = [(g.ag_daddr(g.ino_agno(g.rootino), block), g.cluster_blocks() * g.bb_per_block())];
        let gate = Arc::new(Gate { dev, reached: Barrier::new(2), go_on: Barrier::new(2) });
        let bufs = BufferCache::new(gate.clone(), 0);
        let b = bufs.get(&place, Kind::Inode);
        thread::scope(|s| {
            let reader = s.spawn(|| bufs.read(&place, Kind::Inode, &g).map(drop));
            gate.reached.wait();
            let owner = s.spawn(|| {
                bufs.init(&b);
                b.data_mut().fill(7);
            });
            // Who does not wait for the reader is done by then.
            thread::sleep(Duration::from_millis(50));
            gate.go_on.wait();
            owner.join().unwrap();
            reader.join().unwrap().unwrap();
        });
        assert!(b.data().iter().all(|x| *x == 7));
    }
}
