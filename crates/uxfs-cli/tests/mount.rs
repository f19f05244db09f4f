//! A mounted volume under load, unmounted, killed, and recovered by the kernel and by uxfs.

#[expect(dead_code, reason = "shared with tests that use more of it")]
mod common;

use common::*;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A load that ends with the test.
struct Load(Vec<Child>);

impl Drop for Load {
    fn drop(&mut self) {
        // Each leads a group of its own, with all that it started.
        for c in &mut self.0 {
            let _ = Command::new("kill").args(["-9", "--", &format!("-{}", c.id())]).stderr(Stdio::null()).status();
            let _ = c.wait();
        }
    }
}

fn start(program: &str, args: &[&str], dir: &Path) -> Child {
    let c = Command::new(program)
        .args(args)
        .process_group(0)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    c.unwrap_or_else(|e| panic!("{program}: {e}; install it with: apt-get install dbench stress-ng"))
}

/// dbench and stress-ng's file stressors below `at`, until the value is dropped; none that calls sync(2), which waits for all file systems.
fn load(at: &Path) -> Load {
    let (db, st) = (at.join("dbench"), at.join("stress"));
    fs::create_dir_all(&db).unwrap();
    fs::create_dir_all(&st).unwrap();
    let stress =
        "--temp-path . --filename 1 --rename 1 --link 1 --symlink 1 --xattr 1 --utime 1 --chmod 1 --hdd 1 --hdd-bytes 8m --timeout 60";
    let stress: Vec<&str> = stress.split(' ').collect();
    Load(vec![start("dbench", &["-t", "60", "-c", "/usr/share/dbench/client.txt", "4"], &db), start("stress-ng", &stress, &st)])
}

/// Random renames, links and removals of the files below `at`, by `n` processes at once.
fn shuffle(at: &Path, n: u32) {
    let script = r#"
        i=0; mkdir -p own$1
        for f in $(find tree -type f | awk "NR % $2 == $1"); do
            i=$((i+1))
            case $((i % 5)) in
                0) mv "$f" own$1/moved$i ;;
                1) ln "$f" own$1/linked$i ;;
                2) rm "$f" ;;
                3) ln -s "../$f" own$1/soft$i ;;
                4) chmod 6$((i % 7))4 "$f"; touch -d "@$i.123456789" "$f" ;;
            esac
        done
        for i in $(seq 1 3 200); do rm -f own$1/moved$i own$1/linked$i; done"#;
    let all: Vec<Child> = (0..n).map(|k| start("bash", &["-c", script, "shuffle", &k.to_string(), &n.to_string()], at)).collect();
    for mut c in all {
        assert!(c.wait().unwrap().success());
    }
}

#[test]
fn what_eight_processes_did_is_there_for_the_kernel() {
    let _offered = rings();
    for (name, args, options) in [
        ("default", &["-q", "-d", "size=2g,file"][..], ""),
        ("sectors", &["-q", "-s", "size=4096", "-d", "size=1g,file"], ""),
        ("groups", &["-q", "-d", "size=8g,agcount=17,file"], "io_uring"),
        ("one group", &["-q", "--unsupported", "-d", "size=400m,agcount=1,file"], ""),
        ("a tebibyte", &["-q", "-d", "size=1t,file"], "io_uring"),
    ] {
        let p = Place::new(&name.replace(' ', "-"));
        p.image("v.img", 0);
        p.mkfs_xfs("v.img", args);
        let s = p.serve("v.img", options);
        must("cp", &["-a", "/usr/include/linux", &s.path("tree")]);
        must("setfattr", &["-n", "user.test", "-v", "value", &s.path("tree")]);
        must("setfattr", &["-n", "trusted.large", "-v", &"x".repeat(2000), &s.path("tree")]);
        shuffle(&s.at, 8);
        let copy = p.dir.join("copy");
        fs::create_dir(&copy).unwrap();
        must("cp", &["-a", &s.path("."), copy.to_str().unwrap()]);
        s.unmount();
        p.is_sound("v.img");
        let k = p.kernel("v.img", "loop,ro");
        same_tree(&k.at, &copy);
        let attrs = attributes(&k.at);
        assert!(attrs.contains("user.test=0x76616c7565") && attrs.contains("trusted.large=0x7878"), "{name}: {attrs}");
    }
}

