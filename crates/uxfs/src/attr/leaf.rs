//! Attribute leaves: taken apart, changed and put together again as a whole.

use super::{AttrName, Key, remote};
use crate::da::{DaFork, Path, Source};
use crate::error::Result;
use crate::inode::{Inode, Which};
use crate::trans::{Buf, Trans};
use std::sync::Arc;
use uxfs_format::attr::{LEAF_HEADER, Value, entry_at, entry_hash, flag, leaf_entry, local_size, remote_size};
use uxfs_format::bytes::{put16, put32};
use uxfs_format::{Kind, da};

/// A value, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnedValue {
    Local(Vec<u8>),
    Remote { block: u32, len: u32 },
}

/// An entry, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) flags: u8,
    pub(super) name: Vec<u8>,
    pub(super) value: OwnedValue,
}

impl Owned {
    /// An entry whose value lies in blocks of its own.
    pub(super) fn remote(name: AttrName<'_>, block: u32, len: u32) -> Owned {
        Owned { flags: name.namespace, name: name.name.to_vec(), value: OwnedValue::Remote { block, len } }
    }
    /// An entry with its value.
    pub(super) fn local(key: Key<'_>, value: &[u8]) -> Owned {
        Owned { flags: key.name.namespace | flag::LOCAL, name: key.name.name.to_vec(), value: OwnedValue::Local(value.to_vec()) }
    }
    pub(super) fn is(&self, key: Key<'_>) -> bool {
        self.name == key.name.name
            && self.flags & flag::NAMESPACE == key.name.namespace
            && key.parent.is_none_or(|v| self.local_value() == v)
    }
    /// True as the kernel has it while its value is written or freed: nobody sees it.
    pub(super) fn is_hidden(&self) -> bool {
        self.flags & flag::INCOMPLETE != 0
    }
    fn local_value(&self) -> &[u8] {
        match &self.value {
            OwnedValue::Local(v) => v,
            OwnedValue::Remote { .. } => &[],
        }
    }
    fn hash(&self) -> u32 {
        entry_hash(self.flags, &self.name, self.local_value())
    }
    pub(super) fn value_len(&self) -> usize {
        match &self.value {
            OwnedValue::Local(v) => v.len(),
            OwnedValue::Remote { len, .. } => *len as usize,
        }
    }
    pub(super) fn read(&self, inode: &Inode) -> Result<Vec<u8>> {
        match &self.value {
            OwnedValue::Local(v) => Ok(v.clone()),
            OwnedValue::Remote { block, len } => remote::read(inode, *block, *len as usize),
        }
    }
    fn size(&self) -> usize {
        match &self.value {
            OwnedValue::Local(v) => local_size(self.name.len(), v.len()),
            OwnedValue::Remote { .. } => remote_size(self.name.len()),
        }
    }
}

/// The entries of a leaf in order.
pub(super) fn entries(t: &DaFork, b: &Buf) -> Result<Vec<Owned>> {
    let d = b.data();
    if da::magic(&d) != da::ATTR_LEAF_MAGIC {
        return Err(t.corrupt("has something else where an attribute leaf should be"));
    }
    let own = |i| {
        let e = leaf_entry(&d, i).map_err(|w| t.corrupt(w))?;
        let value = match e.value {
            Value::Local(v) => OwnedValue::Local(v.to_vec()),
            Value::Remote { block, len } => OwnedValue::Remote { block, len },
        };
        Ok(Owned { flags: e.flags, name: e.name.to_vec(), value })
    };
    (0..da::count(&d)).map(own).collect()
}

fn total(all: &[Owned]) -> usize {
    LEAF_HEADER + all.iter().map(|e| 8 + e.size()).sum::<usize>()
}

