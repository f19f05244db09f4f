//! Full volumes and failing devices: the error is the right one, and what is on the disk stays whole.

mod common;

use common::counting::pattern;
use common::*;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uxfs::{Acl, AclEntry, AttrName, CheckpointLimit, Error, Fs, IoMode, JournalConfig, Make, Options, SetAttr, SetMode, acl_tag};
use uxfs_device::{Device, DeviceRef, Faulty, Memory, WriteFlags};
use uxfs_mkfs::Features;

const MIB: u64 = 1 << 20;

fn open(dev: &Arc<Memory>) -> Fs {
    Fs::open(dev.clone() as DeviceRef, Options { commit: 0, ..Options::default() }).unwrap()
}

/// Linux could not say whose a file of user 2^32 - 1 is, and a device number has 32 bits.
#[test]
fn what_no_inode_can_hold_is_refused() {
    let img = Image::new("cannot-be", 300 * MIB);
    let fs = img.open();
    let root = fs.root();
    let f = fs.create(root, b"file", file(0o644)).unwrap().ino;
    let no = u32::MAX;
    let invalid = |what: &str, r: Result<(), Error>| assert!(matches!(r, Err(Error::Invalid { .. })), "{what}: {r:?}");
    let drop_ok = |r: Result<uxfs::Stat, Error>| r.map(drop);
    invalid("chown", drop_ok(fs.setattr(f, SetAttr { uid: Some(no), ..SetAttr::default() })));
    invalid("chgrp", drop_ok(fs.setattr(f, SetAttr { gid: Some(no), ..SetAttr::default() })));
    invalid("an owner", drop_ok(fs.create(root, b"a", Make { uid: no, ..file(0o644) })));
    invalid("a link's group", drop_ok(fs.symlink(root, b"a", b"b", 0, no)));
    let mut entries = Acl::of_mode(0o640).entries().to_vec();
    entries.push(AclEntry { tag: acl_tag::MASK, id: 0, perm: 7 });
    entries.push(AclEntry { tag: acl_tag::USER, id: no, perm: 7 });
    invalid("a list's user", fs.set_acl(f, false, Some(&Acl::new(entries).unwrap())));
    for rdev in [(1 << 14, 0), (1, 1 << 18)] {
        invalid("a device", drop_ok(fs.create(root, b"a", Make { mode: 0o020_600, rdev, ..file(0) })));
    }
    let most = fs.create(root, b"most", Make { mode: 0o020_600, rdev: ((1 << 14) - 1, (1 << 18) - 1), uid: no - 1, ..file(0) }).unwrap();
    assert_eq!((most.rdev, most.uid), (((1 << 14) - 1, (1 << 18) - 1), no - 1));
    assert!(matches!(fs.lookup(root, b"a"), Err(Error::NotFound)));
    fs.unmount().unwrap();
    img.repair_is_silent();
}

#[test]
fn a_volume_that_is_filled_with_data_gives_enospc_and_stays_sound() {
    let img = Image::new("full-data", 300 * MIB);
    let fs = img.open();
    let free = fs.statfs().free * 4096;
    let mut written = 0;
    let mut files = 0;
    'fill: for i in 0.. {
        let f = match fs.create(fs.root(), format!("file {i}").as_bytes(), file(0o644)) {
            Ok(f) => f.ino,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("create: {e}"),
        };
        files += 1;
        for k in 0..64u64 {
            match fs.write(f, k * 65536, &[i as u8; 65536], false) {
                Ok(()) => written += 65536,
                Err(Error::NoSpace) => break 'fill,
                Err(e) => panic!("write: {e}"),
            }
        }
    }
    fs.sync().unwrap();
    assert!(free > 190 * MIB && written > free - MIB, "only {written} bytes of {free} fit");
    // On the full volume: removing works, and makes room.
    assert!(fs.shutdown_reason().is_none());
    for i in 0..files / 2 {
        fs.unlink(fs.root(), format!("file {i}").as_bytes()).unwrap();
    }
    let f = fs.create(fs.root(), b"again", file(0o644)).unwrap();
    fs.write(f.ino, 0, &vec![1; 10 << 20], false).unwrap();
    fs.unmount().unwrap();
    img.repair_is_silent();
}

#[test]
fn a_volume_that_is_filled_with_files_gives_enospc_and_stays_sound() {
    for features in [Features::V6_1, Features::NEWEST] {
        fill_with_files(features);
    }
}

