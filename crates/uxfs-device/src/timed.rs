//! A device that takes as long as a given kind of disk would: for comparisons that must not depend on the host's own.

use crate::{Class, Device, DeviceRef, WriteFlags, WriteRequest};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a disk takes, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Name of the preset.
    pub name: &'static str,
    /// A random read.
    pub read: u64,
    /// A write into the cache.
    pub write: u64,
    /// A flush of the cache.
    pub flush: u64,
    /// A write that is durable at its end; `None` where that is a write and a flush.
    pub fua: Option<u64>,
    /// Bytes that are moved in a microsecond.
    pub bandwidth: u64,
    /// Requests that go on at once.
    pub depth: u64,
}

/// Many disks behind a controller.
pub const HDD_ARRAY: Timing = Timing { name: "hdd-array", read: 16_000, write: 100, flush: 8000, fua: None, bandwidth: 200, depth: 32 };
/// A SATA SSD.
pub const SATA_SSD: Timing = Timing { name: "sata-ssd", read: 100, write: 60, flush: 2000, fua: None, bandwidth: 500, depth: 32 };
/// An NVMe SSD of a desktop.
pub const NVME: Timing = Timing { name: "nvme", read: 80, write: 20, flush: 300, fua: Some(100), bandwidth: 1450, depth: 64 };
/// An NVMe SSD whose cache survives a power cut.
pub const NVME_PLP: Timing = Timing { name: "nvme-plp", flush: 20, fua: Some(20), ..NVME };
/// All presets.
pub const PRESETS: [Timing; 4] = [HDD_ARRAY, SATA_SSD, NVME, NVME_PLP];

/// What a [`Timed`] was asked for.
#[derive(Debug, Default)]
pub struct Asked {
    /// Writes, durable ones among them.
    pub writes: AtomicU64,
    /// Bytes written.
    pub bytes: AtomicU64,
    /// Flushes, those before a write among them.
    pub flushes: AtomicU64,
    /// Durable writes.
    pub fua: AtomicU64,
    /// When the first write began and the last one ended, since it was last taken out.
    pub span: Mutex<Option<(Instant, Instant)>>,
}

impl Asked {
    fn wrote(&self, began: Instant) {
        let mut span = self.span.lock();
        *span = Some((span.map_or(began, |s| s.0), Instant::now()));
    }
}

/// Passes everything on to `base` and lets it take its time, times a factor: what is too short for the host to sleep is stretched.
pub struct Timed {
    base: DeviceRef,
    /// Nothing, if it is only to count.
    timing: Option<Timing>,
    factor: f64,
    /// When the way to the medium is free again.
    free: Mutex<Option<Instant>>,
    one_flush: Mutex<()>,
    /// What was asked for.
    pub asked: Asked,
}

impl Timed {
    /// Makes `base` as slow as `timing` says, times `factor`.
    pub fn new(base: DeviceRef, timing: Timing, factor: f64) -> Timed {
        Timed::with(base, Some(timing), factor)
    }

    /// Counts what `base` is asked for, which takes what time it takes.
    pub fn counted(base: DeviceRef) -> Timed {
        Timed::with(base, None, 1.0)
    }

    fn with(base: DeviceRef, timing: Option<Timing>, factor: f64) -> Timed {
        Timed { base, timing, factor, free: Mutex::default(), one_flush: Mutex::default(), asked: Asked::default() }
    }

    fn span(&self, micros: f64) -> Duration {
        Duration::from_secs_f64(micros * self.factor / 1e6)
    }

    /// Waits as `n` requests of `bytes` in all take, each of which needs a latency.
    fn pass(&self, n: u64, bytes: u64, latency: impl Fn(&Timing) -> u64) {
        let Some(timing) = &self.timing else { return };
        let latency = latency(timing);
        let moved = self.span(bytes as f64 / timing.bandwidth as f64);
        let done = {
            let mut free = self.free.lock();
            let now = Instant::now();
            let done = free.map_or(now, |f| f.max(now)) + moved;
            *free = Some(done);
            done
        };
        let until = done + self.span((latency * n.div_ceil(timing.depth)) as f64);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

impl Device for Timed {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.pass(1, buf.len() as u64, |t| t.read);
        self.base.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
        if flags.preflush {
            self.flush()?;
        }
        let began = Instant::now();
        self.asked.writes.fetch_add(1, Relaxed);
        self.asked.bytes.fetch_add(data.len() as u64, Relaxed);
        self.asked.fua.fetch_add(u64::from(flags.fua), Relaxed);
        self.pass(1, data.len() as u64, |t| if flags.fua { t.fua.unwrap_or(t.write) } else { t.write });
        // The model's cache is what makes it durable, not the base.
        let fua = flags.fua && self.timing.is_none();
        self.base.write(offset, data, WriteFlags { fua, ..WriteFlags::default() })?;
        if flags.fua && self.timing.is_some_and(|t| t.fua.is_none()) {
            self.flush()?;
        }
        self.asked.wrote(began);
        Ok(())
    }
    fn write_many(&self, requests: &[WriteRequest<'_>], class: Class) -> io::Result<()> {
        let began = Instant::now();
        let bytes = requests.iter().map(|r| r.data.len() as u64).sum();
        self.asked.writes.fetch_add(requests.len() as u64, Relaxed);
        self.asked.bytes.fetch_add(bytes, Relaxed);
        self.pass(requests.len() as u64, bytes, |t| t.write);
        let done = self.base.write_many(requests, class);
        self.asked.wrote(began);
        done
    }
    fn flush(&self) -> io::Result<()> {
        let _one = self.one_flush.lock();
        self.asked.flushes.fetch_add(1, Relaxed);
        std::thread::sleep(self.span(self.timing.map_or(0, |t| t.flush) as f64));
        self.base.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.base.discard(offset, len)
    }
}
