//! What the fuzzers call with bytes of theirs, and the tests with a corpus: each takes anything and must return.

use crate::hostile::{self, FORMS};
use std::sync::{Arc, OnceLock};
use uxfs::{Allocate, AttrName, Fs, Make, Rename, SetAttr, SetMode};
use uxfs_device::{Device, DeviceRef, Memory};
use uxfs_format::acl::Acl;
use uxfs_format::btree::TreeKind;
use uxfs_format::log::{AttrIntent, BB, BufFormat, CRC_HEADER, IcreateFormat, InodeFormat, Intent, Op, Record, record_crc};
use uxfs_format::{DiskAddr, Geometry, Kind, attr, da, dir, inode};

const KINDS: [Kind; 21] = [
    Kind::Superblock,
    Kind::Agf,
    Kind::Agi,
    Kind::Agfl,
    Kind::Btree(TreeKind::Bno),
    Kind::Btree(TreeKind::Cnt),
    Kind::Btree(TreeKind::Ino),
    Kind::Btree(TreeKind::Fino),
    Kind::Btree(TreeKind::Rmap),
    Kind::Btree(TreeKind::Refcount),
    Kind::Btree(TreeKind::Bmap),
    Kind::Inode,
    Kind::DirBlock,
    Kind::DirData,
    Kind::DirFree,
    Kind::DirLeaf1,
    Kind::DirLeafN,
    Kind::DaNode,
    Kind::AttrLeaf,
    Kind::AttrRemote,
    Kind::Symlink,
];

struct Base {
    clean: Memory,
    dirty: Memory,
    geometry: Geometry,
    pieces: Vec<hostile::Piece>,
}

/// Volumes of one form, made once.
fn base(i: u8) -> &'static Base {
    static ALL: [OnceLock<Base>; FORMS.len()] = [const { OnceLock::new() }; FORMS.len()];
    let i = usize::from(i) % FORMS.len();
    ALL[i].get_or_init(|| {
        let clean = hostile::volume(true, FORMS[i]);
        let (geometry, kinds) = hostile::by_kind(&clean);
        Base { dirty: hostile::volume(false, FORMS[i]), clean, geometry, pieces: kinds.into_values().flatten().collect() }
    })
}

/// Every parser of what lies on disk: the first byte chooses the kind of block, the second a volume, the rest is the block.
pub fn blocks(data: &[u8]) {
    let [which, form, rest @ ..] = data else { return };
    let kind = KINDS[usize::from(*which) % KINDS.len()];
    let g = &base(*form).geometry;
    let size = match kind {
        Kind::Superblock | Kind::Agf | Kind::Agi | Kind::Agfl => 512,
        Kind::Inode => g.inodesize as usize,
        k => k.block_bytes(g).unwrap_or(g.blocksize as usize),
    };
    let mut b = rest.to_vec();
    b.resize(size, 0);
    let _ = Geometry::parse(&b);
    let sound = kind.verify(&b, DiskAddr(8), g, false).is_ok();
    let _ = Kind::sniff(&b).map(|k| k.verify(&b, DiskAddr(8), g, true));
    let _ = inode::check(&b[..b.len().min(g.inodesize as usize)], None, g);
    // Walks that must hold for anything at all.
    let _ = dir::ShortForm(&b).entries().count() + attr::sf_entries(&b).count();
    let _ = dir::with_types(&b);
    let _ = dir::data_items(&b).count();
    let _ = dir::check_data(&b);
    if sound && kind == Kind::AttrLeaf {
        let _ = (0..da::count(&b)).filter(|i| attr::leaf_entry(&b, *i).is_ok()).count();
    }
    let _ = Acl::decode(rest).map(|a| a.to_kernel());
    let _ = Acl::from_kernel(rest).map(|a| a.encode());
    let _ = (
        Op::parse(rest),
        BufFormat::parse(rest).map(|f| f.runs().count()),
        InodeFormat::parse(rest),
        IcreateFormat::parse(rest),
        Intent::parse(rest),
    );
    let cut = rest.len() / 3;
    let _ = AttrIntent::parse(&[rest[..cut].to_vec(), rest[cut..2 * cut].to_vec(), rest[2 * cut..].to_vec()]);
    let _ = Record::parse(&b).map(|r| r.check(&g.uuid, g.log_bbs()));
}

