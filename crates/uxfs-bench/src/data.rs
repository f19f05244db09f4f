//! File data of the engine in this process beside the kernel's XFS on a loop device over memory.

use crate::beside::opened;
use crate::peers::{Mounted, Peer, Way, file, must, program};
use crate::table::{Table, median};
use anyhow::Result;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use uxfs::{Fs, IoMode, OpenFile, Options};
use uxfs_device::OpenMode;
use uxfs_sync::Chance;

/// Bytes that are written and read in sequence, in calls of [`CALL`].
const STREAM: u64 = 1 << 30;
const CALL: usize = 1 << 20;
/// Bytes of a cached file, from what a processor keeps by itself to what comes from memory, and how often a block of it is read.
const CACHED: [u64; 3] = [1 << 20, 16 << 20, 64 << 20];
const READS: u64 = 2_000_000;
const ROUNDS: usize = 3;
/// Blocks that are written one by one through a mount, and how often all of this is done there.
const SMALL: u64 = 20_000;
const MOUNT_ROUNDS: usize = 7;

/// What each side of a comparison does: write a call, make durable, read.
trait Side {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;
    fn fsync(&self) -> Result<()>;
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
}

/// A file of the host's, on whatever file system.
struct Host(File);

impl Side for Host {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.0.write_all_at(data, offset)?)
    }
    fn fsync(&self) -> Result<()> {
        Ok(self.0.sync_all()?)
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.0.read_exact_at(buf, offset)?)
    }
}

struct Ours(OpenFile);

impl Side for Ours {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        anyhow::ensure!(self.0.write(offset, data)? == data.len(), "a short write");
        Ok(())
    }
    fn fsync(&self) -> Result<()> {
        Ok(self.0.fsync()?)
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        anyhow::ensure!(self.0.read(offset, buf)? == buf.len(), "a short read");
        Ok(())
    }
}

