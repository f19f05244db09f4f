//! Hostile bytes: structures of a volume in all its forms are changed at random, their checksums made good, and then
//! everything is tried on it. Whatever comes back is data or an error; nothing panics, hangs or grows without bound.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use uxfs::{AttrName, Fs, Make, Options, Rename, SetAttr, SetMode};
use uxfs_device::{Device, DeviceRef, Memory};
use uxfs_format::bytes::{get64, put16, put32, put64};
use uxfs_format::log::{BB, Record, record_crc};
use uxfs_format::{DiskAddr, Geometry, Kind, crc, inode};
use uxfs_mkfs::Features;
use uxfs_sync::{Chance, FixedClock};

const SIZE: u64 = 48 << 20;
const SEEDS: u64 = 700;
/// Damaged volumes that xfs_repair judges, too.
const AGAINST_REPAIR: u64 = 130;
/// One volume is opened, walked, written to and checked within this.
const LONGEST: Duration = Duration::from_secs(20);
/// Address space of the whole test, with all that runs in it.
const MOST_MEMORY: u64 = 4 << 30;

fn options(read_only: bool) -> Options {
    Options { read_only, commit: 0, clock: Box::new(FixedClock(1_700_000_000)), seed: Some(1), memory: 32 << 20, ..Options::default() }
}

fn make(mode: u16) -> Make {
    Make { mode, uid: 1, gid: 2, rdev: (3, 4), umask: 0 }
}

/// A volume with every form; dirty if it was not unmounted.
fn volume(clean: bool, features: Features) -> Memory {
    let dev = Arc::new(Memory::new(SIZE));
    let o = uxfs_mkfs::Options { agcount: Some(2), features, ..uxfs_mkfs::Options::new(SIZE, [9; 16]) };
    uxfs_mkfs::format(&*dev, &o).unwrap();
    let fs = Fs::open(dev.clone() as DeviceRef, options(false)).unwrap();
    let root = fs.root();
    for (name, n) in [("short", 3), ("block", 40), ("leaf", 300), ("node", 2500)] {
        let d = fs.create(root, name.as_bytes(), make(0o040_755)).unwrap().ino;
        for i in 0..n {
            fs.create(d, format!("file with a name {i}").as_bytes(), make(0o100_644)).unwrap();
        }
    }
    let f = fs.create(root, b"extents", make(0o100_644)).unwrap().ino;
    for i in 0..600u64 {
        fs.write(f, i * 8192, &[i as u8; 4096], false).unwrap();
    }
    fs.sync().unwrap();
    fs.symlink(root, b"link", b"short", 0, 0).unwrap();
    fs.symlink(root, b"long link", &[b'l'; 900], 0, 0).unwrap();
    fs.create(root, b"device", make(0o020_600)).unwrap();
    for (name, count, size) in
        [("few attributes", 2, 20), ("a leaf of attributes", 30, 60), ("a tree of attributes", 400, 40), ("large attributes", 3, 9000)]
    {
        let f = fs.create(root, name.as_bytes(), make(0o100_644)).unwrap().ino;
        for i in 0..count {
            let key = format!("attribute {i}");
            fs.set_attr(f, AttrName { namespace: 0, name: key.as_bytes() }, &vec![b'v'; size], SetMode::Any).unwrap();
        }
    }
    fs.sync().unwrap();
    if clean {
        fs.unmount().unwrap();
    } else {
        fs.create(root, b"the last", make(0o100_644)).unwrap();
        fs.sync().unwrap();
        drop(fs);
    }
    Arc::into_inner(dev).unwrap_or_else(|| panic!("the device is still held"))
}

/// Places of metadata: kind, address, bytes.
fn structures(dev: &Memory, g: &Geometry) -> Vec<(Kind, u64, usize)> {
    let mut out = Vec::new();
    let log = g.fsb_daddr(g.logstart).0 * 512..(g.fsb_daddr(g.logstart).0 + u64::from(g.log_bbs())) * 512;
    let mut b = vec![0; 512];
    for at in (0..SIZE).step_by(512) {
        if log.contains(&at) {
            continue;
        }
        dev.read(at, &mut b).unwrap();
        let Some(k) = Kind::sniff(&b) else { continue };
        let size = match k {
            Kind::Superblock | Kind::Agf | Kind::Agi | Kind::Agfl => 512,
            Kind::Inode => g.inodesize as usize,
            _ if at % 4096 == 0 => 4096,
            _ => continue,
        };
        out.push((k, at, size));
    }
    out
}

