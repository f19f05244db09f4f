//! Leaf form: data blocks, and one leaf with all hashes and the longest unused run of each data block.

use super::{Dir, Found, New, block, data, hash, node};
use crate::da::Source;
use crate::error::Result;
use crate::trans::{Buf, Trans};
use std::ops::Range;
use uxfs_format::Kind;
use uxfs_format::bytes::{get16, get32, put16, put32};
use uxfs_format::da::{self, NODE_HEADER};
use uxfs_format::dir::{NULL_BEST, data_entry, entry_size};

const TAIL: usize = 4;

/// Hashes of live entries.
pub(super) fn live_of(b: &[u8]) -> Vec<(u32, u32)> {
    (0..da::count(b)).map(|i| (da::entry_hash(b, i), da::entry_value(b, i))).filter(|e| e.1 != 0).collect()
}

/// How many there are.
pub(super) fn live_count(b: &[u8]) -> usize {
    da::count(b).saturating_sub(usize::from(da::node_level(b)))
}

/// Addresses of live entries with hash `h`, and whether entries with higher ones follow in this leaf.
pub(super) fn with_hash(b: &[u8], h: u32) -> (Vec<u32>, bool) {
    let (from, n) = (da::lower_bound(b, h), da::count(b));
    let equal = (from..n).take_while(|i| da::entry_hash(b, *i) == h).map(|i| da::entry_value(b, i)).filter(|a| *a != 0).collect();
    (equal, n > 0 && da::entry_hash(b, n - 1) > h)
}

/// Hash of the last live entry; 0 for none.
pub(super) fn last_hash(b: &[u8]) -> u32 {
    (0..da::count(b)).rev().find(|i| da::entry_value(b, *i) != 0).map_or(0, |i| da::entry_hash(b, i))
}

/// Where entry `i` lies.
fn place(i: usize) -> usize {
    NODE_HEADER + 8 * i
}

/// Enters a hash, for which there is room; returns what was touched.
pub(super) fn insert(b: &mut [u8], h: u32, addr: u32) -> [Range<usize>; 2] {
    let first = drop_stale(b);
    let (at, n) = (da::lower_bound(b, h), da::count(b));
    b.copy_within(place(at)..place(n), place(at + 1));
    da::set_entry(b, at, h, addr);
    da::set_count(b, n + 1);
    [0..NODE_HEADER, place(first.min(at))..place(n + 1)]
}

/// Takes the hash of the entry at `addr` out; returns what was touched.
pub(super) fn take_out(b: &mut [u8], h: u32, addr: u32) -> [Range<usize>; 2] {
    let first = drop_stale(b);
    let n = da::count(b);
    let at = (da::lower_bound(b, h)..n).find(|i| da::entry_value(b, *i) == addr);
    if let Some(at) = at {
        b.copy_within(place(at + 1)..place(n), place(at));
        da::set_count(b, n - 1);
    }
    [0..NODE_HEADER, place(first.min(at.unwrap_or(n)))..place(n)]
}

/// Other writers leave stale entries behind; we do not. Returns the first entry that was touched.
fn drop_stale(b: &mut [u8]) -> usize {
    if da::node_level(b) == 0 {
        return usize::MAX;
    }
    let all = live_of(b);
    put_live(b, &all);
    0
}

/// Writes hashes; none of them is stale.
pub(super) fn put_live(b: &mut [u8], all: &[(u32, u32)]) {
    for (i, (h, a)) in all.iter().enumerate() {
        da::set_entry(b, i, *h, *a);
    }
    da::set_count(b, all.len());
    da::set_node_level(b, 0);
}

fn bests(b: &[u8]) -> Vec<u16> {
    let n = get32(b, b.len() - TAIL) as usize;
    let at = b.len() - TAIL - 2 * n;
    (0..n).map(|i| get16(b, at + 2 * i)).collect()
}

/// Writes the bests, for which there is room; returns what was touched.
fn put_bests(b: &mut [u8], v: &[u16]) -> Range<usize> {
    let tail = b.len() - TAIL;
    let at = tail - 2 * v.len();
    v.iter().enumerate().for_each(|(i, x)| put16(b, at + 2 * i, *x));
    put32(b, tail, v.len() as u32);
    at..b.len()
}

fn fits(size: usize, hashes: usize, bests: usize) -> bool {
    NODE_HEADER + 8 * hashes + 2 * bests + TAIL <= size
}

fn read(d: &Dir, src: &mut impl Source) -> Result<Buf> {
    d.fork.read(src, d.fork.base, Kind::DirLeaf1)
}

/// Looks a name up at addresses whose entries have its hash, from any form with data blocks.
pub(super) fn find(d: &Dir, src: &mut impl Source, equal: &[u32], name: &[u8]) -> Result<Option<Found>> {
    for addr in equal {
        let (b, off) = d.entry_at(src, *addr)?;
        let bytes = b.data();
        if let Some(e) = data_entry(&bytes, off, d.size)
            && e.name == name
        {
            return Ok(Some(Found { ino: e.ino, ftype: e.ftype, addr: *addr }));
        }
    }
    Ok(None)
}

pub(super) fn lookup(d: &Dir, src: &mut impl Source, name: &[u8]) -> Result<Option<Found>> {
    let b = read(d, src)?;
    let (equal, _) = with_hash(&b.data(), hash(name));
    find(d, src, &equal, name)
}

