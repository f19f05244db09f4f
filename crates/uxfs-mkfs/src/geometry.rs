//! From options to a superblock (format facts, section 12).

use crate::features::Features;
use uxfs_format::reservation::min_log_blocks;
use uxfs_format::superblock::{SB_MAGIC, Superblock, incompat, ro_compat, version};
use uxfs_format::{FsBlock, Geometry, Ino};
use zerocopy::FromZeros;

/// What a user may choose; the rest follows from the size.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the volume; rounded down to blocks.
    pub size: u64,
    /// Bytes a sector, 512 or 4096.
    pub sector: u32,
    /// Number of groups, if not by size.
    pub agcount: Option<u32>,
    /// Bytes of the log, if not by size.
    pub log_size: Option<u64>,
    /// At most 12 bytes.
    pub label: Vec<u8>,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// Seconds and nanoseconds for the first inodes.
    pub time: (i64, u32),
    /// What it is made with.
    pub features: Features,
}

/// Why a volume cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MkfsError {
    /// An option is out of range.
    #[error("{0}")]
    Option(String),
    /// The device failed.
    #[error("cannot write the volume: {0}")]
    Io(#[from] std::io::Error),
}

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Smallest group that mkfs.xfs makes.
const MIN_AG_BYTES: u64 = 16 * MIB;
/// Most blocks of a log of 4 KiB blocks.
const MAX_LOG_BLOCKS: u64 = 521_728;

fn bad<T>(msg: impl Into<String>) -> Result<T, MkfsError> {
    Err(MkfsError::Option(msg.into()))
}

fn group_size(o: &Options, dblocks: &mut u64) -> Result<(u32, u32), MkfsError> {
    let bytes = *dblocks * BLOCK;
    let tib = 1u64 << 40;
    let min_blocks = MIN_AG_BYTES / BLOCK;
    let agsize = match o.agcount {
        Some(0) => return bad("agcount must be at least 1"),
        Some(n) => dblocks.div_ceil(u64::from(n)),
        None if bytes >= 4 * tib => tib / BLOCK - 1,
        None if bytes >= 128 * MIB => dblocks.div_ceil(4),
        None => {
            let n = [4u64, 2, 1].into_iter().find(|n| *dblocks / n >= min_blocks).unwrap_or(1);
            dblocks.div_ceil(n)
        }
    };
    if agsize < min_blocks || agsize >= tib / BLOCK {
        return bad(format!("groups of {agsize} blocks are out of range: 16 MiB to 1 TiB are allowed"));
    }
    let mut agcount = dblocks.div_ceil(agsize);
    let tail = *dblocks - (agcount - 1) * agsize;
    if agcount > 1 && tail < min_blocks {
        agcount -= 1;
        *dblocks = agcount * agsize;
    }
    if o.agcount.is_some_and(|n| u64::from(n) != agcount) {
        return bad(format!("agcount={} does not fit a volume of {bytes} bytes", o.agcount.unwrap_or(0)));
    }
    Ok((agsize as u32, agcount as u32))
}

/// Where the first blocks of a group lie: headers, one root block a tree, the free list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front {
    pub(crate) bno: u32,
    pub(crate) ino: u32,
    pub(crate) fino: Option<u32>,
    pub(crate) rmap: Option<u32>,
    pub(crate) refcount: Option<u32>,
    /// First block behind them; the log, or the free list.
    pub(crate) end: u32,
    /// Blocks that mkfs puts on the free list.
    pub(crate) list: u32,
}

impl Front {
    pub(crate) fn of(sector: u32, f: &Features) -> Front {
        let bno = (4 * sector).div_ceil(BLOCK as u32);
        let mut end = bno + 3;
        let mut tree = |on: bool| {
            end += u32::from(on);
            on.then_some(end - 1)
        };
        let (fino, rmap) = (tree(f.ro(ro_compat::FINOBT)), tree(f.ro(ro_compat::RMAPBT)));
        let refcount = tree(f.ro(ro_compat::REFLINK));
        Front { bno, ino: bno + 2, fino, rmap, refcount, end, list: 4 + 2 * u32::from(rmap.is_some()) }
    }
}

