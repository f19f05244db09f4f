//! The page cache: what it keeps, what it may take, who waits for whom.

mod common;

use common::counting::{FILE, MIB, file, pattern, stat, volume};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uxfs::{Allocate, Fs, IoLock, IoMode, Make, OpLock, Options, Rename, SetAttr};
use uxfs_device::DeviceRef;
use uxfs_sync::Chance;

fn any_mode(c: &Chance) -> IoMode {
    IoMode::ALL[c.below(3) as usize]
}

#[test]
fn what_was_read_is_not_read_again_and_reading_runs_ahead() {
    let (fs, dev) = volume(300 * MIB, Options { commit: 0, ..Options::default() });
    let ino = file(&fs, "f");
    let data = pattern(ino, 0, 16 * MIB as usize);
    fs.write(ino, 0, &data, false).unwrap();
    fs.unmount().unwrap();
    let r: DeviceRef = dev.clone();
    let fs = Fs::open(r, Options { commit: 0, ..Options::default() }).unwrap();
    let ino = fs.lookup(fs.root(), b"f").unwrap().ino;
    let read_all = |step: usize| {
        let before = (dev.reads.load(Ordering::Relaxed), dev.bytes.load(Ordering::Relaxed));
        let mut buf = vec![0; step];
        for at in (0..data.len()).step_by(step) {
            assert_eq!(fs.read(ino, at as u64, &mut buf).unwrap(), step);
            assert!(buf == data[at..at + step]);
        }
        (dev.reads.load(Ordering::Relaxed) - before.0, dev.bytes.load(Ordering::Relaxed) - before.1)
    };
    let (reads, bytes) = read_all(4096);
    assert!(reads <= 32 && bytes <= 17 * MIB, "{reads} reads of {bytes} bytes for 4 096 of 4 KiB");
    assert_eq!(read_all(8192), (0, 0));
    // Reads that follow no other read what they need.
    let before = dev.bytes.load(Ordering::Relaxed);
    fs.fallocate(ino, Allocate::Punch, 0, 16 * MIB).unwrap();
    fs.write(ino, 0, &data, false).unwrap();
    fs.unmount().unwrap();
    let r: DeviceRef = dev.clone();
    let fs = Fs::open(r, Options { commit: 0, ..Options::default() }).unwrap();
    let c = Chance::seeded(1);
    let mut buf = vec![0; 4096];
    for _ in 0..100 {
        let at = (1 + c.below(4000)) * 4096;
        fs.read(ino, at, &mut buf).unwrap();
        assert!(buf == data[at as usize..at as usize + 4096]);
    }
    let read = dev.bytes.load(Ordering::Relaxed) - before;
    assert!(read < 3 * MIB, "{read} bytes for 100 random blocks");
    fs.unmount().unwrap();
}

/// Many writers at once write four times what memory there is, and read it again: memory stays within its limit, every byte is right.
#[test]
fn memory_is_bounded_whatever_is_written() {
    let memory = 16 * MIB as usize;
    let (fs, _) = volume(400 * MIB, Options { memory, ..Options::default() });
    const WRITERS: u64 = 32;
    let inos: Vec<u64> = (0..WRITERS).map(|w| file(&fs, &format!("f{w}"))).collect();
    let each = 4 * memory as u64 / WRITERS;
    std::thread::scope(|s| {
        for (w, ino) in inos.iter().enumerate() {
            let fs = &fs;
            s.spawn(move || {
                // Some in large pieces, larger than all there is for one of them, most in small ones.
                let step = if w % 8 == 0 { each } else { 64 << 10 };
                for at in (0..each).step_by(step as usize) {
                    let data = pattern(*ino, at, step as usize);
                    match w % 4 {
                        0 => _ = fs.write_given(*ino, at, data, 0..step as usize, IoMode::Buffered).unwrap(),
                        _ => fs.write(*ino, at, &data, false).unwrap(),
                    }
                }
                let mut buf = vec![0; each as usize];
                assert_eq!(fs.read(*ino, 0, &mut buf).unwrap(), buf.len());
                assert!(buf == pattern(*ino, 0, buf.len()), "file {ino}");
            });
        }
    });
    let (limit, peak) = (memory as u64 / 8 * 3, stat(&fs, "file_bytes_peak"));
    // Whoever comes next makes room again, where the last ones took a little too much.
    fs.write(inos[0], 0, &[1; 4096], false).unwrap();
    assert!(stat(&fs, "file_bytes") + stat(&fs, "file_spare_bytes") <= limit + limit / 16);
    println!("{peak} bytes of {limit}");
    // Beyond the limit is only what is being copied just now.
    assert!(peak <= limit + limit / 6, "{peak} bytes of {limit}");
    assert!(stat(&fs, "writers_throttled") > 0 && stat(&fs, "writeback_background_bytes") > 0);
    fs.unmount().unwrap();
}

