//! Volumes without room: whatever is tried there, the answer is an error, and the volume goes on.

mod common;

use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use uxfs::{Allocate, AttrName, Error, FileFlags, Fs, IoMode, Rename, SetAttr, SetMode, xflag};
use uxfs_mkfs::Features;
use uxfs_sync::Chance;

const MIB: u64 = 1 << 20;

/// A reference count is entered when nothing can be taken back any more: without what groups keep for that (`space/kept.rs`), the volume
/// was shut down, and could not be opened again.
#[test]
fn sharing_blocks_of_full_groups_does_not_shut_the_volume_down() {
    let copied = [Features::V6_1, Features::NEWEST].map(share_in_full_groups);
    assert!(copied.iter().sum::<u32>() > 0, "no clone was refused where there was space elsewhere");
}

/// Says how many copies were made where a clone was refused.
fn share_in_full_groups(features: Features) -> u32 {
    const BLOCK: u64 = 4096;
    const PIECES: u64 = 4000;
    let dev = in_memory(128 * MIB, BLOCK as u32, 2, features);
    let fs = open_memory(&dev, None);
    let make = |name: &str| fs.create(fs.root(), name.as_bytes(), file(0o644)).unwrap().ino;
    let (a, b) = (make("a"), make("b"));
    // Their blocks alternate.
    for k in 0..PIECES {
        for (f, fill) in [(a, 7), (b, 8)] {
            fs.write_with(f, k * 2 * BLOCK, &[fill; BLOCK as usize], false, IoMode::Direct).unwrap();
        }
    }
    // No room is left in any group, but what this file gives back at its end.
    let rest = make("rest");
    let mut blocks = 0;
    while fs.write_with(rest, blocks * BLOCK, &[9; BLOCK as usize], false, IoMode::Direct).is_ok() {
        blocks += 1;
    }
    blocks -= 400;
    fs.setattr(rest, SetAttr { size: Some(blocks * BLOCK), ..SetAttr::default() }).unwrap();
    fs.sync().unwrap();
    let mut shared = 0;
    for i in 0..20 {
        let c = match fs.create(fs.root(), format!("clone {i}").as_bytes(), file(0o644)) {
            Ok(c) => c.ino,
            Err(Error::NoSpace) => continue,
            Err(e) => panic!("create {i}: {e}"),
        };
        match fs.clone_range((a, 0), (c, 0), (PIECES * 2 - 1) * BLOCK) {
            Ok(()) => shared += 1,
            Err(Error::NoSpace) => {}
            Err(e) => panic!("clone {i}: {e}, {:?}", fs.shutdown_reason()),
        }
    }
    assert!(shared > 0, "nothing was shared");
    // Where a clone finds no room in the source's group, there may be some elsewhere for a copy.
    let mut copied = 0;
    for i in 0..20 {
        let Ok(c) = fs.create(fs.root(), format!("copy {i}").as_bytes(), file(0o644)) else { break };
        if matches!(fs.clone_range((a, 0), (c.ino, 0), 2000 * BLOCK), Err(Error::NoSpace)) && fs.statfs().free > 20 {
            assert_eq!(fs.copy_range((a, 0), (c.ino, 0), BLOCK).unwrap(), BLOCK);
            copied += 1;
        }
    }
    // What finds no room leaves what was there.
    let mut end = blocks;
    while fs.write_with(rest, end * BLOCK, &[9; BLOCK as usize], false, IoMode::Direct).is_ok() {
        end += 1;
    }
    let cloned = fs.clone_range((a, 0), (b, 0), (PIECES * 2 - 1) * BLOCK);
    assert!(matches!(cloned, Err(Error::NoSpace)), "{cloned:?}");
    let mut block = [0; BLOCK as usize];
    for k in 0..PIECES {
        fs.read(b, k * 2 * BLOCK, &mut block).unwrap();
        assert!(block == [7; BLOCK as usize] || block == [8; BLOCK as usize], "block {k} has {}", block[0]);
    }
    assert!(fs.shutdown_reason().is_none(), "{:?}", fs.shutdown_reason());
    end_life(fs, &dev, false, "shared");
    copied
}

/// The edge of what was to be zeroed lies in the cache when no space is found for the rest; it was not written back by a sync.
#[test]
fn what_is_zeroed_before_there_is_no_space_is_synced() {
    let dev = in_memory(64 * MIB, 4096, 2, Features::NEWEST);
    let fs = open_memory(&dev, None);
    let f = fs.create(fs.root(), b"f", file(0o644)).unwrap().ino;
    fs.write(f, 0, &[7; 10_000], false).unwrap();
    fs.sync().unwrap();
    assert!(matches!(fs.fallocate(f, Allocate::Zero { keep_size: false }, 100, 100 * MIB), Err(Error::NoSpace)));
    fs.sync().unwrap();
    end_life(fs, &dev, true, "zeroed");
    let fs = open_memory(&dev, None);
    let mut found = [1; 10_000];
    assert_eq!(fs.read(f, 0, &mut found).unwrap(), 10_000);
    assert!(found[..100] == [7; 100] && found[100..] == [0; 9900]);
    end_life(fs, &dev, false, "zeroed");
}

