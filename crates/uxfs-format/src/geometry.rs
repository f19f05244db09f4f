//! What the superblock says about sizes, as plain numbers, and the conversions between units.

use crate::superblock::{self, Superblock, features2, incompat, ro_compat, version};
use crate::verify::Corruption;
use crate::*;
use std::ops::Range;
use zerocopy::FromBytes;

/// Sizes and features of a volume; does not change while it is open, except by growing.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Bytes a block.
    pub blocksize: u32,
    /// log2 of `blocksize`.
    pub blocklog: u8,
    /// Blocks of the volume.
    pub dblocks: u64,
    /// Blocks a group.
    pub agblocks: u32,
    /// log2 of `agblocks`, rounded up.
    pub agblklog: u8,
    /// Groups.
    pub agcount: u32,
    /// Bytes a sector.
    pub sectsize: u32,
    /// Bytes an inode.
    pub inodesize: u32,
    /// Inodes a block.
    pub inopblock: u32,
    /// log2 of `inopblock`.
    pub inopblog: u8,
    /// Blocks an inode chunk is aligned to.
    pub inoalignmt: u32,
    /// Blocks a sparse inode piece is aligned to.
    pub spino_align: u32,
    /// log2 of blocks a directory block.
    pub dirblklog: u8,
    /// First block of the log; 0 if external.
    pub logstart: FsBlock,
    /// Blocks of the log.
    pub logblocks: u32,
    /// Bytes a sector of the log.
    pub logsectsize: u32,
    /// Log stripe unit in bytes, 0 or 1 for none.
    pub logsunit: u32,
    /// Root directory.
    pub rootino: Ino,
    /// UUID of the volume, in log records.
    pub uuid: [u8; 16],
    /// UUID in the metadata.
    pub meta_uuid: [u8; 16],
    /// `versionnum`.
    pub versionnum: u16,
    /// `features_ro_compat`.
    pub ro_compat: u32,
    /// `features_incompat`.
    pub incompat: u32,
    /// Most percent of blocks in inodes.
    pub imax_pct: u8,
    /// Stripe unit in blocks.
    pub unit: u32,
    /// Stripe width in blocks.
    pub width: u32,
    /// Blocks of the volume before it grew, while it does; else `dblocks`.
    pub growing_from: u64,
}

fn bad(what: &'static str) -> Corruption {
    Corruption { structure: "superblock", place: DiskAddr(0), what }
}

impl Geometry {
    /// Reads and validates a superblock sector.
    ///
    /// # Errors
    /// [`Corruption`] that names the first rule that does not hold. Features are not judged here.
    pub fn parse(sector: &[u8]) -> Result<(Geometry, Superblock), Corruption> {
        let Ok((sb, _)) = Superblock::read_from_prefix(sector) else { return Err(bad("is cut short")) };
        if sb.magicnum.get() != superblock::SB_MAGIC {
            return Err(bad("magic number is not XFSB: this is no XFS volume"));
        }
        let ver = sb.versionnum.get();
        let v5 = match ver & 0xf {
            5 => true,
            4 if ver & version::DIRV2 != 0 => false,
            _ => return Err(bad("version is neither 5 nor 4 with directories of the second form")),
        };
        let sectsize = u32::from(sb.sectsize.get());
        if !(512..=32768).contains(&sectsize) || !sectsize.is_power_of_two() || 1 << sb.sectlog.min(31) != sectsize {
            return Err(bad("sector size is out of range"));
        }
        if let Some(full) = sector.get(..sectsize as usize)
            && v5
            && !crc::verify(full, superblock::SB_CRC)
        {
            return Err(bad("checksum does not match"));
        }
        // What the rules below compute with: a shift by more bits than a number has is no number.
        if sb.blocklog > 16 || sb.agblklog > 31 || sb.inopblog > 16 || sb.dirblklog > 16 {
            return Err(bad("a logarithm is out of range"));
        }
        // Version 4 has one feature that counts here, in another word.
        let typed = ver & version::MOREBITS != 0 && sb.features2.get() & features2::FTYPE != 0;
        let (ro_compat, incompat) = match v5 {
            true => (sb.features_ro_compat.get(), sb.features_incompat.get()),
            false => (0, if typed { incompat::FTYPE } else { 0 }),
        };
        let g = Geometry {
            blocksize: sb.blocksize.get(),
            blocklog: sb.blocklog,
            dblocks: sb.dblocks.get(),
            agblocks: sb.agblocks.get(),
            agblklog: sb.agblklog,
            agcount: sb.agcount.get(),
            sectsize,
            inodesize: u32::from(sb.inodesize.get()),
            inopblock: u32::from(sb.inopblock.get()),
            inopblog: sb.inopblog,
            inoalignmt: sb.inoalignmt.get(),
            spino_align: sb.spino_align.get(),
            dirblklog: sb.dirblklog,
            logstart: FsBlock(sb.logstart.get()),
            logblocks: sb.logblocks.get(),
            logsectsize: if ver & version::SECTOR != 0 { u32::from(sb.logsectsize.get()) } else { 512 },
            logsunit: sb.logsunit.get(),
            rootino: Ino(sb.rootino.get()),
            uuid: sb.uuid,
            meta_uuid: sb.metadata_uuid(),
            versionnum: ver,
            ro_compat,
            incompat,
            imax_pct: sb.imax_pct,
            unit: sb.unit.get(),
            width: sb.width.get(),
            growing_from: sb.dblocks.get(),
        };
        g.validate(&sb)?;
        Ok((g, sb))
    }

