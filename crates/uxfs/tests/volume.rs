//! Works on volumes through the library; xfs_repair and the kernel say whether what is left is sound.

mod common;

use common::*;
use std::sync::Arc;
use uxfs::{AttrName, Error, Fs, IoMode, Options, SetAttr, SetMode};
use uxfs_device::{Device, Event, Memory, Recorder, WriteFlags};

#[test]
fn a_few_files_survive_an_unmount() {
    let img = Image::new("few", 300 << 20);
    let fs = img.open();
    let root = fs.root();
    let d = fs.create(root, b"dir", dir(0o755)).unwrap();
    let f = fs.create(d.ino, b"hello", file(0o644)).unwrap();
    fs.write(f.ino, 0, b"hello world\n", false).unwrap();
    fs.symlink(root, b"link", b"dir/hello", 0, 0).unwrap();
    fs.symlink(root, b"long", &[b'x'; 700], 0, 0).unwrap();
    fs.link(f.ino, root, b"hard").unwrap();
    fs.set_attr(f.ino, AttrName { namespace: 0, name: b"greeting" }, b"hi", SetMode::Any).unwrap();
    fs.setattr(f.ino, SetAttr { mode: Some(0o600), uid: Some(7), ..SetAttr::default() }).unwrap();
    fs.unmount().unwrap();
    img.repair_is_silent();
    let k = img.kernel_mount();
    assert_eq!(std::fs::read(k.path("dir/hello")).unwrap(), b"hello world\n");
    assert_eq!(std::fs::read_link(k.path("link")).unwrap().to_str(), Some("dir/hello"));
    assert_eq!(std::fs::read_link(k.path("long")).unwrap().as_os_str().len(), 700);
    use std::os::unix::fs::MetadataExt;
    let m = std::fs::metadata(k.path("hard")).unwrap();
    assert_eq!((m.nlink(), m.uid(), m.mode() & 0o7777), (2, 7, 0o600));
}

#[test]
fn directories_grow_and_shrink_through_all_forms() {
    let img = Image::new("forms", 300 << 20);
    let fs = img.open();
    let d = fs.create(fs.root(), b"d", dir(0o755)).unwrap().ino;
    let n = 6000;
    for i in 0..n {
        let name = format!("a rather long name of a file, number {i:06}");
        fs.create(d, name.as_bytes(), file(0o644)).unwrap_or_else(|e| panic!("create {i}: {e}"));
    }
    fs.sync().unwrap();
    let mut seen = 0;
    fs.readdir(d, 0, &mut |_| {
        seen += 1;
        true
    })
    .unwrap();
    assert_eq!(seen, n + 2);
    for i in (0..n).filter(|i| i % 3 != 0) {
        let name = format!("a rather long name of a file, number {i:06}");
        fs.unlink(d, name.as_bytes()).unwrap_or_else(|e| panic!("unlink {i}: {e}"));
    }
    fs.unmount().unwrap();
    img.repair_is_silent();
    let fs = img.open();
    for i in (0..n).filter(|i| i % 3 == 0) {
        let name = format!("a rather long name of a file, number {i:06}");
        fs.unlink(d, name.as_bytes()).unwrap_or_else(|e| panic!("unlink {i}: {e}"));
    }
    assert_eq!(fs.stat(d).unwrap().size, 6, "the directory is in short form again");
    fs.rmdir(fs.root(), b"d").unwrap();
    fs.unmount().unwrap();
    img.repair_is_silent();
}

