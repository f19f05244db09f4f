//! Volumes whose log has a device of its own: made, used, killed and recovered, by us and by the kernel.

#[expect(dead_code, reason = "what looks at one file is used by the other tests")]
mod common;

use common::*;
use std::process::Stdio;

/// A loop device, given back when dropped.
struct Loop(String);

impl Loop {
    fn new(file: &str) -> Loop {
        Loop(must("losetup", &["--find", "--show", file]).trim().to_string())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["-d", &self.0]);
    }
}

fn repaired(p: &Place) {
    let o = run(&newest("xfs_repair"), &["-n", "-l", &p.path("log"), &p.path("data.img")]);
    assert!(o.status.success(), "xfs_repair -n: {}", text(&o));
}

/// The kernel works on the volume and is stopped without a word about it.
fn kernel_leaves_a_dirty_log(p: &Place, name: &str) {
    let log = Loop::new(&p.path("log"));
    let k = p.kernel("data.img", &format!("loop,nouuid,logdev={}", log.0));
    for i in 0..200 {
        std::fs::write(k.at.join(format!("{name}{i}")), vec![i as u8; 100 * i]).unwrap();
    }
    must("xfs_io", &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]);
}

#[test]
fn a_log_outside_is_used_and_recovered_by_us_and_by_the_kernel() {
    let p = Place::new("logdev");
    p.uxfs(&["mkfs", "-c", "options=lts_6.6", "-d", "size=300m", "-l", "logdev=log,size=64m", "data.img"]);
    repaired(&p);
    // Whoever does not name the log is told so, and whoever names one that is not needed.
    let o = p.try_uxfs(&["ls", "data.img:/"]);
    assert!(!o.status.success() && text(&o).contains("logdev"), "{}", text(&o));
    let with = |args: &[&str]| p.uxfs(&[&["--logdev", "log"], args].concat());
    with(&["mkdir", "data.img:/dir"]);
    repaired(&p);
    kernel_leaves_a_dirty_log(&p, "theirs");
    // Read without a change, checked, then recovered on the disk.
    assert_eq!(with(&["ls", "data.img:/"]).lines().count(), 201);
    let o = p.try_uxfs(&["--logdev", "log", "check", "data.img"]);
    assert_eq!(o.status.code(), Some(2), "{}", text(&o));
    assert!(with(&["log", "data.img"]).starts_with("log: dirty"));
    assert!(with(&["recover", "data.img"]).contains("recovered"));
    repaired(&p);
    // A server is killed; the kernel recovers what it left.
    let mut s = p.serve("data.img", "logdev=log,logbsize=256k,logbufs=2,journal_flush=per-checkpoint");
    for i in 0..300 {
        std::fs::write(s.at.join(format!("ours{i}")), vec![i as u8; 50 * i]).unwrap();
    }
    p.uxfs(&["sync", s.at.to_str().unwrap()]);
    s.child.kill().unwrap();
    s.child.wait().unwrap();
    drop(s);
    {
        let log = Loop::new(&p.path("log"));
        let k = p.kernel("data.img", &format!("loop,nouuid,logdev={}", log.0));
        assert_eq!(std::fs::read_dir(&k.at).unwrap().count(), 501);
        assert_eq!(std::fs::read(k.at.join("ours200")).unwrap(), vec![200; 10_000]);
    }
    repaired(&p);
    // Label and UUID, whose copy stands in the log, and size.
    kernel_leaves_a_dirty_log(&p, "more");
    with(&["admin", "-L", "outside", "-U", "generate", "data.img"]);
    repaired(&p);
    with(&["grow", "data.img", "400m"]);
    repaired(&p);
    let o = p.try_uxfs(&["--logdev", "log", "check", "data.img"]);
    assert!(o.status.success(), "{}", text(&o));
    kernel_leaves_a_dirty_log(&p, "last");
    assert!(with(&["info", "data.img"]).contains("log      =external"));
}

#[test]
fn a_log_device_that_does_not_fit_is_refused() {
    let p = Place::new("logdev-wrong");
    p.uxfs(&["mkfs", "-d", "size=300m", "-l", "logdev=log,size=64m", "outside.img"]);
    p.uxfs(&["mkfs", "-d", "size=300m", "inside.img"]);
    p.image("short", 1 << 20);
    p.image("empty", 64 << 20);
    let refused = |args: &[&str], word: &str| {
        let o = p.try_uxfs(args);
        assert!(!o.status.success() && text(&o).contains(word), "{args:?}: {}", text(&o));
    };
    refused(&["--logdev", "short", "ls", "outside.img:/"], "has only");
    refused(&["--logdev", "inside.img", "mkdir", "outside.img:/x"], "log");
    std::fs::create_dir(p.path("mnt")).unwrap();
    refused(&["mount", "-o", "logdev=log", "inside.img", "mnt"], "inside");
    refused(&["mount", "-o", "logbsize=7k", "inside.img", "mnt"], "logbsize");
    refused(&["mount", "-o", "logbufs=9", "inside.img", "mnt"], "logbufs");
    refused(&["mount", "-o", "journal_flush=as-published", "inside.img", "mnt"], "power cut");
    refused(&["mount", "-o", "journal_flush=x", "inside.img", "mnt"], "stable-tail");
    refused(&["mkfs", "-d", "size=300m", "-l", "logdev=none", "x.img"], "-l size=");
    // An option of one volume says nothing to another: a log inside stays where it is.
    p.uxfs(&["--logdev", "log", "mkdir", "inside.img:/x"]);
    let o = uxfs().args(["--help"]).stdout(Stdio::piped()).output().unwrap();
    assert!(text(&o).contains("--logdev"));
}
