//! Operations on a fork: map, unmap, convert; extents in the inode or in a bmbt.
//!
//! The in-core extents are complete once loaded; each change is made there and to the records on disk in one transaction.
//!
//! 1. Extents are sorted, do not overlap, and neighbours that could be one are one.
//! 2. A fork is in extents form exactly while its extents fit into the inode.

use crate::btree::{Cursor, Tree};
use crate::error::Result;
use crate::inode::{Inode, Which};
use crate::space::{self, Owner, Want};
use crate::trans::Trans;
use std::cmp::Ordering;
use std::sync::Arc;
use uxfs_format::btree::{TreeKind, level, numrecs, set_numrecs};
use uxfs_format::bytes::{get64, put64};
use uxfs_format::extent::{EXTENT_SIZE, Extent, MAX_EXTENT};
use uxfs_format::inode::{Core, Format, flag2};
use uxfs_format::log::{ino_field, rmap_op};
use uxfs_format::{DiskAddr, FileBlock, FsBlock, Kind};

struct BmapTree {
    inode: Arc<Inode>,
    which: Which,
}

impl Tree for BmapTree {
    type Rec = Extent;
    fn kind(&self) -> TreeKind {
        TreeKind::Bmap
    }
    fn decode(&self, b: &[u8]) -> Extent {
        Extent::decode(b)
    }
    fn encode(&self, r: &Extent, b: &mut [u8]) {
        r.encode(b);
    }
    fn put_key(&self, r: &Extent, b: &mut [u8]) {
        put64(b, 0, r.off.0);
    }
    fn cmp_rec(&self, s: &Extent, t: &Extent) -> Ordering {
        s.off.cmp(&t.off)
    }
    fn cmp_key(&self, k: &[u8], t: &Extent) -> Ordering {
        get64(k, 0).cmp(&t.off.0)
    }
    fn root(&self) -> (Option<u64>, u16) {
        (None, level(&self.inode.data().fork(self.which).root) + 1)
    }
    fn set_root(&mut self, _: &mut Trans, _: Option<u64>, _: u16) {}
    fn daddr(&self, tp: &Trans, ptr: u64) -> Option<DiskAddr> {
        tp.vol.geo.valid_fsb(FsBlock(ptr), 1).then(|| tp.vol.geo.fsb_daddr(FsBlock(ptr)))
    }
    fn owner(&self) -> u64 {
        self.inode.ino.0
    }
    fn alloc(&mut self, tp: &mut Trans, near: u64) -> Result<u64> {
        Ok(alloc_fork_block(tp, &self.inode, self.which, FsBlock(near))?.0)
    }
    fn free(&mut self, tp: &mut Trans, ptr: u64) -> Result<()> {
        let mut d = self.inode.data();
        d.core.nblocks = d.core.nblocks.saturating_sub(1);
        drop(d);
        space::defer_free(tp, FsBlock(ptr), 1, tree_owner(&self.inode, self.which));
        Ok(())
    }
    fn with_inode_root<R>(&self, f: impl FnOnce(&mut Vec<u8>) -> R) -> Option<R> {
        Some(f(&mut self.inode.data().fork_mut(self.which).root))
    }
    fn log_inode_root(&mut self, tp: &mut Trans) {
        // The cluster was read when the inode was first logged in this transaction, so this cannot fail.
        let _ = self.inode.log(tp, root_field(self.which));
    }
}

fn root_field(w: Which) -> u32 {
    if w == Which::Data { ino_field::DBROOT } else { ino_field::ABROOT }
}

fn extents_field(w: Which) -> u32 {
    if w == Which::Data { ino_field::DEXT } else { ino_field::AEXT }
}

/// Allocates a block that belongs to an inode's fork but holds none of its extents: a bmbt block.
fn alloc_fork_block(tp: &mut Trans, inode: &Arc<Inode>, which: Which, near: FsBlock) -> Result<FsBlock> {
    let near = if tp.vol.geo.valid_fsb(near, 1) { near } else { home(inode) };
    let owner = tree_owner(inode, which);
    let (b, _) = space::alloc(tp, Want { near, min: 1, max: 1, align: 1, spare: 0, owner })?;
    inode.data().core.nblocks += 1;
    Ok(b)
}

fn tree_owner(inode: &Inode, which: Which) -> Owner {
    Owner::bmbt(inode.ino, which == Which::Attr)
}

