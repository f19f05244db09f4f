//! Keeps writes in front of a device that stays untouched: a dirty volume opened read-only is recovered into one.

use crate::memory::pages;
use crate::{Device, DeviceRef, WriteFlags, past_end};
use parking_lot::RwLock;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a page.
const PAGE: usize = 4096;

/// Writes kept in pages of 4 KiB, in front of `base`: in memory, and what is beyond its limit in a file without a name.
pub struct Overlay {
    base: DeviceRef,
    kept: RwLock<Kept>,
    /// Most bytes kept in memory.
    limit: usize,
}

#[derive(Default)]
struct Kept {
    pages: HashMap<u64, Page>,
    in_memory: usize,
    spill: Option<Spill>,
}

enum Page {
    Memory(Box<[u8]>),
    /// The page's place in the file, in pages.
    Spilled(u64),
}

struct Spill {
    file: File,
    pages: u64,
}

impl Overlay {
    /// Keeps at most `limit` bytes of writes in memory.
    pub fn new(base: DeviceRef, limit: usize) -> Overlay {
        Overlay { base, kept: RwLock::default(), limit }
    }

    fn load(&self, page: u64) -> io::Result<Box<[u8]>> {
        let mut p = vec![0; PAGE].into_boxed_slice();
        let n = self.base.size_bytes().saturating_sub(page * PAGE as u64).min(PAGE as u64) as usize;
        self.base.read(page * PAGE as u64, &mut p[..n])?;
        Ok(p)
    }
}

impl Kept {
    /// Keeps a new page, in the file if memory is full.
    fn add(&mut self, page: u64, bytes: Box<[u8]>, limit: usize) -> io::Result<()> {
        let kept = if (self.in_memory + 1) * PAGE <= limit {
            self.in_memory += 1;
            Page::Memory(bytes)
        } else {
            let spill = match &mut self.spill {
                Some(s) => s,
                none => none.insert(Spill { file: unnamed_file()?, pages: 0 }),
            };
            spill.file.write_all_at(&bytes, spill.pages * PAGE as u64)?;
            spill.pages += 1;
            Page::Spilled(spill.pages - 1)
        };
        self.pages.insert(page, kept);
        Ok(())
    }

    fn file(&self) -> io::Result<&File> {
        self.spill.as_ref().map(|s| &s.file).ok_or_else(|| io::Error::other("a page of the overlay has no file"))
    }
}

/// A file in the folder for temporary files that vanishes with its descriptor.
fn unnamed_file() -> io::Result<File> {
    let dir = std::env::temp_dir();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(&dir, flags, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("the overlay needs a temporary file in {}: {e}", dir.display())))
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
        let kept = self.kept.read();
        if kept.pages.is_empty() {
            return Ok(());
        }
        for (page, within, r) in pages(offset, buf.len()) {
            let n = r.len();
            match kept.pages.get(&page) {
                Some(Page::Memory(p)) => buf[r].copy_from_slice(&p[within..within + n]),
                Some(Page::Spilled(at)) => kept.file()?.read_exact_at(&mut buf[r], at * PAGE as u64 + within as u64)?,
                None => {}
            }
        }
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8], _: WriteFlags) -> io::Result<()> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > self.size_bytes()) {
            return Err(past_end(offset, data.len()));
        }
        let mut kept = self.kept.write();
        for (page, within, r) in pages(offset, data.len()) {
            match kept.pages.get_mut(&page) {
                Some(Page::Memory(p)) => p[within..within + r.len()].copy_from_slice(&data[r]),
                Some(Page::Spilled(at)) => {
                    let at = *at * PAGE as u64 + within as u64;
                    kept.file()?.write_all_at(&data[r], at)?;
                }
                None => {
                    let mut p = self.load(page)?;
                    p[within..within + r.len()].copy_from_slice(&data[r]);
                    kept.add(page, p, self.limit)?;
                }
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
