//! A part of a device: a partition, or everything from a byte offset.

use crate::{Class, Device, DeviceRef, WriteFlags, WriteRequest, past_end};
use std::io;

/// `len` bytes of `base` from `start`.
pub struct Slice {
    base: DeviceRef,
    start: u64,
    len: u64,
}

impl Slice {
    /// A part of `base`.
    ///
    /// # Errors
    /// If it does not lie within `base`.
    pub fn new(base: DeviceRef, start: u64, len: u64) -> io::Result<Slice> {
        match start.checked_add(len) {
            Some(end) if end <= base.size_bytes() => Ok(Slice { base, start, len }),
            _ => Err(past_end(start, len.min(usize::MAX as u64) as usize)),
        }
    }
    fn at(&self, offset: u64, len: usize) -> io::Result<u64> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) { Err(past_end(offset, len)) } else { Ok(self.start + offset) }
    }
}

impl Device for Slice {
    fn size_bytes(&self) -> u64 {
        self.len
    }
    fn sector_bytes(&self) -> u32 {
        // A slice that begins within a sector of the medium has only those of 512 bytes in common with it.
        let s = self.base.sector_bytes();
        if self.start.is_multiple_of(u64::from(s)) { s } else { 512 }
    }
    fn is_read_only(&self) -> bool {
        self.base.is_read_only()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.base.read(self.at(offset, buf.len())?, buf)
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
        self.base.write(self.at(offset, data.len())?, data, flags)
    }
    fn write_many(&self, requests: &[WriteRequest<'_>], class: Class) -> io::Result<()> {
        let moved: io::Result<Vec<_>> =
            requests.iter().map(|r| Ok(WriteRequest { offset: self.at(r.offset, r.data.len())?, data: r.data })).collect();
        self.base.write_many(&moved?, class)
    }
    fn flush(&self) -> io::Result<()> {
        self.base.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.base.discard(self.at(offset, len as usize)?, len)
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.base.reserve(self.at(offset, len as usize)?, len)
    }
}