fn fill_with_files(features: Features) {
    let dev = in_memory(64 * MIB, 4096, 2, features);
    let fs = open(&dev);
    let mut dirs = vec![fs.root()];
    let mut made = Vec::new();
    'fill: for i in 0.. {
        let d = dirs[i % dirs.len()];
        let name = format!("a rather long name, so that directories fill their blocks: number {i}");
        let new = match (i % 40, i % 7) {
            (0, _) => fs.create(d, name.as_bytes(), dir(0o755)).inspect(|s| dirs.push(s.ino)),
            (_, 0) => fs.symlink(d, name.as_bytes(), &[b't'; 800], 0, 0),
            _ => fs.create(d, name.as_bytes(), file(0o644)),
        };
        match new {
            Ok(s) => {
                made.push((d, name, s.mode & 0o170000 == 0o040000));
                if i % 3 == 0 {
                    match fs.set_attr(s.ino, AttrName { namespace: 0, name: b"big" }, &[b'v'; 3000], SetMode::Any) {
                        Ok(()) | Err(Error::NoSpace) => {}
                        Err(e) => panic!("attribute {i}: {e}"),
                    }
                }
            }
            Err(Error::NoSpace) => break 'fill,
            Err(e) => panic!("create {i}: {e}"),
        }
    }
    assert!(fs.shutdown_reason().is_none() && made.len() > 1000, "{:?} after {}", fs.shutdown_reason(), made.len());
    fs.sync().unwrap();
    for (d, name, is_dir) in made.iter().rev() {
        let r = if *is_dir { fs.rmdir(*d, name.as_bytes()) } else { fs.unlink(*d, name.as_bytes()) };
        r.unwrap_or_else(|e| panic!("remove {name}: {e}"));
    }
    fs.unmount().unwrap();
    let r = uxfs_check::check(&*dev).unwrap();
    assert!(r.is_sound(), "{:?}", r.findings);
}

#[test]
fn many_writers_at_the_edge_of_a_full_volume_do_not_shut_it_down() {
    for features in [Features::V6_1, Features::NEWEST] {
        write_at_the_edge(features);
    }
}

fn write_at_the_edge(features: Features) {
    let dev = in_memory(64 * MIB, 4096, 2, features);
    let fs = open(&dev);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let fs = &fs;
            s.spawn(move || {
                let d = fs.create(fs.root(), format!("d{t}").as_bytes(), dir(0o755)).unwrap().ino;
                for i in 0..600u64 {
                    let name = format!("f{}", i % 60);
                    match fs.create(d, name.as_bytes(), file(0o644)) {
                        Ok(f) => {
                            for k in 0..40 {
                                // Every other block, so that extents are many and trees grow.
                                match fs.write(f.ino, k * 16384 + (i % 3) * 4096, &[t as u8; 8192], false) {
                                    Ok(()) | Err(Error::NoSpace) => {}
                                    Err(e) => panic!("write: {e}"),
                                }
                            }
                        }
                        Err(Error::NoSpace) => {}
                        Err(Error::Exists) => fs.unlink(d, name.as_bytes()).unwrap(),
                        Err(e) => panic!("create: {e}"),
                    }
                    if i % 50 == 0 {
                        let _ = fs.sync();
                    }
                }
            });
        }
    });
    assert!(fs.shutdown_reason().is_none(), "{:?}", fs.shutdown_reason());
    let _ = fs.sync();
    assert!(fs.shutdown_reason().is_none(), "{:?}", fs.shutdown_reason());
    fs.unmount().unwrap();
    let r = uxfs_check::check(&*dev).unwrap();
    assert!(r.is_sound(), "{:?}", r.findings);
}

