//! Hostile bytes: volumes with all forms of structures, what changes them, and what is tried on them afterwards. The tests and
//! the fuzzers share it.
//!
//! Whatever comes back from a changed volume is data or an error; nothing panics, hangs or grows without bound.

use crate::age::age;
use std::collections::BTreeMap;
use std::sync::Arc;
use uxfs::{Allocate, AttrName, Fs, Make, Options, Rename, SetAttr, SetMode};
use uxfs_device::{Device, DeviceRef, Memory};
use uxfs_format::bytes::{get64, put16, put32, put64};
use uxfs_format::log::{BB, CRC_HEADER, Record, record_crc};
use uxfs_format::{Geometry, Kind, crc, inode};
use uxfs_mkfs::Features;
use uxfs_sync::{Chance, FixedClock};

/// Bytes of a volume.
pub const SIZE: u64 = 48 << 20;

/// A form of volumes: features and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Features.
    pub features: Features,
    /// Bytes a block.
    pub block: u32,
    /// Bytes an inode.
    pub inode: u32,
    /// Bytes of a directory's block.
    pub dir_block: u32,
    /// It was in use for long: trees of two levels, free space in pieces, chunks of inodes with holes.
    pub aged: bool,
}

/// Small blocks and large ones, all features and few.
pub const FORMS: [Form; 5] = [
    Form { features: Features::V6_1, block: 4096, inode: 512, dir_block: 4096, aged: false },
    Form { features: Features::NEWEST, block: 4096, inode: 512, dir_block: 4096, aged: false },
    Form { features: Features::NEWEST, block: 1024, inode: 512, dir_block: 4096, aged: true },
    Form { features: Features::V6_1, block: 4096, inode: 2048, dir_block: 32768, aged: false },
    Form { features: Features::NEWEST, block: 8192, inode: 1024, dir_block: 8192, aged: false },
];

/// Options that leave nothing to time.
pub fn options(read_only: bool) -> Options {
    Options { read_only, commit: 0, clock: Box::new(FixedClock(1_700_000_000)), seed: Some(1), memory: 32 << 20, ..Options::default() }
}

fn make(mode: u16) -> Make {
    Make { mode, uid: 1, gid: 2, rdev: (3, 4), umask: 0 }
}

/// A volume with every structure; dirty if it was not unmounted.
///
/// # Panics
/// If the engine cannot make it.
pub fn volume(clean: bool, form: Form) -> Memory {
    fill(clean, form).unwrap_or_else(|e| panic!("{form:?}: {e}"))
}

fn fill(clean: bool, form: Form) -> uxfs::Result<Memory> {
    let dev = Memory::new(SIZE);
    let Form { features, block, inode, dir_block, aged } = form;
    let o = uxfs_mkfs::Options {
        agcount: Some(2),
        features,
        block,
        inode,
        dir_block: Some(dir_block),
        ..uxfs_mkfs::Options::new(SIZE, [9; 16])
    };
    uxfs_mkfs::format(&dev, &o).map_err(|e| uxfs::Error::Unsupported { what: e.to_string() })?;
    let dev = Arc::new(if aged { age(vec![dev], 3)?.remove(0) } else { dev });
    let fs = Fs::open(dev.clone() as DeviceRef, options(false))?;
    let root = fs.root();
    for (name, n) in [("short", 3), ("block", 40), ("leaf", 300), ("node", 2500)] {
        let d = fs.create(root, name.as_bytes(), make(0o040_755))?.ino;
        for i in 0..n {
            fs.create(d, format!("file with a name {i}").as_bytes(), make(0o100_644))?;
        }
    }
    let f = fs.create(root, b"extents", make(0o100_644))?.ino;
    for i in 0..600u64 {
        fs.write(f, i * 16384, &[i as u8; 4096], false)?;
    }
    fs.sync()?;
    let shared = fs.create(root, b"shared", make(0o100_644))?.ino;
    fs.clone_range((f, 0), (shared, 0), 1 << 20)?;
    for i in 0..20 {
        fs.write(shared, i * 49_152, &[1; 4096], false)?;
    }
    fs.fallocate(shared, Allocate::Reserve { keep_size: true }, 2 << 20, 1 << 20)?;
    fs.symlink(root, b"link", b"short", 0, 0)?;
    fs.symlink(root, b"long link", &[b'l'; 900], 0, 0)?;
    fs.create(root, b"device", make(0o020_600))?;
    for (name, count, size) in
        [("few attributes", 2, 20), ("a leaf of attributes", 30, 20), ("a tree of attributes", 400, 40), ("large attributes", 3, 9000)]
    {
        let f = fs.create(root, name.as_bytes(), make(0o100_644))?.ino;
        for i in 0..count {
            let key = format!("attribute {i}");
            fs.set_attr(f, AttrName { namespace: 0, name: key.as_bytes() }, &vec![b'v'; size], SetMode::Any)?;
        }
    }
    fs.sync()?;
    if clean {
        fs.unmount()?;
    } else {
        fs.create(root, b"the last", make(0o100_644))?;
        fs.sync()?;
        drop(fs);
    }
    Ok(dev.fork())
}