/// 200 000 names in one directory, and a file of 100 000 extents: trees of several levels, which the kernel reads.
#[test]
fn a_huge_directory_and_a_huge_extent_tree_are_read_by_the_kernel() {
    let img = Image::new("huge", 2 << 30);
    let fs = img.open();
    let d = fs.create(fs.root(), b"d", dir(0o755)).unwrap().ino;
    let names = 200_000u64;
    for i in 0..names {
        fs.create(d, format!("name {i}").as_bytes(), file(0o644)).unwrap();
    }
    // Every other block, written out one by one in an order that leaves no neighbours together.
    let f = fs.create(fs.root(), b"f", file(0o644)).unwrap().ino;
    let extents = 100_000u64;
    for i in 0..extents {
        fs.write(f, i * 8192, &i.to_le_bytes().repeat(512), false).unwrap();
    }
    fs.sync().unwrap();
    // A part of both goes again, so that trees merge.
    for i in (0..names).step_by(3) {
        fs.unlink(d, format!("name {i}").as_bytes()).unwrap();
    }
    fs.setattr(f, SetAttr { size: Some(extents * 8192 - 40_960_000), ..SetAttr::default() }).unwrap();
    fs.unmount().unwrap();
    img.repair_is_silent();
    let k = img.kernel_mount();
    let seen: std::collections::HashSet<String> =
        std::fs::read_dir(k.path("d")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(seen.len() as u64, names - names.div_ceil(3));
    assert!((0..names).all(|i| seen.contains(&format!("name {i}")) == (i % 3 != 0)));
    use std::os::unix::fs::{FileExt, MetadataExt};
    let kf = std::fs::File::open(k.path("f")).unwrap();
    assert_eq!(kf.metadata().unwrap().len(), extents * 8192 - 40_960_000);
    assert!(kf.metadata().unwrap().blocks() >= (extents - 5000) * 8);
    for i in (0..extents - 5000).step_by(997) {
        let mut b = [0; 8192];
        kf.read_exact_at(&mut b, i * 8192).unwrap();
        assert!(b[..4096] == i.to_le_bytes().repeat(512) && b[4096..] == [0; 4096], "block {i}");
    }
}

/// What older releases of mkfs.xfs leave out can be left out.
#[test]
fn volumes_without_the_newer_features_are_changed_as_they_are() {
    for (i, args) in [
        &["-q", "-m", "bigtime=0,inobtcount=0"][..],
        &["-q", "-m", "reflink=0,finobt=0"],
        &["-q", "-i", "sparse=0"],
        &["-q", "-i", "size=1024"],
        &["-q", "-n", "size=16384"],
        &["-q", "-d", "su=64k,sw=4", "-l", "size=64m"],
        &["-q", "-d", "su=256k,sw=2", "-l", "size=64m,su=256k"],
    ]
    .iter()
    .enumerate()
    {
        let img = Image::theirs(&format!("older{i}"), 1 << 30, args);
        let fs = img.open();
        let d = fs.create(fs.root(), b"d", dir(0o755)).unwrap().ino;
        for k in 0..2000 {
            let f = fs.create(d, format!("some file {k}").as_bytes(), file(0o644)).unwrap().ino;
            if k % 10 == 0 {
                fs.write(f, 0, &[k as u8; 9000], false).unwrap();
                fs.set_attr(f, AttrName { namespace: 0, name: b"a" }, &[1; 700], SetMode::Any).unwrap();
            }
            if k % 4 == 0 {
                fs.unlink(d, format!("some file {k}").as_bytes()).unwrap();
            }
        }
        // The log is left dirty: the kernel replays what was written with that geometry.
        fs.sync().unwrap();
        drop(fs);
        drop(img.kernel_mount());
        img.repair_is_silent();
        let fs = img.open();
        fs.rmdir(fs.root(), b"d").unwrap_err();
        fs.unmount().unwrap();
        img.repair_is_silent();
        let k = img.kernel_mount();
        assert_eq!(std::fs::read_dir(k.path("d")).unwrap().count(), 1500, "{args:?}");
    }
}

/// On a medium of 4 KiB sectors no record shares a sector with one that is durable, whoever wrote the log before; the kernel
/// replays such a log.
#[test]
fn records_end_with_the_sectors_of_the_medium() {
    let img = Image::theirs("sectors", 300 << 20, &["-q"]);
    {
        let k = img.kernel_mount();
        std::fs::write(k.path("theirs"), "x").unwrap();
        let o = run("xfs_io", &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]);
        assert!(o.status.success());
    }
    let first = Memory::copy_of(&*img.device()).unwrap();
    let medium = Arc::new(Memory::with_sectors(300 << 20, 4096));
    let mut buf = vec![0; 1 << 20];
    for at in (0..300 << 20).step_by(1 << 20) {
        first.read(at, &mut buf).unwrap();
        medium.write(at, &buf, WriteFlags::default()).unwrap();
    }
    let recorder = Arc::new(Recorder::new(medium.clone()).unwrap());
    let fs = Fs::open(recorder.clone(), Options { commit: 0, ..Options::default() }).unwrap();
    let before = recorder.trace().events.len();
    for i in 0..300 {
        let f = fs.create(fs.root(), format!("ours{i}").as_bytes(), file(0o644)).unwrap().ino;
        if i % 3 == 0 {
            fs.fsync(f).unwrap();
        }
    }
    let trace = recorder.trace();
    drop(fs);
    let records: Vec<(u64, usize)> = trace.events[before..]
        .iter()
        .filter_map(|e| match e {
            Event::WriteBegin { offset, data, .. } if data.starts_with(&0xfeed_babe_u32.to_be_bytes()) => Some((*offset, data.len())),
            _ => None,
        })
        .collect();
    assert!(records.len() >= 100, "{} records", records.len());
    // The first one goes on where the kernel stopped; what it shares a sector with has been replayed.
    let shared = records.iter().skip(1).filter(|r| !r.0.is_multiple_of(4096)).count();
    let short = records.iter().filter(|r| !(r.0 + r.1 as u64).is_multiple_of(4096)).count();
    assert_eq!((shared, short), (0, 0), "records that begin or end within a sector, of {}", records.len());
    let file = img.device();
    for at in (0..300 << 20).step_by(1 << 20) {
        medium.read(at, &mut buf).unwrap();
        file.write(at, &buf, WriteFlags::default()).unwrap();
    }
    drop(file);
    let k = img.kernel_mount();
    assert_eq!((0..298).filter(|i| k.path(format!("ours{i}")).exists()).count(), 298);
    assert!(k.path("theirs").exists());
    drop(k);
    img.repair_is_silent();
}

