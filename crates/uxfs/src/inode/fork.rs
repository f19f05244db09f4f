//! A fork's in-core form <-> its bytes in the inode.

use std::collections::BTreeMap;
use uxfs_format::btree::{LONG_HEADER, TreeKind, level, numrecs, set_numrecs};
use uxfs_format::bytes::{get16, get64, put16, put64};
use uxfs_format::extent::{EXTENT_SIZE, Extent};
use uxfs_format::inode::Format;
use uxfs_format::{DiskAddr, Geometry, Ino};

/// A fork in memory.
#[derive(Clone, Debug, Default)]
pub struct Fork {
    /// Inline bytes, or the device number.
    pub local: Vec<u8>,
    /// Extents by file block; complete if `loaded`.
    pub extents: BTreeMap<u64, Extent>,
    /// False while the extents of a bmbt have not been read.
    pub loaded: bool,
    /// Root of the bmbt, laid out as a block whose size is what fits into the inode.
    pub root: Vec<u8>,
}

const BMDR_HEADER: usize = 4;

/// Entries of a root in a fork of `size` bytes.
fn root_max(size: usize) -> usize {
    size.saturating_sub(BMDR_HEADER) / 16
}

impl Fork {
    /// Reads a fork of format `f` out of its `bytes`; `extents` as the core counts them, `len` the inline bytes.
    ///
    /// # Errors
    /// What does not fit.
    pub fn decode(bytes: &[u8], f: Format, extents: u64, len: usize) -> Result<Fork, &'static str> {
        let mut fork = Fork { loaded: true, ..Fork::default() };
        match f {
            Format::Dev => fork.local = bytes.get(..4).ok_or("device number is cut short")?.to_vec(),
            Format::Local => fork.local = bytes.get(..len).ok_or("inline bytes are cut short")?.to_vec(),
            Format::Extents => {
                let n = extents as usize * EXTENT_SIZE;
                let recs = bytes.get(..n).ok_or("extents are cut short")?;
                let mut last = 0;
                for r in recs.chunks_exact(EXTENT_SIZE) {
                    let e = Extent::decode(r);
                    if e.len == 0 || e.off.0 < last {
                        return Err("extents are out of order");
                    }
                    last = e.end();
                    fork.extents.insert(e.off.0, e);
                }
            }
            Format::Btree => {
                let n = usize::from(get16(bytes, 2));
                let max = root_max(bytes.len());
                let level = get16(bytes, 0);
                if n == 0 || n > max || level == 0 || level > 8 {
                    return Err("bmbt root is out of range");
                }
                fork.loaded = false;
                fork.init_root(bytes.len(), level);
                set_numrecs(&mut fork.root, n);
                let s = TreeKind::Bmap.shape();
                for i in 0..n {
                    put64(&mut fork.root, s.key_at(i), get64(bytes, BMDR_HEADER + 8 * i));
                    let at = s.ptr_at(fork.root.len() as u32, i);
                    put64(&mut fork.root, at, get64(bytes, BMDR_HEADER + 8 * max + 8 * i));
                }
            }
        }
        Ok(fork)
    }

    /// An empty root for a fork of `size` bytes.
    pub fn init_root(&mut self, size: usize, level: u16) {
        self.root = vec![0; LONG_HEADER + 16 * root_max(size)];
        put16(&mut self.root, 4, level);
    }

    /// The fork's bytes in a fork of `size` bytes.
    pub fn encode(&self, f: Format, size: usize) -> Vec<u8> {
        match f {
            Format::Dev | Format::Local => self.local.clone(),
            Format::Extents => {
                let mut out = vec![0; self.extents.len() * EXTENT_SIZE];
                self.extents.values().zip(out.chunks_exact_mut(EXTENT_SIZE)).for_each(|(e, b)| e.encode(b));
                out
            }
            Format::Btree => {
                let s = TreeKind::Bmap.shape();
                let (n, max) = (numrecs(&self.root), root_max(size));
                let mut out = vec![0; size];
                put16(&mut out, 0, level(&self.root));
                put16(&mut out, 2, n as u16);
                for i in 0..n.min(max) {
                    put64(&mut out, BMDR_HEADER + 8 * i, get64(&self.root, s.key_at(i)));
                    put64(&mut out, BMDR_HEADER + 8 * max + 8 * i, s.ptr_get(&self.root, self.root.len() as u32, i));
                }
                out
            }
        }
    }

    /// The root as the log carries it: a block's header, and room for just the entries that there are.
    pub fn encode_root_for_log(&self, owner: Ino, g: &Geometry) -> Vec<u8> {
        let (s, n) = (TreeKind::Bmap.shape(), numrecs(&self.root));
        let mut out = vec![0; LONG_HEADER + 16 * n];
        s.init(&mut out, level(&self.root), DiskAddr(u64::MAX), owner.0, g);
        set_numrecs(&mut out, n);
        for i in 0..n {
            put64(&mut out, s.key_at(i), get64(&self.root, s.key_at(i)));
            put64(&mut out, LONG_HEADER + 8 * (n + i), s.ptr_get(&self.root, self.root.len() as u32, i));
        }
        out
    }

    /// A root out of the log as it goes into a fork of `size` bytes; `None` if it does not fit.
    pub fn root_from_log(region: &[u8], size: usize, g: &Geometry) -> Option<Vec<u8>> {
        let header = TreeKind::Bmap.shape_in(g).header;
        let room = region.len().checked_sub(header)? / 16;
        let (n, max) = (numrecs(region), root_max(size));
        if n == 0 || n > room || n > max || level(region) == 0 {
            return None;
        }
        let mut out = vec![0; size];
        put16(&mut out, 0, level(region));
        put16(&mut out, 2, n as u16);
        for i in 0..n {
            put64(&mut out, BMDR_HEADER + 8 * i, get64(region, header + 8 * i));
            put64(&mut out, BMDR_HEADER + 8 * (max + i), get64(region, header + 8 * (room + i)));
        }
        Some(out)
    }

    /// The extent that covers file block `off`.
    pub fn at(&self, off: u64) -> Option<Extent> {
        self.extents.range(..=off).next_back().map(|e| *e.1).filter(|e| e.end() > off)
    }

    /// First block behind the last extent.
    pub fn end(&self) -> u64 {
        self.extents.values().next_back().map_or(0, Extent::end)
    }
}
