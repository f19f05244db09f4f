//! Log reservations and the smallest log (format facts, section 13): the sizes that the kernel reserves, so that a log
//! that we make is one that it accepts, and a volume that it nearly filled is one that we can still work on.

use crate::Geometry;
use crate::btree::TreeKind;
use crate::da::MAX_DEPTH;
use crate::log;

/// Bytes of `n` buffers of `size` bytes in the log.
fn bufs(n: u64, size: u64) -> u64 {
    n * (size + 128)
}

/// What one kind of transaction reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Bytes one link of the chain may log.
    pub unit: u64,
    /// Links that are reserved ahead.
    pub count: u32,
}

impl Reservation {
    /// One link only, as recovery reserves: the log may be as full as it was when the volume was last used.
    pub fn single(self) -> Reservation {
        Reservation { count: 1, ..self }
    }
}

/// Most levels of each tree, by the size of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// bnobt and cntbt.
    pub alloc: u64,
    /// inobt and finobt.
    pub ino: u64,
    /// rmapbt; 0 without.
    pub rmap: u64,
    /// refcountbt; 0 without.
    pub refcount: u64,
    /// bmbt of a data fork.
    pub data: u64,
    /// bmbt of an attribute fork.
    pub attr: u64,
}

fn height(leaf_min: u64, node_min: u64, records: u64) -> u64 {
    let mut blocks = records.div_ceil(leaf_min);
    let mut level = 1;
    while blocks > 1 {
        blocks = blocks.div_ceil(node_min);
        level += 1;
    }
    level
}

fn space_height(leaf_min: u64, node_min: u64, space: u64) -> u64 {
    // A root has two children at the least; count how high a tree of the smallest fan-out grows that fits into `space`.
    let (mut level, mut blocks_at, mut left) = (1u64, 2u64, space.saturating_sub(1));
    let _ = leaf_min;
    while left >= blocks_at {
        left -= blocks_at;
        blocks_at *= node_min;
        level += 1;
    }
    level
}

impl Levels {
    /// Levels of the trees of a volume.
    pub fn of(g: &Geometry) -> Levels {
        let m = |t: TreeKind, l: u16| (t.shape().max(g.blocksize, l) as u64 / 2).max(1);
        let ag = u64::from(g.agblocks);
        let inodes = ag << g.inopblog;
        let large = g.has(crate::superblock::incompat::NREXT64);
        let (dmax, amax): (u64, u64) = if large { ((1 << 48) - 1, (1 << 32) - 1) } else { ((1 << 31) - 1, (1 << 15) - 1) };
        let bm = |max: u64, root: u64| {
            let (leaf, node) = (m(TreeKind::Bmap, 0), m(TreeKind::Bmap, 1));
            let mut blocks = max.div_ceil(leaf);
            let mut level = 1;
            while blocks > 1 {
                blocks = if blocks <= root { 1 } else { blocks.div_ceil(node) };
                level += 1;
            }
            level
        };
        Levels {
            alloc: height(m(TreeKind::Bno, 0), m(TreeKind::Bno, 1), ag.div_ceil(2)),
            ino: height(m(TreeKind::Ino, 0), m(TreeKind::Ino, 1), inodes.div_ceil(64)),
            rmap: match (g.rmapbt(), g.reflink()) {
                (false, _) => 0,
                (true, false) => height(m(TreeKind::Rmap, 0), m(TreeKind::Rmap, 1), ag),
                (true, true) => space_height(m(TreeKind::Rmap, 0), m(TreeKind::Rmap, 1), ag),
            },
            refcount: if g.reflink() { height(m(TreeKind::Refcount, 0), m(TreeKind::Refcount, 1), ag) } else { 0 },
            data: bm(dmax, 3),
            attr: bm(amax, 2),
        }
    }
}

/// The reservations that the engine uses.
#[derive(Clone, Copy, Debug)]
pub struct Reservations {
    /// Allocation for file data, conversion of unwritten extents.
    pub write: Reservation,
    /// Freeing extents of a file.
    pub itruncate: Reservation,
    /// rename
    pub rename: Reservation,
    /// link
    pub link: Reservation,
    /// unlink, rmdir
    pub remove: Reservation,
    /// create, mknod
    pub create: Reservation,
    /// mkdir
    pub mkdir: Reservation,
    /// symlink
    pub symlink: Reservation,
    /// Freeing an inode.
    pub ifree: Reservation,
    /// Changing an inode's core.
    pub ichange: Reservation,
    /// Setting an attribute, with the largest value.
    pub attrset: Reservation,
    /// Removing an attribute.
    pub attrrm: Reservation,
    /// The superblock.
    pub sb: Reservation,
    /// Adding an attribute fork.
    pub addafork: Reservation,
    /// Blocks that entering a name may allocate.
    pub dir_enter_blocks: u32,
    /// Blocks that removing a name may allocate.
    pub dir_remove_blocks: u32,
    /// Blocks that allocating an inode may allocate.
    pub ialloc_blocks: u32,
    /// Blocks that a write may allocate beside its data.
    pub write_blocks: u32,
}

