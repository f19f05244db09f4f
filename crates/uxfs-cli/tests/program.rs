//! Every command on a volume; xfs_repair, the kernel and tar say whether it did what it says.

#[expect(dead_code, reason = "what mounts is used by the other tests")]
mod common;

use common::*;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

#[test]
fn commands_change_a_volume_as_they_say() {
    let p = Place::new("commands");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.1", "-d", "size=300m", "-L", "test", "v.img"]);
    std::fs::write(p.dir.join("hello"), "hello\n").unwrap();
    p.uxfs(&["mkdir", "-p", "v.img:/a/b/c", "v.img:/etc"]);
    p.uxfs(&["cp", "hello", "v.img:/a/b"]);
    assert_eq!(p.uxfs(&["cat", "v.img:/a/b/hello"]), "hello\n");
    p.uxfs(&["ln", "-s", "b/hello", "v.img:/a/soft"]);
    p.uxfs(&["ln", "v.img:/a/b/hello", "v.img:/a/hard"]);
    assert_eq!(p.uxfs(&["cat", "v.img:/a/soft"]), "hello\n");
    p.uxfs(&["mv", "v.img:/a/b/hello", "v.img:/a/b/c"]);
    p.uxfs(&["chmod", "u=rwx,go=", "v.img:/a/hard"]);
    std::fs::write(p.dir.join("passwd"), "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n").unwrap();
    p.uxfs(&["cp", "passwd", "v.img:/etc/passwd"]);
    p.uxfs(&["chown", "user:77", "v.img:/a/hard"]);
    p.uxfs(&["touch", "-d", "@1000000000.5", "v.img:/a/hard"]);
    p.uxfs(&["truncate", "-s", "1m", "v.img:/a/sparse"]);
    p.uxfs(&["setfattr", "-n", "user.note", "-v", "a value", "v.img:/a/hard"]);
    p.uxfs(&["setfattr", "-n", "security.raw", "-v", "0x000aff", "v.img:/a/hard"]);
    let shown = p.uxfs(&["getfattr", "v.img:/a/hard"]);
    assert!(shown.contains("security.raw=0x000aff\nuser.note=\"a value\"\n"), "{shown}");
    assert_eq!(p.uxfs(&["ls", "v.img:/a"]), "b\nhard\nsoft\nsparse\n");
    let stat = p.uxfs(&["stat", "v.img:/a/hard"]);
    assert!(stat.contains("(0700/-rwx------)  Uid: 1000   Gid: 77") && stat.contains("Modify: 2001-09-09 01:46:40.500000000"), "{stat}");
    p.uxfs(&["cp", "-r", "v.img:/a", "v.img:/copy"]);
    p.uxfs(&["cp", "-r", "v.img:/a", "out"]);
    assert_eq!(std::fs::read_link(p.dir.join("out/soft")).unwrap().to_str(), Some("b/hello"));
    p.uxfs(&["rm", "-r", "v.img:/copy"]);
    p.is_sound("v.img");
    let k = p.kernel("v.img", "loop,ro");
    let m = std::fs::metadata(k.at.join("a/b/c/hello")).unwrap();
    assert_eq!(
        (m.nlink(), m.uid(), m.gid(), m.mode() & 0o7777, m.mtime(), m.mtime_nsec()),
        (2, 1000, 77, 0o700, 1_000_000_000, 500_000_000)
    );
    assert_eq!(std::fs::metadata(k.at.join("a/sparse")).unwrap().len(), 1 << 20);
    drop(k);
    // Wrong uses name what is wrong, and change nothing.
    for (args, says) in [
        (&["cat", "v.img:/nothing"][..], "v.img:/nothing: no such file or directory"),
        (&["rm", "v.img:/a"], "is a directory (use -r)"),
        (&["cp", "hello", "passwd"], "neither path lies in a volume"),
        (&["mkfs", "-d", "size=300m", "v.img"], "use -f to overwrite"),
        (&["mkfs", "-d", "size=1m", "w.img"], "the smallest volume has 16 MiB"),
        (&["ls", "hello"], "cannot open hello"),
        (&["mount", "-o", "nonsense", "v.img", "out"], "mount option nonsense is not supported"),
    ] {
        let o = p.try_uxfs(args);
        assert!(!o.status.success() && text(&o).contains(says), "{args:?}: {}", text(&o));
    }
    assert!(!p.dir.join("w.img").exists());
    p.is_sound("v.img");
}

