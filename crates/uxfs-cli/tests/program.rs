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
    // Neither is the answer where there is none.
    for (args, code) in
        [(&["check", "no.img"][..], 8), (&["check", "."], 8), (&["check", "--jsn", "v.img"], 16), (&["diff", "v.img", "no.img"], 2)]
    {
        let o = p.try_uxfs(args);
        assert_eq!(o.status.code(), Some(code), "{args:?}: {}", text(&o));
    }
    // What there is, damaged or not: a tree in each of four groups, two directories.
    let (forms, json) = (text(&p.try_uxfs(&["check", "--forms", "v.img"])), text(&p.try_uxfs(&["check", "--forms", "--json", "v.img"])));
    let has = |form: &str, levels: &str, number: &str| {
        forms.lines().any(|l| l.starts_with(form) && l.split_whitespace().rev().take(2).eq([number, levels]))
    };
    assert!(has("bnobt", "1", "4") && has("directory in its inode", "-", "2"), "{forms}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["forms"].as_array().unwrap().contains(&serde_json::json!({"form": "bnobt", "levels": 1, "number": 4})), "{json}");
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
    p.uxfs(&["admin", "-U", "generate", "clone.img"]);
    assert_eq!(p.uxfs(&["admin", "-u", "-U", "restore", "clone.img"]), format!("UUID = {own}\n"));
    assert_eq!(p.uxfs(&["admin", "-l", "clone.img"]), "label = \"\"\n");
    p.is_sound("clone.img");
    assert!(p.uxfs(&["df", "clone.img"]).lines().count() == 2);
    let bad = p.try_uxfs(&["admin", "-L", "a label that is too long", "clone.img"]);
    assert!(!bad.status.success() && text(&bad).contains("longer than 12 bytes"));
    drop(p.kernel("clone.img", "loop"));
}

#[test]
fn access_control_lists_are_those_of_setfacl() {
    let p = Place::new("acls");
    p.uxfs(&["mkfs", "-q", "-d", "size=300m", "v.img"]);
    p.uxfs(&["mkdir", "-m", "750", "v.img:/dir"]);
    p.uxfs(&["mkdir", "v.img:/dir/below"]);
    p.uxfs(&["touch", "v.img:/dir/file", "v.img:/plain"]);
    p.uxfs(&["chmod", "4755", "v.img:/plain"]);
    p.copy("v.img", "w.img");
    let k = p.kernel("w.img", "loop");
    for args in [
        &["-m", "u:1000:rwx,g:7:r-x,o::-"][..],
        &["-m", "m::r"],
        &["-d", "-m", "u:5:rX,g::rwx"],
        &["-x", "u:1000"],
        &["-n", "-m", "g:8:rwx"],
        &["-R", "-m", "u:77:rX"],
        &["-k"],
        &["-b"],
        &["-m", "d:u:3:7,u:4:5"],
    ] {
        p.uxfs(&[&["setfacl"], args, &["v.img:/dir"]].concat());
        must("setfacl", &[args, &[k.at.join("dir").to_str().unwrap()]].concat());
        for f in ["dir", "dir/below", "dir/file", "plain"] {
            let o = std::process::Command::new("getfacl").args(["-n", f]).current_dir(&k.at).output();
            let theirs = String::from_utf8(o.expect("getfacl; install it with: apt-get install acl").stdout).unwrap();
            let ours = p.uxfs(&["getfacl", &format!("v.img:/{f}")]);
            assert_eq!(ours.replace("# file: /", "# file: "), theirs, "after {args:?}");
        }
    }
    drop(k);
    p.newest_is_silent("v.img");
    assert!(!p.try_uxfs(&["setfacl", "-x", "u:999", "v.img:/dir"]).status.success());
}

