//! Threads that do everything to the same few files by the same few names. Nothing says what comes out of it, but for what must always
//! hold: only errors that a user could explain, blocks of a file that were written to it, and a volume that is sound, also after a crash.

mod common;

use common::counting::{MIB, stat};
use common::*;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uxfs::{
    Acl, AclEntry, Allocate, AttrName, Error, FileFlags, Fs, IoLock, IoMode, JournalConfig, Options, Rename, SetAttr, SetMode, Stat,
};
use uxfs::{acl_tag, xflag};
use uxfs_check::{Form, Forms};
use uxfs_device::{DeviceRef, Memory, Recorder};
use uxfs_mkfs::Features;
use uxfs_sync::Chance;

/// Bytes of a block, which all changes of data lie on.
const BLOCK: u64 = 4096;
/// Most bytes of a file.
const LONGEST: u64 = 40 * BLOCK;

fn open(dev: DeviceRef, seed: u64) -> Fs {
    // What was discarded betrays nobody's bytes.
    let discard = seed.is_multiple_of(3);
    let journal = JournalConfig { dirty: 64 << 10, ..JournalConfig::default() };
    let (io_lock, cache) = ([IoLock::Range, IoLock::Range, IoLock::Shared, IoLock::Exclusive][(seed / 2 % 4) as usize], seed % 5 != 1);
    let o = Options { commit: 0, memory: 16 << 20, metadata: Some(64 << 10), journal, discard, io_lock, cache, ..Options::default() };
    Fs::open(dev, o).unwrap()
}

/// What the volumes have at least, and how high.
const WANTED: [(Form, u16); 20] = [
    (Form::Tree("bnobt"), 2),
    (Form::Tree("cntbt"), 2),
    (Form::Tree("refcountbt"), 2),
    (Form::Tree("rmapbt"), 2),
    (Form::DirInline, 0),
    (Form::DirBlock, 0),
    (Form::DirLeaf, 0),
    (Form::DirTree, 2),
    (Form::FileExtents, 0),
    (Form::FileExtentTree, 2),
    (Form::Unwritten, 0),
    (Form::Shared, 0),
    (Form::LinkInline, 0),
    (Form::LinkBlocks, 0),
    (Form::Special, 0),
    (Form::AttrInline, 0),
    (Form::AttrTree, 2),
    (Form::AttrValue, 0),
    (Form::BigTime, 0),
    (Form::WideCounters, 0),
];

/// A file or directory that the thread looks after: it keeps its number while somebody holds it.
struct Known {
    stat: Stat,
    /// Which bytes it may hold: files of one kind never get blocks of the other.
    kind: u64,
}

/// One of the threads.
struct Worker<'a> {
    fs: &'a Fs,
    c: Chance,
    known: Vec<Known>,
    /// Names in a directory, half of them for each kind of bytes.
    names: u64,
    /// Kinds of operations that it does, as [`Worker::step`] counts them.
    all: u64,
    /// Operations that did what they should.
    done: u64,
}

/// A block that says of which kind it is, the same all over.
fn block(kind: u64, n: u64) -> Vec<u8> {
    (n << 1 | kind | 1 << 63).to_le_bytes().repeat(BLOCK as usize / 8)
}

/// What a file of a kind may hold: zeros, and what was written to a file of that kind.
fn is_of_kind(kind: u64, read: &[u8]) -> bool {
    let mut words = read.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    words.all(|w| w == 0 || w & (1 << 63 | 1) == 1 << 63 | kind)
}

