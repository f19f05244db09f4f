//! Image files and block devices of the host.

use crate::aligned::{self, Pool};
use crate::lanes::Lanes;
use crate::ring::{DEPTH, Ring};
use crate::{Class, Device, WriteFlags, WriteRequest, past_end, read_only};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// How a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading, beside other readers.
    ReadOnly,
    /// For writing, alone.
    ReadWrite,
}

/// What of the host is used, where it is to be had.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Batches go through io_uring; else, and where the host refuses it, through threads.
    pub uring: bool,
    /// The host's page cache is passed by (`O_DIRECT`): a flush then never waits for dirty data of others. For servers;
    /// whoever reads little, once and in order is better off with the host's read-ahead.
    pub direct: bool,
}

impl Default for Host {
    fn default() -> Self {
        Host { uring: true, direct: false }
    }
}

/// A file or block device, locked as long as it is open.
pub struct FileDevice {
    file: File,
    size: u64,
    /// What the host writes at once.
    sector: u32,
    block_device: bool,
    read_only: bool,
    /// Opened with `O_DIRECT`.
    direct: bool,
    /// One for the background, one for what somebody waits for.
    rings: Option<[Ring; 2]>,
    lanes: Lanes,
    pool: Pool,
    /// Held while a write that covers sectors of the host only in part reads, changes and writes them.
    edges: Mutex<()>,
    /// Held while the host copies a write of the background into its cache.
    copying: Mutex<()>,
}

/// Threads that write one batch where there is no io_uring.
const FALLBACK_THREADS: usize = 4;
/// Pieces that are handed to the host at once, at most; it takes 1024.
const MOST_SLICES: usize = 256;
/// Buffers that one batch of direct writes takes.
const BATCH_BUFFERS: usize = 8;

impl FileDevice {
    /// Opens and locks `path`, through the host's page cache.
    ///
    /// # Errors
    /// `WouldBlock` if another process has it open in a way that excludes this, or the kernel uses it; the host's error.
    pub fn open(path: &Path, mode: OpenMode) -> io::Result<FileDevice> {
        Self::open_with(path, mode, Host::default())
    }

