//! Every form of a volume times every operation: each cell is done and judged by itself, and then all together by xfs_repair and
//! the kernel; the kernel goes on and is cut off, we go on and are cut off, and both recover both.
//!
//! The table of cells is docs/matrix.md; `cargo xtask matrix` writes it anew.

mod common;

use common::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use uxfs::{Acl, Allocate, AttrName, Error, FileFlags, Fs, Make, Options, Rename, Result, SetAttr, SetMode, xflag};
use uxfs_check::{Form, Forms};
use uxfs_device::FileDevice;
use uxfs_mkfs::Features;

/// Who makes the volumes of a form.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// mkfs.xfs 6.1.
    Old,
    /// The newest mkfs.xfs.
    Newest,
    /// `uxfs mkfs`, with the newest features.
    Ours,
}

/// Options of mkfs. Each value stands beside several values of each other option.
const FORMS: &[(Maker, &[(char, &str)])] = &[
    (Maker::Old, &[]),
    (Maker::Old, &[('b', "size=1024"), ('m', "rmapbt=1"), ('n', "size=8192")]),
    (Maker::Old, &[('b', "size=1024"), ('i', "nrext64=1,sparse=0"), ('m', "reflink=0"), ('d', "agcount=3")]),
    (Maker::Old, &[('b', "size=2048"), ('m', "rmapbt=1,bigtime=0"), ('i', "size=1024"), ('n', "size=4096")]),
    (Maker::Old, &[('b', "size=2048"), ('s', "size=512"), ('m', "inobtcount=0"), ('i', "nrext64=1")]),
    (Maker::Old, &[('b', "size=4096"), ('s', "size=4096"), ('m', "rmapbt=1"), ('i', "nrext64=1")]),
    (Maker::Old, &[('b', "size=4096"), ('i', "size=2048,sparse=0"), ('n', "size=65536"), ('m', "reflink=0,rmapbt=1")]),
    (Maker::Old, &[('b', "size=4096"), ('d', "su=64k,sw=4"), ('l', "su=256k"), ('m', "bigtime=0")]),
    (Maker::Old, &[('b', "size=4096"), ('i', "size=1024"), ('n', "size=16384"), ('d', "agcount=7"), ('m', "rmapbt=1")]),
    (Maker::Old, &[('b', "size=8192"), ('m', "rmapbt=1"), ('i', "size=1024,nrext64=1")]),
    (Maker::Old, &[('b', "size=16384"), ('s', "size=4096"), ('n', "size=65536"), ('m', "rmapbt=1,inobtcount=0")]),
    (Maker::Old, &[('b', "size=32768"), ('i', "nrext64=1"), ('m', "bigtime=0,reflink=0")]),
    (Maker::Old, &[('b', "size=65536"), ('m', "rmapbt=1"), ('i', "size=2048")]),
    (Maker::Old, &[('b', "size=65536"), ('m', "reflink=0"), ('i', "sparse=0")]),
    (Maker::Old, &[('b', "size=65536"), ('m', "rmapbt=1"), ('s', "size=4096")]),
    (Maker::Newest, &[]),
    (Maker::Newest, &[('b', "size=1024"), ('n', "size=16384"), ('i', "exchange=0")]),
    (Maker::Newest, &[('m', "rmapbt=0,finobt=0,inobtcount=0"), ('i', "size=1024")]),
    (Maker::Ours, &[]),
    (Maker::Ours, &[('b', "size=1k"), ('d', "su=32k,sw=3"), ('n', "parent=0")]),
    (Maker::Ours, &[('b', "size=16k"), ('s', "size=4096"), ('n', "size=64k"), ('i', "size=2048")]),
];

