//! Writes that leave nothing in memory: who writes them back, beside buffered and direct ones, on a modelled device or in a file.

use crate::beside::together;
use crate::peers::file;
use crate::scratch;
use crate::table::{Table, median};
use anyhow::{Context, Result};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uxfs::{Domain, DropBehind, Fs, How, IoMode, Options};
use uxfs_device::timed::{PRESETS, Timed};
use uxfs_device::{DeviceRef, Memory};
use uxfs_sync::Chance;

/// What is compared.
pub struct Plan {
    /// Presets of the model.
    pub presets: Vec<String>,
    /// How much longer everything takes than on the device that is modelled.
    pub factor: f64,
    /// Seconds of each load in which somebody goes on beside.
    pub seconds: u64,
    /// Where a volume in a file goes, if there is to be one.
    pub dir: Option<PathBuf>,
}

/// Bytes of memory for everything, of a volume, and of what all writers write together.
const MEMORY: usize = 128 << 20;
const VOLUME: u64 = 2 << 30;
const WRITTEN: u64 = 2 * MEMORY as u64;
/// Bytes of a write where they follow each other, and where they do not.
const REQUEST: usize = 64 << 10;
const SMALL: usize = 16 << 10;
/// Writers where there are several.
const WRITERS: u64 = 8;
const READERS: u64 = 4;
/// Of the bandwidth, where writes come when they come.
const OPEN_LOOP: f64 = 0.75;
/// How often that is tried.
const PACED: usize = 7;

/// One way of writing.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    mode: IoMode,
    behind: DropBehind,
}

const fn way(name: &'static str, mode: IoMode, behind: DropBehind) -> Way {
    Way { name, mode, behind }
}

const WAYS: [Way; 5] = [
    way("buffered", IoMode::Buffered, DropBehind::FlusherOwn),
    way("dontcache, inline", IoMode::DropBehind, DropBehind::Inline),
    way("dontcache, flusher-oldest", IoMode::DropBehind, DropBehind::FlusherOldest),
    way("dontcache, flusher-own", IoMode::DropBehind, DropBehind::FlusherOwn),
    way("direct", IoMode::Direct, DropBehind::FlusherOwn),
];

/// Where it is compared.
struct Place<'a> {
    plan: &'a Plan,
    /// A preset, or else a file.
    preset: Option<&'a str>,
}

impl Place<'_> {
    fn open(&self, way: Way) -> Result<Fs> {
        let base: DeviceRef = match (self.preset, &self.plan.dir) {
            (None, Some(dir)) => scratch::in_file(dir, VOLUME)?,
            _ => Arc::new(Memory::new(VOLUME)),
        };
        uxfs_mkfs::format(&base, &uxfs_mkfs::Options::new(VOLUME, uxfs_mkfs::UuidGenerator::random()?))?;
        let dev: DeviceRef = match self.preset {
            Some(name) => {
                let timing = PRESETS.into_iter().find(|p| p.name == name).with_context(|| format!("{name} is no preset"))?;
                Arc::new(Timed::new(base, timing, self.plan.factor))
            }
            None => base,
        };
        Ok(Fs::open(dev, Options { memory: MEMORY, drop_behind: way.behind, commit: 0, ..Options::default() })?)
    }
}

/// What the writers of a load got.
#[derive(Default)]
struct Got {
    seconds: f64,
    bytes: u64,
    times: Vec<Duration>,
    peak: u64,
}

impl Got {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e6
    }
    /// The longest of the fastest `part` writes, in milliseconds.
    fn at(&self, part: f64) -> f64 {
        let i = (self.times.len() as f64 * part) as usize;
        self.times.get(i.min(self.times.len().saturating_sub(1))).map_or(0.0, |t| t.as_secs_f64() * 1e3)
    }
}

fn stat(fs: &Fs, name: &str) -> u64 {
    fs.stats().iter().find(|s| s.0 == name).map_or(0, |s| s.1)
}

