//! Works on volumes through the library; xfs_repair and the kernel say whether what is left is sound.

mod common;

use common::*;
use uxfs::{AttrName, SetAttr, SetMode};

#[test]
fn a_few_files_survive_an_unmount() {
    let img = Image::new("few", 300 << 20);
    let fs = img.open();
    let root = fs.root();
    let d = fs.create(root, b"dir", dir(0o755)).unwrap();
    let f = fs.create(d.ino, b"hello", file(0o644)).unwrap();
    fs.write(f.ino, 0, b"hello world\n", false).unwrap();
    fs.symlink(root, b"link", b"dir/hello", 0, 0).unwrap();
    fs.symlink(root, b"long", &[b'x'; 700], 0, 0).unwrap();
    fs.link(f.ino, root, b"hard").unwrap();
    fs.set_attr(f.ino, AttrName { namespace: 0, name: b"greeting" }, b"hi", SetMode::Any).unwrap();
    fs.setattr(f.ino, SetAttr { mode: Some(0o600), uid: Some(7), ..SetAttr::default() }).unwrap();
    fs.unmount().unwrap();
    img.repair_is_silent();
    let k = img.kernel_mount();
    assert_eq!(std::fs::read(k.path("dir/hello")).unwrap(), b"hello world\n");
    assert_eq!(std::fs::read_link(k.path("link")).unwrap().to_str(), Some("dir/hello"));
    assert_eq!(std::fs::read_link(k.path("long")).unwrap().as_os_str().len(), 700);
    use std::os::unix::fs::MetadataExt;
    let m = std::fs::metadata(k.path("hard")).unwrap();
    assert_eq!((m.nlink(), m.uid(), m.mode() & 0o7777), (2, 7, 0o600));
}

#[test]
fn directories_grow_and_shrink_through_all_forms() {
    let img = Image::new("forms", 300 << 20);
    let fs = img.open();
    let d = fs.create(fs.root(), b"d", dir(0o755)).unwrap().ino;
    let n = 6000;
    for i in 0..n {
        let name = format!("a rather long name of a file, number {i:06}");
        fs.create(d, name.as_bytes(), file(0o644)).unwrap_or_else(|e| panic!("create {i}: {e}"));
    }
    fs.sync().unwrap();
    let mut seen = 0;
    fs.readdir(d, 0, &mut |_| {
        seen += 1;
        true
    })
    .unwrap();
    assert_eq!(seen, n + 2);
    for i in (0..n).filter(|i| i % 3 != 0) {
        let name = format!("a rather long name of a file, number {i:06}");
        fs.unlink(d, name.as_bytes()).unwrap_or_else(|e| panic!("unlink {i}: {e}"));
    }
    fs.unmount().unwrap();
    img.repair_is_silent();
    let fs = img.open();
    for i in (0..n).filter(|i| i % 3 == 0) {
        let name = format!("a rather long name of a file, number {i:06}");
        fs.unlink(d, name.as_bytes()).unwrap_or_else(|e| panic!("unlink {i}: {e}"));
    }
    assert_eq!(fs.stat(d).unwrap().size, 6, "the directory is in short form again");
    fs.rmdir(fs.root(), b"d").unwrap();
    fs.unmount().unwrap();
    img.repair_is_silent();
}
