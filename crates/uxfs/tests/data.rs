//! A random exerciser of file data against a model in memory; the kernel and xfs_repair look at what is left.

mod common;

use common::*;
use uxfs::{Allocate, DropBehind, Fs, IoLock, IoMode, OpLock, Options, Seek, SetAttr};
use uxfs_sync::Chance;

/// Longest file of the exerciser.
const MOST: u64 = 3 << 20;

/// Through the cache, through it and out again, or past it.
fn mode(c: &Chance) -> IoMode {
    IoMode::ALL[c.below(3) as usize]
}

struct File {
    ino: u64,
    model: Vec<u8>,
}

impl File {
    fn fit(&mut self, end: u64) {
        self.model.resize(self.model.len().max(end as usize), 0);
    }

    /// One operation; returns its name.
    fn step(&mut self, fs: &Fs, c: &Chance, bs: u64) -> &'static str {
        let size = self.model.len() as u64;
        let off = c.below(MOST);
        let len = 1 + if c.below(3) == 0 { c.below(300_000) } else { c.below(3 * bs) };
        let end = (off + len).min(MOST);
        let blocks = |x: u64| x / bs * bs;
        let (from, n) = (blocks(off), blocks(len).max(bs));
        let keep_size = c.below(2) == 0;
        let range = |m: &mut Vec<u8>, end: u64| {
            let (s, e) = (off.min(m.len() as u64) as usize, end.min(m.len() as u64) as usize);
            m[s..e].fill(0);
        };
        match c.below(15) {
            0..4 if off < end => {
                let data: Vec<u8> = (off..end).map(|i| (i ^ (i >> 8) ^ c.next_u64()) as u8).collect();
                fs.write_with(self.ino, off, &data, false, mode(c)).unwrap();
                self.fit(end);
                self.model[off as usize..end as usize].copy_from_slice(&data);
                "write"
            }
            4 => {
                fs.setattr(self.ino, SetAttr { size: Some(off), ..SetAttr::default() }).unwrap();
                self.model.resize(off as usize, 0);
                "truncate"
            }
            5 => {
                fs.fallocate(self.ino, Allocate::Punch, off, len).unwrap();
                range(&mut self.model, off + len);
                "punch"
            }
            6 => {
                fs.fallocate(self.ino, Allocate::Zero { keep_size }, off, len).unwrap();
                if !keep_size {
                    self.fit(off + len);
                }
                range(&mut self.model, off + len);
                "zero"
            }
            7 => {
                fs.fallocate(self.ino, Allocate::Reserve { keep_size }, off, len).unwrap();
                if !keep_size {
                    self.fit(off + len);
                }
                "reserve"
            }
            8 if from + n < size => {
                fs.fallocate(self.ino, Allocate::Collapse, from, n).unwrap();
                self.model.drain(from as usize..(from + n) as usize);
                "collapse"
            }
            9 if from < size && size + n < MOST => {
                fs.fallocate(self.ino, Allocate::Insert, from, n).unwrap();
                self.model.splice(from as usize..from as usize, std::iter::repeat_n(0, n as usize));
                "insert"
            }
            10 => {
                fs.fsync(self.ino).unwrap();
                "fsync"
            }
            11 => {
                // A hole or data must be where they are told to be: what is a hole reads as zeros.
                if let Some(at) = fs.seek(self.ino, off, Seek::Hole).unwrap()
                    && at < size
                {
                    let to = fs.seek(self.ino, at, Seek::Data).unwrap().unwrap_or(size);
                    assert!(self.model[at as usize..to as usize].iter().all(|b| *b == 0), "data in a hole {at}..{to}");
                }
                "seek"
            }
            12 if from + n <= size && !(from < blocks(off / 2) + n && blocks(off / 2) < from + n) => {
                let to = blocks(off / 2);
                fs.clone_range((self.ino, from), (self.ino, to), n).unwrap();
                self.fit(to + n);
                self.model.copy_within(from as usize..(from + n) as usize, to as usize);
                "clone"
            }
            13 if from + n <= size && !(from < off / 3 + n && off / 3 < from + n) => {
                let done = fs.copy_range((self.ino, from), (self.ino, off / 3), n).unwrap();
                self.fit(off / 3 + done);
                self.model.copy_within(from as usize..(from + done) as usize, (off / 3) as usize);
                "copy"
            }
            _ => "nothing",
        }
    }

    fn compare(&self, fs: &Fs, what: &str, mode: IoMode) {
        assert_eq!(fs.stat(self.ino).unwrap().size, self.model.len() as u64, "size after {what}");
        let mut data = vec![1; self.model.len() + 100];
        let n = fs.read_with(self.ino, 0, &mut data, mode).unwrap();
        assert_eq!(n, self.model.len());
        if let Some(at) = (0..n).find(|i| data[*i] != self.model[*i]) {
            panic!("byte {at} is {} after {what}, not {}", data[at], self.model[at]);
        }
    }
}

/// Each seed with another choice of what there is to choose, and every other one with the least memory.
fn options(seed: u64) -> Options {
    let of = |n: u64| (seed / n % 3) as usize;
    let memory = if seed.is_multiple_of(2) { uxfs::DEFAULT_MEMORY } else { uxfs::LEAST_MEMORY };
    Options { memory, drop_behind: DropBehind::ALL[of(1)], io_lock: IoLock::ALL[of(3)], op_lock: OpLock::ALL[of(2)], ..Options::default() }
}

