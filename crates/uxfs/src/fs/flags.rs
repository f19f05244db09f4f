//! Flags of inodes, extent size hints and projects: what `chattr`, `xfs_io -c extsize` and `xfs_quota` change.

use super::Fs;
use crate::error::{Error, Result};
use uxfs_format::extent::max_hint;
use uxfs_format::inode::{Core, Format, flag2, mode};

/// Bits of [`FileFlags::bits`], numbered as the kernel's `FS_XFLAG_*`.
pub mod xflag {
    /// It may not be changed, linked or removed.
    pub const IMMUTABLE: u32 = 0x8;
    /// It may only grow at its end; a directory's entries stay.
    pub const APPEND: u32 = 0x10;
    /// Writes are durable when they return.
    pub const SYNC: u32 = 0x20;
    /// Times of access are not kept.
    pub const NOATIME: u32 = 0x40;
    /// `xfsdump` leaves it out.
    pub const NODUMP: u32 = 0x80;
    /// What is made in the directory gets its project.
    pub const PROJINHERIT: u32 = 0x200;
    /// No symbolic links are made in the directory.
    pub const NOSYMLINKS: u32 = 0x400;
    /// The extent size hint counts.
    pub const EXTSIZE: u32 = 0x800;
    /// Files made in the directory get its extent size hint.
    pub const EXTSZINHERIT: u32 = 0x1000;
    /// It is left alone by `xfs_fsr`.
    pub const NODEFRAG: u32 = 0x2000;
    /// Files of the directory lie near each other.
    pub const FILESTREAM: u32 = 0x4000;
    /// Data is to be mapped without a page cache.
    pub const DAX: u32 = 0x8000;
    /// The copy-on-write extent size hint counts.
    pub const COWEXTSIZE: u32 = 0x1_0000;
    /// It has attributes; told only.
    pub const HASATTR: u32 = 0x8000_0000;
}

/// Bits that lie in the first flag word under the same numbers, and that may be changed.
const FIRST: u32 = xflag::IMMUTABLE
    | xflag::APPEND
    | xflag::SYNC
    | xflag::NOATIME
    | xflag::NODUMP
    | xflag::PROJINHERIT
    | xflag::NOSYMLINKS
    | xflag::EXTSIZE
    | xflag::EXTSZINHERIT
    | xflag::NODEFRAG
    | xflag::FILESTREAM;
/// What is told of the first word beside them: realtime, preallocated.
const TOLD: u32 = 0x103;
/// Those that only directories have.
const OF_DIRECTORIES: u32 = xflag::PROJINHERIT | xflag::NOSYMLINKS | xflag::EXTSZINHERIT | xflag::FILESTREAM;

/// Flags, hints and project of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFlags {
    /// See [`xflag`].
    pub bits: u32,
    /// Extent size hint in bytes: allocations are a multiple of it where they can be.
    pub extsize: u32,
    /// The same for copy-on-write.
    pub cowextsize: u32,
    /// Project.
    pub project: u32,
    /// Extents of the data fork; told only.
    pub extents: u64,
}

impl Fs {
    /// Flags, hints and project.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn file_flags(&self, ino: u64) -> Result<FileFlags> {
        let _open = self.enter()?;
        let i = self.inode(ino)?;
        Ok(self.flags_of(&i.core()))
    }

    fn flags_of(&self, c: &Core) -> FileFlags {
        let bs = self.geometry().blocksize;
        let second = [(flag2::COWEXTSIZE, xflag::COWEXTSIZE), (flag2::DAX, xflag::DAX)];
        let second = second.iter().filter(|(on_disk, _)| c.flags2 & on_disk != 0).fold(0, |all, x| all | x.1);
        FileFlags {
            bits: u32::from(c.flags) & (FIRST | TOLD)
                | second
                | if c.anextents > 0 || c.forkoff > 0 && c.aformat == Format::Local { xflag::HASATTR } else { 0 },
            extsize: c.extsize * bs,
            cowextsize: c.cowextsize * bs,
            project: c.projid,
            extents: c.nextents,
        }
    }

    /// Sets flags, hints and project. What is told only is passed over.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bits that this kind of file does not have, and hints that are no multiple of the block size, too
    /// large, or come after the first extent.
    pub fn set_file_flags(&self, ino: u64, new: FileFlags) -> Result<()> {
        let _open = self.enter()?;
        let i = self.inode(ino)?;
        self.mount.vol().check_writable()?;
        let bs = self.geometry().blocksize;
        let extsize = if new.bits & (xflag::EXTSIZE | xflag::EXTSZINHERIT) != 0 { new.extsize / bs } else { 0 };
        let cowextsize = if new.bits & xflag::COWEXTSIZE != 0 { new.cowextsize / bs } else { 0 };
        self.try_change(&i, |c| {
            // Under its lock: what the hint may be depends on whether it has extents.
            self.check_flags(c, &self.flags_of(c), &new)?;
            c.flags = c.flags & !(FIRST as u16) | (new.bits & FIRST) as u16;
            for (bit, on_disk) in [(xflag::COWEXTSIZE, flag2::COWEXTSIZE), (xflag::DAX, flag2::DAX)] {
                c.flags2 = if new.bits & bit != 0 { c.flags2 | on_disk } else { c.flags2 & !on_disk };
            }
            (c.extsize, c.cowextsize, c.projid) = (extsize, cowextsize, new.project);
            Ok(())
        })
    }

    fn check_flags(&self, core: &Core, old: &FileFlags, new: &FileFlags) -> Result<()> {
        let bad = |what| Err(Error::Invalid { what });
        let g = self.geometry();
        let changed = old.bits ^ new.bits;
        let (dir, regular) = (core.kind() == mode::DIR, core.kind() == mode::REG);
        if changed & !(FIRST | TOLD | xflag::COWEXTSIZE | xflag::DAX | xflag::HASATTR) != 0 || changed & TOLD & !2 != 0 {
            return bad("a flag is unknown, or belongs to realtime devices");
        }
        if !dir && new.bits & OF_DIRECTORIES != 0 {
            return bad("only directories have this flag");
        }
        if !regular && new.bits & xflag::EXTSIZE != 0 {
            return bad("only regular files have an extent size hint of their own; directories pass one on");
        }
        if !regular && !dir && new.bits & (xflag::COWEXTSIZE | xflag::DAX) != 0 {
            return bad("only files and directories have this flag");
        }
        if new.bits & xflag::COWEXTSIZE != 0 && !g.reflink() {
            return bad("a volume without reflink has no copy-on-write");
        }
        let most = u64::from(max_hint(g.agblocks)) * u64::from(g.blocksize);
        let hint = |on: bool, bytes: u32| !on || (bytes.is_multiple_of(g.blocksize) && u64::from(bytes) <= most);
        let hinted = new.bits & (xflag::EXTSIZE | xflag::EXTSZINHERIT) != 0;
        if !hint(hinted, new.extsize) || !hint(new.bits & xflag::COWEXTSIZE != 0, new.cowextsize) {
            return bad("an extent size hint is a multiple of the block size and at most half a group");
        }
        let extsize = if hinted { new.extsize } else { 0 };
        if regular && extsize != old.extsize && core.nextents > 0 {
            return bad("the extent size hint of a file with extents cannot be changed");
        }
        Ok(())
    }
}
