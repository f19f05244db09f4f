//! Write-back: dirty pages get blocks, go to the device, and become part of the file.

use super::memory::PIECE;
use super::pages::Run;
use super::{FileState, Files, MAX_SIZE, Told, Why, staged};
use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::space::{self, Owner, Want};
use crate::trans::Trans;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use uxfs_device::{Class, WriteRequest};
use uxfs_format::extent::{Extent, MAX_EXTENT};
use uxfs_format::inode::{flag, flag2};
use uxfs_format::{FileBlock, FsBlock};
use uxfs_journal::{Hole, hole};
use uxfs_sync::explored::wait;
use uxfs_sync::{blocking, lock_alone, lock_shared};

/// Bytes that one run takes, where somebody waits for it and where nobody does: what is on its way at once delays who reads.
const LONGEST_RUN: u64 = 4 << 20;
const LONGEST_QUIET_RUN: u64 = 1 << 20;
/// Runs that are written together.
const MOST_RUNS: usize = 32;

/// Where a part of a run goes.
enum Target {
    /// Into blocks that are mapped; `unwritten` if they are to be converted.
    Mapped { start: FsBlock, unwritten: bool },
    /// Into new blocks that take the place of shared ones.
    Cow { start: FsBlock },
}

struct Part {
    off: u64,
    len: u32,
    target: Target,
}

/// What is being written back of a file.
///
/// 1. Who looks for dirty pages and finds a place for them does so alone, so that they lie in the file's order.
/// 2. Pages on their way are nobody else's to write, until they are part of the file.
/// 3. Who moves or takes blocks claims all of the file: then nothing is on its way.
#[derive(Default)]
pub struct Claims {
    placing: Mutex<()>,
    gate: RwLock<()>,
    on_way: Mutex<OnWay>,
    /// Something is not on its way any more.
    ended: Condvar,
    /// How much is on its way; raised before its pages cease to be dirty.
    any: AtomicUsize,
}

/// Batches on their way, by when they began: the first and the last block, and what follows it.
#[derive(Default)]
struct OnWay {
    begun: u64,
    batches: BTreeMap<u64, Range<u64>>,
}

/// A batch that is on its way.
struct Claim<'a> {
    claims: &'a Claims,
    number: u64,
    _gate: (Option<RwLockReadGuard<'a, ()>>, Option<RwLockWriteGuard<'a, ()>>),
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.any.fetch_sub(1, Ordering::AcqRel);
        let mut o = self.claims.on_way.lock();
        o.batches.remove(&self.number);
        self.claims.ended.notify_all();
    }
}

impl Claims {
    /// Claims all of a file: for what moves or takes its blocks.
    pub fn all(&self) -> RwLockWriteGuard<'_, ()> {
        lock_alone(&self.gate)
    }

    /// True if something is on its way.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire) > 0
    }

    /// Claims what is about to be found of some blocks, alone or beside others.
    fn begin(&self, blocks: Range<u64>, alone: bool) -> Claim<'_> {
        let gate = if alone { (None, Some(self.all())) } else { (Some(lock_shared(&self.gate)), None) };
        let mut o = self.on_way.lock();
        o.begun += 1;
        let number = o.begun;
        o.batches.insert(number, blocks);
        self.any.fetch_add(1, Ordering::AcqRel);
        Claim { claims: self, number, _gate: gate }
    }

    /// It came to these blocks.
    fn narrow(&self, claim: &Claim<'_>, blocks: Range<u64>) {
        self.on_way.lock().batches.insert(claim.number, blocks);
    }

    /// Waits for what is on its way now of some blocks.
    fn settle(&self, blocks: Range<u64>) {
        let mut o = self.on_way.lock();
        let last = o.begun;
        while o.batches.range(..=last).any(|(_, b)| b.start < blocks.end && blocks.start < b.end) {
            wait(&self.ended, &mut o);
        }
    }
}

/// True if a write-back of some blocks may map others.
fn maps_more(inode: &Inode) -> bool {
    let d = inode.data();
    d.core.flags2 & flag2::REFLINK != 0 || d.core.flags & flag::EXTSIZE != 0
}

/// Writes dirty data of `from..to` (bytes) back, as urgently as `why` asks for, and waits for it and, if somebody waits, for what others
/// write of it; afterwards it is part of the file, but not yet durable.
///
/// # Locks
/// A claim of what it writes, then `ilock` for moments. The caller holds no `ilock` and no claim.
///
/// # Errors
/// The device's; `NoSpace` if trees could not grow. The error is told at fsync, too.
pub fn write_back(files: &Arc<Files>, inode: &Arc<Inode>, from: u64, to: u64, why: Why) -> Result<()> {
    write_some(files, inode, from, to, why, u64::MAX).map(|_| ())
}