/// Places of structures by their kinds.
type Places = BTreeMap<Kind, Vec<(Kind, u64, usize)>>;

/// The geometry, and where the structures lie.
fn by_kind(dev: &Memory) -> (Geometry, Places) {
    let mut head = vec![0; 512];
    dev.read(0, &mut head).unwrap();
    let (g, _) = Geometry::parse(&head).unwrap();
    let mut found = Places::new();
    structures(dev, &g).into_iter().for_each(|p| found.entry(p.0).or_default().push(p));
    (g, found)
}

/// Changes a few fields of a structure and makes its checksum good again.
fn damage(dev: &Memory, (kind, at, size): (Kind, u64, usize), c: &Chance) {
    let mut b = vec![0; size];
    dev.read(at, &mut b).unwrap();
    for _ in 0..1 + c.below(4) {
        // Mostly in the first bytes, where the fields are.
        let o = if c.below(2) == 0 { c.below(size.min(192) as u64) } else { c.below(size as u64) } as usize;
        let random =
            [0, u64::MAX, 1, c.next_u64(), 1 << 31, get64(&b, o).wrapping_add(1), get64(&b, o).wrapping_sub(1)][c.below(7) as usize];
        match c.below(4) {
            0 => b[o] = random as u8,
            1 => put16(&mut b, o & !1, random as u16),
            2 => put32(&mut b, o & !3, random as u32),
            _ => put64(&mut b, o & !7, random),
        }
    }
    if kind == Kind::Inode {
        crc::stamp(&mut b, inode::INODE_CRC)
    } else {
        kind.stamp(&mut b, None)
    }
    dev.put(at, &b).unwrap();
}

/// Changes a record of the log; with a good checksum in two cases out of three.
fn damage_log(dev: &Memory, g: &Geometry, c: &Chance) -> bool {
    let start = g.fsb_daddr(g.logstart).0 * 512;
    let mut heads = Vec::new();
    let mut b = vec![0; BB];
    for i in 0..u64::from(g.log_bbs()) {
        dev.read(start + i * BB as u64, &mut b).unwrap();
        if let Some(r) = Record::parse(&b)
            && r.check(&g.uuid, g.log_bbs()).is_ok()
        {
            heads.push((i, r));
        }
    }
    if heads.is_empty() {
        return false;
    }
    let (i, r) = &heads[c.below(heads.len() as u64) as usize];
    let hb = r.header_blocks() as usize;
    let mut all = vec![0; hb * BB + r.len as usize];
    if dev.read(start + i * BB as u64, &mut all).is_err() {
        return false;
    }
    for _ in 0..1 + c.below(6) {
        let o = if c.below(3) == 0 { c.below(BB as u64) } else { c.below(all.len() as u64) } as usize;
        all[o] = [0, 0xff, c.next_u64() as u8, all[o].wrapping_add(1)][c.below(4) as usize];
    }
    if c.below(3) > 0 {
        let (header, payload) = all.split_at(hb * BB);
        let sum = record_crc(header, hb * BB, payload);
        all[32..36].copy_from_slice(&sum.to_le_bytes());
    }
    dev.put(start + i * BB as u64, &all).unwrap();
    true
}

/// Looks at everything.
fn walk(fs: &Fs) {
    let mut todo = vec![(fs.root(), 0)];
    let mut seen = std::collections::HashSet::new();
    let mut buf = vec![0; 65536];
    while let Some((ino, depth)) = todo.pop() {
        if !seen.insert(ino) || depth > 20 || seen.len() > 10_000 {
            continue;
        }
        let Ok(s) = fs.stat(ino) else { continue };
        let _ = fs.readlink(ino);
        for at in [0, s.size / 2, s.size.saturating_sub(5000)] {
            let _ = fs.read(ino, at, &mut buf);
        }
        let _ = fs.seek(ino, 0, uxfs::Seek::Hole);
        if let Ok(list) = fs.list_attrs(ino) {
            for (namespace, name, _) in list.iter().take(500) {
                let _ = fs.get_attr(ino, AttrName { namespace: *namespace, name });
            }
        }
        let mut names = Vec::new();
        let _ = fs.readdir(ino, 0, &mut |e| {
            names.push((e.name, e.ino.0));
            names.len() < 5000
        });
        for (name, child) in names {
            let _ = fs.lookup(ino, &name);
            todo.push((child, depth + 1));
        }
    }
}

