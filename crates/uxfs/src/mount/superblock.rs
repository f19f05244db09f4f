//! The superblock while the volume is open: counters in, counters out, and the bits that its use sets; and its copies.

use crate::error::Result;
use crate::space;
use crate::trans::{Buf, Trans};
use crate::volume::Volume;
use std::ops::Range;
use std::sync::Arc;
use uxfs_device::{DeviceRef, WriteFlags};
use uxfs_format::ag::{Agf, Agi};
use uxfs_format::superblock::{SB_CRC, SB_MAGIC, Superblock, incompat, version};
use uxfs_format::{AgNumber, DiskAddr, Geometry, Kind, crc};
use zerocopy::{FromBytes, IntoBytes};

/// Blocks of a group that its free list may hold.
const LISTED_PER_GROUP: u64 = 24;
/// Most blocks that operations draw on that must succeed on a full volume, and which part of the volume, as the kernel has it.
const MOST_RESERVED: u64 = 8192;
const RESERVED_PART: u64 = 20;

/// Fills the counters: from the superblock after a clean unmount, from the groups' headers after a crash; and what groups keep.
///
/// # Errors
/// The device's; a header is corrupt.
pub(super) fn load_counters(vol: &Arc<Volume>, sb: &Superblock, dirty: bool) -> Result<()> {
    let g = &vol.geo;
    let listed = LISTED_PER_GROUP * u64::from(g.agcount);
    if !dirty && vol.is_read_only() {
        vol.counters.set(sb.fdblocks.get(), sb.icount.get(), sb.ifree.get(), listed, 0);
        return Ok(());
    }
    let (mut kept, mut free, mut icount, mut ifree, mut in_trees) = (0u64, 0u64, 0u64, 0u64, 0u64);
    for agno in (0..g.agcount).map(AgNumber) {
        let bbs = g.bb_per_sector();
        let agf = vol.bufs.read(&[(g.header_daddr(agno, 1), bbs)], Kind::Agf, g)?;
        let agi = vol.bufs.read(&[(g.header_daddr(agno, 2), bbs)], Kind::Agi, g)?;
        let agf = Agf::read_from_prefix(&agf.data()).ok().map(|h| h.0);
        let agi = Agi::read_from_prefix(&agi.data()).ok().map(|h| h.0);
        let (Some(agf), Some(agi)) = (agf, agi) else { continue };
        kept += space::load_kept(vol, agno, &agf, &agi);
        in_trees += u64::from(agf.btreeblks.get());
        free += u64::from(agf.freeblks.get()) + u64::from(agf.flcount.get()) + u64::from(agf.btreeblks.get());
        icount += u64::from(agi.count.get());
        ifree += u64::from(agi.freecount.get());
    }
    if !dirty {
        (free, icount, ifree) = (sb.fdblocks.get(), sb.icount.get(), sb.ifree.get());
    }
    // What is made anew is as small as it can be, and nobody else works on it.
    let reserved = if vol.reproducible { 0 } else { (g.dblocks / RESERVED_PART).min(MOST_RESERVED) };
    vol.counters.set(free, icount, ifree, listed + reserved + kept, in_trees);
    Ok(())
}

/// The volume's label.
///
/// # Errors
/// The device's; the superblock is corrupt.
pub(super) fn label(vol: &Volume) -> Result<Vec<u8>> {
    let b = vol.bufs.read(&[(DiskAddr(0), vol.geo.bb_per_sector())], Kind::Superblock, &vol.geo)?;
    let data = b.data();
    let sb = Superblock::read_from_prefix(&data);
    Ok(sb.map_or_else(|_| Vec::new(), |(sb, _)| sb.fname.split(|c| *c == 0).next().unwrap_or(&[]).to_vec()))
}

