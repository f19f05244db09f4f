//! New volumes that are filled as they are made: the kernel and the newest xfs_repair say whether they are right.

#[expect(dead_code, reason = "what mounts is used by the other tests")]
mod common;

use common::*;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::process::Stdio;

/// A tree with one of everything.
fn source(p: &Place) -> std::path::PathBuf {
    let top = p.dir.join("source");
    for d in ["many", "deep/er/still", "empty"] {
        std::fs::create_dir_all(top.join(d)).unwrap();
    }
    for i in 0..3000 {
        std::fs::write(top.join(format!("many/a file with a name of some length, number {i}")), "x".repeat(i % 700)).unwrap();
    }
    std::fs::write(top.join("deep/er/big"), vec![5; 9 << 20]).unwrap();
    std::fs::hard_link(top.join("deep/er/big"), top.join("deep/hard")).unwrap();
    symlink("er/big", top.join("deep/soft")).unwrap();
    symlink("x".repeat(900), top.join("deep/long")).unwrap();
    let sparse = std::fs::File::create(top.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 20 << 20).unwrap();
    must("mknod", &[top.join("pipe").to_str().unwrap(), "p"]);
    must("mknod", &[top.join("device").to_str().unwrap(), "c", "5", "77"]);
    let path = |f: &str| top.join(f).to_str().unwrap().to_string();
    must("setfattr", &["-n", "user.small", "-v", "value", &path("deep")]);
    must("setfattr", &["-n", "trusted.large", "-v", &"v".repeat(3000), &path("deep/er/big")]);
    must("setfacl", &["-m", "u:1234:rw,g:99:r", &path("sparse")]);
    must("setfacl", &["-d", "-m", "u:1234:rwx", &path("empty")]);
    must("chmod", &["4751", &path("deep/er/big")]);
    must("chown", &["1000:1001", &path("many")]);
    must("touch", &["-d", "2001-02-03 04:05:06.789", &path("deep/er/still"), &path("sparse"), &path("")]);
    top
}

/// The kernel mounts a volume and finds the source in it, and the newest xfs_repair finds nothing.
fn holds(p: &Place, name: &str, source: &std::path::Path) {
    p.newest_is_silent(name);
    let o = p.try_uxfs(&["check", name]);
    assert!(o.status.success(), "{}", text(&o));
    let k = p.kernel(name, "loop,ro");
    same_tree(source, &k.at);
    let (ours, theirs) = (by_file(&attributes(&k.at)), by_file(&attributes(source)));
    assert!(theirs.len() == 5 && ours == theirs, "{:?} {:?}", ours.keys(), theirs.keys());
}

/// Attributes of each file, without those that only XFS shows: the mark on the root, and lists under their own names.
fn by_file(all: &str) -> BTreeMap<String, Vec<String>> {
    let shown = |l: &&str| !l.starts_with("trusted.SGI_ACL") && !l.starts_with("trusted.xfs:");
    let one = |b: &str| {
        let mut lines: Vec<String> = b.lines().filter(shown).map(str::to_string).collect();
        (lines.remove(0), lines)
    };
    all.split("\n\n").filter(|b| !b.is_empty()).map(one).filter(|f| !f.1.is_empty()).collect()
}

#[test]
fn volumes_are_filled_from_directories_and_archives_and_come_out_the_same() {
    let p = Place::new("populate");
    let top = source(&p);
    let make = |args: &[&str], input: Option<&str>| {
        let mut c = uxfs();
        c.args(["mkfs", "-q"]).args(args).current_dir(&p.dir).env("SOURCE_DATE_EPOCH", "1700000000").env("DETERMINISTIC_SEED", "42");
        if let Some(i) = input {
            c.stdin(Stdio::from(std::fs::File::open(p.dir.join(i)).unwrap()));
        }
        let o = c.output().unwrap();
        assert!(o.status.success(), "{args:?}: {}", text(&o));
    };
    for f in ["a.img", "b.img"] {
        make(&["-d", "size=300m", "-p", "source", f], None);
    }
    holds(&p, "a.img", &top);
    must("cmp", &[&p.path("a.img"), &p.path("b.img")]);
    // Others differ, so the comparison can fail.
    let other = uxfs().args(["mkfs", "-q", "-d", "size=300m", "-p", "source", "c.img"]).current_dir(&p.dir).output().unwrap();
    assert!(other.status.success() && !run("cmp", &[&p.path("a.img"), &p.path("c.img")]).status.success());

    must(
        "tar",
        &["-S", "--xattrs", "--xattrs-include=*", "--acls", "--format=posix", "-C", top.to_str().unwrap(), "-czf", &p.path("t.tgz"), "."],
    );
    for f in ["d.img", "e.img"] {
        make(&["--minimize", "-p", "-", f], Some("t.tgz"));
    }
    must("cmp", &[&p.path("d.img"), &p.path("e.img")]);
    let size = std::fs::metadata(p.dir.join("d.img")).unwrap().len();
    assert!((16 << 20..40 << 20).contains(&size), "{size} bytes");
    holds(&p, "d.img", &top);
    make(&["--minimize", "-c", "options=lts_6.1", "-p", "t.tgz", "f.img"], None);
    p.is_sound("f.img");
}

