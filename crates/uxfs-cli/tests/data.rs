//! File data through a mount, in each cache mode.

#[expect(dead_code, reason = "shared with tests that use more of it")]
mod common;

use common::*;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::time::{Duration, Instant};
use uxfs_sync::Chance;

#[test]
fn files_behave_on_a_mount_in_each_cache_mode() {
    let _offered = rings();
    for mode in ["none", "writethrough", "writeback", "none,io_uring", "writethrough,io_uring", "writeback,io_uring"] {
        files_behave(mode);
    }
}

fn files_behave(mode: &str) {
    let p = Place::new(&format!("behave-{mode}"));
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=400m", "v.img"]);
    let s = p.serve("v.img", &format!("cache={mode}"));
    let open = |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(s.at.join(name)).unwrap();
    // An unlinked open file goes on.
    let mut f = open("unlinked");
    f.write_all(b"still here").unwrap();
    fs::remove_file(s.at.join("unlinked")).unwrap();
    f.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    f.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    drop(f);
    // Holes are found.
    let f = open("holes");
    f.write_all_at(&[1; 4096], 1 << 20).unwrap();
    f.set_len(4 << 20).unwrap();
    let seek =
        |from: u64, hole: bool| must("xfs_io", &["-r", "-c", &format!("seek -{} {from}", if hole { "h" } else { "d" }), &s.path("holes")]);
    // What the file holds is no hole, also while it is open and only the kernel knows of it.
    let whence = |w| rustix::fs::seek(&f, w);
    assert!(whence(rustix::fs::SeekFrom::Data(0)).is_ok_and(|at| at <= 1 << 20), "{mode}");
    assert!(whence(rustix::fs::SeekFrom::Hole(1 << 20)).is_ok_and(|at| at >= (1 << 20) + 4096), "{mode}");
    f.write_all_at(&[1; 10], 5 << 20).unwrap();
    assert!(whence(rustix::fs::SeekFrom::Data(5 << 20)).is_ok_and(|at| at == 5 << 20), "{mode}");
    drop(f);
    if mode.starts_with("writeback") {
        // There everything counts as data.
        assert!(seek(0, false).contains("DATA\t0") && seek(1 << 20, true).contains(&((5 << 20) + 10).to_string()));
    } else {
        assert!(seek(0, false).contains("1048576") && seek(1 << 20, true).contains(&((1 << 20) + 4096).to_string()));
    }
    // O_DIRECT, and O_APPEND by several at once.
    must("dd", &["if=/dev/zero", &format!("of={}", s.path("direct")), "bs=64k", "count=8", "oflag=direct", "status=none"]);
    std::thread::scope(|t| {
        for i in 0..4u8 {
            let at = &s.at;
            t.spawn(move || {
                let mut f = OpenOptions::new().append(true).create(true).open(at.join("appended")).unwrap();
                (0..200).for_each(|_| f.write_all(&[b'a' + i; 10]).unwrap());
            });
        }
    });
    let all = fs::read(s.at.join("appended")).unwrap();
    assert!(all.len() == 8000 && all.chunks(10).all(|c| c.iter().all(|b| *b == c[0])));
    // A mapped file is written through the map.
    let map = ["-f", "-c", "truncate 8k", "-c", "mmap -rw 0 8k", "-c", "mwrite -S 0x61 0 8k", "-c", "msync -s", &s.path("mapped")];
    if maps_files(mode) {
        must("xfs_io", &map);
    } else {
        assert!(common::text(&run("xfs_io", &map)).contains("No such device"));
        fs::write(s.at.join("mapped"), [0x61; 8192]).unwrap();
    }
    let size = must("stat", &["-f", "-c", "%b %S %l", s.at.to_str().unwrap()]);
    assert!(size.trim().ends_with("4096 255"), "{size}");
    assert!(p.uxfs(&["sync", s.at.to_str().unwrap()]).is_empty());
    s.unmount();
    p.is_sound("v.img");
    let k = p.kernel("v.img", "loop,ro");
    assert_eq!(fs::read(k.at.join("mapped")).unwrap(), vec![b'a'; 8192]);
    assert_eq!(fs::read(k.at.join("appended")).unwrap(), all);
    assert!(!k.at.join("unlinked").exists());
}

