//! Blocks and records of the btrees (format facts, sections 4 and 6).

use crate::bytes::*;
use crate::*;

/// `AB3B`
pub const BNOBT_MAGIC: u32 = 0x4142_3342;
/// `AB3C`
pub const CNTBT_MAGIC: u32 = 0x4142_3343;
/// `IAB3`
pub const INOBT_MAGIC: u32 = 0x4941_4233;
/// `FIB3`
pub const FINOBT_MAGIC: u32 = 0x4649_4233;
/// `RMB3`
pub const RMAPBT_MAGIC: u32 = 0x524d_4233;
/// `R3FC`
pub const REFCOUNTBT_MAGIC: u32 = 0x5233_4643;
/// `BMA3`
pub const BMBT_MAGIC: u32 = 0x424d_4133;
/// Bytes of a block's header in trees of a group.
pub const SHORT_HEADER: usize = 56;
/// Bytes of a block's header in a bmbt.
pub const LONG_HEADER: usize = 72;
/// Byte offset of the checksum, short form.
pub const SHORT_CRC: usize = 52;
/// Byte offset of the owner, long form.
pub const LONG_OWNER: usize = 56;
/// Byte offset of the checksum, long form.
pub const LONG_CRC: usize = 64;
/// No tree is higher.
pub const MAX_LEVELS: usize = 9;

/// Which tree a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TreeKind {
    /// Free space by place.
    Bno,
    /// Free space by size.
    Cnt,
    /// Inode chunks.
    Ino,
    /// Inode chunks with free inodes.
    Fino,
    /// Owners of blocks.
    Rmap,
    /// Shared and staged blocks.
    Refcount,
    /// Extents of a fork.
    Bmap,
}

/// Sizes of a tree's parts.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Magic number of its blocks.
    pub magic: u32,
    /// Bytes a record.
    pub rec: usize,
    /// Bytes a key.
    pub key: usize,
    /// Bytes a pointer: 4 within a group, 8 across the volume.
    pub ptr: usize,
    /// Bytes of a block's header.
    pub header: usize,
    /// Its name in messages.
    pub name: &'static str,
}

impl TreeKind {
    /// The sizes of this tree's parts.
    pub const fn shape(self) -> Shape {
        let (magic, rec, key, name) = match self {
            TreeKind::Bno => (BNOBT_MAGIC, 8, 8, "bnobt"),
            TreeKind::Cnt => (CNTBT_MAGIC, 8, 8, "cntbt"),
            TreeKind::Ino => (INOBT_MAGIC, 16, 4, "inobt"),
            TreeKind::Fino => (FINOBT_MAGIC, 16, 4, "finobt"),
            TreeKind::Rmap => (RMAPBT_MAGIC, 24, 40, "rmapbt"),
            TreeKind::Refcount => (REFCOUNTBT_MAGIC, 12, 4, "refcountbt"),
            TreeKind::Bmap => return Shape { magic: BMBT_MAGIC, rec: 16, key: 8, ptr: 8, header: LONG_HEADER, name: "bmbt" },
        };
        Shape { magic, rec, key, ptr: 4, header: SHORT_HEADER, name }
    }
}

/// Magic numbers of version 4, which has only these trees.
const OLD: [(u32, TreeKind); 4] =
    [(0x4142_5442, TreeKind::Bno), (0x4142_5443, TreeKind::Cnt), (0x4941_4254, TreeKind::Ino), (0x424d_4150, TreeKind::Bmap)];

/// The tree of a block with a magic number of version 4.
pub fn old_kind(b: &[u8]) -> Option<TreeKind> {
    OLD.iter().find(|o| o.0 == get32(b, 0)).map(|o| o.1)
}

impl TreeKind {
    /// The sizes of this tree's parts in a volume: headers of version 4 are shorter.
    pub fn shape_in(self, g: &Geometry) -> Shape {
        let s = self.shape();
        match OLD.iter().find(|o| o.1 == self) {
            Some((magic, _)) if !g.v5() => Shape { magic: *magic, header: if s.ptr == 4 { 16 } else { 24 }, ..s },
            _ => s,
        }
    }
}