/// The same, of `most` blocks or somewhat more. Returns how many it wrote.
pub(super) fn write_some(files: &Arc<Files>, inode: &Arc<Inode>, from: u64, to: u64, why: Why, most: u64) -> Result<u64> {
    let st = files.state(inode);
    let bs = u64::from(inode.vol.geo.blocksize);
    let (first, end) = (from / bs, to.div_ceil(bs).max(to / bs));
    let (mut written, mut skipped) = (0, false);
    // What was on its way, and dirty again, is taken in a second turn, unless somebody else has done so by then.
    for _ in 0..2 {
        let mut at = first;
        while written < most
            && let Some((next, n)) = write_next(files, inode, st, at..end, why, &mut skipped)?
        {
            (at, written) = (next, written + n);
        }
        if why.is_awaited() {
            st.claims.settle(first..end);
        }
        if !why.is_awaited() || !std::mem::take(&mut skipped) {
            break;
        }
    }
    if from == 0 && to == u64::MAX && written < most {
        log_times(inode, st)?;
        files.note_clean(inode, || st.pages.dirty() == 0 && !st.claims.any());
    }
    Ok(written)
}

/// Writes the next runs of dirty blocks, those that lie apart together. Returns where they ended, and how many blocks they were.
fn write_next(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    st: &FileState,
    blocks: Range<u64>,
    why: Why,
    skipped: &mut bool,
) -> Result<Option<(u64, u64)>> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let most = if why.is_awaited() { LONGEST_RUN } else { LONGEST_QUIET_RUN } / bs;
    if st.pages.next_dirty(blocks.start, blocks.end).is_none() {
        return Ok(None);
    }
    let placing = uxfs_sync::lock(&st.claims.placing);
    let claim = loop {
        let alone = maps_more(inode);
        let claim = st.claims.begin(blocks.clone(), alone);
        // What it had to wait for may have changed that.
        if alone == maps_more(inode) {
            break claim;
        }
    };
    let (mut at, mut n, mut batch) = (blocks.start, 0, Vec::new());
    let mut homeless = None;
    while n < most && batch.len() < MOST_RUNS && homeless.is_none() {
        let Some(run) = st.pages.take_run(at, blocks.end, most - n, skipped) else { break };
        (at, n) = (run.first + run.blocks, n + run.blocks);
        let mut promised = run.delayed;
        let parts = place(inode, st, run.first, at, &mut promised);
        inode.vol.counters.settle_delayed(promised, true);
        match parts {
            Ok(parts) => batch.push((run, parts)),
            Err(e) => homeless = Some((run, e)),
        }
    }
    drop(placing);
    if n == 0 {
        return Ok(None);
    }
    st.claims.narrow(&claim, blocks.start..at);
    let mut res = write_batch(inode, st, &batch, why.class());
    let account = st.pages.behind.account();
    let finish = |run: Run, lost: bool| {
        let (first, blocks) = (run.first, run.blocks);
        st.settle_pages(inode, run.delayed);
        // Its memory goes before others are told that there is room.
        drop(run);
        st.pages.finish_run(first, blocks, lost || !files.cfg.keep);
    };
    batch.into_iter().for_each(|(run, _)| finish(run, res.is_err()));
    if let Some((run, e)) = homeless {
        finish(run, true);
        res = res.and(Err(e));
    }
    files.count_dirty(-(n as isize));
    if let Err(e) = &res {
        st.note_failure(e);
    }
    drop(claim);
    files.flusher.note_written(n, why, &account);
    res.map(|()| Some((at, n)))
}

/// Writes runs that have a place, and makes them part of the file.
fn write_batch(inode: &Arc<Inode>, st: &FileState, batch: &[(Run, Vec<Part>)], class: Class) -> Result<()> {
    let bs = u64::from(inode.vol.geo.blocksize);
    let place = |p: &Part| {
        let (Target::Mapped { start, .. } | Target::Cow { start }) = p.target;
        inode.vol.geo.fsb_daddr(start).0 * 512
    };
    let all = batch.iter().flat_map(|(run, parts)| parts.iter().map(move |p| (run, p)));
    let pieces: Vec<_> = all.flat_map(|(run, p)| bytes_of(run, p, bs, place(p))).collect();
    let requests: Vec<_> = pieces.iter().map(|(at, data)| WriteRequest { offset: *at, data }).collect();
    inode.vol.journal.shutdown.check()?;
    let written = blocking(|| inode.vol.dev.write_many(&requests, class));
    if written.is_err() {
        batch.iter().for_each(|(_, parts)| give_up(inode, st, parts));
    }
    written?;
    batch.iter().try_for_each(|(run, parts)| complete(inode, st, parts, (run.first + run.blocks) * bs))
}

