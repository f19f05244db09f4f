//! uxfs beside a null file system on the same transport, fuse2fs, and the kernel's XFS on a loop device.

use crate::beside;
use crate::table::{self, Table};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uxfs::{Fs, Make, Options};
use uxfs_device::{Device, Memory};

/// Files that are made in one directory.
const CREATES: u64 = 40_000;
/// Bytes of an image; sparse.
const IMAGE: u64 = 4 << 30;

/// The peers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Null,
    Uxfs,
    Fuse2fs,
    Kernel,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::Null => "null file system",
            Peer::Uxfs => "uxfs mount",
            Peer::Fuse2fs => "fuse2fs",
            Peer::Kernel => "kernel XFS, loop",
        }
    }
}

pub(crate) fn must(c: &mut Command) -> Result<String> {
    let name = c.get_program().to_string_lossy().into_owned();
    let o = c.output().with_context(|| format!("{name}: install it with: cargo xtask tools"))?;
    ensure!(o.status.success(), "{name}: {}", String::from_utf8_lossy(&o.stderr));
    Ok(String::from_utf8_lossy(&o.stdout).into_owned())
}

/// The program, which is built beside this one.
pub(crate) fn program() -> Result<PathBuf> {
    let p = std::env::current_exe()?.with_file_name("uxfs");
    ensure!(p.exists(), "{} is not there; build it with: cargo build --release", p.display());
    Ok(p)
}

fn is_mounted(at: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo").is_ok_and(|t| t.lines().any(|l| l.split(' ').nth(4) == at.to_str()))
}

/// How a peer is mounted, if it knows these ways.
#[derive(Clone, Copy, Default)]
pub(crate) struct Way {
    /// With the kernel's write-back cache of FUSE.
    pub(crate) writeback: bool,
    /// Requests come over io_uring.
    pub(crate) io_uring: bool,
}

/// A fresh file system of a peer's, mounted; it goes when it is dropped.
pub(crate) struct Mounted {
    pub(crate) at: PathBuf,
    dir: PathBuf,
    server: Option<Child>,
}

impl Mounted {
    pub(crate) fn new(peer: Peer, place: &Path) -> Result<Mounted> {
        Mounted::with(peer, place, Way::default())
    }

