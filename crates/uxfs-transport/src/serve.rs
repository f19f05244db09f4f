//! What a file system answers.

use crate::abi::{Dirent, EntryOut, StatxOut, StatxTime, WireAttr};
use rustix::io::Errno;
use std::ops::{Deref, Range};
use zerocopy::IntoBytes;

/// What a request ends with: the kernel takes an error's number to whoever asked.
pub type Result<T> = std::result::Result<T, Errno>;

/// Seconds that the kernel may believe names and attributes: it changes them all itself.
const VALID: u64 = 3600;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread, as the server sees it; 0 if it does not.
    pub pid: u32,
}

/// A moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds from 1970, negative before.
    pub sec: i64,
    /// Nanoseconds, below 10⁹.
    pub nsec: u32,
}

/// A moment to be set.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// That of the server.
    Now,
    /// This one.
    At(Time),
}

/// Attributes of a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attr {
    /// Its number: 1 for the root.
    pub node: u64,
    /// Bytes.
    pub size: u64,
    /// What it takes, in units of 512 bytes.
    pub blocks: u64,
    /// When it was read.
    pub atime: Time,
    /// When it was written.
    pub mtime: Time,
    /// When it changed.
    pub ctime: Time,
    /// When it was made.
    pub btime: Time,
    /// Type and permissions.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Bytes that it likes to be read and written by.
    pub blksize: u32,
}

/// A device number as the kernel passes it to FUSE.
fn join_dev((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & 0xfff00) << 12
}

/// Major and minor number of what the kernel passes.
pub(crate) fn split_dev(dev: u32) -> (u32, u32) {
    ((dev >> 8) & 0xfff, dev & 0xff | (dev >> 12) & 0xfff00)
}

impl Attr {
    fn wire(&self) -> WireAttr {
        WireAttr {
            ino: self.node,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.sec,
            mtime: self.mtime.sec,
            ctime: self.ctime.sec,
            atimensec: self.atime.nsec,
            mtimensec: self.mtime.nsec,
            ctimensec: self.ctime.nsec,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: join_dev(self.rdev),
            blksize: self.blksize,
            flags: 0,
        }
    }

    pub(crate) fn attr_out(&self) -> crate::abi::AttrOut {
        crate::abi::AttrOut { valid: VALID, attr: self.wire(), ..Default::default() }
    }

    pub(crate) fn statx_out(&self) -> StatxOut {
        /// Everything that `stat` tells, and when it was made.
        const BASIC_AND_BTIME: u32 = 0x7ff | 0x800;
        let time = |t: Time| StatxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
        StatxOut {
            attr_valid: VALID,
            mask: BASIC_AND_BTIME,
            blksize: self.blksize,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            mode: self.mode as u16,
            ino: self.node,
            size: self.size,
            blocks: self.blocks,
            atime: time(self.atime),
            btime: time(self.btime),
            ctime: time(self.ctime),
            mtime: time(self.mtime),
            rdev_major: self.rdev.0,
            rdev_minor: self.rdev.1,
            ..Default::default()
        }
    }
}

/// Something with a name, which the kernel knows from here on until it forgets it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// What it is. Node 0 says that there is none, which may be remembered like any other answer.
    pub attr: Attr,
    /// Tells it from others that had the same number.
    pub generation: u32,
}

impl Entry {
    pub(crate) fn wire(&self) -> EntryOut {
        EntryOut {
            node: self.attr.node,
            generation: u64::from(self.generation),
            entry_valid: VALID,
            attr_valid: VALID,
            attr: self.attr.wire(),
            ..Default::default()
        }
    }
}

/// An open file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opened {
    /// The server's name for it.
    pub handle: u64,
    /// Of [`crate::abi::open`].
    pub flags: u32,
}

/// A file as a request names it: the node, and the handle if it is open.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// The node.
    pub node: u64,
    /// What it was opened as.
    pub handle: u64,
}

/// What is to be written.
pub enum Data<'a> {
    /// Bytes that are there until the call returns.
    Lent(&'a [u8]),
    /// Bytes that are the server's now, with what they lie in: a buffer of [`Serve::buffer`], most of which they fill.
    Given {
        /// The buffer.
        buffer: Vec<u8>,
        /// Where they lie in it.
        part: Range<usize>,
    },
}