/// Of data that is given away pages keep the buffer, if it is not much more than the data, whole blocks, and no more than a folio.
#[test]
fn what_is_given_away_is_kept_as_it_is() {
    let (fs, _) = volume(300 * MIB, Options { commit: 0, ..Options::default() });
    let taken = |before: usize, offset: u64, len: usize| {
        let ino = file(&fs, &format!("{before} {offset} {len}"));
        let (data, used) = (pattern(ino, offset, len), stat(&fs, "file_bytes"));
        let mut buffer = fs.buffer(before);
        buffer.extend_from_slice(&data);
        buffer.shrink_to_fit();
        assert_eq!(fs.write_given(ino, offset, buffer, before..before + len, IoMode::Buffered).unwrap(), len);
        let taken = stat(&fs, "file_bytes") - used;
        let mut buf = vec![0; len];
        assert_eq!(fs.read(ino, offset, &mut buf).unwrap(), len);
        assert!(buf == data, "{before} {offset} {len}");
        taken
    };
    // Copies may lie in somewhat larger buffers.
    let is_about = |n: u64, wanted: usize| (wanted as u64..(wanted + wanted / 8) as u64 + 10_000).contains(&n);
    let len = 1 << 20;
    // The odd bytes before it are there because it was taken as it was.
    assert!(is_about(taken(200_000, 4096, len), len + 200_000));
    // Not whole blocks, a small part of its buffer, more than a folio: copies.
    assert!(is_about(taken(200_000, 4095, len), len));
    assert!(is_about(taken(len / 2, 4096, len), len));
    assert!(is_about(taken(200_000, 0, 4 * len), 4 * len));
    fs.unmount().unwrap();
}

