//! Volumes of version 4, which kernels no longer mount by default: mkfs.xfs and xfs_db fill them, we read them. Of those that a kernel
//! left with a dirty log two are kept.

mod common;

use common::*;
use std::fmt::Write;
use uxfs::{AttrName, Error, Fs, Options};

/// Block sizes, inode sizes, attributes of both kinds, directories with file types and without.
const FORMS: &[&[&str]] = &[
    &["-n", "ftype=1"],
    &["-n", "ftype=0", "-i", "size=256"],
    &["-n", "ftype=0,size=8192", "-b", "size=1024", "-i", "attr=1,size=512"],
    &["-n", "ftype=1", "-b", "size=512", "-i", "size=256"],
    &["-l", "lazy-count=0,version=1", "-i", "projid32bit=0,size=2048"],
    &["-b", "size=16384", "-n", "ftype=0", "-s", "size=4096"],
];
const FILES: [usize; 4] = [3, 30, 400, 6000];
const CONTENT: &[u8] = b"what is in the small files\n";

fn name(i: usize) -> String {
    format!("n{i:05}{}", "y".repeat(i % 40))
}

/// A tree as mkfs.xfs reads it.
fn prototype(dir: &std::path::Path) -> String {
    let (small, big) = (dir.join("small"), dir.join("big"));
    std::fs::write(&small, CONTENT).unwrap();
    std::fs::write(&big, big_content()).unwrap();
    let mut p = String::from("/stand/diskboot\n0 0\nd--755 0 0\n");
    writeln!(p, "big ---644 1 2 {}\nsmall -u-755 3 4 {}", big.display(), small.display()).unwrap();
    writeln!(p, "short l--777 0 0 small\nlong l--777 0 0 {}\ndevice c--600 0 0 5 7\npipe p--600 0 0", "x".repeat(900)).unwrap();
    for n in FILES {
        writeln!(p, "dir{n} d--755 0 0").unwrap();
        (0..n).for_each(|i| writeln!(p, "{} ---600 {i} 0 {}", name(i), small.display()).unwrap());
        p.push_str("$\n");
    }
    p + "$\n"
}