impl Data<'_> {
    /// Leaves the first ones; `None` if there are not so many.
    pub(crate) fn truncate(&mut self, len: usize) -> Option<()> {
        match self {
            Data::Lent(bytes) => *bytes = bytes.get(..len)?,
            Data::Given { part, .. } => part.end = part.start + (len <= part.len()).then_some(len)?,
        }
        Some(())
    }
}

impl Deref for Data<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Data::Lent(bytes) => bytes,
            Data::Given { buffer, part } => &buffer[part.clone()],
        }
    }
}

/// Attributes that change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// When it was read.
    pub atime: Option<When>,
    /// When it was written.
    pub mtime: Option<When>,
}

/// What a new node is like.
#[derive(Clone, Copy, Debug)]
pub struct New {
    /// Who makes it.
    pub by: Caller,
    /// Type and permissions.
    pub mode: u32,
    /// Permissions that it does not get.
    pub umask: u32,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
}

/// Space and inodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statfs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks that anybody may use.
    pub available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
    /// Bytes of the longest name.
    pub name_len: u32,
}

/// A directory's entries, as many as the kernel has room for.
pub struct Listing<'a> {
    pub(crate) into: &'a mut [u8],
    pub(crate) len: usize,
}

/// Bytes that an entry's fixed part and its name take, a multiple of eight.
fn padded(n: usize) -> usize {
    n.next_multiple_of(8)
}