/// Neither holes that are read, nor files that are gone, nor single blocks far from each other cost memory that is not counted.
#[test]
fn what_finds_pages_is_bounded_too() {
    let memory = 16 * MIB as usize;
    let (fs, _) = volume(400 * MIB, Options { memory, commit: 0, ..Options::default() });
    let used = || stat(&fs, "file_bytes");
    let ino = file(&fs, "sparse");
    fs.setattr(ino, SetAttr { size: Some(1 << 40), ..SetAttr::default() }).unwrap();
    let mut buf = vec![0; MIB as usize];
    for at in (0..1 << 40).step_by(1 << 28) {
        fs.read(ino, at, &mut buf).unwrap();
    }
    assert!(used() < 64 << 10, "{} bytes for holes", used());
    for n in 0..20_000 {
        let ino = file(&fs, "short-lived");
        fs.write(ino, 0, &[1; 100], false).unwrap();
        fs.unlink(fs.root(), b"short-lived").unwrap();
        assert!(n % 1000 > 0 || (used() < MIB && stat(&fs, "file_folios") < 10_000), "{} bytes for files that are gone", used());
    }
    for n in 0..5000 {
        fs.write(ino, n * 2 * MIB + MIB + 4096, &[1; 4096], false).unwrap();
    }
    let (limit, peak) = (memory as u64 / 8 * 3, stat(&fs, "file_bytes_peak"));
    assert!(peak <= limit + limit / 8, "{peak} bytes of {limit}");
    fs.setattr(ino, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert!(used() < 64 << 10, "{} bytes for nothing", used());
    fs.unmount().unwrap();
}

/// An fsync writes what is dirty of its own file, and nothing of others.
#[test]
fn fsync_waits_for_no_other_file() {
    let (fs, _) = volume(300 * MIB, Options { commit: 0, ..Options::default() });
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    fs.write(a, 0, &vec![1; 8 * MIB as usize], false).unwrap();
    fs.write(b, 0, &[2; 4096], false).unwrap();
    fs.fsync(b).unwrap();
    assert_eq!(stat(&fs, "writeback_sync_bytes"), 4096);
    assert_eq!(stat(&fs, "dirty_bytes"), 8 * MIB);
    fs.unmount().unwrap();
}

/// The device does not answer for one file's blocks, to a read or to a write-back: everybody else goes on, in other groups and, but for
/// that file's bytes, in the same one. Also with a lock around everything, which nobody keeps while waiting.
#[test]
fn a_stalled_read_or_write_stops_nobody_else() {
    for (reading, op_lock) in [(true, OpLock::Fine), (false, OpLock::Fine), (true, OpLock::Volume), (false, OpLock::Process)] {
        let (fs, dev) = volume(400 * MIB, Options { commit: 0, ..Options::default() });
        // So many that chance does not put nearly all of them into one group.
        let dirs: Vec<u64> =
            (0..16).map(|n| fs.create(fs.root(), format!("d{n}").as_bytes(), Make { mode: 0o040_755, ..FILE }).unwrap().ino).collect();
        let inos: Vec<u64> = dirs.iter().map(|d| fs.create(*d, b"f", FILE).unwrap().ino).collect();
        for i in &inos {
            // One after the other: who finds a group locked goes to another one.
            fs.write(*i, 0, &vec![1; 4 * MIB as usize], false).unwrap();
            fs.fsync(*i).unwrap();
        }
        let group = |n: usize| fs.extents(inos[n]).unwrap()[0].start / (100 * MIB);
        let others: Vec<usize> = (1..16).filter(|n| group(*n) != group(0)).collect();
        assert!(others.len() > 2, "{:?}", (0..16).map(group).collect::<Vec<_>>());
        fs.unmount().unwrap();
        let r: DeviceRef = dev.clone();
        let fs = Fs::open(r, Options { commit: 0, op_lock, ..Options::default() }).unwrap();
        let e = fs.extents(inos[0]).unwrap()[0];
        if !reading {
            fs.write(inos[0], 0, &vec![2; MIB as usize], false).unwrap();
        }
        dev.faulty.stall(e.start..e.start + MIB);
        std::thread::scope(|s| {
            // So many that there would be no memory for others, if each of them might read far ahead.
            let stuck = match reading {
                true => 0..48,
                false => 0..1,
            };
            let stuck: Vec<_> = stuck
                .map(|n| {
                    let (fs, ino) = (&fs, inos[0]);
                    s.spawn(move || match reading {
                        true => fs.read(ino, MIB - (n + 1) * 20_000, &mut [0; 100]).map(drop),
                        false => fs.fsync(ino),
                    })
                })
                .collect();
            while dev.faulty.waiting() < stuck.len() {
                std::thread::yield_now();
            }
            // It hangs here if anything waits for that.
            for n in others.clone() {
                let (d, i) = (dirs[n], inos[n]);
                let mut buf = vec![0; MIB as usize];
                fs.read(i, MIB, &mut buf).unwrap();
                fs.write(i, 5 * MIB, &buf, false).unwrap();
                fs.fsync(i).unwrap();
                let new = fs.create(d, b"new", FILE).unwrap().ino;
                fs.write(new, 0, &[3; 9000], false).unwrap();
                fs.fsync(new).unwrap();
                fs.rename(d, b"new", dirs[others[0]], format!("renamed{n}").as_bytes(), Rename::Replace).unwrap();
                fs.setattr(i, SetAttr { size: Some(100), ..SetAttr::default() }).unwrap();
                fs.unlink(d, b"f").unwrap();
            }
            // The same file elsewhere, and its directory.
            let mut buf = [0; 4096];
            assert_eq!(fs.read(inos[0], 3 * MIB, &mut buf).unwrap(), 4096);
            fs.write(inos[0], 3 * MIB, &buf, false).unwrap();
            fs.stat(inos[0]).unwrap();
            fs.create(dirs[0], b"beside", FILE).unwrap();
            assert!(stuck.iter().all(|s| !s.is_finished()));
            dev.faulty.stall(0..0);
            stuck.into_iter().for_each(|s| s.join().unwrap().unwrap());
        });
        fs.unmount().unwrap();
        let report = uxfs_check::check(&*dev.dev).unwrap();
        assert!(report.is_sound(), "{:?}", report.findings);
    }
}

/// What one thread writes and fsyncs has its whole length after a power cut, though another one writes everything back meanwhile.
#[test]
fn fsync_keeps_the_size_beside_others_write_back() {
    const FILES: u64 = 3000;
    let (fs, dev) = volume(300 * MIB, Options { commit: 0, ..Options::default() });
    let stop = AtomicBool::new(false);
    let size = |n: u64| 1 + n * 7919 % 60_000;
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs.sync().unwrap();
            }
        });
        for n in 0..FILES {
            let ino = file(&fs, &format!("f{n}"));
            let half = size(n) / 2;
            fs.write(ino, 0, &vec![1; half as usize], false).unwrap();
            fs.write(ino, half, &vec![1; (size(n) - half) as usize], false).unwrap();
            fs.fsync(ino).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Without an unmount: as a power cut behind the last fsync.
    drop(fs);
    let r: DeviceRef = dev.clone();
    let fs = Fs::open(r, Options::default()).unwrap();
    for n in 0..FILES {
        assert_eq!(fs.lookup(fs.root(), format!("f{n}").as_bytes()).unwrap().size, size(n), "file {n}");
    }
    fs.unmount().unwrap();
}