#[test]
fn after_a_kill_the_kernel_and_uxfs_recover_the_same() {
    let _offered = rings();
    for (i, args) in [&["-q", "-d", "size=1g,file"][..], &["-q", "-s", "size=4096", "-d", "size=600m,agcount=9,file"]].iter().enumerate() {
        let p = Place::new(&format!("kill{i}"));
        p.image("v.img", 0);
        p.mkfs_xfs("v.img", args);
        let s = p.serve("v.img", ["", "io_uring"][i]);
        let running = load(&s.at);
        std::thread::sleep(Duration::from_millis(2500 + 700 * i as u64));
        // What was synced under the load must be there.
        let mut f = File::create(s.at.join("synced")).unwrap();
        f.write_all(&[7; 300_000]).unwrap();
        f.sync_all().unwrap();
        drop(f);
        std::thread::sleep(Duration::from_millis(300));
        s.kill();
        drop(running);
        p.copy("v.img", "ours.img");
        p.copy("v.img", "theirs.img");
        assert!(p.uxfs(&["recover", "ours.img"]).contains("recovered"));
        drop(p.kernel("theirs.img", "loop"));
        p.is_sound("ours.img");
        p.is_sound("theirs.img");
        let (a, b) = (p.kernel("ours.img", "loop,ro,nouuid"), p.kernel("theirs.img", "loop,ro,nouuid"));
        same_tree(&a.at, &b.at);
        assert_eq!(attributes(&a.at), attributes(&b.at));
        assert_eq!(fs::read(a.at.join("synced")).unwrap(), vec![7; 300_000]);
    }
}

#[test]
fn a_log_that_the_kernel_left_dirty_is_recovered_as_the_kernel_does() {
    let _offered = rings();
    for (i, args) in [&["-q", "-d", "size=1g,file"][..], &["-q", "-s", "size=4096", "-d", "size=600m,agcount=5,file"]].iter().enumerate() {
        let p = Place::new(&format!("theirs{i}"));
        p.image("v.img", 0);
        p.mkfs_xfs("v.img", args);
        let k = p.kernel("v.img", "loop");
        let running = load(&k.at);
        std::thread::sleep(Duration::from_millis(1500));
        // Shared blocks, so that there are reference counts in the log, and a file with many extents.
        must("cp", &["-r", "--reflink=always", "/dev/null", k.at.join("null").to_str().unwrap()]);
        let f = File::create(k.at.join("many")).unwrap();
        (0..300).for_each(|b| f.write_all_at(&[1; 4096], b * 8192).unwrap());
        f.sync_all().unwrap();
        must("cp", &["--reflink=always", k.at.join("many").to_str().unwrap(), k.at.join("shared").to_str().unwrap()]);
        must("xfs_io", &["-x", "-c", if i == 0 { "shutdown -f" } else { "shutdown" }, k.at.to_str().unwrap()]);
        drop((f, running));
        drop(k);
        p.copy("v.img", "ours.img");
        p.copy("v.img", "theirs.img");
        assert!(p.uxfs(&["recover", "ours.img"]).contains("recovered"));
        drop(p.kernel("theirs.img", "loop"));
        p.is_sound("ours.img");
        // The kernel's own crash may leave an attribute unfinished; its recovery does not take it out.
        let said = p.repair("theirs.img");
        assert!(said.is_empty() || said[0].ends_with("is INCOMPLETE"), "xfs_repair -n: {said:?}");
        let (a, b) = (p.kernel("ours.img", "loop,ro,nouuid"), p.kernel("theirs.img", "loop,ro,nouuid"));
        same_tree(&a.at, &b.at);
        assert_eq!(attributes(&a.at), attributes(&b.at));
    }
}

