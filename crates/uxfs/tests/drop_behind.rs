//! Reads and writes that leave nothing in memory: what is dropped and when, what stays, what is counted.

mod common;

use common::counting::{Counting, FILE, MIB, file, pattern, stat, volume};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uxfs::{Domain, DropBehind, Fs, How, IoMode, Options, SetAttr};
use uxfs_device::{DeviceRef, Faulty};
use uxfs_sync::Chance;

const QUIET: IoMode = IoMode::DropBehind;

fn again(fs: Fs, dev: &Arc<Counting>, o: Options) -> Fs {
    fs.unmount().unwrap();
    Fs::open(dev.clone() as DeviceRef, o).unwrap()
}

/// Waits until a counter is what it should be.
fn wait_until(fs: &Fs, name: &str, value: u64) {
    let begun = Instant::now();
    while stat(fs, name) != value {
        assert!(begun.elapsed() < Duration::from_secs(20), "{name} stays at {}", stat(fs, name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_read_so_is_read_ahead_and_goes() {
    let o = || Options { commit: 0, ..Options::default() };
    let (fs, dev) = volume(300 * MIB, o());
    let ino = file(&fs, "f");
    let data = pattern(ino, 0, 16 * MIB as usize);
    fs.write(ino, 0, &data, false).unwrap();
    let fs = again(fs, &dev, o());
    let read = |from: u64, to: u64, step: usize, how: IoMode| {
        let before = dev.reads.load(Ordering::Relaxed);
        let mut buf = vec![0; step];
        for at in (from..to).step_by(step) {
            let n = fs.read_with(ino, at, &mut buf, how).unwrap();
            assert_eq!(n, step.min(data.len() - at as usize));
            assert!(buf[..n] == data[at as usize..at as usize + n]);
        }
        dev.reads.load(Ordering::Relaxed) - before
    };
    let empty = stat(&fs, "file_bytes");
    for step in [1 << 20, 4096, 3000] {
        let reads = read(0, 16 * MIB, step, QUIET);
        assert!(reads <= 32, "{reads} reads with {step} bytes");
        assert_eq!(stat(&fs, "file_bytes"), empty);
    }
    // What somebody else used, before or meanwhile, stays.
    read(0, MIB, 4096, IoMode::Buffered);
    assert!(stat(&fs, "file_bytes") >= MIB);
    read(0, 16 * MIB, 4096, QUIET);
    // That, and what was read ahead of it.
    let kept = stat(&fs, "file_bytes");
    assert!((MIB..12 * MIB).contains(&kept), "{kept}");
    assert_eq!(read(0, MIB, 4096, IoMode::Buffered), 0);
    fs.unmount().unwrap();
}

/// Under each policy: every byte is right, nothing stays that was only written so, and what was written is counted by its reason.
#[test]
fn what_is_written_so_goes_when_it_is_on_the_device() {
    for policy in DropBehind::ALL {
        let memory = 64 * MIB as usize;
        let (fs, _) = volume(400 * MIB, Options { commit: 0, memory, drop_behind: policy, ..Options::default() });
        const WRITERS: u64 = 8;
        const EACH: u64 = 8 * MIB;
        let inos: Vec<u64> = (0..WRITERS).map(|w| file(&fs, &format!("f{w}"))).collect();
        std::thread::scope(|s| {
            for (w, ino) in inos.iter().enumerate() {
                let fs = &fs;
                s.spawn(move || {
                    let how = How { mode: QUIET, domain: Domain(w as u32 % 3) };
                    for at in (0..EACH).step_by(64 << 10) {
                        fs.write_with(*ino, at, &pattern(*ino, at, 64 << 10), false, how).unwrap();
                    }
                });
            }
        });
        let written = |name| stat(&fs, name) / MIB;
        // Those that have been dirty longest need not be all.
        if policy == DropBehind::FlusherOldest {
            assert!(written("writeback_background_bytes") > 0, "{policy}");
            fs.sync().unwrap();
        } else {
            wait_until(&fs, "dirty_bytes", 0);
            assert_eq!(written("writeback_dropbehind_bytes"), WRITERS * EACH / MIB, "{policy}");
            assert_eq!(written("writeback_background_bytes"), 0, "{policy}");
        }
        assert_eq!(stat(&fs, "dirty_behind_bytes"), 0, "{policy}");
        assert!(stat(&fs, "file_bytes") < MIB, "{policy}: {} bytes stay", stat(&fs, "file_bytes"));
        if policy == DropBehind::FlusherOwn {
            // A tenth of what may be dirty, and what each writer brings.
            let most = memory as u64 / 8 * 3 / 3 * 2 / 10 + WRITERS * (64 << 10);
            assert!(stat(&fs, "dirty_bytes_peak") <= most, "{} bytes were dirty, not {most}", stat(&fs, "dirty_bytes_peak"));
        }
        for ino in inos {
            let mut buf = vec![0; EACH as usize];
            fs.read_with(ino, 0, &mut buf, QUIET).unwrap();
            assert!(buf == pattern(ino, 0, buf.len()), "{policy}");
        }
        fs.unmount().unwrap();
    }
}

/// The device does not answer: what is on its way and is used by somebody else, or written again, is not dropped when it does.
#[test]
fn what_is_used_meanwhile_stays() {
    let (fs, dev) = volume(300 * MIB, Options { commit: 0, ..Options::default() });
    let ino = file(&fs, "f");
    let page = |n: u64| pattern(n, 0, 4096);
    (0..4).for_each(|n| fs.write_with(ino, n * 4096, &page(9), false, IoMode::Direct).map(drop).unwrap());
    let place = fs.extents(ino).unwrap()[0].start;
    dev.faulty.stall(place..place + MIB);
    (0..4).for_each(|n| fs.write_with(ino, n * 4096, &page(n), false, QUIET).map(drop).unwrap());
    while dev.faulty.waiting() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(stat(&fs, "dirty_behind_bytes"), 4 * 4096);
    let mut buf = vec![0; 4096];
    fs.read(ino, 0, &mut buf).unwrap();
    assert!(buf == page(0));
    fs.write(ino, 4096, &page(7), false).unwrap();
    assert_eq!(stat(&fs, "dirty_behind_bytes"), 2 * 4096);
    // Who reads so too takes nothing away that is on its way.
    fs.read_with(ino, 2 * 4096, &mut buf, QUIET).unwrap();
    assert!(buf == page(2));
    dev.faulty.stall(0..0);
    fs.sync().unwrap();
    assert_eq!(stat(&fs, "dirty_behind_bytes"), 0);
    let before = dev.reads.load(Ordering::Relaxed);
    for (n, value) in [(0, 0), (1, 7)] {
        fs.read(ino, n * 4096, &mut buf).unwrap();
        assert!(buf == page(value));
    }
    assert_eq!(dev.reads.load(Ordering::Relaxed), before);
    fs.read(ino, 2 * 4096, &mut buf).unwrap();
    assert!(buf == page(2));
    assert!(dev.reads.load(Ordering::Relaxed) > before);
    fs.unmount().unwrap();
}

/// Whatever is mixed, whoever asks, and whatever is taken away: in the end nothing is counted any more.
#[test]
fn what_is_counted_comes_to_nothing_in_the_end() {
    for policy in DropBehind::ALL {
        let o = Options { commit: 0, memory: 16 * MIB as usize, drop_behind: policy, ..Options::default() };
        let (fs, _) = volume(400 * MIB, o);
        let inos: Vec<u64> = (0..4).map(|w| file(&fs, &format!("f{w}"))).collect();
        std::thread::scope(|s| {
            for t in 0..6 {
                let (fs, inos) = (&fs, &inos);
                s.spawn(move || {
                    let c = Chance::seeded(t);
                    for n in 0..400 {
                        let ino = inos[c.below(4) as usize];
                        let how = How { mode: IoMode::ALL[c.below(3) as usize], domain: Domain(t as u32) };
                        let (at, len) = (c.below(4 * MIB), 1 + c.below(96 << 10) as usize);
                        match c.below(10) {
                            0 if n % 8 == 0 => {
                                fs.setattr(ino, SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
                            }
                            1 if n % 8 == 0 => fs.fsync(ino).unwrap(),
                            0..6 => fs.write_with(ino, at, &vec![t as u8; len], false, how).map(drop).unwrap(),
                            _ => {
                                fs.read_with(ino, at, &mut vec![0; len], how).unwrap();
                            }
                        }
                    }
                });
            }
        });
        fs.sync().unwrap();
        assert_eq!(stat(&fs, "dirty_behind_bytes"), 0, "{policy}");
        assert_eq!(stat(&fs, "dirty_bytes"), 0, "{policy}");
        fs.unmount().unwrap();
    }
}

/// What could not be written is said to whoever asks for it to be durable, under each policy.
#[test]
fn errors_reach_who_waits_for_them() {
    for policy in DropBehind::ALL {
        let (fs, dev) = volume(300 * MIB, Options::default());
        let ino = fs.create(fs.root(), b"f", FILE).unwrap().ino;
        fs.write(ino, 0, &[1; 8192], false).unwrap();
        fs.unmount().unwrap();
        let faulty = Arc::new(Faulty::new(dev as DeviceRef, i64::MAX));
        let fs = Fs::open(faulty.clone() as DeviceRef, Options { commit: 0, drop_behind: policy, ..Options::default() }).unwrap();
        faulty.allow(0);
        // Where the writer writes back itself, it is told at once.
        let wrote = fs.write_with(ino, 0, &[2; 8192], false, QUIET);
        assert_eq!(wrote.is_err(), policy == DropBehind::Inline, "{policy}");
        if policy != DropBehind::Inline {
            wait_until(&fs, "dirty_bytes", 0);
        }
        assert_eq!(fs.fsync(ino).unwrap_err().errno(), 5, "{policy}");
    }
}