    fn validate(&self, sb: &Superblock) -> Result<(), Corruption> {
        let log2 = |v: u32, l: u8| v.is_power_of_two() && v.trailing_zeros() == u32::from(l);
        let checks: &[(bool, &'static str)] = &[
            (
                (if self.v5() { 1024 } else { 512 }..=65536).contains(&self.blocksize) && log2(self.blocksize, self.blocklog),
                "block size is out of range",
            ),
            (self.sectsize <= self.blocksize, "sector is larger than a block"),
            (self.dirblklog.saturating_add(self.blocklog) <= 16, "directory block is larger than 64 KiB"),
            (
                ([512, 1024, 2048].contains(&self.inodesize) || self.inodesize == 256 && !self.v5()) && log2(self.inodesize, sb.inodelog),
                "inode size is out of range",
            ),
            (self.inodesize <= self.blocksize && self.inopblock == self.blocksize / self.inodesize.max(1), "inodes a block is wrong"),
            (log2(self.inopblock, self.inopblog), "log2 of inodes a block is wrong"),
            (self.agblocks >= 64 && u64::from(self.agblocks) << self.blocklog.min(16) <= 1 << 40, "group size is out of range"),
            (
                u32::from(self.agblklog) == self.agblocks.saturating_sub(1).checked_ilog2().map_or(0, |l| l + 1),
                "log2 of group size is wrong",
            ),
            (self.agcount >= 1, "there is no group"),
            (self.dblocks.div_ceil(u64::from(self.agblocks.max(1))) == u64::from(self.agcount), "group count does not fit the size"),
            (
                self.dblocks >= u64::from(self.agcount.saturating_sub(1)) * u64::from(self.agblocks) + 64,
                "last group is shorter than 64 blocks",
            ),
            (sb.imax_pct <= 100, "inode percentage is over 100"),
            (sb.inprogress == 0, "mkfs was not finished"),
            (sb.shared_vn == 0, "shared version is set"),
            (self.logblocks >= 512 && self.logblocks <= 1 << 20, "log size is out of range"),
            (
                self.logsunit <= 1 || (self.logsunit <= 256 << 10 && self.logsunit.is_multiple_of(self.blocksize)),
                "log stripe unit is out of range",
            ),
            ((512..=32768).contains(&self.logsectsize) && self.logsectsize.is_power_of_two(), "log sector size is out of range"),
            ((self.versionnum & version::DALIGN != 0) == (self.unit != 0), "stripe unit and its feature bit disagree"),
            (
                self.incompat & incompat::SPINODES == 0
                    || self.inoalignmt == 64 * self.inodesize / self.blocksize.max(1)
                    || self.inodesize * 64 < self.blocksize,
                "inode alignment does not fit sparse inodes",
            ),
            (self.inoalignmt <= self.agblocks && self.spino_align <= self.agblocks, "inode alignment is larger than a group"),
            (self.blocksize == 0 || self.valid_fsb(self.logstart, self.logblocks) || self.logstart.0 == 0, "log lies outside its group"),
            (self.rootino.0 != 0 && self.valid_ino(self.rootino), "root inode lies outside the volume"),
        ];
        match checks.iter().find(|c| !c.0) {
            Some(c) => Err(bad(c.1)),
            None => Ok(()),
        }
    }

    /// True for version 5; version 4 has no checksums, and other headers.
    pub fn v5(&self) -> bool {
        self.versionnum & 0xf == 5
    }
    /// True if directory entries bear file types.
    pub fn ftype(&self) -> bool {
        self.has(incompat::FTYPE)
    }
    /// Bytes of an inode's core.
    pub fn core_size(&self) -> usize {
        if self.v5() { inode::CORE_SIZE } else { inode::OLD_CORE_SIZE }
    }
    /// True if the read-only-compatible feature `bit` is on.
    pub fn has_ro(&self, bit: u32) -> bool {
        self.ro_compat & bit != 0
    }
    /// True if the incompatible feature `bit` is on.
    pub fn has(&self, bit: u32) -> bool {
        self.incompat & bit != 0
    }
    /// True with reflink.
    pub fn reflink(&self) -> bool {
        self.has_ro(ro_compat::REFLINK)
    }
    /// True with the free inode tree.
    pub fn finobt(&self) -> bool {
        self.has_ro(ro_compat::FINOBT)
    }
    /// True with the reverse mapping tree.
    pub fn rmapbt(&self) -> bool {
        self.has_ro(ro_compat::RMAPBT)
    }
    /// Basic blocks a block.
    pub fn bb_per_block(&self) -> u32 {
        self.blocksize >> 9
    }
    /// Basic blocks a sector.
    pub fn bb_per_sector(&self) -> u32 {
        self.sectsize >> 9
    }
    /// Blocks of group `agno`; the last may be short.
    pub fn ag_length(&self, agno: AgNumber) -> u32 {
        let start = u64::from(agno.0) * u64::from(self.agblocks);
        self.dblocks.saturating_sub(start).min(u64::from(self.agblocks)) as u32
    }
    /// True for the length that a group's headers say; while the volume grows, the last one's may be the old one still.
    pub fn is_ag_length(&self, agno: AgNumber, len: u32) -> bool {
        let start = u64::from(agno.0) * u64::from(self.agblocks);
        let old = self.growing_from.saturating_sub(start).min(u64::from(self.agblocks));
        len == self.ag_length(agno) || len > 0 && u64::from(len) == old
    }
    /// Joins group and block.
    pub fn fsb(&self, agno: AgNumber, agbno: AgBlock) -> FsBlock {
        FsBlock(u64::from(agno.0) << self.agblklog | u64::from(agbno.0))
    }
    /// Group of a block.
    pub fn fsb_agno(&self, fsb: FsBlock) -> AgNumber {
        AgNumber((fsb.0 >> self.agblklog).min(u64::from(u32::MAX)) as u32)
    }
    /// Block within its group.
    pub fn fsb_agbno(&self, fsb: FsBlock) -> AgBlock {
        AgBlock((fsb.0 & ((1 << self.agblklog) - 1)) as u32)
    }
    /// True if the `len` blocks from `fsb` lie within one existing group.
    pub fn valid_fsb(&self, fsb: FsBlock, len: u32) -> bool {
        let agno = self.fsb_agno(fsb);
        agno.0 < self.agcount && u64::from(self.fsb_agbno(fsb).0) + u64::from(len) <= u64::from(self.ag_length(agno))
    }
    /// Device address of a block.
    pub fn fsb_daddr(&self, fsb: FsBlock) -> DiskAddr {
        self.ag_daddr(self.fsb_agno(fsb), self.fsb_agbno(fsb))
    }
    /// Device address of a block of a group.
    pub fn ag_daddr(&self, agno: AgNumber, agbno: AgBlock) -> DiskAddr {
        DiskAddr((u64::from(agno.0) * u64::from(self.agblocks) + u64::from(agbno.0)) * u64::from(self.bb_per_block()))
    }
    /// Device address of header sector `n` (0 superblock, 1 AGF, 2 AGI, 3 AGFL) of a group.
    pub fn header_daddr(&self, agno: AgNumber, n: u32) -> DiskAddr {
        DiskAddr(self.ag_daddr(agno, AgBlock(0)).0 + u64::from(n * self.bb_per_sector()))
    }
    /// Block that holds a device address.
    pub fn daddr_fsb(&self, d: DiskAddr) -> FsBlock {
        let b = d.0 / u64::from(self.bb_per_block());
        self.fsb(AgNumber((b / u64::from(self.agblocks)) as u32), AgBlock((b % u64::from(self.agblocks)) as u32))
    }
    /// Bits of an inode's number within its group.
    fn ino_shift(&self) -> u32 {
        u32::from(self.agblklog) + u32::from(self.inopblog)
    }
    /// Joins group and inode.
    pub fn ino(&self, agno: AgNumber, agino: AgIno) -> Ino {
        Ino(u64::from(agno.0) << self.ino_shift() | u64::from(agino.0))
    }
    /// Group of an inode.
    pub fn ino_agno(&self, ino: Ino) -> AgNumber {
        AgNumber((ino.0 >> self.ino_shift()).min(u64::from(u32::MAX)) as u32)
    }
    /// Inode within its group.
    pub fn ino_agino(&self, ino: Ino) -> AgIno {
        AgIno((ino.0 & ((1u64 << self.ino_shift()) - 1)) as u32)
    }
    /// Block within its group that holds an inode.
    pub fn agino_agbno(&self, agino: AgIno) -> AgBlock {
        AgBlock(agino.0 >> self.inopblog)
    }
    /// First inode of a block of a group.
    pub fn agbno_agino(&self, agbno: AgBlock) -> AgIno {
        AgIno(agbno.0 << self.inopblog)
    }
    /// Blocks of a group where inodes may be: whole aligned chunks behind the headers. What lies elsewhere the kernel takes for damage, also
    /// what a chunk with holes does not use.
    pub fn inode_blocks(&self, agno: AgNumber) -> Range<u32> {
        let align = if self.v5() && self.inoalignmt >= self.cluster_blocks() { self.inoalignmt } else { 1 };
        let first = self.header_daddr(AgNumber(0), 3).0 as u32 / self.bb_per_block() + 1;
        first.next_multiple_of(align)..self.ag_length(agno) / align * align
    }
    /// True if the number lies where an existing group may have inodes.
    pub fn valid_ino(&self, ino: Ino) -> bool {
        let agno = self.ino_agno(ino);
        agno.0 < self.agcount && self.inode_blocks(agno).contains(&self.agino_agbno(self.ino_agino(ino)).0)
    }
    /// Blocks an inode cluster, the unit of inode I/O: 16 KiB for 512-byte inodes, at least a block.
    pub fn cluster_blocks(&self) -> u32 {
        // Chunks of version 4 need not be aligned, so there is no larger piece than a block to read.
        if self.v5() { ((8192 * (self.inodesize / 256)) >> self.blocklog).max(1) } else { 1 }
    }
    /// Blocks a whole chunk of 64 inodes, at least one.
    pub fn chunk_blocks(&self) -> u32 {
        ((64 * self.inodesize) >> self.blocklog).max(1)
    }
    /// Bytes a directory block.
    pub fn dirblocksize(&self) -> u32 {
        self.blocksize << self.dirblklog
    }
    /// Bytes of an inode behind its core.
    pub fn literal_area(&self) -> usize {
        self.inodesize as usize - self.core_size()
    }
    /// Blocks of the volume that the log takes: none if it is on another device.
    pub fn inner_log_blocks(&self) -> u64 {
        if self.logstart.0 == 0 { 0 } else { u64::from(self.logblocks) }
    }

    /// Log size in basic blocks.
    pub fn log_bbs(&self) -> u32 {
        self.logblocks * self.bb_per_block()
    }
    /// Bytes that log records are rounded up to.
    pub fn log_roundoff(&self) -> u32 {
        if self.logsunit > 1 { self.logsunit } else { self.logsectsize.max(512) }
    }
    /// First block of the directory's leaf space.
    pub fn dir_leaf_block(&self) -> DaBlock {
        DaBlock(((1u64 << 35) >> self.blocklog) as u32)
    }
    /// First block of the directory's free index space.
    pub fn dir_free_block(&self) -> DaBlock {
        DaBlock(((1u64 << 36) >> self.blocklog) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{put16, put32};

    /// A logarithm of 200 was used as a shift before the rules were checked.
    #[test]
    fn absurd_logarithms_are_refused() {
        for at in 120..126 {
            let mut b = [0; 512];
            put32(&mut b, 0, superblock::SB_MAGIC);
            put32(&mut b, 4, 4096);
            put32(&mut b, 84, 65536);
            put16(&mut b, 100, 5);
            put16(&mut b, 102, 512);
            b[121] = 9;
            b[at] = 200;
            crc::stamp(&mut b, superblock::SB_CRC);
            assert!(Geometry::parse(&b).is_err());
        }
    }
}
