//! One lock around everything beside finer ones: dbench's load, large files, a mail server; on one volume and on two at once.

use crate::beside::together;
use crate::loadfile::{self, Load};
use crate::peers::file;
use crate::table::Table;
use anyhow::Result;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uxfs::{Error, Fs, OpLock, Options, ReaddirCopy};
use uxfs_device::timed::{NVME, Timed};
use uxfs_device::{DeviceRef, Memory, Slice};
use uxfs_sync::{Chance, contention};

/// What is compared.
pub struct Plan {
    /// Seconds of each.
    pub seconds: u64,
    /// dbench's load.
    pub load: String,
}

/// Bytes of all volumes together, and of memory for each.
const DEVICE: u64 = 16 << 30;
const MEMORY: usize = 512 << 20;

/// The ways: what the kernel had, what replaced it, that without its fault, and ours.
const WAYS: [(OpLock, ReaddirCopy); 4] = [
    (OpLock::Process, ReaddirCopy::Batch),
    (OpLock::Volume, ReaddirCopy::PerEntry),
    (OpLock::Volume, ReaddirCopy::Batch),
    (OpLock::Fine, ReaddirCopy::Batch),
];

/// `n` volumes on one modelled device.
fn volumes(n: u64, (op_lock, readdir_copy): (OpLock, ReaddirCopy)) -> Result<Vec<Fs>> {
    let base: DeviceRef = Arc::new(Timed::new(Arc::new(Memory::new(DEVICE)), NVME, 1.0));
    let len = DEVICE / n;
    let one = |i: u64| {
        let dev: DeviceRef = Arc::new(Slice::new(base.clone(), i * len, len)?);
        uxfs_mkfs::format(&dev, &uxfs_mkfs::Options::new(len, uxfs_mkfs::UuidGenerator::random()?))?;
        Ok(Fs::open(dev, Options { memory: MEMORY, op_lock, readdir_copy, ..Options::default() })?)
    };
    (0..n).map(one).collect()
}

/// What one run came to.
struct Came {
    /// By volume, MB/s or operations a second.
    rates: Vec<f64>,
    slowest: Duration,
    /// Waits for locks, and for how long, of all threads.
    waits: u64,
    waited: Duration,
    held: Duration,
}

fn measure(volumes: Vec<Fs>, op_lock: OpLock, run: impl FnOnce(&[Fs]) -> Result<(Vec<f64>, Duration)>) -> Result<Came> {
    // All volumes of the process have one lock, or each its own.
    let told = if op_lock == OpLock::Process { &volumes[..1] } else { &volumes };
    let big = |name: &str| -> u64 { told.iter().flat_map(Fs::stats).filter(|s| s.0 == name).map(|s| s.1).sum() };
    let sample = || (contention(), ["op_lock_waits", "op_lock_wait_us", "op_lock_held_us"].map(big));
    let before = sample();
    let (rates, slowest) = run(&volumes)?;
    let after = sample();
    let [waits, waited, held] = std::array::from_fn(|i| after.1[i] - before.1[i]);
    let us = Duration::from_micros;
    let (waits, waited) = (after.0.waits - before.0.waits + waits, after.0.waited - before.0.waited + us(waited));
    let held = us(held);
    for v in volumes {
        v.unmount()?;
    }
    Ok(Came { rates, slowest, waits, waited, held })
}

/// dbench's load by so many clients on each volume.
fn dbench(load: &Load, volumes: &[Fs], clients: u64, seconds: u64) -> Result<(Vec<f64>, Duration)> {
    let n = volumes.len() as u64;
    let (bytes, slowest) = (Mutex::new(vec![0u64; volumes.len()]), Mutex::new(Duration::ZERO));
    let end = Instant::now() + Duration::from_secs(seconds);
    together(clients * n, |c| {
        let v = (c % n) as usize;
        let done = loadfile::run(load, &volumes[v], &format!("client{c}"), end)?;
        bytes.lock()[v] += done.bytes;
        let mut s = slowest.lock();
        *s = s.max(done.slowest);
        Ok(())
    })?;
    let rates = bytes.into_inner().into_iter().map(|b| b as f64 / seconds as f64 / 1e6).collect();
    Ok((rates, slowest.into_inner()))
}

/// Large files of 64 KiB writes by so many threads, durable at the end.
fn large(fs: &Fs, threads: u64) -> Result<(Vec<f64>, Duration)> {
    const ALL: u64 = 2 << 30;
    const REQUEST: usize = 64 << 10;
    let slowest = Mutex::new(Duration::ZERO);
    let begun = Instant::now();
    together(threads, |t| {
        let ino = fs.create(fs.root(), format!("large{t}").as_bytes(), file())?.ino;
        let (data, mut worst) = (vec![t as u8; REQUEST], Duration::ZERO);
        for at in (0..ALL / threads).step_by(REQUEST) {
            let asked = Instant::now();
            fs.write(ino, at, &data, false)?;
            worst = worst.max(asked.elapsed());
        }
        let mut s = slowest.lock();
        *s = s.max(worst);
        Ok(())
    })?;
    fs.sync()?;
    Ok((vec![ALL as f64 / begun.elapsed().as_secs_f64() / 1e6], slowest.into_inner()))
}

