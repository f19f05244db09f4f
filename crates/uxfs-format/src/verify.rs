//! Verification of whole metadata blocks, the same function on the way in and on the way out.

use crate::btree::{LONG_OWNER, TreeKind};
use crate::bytes::*;
use crate::*;

/// A structure does not hold: which, where and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{structure} at basic block {place} {what}")]
pub struct Corruption {
    /// Name of the structure.
    pub structure: &'static str,
    /// Where it lies.
    pub place: DiskAddr,
    /// What does not hold.
    pub what: &'static str,
}

/// What a metadata block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Superblock sector.
    Superblock,
    /// Free space header.
    Agf,
    /// Inode header.
    Agi,
    /// Free list.
    Agfl,
    /// Block of a tree.
    Btree(TreeKind),
    /// Inode cluster.
    Inode,
    /// Directory in block form.
    DirBlock,
    /// Directory data block.
    DirData,
    /// Directory free index.
    DirFree,
    /// The one leaf of a directory.
    DirLeaf1,
    /// A leaf of a directory in node form.
    DirLeafN,
    /// Inner node of a directory or attribute tree.
    DaNode,
    /// Attribute leaf.
    AttrLeaf,
    /// Block of a remote attribute value.
    AttrRemote,
    /// Block of a symbolic link's target.
    Symlink,
    /// Any block with the shared directory and attribute header; its magic number decides.
    DaAny,
}