/// Each write puts one stamp everywhere in its range; whoever reads must see, of each range that is written as a whole, one stamp only.
/// Returns how often a reader saw two.
fn torn_reads(lock: IoLock, ops: u64, cell: u64, mode: fn(&Chance) -> IoMode) -> u64 {
    const CELLS: u64 = 24;
    let (fs, _) = volume(600 * MIB, Options { commit: 0, io_lock: lock, ..Options::default() });
    let ino = file(&fs, "f");
    for n in 0..CELLS {
        fs.write(ino, n * cell, &vec![0; cell as usize], false).unwrap();
    }
    let (torn, stop, reads) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let rounds = ops / 3;
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..3u64)
            .map(|w| {
                let fs = &fs;
                s.spawn(move || {
                    let c = Chance::seeded(w);
                    for n in 0..rounds {
                        let first = c.below(CELLS);
                        let cells = 1 + if cell < MIB && c.below(20) == 0 { c.below(CELLS - first) } else { 0 };
                        // One stamp for all, in each byte.
                        let stamp = (n * 3 + w) as u8;
                        fs.write_with(ino, first * cell, &vec![stamp; (cells * cell) as usize], false, mode(&c)).unwrap();
                        if n % 512 == 0 {
                            fs.fsync(ino).unwrap();
                        }
                    }
                })
            })
            .collect();
        for r in 0..2u64 {
            let (fs, torn, stop, reads) = (&fs, &torn, &stop, &reads);
            s.spawn(move || {
                let c = Chance::seeded(100 + r);
                let mut buf = vec![0; cell as usize];
                while !stop.load(Ordering::Relaxed) {
                    // Any part of one cell, of one byte up to all.
                    let first = c.below(CELLS);
                    let from = if c.below(2) == 0 { 0 } else { c.below(cell) };
                    let len = 1 + c.below(cell - from);
                    let part = &mut buf[..len as usize];
                    fs.read_with(ino, first * cell + from, part, mode(&c)).unwrap();
                    reads.fetch_add(1, Ordering::Relaxed);
                    torn.fetch_add(u64::from(part.iter().any(|b| *b != part[0])), Ordering::Relaxed);
                }
            });
        }
        for w in writers {
            w.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    fs.unmount().unwrap();
    println!("{lock}, {cell} bytes: {} writes, {} reads", 3 * rounds, reads.into_inner());
    torn.into_inner()
}

