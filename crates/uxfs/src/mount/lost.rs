//! A superblock that is lost: each group but the first begins with a copy of it.

use crate::inode::cluster_place;
use std::mem::offset_of;
use uxfs_device::DeviceRef;
use uxfs_format::bytes::{get16, get32};
use uxfs_format::superblock::{SB_CRC, SB_MAGIC, Superblock};
use uxfs_format::{Geometry, crc, inode};

/// Bytes that are looked through at once.
const PIECE: u64 = 1 << 20;
/// Bytes of the largest sector.
const MOST_SECTOR: u64 = 32 << 10;
/// Groups that a volume may have, where it is tried first: all alike, on a device that they fill.
const MOST_GROUPS: u64 = 64;
/// Blocks of the largest group, with blocks of 4 KiB.
const LARGEST_GROUP: u64 = 1 << 28;

/// Finds a copy of the superblock whose volume has its root where it says, if there is one: where groups are likely to begin, then
/// everywhere. What cannot be read is passed over.
pub(super) fn copy_of_superblock(dev: &DeviceRef) -> Option<(Geometry, Superblock)> {
    let size = dev.size_bytes();
    let blocks = size >> 12;
    let alike = (2..=MOST_GROUPS).flat_map(|n| [blocks / n, blocks.div_ceil(n)]);
    let likely = alike.chain([LARGEST_GROUP - 1, LARGEST_GROUP]).map(|b| b << 12);
    if let Some(found) = likely.into_iter().find_map(|at| copy_at(dev, at)) {
        return Some(found);
    }
    let mut piece = vec![0; PIECE as usize];
    for at in (0..size).step_by(PIECE as usize) {
        let piece = &mut piece[..PIECE.min(size - at) as usize];
        if uxfs_sync::blocking(|| dev.read(at, piece)).is_err() {
            continue;
        }
        let begins = (0..piece.len()).step_by(512).filter(|o| piece.len() - o >= 4 && get32(piece, *o) == SB_MAGIC);
        if let Some(found) = begins.into_iter().find_map(|o| copy_at(dev, at + o as u64)) {
            return Some(found);
        }
    }
    None
}

/// The copy that lies there, made what the superblock was.
fn copy_at(dev: &DeviceRef, at: u64) -> Option<(Geometry, Superblock)> {
    let read = |at: u64, bytes: u64| {
        let mut b = vec![0; bytes.min(dev.size_bytes().checked_sub(at)?) as usize];
        uxfs_sync::blocking(|| dev.read(at, &mut b)).ok()?;
        Some(b)
    };
    let mut head = read(at, 512)?;
    if head.len() < 512 || get32(&head, 0) != SB_MAGIC {
        return None;
    }
    head = read(at, u64::from(get16(&head, offset_of!(Superblock, sectsize))).clamp(512, MOST_SECTOR))?;
    let is_new = get16(&head, offset_of!(Superblock, versionnum)) & 0xf == 5;
    if is_new && !crc::verify(&head, SB_CRC) {
        return None;
    }
    // Only the first one is ever said to be finished.
    head[offset_of!(Superblock, inprogress)] = 0;
    crc::stamp(&mut head, SB_CRC);
    let (g, sb) = Geometry::parse(&head).ok()?;
    // One of a volume that lies in a file of this one is not where it would be here, and nor is its root.
    let group = u64::from(g.agblocks) * u64::from(g.blocksize);
    let is_here = at.is_multiple_of(group) && (1..u64::from(g.agcount)).contains(&(at / group));
    let (place, _, offset) = cluster_place(&g, g.rootino);
    let root = read(place.0 * 512 + offset as u64, u64::from(g.inodesize))?;
    let is_root = root.len() == g.inodesize as usize && inode::check(&root, Some(g.rootino), &g).is_ok();
    (is_here && is_root).then_some((g, sb))
}