    /// As [`FileDevice::open`]; `host` says what of the host is used.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_with(path: &Path, mode: OpenMode, host: Host) -> io::Result<FileDevice> {
        let rw = mode == OpenMode::ReadWrite;
        let is_block = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode) == FileType::BlockDevice;
        let mut flags = OFlags::CLOEXEC | if rw { OFlags::RDWR } else { OFlags::RDONLY };
        if is_block && rw {
            flags |= OFlags::EXCL;
        }
        let open = |flags| match rustix::fs::open(path, flags, rustix::fs::Mode::empty()) {
            Err(Errno::BUSY) => Err(in_use(path, "the kernel uses this device")),
            r => Ok(File::from(r?)),
        };
        let mut file = open(flags)?;
        if !file.metadata()?.is_file() && !is_block {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is neither a file nor a block device", path.display())));
        }
        let size = if is_block { io::Seek::seek(&mut (&file), io::SeekFrom::End(0))? } else { file.metadata()?.len() };
        let (sector, can_direct) = alignment(&file)?;
        let mut direct = host.direct && can_direct && size.is_multiple_of(u64::from(sector));
        if direct {
            // A device that is open with O_EXCL cannot be opened so again: the first descriptor makes way.
            drop(file);
            (file, direct) = match open(flags | OFlags::DIRECT) {
                Ok(f) => (f, true),
                Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => (open(flags)?, false),
                Err(e) => return Err(e),
            };
        }
        let op = if rw { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        lock(&file, op).map_err(|_| in_use(path, "another process has it open"))?;
        if rw && let Some(l) = loop_device_of(path) {
            return Err(in_use(path, &format!("the kernel has it open as {l}")));
        }
        let rings = if host.uring && rw { Ring::new().zip(Ring::new()).map(<[Ring; 2]>::from) } else { None };
        Ok(FileDevice {
            file,
            size,
            sector,
            block_device: is_block,
            read_only: !rw,
            direct,
            rings,
            lanes: Lanes::default(),
            pool: Pool::default(),
            edges: Mutex::default(),
            copying: Mutex::default(),
        })
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
        self.rings.is_some()
    }

    /// True if the host's page cache is passed by.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Where the host cannot, nothing is done.
    fn fallocate(&self, how: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, how, offset, len) {
            Err(Errno::OPNOTSUPP) => Ok(()),
            r => Ok(r?),
        }
    }

    fn check_write(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            _ if self.read_only => Err(read_only()),
            Some(end) if end <= self.size => Ok(()),
            _ => Err(past_end(offset, len)),
        }
    }

    /// True if these bytes can go to the host as they are; else sectors of it are changed in part.
    fn is_whole(&self, offset: u64, len: usize) -> bool {
        !self.direct || (offset | len as u64).is_multiple_of(u64::from(self.sector))
    }

    /// The whole sectors that `len` bytes at `offset` touch, a buffer's worth at a time.
    fn spans(&self, offset: u64, len: usize) -> impl Iterator<Item = Span> {
        let sector = self.sector as usize;
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let skip = (at % sector as u64) as usize;
            let n = (len - done).min(aligned::BUFFER - skip);
            let span = Span { start: at - skip as u64, whole: (skip + n).next_multiple_of(sector), skip, part: done..done + n };
            done += n;
            (n > 0).then_some(span)
        })
    }

    /// Reads as it is what the host takes so, and else through an aligned buffer, which takes whole sectors.
    fn read_direct(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.is_whole(offset, buf.len()) && aligned::is(buf) {
            return self.file.read_exact_at(buf, offset);
        }
        let mut aligned = self.pool.take();
        for s in self.spans(offset, buf.len()) {
            self.file.read_exact_at(&mut aligned.bytes_mut()[..s.whole], s.start)?;
            let n = s.part.len();
            buf[s.part].copy_from_slice(&aligned.bytes()[s.skip..s.skip + n]);
        }
        Ok(())
    }

    /// Writes what covers sectors of the host only in part: the rest of them is written as it is.
    fn write_in_part(&self, offset: u64, data: &[u8], flags: ReadWriteFlags) -> io::Result<()> {
        let _alone = self.edges.lock();
        let mut aligned = self.pool.take();
        for s in self.spans(offset, data.len()) {
            self.file.read_exact_at(&mut aligned.bytes_mut()[..s.whole], s.start)?;
            let n = s.part.len();
            aligned.bytes_mut()[s.skip..s.skip + n].copy_from_slice(&data[s.part]);
            self.write_all(s.start, &aligned.bytes()[..s.whole], flags)?;
        }
        Ok(())
    }

    /// Writes what the host takes as it is.
    fn write_all(&self, offset: u64, data: &[u8], flags: ReadWriteFlags) -> io::Result<()> {
        self.write_slices(offset, &mut [io::IoSlice::new(data)], flags)
    }

    /// The same of bytes in several places, which go behind each other.
    fn write_slices(&self, mut offset: u64, mut data: &mut [io::IoSlice<'_>], flags: ReadWriteFlags) -> io::Result<()> {
        // Empty ones go.
        io::IoSlice::advance_slices(&mut data, 0);
        while !data.is_empty() {
            match rustix::io::pwritev2(&self.file, data, offset, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    offset += n as u64;
                    io::IoSlice::advance_slices(&mut data, n);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Writes one piece, aligned or not.
    fn write_one(&self, offset: u64, data: &[u8], flags: ReadWriteFlags) -> io::Result<()> {
        if !self.direct {
            return self.write_all(offset, data, flags);
        }
        if !self.is_whole(offset, data.len()) {
            return self.write_in_part(offset, data, flags);
        }
        if aligned::is(data) {
            return self.write_all(offset, data, flags);
        }
        let mut aligned = self.pool.take();
        for r in cut(&WriteRequest { offset, data }) {
            aligned.bytes_mut()[..r.data.len()].copy_from_slice(r.data);
            self.write_all(r.offset, &aligned.bytes()[..r.data.len()], flags)?;
        }
        Ok(())
    }

    /// Writes into the host's cache, where it copies them now, one after the other for each file, however many threads ask. Those that
    /// nobody waits for sleep meanwhile: in the host they would spin.
    fn write_cached(&self, requests: &[&WriteRequest<'_>], class: Class) -> io::Result<()> {
        let pieces: Vec<_> = requests.iter().flat_map(|r| cut(r)).collect();
        rows(&pieces).try_for_each(|row| {
            let _permit = self.lanes.enter(class, 1);
            let _turn = (class == Class::Background).then(|| self.copying.lock());
            self.write_row(row, 0)
        })
    }

    /// Writes what of a row lies behind its first `done` bytes.
    fn write_row(&self, row: &[WriteRequest<'_>], done: usize) -> io::Result<()> {
        let mut data: Vec<_> = row.iter().map(|r| io::IoSlice::new(r.data)).collect();
        let mut left = data.as_mut_slice();
        io::IoSlice::advance_slices(&mut left, done);
        row.first().map_or(Ok(()), |first| self.write_slices(first.offset + done as u64, left, ReadWriteFlags::empty()))
    }

    /// Writes pieces that the host takes as they are, and waits for all.
    fn write_batch(&self, pieces: &[WriteRequest<'_>], class: Class) -> io::Result<()> {
        let rows: Vec<_> = rows(pieces).collect();
        if let [one] = rows[..] {
            return self.write_row(one, 0);
        }
        if let Some(rings) = &self.rings {
            let ring = &rings[usize::from(class != Class::Background)];
            return ring.write_many(self.file.as_fd(), &rows, &|row, done| self.write_row(row, done));
        }
        let each = rows.len().div_ceil(FALLBACK_THREADS).max(1);
        std::thread::scope(|s| {
            let some = |part: &[&[WriteRequest<'_>]]| part.iter().try_for_each(|row| self.write_row(row, 0));
            let jobs: Vec<_> = rows.chunks(each).map(|part| s.spawn(move || some(part))).collect();
            jobs.into_iter()
                .map(|j| j.join().unwrap_or_else(|_| Err(io::Error::other("a writer thread panicked"))))
                .fold(Ok(()), io::Result::and)
        })
    }

    /// As [`FileDevice::write_batch`], from aligned copies where they are not aligned. Returns how many of the pieces, at least one,
    /// there was room for.
    fn write_copies<'a>(&self, pieces: &[WriteRequest<'a>], class: Class) -> io::Result<usize> {
        let mut buffers = Vec::new();
        let mut places: Vec<Option<(usize, usize)>> = Vec::new();
        let mut used = aligned::BUFFER;
        for p in pieces {
            if aligned::is(p.data) {
                places.push(None);
                continue;
            }
            if used + p.data.len() > aligned::BUFFER {
                if buffers.len() == BATCH_BUFFERS {
                    break;
                }
                buffers.push(self.pool.take());
                used = 0;
            }
            let b = buffers.len() - 1;
            buffers[b].bytes_mut()[used..used + p.data.len()].copy_from_slice(p.data);
            places.push(Some((b, used)));
            used = (used + p.data.len()).next_multiple_of(aligned::ALIGN);
        }
        let data = |p: &WriteRequest<'a>, place: &Option<(usize, usize)>| match place {
            Some((b, at)) => &buffers[*b].bytes()[*at..at + p.data.len()],
            None => p.data,
        };
        let all: Vec<_> = pieces.iter().zip(&places).map(|(p, at)| WriteRequest { offset: p.offset, data: data(p, at) }).collect();
        self.write_batch(&all, class).map(|()| all.len())
    }
}

/// Whole sectors of the host, and what of them is meant.
struct Span {
    start: u64,
    /// Bytes of the sectors.
    whole: usize,
    /// Bytes before what is meant.
    skip: usize,
    /// Which bytes of the caller's these are.
    part: std::ops::Range<usize>,
}

/// A request in pieces that fit a buffer.
fn cut<'a>(r: &WriteRequest<'a>) -> impl Iterator<Item = WriteRequest<'a>> {
    let (offset, parts) = (r.offset, r.data.chunks(aligned::BUFFER).enumerate());
    parts.map(move |(i, data)| WriteRequest { offset: offset + (i * aligned::BUFFER) as u64, data })
}

/// Pieces that lie behind each other, and are no more together than a buffer takes, as one: with many the host has more to do.
fn rows<'p, 'a>(mut pieces: &'p [WriteRequest<'a>]) -> impl Iterator<Item = &'p [WriteRequest<'a>]> {
    std::iter::from_fn(move || {
        let mut end = pieces.first()?.offset;
        let most = end + aligned::BUFFER as u64;
        let goes_on = |p: &&WriteRequest<'_>| {
            let follows = p.offset == end;
            end += p.data.len() as u64;
            follows && end <= most
        };
        let n = pieces.iter().take(MOST_SLICES).take_while(goes_on).count();
        let (row, behind) = pieces.split_at(n.max(1));
        pieces = behind;
        Some(row)
    })
}