/// Cells of 2 KiB to 8 MiB; with `UXFS_LONG` ten million operations.
#[test]
fn reads_and_writes_of_the_same_bytes_are_atomic_to_each_other() {
    let quiet = |c: &Chance| if c.below(2) == 0 { IoMode::Buffered } else { IoMode::DropBehind };
    let times = if std::env::var_os("UXFS_LONG").is_some() { 60 } else { 1 };
    for (cell, ops) in [(2 << 10, 12_000), (96 << 10, 3000), (8 << 20, 12)] {
        assert_eq!(torn_reads(IoLock::Range, ops * times, cell, quiet), 0, "{cell}");
        assert_eq!(torn_reads(IoLock::Range, ops * times / 3, cell, any_mode), 0, "{cell}, some past the cache");
        // Writes past the cache exclude each other there as little as in the kernel.
        assert_eq!(torn_reads(IoLock::Shared, ops * times, cell, quiet), 0, "{cell}");
    }
    // The checker can fail.
    let fails = || torn_reads(IoLock::Exclusive, 4500, 96 << 10, |_| IoMode::Buffered) > 0;
    assert!((0..20).any(|_| fails()), "no torn read without a lock between readers and writers");
}

/// Appends of many threads land each at a place of its own.
#[test]
fn appends_do_not_overwrite_each_other() {
    for lock in IoLock::ALL {
        let (fs, _) = volume(300 * MIB, Options { io_lock: lock, ..Options::default() });
        let ino = file(&fs, "log");
        const EACH: usize = 2000;
        std::thread::scope(|s| {
            for t in 0..8u8 {
                let fs = &fs;
                s.spawn(move || {
                    for n in 0..EACH as u32 {
                        let mut line = [t; 37];
                        line[1..5].copy_from_slice(&n.to_le_bytes());
                        fs.write(ino, 0, &line, true).unwrap();
                    }
                });
            }
        });
        let size = fs.stat(ino).unwrap().size as usize;
        assert_eq!(size, 8 * EACH * 37);
        let mut data = vec![0; size];
        fs.read(ino, 0, &mut data).unwrap();
        let mut next = [0u32; 8];
        for line in data.chunks(37) {
            let t = usize::from(line[0]);
            assert_eq!(u32::from_le_bytes(line[1..5].try_into().unwrap()), next[t]);
            next[t] += 1;
            assert!(line[5..].iter().all(|b| *b == line[0]));
        }
        assert_eq!(next, [EACH as u32; 8]);
        fs.unmount().unwrap();
    }
}