/// Writes entries, which are sorted by hash, over a leaf; the shared header stays.
fn put(b: &mut [u8], all: &[Owned]) {
    b[56..].fill(0);
    let mut top = b.len();
    for (i, e) in all.iter().enumerate() {
        top -= e.size();
        let at = entry_at(i);
        put32(b, at, e.hash());
        put16(b, at + 4, top as u16);
        let n = e.name.len();
        match &e.value {
            OwnedValue::Local(v) => {
                b[at + 6] = e.flags | flag::LOCAL;
                put16(b, top, v.len() as u16);
                b[top + 2] = n as u8;
                b[top + 3..top + 3 + n].copy_from_slice(&e.name);
                b[top + 3 + n..top + 3 + n + v.len()].copy_from_slice(v);
            }
            OwnedValue::Remote { block, len } => {
                b[at + 6] = e.flags & !flag::LOCAL;
                put32(b, top, *block);
                put32(b, top + 4, *len);
                b[top + 8] = n as u8;
                b[top + 9..top + 9 + n].copy_from_slice(&e.name);
            }
        }
    }
    let base = entry_at(all.len());
    put16(b, 56, all.len() as u16);
    put16(b, 58, (b.len() - top) as u16);
    // A block of 64 KiB that is empty has its first used byte at 65536, which is written as 0.
    put16(b, 60, top as u16);
    put16(b, 64, base as u16);
    put16(b, 66, (top - base) as u16);
}

/// Makes the first leaf.
pub(super) fn create(t: &DaFork, tp: &mut Trans, mut all: Vec<Owned>) -> Result<()> {
    let b = t.add(tp, 0, Kind::AttrLeaf)?;
    all.sort_by_key(Owned::hash);
    write_new(t, tp, &b, &all);
    Ok(())
}

/// Writes a leaf anew, with these entries in the order of their hashes.
fn write_new(t: &DaFork, tp: &mut Trans, b: &Buf, all: &[Owned]) {
    {
        let mut d = b.data_mut();
        da::init(&mut d, da::ATTR_LEAF_MAGIC, b.daddr(), t.inode.ino, &tp.vol.geo);
        put(&mut d, all);
    }
    tp.log_all(b);
}

/// Makes an empty leaf of the root, whatever it was, and says of all other blocks of the tree that they are freed, in links. After a
/// crash the kernel reads the tree from the root on: it must lead to nothing that is gone already.
pub(super) fn empty(t: &DaFork, tp: &mut Trans) -> Result<()> {
    if let Some(root) = t.new_buf(tp, 0, Kind::AttrLeaf) {
        write_new(t, tp, &root, &[]);
    }
    invalidate_all(t, tp)
}

/// Finds an attribute that is `hidden`, or one that is not: the path to its leaf, and the entry.
pub(super) fn find(t: &DaFork, src: &mut impl Source, key: Key<'_>, hidden: bool) -> Result<Option<(Path, Owned)>> {
    let want = key.hash();
    let mut p = t.descend(src, want)?;
    loop {
        let all = entries(t, &p.leaf.1)?;
        let past = all.last().is_some_and(|e| e.hash() > want);
        let is = |e: &Owned| e.is(key) && e.is_hidden() == hidden;
        if let Some(e) = all.into_iter().find(is) {
            return Ok(Some((p, e)));
        }
        if past || !t.next_leaf(src, &mut p)? {
            return Ok(None);
        }
    }
}