/// Changes a little of everything.
fn work(fs: &Fs) {
    let root = fs.root();
    let _ = fs.create(root, b"new file", make(0o100_644)).map(|f| {
        let _ = fs.write(f.ino, 100, &[7; 20_000], false);
        let _ = fs.fsync(f.ino);
    });
    for d in ["short", "block", "leaf", "node"] {
        let Ok(dir) = fs.lookup(root, d.as_bytes()) else { continue };
        for i in 0..8 {
            let _ = fs.create(dir.ino, format!("another {i}").as_bytes(), make(0o100_644));
            let _ = fs.unlink(dir.ino, format!("file with a name {i}").as_bytes());
        }
        let _ = fs.rename(dir.ino, b"another 1", root, format!("moved from {d}").as_bytes(), Rename::Replace);
        let _ = fs.create(dir.ino, b"a directory", make(0o040_755));
    }
    if let Ok(f) = fs.lookup(root, b"extents") {
        let _ = fs.write(f.ino, 50_000, &[1; 30_000], false);
        let _ = fs.setattr(f.ino, SetAttr { size: Some(1_000_000), mode: Some(0o600), ..SetAttr::default() });
    }
    for name in ["few attributes", "a leaf of attributes", "a tree of attributes", "large attributes"] {
        let Ok(f) = fs.lookup(root, name.as_bytes()) else { continue };
        let _ = fs.set_attr(f.ino, AttrName { namespace: 0, name: b"new" }, &[b'n'; 300], SetMode::Any);
        let _ = fs.remove_attr(f.ino, AttrName { namespace: 0, name: b"attribute 1" });
        let _ = fs.unlink(root, name.as_bytes());
    }
    let _ = fs.sync();
}

/// What became of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fate {
    Refused,
    Opened,
    ShutDown,
}

fn try_all(image: Memory) -> (Fate, bool) {
    let dev: DeviceRef = Arc::new(image);
    if let Ok(fs) = Fs::open(dev.clone(), options(true)) {
        walk(&fs);
        let _ = fs.unmount();
    }
    let fate = match Fs::open(dev.clone(), options(false)) {
        Ok(fs) => {
            work(&fs);
            let down = fs.shutdown_reason().is_some();
            let _ = fs.unmount();
            if down { Fate::ShutDown } else { Fate::Opened }
        }
        Err(_) => Fate::Refused,
    };
    (fate, uxfs_check::check(&*dev).is_ok_and(|r| !r.is_sound()))
}

#[test]
fn damaged_structures_give_data_or_an_error() {
    rustix::process::setrlimit(rustix::process::Resource::As, rustix::process::Rlimit { current: Some(MOST_MEMORY), maximum: None })
        .unwrap();
    for (features, seeds) in [(Features::V6_1, 0..SEEDS), (Features::NEWEST, SEEDS..2 * SEEDS)] {
        damage_and_try(features, seeds);
    }
}

fn damage_and_try(features: Features, seeds: Range<u64>) {
    let (clean, dirty) = (volume(true, features), volume(false, features));
    let (g, by_kind) = by_kind(&clean);
    let kinds: Vec<Kind> = by_kind.keys().copied().collect();
    // Sound volumes pass, so what is found below is the damage.
    assert!(uxfs_check::check(&clean.fork()).unwrap().is_sound());
    let (mut reached, mut fates, mut noticed) = (BTreeMap::<String, u32>::new(), BTreeMap::<Fate, u32>::new(), 0);
    let mut bad = Vec::new();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let c = Chance::seeded(seed);
        let in_log = seed % 8 == 0;
        let image = if in_log || seed % 8 == 1 { dirty.fork() } else { clean.fork() };
        let what = if in_log {
            assert!(damage_log(&image, &g, &c), "there is no record to damage");
            "log record".to_string()
        } else {
            let kind = kinds[(seed % kinds.len() as u64) as usize];
            let of_kind = &by_kind[&kind];
            damage(&image, of_kind[c.below(of_kind.len() as u64) as usize], &c);
            kind.name().to_string()
        };
        *reached.entry(what.clone()).or_default() += 1;
        let (tx, rx) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = tx.send(catch_unwind(AssertUnwindSafe(|| try_all(image))));
        });
        match rx.recv_timeout(LONGEST) {
            Ok(Ok((fate, found))) => {
                *fates.entry(fate).or_default() += 1;
                noticed += u32::from(found);
            }
            Ok(Err(_)) => bad.push(format!("seed {seed} ({what}): a panic")),
            Err(_) => bad.push(format!("seed {seed} ({what}): not done after {LONGEST:?}")),
        }
    }
    println!("{count} volumes: {fates:?}, {noticed} seen to be damaged afterwards; structures: {reached:?}");
    assert!(bad.is_empty(), "{bad:#?}");
    let mut kinds = vec!["superblock", "AGF", "AGI", "inode cluster", "bnobt", "cntbt", "inobt", "bmbt", "attribute leaf", "log record"];
    if features == Features::NEWEST {
        kinds.push("rmapbt");
    }
    for k in kinds {
        assert!(reached.get(k).is_some_and(|n| *n > 10), "{k} was reached too seldom: {reached:?}");
    }
    assert!(u64::from(noticed) > count / 10);
}

