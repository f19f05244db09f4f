//! Files that are open: what is remembered of one between calls.

use super::{Fs, give_back};
use crate::error::{Error, Result};
use crate::file::{self, Domain, How, IoMode, Source, Told};
use crate::inode::Inode;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file that somebody has open: how it is read and written, and which failures of its write-back he knows of. It lasts as long,
/// though its last name may go. Several may call at once.
///
/// Calls by number look the inode up each time; these do not.
pub struct OpenFile {
    fs: Arc<Fs>,
    inode: Arc<Inode>,
    /// As [`IoMode::number`].
    mode: AtomicU32,
    domain: Domain,
    told: Told,
}

impl Fs {
    /// Opens a file, to be read and written as `how` says. What it is opened for is not checked.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::IsDirectory`], [`Error::Invalid`] for what has no data.
    pub fn open_file(self: &Arc<Self>, ino: u64, how: impl Into<How>) -> Result<OpenFile> {
        let _open = self.enter()?;
        let used = self.regular(ino)?;
        let how = how.into();
        let told = self.mount.names.files.state(&used).told();
        let file = OpenFile { fs: self.clone(), inode: used.clone(), mode: AtomicU32::new(how.mode.number()), domain: how.domain, told };
        // Beside the one of this call, which is given back.
        if !file.inode.refer() {
            return Err(Error::Stale);
        }
        Ok(file)
    }
}

impl OpenFile {
    /// Its inode's number.
    pub fn ino(&self) -> u64 {
        self.inode.ino.0
    }

    /// How it is read and written.
    pub fn mode(&self) -> IoMode {
        IoMode::of_number(self.mode.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// From now on it is read and written so.
    pub fn set_mode(&self, mode: IoMode) {
        self.mode.store(mode.number(), Ordering::Relaxed);
    }

    /// Reads; returns how many bytes there were.
    ///
    /// # Errors
    /// As [`Fs::read`].
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _open = self.fs.enter()?;
        self.fs.read_inode(&self.inode, offset, buf, self.mode())
    }

    /// Writes at `offset`. Returns how many bytes: fewer where space ran out, but for none.
    ///
    /// # Errors
    /// As [`Fs::write_with`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.put(offset, Source::lent(data), false)
    }

    /// As [`Fs::write_given`].
    ///
    /// # Errors
    /// As [`Fs::write_with`].
    ///
    /// # Panics
    /// The buffer has no such part.
    pub fn write_given(&self, offset: u64, buffer: Vec<u8>, part: Range<usize>) -> Result<usize> {
        let files = &self.fs.mount.names.files;
        file::with_given(files, buffer, part, |src| self.put(offset, src, false))
    }

    /// Writes at the end.
    ///
    /// # Errors
    /// As [`Fs::write_with`].
    pub fn append(&self, data: &[u8]) -> Result<usize> {
        self.put(0, Source::lent(data), true)
    }

    fn put(&self, offset: u64, data: Source<'_>, append: bool) -> Result<usize> {
        let _open = self.fs.enter()?;
        let how = How { mode: self.mode(), domain: self.domain };
        self.fs.write_inode(&self.inode, offset, data, append, how)
    }

    /// Makes it durable.
    ///
    /// # Errors
    /// As [`Fs::fsync`]; of a write-back that failed, each open file is told once.
    pub fn fsync(&self) -> Result<()> {
        let _open = self.fs.enter()?;
        file::fsync(&self.fs.mount.names.files, &self.inode, Some(&self.told))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // Of a volume that is closed, the next open frees what has no name.
        if let Ok(_open) = self.fs.enter() {
            give_back(&self.fs.mount.names, &self.inode);
        }
    }
}