/// Notes a change of a mapping for the rmapbt. `op` is that of what nobody else has.
fn note_owner(tp: &mut Trans, inode: &Inode, which: Which, op: u32, e: &Extent) {
    let shared = which == Which::Data && inode.data().core.flags2 & flag2::REFLINK != 0;
    space::defer_rmap(tp, op + u32::from(shared), inode.ino, which == Which::Attr, e);
}

/// The block of an inode itself: what it owns goes near.
pub fn home(inode: &Inode) -> FsBlock {
    let g = &inode.vol.geo;
    g.fsb(g.ino_agno(inode.ino), g.agino_agbno(g.ino_agino(inode.ino)))
}

/// Reads the extents of a fork in bmbt form, if that has not been done.
///
/// # Locks
/// The caller has the inode, shared at least.
///
/// # Errors
/// The device's, or the tree is corrupt.
pub fn load(inode: &Inode, which: Which) -> Result<()> {
    let (mut ptr, mut lvl, want) = {
        let d = inode.data();
        let f = d.fork(which);
        if f.loaded {
            return Ok(());
        }
        let n = if which == Which::Data { d.core.nextents } else { u64::from(d.core.anextents) };
        (TreeKind::Bmap.shape().ptr_get(&f.root, f.root.len() as u32, 0), level(&f.root), n)
    };
    let vol = &inode.vol;
    let s = TreeKind::Bmap.shape_in(&vol.geo);
    let mut found = std::collections::BTreeMap::new();
    let mut last = 0;
    loop {
        if !vol.geo.valid_fsb(FsBlock(ptr), 1) {
            return Err(vol.corrupt(inode.ino, "has a bmbt pointer outside the volume"));
        }
        let at = vol.geo.fsb_daddr(FsBlock(ptr));
        let b = vol.bufs.read(&[(at, vol.geo.bb_per_block())], Kind::Btree(TreeKind::Bmap), &vol.geo)?;
        let d = b.data();
        if level(&d) + 1 != lvl || b.kind().owner(&d).is_some_and(|o| o != inode.ino.0) {
            return Err(vol.corrupt(inode.ino, "has a bmbt block of another level or owner"));
        }
        if lvl > 1 {
            lvl -= 1;
            ptr = s.ptr_get(&d, d.len() as u32, 0);
            continue;
        }
        for i in 0..numrecs(&d) {
            let e = Extent::decode(&d[s.rec_at(i)..]);
            if e.len == 0 || e.off.0 < last || !vol.geo.valid_fsb(e.start, e.len) || found.len() as u64 >= want {
                return Err(vol.corrupt(inode.ino, "has a bmbt with extents out of order or out of range"));
            }
            last = e.end();
            found.insert(e.off.0, e);
        }
        match s.right(&d) {
            Some(p) => ptr = p,
            None => break,
        }
        if numrecs(&d) == 0 {
            return Err(vol.corrupt(inode.ino, "has an empty bmbt leaf"));
        }
    }
    if found.len() as u64 != want {
        return Err(vol.corrupt(inode.ino, "has another number of extents than its core says"));
    }
    let mut d = inode.data();
    let f = d.fork_mut(which);
    f.extents = found;
    f.loaded = true;
    Ok(())
}

/// Replaces records of a fork and changes its form where that is due.
fn replace(tp: &mut Trans, inode: &Arc<Inode>, which: Which, old: &[Extent], new: &[Extent]) -> Result<()> {
    let (format, fits) = {
        let mut d = inode.data();
        let f = d.fork_mut(which);
        old.iter().for_each(|e| {
            f.extents.remove(&e.off.0);
        });
        new.iter().for_each(|e| {
            f.extents.insert(e.off.0, *e);
        });
        let n = f.extents.len() as u64;
        if which == Which::Data {
            d.core.nextents = n
        } else {
            d.core.anextents = n as u32
        }
        (d.format(which), n as usize * EXTENT_SIZE <= d.fork_size(which, &tp.vol))
    };
    match (format, fits) {
        (Format::Extents, true) => inode.log(tp, extents_field(which)),
        (Format::Extents, false) => to_btree(tp, inode, which),
        (Format::Btree, _) => {
            inode.log(tp, root_field(which))?;
            change_tree(tp, inode, which, old, new)?;
            if fits { to_extents(tp, inode, which) } else { Ok(()) }
        }
        _ => Err(tp.vol.corrupt(inode.ino, "has extents in a fork that holds none")),
    }
}

