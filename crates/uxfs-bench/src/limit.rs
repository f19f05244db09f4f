//! The variants of [`CheckpointLimit`] beside each other: threads that create as fs_mark does, on a large log in memory.

use crate::peers::{Gone, must};
use crate::table::{Table, mean};
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uxfs::{CheckpointLimit, Fs, JournalConfig, Make, Options};
use uxfs_device::{Device, DeviceRef, FileDevice, Memory, OpenMode};

/// What is run.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Files that are made.
    pub creates: u64,
    /// Threads that make them.
    pub threads: u64,
    /// Bytes of the log.
    pub log: u64,
    /// Rounds.
    pub rounds: u32,
}

/// Bytes of the volume.
const SIZE: u64 = 16 << 30;

/// MiB of memory that the volumes of the first tables may use: what a mount takes, and as much as any of the variants wants.
const MEMORY: [usize; 2] = [256, 4096];

/// One run.
struct Run {
    took: Duration,
    /// Until all was home.
    home: Duration,
    stats: HashMap<&'static str, u64>,
}

/// Makes files in as many directories as there are threads, with so many bytes of memory for the volume.
fn work(limit: CheckpointLimit, memory: usize, p: Plan) -> Result<Run> {
    work_on(Arc::new(Memory::new(SIZE)), limit, memory, p)
}

fn work_on(dev: DeviceRef, limit: CheckpointLimit, memory: usize, p: Plan) -> Result<Run> {
    let size = dev.size_bytes();
    let o = uxfs_mkfs::Options { log_size: Some(p.log), ..uxfs_mkfs::Options::new(size, [6; 16]) };
    uxfs_mkfs::format(&*dev, &o)?;
    let journal = JournalConfig { limit, ..JournalConfig::default() };
    let fs = Fs::open(dev, Options { journal, memory, commit: 0, ..Options::default() })?;
    let file = Make { mode: 0o100_644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 };
    let start = Instant::now();
    std::thread::scope(|s| {
        let jobs: Vec<_> = (0..p.threads)
            .map(|t| {
                let fs = &fs;
                s.spawn(move || -> uxfs::Result<()> {
                    let d = fs.create(fs.root(), format!("dir{t}").as_bytes(), Make { mode: 0o040_755, ..file })?.ino;
                    (t..p.creates)
                        .step_by(p.threads as usize)
                        .try_for_each(|i| fs.create(d, format!("file{i:08}").as_bytes(), file).map(drop))
                })
            })
            .collect();
        jobs.into_iter().try_for_each(|j| j.join().unwrap_or(Ok(())))
    })?;
    fs.sync()?;
    let took = start.elapsed();
    let stats = fs.stats().into_iter().collect();
    fs.close()?;
    let home = start.elapsed();
    ensure!(fs.shutdown_reason().is_none(), "the volume was shut down");
    Ok(Run { took, home, stats })
}

/// One run in a process of its own, on a volume in a file: prints how many bytes of memory the process had at most.
///
/// # Errors
/// The volume could not be used.
pub fn resident(image: &Path, limit: CheckpointLimit, memory: usize, p: Plan) -> Result<()> {
    File::create(image)?.set_len(SIZE)?;
    work_on(Arc::new(FileDevice::open(image, OpenMode::ReadWrite)?), limit, memory, p)?;
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("the host does not say how much memory this took")?;
    println!("{}", peak.trim().trim_end_matches(" kB"));
    Ok(())
}

/// Runs all variants.
///
/// # Errors
/// A volume could not be used.
pub fn run(place: &Path, p: Plan) -> Result<()> {
    for memory in MEMORY {
        speed(memory, p)?;
    }
    let mut t = Table::new(
        "memory that checkpoints pin at peak, in MiB, over what the volume may use",
        &["limit", "16 MiB", "32 MiB", "64 MiB", "256 MiB"],
    );
    for limit in CheckpointLimit::ALL {
        let mut row = vec![limit.to_string()];
        for memory in [16, 32, 64, 256] {
            let r = work(limit, memory << 20, p)?;
            row.push(format!("{:.1}", r.stats.get("pinned_peak").copied().unwrap_or(0) as f64 / 1048576.0));
        }
        t.row(row);
    }
    drop(t);
    let mut t = Table::new(
        "memory of the whole process at peak, in MiB, over what the volume may use; wanted: at most a quarter of log-fraction's",
        &["limit", "16 MiB", "64 MiB", "256 MiB"],
    );
    let dir = place.join(format!("uxfs-bench-limit-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let _gone = Gone(dir.clone());
    for limit in CheckpointLimit::ALL {
        let mut row = vec![limit.to_string()];
        for memory in [16, 64, 256] {
            let numbers = [memory << 20, p.creates, p.threads, p.log].map(|n: u64| n.to_string());
            let mut c = Command::new(std::env::current_exe()?);
            c.arg("resident").arg(dir.join("image")).arg(limit.to_string()).args(numbers);
            let kib: u64 = must(&mut c)?.trim().parse()?;
            row.push(format!("{}", kib >> 10));
        }
        t.row(row);
    }
    Ok(())
}

/// The variants with so many MiB of memory for the volume.
fn speed(memory: usize, p: Plan) -> Result<()> {
    let title = format!(
        "{} creates by {} threads, log of {} MiB, memory {memory} MiB, device in memory, {} rounds; wanted: budget within 3 % of log-fraction",
        p.creates,
        p.threads,
        p.log >> 20,
        p.rounds
    );
    let mut t = Table::new(
        &title,
        &[
            "limit",
            "creates/s",
            "±",
            "until all is home",
            "±",
            "checkpoints",
            "objects each",
            "insert ms each",
            "pinned MiB at peak",
            "and not home",
            "log bytes/create",
            "waits",
            "flushes",
        ],
    );
    // Alternating, so that what the machine does meanwhile meets all of them.
    let mut runs: Vec<Vec<Run>> = CheckpointLimit::ALL.iter().map(|_| Vec::new()).collect();
    for _ in 0..p.rounds {
        for (i, limit) in CheckpointLimit::ALL.into_iter().enumerate() {
            runs[i].push(work(limit, memory << 20, p)?);
        }
    }
    for (limit, r) in CheckpointLimit::ALL.into_iter().zip(&runs) {
        let rate = |t: Duration| p.creates as f64 / t.as_secs_f64();
        let (made, spread) = mean(r.iter().map(|r| rate(r.took)));
        let (home, home_spread) = mean(r.iter().map(|r| rate(r.home)));
        let s = |name: &str| r[0].stats.get(name).copied().unwrap_or(0) as f64;
        let n = s("checkpoints").max(1.0);
        t.row([
            limit.to_string(),
            format!("{made:.0}"),
            format!("{spread:.0}"),
            format!("{home:.0}"),
            format!("{home_spread:.0}"),
            format!("{n:.0}"),
            format!("{:.0}", s("checkpoint_items") / n),
            format!("{:.1}", s("insert_us") / n / 1e3),
            format!("{:.1}", s("pinned_peak") / 1048576.0),
            format!("{:.1}", s("dirty_peak") / 1048576.0),
            format!("{:.0}", s("blocks") * 512.0 / p.creates as f64),
            format!("{:.0}", s("sleep_budget") + s("sleep_dirty") + s("throttled")),
            format!("{:.0}", s("flushes")),
        ]);
    }
    Ok(())
}
