//! From options to a superblock (format facts, section 12).

use crate::features::Features;
use uxfs_format::btree::TreeKind;
use uxfs_format::extent::max_hint;
use uxfs_format::reservation::min_log_blocks;
use uxfs_format::superblock::{SB_MAGIC, Superblock, features2, incompat, ro_compat, version};
use uxfs_format::{FsBlock, Geometry, Ino};
use zerocopy::FromZeros;

/// What a user may choose; the rest follows from the size.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the volume; rounded down to blocks.
    pub size: u64,
    /// Bytes a block, 1024 to 65536.
    pub block: u32,
    /// Bytes a sector, 512 or 4096.
    pub sector: u32,
    /// Bytes an inode, 512 to 2048.
    pub inode: u32,
    /// Bytes of a directory's block, if not 4096 or a larger block.
    pub dir_block: Option<u32>,
    /// Number of groups, if not by size.
    pub agcount: Option<u32>,
    /// Bytes of a group, if not by size.
    pub agsize: Option<u64>,
    /// Bytes that go to one disk of a stripe; 0 if there is none.
    pub stripe_unit: u32,
    /// Bytes that go once over all disks of a stripe.
    pub stripe_width: u32,
    /// Bytes of the log, if not by size.
    pub log_size: Option<u64>,
    /// As small a log as the kernel accepts, if its size is not given.
    pub least_log: bool,
    /// Bytes that records of the log are rounded to, if not by stripe and sector.
    pub log_unit: Option<u32>,
    /// The group of the log, if not the one in the middle.
    pub log_group: Option<u32>,
    /// Bytes of the device that the log has for itself; `None` for a log inside the volume.
    pub log_device: Option<u64>,
    /// Share of the volume that inodes may take, in percent, if not by size; 0 for all.
    pub imax_pct: Option<u8>,
    /// Project of the root, which what is made in it inherits.
    pub project: Option<u32>,
    /// Extent size hint that what is made in the root inherits, in blocks.
    pub extsize: Option<u32>,
    /// The same for copy-on-write.
    pub cowextsize: Option<u32>,
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
    Io(std::io::Error),
}

impl From<std::io::Error> for MkfsError {
    fn from(e: std::io::Error) -> MkfsError {
        MkfsError::Io(e)
    }
}

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
/// Smallest group that mkfs.xfs makes.
const MIN_AG_BYTES: u64 = 16 * MIB;
/// Largest log: blocks, and bytes.
const MAX_LOG: (u64, u64) = (1 << 20, 2038 * MIB);
/// Largest stripe unit of a log, and what takes its place above.
const LOG_UNITS: (u32, u32) = (256 << 10, 32 << 10);

fn bad<T>(msg: impl Into<String>) -> Result<T, MkfsError> {
    Err(MkfsError::Option(msg.into()))
}

/// Groups of a volume whose disks work at once: more of them, the larger it is.
fn striped_groups(bytes: u64) -> u64 {
    let steps = [(512 << 10, 5), (8 << 10, 4)];
    let above = steps.iter().find(|s| bytes > s.0 * MIB).map(|s| s.1);
    let shift = above.or_else(|| [(128, 3), (64, 2), (32, 1)].iter().find(|s| bytes >= s.0 * MIB).map(|s| s.1));
    1 << shift.unwrap_or(0)
}