/// What is written for a part of a run, and where: as it lies, but for short pieces, which are put together first.
fn bytes_of<'a>(run: &'a Run, p: &Part, bs: u64, start: u64) -> Vec<(u64, Cow<'a, [u8]>)> {
    let end = p.off + u64::from(p.len);
    let mut out: Vec<(u64, Cow<'a, [u8]>)> = Vec::new();
    for piece in run.pieces.iter().filter(|x| x.first < end && p.off < x.end()) {
        let (s, e) = (piece.first.max(p.off), piece.end().min(end));
        let bytes = &piece.bytes()[((s - piece.first) * bs) as usize..((e - piece.first) * bs) as usize];
        let at = start + (s - p.off) * bs;
        match out.last_mut() {
            Some((_, last)) if bytes.len() < PIECE && last.len() + bytes.len() <= PIECE => match last {
                Cow::Owned(all) => all.extend_from_slice(bytes),
                Cow::Borrowed(first) => {
                    let mut all = Vec::with_capacity(PIECE);
                    all.extend_from_slice(first);
                    all.extend_from_slice(bytes);
                    *last = Cow::Owned(all);
                }
            },
            _ => out.push((at, Cow::Borrowed(bytes))),
        }
    }
    out
}

/// Finds or makes a place for blocks `first..end`. The caller's claim keeps the mapping as it is found.
fn place(inode: &Arc<Inode>, st: &FileState, first: u64, end: u64, promised: &mut u64) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let done = place_parts(inode, st, first, end, promised, &mut parts);
    if done.is_err() {
        give_up(inode, st, &parts);
    }
    done.map(|()| parts)
}

/// What will not be written needs no copies.
fn give_up(inode: &Arc<Inode>, st: &FileState, parts: &[Part]) {
    for p in parts {
        if let Target::Cow { start } = p.target {
            staged::put_back(inode, st, p.off, start, p.len);
        }
    }
}

fn place_parts(inode: &Arc<Inode>, st: &FileState, first: u64, end: u64, promised: &mut u64, parts: &mut Vec<Part>) -> Result<()> {
    let mut off = first;
    while off < end {
        let (found, next) = {
            let _i = inode.lock_shared();
            map::load(inode, Which::Data)?;
            let d = inode.data();
            (d.data.at(off), d.data.extents.range(off + 1..).next().map_or(u64::MAX, |x| *x.0))
        };
        let part = match found {
            Some(e) => mapped(inode, st, off, (e.end().min(end) - off) as u32, &e, promised)?,
            None => allocate(inode, off, (next.min(end) - off) as u32, promised)?,
        };
        off += u64::from(part.len);
        parts.push(part);
    }
    Ok(())
}

/// Starts a transaction that may allocate blocks for data: `len` that are promised already, as far as promises go, and `more` beside
/// them. Those that are left promised are for other blocks.
pub(super) fn begin(inode: &Arc<Inode>, len: u32, more: u32, promised: &mut u64) -> Result<Trans> {
    let vol = &inode.vol;
    let blocks = len + more;
    let have = (*promised).min(u64::from(len));
    let extra = u64::from(blocks) - have;
    debug_assert!(have == u64::from(len), "a dirty block of inode {} has no promise", inode.ino.0);
    let trees = u64::from(vol.res.write_blocks) + 1;
    if extra > 0 {
        vol.counters.take(extra)?;
    }
    if vol.counters.take(trees).is_err() {
        vol.counters.take_from_reserve(trees);
    }
    vol.counters.settle_delayed(have, false);
    *promised -= have;
    let total = u64::from(blocks) + trees;
    Trans::with_blocks(vol, vol.res.write, total as u32).inspect_err(|_| vol.counters.give(total))
}

pub(super) fn near(inode: &Arc<Inode>, off: u64) -> FsBlock {
    let d = inode.data();
    let before = d.data.extents.range(..off).next_back().map(|x| FsBlock(x.1.start.0 + u64::from(x.1.len)));
    drop(d);
    before.filter(|b| inode.vol.geo.valid_fsb(*b, 1)).unwrap_or_else(|| map::home(inode))
}

/// Allocates data blocks.
pub(super) fn alloc_data(tp: &mut Trans, inode: &Arc<Inode>, off: u64, len: u32) -> Result<(FsBlock, u32)> {
    let want = Want { near: near(inode, off), min: 1, max: len, align: 1, spare: inode.vol.res.write_blocks, owner: Owner::FILE };
    space::alloc(tp, want)
}

