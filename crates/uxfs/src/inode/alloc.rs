//! Allocating and freeing inodes and their chunks.

use super::{Inode, Inodes};
use crate::ag;
use crate::btree::{Cursor, Tree};
use crate::error::{Error, Result};
use crate::space::{self, Owner, Want};
use crate::trans::{Buf, Trans};
use crate::volume::Volume;
use std::cmp::Ordering;
use std::sync::Arc;
use uxfs_format::btree::{InoRec, TreeKind};
use uxfs_format::bytes::{get32, put32};
use uxfs_format::log::IcreateFormat;
use uxfs_format::reservation::Levels;
use uxfs_format::superblock::{incompat, ro_compat};
use uxfs_format::{AgBlock, AgIno, AgNumber, DiskAddr, FsBlock, Ino, Kind, Lsn, inode};
use uxfs_journal::{ItemState, LogItem, Push, Regions};

struct InoTree {
    agno: AgNumber,
    agi: Buf,
    free_only: bool,
    sparse: bool,
    counts: bool,
}

impl Tree for InoTree {
    type Rec = InoRec;
    fn kind(&self) -> TreeKind {
        if self.free_only { TreeKind::Fino } else { TreeKind::Ino }
    }
    fn decode(&self, b: &[u8]) -> InoRec {
        InoRec::decode(b, self.sparse)
    }
    fn encode(&self, r: &InoRec, b: &mut [u8]) {
        r.encode(b, self.sparse);
    }
    fn put_key(&self, r: &InoRec, b: &mut [u8]) {
        put32(b, 0, r.startino.0);
    }
    fn cmp_rec(&self, s: &InoRec, t: &InoRec) -> Ordering {
        s.startino.cmp(&t.startino)
    }
    fn cmp_key(&self, k: &[u8], t: &InoRec) -> Ordering {
        get32(k, 0).cmp(&t.startino.0)
    }
    fn root(&self) -> (Option<u64>, u16) {
        let a = ag::get_agi(&self.agi);
        let (root, level) = if self.free_only { (a.free_root, a.free_level) } else { (a.root, a.level) };
        (Some(u64::from(root.get())), level.get() as u16)
    }
    fn set_root(&mut self, tp: &mut Trans, ptr: Option<u64>, levels: u16) {
        let p = ptr.unwrap_or(0) as u32;
        let free = self.free_only;
        ag::set_agi(tp, &self.agi, |a| {
            let (root, level) = if free { (&mut a.free_root, &mut a.free_level) } else { (&mut a.root, &mut a.level) };
            root.set(p);
            level.set(u32::from(levels));
        });
    }
    fn daddr(&self, tp: &Trans, ptr: u64) -> Option<DiskAddr> {
        let g = &tp.vol.geo;
        (ptr > 0 && ptr < u64::from(g.ag_length(self.agno))).then(|| g.ag_daddr(self.agno, AgBlock(ptr as u32)))
    }
    fn owner(&self) -> u64 {
        u64::from(self.agno.0)
    }
    fn alloc(&mut self, tp: &mut Trans, near: u64) -> Result<u64> {
        let b = space::alloc_metadata(tp, self.agno, AgBlock(near as u32), Owner::INOBT)?;
        self.count(tp, 1);
        Ok(u64::from(b.0))
    }
    fn free(&mut self, tp: &mut Trans, ptr: u64) -> Result<()> {
        self.count(tp, -1);
        let at = tp.vol.geo.fsb(self.agno, AgBlock(ptr as u32));
        space::free_extent(tp, at, 1, Owner::INOBT)
    }
}

impl InoTree {
    fn count(&self, tp: &mut Trans, n: i32) {
        if self.free_only {
            space::grew(&tp.vol, self.agno, TreeKind::Fino, i64::from(n));
        }
        if !self.counts {
            return;
        }
        let free = self.free_only;
        ag::set_agi(tp, &self.agi, |a| {
            let c = if free { &mut a.fblocks } else { &mut a.iblocks };
            c.set(c.get().saturating_add_signed(n));
        });
    }
}

