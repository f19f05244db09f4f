//! Short form: the entries lie in the inode.

use super::{Dir, Entry, Found, New, block, data};
use crate::error::{Error, Result};
use crate::inode::{Fork, Inode, InodeData};
use crate::trans::Trans;
use std::sync::Arc;
use uxfs_format::dir::{self, ShortForm, entry_size};
use uxfs_format::inode::Format;
use uxfs_format::log::ino_field;
use uxfs_format::{Ino, extent};

/// One entry, taken out of the bytes.
#[derive(Clone)]
struct Owned {
    name: Vec<u8>,
    offset: u16,
    ftype: u8,
    ino: Ino,
}

/// Offset of the first entry in block form, behind `.` and `..`.
const FIRST: u16 = 0x60;
/// What a data block keeps for its leaf: a short form must fit into one block when it grows.
const TAIL: usize = 8;

fn read(d: &InodeData) -> std::result::Result<(Ino, Vec<Owned>), &'static str> {
    let sf = ShortForm(&d.data.local);
    let own = |e: dir::SfEntry<'_>| Owned { name: e.name.to_vec(), offset: e.offset, ftype: e.ftype, ino: e.ino };
    let entries: std::result::Result<Vec<Owned>, _> = sf.entries().map(|e| e.map(own)).collect();
    Ok((sf.parent(), entries?))
}

fn build(parent: Ino, entries: &[Owned]) -> Vec<u8> {
    let big = |i: Ino| i.0 > u64::from(u32::MAX);
    let wide = entries.iter().filter(|e| big(e.ino)).count() + usize::from(big(parent));
    let put = |out: &mut Vec<u8>, i: Ino| if wide > 0 { out.extend(i.0.to_be_bytes()) } else { out.extend((i.0 as u32).to_be_bytes()) };
    let mut out = vec![entries.len() as u8, wide as u8];
    put(&mut out, parent);
    for e in entries {
        out.push(e.name.len() as u8);
        out.extend(e.offset.to_be_bytes());
        out.extend(&e.name);
        out.push(e.ftype);
        put(&mut out, e.ino);
    }
    out
}

pub(super) fn init(d: &mut InodeData, parent: Ino) {
    d.core.format = Format::Local;
    d.data = Fork { local: build(parent, &[]), loaded: true, ..Fork::default() };
    d.core.size = d.data.local.len() as u64;
}

pub(super) fn lookup(d: &InodeData, name: &[u8]) -> Option<Found> {
    let sf = ShortForm(&d.data.local);
    if name == b".." {
        return Some(Found { ino: sf.parent(), ftype: 2, addr: 0 });
    }
    sf.entries().flatten().find(|e| e.name == name).map(|e| Found { ino: e.ino, ftype: e.ftype, addr: 0 })
}

/// Puts new bytes into the inode, if they fit.
fn store(d: &Dir, tp: &mut Trans, bytes: Vec<u8>) -> Result<bool> {
    {
        let mut data = d.inode().data();
        if bytes.len() > data.core.data_fork_size(&tp.vol.geo) {
            return Ok(false);
        }
        data.core.size = bytes.len() as u64;
        data.data.local = bytes;
    }
    d.log(tp, ino_field::DDATA)?;
    Ok(true)
}

/// Bytes that the entries take in block form, with their leaf entries; `.` and `..` included.
fn block_bytes(entries: &[Owned]) -> usize {
    let each: usize = entries.iter().map(|e| entry_size(e.name.len()) + 8).sum();
    dir::DATA_HEADER + 2 * (16 + 8) + each + TAIL
}

pub(super) fn add(d: &Dir, tp: &mut Trans, new: New<'_>) -> Result<bool> {
    let (parent, mut entries) = read(&d.inode().data()).map_err(|w| d.fork.corrupt(w))?;
    let size = entry_size(new.name.len()) as u16;
    // The first gap in the offsets that the entry would fit into in block form, else behind the last.
    let mut at = FIRST;
    let mut place = entries.len();
    for (i, e) in entries.iter().enumerate() {
        if e.offset >= at + size {
            place = i;
            break;
        }
        at = e.offset + entry_size(e.name.len()) as u16;
    }
    if entries.len() >= 255 {
        return Ok(false);
    }
    entries.insert(place, Owned { name: new.name.to_vec(), offset: at, ftype: new.ftype, ino: new.ino });
    let end = entries.last().map_or(0, |e| usize::from(e.offset) + entry_size(e.name.len()));
    if block_bytes(&entries) > d.size || end + (entries.len() + 2) * 8 + TAIL > d.size {
        return Ok(false);
    }
    store(d, tp, build(parent, &entries))
}

