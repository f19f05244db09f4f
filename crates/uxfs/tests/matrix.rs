//! Every form that mkfs.xfs can make: worked on here and by the kernel in turn, cut off, recovered both ways, judged each time.

mod common;

use common::*;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use uxfs::{Allocate, AttrName, Fs, Make, Options, Rename, SetAttr, SetMode};

/// Options of mkfs.xfs. Each value stands beside several values of each other option.
const FORMS: &[&[&str]] = &[
    &[],
    &["-b", "size=1024", "-m", "rmapbt=1", "-n", "size=8192"],
    &["-b", "size=1024", "-i", "nrext64=1,sparse=0", "-m", "reflink=0", "-d", "agcount=3"],
    &["-b", "size=2048", "-m", "rmapbt=1,bigtime=0", "-i", "size=1024", "-n", "size=4096"],
    &["-b", "size=2048", "-s", "size=512", "-m", "inobtcount=0", "-i", "nrext64=1"],
    &["-b", "size=4096", "-s", "size=4096", "-m", "rmapbt=1", "-i", "nrext64=1"],
    &["-b", "size=4096", "-i", "size=2048,sparse=0", "-n", "size=65536", "-m", "reflink=0,rmapbt=1"],
    &["-b", "size=4096", "-d", "su=64k,sw=4", "-l", "su=256k", "-m", "bigtime=0"],
    &["-b", "size=4096", "-i", "size=1024", "-n", "size=16384", "-d", "agcount=7", "-m", "rmapbt=1"],
    &["-b", "size=8192", "-m", "rmapbt=1", "-i", "size=1024,nrext64=1"],
    &["-b", "size=16384", "-s", "size=4096", "-n", "size=65536", "-m", "rmapbt=1,inobtcount=0"],
    &["-b", "size=32768", "-i", "nrext64=1", "-m", "bigtime=0,reflink=0"],
    &["-b", "size=65536", "-m", "rmapbt=1", "-i", "size=2048"],
    &["-b", "size=65536", "-m", "reflink=0", "-i", "sparse=0"],
    &["-b", "size=65536", "-m", "rmapbt=1", "-s", "size=4096"],
];

fn name(i: usize) -> String {
    format!("a name that is long enough to fill blocks of directories, number {i}")
}

/// Directories, attributes and files in all their forms, in a directory of its own.
fn work(fs: &Fs, top: &str) {
    let top = fs.create(fs.root(), top.as_bytes(), dir(0o755)).unwrap().ino;
    for n in [2, 30, 300, 3000] {
        let d = fs.create(top, format!("dir{n}").as_bytes(), dir(0o755)).unwrap().ino;
        for i in 0..n {
            fs.create(d, name(i).as_bytes(), file(0o644)).unwrap();
        }
        // The large one shrinks again; others keep most.
        for i in (0..n).filter(|i| i % 3 == 0 || (n == 3000 && i % 50 != 1)) {
            fs.unlink(d, name(i).as_bytes()).unwrap();
        }
        fs.rename(d, name(1).as_bytes(), top, format!("moved from {n}").as_bytes(), Rename::Replace).unwrap();
    }
    for (count, size) in [(1, 10), (12, 50), (200, 60), (2, 30_000), (1, 65_536)] {
        let f = fs.create(top, format!("{count} attributes of {size}").as_bytes(), file(0o600)).unwrap().ino;
        for i in 0..count {
            let key = format!("key {i}");
            fs.set_attr(f, AttrName { namespace: 0, name: key.as_bytes() }, &vec![b'0' + i as u8 % 70; size], SetMode::Any).unwrap();
        }
        if count > 4 {
            fs.remove_attr(f, AttrName { namespace: 0, name: b"key 3" }).unwrap();
        }
        fs.link(f, top, format!("link {count} {size}").as_bytes()).unwrap();
    }
    fs.symlink(top, b"short", b"target", 1, 2).unwrap();
    fs.symlink(top, b"long", &[b'l'; 1000], 1, 2).unwrap();
    fs.create(top, b"device", Make { mode: 0o020_600, uid: 3, gid: 4, rdev: (5, 6), umask: 0 }).unwrap();
    let f = fs.create(top, b"file", file(0o644)).unwrap().ino;
    for i in 0..400u64 {
        fs.write(f, i * 150_001, &[i as u8; 9000], false).unwrap();
    }
    fs.fallocate(f, Allocate::Punch, 3_000_000, 2_000_000).unwrap();
    fs.fallocate(f, Allocate::Zero { keep_size: true }, 10_000_000, 1_234_567).unwrap();
    fs.fallocate(f, Allocate::Reserve { keep_size: false }, 20_000_000, 60_000_000).unwrap();
    fs.setattr(f, SetAttr { size: Some(61_000_000), ..SetAttr::default() }).unwrap();
    fs.fsync(f).unwrap();
}