#[test]
fn flags_are_those_of_the_kernel_and_hold() {
    let p = Place::new("flags");
    p.mkfs_xfs("v.img", &["-q", "-d", "file,size=300m"]);
    p.uxfs(&["mkdir", "v.img:/d", "v.img:/hints"]);
    std::fs::write(p.dir.join("x"), "some bytes").unwrap();
    p.uxfs(&["cp", "x", "v.img:/fixed"]);
    p.uxfs(&["cp", "x", "v.img:/log"]);
    p.uxfs(&["chattr", "+i", "v.img:/fixed"]);
    p.uxfs(&["chattr", "+a", "v.img:/log"]);
    p.uxfs(&["chattr", "+PA", "-p", "42", "v.img:/d"]);
    p.uxfs(&["chattr", "--extsize", "64k", "--cowextsize", "128k", "v.img:/hints"]);
    for args in [
        &["rm", "v.img:/fixed"][..],
        &["rm", "v.img:/log"],
        &["mv", "v.img:/fixed", "v.img:/other"],
        &["ln", "v.img:/log", "v.img:/link"],
        &["truncate", "-s", "0", "v.img:/log"],
        &["chmod", "600", "v.img:/fixed"],
        &["touch", "v.img:/fixed"],
        &["setfattr", "-n", "user.x", "v.img:/log"],
    ] {
        let o = p.try_uxfs(args);
        assert!(!o.status.success() && text(&o).contains("not permitted"), "{args:?}: {}", text(&o));
    }
    // What is made below inherits: by us here, by the kernel there.
    let o = p.try_uxfs(&["mv", "v.img:/hints", "v.img:/d"]);
    assert!(text(&o).contains("only files of its own project"), "{}", text(&o));
    p.uxfs(&["mkdir", "v.img:/d/ours", "v.img:/hints/ours"]);
    p.uxfs(&["cp", "x", "v.img:/d/file-ours"]);
    p.uxfs(&["cp", "x", "v.img:/hints/file-ours"]);
    p.is_sound("v.img");
    let k = p.kernel("v.img", "loop");
    for d in ["d", "hints"] {
        std::fs::create_dir(k.at.join(d).join("theirs")).unwrap();
        std::fs::write(k.at.join(d).join("file-theirs"), "some bytes").unwrap();
    }
    let shown = |f: &str| {
        let at = k.at.join(f);
        let io = |c: &str| must("xfs_io", &["-r", "-c", c, at.to_str().unwrap()]);
        let all = [io("lsattr"), io("lsproj"), io("extsize"), io("cowextsize")].concat();
        all.replace(at.to_str().unwrap(), "")
    };
    let letters = |f: &str| shown(f).split_whitespace().next().unwrap().to_string();
    assert!(letters("fixed").contains('i') && letters("log").contains('a'), "{}", shown("fixed"));
    assert!(shown("d").contains("projid = 42"), "{}", shown("d"));
    assert!(shown("hints").contains("[65536]") && shown("hints").contains("[131072]"), "{}", shown("hints"));
    for d in ["d", "hints"] {
        assert_eq!(shown(&format!("{d}/ours")), shown(&format!("{d}/theirs")));
        assert_eq!(shown(&format!("{d}/file-ours")), shown(&format!("{d}/file-theirs")));
    }
    // Ten bytes take what the hint says.
    let blocks = |f: &str| std::fs::metadata(k.at.join(f)).unwrap().blocks();
    assert_eq!((blocks("hints/file-ours"), blocks("d/file-ours")), (128, 8));
    must("xfs_io", &["-r", "-c", "chattr -i", k.at.join("fixed").to_str().unwrap()]);
    drop(k);
    assert!(p.uxfs(&["lsattr", "v.img:/d"]).contains("project=42"));
    p.uxfs(&["rm", "v.img:/fixed"]);
    p.uxfs(&["chattr", "-a", "v.img:/log"]);
    p.uxfs(&["rm", "v.img:/log"]);
    p.is_sound("v.img");
}

#[test]
fn trees_are_searched_counted_and_compared() {
    let p = Place::new("trees");
    p.uxfs(&["mkfs", "-q", "-d", "size=300m", "v.img"]);
    let top = p.dir.join("top");
    std::fs::create_dir_all(top.join("a/b")).unwrap();
    for (f, n) in [("one.c", 10), ("two.h", 5000), ("a/three.c", 1 << 20), ("a/b/empty", 0), ("a/b/four.C", 70_000)] {
        std::fs::write(top.join(f), vec![7; n]).unwrap();
    }
    std::os::unix::fs::symlink("one.c", top.join("link")).unwrap();
    std::fs::hard_link(top.join("one.c"), top.join("a/hard")).unwrap();
    must("chmod", &["4755", top.join("two.h").to_str().unwrap()]);
    must("touch", &["-d", "10 days ago", top.join("one.c").to_str().unwrap()]);
    p.uxfs(&["cp", "-r", "top", "v.img:/top"]);
    let k = p.kernel("v.img", "loop,ro");
    for words in [
        &["-name", "*.c"][..],
        &["-iname", "*.[ch]", "-size", "+4k"],
        &["-type", "d", "-o", "-type", "l"],
        &["!", "-empty", "-type", "f"],
        &["-perm", "-4000"],
        &["-links", "2", "-mtime", "+7"],
        &["-maxdepth", "1", "-mindepth", "1"],
        &["(", "-name", "b", "-prune", ")", "-o", "-name", "*r*", "-print"],
        &["-path", "*/b/*", "-uid", "0"],
    ] {
        let sorted = |s: String| {
            let mut v: Vec<String> = s.lines().map(str::to_string).collect();
            v.sort();
            v
        };
        let theirs = must("find", &[&[k.at.join("top").to_str().unwrap()], words].concat()).replace(k.at.to_str().unwrap(), "");
        assert_eq!(sorted(p.uxfs(&[&["find", "v.img:/top"], words].concat())), sorted(theirs), "{words:?}");
    }
    let du = |args: &[&str]| must("du", &[args, &[k.at.join("top").to_str().unwrap()]].concat()).replace(k.at.to_str().unwrap(), "");
    assert_eq!(p.uxfs(&["du", "-s", "v.img:/top"]), du(&["-sk"]));
    assert_eq!(p.uxfs(&["du", "-s", "-b", "v.img:/top"]), du(&["-sb"]));
    drop(k);
    p.copy("v.img", "w.img");
    let diff = |args: &[&str]| {
        let o = p.try_uxfs(&[&["diff"], args].concat());
        (o.status.code(), text(&o))
    };
    assert_eq!(diff(&["v.img", "w.img"]), (Some(0), String::new()));
    assert_eq!(diff(&["v.img:/top", "top"]), (Some(0), String::new()));
    p.uxfs(&["rm", "w.img:/top/a/b/empty"]);
    p.uxfs(&["chmod", "600", "w.img:/top/one.c"]);
    p.uxfs(&["setfattr", "-n", "user.x", "-v", "y", "w.img:/top/two.h"]);
    std::fs::write(p.dir.join("other"), vec![8; 1 << 20]).unwrap();
    p.uxfs(&["cp", "other", "w.img:/top/a/three.c"]);
    let (code, said) = diff(&["v.img:/top", "w.img:/top"]);
    for part in ["only v.img:/top/a/b/empty", "mode 0644 and 0600", "attribute user.x", "data from byte 0"] {
        assert!(code == Some(1) && said.contains(part), "{part}: {said}");
    }
    let (_, said) = diff(&["--content", "v.img:/top", "w.img:/top"]);
    assert!(!said.contains("mode") && !said.contains("attribute") && said.contains("data"), "{said}");
}