#[test]
fn a_device_that_fails_shuts_the_volume_down_and_the_next_open_recovers_it() {
    for allowance in [0, 1, 5, 20, 60, 150] {
        let dev = in_memory(64 * MIB, 4096, 2, Features::NEWEST);
        let faulty = Arc::new(Faulty::new(dev.clone() as DeviceRef, i64::MAX));
        let fs = Fs::open(faulty.clone() as DeviceRef, Options { commit: 0, ..Options::default() }).unwrap();
        let f = fs.create(fs.root(), b"kept", file(0o644)).unwrap();
        fs.write(f.ino, 0, &[9; 50_000], false).unwrap();
        fs.fsync(f.ino).unwrap();
        faulty.allow(allowance);
        let mut failed = None;
        for i in 0..20_000 {
            let r = fs.create(fs.root(), format!("n{i}").as_bytes(), file(0o644)).and_then(|f| {
                fs.write(f.ino, 0, &[1; 5000], false)?;
                if i % 20 == 0 { fs.fsync(f.ino) } else { Ok(()) }
            });
            if let Err(e) = r {
                failed = Some(e);
                break;
            }
        }
        let e = failed.unwrap_or_else(|| panic!("{allowance} writes were enough for everything"));
        assert_eq!(e.errno(), 5, "{e}");
        // A failed write of file data may be just that; then the next sync meets the journal.
        let _ = fs.sync();
        let _ = fs.unmount();
        let fs = open(&dev);
        let s = fs.lookup(fs.root(), b"kept").unwrap();
        let mut data = vec![0; 60_000];
        assert_eq!(fs.read(s.ino, 0, &mut data).unwrap(), 50_000);
        assert!(data[..50_000].iter().all(|b| *b == 9));
        fs.unmount().unwrap();
        let r = uxfs_check::check(&*dev).unwrap();
        assert!(r.is_sound(), "after {allowance} writes: {:?}", r.findings);
    }
}

/// Where space runs out in the middle of a write, what fits is written, and said.
#[test]
fn a_write_that_does_not_fit_is_written_as_far_as_it_fits() {
    for mode in IoMode::ALL {
        for append in [false, true] {
            let dev = in_memory(64 * MIB, 4096, 2, Features::NEWEST);
            let fs = open(&dev);
            let f = fs.create(fs.root(), b"f", file(0o644)).unwrap().ino;
            let most = 3 * MIB as usize + 1000;
            // Write-back gives back what it did not need, so a little more may fit than fitted at first.
            let (mut at, mut short) = (0, 0);
            let refused = loop {
                match fs.write_with(f, at, &pattern(f, at, most), append, mode) {
                    Ok(n) => {
                        assert!(n > 0 && (n == most || at + n as u64 > 40 * MIB), "{mode} {n} at {at}");
                        (at, short) = (at + n as u64, short + u32::from(n < most));
                    }
                    Err(e) => break e,
                }
                assert_eq!(fs.stat(f).unwrap().size, at);
            };
            assert!(short > 0 && matches!(refused, Error::NoSpace), "{mode} {short} {refused}");
            assert!(matches!(fs.write(f, at, &[1; 8192], false), Err(Error::NoSpace)));
            fs.fsync(f).unwrap();
            let mut all = vec![0; at as usize];
            fs.read(f, 0, &mut all).unwrap();
            assert!(all == pattern(f, 0, all.len()), "{mode}");
            fs.unmount().unwrap();
            let r = uxfs_check::check(&*dev).unwrap();
            assert!(r.is_sound(), "{:?}", r.findings);
        }
    }
}

