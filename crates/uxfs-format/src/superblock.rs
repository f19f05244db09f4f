//! The superblock and the feature words (format facts, section 1).

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `XFSB`
pub const SB_MAGIC: u32 = 0x5846_5342;
/// Byte offset of the checksum.
pub const SB_CRC: usize = 224;

/// The superblock as it lies on disk; all of its sector beyond is zero.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Superblock {
    /// `XFSB`
    pub magicnum: U32,
    /// Bytes a block.
    pub blocksize: U32,
    /// Blocks of the data device.
    pub dblocks: U64,
    /// Blocks of the realtime device.
    pub rblocks: U64,
    /// Extents of the realtime device.
    pub rextents: U64,
    /// The volume's UUID, as users see it.
    pub uuid: [u8; 16],
    /// First block of the log; 0 if it lies on its own device.
    pub logstart: U64,
    /// Inode of the root directory.
    pub rootino: U64,
    /// Inode of the realtime bitmap.
    pub rbmino: U64,
    /// Inode of the realtime summary.
    pub rsumino: U64,
    /// Blocks a realtime extent.
    pub rextsize: U32,
    /// Blocks an allocation group.
    pub agblocks: U32,
    /// Allocation groups.
    pub agcount: U32,
    /// Blocks of the realtime bitmap.
    pub rbmblocks: U32,
    /// Blocks of the log.
    pub logblocks: U32,
    /// Version nibble and feature bits.
    pub versionnum: U16,
    /// Bytes a sector.
    pub sectsize: U16,
    /// Bytes an inode.
    pub inodesize: U16,
    /// Inodes a block.
    pub inopblock: U16,
    /// The label, zero padded.
    pub fname: [u8; 12],
    /// log2 of `blocksize`.
    pub blocklog: u8,
    /// log2 of `sectsize`.
    pub sectlog: u8,
    /// log2 of `inodesize`.
    pub inodelog: u8,
    /// log2 of `inopblock`.
    pub inopblog: u8,
    /// log2 of `agblocks`, rounded up.
    pub agblklog: u8,
    /// log2 of `rextents`.
    pub rextslog: u8,
    /// Non-zero while mkfs works.
    pub inprogress: u8,
    /// Most percent of the volume for inodes.
    pub imax_pct: u8,
    /// Inodes allocated.
    pub icount: U64,
    /// Of those, free.
    pub ifree: U64,
    /// Free data blocks.
    pub fdblocks: U64,
    /// Free realtime extents.
    pub frextents: U64,
    /// Inode of the user quota file.
    pub uquotino: U64,
    /// Inode of the group quota file.
    pub gquotino: U64,
    /// Quota flags.
    pub qflags: U16,
    /// Bit 0: read-only.
    pub flags: u8,
    /// Zero.
    pub shared_vn: u8,
    /// Blocks an inode chunk is aligned to.
    pub inoalignmt: U32,
    /// Stripe unit in blocks.
    pub unit: U32,
    /// Stripe width in blocks.
    pub width: U32,
    /// log2 of blocks a directory block.
    pub dirblklog: u8,
    /// log2 of the log's sector.
    pub logsectlog: u8,
    /// Bytes a sector of the log.
    pub logsectsize: U16,
    /// Stripe unit of the log in bytes; 0 or 1 for none.
    pub logsunit: U32,
    /// More feature bits.
    pub features2: U32,
    /// A mirror of `features2`.
    pub bad_features2: U32,
    /// Compatible features.
    pub features_compat: U32,
    /// Features that an ignorant program may only read.
    pub features_ro_compat: U32,
    /// Features that an ignorant program may not open.
    pub features_incompat: U32,
    /// Features of what is in the log.
    pub features_log_incompat: U32,
    /// Checksum of the sector.
    pub crc: [u8; 4],
    /// Blocks a sparse inode piece is aligned to.
    pub spino_align: U32,
    /// Inode of the project quota file.
    pub pquotino: U64,
    /// Last write's log position.
    pub lsn: U64,
    /// UUID in the metadata, if the feature says so.
    pub meta_uuid: [u8; 16],
}
const _: () = assert!(size_of::<Superblock>() == 264);
const _: () = assert!(std::mem::offset_of!(Superblock, fname) == 108);
const _: () = assert!(std::mem::offset_of!(Superblock, features2) == 200);
const _: () = assert!(std::mem::offset_of!(Superblock, crc) == SB_CRC);

impl Superblock {
    /// The UUID that the metadata bears: the first one, where the volume got another since.
    pub fn metadata_uuid(&self) -> [u8; 16] {
        // Volumes of version 4 have something else where later ones have features.
        let v5 = self.versionnum.get() & 0xf == 5;
        if v5 && self.features_incompat.get() & incompat::META_UUID != 0 { self.meta_uuid } else { self.uuid }
    }
}