#[test]
fn copies_share_blocks_and_free_space_goes_back() {
    let p = Place::new("share");
    p.uxfs(&["mkfs", "-q", "-d", "size=300m", "v.img"]);
    std::fs::write(p.dir.join("big"), vec![3; 50 << 20]).unwrap();
    p.uxfs(&["cp", "big", "v.img:/big"]);
    let free = |p: &Place| p.uxfs(&["df", "v.img"]).lines().nth(1).unwrap().split_whitespace().nth(3).unwrap().parse::<i64>().unwrap();
    let before = free(&p);
    p.uxfs(&["cp", "v.img:/big", "v.img:/shared"]);
    assert!(before - free(&p) < 1000, "a copy within a volume takes {} KiB", before - free(&p));
    p.uxfs(&["cp", "--reflink=never", "v.img:/big", "v.img:/copied"]);
    assert!(before - free(&p) > 50_000);
    assert!(!p.try_uxfs(&["cp", "--reflink", "big", "v.img:/no"]).status.success());
    let blocks = |p: &Place| std::fs::metadata(p.dir.join("v.img")).unwrap().blocks() / 2;
    let held = blocks(&p);
    p.uxfs(&["rm", "v.img:/copied"]);
    p.uxfs(&["trim", "-m", "1g", "v.img"]);
    assert!(held - blocks(&p) < 1000);
    let said = p.uxfs(&["trim", "v.img"]);
    assert!(said.contains("bytes trimmed") && held - blocks(&p) > 50_000, "{said}");
    p.newest_is_silent("v.img");
    let theirs = must("xfs_db", &["-r", "-c", "freesp -s", &p.path("v.img")]);
    let total = |s: &str, column: usize| {
        s.lines()
            .filter(|l| l.trim().starts_with(|c: char| c.is_ascii_digit()))
            .map(|l| l.split_whitespace().nth(column).unwrap().parse::<u64>().unwrap())
            .sum::<u64>()
    };
    let ours = p.uxfs(&["freesp", "v.img"]);
    // xfs_db counts each block of the free lists as an extent.
    let more = |column| total(&theirs, column) - total(&ours, column);
    assert!(more(2) == more(3) && more(2) < 100, "{ours}{theirs}");
    let k = p.kernel("v.img", "loop,ro");
    must("cmp", &[k.at.join("shared").to_str().unwrap(), &p.path("big")]);
}

#[test]
fn an_archive_with_an_owner_that_no_volume_has_is_refused() {
    let p = Place::new("owner");
    p.uxfs(&["mkfs", "-q", "-d", "size=300m", "v.img"]);
    let unpack = |h: &mut tar::Header, more: &[(&str, &[u8])]| {
        let mut archive = tar::Builder::new(std::fs::File::create(p.dir.join("a.tar")).unwrap());
        h.set_mode(0o644);
        h.set_size(0);
        archive.append_pax_extensions(more.iter().copied()).unwrap();
        archive.append_data(h, "whose", std::io::empty()).unwrap();
        archive.finish().unwrap();
        let input = std::fs::File::open(p.dir.join("a.tar")).unwrap();
        uxfs().args(["tar", "-x", "v.img:/"]).current_dir(&p.dir).stdin(input).output().unwrap()
    };
    let mut h = tar::Header::new_gnu();
    h.set_uid(1 << 32);
    h.set_gid(0);
    let o = unpack(&mut h, &[]);
    assert!(o.status.code() == Some(1) && text(&o).contains("whose: no uid is as large as 4294967296"), "{}", text(&o));
    assert_eq!(p.uxfs(&["ls", "v.img:/"]), "");
    // What stands in the old field does not matter beside the new one.
    h.as_old_mut().uid = *b"no num\0\0";
    let o = unpack(&mut h, &[("uid", b"7")]);
    assert!(o.status.success() && p.uxfs(&["stat", "v.img:/whose"]).contains("Uid: 7"), "{}", text(&o));
}

