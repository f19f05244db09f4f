//! A device that begins to fail, or to stall, on command.

use crate::{Device, DeviceRef, WriteFlags};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// Passes calls on until its allowance is spent, then fails every write and flush; reads and writes of bytes that are stalled wait,
/// writes of those that are bad fail.
pub struct Faulty {
    base: DeviceRef,
    allowance: AtomicI64,
    stalled: Mutex<Range<u64>>,
    bad: Mutex<Range<u64>>,
    let_go: Condvar,
    waiting: AtomicUsize,
}

impl Faulty {
    /// Lets `allowance` writes and flushes pass; see [`Faulty::allow`].
    pub fn new(base: DeviceRef, allowance: i64) -> Faulty {
        let (stalled, bad, let_go, waiting) = Default::default();
        Faulty { base, allowance: AtomicI64::new(allowance), stalled, bad, let_go, waiting }
    }
    /// Sets how many more writes and flushes pass.
    pub fn allow(&self, n: i64) {
        self.allowance.store(n, Ordering::SeqCst);
    }
    /// From now on reads and writes of these bytes wait, until others are stalled instead, or none.
    pub fn stall(&self, bytes: Range<u64>) {
        *self.stalled.lock() = bytes;
        self.let_go.notify_all();
    }
    /// From now on writes of these bytes fail, until others do instead, or none.
    pub fn spoil(&self, bytes: Range<u64>) {
        *self.bad.lock() = bytes;
    }
    /// Reads and writes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
    fn pass(&self, offset: u64, len: usize) {
        let mut stalled = self.stalled.lock();
        while touches(&stalled, offset, len) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.let_go.wait(&mut stalled);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
    fn spend(&self) -> io::Result<()> {
        if self.allowance.fetch_sub(1, Ordering::SeqCst) > 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(5)) }
    }
}

/// True if `len` bytes from `offset` on are some of these.
fn touches(bytes: &Range<u64>, offset: u64, len: usize) -> bool {
    bytes.start < offset + len as u64 && offset < bytes.end
}

impl Device for Faulty {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.pass(offset, buf.len());
        self.base.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
        self.pass(offset, data.len());
        if touches(&self.bad.lock(), offset, data.len()) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.spend()?;
        self.base.write(offset, data, flags)
    }
    fn flush(&self) -> io::Result<()> {
        self.spend()?;
        self.base.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.base.discard(offset, len)
    }
}
