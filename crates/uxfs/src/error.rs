//! The one error type and the one errno table.

use std::io;
use uxfs_buffer::BufferError;
use uxfs_format::{Corruption, DiskAddr, Ino};
use uxfs_journal::JournalError;

/// Result of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. The text says all of it: there is no source to ask for more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error("device: {error} (at basic block {})", at.0)]
    Io {
        /// Where, in basic blocks; 0 if unknown.
        at: DiskAddr,
        /// How.
        error: io::Error,
    },
    /// A structure on disk does not hold.
    #[error("corrupt: {0}")]
    Corrupt(Corruption),
    /// An inode's structures do not hold.
    #[error("corrupt: inode {} {what}", ino.0)]
    CorruptInode {
        /// Which.
        ino: Ino,
        /// What does not hold.
        what: &'static str,
    },
    /// The log does not hold.
    #[error("corrupt: {what}")]
    CorruptLog {
        /// What does not hold, and where.
        what: String,
    },
    /// The volume or the operation uses what this program does not have.
    #[error("not supported: {what}")]
    Unsupported {
        /// What.
        what: String,
    },
    /// The volume is shut down after a failure; the next open recovers it.
    #[error("the volume is shut down: {why}")]
    Shutdown {
        /// The first failure.
        why: String,
    },
    /// The volume is open read-only.
    #[error("the volume is open read-only")]
    ReadOnly,
    /// No free block or inode.
    #[error("no space left on the volume")]
    NoSpace,
    /// No such name or inode.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("the name exists already")]
    Exists,
    /// A directory was expected.
    #[error("not a directory")]
    NotDirectory,
    /// A directory was not expected.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name is empty, or holds a slash or a zero byte, or an argument is out of range.
    #[error("invalid argument: {what}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
    },
    /// A name is longer than 255 bytes.
    #[error("the name is too long")]
    NameTooLong,
    /// No such attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The buffer is too small for the answer.
    #[error("the answer does not fit")]
    Range,
    /// Too many links.
    #[error("too many links")]
    TooManyLinks,
    /// The file would become too large.
    #[error("the file is too large")]
    TooLarge,
    /// Not permitted on this file.
    #[error("operation not permitted")]
    NotPermitted,
    /// The directory takes only files of its own project.
    #[error("the directory takes only files of its own project")]
    OtherProject,
    /// The inode number is not in use, or by a later incarnation.
    #[error("stale file handle")]
    Stale,
    /// Somebody else has the volume open.
    #[error("{0}")]
    Busy(String),
}

impl Error {
    /// True if what lies on the device cannot be read; what lies elsewhere may well be.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Io { .. } | Error::Corrupt(_) | Error::CorruptInode { .. })
    }

    /// The number that a system call would give.
    pub fn errno(&self) -> i32 {
        match self {
            // A host that is full says so; anything else is just a failed device.
            Error::Io { error, .. } if error.raw_os_error() == Some(28) => 28,
            Error::Io { .. } | Error::Shutdown { .. } => 5,
            Error::Corrupt(_) | Error::CorruptInode { .. } | Error::CorruptLog { .. } => 117,
            Error::Unsupported { .. } => 95,
            Error::ReadOnly => 30,
            Error::NoSpace => 28,
            Error::NotFound => 2,
            Error::Exists => 17,
            Error::NotDirectory => 20,
            Error::IsDirectory => 21,
            Error::NotEmpty => 39,
            Error::Invalid { .. } => 22,
            Error::NameTooLong => 36,
            Error::NoAttribute => 61,
            Error::Range => 34,
            Error::TooManyLinks => 31,
            Error::TooLarge => 27,
            Error::NotPermitted => 1,
            Error::OtherProject => 18,
            Error::Stale => 116,
            Error::Busy(_) => 16,
        }
    }
}

impl From<Corruption> for Error {
    fn from(e: Corruption) -> Error {
        Error::Corrupt(e)
    }
}

impl From<BufferError> for Error {
    fn from(e: BufferError) -> Self {
        match e {
            BufferError::Io { at, error } => Error::Io { at, error },
            BufferError::Corrupt(c) => Error::Corrupt(c),
        }
    }
}

impl From<JournalError> for Error {
    fn from(e: JournalError) -> Self {
        match e {
            JournalError::Shutdown(why) => Error::Shutdown { why },
            JournalError::Io(error) => Error::Io { at: DiskAddr(0), error },
            JournalError::Unsupported(what) => Error::Unsupported { what },
            e @ JournalError::Corrupt { .. } => Error::CorruptLog { what: e.to_string() },
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::WouldBlock { Error::Busy(error.to_string()) } else { Error::Io { at: DiskAddr(0), error } }
    }
}