struct Parts {
    bs: u64,
    sect: u64,
    dq: u64,
    l: Levels,
    ino1: u64,
    cluster: u64,
    dirblk: u64,
    db: u64,
    bm: u64,
    dir: u64,
    chunk: u64,
    reflink: bool,
    finobt: bool,
    parents: bool,
}

impl Parts {
    fn of(g: &Geometry, legacy: bool) -> Parts {
        let bs = u64::from(g.blocksize);
        let mut l = Levels::of(g);
        if legacy && g.rmapbt() && g.reflink() {
            l.rmap = 9;
        }
        let db = 1u64 << g.dirblklog;
        let leaf = TreeKind::Bno.shape().max(g.blocksize, 0) as u64;
        let bm = db.div_ceil(leaf - leaf / 2) * (l.data - 1);
        let inodesize = u64::from(g.inodesize);
        Parts {
            bs,
            sect: u64::from(g.sectsize),
            dq: 6 * (24 + 104),
            l,
            ino1: 4 * 12 + 56 + inodesize + 2 * 72,
            cluster: u64::from(g.cluster_blocks()) * bs,
            dirblk: db * bs,
            db,
            bm,
            dir: db * 7 + bm * 7 + 1,
            chunk: u64::from(g.chunk_blocks()),
            reflink: g.reflink(),
            finobt: g.finobt(),
            parents: g.has(crate::superblock::incompat::PARENT),
        }
    }
    fn ino(&self, n: u64) -> u64 {
        n * self.ino1
    }
    fn b(&self, n: u64) -> u64 {
        bufs(n, self.bs)
    }
    fn s(&self, n: u64) -> u64 {
        bufs(n, self.sect)
    }
    fn af(&self, k: u64) -> u64 {
        k * 2 * (2 * self.l.alloc - 1) + if self.l.rmap > 0 { k * (2 * self.l.rmap - 1) } else { 0 }
    }
    fn rc(&self, k: u64) -> u64 {
        if self.reflink { k * (2 * self.l.refcount - 1) } else { 0 }
    }
    fn inobtres(&self) -> u64 {
        self.b(self.l.ino) + self.b(self.af(1))
    }
    fn finobtres(&self) -> u64 {
        if self.finobt { self.inobtres() } else { 0 }
    }
    fn unlink_add(&self) -> u64 {
        self.s(1) + self.cluster
    }
    fn unlink_remove(&self) -> u64 {
        self.s(1) + 2 * self.cluster
    }
    fn write(&self, legacy: bool) -> u64 {
        let extra = if legacy { self.b(self.rc(2)) } else { 0 };
        let map = self.ino(1) + self.b(self.l.data) + self.s(3) + self.b(self.af(2)) + extra;
        let free = self.s(5) + self.b(self.af(2)) + extra;
        let refc = if self.reflink && !legacy { self.s(1) + self.b(self.rc(1)) } else { 0 };
        self.dq + map.max(free).max(refc)
    }
    fn itruncate(&self, legacy: bool) -> u64 {
        let extra = if legacy { self.b(self.rc(4)) } else { 0 };
        let unmap = self.ino(1) + self.b(self.l.data + 1);
        let free = self.s(9) + self.b(self.af(4)) + extra;
        let refc = if self.reflink && !legacy { self.s(2) + self.b(self.rc(2)) } else { 0 };
        self.dq + unmap.max(free).max(refc)
    }
    fn create(&self) -> u64 {
        let alloc = self.s(2) + self.sect + self.b(self.af(1)) + self.inobtres() + self.finobtres();
        let modify = self.ino(2) + self.s(1) + self.bs + self.b(self.dir) + self.finobtres();
        self.dq + alloc.max(modify)
    }
    fn attrsetm(&self) -> u64 {
        self.dq + self.ino(1) + self.s(1) + self.b(5)
    }
    /// Entering or taking out parent pointers beside a name: in the same link as we do, or in links of their own as the
    /// kernel does, which counts three links more for that.
    fn parent(&self, names: u64, ours: bool) -> (u64, u32) {
        match (self.parents, ours) {
            (false, _) => (0, 0),
            (true, true) => (names * (self.ino(1) + self.s(2) + self.b(2 * MAX_DEPTH as u64 + self.l.attr + self.af(1))), 0),
            // The intents with the longest names, as xfs_db prints them.
            (true, false) => (if names == 1 { 308 } else { 1192 }, 3),
        }
    }
    fn attrset_block(&self) -> u64 {
        self.s(1) + self.b(self.l.attr)
    }
}

