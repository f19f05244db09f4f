//! Two files exchange what they hold: whole after any crash, ours and the kernel's.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uxfs::{Allocate, Error, Fs, Options, SetAttr, describe_log};
use uxfs_device::{Device, DeviceRef, FileDevice, Memory, OpenMode, Recorder};

const BLOCK: u64 = 4096;

/// A file of `blocks` blocks; every other one has data from `first` on, so each is an extent of its own.
fn striped(fs: &Fs, name: &str, first: u64, blocks: u64, seed: u8) -> u64 {
    let f = fs.create(fs.root(), name.as_bytes(), file(0o644)).unwrap().ino;
    for b in (first..blocks).step_by(2) {
        fs.write(f, b * BLOCK, &[seed ^ b as u8; BLOCK as usize], false).unwrap();
    }
    fs.setattr(f, SetAttr { size: Some(blocks * BLOCK - 100), ..SetAttr::default() }).unwrap();
    fs.fsync(f).unwrap();
    f
}

fn content(fs: &Fs, ino: u64) -> Vec<u8> {
    let mut v = vec![0; fs.stat(ino).unwrap().size as usize];
    let n = fs.read(ino, 0, &mut v).unwrap();
    assert_eq!(n, v.len());
    v
}

/// True if the log has an exchange that is to go on.
fn unfinished(dev: &DeviceRef) -> bool {
    let (mut intents, mut ends) = (0, 0);
    let count = &mut |_, items: &[String]| {
        for i in items.iter().filter(|i| i.starts_with("XMI")) {
            assert!(!i.contains(", 0 blocks"), "{i}: the kernel does not mount such a volume");
            intents += 1;
        }
        ends += items.iter().filter(|i| i.starts_with("XMD")).count();
    };
    describe_log(&dev.into(), count).unwrap();
    intents > ends
}

#[test]
fn ranges_change_places_and_nothing_else_does() {
    let img = Image::made_by(&newest("mkfs.xfs"), "exchange", 600 << 20, &["-q"]);
    let fs = img.open();
    let a = striped(&fs, "a", 0, 900, 0x10);
    let b = striped(&fs, "b", 1, 700, 0x80);
    // Shared and unwritten blocks are exchanged as they are.
    let c = fs.create(fs.root(), b"c", file(0o600)).unwrap().ino;
    fs.clone_range((a, 0), (c, 0), 100 * BLOCK).unwrap();
    fs.fallocate(b, Allocate::Reserve { keep_size: false }, 300 * BLOCK, 20 * BLOCK).unwrap();
    let (mut x, mut y) = (content(&fs, a), content(&fs, b));
    let shared = content(&fs, c);

    fs.exchange_range((a, 10 * BLOCK), (b, 290 * BLOCK), Some(200 * BLOCK)).unwrap();
    let (p, q, n) = (10 * BLOCK as usize, 290 * BLOCK as usize, 200 * BLOCK as usize);
    x[p..p + n].swap_with_slice(&mut y[q..q + n]);
    assert!(content(&fs, a) == x && content(&fs, b) == y);

    // To the ends, with the sizes; data that was not yet written back goes along.
    fs.write(a, 500 * BLOCK + 7, b"not yet on the device", false).unwrap();
    let at = 500 * BLOCK as usize + 7;
    x[at..at + 21].copy_from_slice(b"not yet on the device");
    fs.exchange_range((a, 0), (b, 0), None).unwrap();
    assert!(content(&fs, a) == y && content(&fs, b) == x);
    assert_eq!((fs.stat(a).unwrap().size, fs.stat(b).unwrap().size), (700 * BLOCK - 100, 900 * BLOCK - 100));

    // Within a file.
    fs.exchange_range((a, 0), (a, 50 * BLOCK), Some(50 * BLOCK)).unwrap();
    let (front, back) = y.split_at_mut(50 * BLOCK as usize);
    front.swap_with_slice(&mut back[..50 * BLOCK as usize]);
    assert!(content(&fs, a) == y);
    for (from, to, len) in
        [((a, 0), (a, BLOCK), Some(2 * BLOCK)), ((a, 1), (b, 0), Some(BLOCK)), ((a, 0), (b, 0), Some(5000 * BLOCK)), ((a, 0), (a, 0), None)]
    {
        assert_eq!(fs.exchange_range(from, to, len).unwrap_err().errno(), 22);
    }
    assert!(content(&fs, c) == shared);
    fs.unmount().unwrap();
    img.is_silent_for(&newest("xfs_repair"));
    let k = img.kernel_mount();
    assert!(
        std::fs::read(k.path("a")).unwrap() == y
            && std::fs::read(k.path("b")).unwrap() == x
            && std::fs::read(k.path("c")).unwrap() == shared
    );
}