/// The range that an extent size hint makes of blocks `first..end`: whole multiples of the hint.
pub(super) fn widened(inode: &Inode, first: u64, end: u64) -> (u64, u64) {
    let d = inode.data();
    if d.core.flags & flag::EXTSIZE == 0 || d.core.extsize < 2 {
        return (first, end);
    }
    let hint = u64::from(d.core.extsize);
    let most = MAX_SIZE / u64::from(inode.vol.geo.blocksize);
    (first - first % hint, end.next_multiple_of(hint).min(most))
}

/// As [`allocate`] for a file with an extent size hint: takes what the hint asks for, as far as the hole goes. `None` if the
/// volume does not have that in a row.
fn allocate_hinted(inode: &Arc<Inode>, off: u64, len: u32, promised: &mut u64) -> Result<Option<Part>> {
    let (from, to) = widened(inode, off, off + u64::from(len));
    let (from, to) = {
        let d = inode.data();
        let before = d.data.extents.range(..=off).next_back().map_or(0, |x| x.1.end());
        let behind = d.data.extents.range(off..).next().map_or(u64::MAX, |x| *x.0);
        (from.max(before), to.min(behind))
    };
    let wide = u32::try_from(to - from).unwrap_or(u32::MAX);
    if wide <= len || wide > MAX_EXTENT {
        return Ok(None);
    }
    let before = *promised;
    let mut tp = match begin(inode, len, wide - len, promised) {
        Err(Error::NoSpace) => return Ok(None),
        t => t?,
    };
    let _i = inode.lock();
    let spare = inode.vol.res.write_blocks;
    let want = Want { near: near(inode, from), min: wide, max: wide, align: 1, spare, owner: Owner::FILE };
    let start = match space::alloc(&mut tp, want) {
        Err(Error::NoSpace) => {
            let back = before - *promised;
            tp.return_reserved(back as u32);
            inode.vol.counters.promise_again(back);
            *promised = before;
            return Ok(None);
        }
        r => r?.0,
    };
    map::map(&mut tp, inode, Which::Data, Extent { off: FileBlock(from), start, len: wide, unwritten: true })?;
    tp.commit()?;
    let start = FsBlock(start.0 + (off - from));
    Ok(Some(Part { off, len, target: Target::Mapped { start, unwritten: true } }))
}

/// Allocates and maps unwritten blocks for a hole.
fn allocate(inode: &Arc<Inode>, off: u64, len: u32, promised: &mut u64) -> Result<Part> {
    if let Some(p) = allocate_hinted(inode, off, len, promised)? {
        return Ok(p);
    }
    let mut tp = begin(inode, len, 0, promised)?;
    let _i = inode.lock();
    let (start, n) = alloc_data(&mut tp, inode, off, len)?;
    map::map(&mut tp, inode, Which::Data, Extent { off: FileBlock(off), start, len: n, unwritten: true })?;
    // What was promised and not needed in this piece goes back to the promise of the rest.
    let spare = u64::from(len - n);
    if spare > 0 {
        tp.return_reserved(len - n);
        inode.vol.counters.promise_again(spare);
        *promised += spare;
    }
    tp.commit()?;
    Ok(Part { off, len: n, target: Target::Mapped { start, unwritten: true } })
}

/// Blocks that are mapped: written in place, or, where they are shared, elsewhere.
fn mapped(inode: &Arc<Inode>, st: &FileState, off: u64, len: u32, e: &Extent, promised: &mut u64) -> Result<Part> {
    let in_place = |len| Part { off, len, target: Target::Mapped { start: e.at(off), unwritten: e.unwritten } };
    if inode.data().core.flags2 & flag2::REFLINK == 0 {
        return Ok(in_place(len));
    }
    // Beyond what is written now, too: a window of new blocks may reach as far as all is shared.
    let shared = {
        let mut look = Trans::reader(&inode.vol);
        let _i = inode.lock_shared();
        space::first_shared(&mut look, e.at(off), (e.end() - off) as u32)?
    };
    match shared {
        None => Ok(in_place(len)),
        Some((n, _)) if n > 0 => Ok(in_place(n.min(len))),
        Some((_, shared)) => {
            let len = shared.min(len);
            if let Some((start, n)) = staged::take(inode, st, off, len) {
                return Ok(Part { off, len: n, target: Target::Cow { start } });
            }
            if let Some(start) = staged::stage(inode, st, (off, len), e, shared)? {
                return Ok(Part { off, len, target: Target::Cow { start } });
            }
            let mut tp = begin(inode, len, 0, promised)?;
            let _i = inode.lock();
            let (start, n) = alloc_data(&mut tp, inode, off, len)?;
            space::alloc_cow_staging(&mut tp, start, n);
            tp.commit()?;
            Ok(Part { off, len: n, target: Target::Cow { start } })
        }
    }
}

