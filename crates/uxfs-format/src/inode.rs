//! The inode core, its forks, and its mirror in the log (format facts, section 5).

use crate::bytes::*;
use crate::superblock::incompat;
use crate::*;

/// `IN`
pub const INODE_MAGIC: u16 = 0x494e;
/// Bytes of the core; the forks follow.
pub const CORE_SIZE: usize = 176;
/// The same in version 4.
pub const OLD_CORE_SIZE: usize = 100;
/// Byte offset of `di_flushiter` in versions 1 and 2: how often an inode went home.
pub const FLUSHES: usize = 30;
/// Byte offset of the checksum.
pub const INODE_CRC: usize = 100;
/// Byte offset of `di_next_unlinked`.
pub const NEXT_UNLINKED: usize = 96;
/// Byte offset of `di_lsn`.
pub const INODE_LSN: usize = 112;

/// Bits of `flags`.
pub mod flag {
    /// File data lies on the realtime device.
    pub const REALTIME: u16 = 1;
    /// Blocks beyond the end are wanted.
    pub const PREALLOC: u16 = 2;
    /// The realtime bitmap, of the newer form.
    pub const NEWRTBM: u16 = 4;
    /// May not change.
    pub const IMMUTABLE: u16 = 8;
    /// May only grow.
    pub const APPEND: u16 = 0x10;
    /// Writes are durable when they return.
    pub const SYNC: u16 = 0x20;
    /// Times of access are not kept.
    pub const NOATIME: u16 = 0x40;
    /// Left out of dumps.
    pub const NODUMP: u16 = 0x80;
    /// No symbolic links in the directory.
    pub const NOSYMLINKS: u16 = 0x400;
    /// Extent size hint is set.
    pub const EXTSIZE: u16 = 0x800;
    /// Left alone when files are put in order.
    pub const NODEFRAG: u16 = 0x2000;
    /// Files of the directory lie near each other.
    pub const FILESTREAM: u16 = 0x4000;
    /// New files lie on the realtime device.
    pub const RTINHERIT: u16 = 0x100;
    /// All of them.
    pub const ALL: u16 = 0x7fff;
    /// What a new inode takes over from its directory.
    pub const PROJINHERIT: u16 = 0x200;
    /// New files take the directory's extent size hint.
    pub const EXTSZINHERIT: u16 = 0x1000;
}
/// Bits of `flags2`.
pub mod flag2 {
    /// Data is to be mapped without a page cache.
    pub const DAX: u64 = 1;
    /// Blocks may be shared.
    pub const REFLINK: u64 = 2;
    /// CoW extent size hint is set.
    pub const COWEXTSIZE: u64 = 4;
    /// Timestamps count nanoseconds from 1901.
    pub const BIGTIME: u64 = 8;
    /// 64-bit extent counters.
    pub const NREXT64: u64 = 0x10;
    /// Internal to the volume.
    pub const METADATA: u64 = 0x20;
    /// All of them.
    pub const ALL: u64 = 0x3f;
}
/// File type bits of `mode`.
pub mod mode {
    /// The bits that hold the type.
    pub const FMT: u16 = 0o170000;
    /// Directory
    pub const DIR: u16 = 0o040000;
    /// Regular file
    pub const REG: u16 = 0o100000;
    /// Symbolic link
    pub const LNK: u16 = 0o120000;
    /// Character device
    pub const CHR: u16 = 0o020000;
    /// Block device
    pub const BLK: u16 = 0o060000;
    /// Named pipe
    pub const FIFO: u16 = 0o010000;
    /// Socket
    pub const SOCK: u16 = 0o140000;
}

/// How a fork is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Format {
    /// A device number.
    Dev = 0,
    /// The bytes themselves.
    Local = 1,
    /// Extent records.
    #[default]
    Extents = 2,
    /// Root of a bmbt.
    Btree = 3,
}

impl Format {
    /// The format of a number, if it is one.
    pub fn from_u8(v: u8) -> Option<Format> {
        Some(match v {
            0 => Format::Dev,
            1 => Format::Local,
            2 => Format::Extents,
            3 => Format::Btree,
            _ => return None,
        })
    }
}

/// A point in time: seconds from 1970 and nanoseconds within.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds from 1970, negative before.
    pub sec: i64,
    /// Nanoseconds, below 10⁹.
    pub nsec: u32,
}