/// Writes, maps, truncates, punches and reads beside a plain file in memory-backed storage; then the kernel reads what is there.
#[test]
fn data_is_right_in_each_cache_mode() {
    const MOST: u64 = 1 << 20;
    let _offered = rings();
    let (own, rings) =
        (["none", "none,iomode=dontcache", "none,iomode=direct"], ["none,io_uring", "writethrough,io_uring", "writeback,io_uring"]);
    let modes = ["writethrough", "writeback"].into_iter().chain(own).chain(rings);
    for (seed, mode) in modes.enumerate() {
        let p = Place::new(&format!("data-{seed}"));
        p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=400m", "v.img"]);
        let s = p.serve("v.img", &format!("cache={mode},memory=16m"));
        let mut model: Vec<u8> = Vec::new();
        let c = Chance::seeded(seed as u64);
        let f = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(s.at.join("f")).unwrap();
        for n in 0..1500 {
            let (at, len) = (c.below(MOST), 1 + c.below(if n % 5 == 0 { 200_000 } else { 9000 }));
            let end = (at + len).min(MOST);
            let fill = vec![n as u8; (end - at) as usize];
            let grown = |m: &mut Vec<u8>| m.resize(m.len().max(end as usize), 0);
            match c.below(10) {
                0 => {
                    f.set_len(at).unwrap();
                    model.resize(at as usize, 0);
                }
                1 => {
                    use rustix::fs::FallocateFlags as F;
                    rustix::fs::fallocate(&f, F::PUNCH_HOLE | F::KEEP_SIZE, at, len).unwrap();
                    let (a, b) = (model.len().min(at as usize), model.len().min((at + len) as usize));
                    model[a..b].fill(0);
                }
                // Through a map, within the file.
                2 if end <= model.len() as u64 && maps_files(mode) => {
                    let what = format!("mmap -rw 0 {}", model.len());
                    let how = format!("mwrite -S {} {at} {}", n as u8, end - at);
                    must("xfs_io", &["-c", &what, "-c", &how, "-c", "munmap", &s.path("f")]);
                    model[at as usize..end as usize].copy_from_slice(&fill);
                }
                3 if n % 7 == 0 => f.sync_all().unwrap(),
                4..7 => {
                    let mut buf = vec![1; (end - at) as usize];
                    let got = f.read_at(&mut buf, at).unwrap();
                    let good = model.get(at as usize..(at as usize + got)).unwrap_or_default();
                    assert!(buf[..got] == *good && (at as usize + got == model.len().max(at as usize) || got == buf.len()), "{mode} {n}");
                }
                _ => {
                    f.write_all_at(&fill, at).unwrap();
                    grown(&mut model);
                    model[at as usize..end as usize].copy_from_slice(&fill);
                }
            }
            assert_eq!(f.metadata().unwrap().len(), model.len() as u64);
        }
        drop(f);
        let device = fs::metadata(&s.at).unwrap().dev();
        let ahead = format!("/sys/class/bdi/{}:{}/read_ahead_kb", rustix::fs::major(device), rustix::fs::minor(device));
        assert_eq!(fs::read_to_string(ahead).unwrap(), "1024\n");
        s.unmount();
        p.is_sound("v.img");
        let k = p.kernel("v.img", "loop,ro");
        assert!(fs::read(k.at.join("f")).unwrap() == model, "{mode}");
    }
}

