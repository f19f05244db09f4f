//! A random exerciser of file data against a model in memory; the kernel and xfs_repair look at what is left.

mod common;

use common::*;
use std::sync::Arc;
use uxfs::{Allocate, DropBehind, Error, Fs, IoLock, IoMode, OpLock, OpenFile, Options, Seek, SetAttr};
use uxfs_sync::Chance;

/// Longest file of the exerciser.
const MOST: u64 = 3 << 20;

/// Through the cache, through it and out again, or past it.
fn mode(c: &Chance) -> IoMode {
    IoMode::ALL[c.below(3) as usize]
}

struct File {
    fs: Arc<Fs>,
    open: OpenFile,
    model: Vec<u8>,
    /// There is not room for all that is written.
    full: bool,
    /// Writes for which there was not.
    short: u32,
}

/// Operations that a volume without room does or refuses as a whole, or a write, which says how far it came.
const WITHOUT_ROOM: [u64; 12] = [0, 1, 2, 3, 4, 5, 10, 11, 14, 15, 17, 18];

impl File {
    fn fit(&mut self, end: u64) {
        self.model.resize(self.model.len().max(end as usize), 0);
    }

    /// The volume is mounted again.
    fn again(self, img: &Image, o: Options) -> File {
        let (ino, fs) = (self.open.ino(), self.fs);
        drop(self.open);
        fs.close().unwrap();
        drop(fs);
        let fs = Arc::new(img.open_with(o));
        File { open: fs.open_file(ino, IoMode::Buffered).unwrap(), fs, ..self }
    }

    /// What became of a write of `data` at `off`.
    fn wrote(&mut self, off: u64, data: &[u8], n: uxfs::Result<usize>) {
        let n = match n {
            Err(Error::NoSpace) if self.full => 0,
            n => n.unwrap(),
        };
        self.short += u32::from(n < data.len());
        assert!(n == data.len() || self.full, "only {n} of {} bytes", data.len());
        if n > 0 {
            self.fit(off + n as u64);
            self.model[off as usize..][..n].copy_from_slice(&data[..n]);
        }
    }

    /// One operation; returns its name.
    fn step(&mut self, c: &Chance, bs: u64) -> &'static str {
        let (fs, ino) = (self.fs.clone(), self.open.ino());
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
        let some = |from: u64, to: u64| -> Vec<u8> { (from..to).map(|i| (i ^ (i >> 8) ^ c.next_u64()) as u8).collect() };
        let how = mode(c);
        self.open.set_mode(how);
        let op = if self.full { WITHOUT_ROOM[c.below(WITHOUT_ROOM.len() as u64) as usize] } else { c.below(19) };
        match op {
            0..4 if off < end => {
                let data = some(off, end);
                let n = if keep_size { fs.write_with(ino, off, &data, false, how) } else { self.open.write(off, &data) };
                self.wrote(off, &data, n);
                "write"
            }
            17 | 18 => {
                // Whole blocks or not, most of the buffer or less.
                let (off, end) = if c.below(3) > 0 { (from, from + n) } else { (off, off + len) };
                let (data, before) = (some(off, end), c.below(n / 2) as usize);
                let mut buffer = fs.buffer(before + data.len());
                buffer[before..].copy_from_slice(&data);
                let part = before..before + data.len();
                let n = if keep_size { fs.write_given(ino, off, buffer, part, how) } else { self.open.write_given(off, buffer, part) };
                self.wrote(off, &data, n);
                "given"
            }
            14 | 15 if size + len < MOST => {
                let data = some(size, size + len);
                let n = if keep_size { fs.write_with(ino, 0, &data, true, how) } else { self.open.append(&data) };
                self.wrote(size, &data, n);
                "append"
            }
            4 => {
                fs.setattr(ino, SetAttr { size: Some(off), ..SetAttr::default() }).unwrap();
                self.model.resize(off as usize, 0);
                "truncate"
            }
            5 => {
                fs.fallocate(ino, Allocate::Punch, off, len).unwrap();
                range(&mut self.model, off + len);
                "punch"
            }
            6 => {
                fs.fallocate(ino, Allocate::Zero { keep_size }, off, len).unwrap();
                if !keep_size {
                    self.fit(off + len);
                }
                range(&mut self.model, off + len);
                "zero"
            }
            7 => {
                fs.fallocate(ino, Allocate::Reserve { keep_size }, off, len).unwrap();
                if !keep_size {
                    self.fit(off + len);
                }
                "reserve"
            }
            8 if from + n < size => {
                fs.fallocate(ino, Allocate::Collapse, from, n).unwrap();
                self.model.drain(from as usize..(from + n) as usize);
                "collapse"
            }
            9 if from < size && size + n < MOST => {
                fs.fallocate(ino, Allocate::Insert, from, n).unwrap();
                self.model.splice(from as usize..from as usize, std::iter::repeat_n(0, n as usize));
                "insert"
            }
            10 => {
                if keep_size { fs.fsync(ino) } else { self.open.fsync() }.unwrap();
                "fsync"
            }
            11 => {
                // A hole or data must be where they are told to be: what is a hole reads as zeros.
                if let Some(at) = fs.seek(ino, off, Seek::Hole).unwrap()
                    && at < size
                {
                    let to = fs.seek(ino, at, Seek::Data).unwrap().unwrap_or(size);
                    assert!(self.model[at as usize..to as usize].iter().all(|b| *b == 0), "data in a hole {at}..{to}");
                }
                "seek"
            }
            12 if from + n <= size && !(from < blocks(off / 2) + n && blocks(off / 2) < from + n) => {
                let to = blocks(off / 2);
                fs.clone_range((ino, from), (ino, to), n).unwrap();
                self.fit(to + n);
                self.model.copy_within(from as usize..(from + n) as usize, to as usize);
                "clone"
            }
            13 if from + n <= size && !(from < off / 3 + n && off / 3 < from + n) => {
                let done = fs.copy_range((ino, from), (ino, off / 3), n).unwrap();
                self.fit(off / 3 + done);
                self.model.copy_within(from as usize..(from + done) as usize, (off / 3) as usize);
                "copy"
            }
            _ => "nothing",
        }
    }

    fn compare(&self, what: &str, c: &Chance) {
        let (fs, mode) = (&self.fs, mode(c));
        assert_eq!(fs.stat(self.open.ino()).unwrap().size, self.model.len() as u64, "size after {what}");
        let mut data = vec![1; self.model.len() + 100];
        self.open.set_mode(mode);
        let n = if c.below(2) == 0 { self.open.read(0, &mut data) } else { fs.read_with(self.open.ino(), 0, &mut data, mode) }.unwrap();
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
    Options {
        memory,
        metadata: seed.is_multiple_of(4).then_some(0),
        drop_behind: DropBehind::ALL[of(1)],
        io_lock: IoLock::ALL[of(3)],
        op_lock: OpLock::ALL[of(2)],
        ..Options::default()
    }
}