/// What a user sees of a tree of the host: for each path its metadata and content.
fn picture(at: &Path) -> BTreeMap<String, (u32, u64, u64, u32, i64, u64)> {
    let mut out = BTreeMap::new();
    let mut left = vec![at.to_path_buf()];
    while let Some(p) = left.pop() {
        let m = std::fs::symlink_metadata(&p).unwrap();
        let mut sum = 0u64;
        let content = match m.file_type() {
            t if t.is_dir() => {
                left.extend(std::fs::read_dir(&p).unwrap().map(|e| e.unwrap().path()));
                Vec::new()
            }
            t if t.is_symlink() => std::fs::read_link(&p).unwrap().into_os_string().into_encoded_bytes(),
            t if t.is_file() => std::fs::read(&p).unwrap(),
            _ => Vec::new(),
        };
        for (i, b) in content.iter().enumerate() {
            sum = sum.wrapping_mul(31).wrapping_add(u64::from(*b) + i as u64);
        }
        let size = if m.is_dir() { 0 } else { m.len() };
        out.insert(p.strip_prefix(at).unwrap().display().to_string(), (m.mode(), m.nlink(), size, m.uid(), m.mtime_nsec(), sum));
    }
    out
}

fn form(i: usize, options: &[&str]) {
    let mut args = vec!["-q"];
    args.extend(options);
    let img = Image::theirs(&format!("matrix{i}"), 700 << 20, &args);
    let judge = |img: &Image, what: &str| {
        img.repair_is_silent();
        let r = uxfs_check::check(&*img.device()).unwrap();
        assert!(r.is_sound(), "{what}: {:?}", r.findings);
    };
    let fs = img.open();
    work(&fs, "first");
    fs.unmount().unwrap();
    judge(&img, "worked on");
    let k = img.kernel_mount();
    let before = picture(&k.path("first"));
    assert!(before.len() > 250, "{} files", before.len());
    // The kernel takes it further and stops with a dirty log.
    let o = run("cp", &["-a", k.path("first").to_str().unwrap(), k.path("second").to_str().unwrap()]);
    assert!(o.status.success());
    std::fs::remove_dir_all(k.path("first/dir300")).unwrap();
    run("xfs_io", &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]);
    drop(k);
    let theirs = img.copy(&format!("matrix{i}-theirs"));
    drop(theirs.kernel_mount());
    let fs = img.open();
    assert!(fs.was_recovered());
    fs.unmount().unwrap();
    judge(&img, "recovered");
    let pictures = |i: &Image| picture(&i.kernel_mount_with("loop,ro,nouuid").at);
    assert!(pictures(&img) == pictures(&theirs), "the two recoveries differ");
    // Work on it again, and stop in the middle.
    let fs = Fs::open(img.device(), Options { commit: 0, ..Options::default() }).unwrap();
    work(&fs, "third");
    drop(fs);
    let ours = img.copy(&format!("matrix{i}-ours"));
    drop(img.kernel_mount());
    ours.open().unmount().unwrap();
    judge(&img, "recovered by the kernel");
    judge(&ours, "recovered here");
    assert!(pictures(&img) == pictures(&ours), "the two recoveries of our log differ");
}

fn some_forms(which: usize) {
    for (i, options) in FORMS.iter().enumerate().filter(|f| f.0 % 2 == which) {
        println!("mkfs.xfs {}", options.join(" "));
        form(i, options);
    }
}

#[test]
fn every_other_form_is_worked_on_in_turn() {
    some_forms(0);
}

#[test]
fn the_other_forms_are_worked_on_in_turn() {
    some_forms(1);
}