pub(super) fn remove(d: &Dir, tp: &mut Trans, name: &[u8]) -> Result<()> {
    let (parent, mut entries) = read(&d.inode().data()).map_err(|w| d.fork.corrupt(w))?;
    let i = entries.iter().position(|e| e.name == name).ok_or(Error::NotFound)?;
    entries.remove(i);
    store(d, tp, build(parent, &entries)).map(|_| ())
}

/// Returns false if the inode number is too wide for what room there is.
pub(super) fn replace(d: &Dir, tp: &mut Trans, name: &[u8], ino: Ino, ftype: u8) -> Result<bool> {
    let (mut parent, mut entries) = read(&d.inode().data()).map_err(|w| d.fork.corrupt(w))?;
    if name == b".." {
        parent = ino;
    } else {
        let e = entries.iter_mut().find(|e| e.name == name).ok_or(Error::NotFound)?;
        (e.ino, e.ftype) = (ino, ftype);
    }
    store(d, tp, build(parent, &entries))
}

pub(super) fn list(inode: &Arc<Inode>, from: u64, emit: &mut dyn FnMut(Entry) -> bool) -> Result<()> {
    let (parent, entries) = read(&inode.data()).map_err(|w| inode.vol.corrupt(inode.ino, w))?;
    let dot = |name: &[u8], ino, offset: u16| Owned { name: name.to_vec(), offset, ftype: 2, ino };
    let all = [dot(b".", inode.ino, 0x40), dot(b"..", parent, 0x50)].into_iter().chain(entries);
    for e in all {
        let at = u64::from(e.offset) / 8;
        if at < from {
            continue;
        }
        if !emit(Entry { name: e.name, ino: e.ino, ftype: e.ftype, next: at + 1 }) {
            break;
        }
    }
    Ok(())
}

/// Name, inode, type and offset of an entry.
type Placed = (Vec<u8>, Ino, u8, usize);

/// Entries for a new block: parent, and what the inode held, which is emptied.
pub(super) fn take(d: &Dir) -> Result<(Ino, Vec<Placed>)> {
    let mut data = d.inode().data();
    let (parent, entries) = read(&data).map_err(|w| d.fork.corrupt(w))?;
    data.data = Fork { loaded: true, ..Fork::default() };
    data.core.format = Format::Extents;
    data.core.nextents = 0;
    Ok((parent, entries.into_iter().map(|e| (e.name, e.ino, e.ftype, usize::from(e.offset))).collect()))
}

/// Goes back to short form if everything fits into the inode.
pub(super) fn from_block(d: &Dir, tp: &mut Trans) -> Result<()> {
    let b = d.read_block(tp)?;
    let (parent, entries) = {
        let bytes = b.data();
        let mut parent = d.inode().ino;
        let mut entries = Vec::new();
        for e in data::entries(d, &bytes)? {
            match e.name {
                b"." => {}
                b".." => parent = e.ino,
                _ => entries.push(Owned { name: e.name.to_vec(), offset: e.at as u16, ftype: e.ftype, ino: e.ino }),
            }
        }
        (parent, entries)
    };
    let bytes = build(parent, &entries);
    let room = d.inode().data().core.data_fork_size(&tp.vol.geo);
    if bytes.len() > room || entries.len() > 255 || bytes.len() > room.max(extent::EXTENT_SIZE) {
        return Ok(());
    }
    block::drop(d, tp, &b)?;
    {
        let mut data = d.inode().data();
        data.core.format = Format::Local;
        data.core.size = bytes.len() as u64;
        data.data = Fork { local: bytes, loaded: true, ..Fork::default() };
    }
    d.log(tp, ino_field::DDATA)
}