impl Timestamp {
    fn decode(raw: u64, bigtime: bool) -> Timestamp {
        if bigtime {
            Timestamp { sec: (raw / 1_000_000_000) as i64 - (1 << 31), nsec: (raw % 1_000_000_000) as u32 }
        } else {
            Timestamp { sec: i64::from((raw >> 32) as i32), nsec: (raw as u32).min(999_999_999) }
        }
    }
    fn encode(self, bigtime: bool) -> u64 {
        if bigtime {
            let sec = self.sec.clamp(-(1 << 31), (u64::MAX / 1_000_000_000) as i64 - (1 << 31) - 1);
            (sec + (1 << 31)) as u64 * 1_000_000_000 + u64::from(self.nsec)
        } else {
            let sec = self.sec.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
            u64::from(sec as u32) << 32 | u64::from(self.nsec)
        }
    }
}

/// The inode core as plain numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Core {
    /// Type and permission bits; zero for a free inode.
    pub mode: u16,
    /// How the data fork is stored.
    pub format: Format,
    /// Metadata directory type, where that feature is.
    pub metatype: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// Project.
    pub projid: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub crtime: Timestamp,
    /// Bytes.
    pub size: u64,
    /// Blocks of both forks, bmbt included.
    pub nblocks: u64,
    /// Extent size hint in blocks.
    pub extsize: u32,
    /// Extents of the data fork.
    pub nextents: u64,
    /// Extents of the attribute fork.
    pub anextents: u32,
    /// Where the attribute fork begins, in 8 bytes behind the core; 0 for none.
    pub forkoff: u8,
    /// How the attribute fork is stored.
    pub aformat: Format,
    /// See [`flag`].
    pub flags: u16,
    /// Tells incarnations of one inode number apart.
    pub generation: u32,
    /// Next inode of the unlinked list.
    pub next_unlinked: u32,
    /// Counts changes.
    pub changecount: u64,
    /// Log position of the last write to disk.
    pub lsn: Lsn,
    /// See [`flag2`].
    pub flags2: u64,
    /// CoW extent size hint in blocks.
    pub cowextsize: u32,
    /// The inode's own number.
    pub ino: Ino,
}

impl Core {
    /// Reads a core that [`check`] found sound.
    pub fn decode(b: &[u8]) -> Core {
        // Inodes of versions 1 and 2 end before these.
        let (v1, v3) = (get8(b, 4) == 1, get8(b, 4) == 3);
        let late = |at: usize| if v3 { get64(b, at) } else { 0 };
        let flags2 = late(120);
        let (big, large) = (flags2 & flag2::BIGTIME != 0, flags2 & flag2::NREXT64 != 0);
        let time = |at| Timestamp::decode(get64(b, at), big);
        Core {
            mode: get16(b, 2),
            format: Format::from_u8(get8(b, 5)).unwrap_or_default(),
            metatype: if v3 { get16(b, 6) } else { 0 },
            uid: get32(b, 8),
            gid: get32(b, 12),
            nlink: if v1 { u32::from(get16(b, 6)) } else { get32(b, 16) },
            projid: if v1 { 0 } else { u32::from(get16(b, 20)) | u32::from(get16(b, 22)) << 16 },
            atime: time(32),
            mtime: time(40),
            ctime: time(48),
            crtime: if v3 { time(144) } else { time(48) },
            size: get64(b, 56),
            nblocks: get64(b, 64),
            extsize: get32(b, 72),
            nextents: if large { get64(b, 24) } else { u64::from(get32(b, 76)) },
            anextents: if large { get32(b, 76) } else { u32::from(get16(b, 80)) },
            forkoff: get8(b, 82),
            aformat: Format::from_u8(get8(b, 83)).unwrap_or_default(),
            flags: get16(b, 90),
            generation: get32(b, 92),
            next_unlinked: get32(b, NEXT_UNLINKED),
            changecount: late(104),
            lsn: Lsn(late(INODE_LSN)),
            flags2,
            cowextsize: (late(128) >> 32) as u32,
            ino: Ino(late(152)),
        }
    }

