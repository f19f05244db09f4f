//! Symbolic links: their targets, in the inode or in blocks.

use crate::da::{Reader, Source};
use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::trans::Trans;
use std::sync::Arc;
use uxfs_format::bytes::get32;
use uxfs_format::inode::Format;
use uxfs_format::log::ino_field;
use uxfs_format::symlink::{self, REMOTE_HEADER, SYMLINK_MAGIC};
use uxfs_format::{DiskAddr, Geometry, Kind, Lsn};

/// Blocks of a target of `len` bytes that is not in the inode, however they lie.
pub fn blocks(g: &Geometry, len: usize) -> u32 {
    len.div_ceil(g.blocksize as usize - REMOTE_HEADER) as u32
}

/// Gives an inode its target.
///
/// # Locks
/// The caller has the inode exclusively, and reserved [`blocks`].
///
/// # Errors
/// `NoSpace`.
pub fn put(tp: &mut Trans, inode: &Arc<Inode>, target: &[u8]) -> Result<()> {
    let fits = target.len() <= inode.data().core.data_fork_size(&tp.vol.geo);
    inode.data().core.size = target.len() as u64;
    if fits {
        inode.data().data.local = target.to_vec();
        inode.log(tp, ino_field::DDATA | ino_field::AEXT)
    } else {
        put_outside(tp, inode, target)
    }
}

/// Moves a target out of the inode.
///
/// # Locks
/// As [`put`].
///
/// # Errors
/// As [`put`].
pub fn move_out(tp: &mut Trans, inode: &Arc<Inode>) -> Result<()> {
    let target = std::mem::take(&mut inode.data().data.local);
    put_outside(tp, inode, &target)
}

fn put_outside(tp: &mut Trans, inode: &Arc<Inode>, target: &[u8]) -> Result<()> {
    let vol = tp.vol.clone();
    let blocks = blocks(&vol.geo, target.len());
    inode.data().core.format = Format::Extents;
    inode.log(tp, ino_field::DEXT | ino_field::AEXT)?;
    let mut off = 0;
    while off < u64::from(blocks) {
        let left = blocks - off as u32;
        let e = match map::grow_fork(tp, inode, Which::Data, off, left) {
            Err(Error::NoSpace) if left > 1 => map::grow_fork(tp, inode, Which::Data, off, 1)?,
            r => r?,
        };
        off = e.end();
    }
    let mut rest = target;
    for (at, bbs) in pieces(inode, blocks) {
        let b = tp.get_buf(&[(at, bbs)], Kind::Symlink);
        let (part, behind) = rest.split_at(rest.len().min(bbs as usize * 512 - REMOTE_HEADER));
        {
            let (mut d, done) = (b.data_mut(), target.len() - rest.len());
            symlink::init(&mut d, SYMLINK_MAGIC, done as u32, part.len() as u32, inode.ino, at, Lsn(0), &vol.geo);
            d[REMOTE_HEADER..REMOTE_HEADER + part.len()].copy_from_slice(part);
        }
        tp.log_all(&b);
        rest = behind;
    }
    Ok(())
}

/// The target of a link.
///
/// # Locks
/// The caller has the inode, shared at least.
///
/// # Errors
/// It is corrupt.
pub fn get(inode: &Arc<Inode>) -> Result<Vec<u8>> {
    let (vol, core) = (&inode.vol, inode.core());
    if core.format == Format::Local {
        return Ok(inode.data().data.local.clone());
    }
    map::load(inode, Which::Data)?;
    if !vol.geo.v5() {
        return map::read_plain(inode, Which::Data, 0, core.size as usize);
    }
    let mut out = Vec::new();
    let mut src = Reader(vol);
    for (at, bbs) in pieces(inode, blocks(&vol.geo, core.size as usize)) {
        let b = src.block(&[(at, bbs)], Kind::Symlink)?;
        let d = b.data();
        let bytes = get32(&d, 8) as usize;
        let fits = out.len() as u64 + bytes as u64 <= core.size && REMOTE_HEADER + bytes <= d.len();
        if Kind::Symlink.owner(&d) != Some(inode.ino.0) || !fits {
            return Err(vol.corrupt(inode.ino, "has a link target in another's block"));
        }
        out.extend_from_slice(&d[REMOTE_HEADER..REMOTE_HEADER + bytes]);
    }
    if out.len() as u64 != core.size {
        return Err(vol.corrupt(inode.ino, "has a link target that is not mapped"));
    }
    Ok(out)
}

/// Says of a target's blocks that they are freed: they may be in the log.
pub fn invalidate(tp: &mut Trans, inode: &Inode) {
    let blocks = inode.data().data.extents.values().map(|e| e.len).sum();
    for piece in pieces(inode, blocks) {
        let b = tp.get_buf(&[piece], Kind::Symlink);
        tp.invalidate(&b);
    }
}

/// Where the target of a link lies in its `blocks` blocks: each extent is one piece, with one header.
fn pieces(inode: &Inode, blocks: u32) -> Vec<(DiskAddr, u32)> {
    let (g, d) = (&inode.vol.geo, inode.data());
    let mut out = Vec::new();
    let mut off = 0;
    while let Some(e) = d.data.at(off).filter(|_| off < u64::from(blocks)) {
        let len = (e.end() - off).min(u64::from(blocks) - off) as u32;
        out.push((g.fsb_daddr(e.at(off)), len * g.bb_per_block()));
        off += u64::from(len);
    }
    out
}