/// Opens a file, says how it is to be written, writes it, and sees that it is still so.
fn choose_mode(path: &str, mode: u32, len: usize) -> std::process::Output {
    let script = "my $f; open $f, '+<', $ARGV[0] or open $f, '+>', $ARGV[0] or die $!; my $n = pack 'L', $ARGV[1];
        ioctl $f, 0x40047541, $n or die $!; syswrite $f, chr(7) x $ARGV[2]; ioctl $f, 0x80047540, $n or die $!;
        die 'another mode' if unpack('L', $n) != $ARGV[1]";
    Command::new("perl").args(["-e", script, path, &mode.to_string(), &len.to_string()]).output().unwrap()
}

/// Sixteen at once write and then read pieces of all sizes, a gibibyte in all: the process takes little more than the memory that it may.
#[test]
fn a_mount_takes_no_more_memory_than_it_may() {
    const MIB: u64 = 1 << 20;
    for cache in ["none", "writethrough", "writeback"] {
        let p = Place::new(&format!("memory-{cache}"));
        p.image("v.img", 2 << 30);
        p.uxfs(&["mkfs", "-q", "v.img"]);
        let s = p.serve("v.img", &format!("cache={cache},memory=32M"));
        std::thread::scope(|scope| {
            for i in 0..16 {
                let path = s.at.join(format!("f{i}"));
                scope.spawn(move || {
                    let f = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
                    let (c, mut buf) = (Chance::seeded(i), vec![i as u8; MIB as usize]);
                    for reading in [false, true] {
                        let mut at = 0;
                        while at < 64 * MIB {
                            let n = 4096 * (1 + c.below(256)) as usize;
                            match reading {
                                false => f.write_all_at(&buf[..n], at).unwrap(),
                                true => _ = f.read_at(&mut buf[..n], at).unwrap(),
                            }
                            at += n as u64;
                        }
                    }
                });
            }
        });
        let status = fs::read_to_string(format!("/proc/{}/status", s.child.id())).unwrap();
        let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        println!("{cache}: {} MiB", kib >> 10);
        // Beside the budget each request has a buffer, and the allocator keeps some for each thread.
        assert!(kib < 288 << 10, "{cache}: {} MiB", kib >> 10);
        s.unmount();
    }
}