fn cursor<'a>(tp: &'a mut Trans, agno: AgNumber, agi: &Buf, free_only: bool) -> Cursor<'a, InoTree> {
    let g = &tp.vol.geo;
    let (sparse, counts) = (g.has(incompat::SPINODES), g.has_ro(ro_compat::INOBTCNT));
    Cursor::new(tp, InoTree { agno, agi: agi.clone(), free_only, sparse, counts })
}

/// Enters in a group's AGI how many blocks its inode trees have, as volumes with inobtcount keep it.
///
/// # Errors
/// The device's, or a tree is corrupt.
pub fn count_trees(tp: &mut Trans, agno: AgNumber) -> Result<()> {
    let agi = ag::agi(tp, agno)?;
    let iblocks = cursor(tp, agno, &agi, false).blocks()?;
    let fblocks = cursor(tp, agno, &agi, true).blocks()?;
    ag::set_agi(tp, &agi, |a| {
        a.iblocks.set(iblocks);
        a.fblocks.set(fblocks);
    });
    Ok(())
}

fn rec_at(i: u32) -> InoRec {
    InoRec { startino: AgIno(i), holemask: 0, count: 0, freecount: 0, free: 0 }
}

/// Says in the log that a chunk's inodes were written afresh.
struct Icreate(ItemState);

impl LogItem for Icreate {
    fn state(&self) -> &ItemState {
        &self.0
    }
    fn committed(&self, _: Lsn, _: &Regions) -> Option<Lsn> {
        None
    }
    fn push(&self) -> Push {
        Push::Nothing
    }
}

/// Allocates an inode near `parent`, directories spread over the groups. The inode comes back free: the caller fills it in.
///
/// # Locks
/// Takes an AGI, then maybe AGFs; keeps them. The caller has no AGF.
///
/// # Errors
/// `NoSpace` if there is no free inode and no room for a chunk.
pub fn dialloc(tp: &mut Trans, inodes: &Inodes, parent: Ino, dir: bool) -> Result<Arc<Inode>> {
    let count = tp.vol.geo.agcount;
    let home = tp.vol.geo.ino_agno(parent).0;
    let start = if dir { (home + tp.vol.chance.below(u64::from(count)) as u32) % count } else { home };
    for wait in [false, true] {
        for i in 0..count {
            let agno = AgNumber((start + i) % count);
            // Waiting goes in rising order, so two creators never wait for each other.
            let agno = if wait { AgNumber(i) } else { agno };
            let before = tp.joined_count();
            let agi = if wait { Some(ag::agi(tp, agno)?) } else { ag::try_agi(tp, agno)? };
            let Some(agi) = agi else { continue };
            if let Some(ino) = alloc_in(tp, agno, &agi, parent)? {
                let inode = inodes.get_any(ino)?;
                if inode.data().core.mode != 0 {
                    return Err(tp.vol.corrupt(ino, "is in use, but the inode tree says that it is free"));
                }
                return Ok(inode);
            }
            tp.release_since(before);
            if tp.highest_agf.is_some() {
                // A free list was filled, in vain. Its group is not kept while the next AGI is waited for: that one's holder may want it.
                tp.roll()?;
            }
        }
    }
    Err(Error::NoSpace)
}

fn alloc_in(tp: &mut Trans, agno: AgNumber, agi: &Buf, parent: Ino) -> Result<Option<Ino>> {
    if ag::get_agi(agi).freecount.get() == 0 {
        if !alloc_chunk(tp, agno, agi)? {
            return Ok(None);
        }
        // The chunk's link is full as it is; the inode is taken in the next, under the same AGI.
        tp.hold_buf(agi);
        tp.roll()?;
    }
    let near = if tp.vol.geo.ino_agno(parent) == agno { tp.vol.geo.ino_agino(parent).0 } else { ag::get_agi(agi).newino.get() };
    let finobt = tp.vol.geo.finobt();
    let mut c = cursor(tp, agno, agi, finobt);
    let mut rec = c.lookup_le(&rec_at(near))?;
    if rec.is_none_or(|r| r.really_free() == 0) {
        // Of those behind, or of all where full chunks are in the tree, too, the first with a free one.
        rec = if finobt { c.current() } else { c.lookup_ge(&rec_at(0))? };
        while rec.is_some_and(|r| r.really_free() == 0) {
            rec = c.next()?;
        }
    }
    let Some(rec) = rec else {
        return Err(ag::corrupt(agi, "counts free inodes that its trees do not have"));
    };
    if !counts_fit(&rec) {
        return Err(ag::corrupt(agi, "has a chunk with impossible counts"));
    }
    let bit = rec.really_free().trailing_zeros();
    let left = InoRec { free: rec.free & !(1 << bit), freecount: rec.freecount - 1, ..rec };
    if finobt {
        // Where the two trees disagree, neither has been changed yet.
        replace(c.tp, agno, agi, &rec, &left)?;
    }
    match left.freecount {
        0 if finobt => c.delete()?,
        _ => c.update(&left)?,
    }
    ag::set_agi(tp, agi, |a| a.freecount.set(a.freecount.get() - 1));
    tp.count_inodes(0, -1);
    Ok(Some(tp.vol.geo.ino(agno, AgIno(rec.startino.0 + bit))))
}