impl Options {
    /// A volume of `size` bytes that is otherwise as mkfs.xfs 6.1 makes it, from the first second of 1970.
    pub fn new(size: u64, uuid: [u8; 16]) -> Options {
        Options { size, sector: 512, agcount: None, log_size: None, label: Vec::new(), uuid, time: (0, 0), features: Features::V6_1 }
    }

    pub(crate) fn front(&self) -> Front {
        Front::of(self.sector, &self.features)
    }

    /// Works the superblock of the volume out.
    ///
    /// # Errors
    /// [`MkfsError::Option`] that names what is out of range.
    pub fn superblock(&self) -> Result<Superblock, MkfsError> {
        self.features.check()?;
        if self.sector != 512 && self.sector != 4096 {
            return bad(format!("sector size {} is not supported: 512 and 4096 are", self.sector));
        }
        if self.label.len() > 12 {
            return bad("the label is longer than 12 bytes");
        }
        let mut dblocks = self.size / BLOCK;
        if dblocks < MIN_AG_BYTES / BLOCK {
            return bad(format!("{} bytes are too few: the smallest volume has 16 MiB", self.size));
        }
        let (agblocks, agcount) = group_size(self, &mut dblocks)?;
        let mut sb = Superblock::new_zeroed();
        sb.magicnum.set(SB_MAGIC);
        sb.blocksize.set(BLOCK as u32);
        sb.dblocks.set(dblocks);
        sb.uuid = self.uuid;
        sb.rextsize.set(1);
        sb.agblocks.set(agblocks);
        sb.agcount.set(agcount);
        let big = self.sector != 512;
        sb.versionnum
            .set(version::V5_BASE | if big { version::SECTOR } else { 0 } | if self.has_root_attribute() { version::ATTR } else { 0 });
        sb.sectsize.set(self.sector as u16);
        sb.inodesize.set(512);
        sb.inopblock.set(8);
        sb.fname[..self.label.len()].copy_from_slice(&self.label);
        (sb.blocklog, sb.sectlog, sb.inodelog, sb.inopblog) = (12, self.sector.trailing_zeros() as u8, 9, 3);
        sb.agblklog = (agblocks - 1).checked_ilog2().map_or(0, |l| l + 1) as u8;
        let tib = 1u64 << 40;
        sb.imax_pct = if dblocks * BLOCK < tib {
            25
        } else if dblocks * BLOCK < 50 * tib {
            5
        } else {
            1
        };
        let sparse = self.features.inc(incompat::SPINODES);
        sb.inoalignmt.set(if sparse { 8 } else { 4 });
        sb.spino_align.set(if sparse { 4 } else { 0 });
        if big {
            sb.logsectlog = 12;
            sb.logsectsize.set(4096);
        }
        sb.logsunit.set(if big { 4096 } else { 1 });
        sb.features2.set(0x18a);
        sb.bad_features2.set(0x18a);
        sb.features_ro_compat.set(self.features.ro_compat);
        sb.features_incompat.set(self.features.incompat);
        self.place_log(&mut sb)?;
        Ok(sb)
    }

    /// True if the root says that the volume may be repaired while mounted, as mkfs.xfs has it where that is possible.
    pub(crate) fn has_root_attribute(&self) -> bool {
        self.features.ro(ro_compat::RMAPBT) && self.features.inc(incompat::PARENT)
    }

    fn place_log(&self, sb: &mut Superblock) -> Result<(), MkfsError> {
        let dblocks = sb.dblocks.get();
        let agblocks = u64::from(sb.agblocks.get());
        let mut g = plain(sb);
        g.logblocks = 512;
        let min = u64::from(min_log_blocks(&g));
        let front = self.front();
        let start = u64::from(front.end);
        // Room in the group for the log, and for the first free list and inode chunk beside it.
        let room = agblocks - start - if sb.agcount.get() == 1 { u64::from(front.list) + 2 * 8 + 16 } else { u64::from(front.list) + 1 };
        let blocks = match self.log_size {
            Some(b) => b / BLOCK,
            None if dblocks * BLOCK < 300 * MIB => min,
            None => (dblocks / 2048).clamp(64 * MIB / BLOCK, MAX_LOG_BLOCKS).min(room),
        };
        if blocks < min {
            return bad(format!("a log of {blocks} blocks is too small: this volume needs {min}"));
        }
        if blocks > room || blocks > MAX_LOG_BLOCKS {
            return bad(format!("a log of {blocks} blocks is too large: {} are possible", room.min(MAX_LOG_BLOCKS)));
        }
        let agno = u64::from(sb.agcount.get() / 2);
        sb.logstart.set(agno << sb.agblklog | start);
        sb.logblocks.set(blocks as u32);
        Ok(())
    }
}