impl Kind {
    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Superblock => "superblock",
            Kind::Agf => "AGF",
            Kind::Agi => "AGI",
            Kind::Agfl => "AGFL",
            Kind::Btree(t) => t.shape().name,
            Kind::Inode => "inode cluster",
            Kind::DirBlock => "directory block",
            Kind::DirData => "directory data block",
            Kind::DirFree => "directory free index",
            Kind::DirLeaf1 | Kind::DirLeafN => "directory leaf",
            Kind::DaNode => "directory or attribute node",
            Kind::AttrLeaf => "attribute leaf",
            Kind::AttrRemote => "remote attribute value",
            Kind::Symlink => "symbolic link block",
            Kind::DaAny => "directory or attribute block",
        }
    }

    /// The buffer type of log items (journal facts, I.4).
    pub fn log_type(self) -> u16 {
        match self {
            Kind::Btree(_) => 4,
            Kind::Agf => 5,
            Kind::Agfl => 6,
            Kind::Agi => 7,
            Kind::Inode => 8,
            Kind::Symlink => 9,
            Kind::DirBlock => 10,
            Kind::DirData => 11,
            Kind::DirFree => 12,
            Kind::DirLeaf1 => 13,
            Kind::DirLeafN => 14,
            Kind::DaNode | Kind::DaAny => 15,
            Kind::AttrLeaf => 16,
            Kind::AttrRemote => 17,
            Kind::Superblock => 18,
        }
    }

    /// Finds out what a block is by its magic number; used by recovery, which must not trust the log's word alone.
    pub fn sniff(b: &[u8]) -> Option<Kind> {
        use crate::{ag::*, btree::*};
        Some(match get32(b, 0) {
            superblock::SB_MAGIC => Kind::Superblock,
            AGF_MAGIC => Kind::Agf,
            AGI_MAGIC => Kind::Agi,
            AGFL_MAGIC => Kind::Agfl,
            BNOBT_MAGIC => Kind::Btree(TreeKind::Bno),
            CNTBT_MAGIC => Kind::Btree(TreeKind::Cnt),
            INOBT_MAGIC => Kind::Btree(TreeKind::Ino),
            FINOBT_MAGIC => Kind::Btree(TreeKind::Fino),
            RMAPBT_MAGIC => Kind::Btree(TreeKind::Rmap),
            REFCOUNTBT_MAGIC => Kind::Btree(TreeKind::Refcount),
            BMBT_MAGIC => Kind::Btree(TreeKind::Bmap),
            symlink::SYMLINK_MAGIC => Kind::Symlink,
            attr::REMOTE_MAGIC => Kind::AttrRemote,
            _ => match (dir::magic(b), da::magic(b)) {
                _ if old_kind(b).is_some() => Kind::Btree(old_kind(b)?),
                (dir::BLOCK_MAGIC, _) => Kind::DirBlock,
                (dir::DATA_MAGIC, _) => Kind::DirData,
                (dir::FREE_MAGIC, _) => Kind::DirFree,
                (_, da::DA_NODE_MAGIC) => Kind::DaNode,
                (_, da::ATTR_LEAF_MAGIC) => Kind::AttrLeaf,
                (_, da::DIR_LEAF1_MAGIC) => Kind::DirLeaf1,
                (_, da::DIR_LEAFN_MAGIC) => Kind::DirLeafN,
                _ if get16(b, 0) == inode::INODE_MAGIC => Kind::Inode,
                _ => return None,
            },
        })
    }

    /// Offsets of checksum, log position, UUID and own address within the block; `None` for what has no such field.
    fn fields(self) -> Fields {
        let f = |crc, lsn, uuid, blkno| Fields { crc, lsn, uuid, blkno };
        match self {
            Kind::Superblock => f(superblock::SB_CRC, 240, None, None),
            Kind::Agf => f(ag::AGF_CRC, 208, Some(64), None),
            Kind::Agi => f(ag::AGI_CRC, 320, Some(296), None),
            Kind::Agfl => f(ag::AGFL_CRC, 24, Some(8), None),
            Kind::Btree(TreeKind::Bmap) => f(btree::LONG_CRC, 32, Some(40), Some(24)),
            Kind::Btree(_) => f(btree::SHORT_CRC, 24, Some(32), Some(16)),
            Kind::Inode => f(inode::INODE_CRC, inode::INODE_LSN, Some(160), None),
            Kind::DirBlock | Kind::DirData | Kind::DirFree => f(dir::DIR_CRC, 16, Some(24), Some(8)),
            Kind::DirLeaf1 | Kind::DirLeafN | Kind::DaNode | Kind::AttrLeaf | Kind::DaAny => f(da::DA_CRC, 24, Some(32), Some(16)),
            Kind::AttrRemote | Kind::Symlink => f(symlink::REMOTE_CRC, 48, Some(16), Some(40)),
        }
    }

    /// The log position stamped into the block, if its kind has a usable one.
    pub fn lsn(self, b: &[u8]) -> Option<Lsn> {
        match self {
            Kind::Inode | Kind::AttrRemote => None,
            _ => Some(Lsn(get64(b, self.fields().lsn))),
        }
    }

    /// True if the block bears the volume's UUID.
    pub fn uuid_matches(self, b: &[u8], g: &Geometry) -> bool {
        match (self, self.fields().uuid) {
            (Kind::Superblock, _) => slice(b, 32, 16) == g.uuid,
            (_, Some(at)) => slice(b, at, 16) == g.meta_uuid,
            _ => true,
        }
    }

    /// Bytes of a block of this kind, where that is not a sector's or a cluster's business.
    pub fn block_bytes(self, g: &Geometry) -> Option<usize> {
        match self {
            Kind::DirBlock | Kind::DirData | Kind::DirLeaf1 | Kind::DirLeafN | Kind::DirFree => Some(g.dirblocksize() as usize),
            _ => None,
        }
    }

    /// True if the checksum is that of these bytes.
    pub fn is_whole(self, b: &[u8]) -> bool {
        self == Kind::Inode || crc::verify(b, self.fields().crc)
    }

    /// Stamps log position and checksum before a write. Inodes are stamped one by one when they are flushed.
    pub fn stamp(self, b: &mut [u8], lsn: Option<Lsn>) {
        let f = match self {
            Kind::Inode => return,
            _ => self.fields(),
        };
        if let Some(lsn) = lsn
            && self != Kind::AttrRemote
        {
            put64(b, f.lsn, lsn.0);
        }
        crc::stamp(b, f.crc);
    }

    /// Checks a block that was read, or that is about to be written (then without its checksum).
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn verify(self, b: &[u8], at: DiskAddr, g: &Geometry, with_crc: bool) -> Result<(), Corruption> {
        let kind = if self == Kind::DaAny {
            match Kind::sniff(b) {
                Some(k) if k.is_da() => k,
                _ => return Err(Corruption { structure: self.name(), place: at, what: "has an unknown magic number" }),
            }
        } else {
            self
        };
        kind.verify_inner(b, at, g, with_crc).map_err(|what| Corruption { structure: kind.name(), place: at, what })
    }

    /// True for a block of this kind of a volume of version 4.
    fn is_old(self, b: &[u8]) -> bool {
        match self {
            Kind::Btree(_) => btree::old_kind(b).is_some(),
            Kind::DirBlock | Kind::DirData | Kind::DirFree => dir::is_old(b),
            Kind::DirLeaf1 | Kind::DirLeafN | Kind::DaNode | Kind::AttrLeaf | Kind::DaAny => da::is_old(b),
            Kind::Superblock | Kind::Agf | Kind::Agi | Kind::Agfl | Kind::Inode | Kind::AttrRemote | Kind::Symlink => false,
        }
    }

    /// The inode, or of a group's tree the group, that a block says it belongs to; blocks of version 4 say nothing.
    pub fn owner(self, b: &[u8]) -> Option<u64> {
        let owner = match self {
            Kind::Btree(TreeKind::Bmap) => get64(b, LONG_OWNER),
            Kind::Btree(_) => u64::from(get32(b, 48)),
            Kind::DirBlock | Kind::DirData | Kind::DirFree => get64(b, 40),
            Kind::DirLeaf1 | Kind::DirLeafN | Kind::DaNode | Kind::AttrLeaf | Kind::DaAny => get64(b, 48),
            Kind::AttrRemote | Kind::Symlink => get64(b, 32),
            Kind::Superblock | Kind::Agf | Kind::Agi | Kind::Agfl | Kind::Inode => return None,
        };
        (!self.is_old(b)).then_some(owner)
    }

    /// True for what [`Kind::DaAny`] stands for.
    pub fn is_da(self) -> bool {
        matches!(self, Kind::DirLeaf1 | Kind::DirLeafN | Kind::DaNode | Kind::AttrLeaf)
    }

    fn verify_inner(self, b: &[u8], at: DiskAddr, g: &Geometry, with_crc: bool) -> Result<(), &'static str> {
        if self == Kind::Inode {
            return verify_cluster(b, at, g, with_crc);
        }
        // A free list of version 4 says nothing of itself.
        let nameless = self == Kind::Agfl && !g.v5();
        if !nameless && Kind::sniff(b) != Some(self) {
            return Err("has the wrong magic number");
        }
        if g.v5() {
            if self.is_old(b) {
                return Err("is of version 4 in a volume of version 5");
            }
            self.verify_own_fields(b, at, g, with_crc)?;
        }
        match self {
            Kind::Superblock => Ok(()),
            Kind::Agf => verify_agf(b, at, g),
            Kind::Agi => verify_agi(b, at, g),
            Kind::Agfl => verify_agfl(b, at, g),
            Kind::Btree(t) => verify_btree(t, b, g),
            Kind::DirBlock | Kind::DirData => dir::check_data(b),
            Kind::DirFree => {
                let f = dir::free_counts(b);
                if f.valid > dir::free_max_of(b) || f.used > f.valid { Err("counts are out of range") } else { Ok(()) }
            }
            Kind::DirLeaf1 => {
                let bests = get32(b, b.len() - 4) as usize;
                let room = b.len() - da::NODE_HEADER - 4;
                if bests > room / 2 || da::count(b) * 8 > room - bests * 2 {
                    return Err("entries and bests overlap");
                }
                verify_hashes(b)
            }
            Kind::DirLeafN | Kind::DaNode => {
                if da::count(b) > da::node_max_of(b) {
                    return Err("has too many entries");
                }
                if self == Kind::DaNode && !(1..=da::MAX_DEPTH as u16).contains(&da::node_level(b)) {
                    return Err("has a level out of range");
                }
                verify_hashes(b)
            }
            Kind::AttrLeaf => attr::check_leaf(b),
            Kind::AttrRemote | Kind::Symlink => {
                let bytes = get32(b, 8) as usize;
                if bytes == 0 || bytes > b.len() - symlink::REMOTE_HEADER { Err("has a length out of range") } else { Ok(()) }
            }
            Kind::Inode | Kind::DaAny => Ok(()),
        }
    }
}