/// The trees of what is exchanged may grow on the way: where there is no room for that, it does not begin.
#[test]
fn an_exchange_without_room_for_its_trees_changes_nothing() {
    let dev: DeviceRef = Arc::new(Memory::new(64 << 20));
    let o = uxfs_mkfs::Options { features: uxfs_mkfs::Features::NEWEST, ..uxfs_mkfs::Options::new(64 << 20, [5; 16]) };
    uxfs_mkfs::format(&*dev, &o).unwrap();
    let fs = Fs::open(dev.clone(), Options { commit: 0, ..Options::default() }).unwrap();
    let a = striped(&fs, "a", 0, 6000, 0x31);
    let b = fs.create(fs.root(), b"b", file(0o600)).unwrap().ino;
    fs.write(b, 0, &vec![7; 3000 * BLOCK as usize], false).unwrap();
    fs.sync().unwrap();
    let (x, y) = (content(&fs, a), content(&fs, b));
    let most = fs.create(fs.root(), b"most", file(0o600)).unwrap().ino;
    let fill = |left| fs.fallocate(most, Allocate::Reserve { keep_size: false }, 0, (fs.statfs().free - left) * BLOCK).unwrap();
    fill(40);
    assert!(matches!(fs.exchange_range((a, 0), (b, 0), None), Err(Error::NoSpace)));
    assert!(fs.shutdown_reason().is_none() && content(&fs, a) == x && content(&fs, b) == y);
    fs.fallocate(most, Allocate::Punch, 0, 400 * BLOCK).unwrap();
    fs.exchange_range((a, 0), (b, 0), None).unwrap();
    assert!(content(&fs, a) == y && content(&fs, b) == x);
    fs.unmount().unwrap();
    let r = uxfs_check::check(&*dev).unwrap();
    assert!(r.is_sound(), "{:?}", r.findings);
}

/// An exchange of the files `a` and `b`, and what they hold after it.
struct Case {
    exchange: fn(&Fs, u64, u64) -> uxfs::Result<()>,
    after: fn(&[u8], &[u8]) -> [Vec<u8>; 2],
}

const AT: [usize; 2] = [100 * BLOCK as usize, 340 * BLOCK as usize];

/// Whole files; all behind two places, whereby both sizes become new ones; and two ranges of one file.
const CASES: [Case; 3] = [
    Case { exchange: |fs, a, b| fs.exchange_range((a, 0), (b, 0), None), after: |x, y| [y.to_vec(), x.to_vec()] },
    Case {
        exchange: |fs, a, b| fs.exchange_range((a, AT[0] as u64), (b, AT[1] as u64), None),
        after: |x, y| [[&x[..AT[0]], &y[AT[1]..]].concat(), [&y[..AT[1]], &x[AT[0]..]].concat()],
    },
    Case {
        exchange: |fs, a, _| fs.exchange_range((a, 0), (a, 2 * AT[1] as u64), Some(2 * AT[1] as u64)),
        after: |x, y| [[&x[2 * AT[1]..4 * AT[1]], &x[..2 * AT[1]], &x[4 * AT[1]..]].concat(), y.to_vec()],
    },
];

/// How many of many cuts lie within an exchange is left to the scheduler.
#[test]
fn a_crash_leaves_all_of_an_exchange_or_nothing() {
    for case in &CASES {
        let mut within = Vec::new();
        while within.iter().sum::<usize>() < 10 {
            assert!(within.len() < 10, "only {within:?} cuts lie within the exchange");
            within.push(cut_an_exchange(case));
        }
    }
}

