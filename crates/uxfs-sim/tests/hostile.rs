//! Hostile bytes: structures of a volume in all its forms are changed at random, their checksums made good, and then
//! everything is tried on it. Whatever comes back is data or an error; nothing panics, hangs or grows without bound.
//!
//! `UXFS_LONG=1`, which `cargo xtask test --long` sets, tries ten thousand.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, mpsc};
use std::time::Duration;
use uxfs::{Fs, Options};
use uxfs_check::{Form as On, Forms};
use uxfs_device::{Device, Memory, save};
use uxfs_format::{DiskAddr, Geometry, Kind};
use uxfs_mkfs::Features;
use uxfs_sim::hostile::{FORMS, Fate, Form, SIZE, by_kind, damage, damage_log, structures, try_all, volume};
use uxfs_sim::kernel;
use uxfs_sync::Chance;

/// Damaged volumes of each form, and in the long mode.
const SEEDS: (u64, u64) = (320, 2000);
/// Damaged volumes of each kind that xfs_repair judges, too, and in the long mode.
const AGAINST_REPAIR: (u64, u64) = (100, 1000);
/// One volume is opened, walked, written to and checked within this.
const LONGEST: Duration = Duration::from_secs(20);
/// Address space of the whole test, with all that runs in it.
const MOST_MEMORY: u64 = 4 << 30;

/// Directories in all forms, links and devices, as `mkfs.xfs -p` reads them: of volumes that we do not write.
fn prototype() -> String {
    let mut p = format!("/stand/diskboot\n0 0\nd--755 0 0\nlink l--777 0 0 short\nlong l--777 0 0 {}\n", "l".repeat(900));
    p += "device c--600 0 0 5 7\nfew ---644 1 2 /dev/null\nmany ---644 1 2 /dev/null\n";
    for n in [3, 40, 300, 2500] {
        let names: String = (0..n).map(|i| format!("file{i} ---600 {i} 0 /dev/null\n")).collect();
        p += &format!("dir{n} d--755 0 0\n{names}$\n");
    }
    p + "$\n"
}

/// A volume of mkfs.xfs, with a tree of names and attributes in all forms.
fn theirs(options: &[&str]) -> Memory {
    let file = std::env::temp_dir().join(format!("uxfs-prototype-{}", std::process::id()));
    std::fs::write(&file, prototype()).unwrap();
    let args = [options, &["--unsupported", "-q", "-p", file.to_str().unwrap()]].concat();
    let mut db =
        Vec::from(["path /few", "attr_set -u -v 5 small", "attr_set -r -v 300 medium", "attr_set -s -v 6000 large"].map(String::from));
    db.push("path /many".into());
    db.extend((0..400).map(|i| format!("attr_set -u -v 7 key{i}")));
    let made = kernel::made(SIZE, &args, &db).unwrap();
    let _ = std::fs::remove_file(file);
    made
}

/// Volumes that are only read: of version 4 with file types and without, and with a metadata directory.
const READ_ONLY: [&[&str]; 3] =
    [&["-m", "crc=0", "-n", "ftype=1"], &["-m", "crc=0", "-n", "ftype=0", "-b", "size=1024", "-i", "size=256"], &["-m", "metadir=1"]];

/// What is damaged: a volume that was unmounted, and one that was not.
struct Subject {
    name: String,
    clean: Memory,
    dirty: Option<Memory>,
}

/// The second in the long mode.
fn choose((usual, long): (u64, u64)) -> u64 {
    if std::env::var_os("UXFS_LONG").is_some() { long } else { usual }
}

/// What some volume that is damaged has, and how high.
const WANTED: [(On, u16); 7] = [
    (On::Tree("bnobt"), 2),
    (On::Tree("refcountbt"), 2),
    (On::Tree("rmapbt"), 2),
    (On::SparseChunk, 0),
    (On::DirTree, 2),
    (On::FileExtentTree, 2),
    (On::AttrTree, 2),
];

