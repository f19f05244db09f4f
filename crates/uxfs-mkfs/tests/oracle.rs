//! mkfs.xfs says what a new volume looks like; xfs_repair says whether ours is sound.

use rustix::fs::SeekFrom;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use uxfs_device::FileDevice;
use uxfs_mkfs::{Features, Options, format, print_geometry};

const UUID: &str = "11111111-2222-3333-4444-555555555555";

/// Programs of a release.
struct Release {
    dir: String,
    features: Features,
}

/// Debian's xfsprogs 6.1, which the machine has.
fn old() -> Release {
    Release { dir: "/usr/sbin".into(), features: Features::V6_1 }
}

/// The newest xfsprogs, beside the machine's own.
fn newest() -> Release {
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or_else(|_| std::env::var("HOME").unwrap() + "/.cache");
    Release { dir: cache + "/uxfs/xfsprogs/bin", features: Features::NEWEST }
}

impl Release {
    fn run(&self, program: &str, args: &[&str]) -> Output {
        Command::new(format!("{}/{program}", self.dir))
            .args(args)
            .output()
            .unwrap_or_else(|e| panic!("{}/{program}: {e}; install it with: cargo xtask tools", self.dir))
    }
}

/// Where a file holds data, by its own account.
fn data(f: &File) -> Vec<(u64, u64)> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Ok(start) = rustix::fs::seek(f, SeekFrom::Data(at)) {
        at = rustix::fs::seek(f, SeekFrom::Hole(start)).unwrap();
        out.push((start, at));
    }
    out
}

/// Clears what differs by the moment: times, generations and checksums of inodes.
fn without_times(b: &mut [u8], inode: usize) {
    for i in b.chunks_exact_mut(inode).filter(|c| c.starts_with(b"IN")) {
        i[32..56].fill(0);
        i[92..96].fill(0);
        i[100..104].fill(0);
        i[144..152].fill(0);
    }
}

/// The first difference of two images, looked for wherever either holds data.
fn difference(a: &Path, b: &Path, inode: usize) -> Option<String> {
    let (a, b) = (File::open(a).unwrap(), File::open(b).unwrap());
    assert_eq!(a.metadata().unwrap().len(), b.metadata().unwrap().len());
    for (from, to) in data(&a).into_iter().chain(data(&b)) {
        let mut at = from;
        while at < to {
            let n = (to - at).min(1 << 20) as usize;
            let read = |f: &File| {
                let mut buf = vec![0; n];
                f.read_exact_at(&mut buf, at).unwrap();
                without_times(&mut buf, inode);
                buf
            };
            let (x, y) = (read(&a), read(&b));
            if let Some(i) = x.iter().zip(&y).position(|(x, y)| x != y) {
                let row = |v: &[u8]| v[i / 16 * 16..][..16].iter().map(|b| format!("{b:02x} ")).collect::<String>();
                return Some(format!("at byte {}:\n{}\n{}", at + i as u64, row(&x), row(&y)));
            }
            at += n as u64;
        }
    }
    None
}

/// Lines of the printed geometry that both releases have, without the name in the first.
fn lines(s: &str) -> Vec<String> {
    let newer = |l: &str| ["exchange=", "rgcount=", "zoned="].iter().any(|w| l.contains(w));
    let line = |l: &str| l.trim_end_matches(", parent=0").to_string();
    let known = |l: &&str| l.starts_with(|c: char| " dnlr".contains(c)) && !newer(l);
    s.lines().filter(known).map(line).collect()
}