impl Kind {
    /// What a block of version 5 says of itself: checksum, volume, address.
    fn verify_own_fields(self, b: &[u8], at: DiskAddr, g: &Geometry, with_crc: bool) -> Result<(), &'static str> {
        let f = self.fields();
        if with_crc && !crc::verify(b, f.crc) {
            return Err("has a wrong checksum");
        }
        if !self.uuid_matches(b, g) {
            return Err("bears another volume's UUID");
        }
        if f.blkno.is_some_and(|o| get64(b, o) != at.0) {
            return Err("bears another block's address");
        }
        Ok(())
    }

    /// Prepares a block that comes into memory: one of version 4 without file types says so from then on.
    pub fn adopt(self, b: &mut [u8], g: &Geometry) {
        if !g.ftype() && matches!(self, Kind::DirBlock | Kind::DirData) {
            dir::mark_untyped(b);
        }
    }
}

struct Fields {
    crc: usize,
    lsn: usize,
    uuid: Option<usize>,
    blkno: Option<usize>,
}

fn verify_hashes(b: &[u8]) -> Result<(), &'static str> {
    let n = da::count(b);
    if (1..n).any(|i| da::entry_hash(b, i - 1) > da::entry_hash(b, i)) {
        return Err("entries are out of order");
    }
    if da::magic(b) != da::DA_NODE_MAGIC {
        let stale = (0..n).filter(|&i| da::entry_value(b, i) == 0).count();
        if stale != usize::from(da::node_level(b)) {
            return Err("count of stale entries is wrong");
        }
    }
    Ok(())
}

