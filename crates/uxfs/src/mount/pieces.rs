//! Directory blocks that lie in several pieces, after replay.
//!
//! The log has such a block piece by piece, those that changed, and each is replayed by itself; the checksum is of the whole. The kernel
//! does not log that, and its own recovery takes the first piece for damaged and refuses the volume. So the checksums are made anew
//! of what is there when all is replayed. Whoever changes a block of a directory also logs its inode: that tells which directories.

use super::replay::pointers;
use crate::error::Result;
use crate::inode::Fork;
use std::collections::{BTreeMap, BTreeSet};
use uxfs_device::{DeviceRef, WriteFlags};
use uxfs_format::btree::{self, TreeKind};
use uxfs_format::bytes::get16;
use uxfs_format::extent::{EXTENT_SIZE, Extent};
use uxfs_format::inode::{CORE_SIZE, Core, Format, INODE_CRC, INODE_MAGIC, mode};
use uxfs_format::log::{BufFormat, InodeFormat};
use uxfs_format::{DiskAddr, FsBlock, Geometry, Ino, Kind, crc};

/// What was replayed of directories.
#[derive(Default)]
pub(super) struct Pieces {
    /// Where pieces begin.
    replayed: BTreeSet<u64>,
    /// Where the inodes of directories lie: a cluster, and bytes into it.
    dirs: BTreeMap<Ino, (DiskAddr, u32, usize)>,
}

impl Pieces {
    /// Notes a buffer that was replayed.
    pub(super) fn note(&mut self, f: &BufFormat, g: &Geometry) {
        // Blocks of version 4 have no checksums. Ours bear no type.
        let may_be = f.kind == 0 || (Kind::DirBlock.log_type()..=Kind::DaNode.log_type()).contains(&f.kind);
        if g.v5() && may_be && u32::from(f.bbs) * 512 < g.dirblocksize() {
            self.replayed.insert(f.daddr.0);
        }
    }

    /// Notes an inode that was replayed; where blocks of directories are single blocks there is nothing to know.
    pub(super) fn note_inode(&mut self, f: &InodeFormat, core: &Core, g: &Geometry) {
        if g.dirblklog == 0 {
            return;
        }
        if core.kind() == mode::DIR {
            self.dirs.insert(f.ino, (f.daddr, f.bbs, f.offset as usize));
        } else {
            self.dirs.remove(&f.ino);
        }
    }

    /// Gives blocks of which pieces were replayed the checksum of what they are now. Done again, it changes nothing more.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn mend(&self, dev: &DeviceRef, g: &Geometry) -> Result<()> {
        if self.replayed.is_empty() {
            return Ok(());
        }
        for (ino, (at, bbs, offset)) in &self.dirs {
            let mut cluster = vec![0; *bbs as usize * 512];
            dev.read(at.0 * 512, &mut cluster)?;
            let Some(home) = cluster.get(*offset..offset + g.inodesize as usize) else { continue };
            if get16(home, 0) != INODE_MAGIC || !crc::verify(home, INODE_CRC) {
                continue;
            }
            let core = Core::decode(home);
            // Its number may be another file's by now.
            if core.kind() != mode::DIR {
                continue;
            }
            let extents = extents(dev, g, *ino, &core, &home[CORE_SIZE..])?;
            let per = 1u64 << g.dirblklog;
            let replayed = |e: &Extent| {
                let (at, bbs) = (g.fsb_daddr(e.start).0, u64::from(g.bb_per_block()));
                let off = e.off.0;
                self.replayed.range(at..at + u64::from(e.len) * bbs).map(move |p| (off + (p - at) / bbs) / per * per)
            };
            let starts: BTreeSet<u64> = extents.iter().flat_map(replayed).collect();
            for start in starts {
                mend_block(dev, g, *ino, &pieces(g, &extents, start, per))?;
            }
        }
        Ok(())
    }
}

/// Extents of a directory's data, as far as they make sense.
fn extents(dev: &DeviceRef, g: &Geometry, ino: Ino, core: &Core, fork: &[u8]) -> Result<Vec<Extent>> {
    let decode = |b: &[u8], n: usize| -> Vec<Extent> {
        let all = b.chunks_exact(EXTENT_SIZE).take(n).map(Extent::decode);
        all.filter(|e| e.len > 0 && g.valid_fsb(e.start, e.len)).collect()
    };
    let fork = &fork[..core.data_fork_size(g).min(fork.len())];
    let root = match core.format {
        Format::Extents => return Ok(decode(fork, core.nextents as usize)),
        Format::Btree => Fork::decode(fork, Format::Btree, 0, 0),
        Format::Local | Format::Dev => return Ok(Vec::new()),
    };
    let Ok(root) = root else { return Ok(Vec::new()) };
    let (mut ways, mut seen, mut all) = (pointers(&root.root), BTreeSet::new(), Vec::new());
    let s = TreeKind::Bmap.shape();
    while let Some((ptr, level)) = ways.pop() {
        if !g.valid_fsb(FsBlock(ptr), 1) || !seen.insert(ptr) {
            continue;
        }
        let mut b = vec![0; g.blocksize as usize];
        let at = g.fsb_daddr(FsBlock(ptr));
        dev.read(at.0 * 512, &mut b)?;
        let kind = Kind::Btree(TreeKind::Bmap);
        if kind.verify(&b, at, g, true).is_ok() && kind.owner(&b) == Some(ino.0) && btree::level(&b) == level {
            ways.extend(pointers(&b));
            if level == 0 {
                all.extend(decode(&b[s.header..], btree::numrecs(&b)));
            }
        }
    }
    all.sort_by_key(|e| e.off.0);
    Ok(all)
}

/// Where a block of a directory lies: runs of basic blocks, none if it is not there as a whole.
fn pieces(g: &Geometry, extents: &[Extent], start: u64, blocks: u64) -> Vec<(u64, usize)> {
    let mut all: Vec<(u64, usize)> = Vec::new();
    for off in start..start + blocks {
        let i = extents.partition_point(|e| e.end() <= off);
        let Some(e) = extents.get(i).filter(|e| e.off.0 <= off) else { return Vec::new() };
        let (at, n) = (g.fsb_daddr(e.at(off)).0, g.bb_per_block() as usize);
        match all.last_mut() {
            Some((from, len)) if *from + *len as u64 == at => *len += n,
            _ => all.push((at, n)),
        }
    }
    all
}

fn mend_block(dev: &DeviceRef, g: &Geometry, ino: Ino, pieces: &[(u64, usize)]) -> Result<()> {
    if pieces.len() < 2 {
        return Ok(());
    }
    let mut b = vec![0; g.dirblocksize() as usize];
    let mut from = 0;
    for (at, n) in pieces {
        dev.read(at * 512, &mut b[from..from + n * 512])?;
        from += n * 512;
    }
    let (first, len) = pieces[0];
    let Some(kind) = Kind::sniff(&b).filter(|k| k.owner(&b) == Some(ino.0) && !k.is_whole(&b)) else { return Ok(()) };
    kind.stamp(&mut b, None);
    // What does not hold for other reasons stays as it is, for whoever looks for damage.
    if kind.verify(&b, DiskAddr(first), g, true).is_ok() {
        dev.write(first * 512, &b[..len * 512], WriteFlags::default())?;
    }
    Ok(())
}