fn exercise(img: &Image, steps: u64, seed: u64, full: bool) {
    let c = Chance::seeded(seed);
    let fs = Arc::new(img.open_with(options(seed)));
    let bs = u64::from(fs.geometry().blocksize);
    if full {
        // Half of what the file may become.
        let ino = fs.create(fs.root(), b"filler", file(0o644)).unwrap().ino;
        let room = free(&fs) * bs - MOST / 2;
        fs.fallocate(ino, Allocate::Reserve { keep_size: false }, 0, room).unwrap();
    }
    let ino = fs.create(fs.root(), b"file", file(0o644)).unwrap().ino;
    let mut f = File { open: fs.open_file(ino, IoMode::Buffered).unwrap(), fs, model: Vec::new(), full, short: 0 };
    let mut counts = std::collections::BTreeMap::<&str, u32>::new();
    for i in 0..steps {
        let what = f.step(&c, bs);
        *counts.entry(what).or_default() += 1;
        if i % 7 == 0 {
            f.compare(&format!("{what}, step {i} of seed {seed},"), &c);
        }
        if i % 150 == 149 {
            f = f.again(img, options(seed + i));
            f.compare("mounting again", &c);
        }
    }
    assert!(f.short > 0 || !full, "there was room for everything");
    let kinds = if full { 6 } else { 13 };
    assert!(counts.len() >= kinds && counts.values().all(|n| *n >= 5), "not everything was done: {counts:?}");
    let File { fs, open, model, .. } = f;
    drop(open);
    fs.close().unwrap();
    drop(fs);
    img.repair_is_silent();
    let report = uxfs_check::check(&*img.device()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
    let k = img.kernel_mount();
    assert!(std::fs::read(k.path("file")).unwrap() == model, "the kernel reads something else");
}

/// 8 100 operations; with `UXFS_LONG` a million and a half.
#[test]
fn a_file_is_what_was_done_to_it() {
    let (seeds, steps) = if std::env::var_os("UXFS_LONG").is_some() { (50, 10_000) } else { (3, 900) };
    for seed in 0..seeds {
        exercise(&Image::theirs("exercise", 300 << 20, &["-q"]), steps, seed, false);
        exercise(&Image::theirs("exercise-rmap", 300 << 20, &["-q", "-m", "rmapbt=1", "-i", "nrext64=1"]), steps, seed + 100, false);
        exercise(&Image::theirs("exercise-full", 300 << 20, &["-q"]), steps, seed + 200, true);
    }
}

#[test]
fn a_write_past_the_cache_for_whose_end_there_is_no_room_says_how_far_it_came() {
    let img = Image::theirs("direct-short", 300 << 20, &["-q"]);
    let fs = img.open();
    let ino = fs.create(fs.root(), b"file", file(0o644)).unwrap().ino;
    fs.write(ino, 0, &[1; 4 * 4096], false).unwrap();
    fs.setattr(ino, SetAttr { size: Some(5 * 4096), ..SetAttr::default() }).unwrap();
    fs.sync().unwrap();
    let filler = fs.create(fs.root(), b"filler", file(0o644)).unwrap().ino;
    fs.fallocate(filler, Allocate::Reserve { keep_size: true }, 1 << 30, free(&fs) * 4096 - (1 << 20)).unwrap();
    while fs.write_with(filler, 0, &[2; 4096], true, IoMode::Buffered).is_ok() {}
    // Its first block is written in part, three as a whole; the last one is a hole.
    let done = fs.write_with(ino, 100, &[3; 5 * 4096 - 200], false, IoMode::Direct).unwrap();
    assert_eq!(done, 4 * 4096 - 100);
    let mut data = vec![9; 5 * 4096];
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), data.len());
    let good = [vec![1; 100], vec![3; done], vec![0; 4096]].concat();
    assert!(data == good);
    fs.unmount().unwrap();
    img.repair_is_silent();
    assert!(std::fs::read(img.kernel_mount().path("file")).unwrap() == good);
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