    /// Writes the core; the checksum is stamped by whoever writes the inode home.
    pub fn encode(&self, b: &mut [u8], meta_uuid: &[u8; 16]) {
        let (big, large) = (self.flags2 & flag2::BIGTIME != 0, self.flags2 & flag2::NREXT64 != 0);
        b[..CORE_SIZE].fill(0);
        put16(b, 0, INODE_MAGIC);
        put16(b, 2, self.mode);
        b[4] = 3;
        b[5] = self.format as u8;
        put16(b, 6, self.metatype);
        put32(b, 8, self.uid);
        put32(b, 12, self.gid);
        put32(b, 16, self.nlink);
        put16(b, 20, self.projid as u16);
        put16(b, 22, (self.projid >> 16) as u16);
        for (at, t) in [(32, self.atime), (40, self.mtime), (48, self.ctime), (144, self.crtime)] {
            put64(b, at, t.encode(big));
        }
        put64(b, 56, self.size);
        put64(b, 64, self.nblocks);
        put32(b, 72, self.extsize);
        if large {
            put64(b, 24, self.nextents);
            put32(b, 76, self.anextents);
        } else {
            put32(b, 76, self.nextents as u32);
            put16(b, 80, self.anextents as u16);
        }
        b[82] = self.forkoff;
        b[83] = self.aformat as u8;
        put16(b, 90, self.flags);
        put32(b, 92, self.generation);
        put32(b, NEXT_UNLINKED, self.next_unlinked);
        put64(b, 104, self.changecount);
        put64(b, INODE_LSN, self.lsn.0);
        put64(b, 120, self.flags2);
        put32(b, 128, self.cowextsize);
        put64(b, 152, self.ino.0);
        b[160..176].copy_from_slice(meta_uuid);
    }

    /// The type bits of the mode.
    pub fn kind(&self) -> u16 {
        self.mode & mode::FMT
    }
    /// Bytes of the data fork.
    pub fn data_fork_size(&self, g: &Geometry) -> usize {
        if self.forkoff == 0 { g.literal_area() } else { usize::from(self.forkoff) * 8 }
    }
    /// Bytes of the attribute fork; 0 for none.
    pub fn attr_fork_size(&self, g: &Geometry) -> usize {
        if self.forkoff == 0 { 0 } else { g.literal_area() - usize::from(self.forkoff) * 8 }
    }
}

/// Offset and width of every integer of the core, for the log's host-endian mirror. Times are added by their form.
const FIELDS: &[(usize, usize)] = &[
    (0, 2),
    (2, 2),
    (6, 2),
    (8, 4),
    (12, 4),
    (16, 4),
    (20, 2),
    (22, 2),
    (56, 8),
    (64, 8),
    (72, 4),
    (84, 4),
    (88, 2),
    (90, 2),
    (92, 4),
    (96, 4),
    (100, 4),
    (104, 8),
    (112, 8),
    (120, 8),
    (128, 4),
    (152, 8),
];

/// Turns a big-endian core into the log's little-endian mirror, or back; `flags2` decides the form of times and counters.
pub fn swap_for_log(b: &mut [u8], flags2: u64) {
    let Some(b) = b.get_mut(..CORE_SIZE) else { return };
    let mut swap = |at: usize, n: usize| match n {
        2 => put16(b, at, get16(b, at).swap_bytes()),
        4 => put32(b, at, get32(b, at).swap_bytes()),
        _ => put64(b, at, get64(b, at).swap_bytes()),
    };
    for &(at, n) in FIELDS {
        swap(at, n);
    }
    for at in [32, 40, 48, 144] {
        if flags2 & flag2::BIGTIME != 0 {
            swap(at, 8);
        } else {
            swap(at, 4);
            swap(at + 4, 4);
        }
    }
    if flags2 & flag2::NREXT64 != 0 {
        swap(24, 8);
        swap(76, 4);
    } else {
        swap(FLUSHES, 2);
        swap(76, 4);
        swap(80, 2);
    }
}

