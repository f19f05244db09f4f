//! Block form: entries, then their hashes sorted, then a tail with counts, in one block.

use super::{Dir, Found, New, data, hash, leaf, shortform};
use crate::da::Source;
use crate::error::Result;
use crate::trans::{Buf, Trans};
use uxfs_format::Kind;
use uxfs_format::bytes::{get32, partition, put32};
use uxfs_format::dir::{self, entry_size};

const TAIL: usize = 8;

fn count(b: &[u8]) -> usize {
    get32(b, b.len() - TAIL) as usize
}

/// Hash and address of every live entry.
fn hashes(b: &[u8]) -> Vec<(u32, u32)> {
    let start = dir::data_end(b);
    let all = (0..count(b)).map(|i| (get32(b, start + 8 * i), get32(b, start + 8 * i + 4)));
    all.filter(|e| e.1 != 0).collect()
}

/// Writes hashes and tail. The bytes before them that were hashes before must be accounted for by the caller.
fn put_hashes(b: &mut [u8], all: &[(u32, u32)]) {
    let start = b.len() - TAIL - 8 * all.len();
    for (i, (h, a)) in all.iter().enumerate() {
        put32(b, start + 8 * i, *h);
        put32(b, start + 8 * i + 4, *a);
    }
    let at = b.len() - TAIL;
    put32(b, at, all.len() as u32);
    put32(b, at + 4, 0);
}

/// Address of hash `i`; 0 for a stale one.
fn address(b: &[u8], i: usize) -> u32 {
    get32(b, dir::data_end(b) + 8 * i + 4)
}

/// First hash that is not below `h`.
fn lower_bound(b: &[u8], h: u32) -> usize {
    let start = dir::data_end(b);
    partition(count(b), |i| get32(b, start + 8 * i) < h)
}

/// The hashes that are equal to `h`: their indices.
fn equal(b: &[u8], h: u32) -> impl Iterator<Item = usize> {
    let start = dir::data_end(b);
    (lower_bound(b, h)..count(b)).take_while(move |i| get32(b, start + 8 * i) == h)
}

pub(super) fn lookup(d: &Dir, src: &mut impl Source, name: &[u8]) -> Result<Option<Found>> {
    let b = d.read_block(src)?;
    let bytes = b.data();
    let end = dir::data_end(&bytes);
    for addr in equal(&bytes, hash(name)).map(|i| address(&bytes, i)).filter(|a| *a != 0) {
        let Some(e) = dir::data_entry(&bytes, addr as usize * 8, end) else {
            return Err(d.fork.corrupt("has a hash that leads to no entry"));
        };
        if e.name == name {
            return Ok(Some(Found { ino: e.ino, ftype: e.ftype, addr }));
        }
    }
    Ok(None)
}

/// Drops stale hashes, which the kernel leaves behind: their bytes become unused.
fn compact(b: &mut [u8]) {
    let live = hashes(b);
    let stale = count(b) - live.len();
    if stale == 0 {
        return;
    }
    let start = dir::data_end(b);
    put_hashes(b, &live);
    data::give(b, start, 8 * stale);
    dir::rebuild_bestfree(b);
}

/// Enters a name; false if the block is too full.
pub(super) fn add(d: &Dir, tp: &mut Trans, new: New<'_>) -> Result<bool> {
    let b = d.read_block(tp)?;
    let size = entry_size(new.name.len());
    let fits = tp.change(&b, |bytes| {
        compact(bytes);
        // Eight bytes at the end of the entries become the new hash.
        let end = dir::data_end(bytes);
        let Some(last) = dir::unused_before(bytes, end) else { return false };
        let rest = (last, end - 8 - last);
        let has_room = |(at, len)| len >= if at == last { size + 8 } else { size };
        if !(0..3).map(|i| dir::bestfree(bytes, i)).any(has_room) {
            return false;
        }
        let (h, n) = (hash(new.name), count(bytes));
        let i = lower_bound(bytes, h);
        bytes.copy_within(end..end + 8 * i, end - 8);
        let (slot, tail) = (end - 8 + 8 * i, bytes.len() - TAIL);
        put32(bytes, slot, h);
        put32(bytes, tail, n as u32 + 1);
        if rest.1 > 0 {
            dir::put_unused(bytes, rest.0, rest.1);
        }
        dir::update_bestfree(bytes, &[last], rest);
        let Some((at, _)) = data::put(bytes, new) else { return false };
        put32(bytes, slot + 4, at as u32 / 8);
        true
    });
    if fits {
        d.log(tp, 0)?;
    }
    Ok(fits)
}