#[test]
fn a_write_to_shared_blocks_copies_them() {
    let p = Place::new("reflink");
    p.image("v.img", 0);
    p.mkfs_xfs("v.img", &["-q", "-d", "size=400m,file"]);
    let k = p.kernel("v.img", "loop");
    fs::write(k.at.join("a"), vec![1; 1_000_000]).unwrap();
    must("cp", &["--reflink=always", k.at.join("a").to_str().unwrap(), k.at.join("b").to_str().unwrap()]);
    drop(k);
    let s = p.serve("v.img", "");
    let b = OpenOptions::new().write(true).open(s.at.join("b")).unwrap();
    b.write_all_at(&[2; 5000], 100_000).unwrap();
    b.write_all_at(&[3; 200_000], 700_000).unwrap();
    drop(b);
    let f = OpenOptions::new().write(true).open(s.at.join("a")).unwrap();
    f.set_len(400_000).unwrap();
    drop(f);
    s.unmount();
    p.is_sound("v.img");
    let k = p.kernel("v.img", "loop,ro");
    assert_eq!(fs::read(k.at.join("a")).unwrap(), vec![1; 400_000]);
    let mut want = vec![1; 1_000_000];
    want[100_000..105_000].fill(2);
    want[700_000..900_000].fill(3);
    assert!(fs::read(k.at.join("b")).unwrap() == want);
}

#[test]
fn a_mounted_image_is_refused_to_others_and_a_signal_unmounts_it() {
    let p = Place::new("signal");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=300m", "v.img"]);
    let mut s = p.serve("v.img", "commit=1");
    fs::write(s.at.join("f"), "data").unwrap();
    let other = p.dir.join("other");
    fs::create_dir(&other).unwrap();
    for args in [&["mount", "v.img", "other"][..], &["rm", "v.img:/f"], &["ls", "v.img"]] {
        let o = p.try_uxfs(args);
        assert!(!o.status.success() && text(&o).contains("v.img is in use"), "{args:?}: {}", text(&o));
    }
    must("kill", &["-TERM", &s.child.id().to_string()]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while s.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "SIGTERM does not end the server");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_mounted(&s.at));
    drop(s);
    assert_eq!(p.uxfs(&["cat", "v.img:/f"]), "data");
    p.is_sound("v.img");
    // In the background, by the form that mount(8) uses, read-only.
    let at = p.dir.join("other");
    assert!(p.try_uxfs(&["v.img", at.to_str().unwrap(), "-o", "ro,allow_other"]).status.success());
    assert_eq!(fs::read_to_string(at.join("f")).unwrap(), "data");
    assert!(fs::write(at.join("g"), "x").is_err());
    // As umount(8) calls its helper: it waits, too, until the image is free.
    let helper = p.dir.join("umount.fuse.uxfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_uxfs"), &helper).unwrap();
    let held = File::open(at.join("f")).unwrap();
    let o = run(helper.to_str().unwrap(), &[at.to_str().unwrap(), "-t", "fuse.uxfs"]);
    assert!(!o.status.success() && text(&o).contains("busy") && is_mounted(&at), "{}", text(&o));
    drop(held);
    must(helper.to_str().unwrap(), &[at.to_str().unwrap(), "-t", "fuse.uxfs"]);
    assert!(!is_mounted(&at));
    p.uxfs(&["rm", "v.img:/f"]);
    // Although it is busy, and without waiting.
    assert!(p.try_uxfs(&["mount", "v.img", "other"]).status.success());
    let held = File::create(at.join("g")).unwrap();
    p.uxfs(&["umount", "-l", "other"]);
    assert!(!is_mounted(&at) && !p.try_uxfs(&["ls", "v.img"]).status.success());
    drop(held);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !p.try_uxfs(&["ls", "v.img"]).status.success() {
        assert!(Instant::now() < deadline, "the server goes on though no file is open any more");
        std::thread::sleep(Duration::from_millis(20));
    }
    p.is_sound("v.img");
}

#[test]
fn a_signal_closes_a_busy_mount_cleanly() {
    let _offered = rings();
    ["commit=1", "commit=1,io_uring"].into_iter().for_each(busy_is_closed);
}

fn busy_is_closed(options: &str) {
    let p = Place::new("busy");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=300m", "v.img"]);
    let mut s = p.serve("v.img", options);
    let at = s.at.clone();
    let mut held = File::create(at.join("held")).unwrap();
    let mut busy = File::create(at.join("busy")).unwrap();
    held.write_all(b"kept").unwrap();
    // After the mount is gone from the tree, only an open file still leads to it.
    let writer = std::thread::spawn(move || (0..).find(|_| busy.write_all(b"some bytes").is_err()));
    std::thread::sleep(Duration::from_millis(300));
    must("kill", &["-TERM", &s.child.id().to_string()]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while s.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "SIGTERM does not end the server of a busy mount");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_mounted(&s.at));
    drop(held);
    assert!(writer.join().unwrap().is_some_and(|n| n > 0), "the writer got nothing done");
    let o = p.try_uxfs(&["check", "v.img"]);
    assert_eq!(o.status.code(), Some(0), "the log is clean: {}", text(&o));
    assert_eq!(p.uxfs(&["cat", "v.img:/held"]), "kept");
    p.is_sound("v.img");
}

