//! Writes the first blocks.

use crate::features::Features;
use crate::geometry::{Front, MkfsError, Options};
use uxfs_device::{Device, WriteFlags};
use uxfs_format::ag::{self, Agf, Agi};
use uxfs_format::attr;
use uxfs_format::btree::{InoRec, RmapRec, TreeKind, rmap_owner, set_numrecs};
use uxfs_format::bytes::{put16, put32};
use uxfs_format::inode::{self, Core, Format, Timestamp, flag, flag2, mode};
use uxfs_format::log::{self, BB, CLIENT_LOG, Op, op_flag};
use uxfs_format::superblock::{SB_CRC, Superblock, incompat, ro_compat};
use uxfs_format::{AgBlock, AgIno, AgNumber, DiskAddr, Geometry, Ino, Lsn, NULL_AG, NULL_FS, crc};
use zerocopy::{FromZeros, IntoBytes};

/// Where UUIDs come from: the system's randomness.
#[derive(Debug, Default)]
pub struct UuidGenerator;

impl UuidGenerator {
    /// A random UUID, version 4.
    ///
    /// # Errors
    /// If the system's randomness cannot be read.
    pub fn random() -> std::io::Result<[u8; 16]> {
        let mut u = [0; 16];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut u)?;
        Ok(Self::of(u))
    }

    /// The UUID, version 4, that random bytes make.
    pub fn of(mut u: [u8; 16]) -> [u8; 16] {
        u[6] = u[6] & 0x0f | 0x40;
        u[8] = u[8] & 0x3f | 0x80;
        u
    }
}

/// What the root says of itself where the volume can be checked while it is mounted: an attribute of mkfs.xfs.
const AUTOFSCK: (&[u8], &[u8]) = (b"xfs:autofsck", b"repair");
/// Bytes that are kept for it, in 8 bytes.
const ROOT_ATTR_UNITS: u32 = 5;

struct Writer<'a> {
    dev: &'a dyn Device,
    g: Geometry,
    front: Front,
}

/// Writes a new volume with its log inside over whatever `dev` holds; returns its superblock.
///
/// # Errors
/// [`MkfsError`]. A cut in the middle leaves no XFS volume: the superblock is written last.
pub fn format(dev: &dyn Device, o: &Options) -> Result<Superblock, MkfsError> {
    format_with_log(dev, dev, &Options { log_device: None, ..o.clone() })
}

/// As [`format()`]; the log goes to `log_dev` if `o` says that it has a device of its own.
///
/// # Errors
/// As [`format()`].
pub fn format_with_log(dev: &dyn Device, log_dev: &dyn Device, o: &Options) -> Result<Superblock, MkfsError> {
    let mut sb = o.superblock()?;
    if sb.dblocks.get() * u64::from(sb.blocksize.get()) > dev.size_bytes() {
        return Err(MkfsError::Option(format!("the device has only {} bytes", dev.size_bytes())));
    }
    let front = o.front(sb.agblocks.get());
    let chunk = first_chunk_at(&sb, &front);
    let root = u64::from(chunk) << sb.inopblog;
    sb.rootino.set(root);
    sb.rbmino.set(root + 1);
    sb.rsumino.set(root + 2);
    let mut head = sector_of(&sb);
    crc::stamp(&mut head, SB_CRC);
    let (g, _) = Geometry::parse(&head).map_err(|c| MkfsError::Option(c.to_string()))?;
    dev.write(0, &vec![0; 64 << 10], WriteFlags::default())?;
    dev.flush()?;
    let w = Writer { dev, g, front };
    let mut fdblocks = 0;
    for agno in 0..sb.agcount.get() {
        fdblocks += w.group(AgNumber(agno), &sb, AgBlock(chunk))?;
    }
    w.first_chunk(AgBlock(chunk), o)?;
    write_log(log_dev, &w.g, &sb)?;
    let inodes = u64::from(w.first_inodes());
    sb.icount.set(inodes);
    sb.ifree.set(inodes - 3);
    sb.fdblocks.set(fdblocks);
    for agno in (1..sb.agcount.get()).rev() {
        let copy = secondary(&sb, agno, front.end);
        w.put(w.g.header_daddr(AgNumber(agno), 0), &mut sector_of(&copy), Some(SB_CRC))?;
    }
    dev.flush()?;
    if o.log_device.is_some() {
        log_dev.flush()?;
    }
    w.put(DiskAddr(0), &mut sector_of(&sb), Some(SB_CRC))?;
    dev.flush()?;
    Ok(sb)
}