impl Reservations {
    /// The reservations of a volume.
    pub fn of(g: &Geometry) -> Reservations {
        Self::with_parents(g, true)
    }

    fn with_parents(g: &Geometry, ours: bool) -> Reservations {
        let p = Parts::of(g, false);
        let (one, three) = (p.parent(1, ours), p.parent(3, ours));
        let name = |unit, count| Reservation { unit: unit + one.0, count: count + one.1 };
        let adj = if g.rmapbt() || g.reflink() { 1 } else { 0 } + u32::from(g.reflink()) + u32::from(g.rmapbt());
        let r = |unit, count| Reservation { unit, count };
        let dir = p.b(p.dir);
        let remote = u64::from(attr_blocks(g));
        let trees = 1 + u64::from(p.finobt);
        Reservations {
            write: r(p.write(false), 2 + adj),
            itruncate: r(p.itruncate(false), 2 + adj),
            rename: r(p.dq + three.0 + (p.ino(5) + p.b(2 * p.dir)).max(p.s(7) + p.b(p.af(3))), 2 + three.1),
            link: name(p.dq + p.unlink_remove() + (p.ino(2) + dir).max(p.s(3) + p.b(p.af(1))), 2),
            remove: name(p.dq + p.unlink_add() + (p.ino(2) + dir).max(p.s(4) + p.b(p.af(2))), 2),
            create: name(p.create(), 2),
            mkdir: name(p.create(), 3),
            symlink: name(p.create() + bufs(1, 1024), 3),
            ifree: r(p.dq + p.ino(1) + p.s(3) + p.unlink_remove() + p.b(p.af(1)) + bufs(p.chunk, 0) + p.inobtres() + p.finobtres(), 2),
            ichange: r(p.dq + p.ino(1) + p.s(1), 1),
            attrset: r(p.attrsetm() + p.attrset_block() * (5 + remote.min(5)), 3),
            attrrm: r(p.dq + (p.ino(1) + p.b(5) + p.l.attr * p.bs + bufs(p.l.data, 0)).max(p.s(5) + p.b(p.af(2))), 3),
            sb: r(p.s(1), 1),
            addafork: r(p.dq + p.ino(1) + p.s(2) + bufs(1, p.dirblk) + p.b(p.bm + 1) + p.b(p.af(1)), 2),
            dir_enter_blocks: (7 * p.db + 7 * p.bm) as u32,
            dir_remove_blocks: (7 * p.bm) as u32,
            ialloc_blocks: (p.chunk + trees * p.l.ino) as u32,
            write_blocks: (p.l.data - 1) as u32,
        }
    }
}

fn attr_blocks(g: &Geometry) -> u32 {
    crate::attr::remote_blocks(crate::attr::MAX_VALUE, g.blocksize as usize) as u32
}

/// Bytes that `unit` takes with all headers around it, for in-core buffers of `iclog` bytes.
pub fn with_headers(unit: u64, iclog: u64, roundoff: u64) -> u64 {
    let hsize = log::BB as u64 * iclog.div_ceil(log::CYCLE_SPAN as u64);
    let mut total = unit + 12 + 16 + 12;
    let payload = iclog - hsize;
    let mut n = total.div_ceil(payload);
    total += 12 * n + hsize * n;
    while total.div_ceil(payload) > n {
        total += 12 + hsize;
        n += 1;
    }
    total + hsize + 2 * roundoff
}