/// Access control lists are set, inherited, kept and obeyed as on the kernel's mount, and lie on the disk as there.
#[test]
fn access_control_lists_are_those_of_the_kernel() {
    let p = Place::new("acl");
    for v in ["ours.img", "theirs.img"] {
        p.image(v, 300 << 20);
        p.mkfs_xfs(v, &["-q"]);
    }
    let script = r#"
        chmod 755 .; umask 022
        mkdir plain inherits; echo secret > file; chmod 600 file
        setfacl -m u:1001:rw-,g:1002:r-- file
        setfacl -m u:1001:rwx inherits; setfacl -d -m u:1001:rwx,g:1002:r-x,o::- inherits
        umask 027; echo x > inherits/new; mkdir inherits/sub; echo y > inherits/sub/deep; mknod inherits/pipe p; ln -s new inherits/soft
        umask 077; echo z > inherits/private; echo z > plain/private
        chmod 640 inherits/new; chmod 711 inherits/sub
        setfacl -x u:1001 inherits/sub/deep; setfacl -b inherits/private; setfacl -m m::r inherits/pipe
        mkdir gone; setfacl -d -m u:7:rwx gone; setfacl -k gone
        setpriv --reuid=1001 --regid=1001 --clear-groups cat file; setpriv --reuid=1003 --regid=1003 --clear-groups cat file 2>&1
        setpriv --reuid=1003 --regid=1002 --clear-groups sh -c 'cat file; echo more > file' 2>&1
        setpriv --reuid=1001 --regid=1001 --clear-groups touch inherits/by1001 2>&1
    "#;
    let look = "getfacl -R -n . && find . -printf '%p %m %y\n' | sort && getfattr -R -d -m '^trusted.SGI' -e hex .";
    let go = |at: &Path, script: &str| {
        let o = Command::new("bash").args(["-c", script]).current_dir(at).output().unwrap();
        text(&o).replace(at.to_str().unwrap(), "")
    };
    let s = p.serve("ours.img", "allow_other");
    let k = p.kernel("theirs.img", "loop");
    let (ours, theirs) = (go(&s.at, script), go(&k.at, script));
    assert!(theirs.contains("secret\n") && theirs.contains("Permission denied"), "setfacl and getfacl (package acl): {theirs}");
    assert_eq!(ours, theirs);
    let sorted = |t: String| {
        let mut v: Vec<String> = t.split("\n\n").map(str::to_string).collect();
        v.sort();
        v
    };
    let (seen, want) = (sorted(go(&s.at, look)), sorted(go(&k.at, look)));
    assert_eq!(seen, want);
    s.unmount();
    drop(k);
    p.is_sound("ours.img");
    let k = p.kernel("ours.img", "loop,ro");
    assert_eq!(sorted(go(&k.at, look)), want, "the kernel sees other lists than were set");
}

#[test]
fn names_change_places_and_leave_whiteouts() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::os::unix::fs::FileTypeExt;
    let p = Place::new("exchange");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=300m", "v.img"]);
    let s = p.serve("v.img", "");
    let at = |n: &str| s.at.join(n);
    fs::create_dir_all(at("a/dir/below")).unwrap();
    fs::create_dir(at("b")).unwrap();
    fs::write(at("b/file"), "file").unwrap();
    let rename = |from: &str, to: &str, how| renameat_with(CWD, at(from), CWD, at(to), how).map_err(|e| e.raw_os_error());
    rename("a/dir", "b/file", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(at("a/dir")).unwrap(), "file");
    assert!(at("b/file/below").is_dir());
    assert_eq!((fs::metadata(at("a")).unwrap().nlink(), fs::metadata(at("b")).unwrap().nlink()), (2, 3));
    assert_eq!(rename("b", "b/file/below", RenameFlags::EXCHANGE), Err(22));
    assert_eq!(rename("a", "none", RenameFlags::EXCHANGE), Err(2));
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(17));
    fs::write(at("over"), "over").unwrap();
    rename("a/dir", "over", RenameFlags::WHITEOUT).unwrap();
    let w = fs::symlink_metadata(at("a/dir")).unwrap();
    assert!(w.file_type().is_char_device() && w.rdev() == 0);
    assert_eq!(fs::read_to_string(at("over")).unwrap(), "file");
    s.unmount();
    p.is_sound("v.img");
    let k = p.kernel("v.img", "loop,ro");
    assert!(k.at.join("b/file/below").is_dir() && fs::symlink_metadata(k.at.join("a/dir")).unwrap().file_type().is_char_device());
}

