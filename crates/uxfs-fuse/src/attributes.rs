//! What the kernel calls things, and what the engine calls them.

use fuser::{FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uxfs::{Stat, Timestamp};

/// A time in the engine's terms.
pub fn timestamp(t: SystemTime) -> Timestamp {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => Timestamp { sec: d.as_secs() as i64, nsec: d.subsec_nanos() },
        Err(e) => {
            let d = e.duration();
            match d.subsec_nanos() {
                0 => Timestamp { sec: -(d.as_secs() as i64), nsec: 0 },
                n => Timestamp { sec: -(d.as_secs() as i64) - 1, nsec: 1_000_000_000 - n },
            }
        }
    }
}

fn system_time(t: Timestamp) -> SystemTime {
    let base = match t.sec {
        s if s >= 0 => UNIX_EPOCH + Duration::from_secs(s as u64),
        s => UNIX_EPOCH - Duration::from_secs(s.unsigned_abs()),
    };
    base + Duration::from_nanos(u64::from(t.nsec))
}

/// A device number as the kernel passes it to FUSE.
pub fn join_dev((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & 0xfff00) << 12
}

/// Major and minor number of what the kernel passes.
pub fn split_dev(dev: u32) -> (u32, u32) {
    ((dev >> 8) & 0xfff, dev & 0xff | (dev >> 12) & 0xfff00)
}

/// A type from its mode; `None` for what no file has.
pub fn kind(mode: u16) -> Option<FileType> {
    Some(match mode & 0o170_000 {
        0o100_000 => FileType::RegularFile,
        0o040_000 => FileType::Directory,
        0o120_000 => FileType::Symlink,
        0o010_000 => FileType::NamedPipe,
        0o020_000 => FileType::CharDevice,
        0o060_000 => FileType::BlockDevice,
        0o140_000 => FileType::Socket,
        _ => return None,
    })
}

/// A type from a directory entry's; regular where the entry does not tell.
pub fn entry_kind(ftype: u8) -> FileType {
    match ftype {
        2 => FileType::Directory,
        3 => FileType::CharDevice,
        4 => FileType::BlockDevice,
        5 => FileType::NamedPipe,
        6 => FileType::Socket,
        7 => FileType::Symlink,
        _ => FileType::RegularFile,
    }
}

/// Attributes as the kernel wants them, under the node number `node`.
pub fn file_attr(s: &Stat, node: u64, blksize: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: s.size,
        blocks: s.blocks,
        atime: system_time(s.atime),
        mtime: system_time(s.mtime),
        ctime: system_time(s.ctime),
        crtime: system_time(s.crtime),
        kind: kind(s.mode).unwrap_or(FileType::RegularFile),
        perm: s.mode & 0o7777,
        nlink: s.nlink,
        uid: s.uid,
        gid: s.gid,
        rdev: join_dev(s.rdev),
        blksize,
        flags: 0,
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
    fn times_before_1970_keep_their_nanoseconds() {
        for t in [Timestamp { sec: -1, nsec: 999_999_999 }, Timestamp { sec: -5, nsec: 0 }, Timestamp { sec: 7, nsec: 1 }] {
            assert_eq!(timestamp(system_time(t)), t);
        }
    }
}