impl Shape {
    /// Most records a leaf, or keys a node, of `blocksize` bytes holds.
    pub fn max(&self, blocksize: u32, level: u16) -> usize {
        let room = blocksize as usize - self.header;
        if level == 0 { room / self.rec } else { room / (self.key + self.ptr) }
    }
    /// Offset of record `i` of a leaf.
    pub fn rec_at(&self, i: usize) -> usize {
        self.header + i * self.rec
    }
    /// Offset of key `i` of a node.
    pub fn key_at(&self, i: usize) -> usize {
        self.header + i * self.key
    }
    /// Offset of pointer `i` of a node of `blocksize` bytes; pointers follow the room for all keys.
    pub fn ptr_at(&self, blocksize: u32, i: usize) -> usize {
        self.header + self.max(blocksize, 1) * self.key + i * self.ptr
    }
    /// Reads pointer `i`.
    pub fn ptr_get(&self, b: &[u8], blocksize: u32, i: usize) -> u64 {
        let at = self.ptr_at(blocksize, i);
        if self.ptr == 4 { u64::from(get32(b, at)) } else { get64(b, at) }
    }
    /// Byte offset of the checksum.
    pub fn crc(&self) -> usize {
        if self.ptr == 4 { SHORT_CRC } else { LONG_CRC }
    }
    /// Writes a fresh header: no records, no siblings.
    pub fn init(&self, b: &mut [u8], level: u16, daddr: DiskAddr, owner: u64, g: &Geometry) {
        b.fill(0);
        put32(b, 0, self.magic);
        put16(b, 4, level);
        b[8..if self.ptr == 4 { 16 } else { 24 }].fill(0xff);
        if self.ptr == 4 {
            put64(b, 16, daddr.0);
            b[32..48].copy_from_slice(&g.meta_uuid);
            put32(b, 48, owner as u32);
        } else {
            put64(b, 24, daddr.0);
            b[40..56].copy_from_slice(&g.meta_uuid);
            put64(b, 56, owner);
        }
    }
    /// Left sibling, or `None`.
    pub fn left(&self, b: &[u8]) -> Option<u64> {
        if self.ptr == 4 { short(get32(b, 8)) } else { long(get64(b, 8)) }
    }
    /// Right sibling, or `None`.
    pub fn right(&self, b: &[u8]) -> Option<u64> {
        if self.ptr == 4 { short(get32(b, 12)) } else { long(get64(b, 16)) }
    }
    /// Sets the left sibling.
    pub fn set_left(&self, b: &mut [u8], p: Option<u64>) {
        if self.ptr == 4 { put32(b, 8, p.map_or(NULL_AG, |p| p as u32)) } else { put64(b, 8, p.unwrap_or(NULL_FS)) }
    }
    /// Sets the right sibling.
    pub fn set_right(&self, b: &mut [u8], p: Option<u64>) {
        if self.ptr == 4 { put32(b, 12, p.map_or(NULL_AG, |p| p as u32)) } else { put64(b, 16, p.unwrap_or(NULL_FS)) }
    }
}

fn short(v: u32) -> Option<u64> {
    (v != NULL_AG).then_some(u64::from(v))
}
fn long(v: u64) -> Option<u64> {
    (v != NULL_FS).then_some(v)
}

/// Level of a block; 0 for a leaf.
pub fn level(b: &[u8]) -> u16 {
    get16(b, 4)
}
/// Records or keys in a block.
pub fn numrecs(b: &[u8]) -> usize {
    usize::from(get16(b, 6))
}
/// Sets the number of records.
pub fn set_numrecs(b: &mut [u8], n: usize) {
    put16(b, 6, n as u16);
}

/// A free extent: record of bnobt and cntbt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FreeRec {
    /// First block.
    pub start: u32,
    /// Blocks.
    pub len: u32,
}

/// An inode chunk: record of inobt and finobt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InoRec {
    /// First inode of the chunk.
    pub startino: AgIno,
    /// Bit i set: inodes 4i to 4i+3 do not exist.
    pub holemask: u16,
    /// Inodes that exist.
    pub count: u8,
    /// Of those, free.
    pub freecount: u8,
    /// Bit set: free, or does not exist.
    pub free: u64,
}

impl InoRec {
    /// Reads a record of a volume with (`sparse`) or without sparse inodes.
    pub fn decode(b: &[u8], sparse: bool) -> InoRec {
        let startino = AgIno(get32(b, 0));
        let free = get64(b, 8);
        if sparse {
            InoRec { startino, holemask: get16(b, 4), count: get8(b, 6), freecount: get8(b, 7), free }
        } else {
            InoRec { startino, holemask: 0, count: 64, freecount: get32(b, 4).min(255) as u8, free }
        }
    }
    /// Writes a record.
    pub fn encode(&self, b: &mut [u8], sparse: bool) {
        put32(b, 0, self.startino.0);
        if sparse {
            put16(b, 4, self.holemask);
            b[6] = self.count;
            b[7] = self.freecount;
        } else {
            put32(b, 4, u32::from(self.freecount));
        }
        put64(b, 8, self.free);
    }
    /// The bits of inodes that do not exist.
    pub fn hole_bits(&self) -> u64 {
        (0..16).filter(|i| self.holemask >> i & 1 != 0).fold(0, |a, i| a | 0xf << (4 * i))
    }
    /// The bits of inodes that exist and are free.
    pub fn really_free(&self) -> u64 {
        self.free & !self.hole_bits()
    }
}