impl Options {
    fn group_size(&self, dblocks: &mut u64) -> Result<(u32, u32), MkfsError> {
        let bs = u64::from(self.block);
        let bytes = *dblocks * bs;
        let (min, max) = (MIN_AG_BYTES / bs, TIB / bs - 1);
        let striped = self.stripe_unit != 0;
        let mut agsize = match (self.agcount, self.agsize) {
            (Some(_), Some(_)) => return bad("agcount and agsize exclude each other"),
            (Some(0), _) => return bad("agcount must be at least 1"),
            (Some(n), _) => dblocks.div_ceil(u64::from(n)),
            (_, Some(b)) if !b.is_multiple_of(bs) => return bad(format!("agsize={b} is no multiple of the block size {bs}")),
            (_, Some(b)) if b > bytes => return bad(format!("agsize={b} is more than the volume's {bytes} bytes")),
            (_, Some(b)) => b / bs,
            _ if bytes >= if striped { 32 * TIB } else { 4 * TIB } => max,
            _ if striped => dblocks.div_ceil(striped_groups(bytes)),
            _ if bytes >= 128 * MIB => dblocks.div_ceil(4),
            _ => dblocks.div_ceil([4u64, 2, 1].into_iter().find(|n| *dblocks / n >= min).unwrap_or(1)),
        };
        let (unit, width) = (u64::from(self.stripe_unit) / bs, u64::from(self.stripe_width) / bs);
        if unit > 0 {
            let up = agsize.next_multiple_of(unit);
            agsize = if up <= max { up } else { agsize - agsize % unit };
            // Groups that all began on the same disk would keep it busier than the others; who chose them knows that.
            let chosen = self.agsize.is_some() || self.agcount.is_some();
            if !chosen && width > unit && *dblocks > agsize && agsize.is_multiple_of(width) {
                agsize = if agsize - unit >= min { agsize - unit } else { agsize + unit };
            }
        }
        if agsize < min || agsize > max {
            return bad(format!("groups of {agsize} blocks are out of range: 16 MiB to 1 TiB are allowed"));
        }
        let mut agcount = dblocks.div_ceil(agsize);
        // A rest at the end that is too small for a group is not used.
        let striped_by_size = striped && self.agsize.is_none();
        if agcount > 1 && *dblocks - (agcount - 1) * agsize < min {
            agcount -= 1;
            *dblocks = agcount * agsize;
        }
        if !striped_by_size && self.agcount.is_some_and(|n| u64::from(n) != agcount) {
            return bad(format!("agcount={} does not fit a volume of {bytes} bytes", self.agcount.unwrap_or(0)));
        }
        Ok((agsize as u32, agcount as u32))
    }
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
    pub(crate) fn of(block: u32, sector: u32, f: &Features, agblocks: u32) -> Front {
        let bno = (4 * sector).div_ceil(block);
        let mut end = bno + 3;
        let mut tree = |on: bool| {
            end += u32::from(on);
            on.then_some(end - 1)
        };
        let (fino, rmap) = (tree(f.ro(ro_compat::FINOBT)), tree(f.ro(ro_compat::RMAPBT)));
        let refcount = tree(f.ro(ro_compat::REFLINK));
        // Two blocks for each tree that the list feeds and that may grow beyond its root.
        let leaf = (TreeKind::Bno.shape().max(block, 0) / 2) as u32;
        let grows = agblocks.div_ceil(2) > leaf;
        Front { bno, ino: bno + 2, fino, rmap, refcount, end, list: 4 * u32::from(grows) + 2 * u32::from(rmap.is_some()) }
    }
}

impl Options {
    /// A volume of `size` bytes that is otherwise as mkfs.xfs 6.1 makes it, from the first second of 1970.
    pub fn new(size: u64, uuid: [u8; 16]) -> Options {
        Options {
            size,
            block: 4096,
            sector: 512,
            inode: 512,
            dir_block: None,
            agcount: None,
            agsize: None,
            stripe_unit: 0,
            stripe_width: 0,
            log_size: None,
            least_log: false,
            log_unit: None,
            log_group: None,
            log_device: None,
            imax_pct: None,
            project: None,
            extsize: None,
            cowextsize: None,
            label: Vec::new(),
            uuid,
            time: (0, 0),
            features: Features::V6_1,
        }
    }

    pub(crate) fn front(&self, agblocks: u32) -> Front {
        Front::of(self.block, self.sector, &self.features, agblocks)
    }

    fn check(&self) -> Result<(), MkfsError> {
        self.features.check()?;
        let power = |v: u32, least: u32, most: u32| v.is_power_of_two() && (least..=most).contains(&v);
        let dir_block = self.dir_block.unwrap_or(self.block);
        let (unit, width) = (self.stripe_unit, self.stripe_width);
        let wrong = [
            (self.sector != 512 && self.sector != 4096, format!("sector size {} is not supported: 512 and 4096 are", self.sector)),
            (!power(self.block, 1024, 65536), format!("block size {} is not supported: powers of two from 1024 to 65536 are", self.block)),
            (self.block < self.sector, format!("block size {} is smaller than the sector size {}", self.block, self.sector)),
            (
                !power(self.inode, 512, 2048.min(self.block / 2)),
                format!(
                    "inode size {} is not possible with blocks of {}: powers of two from 512 to {} are",
                    self.inode,
                    self.block,
                    2048.min(self.block / 2)
                ),
            ),
            (
                !power(dir_block, self.block.max(4096.min(dir_block)), 65536) || dir_block < self.block,
                format!("directory block size {dir_block} is not possible with blocks of {}", self.block),
            ),
            (self.size > i64::MAX as u64, format!("no device has {} bytes", self.size)),
            (self.cowextsize.is_some_and(|e| e > 0) && !self.features.ro(ro_compat::REFLINK), "cowextsize needs reflink".into()),
            (self.label.len() > 12, "the label is longer than 12 bytes".into()),
            (!unit.is_multiple_of(self.block), format!("stripe unit {unit} is no multiple of the block size {}", self.block)),
            (
                unit == 0 && width != 0 || unit != 0 && (width == 0 || !width.is_multiple_of(unit)),
                format!("stripe width {width} is no multiple of the stripe unit {unit}"),
            ),
            (self.imax_pct.is_some_and(|p| p > 100), "maxpct is above 100".into()),
            (self.log_device.is_some() && self.log_group.is_some(), "a log on another device lies in no group".into()),
        ];
        match wrong.into_iter().find(|w| w.0) {
            Some((_, message)) => bad(message),
            None => Ok(()),
        }
    }

