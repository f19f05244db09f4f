//! What is in files: reading, writing, sharing, allocating.

use super::{Fs, Used};
use crate::error::{Error, Result};
use crate::file::{self, Allocate, How, IoMode, Seek, Source};
use crate::inode::{Inode, Which};
use std::ops::Range;
use std::sync::Arc;
use uxfs_format::inode::{flag, mode};

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedExtent {
    /// Bytes from the file's begin.
    pub offset: u64,
    /// Bytes from the volume's begin.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// It reads as zeros.
    pub unwritten: bool,
}

/// Bytes that are copied at a time.
const COPIED: u64 = 1 << 20;

/// An error if what is in an inode lies on a realtime device, of which nothing is known here.
fn here(inode: &Inode) -> Result<()> {
    let elsewhere = inode.core().flags & flag::REALTIME != 0;
    if elsewhere { Err(Error::Unsupported { what: "file data on a realtime device".into() }) } else { Ok(()) }
}

impl Fs {
    pub(super) fn regular(&self, ino: u64) -> Result<Used<'_>> {
        let i = self.inode(ino)?;
        match i.core().kind() {
            mode::REG => here(&i).map(|()| i),
            mode::DIR => Err(Error::IsDirectory),
            _ => Err(Error::Invalid { what: "this is no regular file" }),
        }
    }

    /// Reads; returns how many bytes there were.
    ///
    /// # Errors
    /// The device's; the file is corrupt.
    pub fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_with(ino, offset, buf, IoMode::Buffered)
    }

    /// The same, as `how` says.
    ///
    /// # Errors
    /// As [`Fs::read`].
    pub fn read_with(&self, ino: u64, offset: u64, buf: &mut [u8], how: impl Into<How>) -> Result<usize> {
        let _open = self.enter()?;
        self.read_inode(&*self.regular(ino)?, offset, buf, how.into().mode)
    }

    pub(super) fn read_inode(&self, inode: &Arc<Inode>, offset: u64, buf: &mut [u8], mode: IoMode) -> Result<usize> {
        let files = &self.mount.names.files;
        match mode {
            IoMode::Buffered => file::read(files, inode, offset, buf, false),
            IoMode::DropBehind => file::read(files, inode, offset, buf, true),
            IoMode::Direct => file::read_direct(files, inode, offset, buf),
        }
    }

    /// Writes all of `data` at `offset`, or at the end if `append`.
    ///
    /// # Errors
    /// [`Error::NoSpace`], then perhaps a part of it is there; [`Error::TooLarge`].
    pub fn write(&self, ino: u64, offset: u64, data: &[u8], append: bool) -> Result<()> {
        let done = self.write_with(ino, offset, data, append, IoMode::Buffered)?;
        if done < data.len() { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// The same, as `how` says. Returns how many bytes were written: fewer where space ran out, but for none.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`].
    pub fn write_with(&self, ino: u64, offset: u64, data: &[u8], append: bool, how: impl Into<How>) -> Result<usize> {
        let _open = self.enter()?;
        self.write_inode(&*self.regular(ino)?, offset, Source::lent(data), append, how.into())
    }

    /// The same with bytes that are given away: the `part` of `buffer`, which the cache keeps as they are where they are whole blocks
    /// and most of the buffer.
    ///
    /// # Errors
    /// As [`Fs::write_with`].
    ///
    /// # Panics
    /// The buffer has no such part.
    pub fn write_given(&self, ino: u64, offset: u64, buffer: Vec<u8>, part: Range<usize>, how: impl Into<How>) -> Result<usize> {
        let _open = self.enter()?;
        let inode = self.regular(ino)?;
        let files = &self.mount.names.files;
        file::with_given(files, buffer, part, |src| self.write_inode(&inode, offset, src, false, how.into()))
    }

    /// A buffer for data that will be given away: so many bytes, whatever they are. Most often it was used before, and costs nothing to
    /// get.
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        self.mount.names.files.buffer(bytes)
    }

    pub(super) fn write_inode(&self, inode: &Arc<Inode>, offset: u64, data: Source<'_>, append: bool, how: How) -> Result<usize> {
        let files = &self.mount.names.files;
        inode.check_mutable()?;
        if !append && offset < file::size(inode) {
            inode.check_removable()?;
        }
        let write = || {
            let done = match how.mode {
                IoMode::Direct => file::write_direct(files, inode, offset, data, append, how),
                IoMode::Buffered | IoMode::DropBehind => file::write(files, inode, offset, data, append, how),
            }?;
            Ok((done.end - done.start) as usize)
        };
        let mut done = self.with_retry(write)?;
        // What is appended lies before what others append by now.
        if done < data.len() && !append && self.make_usable().is_ok() {
            done = write().unwrap_or(0).max(done);
        }
        if inode.data().core.flags & flag::SYNC != 0 {
            file::fsync(files, inode, None)?;
        }
        Ok(done)
    }

    /// Lets a file share the blocks of another one, or of another place in itself, as FICLONERANGE does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on a volume without reflink, [`Error::Invalid`] for ranges that do not lie on blocks.
    pub fn clone_range(&self, from: (u64, u64), to: (u64, u64), len: u64) -> Result<()> {
        self.share(from, to, len, false).map(|_| ())
    }

    /// The same if both places hold the same bytes, as FIDEDUPERANGE does; false if they do not.
    ///
    /// # Errors
    /// As [`Fs::clone_range`].
    pub fn dedupe_range(&self, from: (u64, u64), to: (u64, u64), len: u64) -> Result<bool> {
        self.share(from, to, len, true)
    }

    /// Lets two files exchange what they hold at places (inode, offset in bytes), as XFS_IOC_EXCHANGE_RANGE does: `len` bytes, or with
    /// `None` everything behind, and the sizes. (Linux 6.18 gives each file the other's whole size then, also where the places differ,
    /// and so hides bytes or loses them.) After a crash all of it is exchanged, or nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on a volume without exchange-range, [`Error::Invalid`] for ranges that do not lie on blocks, reach
    /// beyond an end, or overlap.
    pub fn exchange_range(&self, a: (u64, u64), b: (u64, u64), len: Option<u64>) -> Result<()> {
        let _open = self.enter()?;
        let (first, second) = (self.regular(a.0)?, self.regular(b.0)?);
        first.check_removable()?;
        second.check_removable()?;
        let places = [file::Place { inode: &first, offset: a.1 }, file::Place { inode: &second, offset: b.1 }];
        self.with_retry(|| file::exchange(&self.mount.names.files, places, len))
    }

    fn share(&self, from: (u64, u64), to: (u64, u64), len: u64, only_same: bool) -> Result<bool> {
        let _open = self.enter()?;
        let (src, dst) = (self.regular(from.0)?, self.regular(to.0)?);
        dst.check_removable()?;
        let (a, b) = (file::Place { inode: &src, offset: from.1 }, file::Place { inode: &dst, offset: to.1 });
        self.with_retry(|| file::share(&self.mount.names.files, a, b, len, only_same))
    }

    /// Copies bytes between files: whole blocks are shared where the volume can, the rest is copied. Returns how many bytes
    /// were; the end of the source may come before `len`.
    ///
    /// # Errors
    /// As [`Fs::read`] and [`Fs::write`].
    pub fn copy_range(&self, from: (u64, u64), to: (u64, u64), len: u64) -> Result<u64> {
        let _open = self.enter()?;
        let size = self.stat(from.0)?.size;
        let len = size.saturating_sub(from.1).min(len);
        let g = self.geometry();
        let bs = u64::from(g.blocksize);
        if from.0 == to.0 && from.1 < to.1.saturating_add(len) && to.1 < from.1 + len {
            return Err(Error::Invalid { what: "the ranges overlap" });
        }
        let tail = from.1 + len == size && to.1 + len >= self.stat(to.0)?.size;
        let whole = if tail { len } else { len / bs * bs };
        if g.reflink() && whole > 0 && (from.1 | to.1).is_multiple_of(bs) {
            match self.clone_range(from, to, whole) {
                // No group is asked for what it keeps, but others may have room for a copy; or the files changed since their sizes were asked.
                Err(Error::NoSpace | Error::Invalid { .. }) => {}
                r => return r.map(|()| whole),
            }
        }
        let mut buf = vec![0; len.min(COPIED) as usize];
        let mut done = 0;
        while done < len {
            let want = (len - done).min(COPIED) as usize;
            let n = self.read(from.0, from.1 + done, &mut buf[..want])?;
            if n == 0 {
                break;
            }
            let wrote = self.write_with(to.0, to.1 + done, &buf[..n], false, IoMode::Buffered)?;
            done += wrote as u64;
            if wrote < n {
                break;
            }
        }
        Ok(done)
    }

    /// Changes what a range of a file has blocks for; see [`Allocate`].
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Invalid`], [`Error::TooLarge`].
    pub fn fallocate(&self, ino: u64, what: Allocate, offset: u64, len: u64) -> Result<()> {
        let _open = self.enter()?;
        let i = self.regular(ino)?;
        if matches!(what, Allocate::Reserve { .. }) { i.check_mutable() } else { i.check_removable() }?;
        self.with_retry(|| file::allocate(&self.mount.names.files, &i, what, offset, len))
    }

    /// Where a file's blocks lie, in the file's order; holes are left out. What is dirty may still move.
    ///
    /// # Errors
    /// The file is corrupt.
    pub fn extents(&self, ino: u64) -> Result<Vec<MappedExtent>> {
        let _open = self.enter()?;
        let i = self.inode(ino)?;
        here(&i)?;
        let _l = i.lock_shared();
        crate::map::load(&i, Which::Data)?;
        let g = self.geometry();
        let bytes = |blocks: u64| blocks << g.blocklog;
        let d = i.data();
        Ok(d.data
            .extents
            .values()
            .map(|e| MappedExtent {
                offset: bytes(e.off.0),
                start: g.fsb_daddr(e.start).0 * 512,
                len: bytes(u64::from(e.len)),
                unwritten: e.unwritten,
            })
            .collect())
    }

    /// Finds data or a hole; `None` if there is none before the end.
    ///
    /// # Errors
    /// The file is corrupt.
    pub fn seek(&self, ino: u64, offset: u64, what: Seek) -> Result<Option<u64>> {
        let _open = self.enter()?;
        file::seek(&self.mount.names.files, &*self.regular(ino)?, offset, what)
    }

    /// Makes an inode durable, data and all.
    ///
    /// # Errors
    /// A write-back failed since the last call.
    pub fn fsync(&self, ino: u64) -> Result<()> {
        let _open = self.enter()?;
        file::fsync(&self.mount.names.files, &*self.inode(ino)?, None)
    }
}