/// A file may hold what looks like inodes: no number that somebody makes up leads to them.
#[test]
fn a_number_from_outside_leads_to_inodes_only() {
    use uxfs_format::inode::INODE_CRC;
    /// Where an inode says its own number.
    const NUMBER: usize = 152;
    let dev = Arc::new(Memory::new(300 << 20));
    uxfs_mkfs::format(&*dev, &uxfs_mkfs::Options::new(300 << 20, [5; 16])).unwrap();
    let fs = Fs::open(dev.clone(), Options::default()).unwrap();
    let (real, forged) = (fs.create(fs.root(), b"real", file(0o644)).unwrap(), fs.create(fs.root(), b"forged", file(0o644)).unwrap());
    fs.write(forged.ino, 0, &[1; 65536], false).unwrap();
    fs.sync().unwrap();
    fs.unmount().unwrap();
    let fs = Fs::open(dev.clone(), Options::default()).unwrap();
    let g = fs.geometry().clone();
    let size = g.inodesize as usize;
    let number_at = |byte: u64| {
        let b = g.daddr_fsb(uxfs_format::DiskAddr(byte / 512));
        g.ino(g.fsb_agno(b), g.agbno_agino(g.fsb_agbno(b))).0
    };
    let place = |ino: u64| {
        let i = uxfs_format::Ino(ino);
        let agino = g.ino_agino(i);
        g.ag_daddr(g.ino_agno(i), g.agino_agbno(agino)).0 * 512 + u64::from(agino.0 % g.inopblock) * size as u64
    };
    let mut image = vec![0; size];
    dev.read(place(real.ino), &mut image).unwrap();
    assert!(uxfs_format::crc::verify(&image, INODE_CRC) && image[NUMBER..NUMBER + 8] == real.ino.to_be_bytes());
    let at = fs.extents(forged.ino).unwrap()[0].start;
    let first = number_at(at);
    let all: Vec<u8> = (0..65536 / size as u64)
        .flat_map(|n| {
            image[NUMBER..NUMBER + 8].copy_from_slice(&(first + n).to_be_bytes());
            uxfs_format::crc::stamp(&mut image, INODE_CRC);
            image.clone()
        })
        .collect();
    fs.write(forged.ino, 0, &all, false).unwrap();
    fs.fsync(forged.ino).unwrap();
    for n in 0..65536 / size as u64 {
        assert!(matches!(fs.stat_by_number(first + n), Err(Error::Stale)), "{n}");
    }
    assert_eq!(fs.stat_by_number(real.ino).unwrap().generation, real.generation);
    fs.unlink(fs.root(), b"real").unwrap();
    assert!(matches!(fs.stat_by_number(real.ino), Err(Error::Stale)));
    // What it would lead to otherwise.
    assert!(fs.stat(first).is_ok());
    fs.unmount().unwrap();
}