    /// Bytes that records of the log are rounded to; 0 if sectors will do.
    fn log_unit(&self) -> Result<u32, MkfsError> {
        let unit = match self.log_unit {
            Some(u) if u != 0 && (!u.is_multiple_of(self.block) || u > LOG_UNITS.0) => {
                return bad(format!("log stripe unit {u} is not possible: a multiple of the block size of at most 256 KiB is"));
            }
            Some(u) => u,
            None if self.stripe_unit > LOG_UNITS.0 => LOG_UNITS.1.max(self.block),
            None => self.stripe_unit,
        };
        Ok(if unit == 0 && self.sector != 512 { self.sector.max(self.block) } else { unit })
    }

    /// Works the superblock of the volume out.
    ///
    /// # Errors
    /// [`MkfsError::Option`] that names what is out of range.
    pub fn superblock(&self) -> Result<Superblock, MkfsError> {
        self.check()?;
        let bs = u64::from(self.block);
        let mut dblocks = self.size / bs;
        if dblocks < MIN_AG_BYTES / bs {
            return bad(format!("{} bytes are too few: the smallest volume has 16 MiB", self.size));
        }
        let (agblocks, agcount) = self.group_size(&mut dblocks)?;
        let most = max_hint(agblocks);
        if let Some(hint) = [self.extsize, self.cowextsize].into_iter().flatten().find(|e| *e > most) {
            return bad(format!("a hint of {hint} blocks is too large: {most} are possible, half a group"));
        }
        let mut sb = Superblock::new_zeroed();
        sb.magicnum.set(SB_MAGIC);
        sb.blocksize.set(self.block);
        sb.dblocks.set(dblocks);
        sb.uuid = self.uuid;
        sb.rextsize.set((4096 / self.block).max(1));
        sb.agblocks.set(agblocks);
        sb.agcount.set(agcount);
        let big = self.sector != 512;
        let bit = |on: bool, bit: u16| if on { bit } else { 0 };
        let optional = bit(big, version::SECTOR)
            | bit(self.features.inc(incompat::PARENT), version::ATTR)
            | bit(self.stripe_unit != 0, version::DALIGN);
        sb.versionnum.set(version::V5_BASE | optional);
        sb.sectsize.set(self.sector as u16);
        sb.inodesize.set(self.inode as u16);
        sb.inopblock.set((self.block / self.inode) as u16);
        sb.fname[..self.label.len()].copy_from_slice(&self.label);
        let log2 = |v: u32| v.trailing_zeros() as u8;
        (sb.blocklog, sb.sectlog, sb.inodelog, sb.inopblog) =
            (log2(self.block), log2(self.sector), log2(self.inode), log2(self.block / self.inode));
        sb.dirblklog = log2(self.dir_block.unwrap_or(self.block.max(4096)) / self.block);
        sb.agblklog = (agblocks - 1).checked_ilog2().map_or(0, |l| l + 1) as u8;
        let by_size = match dblocks * bs {
            b if b < TIB => 25,
            b if b < 50 * TIB => 5,
            _ => 1,
        };
        sb.imax_pct = self.imax_pct.unwrap_or(by_size);
        (sb.unit, sb.width) = ((self.stripe_unit / self.block).into(), (self.stripe_width / self.block).into());
        let sparse = self.features.inc(incompat::SPINODES);
        let (chunk, cluster) = (64 * self.inode / self.block, 32 * self.inode / self.block);
        sb.inoalignmt.set(if sparse { chunk } else { cluster });
        sb.spino_align.set(if sparse { cluster } else { 0 });
        if big {
            sb.logsectlog = 12;
            sb.logsectsize.set(4096);
        }
        sb.logsunit.set(self.log_unit()?.max(1));
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
        let bs = u64::from(self.block);
        let bytes = sb.dblocks.get() * bs;
        let agblocks = u64::from(sb.agblocks.get());
        let mut g = plain(sb);
        g.logblocks = 512;
        let align = match (sb.logsunit.get(), sb.unit.get()) {
            (1, unit) => u64::from(unit).max(1),
            (unit, _) => u64::from(unit) / bs,
        };
        let min = u64::from(min_log_blocks(&g)).next_multiple_of(align);
        let front = self.front(sb.agblocks.get());
        let start = u64::from(front.end).next_multiple_of(align);
        // Room in the group for the log, and for the first free list and inode chunk beside it.
        let chunk = u64::from(g.chunk_blocks());
        let beside = u64::from(front.list)
            + if sb.agcount.get() == 1 { 2 * chunk + 2 * u64::from(sb.inoalignmt.get()).max(u64::from(sb.unit.get())) } else { 1 };
        let room = match self.log_device {
            Some(bytes) => bytes / bs,
            None => agblocks.saturating_sub(start + beside),
        };
        let room = (room - room % align).min(MAX_LOG.0).min(MAX_LOG.1 / bs);
        let blocks = match self.log_size {
            Some(b) if !(b / bs).is_multiple_of(align) => {
                return bad(format!("a log of {b} bytes is no multiple of its stripe unit of {} blocks", align));
            }
            Some(b) => b / bs,
            None if self.log_device.is_some() && !self.least_log => room,
            None if self.least_log || bytes < 300 * MIB => min,
            None => (bytes / 2048).max(64 * MIB).div_ceil(bs).next_multiple_of(align).max(min).min(room),
        };
        if blocks < min {
            return bad(format!("a log of {blocks} blocks is too small: this volume needs {min}"));
        }
        if blocks > room {
            return bad(format!("a log of {blocks} blocks is too large: {room} are possible"));
        }
        if self.log_device.is_some() {
            sb.logstart.set(0);
            sb.logblocks.set(blocks as u32);
            return Ok(());
        }
        let agno = self.log_group.unwrap_or(sb.agcount.get() / 2);
        if agno >= sb.agcount.get() {
            return bad(format!("agnum={agno}: there are {} groups", sb.agcount.get()));
        }
        sb.logstart.set(u64::from(agno) << sb.agblklog | start);
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
        growing_from: 0,
    }
}