#[test]
fn sparse_files_in_archives_keep_their_holes() {
    let p = Place::new("sparse");
    let top = p.dir.join("source");
    std::fs::create_dir_all(&top).unwrap();
    for (name, pieces, size) in [("many", 60, 30 << 20), ("one", 1, 5 << 20), ("none", 0, 7 << 20)] {
        let f = std::fs::File::create(top.join(name)).unwrap();
        f.set_len(size).unwrap();
        for i in 0..pieces {
            std::os::unix::fs::FileExt::write_all_at(&f, &vec![i as u8 + 1; 5000], i * 400_000).unwrap();
        }
    }
    let (dir, tar) = (top.to_str().unwrap(), p.path("t.tar"));
    for form in [
        &["--format=gnu"][..],
        &["--format=posix", "--sparse-version=0.0"],
        &["--sparse-version=0.1", "--format=posix"],
        &["--format=posix"],
    ] {
        must("tar", &[&["-S", "-C", dir, "-cf", &tar], form, &["."]].concat());
        p.uxfs(&["mkfs", "-q", "-f", "-d", "size=64m", "-p", "t.tar", "v.img"]);
        p.newest_is_silent("v.img");
        let k = p.kernel("v.img", "loop,ro");
        must("diff", &["-r", dir, k.at.to_str().unwrap()]);
        let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(k.at.join("many")).unwrap());
        assert!(blocks < 2000, "{blocks} blocks of 512 bytes, {form:?}");
    }
}

#[test]
fn what_does_not_fit_leaves_no_volume() {
    let p = Place::new("nofit");
    std::fs::create_dir_all(p.dir.join("source")).unwrap();
    std::fs::write(p.dir.join("source/big"), vec![1; 30 << 20]).unwrap();
    p.uxfs(&["mkfs", "-q", "-d", "size=20m", "v.img"]);
    let o = p.try_uxfs(&["mkfs", "-q", "-f", "-p", "source", "v.img"]);
    assert!(!o.status.success() && text(&o).contains("no space left"), "{}", text(&o));
    // A little less or more than enough: there is room, or there is none, and nothing else goes wrong.
    for kib in (44 << 10..56 << 10).step_by(700) {
        let o = p.try_uxfs(&["mkfs", "-q", "-f", "-d", &format!("size={kib}k"), "-p", "source", "w.img"]);
        assert!(o.status.success() || text(&o).contains("no space left"), "{kib} KiB: {}", text(&o));
    }
    let mut f = std::fs::File::open(p.dir.join("v.img")).unwrap();
    let mut magic = [9; 4];
    f.seek(SeekFrom::Start(0)).unwrap();
    f.read_exact(&mut magic).unwrap();
    assert_eq!(magic, [0; 4], "half a volume looks like one");
}

#[test]
fn a_prototype_makes_what_mkfs_xfs_makes_of_it() {
    let p = Place::new("prototype");
    std::fs::write(p.dir.join("content"), vec![7u8; 300_000]).unwrap();
    let names = (0..400).map(|i| format!("  name{i:04} ---644 {i} 7 {}\n", p.path("content"))).collect::<String>();
    let words = format!(
        "/stand/diskboot\n4872 110\nd--755 3 1\nusr d--777 3 1\n sh -ug755 3 1 {0}\n ken d-g755 6 1\n{names} $\n b0 b--644 3 1 7 300\n \
         c0 c--644 3 1 5 1\n fifo p--644 3 1\n slink l--777 3 1 /a/symbolic/link\n : This is a comment line\n $\nlast ---600 1 2 {0}\n$\n",
        p.path("content")
    );
    std::fs::write(p.dir.join("proto"), words).unwrap();
    p.uxfs(&["mkfs", "-q", "-p", "proto", "-d", "size=400m", "ours.img"]);
    p.mkfs_xfs("theirs.img", &["-q", "-p", &p.path("proto"), "-d", "size=400m,file"]);
    p.newest_is_silent("ours.img");
    let (ours, theirs) = (p.kernel("ours.img", "loop,ro"), p.kernel("theirs.img", "loop,ro"));
    // Each has the time at which it was made.
    let lines = |at: &std::path::Path| {
        listing(at).iter().map(|l| l.split(' ').filter(|w| !w.contains('.')).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert!(lines(&ours.at).len() > 400);
    let (ours_have, theirs_have) = (lines(&ours.at), lines(&theirs.at));
    let odd: Vec<_> = ours_have.iter().zip(&theirs_have).filter(|(o, t)| o != t).take(3).collect();
    assert!(odd.is_empty() && ours_have.len() == theirs_have.len(), "{odd:?}");
    assert_eq!(std::fs::read(ours.at.join("last")).unwrap(), vec![7u8; 300_000]);
    std::fs::write(p.dir.join("proto"), "boot 1 2 d--755 0 0\nx ---644 0 0 /no/such/file\n$\n").unwrap();
    let o = p.try_uxfs(&["mkfs", "-q", "-p", "proto", "-d", "size=400m", "bad.img"]);
    assert!(!o.status.success() && text(&o).contains("line 2: cannot open /no/such/file"), "{}", text(&o));
}