#[test]
fn the_geometry_is_printed_as_xfs_info_does() {
    let p = Place::new("info");
    for (i, args) in [&["-q", "-d", "size=300m,file"][..], &["-q", "-s", "size=4096", "-d", "size=2g,agcount=17,file"]].iter().enumerate() {
        let name = format!("v{i}.img");
        p.image(&name, 0);
        p.mkfs_xfs(&name, args);
        // The first line bears the name as it was given; releases after 6.1 tell more, as we do.
        let told = |text: &str| {
            let newer = |l: &&str| !["meta-data", "exchange=", "rgcount=", "zoned="].iter().any(|w| l.contains(w));
            text.lines().filter(newer).map(|l| l.trim_end_matches(", parent=0").to_string()).collect::<Vec<_>>()
        };
        let theirs = run("xfs_info", &[&p.path(&name)]);
        assert_eq!(told(&p.uxfs(&["info", &name])), told(&String::from_utf8_lossy(&theirs.stdout)));
    }
}

#[test]
fn archives_go_in_and_out_with_everything() {
    let p = Place::new("tar");
    let src = p.dir.join("src");
    std::fs::create_dir_all(src.join("deep/er")).unwrap();
    std::fs::write(src.join("deep/file"), vec![b'x'; 100_000]).unwrap();
    std::fs::hard_link(src.join("deep/file"), src.join("hard")).unwrap();
    std::os::unix::fs::symlink("deep/file", src.join("soft")).unwrap();
    std::fs::write(src.join("n".repeat(200)), "long name").unwrap();
    must("mkfifo", &[src.join("pipe").to_str().unwrap()]);
    must("chown", &["12:34", src.join("deep/file").to_str().unwrap()]);
    for compress in ["--gzip", "--zstd", "--no-auto-compress"] {
        let name = format!("v{compress}.img");
        p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.1", "-d", "size=300m", &name]);
        let archive = run("tar", &["--format=pax", compress, "-C", src.to_str().unwrap(), "-c", "."]);
        assert!(archive.status.success(), "{}; install with: apt-get install tar gzip zstd", text(&archive));
        let mut c = uxfs().args(["tar", "-x", &format!("{name}:/")]).current_dir(&p.dir).stdin(Stdio::piped()).spawn().unwrap();
        c.stdin.take().unwrap().write_all(&archive.stdout).unwrap();
        assert!(c.wait().unwrap().success());
        p.is_sound(&name);
        let k = p.kernel(&name, "loop,ro");
        let odd: Vec<_> = listing(&k.at).into_iter().filter(|l| !listing(&src).contains(l) && !l.contains(" d ")).collect();
        assert!(odd.is_empty(), "{odd:?}");
        drop(k);
        let out = uxfs().args(["tar", "-c", &format!("{name}:/")]).current_dir(&p.dir).output().unwrap();
        assert!(out.status.success());
        let back = p.dir.join(format!("back{compress}"));
        std::fs::create_dir(&back).unwrap();
        let mut t = std::process::Command::new("tar").arg("-x").current_dir(&back).stdin(Stdio::piped()).spawn().unwrap();
        t.stdin.take().unwrap().write_all(&out.stdout).unwrap();
        assert!(t.wait().unwrap().success());
        let odd: Vec<_> = listing(&back).into_iter().filter(|l| !listing(&src).contains(l) && !l.contains(" d ")).collect();
        assert!(odd.is_empty(), "{odd:?}");
    }
}

#[test]
fn a_volume_in_a_partition_is_reached_by_number_and_by_byte() {
    let p = Place::new("partition");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.1", "-d", "size=300m", "v.img"]);
    p.uxfs(&["mkdir", "v.img:/inside"]);
    // An MBR with one partition from the first MiB.
    let mut disk = vec![0; 1 << 20];
    let (start, len) = (2048u32, (300u32 << 20) / 512);
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&start.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&len.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(std::fs::read(p.dir.join("v.img")).unwrap());
    std::fs::write(p.dir.join("disk.img"), disk).unwrap();
    assert_eq!(p.uxfs(&["ls", "disk.img@1:/"]), "inside\n");
    p.uxfs(&["mkdir", "disk.img@1:/more"]);
    assert_eq!(p.uxfs(&["ls", "disk.img@@1048576"]), "inside\nmore\n");
    let o = p.try_uxfs(&["ls", "disk.img@2:/"]);
    assert!(!o.status.success() && text(&o).contains("disk.img@2"), "{}", text(&o));
}