/// Writes the groups that a volume gets when it grows, behind its end; `sb` says what it will be, `from` is the first of them.
///
/// # Errors
/// The device's.
///
/// # Crash
/// Nobody looks there before the superblock says that they are part of the volume.
pub fn add_groups(dev: &dyn Device, g: &Geometry, sb: &Superblock, from: u32) -> Result<(), MkfsError> {
    let features = Features { ro_compat: sb.features_ro_compat.get(), incompat: sb.features_incompat.get() };
    let front = Front::of(g.blocksize, g.sectsize, &features, g.agblocks);
    let w = Writer { dev, g: g.clone(), front };
    for agno in (from..g.agcount).map(AgNumber) {
        w.group(agno, sb, AgBlock(0))?;
        let copy = secondary(sb, agno.0, front.end);
        w.put(g.header_daddr(agno, 0), &mut sector_of(&copy), Some(SB_CRC))?;
    }
    Ok(dev.flush()?)
}

/// Writes the log of a volume anew, as [`format()`] leaves it: for one whose blocks bear no log position. Returns its superblock.
///
/// # Errors
/// The device's; there is no volume.
pub fn fresh_log(dev: &dyn Device, log_dev: &dyn Device) -> Result<Superblock, MkfsError> {
    let mut head = vec![0; 4096];
    dev.read(0, &mut head)?;
    let (g, sb) = Geometry::parse(&head).map_err(|c| MkfsError::Option(c.to_string()))?;
    write_log(log_dev, &g, &sb)?;
    log_dev.flush()?;
    dev.flush()?;
    Ok(sb)
}

/// What is made in the root takes over what the options say.
fn inherit(root: &mut Core, o: &Options) {
    if let Some(p) = o.project {
        root.projid = p;
        root.flags |= flag::PROJINHERIT;
    }
    if let Some(e) = o.extsize.filter(|e| *e > 0) {
        root.extsize = e;
        root.flags |= flag::EXTSZINHERIT;
    }
    if let Some(e) = o.cowextsize.filter(|e| *e > 0) {
        root.cowextsize = e;
        root.flags2 |= flag2::COWEXTSIZE;
    }
}

/// Where the chunk with the root inode lies: behind the first free list, aligned as inodes are, to the stripe if that allows.
fn first_chunk_at(sb: &Superblock, f: &Front) -> u32 {
    let (align, unit) = (sb.inoalignmt.get(), sb.unit.get());
    let align = if align > 1 && unit.is_multiple_of(align) { unit.max(align) } else { align.max(1) };
    let Some((start, len)) = log_in_group(sb, 0) else { return (f.end + f.list).next_multiple_of(align) };
    // A log that is aligned leaves a gap before it; mkfs.xfs and xfs_repair reckon as if there was none. The first free list lies in the
    // gap if it fits there.
    let taken = start + len + if start - f.end < f.list { f.list } else { 0 };
    taken.max(f.end + f.list + len).next_multiple_of(align)
}

/// The copy of the superblock in group `agno`. Two of them know the root inode; all say that mkfs is at work, as
/// mkfs.xfs leaves them.
fn secondary(sb: &Superblock, agno: u32, front: u32) -> Superblock {
    let (mut c, last) = (sb.clone(), sb.agcount.get() - 1);
    c.inprogress = 1;
    c.icount.set(0);
    c.ifree.set(0);
    let log = if sb.logstart.get() == 0 { 0 } else { sb.logblocks.get() };
    let used = u64::from(front) * u64::from(sb.agcount.get()) + u64::from(log);
    c.fdblocks.set(sb.dblocks.get() - used);
    c.rbmino.set(NULL_FS);
    c.rsumino.set(NULL_FS);
    if agno != last && agno != last / 2 {
        c.rootino.set(NULL_FS);
    }
    c
}

fn sector_of(sb: &Superblock) -> Vec<u8> {
    let mut s = sb.as_bytes().to_vec();
    s.resize(usize::from(sb.sectsize.get()), 0);
    s
}

/// First block and length of the log, if it lies in group `agno`.
fn log_in_group(sb: &Superblock, agno: u32) -> Option<(u32, u32)> {
    let (group, start) = (sb.logstart.get() >> sb.agblklog, sb.logstart.get() & ((1 << sb.agblklog) - 1));
    (sb.logstart.get() != 0 && group == u64::from(agno)).then(|| (start as u32, sb.logblocks.get()))
}