/// Blocks of the smallest log that the kernel accepts for this volume.
pub fn min_log_blocks(g: &Geometry) -> u32 {
    // Volumes with parent pointers no longer make room for the larger reservations of old kernels.
    let legacy = !g.has(crate::superblock::incompat::PARENT);
    let p = Parts::of(g, legacy);
    let r = Reservations::with_parents(g, false);
    let n = match (legacy, g.reflink()) {
        (false, _) => r.write.count,
        (true, true) => 8,
        (true, false) => 2,
    };
    let mut best = (0u64, 0u32);
    let mut consider = |unit: u64, count: u32| {
        if unit * u64::from(count) > best.0 * u64::from(best.1) {
            best = (unit, count);
        }
    };
    consider(p.write(legacy), n);
    consider(p.itruncate(legacy), n);
    consider(p.write(legacy) + bufs(1, p.bs - 1), n);
    for x in [r.rename, r.link, r.remove, r.create, r.mkdir, r.symlink, r.ifree, r.addafork, r.attrrm] {
        consider(x.unit, x.count);
    }
    // The largest attribute: its unit alone competes with the others' products, and is multiplied by its count if it wins (format facts, 13.4).
    let size = p.bs * 3 / 4 - 256;
    let leaf = TreeKind::Bno.shape().max(g.blocksize, 0) as u64;
    let extents = leaf - leaf / 2;
    let nextentadd = size.div_ceil(extents) * (p.l.attr - 1);
    let blocks = 5 + 5 * (p.l.attr - 1) + size.div_ceil(p.bs) + nextentadd;
    let attr = p.attrsetm() + p.attrset_block() * blocks;
    if attr > best.0 * u64::from(best.1) {
        best = (attr, 3);
    }
    let lsunit = if g.logsunit > 1 { u64::from(g.logsunit) } else { 0 };
    let iclog = 256u64 << 10;
    let hsize = 4096u64;
    let payload = iclog - hsize;
    let mut unit = best.0 + 12 + 16 + 12;
    let recs = unit.div_ceil(payload);
    unit += (12 + hsize) * recs;
    unit += hsize + if lsunit > 0 { 2 * lsunit } else { 1024 };
    let bytes = unit * u64::from(best.1);
    let bb = bytes.div_ceil(512);
    let bb = if lsunit > 0 {
        let u = lsunit / 512;
        bb.next_multiple_of(u) + 2 * u
    } else {
        bb + 1024
    };
    ((3 * bb * 512).div_ceil(p.bs)).max(512) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::incompat::{EXCHRANGE, NREXT64, PARENT};
    use crate::superblock::ro_compat::*;
    use crate::{FsBlock, Ino};

    /// 4 KiB blocks, 512-byte sectors, groups of `agblocks`.
    fn volume(agblocks: u32, ro_compat: u32) -> Geometry {
        Geometry {
            blocksize: 4096,
            blocklog: 12,
            dblocks: u64::from(agblocks) * 4,
            agblocks,
            agblklog: 16,
            agcount: 4,
            sectsize: 512,
            inodesize: 512,
            inopblock: 8,
            inopblog: 3,
            inoalignmt: 8,
            spino_align: 4,
            dirblklog: 0,
            logstart: FsBlock(0),
            logblocks: 0,
            logsectsize: 512,
            logsunit: 1,
            rootino: Ino(128),
            uuid: [0; 16],
            meta_uuid: [0; 16],
            versionnum: 0xb4a5,
            ro_compat,
            incompat: 0xb,
            imax_pct: 25,
            unit: 0,
            width: 0,
            growing_from: 0,
        }
    }

    #[test]
    fn reservations_are_those_that_xfs_db_prints() {
        let r = Reservations::of(&volume(65536, FINOBT | REFLINK | INOBTCNT));
        assert_eq!((r.write.unit, r.write.count), (75256, 4));
        assert_eq!((r.itruncate.unit, r.itruncate.count), (107_904, 4));
        assert_eq!((r.rename.unit, r.link.unit, r.remove.unit), (308_696, 187_760, 171_376));
        assert_eq!((r.create.unit, r.symlink.unit, r.ifree.unit), (192_880, 194_032, 130_808));
        assert_eq!((r.ichange.unit, r.sb.unit), (2168, 640));
    }

    /// As mkfs.xfs 7.2 makes them: all that it turns on, and the same without parent pointers.
    fn newest(parents: bool) -> Geometry {
        let mut g = volume(65536, FINOBT | RMAPBT | REFLINK | INOBTCNT);
        g.incompat |= NREXT64 | EXCHRANGE | if parents { PARENT } else { 0 };
        g
    }

    #[test]
    fn parent_pointers_are_reserved_for() {
        let (with, without) = (Reservations::with_parents(&newest(true), false), Reservations::of(&newest(false)));
        assert_eq!((without.rename.unit, without.link.unit, without.create.unit), (426_968, 246_896, 281_584));
        assert_eq!((with.rename.unit, with.rename.count), (428_160, 5));
        assert_eq!((with.link.unit, with.remove.unit, with.create.unit, with.mkdir.count), (247_204, 230_820, 281_892, 6));
        assert_eq!((min_log_blocks(&newest(true)), min_log_blocks(&newest(false))), (2001, 3273));
        // What we reserve fits the smallest log of the kernel's making.
        let ours = Reservations::of(&newest(true)).rename;
        assert!(ours.unit * u64::from(ours.count) < with.rename.unit * u64::from(with.rename.count));
    }

    #[test]
    fn smallest_logs_are_those_that_mkfs_xfs_makes() {
        assert_eq!(min_log_blocks(&volume(65536, FINOBT | REFLINK | INOBTCNT)), 1566);
        assert_eq!(min_log_blocks(&volume(4096, FINOBT | REFLINK | INOBTCNT)), 1368);
        assert_eq!(min_log_blocks(&volume(65536, FINOBT | INOBTCNT)), 857);
    }
}