#[test]
fn completions_and_manual_pages_come_from_the_same_definitions() {
    let p = Place::new("manual");
    for shell in ["bash", "zsh", "fish"] {
        assert!(p.uxfs(&["completions", shell]).contains("getfacl"));
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let o = uxfs().args(["completions", "bash"]).stdout(full).output().unwrap();
    assert!(o.status.code() == Some(1) && text(&o).contains("No space left on device"), "{}", text(&o));
    p.uxfs(&["man", "man"]);
    let page = std::fs::read_to_string(p.dir.join("man/uxfs-mkfs.1")).unwrap();
    assert!(page.contains("minimize") && p.dir.join("man/uxfs.1").exists());
}

#[test]
fn volumes_grow_here_as_with_the_kernel() {
    let p = Place::new("grow");
    std::fs::write(p.dir.join("some"), vec![1; 3 << 20]).unwrap();
    for (name, options) in [("v", &["-c", "options=lts_6.18"][..]), ("w", &["-b", "size=1k", "-d", "su=64k,sw=3"])] {
        let img = format!("{name}.img");
        p.uxfs(&[&["mkfs", "-q", "-d", "size=300m"], options, &[img.as_str()]].concat());
        p.uxfs(&["cp", "some", &format!("{img}:/a")]);
        assert!(!p.try_uxfs(&["grow", &img, "200m"]).status.success());
        for size in ["301m", "377m", "1g", "7g"] {
            assert!(p.uxfs(&["grow", &img, size]).contains("data blocks changed"));
            p.newest_is_silent(&img);
        }
        let k = p.kernel(&img, "loop");
        // The kernel grows it further, works in the new space, and stops with a dirty log.
        must("truncate", &["-s", "9g", &p.path(&img)]);
        let device = must("findmnt", &["-n", "-o", "SOURCE", k.at.to_str().unwrap()]);
        must("losetup", &["-c", device.trim()]);
        must("xfs_growfs", &[k.at.to_str().unwrap()]);
        for i in 0..64 {
            std::fs::create_dir(k.at.join(format!("d{i}"))).unwrap();
            std::fs::write(k.at.join(format!("d{i}/f")), vec![i as u8; 100_000]).unwrap();
        }
        must("xfs_io", &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]);
        drop(k);
        p.uxfs(&["recover", &img]);
        assert_eq!(p.uxfs(&["find", &format!("{img}:/"), "-name", "f"]).lines().count(), 64);
        p.newest_is_silent(&img);
        let o = p.try_uxfs(&["check", &img]);
        assert!(o.status.success(), "{}", text(&o));
    }
}

#[test]
fn volumes_with_a_metadata_directory_are_read_only() {
    let p = Place::new("metadir");
    p.image("v.img", 400 << 20);
    must(&newest("mkfs.xfs"), &["-q", "-m", "metadir=1", &p.path("v.img")]);
    let k = p.kernel("v.img", "loop");
    std::fs::create_dir(k.at.join("dir")).unwrap();
    for i in 0..500 {
        std::fs::write(k.at.join(format!("dir/file {i}")), vec![i as u8; i * 20]).unwrap();
    }
    // Dirty, it is recovered in memory only.
    must("xfs_io", &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]);
    drop(k);
    p.copy("v.img", "w.img");
    p.uxfs(&["cp", "-r", "v.img:/dir", "out"]);
    must("cmp", &[&p.path("v.img"), &p.path("w.img")]);
    let dirty = p.try_uxfs(&["check", "v.img"]);
    assert_eq!(dirty.status.code(), Some(2), "{}", text(&dirty));
    let k = p.kernel("w.img", "loop");
    same_tree(&p.dir.join("out"), &k.at.join("dir"));
    drop(k);
    p.uxfs(&["check", "w.img"]);
    // What only such a volume can have wrong.
    must(&newest("xfs_db"), &["-x", "-c", "path -m /rtgroups", "-c", "write core.nlinkv2 7", &p.path("w.img")]);
    let damaged = p.try_uxfs(&["check", "w.img"]);
    assert!(damaged.status.code() == Some(1) && text(&damaged).contains("[nlink]"), "{}", text(&damaged));
    let o = p.try_uxfs(&["touch", "v.img:/x"]);
    assert!(!o.status.success() && text(&o).contains("metadir; they can be opened read-only"), "{}", text(&o));
}