impl Writer<'_> {
    fn put(&self, at: DiskAddr, b: &mut [u8], crc_at: Option<usize>) -> Result<(), MkfsError> {
        if let Some(c) = crc_at {
            crc::stamp(b, c);
        }
        Ok(self.dev.write(at.0 * BB as u64, b, WriteFlags::default())?)
    }

    fn root_block(&self, t: TreeKind, agno: AgNumber, agbno: u32, recs: &[Vec<u8>]) -> Result<(), MkfsError> {
        let s = t.shape();
        let mut b = vec![0; self.g.blocksize as usize];
        let at = self.g.ag_daddr(agno, AgBlock(agbno));
        s.init(&mut b, 0, at, u64::from(agno.0), &self.g);
        set_numrecs(&mut b, recs.len());
        for (i, r) in recs.iter().enumerate() {
            b[s.rec_at(i)..s.rec_at(i) + s.rec].copy_from_slice(r);
        }
        self.put(at, &mut b, Some(s.crc()))
    }

    /// Writes headers and roots of a group; returns its free blocks, free list included.
    fn group(&self, agno: AgNumber, sb: &Superblock, chunk: AgBlock) -> Result<u64, MkfsError> {
        let g = &self.g;
        let len = g.ag_length(agno);
        let f = self.front;
        let log = log_in_group(sb, agno.0);
        let blocks = g.chunk_blocks();
        let inodes = agno.0 == 0;
        // What is free, less what is taken from it: the log, the free list, the first inodes.
        let mut free = vec![(f.end, len - f.end)];
        let take = |free: &mut Vec<(u32, u32)>, at: u32, n: u32| {
            let i = free.iter().position(|e| e.0 <= at && at + n <= e.0 + e.1).unwrap_or(0);
            let (start, len) = free[i];
            free.splice(i..=i, [(start, at - start), (at + n, start + len - at - n)].into_iter().filter(|e| e.1 > 0));
        };
        if let Some((start, len)) = log {
            take(&mut free, start, len);
        }
        // The list comes from the smallest extent that holds it.
        let list = free.iter().filter(|e| e.1 >= f.list).min_by_key(|e| (e.1, e.0)).map_or(f.end, |e| e.0);
        if f.list > 0 {
            take(&mut free, list, f.list);
        }
        if inodes {
            take(&mut free, chunk.0, blocks);
        }
        let rec = |f: &(u32, u32)| [f.0.to_be_bytes(), f.1.to_be_bytes()].concat();
        self.root_block(TreeKind::Bno, agno, f.bno, &free.iter().map(rec).collect::<Vec<_>>())?;
        let mut by_size = free.clone();
        by_size.sort_by_key(|f| (f.1, f.0));
        self.root_block(TreeKind::Cnt, agno, f.bno + 1, &by_size.iter().map(rec).collect::<Vec<_>>())?;
        let sparse = g.has(incompat::SPINODES);
        let chunk_rec = |i: u32| {
            let (used, mut rec) = (if i == 0 { 3 } else { 0 }, vec![0; 16]);
            let startino = AgIno(g.agbno_agino(chunk).0 + 64 * i);
            InoRec { startino, holemask: 0, count: 64, freecount: 64 - used, free: !0 << used }.encode(&mut rec, sparse);
            rec
        };
        let inos: Vec<_> = if inodes { (0..self.first_inodes() / 64).map(chunk_rec).collect() } else { Vec::new() };
        self.root_block(TreeKind::Ino, agno, f.ino, &inos)?;
        if let Some(at) = f.fino {
            self.root_block(TreeKind::Fino, agno, at, &inos)?;
        }
        if let Some(at) = f.refcount {
            self.root_block(TreeKind::Refcount, agno, at, &[])?;
        }
        if let Some(at) = f.rmap {
            self.root_block(TreeKind::Rmap, agno, at, &self.owners(log, list, inodes.then_some(chunk)))?;
        }

        let freeblks: u32 = free.iter().map(|f| f.1).sum();
        let mut agf = Agf::new_zeroed();
        agf.magicnum.set(ag::AGF_MAGIC);
        agf.versionnum.set(1);
        agf.seqno.set(agno.0);
        agf.length.set(len);
        let present = |t: Option<u32>| u32::from(t.is_some());
        agf.roots = [f.bno.into(), (f.bno + 1).into(), f.rmap.unwrap_or(0).into()];
        agf.levels = [1.into(), 1.into(), present(f.rmap).into()];
        agf.rmap_blocks.set(present(f.rmap));
        agf.flfirst.set(1);
        agf.fllast.set(f.list);
        agf.flcount.set(f.list);
        agf.freeblks.set(freeblks);
        agf.longest.set(by_size.last().map_or(0, |f| f.1));
        agf.uuid = g.meta_uuid;
        agf.refcount_blocks.set(present(f.refcount));
        agf.refcount_root.set(f.refcount.unwrap_or(0));
        agf.refcount_level.set(present(f.refcount));
        self.header(agno, 1, agf.as_bytes(), ag::AGF_CRC)?;

        let mut agi = Agi::new_zeroed();
        agi.magicnum.set(ag::AGI_MAGIC);
        agi.versionnum.set(1);
        agi.seqno.set(agno.0);
        agi.length.set(len);
        agi.root.set(f.ino);
        agi.level.set(1);
        agi.newino.set(NULL_AG);
        agi.dirino.set(NULL_AG);
        agi.unlinked = [NULL_AG.into(); ag::UNLINKED_BUCKETS];
        agi.uuid = g.meta_uuid;
        agi.free_root.set(f.fino.unwrap_or(0));
        agi.free_level.set(present(f.fino));
        if g.has_ro(ro_compat::INOBTCNT) {
            agi.iblocks.set(1);
            agi.fblocks.set(present(f.fino));
        }
        if inodes {
            agi.count.set(self.first_inodes());
            agi.freecount.set(self.first_inodes() - 3);
            agi.newino.set(g.agbno_agino(chunk).0);
        }
        self.header(agno, 2, agi.as_bytes(), ag::AGI_CRC)?;

        let mut fl = vec![0xff; g.sectsize as usize];
        fl[..ag::AGFL_HEADER].fill(0);
        put32(&mut fl, 0, ag::AGFL_MAGIC);
        put32(&mut fl, 4, agno.0);
        fl[8..24].copy_from_slice(&g.meta_uuid);
        for i in 0..f.list {
            ag::agfl_put(&mut fl, 1 + i, list + i);
        }
        self.put(g.header_daddr(agno, 3), &mut fl, Some(ag::AGFL_CRC))?;
        Ok(u64::from(freeblks + f.list))
    }

    /// The reverse mappings of a new group.
    fn owners(&self, log: Option<(u32, u32)>, list: u32, chunk: Option<AgBlock>) -> Vec<Vec<u8>> {
        let f = self.front;
        let (log_at, log_len) = log.unwrap_or_default();
        let mut trees = [
            (0, f.bno, rmap_owner::FS),
            (f.bno, 2, rmap_owner::AG),
            (f.ino, 1 + u32::from(f.fino.is_some()), rmap_owner::INOBT),
            (f.rmap.unwrap_or(0), u32::from(f.rmap.is_some()), rmap_owner::AG),
            (f.refcount.unwrap_or(0), u32::from(f.refcount.is_some()), rmap_owner::REFCOUNT),
            (log_at, log_len, rmap_owner::LOG),
            (list, f.list, rmap_owner::AG),
            (chunk.map_or(0, |c| c.0), self.g.chunk_blocks() * u32::from(chunk.is_some()), rmap_owner::INODES),
        ];
        trees.sort();
        let mut joined: Vec<RmapRec> = Vec::new();
        for (start, len, owner) in trees.into_iter().filter(|t| t.1 > 0) {
            match joined.last_mut() {
                Some(l) if l.owner == owner && l.start + l.len == start => l.len += len,
                _ => joined.push(RmapRec { start, len, owner, offset: 0 }),
            }
        }
        let bytes = |r: &RmapRec| {
            let mut b = vec![0; TreeKind::Rmap.shape().rec];
            r.encode(&mut b);
            b
        };
        joined.iter().map(bytes).collect()
    }

    fn header(&self, agno: AgNumber, n: u32, bytes: &[u8], crc_at: usize) -> Result<(), MkfsError> {
        let mut b = bytes.to_vec();
        b.resize(self.g.sectsize as usize, 0);
        self.put(self.g.header_daddr(agno, n), &mut b, Some(crc_at))
    }

    /// Inodes that come with the root: a chunk, or more where a block holds more.
    fn first_inodes(&self) -> u32 {
        self.g.inopblock.max(64)
    }

    /// Writes the chunk with the root directory and the two realtime inodes.
    fn first_chunk(&self, chunk: AgBlock, o: &Options) -> Result<(), MkfsError> {
        let g = &self.g;
        let isize = g.inodesize as usize;
        let forkoff = (g.inodesize - inode::CORE_SIZE as u32) / 8 - ROOT_ATTR_UNITS;
        let mut b = vec![0; self.first_inodes() as usize * isize];
        for (i, d) in b.chunks_exact_mut(isize).enumerate() {
            let ino = g.ino(AgNumber(0), AgIno(g.agbno_agino(chunk).0 + i as u32));
            inode::init_free(d, ino, 0, g);
            if i >= 3 {
                continue;
            }
            let time = Timestamp { sec: o.time.0, nsec: o.time.1 };
            let never = Timestamp::default();
            let mut core = Core {
                mode: if i == 0 { mode::DIR | 0o755 } else { mode::REG },
                format: if i == 0 { Format::Local } else { Format::Extents },
                nlink: if i == 0 { 2 } else { 1 },
                size: if i == 0 { 6 } else { 0 },
                flags: if i == 1 { 4 } else { 0 },
                aformat: Format::Extents,
                changecount: 2,
                flags2: if g.has(incompat::BIGTIME) { flag2::BIGTIME } else { 0 }
                    | if g.has(incompat::NREXT64) { flag2::NREXT64 } else { 0 },
                next_unlinked: NULL_AG,
                atime: never,
                mtime: time,
                ctime: time,
                crtime: time,
                ino: Ino(ino.0),
                ..Core::default()
            };
            core.lsn = Lsn(0);
            if i == 0 {
                inherit(&mut core, o);
            }
            let marked = i == 0 && o.has_root_attribute();
            if marked {
                (core.forkoff, core.aformat, core.changecount, core.atime) = (forkoff as u8, Format::Local, 4, time);
            }
            core.encode(d, &g.meta_uuid);
            if i == 0 {
                put32(d, inode::CORE_SIZE + 2, ino.0 as u32);
            }
            if marked {
                let (name, value) = AUTOFSCK;
                let at = inode::CORE_SIZE + 8 * forkoff as usize;
                let entry = [&[name.len() as u8, value.len() as u8, attr::flag::ROOT], name, value].concat();
                put16(d, at, (attr::SF_HEADER + entry.len()) as u16);
                d[at + 2] = 1;
                d[at + attr::SF_HEADER..][..entry.len()].copy_from_slice(&entry);
            }
            crc::stamp(d, inode::INODE_CRC);
        }
        self.put(g.ag_daddr(AgNumber(0), chunk), &mut b, None)
    }
}