/// Lets every user open /dev/fuse, as Debian's udev rules do, until it is dropped: some containers have it closed.
struct OpenToAll(u32);

impl OpenToAll {
    fn new() -> OpenToAll {
        let mode = fs::metadata("/dev/fuse").unwrap().permissions().mode();
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
        OpenToAll(mode)
    }
}

impl Drop for OpenToAll {
    fn drop(&mut self) {
        let _ = fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(self.0));
    }
}

#[test]
fn an_ordinary_user_mounts_an_image_of_his_own() {
    let _open = OpenToAll::new();
    let p = Place::new("user");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=300m", "v.img"]);
    p.uxfs(&["chmod", "777", "v.img:/"]);
    let at = p.dir.join("mine");
    fs::create_dir(&at).unwrap();
    must("chown", &["-R", "65534:65534", p.dir.to_str().unwrap()]);
    must("chmod", &["755", p.dir.to_str().unwrap()]);
    // A copy that an ordinary user may run: the build's folder may be closed to him.
    must("install", &["-m", "755", env!("CARGO_BIN_EXE_uxfs"), &p.path("program")]);
    let as_user = |args: &str| {
        let line = format!("cd {} && {args}", p.dir.display());
        run("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c", &line])
    };
    let o = as_user("./program mount v.img mine");
    assert!(o.status.success(), "{}; needs fusermount3 with its set-user-ID bit: apt-get install fuse3", text(&o));
    let o = as_user("echo mine > mine/file && cat mine/file && ./program sync mine && ./program umount mine");
    let _ = Command::new("umount").arg("-l").arg(&at).stderr(Stdio::null()).status();
    assert_eq!(text(&o), "mine\n");
    p.is_sound("v.img");
    assert_eq!(p.uxfs(&["cat", "v.img:/file"]), "mine\n");
}

#[test]
fn flags_hints_and_trimming_go_through_a_mount() {
    let p = Place::new("ioctl");
    p.uxfs(&["mkfs", "-q", "-d", "size=300m", "-L", "labelled", "v.img"]);
    p.uxfs(&["mkdir", "v.img:/dir"]);
    p.uxfs(&["chattr", "--extsize", "64k", "v.img:/dir"]);
    let m = p.serve("v.img", "");
    fs::write(m.at.join("fixed"), "x").unwrap();
    must("chattr", &["+i", &m.path("fixed")]);
    must("chattr", &["+d", &m.path("dir")]);
    assert!(must("lsattr", &["-d", &m.path("fixed")]).contains('i'));
    assert!(fs::remove_file(m.at.join("fixed")).is_err() && fs::write(m.at.join("fixed"), "y").is_err());
    let io = |f: &str, c: &str| must("xfs_io", &["-r", "-c", c, &m.path(f)]);
    io("dir", "chproj 17");
    io("dir", "chattr +P");
    fs::write(m.at.join("dir/new"), "ten bytes.").unwrap();
    File::open(m.at.join("dir/new")).unwrap().sync_all().unwrap();
    let sectors = |f: &str| fs::metadata(m.at.join(f)).unwrap().blocks();
    assert!(sectors("dir/new") == 128 && io("dir/new", "lsproj").contains("17"), "{}", sectors("dir/new"));
    assert!(fs::rename(m.at.join("dir/new"), m.at.join("new")).is_ok());
    assert!(io("", "label").contains("labelled"));
    io("", "label -s other");
    assert!(io("", "label").contains("other"));
    let o = run("xfs_io", &["-r", "-c", "label -s thirteen_byte", &m.path("")]);
    assert!(!o.status.success() && text(&o).contains("Invalid argument"), "{}", text(&o));
    fs::write(m.at.join("big"), vec![1; 30 << 20]).unwrap();
    p.uxfs(&["sync", m.at.to_str().unwrap()]);
    fs::remove_file(m.at.join("big")).unwrap();
    p.uxfs(&["sync", m.at.to_str().unwrap()]);
    let blocks = || fs::metadata(p.dir.join("v.img")).unwrap().blocks();
    let before = blocks();
    let said = must("fstrim", &["-v", m.at.to_str().unwrap()]);
    assert!(said.contains("trimmed") && before - blocks() > 50_000, "{said} {before} {}", blocks());
    must("chattr", &["-i", &m.path("fixed")]);
    fs::remove_file(m.at.join("fixed")).unwrap();
    m.unmount();
    p.newest_is_silent("v.img");
    assert!(p.uxfs(&["admin", "v.img"]).contains("\"other\""));
}

