//! The variants of [`JournalFlush`] beside each other, on a device that takes the time of a given disk.
//!
//! Time is dilated: the device is slower by a factor, and so are the threads that work, by as much CPU as they used. Two threads
//! stand for as many CPUs as are asked for. What the journal's own threads compute is not stretched.

use crate::scratch;
use crate::table::{Table, mean};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uxfs::{CheckpointLimit, Fs, JournalConfig, JournalFlush, Make, Options};
use uxfs_device::timed::{NVME, PRESETS, Timed, Timing};
use uxfs_device::{DeviceRef, Memory};

/// What is run.
pub struct Plan {
    /// Files that are made and removed in one round.
    pub creates: u64,
    /// Times that everything is done.
    pub rounds: u32,
    /// How much longer all takes than on the device that is modelled.
    pub factor: f64,
    /// CPUs of the machine that is modelled.
    pub cpus: f64,
    /// Bytes of the log.
    pub log: u64,
    /// Where a volume in a file goes, if there is to be one.
    pub dir: Option<PathBuf>,
    /// Names of the presets.
    pub presets: Vec<String>,
    /// The policies; all, if there are none.
    pub policies: Vec<JournalFlush>,
}

impl Plan {
    /// The same load on a modelled device, with a log of so many bytes.
    fn on_log(&self, log: u64) -> Plan {
        Plan { log, dir: None, presets: Vec::new(), policies: Vec::new(), ..*self }
    }
}

const THREADS: u64 = 2;
/// Operations between two pauses.
const STRIDE: u64 = 64;

/// What a volume lies on.
#[derive(Clone, Copy)]
enum On<'a> {
    /// A modelled device.
    Model(Timing),
    /// A file in a folder, which takes what time it takes.
    File(&'a Path),
}

impl On<'_> {
    fn name(self) -> &'static str {
        match self {
            On::Model(t) => t.name,
            On::File(_) => "a file",
        }
    }
}

/// A volume.
struct Bench {
    fs: Fs,
    dev: Arc<Timed>,
    plan: Times,
}

#[derive(Clone, Copy)]
struct Times {
    factor: f64,
    /// By how much the CPU time of a working thread is stretched.
    cpu: f64,
}

/// Lets a thread take as long as its CPU time would on the machine that is modelled.
struct Pace {
    cpu: f64,
    used: Duration,
}

fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

impl Pace {
    fn new(cpu: f64) -> Pace {
        Pace { cpu, used: cpu_time() }
    }
    fn pause(&mut self) {
        let now = cpu_time();
        std::thread::sleep((now - self.used).mul_f64((self.cpu - 1.0).max(0.0)));
        self.used = now;
    }
}

fn file() -> Make {
    Make { mode: 0o100_644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 }
}

impl Bench {
    fn new(on: On<'_>, journal: JournalConfig, p: &Plan) -> Result<Bench> {
        let size = 16 << 30;
        let base: DeviceRef = match on {
            On::Model(_) => Arc::new(Memory::new(size)),
            On::File(dir) => scratch::in_file(dir, size)?,
        };
        let o = uxfs_mkfs::Options { log_size: Some(p.log), ..uxfs_mkfs::Options::new(size, [5; 16]) };
        uxfs_mkfs::format(&*base, &o)?;
        let (dev, plan) = match on {
            On::Model(timing) => {
                let cpu = p.factor * THREADS as f64 / p.cpus;
                (Timed::new(base, timing, p.factor), Times { factor: p.factor, cpu })
            }
            On::File(_) => (Timed::counted(base), Times { factor: 1.0, cpu: 1.0 }),
        };
        let dev = Arc::new(dev);
        let fs = Fs::open(dev.clone(), Options { journal, commit: 0, memory: 1 << 30, ..Options::default() })?;
        Ok(Bench { fs, dev, plan })
    }

    fn stat(&self, name: &str) -> u64 {
        self.fs.stats().iter().find(|s| s.0 == name).map_or(0, |s| s.1)
    }

    /// Seconds on the device that is modelled.
    fn model(&self, t: Duration) -> f64 {
        t.as_secs_f64() / self.plan.factor
    }

