//! A device whose first bytes are kept back until what follows them is whole.

use crate::{Class, Device, DeviceRef, WriteFlags, WriteRequest};
use parking_lot::Mutex;
use std::io;

/// Passes everything on but the first bytes, which stay in memory: until they are released, nobody takes the device for a
/// volume.
pub struct Withheld {
    base: DeviceRef,
    head: Mutex<Vec<u8>>,
}

impl Withheld {
    /// Keeps the first `len` bytes of `base` back. What they were is wiped from the device.
    ///
    /// # Errors
    /// The device's.
    pub fn new(base: DeviceRef, len: usize) -> io::Result<Withheld> {
        base.write(0, &vec![0; len], WriteFlags { fua: true, ..WriteFlags::default() })?;
        Ok(Withheld { base, head: Mutex::new(vec![0; len]) })
    }

    /// Writes the first bytes, durably, after everything else is.
    ///
    /// # Errors
    /// The device's.
    pub fn release(&self) -> io::Result<()> {
        self.base.flush()?;
        self.base.write(0, &self.head.lock(), WriteFlags { fua: true, ..WriteFlags::default() })?;
        self.base.flush()
    }

    /// The part of `offset..offset + len` that is kept back.
    fn kept(&self, offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let kept = self.head.lock().len();
        let from = usize::try_from(offset).ok().filter(|f| *f < kept)?;
        Some(from..(from + len).min(kept))
    }

    /// Keeps a write's part; says how many bytes that was.
    fn keep(&self, offset: u64, data: &[u8]) -> usize {
        let Some(r) = self.kept(offset, data.len()) else { return 0 };
        let n = r.len();
        self.head.lock()[r].copy_from_slice(&data[..n]);
        n
    }
}

impl Device for Withheld {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }
    fn is_read_only(&self) -> bool {
        self.base.is_read_only()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.base.read(offset, buf)?;
        if let Some(r) = self.kept(offset, buf.len()) {
            let n = r.len();
            buf[..n].copy_from_slice(&self.head.lock()[r]);
        }
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
        let n = self.keep(offset, data);
        if n == data.len() { Ok(()) } else { self.base.write(offset + n as u64, &data[n..], flags) }
    }
    fn write_many(&self, requests: &[WriteRequest<'_>], class: Class) -> io::Result<()> {
        let left: Vec<_> = requests
            .iter()
            .filter_map(|r| {
                let n = self.keep(r.offset, r.data);
                (n < r.data.len()).then(|| WriteRequest { offset: r.offset + n as u64, data: &r.data[n..] })
            })
            .collect();
        self.base.write_many(&left, class)
    }
    fn flush(&self) -> io::Result<()> {
        self.base.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.base.discard(offset, len)
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.base.reserve(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use std::sync::Arc;

    #[test]
    fn the_first_bytes_come_last() {
        let base = Arc::new(Memory::new(1 << 20));
        base.write(0, &[7; 4096], WriteFlags::default()).expect("written");
        let w = Withheld::new(base.clone(), 512).expect("wiped");
        w.write(256, &[1; 1024], WriteFlags::default()).expect("written");
        let mut b = [9; 1536];
        w.read(0, &mut b).expect("read");
        assert!(b[..256] == [0; 256] && b[256..1280] == [1; 1024] && b[1280..] == [7; 256]);
        base.read(0, &mut b).expect("read");
        assert!(b[..512] == [0; 512] && b[512..1280] == [1; 768]);
        w.release().expect("released");
        base.read(0, &mut b).expect("read");
        assert!(b[..256] == [0; 256] && b[256..1280] == [1; 1024]);
    }
}