/// A geometry for sums, before everything is decided.
fn plain(sb: &Superblock) -> Geometry {
    Geometry {
        blocksize: sb.blocksize.get(),
        blocklog: sb.blocklog,
        dblocks: sb.dblocks.get(),
        agblocks: sb.agblocks.get(),
        agblklog: sb.agblklog,
        agcount: sb.agcount.get(),
        sectsize: u32::from(sb.sectsize.get()),
        inodesize: u32::from(sb.inodesize.get()),
        inopblock: u32::from(sb.inopblock.get()),
        inopblog: sb.inopblog,
        inoalignmt: sb.inoalignmt.get(),
        spino_align: sb.spino_align.get(),
        dirblklog: sb.dirblklog,
        logstart: FsBlock(sb.logstart.get()),
        logblocks: sb.logblocks.get(),
        logsectsize: 512,
        logsunit: sb.logsunit.get(),
        rootino: Ino(sb.rootino.get()),
        uuid: sb.uuid,
        meta_uuid: sb.uuid,
        versionnum: sb.versionnum.get(),
        ro_compat: sb.features_ro_compat.get(),
        incompat: sb.features_incompat.get(),
        imax_pct: sb.imax_pct,
        unit: 0,
        width: 0,
    }
}

/// The lines that `mkfs.xfs` and `xfs_info` print.
pub fn print_geometry(name: &str, sb: &Superblock) -> String {
    let (ro, inc) = (sb.features_ro_compat.get(), sb.features_incompat.get());
    let on = |v: u32, b: u32| u32::from(v & b != 0);
    let log = if sb.logstart.get() != 0 { "internal log" } else { "external" };
    let lsect = if sb.versionnum.get() & version::SECTOR != 0 { sb.logsectsize.get() } else { 512 };
    let lsunit = if sb.logsunit.get() > 1 { sb.logsunit.get() / sb.blocksize.get().max(1) } else { 0 };
    let bs = sb.blocksize.get();
    let lines = [
        format!("meta-data={name:<22} isize={:<6} agcount={}, agsize={} blks", sb.inodesize.get(), sb.agcount.get(), sb.agblocks.get()),
        format!("         ={:<22} sectsz={:<5} attr=2, projid32bit=1", "", sb.sectsize.get()),
        format!("         ={:<22} crc=1        finobt={}, sparse={}, rmapbt={}", "", on(ro, 1), on(inc, 2), on(ro, 2)),
        format!("         ={:<22} reflink={}    bigtime={} inobtcount={} nrext64={}", "", on(ro, 4), on(inc, 8), on(ro, 8), on(inc, 0x20)),
        format!("         ={:<22} exchange={}   metadir={}", "", on(inc, 0x40), on(inc, 0x100)),
        format!("data     ={:<22} bsize={:<6} blocks={}, imaxpct={}", "", bs, sb.dblocks.get(), sb.imax_pct),
        format!("         ={:<22} sunit={:<6} swidth={} blks", "", sb.unit.get(), sb.width.get()),
        format!(
            "naming   ={:<22} bsize={:<6} ascii-ci={}, ftype={}, parent={}",
            "version 2",
            bs << sb.dirblklog,
            u32::from(sb.versionnum.get() & version::BORG != 0),
            on(inc, 1),
            on(inc, 0x80)
        ),
        format!("log      ={log:<22} bsize={:<6} blocks={}, version=2", bs, sb.logblocks.get()),
        format!("         ={:<22} sectsz={:<5} sunit={} blks, lazy-count=1", "", lsect, lsunit),
        format!(
            "realtime ={:<22} extsz={:<6} blocks={}, rtextents={}",
            "none",
            bs * sb.rextsize.get(),
            sb.rblocks.get(),
            sb.rextents.get()
        ),
        format!("         ={:<22} rgcount={:<4} rgsize={} extents", "", 0, 0),
        format!("         ={:<22} zoned={:<6} start={} reserved={}", "", on(inc, 0x200), 0, 0),
    ];
    lines.join("\n") + "\n"
}