/// A piece of metadata: kind, address, bytes.
pub type Piece = (Kind, u64, usize);

/// Metadata of a volume.
pub fn structures(dev: &Memory, g: &Geometry) -> Vec<Piece> {
    let mut out = Vec::new();
    let log = g.fsb_daddr(g.logstart).0 * 512..(g.fsb_daddr(g.logstart).0 + u64::from(g.log_bbs())) * 512;
    let mut b = vec![0; 512];
    for at in (0..SIZE).step_by(512) {
        if log.contains(&at) || dev.read(at, &mut b).is_err() {
            continue;
        }
        let Some(k) = Kind::sniff(&b) else { continue };
        let size = match k {
            Kind::Superblock | Kind::Agf | Kind::Agi | Kind::Agfl => 512,
            Kind::Inode => g.inodesize as usize,
            _ if at.is_multiple_of(u64::from(g.blocksize)) => k.block_bytes(g).unwrap_or(g.blocksize as usize),
            _ => continue,
        };
        if at + size as u64 <= SIZE {
            out.push((k, at, size));
        }
    }
    out
}

/// The geometry, and the structures by their kinds.
///
/// # Panics
/// If it is no volume.
pub fn by_kind(dev: &Memory) -> (Geometry, BTreeMap<Kind, Vec<Piece>>) {
    let mut head = vec![0; 512];
    let read = dev.read(0, &mut head);
    let (g, _) = Geometry::parse(&head).unwrap_or_else(|e| panic!("{e} {read:?}"));
    let mut found = BTreeMap::<Kind, Vec<Piece>>::new();
    structures(dev, &g).into_iter().for_each(|p| found.entry(p.0).or_default().push(p));
    (g, found)
}

/// Changes a few fields of a structure and makes its checksum, if it has one, good again.
pub fn damage(dev: &Memory, g: &Geometry, (kind, at, size): Piece, c: &Chance) {
    let mut b = vec![0; size];
    if dev.read(at, &mut b).is_err() {
        return;
    }
    for _ in 0..1 + c.below(4) {
        // Mostly in the first bytes, where the fields are.
        let o = if c.below(2) == 0 { c.below(size.min(192) as u64) } else { c.below(size as u64) } as usize;
        let random =
            [0, u64::MAX, 1, c.next_u64(), 1 << 31, get64(&b, o).wrapping_add(1), get64(&b, o).wrapping_sub(1)][c.below(7) as usize];
        match c.below(4) {
            0 => b[o] = random as u8,
            1 => put16(&mut b, o & !1, random as u16),
            2 => put32(&mut b, o & !3, random as u32),
            _ => put64(&mut b, o & !7, random),
        }
    }
    match kind {
        _ if !g.v5() => {}
        Kind::Inode => crc::stamp(&mut b, inode::INODE_CRC),
        k => k.stamp(&mut b, None),
    }
    // It lies on the device: it was read from there.
    let _ = dev.put(at, &b);
}

/// Changes a record of the log; with a good checksum in two cases out of three.
pub fn damage_log(dev: &Memory, g: &Geometry, c: &Chance) -> bool {
    let start = g.fsb_daddr(g.logstart).0 * 512;
    let mut heads = Vec::new();
    let mut b = vec![0; BB];
    for i in 0..u64::from(g.log_bbs()) {
        if dev.read(start + i * BB as u64, &mut b).is_err() {
            continue;
        }
        // Behind the head lie headers of nothing, which the kernel writes.
        if let Some(r) = Record::parse(&b)
            && r.len > 0
            && r.check(&g.uuid, g.log_bbs()).is_ok()
        {
            heads.push((i, r));
        }
    }
    if heads.is_empty() {
        return false;
    }
    let (i, r) = &heads[c.below(heads.len() as u64) as usize];
    let hb = r.header_blocks() as usize;
    let mut all = vec![0; hb * BB + r.len as usize];
    if dev.read(start + i * BB as u64, &mut all).is_err() {
        return false;
    }
    for _ in 0..1 + c.below(6) {
        let o = if c.below(3) == 0 { c.below(BB as u64) } else { c.below(all.len() as u64) } as usize;
        all[o] = [0, 0xff, c.next_u64() as u8, all[o].wrapping_add(1)][c.below(4) as usize];
    }
    if c.below(3) > 0 {
        let (header, payload) = all.split_at(hb * BB);
        let sum = record_crc(header, CRC_HEADER[0], payload);
        all[32..36].copy_from_slice(&sum.to_le_bytes());
    }
    dev.put(start + i * BB as u64, &all).is_ok()
}

