//! Image files and block devices of the host.

use crate::ring::Ring;
use crate::{Device, WriteFlags, WriteRequest, past_end, read_only};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading, beside other readers.
    ReadOnly,
    /// For writing, alone.
    ReadWrite,
}

/// A file or block device, locked as long as it is open.
pub struct FileDevice {
    file: File,
    size: u64,
    sector: u32,
    block_device: bool,
    read_only: bool,
    ring: Option<Ring>,
}

/// Threads that write one batch where there is no io_uring.
const FALLBACK_THREADS: usize = 4;

impl FileDevice {
    /// Opens and locks `path`.
    ///
    /// # Errors
    /// `WouldBlock` if another process has it open in a way that excludes this, or the kernel uses it; the host's error.
    pub fn open(path: &Path, mode: OpenMode) -> io::Result<FileDevice> {
        Self::open_with(path, mode, true)
    }

    /// As [`FileDevice::open`]; `uring` false keeps to threads even where io_uring is to be had.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_with(path: &Path, mode: OpenMode, uring: bool) -> io::Result<FileDevice> {
        let rw = mode == OpenMode::ReadWrite;
        let is_block = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode) == FileType::BlockDevice;
        let mut flags = OFlags::CLOEXEC | if rw { OFlags::RDWR } else { OFlags::RDONLY };
        if is_block && rw {
            flags |= OFlags::EXCL;
        }
        let file = File::from(
            rustix::fs::open(path, flags, rustix::fs::Mode::empty())
                .map_err(|e| if e == rustix::io::Errno::BUSY { in_use(path, "the kernel uses this device") } else { e.into() })?,
        );
        if !file.metadata()?.is_file() && !is_block {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is neither a file nor a block device", path.display())));
        }
        let op = if rw { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        rustix::fs::flock(&file, op).map_err(|_| in_use(path, "another process has it open"))?;
        if rw && let Some(l) = loop_device_of(path) {
            return Err(in_use(path, &format!("the kernel has it open as {l}")));
        }
        let size = if is_block { io::Seek::seek(&mut (&file), io::SeekFrom::End(0))? } else { file.metadata()?.len() };
        let ring = if uring && rw { Ring::new() } else { None };
        Ok(FileDevice { file, size, sector: 512, block_device: is_block, read_only: !rw, ring })
    }

    /// Creates a sparse image of `size` bytes, or takes the file that is there and makes it that long.
    ///
    /// # Errors
    /// The host's error; as [`FileDevice::open`].
    pub fn create(path: &Path, size: Option<u64>) -> io::Result<FileDevice> {
        if !path.exists() {
            File::create_new(path)?;
        }
        let mut d = Self::open(path, OpenMode::ReadWrite)?;
        if let Some(size) = size
            && !d.block_device
        {
            d.file.set_len(size)?;
            d.size = size;
        }
        Ok(d)
    }

    /// True if batches go through io_uring.
    pub fn uses_uring(&self) -> bool {
        self.ring.is_some()
    }
}

fn in_use(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, format!("{} is in use: {why}", path.display()))
}

/// The loop device that has `path` as its file, if any.
fn loop_device_of(path: &Path) -> Option<String> {
    let want = path.canonicalize().ok()?;
    std::fs::read_dir("/sys/block").ok()?.flatten().find_map(|e| {
        let name = e.file_name().into_string().ok()?;
        let backing = std::fs::read_to_string(e.path().join("loop/backing_file")).ok()?;
        (name.starts_with("loop") && Path::new(backing.trim_end()) == want).then(|| format!("/dev/{name}"))
    })
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }
    fn sector_bytes(&self) -> u32 {
        self.sector
    }
    fn is_read_only(&self) -> bool {
        self.read_only
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.saturating_add(buf.len() as u64) > self.size {
            return Err(past_end(offset, buf.len()));
        }
        self.file.read_exact_at(buf, offset)
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
        if self.read_only {
            return Err(read_only());
        }
        if offset.saturating_add(data.len() as u64) > self.size {
            return Err(past_end(offset, data.len()));
        }
        if flags.preflush {
            self.flush()?;
        }
        self.file.write_all_at(data, offset)?;
        if flags.fua {
            self.flush()?;
        }
        Ok(())
    }
    fn write_many(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        if requests.len() == 1 {
            return self.write(requests[0].offset, requests[0].data, WriteFlags::default());
        }
        if let Some(r) = requests.iter().find(|r| self.read_only || r.offset.saturating_add(r.data.len() as u64) > self.size) {
            return Err(if self.read_only { read_only() } else { past_end(r.offset, r.data.len()) });
        }
        if let Some(ring) = &self.ring {
            return ring.write_many(self.file.as_fd(), requests, &|at, b| self.file.write_all_at(b, at));
        }
        let each = requests.len().div_ceil(FALLBACK_THREADS).max(1);
        std::thread::scope(|s| {
            let one = |part: &[WriteRequest<'_>]| part.iter().try_for_each(|r| self.file.write_all_at(r.data, r.offset));
            let jobs: Vec<_> = requests.chunks(each).map(|part| s.spawn(move || one(part))).collect();
            jobs.into_iter()
                .map(|j| j.join().unwrap_or_else(|_| Err(io::Error::other("a writer thread panicked"))))
                .fold(Ok(()), io::Result::and)
        })
    }
    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.block_device {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            r => Ok(r?),
        }
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.block_device {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, how, offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            r => Ok(r?),
        }
    }
}