/// Inserts an entry; a leaf that is too full for it is split, twice where the entry needs one of its own.
pub(super) fn insert(t: &DaFork, tp: &mut Trans, new: Owned) -> Result<()> {
    let h = new.hash();
    loop {
        let p = t.descend(tp, h)?;
        let b = p.leaf.1.clone();
        let mut all = entries(t, &b)?;
        let i = all.partition_point(|e| e.hash() < h);
        all.insert(i, new.clone());
        let room = b.data().len();
        if total(&all) <= room {
            tp.change(&b, |d| put(d, &all));
            let last = all.last().map_or(0, Owned::hash);
            t.fix_hash(tp, &p, last);
            return Ok(());
        }
        // As even as can be. Where no cut makes both halves fit, the old entries are cut where the new one belongs: it is the first of
        // the right half then, or the last of the left, and the next cut gives it a leaf of its own.
        let larger_half = |cut: &usize| total(&all[..*cut]).max(total(&all[*cut..]));
        let cut = (1..all.len()).min_by_key(larger_half).unwrap_or(1);
        let fits = larger_half(&cut) <= room;
        let cut = if fits { cut } else { i };
        if !fits {
            all.remove(i);
            if !(1..all.len()).contains(&cut) {
                return Err(t.corrupt("has a leaf of attributes that overlap"));
            }
        }
        t.split_leaf(tp, p, Kind::AttrLeaf, da::ATTR_LEAF_MAGIC, |tp, left, right| {
            put(&mut right.data_mut(), &all[cut..]);
            tp.change(left, |d| put(d, &all[..cut]));
            (all[cut - 1].hash(), all.last().map_or(0, Owned::hash))
        })?;
        if fits {
            return Ok(());
        }
    }
}

/// Takes an entry out of its leaf, which is freed if it is empty then and not the only one.
pub(super) fn take_out(t: &DaFork, tp: &mut Trans, p: Path, gone: &Owned) -> Result<()> {
    let mut all = entries(t, &p.leaf.1)?;
    all.retain(|e| e != gone);
    tp.change(&p.leaf.1, |d| put(d, &all));
    match all.last() {
        Some(e) => t.fix_hash(tp, &p, e.hash()),
        None if !p.nodes.is_empty() => t.remove_leaf(tp, p)?,
        None => {}
    }
    Ok(())
}

/// Sets an attribute whose value lies in the leaf.
pub(super) fn set_local(t: &DaFork, tp: &mut Trans, key: Key<'_>, value: &[u8]) -> Result<()> {
    let new = Owned::local(key, value);
    let Some((p, old)) = find(t, tp, key, false)? else { return insert(t, tp, new) };
    // In its own leaf the new value takes the old one's place, if it fits.
    let mut all = entries(t, &p.leaf.1)?;
    if let Some(e) = all.iter_mut().find(|e| **e == old) {
        *e = new.clone();
    }
    if total(&all) <= p.leaf.1.data().len() {
        tp.change(&p.leaf.1, |d| put(d, &all));
    } else {
        take_out(t, tp, p, &old)?;
        insert(t, tp, new)?;
    }
    remote::free(tp, &t.inode.clone(), &old)
}

/// Says of all blocks of the tree but the root that they are freed. Remote values were never logged.
fn invalidate_all(t: &DaFork, tp: &mut Trans) -> Result<()> {
    let inode: Arc<Inode> = t.inode.clone();
    let blocks: Vec<u64> = {
        let d = inode.data();
        d.fork(Which::Attr).extents.values().flat_map(|e| e.off.0.max(1)..e.end()).collect()
    };
    let mut in_link = 0;
    for off in blocks {
        let Some(e) = inode.data().attr.at(off) else { continue };
        let g = &tp.vol.geo;
        let (at, bbs) = (g.fsb_daddr(e.at(off)), g.bb_per_block());
        // What is not home yet is in the cache. Values never are, and what the device has in place of other blocks is what they are.
        if !tp.vol.bufs.has(&[(at, bbs)]) {
            let mut raw = vec![0; g.blocksize as usize];
            uxfs_sync::blocking(|| tp.vol.dev.read(at.0 * 512, &mut raw))?;
            if Kind::sniff(&raw) == Some(Kind::AttrRemote) {
                continue;
            }
        }
        if let Ok(b) = tp.read_buf(at, bbs, Kind::DaAny) {
            tp.invalidate(&b);
        }
        in_link += 1;
        if in_link == 16 {
            in_link = 0;
            tp.roll()?;
        }
    }
    Ok(())
}