/// Looks at everything.
pub fn walk(fs: &Fs) {
    let mut todo = vec![(fs.root(), 0)];
    let mut seen = std::collections::HashSet::new();
    let mut buf = vec![0; 65536];
    while let Some((ino, depth)) = todo.pop() {
        if !seen.insert(ino) || depth > 20 || seen.len() > 10_000 {
            continue;
        }
        let Ok(s) = fs.stat(ino) else { continue };
        let _ = fs.readlink(ino);
        for at in [0, s.size / 2, s.size.saturating_sub(5000)] {
            let _ = fs.read(ino, at, &mut buf);
        }
        let _ = fs.seek(ino, 0, uxfs::Seek::Hole);
        if let Ok(list) = fs.list_attrs(ino) {
            for (namespace, name, _) in list.iter().take(500) {
                let _ = fs.get_attr(ino, AttrName { namespace: *namespace, name });
            }
        }
        let mut names = Vec::new();
        let _ = fs.readdir(ino, 0, &mut |e| {
            names.push((e.name, e.ino.0));
            names.len() < 5000
        });
        for (name, child) in names {
            let _ = fs.lookup(ino, &name);
            todo.push((child, depth + 1));
        }
    }
}

/// Changes a little of everything.
pub fn work(fs: &Fs) {
    let root = fs.root();
    let _ = fs.create(root, b"new file", make(0o100_644)).map(|f| {
        let _ = fs.write(f.ino, 100, &[7; 20_000], false);
        let _ = fs.fsync(f.ino);
    });
    for d in ["short", "block", "leaf", "node"] {
        let Ok(dir) = fs.lookup(root, d.as_bytes()) else { continue };
        for i in 0..8 {
            let _ = fs.create(dir.ino, format!("another {i}").as_bytes(), make(0o100_644));
            let _ = fs.unlink(dir.ino, format!("file with a name {i}").as_bytes());
        }
        let _ = fs.rename(dir.ino, b"another 1", root, format!("moved from {d}").as_bytes(), Rename::Replace);
        let _ = fs.create(dir.ino, b"a directory", make(0o040_755));
    }
    if let Ok(f) = fs.lookup(root, b"extents") {
        let _ = fs.write(f.ino, 50_000, &[1; 30_000], false);
        let _ = fs.setattr(f.ino, SetAttr { size: Some(1_000_000), mode: Some(0o600), ..SetAttr::default() });
    }
    for name in ["few attributes", "a leaf of attributes", "a tree of attributes", "large attributes"] {
        let Ok(f) = fs.lookup(root, name.as_bytes()) else { continue };
        let _ = fs.set_attr(f.ino, AttrName { namespace: 0, name: b"new" }, &[b'n'; 300], SetMode::Any);
        let _ = fs.remove_attr(f.ino, AttrName { namespace: 0, name: b"attribute 1" });
        let _ = fs.unlink(root, name.as_bytes());
    }
    let _ = fs.sync();
}

/// What became of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fate {
    /// It was not opened.
    Refused,
    /// It was, and could be worked on.
    Opened,
    /// It was, and gave up.
    ShutDown,
}

/// Opens, walks, writes to and checks a volume; says what became of it, and whether the checker found anything.
pub fn try_all(image: Memory) -> (Fate, bool) {
    let dev: DeviceRef = Arc::new(image);
    if let Ok(fs) = Fs::open(dev.clone(), options(true)) {
        walk(&fs);
        let _ = fs.unmount();
    }
    let fate = match Fs::open(dev.clone(), options(false)) {
        Ok(fs) => {
            work(&fs);
            let down = fs.shutdown_reason().is_some();
            let _ = fs.unmount();
            if down { Fate::ShutDown } else { Fate::Opened }
        }
        Err(_) => Fate::Refused,
    };
    (fate, uxfs_check::check(&*dev).is_ok_and(|r| !r.is_sound()))
}
