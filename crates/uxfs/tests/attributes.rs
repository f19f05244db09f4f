//! Attributes of every size in every form, at random, against a model.

mod common;

use common::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use uxfs::{Acl, AclEntry, AttrName, Error, Fs, SetAttr, SetMode, acl_tag};
use uxfs_device::Memory;
use uxfs_mkfs::Features;
use uxfs_sync::Chance;

const MIB: u64 = 1 << 20;

/// By file and name.
type Model = BTreeMap<(u64, u8, Vec<u8>), Vec<u8>>;

fn check(fs: &Fs, files: &[u64], model: &Model, what: &str) {
    for f in files {
        let mut listed: Vec<(u8, Vec<u8>, usize)> = fs.list_attrs(*f).unwrap();
        listed.sort();
        let mut known: Vec<_> = model.iter().filter(|(k, _)| k.0 == *f).map(|(k, v)| (k.1, k.2.clone(), v.len())).collect();
        known.sort();
        assert_eq!(listed, known, "{what}, file {f}");
    }
    for ((f, namespace, name), value) in model {
        let got = fs.get_attr(*f, AttrName { namespace: *namespace, name });
        assert!(got.as_ref().is_ok_and(|v| v == value), "{what}, file {f}: {:?}", got.map(|v| v.len()));
    }
}

fn work(seed: u64, block: u32, inode: u32, features: Features) {
    let what = format!("seed {seed}");
    let dev = Arc::new(Memory::new(96 * MIB));
    let o = uxfs_mkfs::Options { block, inode, agcount: Some(3), features, ..uxfs_mkfs::Options::new(96 * MIB, [5; 16]) };
    uxfs_mkfs::format(&*dev, &o).unwrap();
    let chance = Chance::seeded(seed);
    let below = |n: u64| chance.below(n);
    let (mut model, mut files) = (Model::new(), Vec::new());
    let mut next = 0;
    // How large values are, and how many names there are, differs from volume to volume.
    let (names, large) = (1 + below(400), [20, 300, 900, 4000, 65536][below(5) as usize]);
    let collide = below(3) == 0;
    for life in 0..4 {
        let fs = open_memory(&dev, (below(2) == 0).then_some(0));
        check(&fs, &files, &model, &format!("{what}, life {life}"));
        for i in 0..600 {
            if files.len() < 3 || below(60) == 0 {
                let name = format!("file {next}");
                let make = match below(3) {
                    0 => fs.create(fs.root(), name.as_bytes(), dir(0o755)),
                    1 => fs.symlink(fs.root(), name.as_bytes(), &vec![b't'; 1 + below(500) as usize], 0, 0),
                    _ => fs.create(fs.root(), name.as_bytes(), file(0o644)),
                };
                next += 1;
                files.push(make.unwrap().ino);
            }
            let f = files[below(files.len() as u64) as usize];
            let namespace = [0, 2, 4][below(3) as usize];
            let n = below(names);
            let name = if collide { colliding(n) } else { format!("{n}-{}", "n".repeat((n * 37 % 250) as usize)).into_bytes() };
            let a = AttrName { namespace, name: &name };
            let key = (f, namespace, name.clone());
            match below(10) {
                0..=6 => {
                    let value = vec![i as u8; below(1 + below(large + 1)) as usize];
                    let mode = [SetMode::Any, SetMode::Any, SetMode::Create, SetMode::Replace][below(4) as usize];
                    let known = model.contains_key(&key);
                    match fs.set_attr(f, a, &value, mode) {
                        Ok(()) => {
                            assert!(mode != SetMode::Create || !known, "{what}, {i}");
                            model.insert(key, value);
                        }
                        Err(Error::Exists) => assert!(mode == SetMode::Create && known, "{what}, {i}"),
                        Err(Error::NoAttribute) => assert!(mode == SetMode::Replace && !known, "{what}, {i}"),
                        // Symbolic links have no attributes of users.
                        Err(e) => panic!("{what}, {i}: {e}"),
                    }
                }
                7 | 8 => match fs.remove_attr(f, a) {
                    Ok(()) => assert!(model.remove(&key).is_some(), "{what}, {i}"),
                    Err(Error::NoAttribute) => assert!(!model.contains_key(&key), "{what}, {i}"),
                    Err(e) => panic!("{what}, {i}: {e}"),
                },
                _ if below(12) == 0 => fs.sync().unwrap(),
                _ if below(12) == 0 => {
                    let n = files.iter().position(|x| *x == f).unwrap();
                    let mut found = None;
                    fs.readdir(fs.root(), 0, &mut |e| {
                        if e.ino.0 == f {
                            found = Some(e.name.clone());
                        }
                        true
                    })
                    .unwrap();
                    let name = found.unwrap();
                    if fs.rmdir(fs.root(), &name).is_err() {
                        fs.unlink(fs.root(), &name).unwrap();
                    }
                    files.remove(n);
                    model.retain(|k, _| k.0 != f);
                }
                _ => {}
            }
            assert!(fs.shutdown_reason().is_none(), "{what}, {i}: {:?}", fs.shutdown_reason());
        }
        check(&fs, &files, &model, &what);
        // No transaction logged more than it had reserved.
        assert!(fs.stats().contains(&("overruns", 0)), "{what}, life {life}: {:?}", fs.stats());
        end_life(fs, &dev, life == 1, &format!("{what}, life {life}"));
    }
}

#[test]
fn attributes_are_what_they_were_set_to() {
    for seed in seeds(3, 60) {
        for (n, (block, inode, features)) in [
            (1024, 512, Features::V6_1),
            (4096, 512, Features::NEWEST),
            (4096, 2048, Features::V6_1),
            (1024, 512, Features::NEWEST),
            (16384, 1024, Features::NEWEST),
        ]
        .into_iter()
        .enumerate()
        {
            work(10 * seed + n as u64, block, inode, features);
        }
    }
}

/// Each follows the other, whoever of two threads comes first.
#[test]
fn permission_bits_and_lists_agree_whoever_changes_them() {
    let dev = in_memory(64 << 20, 4096, 2, Features::NEWEST);
    let fs = open_memory(&dev, None);
    let f = fs.create(fs.root(), b"f", file(0o644)).unwrap().ino;
    let list = |perm: u16| {
        let tags = [acl_tag::USER_OBJ, acl_tag::USER, acl_tag::GROUP_OBJ, acl_tag::MASK, acl_tag::OTHER];
        let entries = tags.map(|tag| AclEntry { tag, perm, id: if tag == acl_tag::USER { 7 } else { u32::MAX } });
        Acl::new(entries.into()).unwrap()
    };
    for round in 0..1000u16 {
        std::thread::scope(|s| {
            s.spawn(|| (0..8).for_each(|n| fs.set_acl(f, false, Some(&list((round + n) % 8))).unwrap()));
            s.spawn(|| {
                for n in 0..8 {
                    let mode = Some((round % 8 * 64 + n * 9) % 512);
                    fs.setattr(f, SetAttr { mode, ..SetAttr::default() }).unwrap();
                }
            });
        });
        let (bits, _) = fs.get_acl(f, false).unwrap().mode();
        assert_eq!(bits, fs.stat(f).unwrap().mode & 0o777, "round {round}");
    }
    end_life(fs, &dev, false, "lists and bits");
}