/// Zeroes the log and writes its first record: unmounted.
fn write_log(dev: &dyn Device, g: &Geometry, sb: &Superblock) -> Result<(), MkfsError> {
    let start = g.fsb_daddr(g.logstart).0 * BB as u64;
    let bytes = u64::from(sb.logblocks.get()) * u64::from(g.blocksize);
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(zeros.len() as u64);
        dev.write(start + at, &zeros[..n as usize], WriteFlags::default())?;
        at += n;
    }
    let round = g.log_roundoff() as usize;
    // One header for each 32 KiB that a record may have.
    let size = round.max(log::CYCLE_SPAN);
    let headers = size / log::CYCLE_SPAN;
    let mut rec = vec![0; round.max(2 * BB)];
    let op = Op { tid: 0xb0c0_d0d0, len: 8, client: CLIENT_LOG, flags: op_flag::UNMOUNT };
    op.put(&mut rec[headers * BB..]);
    rec[headers * BB + 12..headers * BB + 14].copy_from_slice(&log::UNMOUNT_MAGIC.to_le_bytes());
    let one = Lsn::new(1, 0);
    let seal = log::Seal { lsn: one, tail: one, prev: NULL_AG, num_ops: 1, uuid: &g.uuid, size: size as u32, log_bbs: g.log_bbs() };
    log::seal(&mut rec, headers, &seal);
    // mkfs.xfs leaves the checksum of this record zero; readers accept that for an unmount record.
    rec[32..36].fill(0);
    Ok(dev.write(start, &rec, WriteFlags::default())?)
}
