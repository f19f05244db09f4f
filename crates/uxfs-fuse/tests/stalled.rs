//! A mount on a device that does not answer for one file, or fails (needs root and /dev/fuse).

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uxfs::Fs;
use uxfs_device::{DeviceRef, Faulty, Memory};
use uxfs_fuse::{CacheMode, Unmounter};
use uxfs_transport::{Offer, offer_io_uring};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 400 * MIB;
/// More than a machine of few CPUs has threads that answer at once.
const READERS: u64 = 8;
/// So many that chance does not put nearly all of them into one group.
const DIRECTORIES: usize = 16;
const RINGS: &str = "/sys/module/fuse/parameters/enable_uring";
const LONGEST: Duration = Duration::from_secs(60);

/// A mounted volume, which is unmounted, and its device let go, also if the test fails.
struct Mount {
    fs: Arc<Fs>,
    dev: Arc<Faulty>,
    at: PathBuf,
    session: Option<JoinHandle<std::io::Result<()>>>,
    unmounter: Option<Unmounter>,
}

impl Mount {
    fn new(dev: Arc<Faulty>, cache: CacheMode, io_uring: bool) -> Mount {
        static MOUNTS: AtomicUsize = AtomicUsize::new(0);
        let at = std::env::temp_dir().join(format!("uxfs-stalled-{}-{}", std::process::id(), MOUNTS.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&at).unwrap();
        let o = uxfs::Options { commit: 0, cache: cache.is_ours(), ..uxfs::Options::default() };
        let fs = Arc::new(Fs::open(dev.clone(), o).unwrap());
        let mut o = uxfs_fuse::Options { cache, ..uxfs_fuse::Options::default() };
        // Where the kernel has none, without.
        o.mount.io_uring = io_uring && Path::new(RINGS).exists();
        let (session, unmounter) = uxfs_fuse::mount(fs.clone(), &at, &o).unwrap().into_parts();
        Mount { fs, dev, at, session: Some(session), unmounter: Some(unmounter) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    fn group(&self, name: &str) -> u64 {
        let ino = fs::metadata(self.path(name)).unwrap().ino();
        self.fs.extents(ino).unwrap()[0].start / (SIZE / 4)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.dev.stall(0..0);
        let gone = self.unmounter.take().is_some_and(|u| u.unmount().is_ok());
        // Those who waited may have their files open for a moment yet, if the test failed.
        if gone || Command::new("umount").arg("-l").arg(&self.at).status().is_ok_and(|s| s.success()) {
            let _ = self.session.take().map(JoinHandle::join);
        }
        let closed = self.fs.close();
        let _ = fs::remove_dir(&self.at);
        if !std::thread::panicking() {
            closed.unwrap();
        }
    }
}

/// Requests may come over io_uring while this lives; none where the kernel has no such thing (before Linux 6.14).
fn rings() -> Option<Offer> {
    Path::new(RINGS).exists().then(|| offer_io_uring().unwrap())
}

fn wait_until(what: &str, ready: impl Fn() -> bool) {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < LONGEST, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All that can be done to a file of another group, and beside it.
fn work(dir: &Path, other: &Path) -> std::io::Result<()> {
    let f = OpenOptions::new().read(true).write(true).open(dir.join("f"))?;
    let mut buf = vec![0; MIB as usize];
    f.read_exact_at(&mut buf, MIB)?;
    f.write_all_at(&buf, 5 * MIB)?;
    f.sync_all()?;
    fs::write(dir.join("new"), [3; 9000])?;
    File::open(dir.join("new"))?.sync_all()?;
    let moved = other.join(format!("of {}", dir.file_name().unwrap_or_default().display()));
    fs::rename(dir.join("new"), moved)?;
    f.set_len(100)?;
    fs::read_dir(dir)?.try_for_each(|e| e.map(drop))?;
    fs::remove_file(dir.join("f"))
}

/// Reads of one file, or its write-back, wait for the device, more of them than there are CPUs: whoever works with files of other groups
/// through the same mount goes on.
#[test]
fn what_waits_for_the_device_stops_nobody_else() {
    let _offered = rings();
    for cache in [CacheMode::None, CacheMode::Writethrough, CacheMode::Writeback] {
        for (reading, io_uring) in [(true, false), (false, false), (true, true), (false, true)] {
            let base: DeviceRef = Arc::new(Memory::new(SIZE));
            uxfs_mkfs::format(&*base, &uxfs_mkfs::Options::new(SIZE, [5; 16])).unwrap();
            let dev = Arc::new(Faulty::new(base.clone(), i64::MAX));
            let m = Mount::new(dev.clone(), cache, io_uring);
            for n in 0..DIRECTORIES {
                fs::create_dir(m.path(&format!("d{n}"))).unwrap();
                let f = File::create(m.path(&format!("d{n}/f"))).unwrap();
                f.write_all_at(&vec![1; 4 * MIB as usize], 0).unwrap();
                // One after the other: who finds a group locked goes to another one.
                f.sync_all().unwrap();
            }
            drop(m);
            let m = Mount::new(dev.clone(), cache, io_uring);
            let others: Vec<PathBuf> = (1..DIRECTORIES)
                .map(|n| format!("d{n}"))
                .filter(|d| m.group(&format!("{d}/f")) != m.group("d0/f"))
                .map(|d| m.path(&d))
                .collect();
            assert!(others.len() > 2);
            let file = Arc::new(OpenOptions::new().read(true).write(true).open(m.path("d0/f")).unwrap());
            let at = m.fs.extents(file.metadata().unwrap().ino()).unwrap()[0].start;
            if !reading {
                file.write_all_at(&vec![2; MIB as usize], 0).unwrap();
            }
            dev.stall(at..at + 4 * MIB);
            let stuck: Vec<_> = (0..READERS)
                .map(|n| {
                    let file = file.clone();
                    // Far from each other, so that no read does another one's work.
                    std::thread::spawn(move || if reading { file.read_exact_at(&mut [0; 4096], n * MIB / 2) } else { file.sync_all() })
                })
                .collect();
            let wanted = if reading { READERS as usize } else { 1 };
            wait_until("nobody waits for the device", || dev.waiting() >= wanted);
            let (tell, told) = channel();
            let first = others[0].clone();
            std::thread::spawn(move || tell.send(others.iter().try_for_each(|d| work(d, &first))));
            let worked = told
                .recv_timeout(LONGEST)
                .unwrap_or_else(|_| panic!("{cache}, reading {reading}, io_uring {io_uring}: somebody waits for the stalled file"));
            worked.unwrap();
            assert!(stuck.iter().any(|s| !s.is_finished()));
            dev.stall(0..0);
            stuck.into_iter().for_each(|s| s.join().unwrap().unwrap());
            drop(file);
            drop(m);
            let report = uxfs_check::check(&*base).unwrap();
            assert!(report.is_sound(), "{:?}", report.findings);
        }
    }
}

/// More fsyncs than the session has threads wait for the log: whoever reads goes on, and all of them end.
#[test]
fn what_waits_for_the_log_stops_no_reader() {
    const FILES: u64 = 40;
    let _offered = rings();
    for (cache, io_uring) in [CacheMode::None, CacheMode::Writethrough].into_iter().flat_map(|c| [(c, false), (c, true)]) {
        let base: DeviceRef = Arc::new(Memory::new(SIZE));
        uxfs_mkfs::format(&*base, &uxfs_mkfs::Options::new(SIZE, [5; 16])).unwrap();
        let dev = Arc::new(Faulty::new(base, i64::MAX));
        let m = Mount::new(dev.clone(), cache, io_uring);
        for n in 0..FILES {
            fs::write(m.path(&format!("f{n}")), [1; 9000]).unwrap();
        }
        m.fs.sync().unwrap();
        let made: Vec<File> = (0..FILES).map(|n| File::create(m.path(&format!("new{n}"))).unwrap()).collect();
        let g = m.fs.geometry();
        let log = g.fsb_daddr(g.logstart).0 * 512;
        dev.stall(log..log + u64::from(g.logblocks) * u64::from(g.blocksize));
        let (tell, told) = channel();
        let synced: Vec<_> = made
            .into_iter()
            .map(|f| {
                let tell = tell.clone();
                std::thread::spawn(move || tell.send(()).map(|()| f.sync_all()))
            })
            .collect();
        (0..FILES).for_each(|_| told.recv_timeout(LONGEST).unwrap());
        wait_until("nobody waits for the log", || dev.waiting() > 0);
        let (at, (tell, told)) = (m.at.clone(), channel());
        std::thread::spawn(move || tell.send((0..FILES).try_for_each(|n| fs::read(at.join(format!("f{n}"))).map(drop))));
        let read = told.recv_timeout(LONGEST).unwrap_or_else(|_| panic!("{cache}, io_uring {io_uring}: somebody waits for the log"));
        read.unwrap();
        assert!(synced.iter().all(|s| !s.is_finished()));
        dev.stall(0..0);
        synced.into_iter().for_each(|s| s.join().unwrap().unwrap().unwrap());
    }
}

/// What was written to a file is lost: each process that was there when somebody was told of it is told, once.
#[test]
fn each_process_is_told_once_of_what_is_lost() {
    let _offered = rings();
    for (cache, io_uring) in [(CacheMode::Writethrough, false), (CacheMode::Writeback, false), (CacheMode::Writeback, true)] {
        let base: DeviceRef = Arc::new(Memory::new(SIZE));
        uxfs_mkfs::format(&*base, &uxfs_mkfs::Options::new(SIZE, [5; 16])).unwrap();
        let dev = Arc::new(Faulty::new(base, i64::MAX));
        let m = Mount::new(dev.clone(), cache, io_uring);
        let path = m.path("f");
        let f = File::create(&path).unwrap();
        f.write_all_at(&[1; 8192], 0).unwrap();
        f.sync_all().unwrap();
        let begin = m.fs.extents(fs::metadata(&path).unwrap().ino()).unwrap()[0].start;
        // It is one process all the time.
        let waits =
            Command::new("sh").args(["-c", "read x; exec sync -d \"$0\""]).arg(&path).stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut waits = waits.unwrap();
        dev.spoil(begin..begin + 8192);
        f.write_all_at(&[2; 8192], 0).unwrap();
        let lost = f.sync_all().unwrap_err();
        assert_eq!(lost.raw_os_error(), Some(5), "{cache:?}");
        dev.spoil(0..0);
        f.sync_all().unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        drop(waits.stdin.take());
        assert!(!waits.wait().unwrap().success(), "{cache:?}: who had no part in it does not know");
        std::thread::sleep(Duration::from_millis(30));
        assert!(Command::new("sync").arg("-d").arg(&path).status().unwrap().success(), "{cache:?}: who came later is told");
        f.write_all_at(&[3; 8192], 0).unwrap();
        f.sync_all().unwrap();
    }
}