/// The data is on the device: converts, remaps, and lets the core's size follow.
fn complete(inode: &Arc<Inode>, st: &FileState, parts: &[Part], end_bytes: u64) -> Result<()> {
    let vol = inode.vol.clone();
    // What takes from the size claims all of the file, so it does not become less meanwhile.
    let size = end_bytes.min(st.size.load(Ordering::Acquire));
    let grows = size > inode.data().core.size;
    let changes = parts.iter().any(|p| !matches!(p.target, Target::Mapped { unwritten: false, .. }));
    if !grows && !changes {
        return Ok(());
    }
    let mut tp = Trans::new_must_succeed(&vol, vol.res.write, 2 * vol.res.write_blocks)?;
    let _i = inode.lock();
    st.times.store(false, Ordering::Release);
    inode.log(&mut tp, 0)?;
    for p in parts {
        let to = p.off + u64::from(p.len);
        match p.target {
            Target::Mapped { unwritten: false, .. } => {}
            Target::Mapped { unwritten: true, .. } => {
                while !map::convert(&mut tp, inode, p.off, to)? {
                    next_link(&mut tp, inode)?;
                }
            }
            Target::Cow { start } => remap(&mut tp, inode, p.off, p.len, start)?,
        }
    }
    if grows {
        let mut d = inode.data();
        // Others may have come further.
        d.core.size = d.core.size.max(size);
        drop(d);
        inode.log(&mut tp, 0)?;
    }
    tp.commit().map(|_| ())
}

pub(super) fn next_link(tp: &mut Trans, inode: &Arc<Inode>) -> Result<()> {
    tp.finish_deferred()?;
    tp.roll()?;
    if tp.blocks_left() < tp.vol.res.write_blocks {
        let n = tp.vol.res.write_blocks;
        tp.vol.counters.take_from_reserve(u64::from(n));
        tp.add_reserved(n);
    }
    inode.log(tp, 0)
}

/// Puts new blocks in the place of shared ones, which lose an owner.
fn remap(tp: &mut Trans, inode: &Arc<Inode>, off: u64, len: u32, start: FsBlock) -> Result<()> {
    let end = off + u64::from(len);
    let mut at = off;
    while at < end {
        let Some(e) = inode.data().data.at(at) else { break };
        let to = e.end().min(end);
        let old = map::unmap_piece(tp, inode, Which::Data, &e, at, to)?;
        space::defer_decrease(tp, old.start, old.len);
        let new = FsBlock(start.0 + (at - off));
        space::defer_free_cow(tp, new, old.len);
        map::map(tp, inode, Which::Data, Extent { off: FileBlock(at), start: new, len: old.len, unwritten: false })?;
        next_link(tp, inode)?;
        at = to;
    }
    Ok(())
}

/// Logs times that were changed in memory only.
fn log_times(inode: &Arc<Inode>, st: &FileState) -> Result<()> {
    if !st.times.swap(false, Ordering::AcqRel) {
        return Ok(());
    }
    inode.change(|_| {})
}

/// Makes a file durable: its data, its size, and with them everything that was committed before.
///
/// # Locks
/// As [`write_back`]; none while it waits for the journal.
///
/// # Errors
/// Those of write-back that were not told yet, the last one's; whatever fails now.
///
/// # Crash
/// After it returned, the file reads as it did then.
pub fn fsync(files: &Arc<Files>, inode: &Arc<Inode>, told: Option<&Told>) -> Result<()> {
    let done = make_durable(files, inode);
    let Some(st) = Files::known_state(inode) else { return done };
    let news = st.tell(told.unwrap_or(&st.told));
    // What failed just now is told once.
    done.and(news)
}

fn make_durable(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    let vol = &inode.vol;
    if vol.is_read_only() {
        return Ok(());
    }
    if hole(Hole::DataNotAwaited) {
        vol.journal.force(inode.last_change())?;
        vol.journal.flush_since(vol.journal.flush_token())?;
        return write_back(files, inode, 0, u64::MAX, Why::Sync);
    }
    if inode.attached.get().is_some() {
        write_back(files, inode, 0, u64::MAX, Why::Sync)?;
    }
    let token = vol.journal.flush_token();
    vol.journal.force(inode.last_change())?;
    Ok(vol.journal.flush_since(token)?)
}