/// The inode of a number that comes from outside, and so may lead to anything: its group says first whether there is one, and in use.
///
/// # Locks
/// Takes the AGI, until the inode was read.
///
/// # Errors
/// [`Error::Stale`] if not; the inode tree or the inode is corrupt.
pub fn find(vol: &Arc<Volume>, inodes: &Inodes, ino: Ino) -> Result<Arc<Inode>> {
    if !vol.geo.valid_ino(ino) {
        return Err(Error::Stale);
    }
    let (agno, agino) = (vol.geo.ino_agno(ino), vol.geo.ino_agino(ino).0);
    let mut tp = Trans::reader(vol);
    let agi = ag::agi(&mut tp, agno)?;
    let chunk = cursor(&mut tp, agno, &agi, false).lookup_le(&rec_at(agino))?.filter(|r| agino - r.startino.0 < 64);
    // Its bit is set in both if it is free, or was never there.
    let in_use = chunk.is_some_and(|r| (r.free | r.hole_bits()) & 1 << (agino - r.startino.0) == 0);
    if in_use { inodes.get(ino) } else { Err(Error::Stale) }
}

/// True if a chunk's counts are those of its bits.
fn counts_fit(r: &InoRec) -> bool {
    u32::from(r.count) == (!r.hole_bits()).count_ones() && u32::from(r.freecount) == r.really_free().count_ones()
}

/// Replaces a chunk's record in the tree of all chunks.
fn replace(tp: &mut Trans, agno: AgNumber, agi: &Buf, old: &InoRec, new: &InoRec) -> Result<()> {
    let mut c = cursor(tp, agno, agi, false);
    if c.lookup_eq(old)?.is_none_or(|r| r.free != old.free) {
        return Err(ag::corrupt(agi, "has inode trees that disagree"));
    }
    c.update(new)
}

/// Replaces a chunk's record in both trees.
fn change(tp: &mut Trans, agno: AgNumber, agi: &Buf, old: InoRec, new: InoRec) -> Result<()> {
    replace(tp, agno, agi, &old, &new)?;
    if !tp.vol.geo.finobt() {
        return Ok(());
    }
    let mut c = cursor(tp, agno, agi, true);
    match (c.lookup_eq(&old)?, new.freecount) {
        (Some(_), 0) => c.delete(),
        (Some(_), _) => c.update(&new),
        (None, 0) => Ok(()),
        (None, _) => c.insert(&new),
    }
}

