//! What reads and writes of one file exclude: all variants on the model of many disks, and the lock by itself.

use crate::beside::together;
use crate::peers::{Mounted, Peer, file, must};
use crate::scratch;
use crate::table::Table;
use anyhow::Result;
use parking_lot::{Mutex, RwLock};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uxfs::{Fs, IoLock, IoMode, Options};
use uxfs_device::timed::{HDD_ARRAY, Timed};
use uxfs_device::{DeviceRef, Memory};
use uxfs_sync::{Chance, RangeLock, SEGMENT};

/// Threads, bytes of a request, and out of ten requests those that read.
const THREADS: u64 = 32;
const REQUEST: usize = 16 << 10;
const READS: u64 = 6;
/// Bytes of the file, and of the memory for everything.
const FILE: u64 = 1 << 30;
const MEMORY: usize = 64 << 20;

/// Which threads go past the cache.
#[derive(Clone, Copy)]
struct Mode(&'static str, fn(u64) -> IoMode);

const MODES: [Mode; 3] = [
    Mode("buffered", |_| IoMode::Buffered),
    Mode("direct", |_| IoMode::Direct),
    Mode("both", |t| if t % 2 == 0 { IoMode::Buffered } else { IoMode::Direct }),
];

/// What one run came to: reads and writes a second, and the longest of the fastest 99 in 100 reads, in milliseconds.
struct Rates {
    reads: f64,
    writes: f64,
    p99: f64,
}

/// Makes a volume with one file.
fn fill(base: DeviceRef) -> Result<DeviceRef> {
    uxfs_mkfs::format(&base, &uxfs_mkfs::Options::new(FILE * 2, uxfs_mkfs::UuidGenerator::random()?))?;
    let fs = Fs::open(base.clone(), Options::default())?;
    let ino = fs.create(fs.root(), b"file", file())?.ino;
    let data = vec![1; 1 << 20];
    for at in (0..FILE).step_by(1 << 20) {
        fs.write(ino, at, &data, false)?;
    }
    fs.unmount()?;
    Ok(base)
}

fn ours(dev: DeviceRef, lock: IoLock, mode: Mode, seconds: u64) -> Result<Rates> {
    let fs = Fs::open(dev, Options { io_lock: lock, memory: MEMORY, ..Options::default() })?;
    let ino = fs.lookup(fs.root(), b"file")?.ino;
    let rates = load(seconds, &|t, at, buf, read| {
        let how = (mode.1)(t);
        if read {
            fs.read_with(ino, at, buf, how).map(drop)?
        } else {
            fs.write_with(ino, at, buf, false, how).map(drop)?
        }
        Ok(())
    })?;
    fs.unmount()?;
    Ok(rates)
}

/// The kernel's XFS on a loop device past the host's cache, which may keep the whole file.
fn kernel(m: &Mounted, mode: Mode, seconds: u64) -> Result<Rates> {
    let path = m.at.join("file");
    let open = |direct: bool| {
        let flags = if direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
        OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(&path)
    };
    let files = [open(false)?, open(true)?];
    if files[0].metadata()?.len() < FILE {
        let data = vec![1; 1 << 20];
        (0..FILE).step_by(1 << 20).try_for_each(|at| files[0].write_all_at(&data, at))?;
    }
    files[0].sync_all()?;
    rustix::fs::fadvise(&files[0], 0, None, rustix::fs::Advice::DontNeed)?;
    load(seconds, &|t, at, buf, read| {
        let f = &files[usize::from((mode.1)(t) == IoMode::Direct)];
        Ok(if read { f.read_exact_at(buf, at) } else { f.write_all_at(buf, at) }?)
    })
}

/// Reads or writes a request of a thread's somewhere: `true` reads.
type One<'a> = &'a (dyn Fn(u64, u64, &mut [u8], bool) -> Result<()> + Sync);

fn load(seconds: u64, one: One<'_>) -> Result<Rates> {
    let (reads, writes) = (AtomicU64::new(0), AtomicU64::new(0));
    let times = Mutex::new(Vec::new());
    let begun = Instant::now();
    together(THREADS, |t| {
        let (c, mut room, mut mine) = (Chance::seeded(t), vec![t as u8; 2 * REQUEST], Vec::new());
        // As direct I/O wants it.
        let from = room.as_ptr().align_offset(4096);
        let buf = &mut room[from..from + REQUEST];
        while begun.elapsed() < Duration::from_secs(seconds) {
            let at = c.below(FILE / REQUEST as u64) * REQUEST as u64;
            let (asked, read) = (Instant::now(), c.below(10) < READS);
            one(t, at, buf, read)?;
            if read {
                mine.push(asked.elapsed());
            }
            (if read { &reads } else { &writes }).fetch_add(1, Ordering::Relaxed);
        }
        times.lock().append(&mut mine);
        Ok(())
    })?;
    let mut times = times.into_inner();
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).map_or(0.0, |t| t.as_secs_f64() * 1e3);
    let rate = |n: AtomicU64| n.into_inner() as f64 / seconds as f64;
    Ok(Rates { reads: rate(reads), writes: rate(writes), p99 })
}