fn exercise(img: &Image, steps: u64, seed: u64) {
    let c = Chance::seeded(seed);
    let mut fs = img.open_with(options(seed));
    let bs = u64::from(fs.geometry().blocksize);
    let mut f = File { ino: fs.create(fs.root(), b"file", file(0o644)).unwrap().ino, model: Vec::new() };
    let mut counts = std::collections::BTreeMap::<&str, u32>::new();
    for i in 0..steps {
        let what = f.step(&fs, &c, bs);
        *counts.entry(what).or_default() += 1;
        if i % 7 == 0 {
            f.compare(&fs, what, mode(&c));
        }
        if i % 150 == 149 {
            fs.unmount().unwrap();
            fs = img.open_with(options(seed + i));
            f.compare(&fs, "mounting again", mode(&c));
        }
    }
    assert!(counts.len() == 12 && counts.values().all(|n| *n >= 5), "not everything was done: {counts:?}");
    fs.unmount().unwrap();
    img.repair_is_silent();
    let report = uxfs_check::check(&*img.device()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
    let k = img.kernel_mount();
    assert!(std::fs::read(k.path("file")).unwrap() == f.model, "the kernel reads something else");
}

/// 5 400 operations; with `UXFS_LONG` a million.
#[test]
fn a_file_is_what_was_done_to_it() {
    let (seeds, steps) = if std::env::var_os("UXFS_LONG").is_some() { (50, 10_000) } else { (3, 900) };
    for seed in 0..seeds {
        exercise(&Image::theirs("exercise", 300 << 20, &["-q"]), steps, seed);
        exercise(&Image::theirs("exercise-rmap", 300 << 20, &["-q", "-m", "rmapbt=1", "-i", "nrext64=1"]), steps, seed + 100);
    }
}

/// Free blocks of a volume.
fn free(fs: &Fs) -> u64 {
    fs.statfs().free
}

/// What a block of a file is away from its place, if it is mapped: the same for neighbours that lie together.
fn shift(fs: &Fs, ino: u64, block: u64) -> u64 {
    let all = fs.extents(ino).unwrap();
    let e = all.iter().find(|e| e.offset <= block * 4096 && block * 4096 < e.offset + e.len).unwrap();
    e.start - e.offset
}

#[test]
fn copies_of_shared_blocks_lie_together_and_give_back_what_they_do_not_need() {
    let img = Image::new("staged", 500 << 20);
    let fs = img.open();
    let a = fs.create(fs.root(), b"a", file(0o644)).unwrap().ino;
    fs.write(a, 0, &[1; 4 << 20], false).unwrap();
    let b = fs.create(fs.root(), b"b", file(0o644)).unwrap().ino;
    fs.clone_range((a, 0), (b, 0), 4 << 20).unwrap();
    fs.sync().unwrap();
    let before = free(&fs);
    // One window, block by block, in no order.
    for i in 0..32u64 {
        let block = 64 + i * 13 % 32;
        fs.write(b, block * 4096, &[2; 4096], false).unwrap();
        fs.fsync(b).unwrap();
        if i == 0 {
            assert!((32..=34).contains(&(before - free(&fs))), "{} blocks are taken for a window", before - free(&fs));
        }
    }
    let all: Vec<u64> = (64..96).map(|block| shift(&fs, b, block)).collect();
    assert!(all.iter().all(|s| *s == all[0]), "{all:?}");
    assert!(before - free(&fs) <= 34, "{} blocks are taken", before - free(&fs));
    // A hint of 8 blocks; what is not used goes back when no write has come for a while.
    let now = free(&fs);
    fs.set_file_flags(b, uxfs::FileFlags { cowextsize: 8 * 4096, bits: uxfs::xflag::COWEXTSIZE, ..fs.file_flags(b).unwrap() }).unwrap();
    fs.write(b, 200 * 4096 + 5, b"part of a block", false).unwrap();
    fs.fsync(b).unwrap();
    assert!((8..=10).contains(&(now - free(&fs))), "{} blocks are taken for a window of the hint", now - free(&fs));
    fs.sync().unwrap();
    fs.sync().unwrap();
    assert!(now - free(&fs) <= 3, "{} blocks are still taken", now - free(&fs));
    // What is left at the end, and in files that go, goes back, too.
    fs.write(b, 300 * 4096, &[3; 4096], false).unwrap();
    fs.fsync(b).unwrap();
    let c = fs.create(fs.root(), b"c", file(0o644)).unwrap().ino;
    fs.clone_range((a, 0), (c, 0), 4 << 20).unwrap();
    fs.write(c, 0, &[4; 4096], false).unwrap();
    fs.fsync(c).unwrap();
    fs.unlink(fs.root(), b"c").unwrap();
    fs.unmount().unwrap();
    img.repair_is_silent();
    // A crash with blocks staged: recovery frees them.
    let fs = img.open();
    let last = free(&fs);
    fs.write(b, 500 * 4096, &[5; 4096], false).unwrap();
    fs.fsync(b).unwrap();
    assert!(last - free(&fs) >= 8);
    drop(fs);
    let theirs = img.copy("staged-theirs");
    drop(theirs.kernel_mount());
    theirs.repair_is_silent();
    let fs = img.open();
    assert!(fs.was_recovered() && last - free(&fs) <= 3, "{} blocks are lost", last - free(&fs));
    let mut got = vec![0; 4 << 20];
    fs.read(b, 0, &mut got).unwrap();
    let mut want = vec![1; 4 << 20];
    want[64 * 4096..96 * 4096].fill(2);
    want[200 * 4096 + 5..][..15].copy_from_slice(b"part of a block");
    want[300 * 4096..301 * 4096].fill(3);
    want[500 * 4096..501 * 4096].fill(5);
    assert!(got == want);
    fs.unmount().unwrap();
    img.repair_is_silent();
    let k = img.kernel_mount();
    assert!(std::fs::read(k.path("b")).unwrap() == want && std::fs::read(k.path("a")).unwrap() == vec![1; 4 << 20]);
}