type Operation = (&'static str, fn(&Fs, u64) -> Result<()>);

/// What is done in each form, each in a directory of its own.
const OPERATIONS: &[Operation] = &[
    ("directory of 2 names", |fs, top| names(fs, top, 2)),
    ("directory of 30 names", |fs, top| names(fs, top, 30)),
    ("directory of 300 names", |fs, top| names(fs, top, 300)),
    ("directory of 3000 names, most removed", |fs, top| names(fs, top, 3000)),
    ("directory of 4000 names", |fs, top| names(fs, top, 4000)),
    ("rename, exchange, whiteout", renames),
    ("links, files without names", links),
    ("symbolic links", symlinks),
    ("devices, pipes, sockets", devices),
    ("1 attribute of 10 bytes", |fs, top| attributes(fs, top, 1, 10)),
    ("12 attributes of 50 bytes", |fs, top| attributes(fs, top, 12, 50)),
    ("200 attributes of 60 bytes", |fs, top| attributes(fs, top, 200, 60)),
    ("2 attributes of 30 000 bytes", |fs, top| attributes(fs, top, 2, 30_000)),
    ("1 attribute of 64 KiB", |fs, top| attributes(fs, top, 1, 65_536)),
    ("access control lists, inherited", acls),
    ("writes with 400 holes", |fs, top| fragmented(fs, top).map(drop)),
    ("truncate", truncate),
    ("fallocate: reserve, keep size", |fs, top| fallocate(fs, top, Allocate::Reserve { keep_size: true })),
    ("fallocate: punch", |fs, top| fallocate(fs, top, Allocate::Punch)),
    ("fallocate: zero", |fs, top| fallocate(fs, top, Allocate::Zero { keep_size: false })),
    ("fallocate: collapse", |fs, top| fallocate(fs, top, Allocate::Collapse)),
    ("fallocate: insert", |fs, top| fallocate(fs, top, Allocate::Insert)),
    ("clone, overwrite", clone),
    ("dedupe", dedupe),
    ("copy_file_range", copy),
    ("unshare", unshare),
    ("exchange of ranges and of whole files", exchange),
    ("extent size hint, project, flags", flags),
];

fn name(i: usize) -> String {
    format!("a name that is long enough to fill blocks of directories, number {i}")
}

fn names(fs: &Fs, top: u64, n: usize) -> Result<()> {
    let d = fs.create(top, b"d", dir(0o755))?.ino;
    for i in 0..n {
        fs.create(d, name(i).as_bytes(), file(0o644))?;
    }
    // The large one shrinks again; others keep most.
    for i in (0..n).filter(|i| i % 3 == 0 || (n == 3000 && i % 50 != 1)) {
        fs.unlink(d, name(i).as_bytes())?;
    }
    fs.rename(d, name(1).as_bytes(), top, b"moved", Rename::Replace)
}

fn renames(fs: &Fs, top: u64) -> Result<()> {
    let (a, b) = (fs.create(top, b"a", dir(0o755))?.ino, fs.create(top, b"b", dir(0o700))?.ino);
    for i in 0..20 {
        fs.create(a, name(i).as_bytes(), file(0o600))?;
        fs.create(b, name(i + 10).as_bytes(), file(0o640))?;
    }
    for i in 10..20 {
        fs.rename(a, name(i).as_bytes(), b, name(i + 5).as_bytes(), if i % 2 == 0 { Rename::Exchange } else { Rename::Replace })?;
    }
    fs.rename(a, name(0).as_bytes(), b, b"whited out", Rename::Whiteout { uid: 7, gid: 8, replace: true })?;
    fs.rename(top, b"a", b, b"inside", Rename::NoReplace)
}

fn exchange(fs: &Fs, top: u64) -> Result<()> {
    let bs = u64::from(fs.geometry().blocksize);
    let (a, b) = (fs.create(top, b"a", file(0o644))?.ino, fs.create(top, b"b", file(0o600))?.ino);
    for i in 0..60u64 {
        fs.write(if i % 3 == 0 { a } else { b }, i * bs, &[i as u8; 300], false)?;
    }
    fs.exchange_range((a, 0), (b, 30 * bs), Some(20 * bs))?;
    fs.exchange_range((a, 0), (b, 0), None)
}

fn links(fs: &Fs, top: u64) -> Result<()> {
    let f = fs.create(top, b"first", file(0o600))?.ino;
    for i in 0..40 {
        fs.link(f, top, name(i).as_bytes())?;
    }
    fs.unlink(top, b"first")?;
    let u = fs.create_unnamed(top, file(0o640))?.ino;
    fs.write(u, 0, &[1; 10_000], false)?;
    fs.link(u, top, b"named later")?;
    fs.forget(u, 1)?;
    let gone = fs.create_unnamed(top, file(0o640))?.ino;
    fs.forget(gone, 1)
}

fn symlinks(fs: &Fs, top: u64) -> Result<()> {
    for n in [1, 100, 336, 337, 500, 900, 1023] {
        fs.symlink(top, format!("link of {n}").as_bytes(), &vec![b'l'; n], 1, 2)?;
    }
    fs.unlink(top, b"link of 900")
}

fn devices(fs: &Fs, top: u64) -> Result<()> {
    for (n, mode) in [("char", 0o020_600), ("block", 0o060_640), ("pipe", 0o010_600), ("socket", 0o140_600)] {
        fs.create(top, n.as_bytes(), Make { mode, uid: 3, gid: 4, rdev: (5, 6), umask: 0 })?;
    }
    Ok(())
}

fn attributes(fs: &Fs, top: u64, count: usize, size: usize) -> Result<()> {
    let f = fs.create(top, b"f", file(0o600))?.ino;
    for i in 0..count {
        let key = format!("key {i}");
        fs.set_attr(f, AttrName { namespace: 0, name: key.as_bytes() }, &vec![b'0' + i as u8 % 70; size], SetMode::Any)?;
    }
    if count > 4 {
        fs.remove_attr(f, AttrName { namespace: 0, name: b"key 3" })?;
    }
    fs.link(f, top, b"link").map(drop)
}

fn acls(fs: &Fs, top: u64) -> Result<()> {
    let text = [(1u16, 0u32, 7u16), (2, 1000, 6), (4, 0, 5), (16, 0, 7), (32, 0, 0)];
    let entry = |e: &(u16, u32, u16)| uxfs::AclEntry { tag: e.0, id: e.1, perm: e.2 };
    let acl = Acl::new(text.iter().map(entry).collect()).map_err(|what| Error::Invalid { what })?;
    let d = fs.create(top, b"d", dir(0o755))?.ino;
    fs.set_acl(d, true, Some(&acl))?;
    fs.set_acl(d, false, Some(&acl))?;
    let below = fs.create(d, b"below", dir(0o777))?.ino;
    fs.create(below, b"file", file(0o666))?;
    fs.setattr(below, SetAttr { mode: Some(0o710), ..SetAttr::default() }).map(drop)
}

fn fragmented(fs: &Fs, top: u64) -> Result<u64> {
    let f = fs.create(top, b"fragmented", file(0o644))?.ino;
    for i in 0..400u64 {
        fs.write(f, i * 150_001, &[i as u8; 9000], false)?;
    }
    fs.fsync(f)?;
    Ok(f)
}

fn truncate(fs: &Fs, top: u64) -> Result<()> {
    let f = fragmented(fs, top)?;
    for size in [59_000_000, 10_000_001, 30_000_000] {
        fs.setattr(f, SetAttr { size: Some(size), ..SetAttr::default() })?;
    }
    Ok(())
}

fn fallocate(fs: &Fs, top: u64, what: Allocate) -> Result<()> {
    let f = fragmented(fs, top)?;
    fs.fallocate(f, what, 3 << 20, 2 << 20)?;
    if !matches!(what, Allocate::Collapse | Allocate::Insert) {
        fs.fallocate(f, what, 10_000_001, 1_234_567)?;
    }
    fs.fsync(f)
}

fn two(fs: &Fs, top: u64) -> Result<(u64, u64)> {
    Ok((fragmented(fs, top)?, fs.create(top, b"second", file(0o644))?.ino))
}

fn clone(fs: &Fs, top: u64) -> Result<()> {
    let (a, b) = two(fs, top)?;
    fs.clone_range((a, 0), (b, 0), 40 << 20)?;
    for i in 0..60 {
        fs.write(b, i * 300_007, &[9; 5000], false)?;
    }
    fs.setattr(a, SetAttr { size: Some(20 << 20), ..SetAttr::default() })?;
    fs.fsync(b)
}

fn dedupe(fs: &Fs, top: u64) -> Result<()> {
    let (a, b) = two(fs, top)?;
    fs.write(b, 0, &vec![0; 1 << 20], false)?;
    fs.write(a, 0, &vec![0; 1 << 20], false)?;
    if fs.dedupe_range((a, 0), (b, 0), 1 << 20)? {
        Ok(())
    } else {
        Err(Error::Invalid { what: "the same bytes are not found to be the same" })
    }
}

fn copy(fs: &Fs, top: u64) -> Result<()> {
    let (a, b) = two(fs, top)?;
    let mut done = 0;
    while done < 50 << 20 {
        match fs.copy_range((a, done), (b, done), (50 << 20) - done)? {
            0 => break,
            n => done += n,
        }
    }
    fs.copy_range((a, 77), (b, 60 << 20), 100_000).map(drop)
}

fn unshare(fs: &Fs, top: u64) -> Result<()> {
    let (a, b) = two(fs, top)?;
    fs.clone_range((a, 0), (b, 0), 8 << 20)?;
    fs.fallocate(b, Allocate::Unshare, 0, 8 << 20)
}

fn flags(fs: &Fs, top: u64) -> Result<()> {
    let d = fs.create(top, b"d", dir(0o755))?.ino;
    let bits = xflag::EXTSZINHERIT | xflag::PROJINHERIT | xflag::NOATIME;
    fs.set_file_flags(d, FileFlags { bits, extsize: 128 << 10, project: 70_000, ..FileFlags::default() })?;
    let f = fs.create(d, b"hinted", file(0o600))?.ino;
    fs.write(f, 500_000, &[1; 10], false)?;
    fs.fsync(f)?;
    let fixed = fs.create(top, b"fixed", file(0o600))?.ino;
    fs.set_file_flags(fixed, FileFlags { bits: xflag::IMMUTABLE, ..FileFlags::default() })
}

/// What a user sees of a tree of the host: for each path its metadata and content.
fn picture(at: &Path) -> BTreeMap<String, (u32, u64, u64, u32, i64, u64)> {
    let mut out = BTreeMap::new();
    let mut left = vec![at.to_path_buf()];
    while let Some(p) = left.pop() {
        let m = std::fs::symlink_metadata(&p).unwrap();
        let mut sum = 0u64;
        let content = match m.file_type() {
            t if t.is_dir() => {
                left.extend(std::fs::read_dir(&p).unwrap().map(|e| e.unwrap().path()));
                Vec::new()
            }
            t if t.is_symlink() => std::fs::read_link(&p).unwrap().into_os_string().into_encoded_bytes(),
            t if t.is_file() => std::fs::read(&p).unwrap(),
            _ => Vec::new(),
        };
        for (i, b) in content.iter().enumerate() {
            sum = sum.wrapping_mul(31).wrapping_add(u64::from(*b) + i as u64);
        }
        let size = if m.is_dir() { 0 } else { m.len() };
        out.insert(p.strip_prefix(at).unwrap().display().to_string(), (m.mode(), m.nlink(), size, m.uid(), m.mtime_nsec(), sum));
    }
    out
}

fn make(i: usize) -> Image {
    let (maker, words) = FORMS[i];
    let (label, size) = (format!("matrix{i}"), 700 << 20);
    if maker == Maker::Ours {
        let img = Image::new(&label, size);
        let mut o = uxfs_mkfs::Options { features: Features::NEWEST, ..uxfs_mkfs::Options::new(size, [3; 16]) };
        o.take(words).unwrap();
        uxfs_mkfs::format(&FileDevice::create(&img.path, Some(size)).unwrap(), &o).unwrap();
        return img;
    }
    let args: Vec<String> = words.iter().flat_map(|(c, w)| [format!("-{c}"), w.to_string()]).collect();
    let args: Vec<&str> = ["-q", "-f"].into_iter().chain(args.iter().map(String::as_str)).collect();
    Image::made_by(if maker == Maker::Old { "mkfs.xfs".into() } else { newest("mkfs.xfs") }.as_str(), &label, size, &args)
}

/// Works on a volume of a form; says for each operation what became of it, and what forms things had there.
fn form(i: usize) -> (Vec<&'static str>, Forms) {
    let img = make(i);
    let (repair, features) = match FORMS[i].0 {
        Maker::Old => ("xfs_repair".into(), "old"),
        _ => (newest("xfs_repair"), "newest"),
    };
    let judge = |img: &Image, what: &str| {
        img.is_silent_for(&repair);
        let r = uxfs_check::check(&*img.device()).unwrap();
        assert!(r.is_sound(), "form {i}, {what}: {:?}", r.findings);
    };
    let (mut cells, mut forms) = (Vec::new(), Forms::default());
    for (what, operation) in OPERATIONS {
        let fs = img.open();
        let top = fs.create(fs.root(), what.replace('/', " ").as_bytes(), dir(0o755)).unwrap().ino;
        cells.push(match operation(&fs, top) {
            Ok(()) => "sound",
            Err(Error::Unsupported { .. }) => "refused",
            Err(e) => panic!("form {i} ({features}), {what}: {e}"),
        });
        fs.unmount().unwrap();
        let r = uxfs_check::check(&*img.device()).unwrap();
        assert!(r.is_sound(), "form {i}, {what}: {:?}", r.findings);
        forms.add(&r.forms);
    }
    judge(&img, "worked on");
    // The largest blocks hold these directories and attributes in one, the largest inodes all extents.
    let large = FORMS[i].1.iter().any(|w| w.1.contains("65536") || w.1.contains("64k") || w.1.contains("32768"));
    let each = [Form::DirBlock, Form::DirLeaf, Form::DirTree, Form::AttrTree, Form::FileExtentTree, Form::Tree("inobt")];
    let missing = forms.missing(&each.map(|f| (f, 0)));
    assert!(large || missing.is_empty(), "form {i} never had {missing:?}");
    let k = img.kernel_mount();
    let before = picture(&k.at);
    assert!(before.len() > 300, "{} files", before.len());
    // The kernel takes it further and stops with a dirty log.
    let (from, to) = (k.path(OPERATIONS[2].0), k.path("copied"));
    assert!(run("cp", &["-a", from.to_str().unwrap(), to.to_str().unwrap()]).status.success());
    let (from, to) = (k.path("clone, overwrite"), k.path("cloned"));
    assert!(run("cp", &["-a", from.to_str().unwrap(), to.to_str().unwrap()]).status.success());
    std::fs::remove_dir_all(k.path(OPERATIONS[3].0)).unwrap();
    run("xfs_io", &["-x", "-c", "shutdown -f", k.at.to_str().unwrap()]);
    drop(k);
    let theirs = img.copy(&format!("matrix{i}-theirs"));
    drop(theirs.kernel_mount());
    let fs = img.open();
    assert!(fs.was_recovered());
    fs.unmount().unwrap();
    judge(&img, "recovered");
    let pictures = |i: &Image| picture(&i.kernel_mount_with("loop,ro,nouuid").at);
    assert!(pictures(&img) == pictures(&theirs), "form {i}: the two recoveries differ");
    // Work on it again, and stop in the middle.
    let fs = Fs::open(img.device(), Options { commit: 0, ..Options::default() }).unwrap();
    let top = fs.create(fs.root(), b"again", dir(0o755)).unwrap().ino;
    for n in [1, 2, 9, 15] {
        let below = fs.create(top, format!("{n}").as_bytes(), dir(0o755)).unwrap().ino;
        OPERATIONS[n].1(&fs, below).unwrap();
    }
    fs.sync().unwrap();
    fs.create(top, b"the last", file(0o600)).unwrap();
    drop(fs);
    let ours = img.copy(&format!("matrix{i}-ours"));
    drop(img.kernel_mount());
    ours.open().unmount().unwrap();
    judge(&img, "recovered by the kernel");
    judge(&ours, "recovered here");
    assert!(pictures(&img) == pictures(&ours), "form {i}: the two recoveries of our log differ");
    (cells, forms)
}

/// What there must be in some column, and how high.
const WANTED: [(Form, u16); 15] = [
    (Form::Tree("inobt"), 2),
    (Form::Tree("finobt"), 2),
    (Form::Tree("rmapbt"), 2),
    (Form::Tree("refcountbt"), 1),
    (Form::DirInline, 0),
    (Form::DirBlock, 0),
    (Form::DirLeaf, 0),
    (Form::DirTree, 2),
    (Form::DirExtentTree, 2),
    (Form::FileExtentTree, 3),
    (Form::LinkBlocks, 0),
    (Form::Special, 0),
    (Form::AttrInline, 0),
    (Form::AttrTree, 2),
    (Form::AttrValue, 0),
];

fn table(cells: &[Vec<&'static str>], forms: &[Forms]) -> String {
    let mut t = String::from("# Forms and operations\n\n");
    t += "Written by `cargo xtask matrix`; the tests fail where it no longer holds. A cell is *sound* when the operation was done,\n";
    t += "`uxfs check` found nothing after it, and then with all others of its column xfs_repair was silent, the kernel mounted the\n";
    t += "volume, went on and was cut off, and both recovered its log and ours to the same tree. It is *refused* when the operation\n";
    t += "said by name that this form of volume cannot have it, and changed nothing.\n\n## Forms\n\n";
    for (i, (maker, words)) in FORMS.iter().enumerate() {
        let program = match maker {
            Maker::Old => "mkfs.xfs 6.1",
            Maker::Newest => "mkfs.xfs 7.2",
            Maker::Ours => "uxfs mkfs",
        };
        let words: String = words.iter().map(|(c, w)| format!(" -{c} {w}")).collect();
        writeln!(t, "{}. `{program}{words}`", i + 1).unwrap();
    }
    let head = |t: &mut String| {
        *t += "| |";
        (1..=FORMS.len()).for_each(|i| write!(t, " {i} |").unwrap());
        *t += "\n|---|";
        FORMS.iter().for_each(|_| *t += "---|");
        *t += "\n";
    };
    t += "\n## Cells\n\n";
    head(&mut t);
    for (row, (what, _)) in OPERATIONS.iter().enumerate() {
        write!(t, "| {what} |").unwrap();
        cells.iter().for_each(|c| write!(t, " {} |", c[row]).unwrap());
        t += "\n";
    }
    t += "\n## What was there\n\nThe forms that things had after some operation, as `uxfs check --forms` shows them.\n\n";
    head(&mut t);
    let all: BTreeSet<Form> = forms.iter().flat_map(|f| f.iter().map(|(form, ..)| form)).collect();
    // In how many extents something lies hangs on when data was written back.
    for form in all.into_iter().filter(|f| !matches!(f, Form::DirExtentTree | Form::AttrExtentTree)) {
        write!(t, "| {form} |").unwrap();
        forms.iter().for_each(|f| write!(t, " {} |", if f.highest(form).is_some() { "yes" } else { "-" }).unwrap());
        t += "\n";
    }
    t
}

#[test]
fn every_operation_in_every_form_is_sound_or_refused() {
    // Two at a time.
    let lane = |which: usize| (0..FORMS.len()).filter(move |i| i % 2 == which).map(|i| (i, form(i))).collect::<BTreeMap<_, _>>();
    let cells = std::thread::scope(|s| {
        let other = s.spawn(|| lane(1));
        let mut all = lane(0);
        all.extend(other.join().unwrap());
        all.into_values().collect::<Vec<_>>()
    });
    let (cells, forms): (Vec<_>, Vec<_>) = cells.into_iter().unzip();
    let mut all = Forms::default();
    forms.iter().for_each(|f| all.add(f));
    assert_eq!(all.missing(&WANTED), []);
    let refused = cells.iter().flatten().filter(|c| **c == "refused").count();
    assert!(refused * 10 < FORMS.len() * OPERATIONS.len(), "{refused} cells are refused");
    let (path, new) = (Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/matrix.md")), table(&cells, &forms));
    if std::env::var_os("UXFS_WRITE_MATRIX").is_some() {
        std::fs::write(path, &new).unwrap();
    }
    assert!(std::fs::read_to_string(path).is_ok_and(|old| old == new), "docs/matrix.md is not what the tests show: cargo xtask matrix");
}
