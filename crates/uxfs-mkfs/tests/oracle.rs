//! mkfs.xfs says what a new volume looks like; xfs_repair says whether ours is sound.

use std::path::Path;
use std::process::{Command, Output};
use uxfs_device::FileDevice;
use uxfs_mkfs::{Features, Options, format, parse_uuid, print_geometry};

const UUID: &str = "11111111-2222-3333-4444-555555555555";

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}; install it with: apt-get install xfsprogs"))
}

fn ours(path: &Path, size: u64, sector: u32, agcount: Option<u32>, features: Features) -> String {
    let dev = FileDevice::create(path, Some(size)).unwrap();
    let o = Options { sector, agcount, features, ..Options::new(size, parse_uuid(UUID).unwrap()) };
    print_geometry(path.to_str().unwrap(), &format(&dev, &o).unwrap())
}

/// Clears what differs by the moment: times and checksums of the first inodes.
fn without_times(image: &Path, from: u64, len: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut b = vec![0; len];
    std::fs::File::open(image).unwrap().read_exact_at(&mut b, from).unwrap();
    for inode in b.chunks_exact_mut(512).filter(|c| c.starts_with(b"IN")) {
        inode[32..56].fill(0);
        inode[100..104].fill(0);
        inode[144..152].fill(0);
    }
    b
}

#[test]
fn volumes_are_those_of_mkfs_xfs_byte_for_byte_and_sound() {
    let dir = std::env::temp_dir().join(format!("uxfs-mkfs-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mib = 1u64 << 20;
    for (size, sector, agcount, changes) in [
        (16 * mib, 512, None, &[][..]),
        (64 * mib, 512, None, &[]),
        (300 * mib, 512, None, &[]),
        (1024 * mib, 4096, None, &[]),
        (1024 * mib, 512, Some(1), &[]),
        (8192 * mib, 512, Some(17), &[]),
        (1 << 40, 512, None, &[]),
        (1024 * mib, 512, None, &[('m', "rmapbt", true)]),
        (300 * mib, 4096, None, &[('m', "rmapbt", true), ('i', "nrext64", true)]),
        (1024 * mib, 512, None, &[('m', "reflink", false), ('m', "rmapbt", true)]),
        (1024 * mib, 512, None, &[('m', "reflink", false), ('m', "inobtcount", false)]),
        (300 * mib, 512, None, &[('m', "bigtime", false), ('i', "sparse", false)]),
        (1024 * mib, 512, None, &[('m', "inobtcount", false), ('m', "finobt", false)]),
    ] {
        let mut features = Features::V6_1;
        assert!(changes.iter().all(|(section, key, on)| features.set(*section, key, *on)));
        let (a, b) = (dir.join("ours.img"), dir.join("theirs.img"));
        let printed = ours(&a, size, sector, agcount, features);
        std::fs::File::create(&b).unwrap().set_len(size).unwrap();
        let (ss, uuid) = (format!("size={sector}"), format!("uuid={UUID}"));
        let ag = agcount.map(|n| format!("agcount={n}"));
        let mut args = vec!["--unsupported", "-s", &ss, "-m", &uuid];
        args.extend(ag.iter().flat_map(|a| ["-d", a.as_str()]));
        let words: Vec<_> = changes.iter().map(|(section, key, on)| (format!("-{section}"), format!("{key}={}", u8::from(*on)))).collect();
        args.extend(words.iter().flat_map(|(option, word)| [option.as_str(), word]));
        args.push(b.to_str().unwrap());
        let out = run("mkfs.xfs", &args);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        // The line with the name differs, mkfs.xfs warns on small volumes, and newer releases tell more, as we do.
        let newer = |l: &str| ["exchange=", "rgcount=", "zoned="].iter().any(|w| l.contains(w));
        let line = |l: &str| l.trim_end_matches(", parent=0").to_string();
        let tail = |s: &str| {
            let known = |l: &&str| l.starts_with(|c: char| " dnlr".contains(c)) && !newer(l);
            s.lines().filter(known).map(line).collect::<Vec<_>>()
        };
        assert_eq!(tail(&printed), tail(&String::from_utf8_lossy(&out.stdout)), "size {size} {changes:?}");
        let ag_bytes = size.div_ceil(4096).div_ceil(u64::from(agcount.unwrap_or(4))) * 4096;
        for at in [0, if size >= 128 * mib && agcount != Some(1) { ag_bytes } else { 0 }] {
            assert!(without_times(&a, at, 160 << 10) == without_times(&b, at, 160 << 10), "size {size} {changes:?}, bytes from {at}");
        }
        let image = a.to_str().unwrap();
        let one_group = agcount == Some(1) || size == 16 * mib;
        let mut args = vec!["-n", image];
        if one_group {
            args.splice(1..1, ["-o", "force_geometry"]);
        }
        let check = run("xfs_repair", &args);
        assert!(check.status.success(), "xfs_repair on size {size}: {}", String::from_utf8_lossy(&check.stderr));
        std::fs::remove_file(&a).unwrap();
        std::fs::remove_file(&b).unwrap();
    }
    std::fs::remove_dir(&dir).unwrap();
}
