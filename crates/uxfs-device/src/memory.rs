//! A device in memory, sparse in units of 4 KiB.

use crate::{Device, WriteFlags, past_end};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// A sparse device in memory; what was never written reads as zeros.
#[derive(Debug)]
pub struct Memory {
    size: u64,
    sector: u32,
    /// Shared with forks until one of them writes.
    pages: RwLock<HashMap<u64, Arc<[u8]>>>,
}

/// Cuts a byte range into parts that lie within one page: (page, offset within, range within the buffer).
pub(crate) fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let n = (PAGE as usize - within).min(len - done);
        let part = (at / PAGE, within, done..done + n);
        done += n;
        Some(part)
    })
}

/// True if there are only zeros.
fn is_zero(b: &[u8]) -> bool {
    b.chunks(64).all(|c| c.iter().fold(0, |all, b| all | b) == 0)
}

/// Hands on each page of a device that is not zero, with its offset.
fn nonzero_pages(dev: &dyn Device, mut take: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut buf = vec![0; 1 << 20];
    for at in (0..dev.size_bytes()).step_by(buf.len()) {
        let n = (dev.size_bytes() - at).min(buf.len() as u64) as usize;
        dev.read(at, &mut buf[..n])?;
        for (page, from) in buf[..n].chunks(PAGE as usize).zip((at..).step_by(PAGE as usize)).filter(|(p, _)| !is_zero(p)) {
            take(from, page)?;
        }
    }
    Ok(())
}

/// Writes what a device holds into a new file, with holes for what is zero.
///
/// # Errors
/// The device's, or the file's.
pub fn save(dev: &dyn Device, to: &Path) -> io::Result<()> {
    let f = File::create(to)?;
    f.set_len(dev.size_bytes())?;
    nonzero_pages(dev, |at, page| f.write_all_at(page, at))
}

impl Memory {
    /// A device of `size` bytes of zeros.
    pub fn new(size: u64) -> Memory {
        Memory::with_sectors(size, 512)
    }

    /// A device of `size` bytes of zeros that writes `sector` bytes at once.
    pub fn with_sectors(size: u64, sector: u32) -> Memory {
        Memory { size, sector, pages: RwLock::default() }
    }

    /// Copies what `base` holds into pages of its own; zero pages take no room.
    ///
    /// # Errors
    /// The base's read error.
    pub fn copy_of(base: &dyn Device) -> io::Result<Memory> {
        let m = Memory::with_sectors(base.size_bytes(), base.sector_bytes());
        nonzero_pages(base, |at, page| m.put(at, page))?;
        Ok(m)
    }

    /// Writes without flags.
    ///
    /// # Errors
    /// Past the end.
    pub fn put(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > self.size) {
            return Err(past_end(offset, data.len()));
        }
        let mut map = self.pages.write();
        for (page, within, r) in pages(offset, data.len()) {
            let p = map.entry(page).or_insert_with(|| Arc::from([0u8; PAGE as usize]));
            Arc::make_mut(p)[within..within + r.len()].copy_from_slice(&data[r]);
        }
        Ok(())
    }

    /// A second device with the same content.
    pub fn fork(&self) -> Memory {
        Memory { size: self.size, sector: self.sector, pages: RwLock::new(self.pages.read().clone()) }
    }

    /// A number that differs, in all likelihood, between different contents.
    pub fn digest(&self) -> u64 {
        let mix = |h: u64, w: u64| (h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let page = |(n, p): (&u64, &Arc<[u8]>)| {
            let words = p.as_chunks().0.iter().map(|c| u64::from_le_bytes(*c));
            if is_zero(p) { 0 } else { words.fold(mix(1, *n), mix) }
        };
        self.pages.read().iter().map(page).fold(self.size, u64::wrapping_add)
    }
}

impl Device for Memory {
    fn size_bytes(&self) -> u64 {
        self.size
    }
    fn sector_bytes(&self) -> u32 {
        self.sector
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size) {
            return Err(past_end(offset, buf.len()));
        }
        let map = self.pages.read();
        for (page, within, r) in pages(offset, buf.len()) {
            let n = r.len();
            match map.get(&page) {
                Some(p) => buf[r].copy_from_slice(&p[within..within + n]),
                None => buf[r].fill(0),
            }
        }
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8], _: WriteFlags) -> io::Result<()> {
        self.put(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut map = self.pages.write();
        for page in offset.div_ceil(PAGE)..(offset + len) / PAGE {
            map.remove(&page);
        }
        Ok(())
    }
}