fn change_tree(tp: &mut Trans, inode: &Arc<Inode>, which: Which, old: &[Extent], new: &[Extent]) -> Result<()> {
    let mut c = Cursor::new(tp, BmapTree { inode: inode.clone(), which });
    for o in old {
        if c.lookup_eq(o)? != Some(*o) {
            return Err(inode.vol.corrupt(inode.ino, "has another extent in its bmbt than in memory"));
        }
        match new.iter().find(|n| n.off == o.off) {
            Some(n) => c.update(n)?,
            None => c.delete()?,
        }
    }
    for n in new.iter().filter(|n| old.iter().all(|o| o.off != n.off)) {
        c.insert(n)?;
    }
    Ok(())
}

/// The extents no longer fit into the inode: they move into one leaf.
fn to_btree(tp: &mut Trans, inode: &Arc<Inode>, which: Which) -> Result<()> {
    inode.log(tp, root_field(which))?;
    let block = alloc_fork_block(tp, inode, which, home(inode))?;
    let s = TreeKind::Bmap.shape();
    let at = tp.vol.geo.fsb_daddr(block);
    let b = tp.get_buf(&[(at, tp.vol.geo.bb_per_block())], Kind::Btree(TreeKind::Bmap));
    {
        let vol = tp.vol.clone();
        let mut bytes = b.data_mut();
        s.init(&mut bytes, 0, at, inode.ino.0, &vol.geo);
        let mut d = inode.data();
        let size = d.fork_size(which, &vol);
        let f = d.fork_mut(which);
        for (i, e) in f.extents.values().enumerate() {
            e.encode(&mut bytes[s.rec_at(i)..]);
        }
        set_numrecs(&mut bytes, f.extents.len());
        f.init_root(size, 1);
        set_numrecs(&mut f.root, 1);
        let first = f.extents.keys().next().copied().unwrap_or(0);
        put64(&mut f.root, s.key_at(0), first);
        let ptr_at = s.ptr_at(f.root.len() as u32, 0);
        put64(&mut f.root, ptr_at, block.0);
        d.set_format(which, Format::Btree);
    }
    tp.log_all(&b);
    Ok(())
}

/// The extents fit into the inode again: the one leaf is freed.
fn to_extents(tp: &mut Trans, inode: &Arc<Inode>, which: Which) -> Result<()> {
    let s = TreeKind::Bmap.shape();
    let leaf = {
        let mut d = inode.data();
        let f = d.fork_mut(which);
        if level(&f.root) != 1 || numrecs(&f.root) != 1 {
            return Err(tp.vol.corrupt(inode.ino, "has a bmbt that is larger than its extents need"));
        }
        let leaf = FsBlock(s.ptr_get(&f.root, f.root.len() as u32, 0));
        f.root.clear();
        d.set_format(which, Format::Extents);
        d.core.nblocks = d.core.nblocks.saturating_sub(1);
        leaf
    };
    let at = tp.vol.geo.fsb_daddr(leaf);
    let b = tp.read_buf(at, tp.vol.geo.bb_per_block(), Kind::Btree(TreeKind::Bmap))?;
    tp.invalidate(&b);
    space::defer_free(tp, leaf, 1, tree_owner(inode, which));
    inode.log(tp, extents_field(which))
}

/// Maps an extent that was just allocated into a hole. The blocks are counted as the inode's.
///
/// # Locks
/// The caller has the inode exclusively, and its extents are loaded.
///
/// # Errors
/// `NoSpace` for a bmbt block; the fork is corrupt.
pub fn map(tp: &mut Trans, inode: &Arc<Inode>, which: Which, e: Extent) -> Result<()> {
    inode.data().core.nblocks += u64::from(e.len);
    let (mut new, mut old) = (e, Vec::new());
    {
        let d = inode.data();
        let f = d.fork(which);
        if let Some((_, l)) = f.extents.range(..e.off.0).next_back()
            && l.joins(&new)
        {
            old.push(*l);
            new = Extent { off: l.off, start: l.start, len: l.len + new.len, ..new };
        }
        if let Some(r) = f.extents.get(&e.end())
            && new.joins(r)
        {
            old.push(*r);
            new.len += r.len;
        }
    }
    replace(tp, inode, which, &old, &[new])?;
    note_owner(tp, inode, which, rmap_op::MAP, &e);
    Ok(())
}