#[test]
fn a_truncated_file_shows_zeros_where_it_grows_again() {
    let dev = in_memory(64 * MIB, 4096, 2, Features::NEWEST);
    let fs = open(&dev);
    let f = fs.create(fs.root(), b"f", file(0o644)).unwrap().ino;
    fs.write(f, 0, &[7; 10_000], false).unwrap();
    fs.sync().unwrap();
    for size in [5000, 9000] {
        fs.setattr(f, SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    }
    let mut b = vec![1; 9000];
    assert_eq!(fs.read(f, 0, &mut b).unwrap(), 9000);
    assert!(b[..5000].iter().all(|x| *x == 7) && b[5000..].iter().all(|x| *x == 0));
    fs.unmount().unwrap();
}

/// A sparse image on a host that is full now and then: only the log's area has its blocks.
struct FullHost {
    base: Arc<Memory>,
    log: Range<u64>,
    full: AtomicBool,
}

impl Device for FullHost {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.base.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) && !self.log.contains(&offset) {
            return Err(io::Error::from_raw_os_error(28));
        }
        self.base.write(offset, data, flags)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

impl FullHost {
    fn new(base: &Arc<Memory>) -> Arc<FullHost> {
        let fs = open(base);
        let g = fs.geometry();
        let start = g.fsb_daddr(g.logstart).0 * 512;
        let log = start..start + u64::from(g.log_bbs()) * 512;
        fs.unmount().unwrap();
        Arc::new(FullHost { base: base.clone(), log, full: AtomicBool::new(false) })
    }
}

/// Whoever has a file open is told once that what was written to it is lost, whoever else was told.
#[test]
fn each_open_file_is_told_once_of_what_is_lost() {
    let dev = FullHost::new(&in_memory(64 * MIB, 4096, 2, Features::NEWEST));
    let fs = Arc::new(Fs::open(dev.clone() as DeviceRef, Options { commit: 0, ..Options::default() }).unwrap());
    let f = fs.create(fs.root(), b"f", file(0o644)).unwrap().ino;
    let open = || fs.open_file(f, IoMode::Buffered).unwrap();
    let (a, b) = (open(), open());
    assert_eq!(a.write(0, &[5; 10_000]).unwrap(), 10_000);
    dev.full.store(true, Ordering::SeqCst);
    let lost = |r: uxfs::Result<()>| r.unwrap_err().errno() == 28;
    assert!(lost(a.fsync()));
    // From here on the host has room.
    dev.full.store(false, Ordering::SeqCst);
    a.fsync().unwrap();
    // One that was opened before is told, too, one that is opened when somebody knows is not.
    let c = open();
    assert!(lost(b.fsync()));
    b.fsync().unwrap();
    c.fsync().unwrap();
    // Who calls by number counts as one more.
    assert!(lost(fs.fsync(f)));
    fs.fsync(f).unwrap();
    // What nobody knows of is told to who opens the file then.
    dev.full.store(true, Ordering::SeqCst);
    a.write(0, &[6; 10_000]).unwrap();
    fs.sync().unwrap_err();
    dev.full.store(false, Ordering::SeqCst);
    let d = open();
    assert!(lost(d.fsync()) && lost(a.fsync()) && lost(c.fsync()));
    d.fsync().unwrap();
    drop((a, b, c, d));
    fs.close().unwrap();
}

#[test]
fn an_open_file_lasts_without_a_name() {
    let dev = in_memory(64 * MIB, 4096, 2, Features::NEWEST);
    let fs = Arc::new(open(&dev));
    let f = fs.create(fs.root(), b"f", file(0o644)).unwrap().ino;
    let free = fs.statfs().free;
    let open = fs.open_file(f, IoMode::DropBehind).unwrap();
    open.write(0, &[7; 100_000]).unwrap();
    fs.unlink(fs.root(), b"f").unwrap();
    assert_eq!(open.append(&[8; 10]).unwrap(), 10);
    open.set_mode(IoMode::Direct);
    open.fsync().unwrap();
    let mut data = vec![0; 200_000];
    assert_eq!(open.read(0, &mut data).unwrap(), 100_010);
    assert!(data[..100_000].iter().all(|b| *b == 7) && data[100_000..100_010].iter().all(|b| *b == 8));
    drop(open);
    assert!(matches!(fs.stat(f), Err(Error::Stale)));
    assert!(matches!(fs.open_file(f, IoMode::Buffered), Err(Error::Stale)));
    assert!(matches!(fs.open_file(fs.root(), IoMode::Buffered), Err(Error::IsDirectory)));
    fs.sync().unwrap();
    assert_eq!(fs.statfs().free, free);
    fs.close().unwrap();
}

#[test]
fn a_full_host_fails_data_but_not_the_volume() {
    let base = in_memory(64 * MIB, 4096, 2, Features::NEWEST);
    let dev = FullHost::new(&base);
    let fs = Fs::open(dev.clone() as DeviceRef, Options { commit: 0, ..Options::default() }).unwrap();
    let kept = fs.create(fs.root(), b"kept", file(0o644)).unwrap().ino;
    fs.write(kept, 0, &[4; 10_000], false).unwrap();
    fs.fsync(kept).unwrap();
    dev.full.store(true, Ordering::SeqCst);
    let f = fs.create(fs.root(), b"lost", file(0o644)).unwrap().ino;
    fs.write(f, 0, &[5; 10_000], false).unwrap();
    assert_eq!(fs.fsync(f).unwrap_err().errno(), 28);
    // Nor does half of a value stay.
    let value = AttrName { namespace: 0, name: b"value" };
    assert_eq!(fs.set_attr(f, value, &[6; 10_000], SetMode::Any).unwrap_err().errno(), 28);
    assert!(matches!(fs.get_attr(f, value), Err(Error::NoAttribute)));
    assert!(fs.shutdown_reason().is_none());
    // Metadata waits for room, which somebody makes.
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(400));
            dev.full.store(false, Ordering::SeqCst);
        });
        fs.create(fs.root(), b"more", file(0o644)).unwrap();
        fs.close().unwrap();
    });
    drop(fs);
    let r = uxfs_check::check(&*base).unwrap();
    assert!(r.is_sound(), "{:?}", r.findings);
    let fs = open(&base);
    let mut b = vec![0; 10_000];
    assert_eq!(fs.read(fs.lookup(fs.root(), b"kept").unwrap().ino, 0, &mut b).unwrap(), 10_000);
    assert!(b.iter().all(|x| *x == 4));
    fs.unmount().unwrap();
}