/// Free blocks and inodes as the kernel counts them.
fn counted_by_the_kernel(img: &Image) -> (u64, u64) {
    let m = img.kernel_mount();
    let o = run("stat", &["-f", "-c", "%f %d", m.at.to_str().unwrap()]);
    let text = String::from_utf8(o.stdout).unwrap();
    let n: Vec<u64> = text.split_whitespace().map(|w| w.parse().unwrap()).collect();
    (n[0], n[1])
}

#[test]
fn free_space_is_counted_as_the_kernel_counts_it() {
    let newest = newest("mkfs.xfs");
    // Trees of one level and of several, with and without each of those that a group keeps room for.
    for (n, (mkfs, args)) in [
        ("mkfs.xfs", &["-m", "reflink=0"][..]),
        ("mkfs.xfs", &["-m", "rmapbt=1", "-d", "agcount=5"]),
        ("mkfs.xfs", &["-b", "size=1024"]),
        (&newest, &[]),
        (&newest, &["-b", "size=2048", "-i", "size=1024"]),
        (&newest, &["-b", "size=16384"]),
        (&newest, &["-m", "inobtcount=0"]),
        (&newest, &["-m", "rmapbt=0,finobt=0,inobtcount=0"]),
    ]
    .into_iter()
    .enumerate()
    {
        let img = Image::made_by(mkfs, &format!("counted-{n}"), 800 << 20, args);
        let fs = img.open();
        let (bs, groups) = (u64::from(fs.geometry().blocksize), u64::from(fs.geometry().agcount));
        // We keep 24 blocks of a group for its free list, the kernel 8.
        let counted = |fs: &Fs| (fs.statfs().free + 16 * groups, fs.statfs().files_free);
        let before = counted(&fs);
        fs.unmount().unwrap();
        assert_eq!(before, counted_by_the_kernel(&img), "new: {mkfs} {args:?}");
        let fs = img.open();
        // Few enough that also the group with the log shares them all.
        let pieces = 1500;
        let d = fs.create(fs.root(), b"d", dir(0o755)).unwrap().ino;
        let [a, b, c] = [b"a", b"b", b"c"].map(|n| fs.create(d, n, file(0o644)).unwrap().ino);
        for i in 0..pieces {
            fs.write_with(a, 2 * i * bs, &vec![1; bs as usize], false, IoMode::Direct).unwrap();
            fs.create(d, format!("file {i}").as_bytes(), file(0o644)).unwrap();
        }
        if fs.geometry().reflink() {
            fs.clone_range((a, 0), (b, 0), (2 * pieces - 1) * bs).unwrap();
            fs.clone_range((a, 0), (c, 0), (pieces - 1) * bs).unwrap();
            fs.setattr(b, SetAttr { size: Some(pieces * bs), ..SetAttr::default() }).unwrap();
        }
        for i in (0..pieces).step_by(3) {
            fs.unlink(d, format!("file {i}").as_bytes()).unwrap();
        }
        fs.sync().unwrap();
        let used = counted(&fs);
        fs.unmount().unwrap();
        assert_eq!(used, counted_by_the_kernel(&img), "used: {mkfs} {args:?}");
        let fs = img.open();
        assert_eq!(used, counted(&fs), "opened again: {mkfs} {args:?}");
        fs.unmount().unwrap();
    }
}