fn cut(e: &Extent, from: u64, to: u64) -> Extent {
    Extent { off: FileBlock(from), start: e.at(from), len: (to - from) as u32, unwritten: e.unwritten }
}

/// Unmaps at most `most` extents' worth of `off..end` from the end backwards, and frees the blocks. Returns true when
/// nothing is mapped there any more.
///
/// # Locks
/// As [`map`].
///
/// # Errors
/// As [`map`].
pub fn unmap(tp: &mut Trans, inode: &Arc<Inode>, which: Which, off: u64, end: u64, most: usize) -> Result<bool> {
    for _ in 0..most {
        let found = {
            let d = inode.data();
            d.fork(which).extents.range(..end).next_back().map(|x| *x.1).filter(|e| e.end() > off)
        };
        let Some(e) = found else { return Ok(true) };
        let piece = unmap_piece(tp, inode, which, &e, off.max(e.off.0), end.min(e.end()))?;
        let shared = which == Which::Data && inode.data().core.flags2 & flag2::REFLINK != 0;
        if shared {
            space::defer_decrease(tp, piece.start, piece.len);
        } else {
            space::defer_free(tp, piece.start, piece.len, Owner::FILE);
        }
    }
    let d = inode.data();
    Ok(d.fork(which).extents.range(..end).next_back().is_none_or(|x| x.1.end() <= off))
}

/// Takes `from..to` out of the extent `e`; what becomes of the blocks is the caller's. Returns the piece.
///
/// # Errors
/// As [`map`].
pub fn unmap_piece(tp: &mut Trans, inode: &Arc<Inode>, which: Which, e: &Extent, from: u64, to: u64) -> Result<Extent> {
    let mut rest = Vec::new();
    if e.off.0 < from {
        rest.push(cut(e, e.off.0, from));
    }
    if to < e.end() {
        rest.push(cut(e, to, e.end()));
    }
    let piece = cut(e, from, to);
    {
        let mut d = inode.data();
        d.core.nblocks = d.core.nblocks.saturating_sub(u64::from(piece.len));
    }
    replace(tp, inode, which, &[*e], &rest)?;
    note_owner(tp, inode, which, rmap_op::UNMAP, &piece);
    Ok(piece)
}

/// Cuts the data extent that goes over the border before `block` in two, for whoever moves one of them.
///
/// # Locks
/// As [`map`].
///
/// # Errors
/// As [`map`].
pub fn split_at(tp: &mut Trans, inode: &Arc<Inode>, block: u64) -> Result<()> {
    let found = inode.data().data.at(block).filter(|e| e.off.0 < block);
    let Some(e) = found else { return Ok(()) };
    replace(tp, inode, Which::Data, &[e], &[cut(&e, e.off.0, block), cut(&e, block, e.end())])
}

/// Turns what is unwritten in `off..end` into written blocks, one extent a call. Returns true when nothing is left to do.
///
/// # Locks
/// As [`map`].
///
/// # Errors
/// As [`map`].
pub fn convert(tp: &mut Trans, inode: &Arc<Inode>, off: u64, end: u64) -> Result<bool> {
    let (e, left, right) = {
        let d = inode.data();
        let x = &d.data.extents;
        let first = x.range(..=off).next_back().map_or(off, |x| *x.0);
        let found = x.range(first..end).map(|x| *x.1).find(|e| e.unwritten && e.end() > off);
        let Some(e) = found else { return Ok(true) };
        (e, x.range(..e.off.0).next_back().map(|x| *x.1), x.get(&e.end()).copied())
    };
    let (from, to) = (off.max(e.off.0), end.min(e.end()));
    let (mut old, mut new) = (vec![e], Vec::new());
    let mut written = Extent { unwritten: false, ..cut(&e, from, to) };
    let converted = written;
    if e.off.0 < from {
        new.push(cut(&e, e.off.0, from));
    } else if let Some(l) = left.filter(|l| l.joins(&written)) {
        old.push(l);
        written = Extent { off: l.off, start: l.start, len: l.len + written.len, ..written };
    }
    if to < e.end() {
        new.push(cut(&e, to, e.end()));
    } else if let Some(r) = right.filter(|r| written.joins(r)) {
        old.push(r);
        written.len += r.len;
    }
    new.push(written);
    replace(tp, inode, Which::Data, &old, &new)?;
    note_owner(tp, inode, Which::Data, rmap_op::CONVERT, &converted);
    Ok(false)
}