/// Truncation, punching and zeroing beside reads, writes and write-back, with little memory: what is read was written there, or is zero.
#[test]
fn what_is_taken_from_a_file_beside_its_readers_does_not_come_back() {
    for lock in IoLock::ALL {
        let memory = 16 * MIB as usize;
        let (fs, dev) = volume(300 * MIB, Options { memory, io_lock: lock, commit: 0, ..Options::default() });
        let inos = [file(&fs, "a"), file(&fs, "b")];
        const SIZE: u64 = 6 * MIB;
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let workers: Vec<_> = (0..4u64)
                .map(|w| {
                    let fs = &fs;
                    s.spawn(move || {
                        let c = Chance::seeded(w);
                        for n in 0..400 {
                            let ino = inos[c.below(2) as usize];
                            let (at, len) = (c.below(SIZE), 1 + c.below(200_000));
                            match c.below(12) {
                                0 => drop(fs.setattr(ino, SetAttr { size: Some(at), ..SetAttr::default() }).unwrap()),
                                1 => fs.fallocate(ino, Allocate::Punch, at, len).unwrap(),
                                2 => fs.fallocate(ino, Allocate::Zero { keep_size: true }, at, len).unwrap(),
                                3 if n % 10 == 0 => fs.fsync(ino).unwrap(),
                                _ => fs.write_with(ino, at, &pattern(ino, at, len as usize), false, any_mode(&c)).map(drop).unwrap(),
                            }
                        }
                    })
                })
                .collect();
            for r in 0..2u64 {
                let (fs, stop) = (&fs, &stop);
                s.spawn(move || {
                    let c = Chance::seeded(50 + r);
                    let mut buf = vec![0; 100_000];
                    while !stop.load(Ordering::Relaxed) {
                        let (ino, at) = (inos[c.below(2) as usize], c.below(SIZE));
                        let n = fs.read_with(ino, at, &mut buf, any_mode(&c)).unwrap();
                        // The other file's bytes look different everywhere.
                        let good = pattern(ino, at, n);
                        let bad = buf[..n].iter().zip(&good).position(|(b, g)| *b != 0 && b != g);
                        assert_eq!(bad, None, "{lock}: byte {at} and on of file {ino}");
                    }
                });
            }
            for w in workers {
                w.join().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        let read = |fs: &Fs| {
            inos.map(|i| {
                let mut all = vec![0; 7 * MIB as usize];
                let n = fs.read(i, 0, &mut all).unwrap();
                all.truncate(n);
                all
            })
        };
        let before = read(&fs);
        fs.unmount().unwrap();
        let r: DeviceRef = dev.clone();
        let fs = Fs::open(r, Options::default()).unwrap();
        assert!(read(&fs) == before, "{lock}: another content after opening again");
        fs.unmount().unwrap();
        let report = uxfs_check::check(&*dev.dev).unwrap();
        assert!(report.is_sound(), "{:?}", report.findings);
    }
}

/// Somebody writes a file while its last name goes, and its number and blocks are wanted again: it lasts until that write has ended.
#[test]
fn what_is_unlinked_while_it_is_written_lasts_until_that_has_ended() {
    let (fs, dev) = volume(300 * MIB, Options { commit: 0, ..Options::default() });
    let ino = file(&fs, "f");
    fs.write_with(ino, 0, &vec![1; MIB as usize], false, IoMode::Direct).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().free;
    let place = fs.extents(ino).unwrap()[0].start;
    dev.faulty.stall(place..place + MIB);
    std::thread::scope(|s| {
        let writer = s.spawn(|| fs.write_with(ino, 0, &vec![2; MIB as usize], false, IoMode::Direct));
        while dev.faulty.waiting() == 0 {
            std::thread::yield_now();
        }
        fs.unlink(fs.root(), b"f").unwrap();
        fs.fsync(fs.root()).unwrap();
        assert_eq!(fs.statfs().free, free, "its blocks are free while they are written");
        let new = file(&fs, "new");
        assert_ne!(new, ino);
        dev.faulty.stall(0..0);
        writer.join().unwrap().unwrap();
    });
    assert!(fs.statfs().free > free);
    assert!(matches!(fs.read(ino, 0, &mut [0; 10]), Err(uxfs::Error::Stale)));
    fs.unmount().unwrap();
    let report = uxfs_check::check(&*dev.dev).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}

/// What grew a file is punched out of it before it was written back: the file is as long as it was all the same, after an fsync and a
/// crash, too.
#[test]
fn a_file_keeps_its_length_when_its_end_is_punched() {
    let holes = [Allocate::Punch, Allocate::Zero { keep_size: true }];
    for (hole, crash) in holes.into_iter().flat_map(|h| [(h, true), (h, false)]) {
        let (fs, dev) = volume(300 * MIB, Options { commit: 0, ..Options::default() });
        let ino = file(&fs, "f");
        fs.write(ino, 0, &[1; 8192], false).unwrap();
        fs.fsync(ino).unwrap();
        fs.write(ino, 8192, &[2; 100_000], false).unwrap();
        fs.fallocate(ino, hole, 16_384, 1 << 20).unwrap();
        fs.fsync(ino).unwrap();
        if crash {
            drop(fs)
        } else {
            fs.unmount().unwrap()
        }
        let fs = Fs::open(dev.clone() as DeviceRef, Options::default()).unwrap();
        let ino = fs.lookup(fs.root(), b"f").unwrap().ino;
        assert_eq!(fs.stat(ino).unwrap().size, 108_192, "{hole:?}, crash: {crash}");
        let mut buf = vec![9; 108_192];
        fs.read(ino, 0, &mut buf).unwrap();
        assert!(buf[..8192] == [1; 8192] && buf[8192..16_384] == [2; 8192] && buf[16_384..].iter().all(|b| *b == 0));
        fs.unmount().unwrap();
    }
}
