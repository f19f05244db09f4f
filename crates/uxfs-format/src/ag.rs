//! Headers of an allocation group: AGF, AGI, AGFL (format facts, sections 2 and 3).

use crate::Geometry;
use crate::bytes::{get32, put32};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `XAGF`
pub const AGF_MAGIC: u32 = 0x5841_4746;
/// `XAGI`
pub const AGI_MAGIC: u32 = 0x5841_4749;
/// `XAFL`
pub const AGFL_MAGIC: u32 = 0x5841_464c;
/// Byte offsets of the checksums.
pub const AGF_CRC: usize = 216;
/// Byte offset of the AGI's checksum.
pub const AGI_CRC: usize = 312;
/// Byte offset of the AGFL's checksum.
pub const AGFL_CRC: usize = 32;
/// Bytes of the AGFL's header; block numbers follow.
pub const AGFL_HEADER: usize = 36;
/// Hash buckets of unlinked inodes.
pub const UNLINKED_BUCKETS: usize = 64;

/// Free space header.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Agf {
    /// `XAGF`
    pub magicnum: U32,
    /// 1
    pub versionnum: U32,
    /// Number of the group.
    pub seqno: U32,
    /// Blocks of the group.
    pub length: U32,
    /// Roots of bnobt, cntbt and rmapbt.
    pub roots: [U32; 3],
    /// Levels of the same.
    pub levels: [U32; 3],
    /// First used slot of the AGFL.
    pub flfirst: U32,
    /// Last used slot of the AGFL.
    pub fllast: U32,
    /// Blocks on the AGFL.
    pub flcount: U32,
    /// Free blocks, without those on the AGFL.
    pub freeblks: U32,
    /// Longest free extent in blocks.
    pub longest: U32,
    /// Blocks of bnobt, cntbt and rmapbt beyond their roots.
    pub btreeblks: U32,
    /// UUID of the metadata.
    pub uuid: [u8; 16],
    /// Blocks of the rmapbt.
    pub rmap_blocks: U32,
    /// Blocks of the refcountbt.
    pub refcount_blocks: U32,
    /// Root of the refcountbt.
    pub refcount_root: U32,
    /// Levels of the refcountbt.
    pub refcount_level: U32,
    /// Zero.
    pub spare: [U64; 14],
    /// Last write's log position.
    pub lsn: U64,
    /// Checksum of the sector.
    pub crc: [u8; 4],
    /// Zero.
    pub spare2: U32,
}
const _: () = assert!(size_of::<Agf>() == 224);
const _: () = assert!(std::mem::offset_of!(Agf, crc) == AGF_CRC);

/// Inode header.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Agi {
    /// `XAGI`
    pub magicnum: U32,
    /// 1
    pub versionnum: U32,
    /// Number of the group.
    pub seqno: U32,
    /// Blocks of the group.
    pub length: U32,
    /// Inodes allocated.
    pub count: U32,
    /// Root of the inobt.
    pub root: U32,
    /// Levels of the inobt.
    pub level: U32,
    /// Free inodes.
    pub freecount: U32,
    /// Last chunk allocated.
    pub newino: U32,
    /// Unused.
    pub dirino: U32,
    /// Heads of the unlinked lists.
    pub unlinked: [U32; UNLINKED_BUCKETS],
    /// UUID of the metadata.
    pub uuid: [u8; 16],
    /// Checksum of the sector.
    pub crc: [u8; 4],
    /// Zero.
    pub pad32: U32,
    /// Last write's log position.
    pub lsn: U64,
    /// Root of the finobt.
    pub free_root: U32,
    /// Levels of the finobt.
    pub free_level: U32,
    /// Blocks of the inobt.
    pub iblocks: U32,
    /// Blocks of the finobt.
    pub fblocks: U32,
}
const _: () = assert!(size_of::<Agi>() == 344);
const _: () = assert!(std::mem::offset_of!(Agi, crc) == AGI_CRC);

/// Bytes of an AGFL's header; in version 4 it has none.
fn agfl_header(g: &Geometry) -> usize {
    if g.v5() { AGFL_HEADER } else { 0 }
}
/// Slots of an AGFL in a sector.
pub fn agfl_slots(g: &Geometry) -> u32 {
    (g.sectsize - agfl_header(g) as u32) / 4
}
/// Block number in slot `i` of an AGFL.
pub fn agfl_get(g: &Geometry, b: &[u8], i: u32) -> u32 {
    get32(b, agfl_header(g) + 4 * i as usize)
}
/// Sets slot `i` of an AGFL.
pub fn agfl_put(b: &mut [u8], i: u32, agbno: u32) {
    put32(b, AGFL_HEADER + 4 * i as usize, agbno);
}