/// Its recovery stays in memory; a change that seemed to be made would be lost without a word.
#[test]
fn a_dirty_volume_that_is_opened_to_read_takes_no_changes() {
    let img = Image::new("dirty-read", 64 << 20);
    let fs = img.open();
    let ino = fs.create(fs.root(), b"file", file(0o644)).unwrap().ino;
    fs.write(ino, 0, b"text", false).unwrap();
    fs.fsync(ino).unwrap();
    fs.shut_down().unwrap();
    drop(fs);
    let fs = img.open_read_only();
    assert!(fs.was_recovered() && fs.is_read_only());
    let ino = fs.lookup(fs.root(), b"file").unwrap().ino;
    let mut text = [0; 4];
    assert_eq!((fs.read(ino, 0, &mut text).unwrap(), &text), (4, b"text"));
    assert!(matches!(fs.create(fs.root(), b"new", file(0o644)), Err(Error::ReadOnly)));
    assert!(matches!(fs.write(ino, 0, b"else", false), Err(Error::ReadOnly)));
    assert!(matches!(fs.set_label(b"else"), Err(Error::ReadOnly)));
    fs.sync().unwrap();
    fs.unmount().unwrap();
}

/// Whether a block of an attribute fork was in the log was told by what the device had in its place: for a leaf that is not home yet, the
/// value that was there before. So the leaf of a file that was removed came home later, over somebody's new value.
#[test]
fn a_leaf_that_went_with_its_file_does_not_come_home_over_a_value() {
    let img = Image::new("leaf-over-value", 64 << 20);
    let fs = img.open();
    let attr = |n: &'static [u8]| AttrName { namespace: 0, name: n };
    let make = |name: String| fs.create(fs.root(), name.as_bytes(), file(0o644)).unwrap().ino;
    let value = |i: u8| vec![i; 10_000];
    let mut kept = Vec::new();
    for i in 0..20 {
        let gone = make(format!("gone {i}"));
        fs.set_attr(gone, attr(b"value"), &value(i), SetMode::Any).unwrap();
        fs.remove_attr(gone, attr(b"value")).unwrap();
        fs.sync().unwrap();
        for n in 0..12 {
            fs.set_attr(gone, AttrName { namespace: 0, name: &[b'a' + n] }, &[i; 1000], SetMode::Any).unwrap();
        }
        fs.unlink(fs.root(), format!("gone {i}").as_bytes()).unwrap();
        fs.sync().unwrap();
        kept.push(make(format!("kept {i}")));
        fs.set_attr(kept[i as usize], attr(b"value"), &value(i), SetMode::Any).unwrap();
    }
    fs.unmount().unwrap();
    img.repair_is_silent();
    let fs = img.open();
    for (i, ino) in kept.into_iter().enumerate() {
        assert!(fs.get_attr(ino, attr(b"value")).is_ok_and(|v| v == value(i as u8)), "{i}");
    }
    fs.unmount().unwrap();
}