/// Bits of `versionnum`.
pub mod version {
    /// Attributes are used.
    pub const ATTR: u16 = 0x10;
    /// Quota was on.
    pub const QUOTA: u16 = 0x40;
    /// Inode alignment is set.
    pub const ALIGN: u16 = 0x80;
    /// A stripe unit is set.
    pub const DALIGN: u16 = 0x100;
    /// Sector sizes are set.
    pub const SECTOR: u16 = 0x800;
    /// Case-insensitive ASCII names.
    pub const BORG: u16 = 0x4000;
    /// What mkfs.xfs writes without stripe and with 512-byte sectors.
    pub const V5_BASE: u16 = 0xb4a5;
    /// The log is of the second form.
    pub const LOGV2: u16 = 0x400;
    /// Directories of the second form: all that are left.
    pub const DIRV2: u16 = 0x2000;
    /// Flags of quota that group and project shared: in version 4 alone.
    pub const OLD_QFLAGS: u16 = 0x30;
    /// What came in their place: in version 5 alone.
    pub const NEW_QFLAGS: u16 = 0x780;
    /// `features2` counts.
    pub const MOREBITS: u16 = 0x8000;
}

/// Where the root of the metadata directory is named, if there is that feature: eight bytes.
pub const METADIRINO: usize = 264;

/// Bits of `features2`, for volumes of version 4.
pub mod features2 {
    /// Free blocks are counted in the groups.
    pub const LAZY_COUNT: u32 = 2;
    /// Attributes begin where data ends.
    pub const ATTR2: u32 = 8;
    /// Directory entries bear file types.
    pub const FTYPE: u32 = 0x200;
}

/// Bits of `features_ro_compat`.
pub mod ro_compat {
    /// Free inode tree.
    pub const FINOBT: u32 = 1;
    /// Reverse mapping tree.
    pub const RMAPBT: u32 = 2;
    /// Reference count tree.
    pub const REFLINK: u32 = 4;
    /// Inode tree block counts in the AGI.
    pub const INOBTCNT: u32 = 8;
}

/// Bits of `features_incompat`.
pub mod incompat {
    /// File type in directory entries.
    pub const FTYPE: u32 = 1;
    /// Sparse inode chunks.
    pub const SPINODES: u32 = 2;
    /// Metadata bears `meta_uuid`.
    pub const META_UUID: u32 = 4;
    /// Timestamps to 2486.
    pub const BIGTIME: u32 = 8;
    /// A repair was begun and not finished.
    pub const NEEDSREPAIR: u32 = 0x10;
    /// 64-bit extent counters.
    pub const NREXT64: u32 = 0x20;
    /// Log may hold exchange-range items.
    pub const EXCHRANGE: u32 = 0x40;
    /// Parent pointers.
    pub const PARENT: u32 = 0x80;
    /// Metadata directory.
    pub const METADIR: u32 = 0x100;
    /// Zoned realtime device.
    pub const ZONED: u32 = 0x200;
    /// Gaps in zones.
    pub const ZONE_GAPS: u32 = 0x400;
}

/// Bits of `features_log_incompat`.
pub mod log_incompat {
    /// The log may hold attribute intents.
    pub const XATTRS: u32 = 1;
}

/// Names of the feature bits, for refusals and for `uxfs info`: (bit, name).
pub const RO_COMPAT_NAMES: &[(u32, &str)] = &[(1, "finobt"), (2, "rmapbt"), (4, "reflink"), (8, "inobtcount"), (16, "verity")];
/// Names of the incompatible feature bits.
pub const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (1, "ftype"),
    (2, "sparse inodes"),
    (4, "metadata uuid"),
    (8, "bigtime"),
    (0x10, "needsrepair"),
    (0x20, "nrext64"),
    (0x40, "exchange-range"),
    (0x80, "parent pointers"),
    (0x100, "metadir"),
    (0x200, "zoned"),
    (0x400, "zone gaps"),
];

/// The names of the bits set in `bits`; bits without a name as hexadecimal.
pub fn names(bits: u32, table: &[(u32, &str)]) -> String {
    let mut out: Vec<String> = table.iter().filter(|(b, _)| bits & b != 0).map(|(_, n)| n.to_string()).collect();
    let known = table.iter().fold(0, |a, (b, _)| a | b);
    if bits & !known != 0 {
        out.push(format!("unknown bits {:#x}", bits & !known));
    }
    out.join(", ")
}