fn header_agno(at: DiskAddr, g: &Geometry) -> u32 {
    (at.0 / (u64::from(g.agblocks) * u64::from(g.bb_per_block()))) as u32
}

fn verify_agf(b: &[u8], at: DiskAddr, g: &Geometry) -> Result<(), &'static str> {
    let agno = header_agno(at, g);
    let len = get32(b, 12);
    let slots = ag::agfl_slots(g);
    let root_ok = |root: u32, level: u32| root > 0 && root < len && level >= 1 && level <= btree::MAX_LEVELS as u32;
    let checks = [
        (get32(b, 4) == 1 && get32(b, 8) == agno, "version or sequence number is wrong"),
        (g.is_ag_length(AgNumber(agno), len), "length does not fit the volume"),
        (root_ok(get32(b, 16), get32(b, 28)) && root_ok(get32(b, 20), get32(b, 32)), "free space tree's root or level is out of range"),
        (!g.rmapbt() || root_ok(get32(b, 24), get32(b, 36)), "rmapbt's root or level is out of range"),
        (!g.reflink() || root_ok(get32(b, 88), get32(b, 92)), "refcountbt's root or level is out of range"),
        (get32(b, 40) < slots && get32(b, 44) < slots && get32(b, 48) <= slots, "free list's indices are out of range"),
        (get32(b, 52) <= len && get32(b, 56) <= get32(b, 52) && get32(b, 60) <= len, "block counts are out of range"),
    ];
    checks.iter().find(|c| !c.0).map_or(Ok(()), |c| Err(c.1))
}

