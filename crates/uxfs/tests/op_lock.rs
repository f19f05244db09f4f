//! The lock around everything: every operation and every worker under it, on two volumes at once, comes to an end and does the same.

mod common;

use common::counting::{FILE, MIB, pattern, stat};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uxfs::{Error, Fs, How, IoMode, Make, OpLock, Options, ReaddirCopy, Rename, SetAttr};
use uxfs_device::{Device, DeviceRef, Memory};
use uxfs_sync::{Chance, Op};

const DIR: Make = Make { mode: 0o040_755, ..FILE };

fn ok(r: Result<impl Sized, Error>) {
    match r {
        // Another thread was faster.
        Ok(_) | Err(Error::NotFound | Error::Exists | Error::Stale) => {}
        Err(e) => panic!("{e}"),
    }
}

fn name(c: &Chance) -> Vec<u8> {
    format!("name{}", c.below(40)).into_bytes()
}

/// One thread's part of the work on a volume.
fn work(fs: &Fs, dirs: &[u64], seed: u64, entries: &AtomicU64) {
    let c = Chance::seeded(seed);
    for n in 0..250u64 {
        let (d, e) = (dirs[c.below(4) as usize], dirs[c.below(4) as usize]);
        let how = How::from(IoMode::ALL[c.below(3) as usize]);
        match c.below(12) {
            0..3 => ok(fs.create(d, &name(&c), FILE)),
            3..7 => {
                if let Ok(s) = fs.lookup(d, &name(&c)) {
                    let at = c.below(300_000);
                    ok(fs.write_with(s.ino, at, &pattern(seed, at, 1 + c.below(100_000) as usize), false, how));
                    ok(fs.read_with(s.ino, c.below(300_000), &mut vec![0; 50_000], how));
                }
            }
            7 => ok(fs.unlink(d, &name(&c))),
            8 => ok(fs.rename(d, &name(&c), e, &name(&c), Rename::Replace)),
            9 => {
                // Who reads a directory looks at what it names.
                let seen = fs.readdir(d, 0, &mut |x| {
                    entries.fetch_add(1, Ordering::Relaxed);
                    let _ = fs.stat(x.ino.0);
                    true
                });
                ok(seen);
            }
            10 => {
                if let Ok(s) = fs.lookup(d, &name(&c)) {
                    ok(fs.setattr(s.ino, SetAttr { size: Some(c.below(200_000)), ..SetAttr::default() }));
                }
            }
            _ if n % 4 == 0 => fs.sync().unwrap(),
            _ => {
                if let Ok(s) = fs.lookup(d, &name(&c)) {
                    ok(fs.fsync(s.ino));
                }
            }
        }
    }
}

/// Both volumes, four threads on each; the smallest memory and log, so that everything that can be waited for is.
fn two_volumes(op_lock: OpLock, readdir_copy: ReaddirCopy) -> u64 {
    let entries = AtomicU64::new(0);
    let open = |n: u8| {
        let dev = Arc::new(Memory::new(300 * MIB));
        uxfs_mkfs::format(&*dev, &uxfs_mkfs::Options::new(300 * MIB, [n; 16])).unwrap();
        let o = Options { op_lock, readdir_copy, memory: 16 * MIB as usize, commit: 1, discard: true, ..Options::default() };
        (Fs::open(dev.clone() as DeviceRef, o).unwrap(), dev)
    };
    let volumes = [open(1), open(2)];
    std::thread::scope(|s| {
        for (v, (fs, _)) in volumes.iter().enumerate() {
            let dirs: Vec<u64> = (0..4).map(|d| fs.create(fs.root(), format!("dir{d}").as_bytes(), DIR).unwrap().ino).collect();
            for t in 0..4 {
                let (dirs, entries) = (dirs.clone(), &entries);
                s.spawn(move || work(fs, &dirs, 10 * v as u64 + t, entries));
            }
        }
    });
    for (fs, dev) in volumes {
        let taken = stat(&fs, "op_lock_taken");
        assert_eq!(taken > 1000, op_lock != OpLock::Fine, "{op_lock}: {taken}");
        fs.unmount().unwrap();
        let report = uxfs_check::check(&*dev).unwrap();
        assert!(report.is_sound(), "{op_lock}: {:?}", report.findings);
    }
    entries.into_inner()
}

#[test]
fn every_operation_ends_under_each_lock() {
    for op_lock in OpLock::ALL {
        for copy in ReaddirCopy::ALL {
            let (done, wait) = mpsc::channel();
            let run = std::thread::spawn(move || done.send(two_volumes(op_lock, copy)));
            // What holds the lock and waits would wait for ever.
            match wait.recv_timeout(Duration::from_secs(120)) {
                Ok(entries) => assert!(entries > 100, "{op_lock} {copy}"),
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("{op_lock}, {copy}: somebody waits with the lock"),
                Err(e) => panic!("{op_lock}, {copy}: {e}"),
            }
            let _ = run.join();
        }
    }
}

/// Nobody is inside an operation of a volume while somebody else is, but for those that wait: a device sees whether its caller is inside.
#[test]
fn the_device_is_never_waited_for_with_the_lock() {
    /// Takes the lock itself, from another thread, in each call: that hangs if the caller holds it.
    struct Asks {
        dev: Memory,
        op: Op,
        hung: AtomicBool,
    }
    impl Asks {
        fn ask(&self) {
            let (op, (done, wait)) = (self.op.clone(), mpsc::channel());
            std::thread::spawn(move || {
                drop(op.enter());
                done.send(())
            });
            if wait.recv_timeout(Duration::from_secs(5)).is_err() {
                self.hung.store(true, Ordering::SeqCst);
            }
        }
    }
    impl Device for Asks {
        fn size_bytes(&self) -> u64 {
            self.dev.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
            self.ask();
            self.dev.read(offset, buf)
        }
        fn write(&self, offset: u64, data: &[u8], flags: uxfs_device::WriteFlags) -> std::io::Result<()> {
            self.ask();
            self.dev.write(offset, data, flags)
        }
        fn flush(&self) -> std::io::Result<()> {
            self.ask();
            self.dev.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
            self.ask();
            self.dev.discard(offset, len)
        }
    }
    let dev = Memory::new(300 * MIB);
    uxfs_mkfs::format(&dev, &uxfs_mkfs::Options::new(300 * MIB, [3; 16])).unwrap();
    // All volumes under `Process` share one lock, so it is known here, too.
    let dev = Arc::new(Asks { dev, op: Op::new(OpLock::Process), hung: AtomicBool::new(false) });
    let o = Options { op_lock: OpLock::Process, memory: 16 * MIB as usize, commit: 1, discard: true, ..Options::default() };
    let fs = Fs::open(dev.clone() as DeviceRef, o).unwrap();
    let d = fs.create(fs.root(), b"d", DIR).unwrap().ino;
    work(&fs, &[fs.root(), d, d, fs.root()], 7, &AtomicU64::new(0));
    fs.set_attr(d, uxfs::AttrName::parse(b"user.large").unwrap(), &[7; 60_000], uxfs::SetMode::Any).unwrap();
    fs.get_attr(d, uxfs::AttrName::parse(b"user.large").unwrap()).unwrap();
    fs.trim(0).map(drop).unwrap();
    fs.sync().unwrap();
    assert!(!dev.hung.load(Ordering::SeqCst), "somebody waits for the device with the lock");
    fs.unmount().unwrap();
}
