//! Inodes that come into memory and go out of it again, under the hands of those who refer to them.

mod common;

use common::counting::{MIB, stat};
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uxfs::{Allocate, Error, Fs, JournalConfig, Make, Options, Rename, SetAttr};
use uxfs_check::Form;
use uxfs_device::{DeviceRef, FileDevice, Memory};
use uxfs_mkfs::Features;
use uxfs_sync::Chance;

/// Opens it so that few inodes stay in memory, and what changed goes home soon.
fn open(dev: &Arc<Memory>, metadata: usize) -> Fs {
    let journal = JournalConfig { dirty: 64 << 10, ..JournalConfig::default() };
    let o = Options { commit: 0, memory: 16 << 20, metadata: Some(metadata), journal, ..Options::default() };
    Fs::open(dev.clone() as DeviceRef, o).unwrap()
}

fn in_use(fs: &Fs) -> u64 {
    let s = fs.statfs();
    s.files - s.files_free
}

#[test]
fn inodes_that_somebody_holds_take_no_more_memory_than_others() {
    const FILES: u64 = 20_000;
    let dev = in_memory(128 * MIB, 4096, 2, Features::NEWEST);
    let fs = open(&dev, 1 << 20);
    let dirs: Vec<u64> = (0..FILES / 500).map(|i| fs.create(fs.root(), format!("{i}").as_bytes(), dir(0o755)).unwrap().ino).collect();
    let name = |i: u64| format!("file {i}").into_bytes();
    let place = |i: u64| dirs[(i % dirs.len() as u64) as usize];
    let mut most = 0;
    let files: Vec<u64> = (0..FILES)
        .map(|i| {
            let s = fs.create(place(i), &name(i), file(0o644)).unwrap();
            fs.hold(s.ino, s.generation).unwrap();
            most = most.max(stat(&fs, "inodes") - stat(&fs, "ail_items").min(stat(&fs, "inodes")));
            s.ino
        })
        .collect();
    // 1 MiB of metadata is 256 inodes that need not be there; beside them are some that are not home yet.
    assert!(most < 2000, "{most} of {FILES} inodes were in memory at once");
    for (i, &ino) in files.iter().enumerate() {
        assert_eq!(fs.stat(ino).unwrap().nlink, 1, "file {i}");
    }
    let (here, away) = (stat(&fs, "inodes"), stat(&fs, "inodes_away"));
    assert!(here < 2000 && away > FILES - 2000 && away <= FILES, "{here} inodes in memory, {away} away");
    let before = in_use(&fs);
    // A quarter goes on living without names; a quarter, which nobody holds any more, does not.
    for (i, &ino) in (0..).zip(&files).filter(|x| x.0 % 2 == 0) {
        if i % 4 == 0 {
            fs.forget(ino, 1).unwrap();
        }
        fs.unlink(place(i), &name(i)).unwrap();
    }
    assert_eq!(before - in_use(&fs), FILES / 4);
    for (i, &ino) in (0..).zip(&files) {
        match fs.stat(ino) {
            Ok(s) => assert!(i % 4 != 0 && s.nlink == u32::from(i % 2 != 0), "file {i}: {s:?}"),
            Err(e) => assert!(i % 4 == 0 && matches!(e, Error::Stale), "file {i}: {e}"),
        }
    }
    for (i, &ino) in (0..).zip(&files).filter(|x| x.0 % 4 != 0) {
        fs.forget(ino, 1 + u64::from(i % 3 == 0)).unwrap();
    }
    assert_eq!((before - in_use(&fs), stat(&fs, "inodes_away")), (FILES / 2, 0));
    end_life(fs, &dev, false, "files that were held");
}

/// What is known of a file that several threads work on, one at a time.
#[derive(Default)]
struct Known {
    ino: u64,
    generation: u32,
    links: u32,
    holds: u64,
    uid: u32,
}

fn lock(k: &Mutex<Known>) -> MutexGuard<'_, Known> {
    // A thread that panicked says more than those that come after it.
    k.lock().unwrap_or_else(PoisonError::into_inner)
}

fn link(slot: usize, n: u32) -> Vec<u8> {
    format!("{slot} link {n}").into_bytes()
}