#[test]
fn damaged_structures_give_data_or_an_error() {
    rustix::process::setrlimit(rustix::process::Resource::As, rustix::process::Rlimit { current: Some(MOST_MEMORY), maximum: None })
        .unwrap();
    let each = choose(SEEDS);
    let ours = FORMS.map(|f| Subject { name: format!("{f:?}"), clean: volume(true, f), dirty: Some(volume(false, f)) });
    let theirs = READ_ONLY.map(|o| Subject { name: o.join(" "), clean: theirs(o), dirty: None });
    let subjects: Vec<Subject> = ours.into_iter().chain(theirs).collect();
    let seen = &Mutex::default();
    // Two at a time.
    std::thread::scope(|s| {
        for lane in 0..2 {
            let mine = subjects.iter().enumerate().skip(lane).step_by(2);
            s.spawn(move || mine.for_each(|(i, subject)| damage_and_try(subject, i as u64 * each..(i as u64 + 1) * each, seen)));
        }
    });
    assert_eq!(seen.lock().unwrap().missing(&WANTED), []);
}

fn damage_and_try(subject: &Subject, seeds: Range<u64>, seen: &Mutex<Forms>) {
    let Subject { name, clean, dirty } = subject;
    let (g, by_kind) = by_kind(clean);
    let kinds: Vec<Kind> = by_kind.keys().copied().collect();
    // Sound volumes pass, so what is found below is the damage.
    let report = uxfs_check::check(clean).unwrap();
    assert!(report.is_sound(), "{name}: {:?}", report.findings);
    seen.lock().unwrap().add(&report.forms);
    let (mut reached, mut fates, mut noticed) = (BTreeMap::<String, u32>::new(), BTreeMap::<Fate, u32>::new(), 0);
    let mut bad = Vec::new();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let c = Chance::seeded(seed);
        let in_log = seed % 8 == 0 && dirty.is_some();
        let image = dirty.as_ref().filter(|_| seed % 8 < 2).unwrap_or(clean).fork();
        let what = if in_log {
            assert!(damage_log(&image, &g, &c), "there is no record to damage");
            "log record".to_string()
        } else {
            let kind = kinds[(seed % kinds.len() as u64) as usize];
            let of_kind = &by_kind[&kind];
            damage(&image, &g, of_kind[c.below(of_kind.len() as u64) as usize], &c);
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
    println!("{name}, {count} volumes: {fates:?}, {noticed} seen to be damaged afterwards; structures: {reached:?}");
    assert!(bad.is_empty(), "{bad:#?}");
    let mut kinds = vec!["superblock", "AGF", "AGI", "inode cluster", "bnobt", "cntbt", "inobt", "attribute leaf", "directory leaf"];
    kinds.extend(dirty.as_ref().map(|_| "log record"));
    kinds.extend(g.rmapbt().then_some("rmapbt"));
    for k in kinds {
        assert!(reached.get(k).is_some_and(|n| *n > 5), "{k} was reached too seldom: {reached:?}");
    }
    assert!(u64::from(noticed) > count / 10);
}

/// Logs that other kernels left: with quota, and of version 4 with records of both versions.
#[test]
fn damaged_logs_of_other_kernels_give_data_or_an_error() {
    for packed in ["quota-7.2.gz", "v4-log-v1-5.10.gz", "v4-log-v2-6.1.gz"] {
        let path = format!("{}/../uxfs/tests/logs/{packed}", env!("CARGO_MANIFEST_DIR"));
        let o = std::process::Command::new("gzip").args(["-dc", &path]).output().unwrap();
        assert!(o.status.success(), "{packed}: {}", String::from_utf8_lossy(&o.stderr));
        let dirty = Memory::new(o.stdout.len() as u64);
        dirty.put(0, &o.stdout).unwrap();
        let (g, _) = Geometry::parse(&o.stdout).unwrap();
        let (mut opened, mut refused) = (0, 0);
        for seed in 0..choose((150, 1500)) {
            let image = dirty.fork();
            assert!(damage_log(&image, &g, &Chance::seeded(seed)), "there is no record to damage");
            let read_only = Options { read_only: true, ..Options::default() };
            match Fs::open(std::sync::Arc::new(image.fork()), read_only) {
                Ok(_) => opened += 1,
                Err(_) => refused += 1,
            }
            try_all(image);
        }
        println!("{packed}: {opened} opened, {refused} refused");
        assert!(opened > 10 && refused > 10, "{packed}: {opened} opened, {refused} refused");
    }
}

#[test]
fn the_fields_that_are_changed_lie_in_structures() {
    for form in FORMS.into_iter().filter(|f| f.dir_block <= f.block) {
        let v = volume(true, form);
        let mut head = vec![0; 512];
        v.read(0, &mut head).unwrap();
        let (g, _) = Geometry::parse(&head).unwrap();
        for (k, at, size) in structures(&v, &g) {
            let mut b = vec![0; size];
            v.read(at, &mut b).unwrap();
            if k != Kind::Inode {
                assert!(k.verify(&b, DiskAddr(at / 512), &g, true).is_ok(), "{form:?} {k:?} at {at}");
            }
        }
    }
}

/// What xfs_repair -n finds in a volume, beside its phases.
fn repair_says(program: &str, path: &std::path::Path) -> Vec<String> {
    let out = std::process::Command::new(program).arg("-n").arg(path).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output();
    let out = out.unwrap_or_else(|e| panic!("{program}: {e}; install it with: cargo xtask tools"));
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
    // The newest that the xfs_repair of Debian 12 knows, and what only later ones do.
    let debian = [Features::V6_1, Features::profile("lts_6.6").unwrap()]
        .map(|f| ("xfs_repair".into(), volume(true, Form { features: f, ..FORMS[0] })));
    let newest = [volume(true, FORMS[1])].into_iter().chain(READ_ONLY.map(theirs)).map(|v| (kernel::newest("xfs_repair"), v));
    let each = choose(AGAINST_REPAIR);
    let subjects: Vec<(String, Memory)> = debian.into_iter().chain(newest).collect();
    std::thread::scope(|s| {
        for lane in 0..2 {
            let mine = subjects.iter().enumerate().skip(lane).step_by(2);
            s.spawn(move || mine.for_each(|(i, (repair, clean))| against_repair(repair, clean, i as u64 * each..(i as u64 + 1) * each)));
        }
    });
}

fn against_repair(repair: &str, clean: &Memory, seeds: Range<u64>) {
    let (g, by_kind) = by_kind(clean);
    let path = std::env::temp_dir().join(format!("uxfs-hostile-{}-{}.img", std::process::id(), seeds.start));
    let (mut theirs, mut ours, mut missed) = (0, 0, Vec::new());
    let count = (seeds.end - seeds.start) as u32;
    for seed in seeds {
        let c = Chance::seeded(seed ^ 0x5eed);
        let image = clean.fork();
        let kind = *by_kind.keys().nth((seed % by_kind.len() as u64) as usize).unwrap();
        let of_kind = &by_kind[&kind];
        let piece = of_kind[c.below(of_kind.len() as u64) as usize];
        damage(&image, &g, piece, &c);
        save(&image, &path).unwrap();
        let found = repair_says(repair, &path);
        let sound = uxfs_check::check(&image).is_ok_and(|r| r.is_sound());
        theirs += u32::from(!found.is_empty());
        ours += u32::from(!sound);
        if sound && !found.is_empty() {
            let bytes = |m: &Memory| {
                let mut b = vec![0; piece.2];
                m.read(piece.1, &mut b).unwrap();
                b
            };
            let (before, after) = (bytes(clean), bytes(&image));
            let changed: Vec<_> = (0..piece.2).filter(|i| after[*i] != before[*i]).map(|i| (i, before[i], after[i])).take(12).collect();
            missed.push(format!("seed {seed} ({} at {}): {:?} bytes {changed:?}", kind.name(), piece.1, &found[..found.len().min(2)]));
        }
    }
    let _ = std::fs::remove_file(&path);
    println!("{count} damaged volumes: xfs_repair finds something in {theirs}, uxfs check in {ours}");
    assert!(missed.is_empty(), "{} missed: {missed:#?}", missed.len());
    assert!(theirs > count / 3);
}