/// Allocates and maps one block or more of metadata of a fork at `off`: a directory or attribute block. Returns the extent.
///
/// # Errors
/// `NoSpace`.
pub fn grow_fork(tp: &mut Trans, inode: &Arc<Inode>, which: Which, off: u64, len: u32) -> Result<Extent> {
    let near = {
        let d = inode.data();
        let f = d.fork(which);
        f.extents.range(..=off).next_back().or_else(|| f.extents.iter().next()).map(|x| x.1.start)
    };
    let near = near.unwrap_or_else(|| home(inode));
    let (start, got) = space::alloc(tp, Want { near, min: len, max: len.min(MAX_EXTENT), align: 1, spare: 0, owner: Owner::FILE })?;
    let e = Extent { off: FileBlock(off), start, len: got, unwritten: false };
    map(tp, inode, which, e)?;
    Ok(e)
}

/// Sets where the attribute fork begins; a data fork that does not fit any more changes its form.
///
/// # Errors
/// `NoSpace`.
pub fn make_room_for_attributes(tp: &mut Trans, inode: &Arc<Inode>, forkoff: u8) -> Result<()> {
    let full = {
        let mut d = inode.data();
        let size = Core { forkoff, ..d.core.clone() }.data_fork_size(&tp.vol.geo);
        if d.core.format == Format::Btree && !resize_root(&mut d.data, size) {
            drop(d);
            lower_root(tp, inode)?;
            d = inode.data();
            resize_root(&mut d.data, size);
        }
        d.core.forkoff = forkoff;
        d.core.aformat = Format::Extents;
        d.core.anextents = 0;
        d.attr = crate::inode::Fork { loaded: true, ..crate::inode::Fork::default() };
        d.core.format == Format::Extents && d.data.extents.len() * EXTENT_SIZE > size
    };
    if full { to_btree(tp, inode, Which::Data) } else { inode.log(tp, ino_field::DFORK) }
}

/// Moves what the root of a bmbt holds into a block of its own.
fn lower_root(tp: &mut Trans, inode: &Arc<Inode>) -> Result<()> {
    inode.log(tp, root_field(Which::Data))?;
    let first = inode.data().data.extents.values().next().copied();
    let Some(first) = first else { return Err(tp.vol.corrupt(inode.ino, "has a bmbt of nothing")) };
    Cursor::new(tp, BmapTree { inode: inode.clone(), which: Which::Data }).lower_root(&first)
}

/// The attribute fork is gone and the data fork larger: the root of its bmbt is laid out anew.
pub fn data_fork_grew(inode: &Inode) {
    let mut d = inode.data();
    if d.core.format == Format::Btree {
        let size = d.core.data_fork_size(&inode.vol.geo);
        resize_root(&mut d.data, size);
    }
}

/// Lays a root out for a fork of another size; false if its entries do not fit.
fn resize_root(f: &mut crate::inode::Fork, size: usize) -> bool {
    let s = TreeKind::Bmap.shape();
    let old = f.root.clone();
    let n = numrecs(&old);
    if (size - 4) / 16 < n {
        return false;
    }
    f.init_root(size, level(&old));
    set_numrecs(&mut f.root, n);
    for i in 0..n {
        put64(&mut f.root, s.key_at(i), get64(&old, s.key_at(i)));
        let at = s.ptr_at(f.root.len() as u32, i);
        put64(&mut f.root, at, s.ptr_get(&old, old.len() as u32, i));
    }
    true
}

/// Reads bytes of a fork whose blocks bear no headers: values and link targets of version 4.
///
/// # Errors
/// The device's; a block is not mapped.
pub fn read_plain(inode: &Inode, which: Which, first: u64, len: usize) -> Result<Vec<u8>> {
    let g = &inode.vol.geo;
    let mut out = Vec::with_capacity(len.next_multiple_of(g.blocksize as usize));
    while out.len() < len {
        let off = first + (out.len() / g.blocksize as usize) as u64;
        let at = inode.data().fork(which).at(off).map(|e| g.fsb_daddr(e.at(off)));
        let at = at.ok_or_else(|| inode.vol.corrupt(inode.ino, "has a value or link target that is not mapped"))?;
        let mut b = vec![0; g.blocksize as usize];
        uxfs_sync::blocking(|| inode.vol.dev.read(at.0 * 512, &mut b))?;
        out.extend_from_slice(&b);
    }
    out.truncate(len);
    Ok(out)
}
