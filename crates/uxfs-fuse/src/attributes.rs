//! What the kernel calls things, and what the engine calls them.

use uxfs::{SetAttr, Stat, Timestamp};
use uxfs_transport::{Attr, Change, Time, When};

/// The root's node number in FUSE.
const ROOT: u64 = 1;

/// Which inodes nodes are, and what else all of them share.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// The root's inode.
    pub root: u64,
    /// Bytes that files like to be read and written by.
    pub blksize: u32,
}

impl Numbers {
    /// The inode of a node.
    pub fn ino(&self, node: u64) -> u64 {
        if node == ROOT { self.root } else { node }
    }

    /// The node of an inode.
    pub fn node(&self, ino: u64) -> u64 {
        if ino == self.root { ROOT } else { ino }
    }

    /// Attributes as the kernel wants them.
    pub fn attr(&self, s: &Stat) -> Attr {
        let time = |t: Timestamp| Time { sec: t.sec, nsec: t.nsec };
        Attr {
            node: self.node(s.ino),
            size: s.size,
            blocks: s.blocks,
            atime: time(s.atime),
            mtime: time(s.mtime),
            ctime: time(s.ctime),
            btime: time(s.crtime),
            mode: u32::from(s.mode),
            nlink: s.nlink,
            uid: s.uid,
            gid: s.gid,
            rdev: s.rdev,
            blksize: self.blksize,
        }
    }
}

/// A change in the engine's terms, where it is `now`.
pub fn change(c: &Change, now: impl Fn() -> Timestamp) -> SetAttr {
    let when = |w: When| match w {
        When::At(t) => Timestamp { sec: t.sec, nsec: t.nsec },
        When::Now => now(),
    };
    SetAttr {
        mode: c.mode.map(|m| m as u16 & 0o7777),
        uid: c.uid,
        gid: c.gid,
        size: c.size,
        atime: c.atime.map(when),
        mtime: c.mtime.map(when),
    }
}

/// A type as `d_type` says it from a directory entry's; regular where the entry does not tell.
pub fn entry_kind(ftype: u8) -> u32 {
    match ftype {
        2 => 0o04,
        3 => 0o02,
        4 => 0o06,
        5 => 0o01,
        6 => 0o14,
        7 => 0o12,
        _ => 0o10,
    }
}