/// One lock that is compared: what a thread takes and gives back, again and again.
type Pair = Box<dyn Fn(u64) + Sync>;

/// The locks by themselves, each as a thread takes it that has a place of its own (`apart`) or the same as all others.
fn locks(apart: bool) -> Vec<(&'static str, Pair)> {
    let (m, w, r) = (Mutex::new(()), RwLock::new(()), RangeLock::default());
    let place = move |t: u64| if apart { t * SEGMENT } else { 0 };
    vec![
        ("parking_lot mutex", Box::new(move |_| drop(m.lock()))),
        ("parking_lot rwlock, shared", Box::new(move |_| drop(w.read()))),
        ("range lock", Box::new(move |t| drop(r.write(place(t)..place(t) + 4096)))),
    ]
}

/// Pairs a second of `threads` threads together.
fn pairs(lock: &Pair, threads: u64) -> f64 {
    const EACH: u64 = 160_000;
    let begun = Instant::now();
    std::thread::scope(|s| {
        for t in 0..threads {
            s.spawn(move || (0..EACH / threads).for_each(|_| lock(t)));
        }
    });
    EACH as f64 / begun.elapsed().as_secs_f64()
}

/// The same on a file in a folder, beside the kernel's XFS.
fn on_a_file(dir: &Path, seconds: u64) -> Result<()> {
    let mut t = Table::new(
        "the same in a file; wanted: range at least the kernel's (whose buffered ones find the file in memory more and more)",
        &["", "", "reads/s", "writes/s", "p99 of reads, ms"],
    );
    let base = fill(scratch::in_file(dir, FILE * 2)?)?;
    let kernels = Mounted::new(Peer::Kernel, dir)?;
    let source = must(Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&kernels.at))?;
    must(Command::new("losetup").args(["--direct-io=on", source.trim()]))?;
    for mode in MODES {
        let mut row = |who: String, r: Rates| {
            t.row([mode.0.into(), who, format!("{:.0}", r.reads), format!("{:.0}", r.writes), format!("{:.1}", r.p99)]);
        };
        for lock in IoLock::ALL {
            row(lock.to_string(), ours(base.clone(), lock, mode, seconds)?);
        }
        row("kernel XFS".into(), kernel(&kernels, mode, seconds)?);
    }
    Ok(())
}

/// All comparisons, on a file only if there is a folder for it.
///
/// # Errors
/// A volume failed.
pub fn run(seconds: u64, dir: Option<&Path>) -> Result<()> {
    let base = fill(Arc::new(Memory::new(FILE * 2)))?;
    let mut t = Table::new(
        "32 threads, 16 KiB, 60 % reads, one file of 40 times the cache, hdd-array; wanted: range within 5 % of direct",
        &["", "lock", "reads/s", "writes/s", "p99 of reads, ms", "published reads/s, writes/s"],
    );
    for mode in MODES {
        for lock in IoLock::ALL {
            let r = ours(Arc::new(Timed::new(base.clone(), HDD_ARRAY, 1.0)), lock, mode, seconds)?;
            let published = match (mode.0, lock) {
                ("buffered", IoLock::Exclusive) => "1976, 1319 (ext3)",
                ("buffered", IoLock::Shared) => "307, 203 (XFS)",
                ("direct", IoLock::Exclusive) => "1848, 1232 (ext3)",
                ("direct", IoLock::Shared) => "1954, 1304 (XFS)",
                _ => "",
            };
            let number = |v: f64| format!("{v:.0}");
            t.row([mode.0.into(), lock.to_string(), number(r.reads), number(r.writes), format!("{:.0}", r.p99), published.into()]);
        }
    }
    drop((t, base));
    if let Some(dir) = dir {
        on_a_file(dir, seconds)?;
    }
    let mut t = Table::new(
        "million pairs of lock and unlock a second; wanted: one thread at least a third of the mutex, no fewer with more threads apart",
        &["", "1 thread", "2 apart", "4 apart", "16 apart", "2 together", "4 together", "16 together"],
    );
    for (apart, together) in locks(true).into_iter().zip(locks(false)) {
        let best = |l: &Pair, n: u64| (0..3).map(|_| pairs(l, n)).fold(0.0, f64::max) / 1e6;
        let row = [(&apart.1, [1, 2, 4, 16].as_slice()), (&together.1, &[2, 4, 16])];
        let cells = row.iter().flat_map(|(l, ns)| ns.iter().map(|n| format!("{:.1}", best(l, *n))));
        t.row(std::iter::once(apart.0.to_string()).chain(cells));
    }
    Ok(())
}
