//! Hostile bytes: structures of a volume in all its forms are changed at random, their checksums made good, and then
//! everything is tried on it. Whatever comes back is data or an error; nothing panics, hangs or grows without bound.
//!
//! `UXFS_LONG=1`, which `cargo xtask test --long` sets, tries ten thousand.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;
use uxfs_device::Device;
use uxfs_format::{DiskAddr, Geometry, Kind};
use uxfs_mkfs::Features;
use uxfs_sim::hostile::{FORMS, Fate, Form, SIZE, by_kind, damage, damage_log, structures, try_all, volume};
use uxfs_sync::Chance;

/// Damaged volumes of each form, and in the long mode.
const SEEDS: (u64, u64) = (320, 2000);
/// Damaged volumes that xfs_repair judges, too.
const AGAINST_REPAIR: u64 = 130;
/// One volume is opened, walked, written to and checked within this.
const LONGEST: Duration = Duration::from_secs(20);
/// Address space of the whole test, with all that runs in it.
const MOST_MEMORY: u64 = 4 << 30;

#[test]
fn damaged_structures_give_data_or_an_error() {
    rustix::process::setrlimit(rustix::process::Resource::As, rustix::process::Rlimit { current: Some(MOST_MEMORY), maximum: None })
        .unwrap();
    let each = if std::env::var_os("UXFS_LONG").is_some() { SEEDS.1 } else { SEEDS.0 };
    // Two at a time: a form each.
    std::thread::scope(|s| {
        for lane in 0..2 {
            s.spawn(move || {
                for (i, form) in FORMS.iter().enumerate().filter(|f| f.0 % 2 == lane) {
                    damage_and_try(*form, i as u64 * each..(i as u64 + 1) * each);
                }
            });
        }
    });
}

fn damage_and_try(form: Form, seeds: Range<u64>) {
    let (clean, dirty) = (volume(true, form), volume(false, form));
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
    println!("{form:?}, {count} volumes: {fates:?}, {noticed} seen to be damaged afterwards; structures: {reached:?}");
    assert!(bad.is_empty(), "{bad:#?}");
    let mut kinds = vec!["superblock", "AGF", "AGI", "inode cluster", "bnobt", "cntbt", "inobt", "attribute leaf", "log record"];
    if form.features == Features::NEWEST {
        kinds.push("rmapbt");
    }
    for k in kinds {
        assert!(reached.get(k).is_some_and(|n| *n > 5), "{k} was reached too seldom: {reached:?}");
    }
    assert!(u64::from(noticed) > count / 10);
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
    let clean = volume(true, Form { features, ..FORMS[0] });
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