impl Worker<'_> {
    fn name(&self) -> (Vec<u8>, u64) {
        let n = self.c.below(self.names);
        (self.spell(n), n & 1)
    }

    /// A name of the same kind.
    fn name_of(&self, kind: u64) -> Vec<u8> {
        self.spell(self.c.below(self.names) & !1 | kind)
    }

    fn spell(&self, n: u64) -> Vec<u8> {
        format!("{n}{}", "-".repeat(self.names as usize / 2)).into_bytes()
    }

    fn dir(&self) -> u64 {
        let dirs: Vec<u64> = self.known.iter().filter(|k| k.stat.mode & 0o170_000 == 0o040_000).map(|k| k.stat.ino).collect();
        if dirs.is_empty() || self.c.below(2) == 0 { self.fs.root() } else { dirs[self.c.below(dirs.len() as u64) as usize] }
    }

    fn any(&self) -> Option<&Known> {
        let n = self.known.len() as u64;
        (n > 0).then(|| &self.known[self.c.below(n) as usize])
    }

    fn file(&self, kind: u64) -> Option<&Known> {
        let of_kind = |k: &&Known| k.kind == kind && k.stat.mode & 0o170_000 == 0o100_000;
        let n = self.known.iter().filter(of_kind).count() as u64;
        (n > 0).then(|| self.known.iter().filter(of_kind).nth(self.c.below(n) as usize).unwrap())
    }

    fn range(&self) -> (u64, u64) {
        let at = self.c.below(LONGEST / BLOCK);
        (at * BLOCK, (1 + self.c.below((LONGEST / BLOCK - at).min(8))) * BLOCK)
    }

    /// Looks after what a name leads to, instead of something else.
    fn get_to_know(&mut self) -> Result<(), Error> {
        let (name, kind) = self.name();
        let stat = self.fs.lookup(self.dir(), &name)?;
        self.fs.hold(stat.ino, stat.generation)?;
        self.keep(stat, kind)
    }

    fn keep(&mut self, stat: Stat, kind: u64) -> Result<(), Error> {
        self.known.push(Known { stat, kind });
        if self.known.len() > 12 {
            let old = self.known.swap_remove(self.c.below(12) as usize);
            self.fs.forget(old.stat.ino, 1)?;
        }
        Ok(())
    }

    fn change_names(&mut self) -> Result<(), Error> {
        let (fs, (name, kind)) = (self.fs, self.name());
        let d = self.dir();
        match self.c.below(12) {
            0..2 => fs.create(d, &name, file(0o644)).map(drop),
            2 => fs.create(d, &name, dir(0o755)).map(drop),
            3 => {
                let target = vec![b'x'; 1 + self.c.below(1000) as usize];
                fs.symlink(d, &name, &target, 0, 0).map(drop)
            }
            4 => {
                let s = fs.create_unnamed(d, file(0o600))?;
                self.keep(s, kind)
            }
            5 => match self.any() {
                Some(k) => fs.link(k.stat.ino, d, &self.name_of(k.kind)).map(drop),
                None => Ok(()),
            },
            6..8 => fs.unlink(d, &name),
            8 => fs.rmdir(d, &name),
            _ => {
                let how = [
                    Rename::Replace,
                    Rename::Replace,
                    Rename::NoReplace,
                    Rename::Exchange,
                    Rename::Whiteout { uid: 0, gid: 0, replace: true },
                ];
                fs.rename(d, &name, self.dir(), &self.name_of(kind), how[self.c.below(5) as usize])
            }
        }
    }

    fn change_data(&self) -> Result<(), Error> {
        let (fs, kind, (at, len)) = (self.fs, self.c.below(2), self.range());
        let Some(f) = self.file(kind) else { return Ok(()) };
        let ino = f.stat.ino;
        match self.c.below(16) {
            0..5 => {
                let bytes: Vec<u8> = (0..len / BLOCK).flat_map(|_| block(kind, self.c.below(1 << 40))).collect();
                let how = [IoMode::Buffered, IoMode::DropBehind, IoMode::Direct][self.c.below(3) as usize];
                fs.write_with(ino, at, &bytes, false, how).map(drop)
            }
            5 => fs.setattr(ino, SetAttr { size: Some(self.c.below(LONGEST / 8) * 8), ..SetAttr::default() }).map(drop),
            6 => fs.setattr(ino, SetAttr { size: Some(at), ..SetAttr::default() }).map(drop),
            7..9 => {
                let keep_size = self.c.below(2) == 0;
                let what = [
                    Allocate::Reserve { keep_size },
                    Allocate::Punch,
                    Allocate::Zero { keep_size },
                    Allocate::Collapse,
                    Allocate::Insert,
                    Allocate::Unshare,
                ][self.c.below(6) as usize];
                if matches!(what, Allocate::Insert) && fs.stat(ino)?.size > LONGEST {
                    return Ok(());
                }
                fs.fallocate(ino, what, at, len)
            }
            9..13 => {
                let (other, (to, _)) = (self.file(kind).unwrap().stat.ino, self.range());
                match self.c.below(5) {
                    0 => fs.clone_range((ino, at), (other, to), len),
                    1 => fs.copy_range((ino, at), (other, to), len).map(drop),
                    2 => fs.dedupe_range((ino, at), (other, to), len).map(drop),
                    3 => fs.exchange_range((ino, at), (other, to), Some(len)),
                    _ => fs.exchange_range((ino, 0), (other, 0), None),
                }
            }
            13 => fs.extents(ino).map(drop),
            14 => fs.fsync(ino),
            _ => self.look(f, at),
        }
    }

    fn look(&self, f: &Known, at: u64) -> Result<(), Error> {
        let mut read = vec![0; BLOCK as usize];
        let n = self.fs.read(f.stat.ino, at, &mut read)?;
        assert!(is_of_kind(f.kind, &read[..n]), "inode {} at {at}: {:x?}, of kind {}", f.stat.ino, &read[..16], f.kind);
        Ok(())
    }

    fn change_attributes(&self) -> Result<(), Error> {
        let fs = self.fs;
        let Some(k) = self.any() else { return Ok(()) };
        let ino = k.stat.ino;
        let name = format!("attribute {}", self.c.below(4));
        let name = AttrName { namespace: 0, name: name.as_bytes() };
        match self.c.below(10) {
            0..3 => {
                let len = [10, 300, 5000][self.c.below(3) as usize];
                let how = [SetMode::Any, SetMode::Any, SetMode::Create, SetMode::Replace][self.c.below(4) as usize];
                fs.set_attr(ino, name, &vec![7; len], how)
            }
            3 => fs.remove_attr(ino, name),
            4 => fs.get_attr(ino, name).map(drop),
            5 => fs.list_attrs(ino).map(drop),
            6 => fs.setattr(ino, SetAttr { mode: Some(0o600 + self.c.below(0o200) as u16), uid: Some(1), ..SetAttr::default() }).map(drop),
            7 => {
                let entry = |tag, perm| AclEntry { tag, perm, id: if tag == acl_tag::USER { 7 } else { u32::MAX } };
                let all = [acl_tag::USER_OBJ, acl_tag::USER, acl_tag::GROUP_OBJ, acl_tag::MASK, acl_tag::OTHER];
                let acl = Acl::new(all.map(|tag| entry(tag, self.c.below(8) as u16)).into()).unwrap();
                fs.set_acl(ino, false, (self.c.below(4) > 0).then_some(&acl))
            }
            8 => {
                let old = fs.file_flags(ino)?;
                let bits = [xflag::NODUMP, xflag::SYNC, xflag::EXTSIZE, xflag::NOATIME][self.c.below(4) as usize];
                fs.set_file_flags(ino, FileFlags { bits: old.bits ^ bits, extsize: 4 * BLOCK as u32, ..old })
            }
            _ => fs.remove_capabilities(ino),
        }
    }

    fn look_around(&self) -> Result<(), Error> {
        let (fs, (name, kind)) = (self.fs, self.name());
        let s = fs.lookup(self.dir(), &name)?;
        match s.mode & 0o170_000 {
            0o040_000 => {
                let mut names = Vec::new();
                fs.readdir(s.ino, 0, &mut |e| {
                    names.push(e.name.to_vec());
                    true
                })?;
                let all = names.len();
                names.sort();
                names.dedup();
                assert!(names.len() == all || all > self.names as usize, "a name twice: {names:?}");
                Ok(())
            }
            0o120_000 => {
                // Its number may be another's by now, unless it is held.
                let target = fs.readlink(s.ino)?;
                assert!(target.iter().all(|b| *b == b'x'), "{target:?}");
                Ok(())
            }
            0o100_000 => {
                fs.hold(s.ino, s.generation)?;
                let r = self.look(&Known { stat: s, kind }, self.range().0);
                fs.forget(s.ino, 1)?;
                r
            }
            _ => Ok(()),
        }
    }

    fn step(&mut self) {
        let r = match self.c.below(self.all) {
            0..25 => self.change_names(),
            25..27 => self.look_around(),
            27 if self.c.below(10) == 0 => self.fs.trim(0).map(drop),
            27 => self.fs.sync(),
            28..40 => self.get_to_know(),
            40..52 => self.change_attributes(),
            _ => self.change_data(),
        };
        match r {
            Ok(()) => self.done += 1,
            Err(
                Error::NotFound
                | Error::Exists
                | Error::Stale
                | Error::IsDirectory
                | Error::NotDirectory
                | Error::NotEmpty
                | Error::NoSpace
                | Error::NoAttribute
                | Error::NotPermitted
                | Error::Invalid { .. }
                | Error::Unsupported { .. },
            ) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

/// Lets the trees of a volume get a second level: many names in the root, and free blocks and shared ones between others. None of it has a
/// name that a worker would know.
fn grow_old(fs: &Fs) -> Result<(), Error> {
    let (root, block) = (fs.root(), u64::from(fs.geometry().blocksize));
    let name = |n: u64| format!("old {n}");
    let [old, pieces, one, other] = [0, 1, 2, 3].map(|n| fs.create(root, name(n).as_bytes(), file(0o600)).map(|s| s.ino));
    let (old, pieces, one, other) = (old?, pieces?, one?, other?);
    (4..600).try_for_each(|n| fs.link(old, root, name(n).as_bytes()).map(drop))?;
    let more_than = |record| (block - 56) / record * 9 / 8;
    let holes = |f, n| (0..n).try_for_each(|n| fs.fallocate(f, Allocate::Punch, 2 * n * block, block));
    fs.fallocate(pieces, Allocate::Reserve { keep_size: false }, 0, 2 * more_than(8) * block)?;
    holes(pieces, more_than(8))?;
    let shared = vec![1; (2 * more_than(12) * block) as usize];
    fs.write(one, 0, &shared, false)?;
    fs.clone_range((one, 0), (other, 0), shared.len() as u64)?;
    holes(other, more_than(12))
}

/// Volumes of several ages, with much room and with little.
fn volume(seed: u64) -> Arc<Memory> {
    let features = if seed.is_multiple_of(3) { Features::V6_1 } else { Features::NEWEST };
    let block = if seed % 5 < 2 { 1024 } else { BLOCK as u32 };
    let dev = in_memory(32 * MIB, block, 1 + (seed % 2) as u32, features);
    if seed % 3 == 1 {
        let fs = open(dev.clone(), seed);
        grow_old(&fs).unwrap();
        fs.unmount().unwrap();
    }
    if seed % 4 == 1 {
        let fs = open(dev.clone(), seed);
        let f = fs.create(fs.root(), b"filler", file(0o600)).unwrap().ino;
        let free = fs.statfs().free * u64::from(block);
        fs.fallocate(f, Allocate::Reserve { keep_size: false }, 0, free - 2 * MIB).unwrap();
        fs.unmount().unwrap();
    }
    dev
}

/// Threads at work, each of which does so many operations.
fn work(fs: &Fs, seed: u64, life: u64, each: u64) -> Result<(), String> {
    let done = std::thread::scope(|s| {
        let workers = (0..4u64).map(|t| {
            let c = Chance::seeded(seed << 8 | life << 4 | t);
            let names = [2, 8, 40, 300][(seed % 7 / 2) as usize];
            // What nobody looks after gives its number away at once.
            let all = [100, 100, 28, 52][(seed % 4) as usize];
            let mut w = Worker { fs, c, known: Vec::new(), names, all, done: 0 };
            s.spawn(move || {
                (0..each).for_each(|_| w.step());
                for k in &w.known {
                    w.fs.forget(k.stat.ino, 1).unwrap();
                }
                w.done
            })
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().map(|w| w.join().ok()).sum::<Option<u64>>()
    });
    if let Some(why) = fs.shutdown_reason() {
        return Err(why);
    }
    let done = done.ok_or("a worker failed")?;
    assert!(done > each, "seed {seed}, life {life}: only {done} operations succeeded");
    Ok(())
}

/// Three lives of a volume, the second of which ends in a crash: what forms it had.
fn lives(seed: u64) -> Result<Forms, String> {
    let dev = volume(seed);
    let mut forms = Forms::default();
    for life in 0..3u64 {
        let say = |e: String| format!("seed {seed}, life {life}: {e}");
        let fs = open(dev.clone(), seed);
        work(&fs, seed, life, 1000).map_err(say)?;
        fs.sync().unwrap();
        assert_eq!(stat(&fs, "dirty_bytes"), 0, "seed {seed}, life {life}");
        forms.add(&try_end_life(fs, &dev, life == 1).map_err(say)?);
    }
    Ok(forms)
}

/// Looks into all files below a directory, each of which says by its name what it may hold.
fn look_into_files(fs: &Fs, dir: u64) -> Result<(), String> {
    let say = |e: Error| e.to_string();
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |e| {
        names.push(e.name.to_vec());
        true
    })
    .map_err(say)?;
    for name in names.iter().filter(|n| n[0].is_ascii_digit()) {
        let s = fs.lookup(dir, name).map_err(say)?;
        let digits: Vec<u8> = name.iter().copied().take_while(u8::is_ascii_digit).collect();
        let kind = u64::from(digits.last().unwrap() & 1);
        match s.mode & 0o170_000 {
            0o040_000 => look_into_files(fs, s.ino)?,
            0o100_000 => {
                let mut read = vec![0; s.size as usize];
                let n = fs.read(s.ino, 0, &mut read).map_err(say)?;
                if n < read.len() || !is_of_kind(kind, &read) {
                    return Err(format!("inode {} of {} bytes, of which {n} were read, holds what is not of kind {kind}", s.ino, s.size));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A power cut at any moment leaves a sound volume, and no file with what belongs to others: what forms were there.
fn cuts(seed: u64) -> Result<Forms, String> {
    let mut forms = Forms::default();
    let dev = volume(seed);
    let recorder = Arc::new(Recorder::new(dev.clone()).unwrap());
    let fs = open(recorder.clone(), seed);
    work(&fs, seed, 3, 250)?;
    fs.shut_down().map_err(|e| e.to_string())?;
    drop(fs);
    let (trace, c) = (recorder.trace(), Chance::seeded(seed));
    for n in 0..30 {
        let cut = c.below(trace.events.len() as u64 + 1) as usize;
        let keep = [0, 100, 50][n % 3];
        let say = |e: String| format!("seed {seed}, cut {cut} of {}: {e}", trace.events.len());
        let image = trace.image_at(cut, 512, &mut |_, sectors| (0..sectors).map(|_| c.below(100) < keep).collect()).unwrap();
        let image = Arc::new(image);
        let fs = Fs::open(image.clone() as DeviceRef, Options { commit: 0, ..Options::default() }).map_err(|e| say(e.to_string()))?;
        look_into_files(&fs, fs.root()).map_err(say)?;
        forms.add(&try_end_life(fs, &image, false).map_err(say)?);
    }
    Ok(forms)
}

/// Ends the process if that takes as long as it takes only if threads wait for each other: a debugger shows where.
fn in_time<T>(seed: u64, f: impl FnOnce() -> T) -> T {
    let (begun, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(Duration::from_secs(180)) {
            eprintln!("seed {seed}: threads wait for each other");
            std::process::abort();
        }
    });
    let t = f();
    drop(begun);
    t
}

/// Volumes of so many seeds; everything there is was in each of its forms.
fn all_forms(few: u64, many: u64) {
    let mut forms = Forms::default();
    for seed in seeds(few, many) {
        forms.add(&in_time(seed, || lives(seed)).unwrap());
        forms.add(&in_time(seed, || cuts(seed)).unwrap());
    }
    forms.iter().for_each(|(form, height, number)| println!("{form} {height}: {number}"));
    assert_eq!(forms.missing(&WANTED), []);
}

// With the switches there is the test below.
#[cfg(not(uxfs_holes))]
#[test]
fn whatever_threads_do_to_the_same_files_the_volume_is_sound() {
    all_forms(6, 200);
}

/// The same with long moments between a look and a lock; and one that is not looked at again is found.
#[cfg(uxfs_holes)]
#[test]
fn who_lingers_before_a_lock_looks_again() {
    use uxfs::{Hole, set_hole};
    uxfs_sync::linger_one_in(20);
    all_forms(6, 60);
    let found = |hole, find: &mut dyn FnMut() -> Option<String>| {
        set_hole(hole, true);
        let found = find();
        set_hole(hole, false);
        println!("{hole:?}: {}", found.unwrap_or_else(|| panic!("{hole:?} is not found")));
    };
    // Two names, and all that is done is to make and remove what they lead to.
    found(Hole::EarlyLook, &mut || (0..40).map(|n| 14 + 28 * n).find_map(|seed| lives(seed).err()));
    found(Hole::CommitWithoutPreflush, &mut || (0..40).map(|n| 4 * n).find_map(|seed| cuts(seed).err()));
}