/// Makes a volume with the same words here and there, compares, and has ours judged. Says what differs.
fn compare(release: &Release, size: u64, words: &[(char, &str)]) -> Result<(), String> {
    let dir = std::env::temp_dir().join(format!("uxfs-mkfs-{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (a, b) = (dir.join("ours.img"), dir.join("theirs.img"));
    let done = (|| {
        let mut o = Options { features: release.features, ..Options::new(size, [0; 16]) };
        let uuid = format!("uuid={UUID}");
        let mut all = vec![('m', uuid.as_str())];
        all.extend(words);
        o.take(&all).map_err(|e| e.to_string())?;
        File::create(&b).unwrap().set_len(size).unwrap();
        let options: Vec<String> = all.iter().flat_map(|(c, w)| [format!("-{c}"), w.to_string()]).collect();
        let mut args = vec!["--unsupported"];
        args.extend(options.iter().map(String::as_str));
        args.push(b.to_str().unwrap());
        let theirs = release.run("mkfs.xfs", &args);
        if !theirs.status.success() {
            return Err(format!("mkfs.xfs: {}", String::from_utf8_lossy(&theirs.stderr)));
        }
        let dev = FileDevice::create(&a, Some(size)).unwrap();
        let printed = print_geometry(a.to_str().unwrap(), None, &format(&dev, &o).map_err(|e| e.to_string())?);
        let (ours, theirs) = (lines(&printed), lines(&String::from_utf8_lossy(&theirs.stdout)));
        if ours != theirs {
            return Err(format!("printed {ours:#?} instead of {theirs:#?}"));
        }
        if let Some(d) = difference(&a, &b, o.inode as usize) {
            return Err(d);
        }
        let check = release.run("xfs_repair", &["-n", "-o", "force_geometry", a.to_str().unwrap()]);
        if !check.status.success() {
            return Err(format!("xfs_repair: {}", String::from_utf8_lossy(&check.stderr)));
        }
        Ok(())
    })();
    std::fs::remove_dir_all(&dir).unwrap();
    done.map_err(|e| format!("size {size} {words:?}: {e}"))
}

const MIB: u64 = 1 << 20;

fn all(release: &Release, cases: &[(u64, &[(char, &str)])]) {
    let failed: Vec<String> = cases.iter().filter_map(|(mib, words)| compare(release, mib * MIB, words).err()).collect();
    assert!(failed.is_empty(), "{} of {} differ:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

#[test]
fn volumes_are_those_of_mkfs_xfs_6_1_byte_for_byte() {
    all(
        &old(),
        &[
            (16, &[]),
            (64, &[]),
            (300, &[]),
            (1024, &[('s', "size=4096")]),
            (1024, &[('d', "agcount=1")]),
            (8192, &[('d', "agcount=17")]),
            (1 << 20, &[]),
            (1024, &[('m', "rmapbt=1")]),
            (300, &[('s', "size=4096"), ('m', "rmapbt=1"), ('i', "nrext64=1")]),
            (1024, &[('m', "reflink=0,rmapbt=1")]),
            (1024, &[('m', "reflink=0,inobtcount=0")]),
            (300, &[('m', "bigtime=0"), ('i', "sparse=0")]),
            (1024, &[('m', "inobtcount=0,finobt=0")]),
            (1024, &[('b', "size=1k")]),
            (2048, &[('b', "size=2048"), ('i', "size=1024")]),
            (1024, &[('b', "size=8k"), ('n', "size=64k")]),
            (1024, &[('b', "size=16k"), ('i', "sparse=0")]),
            (2048, &[('b', "size=32k"), ('i', "size=2048,maxpct=50")]),
            (1024, &[('i', "perblock=2"), ('l', "size=100m")]),
            (1024, &[('d', "su=64k,sw=4")]),
            (20 << 10, &[('d', "su=512k,sw=3")]),
            (600 << 10, &[('d', "sunit=128,swidth=512")]),
            (1024, &[('b', "size=1k"), ('d', "su=64k,sw=4")]),
            (1024, &[('l', "su=256k")]),
            (1024, &[('d', "agsize=200m"), ('l', "agnum=1")]),
            // The root inode behind a log that leaves a gap before it, and behind one that leaves none.
            (640, &[('b', "size=1k"), ('d', "agcount=2,su=32k,sw=2"), ('l', "agnum=0")]),
            (640, &[('d', "agcount=2,su=64k,sw=2"), ('l', "agnum=0")]),
            (640, &[('d', "agcount=2,su=16k,sw=2"), ('l', "agnum=0")]),
            (640, &[('b', "size=8k"), ('d', "agcount=2,su=256k,sw=2"), ('l', "agnum=0")]),
            (640, &[('d', "agcount=2"), ('l', "agnum=0")]),
        ],
    );
}

#[test]
fn volumes_are_those_of_the_newest_mkfs_xfs_byte_for_byte() {
    all(
        &newest(),
        &[
            (300, &[]),
            (1024, &[]),
            (20 << 10, &[]),
            (1024, &[('n', "parent=0")]),
            (1024, &[('b', "size=1k")]),
            (2048, &[('b', "size=2k"), ('i', "size=1024,exchange=0"), ('n', "parent=0")]),
            (1024, &[('b', "size=8k")]),
            (1024, &[('b', "size=16k"), ('s', "size=4096")]),
            (2048, &[('b', "size=32k")]),
            (1024, &[('b', "size=64k")]),
            (2048, &[('b', "size=64k"), ('i', "size=2048"), ('m', "reflink=0")]),
            (1024, &[('d', "su=64k,sw=4")]),
            (20 << 10, &[('d', "su=512k,sw=3"), ('l', "sunit=16")]),
            (2048, &[('m', "rmapbt=0"), ('d', "projinherit=7,extszinherit=16,cowextsize=32")]),
            (300, &[('d', "projinherit=0,extszinherit=0,cowextsize=0")]),
            (300, &[('d', "extszinherit=9600,cowextsize=0x2580")]),
            (2048, &[('d', "agcount=010,su=0"), ('m', "finobt=0")]),
            (2048, &[('d', "agsize=0x10000000,sw=0"), ('i', "maxpct=010"), ('m', "finobt=")]),
            (2048, &[('d', "agcount=8,sectsize=4k")]),
        ],
    );
}

/// The log has a device of its own: both files, and what is printed, are those of mkfs.xfs.
#[test]
fn volumes_with_their_log_outside_are_those_of_mkfs_xfs() {
    for (release, log, words) in [
        (old(), 80 * MIB, &[][..]),
        (newest(), 100 * MIB, &[('l', "size=70m")][..]),
        (newest(), 64 * MIB, &[('b', "size=1k"), ('l', "su=64k")][..]),
    ] {
        let dir = std::env::temp_dir().join(format!("uxfs-mkfs-log-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let [a, b, log_a, log_b] = ["ours.img", "theirs.img", "ours.log", "theirs.log"].map(|n| dir.join(n));
        let uuid = format!("uuid={UUID}");
        let outside = format!("logdev={}", log_b.display());
        let mut all = vec![('m', uuid.as_str())];
        all.extend(words);
        let mut o = Options { features: release.features, log_device: Some(log), ..Options::new(600 * MIB, [0; 16]) };
        o.take(&all).unwrap();
        let (dev, log_dev) = (FileDevice::create(&a, Some(600 * MIB)).unwrap(), FileDevice::create(&log_a, Some(log)).unwrap());
        let sb = uxfs_mkfs::format_with_log(&dev, &log_dev, &o).unwrap();
        File::create(&b).unwrap().set_len(600 * MIB).unwrap();
        File::create(&log_b).unwrap().set_len(log).unwrap();
        all.push(('l', &outside));
        let mut args: Vec<String> = all.iter().flat_map(|(c, w)| [format!("-{c}"), w.to_string()]).collect();
        args.push(b.display().to_string());
        let theirs = release.run("mkfs.xfs", &args.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
        let printed = print_geometry(a.to_str().unwrap(), log_b.to_str(), &sb);
        assert_eq!(lines(&printed), lines(&String::from_utf8_lossy(&theirs.stdout)));
        assert_eq!((difference(&a, &b, 512), difference(&log_a, &log_b, 512)), (None, None), "{words:?}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