/// The lines that `mkfs.xfs` and `xfs_info` print. A log outside is called `log_name`.
pub fn print_geometry(name: &str, log_name: Option<&str>, sb: &Superblock) -> String {
    let (ro, inc) = (sb.features_ro_compat.get(), sb.features_incompat.get());
    let on = |v: u32, b: u32| u32::from(v & b != 0);
    let log = if sb.logstart.get() != 0 { "internal log" } else { log_name.unwrap_or("external") };
    let lsect = if sb.versionnum.get() & version::SECTOR != 0 { sb.logsectsize.get() } else { 512 };
    let lsunit = if sb.logsunit.get() > 1 { sb.logsunit.get() / sb.blocksize.get().max(1) } else { 0 };
    let bs = sb.blocksize.get();
    let ver = sb.versionnum.get();
    let v5 = u32::from(ver & 0xf == 5);
    // Version 4 has its features in another word.
    let more = if ver & version::MOREBITS != 0 { sb.features2.get() } else { 0 };
    let (ro, inc) = if v5 == 1 { (ro, inc) } else { (0, 0) };
    let attr = if on(more, 8) == 1 { 2 } else { 1 };
    let log_version = if ver & version::LOGV2 != 0 { 2 } else { 1 };
    let lines = [
        format!("meta-data={name:<22} isize={:<6} agcount={}, agsize={} blks", sb.inodesize.get(), sb.agcount.get(), sb.agblocks.get()),
        format!("         ={:<22} sectsz={:<5} attr={}, projid32bit={}", "", sb.sectsize.get(), attr, on(more, 0x80)),
        format!("         ={:<22} crc={:<9}finobt={}, sparse={}, rmapbt={}", "", v5, on(ro, 1), on(inc, 2), on(ro, 2)),
        format!("         ={:<22} reflink={}    bigtime={} inobtcount={} nrext64={}", "", on(ro, 4), on(inc, 8), on(ro, 8), on(inc, 0x20)),
        format!("         ={:<22} exchange={}   metadir={}", "", on(inc, 0x40), on(inc, 0x100)),
        format!("data     ={:<22} bsize={:<6} blocks={}, imaxpct={}", "", bs, sb.dblocks.get(), sb.imax_pct),
        format!("         ={:<22} sunit={:<6} swidth={} blks", "", sb.unit.get(), sb.width.get()),
        format!(
            "naming   ={:<22} bsize={:<6} ascii-ci={}, ftype={}, parent={}",
            "version 2",
            bs << sb.dirblklog,
            u32::from(sb.versionnum.get() & version::BORG != 0),
            if v5 == 1 { on(inc, 1) } else { on(more, features2::FTYPE) },
            on(inc, 0x80)
        ),
        format!("log      ={log:<22} bsize={:<6} blocks={}, version={}", bs, sb.logblocks.get(), log_version),
        format!("         ={:<22} sectsz={:<5} sunit={} blks, lazy-count={}", "", lsect, lsunit, on(more, 2)),
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