/// As mount(8) calls the helper: with the flags that it knows beside the new ones.
/// Options of a kernel's XFS that say where its allocator looks are passed over; whose group a file gets is as there.
#[test]
fn options_of_the_kernel_are_understood() {
    let p = Place::new("options");
    p.image("v.img", 300 << 20);
    p.mkfs_xfs("v.img", &["-q"]);
    let made_at = |at: &Path, how: &str| {
        let d = at.join(how);
        fs::create_dir(&d).unwrap();
        fs::set_permissions(&d, fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::chown(&d, Some(1), Some(77)).unwrap();
        let script = "umask 0; cd \"$1\" && : >file && mkdir dir && : >dir/below && ln -s file link && chmod g+s dir && : >dir/other";
        let o = Command::new("setpriv").args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", script, "sh"]).arg(&d).output();
        assert!(o.as_ref().unwrap().status.success(), "{}", text(&o.unwrap()));
        let stat = |f: &&str| {
            let m = fs::symlink_metadata(d.join(f)).unwrap();
            format!("{f} {:o} {} {}", m.mode(), m.uid(), m.gid())
        };
        ["file", "dir", "dir/below", "dir/other", "link"].iter().map(stat).collect::<Vec<_>>()
    };
    for groups in ["grpid", "bsdgroups", "nogrpid"] {
        let common =
            format!("noatime,attr2,inode64,logbufs=8,logbsize=32k,largeio,swalloc,noalign,filestreams,allocsize=64k,noquota,{groups}");
        let s = p.serve("v.img", &format!("{common},allow_other,wsync"));
        let ours = made_at(&s.at, &format!("{groups}-ours"));
        s.unmount();
        let k = p.kernel("v.img", &format!("loop,{groups}"));
        assert_eq!(made_at(&k.at, &format!("{groups}-theirs")), ours, "{groups}");
        assert!(ours[0].ends_with(if groups == "nogrpid" { " 1000" } else { " 77" }), "{ours:?}");
    }
    p.is_sound("v.img");
    for (wrong, why) in
        [("uquota", "quota is neither counted nor enforced"), ("allocsize=much", "is no suffix"), ("inode32", "is not supported")]
    {
        let o = p.try_uxfs(&["mount", "-o", wrong, "v.img", "."]);
        assert!(!o.status.success() && text(&o).contains(why), "{wrong}: {}", text(&o));
    }
}

#[test]
fn a_mount_becomes_read_only_and_back() {
    let p = Place::new("remount");
    p.uxfs(&["mkfs", "-q", "-d", "size=64m", "v.img"]);
    let m = p.serve("v.img", "");
    let at = m.at.to_str().unwrap().to_string();
    let write = || fs::write(m.at.join("file"), "x").map_err(|e| e.raw_os_error());
    assert_eq!(write(), Ok(()));
    let flags = || must("findmnt", &["-no", "VFS-OPTIONS", &at]);
    p.uxfs(&["mount", "-o", "rw,nosuid,nodev,user_id=0,allow_other,remount,ro,noexec", "v.img", &at]);
    assert_eq!(write(), Err(Some(30)));
    assert!(["ro", "nosuid", "nodev", "noexec"].iter().all(|f| flags().contains(f)), "{}", flags());
    // What was written is home.
    fs::copy(p.dir.join("v.img"), p.dir.join("copy.img")).unwrap();
    assert_eq!(p.uxfs(&["cat", "copy.img:/file"]), "x");
    p.uxfs(&["mount", "-o", "remount,rw", "v.img", &at]);
    assert_eq!(write(), Ok(()));
    assert!(flags().contains("noexec"), "{}", flags());
    p.uxfs(&["umount", &at]);
    drop(m);
    let m = p.serve("v.img", "ro");
    let o = p.try_uxfs(&["mount", "-o", "remount,rw", "v.img", m.at.to_str().unwrap()]);
    assert!(!o.status.success() && text(&o).contains("opened read-only"), "{}", text(&o));
    drop(m);
    let o = p.try_uxfs(&["mount", "-o", "remount,rw", "v.img", &at]);
    assert!(!o.status.success() && text(&o).contains("no volume is mounted there"), "{}", text(&o));
}

/// As `xfs_io -x -c shutdown` on the kernel's XFS: what was done is in the log, and nothing is done any more.
#[test]
fn a_mount_can_be_shut_down() {
    let p = Place::new("shutdown");
    p.uxfs(&["mkfs", "-q", "-d", "size=64m", "v.img"]);
    let m = p.serve("v.img", "");
    fs::create_dir(m.at.join("made")).unwrap();
    must("xfs_io", &["-x", "-r", "-c", "shutdown -f", &m.path("")]);
    let e = fs::create_dir(m.at.join("late")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(5), "{e}");
    drop(m);
    assert_eq!(p.try_uxfs(&["check", "v.img"]).status.code(), Some(2));
    p.uxfs(&["recover", "v.img"]);
    assert_eq!(p.uxfs(&["ls", "v.img:/"]), "made\n");
    p.newest_is_silent("v.img");
}

/// What `uxfs stats` says of a mount moves with what is done there, and the socket goes with the server.
#[test]
fn counters_are_told_while_mounted() {
    let p = Place::new("stats");
    p.uxfs(&["mkfs", "-q", "-d", "size=64m", "v.img"]);
    let s = p.serve("v.img", "discard");
    let at = s.at.to_str().unwrap().to_string();
    let stats = || -> serde_json::Value { serde_json::from_str(&p.uxfs(&["stats", "--json", &at])).unwrap() };
    let before = stats();
    for i in 0..50 {
        let f = File::create(s.at.join(format!("f{i}"))).unwrap();
        (&f).write_all(&[7; 50_000]).unwrap();
        f.sync_all().unwrap();
    }
    for i in 0..50 {
        fs::remove_file(s.at.join(format!("f{i}"))).unwrap();
    }
    p.uxfs(&["sync", &at]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let grew = |after: &serde_json::Value, name: &str| after["stats"][name].as_u64().unwrap() - before["stats"][name].as_u64().unwrap();
    while grew(&stats(), "discarded_bytes") < 50 * 50_000 {
        assert!(Instant::now() < deadline, "{}", stats());
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = stats();
    // One flush and one durable write for each fsync, and few beside them.
    assert!((50..60).contains(&grew(&after, "checkpoints")) && (50..60).contains(&grew(&after, "fua")), "{after}");
    assert!((50..65).contains(&grew(&after, "flushes")), "{after}");
    assert_eq!(after["shut_down"], serde_json::Value::Null);
    assert!(p.uxfs(&["stats", &at]).lines().any(|l| l.starts_with("noiclogs")));
    // Also of a file below, not of what is no mount.
    assert!(p.uxfs(&["stats", s.at.join(".").to_str().unwrap()]).contains("checkpoints"));
    let o = p.try_uxfs(&["stats", p.dir.to_str().unwrap()]);
    assert!(!o.status.success() && text(&o).contains("not on a mount"), "{}", text(&o));
    p.uxfs(&["umount", &at]);
    drop(s);
    p.newest_is_silent("v.img");
}

/// A file system of memory, with room for so many MiB.
fn small_host(at: &Path, mib: u32) -> Mount {
    fs::create_dir(at).unwrap();
    must("mount", &["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs", at.to_str().unwrap()]);
    Mount { at: at.to_path_buf() }
}

#[test]
fn unmounting_says_what_could_not_be_written() {
    let p = Place::new("ending");
    let host = small_host(&p.dir.join("host"), 40);
    p.uxfs(&["mkfs", "-q", "-l", "size=10m", "-d", "size=300m", "host/v.img"]);
    let s = p.serve("host/v.img", "commit=0,cache=none");
    // More than the host has room for; uxfs may keep it until somebody wants it to be durable.
    fs::write(s.at.join("f"), vec![7; 60 << 20]).unwrap();
    let o = p.try_uxfs(&["umount", &s.path("")]);
    assert!(!is_mounted(&s.at));
    assert!(!o.status.success() && text(&o).contains("is unmounted: cannot close"), "{}", text(&o));
    drop(s);
    drop(host);
}

/// What a file handle of the system leads to, in Perl, which every Debian has: it takes one of a path, or opens one below a mount.
const HANDLES: &str = r#"
my ($take, $open) = $ENV{MACHINE} eq "aarch64" ? (264, 265) : (303, 304);
my ($what, $at, $hex) = @ARGV;
if ($what eq "take") {
    my $h = pack("Ll a128", 128, 0, "");
    syscall($take, -100, $at, $h, my $id = pack("i", 0), 0) == 0 or die "errno ", $! + 0;
    print unpack("H*", substr($h, 0, 8 + unpack("L", $h)));
} else {
    open(my $mount, "<", $at) or die;
    my $fd = syscall($open, fileno($mount), my $h = pack("H*", $hex), 0);
    $fd >= 0 or die "errno ", $! + 0;
    open(my $f, "<&=", $fd) or die;
    print -d $f ? "directory" : <$f>;
}
"#;

/// A handle of a file names it as long as it lives, also after the server ended and the kernel forgot it; no handle leads to anything else.
#[test]
fn file_handles_outlast_the_server() {
    let p = Place::new("handles");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=400m", "v.img"]);
    let perl = |args: &[&str]| {
        let o = Command::new("perl").args(["-e", HANDLES, "--"]).args(args).env("MACHINE", std::env::consts::ARCH).output().unwrap();
        text(&o).split(" at -e").next().unwrap().to_string()
    };
    let s = p.serve("v.img", "");
    fs::create_dir_all(s.at.join("d/deep")).unwrap();
    fs::write(s.at.join("d/deep/file"), "what it holds").unwrap();
    fs::write(s.at.join("d/gone"), "soon").unwrap();
    fs::write(s.at.join("d/large"), vec![b'I'; 1 << 20]).unwrap();
    let take = |name: &str| perl(&["take", &s.path(name)]);
    let (file, dir, root, gone) = (take("d/deep/file"), take("d/deep"), take("."), take("d/gone"));
    assert!([&file, &dir, &root, &gone].iter().all(|h| h.len() == 40), "{file} {gone}");
    s.unmount();
    let s = p.serve("v.img", "");
    let open = |h: &str| perl(&["open", s.at.to_str().unwrap(), h]);
    assert_eq!([&dir, &root, &gone, &file].map(|h| open(h)), ["directory", "directory", "soon", "what it holds"]);
    fs::remove_file(s.at.join("d/gone")).unwrap();
    assert_eq!(open(&gone), "errno 116");
    s.unmount();
    let s = p.serve("v.img", "");
    let open = |h: &str| perl(&["open", s.at.to_str().unwrap(), h]);
    // Another one in its place, free inodes, blocks of data and of trees, groups that are not there.
    fs::write(s.at.join("d/another"), "new").unwrap();
    let words =
        |h: &str| -> Vec<u32> { (0..3).map(|i| u32::from_str_radix(&h[16 + 8 * i..24 + 8 * i], 16).unwrap().swap_bytes()).collect() };
    let made = |ino: u64, generation: u32| -> String {
        [(ino >> 32) as u32, ino as u32, generation].iter().fold(gone[..16].to_string(), |h, w| h + &format!("{:08x}", w.swap_bytes()))
    };
    let generation = words(&file)[2];
    assert_eq!(made(u64::from(words(&file)[1]), generation), file);
    assert_eq!(open(&gone), "errno 116");
    let inos = (1..2000).map(|n| n * 37).chain([1 << 20, 1 << 40, u64::MAX >> 1, u64::MAX]);
    for ino in inos {
        let said = open(&made(ino, generation));
        assert!(said == "errno 116" || (ino == u64::from(words(&file)[1]) && said == "what it holds"), "{ino}: {said}");
    }
    assert_eq!(open(&file), "what it holds");
    fs::write(s.at.join("d/still"), "it lives").unwrap();
    s.unmount();
    p.is_sound("v.img");
}