    /// Runs `work` for each number below `n` on the threads, each in its directory; seconds.
    fn spread(&self, n: u64, dirs: &[u64], work: impl Fn(u64, u64) -> uxfs::Result<()> + Sync) -> Result<f64> {
        let start = Instant::now();
        std::thread::scope(|s| {
            let jobs: Vec<_> = dirs
                .iter()
                .enumerate()
                .map(|(t, dir)| {
                    let work = &work;
                    s.spawn(move || -> uxfs::Result<()> {
                        let mut pace = Pace::new(self.plan.cpu);
                        for (k, i) in (t as u64..n).step_by(dirs.len()).enumerate() {
                            work(*dir, i)?;
                            if k as u64 % STRIDE == STRIDE - 1 {
                                pace.pause();
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            jobs.into_iter().try_for_each(|j| j.join().unwrap_or(Ok(())))
        })?;
        Ok(self.model(start.elapsed()))
    }

    fn dirs(&self, n: u64) -> Result<Vec<u64>> {
        let make = |t| Ok(self.fs.create(self.fs.root(), format!("dir{t}").as_bytes(), Make { mode: 0o040_755, ..file() })?.ino);
        (0..n).map(make).collect()
    }
}

/// What one round of creates and removes showed.
struct Round {
    creates: f64,
    removes: f64,
    log_writes: f64,
    noiclogs: f64,
    sleeps: String,
    flushes: f64,
    fua: f64,
    per_create: f64,
    log_bytes: f64,
}

fn round(on: On<'_>, journal: &JournalConfig, p: &Plan) -> Result<Round> {
    let b = Bench::new(on, journal.clone(), p)?;
    let dirs = b.dirs(THREADS)?;
    let name = |i: u64| format!("file{i:08}");
    let t = b.spread(p.creates, &dirs, |d, i| b.fs.create(d, name(i).as_bytes(), file()).map(drop))?;
    let (writes, none) = (b.stat("writes"), b.stat("noiclogs"));
    let (flushes, fua, checkpoints) = (b.stat("flushes"), b.stat("fua"), b.stat("checkpoints").max(1));
    let sleeps = format!("{}/{}", b.stat("try_logspace"), b.stat("sleep_logspace"));
    b.fs.sync()?;
    let log_bytes = b.stat("blocks") as f64 * 512.0 / p.creates as f64;
    let t2 = b.spread(p.creates, &dirs, |d, i| b.fs.unlink(d, name(i).as_bytes()))?;
    ensure!(b.fs.shutdown_reason().is_none(), "the volume was shut down");
    Ok(Round {
        creates: p.creates as f64 / t,
        removes: p.creates as f64 / t2,
        log_writes: writes as f64 / t,
        noiclogs: writes as f64 / none.max(1) as f64,
        sleeps,
        flushes: flushes as f64 / checkpoints as f64,
        fua: fua as f64 / checkpoints as f64,
        per_create: flushes as f64 / p.creates as f64,
        log_bytes,
    })
}

/// Bytes of a log, an eighth of which is the longest checkpoint of all.
const LONG_LOG: u64 = 256 << 20;

/// MB/s of the log while nearly the longest checkpoint is written, and nobody does anything else: from the begin of its first record to the
/// end of its last one, which is durable then.
fn push(on: On<'_>, journal: &JournalConfig, p: &Plan) -> Result<f64> {
    let b = Bench::new(on, journal.clone(), &p.on_log(LONG_LOG))?;
    let dirs = b.dirs(THREADS)?;
    b.fs.sync()?;
    let (blocks, pinned) = (b.stat("blocks"), (LONG_LOG / 8) as f64 * 0.9);
    let files = pinned / BYTES_A_CREATE;
    b.spread(files as u64, &dirs, |d, i| b.fs.create(d, format!("file{i:08}").as_bytes(), file()).map(drop))?;
    ensure!(b.stat("blocks") == blocks, "a checkpoint was written before it was asked for");
    *b.dev.asked.span.lock() = None;
    b.fs.sync()?;
    let (from, to) = b.dev.asked.span.lock().take().context("nothing was written")?;
    Ok((b.stat("blocks") - blocks) as f64 * 512.0 / b.model(to - from) / 1e6)
}

/// Bytes of the log that a create takes, about.
const BYTES_A_CREATE: f64 = 310.0;

/// The variants, and the one by default on a modelled device whose flushes cost nothing.
fn variants<'a>(on: On<'a>, p: &Plan) -> Vec<(String, On<'a>, JournalFlush)> {
    let wanted = |f: &JournalFlush| p.policies.is_empty() || p.policies.contains(f);
    let mut all: Vec<_> = JournalFlush::ALL.into_iter().filter(wanted).map(|f| (f.to_string(), on, f)).collect();
    if let On::Model(timing) = on {
        let free = Timing { flush: 0, fua: Some(timing.write), ..timing };
        all.push(("flushes free".into(), On::Model(free), JournalFlush::StableTail));
    }
    all
}

/// Creates and removes at both sizes of log buffers.
fn tables(on: On<'_>, p: &Plan) -> Result<()> {
    let cpus = match on {
        On::Model(_) => format!(" {} CPUs,", p.cpus),
        On::File(_) => String::new(),
    };
    let title = format!("{}: {} creates and removes,{cpus} log of {} MiB, {} rounds", on.name(), p.creates, p.log >> 20, p.rounds);
    let mut t = Table::new(
        &title,
        &[
            "policy",
            "log buffers",
            "creates/s",
            "± ",
            "of the last's",
            "± ",
            "rm/s",
            "log writes/s",
            "writes:noiclogs",
            "try/sleep logspace",
            "flushes/checkpoint",
            "fua/checkpoint",
            "flushes/create",
            "log bytes/create",
            "push, MB/s",
            "of device",
        ],
    );
    for bufsize in [32 << 10, 256 << 10] {
        let all = variants(on, p);
        let mut rows: Vec<(String, Vec<Round>)> = all.iter().map(|v| (v.0.clone(), Vec::new())).collect();
        // Checkpoints as long as the log allows: how much memory they pin is not the matter here.
        let journal = |flush| JournalConfig { bufsize, flush, limit: CheckpointLimit::Window, ..JournalConfig::default() };
        // Round by round, each begun by another, so that what else the machine does meets all of them.
        for n in 0..p.rounds as usize {
            for i in (0..all.len()).map(|i| (i + n) % all.len()) {
                let (_, on, flush) = all[i];
                rows[i].1.push(round(on, &journal(flush), p)?);
            }
        }
        let last: Vec<f64> = rows.last().map_or(Vec::new(), |r| r.1.iter().map(|x| x.creates).collect());
        for ((name, r), (_, on, flush)) in rows.iter().zip(&all) {
            let bandwidth = push(*on, &journal(*flush), p)?;
            let (creates, spread) = mean(r.iter().map(|x| x.creates));
            let (gain, error) = mean(r.iter().zip(&last).map(|(x, last)| x.creates / last));
            let m = |f: fn(&Round) -> f64| mean(r.iter().map(f)).0;
            t.row([
                name.clone(),
                format!("{} KiB", bufsize >> 10),
                format!("{creates:.0}"),
                format!("{spread:.0}"),
                format!("{gain:.2}"),
                format!("{:.2}", error / f64::from(p.rounds).sqrt()),
                format!("{:.0}", m(|x| x.removes)),
                format!("{:.0}", m(|x| x.log_writes)),
                format!("1:{:.0}", m(|x| x.noiclogs)),
                r[0].sleeps.clone(),
                format!("{:.2}", m(|x| x.flushes)),
                format!("{:.2}", m(|x| x.fua)),
                format!("{:.5}", m(|x| x.per_create)),
                format!("{:.0}", m(|x| x.log_bytes)),
                format!("{bandwidth:.0}"),
                match on {
                    On::Model(t) => format!("{:.2}", bandwidth / t.bandwidth as f64),
                    On::File(_) => String::new(),
                },
            ]);
        }
    }
    Ok(())
}

/// What one force costs: each thread makes a file, writes 4 KiB, and waits until it is durable.
fn forces(on: On<'_>, p: &Plan) -> Result<()> {
    let title = format!("{}: create, write 4 KiB, fsync", on.name());
    let mut t =
        Table::new(&title, &["policy", "threads", "fsync/s", "flushes/fsync", "p50 us", "p99 us", "p99.9 us", "blocked ms a thread"]);
    for (name, on, flush) in variants(on, p) {
        for threads in [1u64, 8, 32] {
            let b = Bench::new(on, JournalConfig { flush, ..JournalConfig::default() }, p)?;
            let dirs = b.dirs(threads)?;
            b.fs.sync()?;
            let n = 64 * threads.max(8);
            let before = b.dev.asked.flushes.load(Ordering::Relaxed);
            let waits = parking_lot::Mutex::new(Vec::new());
            let blocked = AtomicU64::new(0);
            let took = b.spread(n, &dirs, |d, i| {
                let f = b.fs.create(d, format!("f{i}").as_bytes(), file())?.ino;
                b.fs.write(f, 0, &[1; 4096], false)?;
                let t = Instant::now();
                b.fs.fsync(f)?;
                let t = t.elapsed();
                blocked.fetch_add(t.as_micros() as u64, Ordering::Relaxed);
                waits.lock().push(t);
                Ok(())
            })?;
            let mut w = waits.into_inner();
            w.sort();
            let at = |q: f64| format!("{:.0}", b.model(w[((w.len() - 1) as f64 * q) as usize]) * 1e6);
            t.row([
                name.clone(),
                threads.to_string(),
                format!("{:.0}", n as f64 / took),
                format!("{:.2}", (b.dev.asked.flushes.load(Ordering::Relaxed) - before) as f64 / n as f64),
                at(0.5),
                at(0.99),
                at(0.999),
                format!("{:.1}", blocked.into_inner() as f64 / 1e3 / b.plan.factor / threads as f64),
            ]);
        }
    }
    Ok(())
}

/// The gain over a flush for each record, over what a flush costs. What was published stands at 1.45, with buffers of 32 KiB.
fn curve(p: &Plan) -> Result<()> {
    let title = "nvme with other flushes, buffers of 32 KiB, log of 16 MiB: creates/s, stable-tail over every-record (published: 152 851 to 221 533, 1.45)";
    let mut t = Table::new(title, &["flush us", "every-record", "stable-tail", "gain"]);
    for flush in [0, 100, 300, 1000, 2000, 4000] {
        let timing = Timing { flush, ..NVME };
        // A log of 16 MiB: what gathers while one checkpoint is written is soon too much.
        let small = p.on_log(16 << 20);
        let one = |flush| -> Result<f64> {
            let b = Bench::new(On::Model(timing), JournalConfig { flush, ..JournalConfig::default() }, &small)?;
            let dirs = b.dirs(THREADS)?;
            let t = b.spread(p.creates, &dirs, |d, i| b.fs.create(d, format!("file{i:08}").as_bytes(), file()).map(drop))?;
            Ok(p.creates as f64 / t)
        };
        let (old, new) = (one(JournalFlush::EveryRecord)?, one(JournalFlush::StableTail)?);
        t.row([flush.to_string(), format!("{old:.0}"), format!("{new:.0}"), format!("{:.2}", new / old)]);
    }
    Ok(())
}

/// Runs everything.
///
/// # Errors
/// A preset is not known; a volume could not be used.
pub fn run(p: &Plan) -> Result<()> {
    ensure!(p.factor * THREADS as f64 >= p.cpus, "a factor of {} cannot model {} CPUs with {THREADS} threads", p.factor, p.cpus);
    if p.presets.iter().any(|n| n == "curve") {
        return curve(p);
    }
    for name in p.presets.iter().filter(|n| *n != "none") {
        let found = PRESETS.into_iter().find(|t| t.name == name);
        ensure!(found.is_some(), "{name} is none of {}", PRESETS.map(|t| t.name).join(", "));
        if let Some(t) = found {
            tables(On::Model(t), p)?;
            forces(On::Model(t), p)?;
        }
    }
    if let Some(dir) = &p.dir {
        tables(On::File(dir), p)?;
        forces(On::File(dir), p)?;
    }
    if p.presets.iter().any(|n| n == "none") { Ok(()) } else { curve(p) }
}