pub(super) fn live(d: &Dir, tp: &mut Trans) -> Result<Vec<(u32, u32)>> {
    Ok(live_of(&read(d, tp)?.data()))
}

/// Enters a name; false if the leaf is too full.
pub(super) fn add(d: &Dir, tp: &mut Trans, new: New<'_>) -> Result<bool> {
    let b = read(d, tp)?;
    let (hashes, mut room) = {
        let bytes = b.data();
        (live_count(&bytes), bests(&bytes))
    };
    let size = entry_size(new.name.len());
    let mut db = room.iter().position(|r| *r != NULL_BEST && usize::from(*r) >= size);
    if db.is_none() {
        let at = room.iter().position(|r| *r == NULL_BEST).unwrap_or(room.len());
        if !fits(d.size, hashes + 1, room.len().max(at + 1)) {
            return Ok(false);
        }
        d.new_data(tp, at as u32)?;
        room.resize(room.len().max(at + 1), NULL_BEST);
        db = Some(at);
    } else if !fits(d.size, hashes + 1, room.len()) {
        return Ok(false);
    }
    let db = db.unwrap_or(0);
    let block = d.read_data(tp, db as u32)?;
    let Some(off) = data::enter(tp, &block, new) else {
        return Err(d.fork.corrupt("has less room in a block than its leaf says"));
    };
    room[db] = data::best(&block.data()) as u16;
    tp.change_at(&b, |bytes| {
        let [head, hashes] = insert(bytes, hash(new.name), d.addr(db as u32, off));
        ((), [head, hashes, put_bests(bytes, &room)])
    });
    d.log(tp, 0)?;
    Ok(true)
}

/// Removes a name; a data block that is empty then is freed.
pub(super) fn remove(d: &Dir, tp: &mut Trans, name: &[u8], found: Found) -> Result<()> {
    let b = read(d, tp)?;
    let mut room = bests(&b.data());
    let (db, best) = remove_entry(d, tp, found.addr, name)?;
    if let Some(r) = room.get_mut(db as usize) {
        *r = best;
    }
    while room.last() == Some(&NULL_BEST) {
        room.pop();
    }
    tp.change_at(&b, |bytes| {
        let [head, hashes] = take_out(bytes, hash(name), found.addr);
        ((), [head, hashes, put_bests(bytes, &room)])
    });
    d.log(tp, 0)
}

/// Takes an entry out of its data block, and frees that if it is empty. Returns the block and its longest unused run.
pub(super) fn remove_entry(d: &Dir, tp: &mut Trans, addr: u32, name: &[u8]) -> Result<(u32, u16)> {
    let (b, off) = d.entry_at(tp, addr)?;
    let db = (u64::from(addr) * 8 / d.size as u64) as u32;
    tp.change_at(&b, |bytes| ((), data::free(bytes, off, entry_size(name.len()))));
    if db > 0 && data::is_empty(&b.data()) {
        d.fork.drop_block(tp, d.data_block(db), &b)?;
        d.set_size(u64::from(d.data_blocks()));
        return Ok((db, NULL_BEST));
    }
    let best = data::best(&b.data()) as u16;
    Ok((db, best))
}

/// Turns block form into leaf form.
pub(super) fn from_block(d: &Dir, tp: &mut Trans) -> Result<()> {
    let leaf = d.fork.add(tp, d.fork.base, Kind::DirLeaf1)?;
    let all = block::split(d, tp)?;
    let best = data::best(&d.read_data(tp, 0)?.data()) as u16;
    write(d, tp, &leaf, &all, &[best]);
    d.log(tp, 0)
}

fn write(d: &Dir, tp: &mut Trans, leaf: &Buf, all: &[(u32, u32)], room: &[u16]) {
    let vol = tp.vol.clone();
    {
        let mut bytes = leaf.data_mut();
        da::init(&mut bytes, da::DIR_LEAF1_MAGIC, leaf.daddr(), d.inode().ino, &vol.geo);
        put_live(&mut bytes, all);
        put_bests(&mut bytes, room);
    }
    leaf.set_kind(Kind::DirLeaf1);
    tp.log_all(leaf);
}

/// Frees the leaf.
pub(super) fn drop(d: &Dir, tp: &mut Trans) -> Result<()> {
    let b = read(d, tp)?;
    d.fork.drop_block(tp, d.fork.base, &b)
}

/// A leaf, its hashes, and the bests of all data blocks.
pub(super) type Whole = (Buf, Vec<(u32, u32)>, Vec<u16>);

/// What node form takes over: the leaf's buffer, its hashes and bests.
pub(super) fn take(d: &Dir, tp: &mut Trans) -> Result<Whole> {
    let b = read(d, tp)?;
    let (all, room) = {
        let bytes = b.data();
        (live_of(&bytes), bests(&bytes))
    };
    Ok((b, all, room))
}

/// Goes back to leaf form if one leaf is left and everything fits into it.
pub(super) fn from_node(d: &Dir, tp: &mut Trans) -> Result<()> {
    let Some((leaf, all, room)) = node::single(d, tp)? else { return Ok(()) };
    if !fits(d.size, all.len(), room.len()) {
        return Ok(());
    }
    node::drop_free(d, tp)?;
    write(d, tp, &leaf, &all, &room);
    d.log(tp, 0)?;
    block::from_leaf(d, tp)
}