/// What the host writes at once to a file, and whether it can do so past its cache.
fn alignment(file: &File) -> io::Result<(u32, bool)> {
    let s = match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Err(Errno::NOSYS) => return Ok((512, false)),
        r => r?,
    };
    let known = s.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let able = |a: u32| a.is_power_of_two() && a as usize <= aligned::ALIGN;
    match (s.stx_dio_offset_align, s.stx_dio_mem_align) {
        (sector, mem) if known && able(sector) && able(mem) => Ok((sector.max(512), true)),
        _ => Ok((512, false)),
    }
}

/// Locks a file. A process that is just starting another one shares its locks with that for a moment, and one that ends may
/// have ended for its users already: so this waits a little before it gives up.
fn lock(file: &File, op: FlockOperation) -> Result<(), Errno> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(file, op) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(10)),
            r => return r,
        }
    }
    rustix::fs::flock(file, op)
}

/// Tries, ten milliseconds apart.
const LOCK_TRIES: u32 = 20;

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
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size) {
            return Err(past_end(offset, buf.len()));
        }
        let _permit = self.lanes.enter(Class::Read, 1);
        if self.direct { self.read_direct(offset, buf) } else { self.file.read_exact_at(buf, offset) }
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
        self.check_write(offset, data.len())?;
        let _permit = self.lanes.enter(Class::Journal, 1);
        if flags.preflush {
            self.flush()?;
        }
        self.write_one(offset, data, if flags.fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() })
    }
    fn write_many(&self, requests: &[WriteRequest<'_>], class: Class) -> io::Result<()> {
        requests.iter().try_for_each(|r| self.check_write(r.offset, r.data.len()))?;
        let (whole, partial): (Vec<&WriteRequest<'_>>, Vec<_>) = requests.iter().partition(|r| self.is_whole(r.offset, r.data.len()));
        for r in partial {
            let _permit = self.lanes.enter(class, 1);
            self.write_one(r.offset, r.data, ReadWriteFlags::empty())?;
        }
        if !self.direct {
            return self.write_cached(&whole, class);
        }
        let pieces: Vec<_> = whole.into_iter().flat_map(cut).collect();
        let mut left = pieces.as_slice();
        while !left.is_empty() {
            let permit = self.lanes.enter(class, rows(left).take(DEPTH as usize).count());
            let now = &left[..rows(left).take(permit.granted as usize).map(<[_]>::len).sum()];
            left = &left[self.write_copies(now, class)?..];
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.block_device {
            return Ok(());
        }
        self.fallocate(FallocateFlags::KEEP_SIZE, offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_lie_behind_each_other_are_written_as_one() {
        let data = vec![0; aligned::BUFFER];
        let lengths = |pieces: &[(u64, usize)]| {
            let all: Vec<_> = pieces.iter().map(|(offset, len)| WriteRequest { offset: *offset, data: &data[..*len] }).collect();
            rows(&all).map(<[_]>::len).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[]), []);
        assert_eq!(lengths(&[(0, 512), (512, 512), (1024, 4096), (8192, 512), (8704, 512)]), [3, 2]);
        // Not those that lie before, and no more than a buffer takes.
        assert_eq!(lengths(&[(4096, 512), (0, 512), (512, 512)]), [1, 2]);
        let most = aligned::BUFFER;
        assert_eq!(lengths(&[(0, most), (most as u64, 512), (most as u64 + 512, most - 512), (2 * most as u64, 1)]), [1, 2, 1]);
        let many: Vec<_> = (0..MOST_SLICES as u64 + 5).map(|i| (i * 512, 512)).collect();
        assert_eq!(lengths(&many), [MOST_SLICES, 5]);
    }
}
