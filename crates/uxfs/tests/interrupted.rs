//! Logs that a shutdown of the kernel left in the middle of long chains of intents, and trees as the kernel leaves them.

mod common;

use common::*;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use uxfs::{Fs, SetAttr, describe_log};

const BLOCK: u64 = 4096;

/// A file in which every other block has data.
fn striped(fs: &Fs, name: &str, blocks: u64) -> u64 {
    let f = fs.create(fs.root(), name.as_bytes(), file(0o644)).unwrap().ino;
    for b in (0..blocks).step_by(2) {
        fs.write(f, b * BLOCK, &[b as u8 | 1; 100], false).unwrap();
    }
    fs.fsync(f).unwrap();
    f
}

#[test]
fn a_file_of_many_extents_shrinks_to_few() {
    let img = Image::new("many-extents", 500 << 20);
    let fs = img.open();
    let f = striped(&fs, "f", 24_000);
    for blocks in [9000, 400, 30, 2, 0] {
        fs.setattr(f, SetAttr { size: Some(blocks * BLOCK), ..SetAttr::default() }).unwrap();
        assert_eq!(fs.extents(f).unwrap().len() as u64, blocks / 2);
    }
    fs.unmount().unwrap();
    img.repair_is_silent();
}

#[test]
fn chains_that_the_kernel_began_are_finished() {
    let (repair, io) = (newest("xfs_repair"), newest("xfs_io"));
    let mut pending = 0;
    for attempt in 0..12 {
        let img = Image::made_by(&newest("mkfs.xfs"), &format!("interrupted-{attempt}"), 900 << 20, &["-q"]);
        let fs = img.open();
        let a = striped(&fs, "a", 10_000);
        for name in ["b", "c", "d"] {
            let f = fs.create(fs.root(), name.as_bytes(), file(0o644)).unwrap().ino;
            fs.clone_range((a, 0), (f, 0), 9998 * BLOCK).unwrap();
        }
        fs.unmount().unwrap();
        {
            let k = img.kernel_mount();
            let c = std::fs::OpenOptions::new().write(true).open(k.path("c")).unwrap();
            for b in (1..9000).step_by(3) {
                c.write_all_at(b"copied", b * BLOCK).unwrap();
            }
            c.sync_all().unwrap();
            let at = k.at.clone();
            let load = std::thread::spawn(move || {
                for name in ["b", "c", "a"] {
                    let _ = std::fs::remove_file(at.join(name));
                }
            });
            let d = k.path("d");
            let punch = std::thread::spawn(move || run(&newest("xfs_io"), &["-c", "fpunch 0 30m", d.to_str().unwrap()]));
            std::thread::sleep(Duration::from_millis(10 + 9 * attempt));
            assert!(run(&io, &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]).status.success());
            load.join().unwrap();
            punch.join().unwrap();
        }
        let log = describe_log(&img.device().into(), &mut |_, _| {}).unwrap();
        pending += usize::from(log.unfinished > 0);
        let theirs = img.copy(&format!("interrupted-{attempt}-theirs"));
        img.open().unmount().unwrap();
        img.is_silent_for(&repair);
        let report = uxfs_check::check(&*img.device()).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings[0]);
        let names = |k: &KernelMount| {
            let mut all: Vec<_> = std::fs::read_dir(&k.at).unwrap().map(|e| e.unwrap()).collect();
            all.sort_by_key(|e| e.file_name());
            all.iter().map(|e| (e.file_name(), std::fs::read(e.path()).unwrap())).collect::<Vec<_>>()
        };
        let ours = names(&img.kernel_mount());
        assert!(ours == names(&theirs.kernel_mount()), "attempt {attempt}: the kernel recovers another tree");
        if pending == 3 {
            return;
        }
    }
    assert!(pending > 0, "no shutdown came in the middle of a chain");
}

/// As xfs_fsr does it. The blocks of the extent trees name their owners, which change without being logged. (Linux 6.18 does not
/// recover such a log itself.)
#[test]
fn extent_trees_that_were_exchanged_whole_get_their_new_owners() {
    let img = Image::theirs("swapext", 300 << 20, &[]);
    let fs = img.open();
    // Of two levels, and of three.
    for (name, blocks) in [("a", 2000), ("b", 2000), ("c", 6000), ("d", 6000)] {
        striped(&fs, name, blocks);
    }
    let bytes = |fs: &Fs, name: &str| {
        let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino;
        let mut all = vec![0; fs.stat(ino).unwrap().size as usize];
        assert_eq!(fs.read(ino, 0, &mut all).unwrap(), all.len());
        all
    };
    for name in ["a", "c"] {
        let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino;
        fs.write(ino, 0, name.as_bytes(), false).unwrap();
    }
    let before = ["a", "b", "c", "d"].map(|n| bytes(&fs, n));
    fs.unmount().unwrap();
    {
        let m = img.kernel_mount();
        for (x, y) in [("a", "b"), ("c", "d")] {
            let o = run("xfs_io", &["-c", &format!("swapext {}", m.path(y).display()), m.path(x).to_str().unwrap()]);
            assert!(o.status.success(), "{o:?}");
        }
        assert!(run("xfs_io", &["-x", "-r", "-c", "shutdown -f", m.at.to_str().unwrap()]).status.success());
    }
    let fs = img.open();
    assert!(fs.was_recovered());
    let after = ["b", "a", "d", "c"].map(|n| bytes(&fs, n));
    assert!(before == after, "the files did not exchange what they hold");
    fs.unmount().unwrap();
    img.repair_is_silent();
    drop(img.kernel_mount());
}