/// Bytes that lie at the begin of a line's numbers: `NAME NUMBER ...`.
fn number(line: &str, behind: &str) -> Option<u64> {
    line.split(behind).nth(1)?.split_whitespace().next()?.parse().ok()
}

/// When a chunk of inodes is freed, its blocks are cancelled in the log. An inode of it that is logged in a later checkpoint is
/// looked for there by recovery, and may find anything: the kernel then refuses the volume.
#[test]
fn inodes_are_not_logged_after_their_chunk_was_freed() {
    let img = Image::theirs("stale", 400 << 20, &["-q", "-b", "size=1024", "-l", "size=64m"]);
    let fs = Fs::open(img.device(), Options { commit: 0, ..Options::default() }).unwrap();
    let d = fs.create(fs.root(), b"d", dir(0o755)).unwrap().ino;
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.sync().unwrap();
            }
        });
        for round in 0..60 {
            let names: Vec<String> = (0..130).map(|i| format!("{round} {i}")).collect();
            for n in &names {
                fs.create(d, n.as_bytes(), file(0o600)).unwrap();
            }
            // However slow the other thread is, some chunks are in the log before they are freed.
            if round % 4 == 0 {
                fs.sync().unwrap();
            }
            names.iter().for_each(|n| fs.unlink(d, n.as_bytes()).unwrap());
        }
        done.store(true, Ordering::Relaxed);
    });
    let g = fs.geometry().clone();
    // What is still in memory is lost, as in a power cut; the log has the last rounds.
    drop(fs);
    let cluster = |ino: u64| {
        let i = uxfs_format::Ino(ino);
        let (agno, agbno) = (g.ino_agno(i), g.agino_agbno(g.ino_agino(i)).0);
        let cb = g.cluster_blocks();
        g.ag_daddr(agno, uxfs_format::AgBlock(agbno / cb * cb)).0
    };
    let (mut cancelled, mut freed, mut late) = (std::collections::HashSet::new(), 0, Vec::new());
    uxfs::describe_log(&img.device().into(), &mut |lsn, items| {
        let texts: Vec<String> = items.iter().map(|i| i.to_string()).collect();
        for t in texts.iter().filter(|t| t.starts_with("ICREATE")) {
            let (ag, at, n) = (number(t, "ag ").unwrap(), number(t, "agbno ").unwrap(), 64 >> g.inopblog);
            for b in at..at + n {
                cancelled.remove(&g.ag_daddr(uxfs_format::AgNumber(ag as u32), uxfs_format::AgBlock(b as u32)).0);
            }
        }
        let inodes = texts.iter().filter(|t| t.starts_with("INODE")).filter_map(|t| number(t, "INODE "));
        late.extend(inodes.filter(|i| cancelled.contains(&cluster(*i))).map(|i| (lsn, i)));
        let gone = texts.iter().filter(|t| t.starts_with("BUF") && t.contains("flags 0x2,")).filter_map(|t| number(t, "daddr "));
        for at in gone {
            freed += 1;
            cancelled.insert(at);
        }
    })
    .unwrap();
    assert!(freed > 0, "no chunk was freed in what the log has");
    assert!(
        late.is_empty(),
        "of {freed} clusters that were freed, {} have inodes logged later: {:?}",
        late.len(),
        &late[..late.len().min(3)]
    );
    drop(img.kernel_mount());
    img.repair_is_silent();
}