/// Bytes as little numbers, one after the other; zeros at the end.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
    fn word(&mut self) -> u32 {
        u32::from(self.byte()) | u32::from(self.byte()) << 8 | u32::from(self.byte()) << 16 | u32::from(self.byte()) << 24
    }
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Recovery: bytes of the log's records are changed, their checksums made good, and the volume opened.
pub fn replay(data: &[u8]) {
    let mut n = Numbers(data);
    let b = base(n.byte());
    let (image, g) = (b.dirty.fork(), &b.geometry);
    let start = g.fsb_daddr(g.logstart).0 * BB as u64;
    let mut heads = Vec::new();
    let mut head = vec![0; BB];
    for i in 0..u64::from(g.log_bbs()) {
        let _ = image.read(start + i * BB as u64, &mut head);
        if let Some(r) = Record::parse(&head).filter(|r| r.len > 0 && r.check(&g.uuid, g.log_bbs()).is_ok()) {
            heads.push((start + i * BB as u64, r));
        }
    }
    while !n.is_empty() && !heads.is_empty() {
        let (at, r) = &heads[n.byte() as usize % heads.len()];
        let hb = r.header_blocks() as usize;
        let mut all = vec![0; hb * BB + r.len as usize];
        if image.read(*at, &mut all).is_err() {
            continue;
        }
        let (place, value) = (n.word() as usize % all.len(), n.byte());
        all[place] = value;
        let (header, payload) = all.split_at(hb * BB);
        let sum = record_crc(header, CRC_HEADER[0], payload);
        all[32..36].copy_from_slice(&sum.to_le_bytes());
        let _ = image.put(*at, &all);
    }
    let dev: DeviceRef = Arc::new(image);
    if let Ok(fs) = Fs::open(dev.clone(), hostile::options(true)) {
        hostile::walk(&fs);
        let _ = fs.unmount();
    }
    if let Ok(fs) = Fs::open(dev.clone(), hostile::options(false)) {
        let _ = fs.unmount();
    }
    let _ = uxfs_check::check(&*dev);
}

/// Operations on a volume some of whose metadata was changed. If none was, the volume is sound afterwards.
///
/// # Panics
/// If it is not.
pub fn operations(data: &[u8]) {
    let mut n = Numbers(data);
    let b = base(n.byte());
    let image = b.clean.fork();
    let changes = n.byte() % 4;
    for _ in 0..changes {
        let (kind, at, size) = b.pieces[n.word() as usize % b.pieces.len()];
        let mut bytes = vec![0; size];
        if image.read(at, &mut bytes).is_err() {
            continue;
        }
        let place = n.word() as usize % size;
        bytes[place] = n.byte();
        match kind {
            Kind::Inode => uxfs_format::crc::stamp(&mut bytes, inode::INODE_CRC),
            k => k.stamp(&mut bytes, None),
        }
        let _ = image.put(at, &bytes);
    }
    let dev: DeviceRef = Arc::new(image);
    let Ok(fs) = Fs::open(dev.clone(), hostile::options(false)) else { return };
    operate(&fs, &mut n);
    let down = fs.shutdown_reason().map(|s| s.to_string());
    let closed = fs.unmount();
    let report = uxfs_check::check(&*dev);
    if changes == 0 {
        assert!(down.is_none() && closed.is_ok(), "{down:?} {closed:?}");
        let report = report.unwrap_or_else(|e| panic!("{e}"));
        assert!(report.is_sound(), "{:?}", report.findings);
    }
}

/// Most operations of one input.
const MOST: usize = 200;