/// Bytes a second.
fn stream(s: &dyn Side, bytes: u64) -> Result<f64> {
    let data: Vec<u8> = (0..CALL).map(|i| i as u8).collect();
    let begun = Instant::now();
    for at in (0..bytes).step_by(CALL) {
        s.write(at, &data)?;
    }
    s.fsync()?;
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

/// Reads a second of the first blocks, which are in memory.
fn cached(s: &dyn Side, size: u64) -> Result<f64> {
    let mut buf = vec![0; 4096];
    for at in (0..size).step_by(4096) {
        s.read(at, &mut buf)?;
    }
    let c = Chance::seeded(1);
    let begun = Instant::now();
    for _ in 0..READS {
        s.read(c.below(size / 4096) * 4096, &mut buf)?;
    }
    Ok(READS as f64 / begun.elapsed().as_secs_f64())
}

/// Bytes a second of what is not in memory.
fn cold(s: &dyn Side, bytes: u64) -> Result<f64> {
    let mut buf = vec![0; CALL];
    let begun = Instant::now();
    for at in (0..bytes).step_by(CALL) {
        s.read(at, &mut buf)?;
    }
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

/// Streams and cached reads.
///
/// # Errors
/// A peer is not installed, or failed.
pub fn run(place: &Path) -> Result<()> {
    let mut best = [[0f64; 2 + CACHED.len()]; 2];
    let keep = |to: &mut f64, v: f64| *to = to.max(v);
    for _ in 0..ROUNDS {
        let m = Mounted::new(Peer::Kernel, place)?;
        let path = m.at.join("file");
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let k = Host(open()?);
        keep(&mut best[0][0], stream(&k, STREAM)?);
        for (n, size) in CACHED.into_iter().enumerate() {
            keep(&mut best[0][2 + n], cached(&k, size)?);
        }
        rustix::fs::fadvise(&k.0, 0, None, rustix::fs::Advice::DontNeed)?;
        keep(&mut best[0][1], cold(&k, STREAM)?);
        drop((k, m));
        let dir = place.join(format!("uxfs-bench-data-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let _gone = crate::peers::Gone(dir.clone());
        let image = dir.join("image");
        File::create(&image)?.set_len(4 << 30)?;
        must(Command::new(program()?).args(["mkfs", "-q"]).arg(&image))?;
        let v = Arc::new(Fs::open(opened(&image, OpenMode::ReadWrite)?, Options::default())?);
        let ours = Ours(v.open_file(v.create(v.root(), b"file", file())?.ino, IoMode::Buffered)?);
        keep(&mut best[1][0], stream(&ours, STREAM)?);
        for (n, size) in CACHED.into_iter().enumerate() {
            keep(&mut best[1][2 + n], cached(&ours, size)?);
        }
        v.close()?;
        // An open file keeps the device.
        drop((ours, v));
        let v = Arc::new(Fs::open(opened(&image, OpenMode::ReadWrite)?, Options::default())?);
        let ours = Ours(v.open_file(v.lookup(v.root(), b"file")?.ino, IoMode::Buffered)?);
        keep(&mut best[1][1], cold(&ours, STREAM)?);
        v.close()?;
    }
    let mut t = Table::new(
        "file data by one thread, best of three; wanted: writes 0.90 of the kernel's, cached reads 2.00",
        &["", "kernel XFS, loop", "uxfs, in the process", "of the kernel's"],
    );
    let streams = ["sequential write and fsync, MB/s", "cold sequential read, MB/s"].map(String::from);
    let names = streams.into_iter().chain(CACHED.map(|s| format!("4 KiB reads a second, {} MiB cached", s >> 20)));
    for (n, name) in names.enumerate() {
        let [k, o] = [best[0][n], best[1][n]].map(|v| if n < 2 { v / 1e6 } else { v });
        t.row([name, format!("{k:.0}"), format!("{o:.0}"), format!("{:.2}", o / k)]);
    }
    Ok(())
}

/// What one thread reaches through a mount: a stream written and made durable, one read that nobody has in memory (the median of three),
/// bytes a second, and blocks written a second.
pub(crate) fn through(at: &Path) -> Result<[f64; 3]> {
    let f = Host(OpenOptions::new().read(true).write(true).create_new(true).open(at.join("file"))?);
    let written = stream(&f, STREAM)?;
    let read = || {
        rustix::fs::fadvise(&f.0, 0, None, rustix::fs::Advice::DontNeed)?;
        cold(&f, STREAM)
    };
    Ok([written, median([read()?, read()?, read()?].into_iter()), small(&f, SMALL)?])
}

/// Streams and small writes through mounts: uxfs in both cached modes, a file system that keeps nothing in the same modes, fuse2fs.
///
/// # Errors
/// A peer is not installed, or failed.
pub fn mounts(place: &Path) -> Result<()> {
    let peers = [
        ("null, writethrough", Peer::Null, false),
        ("uxfs, writethrough", Peer::Uxfs, false),
        ("null, writeback", Peer::Null, true),
        ("uxfs, writeback", Peer::Uxfs, true),
        ("fuse2fs", Peer::Fuse2fs, false),
    ];
    let mut rounds: [Vec<[f64; 3]>; 5] = Default::default();
    // One after the other in each round, so that a slow minute meets all of them.
    for _ in 0..MOUNT_ROUNDS {
        for (seen, (_, peer, writeback)) in rounds.iter_mut().zip(peers) {
            seen.push(through(&Mounted::with(peer, place, Way { writeback, ..Way::default() })?.at)?);
        }
    }
    let mut t = Table::new(
        "file data through a mount by one thread, medians, and of the null file system's in the same round; wanted: writes 8 times fuse2fs, 0.85 of null",
        &["", "write and fsync, MB/s", "of null", "cold read, MB/s", "of null", "4 KiB writes/s", "of null"],
    );
    for (n, (name, peer, _)) in peers.iter().enumerate() {
        let column = |c: usize| {
            let of = |nulls: &Vec<[f64; 3]>| median(rounds[n].iter().zip(nulls).map(|(a, b)| a[c] / b[c]));
            let beside = if *peer == Peer::Uxfs { format!("{:.2}", of(&rounds[n - 1])) } else { String::new() };
            let rate = median(rounds[n].iter().map(|r| r[c]));
            [if c < 2 { format!("{:.0}", rate / 1e6) } else { format!("{rate:.0}") }, beside]
        };
        t.row(std::iter::once((*name).to_string()).chain([0, 1, 2].into_iter().flat_map(column)));
    }
    Ok(())
}

/// Blocks written over a second.
fn small(s: &dyn Side, blocks: u64) -> Result<f64> {
    let data = vec![1; 4096];
    let begun = Instant::now();
    for n in 0..blocks {
        s.write(n * 4096, &data)?;
    }
    Ok(blocks as f64 / begun.elapsed().as_secs_f64())
}