/// Checks an inode of `g.inodesize` bytes; `ino` if its number is known.
///
/// # Errors
/// What does not hold. The checksum is the caller's to check, since a cluster is read as a whole.
pub fn check(b: &[u8], ino: Option<Ino>, g: &Geometry) -> Result<(), &'static str> {
    if get16(b, 0) != INODE_MAGIC {
        return Err("magic number is not IN");
    }
    if if g.v5() { get8(b, 4) != 3 } else { !matches!(get8(b, 4), 1 | 2) } {
        return Err("version is not that of the volume");
    }
    if g.v5() && ino.is_some_and(|i| i.0 != get64(b, 152)) {
        return Err("bears another inode's number");
    }
    if g.v5() && slice(b, 160, 16) != g.meta_uuid {
        return Err("bears another volume's UUID");
    }
    if g.v5() && get32(b, NEXT_UNLINKED) == 0 {
        return Err("next unlinked inode is 0");
    }
    let m = get16(b, 2);
    if m == 0 {
        return Ok(());
    }
    let (Some(format), Some(aformat)) = (Format::from_u8(get8(b, 5)), Format::from_u8(get8(b, 83))) else {
        return Err("fork format is unknown");
    };
    let c = Core::decode(b);
    let flags2 = c.flags2;
    if flags2 & flag2::BIGTIME != 0 && !g.has(incompat::BIGTIME) {
        return Err("bigtime without the feature");
    }
    if flags2 & flag2::NREXT64 != 0 && !g.has(incompat::NREXT64) {
        return Err("nrext64 without the feature");
    }
    let dsize = c.data_fork_size(g);
    if usize::from(c.forkoff) * 8 >= g.literal_area() {
        return Err("attribute fork begins past the end");
    }
    let fits = |f: Format, n: u64, size: usize| match f {
        Format::Extents => n <= (size / extent::EXTENT_SIZE) as u64,
        Format::Local | Format::Dev => n == 0,
        Format::Btree => n > 0,
    };
    if !fits(format, c.nextents, dsize) || !fits(aformat, u64::from(c.anextents), c.attr_fork_size(g)) {
        return Err("extent count does not fit the fork");
    }
    if c.forkoff == 0 && (c.anextents != 0 || aformat == Format::Btree) {
        return Err("attribute extents without a fork");
    }
    if c.nextents.saturating_add(u64::from(c.anextents)) > c.nblocks || c.nblocks > g.dblocks {
        return Err("block count does not fit");
    }
    if c.size >> 63 != 0 {
        return Err("size is negative");
    }
    let ok = match m & mode::FMT {
        mode::REG => matches!(format, Format::Extents | Format::Btree),
        mode::DIR => format != Format::Dev && c.size > 0 && (format != Format::Local || c.size <= dsize as u64),
        mode::LNK => match format {
            Format::Local => c.size > 0 && c.size <= dsize as u64,
            Format::Extents => c.size > 0 && c.size <= 1024,
            _ => false,
        },
        mode::CHR | mode::BLK | mode::FIFO | mode::SOCK => format == Format::Dev,
        _ => return Err("file type is unknown"),
    };
    if !ok {
        return Err("data fork's format or size does not fit the file type");
    }
    if aformat == Format::Dev && c.forkoff != 0 {
        return Err("attribute fork's format is unknown");
    }
    if flags2 & flag2::REFLINK != 0 && m & mode::FMT != mode::REG {
        return Err("shared blocks in something else than a file");
    }
    Ok(())
}

/// Writes a free inode as allocation of a chunk leaves it.
pub fn init_free(b: &mut [u8], ino: Ino, generation: u32, g: &Geometry) {
    b.fill(0);
    let core = Core { ino, generation, next_unlinked: NULL_AG, aformat: Format::Dev, format: Format::Dev, ..Core::default() };
    core.encode(b, &g.meta_uuid);
    crc::stamp(b, INODE_CRC);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_mirror_swaps_back_to_itself() {
        for flags2 in [0, flag2::BIGTIME, flag2::NREXT64 | flag2::BIGTIME] {
            let core = Core {
                mode: 0o100644,
                uid: 1000,
                size: 12345,
                nextents: 3,
                anextents: 1,
                flags2,
                atime: Timestamp { sec: 1_700_000_000, nsec: 7 },
                mtime: Timestamp { sec: -5, nsec: 999_999_999 },
                ..Core::default()
            };
            let mut b = vec![0; CORE_SIZE];
            core.encode(&mut b, &[1; 16]);
            assert_eq!(Core::decode(&b), core);
            let before = b.clone();
            swap_for_log(&mut b, flags2);
            assert_ne!(b, before);
            swap_for_log(&mut b, flags2);
            assert_eq!(b, before);
        }
    }
}