fn big_content() -> Vec<u8> {
    (0..200_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect()
}

fn set_attributes(img: &Image, ino: u64, commands: &[String]) {
    let at = format!("inode {ino}");
    let mut args = vec!["-x", "-c", &at];
    args.extend(commands.iter().flat_map(|c| ["-c", c.as_str()]));
    args.push(img.path.to_str().unwrap());
    // Debian's own dies of it in volumes with the first kind of attributes.
    let o = run(&newest("xfs_db"), &args);
    assert!(o.status.success(), "xfs_db {args:?}: {o:?}");
}

fn open(img: &Image) -> Fs {
    Fs::open(img.device(), Options { read_only: true, ..Options::default() }).unwrap()
}

fn read(fs: &Fs, dir: u64, name: &str) -> Vec<u8> {
    let s = fs.lookup(dir, name.as_bytes()).unwrap();
    let mut b = vec![0; s.size as usize + 1];
    let n = fs.read(s.ino, 0, &mut b).unwrap();
    b.truncate(n);
    b
}

#[test]
fn volumes_of_version_4_are_read_and_not_written() {
    let temp = std::env::temp_dir().join(format!("uxfs-old-{}", std::process::id()));
    std::fs::create_dir_all(&temp).unwrap();
    let proto = temp.join("proto");
    std::fs::write(&proto, prototype(&temp)).unwrap();
    let mut fragmented = 0;
    for (i, form) in FORMS.iter().enumerate() {
        let mut args = vec!["--unsupported", "-q", "-m", "crc=0", "-p", proto.to_str().unwrap()];
        args.extend(*form);
        let img = Image::theirs(&format!("old{i}"), 400 << 20, &args);
        let fs = open(&img);
        let find = |name: &str| fs.lookup(fs.root(), name.as_bytes()).unwrap();
        let (big, small) = (find("big").ino, find("small").ino);
        fs.unmount().unwrap();
        let few = ["attr_set -u -v 5 small", "attr_set -r -v 3000 medium", "attr_set -s -v 60000 large"].map(String::from);
        few.iter().for_each(|c| set_attributes(&img, big, std::slice::from_ref(c)));
        set_attributes(&img, small, &(0..400).map(|i| format!("attr_set -u -v 7 key{i}")).collect::<Vec<_>>());

        let fs = open(&img);
        let root = fs.root();
        assert!(read(&fs, root, "big") == big_content() && read(&fs, root, "small") == CONTENT, "{form:?}");
        let s = fs.lookup(root, b"small").unwrap();
        assert_eq!((s.mode, s.uid, s.gid, s.nlink), (0o104_755, 3, 4, 1));
        let link = |n: &[u8]| fs.readlink(fs.lookup(root, n).unwrap().ino).unwrap();
        assert!(link(b"short") == b"small" && link(b"long") == [b'x'; 900]);
        assert_eq!(fs.lookup(root, b"device").unwrap().rdev, (5, 7));
        for n in FILES {
            let d = fs.lookup(root, format!("dir{n}").as_bytes()).unwrap();
            let mut seen = Vec::new();
            fs.readdir(d.ino, 0, &mut |e| {
                seen.push(String::from_utf8(e.name).unwrap());
                true
            })
            .unwrap();
            seen.sort();
            let mut want: Vec<String> = (0..n).map(name).chain([".".into(), "..".into()]).collect();
            want.sort();
            assert!(seen == want, "{form:?} dir{n}");
            for i in (0..n).step_by(n.div_ceil(50)) {
                assert_eq!(fs.lookup(d.ino, name(i).as_bytes()).unwrap().uid, i as u32);
            }
            assert!(matches!(fs.lookup(d.ino, b"none"), Err(Error::NotFound)) && read(&fs, d.ino, &name(n - 1)) == CONTENT);
            fragmented = fragmented.max(fs.extents(d.ino).unwrap().len());
        }
        let value = |ino: u64, namespace: u8, name: &str| fs.get_attr(ino, AttrName { namespace, name: name.as_bytes() }).unwrap();
        assert!(value(big, 0, "small") == b"vvvvv" && value(big, 2, "medium") == [b'v'; 3000] && value(big, 4, "large") == [b'v'; 60_000]);
        assert!(fs.list_attrs(small).unwrap().len() == 400 && value(small, 0, "key377") == b"vvvvvvv");
        let mut free = 0;
        fs.free_extents(&mut |_, _, n| free += u64::from(n)).unwrap();
        assert!(free > 0 && free <= fs.statfs().blocks);
        fs.unmount().unwrap();
        assert!(matches!(Fs::open(img.device(), Options::default()), Err(Error::Unsupported { .. })));
        let report = uxfs_check::check(&*img.device()).unwrap();
        assert!(report.is_sound(), "{form:?}: {:?}", report.findings);
    }
    // More than an inode of the smallest kind holds: the extents lie in a tree.
    assert!(fragmented > 20, "{fragmented} extents at most");
    std::fs::remove_dir_all(&temp).unwrap();
}

/// Linux was cut off when all of this was in the log and nothing at home: 200 files, of three each one was removed and one renamed, a file
/// in pieces that was cut short, attributes, and a file without a name that was open.
#[test]
fn dirty_volumes_of_version_4_are_recovered_in_memory() {
    for packed in ["v4-log-v1-5.10.gz", "v4-log-v2-6.1.gz"] {
        let img = Image::kept("old-dirty", packed);
        let before = std::fs::read(&img.path).unwrap();
        let as_it_lies = Fs::open(img.device(), Options { read_only: true, norecovery: true, ..Options::default() }).unwrap();
        assert!(matches!(as_it_lies.lookup(as_it_lies.root(), b"pieces"), Err(Error::NotFound)));
        as_it_lies.unmount().unwrap();

        let fs = open(&img);
        assert!(fs.was_recovered());
        let root = fs.root();
        let dir = fs.lookup(root, b"d").unwrap().ino;
        for i in 0..200 {
            let content = i.to_string().repeat(i).into_bytes();
            let (there, renamed) = (format!("f{i}"), format!("r{i}"));
            let found = |at: u64, name: &str| fs.lookup(at, name.as_bytes()).is_ok();
            assert_eq!((found(dir, &there), found(root, &renamed)), (i % 3 == 2, i % 3 == 1 && i != 10), "{packed}: {i}");
            if i % 3 == 2 {
                assert!(read(&fs, dir, &there) == content, "{packed}: {there}");
            } else if i % 3 == 1 && i != 10 {
                assert!(read(&fs, root, &renamed) == content, "{packed}: {renamed}");
            }
        }
        let pieces: Vec<u8> = (0..50u8).flat_map(|i| [[i; 1024], [0; 1024]]).flatten().collect();
        assert!(read(&fs, root, "pieces") == pieces, "{packed}");
        let s = fs.lookup(root, b"pieces").unwrap();
        assert_eq!(s.mode, 0o100_640);
        // More than an inode holds.
        assert!(fs.extents(s.ino).unwrap().len() > 20);
        let value = |name: &[u8]| fs.get_attr(s.ino, AttrName { namespace: 0, name }).unwrap();
        assert!(value(b"large") == [b'v'; 5000] && value(b"small") == b"s");
        assert!(fs.readlink(fs.lookup(root, b"link").unwrap().ino).unwrap() == [b'x'; 600]);
        let stat = |name: &str| fs.lookup(root, name.as_bytes()).unwrap();
        assert_eq!((stat("r1").mode & 0o777, stat("r4").uid, stat("r4").gid, stat("r7").mtime.sec), (0o600, 7, 8, 2));
        assert!(matches!(fs.lookup(root, b"gone"), Err(Error::NotFound)));
        let devices = fs.devices();
        fs.unmount().unwrap();
        let report = uxfs_check::check_replayed(&*devices.data, None).unwrap();
        assert!(report.is_sound(), "{packed}: {:?}", report.findings);
        // A deleted file that was open waits for its end, which needs writing.
        assert!(!uxfs_check::check(&*devices.data).unwrap().is_sound());
        assert!(std::fs::read(&img.path).unwrap() == before, "{packed}: the image was written");
    }
}
