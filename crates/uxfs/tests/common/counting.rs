//! A device in memory that counts what is read, is slow to write, and can be stalled; and volumes on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs::{Fs, Make, Options};
use uxfs_device::{Device, DeviceRef, Faulty, Memory, WriteFlags};

pub const MIB: u64 = 1 << 20;
pub const FILE: Make = Make { mode: 0o100_644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 };

/// Counts what is read of a device, which takes a millisecond to write a MiB.
pub struct Counting {
    pub dev: Arc<Memory>,
    /// The same, where it does not answer when it is told so.
    pub faulty: Faulty,
    pub reads: AtomicU64,
    pub bytes: AtomicU64,
}

impl Device for Counting {
    fn size_bytes(&self) -> u64 {
        self.dev.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.faulty.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> std::io::Result<()> {
        std::thread::sleep(std::time::Duration::from_micros(data.len() as u64 / 1024));
        self.faulty.write(offset, data, flags)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.dev.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.dev.discard(offset, len)
    }
}

pub fn volume(size: u64, o: Options) -> (Fs, Arc<Counting>) {
    let (reads, bytes) = Default::default();
    let dev = Arc::new(Memory::new(size));
    let dev = Arc::new(Counting { faulty: Faulty::new(dev.clone(), i64::MAX), dev, reads, bytes });
    uxfs_mkfs::format(&*dev, &uxfs_mkfs::Options::new(size, [5; 16])).unwrap();
    let r: DeviceRef = dev.clone();
    (Fs::open(r, o).unwrap(), dev)
}

pub fn file(fs: &Fs, name: &str) -> u64 {
    fs.create(fs.root(), name.as_bytes(), FILE).unwrap().ino
}

pub fn stat(fs: &Fs, name: &str) -> u64 {
    fs.stats().iter().find(|s| s.0 == name).unwrap().1
}

/// Bytes that tell where they belong.
pub fn pattern(ino: u64, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|i| (i ^ (i >> 8) ^ (i >> 16) ^ ino.wrapping_mul(131)) as u8).collect()
}