/// The mount, a file and who opens it say how it is read and written, each more than the one before.
#[test]
fn what_is_not_to_be_cached_is_dropped() {
    use std::os::unix::fs::OpenOptionsExt;
    const LEN: usize = 8 << 20;
    let p = Place::new("iomode");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=400m", "v.img"]);
    let o = p.try_uxfs(&["mount", "-o", "cache=writeback,iomode=dontcache", "v.img", p.dir.to_str().unwrap()]);
    assert!(!o.status.success() && text(&o).contains("iomode=dontcache needs cache=none"), "{}", text(&o));
    let o = p.try_uxfs(&["mount", "-o", "iomode=never", "v.img", p.dir.to_str().unwrap()]);
    assert!(!o.status.success() && text(&o).contains("none of buffered, dontcache, direct"), "{}", text(&o));
    for options in ["cache=none,commit=0", "iomode=dontcache,commit=0"] {
        let s = p.serve("v.img", options);
        let at = s.at.to_str().unwrap().to_string();
        let stat = |name: &str| -> u64 {
            let all: serde_json::Value = serde_json::from_str(&p.uxfs(&["stats", "--json", &at])).unwrap();
            all["stats"][name].as_u64().unwrap()
        };
        let write = |name: &str, flags: i32| {
            let before = (stat("writeback_dropbehind_bytes"), stat("writeback_sync_bytes"), stat("file_bytes"));
            let path = s.at.join(name);
            let mut f = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path).unwrap();
            f.write_all(&vec![7; LEN]).unwrap();
            // What is written so is written soon.
            let deadline = Instant::now() + Duration::from_secs(20);
            while stat("dirty_behind_bytes") > 0 {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(5));
            }
            let kept = stat("file_bytes") as i64 - before.2 as i64;
            (stat("writeback_dropbehind_bytes") - before.0, stat("writeback_sync_bytes") - before.1, kept)
        };
        let (behind, synced, kept) = write("plain", 0);
        let quiet = options.starts_with("iomode");
        // A block that two requests share may be written twice.
        let all = LEN as u64..LEN as u64 + (64 << 10);
        assert!(if quiet { all.contains(&behind) } else { behind == 0 } && synced == 0, "{behind} {synced}");
        assert!(if quiet { kept < 1 << 20 } else { kept >= LEN as i64 }, "{kept}");
        // A file that says so itself, since before it was opened.
        File::create(s.at.join("says")).unwrap();
        let set = |value: &str| Command::new("setfattr").args(["-n", "user.uxfs.iomode", "-v", value, &s.path("says")]).output().unwrap();
        assert!(!set("sometimes").status.success());
        assert!(set(if quiet { "buffered" } else { "dontcache" }).status.success());
        let (behind, _, kept) = write("says", 0);
        assert!(if quiet { behind == 0 } else { all.contains(&behind) }, "{behind}");
        assert!(if quiet { kept >= LEN as i64 } else { kept < 1 << 20 }, "{kept}");
        // Whoever opens it past the cache.
        let (behind, synced, _) = write("direct", libc::O_DIRECT);
        assert!(behind == 0 && synced > 0, "{behind} {synced}");
        // Whoever has it open, for this opening.
        let before = stat("writeback_dropbehind_bytes");
        let chooses = choose_mode(&s.path("chooses"), u32::from(!quiet), LEN);
        assert!(chooses.status.success(), "{}", text(&chooses));
        fs::metadata(s.at.join("chooses")).unwrap();
        let behind = stat("writeback_dropbehind_bytes") - before + stat("dirty_behind_bytes");
        assert!(if quiet { behind == 0 } else { behind > 0 }, "{behind}");
        assert!(text(&choose_mode(&s.path("chooses"), 3, LEN)).contains("Invalid argument"));
        for name in ["plain", "says", "direct", "chooses"] {
            assert!(fs::read(s.at.join(name)).unwrap() == vec![7; LEN]);
            fs::remove_file(s.at.join(name)).unwrap();
        }
        s.unmount();
    }
    p.is_sound("v.img");
}

/// Writes of half a MiB beside readers, on a mount without the kernel's cache. Returns how many readers saw half a write.
fn torn_requests(lock: &str) -> u64 {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    const LEN: usize = 512 << 10;
    // Over a border of two folios: each of them is written under a lock of its own.
    const AT: u64 = (2 << 20) - (LEN as u64) / 2;
    let p = Place::new(&format!("atomic-{lock}"));
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=400m", "v.img"]);
    let s = p.serve("v.img", &format!("cache=none,threads=4,io_lock={lock}"));
    let path = s.at.join("f");
    fs::write(&path, vec![0; AT as usize + LEN]).unwrap();
    let (stop, torn) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|t| {
        for _ in 0..2 {
            t.spawn(|| {
                let f = File::open(&path).unwrap();
                let mut buf = vec![0; LEN];
                while !stop.load(Relaxed) {
                    f.read_exact_at(&mut buf, AT).unwrap();
                    torn.fetch_add(u64::from(buf.iter().any(|b| *b != buf[0])), Relaxed);
                }
            });
        }
        let f = OpenOptions::new().write(true).open(&path).unwrap();
        (0..2000u32).for_each(|n| f.write_all_at(&vec![n as u8; LEN], AT).unwrap());
        stop.store(true, Relaxed);
    });
    s.unmount();
    torn.into_inner()
}

#[test]
fn requests_are_atomic_to_each_other_without_the_kernel_s_cache() {
    assert_eq!(torn_requests("range"), 0);
    assert_eq!(torn_requests("shared"), 0);
    // The checker can fail.
    assert!((0..10).any(|_| torn_requests("exclusive") > 0));
}
