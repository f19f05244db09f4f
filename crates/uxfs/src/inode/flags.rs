//! What an inode's flags forbid, and what new ones take over.

use super::Inode;
use crate::error::{Error, Result};
use uxfs_format::inode::{Core, flag, flag2, mode};

impl Inode {
    /// Fails if its content, or for a directory its entries, may not be changed at all.
    ///
    /// # Errors
    /// [`Error::NotPermitted`].
    pub fn check_mutable(&self) -> Result<()> {
        self.check_without(flag::IMMUTABLE)
    }

    /// Fails if it may not lose anything, neither content nor its place.
    ///
    /// # Errors
    /// [`Error::NotPermitted`].
    pub fn check_removable(&self) -> Result<()> {
        self.check_without(flag::IMMUTABLE | flag::APPEND)
    }

    fn check_without(&self, bits: u16) -> Result<()> {
        if self.data().core.flags & bits == 0 { Ok(()) } else { Err(Error::NotPermitted) }
    }

    /// Fails if a directory keeps entries to its own project and `other` is of another one.
    ///
    /// # Errors
    /// [`Error::OtherProject`].
    pub fn check_same_project(&self, other: &Inode) -> Result<()> {
        let (flags, project) = {
            let d = self.data();
            (d.core.flags, d.core.projid)
        };
        if flags & flag::PROJINHERIT == 0 || other.data().core.projid == project { Ok(()) } else { Err(Error::OtherProject) }
    }
}

/// What a new inode of type and permissions `m` takes over from its directory: both flag words and both hints.
pub fn inherited(dir: &Core, m: u16) -> (u16, u64, u32, u32) {
    let kind = m & mode::FMT;
    let hints = dir.flags & flag::EXTSZINHERIT != 0;
    let own = match kind {
        mode::DIR => dir.flags & (flag::PROJINHERIT | flag::EXTSZINHERIT),
        mode::REG if hints => flag::EXTSIZE,
        _ => 0,
    };
    let common = dir.flags & (flag::SYNC | flag::NOATIME | flag::NODUMP | flag::NODEFRAG | flag::FILESTREAM);
    let cow = if kind == mode::DIR || kind == mode::REG { dir.flags2 & (flag2::COWEXTSIZE | flag2::DAX) } else { 0 };
    let extsize = if hints && own & (flag::EXTSIZE | flag::EXTSZINHERIT) != 0 { dir.extsize } else { 0 };
    (own | common, cow, extsize, if cow & flag2::COWEXTSIZE != 0 { dir.cowextsize } else { 0 })
}
