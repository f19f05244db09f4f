//! Values in blocks of their own, written outside the log.

use super::leaf::{Owned, OwnedValue};
use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::space::{self, Want};
use crate::trans::{Deferred, Trans};
use crate::volume::Volume;
use std::sync::Arc;
use uxfs_device::WriteFlags;
use uxfs_format::attr::{MAX_VALUE, REMOTE_MAGIC, remote_blocks};
use uxfs_format::bytes::get32;
use uxfs_format::extent::Extent;
use uxfs_format::reservation::Reservation;
use uxfs_format::symlink::{self, REMOTE_HEADER};
use uxfs_format::{FileBlock, FsBlock, Kind, Lsn};
use uxfs_journal::{Hole, hole};

/// Log bytes of what says that an extent comes and another goes: to be freed or not any more, and whose it is, each with headers.
const INTENTS: u64 = 320;

/// A reservation with room for all extents of a value that comes, and of one that goes: both do in one link.
pub(super) fn with_value(vol: &Volume, r: Reservation) -> Reservation {
    let most = remote_blocks(MAX_VALUE, vol.geo.blocksize as usize) as u64;
    Reservation { unit: r.unit + most * INTENTS, ..r }
}

/// Blocks that no file has yet. A crash gives them back.
pub(super) struct Staged {
    start: FsBlock,
    len: u32,
    undo: Deferred,
}

/// Allocates blocks for a value, with intents to free them again.
pub(super) fn stage(tp: &mut Trans, inode: &Arc<Inode>, blocks: u32) -> Result<Vec<Staged>> {
    let (near, spare) = (map::home(inode), tp.vol.res.write_blocks);
    let (mut all, mut left) = (Vec::new(), blocks);
    while left > 0 {
        let (start, len) = space::alloc(tp, Want { near, min: 1, max: left, align: 1, spare, owner: space::Owner::FILE })?;
        left -= len;
        let undo = space::to_free(start, len, space::Owner::FILE);
        all.push(Staged { start, len, undo: if hole(Hole::UnintendedStaging) { undo } else { tp.intend(undo) } });
    }
    Ok(all)
}

/// Frees what was staged.
pub(super) fn give_back(tp: &mut Trans, staged: Vec<Staged>) {
    staged.into_iter().for_each(|s| tp.defer(s.undo));
}

/// Maps what was staged behind everything else in the fork; returns the first block.
pub(super) fn map(tp: &mut Trans, inode: &Arc<Inode>, staged: Vec<Staged>) -> Result<u32> {
    let first = inode.data().attr.end().max(1);
    let mut off = first;
    for s in staged {
        tp.call_off(&s.undo);
        map::map(tp, inode, Which::Attr, Extent { off: FileBlock(off), start: s.start, len: s.len, unwritten: false })?;
        off += u64::from(s.len);
    }
    Ok(first as u32)
}

/// Writes a value and waits for it. It is durable before the transaction that makes it visible, by that one's flush.
pub(super) fn write(inode: &Inode, staged: &[Staged], value: &[u8]) -> Result<()> {
    let g = &inode.vol.geo;
    let payload = g.blocksize as usize - REMOTE_HEADER;
    let blocks = staged.iter().flat_map(|s| (0..s.len).map(|i| FsBlock(s.start.0 + u64::from(i))));
    for (i, (part, block)) in value.chunks(payload).zip(blocks).enumerate() {
        let at = g.fsb_daddr(block);
        let mut b = vec![0; g.blocksize as usize];
        let lsn = Lsn(u64::MAX);
        symlink::init(&mut b, REMOTE_MAGIC, (i * payload) as u32, part.len() as u32, inode.ino, at, lsn, g);
        b[REMOTE_HEADER..REMOTE_HEADER + part.len()].copy_from_slice(part);
        Kind::AttrRemote.stamp(&mut b, None);
        uxfs_sync::blocking(|| inode.vol.dev.write(at.0 * 512, &b, WriteFlags::default()))?;
    }
    Ok(())
}

/// Reads a value.
pub(super) fn read(inode: &Inode, first: u32, len: usize) -> Result<Vec<u8>> {
    let g = &inode.vol.geo;
    let mut out = Vec::with_capacity(len);
    if !g.v5() {
        return map::read_plain(inode, Which::Attr, u64::from(first), len);
    }
    for i in 0..remote_blocks(len, g.blocksize as usize) as u64 {
        let off = u64::from(first) + i;
        let at = inode.data().attr.at(off).map(|e| g.fsb_daddr(e.at(off)));
        let at = at.ok_or_else(|| inode.vol.corrupt(inode.ino, "has an attribute whose value is not mapped"))?;
        let mut b = vec![0; g.blocksize as usize];
        uxfs_sync::blocking(|| inode.vol.dev.read(at.0 * 512, &mut b))?;
        Kind::AttrRemote.verify(&b, at, g, true)?;
        let bytes = get32(&b, 8) as usize;
        if Kind::AttrRemote.owner(&b) != Some(inode.ino.0) || get32(&b, 4) as usize != out.len() || out.len() + bytes > len {
            return Err(inode.vol.corrupt(inode.ino, "has an attribute whose value's blocks are another's"));
        }
        out.extend_from_slice(&b[REMOTE_HEADER..REMOTE_HEADER + bytes]);
    }
    if out.len() == len { Ok(out) } else { Err(Error::CorruptInode { ino: inode.ino, what: "has an attribute whose value is cut short" }) }
}

/// Frees the blocks of a value, all in this link.
pub(super) fn free(tp: &mut Trans, inode: &Arc<Inode>, e: &Owned) -> Result<()> {
    let OwnedValue::Remote { block, len } = e.value else { return Ok(()) };
    let n = remote_blocks(len as usize, tp.vol.geo.blocksize as usize) as u64;
    map::unmap(tp, inode, Which::Attr, u64::from(block), u64::from(block) + n, usize::MAX).map(|_| ())
}