fn verify_agi(b: &[u8], at: DiskAddr, g: &Geometry) -> Result<(), &'static str> {
    let agno = header_agno(at, g);
    let len = get32(b, 12);
    let root_ok = |root: u32, level: u32| root > 0 && root < len && level >= 1 && level <= btree::MAX_LEVELS as u32;
    let unlinked_ok = (0..ag::UNLINKED_BUCKETS).all(|i| {
        let v = get32(b, 40 + 4 * i);
        v == NULL_AG || g.valid_ino(g.ino(AgNumber(agno), AgIno(v)))
    });
    let checks = [
        (get32(b, 4) == 1 && get32(b, 8) == agno, "version or sequence number is wrong"),
        (g.is_ag_length(AgNumber(agno), len), "length does not fit the volume"),
        (root_ok(get32(b, 20), get32(b, 24)), "inobt's root or level is out of range"),
        (!g.finobt() || root_ok(get32(b, 328), get32(b, 332)), "finobt's root or level is out of range"),
        (get32(b, 28) <= get32(b, 16), "more inodes are free than exist"),
        (unlinked_ok, "unlinked list's head is out of range"),
    ];
    checks.iter().find(|c| !c.0).map_or(Ok(()), |c| Err(c.1))
}

fn verify_agfl(b: &[u8], at: DiskAddr, g: &Geometry) -> Result<(), &'static str> {
    let agno = header_agno(at, g);
    if g.v5() && get32(b, 4) != agno {
        return Err("sequence number is wrong");
    }
    let len = g.ag_length(AgNumber(agno));
    let ok = (0..ag::agfl_slots(g)).all(|i| matches!(ag::agfl_get(g, b, i), NULL_AG | 0) || ag::agfl_get(g, b, i) < len);
    if ok { Ok(()) } else { Err("holds a block outside the group") }
}

fn verify_btree(t: TreeKind, b: &[u8], g: &Geometry) -> Result<(), &'static str> {
    let s = t.shape_in(g);
    let (level, n) = (btree::level(b), btree::numrecs(b));
    if level as usize >= btree::MAX_LEVELS {
        return Err("has a level out of range");
    }
    if n > s.max(g.blocksize, level) || (level > 0 && n == 0) {
        return Err("has a record count out of range");
    }
    let max = if s.ptr == 4 { u64::from(g.agblocks) } else { u64::from(g.agcount) << g.agblklog };
    let ok = |p: Option<u64>| p.is_none_or(|p| p > 0 && p < max);
    if !ok(s.left(b)) || !ok(s.right(b)) {
        return Err("has a sibling out of range");
    }
    if level > 0 && (0..n).any(|i| !ok(Some(s.ptr_get(b, g.blocksize, i)))) {
        return Err("has a pointer out of range");
    }
    Ok(())
}

fn verify_cluster(b: &[u8], at: DiskAddr, g: &Geometry, with_crc: bool) -> Result<(), &'static str> {
    let fsb = g.daddr_fsb(at);
    let first = g.ino(g.fsb_agno(fsb), g.agbno_agino(g.fsb_agbno(fsb))).0;
    for (i, d) in b.chunks_exact(g.inodesize as usize).enumerate() {
        let version = get8(d, 4);
        if get16(d, 0) != inode::INODE_MAGIC || if g.v5() { version != 3 } else { !matches!(version, 1 | 2) } {
            return Err("holds an inode with a wrong magic number or version");
        }
        if !g.v5() {
            continue;
        }
        if get64(d, 152) != first + i as u64 {
            return Err("holds an inode with another's number");
        }
        if with_crc && !crc::verify(d, inode::INODE_CRC) {
            return Err("holds an inode with a wrong checksum");
        }
    }
    Ok(())
}
