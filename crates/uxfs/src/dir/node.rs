//! Node form: data blocks, a tree of leaves with the hashes, and blocks with the longest unused run of each data block.

use super::{Dir, Found, New, data, hash, leaf};
use crate::da::{Path, Source};
use crate::error::Result;
use crate::trans::Trans;
use std::sync::atomic::Ordering;
use uxfs_format::Kind;
use uxfs_format::bytes::{get32, put16, put32};
use uxfs_format::da;
use uxfs_format::dir::{self, FREE_HEADER, NULL_BEST, entry_size, free_max};

const FIRST: usize = 48;
const VALID: usize = 52;
const USED: usize = 56;

/// Hashes of a leaf that are so few that it is joined with a neighbour.
fn is_sparse(n: usize, size: usize) -> bool {
    8 * n < size * 37 / 100
}

impl Dir {
    fn free_base(&self) -> u32 {
        self.inode().vol.geo.dir_free_block().0
    }
    fn free_block(&self, index: u32) -> u32 {
        self.free_base() + index * self.fork.step
    }
    /// Blocks in the space of the free index.
    fn free_blocks(&self) -> u32 {
        let d = self.inode().data();
        (d.data.end().saturating_sub(u64::from(self.free_base())) as u32).div_ceil(self.fork.step)
    }
}

/// Finds the name: the path to its leaf, and the entry.
pub(super) fn find(d: &Dir, src: &mut impl Source, name: &[u8]) -> Result<(Path, Option<Found>)> {
    let want = hash(name);
    let mut p = d.fork.descend(src, want)?;
    loop {
        let (equal, more) = leaf::with_hash(&p.leaf.1.data(), want);
        if let Some(f) = leaf::find(d, src, &equal, name)? {
            return Ok((p, Some(f)));
        }
        // Equal hashes may go on in the next leaf.
        if more || !d.fork.next_leaf(src, &mut p)? {
            return Ok((p, None));
        }
    }
}

pub(super) fn lookup(d: &Dir, src: &mut impl Source, name: &[u8]) -> Result<Option<Found>> {
    Ok(find(d, src, name)?.1)
}

/// A data block with room for `size` bytes, if there is one.
fn find_room(d: &Dir, tp: &mut Trans, size: usize) -> Result<Option<u32>> {
    let max = free_max(d.size) as u32;
    let fits = |best: u16| best != NULL_BEST && usize::from(best) >= size;
    // Where the last name went there is mostly room for another. What is in memory must not decide where a volume is to be reproduced.
    let last = d.inode().last_room.load(Ordering::Relaxed);
    if !tp.vol.reproducible
        && let Some(b) = d.fork.read_if(tp, d.free_block(last / max), Kind::DirFree)?
        && bests(&b.data()).nth((last % max) as usize).is_some_and(fits)
    {
        return Ok(Some(last));
    }
    for i in 0..d.free_blocks() {
        let Some(b) = d.fork.read_if(tp, d.free_block(i), Kind::DirFree)? else { continue };
        if let Some(k) = bests(&b.data()).position(fits) {
            return Ok(Some(i * max + k as u32));
        }
    }
    Ok(None)
}