/// Many threads whose transactions roll, on a log far larger than the memory that checkpoints may pin: they pin no more, and
/// all of them go on.
#[test]
fn checkpoints_pin_no_more_than_their_budget() {
    let peak = |limit, memory: usize| {
        let dev: Arc<dyn Device> = Arc::new(Memory::new(4 << 30));
        let o = uxfs_mkfs::Options { log_size: Some(512 << 20), ..uxfs_mkfs::Options::new(4 << 30, [1; 16]) };
        uxfs_mkfs::format(&*dev, &o).unwrap();
        let journal = JournalConfig { limit, ..JournalConfig::default() };
        let fs = Fs::open(dev.clone(), Options { commit: 0, memory, journal, ..Options::default() }).unwrap();
        let start = std::time::Instant::now();
        std::thread::scope(|s| {
            for t in 0..16 {
                let fs = &fs;
                s.spawn(move || {
                    let d = fs.create(fs.root(), format!("d{t}").as_bytes(), dir(0o755)).unwrap().ino;
                    for i in 0..1500 {
                        let name = format!("a name that is not short {i}");
                        let f = fs.create(d, name.as_bytes(), file(0o644)).unwrap().ino;
                        if i % 5 == 0 {
                            fs.set_attr(f, AttrName { namespace: 0, name: b"a" }, &[7; 3000], SetMode::Any).unwrap();
                        }
                        if i % 3 == 0 {
                            fs.unlink(d, name.as_bytes()).unwrap();
                        }
                    }
                });
            }
        });
        assert!(start.elapsed().as_secs() < 120, "{limit}: {:?}", start.elapsed());
        let stats: std::collections::HashMap<_, _> = fs.stats().into_iter().collect();
        fs.unmount().unwrap();
        let r = uxfs_check::check(&*dev).unwrap();
        assert!(r.is_sound(), "{:?}", r.findings);
        (stats["pinned_peak"], stats["sleep_budget"], stats["checkpoints"])
    };
    let (small, waited, _) = peak(CheckpointLimit::Budget, 16 << 20);
    assert!(small <= 4 << 20 && waited > 0, "{small} bytes pinned, {waited} waits");
    let (large, ..) = peak(CheckpointLimit::LogFraction, 64 << 20);
    assert!(large > 4 * small, "without a bound only {large} bytes were pinned");
}

/// A change of one inode of each cluster keeps the inodes until they are home, and not the clusters, which are far larger.
#[test]
fn changed_inodes_do_not_keep_their_clusters_in_memory() {
    let dev: DeviceRef = Arc::new(Memory::new(1 << 30));
    uxfs_mkfs::format(&*dev, &uxfs_mkfs::Options::new(1 << 30, [3; 16])).unwrap();
    let open = || Fs::open(dev.clone(), Options { commit: 0, memory: 16 << 20, ..Options::default() }).unwrap();
    let fs = open();
    for i in 0..60_000 {
        fs.create(fs.root(), format!("file {i}").as_bytes(), file(0o644)).unwrap();
    }
    fs.unmount().unwrap();
    let fs = open();
    for i in (0..60_000).step_by(32) {
        let f = fs.lookup(fs.root(), format!("file {i}").as_bytes()).unwrap().ino;
        fs.setattr(f, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    }
    let stats: std::collections::HashMap<_, _> = fs.stats().into_iter().collect();
    assert!(stats["buffer_bytes"] < 8 << 20, "{} bytes of buffers; their share is 4 MiB", stats["buffer_bytes"]);
    // They are read again to be written home.
    fs.unmount().unwrap();
    let fs = open();
    for i in (0..60_000).step_by(8) {
        let want = if i % 32 == 0 { 0o600 } else { 0o644 };
        assert_eq!(fs.lookup(fs.root(), format!("file {i}").as_bytes()).unwrap().mode & 0o777, want, "file {i}");
    }
    fs.unmount().unwrap();
    let r = uxfs_check::check(&*dev).unwrap();
    assert!(r.is_sound(), "{:?}", r.findings);
}

/// The device fails while a checkpoint of many records is written: nobody waits for what will never be written.
#[test]
fn a_device_that_fails_in_a_long_checkpoint_stops_everybody() {
    for allowed in [0, 1, 3, 10, 40] {
        let base: DeviceRef = Arc::new(Memory::new(300 * MIB));
        uxfs_mkfs::format(&*base, &uxfs_mkfs::Options::new(300 * MIB, [2; 16])).unwrap();
        let dev = Arc::new(Faulty::new(base, i64::MAX));
        let fs = Fs::open(dev.clone(), Options { commit: 0, ..Options::default() }).unwrap();
        for i in 0..10_000 {
            fs.create(fs.root(), format!("file {i}").as_bytes(), file(0o644)).unwrap();
        }
        let (tx, rx) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            dev.allow(allowed);
            let refused = fs.sync().is_err();
            drop(fs);
            tx.send(refused).unwrap();
        });
        assert_eq!(rx.recv_timeout(Duration::from_secs(20)), Ok(true), "{allowed} writes passed");
    }
}