/// Allocates a chunk of 64 inodes, or a part of one where there is no room for a whole one.
fn alloc_chunk(tp: &mut Trans, agno: AgNumber, agi: &Buf) -> Result<bool> {
    let g = tp.vol.geo.clone();
    let most = u128::from(g.dblocks) * u128::from(g.imax_pct) / 100 * u128::from(g.inopblock);
    if g.imax_pct > 0 && u128::from(tp.vol.counters.for_statfs().1) + 64 > most {
        return Ok(false);
    }
    let blocks = g.chunk_blocks();
    // The inobt may split when the chunk is entered; the finobt has what the group keeps.
    let spare = Levels::of(&g).ino as u32;
    let want = |n, align| Want { near: FsBlock(0), min: n, max: n, align, spare, owner: Owner::INODES };
    let near = g.agino_agbno(AgIno(ag::get_agi(agi).newino.get())).0;
    let near = if near < g.ag_length(agno) { near } else { 0 };
    let found = space::alloc_in_group(tp, agno, near, want(blocks, g.inoalignmt.max(1)), tp.highest_agf.is_none_or(|h| agno.0 >= h))?;
    if let Some((agbno, _)) = found {
        let start = g.agbno_agino(AgBlock(agbno));
        init_inodes(tp, agno, agbno, blocks);
        // Large blocks hold several chunks, which come and stay together.
        for i in (0..(blocks << g.inopblog).max(64)).step_by(64) {
            let startino = AgIno(start.0 + i);
            insert_chunk(tp, agno, agi, InoRec { startino, holemask: 0, count: 64, freecount: 64, free: u64::MAX })?;
        }
        return Ok(true);
    }
    if !g.has(incompat::SPINODES) || g.spino_align == 0 || g.spino_align >= blocks {
        return Ok(false);
    }
    let piece = g.spino_align;
    let Some((agbno, _)) = space::alloc_in_group(tp, agno, near, want(piece, piece), true)? else { return Ok(false) };
    init_inodes(tp, agno, agbno, piece);
    let chunk = agbno / blocks * blocks;
    let inodes = piece << g.inopblog;
    let first = (agbno - chunk) << g.inopblog;
    let exists = ((1u64 << inodes) - 1) << first;
    let holemask = (0..16).filter(|i| exists >> (4 * i) & 1 == 0).fold(0u16, |a, i| a | 1 << i);
    let startino = g.agbno_agino(AgBlock(chunk));
    let mut c = cursor(tp, agno, agi, false);
    if let Some(old) = c.lookup_eq(&rec_at(startino.0))? {
        if old.hole_bits() & exists != exists {
            return Err(ag::corrupt(agi, "has inodes where blocks are free"));
        }
        let new =
            InoRec { holemask: old.holemask & holemask, count: old.count + inodes as u8, freecount: old.freecount + inodes as u8, ..old };
        change(tp, agno, agi, old, new)?;
        count_new(tp, agi, startino, inodes);
        return Ok(true);
    }
    insert_chunk(tp, agno, agi, InoRec { startino, holemask, count: inodes as u8, freecount: inodes as u8, free: u64::MAX })?;
    Ok(true)
}

fn count_new(tp: &mut Trans, agi: &Buf, startino: AgIno, n: u32) {
    ag::set_agi(tp, agi, |a| {
        a.count.set(a.count.get() + n);
        a.freecount.set(a.freecount.get() + n);
        a.newino.set(startino.0);
    });
    tp.count_inodes(i64::from(n), i64::from(n));
}

fn insert_chunk(tp: &mut Trans, agno: AgNumber, agi: &Buf, rec: InoRec) -> Result<()> {
    cursor(tp, agno, agi, false).insert(&rec)?;
    if tp.vol.geo.finobt() {
        cursor(tp, agno, agi, true).insert(&rec)?;
    }
    count_new(tp, agi, rec.startino, u32::from(rec.count));
    Ok(())
}

/// Writes free inodes into the buffers of new clusters and logs that, in one item.
fn init_inodes(tp: &mut Trans, agno: AgNumber, agbno: u32, blocks: u32) {
    let g = tp.vol.geo.clone();
    let generation = tp.vol.chance.next_u64() as u32;
    let cb = g.cluster_blocks();
    for c in (0..blocks).step_by(cb as usize) {
        let at = g.ag_daddr(agno, AgBlock(agbno + c));
        let b = tp.get_buf(&[(at, cb * g.bb_per_block())], Kind::Inode);
        let first = g.agbno_agino(AgBlock(agbno + c)).0;
        for (i, d) in b.data_mut().chunks_exact_mut(g.inodesize as usize).enumerate() {
            inode::init_free(d, g.ino(agno, AgIno(first + i as u32)), generation, &g);
        }
        tp.order_buf(&b);
        tp.vol.groups[agno.0 as usize].freed_clusters.lock().remove(&(agbno + c));
    }
    let f = IcreateFormat { agno, agbno: AgBlock(agbno), count: blocks << g.inopblog, isize: g.inodesize, len: blocks, generation };
    tp.log_regions(Arc::new(Icreate(ItemState::default())), [f.build()].into());
}