#[test]
fn volumes_with_a_realtime_device_are_read_but_for_what_lies_there() {
    let p = Place::new("realtime");
    std::fs::write(p.dir.join("hello"), "hello\n").unwrap();
    std::fs::write(p.dir.join("proto"), format!("/\n0 0\nd--755 0 0\nhello ---644 1 2 {}\n$\n", p.path("hello"))).unwrap();
    let (rtdev, proto) = (format!("rtdev={}", p.path("rt.img")), p.path("proto"));
    for (mkfs, options) in [("mkfs.xfs".to_string(), &["-m", "reflink=0"][..]), (newest("mkfs.xfs"), &["-m", "metadir=1"])] {
        p.image("v.img", 400 << 20);
        p.image("rt.img", 300 << 20);
        must(&mkfs, &[&["-q", "-r", &rtdev, "-p", &proto], options, &[&p.path("v.img")]].concat());
        assert_eq!(p.uxfs(&["ls", "v.img:/"]), "hello\n");
        assert_eq!(p.uxfs(&["cat", "v.img:/hello"]), "hello\n");
        // Nothing is called damaged that is only not known.
        for (verb, what) in [(["check", "v.img"], "cannot be checked"), (["recover", "v.img"], "can be opened read-only")] {
            let o = p.try_uxfs(&verb);
            assert!(!o.status.success() && text(&o).contains("with a realtime device") && text(&o).contains(what), "{}", text(&o));
        }
        must(&newest("xfs_db"), &["-x", "-c", "path /hello", "-c", "write -d core.realtime 1", &p.path("v.img")]);
        for verb in [&["cat", "v.img:/hello"][..], &["bmap", "v.img:/hello"], &["cp", "v.img:/hello", "out"]] {
            let o = p.try_uxfs(verb);
            assert!(!o.status.success() && text(&o).contains("file data on a realtime device"), "{verb:?}: {}", text(&o));
        }
    }
}

