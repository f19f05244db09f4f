//! Suites of others over a mount: pjdfstest asks what POSIX says, beside the kernel's XFS; fsx does at random to a file what can be done
//! to it, maps included, and knows what it must hold; stress-ng does much at once.

#[expect(dead_code, reason = "shared with tests that use more of it")]
mod common;

use common::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

/// One of the suites, which lie beside the newest xfsprogs.
fn suite(name: &str, dir: &Path, args: &[&str]) -> Output {
    let program = newest("").replace("xfsprogs/bin/", &format!("suites/bin/{name}"));
    let run = Command::new(&program).args(args).current_dir(dir).output();
    run.unwrap_or_else(|e| panic!("{program}: {e}; install it with: cargo xtask tools"))
}

/// The names of the checks that pass in a folder, and what is said of those that do not. `other` is another file system.
fn passed(config: &str, at: &Path, other: &Path) -> (BTreeSet<String>, String) {
    let o = suite("pjdfstest", at, &["-c", config, "-p", at.to_str().unwrap(), "-s", other.to_str().unwrap()]);
    let out = text(&o);
    let names = out.lines().filter_map(|l| l.strip_suffix(" ok").map(|n| n.trim().to_string())).collect();
    let failed: Vec<&str> = out.lines().skip_while(|l| !l.ends_with("FAILED")).take(40).collect();
    (names, failed.join("\n"))
}

#[test]
fn pjdfstest_passes_what_passes_on_the_kernels_xfs() {
    let p = Place::new("pjdfstest");
    let config = p.path("pjdfstest.toml");
    let birth = if linux(6, 6) { "stat_st_birthtime = {}\n" } else { "" };
    std::fs::write(
        &config,
        "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n".to_string()
            + birth
            + "[settings]\nnaptime = 0.02\nallow_remount = false\n\
             [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
    )
    .unwrap();
    for image in ["kernel.img", "v.img"] {
        p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=300m", image]);
    }
    let (known, failed) = {
        let k = p.kernel("kernel.img", "loop");
        passed(&config, &k.at, &p.dir)
    };
    assert!(known.len() > 370, "{} pass on the kernel's XFS: {failed}", known.len());
    for mode in ["none", "writethrough", "writeback"] {
        let m = p.serve("v.img", &format!("allow_other,suid,dev,cache={mode}"));
        let (ours, failed) = passed(&config, &m.at, &p.dir);
        assert_eq!(known.difference(&ours).collect::<Vec<_>>(), Vec::<&String>::new(), "cache={mode}: {failed}");
        m.unmount();
    }
    p.newest_is_silent("v.img");
}

#[test]
fn fsx_finds_nothing() {
    let p = Place::new("fsx");
    let config = p.path("fsx.toml");
    let weights = |maps| {
        format!(
            "flen = 4194304\n[opsize]\nmax = 262144\nmin = 1\n[weights]\nclose_open = 1.0\nread = 10.0\nwrite = 10.0\nmapread = {maps}\n\
             mapwrite = {maps}\ntruncate = 5.0\ninvalidate = {maps}\nfsync = 1.0\nfdatasync = 1.0\nposix_fallocate = 2.0\npunch_hole = 3.0\n\
             sendfile = 2.0\nposix_fadvise = 1.0\ncopy_file_range = 3.0\n"
        )
    };
    p.uxfs(&["mkfs", "-q", "-d", "size=300m", "v.img"]);
    let steps = if std::env::var_os("UXFS_LONG").is_some() { "60000" } else { "3000" };
    for (n, options) in ["cache=none", "cache=writethrough", "cache=writeback", "cache=none,iomode=dontcache", "cache=none,memory=16m"]
        .into_iter()
        .enumerate()
    {
        std::fs::write(&config, weights(if maps_files(options) { "10.0" } else { "0.0" })).unwrap();
        let m = p.serve("v.img", options);
        for seed in 2 * n..2 * n + 2 {
            let file = m.path(&format!("file {}", seed % 2));
            let o =
                suite("fsx", &p.dir, &["-q", "-f", &config, "-N", steps, "-S", &seed.to_string(), "-P", p.dir.to_str().unwrap(), &file]);
            let said = text(&o);
            let end = said.lines().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
            assert!(o.status.success(), "{options}, seed {seed}: {end}");
        }
        m.unmount();
    }
    p.newest_is_silent("v.img");
}

/// What takes blocks and gives them back as fast as it can, so that all that are free were freed a moment ago; and all kinds at once, but
/// for those that call sync(2): that waits for every file system of the machine, and for ever if one of them is stuck.
const STRESSORS: &[&[&str]] = &[
    &["file-ioctl"],
    &[
        "file-ioctl",
        "fallocate",
        "fpunch",
        "copy-file",
        "hdd",
        "seek",
        "sync-file",
        "sendfile",
        "rename",
        "link",
        "symlink",
        "filename",
        "getdent",
        "xattr",
        "chattr",
        "inode-flags",
        "fiemap",
        "handle",
        "utime",
        "chmod",
    ],
];

fn stress(stressors: &[&str], at: &Path) -> Output {
    let seconds = if std::env::var_os("UXFS_LONG").is_some() { "120" } else { "7" };
    let mut c = Command::new("stress-ng");
    c.args(["--verify", "-t", seconds, "--temp-path", ".", "--hdd-bytes", "32m"]);
    c.args(["--fallocate-bytes", "32m", "--copy-file-bytes", "128m"]);
    for s in stressors {
        c.arg(format!("--{s}")).arg(if s.starts_with('f') { "2" } else { "1" });
    }
    c.current_dir(at).output().unwrap_or_else(|e| panic!("stress-ng: {e}; install it with: apt-get install stress-ng"))
}

#[test]
fn stress_ng_finds_nothing() {
    let p = Place::new("stress");
    for (size, options) in [("1g", "cache=writethrough"), ("96m", "cache=writeback,discard")] {
        let image = format!("{size}.img");
        p.uxfs(&["mkfs", "-q", "-d", &format!("size={size}"), &image]);
        let m = p.serve(&image, options);
        for stressors in STRESSORS {
            let o = stress(stressors, &m.at);
            // On a small volume they run out of space, which some take for a failure; it must outlive that.
            assert!(o.status.success() || size == "96m", "{options}: {}", text(&o));
            std::fs::write(m.path("alive"), "yes").unwrap_or_else(|e| panic!("{size}, {options}: {e}: {}", text(&o)));
        }
        m.unmount();
        p.newest_is_silent(&image);
    }
}