/// Such inodes are from Linux before it gave new inodes a place for attributes, and links as long as fits are so today. They move out.
#[test]
fn attributes_find_room_where_something_fills_the_inode() {
    use std::os::unix::fs::MetadataExt;
    let img = Image::theirs("filled", 300 << 20, &["-i", "size=512"]);
    let target = format!("{}/{}", "x".repeat(250), "y".repeat(85));
    let names: Vec<String> = (0..17).map(|i| format!("name {i:06}")).collect();
    // Roots of extent trees with 9 to 20 entries, where an attribute leaves room for 11, and a tree of three levels.
    let counts: Vec<u64> = (1200..=2600).step_by(100).chain([5000]).collect();
    let inos: Vec<u64> = {
        let m = img.kernel_mount();
        std::os::unix::fs::symlink(&target, m.path("link")).unwrap();
        std::fs::create_dir(m.path("dir")).unwrap();
        let paths = counts.iter().map(|n| m.path(format!("file {n}"))).inspect(|p| drop(std::fs::File::create(p).unwrap()));
        paths.collect::<Vec<_>>().into_iter().chain([m.path("dir")]).map(|p| p.metadata().unwrap().ino()).collect()
    };
    for ino in inos {
        let o = run("xfs_db", &["-x", "-c", &format!("inode {ino}"), "-c", "write core.forkoff 0", img.path.to_str().unwrap()]);
        assert!(o.status.success());
    }
    {
        let m = img.kernel_mount();
        names.iter().for_each(|n| drop(std::fs::File::create(m.path("dir").join(n)).unwrap()));
        let (d, l) = (m.path("dir").metadata().unwrap(), m.path("link").symlink_metadata().unwrap());
        assert_eq!((d.blocks(), l.blocks(), l.len()), (0, 0, 336));
    }
    let fs = img.open();
    let attr = |name: &'static [u8]| AttrName { namespace: 0, name };
    let [dir, link] = [b"dir".as_slice(), b"link"].map(|n| fs.lookup(fs.root(), n).unwrap().ino);
    let files: Vec<(u64, u64)> = counts.iter().map(|n| (fs.lookup(fs.root(), format!("file {n}").as_bytes()).unwrap().ino, *n)).collect();
    for (f, n) in &files {
        for i in 0..*n {
            fs.write_with(*f, 2 * i * 4096, &[*n as u8; 4096], false, IoMode::Direct).unwrap();
        }
    }
    for ino in files.iter().map(|f| f.0).chain([dir, link]) {
        fs.set_attr(ino, AttrName { namespace: 2, name: b"a" }, b"first", SetMode::Create).unwrap();
        fs.set_attr(ino, AttrName { namespace: 2, name: b"b" }, &[b'v'; 3000], SetMode::Any).unwrap();
    }
    assert_eq!(fs.readlink(link).unwrap(), target.as_bytes());
    for (f, n) in &files {
        assert_eq!(fs.stat(*f).unwrap().size, (2 * n - 1) * 4096);
        fs.remove_attr(*f, attr(b"none")).unwrap_err();
    }
    fs.unmount().unwrap();
    img.repair_is_silent();
    let m = img.kernel_mount();
    assert_eq!(std::fs::read_link(m.path("link")).unwrap().to_str().unwrap(), target);
    let mut seen: Vec<String> = std::fs::read_dir(m.path("dir")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    seen.sort();
    assert_eq!(seen, names);
    for name in ["dir", "link", "file 1200", "file 1900", "file 2600", "file 5000"] {
        let path = m.path(name);
        let o = run("getfattr", &["-h", "--only-values", "-n", "trusted.a", path.to_str().unwrap()]);
        assert_eq!(String::from_utf8_lossy(&o.stdout), "first", "{name}");
        if let Some(n) = name.strip_prefix("file ") {
            let n: usize = n.parse().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert!(bytes.chunks(4096).enumerate().all(|(i, b)| b.iter().all(|b| *b == if i % 2 == 0 { n as u8 } else { 0 })), "{name}");
        }
    }
}
