//! Directories of every form, at random, against a model.

mod common;

use common::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uxfs::{Error, Fs, Rename};
use uxfs_device::Memory;
use uxfs_mkfs::Features;
use uxfs_sync::Chance;

const MIB: u64 = 1 << 20;
const DIRS: usize = 4;

/// By directory and name.
type Model = BTreeMap<(u64, Vec<u8>), u64>;

fn listed(fs: &Fs, dir: u64, at_once: usize) -> Vec<(Vec<u8>, u64)> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let mut n = 0;
        fs.readdir(dir, from, &mut |e| {
            if n == at_once {
                return false;
            }
            n += 1;
            from = e.next;
            all.push((e.name.clone(), e.ino.0));
            true
        })
        .unwrap();
        if n == 0 {
            all.retain(|e| e.0 != b"." && e.0 != b"..");
            return all;
        }
    }
}

fn check(fs: &Fs, dirs: &[u64], model: &Model, at_once: usize, what: &str) {
    for d in dirs {
        let mut got = listed(fs, *d, at_once);
        got.sort();
        let known: Vec<_> = model.iter().filter(|(k, _)| k.0 == *d).map(|(k, v)| (k.1.clone(), *v)).collect();
        assert_eq!(got, known, "{what}, directory {d}");
    }
    for ((d, name), ino) in model {
        assert_eq!(fs.lookup(*d, name).unwrap().ino, *ino, "{what}");
    }
}

/// Reading a directory while it changes: what is there all the time is seen once.
fn read_while_changing(fs: &Fs, dir: u64, model: &mut Model, names: &dyn Fn(u64) -> Vec<u8>, below: &dyn Fn(u64) -> u64, what: &str) {
    let before: BTreeSet<Vec<u8>> = model.keys().filter(|k| k.0 == dir).map(|k| k.1.clone()).collect();
    let (mut seen, mut from, mut touched) = (Vec::new(), 0, BTreeSet::new());
    loop {
        let mut n = 0;
        fs.readdir(dir, from, &mut |e| {
            n += 1;
            from = e.next;
            seen.push(e.name.clone());
            n < 7
        })
        .unwrap();
        if n == 0 {
            break;
        }
        for _ in 0..3 {
            let name = names(below(1 << 20));
            touched.insert(name.clone());
            match fs.unlink(dir, &name) {
                Ok(()) => drop(model.remove(&(dir, name))),
                Err(Error::NotFound) => {
                    let ino = fs.create(dir, &name, file(0o644)).unwrap().ino;
                    model.insert((dir, name), ino);
                }
                Err(e) => panic!("{what}: {e}"),
            }
        }
        assert!(seen.len() < 20_000, "{what}: reading does not end");
    }
    for name in before.difference(&touched) {
        assert_eq!(seen.iter().filter(|s| *s == name).count(), 1, "{what}: {}", String::from_utf8_lossy(name));
    }
}

fn work(seed: u64, block: u32, dir_block: Option<u32>, features: Features) {
    let what = format!("seed {seed}");
    let dev = Arc::new(Memory::new(128 * MIB));
    let o = uxfs_mkfs::Options { block, dir_block, agcount: Some(3), features, ..uxfs_mkfs::Options::new(128 * MIB, [5; 16]) };
    uxfs_mkfs::format(&*dev, &o).unwrap();
    let chance = Chance::seeded(seed);
    let below = |n: u64| chance.below(n);
    let (collide, most, longest) = (below(3) == 0, [12, 60, 300, 1000][below(4) as usize], 4 + below(245));
    let names = |n: u64| {
        let n = n % most;
        if collide { colliding(n) } else { format!("{n:04}{}", "n".repeat((n * 37 % longest) as usize)).into_bytes() }
    };
    let mut model = Model::new();
    let mut dirs = Vec::new();
    for life in 0..4 {
        let fs = open_memory(&dev, (below(2) == 0).then_some(0));
        while dirs.len() < DIRS {
            dirs.push(fs.create(fs.root(), format!("dir {}", dirs.len()).as_bytes(), dir(0o755)).unwrap().ino);
        }
        check(&fs, &dirs, &model, 1 + below(40) as usize, &format!("{what}, life {life}"));
        for i in 0..1000 {
            // More come, then more go.
            let grows = (i / 250) % 2 == 0;
            let (d, to) = (dirs[below(DIRS as u64) as usize], dirs[below(DIRS as u64) as usize]);
            let (a, b) = (names(below(most)), names(below(most)));
            let (from_key, to_key) = ((d, a.clone()), (to, b.clone()));
            let (there, target) = (model.get(&from_key).copied(), model.get(&to_key).copied());
            match below(12) {
                0..=4 if grows => match fs.create(d, &a, file(0o644)) {
                    Ok(s) => assert!(model.insert(from_key, s.ino).is_none(), "{what}, {i}"),
                    Err(Error::Exists) => assert!(there.is_some(), "{what}, {i}"),
                    Err(e) => panic!("{what}, {i}: {e}"),
                },
                0..=6 => match fs.unlink(d, &a) {
                    Ok(()) => assert!(model.remove(&from_key).is_some(), "{what}, {i}"),
                    Err(Error::NotFound) => assert!(there.is_none(), "{what}, {i}"),
                    Err(e) => panic!("{what}, {i}: {e}"),
                },
                7 | 8 => match fs.rename(d, &a, to, &b, Rename::Replace) {
                    Ok(()) if there == target => {}
                    Ok(()) => {
                        model.remove(&from_key);
                        model.insert(to_key, there.unwrap());
                    }
                    Err(Error::NotFound) => assert!(there.is_none(), "{what}, {i}"),
                    Err(e) => panic!("{what}, {i}: {e}"),
                },
                9 => match fs.rename(d, &a, to, &b, Rename::Exchange) {
                    Ok(()) => {
                        model.insert(from_key, target.unwrap());
                        model.insert(to_key, there.unwrap());
                    }
                    Err(Error::NotFound) => assert!(there.is_none() || target.is_none(), "{what}, {i}"),
                    Err(e) => panic!("{what}, {i}: {e}"),
                },
                10 => {
                    if let Some(ino) = there {
                        match fs.link(ino, to, &b) {
                            Ok(_) => assert!(model.insert(to_key, ino).is_none(), "{what}, {i}"),
                            Err(Error::Exists) => assert!(target.is_some(), "{what}, {i}"),
                            Err(e) => panic!("{what}, {i}: {e}"),
                        }
                    }
                }
                _ if below(30) == 0 => read_while_changing(&fs, d, &mut model, &names, &below, &what),
                _ if below(30) == 0 => fs.sync().unwrap(),
                _ => {}
            }
        }
        check(&fs, &dirs, &model, 1 + below(40) as usize, &what);
        end_life(fs, &dev, life == 1, &format!("{what}, life {life}"));
    }
}

#[test]
fn directories_hold_the_names_that_they_were_given() {
    for seed in seeds(3, 40) {
        for (n, (block, dir_block, features)) in [
            (1024, Some(1024), Features::V6_1),
            (1024, None, Features::NEWEST),
            (4096, None, Features::NEWEST),
            (4096, Some(65536), Features::V6_1),
            (1024, Some(16384), Features::NEWEST),
        ]
        .into_iter()
        .enumerate()
        {
            work(10 * seed + n as u64, block, dir_block, features);
        }
    }
}