    pub(crate) fn with(peer: Peer, place: &Path, way: Way) -> Result<Mounted> {
        let dir = place.join(format!("uxfs-bench-{}", std::process::id()));
        let at = dir.join("mnt");
        fs::create_dir_all(&at)?;
        let image = dir.join("volume.img");
        File::create(&image)?.set_len(IMAGE)?;
        let mut m = Mounted { at: at.clone(), dir, server: None };
        match peer {
            Peer::Null => {
                let flags = [way.writeback.then_some("--writeback"), way.io_uring.then_some("--io-uring")];
                m.serve(Command::new(std::env::current_exe()?).arg("null").args(flags.into_iter().flatten()).arg(&at))?;
            }
            Peer::Uxfs => {
                must(Command::new(program()?).args(["mkfs", "-q"]).arg(&image))?;
                let cache = if way.writeback { "cache=writeback" } else { "cache=writethrough" };
                let options = format!("{cache}{}", if way.io_uring { ",io_uring" } else { "" });
                m.serve(Command::new(program()?).args(["mount", "-f", "-o", &options]).args([&image, &at]))?;
            }
            Peer::Fuse2fs => {
                must(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
                m.serve(Command::new("fuse2fs").arg("-f").args([&image, &at]))?;
            }
            Peer::Kernel => {
                // The same volume, so that both keep the same trees.
                must(Command::new(program()?).args(["mkfs", "-q"]).arg(&image))?;
                must(Command::new("mount").args(["-o", "loop"]).args([&image, &at]))?;
            }
        }
        Ok(m)
    }

    fn serve(&mut self, c: &mut Command) -> Result<()> {
        let name = c.get_program().to_string_lossy().into_owned();
        let child =
            c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().with_context(|| format!("{name}: cargo xtask tools installs it"))?;
        self.server = Some(child);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_mounted(&self.at) {
            if Instant::now() > deadline {
                bail!("{name} has not mounted");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for _ in 0..100 {
            if !is_mounted(&self.at) || Command::new("umount").arg(&self.at).stderr(Stdio::null()).status().is_ok_and(|s| s.success()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if let Some(mut c) = self.server.take() {
            let _ = c.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Creates `n` empty files in a directory; files a second.
fn creates(at: &Path, n: u64) -> Result<f64> {
    let dir = at.join("many");
    fs::create_dir(&dir)?;
    let d = rustix::fs::open(&dir, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())?;
    let begun = Instant::now();
    for i in 0..n {
        use rustix::fs::{Mode, OFlags, openat};
        openat(&d, format!("file{i:07}"), OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, Mode::from_raw_mode(0o644))?;
    }
    Ok(n as f64 / begun.elapsed().as_secs_f64())
}

fn create(place: &Path) -> Result<()> {
    let mut t = Table::new(
        &format!("{CREATES} empty files in one directory, one thread; wanted: 0.7 of null, 20 times fuse2fs"),
        &["", "creates/s", "of null"],
    );
    let mut null = 0.0;
    for peer in [Peer::Null, Peer::Uxfs, Peer::Fuse2fs, Peer::Kernel] {
        // The best of three, since the machine is shared; fuse2fs takes too long for that.
        let rounds = if peer == Peer::Fuse2fs { 1 } else { 3 };
        let mut best = 0f64;
        for _ in 0..rounds {
            best = best.max(creates(&Mounted::new(peer, place)?.at, CREATES)?);
        }
        if peer == Peer::Null {
            null = best;
        }
        t.row([peer.name().into(), format!("{best:.0}"), format!("{:.2}", best / null)]);
    }
    Ok(())
}

/// Rounds of the comparison of both ways that requests may come.
const RING_ROUNDS: usize = 5;

/// Files that threads made, each in a directory of its own, and removed again; a second.
fn makes_and_removes(at: &Path, threads: u64) -> Result<f64> {
    let (dir, n) = (at.join(format!("by {threads}")), threads * CREATES / 4);
    fs::create_dir(&dir)?;
    let begun = Instant::now();
    beside::make_in(&dir, threads, n)?;
    beside::together(threads, |t| {
        let own = dir.join(format!("thread{t}"));
        Ok((0..n / threads).try_for_each(|i| fs::remove_file(own.join(format!("file{i:07}"))))?)
    })?;
    Ok(n as f64 / begun.elapsed().as_secs_f64())
}

/// Requests by reads and writes of /dev/fuse, and over io_uring.
fn rings(place: &Path) -> Result<()> {
    let _offered = uxfs_transport::offer_io_uring().context("the kernel is to offer FUSE over io_uring")?;
    let ways = [
        ("null", Peer::Null, false),
        ("null, io_uring", Peer::Null, true),
        ("uxfs", Peer::Uxfs, false),
        ("uxfs, io_uring", Peer::Uxfs, true),
    ];
    let mut rounds: [Vec<[f64; 5]>; 4] = Default::default();
    for _ in 0..RING_ROUNDS {
        for (seen, (_, peer, io_uring)) in rounds.iter_mut().zip(ways) {
            let m = Mounted::with(peer, place, Way { io_uring, ..Way::default() })?;
            let (one, two) = (makes_and_removes(&m.at, 1)?, makes_and_removes(&m.at, 2)?);
            let [stream, cold, small] = crate::data::through(&m.at)?;
            seen.push([one, two, small, stream / 1e6, cold / 1e6]);
        }
    }
    let mut t = Table::new(
        "requests by reads and writes of /dev/fuse, and over io_uring; medians",
        &["", "made and removed/s", "by two threads", "4 KiB writes/s", "write and fsync, MB/s", "cold read, MB/s"],
    );
    for ((name, ..), seen) in ways.iter().zip(&rounds) {
        let columns = (0..5).map(|c| format!("{:.0}", table::median(seen.iter().map(|r| r[c]))));
        t.row(std::iter::once((*name).to_string()).chain(columns));
    }
    Ok(())
}

fn dbench(place: &Path) -> Result<()> {
    let mut t = Table::new("dbench, its own load, 4 clients, 10 s; wanted: 5 times fuse2fs", &["", "MB/s", "of fuse2fs"]);
    let mut base = 0.0;
    for peer in [Peer::Fuse2fs, Peer::Uxfs, Peer::Kernel] {
        let m = Mounted::new(peer, place)?;
        let out = must(Command::new("dbench").args(["-t", "10", "-c", "/usr/share/dbench/client.txt", "4"]).current_dir(&m.at))?;
        let rate =
            out.lines().find_map(|l| l.strip_prefix("Throughput ")).and_then(|l| l.split(' ').next()).context("dbench says no rate")?;
        let rate: f64 = rate.parse()?;
        if base == 0.0 {
            base = rate;
        }
        t.row([peer.name().into(), format!("{rate:.0}"), format!("{:.2}", rate / base)]);
    }
    Ok(())
}

/// Seconds that this process has spent computing, in all and of that in the system.
fn cpu() -> Result<[f64; 2]> {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let stat = fs::read_to_string("/proc/self/stat")?;
    // Behind the name, which may hold anything: the 13th from there, in ticks of a hundredth.
    let system = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(12)).context("no time in /proc/self/stat")?;
    Ok([t.tv_sec as f64 + t.tv_nsec as f64 / 1e9, system.parse::<f64>()? / 100.0])
}

fn volume(size: u64) -> Result<Fs> {
    let dev = Arc::new(Memory::new(size));
    uxfs_mkfs::format(&*dev as &dyn Device, &uxfs_mkfs::Options::new(size, uxfs_mkfs::UuidGenerator::random()?))?;
    Ok(Fs::open(dev, Options::default())?)
}

pub(crate) fn counter(v: &Fs, name: &str) -> u64 {
    v.stats().iter().find(|s| s.0 == name).map_or(0, |s| s.1)
}

pub(crate) fn file() -> Make {
    Make { mode: 0o100_644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 }
}

fn computing() -> Result<()> {
    let mut t = Table::new(
        "CPU of the engine, on a memory device, journal and write-back included; wanted: 10 us a create. At first nearly all memory is new, \
         the device's too: the system clears it",
        &["", "us each", "of that in the system", "log bytes each"],
    );
    let n = 200_000;
    for (name, per_dir) in [("directories of 1 000", 1000), ("one directory", n)] {
        let v = volume(2 << 30)?;
        let mut dirs = vec![];
        for i in (0..n).step_by(per_dir) {
            dirs.push(v.create(v.root(), format!("d{i}").as_bytes(), Make { mode: 0o040_755, ..file() })?.ino);
        }
        for what in ["create", "remove", "create again", "remove again"] {
            let (begun, logged) = (cpu()?, counter(&v, "blocks"));
            for i in 0..n {
                let (dir, name) = (dirs[i / per_dir], format!("file{i:07}"));
                match what.starts_with("create") {
                    true => _ = v.create(dir, name.as_bytes(), file())?,
                    false => v.unlink(dir, name.as_bytes())?,
                }
            }
            v.sync()?;
            let now = cpu()?;
            let [all, system] = [0, 1].map(|i| (now[i] - begun[i]) * 1e6 / n as f64);
            let log = (counter(&v, "blocks") - logged) as f64 * 512.0 / n as f64;
            t.row([format!("{name}, {what}"), format!("{all:.1}"), format!("{system:.1}"), format!("{log:.0}")]);
        }
        v.unmount()?;
    }
    Ok(())
}

fn unpack(place: &Path) -> Result<()> {
    let dir = place.join(format!("uxfs-bench-source-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let _gone = Gone(dir.clone());
    let source = ["/usr/include", "/usr/share/doc"].into_iter().find(|p| Path::new(p).is_dir()).context("no directory to pack")?;
    let archive = dir.join("source.tar");
    must(Command::new("tar").arg("-cf").arg(&archive).args(["-C", source, "."]))?;
    let mut t = Table::new(
        &format!("unpacking {source} ({} MB), durable at the end; wanted: no slower than the kernel", fs::metadata(&archive)?.len() >> 20),
        &["", "seconds"],
    );
    for peer in [Peer::Kernel, Peer::Uxfs] {
        let mut best = f64::MAX;
        for _ in 0..3 {
            let begun;
            if peer == Peer::Kernel {
                let m = Mounted::new(peer, place)?;
                begun = Instant::now();
                must(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&m.at))?;
                must(Command::new("sync").arg("-f").arg(&m.at))?;
                best = best.min(begun.elapsed().as_secs_f64());
            } else {
                let image = dir.join("volume.img");
                let _ = fs::remove_file(&image);
                OpenOptions::new().create(true).truncate(true).write(true).open(&image)?.set_len(IMAGE)?;
                must(Command::new(program()?).args(["mkfs", "-q"]).arg(&image))?;
                begun = Instant::now();
                let input = Stdio::from(File::open(&archive)?);
                must(Command::new(program()?).args(["tar", "-x"]).arg(format!("{}:/", image.display())).stdin(input))?;
                best = best.min(begun.elapsed().as_secs_f64());
            }
        }
        t.row([if peer == Peer::Uxfs { "uxfs tar".into() } else { format!("tar, {}", peer.name()) }, format!("{best:.2}")]);
    }
    Ok(())
}

/// A folder that goes when it is dropped.
pub(crate) struct Gone(pub(crate) PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Nanoseconds a name, of some of `n` names; no two in a row are near each other, and none comes again before all others did.
fn look(n: u64, which: Range<u64>, mut one: impl FnMut(&str) -> Result<()>) -> Result<f64> {
    let (begun, count) = (Instant::now(), which.end - which.start);
    for i in which {
        // A prime that divides none of the numbers of names.
        one(&format!("file{:07}", i * 7919 % n))?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e9 / count as f64)
}

/// How long the server may take to be told what the kernel forgot.
const FORGETTING: Duration = Duration::from_secs(1);

fn lookup(place: &Path) -> Result<()> {
    let mut t = Table::new(
        "lookups of names in random order; wanted: no slower in the large directory",
        &["names", "ns in the engine", "ns on a mount, unknown to the kernel"],
    );
    for n in [100u64, 10_000, 200_000] {
        let v = volume(2 << 30)?;
        for i in 0..n {
            v.create(v.root(), format!("file{i:07}").as_bytes(), file())?;
        }
        let engine = look(n, 0..400_000, |name| Ok(v.lookup(v.root(), name.as_bytes()).map(drop)?))?;
        v.unmount()?;
        let m = Mounted::new(Peer::Uxfs, place)?;
        creates(&m.at, n)?;
        let dir = m.at.join("many");
        let (mut total, times) = (0.0, 20);
        for round in 0..times {
            // The kernel forgets names and inodes, those that were used lately at the second time; the server does not. It is told of each.
            for _ in 0..3 {
                fs::write("/proc/sys/vm/drop_caches", "2")?;
            }
            std::thread::sleep(FORGETTING);
            fs::metadata(&dir)?;
            total += look(n, round * 100..round * 100 + 100, |name| Ok(fs::symlink_metadata(dir.join(name)).map(drop)?))?;
        }
        t.row([n.to_string(), format!("{engine:.0}"), format!("{:.0}", total / times as f64)]);
    }
    Ok(())
}

/// Runs the parts that are asked for, all if none is.
///
/// # Errors
/// A part failed, or a peer is not installed.
pub fn run(place: &Path, parts: &[String]) -> Result<()> {
    let all = ["create", "threads", "dbench", "cpu", "unpack", "lookup", "recover", "data", "mounts", "rings"];
    let parts: Vec<&str> = if parts.is_empty() { all.to_vec() } else { parts.iter().map(String::as_str).collect() };
    for p in parts {
        match p {
            "create" => create(place)?,
            "threads" => beside::threads(place)?,
            "recover" => beside::recover(place)?,
            "data" => crate::data::run(place)?,
            "mounts" => crate::data::mounts(place)?,
            "rings" => rings(place)?,
            "dbench" => dbench(place)?,
            "cpu" => computing()?,
            "unpack" => unpack(place)?,
            "lookup" => lookup(place)?,
            other => bail!("{other}: the parts are {}", all.join(", ")),
        }
    }
    Ok(())
}