/// A shared or staged extent: record of the refcountbt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefcountRec {
    /// Staged for copy-on-write, by no file yet.
    pub cow: bool,
    /// First block.
    pub start: u32,
    /// Blocks.
    pub len: u32,
    /// Owners; 1 if `cow`.
    pub count: u32,
}

/// An owner of blocks: record of the rmapbt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmapRec {
    /// First block.
    pub start: u32,
    /// Blocks; bit 31 is never set on a sound volume.
    pub len: u32,
    /// Inode, or one of [`rmap_owner`].
    pub owner: u64,
    /// File block, with the bits of [`rmap_flag`].
    pub offset: u64,
}

impl RmapRec {
    /// Reads a record.
    pub fn decode(b: &[u8]) -> RmapRec {
        RmapRec { start: get32(b, 0), len: get32(b, 4), owner: get64(b, 8), offset: get64(b, 16) }
    }
    /// Writes it.
    pub fn encode(&self, b: &mut [u8]) {
        put32(b, 0, self.start);
        put32(b, 4, self.len);
        put64(b, 8, self.owner);
        put64(b, 16, self.offset);
    }
    /// First block behind it; the last number there is where a damaged record reaches beyond.
    pub fn end(&self) -> u32 {
        self.start.saturating_add(self.len)
    }
    /// What the record of the next blocks has as offset, if the two go on in one extent.
    pub fn next_offset(&self) -> u64 {
        if self.counts_offsets() { self.offset.wrapping_add(u64::from(self.len)) } else { self.offset }
    }
    /// Records are in this order; whether an extent is written plays no part.
    pub fn order(&self) -> (u32, u64, u64) {
        (self.start, self.owner, self.offset & !rmap_flag::UNWRITTEN)
    }
    /// The order of its last block.
    pub fn last_order(&self) -> (u32, u64, u64) {
        let last = self.len.saturating_sub(1);
        let (start, owner, offset) = self.order();
        (start.saturating_add(last), owner, if self.counts_offsets() { offset.wrapping_add(u64::from(last)) } else { offset })
    }
    /// True for extents of files, which have a place in them.
    pub fn counts_offsets(&self) -> bool {
        !rmap_owner::is_metadata(self.owner) && self.offset & rmap_flag::BMBT == 0
    }
}

/// Owners that are no inodes.
pub mod rmap_owner {
    /// Nobody: the owner is taken care of elsewhere.
    pub const NULL: u64 = -1i64 as u64;
    /// Whoever it is.
    pub const UNKNOWN: u64 = -2i64 as u64;
    /// Headers of the group.
    pub const FS: u64 = -3i64 as u64;
    /// The log.
    pub const LOG: u64 = -4i64 as u64;
    /// Free list, bnobt, cntbt, rmapbt.
    pub const AG: u64 = -5i64 as u64;
    /// inobt and finobt.
    pub const INOBT: u64 = -6i64 as u64;
    /// Inode chunks.
    pub const INODES: u64 = -7i64 as u64;
    /// refcountbt.
    pub const REFCOUNT: u64 = -8i64 as u64;
    /// Staged for copy-on-write.
    pub const COW: u64 = -9i64 as u64;

    /// True if `owner` is none of the inodes.
    pub fn is_metadata(owner: u64) -> bool {
        (owner as i64) < 0
    }
}

/// Bits in the offset of an rmapbt record.
pub mod rmap_flag {
    /// In the attribute fork.
    pub const ATTR_FORK: u64 = 1 << 63;
    /// A block of the extent tree.
    pub const BMBT: u64 = 1 << 62;
    /// Unwritten; not a part of keys.
    pub const UNWRITTEN: u64 = 1 << 61;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_those_of_four_kib_blocks() {
        let m = |k: TreeKind, l| k.shape().max(4096, l);
        assert_eq!((m(TreeKind::Bno, 0), m(TreeKind::Bno, 1)), (505, 336));
        assert_eq!((m(TreeKind::Ino, 0), m(TreeKind::Ino, 1)), (252, 505));
        assert_eq!((m(TreeKind::Rmap, 0), m(TreeKind::Rmap, 1)), (168, 91));
        assert_eq!((m(TreeKind::Refcount, 0), m(TreeKind::Refcount, 1)), (336, 505));
        assert_eq!((m(TreeKind::Bmap, 0), m(TreeKind::Bmap, 1)), (251, 251));
    }

    #[test]
    fn holes_are_not_free_inodes() {
        let r = InoRec { startino: AgIno(64), holemask: 0xff00, count: 32, freecount: 2, free: 0xffff_ffff_0000_0003 };
        assert_eq!(r.really_free(), 3);
        let mut b = [0; 16];
        r.encode(&mut b, true);
        assert_eq!(InoRec::decode(&b, true), r);
    }
}