fn operate(fs: &Fs, n: &mut Numbers<'_>) {
    let tops = ["", "short", "block", "leaf", "node"];
    let files = ["extents", "shared", "few attributes", "a leaf of attributes", "a tree of attributes", "large attributes"];
    for _ in 0..MOST {
        if n.is_empty() {
            return;
        }
        let top = tops[n.byte() as usize % tops.len()];
        let Ok(dir) = (if top.is_empty() { fs.stat(fs.root()) } else { fs.lookup(fs.root(), top.as_bytes()) }) else { continue };
        let name = match n.byte() % 4 {
            0 => format!("file with a name {}", n.byte()),
            1 => files[n.byte() as usize % files.len()].to_string(),
            _ => format!("new {}", n.byte() % 32),
        };
        let name = name.as_bytes();
        let make = |mode| Make { mode, uid: 1, gid: 2, rdev: (3, 4), umask: 0 };
        let at = u64::from(n.word() % (4 << 20));
        let len = u64::from(n.word() % (1 << 20));
        let found = fs.lookup(dir.ino, name).map(|s| s.ino);
        let op = n.byte() % 16;
        let _ = match (op, found) {
            (0 | 1, _) => fs.create(dir.ino, name, make(0o100_644)).map(drop),
            (2, _) => fs.create(dir.ino, name, make(0o040_755)).map(drop),
            (3, _) => fs.symlink(dir.ino, name, &vec![b't'; 1 + len as usize % 1000], 0, 0).map(drop),
            (4, _) => fs.unlink(dir.ino, name),
            (5, _) => fs.rmdir(dir.ino, name),
            (6, _) => fs.rename(dir.ino, name, fs.root(), b"renamed", if at % 2 == 0 { Rename::Replace } else { Rename::Exchange }),
            (7 | 8, Ok(f)) => fs.write(f, at, &vec![7; len as usize % 70_000], at % 5 == 0),
            (9, Ok(f)) => fs.setattr(f, SetAttr { size: Some(at), ..SetAttr::default() }).map(drop),
            (10, Ok(f)) => {
                let how = [
                    Allocate::Reserve { keep_size: true },
                    Allocate::Punch,
                    Allocate::Zero { keep_size: false },
                    Allocate::Collapse,
                    Allocate::Insert,
                    Allocate::Unshare,
                ];
                let block = u64::from(fs.geometry().blocksize);
                fs.fallocate(f, how[len as usize % how.len()], at / block * block, len / block * block)
            }
            (11, Ok(f)) => {
                fs.set_attr(f, AttrName { namespace: 0, name: b"attribute 3" }, &vec![b'x'; len as usize % 65_536], SetMode::Any)
            }
            (12, Ok(f)) => fs.remove_attr(f, AttrName { namespace: 0, name: b"attribute 1" }),
            (13, Ok(f)) => fs.lookup(fs.root(), b"extents").and_then(|x| fs.copy_range((x.ino, at), (f, 0), len)).map(drop),
            (14, Ok(f)) => fs.link(f, fs.root(), b"linked").map(drop),
            (15, _) => fs.sync(),
            _ => Ok(()),
        };
    }
}

/// Small inputs of each target to begin with, for fuzzers and tests alike.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let b = base(1);
    let mut out = Vec::new();
    let mut seen = std::collections::BTreeMap::<Kind, usize>::new();
    for (kind, at, size) in &b.pieces {
        let count = seen.entry(*kind).or_default();
        *count += 1;
        let which = KINDS.iter().position(|k| k == kind);
        if let Some(i) = which.filter(|_| *count <= 2) {
            let mut bytes = vec![0; *size];
            let _ = b.clean.read(*at, &mut bytes);
            let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
            out.push(("blocks", [&[i as u8, 1], &bytes[..used.min(1024)]].concat()));
        }
    }
    for form in 0..FORMS.len() as u8 {
        let chance = uxfs_sync::Chance::seeded(u64::from(form));
        let noise = |n: usize| (0..n).map(|_| chance.next_u64() as u8).collect::<Vec<u8>>();
        out.push(("replay", [vec![form], noise(60)].concat()));
        out.push(("operations", [vec![form, 0], noise(600)].concat()));
        out.push(("operations", [vec![form, 3], noise(300)].concat()));
    }
    // Numbers at the edges of their ranges.
    out.push(("blocks", [&[0, 0][..], &[0xff; 600]].concat()));
    out
}

/// Runs a target by its name; false if there is none of that name.
pub fn run(target: &str, data: &[u8]) -> bool {
    match target {
        "blocks" => blocks(data),
        "replay" => replay(data),
        "operations" => operations(data),
        _ => return false,
    }
    true
}