/// Of ten requests of a mail server: messages that are read whole, delivered and made durable, and removed.
const MAIL: [u64; 3] = [6, 2, 2];

/// A mail server of 16 threads, messages of 1 to 64 KiB in 64 folders: requests a second.
fn mail(fs: &Fs, seconds: u64) -> Result<(Vec<f64>, Duration)> {
    const FOLDERS: u64 = 64;
    const MESSAGES: u64 = 200;
    let folders: Vec<u64> = (0..FOLDERS)
        .map(|n| Ok(fs.create(fs.root(), format!("folder{n}").as_bytes(), uxfs::Make { mode: 0o040_755, ..file() })?.ino))
        .collect::<Result<_>>()?;
    let (done, slowest) = (AtomicU64::new(0), Mutex::new(Duration::ZERO));
    let end = Instant::now() + Duration::from_secs(seconds);
    together(16, |t| {
        let (c, mut buf, mut worst) = (Chance::seeded(t), vec![t as u8; 64 << 10], Duration::ZERO);
        loop {
            let begun = Instant::now();
            if begun >= end {
                break;
            }
            let (folder, name) = (folders[c.below(FOLDERS) as usize], format!("message{}", c.below(MESSAGES)));
            let what = c.below(MAIL.iter().sum());
            let r = if what < MAIL[0] {
                fs.lookup(folder, name.as_bytes()).and_then(|s| fs.read(s.ino, 0, &mut buf)).map(drop)
            } else if what < MAIL[0] + MAIL[1] {
                let len = 1024 + c.below(63 << 10) as usize;
                let deliver = |ino| fs.write(ino, 0, &buf[..len], false).and_then(|()| fs.fsync(ino));
                fs.create(folder, name.as_bytes(), file()).and_then(|s| deliver(s.ino))
            } else {
                fs.unlink(folder, name.as_bytes())
            };
            match r {
                // Another thread was faster, or nobody has written it yet.
                Ok(()) | Err(Error::NotFound | Error::Exists | Error::Stale) => {}
                Err(e) => return Err(e.into()),
            }
            done.fetch_add(1, Ordering::Relaxed);
            worst = worst.max(begun.elapsed());
        }
        let mut s = slowest.lock();
        *s = s.max(worst);
        Ok(())
    })?;
    Ok((vec![done.into_inner() as f64 / seconds as f64], slowest.into_inner()))
}

fn compare(title: &str, unit: &str, count: u64, run: impl Fn(&[Fs]) -> Result<(Vec<f64>, Duration)>) -> Result<()> {
    let mut t = Table::new(title, &["op lock, readdir copy", unit, "slowest ms", "waits for locks", "waited s", "big lock held s"]);
    for way in WAYS {
        let r = measure(volumes(count, way)?, way.0, &run)?;
        let rates: Vec<String> = r.rates.iter().map(|r| format!("{r:.0}")).collect();
        let seconds = |d: Duration| format!("{:.2}", d.as_secs_f64());
        let slowest = format!("{:.0}", r.slowest.as_secs_f64() * 1e3);
        t.row([format!("{}, {}", way.0, way.1), rates.join(" + "), slowest, r.waits.to_string(), seconds(r.waited), seconds(r.held)]);
    }
    Ok(())
}

/// All comparisons.
///
/// # Errors
/// A volume failed, or dbench's load is not there.
pub fn run(plan: &Plan) -> Result<()> {
    let load = Load::read(&plan.load)?;
    for clients in [1, 16, 128] {
        let title =
            format!("dbench's load, {clients} clients, one volume on nvme; wanted: fine 0.97 of the others at 1, above them at 16 and 128");
        compare(&title, "MB/s", 1, |v| dbench(&load, v, clients, plan.seconds))?;
    }
    for clients in [1, 16] {
        let title =
            format!("dbench's load, {clients} clients on each of two volumes on one device; published with 1: 185+192 and 204+205 MB/s");
        compare(&title, "MB/s", 2, |v| dbench(&load, v, clients, plan.seconds))?;
    }
    for threads in [1, 16] {
        compare(&format!("large files by {threads} threads; published: 22.1 and 21.9, 18.6 and 18.5 MB/s"), "MB/s", 1, |v| {
            large(&v[0], threads)
        })?;
    }
    compare("a mail server, 16 threads: of ten requests 6 read, 2 deliver and fsync, 2 remove", "requests/s", 1, |v| {
        mail(&v[0], plan.seconds)
    })
}