/// How writers write.
#[derive(Clone, Copy)]
struct Load {
    writers: u64,
    random: bool,
    /// Bytes a second that come whether or not those before are written, all writers together.
    pace: Option<f64>,
}

/// Writes what a load says, and makes it durable.
fn write(place: &Place<'_>, way: Way, load: Load) -> Result<Got> {
    let fs = place.open(way)?;
    let each = WRITTEN / load.writers;
    let request = if load.random { SMALL } else { REQUEST } as u64;
    let inos = (0..load.writers).map(|w| Ok(fs.create(fs.root(), format!("f{w}").as_bytes(), file())?.ino)).collect::<Result<Vec<_>>>()?;
    let times = Mutex::new(Vec::new());
    let begun = Instant::now();
    together(load.writers, |w| {
        let (c, ino) = (Chance::seeded(w), inos[w as usize]);
        let data = vec![w as u8; request as usize];
        let how = How { mode: way.mode, domain: Domain(w as u32) };
        let mut mine = Vec::new();
        for n in 0..each / request {
            let at = if load.random { c.below(each / request) } else { n } * request;
            let mut asked = Instant::now();
            if let Some(pace) = load.pace {
                let due = begun + Duration::from_secs_f64((n * request * load.writers) as f64 / pace);
                std::thread::sleep(due.saturating_duration_since(asked));
                asked = due;
            }
            fs.write_with(ino, at, &data, false, how)?;
            mine.push(asked.elapsed());
        }
        times.lock().append(&mut mine);
        Ok(())
    })?;
    let peak = stat(&fs, "dirty_bytes_peak");
    fs.sync()?;
    let mut times = times.into_inner();
    times.sort_unstable();
    let got = Got { seconds: begun.elapsed().as_secs_f64(), bytes: each / request * request * load.writers, times, peak };
    fs.unmount()?;
    Ok(got)
}