/// Cuts an exchange in many places, and lets us recover that and, where it lies within the exchange, the kernel; says how often it did.
fn cut_an_exchange(case: &Case) -> usize {
    let size = 310 << 20;
    let base = Arc::new(Memory::new(size));
    let mut words = uxfs_mkfs::Options::new(size, uxfs_mkfs::UuidGenerator::random().unwrap());
    words.take(&[('i', "exchange=1")]).unwrap();
    uxfs_mkfs::format(&*base as &dyn Device, &words).unwrap();
    let fs = Fs::open(base.clone(), Options { commit: 0, ..Options::default() }).unwrap();
    let files = [striped(&fs, "a", 0, 1400, 0x11), striped(&fs, "b", 1, 1000, 0x99)];
    let before = files.map(|f| content(&fs, f));
    let after = (case.after)(&before[0], &before[1]);
    fs.unmount().unwrap();

    let recorder = Arc::new(Recorder::new(base).unwrap());
    let fs = Fs::open(recorder.clone(), Options { commit: 0, ..Options::default() }).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        // So that the links of the exchange lie in many checkpoints.
        s.spawn(|| {
            while !done.load(Ordering::Acquire) {
                fs.sync().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        (case.exchange)(&fs, files[0], files[1]).unwrap();
        done.store(true, Ordering::Release);
    });
    fs.sync().unwrap();
    drop(fs);
    let trace = recorder.trace();
    let (mut seen, mut interrupted) = (BTreeSet::new(), 0);
    let mut judge = |cut: usize, got: [Vec<u8>; 2]| {
        assert!(got == before || got == after, "cut {cut}: a part of the exchange is left");
        seen.insert(got == after);
    };
    for n in 0..=60 {
        let cut = n * trace.events.len() / 60;
        // The kernel's recovery takes it for granted that blocks are written whole.
        let tear = [4096, 4096, 4096, 512][n % 4];
        let image = trace.image_at(cut, tear, &mut |_, parts| (0..parts).map(|s| (s + n) % 3 != 0 || n % 2 == 0).collect()).unwrap();
        let dev: DeviceRef = Arc::new(image);
        let is_unfinished = unfinished(&dev);
        interrupted += usize::from(is_unfinished);
        if is_unfinished && tear == 4096 {
            let img = Image::of("exchange-cut", &*dev);
            let k = img.kernel_mount();
            judge(cut, ["a", "b"].map(|n| std::fs::read(k.path(n)).unwrap()));
            drop(k);
            img.is_silent_for(&newest("xfs_repair"));
        }
        let fs = Fs::open(dev.clone(), Options::default()).unwrap();
        judge(cut, files.map(|f| content(&fs, f)));
        fs.unmount().unwrap();
        let report = uxfs_check::check(&*dev).unwrap();
        assert!(report.findings.is_empty(), "cut {cut}: {:?}", report.findings[0]);
    }
    assert_eq!(seen.len(), 2, "after all cuts alike");
    interrupted
}

/// Volumes on which the kernel was stopped within an exchange of files of these blocks (with `how`); each with what the files held.
fn interrupted_by_shutdown(name: &str, blocks: [u64; 2], how: &str, want: usize, judge: &mut dyn FnMut(&Image, [Vec<u8>; 2])) {
    let (mkfs, io) = (newest("mkfs.xfs"), newest("xfs_io"));
    let mut interrupted = 0;
    for attempt in 0..20 {
        let img = Image::made_by(&mkfs, &format!("{name}-{attempt}"), 900 << 20, &["-q"]);
        let fs = img.open();
        let files = [striped(&fs, "a", 0, blocks[0], 0x21), striped(&fs, "b", 1, blocks[1], 0xa5)];
        let before = files.map(|f| content(&fs, f));
        fs.unmount().unwrap();
        {
            let k = img.kernel_mount();
            let path = |p: &str| k.path(p).to_str().unwrap().to_string();
            let mut child = Command::new(&io)
                .args(["-x", "-c", &format!("exchangerange {how} {}", path("b")), &path("a")])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap_or_else(|e| panic!("{io}: {e}; install it with: cargo xtask tools"));
            std::thread::sleep(Duration::from_millis(10 + 10 * attempt));
            assert!(run(&io, &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]).status.success());
            let _ = child.wait();
        }
        let dev: DeviceRef = Arc::new(FileDevice::open(&img.path, OpenMode::ReadOnly).unwrap());
        let is_interrupted = unfinished(&dev);
        drop(dev);
        if is_interrupted {
            judge(&img, before);
            interrupted += 1;
        }
        if interrupted == want {
            return;
        }
    }
    panic!("the kernel was interrupted within an exchange {interrupted} times only");
}

fn ours(img: &Image) -> [Vec<u8>; 2] {
    let fs = img.open();
    let got = ["a", "b"].map(|n| content(&fs, fs.lookup(fs.root(), n.as_bytes()).unwrap().ino));
    fs.unmount().unwrap();
    img.is_silent_for(&newest("xfs_repair"));
    got
}

#[test]
fn an_exchange_that_the_kernel_began_is_finished_as_the_kernel_does() {
    let as_the_kernel = |img: &Image, want: [Vec<u8>; 2]| {
        let theirs = img.copy("kernel-exchange-theirs");
        assert!(ours(img) == want, "the exchange is not whole");
        let k = theirs.kernel_mount();
        let k = ["a", "b"].map(|n| std::fs::read(k.path(n)).unwrap());
        assert!(ours(img) == k);
    };
    interrupted_by_shutdown("kernel-exchange", [12_000, 12_000], "", 2, &mut |img, [a, b]| as_the_kernel(img, [b, a]));
    let n = 11_900 * BLOCK as usize;
    interrupted_by_shutdown("kernel-exchange-range", [12_000, 12_000], &format!("-l {n}"), 2, &mut |img, [a, b]| {
        as_the_kernel(img, [[&b[..n], &a[n..]].concat(), [&a[..n], &b[n..]].concat()]);
    });
}

#[test]
fn a_longer_file_keeps_its_end_in_an_exchange_that_the_kernel_began() {
    // The kernel's own recovery (6.18) frees what lies behind the shorter file's old end, so it is no oracle here.
    interrupted_by_shutdown("kernel-exchange-sizes", [12_000, 11_000], "", 2, &mut |img, [a, b]| {
        assert!(ours(img) == [b, a], "the exchange is not whole");
    });
}