/// Changes the superblock in a transaction of its own.
///
/// # Errors
/// The volume is shut down or read-only.
pub(super) fn change(vol: &Arc<Volume>, f: impl FnOnce(&mut Superblock)) -> Result<()> {
    let mut tp = Trans::new_must_succeed(vol, vol.res.sb, 0)?;
    change_in(&mut tp, f)?;
    tp.commit().map(|_| ())
}

/// Changes the superblock in a transaction.
///
/// # Errors
/// The device's.
pub(super) fn change_in(tp: &mut Trans, f: impl FnOnce(&mut Superblock)) -> Result<()> {
    let b: Buf = tp.read_buf(DiskAddr(0), tp.vol.geo.bb_per_sector(), Kind::Superblock)?;
    let bytes = b.data().clone();
    if let Ok((mut sb, _)) = Superblock::read_from_prefix(&bytes) {
        f(&mut sb);
        b.data_mut()[..size_of::<Superblock>()].copy_from_slice(sb.as_bytes());
        tp.log(&b, 0, size_of::<Superblock>());
    }
    Ok(())
}

/// Sets what a kernel sets on its first write: attributes are used, and quota is not counted while we write.
///
/// # Errors
/// The volume is shut down.
pub(super) fn note_features(vol: &Arc<Volume>, sb: &Superblock) -> Result<()> {
    let attr = sb.versionnum.get() & version::ATTR == 0;
    if vol.is_read_only() || (!attr && sb.qflags.get() == 0) {
        return Ok(());
    }
    change(vol, |sb| {
        sb.versionnum.set(sb.versionnum.get() | version::ATTR);
        sb.qflags.set(0);
    })?;
    Ok(vol.journal.force_all()?)
}

/// Writes the counters into the superblock; nothing else runs any more.
///
/// # Errors
/// The volume is shut down.
pub(super) fn write_counters(vol: &Arc<Volume>) -> Result<()> {
    let (free, icount, ifree) = vol.counters.for_superblock();
    change(vol, |sb| {
        sb.fdblocks.set(free);
        sb.icount.set(icount);
        sb.ifree.set(ifree);
    })
}

/// Changes the superblocks of these groups; the first one, which counts, comes last. True if that left any of them other than it was.
///
/// # Errors
/// The device's.
pub(super) fn change_copies(dev: &DeviceRef, g: &Geometry, groups: Range<u32>, change: impl Fn(&mut Superblock)) -> Result<bool> {
    let mut changed = false;
    for agno in groups.rev() {
        let at = g.header_daddr(AgNumber(agno), 0).0 * 512;
        let mut b = vec![0; g.sectsize as usize];
        uxfs_sync::blocking(|| dev.read(at, &mut b))?;
        let Ok((mut sb, _)) = Superblock::read_from_prefix(&b) else { continue };
        if sb.magicnum.get() != SB_MAGIC {
            continue;
        }
        change(&mut sb);
        let place = &mut b[..size_of::<Superblock>()];
        if place == sb.as_bytes() {
            continue;
        }
        place.copy_from_slice(sb.as_bytes());
        crc::stamp(&mut b, SB_CRC);
        uxfs_sync::blocking(|| dev.write(at, &b, WriteFlags { preflush: agno == 0, fua: agno == 0 }))?;
        changed = true;
    }
    Ok(changed)
}

/// Brings size and features in the copies of the superblock up to date; after a crash they may be the old ones.
///
/// # Errors
/// The device's.
pub(super) fn update_copies(dev: &DeviceRef, g: &Geometry) -> Result<()> {
    let changed = change_copies(dev, g, 1..g.agcount, |sb| {
        sb.dblocks.set(g.dblocks);
        sb.agcount.set(g.agcount);
        sb.features_ro_compat.set(g.ro_compat);
        // Each copy says of its own UUID whose the metadata's is.
        let own = sb.features_incompat.get() & incompat::META_UUID;
        sb.features_incompat.set(g.incompat & !incompat::META_UUID | own);
    })?;
    if changed {
        uxfs_sync::blocking(|| dev.flush())?;
    }
    Ok(())
}