/// What an extent size hint takes beyond the dirty blocks is not taken from what was promised to others of the same file.
#[test]
fn a_hint_takes_nothing_from_what_was_promised() {
    const BLOCK: u64 = 4096;
    let dev = in_memory(64 * MIB, BLOCK as u32, 1, Features::NEWEST);
    let fs = open_memory(&dev, None);
    let make = |name: &str| fs.create(fs.root(), name.as_bytes(), file(0o644)).unwrap().ino;
    let (source, hinted, rest) = (make("source"), make("hinted"), make("rest"));
    fs.write(source, 0, &[1; 300 * BLOCK as usize], false).unwrap();
    let old = fs.file_flags(hinted).unwrap();
    fs.set_file_flags(hinted, FileFlags { bits: old.bits | xflag::EXTSIZE, extsize: 256 * BLOCK as u32, ..old }).unwrap();
    // A hole of which only the end is written, and behind it blocks that are shared.
    fs.clone_range((source, 0), (hinted, 250 * BLOCK), 300 * BLOCK).unwrap();
    fs.sync().unwrap();
    let (mut size, mut end) = (fs.statfs().free, 0);
    while size > 0 {
        match fs.fallocate(rest, Allocate::Reserve { keep_size: true }, end * BLOCK, size * BLOCK) {
            Ok(()) => end += size,
            Err(Error::NoSpace) => size /= 2,
            Err(e) => panic!("{e}"),
        }
    }
    // Room for all that is to be written, and not for the hint beside it.
    fs.fallocate(rest, Allocate::Punch, 0, 340 * BLOCK).unwrap();
    fs.sync().unwrap();
    fs.write(hinted, 248 * BLOCK, &[2; 302 * BLOCK as usize], false).unwrap();
    assert!(fs.statfs().free < 100);
    fs.fsync(hinted).unwrap();
    let mut read = vec![0; 302 * BLOCK as usize];
    assert_eq!(fs.read_with(hinted, 248 * BLOCK, &mut read, IoMode::Direct).unwrap(), read.len());
    assert!(read.iter().all(|b| *b == 2));
    end_life(fs, &dev, false, "a hint on a full volume");
}

/// Where all that is free was freed a moment ago, blocks are usable once that is durable. Each of these threads makes it durable for the
/// others, too, and none may take that for a volume without room.
#[test]
fn what_others_make_usable_is_found() {
    const BLOCKS: u64 = 200;
    let dev = in_memory(64 * MIB, 4096, 4, Features::NEWEST);
    let fs = Arc::new(open_memory(&dev, None));
    std::thread::scope(|s| {
        // Inodes come and go, too.
        let fs = &fs;
        s.spawn(move || {
            for i in 0..40 {
                let made = |k: u64| name(1000 + k);
                for k in 0..200 {
                    fs.create(fs.root(), &made(k), file(0o644)).unwrap_or_else(|e| panic!("create {i}: {e}"));
                }
                for k in 0..200 {
                    fs.unlink(fs.root(), &made(k)).unwrap();
                }
            }
        });
        for t in 0..4 {
            s.spawn(move || {
                let f = fs.create(fs.root(), &name(t), file(0o644)).unwrap().ino;
                for i in 0..1000 {
                    let tried = if t % 2 == 0 {
                        let reserved = fs.fallocate(f, Allocate::Reserve { keep_size: false }, 0, BLOCKS * 4096);
                        reserved.and_then(|()| fs.fallocate(f, Allocate::Punch, 0, BLOCKS * 4096))
                    } else {
                        let written = fs.write_with(f, 0, &vec![7; BLOCKS as usize * 4096], false, IoMode::Direct);
                        written.and_then(|_| fs.setattr(f, SetAttr { size: Some(0), ..SetAttr::default() })).map(|_| ())
                    };
                    tried.unwrap_or_else(|e| panic!("round {i}: {e}, {:?}, {:?}", fs.statfs(), fs.shutdown_reason()));
                }
            });
        }
    });
    let fs = Arc::into_inner(fs).unwrap();
    end_life(fs, &dev, false, "made usable");
}

/// Operations that were tried, and those that found no room.
#[derive(Default, Debug)]
struct Tried {
    all: u32,
    no_room: u32,
}

const FILES: u64 = 40;

fn name(n: u64) -> Vec<u8> {
    format!("a file with a name that is not short, number {n}").into_bytes()
}

