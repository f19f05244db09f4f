//! The block contract and its implementations.
//!
//! A write is durable only after a flush that *starts* after it completed, or with [`WriteFlags::fua`]. The first flush
//! error is final for whoever trusts the device: the kernel reports it once and then forgets the data.

mod aligned;
mod faulty;
mod file;
mod lanes;
mod log_writes;
mod memory;
mod overlay;
mod partition;
mod recorder;
mod ring;
mod slice;
pub mod timed;
mod withheld;

pub use faulty::Faulty;
pub use file::{FileDevice, Host, OpenMode};
pub use memory::{Memory, save};
pub use overlay::Overlay;
pub use partition::{Partition, find_partition};
pub use recorder::{Event, Recorder, Trace};
pub use slice::Slice;
pub use withheld::Withheld;

use std::io;
use std::sync::Arc;

/// How a write is ordered against the device's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Everything that completed before is made durable first.
    pub preflush: bool,
    /// This write is durable when it completes.
    pub fua: bool,
}

/// One write of a batch.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// Byte offset on the device.
    pub offset: u64,
    /// What to write; whole sectors.
    pub data: &'a [u8],
}

/// Who waits for an I/O. What is more urgent stands first, and leaves only a little room in flight to the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Log records: everybody may be waiting for them. Single writes are of this class.
    Journal,
    /// A caller waits for what it reads. Reads are of this class.
    Read,
    /// A caller waits for its own data.
    Fsync,
    /// Nobody waits: write-back, metadata going home.
    Background,
}

/// A device of sectors. All calls wait for completion; several threads may call at once.
pub trait Device: Send + Sync {
    /// Bytes of the device.
    fn size_bytes(&self) -> u64;

    /// Bytes that the medium writes at once. Smaller or unaligned writes are right, but rewrite their neighbours' bytes.
    fn sector_bytes(&self) -> u32 {
        512
    }

    /// True if writes are refused.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The host's error; `UnexpectedEof` past the end.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// The host's error; how much was written is then unknown.
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()>;

    /// Writes many pieces that do not overlap, in any order, and waits for all.
    ///
    /// # Errors
    /// The first error; the other pieces have still been waited for.
    fn write_many(&self, requests: &[WriteRequest<'_>], _: Class) -> io::Result<()> {
        let mut first = Ok(());
        for r in requests {
            let res = self.write(r.offset, r.data, WriteFlags::default());
            if first.is_ok() {
                first = res;
            }
        }
        first
    }

    /// Makes all that completed before durable.
    ///
    /// # Errors
    /// The host's error, after which nothing is known to be durable.
    fn flush(&self) -> io::Result<()>;

    /// Gives back the space of a range; reads may return anything there.
    ///
    /// # Errors
    /// The host's error.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes sure that the host has room for a range, so that writing it later cannot fail for want of space.
    ///
    /// # Errors
    /// The host's error, `StorageFull` above all.
    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A device shared by the rooms of an engine.
pub type DeviceRef = Arc<dyn Device>;

impl<D: Device + ?Sized> Device for Arc<D> {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        (**self).sector_bytes()
    }
    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
        (**self).write(offset, data, flags)
    }
    fn write_many(&self, requests: &[WriteRequest<'_>], class: Class) -> io::Result<()> {
        (**self).write_many(requests, class)
    }
    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).discard(offset, len)
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).reserve(offset, len)
    }
}

/// The error of an access past the end.
pub(crate) fn past_end(offset: u64, len: usize) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("{len} bytes at {offset} lie past the end of the device"))
}

/// The error of a write to a read-only device.
pub(crate) fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the device is open read-only")
}