/// Frees an inode; its chunk too if that was the last in use.
///
/// # Locks
/// Takes the AGI; the caller has the inode locked, and no AGF.
///
/// # Errors
/// The inode trees are corrupt.
pub fn difree(tp: &mut Trans, inodes: &Inodes, inode: &Arc<Inode>) -> Result<()> {
    let g = tp.vol.geo.clone();
    let (agno, agino) = (g.ino_agno(inode.ino), g.ino_agino(inode.ino).0);
    let agi = ag::agi(tp, agno)?;
    let Some(old) = cursor(tp, agno, &agi, false).lookup_le(&rec_at(agino))?.filter(|r| agino - r.startino.0 < 64) else {
        return Err(ag::corrupt(&agi, "has no chunk for an inode that is freed"));
    };
    let bit = 1u64 << (agino - old.startino.0);
    if !counts_fit(&old) || old.freecount == old.count {
        return Err(ag::corrupt(&agi, "has a chunk with impossible counts"));
    }
    if (old.free | old.hole_bits()) & bit != 0 {
        return Err(ag::corrupt(&agi, "is to free an inode that is free already"));
    }
    let new = InoRec { free: old.free | bit, freecount: old.freecount + 1, ..old };
    if new.freecount < new.count || g.inopblock > 64 {
        change(tp, agno, &agi, old, new)?;
        ag::set_agi(tp, &agi, |a| a.freecount.set(a.freecount.get() + 1));
        tp.count_inodes(0, 1);
        return Ok(());
    }
    free_chunk(tp, inodes, agno, &agi, old)
}

fn free_chunk(tp: &mut Trans, inodes: &Inodes, agno: AgNumber, agi: &Buf, rec: InoRec) -> Result<()> {
    let g = tp.vol.geo.clone();
    for free_only in [false, true] {
        if free_only && !g.finobt() {
            continue;
        }
        let mut c = cursor(tp, agno, agi, free_only);
        if c.lookup_eq(&rec)?.is_some() {
            c.delete()?;
        }
    }
    let gone = u32::from(rec.count);
    ag::set_agi(tp, agi, |a| {
        a.count.set(a.count.get().saturating_sub(gone));
        a.freecount.set(a.freecount.get().saturating_sub(gone - 1));
    });
    tp.count_inodes(-i64::from(gone), -i64::from(gone - 1));
    let mut stale = Vec::new();
    let exists = !rec.hole_bits();
    for i in (0..64u32).filter(|i| exists >> i & 1 != 0) {
        let ino = g.ino(agno, AgIno(rec.startino.0 + i));
        stale.extend(inodes.peek(ino).inspect(|x| x.set_stale()));
    }
    // Whole clusters are cancelled and freed, never the holes of a sparse chunk.
    let first = g.agino_agbno(rec.startino).0;
    let cb = g.cluster_blocks();
    let per_cluster = cb << g.inopblog;
    let mut run: Option<(u32, u32)> = None;
    for c in (0..g.chunk_blocks()).step_by(cb as usize) {
        let i = (c / cb * per_cluster).min(63);
        if exists >> i & 1 != 0 {
            let b = tp.read_buf(g.ag_daddr(agno, AgBlock(first + c)), cb * g.bb_per_block(), Kind::Inode)?;
            tp.invalidate(&b);
            tp.vol.groups[agno.0 as usize].freed_clusters.lock().insert(first + c);
            run = Some(run.map_or((first + c, cb), |(s, n)| (s, n + cb)));
        } else if let Some((s, n)) = run.take() {
            space::defer_free(tp, g.fsb(agno, AgBlock(s)), n, Owner::INODES);
        }
    }
    if let Some((s, n)) = run {
        space::defer_free(tp, g.fsb(agno, AgBlock(s)), n, Owner::INODES);
    }
    tp.on_durable(Box::new(move |durable| {
        if durable {
            stale.iter().for_each(|i| i.chunk_is_gone());
        }
    }));
    Ok(())
}