/// Of a damaged volume all is saved that can be read, and what cannot is named.
#[test]
fn what_cannot_be_read_is_told_and_the_rest_is_copied() {
    let p = Place::new("rescue");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.1", "-d", "size=300m", "v.img"]);
    for d in ["bad", "good"] {
        std::fs::create_dir_all(p.dir.join("top").join(d)).unwrap();
        (0..40).for_each(|i| std::fs::write(p.dir.join(format!("top/{d}/file {i}")), format!("{d} {i}")).unwrap());
    }
    std::fs::create_dir_all(p.dir.join("top/one")).unwrap();
    (0..40).for_each(|i| std::fs::write(p.dir.join(format!("top/one/f{i}")), format!("one {i}")).unwrap());
    for d in ["many", "hashes"] {
        std::fs::create_dir_all(p.dir.join("top").join(d)).unwrap();
        (0..400).for_each(|i| std::fs::write(p.dir.join(format!("top/{d}/a file of many {i:03}")), format!("{d} {i}")).unwrap());
    }
    for f in ["a", "lost", "z"] {
        std::fs::write(p.dir.join("top").join(f), f.repeat(100_000)).unwrap();
    }
    std::os::unix::fs::symlink("x".repeat(900), p.dir.join("top/link")).unwrap();
    p.uxfs(&["cp", "-r", "top", "v.img:/top"]);
    for (path, field) in [
        ("bad", "dblock 0; write -d bhdr.hdr.magic 0"),
        ("lost", "write -d u3.bmx[0].startblock 99999999"),
        ("link", "dblock 0; write -d magic 0"),
        ("one/f7", "write -d core.magic 0"),
        ("many", "dblock 1; write -d dhdr.hdr.magic 0"),
        ("hashes", "dblock 8388608; write -d lhdr.info.hdr.magic 0"),
    ] {
        let mut args = vec!["-x".to_string(), "-c".into(), format!("path /top/{path}")];
        field.split("; ").for_each(|c| args.extend(["-c".to_string(), c.into()]));
        args.push(p.path("v.img"));
        must("xfs_db", &args.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for (verb, told, rest) in [
        (&["find", "v.img:/top"][..], "bad", "/top/good/file 7\n"),
        (&["du", "-a", "v.img:/top"], "bad", "\t/top/z\n"),
        (&["ls", "-l", "v.img:/top"], "link", " z\n"),
    ] {
        let o = p.try_uxfs(verb);
        let (out, err) = (String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
        assert!(!o.status.success() && out.contains(rest) && err.contains(&format!("v.img:/top/{told}: ")), "{verb:?}: {out}{err}");
    }
    let copied = p.try_uxfs(&["cp", "-r", "v.img:/top", "out"]);
    let packed = uxfs().args(["tar", "-c", "v.img:/top"]).current_dir(&p.dir).output().unwrap();
    let mut unpacked = std::process::Command::new("tar")
        .args(["-C", &p.path(""), "--one-top-level=unpacked", "-x"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    Write::write_all(unpacked.stdin.as_mut().unwrap(), &packed.stdout).unwrap();
    assert!(unpacked.wait().unwrap().success());
    for (o, to) in [(copied, "out"), (packed, "unpacked")] {
        let said = String::from_utf8_lossy(&o.stderr);
        assert!(!o.status.success() && said.contains("5 files or directories could not be read"), "{said}");
        for path in ["bad", "lost", "link", "many", "one/f7"] {
            assert!(said.lines().any(|l| l.contains(&format!("v.img:/top/{path}: "))), "{path}: {said}");
        }
        for same in ["good", "a", "z", "hashes"] {
            must("diff", &["-r", &p.path(&format!("top/{same}")), &p.path(&format!("{to}/{same}"))]);
        }
        // The inode's neighbours are in one cluster with it.
        std::fs::write(p.dir.join(to).join("one/f7"), "one 7").unwrap();
        must("diff", &["-r", &p.path("top/one"), &p.path(&format!("{to}/one"))]);
        // But for one block of names.
        let some = std::fs::read_dir(p.dir.join(to).join("many")).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
        assert!((200..400).contains(&some.len()), "{}", some.len());
        for f in some {
            let [was, is] = ["top", to].map(|t| std::fs::read(p.dir.join(t).join("many").join(&f)).unwrap());
            assert_eq!(was, is, "{f:?}");
        }
    }
    // What cannot be read is no difference.
    let o = p.try_uxfs(&["diff", "v.img:/top", "top"]);
    let said = text(&o);
    let is_named = |start: &str| said.lines().any(|l| l.starts_with(start));
    assert!(o.status.code() == Some(2) && !is_named("only") && is_named("uxfs: v.img:/top/many/a file of many"), "{said}");
    // A mount gives what lies before the damage, and then says that there is some.
    let m = p.serve("v.img", "ro");
    let listed = std::fs::read_dir(m.at.join("top/many")).unwrap().map(|e| e.map(drop).map_err(|e| e.raw_os_error())).collect::<Vec<_>>();
    assert!((50..200).contains(&listed.len()) && listed.iter().filter(|e| e.is_err()).eq([&Err(Some(117))]), "{listed:?}");
    must("diff", &["-r", &p.path("top/hashes"), &m.path("top/hashes")]);
    m.unmount();
}

/// What a dirty log holds cannot be had, since it is damaged: what lies on the volume can.
#[test]
fn a_volume_whose_log_cannot_be_recovered_is_read_as_it_lies() {
    let p = Place::new("norecovery");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.1", "-d", "size=300m", "v.img"]);
    std::fs::write(p.dir.join("kept"), "kept").unwrap();
    std::fs::write(p.dir.join("large"), vec![7; 1 << 20]).unwrap();
    p.uxfs(&["cp", "kept", "large", "v.img:/"]);
    let k = p.kernel("v.img", "loop");
    (0..200).for_each(|i| std::fs::write(k.at.join(format!("new {i}")), "new").unwrap());
    must("xfs_io", &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]);
    drop(k);
    assert_eq!(p.uxfs(&["ls", "v.img"]).lines().count(), 202);
    assert_eq!(p.uxfs(&["--norecovery", "ls", "v.img"]), "kept\nlarge\n");
    let number = |field: &str| -> u64 {
        let said = must("xfs_db", &["-r", "-c", "sb 0", "-c", &format!("p {field}"), &p.path("v.img")]);
        said.rsplit('=').next().unwrap().trim().parse().unwrap()
    };
    let (start, blocks) = (number("logstart"), number("logblocks"));
    let at = must("xfs_db", &["-r", "-c", "sb 0", "-c", &format!("convert fsblock {start} byte"), &p.path("v.img")]);
    let at: u64 = at.split(['(', ')']).nth(1).unwrap().parse().unwrap();
    let f = std::fs::File::options().write(true).open(p.dir.join("v.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&f, &vec![0x5a; blocks as usize * 4096], at).unwrap();
    for args in [&["ls", "v.img"][..], &["cp", "v.img:/kept", "out"], &["tar", "-c", "v.img:/"]] {
        let o = p.try_uxfs(args);
        assert!(!o.status.success() && text(&o).contains("with --norecovery it is read as it lies there"), "{}", text(&o));
        p.uxfs(&[&["--norecovery"], args].concat());
    }
    assert_eq!(std::fs::read_to_string(p.dir.join("out")).unwrap(), "kept");
    for args in [&["rm", "v.img:/kept"][..], &["recover", "v.img"], &["cp", "kept", "v.img:/more"]] {
        let o = p.try_uxfs(&[&["--norecovery"], args].concat());
        assert!(!o.status.success() && text(&o).contains("nothing can be changed"), "{args:?}: {}", text(&o));
        assert!(!text(&p.try_uxfs(args)).contains("norecovery"), "{args:?}");
    }
    // A copy that was not finished: without the last group, and all of the log.
    p.copy("v.img", "cut.img");
    let cut = std::fs::File::options().write(true).open(p.dir.join("cut.img")).unwrap();
    cut.set_len(at).unwrap();
    let said = text(&p.try_uxfs(&["ls", "cut.img"]));
    assert!(said.contains("the device only") && said.contains("with --norecovery"), "{said}");
    assert_eq!(p.uxfs(&["--norecovery", "cat", "cut.img:/kept"]), "kept");
    // Little more than the first inodes.
    cut.set_len(128 << 10).unwrap();
    let o = p.try_uxfs(&["--norecovery", "tar", "-c", "cut.img:/"]);
    assert!(!o.status.success() && text(&o).contains("cut.img:/large: "), "{}", text(&o));
    let m = p.serve("v.img", "norecovery");
    assert_eq!(std::fs::read_to_string(m.at.join("kept")).unwrap(), "kept");
    m.unmount();
}

/// A partition table was written over the first group's headers: the copies of the superblock say what the volume is.
#[test]
fn a_volume_without_its_superblock_is_read_by_a_copy() {
    let p = Place::new("lost");
    std::fs::create_dir(p.dir.join("top")).unwrap();
    (0..300).for_each(|i| std::fs::write(p.dir.join(format!("top/file {i}")), format!("{i}").repeat(i)).unwrap());
    // Groups where they are looked for first, and where they are not: on a device that is larger than the volume; with a volume in a file.
    for (name, args, more) in
        [("four", &["-d", "size=300m"][..], 0), ("seven", &["-b", "size=1024", "-d", "agcount=7,size=333m"], 77 << 20)]
    {
        let img = format!("{name}.img");
        p.uxfs(&[&["mkfs", "-q", "-c", "options=lts_6.1"], args, &[&img]].concat());
        p.uxfs(&["mkfs", "-q", "-f", "-d", "size=32m", "inner"]);
        p.uxfs(&["cp", "-r", "top", &format!("{img}:/top")]);
        p.uxfs(&["cp", "inner", &format!("{img}:/inner")]);
        let f = std::fs::File::options().write(true).open(p.path(&img)).unwrap();
        f.set_len(f.metadata().unwrap().len() + more).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&f, &[0x5a; 34 * 512], 0).unwrap();
        assert!(text(&p.try_uxfs(&["ls", &img])).contains("no XFS volume"));
        p.uxfs(&["--norecovery", "cp", "-r", &format!("{img}:/top"), &format!("{name} top")]);
        must("diff", &["-r", &p.path("top"), &p.path(&format!("{name} top"))]);
        assert_eq!(p.uxfs(&["--norecovery", "ls", &img]), "inner\ntop\n");
    }
    let o = p.try_uxfs(&["--norecovery", "ls", "top/file 299"]);
    assert!(!o.status.success() && text(&o).contains("no XFS volume"), "{}", text(&o));
}

/// What we show of a structure, xfs_db shows, too.
fn dumps_as_xfs_db(p: &Place, img: &str, ours: &[&str], theirs: &[&str]) {
    let squeezed = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
    let args: Vec<&str> = ["-r"].into_iter().chain(theirs.iter().flat_map(|c| ["-c", c])).collect();
    let b = must(&newest("xfs_db"), &[&args[..], &[&p.path(img)]].concat());
    let (a, all) = (p.uxfs(&[&["dump", img], ours].concat()), squeezed(&b));
    for line in a.lines() {
        assert!(all.contains(&squeezed(line)), "{img} {ours:?}: {line}\nis not in\n{b}");
    }
    assert!(!a.is_empty());
}

#[test]
fn structures_of_version_4_are_dumped_as_xfs_db_prints_them() {
    let p = Place::new("dump4");
    let prototype =
        "/stand/diskboot\n0 0\nd--755 0 0\nf ---644 1 2 /etc/hostname\nlink l--777 0 0 f\nc c--600 0 0 5 7\nd d--755 0 0\n$\n$\n";
    std::fs::write(p.dir.join("prototype"), prototype).unwrap();
    for ftype in ["ftype=0", "ftype=1"] {
        p.image("v.img", 400 << 20);
        must(&newest("mkfs.xfs"), &["-f", "-q", "-m", "crc=0", "-n", ftype, "-p", &p.path("prototype"), &p.path("v.img")]);
        for what in ["sb 0", "agi 0", "agfl 1", "inode 128", "inode 131", "inode 132", "inode 133"] {
            dumps_as_xfs_db(&p, "v.img", &what.split(' ').collect::<Vec<_>>(), &[what, "p"]);
        }
        for (block, tree) in [("1", "bnobt"), ("2", "cntbt"), ("3", "inobt")] {
            dumps_as_xfs_db(&p, "v.img", &["block", block], &[&format!("fsblock {block}"), &format!("type {tree}"), "p"]);
        }
        assert!(p.uxfs(&["dump", "v.img", "agf", "1"]).contains("crc = 0 (unchecked)"));
    }
}

#[test]
fn structures_are_dumped_as_xfs_db_prints_them() {
    let p = Place::new("dump");
    p.uxfs(&["mkfs", "-q", "-d", "size=300m", "-L", "a label", "v.img"]);
    std::fs::write(p.dir.join("x"), "some bytes").unwrap();
    p.uxfs(&["cp", "x", "v.img:/file"]);
    p.uxfs(&["cp", "v.img:/file", "v.img:/shared"]);
    p.uxfs(&["setfattr", "-n", "user.a", "-v", "value", "v.img:/file"]);
    p.uxfs(&["ln", "-s", "file", "v.img:/link"]);
    let number = |path: &str| {
        let s = p.uxfs(&["stat", path]);
        s.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap().to_string()
    };
    let (file, root, link) = (number("v.img:/file"), number("v.img:/"), number("v.img:/link"));
    for (ours, theirs) in [
        (&["sb", "0"][..], &["sb 0", "p"][..]),
        (&["agf", "1"], &["agf 1", "p"]),
        (&["agi", "0"], &["agi 0", "p"]),
        (&["agfl", "2"], &["agfl 2", "p"]),
        (&["inode", &file], &[&format!("inode {file}"), "p"]),
        (&["inode", &root], &[&format!("inode {root}"), "p"]),
        (&["inode", &link], &[&format!("inode {link}"), "p"]),
        (&["block", "1"], &["fsblock 1", "type bnobt", "p"]),
        (&["block", "3"], &["fsblock 3", "type inobt", "p"]),
        (&["block", "5"], &["fsblock 5", "type rmapbt", "p"]),
        (&["block", "6"], &["fsblock 6", "type refcntbt", "p"]),
    ] {
        dumps_as_xfs_db(&p, "v.img", ours, theirs);
    }
    for wrong in [&["dump", "v.img", "agf", "99"][..], &["dump", "v.img", "nothing"], &["dump", "v.img", "block", "99999999"]] {
        assert!(!p.try_uxfs(wrong).status.success());
    }
}

#[test]
fn features_are_turned_on_and_inodes_follow() {
    let p = Place::new("features");
    p.mkfs_xfs("v.img", &["-q", "-d", "file,size=2g", "-m", "bigtime=0", "-l", "size=100m"]);
    std::fs::write(p.dir.join("x"), "some bytes").unwrap();
    p.uxfs(&["cp", "x", "v.img:/before"]);
    p.uxfs(&["admin", "-O", "bigtime=1,nrext64=1", "v.img"]);
    p.uxfs(&["cp", "x", "v.img:/after"]);
    // Without the feature the last second is in 2038.
    p.uxfs(&["touch", "-d", "@5000000000", "v.img:/before", "v.img:/after"]);
    p.is_sound("v.img");
    let k = p.kernel("v.img", "loop");
    for f in ["before", "after"] {
        assert_eq!(std::fs::metadata(k.at.join(f)).unwrap().mtime(), 5_000_000_000);
    }
    std::fs::write(k.at.join("theirs"), "more").unwrap();
    drop(k);
    p.is_sound("v.img");
    assert!(p.uxfs(&["info", "v.img"]).contains("bigtime=1 inobtcount=1 nrext64=1"));
    for wrong in ["rmapbt=1", "bigtime=0"] {
        assert!(!p.try_uxfs(&["admin", "-O", wrong, "v.img"]).status.success());
    }
    // The two that old volumes lack most often, and what each needs; as many inodes as take the tree to a second level.
    p.mkfs_xfs("o.img", &["-q", "-d", "file,size=320m", "-m", "inobtcount=0,bigtime=0,reflink=1"]);
    {
        let k = p.kernel("o.img", "loop");
        for n in 0..20_000 {
            std::fs::File::create(k.at.join(format!("{n}"))).unwrap();
        }
        (0..20_000).step_by(3).for_each(|n| std::fs::remove_file(k.at.join(format!("{n}"))).unwrap());
    }
    p.uxfs(&["admin", "-O", "inobtcount=1,bigtime=1", "o.img"]);
    p.is_sound("o.img");
    p.uxfs(&["rm", "o.img:/1"]);
    p.is_sound("o.img");
    p.uxfs(&["admin", "-O", "exchange", "o.img"]);
    p.newest_is_silent("o.img");
    assert!(p.uxfs(&["info", "o.img"]).contains("exchange=1"));
    drop(p.kernel("o.img", "loop"));
    for (made, wrong, why) in
        [("finobt=0", "inobtcount=1", "needs a volume with finobt"), ("reflink=0,rmapbt=0", "exchange=1", "needs a volume with reflink")]
    {
        p.uxfs(&["mkfs", "-q", "-f", "-d", "size=300m", "-m", made, "-i", "exchange=0", "-n", "parent=0", "w.img"]);
        let o = p.try_uxfs(&["admin", "-O", wrong, "w.img"]);
        assert!(!o.status.success() && text(&o).contains(why), "{}", text(&o));
    }
    // The smallest log is too small for it.
    p.uxfs(&["mkfs", "-q", "-f", "-c", "options=lts_6.1", "-d", "size=200m", "w.img"]);
    let o = p.try_uxfs(&["admin", "-O", "nrext64=1", "w.img"]);
    assert!(text(&o).contains("the log is too small"), "{}", text(&o));
}
