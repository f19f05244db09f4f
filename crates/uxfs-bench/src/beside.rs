//! The engine in this process beside the kernel's XFS on a loop device over memory.

use crate::peers::{Gone, Mounted, Peer, counter, file, must, program};
use crate::table::Table;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uxfs::{Fs, Make, Options};
use uxfs_device::{DeviceRef, FileDevice, Memory, OpenMode};

/// Files that threads make together.
const CREATES: u64 = 200_000;
/// Bytes of their volume.
const VOLUME: u64 = 4 << 30;

/// Runs `one` on each of `threads` threads, and waits for all.
pub(crate) fn together(threads: u64, one: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|s| {
        let one = &one;
        let jobs: Vec<_> = (0..threads).map(|t| s.spawn(move || one(t))).collect();
        jobs.into_iter().try_for_each(|j| j.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
    })
}

/// Makes `n` empty files in directories of `dir`, one for each thread.
pub(crate) fn make_in(dir: &Path, threads: u64, n: u64) -> Result<()> {
    use rustix::fs::{Mode, OFlags, openat};
    together(threads, |t| {
        let own = dir.join(format!("thread{t}"));
        fs::create_dir_all(&own)?;
        let d = rustix::fs::open(&own, OFlags::PATH, Mode::empty())?;
        for i in 0..n / threads {
            openat(&d, format!("file{i:07}"), OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, Mode::from_raw_mode(0o644))?;
        }
        Ok(())
    })
}

/// The same in a volume of ours.
fn make_within(v: &Fs, threads: u64, n: u64) -> Result<()> {
    together(threads, |t| {
        let own = v.create(v.root(), format!("thread{t}").as_bytes(), Make { mode: 0o040_755, ..file() })?.ino;
        for i in 0..n / threads {
            v.create(own, format!("file{i:07}").as_bytes(), file())?;
        }
        Ok(())
    })
}

/// Creates by two threads.
///
/// # Errors
/// A peer is not installed, or failed.
pub fn threads(place: &Path) -> Result<()> {
    let mut t = Table::new(
        &format!("{CREATES} empty files by two threads, durable at the end, best of three; wanted: no fewer than the kernel"),
        &["", "creates/s", "of the kernel's"],
    );
    let mut kernel = 0f64;
    for _ in 0..3 {
        let m = Mounted::new(Peer::Kernel, place)?;
        let begun = Instant::now();
        make_in(&m.at, 2, CREATES)?;
        rustix::fs::syncfs(File::open(&m.at)?)?;
        kernel = kernel.max(CREATES as f64 / begun.elapsed().as_secs_f64());
    }
    t.row(["kernel XFS, loop".into(), format!("{kernel:.0}"), "1.00".into()]);
    let mut ours = 0f64;
    for _ in 0..3 {
        let dev: DeviceRef = Arc::new(Memory::new(VOLUME));
        uxfs_mkfs::format(&dev, &uxfs_mkfs::Options::new(VOLUME, uxfs_mkfs::UuidGenerator::random()?))?;
        let v = Fs::open(dev, Options::default())?;
        let begun = Instant::now();
        make_within(&v, 2, CREATES)?;
        v.sync()?;
        ours = ours.max(CREATES as f64 / begun.elapsed().as_secs_f64());
        v.unmount()?;
    }
    t.row(["uxfs, in the process".into(), format!("{ours:.0}"), format!("{:.2}", ours / kernel)]);
    Ok(())
}

/// Bytes of the volumes that are recovered; sparse.
const DIRTY: u64 = 12 << 30;

fn fresh(image: &Path, log: u64) -> Result<()> {
    let _ = fs::remove_file(image);
    File::create(image)?.set_len(DIRTY)?;
    must(Command::new(program()?).args(["mkfs", "-q", "-l"]).arg(format!("size={log}m")).arg(image)).map(drop)
}

/// The kernel fills the log of `log` MiB, and stops as in a power cut.
fn dirty_by_kernel(image: &Path, at: &Path, log: u64, n: u64) -> Result<()> {
    fresh(image, log)?;
    must(Command::new("mount").args(["-o", "loop"]).args([image, at]))?;
    let made = make_in(at, 2, n);
    let stopped = must(Command::new("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(at));
    must(Command::new("umount").arg(at))?;
    made.and(stopped.map(drop))
}

fn dirty_by_us(image: &Path, log: u64, n: u64) -> Result<()> {
    fresh(image, log)?;
    let v = Fs::open(opened(image, OpenMode::ReadWrite)?, Options { memory: 1 << 30, ..Options::default() })?;
    make_within(&v, 2, n)?;
    v.sync()?;
    // Dropped without an unmount, nothing more is written.
    drop(v);
    Ok(())
}

/// The loop device of a mount goes a moment after it.
pub(crate) fn opened(image: &Path, mode: OpenMode) -> Result<DeviceRef> {
    for _ in 0..100 {
        match FileDevice::open(image, mode) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(50)),
            r => return Ok(Arc::new(r?)),
        }
    }
    Ok(Arc::new(FileDevice::open(image, mode)?))
}

/// Recovery of the same dirty volumes.
///
/// # Errors
/// A peer is not installed, or failed; a volume was not dirty.
pub fn recover(place: &Path) -> Result<()> {
    let dir = place.join(format!("uxfs-bench-dirty-{}", std::process::id()));
    let at = dir.join("mnt");
    fs::create_dir_all(&at)?;
    let _gone = Gone(dir.clone());
    let mut t = Table::new(
        "recovery of the same dirty volumes, best of three; wanted: no slower than the kernel",
        &["log", "written by", "MiB to replay", "kernel's mount, s", "Fs::open, s", "of the kernel's"],
    );
    for (log, n) in [(64u64, 150_000u64), (2032, 4_000_000)] {
        for ours in [false, true] {
            let (image, copy): (PathBuf, PathBuf) = (dir.join("image"), dir.join("copy"));
            match ours {
                true => dirty_by_us(&image, log, n)?,
                false => dirty_by_kernel(&image, &at, log, n)?,
            }
            let bytes = {
                let s = uxfs::describe_log(&opened(&image, OpenMode::ReadOnly)?.into(), &mut |_, _| {})?;
                let all = log << 20;
                let (head, tail) = (u64::from(s.head.block()) * 512, u64::from(s.tail.block()) * 512);
                if s.head.cycle() == s.tail.cycle() { head - tail } else { all + head - tail }
            };
            let (mut kernel, mut own) = (f64::MAX, f64::MAX);
            for _ in 0..3 {
                must(Command::new("cp").arg("--sparse=always").args([&image, &copy]))?;
                let begun = Instant::now();
                must(Command::new("mount").args(["-o", "loop,nouuid"]).args([&copy, &at]))?;
                kernel = kernel.min(begun.elapsed().as_secs_f64());
                must(Command::new("umount").arg(&at))?;
                must(Command::new("cp").arg("--sparse=always").args([&image, &copy]))?;
                let dev = opened(&copy, OpenMode::ReadWrite)?;
                let begun = Instant::now();
                let v = Fs::open(dev, Options::default())?;
                own = own.min(begun.elapsed().as_secs_f64());
                anyhow::ensure!(v.was_recovered() && counter(&v, "writes") > 0, "the volume was not dirty");
                v.unmount()?;
            }
            fs::remove_file(&copy).context("the copy")?;
            t.row([
                format!("{log} MiB"),
                if ours { "uxfs".into() } else { "the kernel".into() },
                format!("{}", bytes >> 20),
                format!("{kernel:.2}"),
                format!("{own:.2}"),
                format!("{:.2}", own / kernel),
            ]);
        }
    }
    Ok(())
}