/// One change of a file, which must be as it is known before and after.
fn step(fs: &Fs, at: usize, k: &mut Known, c: &Chance) {
    let what = |k: &Known| format!("file {at}, inode {}: {} links, {} holds", k.ino, k.links, k.holds);
    let is_there = |k: &Known| match fs.stat(k.ino) {
        Ok(s) if s.generation == k.generation => {
            assert_eq!((s.nlink, s.uid), (k.links, k.uid), "{}", what(k));
            true
        }
        Ok(_) | Err(Error::Stale) => false,
        Err(e) => panic!("{}: {e}", what(k)),
    };
    if k.links == 0 && k.holds == 0 {
        // Somebody who looks at it just now may be the one who ends it.
        let gone = k.ino == 0
            || (0..1000).any(|_| {
                !is_there(k) || {
                    std::thread::sleep(Duration::from_millis(1));
                    false
                }
            });
        assert!(gone, "{}: it is still there", what(k));
        let s = match c.below(4) {
            0 => fs.create_unnamed(fs.root(), file(0o600)).unwrap(),
            _ => fs.create(fs.root(), &link(at, 0), file(0o644)).unwrap(),
        };
        *k = Known { ino: s.ino, generation: s.generation, links: s.nlink, holds: u64::from(s.nlink == 0), uid: 0 };
        return;
    }
    assert!(is_there(k), "{}: it is gone", what(k));
    match c.below(8) {
        0..2 => {
            fs.hold(k.ino, k.generation).unwrap();
            k.holds += 1;
        }
        2..4 if k.holds > 0 => {
            let n = 1 + c.below(k.holds);
            fs.forget(k.ino, n).unwrap();
            k.holds -= n;
        }
        4..6 if k.links > 0 => {
            k.links -= 1;
            fs.unlink(fs.root(), &link(at, k.links)).unwrap();
        }
        6 if k.links < 3 => {
            fs.link(k.ino, fs.root(), &link(at, k.links)).unwrap();
            k.links += 1;
        }
        _ => {
            k.uid += 1;
            fs.setattr(k.ino, SetAttr { uid: Some(k.uid), ..SetAttr::default() }).unwrap();
        }
    }
}

#[test]
fn holds_and_names_end_a_file_together_whatever_is_in_memory() {
    const FILES: usize = 300;
    for seed in seeds(8, 60) {
        let dev = in_memory(64 * MIB, 4096, 2, Features::NEWEST);
        let known: Vec<Mutex<Known>> = (0..FILES).map(|_| Mutex::default()).collect();
        for life in 0..3u64 {
            let fs = open(&dev, 16 << 10);
            let mut named = 0;
            // Holds end with a life, and with them what has no name; its number is not to be asked for again.
            for k in &known {
                let mut k = lock(k);
                k.holds = 0;
                if k.links == 0 {
                    *k = Known::default();
                }
                named += u64::from(k.links > 0);
            }
            assert_eq!(in_use(&fs), 3 + named, "seed {seed}, life {life}");
            let stop = AtomicBool::new(false);
            std::thread::scope(|s| {
                let (fs, known, stop) = (&fs, &known, &stop);
                let workers: Vec<_> = (0..4u64)
                    .map(|t| {
                        s.spawn(move || {
                            let c = Chance::seeded(seed << 8 | life << 4 | t);
                            for n in 0..1500 {
                                let at = c.below(FILES as u64) as usize;
                                step(fs, at, &mut lock(&known[at]), &c);
                                if n % 100 == 0 {
                                    fs.sync().unwrap();
                                }
                            }
                        })
                    })
                    .collect();
                // Somebody asks for files that change under him.
                let reader = s.spawn(move || {
                    let c = Chance::seeded(seed);
                    while !stop.load(Ordering::Relaxed) {
                        let ino = lock(&known[c.below(FILES as u64) as usize]).ino;
                        if ino != 0 {
                            let _ = fs.stat(ino);
                        }
                    }
                });
                let failed = workers.into_iter().map(std::thread::ScopedJoinHandle::join).filter(Result::is_err).count();
                stop.store(true, Ordering::Relaxed);
                assert!(failed == 0 && reader.join().is_ok(), "seed {seed}, life {life}: {failed} threads failed");
            });
            end_life(fs, &dev, life == 1, &format!("seed {seed}, life {life}"));
        }
    }
}