/// What an index block says of its data blocks.
fn bests(b: &[u8]) -> impl Iterator<Item = u16> {
    let n = get32(b, VALID) as usize;
    b.get(FREE_HEADER..FREE_HEADER + 2 * n).unwrap_or_default().chunks_exact(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

/// Notes the longest unused run of data block `db`; an index block that is not needed any more is freed.
fn set_best(d: &Dir, tp: &mut Trans, db: u32, best: u16) -> Result<()> {
    let max = free_max(d.size) as u32;
    let (index, k) = (db / max, (db % max) as usize);
    let block = d.free_block(index);
    let b = match d.fork.read_if(tp, block, Kind::DirFree)? {
        Some(b) => b,
        None if best == NULL_BEST => return Ok(()),
        None => {
            let b = d.fork.add(tp, block, Kind::DirFree)?;
            let vol = tp.vol.clone();
            {
                let mut bytes = b.data_mut();
                dir::init(&mut bytes, dir::FREE_MAGIC, b.daddr(), d.inode().ino, &vol.geo);
                put32(&mut bytes, FIRST, index * max);
            }
            tp.log_all(&b);
            b
        }
    };
    let used = tp.change_at(&b, |bytes| {
        let (mut valid, mut used) = (get32(bytes, VALID) as usize, get32(bytes, USED));
        let (counts, first, place) = ((valid, used), k.min(valid), |i| FREE_HEADER + 2 * i);
        while valid <= k && best != NULL_BEST {
            put16(bytes, place(valid), NULL_BEST);
            valid += 1;
        }
        let old = dir::free_best(bytes, k);
        match (old == NULL_BEST, best == NULL_BEST) {
            (true, false) => used += 1,
            (false, true) => used -= 1,
            _ => {}
        }
        put16(bytes, place(k), best);
        while valid > 0 && dir::free_best(bytes, valid - 1) == NULL_BEST {
            valid -= 1;
        }
        put32(bytes, VALID, valid as u32);
        put32(bytes, USED, used);
        let head = ((valid, used) != counts).then_some(0..FREE_HEADER);
        (used, head.into_iter().chain((best != old).then_some(place(first)..place(k + 1))))
    });
    if used == 0 {
        d.fork.drop_block(tp, block, &b)?;
    }
    Ok(())
}

pub(super) fn add(d: &Dir, tp: &mut Trans, new: New<'_>, way: Option<Path>) -> Result<()> {
    let size = entry_size(new.name.len());
    let db = match find_room(d, tp, size)? {
        Some(db) => db,
        None => {
            let hole = d.fork.first_hole(0) / d.fork.step;
            d.new_data(tp, hole)?;
            hole
        }
    };
    let b = d.read_data(tp, db)?;
    let Some(off) = data::enter(tp, &b, new) else {
        return Err(d.fork.corrupt("has less room in a block than its index says"));
    };
    d.inode().last_room.store(db, Ordering::Relaxed);
    let best = data::best(&b.data()) as u16;
    set_best(d, tp, db, best)?;
    insert_hash(d, tp, hash(new.name), d.addr(db, off), way)?;
    d.log(tp, 0)
}

/// Enters a hash into the leaf that `way` leads to, or is searched for.
fn insert_hash(d: &Dir, tp: &mut Trans, h: u32, addr: u32, mut way: Option<Path>) -> Result<()> {
    loop {
        let p = match way.take() {
            Some(p) if p.is_held(tp) => p,
            _ => d.fork.descend(tp, h)?,
        };
        let b = p.leaf.1.clone();
        if leaf::live_count(&b.data()) < da::node_max(d.size) {
            tp.change_at(&b, |bytes| ((), leaf::insert(bytes, h, addr)));
            let last = leaf::last_hash(&b.data());
            d.fork.fix_hash(tp, &p, last);
            return Ok(());
        }
        d.fork.split_leaf(tp, p, Kind::DirLeafN, da::DIR_LEAFN_MAGIC, |tp, left, right| {
            let all = leaf::live_of(&left.data());
            let (l, r) = all.split_at(all.len() / 2);
            leaf::put_live(&mut right.data_mut(), r);
            tp.change(left, |bytes| leaf::put_live(bytes, l));
            (l.last().map_or(0, |e| e.0), r.last().map_or(0, |e| e.0))
        })?;
    }
}

pub(super) fn remove(d: &Dir, tp: &mut Trans, name: &[u8], found: Found, way: Option<Path>) -> Result<()> {
    let p = match way {
        Some(p) if p.is_held(tp) => p,
        _ => find(d, tp, name)?.0,
    };
    let (db, best) = leaf::remove_entry(d, tp, found.addr, name)?;
    set_best(d, tp, db, best)?;
    let b = p.leaf.1.clone();
    tp.change_at(&b, |bytes| ((), leaf::take_out(bytes, hash(name), found.addr)));
    let (left, last) = {
        let bytes = b.data();
        (leaf::live_count(&bytes), leaf::last_hash(&bytes))
    };
    match left {
        1.. => {
            d.fork.fix_hash(tp, &p, last);
            if is_sparse(left, d.size) {
                join(d, tp, p)?;
            }
        }
        _ if !p.nodes.is_empty() => d.fork.remove_leaf(tp, p)?,
        _ => {}
    }
    d.log(tp, 0)
}

/// Moves a sparse leaf's hashes into a neighbour under the same parent, if they fit well.
fn join(d: &Dir, tp: &mut Trans, p: Path) -> Result<()> {
    let Some((_, parent, i)) = p.nodes.last().cloned() else { return Ok(()) };
    let n = da::count(&parent.data());
    for to in [i.checked_sub(1), Some(i + 1).filter(|k| *k < n)].into_iter().flatten() {
        let block = da::entry_value(&parent.data(), to);
        let b = d.fork.read(tp, block, Kind::DaAny)?;
        if (leaf::live_count(&b.data()) + leaf::live_count(&p.leaf.1.data())) * 8 > d.size * 3 / 4 {
            continue;
        }
        let (theirs, all) = (leaf::live_of(&b.data()), leaf::live_of(&p.leaf.1.data()));
        let joined = if to < i { [theirs, all].concat() } else { [all, theirs].concat() };
        tp.change(&b, |bytes| leaf::put_live(bytes, &joined));
        let last = joined.last().map_or(0, |e| e.0);
        let mut way = Path { nodes: p.nodes.clone(), leaf: (block, b) };
        if let Some(l) = way.nodes.last_mut() {
            l.2 = to;
        }
        d.fork.fix_hash(tp, &way, last);
        return d.fork.remove_leaf(tp, p);
    }
    Ok(())
}

/// Turns leaf form into node form: the leaf keeps its hashes, the bests move into an index block.
pub(super) fn from_leaf(d: &Dir, tp: &mut Trans) -> Result<()> {
    let (b, all, room) = leaf::take(d, tp)?;
    let f = d.fork.add(tp, d.free_base(), Kind::DirFree)?;
    let vol = tp.vol.clone();
    {
        let mut bytes = f.data_mut();
        dir::init(&mut bytes, dir::FREE_MAGIC, f.daddr(), d.inode().ino, &vol.geo);
        put32(&mut bytes, VALID, room.len() as u32);
        put32(&mut bytes, USED, room.iter().filter(|r| **r != NULL_BEST).count() as u32);
        room.iter().enumerate().for_each(|(i, r)| put16(&mut bytes, FREE_HEADER + 2 * i, *r));
    }
    tp.log_all(&f);
    {
        let mut bytes = b.data_mut();
        da::init(&mut bytes, da::DIR_LEAFN_MAGIC, b.daddr(), d.inode().ino, &vol.geo);
        leaf::put_live(&mut bytes, &all);
    }
    b.set_kind(Kind::DirLeafN);
    tp.log_all(&b);
    d.log(tp, 0)
}

/// The only leaf with its hashes, and the bests, if there is one leaf and one index block.
pub(super) fn single(d: &Dir, tp: &mut Trans) -> Result<Option<leaf::Whole>> {
    let root = d.fork.read(tp, d.fork.base, Kind::DaAny)?;
    if da::magic(&root.data()) != da::DIR_LEAFN_MAGIC || d.free_blocks() > 1 {
        return Ok(None);
    }
    let Some(f) = d.fork.read_if(tp, d.free_base(), Kind::DirFree)? else { return Ok(None) };
    let room = {
        let b = f.data();
        (0..get32(&b, VALID) as usize).map(|i| dir::free_best(&b, i)).collect()
    };
    let all = leaf::live_of(&root.data());
    Ok(Some((root, all, room)))
}

/// Frees the only index block.
pub(super) fn drop_free(d: &Dir, tp: &mut Trans) -> Result<()> {
    let b = d.fork.read(tp, d.free_base(), Kind::DirFree)?;
    d.fork.drop_block(tp, d.free_base(), &b)
}