#[test]
fn the_fields_that_are_changed_lie_in_structures() {
    let v = volume(true, Features::NEWEST);
    let mut head = vec![0; 512];
    v.read(0, &mut head).unwrap();
    let (g, _) = Geometry::parse(&head).unwrap();
    for (k, at, size) in structures(&v, &g) {
        let mut b = vec![0; size];
        v.read(at, &mut b).unwrap();
        if k != Kind::Inode {
            assert!(k.verify(&b, DiskAddr(at / 512), &g, true).is_ok(), "{k:?} at {at}");
        }
    }
}

/// What xfs_repair -n finds in a volume, beside its phases.
fn repair_says(path: &std::path::Path) -> Vec<String> {
    let out = std::process::Command::new("xfs_repair").arg("-n").arg(path).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output();
    let out = out.unwrap_or_else(|e| panic!("xfs_repair: {e}; install it with: apt-get install xfsprogs"));
    let usual = [
        "Phase ",
        "        - ",
        "No modify flag set",
        "Cannot get host",
        "Repair may fail",
        "the image and the host",
        "Inode allocation btrees",
    ];
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    text.lines().filter(|l| !l.is_empty() && !usual.iter().any(|u| l.starts_with(u))).map(str::to_string).collect()
}

#[test]
fn the_checker_finds_whatever_xfs_repair_finds() {
    against_repair(Features::V6_1, 0..AGAINST_REPAIR);
    // The newest that the xfs_repair of Debian 12 knows.
    against_repair(Features::profile("lts_6.6").unwrap(), AGAINST_REPAIR..2 * AGAINST_REPAIR);
}

fn against_repair(features: Features, seeds: Range<u64>) {
    let clean = volume(true, features);
    let (_, by_kind) = by_kind(&clean);
    let path = std::env::temp_dir().join(format!("uxfs-hostile-{}.img", std::process::id()));
    let (mut theirs, mut ours, mut missed) = (0, 0, Vec::new());
    let count = (seeds.end - seeds.start) as u32;
    for seed in seeds {
        let c = Chance::seeded(seed ^ 0x5eed);
        let image = clean.fork();
        let kind = *by_kind.keys().nth((seed % by_kind.len() as u64) as usize).unwrap();
        let of_kind = &by_kind[&kind];
        damage(&image, of_kind[c.below(of_kind.len() as u64) as usize], &c);
        let mut all = vec![0; SIZE as usize];
        image.read(0, &mut all).unwrap();
        std::fs::write(&path, &all).unwrap();
        let found = repair_says(&path);
        let sound = uxfs_check::check(&image).is_ok_and(|r| r.is_sound());
        theirs += u32::from(!found.is_empty());
        ours += u32::from(!sound);
        if sound && !found.is_empty() {
            let mut before = vec![0; SIZE as usize];
            clean.read(0, &mut before).unwrap();
            let changed: Vec<_> = (0..all.len()).filter(|i| all[*i] != before[*i]).map(|i| (i, before[i], all[i])).take(12).collect();
            missed.push(format!("seed {seed} ({}): {:?} bytes {changed:?}", kind.name(), &found[..found.len().min(2)]));
        }
    }
    let _ = std::fs::remove_file(&path);
    println!("{count} damaged volumes: xfs_repair finds something in {theirs}, uxfs check in {ours}");
    assert!(missed.is_empty(), "{} missed: {missed:#?}", missed.len());
    assert!(theirs > count / 3);
}