#[test]
fn a_name_leads_to_no_other_file_though_numbers_are_used_again_at_once() {
    let dev = in_memory(64 * MIB, 4096, 2, Features::NEWEST);
    let fs = open(&dev, 64 << 10);
    let name = |uid: u32| format!("file of {uid}").into_bytes();
    let (found, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        let (fs, found, stop) = (&fs, &found, &stop);
        let churn = move |uids: std::ops::Range<u32>| {
            for uid in uids.cycle().take(60_000) {
                let made = fs.create(fs.root(), &name(uid), Make { uid, ..file(0o644) }).unwrap();
                assert_eq!(made.uid, uid, "what was made is another file");
                fs.unlink(fs.root(), &name(uid)).unwrap();
            }
        };
        let workers = [s.spawn(move || churn(0..4)), s.spawn(move || churn(4..8))];
        for t in 0..3 {
            s.spawn(move || {
                let c = Chance::seeded(t);
                while !stop.load(Ordering::Relaxed) {
                    let uid = c.below(8) as u32;
                    match fs.lookup(fs.root(), &name(uid)) {
                        Ok(s) => {
                            assert_eq!(s.uid, uid, "the name of another file led to {s:?}");
                            found.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::NotFound) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
        let done: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(done.iter().all(Result::is_ok));
    });
    assert!(found.into_inner() > 100);
    end_life(fs, &dev, false, "names that came and went");
}

#[test]
fn what_is_removed_is_what_was_looked_at_though_numbers_are_used_again_at_once() {
    let dev = in_memory(64 * MIB, 4096, 2, Features::NEWEST);
    let fs = open(&dev, 64 << 10);
    let root = fs.root();
    let other = fs.create(root, b"other", dir(0o755)).unwrap().ino;
    let fine = |r: Result<(), Error>| match r {
        Ok(()) | Err(Error::NotFound | Error::Exists | Error::Stale | Error::IsDirectory | Error::NotDirectory | Error::NotEmpty) => {}
        Err(e) => panic!("{e}"),
    };
    let left = AtomicU64::new(40_000);
    let child = |x: u64| fs.create(x, b"child", file(0o644)).map(drop);
    std::thread::scope(|s| {
        let (fs, left) = (&fs, &left);
        let jobs: Vec<Box<dyn FnMut() + Send>> = vec![
            // A file and a directory that is not empty come and go by one name, and most often with one number.
            Box::new(move || {
                left.fetch_sub(1, Ordering::Relaxed);
                fine(fs.create(root, b"x", file(0o644)).map(drop));
                fine(fs.unlink(root, b"x"));
            }),
            Box::new(move || {
                if let Ok(x) = fs.create(root, b"x", dir(0o755)) {
                    fine(child(x.ino));
                    fine(fs.unlink(x.ino, b"child"));
                    fine(fs.rmdir(root, b"x"));
                }
            }),
            Box::new(move || fine(fs.unlink(root, b"x"))),
            Box::new(move || fine(fs.rmdir(root, b"x"))),
            Box::new(move || fine(fs.rename(root, b"x", other, b"x", Rename::Replace))),
            Box::new(move || fine(fs.rename(other, b"x", root, b"x", Rename::Replace))),
        ];
        for mut job in jobs {
            s.spawn(move || {
                while (1..=40_000).contains(&left.load(Ordering::Relaxed)) {
                    job();
                }
            });
        }
    });
    end_life(fs, &dev, false, "files and directories by one name");
}

/// Who makes a file waits for it with its directory's lock; who knows the number from before wants both.
#[test]
fn a_number_that_is_used_again_stops_nobody_who_knew_it() {
    let dev = in_memory(64 * MIB, 4096, 1, Features::NEWEST);
    let fs = Arc::new(open(&dev, 16 << 20));
    // The files' numbers lie below their directory's.
    let name = |n: u32| format!("{n}").into_bytes();
    for n in 0..40 {
        fs.create(fs.root(), &name(n), file(0o644)).unwrap();
    }
    let d = fs.create(fs.root(), b"d", dir(0o755)).unwrap().ino;
    (0..40).for_each(|n| fs.unlink(fs.root(), &name(n)).unwrap());
    let (done, ended) = std::sync::mpsc::channel();
    for _ in 0..4 {
        let (fs, done) = (fs.clone(), done.clone());
        std::thread::spawn(move || {
            for _ in 0..20_000 {
                let _ = fs.create(d, b"x", file(0o644));
                let _ = fs.unlink(d, b"x");
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..4 {
        ended.recv_timeout(Duration::from_secs(60)).expect("threads wait for each other");
    }
    fs.sync().unwrap();
}

/// Where free space is in pieces too small for a whole chunk, a part of one is made, never where the kernel would not look for inodes: the
/// chunk, holes included, must lie between a group's headers and its end.
#[test]
fn chunks_with_holes_lie_where_the_kernel_looks_for_inodes() {
    for (block, inode, size) in
        [(1024, 512, 80 << 20), (1024, 512, (80 << 20) - 4096), (2048, 1024, 100 << 20), (4096, 512, 160 << 20), (4096, 2048, 160 << 20)]
    {
        let label = format!("holes-{block}-{inode}-{size}");
        let img = Image::new(&label, size);
        let mut o =
            uxfs_mkfs::Options { block, inode, agcount: Some(3), features: Features::NEWEST, ..uxfs_mkfs::Options::new(size, [3; 16]) };
        o.least_log = true;
        uxfs_mkfs::format(&FileDevice::create(&img.path, Some(size)).unwrap(), &o).unwrap();
        let fs = img.open();
        let (bs, chunk) = (u64::from(block), u64::from(fs.geometry().chunk_blocks()));
        let (half, agblocks) = (chunk / 2, u64::from(fs.geometry().agblocks));
        let dirs: Vec<u64> = (0..6).map(|n| fs.create(fs.root(), format!("{n}").as_bytes(), dir(0o755)).unwrap().ino).collect();
        let filler = fs.create(fs.root(), b"filler", file(0o644)).unwrap().ino;
        let mut len = fs.statfs().free * bs;
        while let Err(Error::NoSpace) = fs.fallocate(filler, Allocate::Reserve { keep_size: false }, 0, len) {
            len -= bs;
        }
        // One half of each aligned run of a chunk's length is free.
        for e in fs.extents(filler).unwrap() {
            for at in (e.start / bs)..(e.start + e.len) / bs {
                let agbno = at % agblocks;
                if agbno % chunk / half == (agbno / chunk + 2) % 3 / 2 {
                    fs.fallocate(filler, Allocate::Punch, e.offset + at * bs - e.start, bs).unwrap();
                }
            }
        }
        // What was set aside for trees is in larger pieces.
        let rest = fs.create(fs.root(), b"rest", file(0o644)).unwrap().ino;
        for n in 0.. {
            fs.fallocate(rest, Allocate::Reserve { keep_size: false }, 2 * n * chunk * bs, 2 * chunk * bs).unwrap();
            if fs.extents(rest).unwrap().iter().any(|e| e.len < chunk * bs) {
                break;
            }
        }
        fs.sync().unwrap();
        let make = |from: usize| {
            (from..from + 3000).take_while(|n| fs.create(dirs[n % 6], format!("{n}").as_bytes(), file(0o644)).is_ok()).count()
        };
        let made = make(0);
        assert!(made > 500, "{label}: {made}");
        (0..made).filter(|n| n % 500 != 0).for_each(|n| fs.unlink(dirs[n % 6], format!("{n}").as_bytes()).unwrap());
        make(10_000);
        fs.unmount().unwrap();
        let r = uxfs_check::check(&*img.device()).unwrap();
        assert!(r.is_sound() && r.forms.highest(Form::SparseChunk).is_some(), "{label}: {:?}", r.findings);
        img.is_silent_for(&newest("xfs_repair"));
        let k = img.kernel_mount();
        let theirs = (0..300).take_while(|n| std::fs::write(k.at.join(format!("{}/kernel {n}", n % 6)), b"").is_ok()).count();
        println!("{label}: {made} files, then {theirs} of the kernel");
        assert!(theirs > 20);
        drop(k);
        img.is_silent_for(&newest("xfs_repair"));
        assert!(uxfs_check::check(&*img.device()).unwrap().is_sound(), "{label}");
    }
}
