//! Exchanging what two files hold, extent by extent.
//!
//! An intent says what is left. Each link swaps one piece, says that the intent before is done, and bears the next one: so an
//! exchange that a crash interrupts is finished by recovery, from where it stood, and no piece is swapped twice.

use super::allocate::force_move;
use super::writeback::{next_link, write_back};
use super::{Files, How, MAX_SIZE, Place, Why, drop_pages, touch, tree_growth};
use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::trans::{IntentItem, Trans};
use crate::volume::Volume;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uxfs_format::FileBlock;
use uxfs_format::extent::Extent;
use uxfs_format::inode::{flag2, mode};
use uxfs_format::log::{ExchangeIntent, Intent, exchange_flag, item};
use uxfs_format::reservation::Reservation;
use uxfs_format::superblock::incompat::EXCHRANGE;

/// Exchanges `len` bytes of two files; with `None` everything behind the offsets, and the sizes.
///
/// # Locks
/// Both files' locks, claim of all that is written back and `ilock` exclusively, in the order of their numbers.
///
/// # Errors
/// [`Error::Unsupported`] on a volume without exchange-range; [`Error::Invalid`] for ranges that do not lie on blocks (their ends
/// may be those of both files), reach beyond a file, or overlap; `NoSpace`.
pub fn exchange(files: &Arc<Files>, places: [Place<'_>; 2], len: Option<u64>) -> Result<()> {
    let inodes = places.map(|p| p.inode);
    let vol = inodes[0].vol.clone();
    vol.check_writable()?;
    if !vol.geo.has(EXCHRANGE) {
        return Err(Error::Unsupported { what: "exchanging ranges on a volume without exchange-range".into() });
    }
    let same_file = inodes[0].ino == inodes[1].ino;
    let (one, other) = if inodes[0].ino <= inodes[1].ino { (0, 1) } else { (1, 0) };
    let states = inodes.map(|i| files.state(i));
    let _first = states[one].lock.all();
    let _second = (!same_file).then(|| states[other].lock.all());
    let bs = u64::from(vol.geo.blocksize);
    let sizes = [0, 1].map(|i: usize| states[i].size.load(Ordering::Acquire));
    let offsets = places.map(|p| p.offset);
    let bytes = match len {
        Some(n) => n,
        None if same_file => return Err(Error::Invalid { what: "a file cannot exchange its size with itself" }),
        None => sizes[0].saturating_sub(offsets[0]).max(sizes[1].saturating_sub(offsets[1])),
    };
    let ends = offsets.map(|o| o.checked_add(bytes));
    let [Some(end0), Some(end1)] = ends else { return Err(Error::TooLarge) };
    if len.is_some() && (end0 > sizes[0] || end1 > sizes[1]) || offsets[0] > sizes[0] || offsets[1] > sizes[1] {
        return Err(Error::Invalid { what: "the range reaches beyond the end of a file" });
    }
    let whole = len.is_none() || bytes.is_multiple_of(bs) || (end0, end1) == (sizes[0], sizes[1]);
    if !(offsets[0] | offsets[1]).is_multiple_of(bs) || !whole {
        return Err(Error::Invalid { what: "the range does not lie on blocks" });
    }
    if same_file && offsets[0] < end1 && offsets[1] < end0 {
        return Err(Error::Invalid { what: "the ranges overlap" });
    }
    let new_sizes = [0, 1].map(|i: usize| offsets[i] + sizes[1 - i].saturating_sub(offsets[1 - i]));
    if new_sizes.iter().any(|s| *s > MAX_SIZE) {
        return Err(Error::TooLarge);
    }
    if bytes == 0 {
        return Ok(());
    }
    for i in inodes {
        write_back(files, i, 0, u64::MAX, Why::Sync)?;
    }
    let x = ExchangeIntent {
        id: 0,
        inos: inodes.map(|i| i.ino),
        generations: inodes.map(|i| i.core().generation),
        offsets: offsets.map(|o| o / bs),
        blocks: bytes.div_ceil(bs),
        flags: 0,
        sizes: ExchangeIntent::NO_SIZES,
    };
    let _one = states[one].claims.all();
    let _other = (!same_file).then(|| states[other].claims.all());
    (0..2).for_each(|i| drop_pages(inodes[i], states[i], x.offsets[i], x.offsets[i] + x.blocks));
    let (begun, blocks) = (x.offsets, x.blocks);
    let mut tp = Trans::new(&vol, reservation(&vol), 4 * vol.res.write_blocks + growth(&x, inodes)?)?;
    let held = Inode::lock_all(inodes.to_vec());
    // Blocks that one of them shares may become the other's.
    let shared = inodes.iter().fold(0, |f, i| f | i.core().flags2 & flag2::REFLINK);
    inodes.iter().try_for_each(|i| map::load(i, Which::Data))?;
    for (i, size) in inodes.into_iter().zip(new_sizes) {
        {
            let mut d = i.data();
            d.core.flags2 |= shared;
            // Not by the intent: of one that says so the kernel's recovery gives each file the other's whole size, wherever they
            // are exchanged from, and what lies behind that is lost.
            if len.is_none() {
                d.core.size = size;
            }
        }
        i.log(&mut tp, 0)?;
    }
    let (it, x) = intend(&mut tp, x);
    next_link(&mut tp, inodes[0])?;
    inodes[1].log(&mut tp, 0)?;
    run(&mut tp, it, x, inodes)?;
    let seq = tp.commit()?;
    drop(held);
    (0..2).for_each(|i| drop_pages(inodes[i], states[i], begun[i], begun[i] + blocks));
    force_move(&vol, seq)?;
    for i in 0..2 {
        states[i].size.store(inodes[i].core().size, Ordering::Release);
        touch(inodes[i], states[i]);
        files.note_dirty(inodes[i], states[i], How::default());
    }
    Ok(())
}

/// Goes on with an exchange that a crash interrupted; nobody else knows the files yet.
///
/// # Errors
/// They cannot be what the intent means.
pub fn finish_exchange(
    it: Arc<IntentItem>,
    x: ExchangeIntent,
    inodes: [&Arc<Inode>; 2],
    begin: &dyn Fn(Reservation, u32) -> Result<Trans>,
) -> Result<()> {
    let vol = inodes[0].vol.clone();
    let most = MAX_SIZE / u64::from(vol.geo.blocksize);
    if x.flags & exchange_flag::ATTR != 0 || inodes.iter().any(|i| i.core().kind() != mode::REG) {
        return Err(Error::Unsupported { what: "recovering an exchange of other mappings than files' data".into() });
    }
    let sized = x.flags & exchange_flag::SIZES != 0;
    if x.offsets.iter().any(|o| o.checked_add(x.blocks).is_none_or(|e| e > most)) || sized && x.sizes.iter().any(|s| *s > MAX_SIZE) {
        return Err(vol.corrupt(inodes[0].ino, "was to exchange mappings that no file can have"));
    }
    let mut tp = begin(reservation(&vol), 4 * vol.res.write_blocks)?;
    let _held = Inode::lock_all(inodes.to_vec());
    for i in inodes {
        map::load(i, Which::Data)?;
        i.log(&mut tp, 0)?;
    }
    run(&mut tp, it, x, inodes)?;
    tp.commit().map(|_| ())
}

/// A link changes the mappings of two files.
fn reservation(vol: &Volume) -> Reservation {
    let (w, t) = (vol.res.write, vol.res.itruncate);
    Reservation { unit: w.unit + t.unit, count: w.count }
}

/// Most blocks that both extent trees may grow by on the way, so that it never ends half-way for want of one. Nothing changes the
/// mappings any more.
fn growth(x: &ExchangeIntent, inodes: [&Arc<Inode>; 2]) -> Result<u32> {
    let mut pieces = 0;
    for (inode, at) in inodes.iter().zip(x.offsets) {
        let _i = inode.lock_shared();
        map::load(inode, Which::Data)?;
        pieces += 2 + inode.data().data.extents.range(at..at + x.blocks).count() as u64;
    }
    Ok(inodes.iter().map(|i| tree_growth(i, pieces)).sum::<u64>() as u32)
}

/// Logs what is left.
fn intend(tp: &mut Trans, mut x: ExchangeIntent) -> (Arc<IntentItem>, ExchangeIntent) {
    let it = IntentItem::new(&tp.vol, Intent { kind: item::XMI, id: 0, extents: Vec::new() });
    x.id = it.intent.id;
    tp.log_regions(it.clone(), [x.build()].into());
    (it, x)
}

/// Swaps what is left, one piece a link. No intent is left without blocks: the kernel refuses a volume with one of those.
fn run(tp: &mut Trans, mut it: Arc<IntentItem>, mut x: ExchangeIntent, inodes: [&Arc<Inode>; 2]) -> Result<()> {
    let mut next = next_piece(&mut x, inodes);
    loop {
        tp.log_done(&it);
        let Some(pieces) = next else { break };
        swap(tp, inodes, x.offsets, pieces)?;
        advance(&mut x, pieces.1);
        next = next_piece(&mut x, inodes);
        if next.is_none() {
            break;
        }
        (it, x) = intend(tp, x);
        next_link(tp, inodes[0])?;
        inodes[1].log(tp, 0)?;
    }
    for (i, inode) in inodes.into_iter().enumerate() {
        let unshared = [exchange_flag::FIRST_UNSHARED, exchange_flag::SECOND_UNSHARED][i];
        {
            let mut d = inode.data();
            if x.flags & exchange_flag::SIZES != 0 {
                d.core.size = x.sizes[i];
            }
            if x.flags & unshared != 0 {
                d.core.flags2 &= !flag2::REFLINK;
            }
        }
        inode.log(tp, 0)?;
    }
    Ok(())
}

fn advance(x: &mut ExchangeIntent, blocks: u64) {
    x.offsets.iter_mut().for_each(|o| *o += blocks);
    x.blocks -= blocks;
}

/// What a file has at a block: an extent that begins there or nothing, and for how many blocks.
fn here(inode: &Inode, at: u64, most: u64) -> (Option<Extent>, u64) {
    let d = inode.data();
    match d.data.at(at) {
        Some(e) => (Some(e), (e.end() - at).min(most)),
        None => (None, d.data.extents.range(at..).next().map_or(most, |x| (*x.0 - at).min(most))),
    }
}

/// The next blocks that are to be swapped: whether either file has some, and how many. What needs no swap is passed by.
fn next_piece(x: &mut ExchangeIntent, inodes: [&Arc<Inode>; 2]) -> Option<([bool; 2], u64)> {
    while x.blocks > 0 {
        let (a, n) = here(inodes[0], x.offsets[0], x.blocks);
        let (b, n) = here(inodes[1], x.offsets[1], n);
        let unwanted = x.flags & exchange_flag::FIRST_WRITTEN != 0 && a.is_none_or(|e| e.unwritten);
        let same = match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => a.at(x.offsets[0]) == b.at(x.offsets[1]) && a.unwritten == b.unwritten,
            _ => false,
        };
        if !unwanted && !same {
            return Some(([a.is_some(), b.is_some()], n));
        }
        advance(x, n);
    }
    None
}

/// Gives each file what the other has.
fn swap(tp: &mut Trans, inodes: [&Arc<Inode>; 2], offsets: [u64; 2], (has, blocks): ([bool; 2], u64)) -> Result<()> {
    let mut taken = [None, None];
    for i in (0..2).filter(|i| has[*i]) {
        let (from, to) = (offsets[i], offsets[i] + blocks);
        let found = inodes[i].data().data.at(from).filter(|e| e.end() >= to);
        let Some(e) = found else { return Err(tp.vol.corrupt(inodes[i].ino, "lost a mapping that was to be exchanged")) };
        taken[i] = Some(map::unmap_piece(tp, inodes[i], Which::Data, &e, from, to)?);
    }
    for i in 0..2 {
        if let Some(e) = taken[1 - i] {
            map::map(tp, inodes[i], Which::Data, Extent { off: FileBlock(offsets[i]), ..e })?;
        }
    }
    Ok(())
}
