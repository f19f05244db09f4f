//! Keeps writes in memory in front of a device that stays untouched: a dirty volume opened read-only is recovered into one.

use crate::memory::pages;
use crate::{Device, DeviceRef, WriteFlags, past_end};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::io;

/// Writes kept in memory, in pages of 4 KiB, in front of `base`.
pub struct Overlay {
    base: DeviceRef,
    pages: RwLock<HashMap<u64, Box<[u8]>>>,
    /// Most bytes kept; beyond, writes fail with `StorageFull`.
    limit: usize,
}

impl Overlay {
    /// Keeps at most `limit` bytes of writes in front of `base`.
    pub fn new(base: DeviceRef, limit: usize) -> Overlay {
        Overlay { base, pages: RwLock::default(), limit }
    }

    fn load(&self, page: u64) -> io::Result<Box<[u8]>> {
        let mut p = vec![0; 4096].into_boxed_slice();
        let n = self.base.size_bytes().saturating_sub(page * 4096).min(4096) as usize;
        self.base.read(page * 4096, &mut p[..n])?;
        Ok(p)
    }
}

impl Device for Overlay {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.base.read(offset, buf)?;
        let map = self.pages.read();
        if map.is_empty() {
            return Ok(());
        }
        for (page, within, r) in pages(offset, buf.len()) {
            if let Some(p) = map.get(&page) {
                let n = r.len();
                buf[r].copy_from_slice(&p[within..within + n]);
            }
        }
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8], _: WriteFlags) -> io::Result<()> {
        if offset + data.len() as u64 > self.size_bytes() {
            return Err(past_end(offset, data.len()));
        }
        let mut map = self.pages.write();
        for (page, within, r) in pages(offset, data.len()) {
            if !map.contains_key(&page) {
                if (map.len() + 1) * 4096 > self.limit {
                    return Err(io::Error::new(io::ErrorKind::StorageFull, "the overlay in memory is full"));
                }
                map.insert(page, self.load(page)?);
            }
            if let Some(p) = map.get_mut(&page) {
                p[within..within + r.len()].copy_from_slice(&data[r]);
            }
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}