/// A noisy writer for some seconds beside readers, or beside a buffered writer: what it got, what reads a second they got, their slowest
/// in a hundred, and what the other writer got.
fn beside(place: &Place<'_>, way: Way, readers: bool) -> Result<(Got, f64, f64, Got)> {
    let fs = place.open(way)?;
    let make = |name: &str| -> Result<u64> { Ok(fs.create(fs.root(), name.as_bytes(), file())?.ino) };
    let (noisy, other) = (make("noisy")?, make("other")?);
    let data = vec![1; REQUEST];
    for at in (0..WRITTEN).step_by(REQUEST) {
        fs.write_with(other, at, &data, false, IoMode::DropBehind)?;
    }
    fs.sync()?;
    let (stop, reads, others, bytes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (times, waits) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let begun = Instant::now();
    let timed = |to: &Mutex<Vec<Duration>>, one: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let asked = Instant::now();
        one()?;
        to.lock().push(asked.elapsed());
        Ok(())
    };
    together(1 + if readers { READERS } else { 1 }, |t| {
        let c = Chance::seeded(t);
        let mut buf = vec![0; SMALL];
        let mut at = 0;
        while !stop.load(Ordering::Relaxed) {
            match (t, readers) {
                (0, _) => {
                    let how = How { mode: way.mode, domain: Domain(1) };
                    timed(&times, &mut || Ok(fs.write_with(noisy, at % WRITTEN, &data, false, how).map(drop)?))?;
                    at += REQUEST as u64;
                    bytes.fetch_add(REQUEST as u64, Ordering::Relaxed);
                    if begun.elapsed() >= Duration::from_secs(place.plan.seconds) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                (_, true) => {
                    let from = c.below(WRITTEN / SMALL as u64) * SMALL as u64;
                    timed(&waits, &mut || fs.read(other, from, &mut buf).map(drop).map_err(Into::into))?;
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                (_, false) => {
                    let how = How { mode: IoMode::Buffered, domain: Domain(2) };
                    timed(&waits, &mut || Ok(fs.write_with(other, at % WRITTEN, &data, false, how).map(drop)?))?;
                    at += REQUEST as u64;
                    others.fetch_add(REQUEST as u64, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let sorted = |m: Mutex<Vec<Duration>>| {
        let mut v = m.into_inner();
        v.sort_unstable();
        v
    };
    let peak = stat(&fs, "dirty_bytes_peak");
    let noisy = Got { seconds, bytes: bytes.into_inner(), times: sorted(times), peak };
    let waits = Got { seconds, bytes: others.into_inner(), times: sorted(waits), peak };
    fs.unmount()?;
    Ok((noisy, reads.into_inner() as f64 / seconds, waits.at(0.99), waits))
}

fn number(v: f64) -> String {
    if v < 10.0 { format!("{v:.2}") } else { format!("{v:.0}") }
}

/// All ways under one load, in turn: the better of two, or where writes come when they come the median of more, in each column: there
/// a moment in which the host does something else shows.
fn compare(place: &Place<'_>, title: &str, load: Load) -> Result<()> {
    let mut seen: [Vec<[f64; 5]>; WAYS.len()] = Default::default();
    for _ in 0..if load.pace.is_some() { PACED } else { 2 } {
        for (way, seen) in WAYS.into_iter().zip(&mut seen) {
            let got = write(place, way, load)?;
            seen.push([got.rate(), got.at(0.5), got.at(0.99), got.at(0.999), got.peak as f64 / f64::from(1 << 20)]);
        }
    }
    let mut t = Table::new(title, &["", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "dirty MiB at most"]);
    for (way, mut seen) in WAYS.into_iter().zip(seen) {
        seen.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let column = |c| if load.pace.is_some() { median(seen.iter().map(|r| r[c])) } else { seen[1][c] };
        t.row(std::iter::once(way.name.to_string()).chain([0, 1, 2, 3, 4].map(column).map(number)));
    }
    Ok(())
}

/// All comparisons.
///
/// # Errors
/// A volume failed.
pub fn run(plan: &Plan) -> Result<()> {
    let presets = plan.presets.iter().map(|p| Some(p.as_str()));
    for preset in presets.chain(plan.dir.is_some().then_some(None)) {
        let place = Place { plan, preset };
        let on = preset.map_or("a file".to_string(), |p| format!("{p}, {} times as slow", plan.factor));
        let several = Load { writers: WRITERS, random: false, pace: None };
        compare(&place, &format!("{on}: one sequential writer, 64 KiB"), Load { writers: 1, ..several })?;
        compare(&place, &format!("{on}: one random writer, 16 KiB"), Load { writers: 1, random: true, pace: None })?;
        compare(&place, &format!("{on}: {WRITERS} sequential writers; wanted: flusher-own 1.27 of inline, 0.97 of buffered"), several)?;
        // What the device can do is what this load gets out of it.
        let most = write(&place, WAYS[0], several)?.rate() * 1e6;
        let title = format!(
            "{on}: {WRITERS} writers, at {OPEN_LOOP} of {:.0} MB/s; wanted: p99.9 of flusher-own at most 0.28 of inline",
            most / 1e6
        );
        compare(&place, &title, Load { pace: Some(most * OPEN_LOOP), ..several })?;
        let mut t = Table::new(
            &format!("{on}: one noisy writer beside {READERS} readers, or beside a buffered writer; wanted: both 0.95 of beside buffered"),
            &["", "MB/s", "reads/s beside", "p99 ms", "MB/s", "a writer beside, MB/s", "p99 ms"],
        );
        for w in WAYS {
            let (a, reads, wait, _) = beside(&place, w, true)?;
            let (b, _, slowest, other) = beside(&place, w, false)?;
            t.row(std::iter::once(w.name.to_string()).chain([a.rate(), reads, wait, b.rate(), other.rate(), slowest].map(number)));
        }
    }
    Ok(())
}