/// Tries something that chance chooses; false if what was taken before was not kept.
fn try_something(fs: &Fs, chance: &Chance, i: u32) -> (Result<(), Error>, bool) {
    let below = |n: u64| chance.below(n);
    let (root, bs) = (fs.root(), u64::from(fs.geometry().blocksize));
    let some = |n: u64| fs.lookup(root, &name(n)).map(|s| s.ino);
    let (n, m, at) = (below(FILES), below(FILES), below(600) * bs);
    let len = (1 + below(60)) * bs;
    let op = below(22);
    let done = || -> Result<(), Error> {
        match op {
            0 | 1 => fs.create(root, &name(n), file(0o644)).map(drop),
            2 if below(4) == 0 => fs.unlink(root, &name(n)),
            3 => fs.rename(root, &name(n), root, &name(m), Rename::Replace),
            4..=6 => {
                let how = if below(2) == 0 { IoMode::Direct } else { IoMode::Buffered };
                // Much at once fills it, pieces apart fill its trees.
                match below(2) {
                    0 => fs.write_with(some(n)?, at, &vec![i as u8; 30 * len as usize], false, how).map(drop),
                    _ => {
                        let f = some(n)?;
                        (0..40).try_for_each(|k| fs.write_with(f, 2 * k * bs, &vec![k as u8; bs as usize], false, how).map(drop))
                    }
                }
            }
            7 => fs.fsync(some(n)?),
            8 | 9 => fs.clone_range((some(n)?, 0), (some(m)?, at), fs.stat(some(n)?)?.size / bs * bs),
            10 => fs.clone_range((some(n)?, at), (some(m)?, 0), len),
            11 => fs.fallocate(some(n)?, Allocate::Punch, at, len),
            12 => fs.fallocate(some(n)?, Allocate::Reserve { keep_size: below(2) == 0 }, at, len),
            13 => fs.fallocate(some(n)?, Allocate::Zero { keep_size: true }, at, len),
            14 => fs.fallocate(some(n)?, Allocate::Collapse, at, len),
            15 => fs.fallocate(some(n)?, Allocate::Insert, at, len),
            16 => fs.fallocate(some(n)?, Allocate::Unshare, at, len),
            17 => fs.setattr(some(n)?, SetAttr { size: Some(below(2000) * bs), ..SetAttr::default() }).map(drop),
            18 => fs.exchange_range((some(n)?, 0), (some(m)?, 0), None),
            19 => {
                let value = vec![i as u8; below(9000) as usize];
                fs.set_attr(some(n)?, AttrName { namespace: 0, name: &name(m) }, &value, SetMode::Any)
            }
            20 => fs.symlink(root, &name(n), &vec![b't'; 1 + below(1000) as usize], 0, 0).map(drop),
            _ => fs.sync(),
        }
    }();
    let kept = !(matches!(op, 7 | 21) && matches!(done, Err(Error::NoSpace)));
    (done, kept)
}

fn work_without_room(seed: u64, blocksize: u32, groups: u32, features: Features, threads: u64) -> Tried {
    let what = format!("seed {seed}, {threads} threads");
    let dev = in_memory(64 * MIB, blocksize, groups, features);
    let sum = Mutex::new(Tried::default());
    for life in 0..3 {
        let fs = open_memory(&dev, None);
        if life == 0 {
            // What is left is soon taken.
            let most = fs.create(fs.root(), b"most", file(0o644)).unwrap().ino;
            let free = fs.statfs().free * u64::from(blocksize);
            fs.fallocate(most, Allocate::Reserve { keep_size: false }, 0, free - 2 * MIB).unwrap();
        }
        let work = |thread: u64| {
            let chance = Chance::seeded(seed << 5 | thread << 2 | life);
            let mut tried = Tried::default();
            for i in 0..1500 {
                let (done, kept) = try_something(&fs, &chance, i);
                tried.all += 1;
                tried.no_room += u32::from(matches!(done, Err(Error::NoSpace)));
                assert!(kept, "{what}, life {life}, operation {i}: {done:?}");
                let shut_down = fs.shutdown_reason();
                assert!(shut_down.is_none(), "{what}, life {life}, operation {i}: {done:?}, {shut_down:?}");
            }
            let mut sum = sum.lock();
            sum.all += tried.all;
            sum.no_room += tried.no_room;
        };
        let work = &work;
        std::thread::scope(|s| (0..threads).for_each(|t| drop(s.spawn(move || work(t)))));
        end_life(fs, &dev, life == 1, &format!("{what}, life {life}"));
    }
    sum.into_inner()
}

#[test]
fn whatever_is_tried_on_a_full_volume_leaves_it_sound() {
    let forms = [(4096, 4, Features::NEWEST), (1024, 3, Features::NEWEST), (4096, 2, Features::V6_1), (1024, 4, Features::V6_1)];
    let mut sum = Tried::default();
    for seed in seeds(2, 40) {
        for (n, (blocksize, groups, features)) in forms.into_iter().enumerate() {
            for threads in [1, 4] {
                let t = work_without_room(seed * 10 + n as u64, blocksize, groups, features, threads);
                sum.all += t.all;
                sum.no_room += t.no_room;
            }
        }
    }
    assert!((sum.all / 20..sum.all / 2).contains(&sum.no_room), "{sum:?}");
}