/// Removes a name.
pub(super) fn remove(d: &Dir, tp: &mut Trans, name: &[u8], found: Found) -> Result<()> {
    let b = d.read_block(tp)?;
    tp.change(&b, |bytes| {
        compact(bytes);
        let start = dir::data_end(bytes);
        let Some(i) = equal(bytes, hash(name)).find(|i| address(bytes, *i) == found.addr) else { return };
        bytes.copy_within(start..start + 8 * i, start + 8);
        let (n, tail) = (count(bytes), bytes.len() - TAIL);
        put32(bytes, tail, n as u32 - 1);
        data::free(bytes, start, 8);
        data::free(bytes, found.addr as usize * 8, entry_size(name.len()));
    });
    d.log(tp, 0)
}

/// Turns a short form directory into a block.
pub(super) fn from_shortform(d: &Dir, tp: &mut Trans) -> Result<()> {
    let (parent, entries) = shortform::take(d)?;
    let b = d.fork.add(tp, 0, Kind::DirBlock)?;
    let vol = tp.vol.clone();
    {
        let mut bytes = b.data_mut();
        let size = bytes.len();
        dir::init(&mut bytes, dir::BLOCK_MAGIC, b.daddr(), d.inode().ino, &vol.geo);
        let mut all = Vec::new();
        let dots = [(b".".to_vec(), d.inode().ino, 2, 0x40), (b"..".to_vec(), parent, 2, 0x50)];
        let end = size - TAIL - 8 * (entries.len() + 2);
        let mut at = dir::DATA_HEADER;
        for (name, ino, ftype, offset) in dots.iter().chain(&entries) {
            // Offsets are kept, so that who reads the directory meanwhile goes on in the right place.
            if *offset > at {
                dir::put_unused(&mut bytes, at, *offset - at);
            }
            dir::put_entry(&mut bytes, *offset, *ino, name, *ftype);
            at = *offset + entry_size(name.len());
            all.push((hash(name), *offset as u32 / 8));
        }
        if at < end {
            dir::put_unused(&mut bytes, at, end - at);
        }
        all.sort_unstable();
        put_hashes(&mut bytes, &all);
        dir::rebuild_bestfree(&mut bytes);
    }
    tp.log_all(&b);
    d.set_size(1);
    d.log(tp, 0)
}

/// Takes entries and hashes out of the block, which becomes the first data block.
pub(super) fn split(d: &Dir, tp: &mut Trans) -> Result<Vec<(u32, u32)>> {
    let b = d.read_block(tp)?;
    b.set_kind(Kind::DirData);
    Ok(tp.change(&b, |bytes| {
        let all = hashes(bytes);
        let start = dir::data_end(bytes);
        put32(bytes, 0, dir::DATA_MAGIC);
        let len = bytes.len() - start;
        data::give(bytes, start, len);
        dir::rebuild_bestfree(bytes);
        all
    }))
}

/// Frees the only block.
pub(super) fn drop(d: &Dir, tp: &mut Trans, b: &Buf) -> Result<()> {
    d.fork.drop_block(tp, 0, b)
}

/// Goes back to block form if there is one data block and it has room for the hashes.
pub(super) fn from_leaf(d: &Dir, tp: &mut Trans) -> Result<()> {
    if d.data_blocks() != 1 {
        return Ok(());
    }
    let all = leaf::live(d, tp)?;
    let b = d.read_data(tp, 0)?;
    let need = TAIL + 8 * all.len();
    let room = match dir::data_items(&b.data()).flatten().last() {
        Some(dir::Item::Unused { at, len }) if at + len == d.size => len,
        _ => 0,
    };
    if room < need {
        return Ok(());
    }
    leaf::drop(d, tp)?;
    b.set_kind(Kind::DirBlock);
    tp.change(&b, |bytes| {
        let end = bytes.len() - need;
        let at = bytes.len() - room;
        put32(bytes, 0, dir::BLOCK_MAGIC);
        if at < end {
            dir::put_unused(bytes, at, end - at);
        }
        put_hashes(bytes, &all);
        dir::rebuild_bestfree(bytes);
    });
    d.log(tp, 0)?;
    shortform::from_block(d, tp)
}
