//! Volumes that were in use for long: trees of several levels, free space in pieces.

use std::ops::Range;
use std::sync::Arc;
use uxfs::{Allocate, Devices, Fs, Make};
use uxfs_device::{DeviceRef, Memory};
use uxfs_sync::Chance;

use crate::workload::options;

/// The file that fills a volume.
pub(crate) const FILLER: &[u8] = b"filler";

/// Most inodes that are made: the checker looks at each of them after each cut.
const INODES: u64 = 4500;

fn make(kind: u16) -> Make {
    Make { mode: kind | 0o700, uid: 0, gid: 0, rdev: (0, 0), umask: 0 }
}

/// Lets a volume grow old: files that share blocks, free inodes between used ones and free blocks between used ones, so many that
/// where blocks are small their trees have a second level.
///
/// # Errors
/// There is no room for that.
pub(crate) fn age(images: Vec<Memory>, seed: u64) -> uxfs::Result<Vec<Memory>> {
    let images: Vec<Arc<Memory>> = images.into_iter().map(Arc::new).collect();
    let fs = Fs::open(Devices { data: images[0].clone(), log: images.get(1).map(|l| l.clone() as DeviceRef) }, options(seed))?;
    let (block, chance) = (u64::from(fs.geometry().blocksize), Chance::seeded(seed));
    // Records in a leaf of each tree, and some more.
    let more_than = |record: u64| (block - 56) / record * 9 / 8;
    share(&fs, more_than(12))?;
    // In every other one no chunk of inodes finds place in one piece, and few inodes are free.
    let splintered = seed / 3 % 2 == 1;
    if splintered {
        splinter(&fs)?;
    } else {
        scatter(&fs, more_than(8), &chance)?;
    }
    let old = fs.create(fs.root(), b"old", make(0o040_000))?.ino;
    let names = 0..if splintered { 100 } else { (more_than(16) * 64).min(INODES) };
    for n in names.clone() {
        fs.create(old, format!("{n}").as_bytes(), make(0o100_000))?;
    }
    for n in names.filter(|n| !splintered && (n % 64 == 0 || chance.below(8) == 0)) {
        fs.unlink(old, format!("{n}").as_bytes())?;
    }
    fs.unmount()?;
    Ok(images.into_iter().map(|i| i.fork()).collect())
}

/// Two files with so many runs of blocks that both have.
fn share(fs: &Fs, runs: u64) -> uxfs::Result<()> {
    let block = u64::from(fs.geometry().blocksize);
    let [a, b] = [&b"one"[..], b"other"].map(|name| fs.create(fs.root(), name, make(0o100_000)).map(|s| s.ino));
    let (a, b) = (a?, b?);
    let bytes = vec![b'o'; (2 * runs * block) as usize];
    fs.write(a, 0, &bytes, false)?;
    fs.clone_range((a, 0), (b, 0), bytes.len() as u64)?;
    holes(fs, b, 0..runs, 1)
}

/// A file with so many holes of one block, and longer ones.
fn scatter(fs: &Fs, pieces: u64, chance: &Chance) -> uxfs::Result<()> {
    let block = u64::from(fs.geometry().blocksize);
    let f = fs.create(fs.root(), b"scattered", make(0o100_000))?.ino;
    fs.fallocate(f, Allocate::Reserve { keep_size: false }, 0, 4 * pieces * block)?;
    let longer = 1 + chance.below(3);
    holes(fs, f, 0..pieces, 1)?;
    holes(fs, f, pieces / 2..pieces, longer)
}

/// Punches holes of `len` blocks at every other block.
fn holes(fs: &Fs, f: u64, at: Range<u64>, len: u64) -> uxfs::Result<()> {
    let block = u64::from(fs.geometry().blocksize);
    at.into_iter().try_for_each(|n| fs.fallocate(f, Allocate::Punch, 2 * n * block, len * block))
}

/// Leaves about half of what is free, in pieces each of which is one block too small for a chunk of inodes.
fn splinter(fs: &Fs) -> uxfs::Result<()> {
    let (g, chunk) = (fs.geometry(), u64::from(fs.geometry().chunk_blocks()).max(2));
    let (f, size) = filler(fs, b"splinters")?;
    let pieces = (size >> g.blocklog) / (2 * chunk);
    (0..pieces).try_for_each(|n| fs.fallocate(f, Allocate::Punch, (2 * n * chunk) << g.blocklog, (chunk - 1) << g.blocklog))?;
    // What was set aside for trees is in larger pieces.
    let (rest, len) = (fs.create(fs.root(), b"rest", make(0o100_000))?.ino, (2 * chunk) << g.blocklog);
    for n in 0.. {
        fs.fallocate(rest, Allocate::Reserve { keep_size: false }, n * len, len)?;
        if fs.extents(rest)?.iter().any(|e| e.len < len / 2) {
            break;
        }
    }
    Ok(())
}

/// Fills a volume with a file: its inode and bytes.
fn filler(fs: &Fs, name: &[u8]) -> uxfs::Result<(u64, u64)> {
    let block = u64::from(fs.geometry().blocksize);
    let f = fs.create(fs.root(), name, make(0o100_000))?.ino;
    let mut size = fs.statfs().free * block;
    // The last blocks go to the tree that maps it.
    while let Err(uxfs::Error::NoSpace) = fs.fallocate(f, Allocate::Reserve { keep_size: false }, 0, size) {
        size -= block;
    }
    Ok((f, size))
}

/// Fills a volume with a file, and punches holes into that until `room` bytes are free.
///
/// # Errors
/// As the volume has them.
pub(crate) fn fill(fs: &Fs, room: u64, seed: u64) -> uxfs::Result<()> {
    let block = u64::from(fs.geometry().blocksize);
    let (free, chance) = (|| fs.statfs().free * block, Chance::seeded(seed));
    let all = free();
    let (f, size) = filler(fs, FILLER)?;
    while free() < room.min(all) {
        fs.fallocate(f, Allocate::Punch, chance.below(size / block) * block, (1 + chance.below(12)) * block)?;
    }
    fs.sync()
}
