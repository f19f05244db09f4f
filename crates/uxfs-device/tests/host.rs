//! Files and block devices of the host behave as the device in memory, whatever of the host is used.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use uxfs_device::{Class, Device, FileDevice, Host, Memory, OpenMode, Overlay, WriteFlags, WriteRequest};
use uxfs_sync::Chance;

const SIZE: u64 = 8 << 20;

/// A file of its own for each test, removed afterwards.
struct Image(PathBuf);

impl Image {
    fn new(name: &str) -> Image {
        let p = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("host-{name}-{}", std::process::id()));
        std::fs::File::create(&p).and_then(|f| f.set_len(SIZE)).expect("an image");
        Image(p)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A loop device over an image, detached afterwards.
struct Loop(PathBuf, #[expect(dead_code, reason = "lives as long as its device")] Image);

impl Loop {
    fn new(name: &str, sector: u32) -> Loop {
        let image = Image::new(name);
        let out = Command::new("losetup")
            .args(["-f", "--show", "-b", &sector.to_string()])
            .arg(&image.0)
            .output()
            .expect("losetup (package mount)");
        assert!(out.status.success(), "losetup: {} (it needs root)", String::from_utf8_lossy(&out.stderr));
        Loop(PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()), image)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// Bytes that lie where direct I/O can use them, or not quite.
struct Placed {
    all: Vec<u8>,
    at: usize,
    len: usize,
}

impl Placed {
    fn new(len: usize, aligned: bool) -> Placed {
        let all = vec![0; len + 2 * 4096];
        Placed { at: all.as_ptr().align_offset(4096) + if aligned { 0 } else { 8 }, all, len }
    }
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.all[self.at..][..self.len]
    }
}

/// Random writes, single and in batches, of sectors and of runs longer than a buffer, from wherever in memory, compared with the device in
/// memory.
fn behaves(dev: &dyn Device, seed: u64) {
    let model = Memory::new(SIZE);
    let rnd = Chance::seeded(seed);
    let below = |n: u64| rnd.below(n);
    let mut sizes = [0; 3];
    for round in 0..200 {
        let mut at = below(64) * 512;
        let mut pieces: Vec<(u64, Placed)> = (0..1 + below(100))
            .map_while(|_| {
                let kind = below(40);
                let len = match kind {
                    0 => 512 * (1 + below(4000)),
                    1..10 => 4096 * (1 + below(16)),
                    _ => 512 * (1 + below(8)),
                };
                sizes[if kind == 0 { 2 } else { usize::from(kind < 10) }] += 1;
                let start = if kind == 1 { at.next_multiple_of(4096) } else { at };
                // Half of them lie behind each other.
                at = start + len + below(2) * below(40) * 512;
                let mut data = Placed::new(len as usize, below(2) == 0);
                data.bytes().iter_mut().zip(0..).for_each(|(b, i)| *b = (i / 512 + start + round) as u8);
                (start + len <= SIZE).then_some((start, data))
            })
            .collect();
        let requests: Vec<_> = pieces.iter_mut().map(|(offset, data)| WriteRequest { offset: *offset, data: data.bytes() }).collect();
        let class = [Class::Background, Class::Fsync, Class::Journal][below(3) as usize];
        dev.write_many(&requests, class).expect("a batch");
        model.write_many(&requests, class).expect("a batch in memory");
        let flags = WriteFlags { preflush: below(9) == 0, fua: below(9) == 0 };
        let mut one = Placed::new(512 * (1 + below(9) as usize), below(2) == 0);
        one.bytes().fill(round as u8);
        let to = below(SIZE / 512 - 9) * 512;
        dev.write(to, one.bytes(), flags).expect("a write");
        model.write(to, one.bytes(), flags).expect("a write in memory");
        // Whole sectors, or not.
        let unit = [1, 4096][below(2) as usize];
        let (from, len) = (below(SIZE - (3 << 20)) / unit * unit, below(3 << 20) / unit * unit);
        let (mut a, mut b) = (Placed::new(len as usize, below(2) == 0), vec![2; len as usize]);
        dev.read(from, a.bytes()).expect("a read");
        model.read(from, &mut b).expect("a read in memory");
        assert!(a.bytes() == b, "round {round}: {len} bytes at {from} differ");
    }
    assert!(sizes.iter().all(|n| *n > 20), "not all sizes were reached: {sizes:?}");
    dev.flush().expect("a flush");
    assert!(dev.read(SIZE - 1, &mut [0; 2]).is_err() && dev.write(SIZE, &[0; 512], WriteFlags::default()).is_err());
    assert!(dev.write_many(&[WriteRequest { offset: u64::MAX - 5, data: &[0; 512] }], Class::Fsync).is_err());
    assert!(dev.read(u64::MAX - 1, &mut [0; 8]).is_err());
}

fn all_ways(path: &Path, seed: u64, sector: u32) {
    for (uring, direct) in [(true, false), (false, false), (true, true), (false, true)] {
        let dev = FileDevice::open_with(path, OpenMode::ReadWrite, Host { uring, direct }).expect("the device");
        assert_eq!(dev.is_direct(), direct, "{}: direct I/O", path.display());
        assert!(uring || !dev.uses_uring());
        assert_eq!(dev.sector_bytes(), sector);
        // What another way left there is no part of the model.
        let zeros = vec![0; SIZE as usize];
        dev.write_many(&[WriteRequest { offset: 0, data: &zeros }], Class::Fsync).expect("zeros");
        behaves(&dev, seed);
        assert!(FileDevice::open(path, OpenMode::ReadOnly).is_err(), "a second opener of a device that is written");
    }
}

/// An overlay with room for a few pages in memory spills the rest, and leaves its base alone.
#[test]
fn an_overlay_behaves_and_spills() {
    let base = Arc::new(Memory::new(SIZE));
    base.write(0, &[9; 4096], WriteFlags::default()).expect("the base");
    let overlay = Overlay::new(base.clone(), 64 << 10);
    overlay.write(0, &[0; 4096], WriteFlags::default()).expect("a write");
    behaves(&overlay, 4);
    let mut all = vec![0; SIZE as usize];
    base.read(0, &mut all).expect("the base");
    assert!(all[..4096].iter().all(|b| *b == 9) && all[4096..].iter().all(|b| *b == 0), "the base was written");
}

#[test]
fn a_file_behaves() {
    let image = Image::new("file");
    all_ways(&image.0, 1, 512);
}

#[test]
fn a_block_device_behaves() {
    let l = Loop::new("loop", 512);
    all_ways(&l.0, 2, 512);
}

/// Sectors of 4 KiB on the host: what covers them in part is right, too, from several threads.
#[test]
fn a_device_of_large_sectors_behaves() {
    let l = Loop::new("large", 4096);
    all_ways(&l.0, 3, 4096);
    let dev = FileDevice::open_with(&l.0, OpenMode::ReadWrite, Host { uring: true, direct: true }).expect("the device");
    std::thread::scope(|s| {
        for t in 0..8u8 {
            let dev = &dev;
            s.spawn(move || {
                for i in 0..200 {
                    dev.write(u64::from(t) * 512, &[t + i; 512], WriteFlags::default()).expect("a sector");
                }
            });
        }
    });
    let mut all = [0; 4096];
    dev.read(0, &mut all).expect("a read");
    for (t, sector) in all.chunks(512).enumerate() {
        assert!(sector.iter().all(|b| *b == t as u8 + 199), "sector {t} was overwritten by a neighbour");
    }
}

#[test]
fn discarded_space_goes_back_to_the_host() {
    let image = Image::new("discard");
    let dev = FileDevice::open(&image.0, OpenMode::ReadWrite).expect("the image");
    dev.write(0, &vec![7; 1 << 20], WriteFlags::default()).expect("a write");
    dev.flush().expect("a flush");
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&image.0).expect("metadata"));
    let before = blocks();
    dev.discard(0, 1 << 20).expect("a discard");
    assert!(before >= 2048 && blocks() < 64, "{before} blocks before, {} after", blocks());
    let l = Loop::new("discard-loop", 512);
    let dev = FileDevice::open(&l.0, OpenMode::ReadWrite).expect("the loop device");
    dev.write(0, &vec![7; 1 << 20], WriteFlags::default()).expect("a write");
    dev.flush().expect("a flush");
    dev.discard(0, 1 << 20).expect("a discard");
    let mut b = [1; 512];
    dev.read(4096, &mut b).expect("a read");
    assert_eq!(b, [0; 512]);
}
