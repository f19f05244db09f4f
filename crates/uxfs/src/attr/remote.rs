//! Values in blocks of their own, written outside the log.

use super::leaf::{Owned, OwnedValue};
use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::space::{self, Want};
use crate::trans::Trans;
use std::sync::Arc;
use uxfs_device::WriteFlags;
use uxfs_format::attr::{REMOTE_MAGIC, remote_blocks};
use uxfs_format::bytes::get32;
use uxfs_format::extent::Extent;
use uxfs_format::symlink::{self, REMOTE_HEADER};
use uxfs_format::{FileBlock, Kind, Lsn};

/// Maps blocks for a value behind everything else in the fork; returns the first.
pub(super) fn allocate(tp: &mut Trans, inode: &Arc<Inode>, blocks: u32) -> Result<u32> {
    let first = inode.data().attr.end().max(1) as u32;
    let mut done = 0;
    while done < blocks {
        let near = map::home(inode);
        let (start, len) = space::alloc(
            tp,
            Want { near, min: 1, max: blocks - done, align: 1, spare: tp.vol.res.write_blocks, owner: space::Owner::FILE },
        )?;
        let e = Extent { off: FileBlock(u64::from(first + done)), start, len, unwritten: false };
        map::map(tp, inode, Which::Attr, e)?;
        done += len;
    }
    Ok(first)
}

/// Writes a value and waits for it. It is durable before the transaction that makes it visible, by that one's flush.
pub(super) fn write(inode: &Inode, first: u32, value: &[u8]) -> Result<()> {
    let g = &inode.vol.geo;
    let payload = g.blocksize as usize - REMOTE_HEADER;
    for (i, part) in value.chunks(payload).enumerate() {
        let off = u64::from(first) + i as u64;
        let at = inode.data().attr.at(off).map(|e| g.fsb_daddr(e.at(off)));
        let at = at.ok_or_else(|| inode.vol.corrupt(inode.ino, "lost blocks of an attribute's value"))?;
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

/// Frees the blocks of a value.
pub(super) fn free(tp: &mut Trans, inode: &Arc<Inode>, e: &Owned) -> Result<()> {
    let OwnedValue::Remote { block, len } = e.value else { return Ok(()) };
    let n = remote_blocks(len as usize, tp.vol.geo.blocksize as usize) as u64;
    let (off, end) = (u64::from(block), u64::from(block) + n);
    loop {
        let done = map::unmap(tp, inode, Which::Attr, off, end, 1)?;
        tp.finish_deferred()?;
        if done {
            return Ok(());
        }
        tp.roll()?;
        inode.log(tp, 0)?;
    }
}