impl Listing<'_> {
    fn add_bytes(&mut self, fixed: &[&[u8]], name: &[u8]) -> bool {
        let bare = fixed.iter().map(|f| f.len()).sum::<usize>() + name.len();
        let Some(room) = self.into.get_mut(self.len..self.len + padded(bare)) else { return false };
        let mut at = 0;
        for part in fixed.iter().chain([&name]) {
            room[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        room[at..].fill(0);
        self.len += padded(bare);
        true
    }

    /// Adds an entry: its node, the place of the next one, its type as `d_type` says it. False if there is no room.
    pub fn add(&mut self, node: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        let d = Dirent { ino: node, next, namelen: name.len() as u32, kind };
        self.add_bytes(&[d.as_bytes()], name)
    }

    /// Adds an entry with its attributes, which the kernel then knows, unless it is `.` or `..`. False if there is no room.
    pub fn add_known(&mut self, e: &Entry, next: u64, name: &[u8]) -> bool {
        let kind = (e.attr.mode & 0o170_000) >> 12;
        let d = Dirent { ino: e.attr.node, next, namelen: name.len() as u32, kind };
        self.add_bytes(&[e.wire().as_bytes(), d.as_bytes()], name)
    }

    /// True if nothing was added.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if there is room for attributes and a name of `len` bytes.
    pub fn has_room(&self, len: usize) -> bool {
        self.into.len() - self.len >= padded(size_of::<EntryOut>() + size_of::<Dirent>() + len)
    }
}

/// A file system: each request is one call, on the thread that received it. What is not implemented is refused with ENOSYS, which
/// the kernel remembers where that makes sense.
#[expect(unused_variables, reason = "names that say what an implementation gets")]
pub trait Serve: Send + Sync + 'static {
    /// Which of what the kernel offers ([`crate::abi::init`]) this server wants.
    ///
    /// # Errors
    /// Something that it cannot do without is missing.
    fn wants(&self, offered: u64) -> std::io::Result<u64>;

    /// Finds a name, which the kernel then knows once more; `None` if there is none.
    ///
    /// # Errors
    /// Any; so for all others.
    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<Entry>> {
        Err(Errno::NOSYS)
    }

    /// The kernel forgets so many of the times that it came to know a node.
    fn forget(&self, node: u64, times: u64) {}

    /// Attributes.
    fn getattr(&self, node: u64) -> Result<Attr> {
        Err(Errno::NOSYS)
    }

    /// Changes attributes; what they are then.
    fn setattr(&self, by: Caller, node: u64, change: Change) -> Result<Attr> {
        Err(Errno::NOSYS)
    }

    /// Where a symbolic link leads.
    fn readlink(&self, node: u64) -> Result<Vec<u8>> {
        Err(Errno::NOSYS)
    }

    /// Makes a file, a directory or a device file.
    fn make(&self, dir: u64, name: &[u8], new: New) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Makes a symbolic link.
    fn symlink(&self, by: Caller, dir: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Removes the name of what is no directory.
    fn unlink(&self, dir: u64, name: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Removes a directory.
    fn rmdir(&self, dir: u64, name: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Moves a name, with the flags of `renameat2`.
    fn rename(&self, by: Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Gives a node one more name.
    fn link(&self, node: u64, dir: u64, name: &[u8]) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Opens a file with the flags of `open`.
    fn open(&self, by: Caller, node: u64, flags: i32) -> Result<Opened> {
        Err(Errno::NOSYS)
    }

    /// Makes a file and opens it.
    fn create(&self, dir: u64, name: &[u8], new: New, flags: i32) -> Result<(Entry, Opened)> {
        Err(Errno::NOSYS)
    }

    /// Makes a file without a name and opens it.
    fn tmpfile(&self, dir: u64, new: New, flags: i32) -> Result<(Entry, Opened)> {
        Err(Errno::NOSYS)
    }

    /// Reads; how many bytes there were.
    fn read(&self, file: File, offset: u64, into: &mut [u8]) -> Result<usize> {
        Err(Errno::NOSYS)
    }

    /// Writes, with flags of [`crate::abi::write`]; how many bytes.
    fn write(&self, by: Caller, file: File, offset: u64, data: Data<'_>, flags: u32) -> Result<usize> {
        Err(Errno::NOSYS)
    }

    /// A buffer of so many bytes, whatever they are, to which a request is read whose data may then be given away; `None` if this server
    /// takes none.
    fn buffer(&self, bytes: usize) -> Option<Vec<u8>> {
        None
    }

    /// Space and inodes.
    fn statfs(&self) -> Result<Statfs> {
        Err(Errno::NOSYS)
    }

    /// Nobody has it open any more.
    fn release(&self, file: File) {}

    /// Makes a file durable. May wait for long: others take requests meanwhile.
    fn fsync(&self, by: Caller, file: File) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Makes a directory durable, or everything if it is the root: the kernel passes no `syncfs` on.
    fn fsyncdir(&self, node: u64) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Sets an extended attribute, with the flags of `setxattr`.
    fn setxattr(&self, node: u64, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// An extended attribute.
    fn getxattr(&self, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NOSYS)
    }

    /// The names of extended attributes, a NUL after each.
    fn listxattr(&self, by: Caller, node: u64) -> Result<Vec<u8>> {
        Err(Errno::NOSYS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, node: u64, name: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Lists a directory from a place on, by [`Listing::add`] or [`Listing::add_known`] as `known` says.
    fn readdir(&self, dir: u64, from: u64, known: bool, into: &mut Listing<'_>) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Answers an `ioctl`: what goes back.
    fn ioctl(&self, by: Caller, file: File, call: u32, input: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NOTTY)
    }

    /// Changes what a file has allocated, with the mode of `fallocate`.
    fn fallocate(&self, by: Caller, file: File, mode: i32, offset: u64, len: u64) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// The next data or hole, as `whence` of `lseek` says.
    fn lseek(&self, file: File, offset: u64, whence: i32) -> Result<u64> {
        Err(Errno::NOSYS)
    }

    /// Copies from one file to another; how many bytes.
    fn copy_file_range(&self, by: Caller, from: (File, u64), to: (File, u64), len: u64) -> Result<u64> {
        Err(Errno::NOSYS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_way_to_the_kernel_and_back() {
        for d in [(8, 1), (0xfff, 0xfffff), (259, 0x12345)] {
            assert_eq!(split_dev(join_dev(d)), d);
        }
    }

    #[test]
    fn a_listing_takes_what_it_has_room_for_and_not_a_byte_more() {
        let mut buf = [0xff; 72];
        let mut l = Listing { into: &mut buf, len: 0 };
        assert!(l.add(7, 1, 8, b"name") && l.add(8, 2, 4, b"12345678") && !l.add(9, 3, 8, b"x"));
        assert_eq!(l.len, 64);
        assert_eq!(buf[24..32], *b"name\0\0\0\0");
    }
}