#[test]
fn check_tells_sound_damaged_and_dirty_apart() {
    let p = Place::new("check");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.1", "-d", "size=300m", "v.img"]);
    assert!(p.uxfs(&["check", "v.img"]).contains("sound"));
    // A dirty log, by the kernel.
    let k = p.kernel("v.img", "loop");
    std::fs::create_dir(k.at.join("dir")).unwrap();
    must("xfs_io", &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]);
    drop(k);
    let o = p.try_uxfs(&["check", "v.img"]);
    assert_eq!(o.status.code(), Some(2), "{}", text(&o));
    assert!(p.uxfs(&["log", "v.img"]).contains("log: dirty"));
    // Reading shows what the log holds, and leaves the device alone.
    let before = std::fs::read(p.dir.join("v.img")).unwrap();
    assert_eq!(p.uxfs(&["ls", "v.img"]), "dir\n");
    assert!(std::fs::read(p.dir.join("v.img")).unwrap() == before);
    assert!(p.uxfs(&["recover", "v.img"]).contains("recovered"));
    p.is_sound("v.img");
    // Damage: the blocks of trees in the first AGF, with a good checksum.
    must("xfs_db", &["-x", "-c", "agf 0", "-c", "write -d btreeblks 3", &p.path("v.img")]);
    let o = p.try_uxfs(&["check", "--json", "v.img"]);
    assert_eq!(o.status.code(), Some(1));
    let out = text(&o);
    assert!(out.contains("\"agf-btreeblks\"") && out.contains("\"sound\": false"), "{out}");
}

/// A clone of a dirty volume gets a label and a UUID of its own, and nothing is lost: the kernel mounts both at once.
#[test]
fn a_clone_of_a_dirty_volume_gets_its_own_identity() {
    let p = Place::new("admin");
    p.image("v.img", 300 << 20);
    p.mkfs_xfs("v.img", &["-q"]);
    {
        let k = p.kernel("v.img", "loop");
        std::fs::write(k.at.join("file"), vec![b'x'; 10_000]).unwrap();
        let punched = std::fs::File::create(k.at.join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&punched, &[b'y'; 8192], 1 << 20).unwrap();
        punched.sync_all().unwrap();
        must("xfs_io", &["-x", "-c", "shutdown", k.at.to_str().unwrap()]);
    }
    p.copy("v.img", "clone.img");
    let o = p.uxfs(&["admin", "-L", "the clone", "-U", "11111111-2222-3333-4444-555555555555", "clone.img"]);
    assert_eq!(o, "label = \"the clone\"\nUUID = 11111111-2222-3333-4444-555555555555\n");
    p.is_sound("clone.img");
    let (a, b) = (p.kernel("v.img", "loop"), p.kernel("clone.img", "loop"));
    assert_eq!(std::fs::read(a.at.join("file")).unwrap(), std::fs::read(b.at.join("file")).unwrap());
    std::fs::write(b.at.join("more"), "more").unwrap();
    let blkid = must("blkid", &["-o", "export", &p.path("clone.img")]);
    assert!(blkid.contains("LABEL=the\\ clone") && blkid.contains("UUID=11111111-2222-3333-4444-555555555555"), "{blkid}");
    let theirs = must("xfs_io", &["-r", "-c", "bmap", b.at.join("sparse").to_str().unwrap()]);
    drop((a, b));
    // Another one, and back to the first: what the metadata bears is again the volume's own.
    p.uxfs(&["admin", "-U", "generate", "clone.img"]);
    p.is_sound("clone.img");
    assert_eq!(p.uxfs(&["cat", "clone.img:/more"]), "more");
    let ours = p.uxfs(&["bmap", "clone.img:/sparse"]);
    let lines = |t: &str| t.lines().skip(1).map(str::to_string).collect::<Vec<_>>();
    assert_eq!(lines(&ours), lines(&theirs));
    let first = p.uxfs(&["admin", "v.img"]);
    let own = first.lines().find_map(|l| l.strip_prefix("UUID = ")).unwrap();
    p.uxfs(&["admin", "-L", "--", "-U", own, "clone.img"]);
    p.is_sound("clone.img");
    assert_eq!(p.uxfs(&["admin", "clone.img"]), first);
    assert!(p.uxfs(&["df", "clone.img"]).lines().count() == 2);
    let bad = p.try_uxfs(&["admin", "-L", "a label that is too long", "clone.img"]);
    assert!(!bad.status.success() && text(&bad).contains("longer than 12 bytes"));
    drop(p.kernel("clone.img", "loop"));
}
