//! A device that begins to fail on command.

use crate::{Device, DeviceRef, WriteFlags};
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};

/// Passes calls on until its allowance is spent, then fails every write and flush.
pub struct Faulty {
    base: DeviceRef,
    allowance: AtomicI64,
}

impl Faulty {
    /// Lets `allowance` writes and flushes pass; see [`Faulty::allow`].
    pub fn new(base: DeviceRef, allowance: i64) -> Faulty {
        Faulty { base, allowance: AtomicI64::new(allowance) }
    }
    /// Sets how many more writes and flushes pass.
    pub fn allow(&self, n: i64) {
        self.allowance.store(n, Ordering::SeqCst);
    }
    fn spend(&self) -> io::Result<()> {
        if self.allowance.fetch_sub(1, Ordering::SeqCst) > 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(5)) }
    }
}

impl Device for Faulty {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.base.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
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
