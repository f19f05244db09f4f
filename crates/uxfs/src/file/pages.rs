//! What memory holds of one file's data.
//!
//! A file is cut into *folios*, windows of 2 MiB, each with a lock of its own and no larger than what it holds. A folio holds *pages*,
//! one a block. The bytes of a page never change: a write puts another page in its place. So nobody holds a lock while bytes are copied
//! to or from a caller or the device, and what is on its way to the device stays as it is.
//!
//! 1. A page that is there is up to date. It is *dirty* (to be written back), *in flight* (being written), both, or *clean*.
//! 2. Only clean pages are dropped to make room. Of a file that is not cached, what becomes clean is dropped at once.
//! 3. Of pages that are dropped behind whoever reads or writes them, each says so itself, until somebody else uses it.
//! 4. What was read from the device gets in only if nothing of its folio was written, written back or forgotten since the reading began.

use super::dirty::{Account, Behind};
use super::memory::{Buf, Memory};
use super::stretches::{Page, Stretches};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::{AddAssign, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Bytes of a file that a folio is for.
pub const FOLIO: usize = 2 << 20;

struct Slots {
    /// By number in the folio.
    pages: Stretches,
    /// Bytes that were counted for them.
    counted: usize,
    /// Counts what would make a page that is being read stale.
    changes: u64,
    /// It stands in the line of those that may be asked for room.
    listed: bool,
}

/// A window of a file.
pub struct Folio {
    memory: Arc<Memory>,
    slots: Mutex<Slots>,
    dirty: AtomicUsize,
    /// It was read since somebody last looked for room.
    used: AtomicBool,
    home: Weak<Pages>,
    number: u64,
}

/// The pages of a file.
pub struct Pages {
    folios: RwLock<BTreeMap<u64, Arc<Folio>>>,
    memory: Arc<Memory>,
    me: Weak<Pages>,
    block: usize,
    dirty: AtomicUsize,
    /// Those that are dirty or in flight and dropped then.
    pub behind: Behind,
}

/// Blocks that lie behind each other in a file and in a buffer.
pub struct Piece {
    /// The first one, of the file.
    pub first: u64,
    /// How many.
    pub blocks: u64,
    buf: Arc<Buf>,
    at: usize,
    block: usize,
}

impl Piece {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf.bytes()[self.at..self.at + self.blocks as usize * self.block]
    }
    /// The block behind it.
    pub fn end(&self) -> u64 {
        self.first + self.blocks
    }

    /// Takes pages of the folio that begins at `base`, if they lie behind it, in the file and in the buffer.
    fn take(&mut self, base: u64, pages: &Range<u16>, at: u32, p: &Page) -> bool {
        let follows = self.end() == base + u64::from(pages.start)
            && Arc::ptr_eq(&self.buf, &p.buf)
            && self.at + self.blocks as usize * self.block == at as usize;
        self.blocks += if follows { pages.len() as u64 } else { 0 };
        follows
    }
}

/// Dirty pages that are being written.
pub struct Run {
    /// The first block.
    pub first: u64,
    /// How many.
    pub blocks: u64,
    /// The bytes, in the file's order, without gaps.
    pub pieces: Vec<Piece>,
    /// Blocks that were promised to them.
    pub delayed: u64,
}

/// What became of blocks that were to be written.
#[derive(Default)]
pub struct Installed {
    /// Pages that are dirty and were not.
    pub newly_dirty: usize,
    /// Promises that were not needed.
    pub spare: u64,
    /// Blocks of which it was not known whether they need a promise, because they were dirty a moment ago: nothing was done with them.
    pub undecided: Vec<u64>,
}

impl AddAssign for Installed {
    fn add_assign(&mut self, more: Installed) {
        self.newly_dirty += more.newly_dirty;
        self.spare += more.spare;
        self.undecided.extend(more.undecided);
    }
}

/// What is known of a block that is to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It was dirty; whoever made it so has seen to its place.
    WasDirty,
    /// It has a place.
    Nothing,
    /// It has none; a block was promised.
    Promised,
    /// It was written already.
    Done,
}

/// Says that nothing changed in a folio since it was made.
pub struct Ticket {
    folio: Arc<Folio>,
    changes: u64,
}

impl Pages {
    /// None yet.
    pub fn new(memory: &Arc<Memory>, block: usize, account: Arc<Account>) -> Arc<Pages> {
        Arc::new_cyclic(|me| {
            let (folios, dirty, behind) = (RwLock::default(), AtomicUsize::new(0), Behind::new(account));
            Pages { folios, memory: memory.clone(), me: me.clone(), block, dirty, behind }
        })
    }

    /// Blocks of a folio.
    pub fn per_folio(&self) -> u64 {
        (FOLIO / self.block) as u64
    }

    fn folio(&self, number: u64) -> Option<Arc<Folio>> {
        self.folios.read().get(&number).cloned()
    }

    fn make_folio(&self, number: u64) -> Arc<Folio> {
        if let Some(f) = self.folio(number) {
            return f;
        }
        let new = || {
            let (dirty, used) = Default::default();
            let slots = Mutex::new(Slots { pages: Stretches::new(self.block), counted: 0, changes: 0, listed: false });
            self.memory.take(size_of::<Folio>());
            Arc::new(Folio { memory: self.memory.clone(), slots, dirty, used, home: self.me.clone(), number })
        };
        self.folios.write().entry(number).or_insert_with(new).clone()
    }

    /// Runs `f` on each folio that there is in `first..end`, with the blocks of it that lie there, counted from the folio's first one.
    fn each(&self, first: u64, end: u64, mut f: impl FnMut(&Folio, u64, Range<u16>)) {
        let n = self.per_folio();
        let mut next = first / n;
        while first < end && next * n < end {
            let found = self.folios.read().range(next..).next().map(|(k, v)| (*k, v.clone()));
            let Some((number, folio)) = found.filter(|x| x.0 * n < end) else { return };
            let base = number * n;
            f(&folio, base, (first.max(base) - base) as u16..(end.min(base.saturating_add(n)) - base) as u16);
            next = number + 1;
        }
    }

    /// The first of `first..end` that are there, as far as they lie behind each other in one buffer. With `keep` they are used, and so
    /// not dropped behind anybody any more.
    pub fn find(&self, first: u64, end: u64, keep: bool) -> Option<Piece> {
        let n = self.per_folio();
        let folios = self.folios.read();
        for (number, folio) in folios.range(first / n..end.div_ceil(n).max(first / n)) {
            let base = number * n;
            let range = (first.max(base) - base) as u16..(end.min(base.saturating_add(n)) - base) as u16;
            // Also if it has nothing yet: what is about to be read into it is used.
            if keep && !folio.used.load(Ordering::Relaxed) {
                folio.used.store(true, Ordering::Relaxed);
            }
            let mut slots = folio.slots.lock();
            let mut there = slots.pages.range(range);
            let Some((pages, at, p)) = there.next() else { continue };
            let (mut piece, mut behind) = (self.piece(base, &pages, at, p), p.behind);
            for (pages, at, p) in there {
                if !piece.take(base, &pages, at, p) {
                    break;
                }
                behind |= p.behind;
            }
            if keep && behind {
                let mut kept = 0;
                slots.pages.change((piece.first - base) as u16..(piece.end() - base) as u16, |p, n| {
                    kept += n * usize::from(p.counts());
                    p.behind = false;
                });
                slots.count(&self.memory);
                drop(slots);
                self.behind.change(0, kept);
            }
            return Some(piece);
        }
        None
    }

    /// Pages of the folio that begins at `base`, the first of which lies at `at`.
    fn piece(&self, base: u64, pages: &Range<u16>, at: u32, p: &Page) -> Piece {
        Piece { first: base + u64::from(pages.start), blocks: pages.len() as u64, buf: p.buf.clone(), at: at as usize, block: self.block }
    }

    /// Drops what is clean of `first..end` and is dropped behind its readers.
    pub fn drop_read(&self, first: u64, end: u64) {
        let mut empty = false;
        self.each(first, end, |folio, _, range| {
            let mut slots = folio.slots.lock();
            slots.pages.remove(range, |p, _| p.behind && !p.dirty && !p.in_flight);
            slots.count(&self.memory);
            empty |= slots.pages.is_empty();
        });
        if empty {
            self.drop_empty(first, end);
        }
    }

    /// Which of `first..end`, which lie in one folio, are dirty.
    pub fn are_dirty(&self, first: u64, end: u64) -> Vec<bool> {
        let mut out = vec![false; (end - first) as usize];
        self.each(first, end, |folio, base, range| {
            for (pages, _, p) in folio.slots.lock().pages.range(range) {
                let from = (base + u64::from(pages.start) - first) as usize;
                out[from..from + pages.len()].fill(p.dirty);
            }
        });
        out
    }

    /// Makes blocks from `first` on dirty, all of one folio: `needs` says of each what is known. The bytes are those of `buf` from `base`
    /// on. With `drop`, those that are not there yet are dropped when they were written.
    pub fn write(&self, first: u64, (buf, base): (&Arc<Buf>, usize), needs: &[Need], drop: bool) -> Installed {
        let n = self.per_folio();
        let folio = self.make_folio(first / n);
        let (mut done, mut more, mut less) = (Installed::default(), 0, 0);
        let mut slots = folio.slots.lock();
        slots.changes += 1;
        let start = (first % n) as u16;
        let mut i = 0;
        while i < needs.len() {
            let next = start + i as u16;
            let (there, alike) = slots.pages.at(next);
            // As many as are alike, and of which the same is known.
            let same = needs[i..].iter().take(usize::from(alike - next)).take_while(|x| **x == needs[i]).count();
            let (was_dirty, had, in_flight) = there.map_or((false, false, false), |p| (p.dirty, p.delayed, p.in_flight));
            let (was_behind, counted) = there.map_or((true, false), |p| (p.behind, p.counts()));
            match needs[i] {
                Need::Done => {}
                Need::WasDirty if !was_dirty => done.undecided.extend((i..i + same).map(|i| first + i as u64)),
                need => {
                    let promised = need == Need::Promised;
                    done.spare += same as u64 * u64::from(promised && had);
                    done.newly_dirty += same * usize::from(!was_dirty);
                    let (at, behind) = ((base + i * self.block) as u32, drop && was_behind);
                    let page = Page { buf: buf.clone(), at, dirty: true, delayed: promised || had, in_flight, behind };
                    less += same * usize::from(counted);
                    more += same * usize::from(page.counts());
                    slots.pages.put(next..next + same as u16, page);
                }
            }
            i += same;
        }
        slots.count(&self.memory);
        folio.dirty.fetch_add(done.newly_dirty, Ordering::AcqRel);
        self.dirty.fetch_add(done.newly_dirty, Ordering::AcqRel);
        self.behind.change(more, less);
        self.list(&folio, &mut slots);
        done
    }

    fn list(&self, folio: &Arc<Folio>, slots: &mut Slots) {
        if !slots.pages.is_empty() && !slots.listed {
            slots.listed = true;
            self.memory.list(folio);
        }
    }

    /// For somebody who is about to read blocks of the folio in which `block` lies.
    pub fn ticket(&self, block: u64) -> Ticket {
        let folio = self.make_folio(block / self.per_folio());
        let changes = folio.slots.lock().changes;
        Ticket { folio, changes }
    }

    /// Keeps what was read: blocks from `first` on, all of the ticket's folio; with `drop` until they were read. What is there
    /// already stays.
    pub fn keep(&self, ticket: &Ticket, first: u64, buf: &Arc<Buf>, drop: bool) {
        let start = (first % self.per_folio()) as u16;
        let blocks = buf.bytes().len() / self.block;
        let mut slots = ticket.folio.slots.lock();
        if slots.changes != ticket.changes {
            return;
        }
        let page = Page { buf: buf.clone(), at: 0, dirty: false, delayed: false, in_flight: false, behind: drop };
        slots.pages.fill(start..start + blocks as u16, &page);
        slots.count(&self.memory);
        self.list(&ticket.folio, &mut slots);
    }

    /// Marks the next dirty pages of `from..end` in flight that lie behind each other: `most` blocks, and to the end of the last buffer,
    /// which takes its memory until all of it was written.
    /// What is in flight already is left, and `skipped` says that.
    pub fn take_run(&self, from: u64, end: u64, most: u64, skipped: &mut bool) -> Option<Run> {
        let mut run = Run { first: from, blocks: 0, pieces: Vec::new(), delayed: 0 };
        let n = self.per_folio();
        let mut next = from / n;
        while from < end && next * n < end && run.blocks < most {
            // A run goes on only in the very next folio.
            let last = if run.blocks > 0 { next + 1 } else { u64::MAX };
            let dirty = |f: &Folio| f.dirty.load(Ordering::Acquire) > 0;
            let found = self.folios.read().range(next..last).find(|x| dirty(x.1)).map(|(k, f)| (*k, f.clone()));
            let Some((number, folio)) = found.filter(|x| x.0 * n < end) else { break };
            let base = number * n;
            let mut slots = folio.slots.lock();
            let before = run.blocks;
            let mut taken = 0..0;
            for (pages, at, p) in slots.pages.range(from.saturating_sub(base) as u16..(end - base).min(n) as u16) {
                let block = base + u64::from(pages.start);
                let follows = run.blocks == 0 || run.first + run.blocks == block;
                let full = run.blocks >= most && !run.pieces.last().is_some_and(|l| Arc::ptr_eq(&l.buf, &p.buf));
                *skipped |= p.dirty && p.in_flight;
                if !p.dirty || p.in_flight || !follows || full {
                    if run.blocks > 0 {
                        break;
                    }
                    continue;
                }
                if run.blocks == 0 {
                    run.first = block;
                }
                taken = if taken.is_empty() { pages.clone() } else { taken.start..pages.end };
                run.blocks += pages.len() as u64;
                run.delayed += u64::from(p.delayed) * pages.len() as u64;
                if !run.pieces.last_mut().is_some_and(|l| l.take(base, &pages, at, p)) {
                    run.pieces.push(self.piece(base, &pages, at, p));
                }
            }
            slots.pages.change(taken, |p, _| (p.dirty, p.delayed, p.in_flight) = (false, false, true));
            slots.count(&self.memory);
            drop(slots);
            folio.dirty.fetch_sub((run.blocks - before) as usize, Ordering::AcqRel);
            self.dirty.fetch_sub((run.blocks - before) as usize, Ordering::AcqRel);
            next = number + 1;
            if run.blocks > 0 && run.first + run.blocks != next * n {
                break;
            }
        }
        (run.blocks > 0).then_some(run)
    }

    /// A run was written, or could not be. What was not written again since becomes clean, or goes: all of it with `drop`, else what is
    /// dropped behind its writer.
    pub fn finish_run(&self, first: u64, blocks: u64, drop: bool) {
        let (mut less, mut empty) = (0, false);
        self.each(first, first + blocks, |folio, _, range| {
            let mut slots = folio.slots.lock();
            // Who began to read before may have seen what the device held before; and these pages may go now.
            slots.changes += 1;
            let mut any = drop;
            slots.pages.change(range.clone(), |p, n| {
                let counted = p.counts();
                p.in_flight = false;
                less += n * usize::from(counted && !p.counts());
                any |= p.behind;
            });
            if any {
                slots.pages.remove(range, |p, _| !p.dirty && (drop || p.behind));
                empty |= slots.pages.is_empty();
            }
            slots.count(&self.memory);
        });
        self.behind.change(0, less);
        if empty {
            self.drop_empty(first, first + blocks);
        }
    }

    /// Forgets blocks `first..end`, dirty or not. Returns how many were dirty, and how many had promises.
    pub fn forget(&self, first: u64, end: u64) -> (usize, u64) {
        let (mut dirty, mut delayed, mut less) = (0, 0, 0);
        self.each(first, end, |folio, _, range| {
            let mut slots = folio.slots.lock();
            slots.changes += 1;
            let mut were_dirty = 0;
            slots.pages.remove(range, |p, n| {
                were_dirty += n * usize::from(p.dirty);
                delayed += n as u64 * u64::from(p.delayed);
                less += n * usize::from(p.counts());
                true
            });
            slots.count(&self.memory);
            folio.dirty.fetch_sub(were_dirty, Ordering::AcqRel);
            dirty += were_dirty;
        });
        self.dirty.fetch_sub(dirty, Ordering::AcqRel);
        self.behind.change(0, less);
        self.drop_empty(first, end);
        (dirty, delayed)
    }

    /// Drops folios that hold nothing, but for those that somebody is about to fill.
    fn drop_empty(&self, first: u64, end: u64) {
        let n = self.per_folio();
        let mut folios = self.folios.write();
        let range = first / n..end.div_ceil(n);
        let is_idle = |f: &Arc<Folio>| Arc::strong_count(f) == 1 && f.slots.lock().pages.is_empty();
        let idle: Vec<u64> = folios.range(range).filter(|x| is_idle(x.1)).map(|x| *x.0).collect();
        for number in idle {
            folios.remove(&number);
        }
    }

    /// The next dirty block of `first..end`.
    pub fn next_dirty(&self, first: u64, end: u64) -> Option<u64> {
        if self.dirty() == 0 {
            return None;
        }
        self.next(first, end, |f| f.dirty.load(Ordering::Acquire) > 0, |p| p.dirty)
    }

    /// The next block of `first..end` that the device does not have as it is.
    pub fn next_unwritten(&self, first: u64, end: u64) -> Option<u64> {
        self.next(first, end, |_| true, |p| p.dirty || p.in_flight)
    }

    fn next(&self, first: u64, end: u64, may: impl Fn(&Folio) -> bool, wanted: impl Fn(&Page) -> bool) -> Option<u64> {
        let n = self.per_folio();
        let mut from = first / n;
        loop {
            let last = end.div_ceil(n);
            let found = self.folios.read().range(from.min(last)..last).find(|x| may(x.1)).map(|x| (*x.0, x.1.clone()));
            let (number, folio) = found.filter(|_| first < end)?;
            let base = number * n;
            let range = first.saturating_sub(base) as u16..(end - base).min(n) as u16;
            let block = folio.slots.lock().pages.range(range).find(|x| wanted(x.2)).map(|x| base + u64::from(x.0.start));
            if block.is_some() {
                return block;
            }
            from = number + 1;
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.folios.read().is_empty()
    }

    /// How many are dirty.
    pub fn dirty(&self) -> usize {
        self.dirty.load(Ordering::Acquire)
    }
}

impl Slots {
    /// Counts the memory that finds pages, after they changed.
    fn count(&mut self, memory: &Memory) {
        self.pages.shrink();
        let (now, before) = (self.pages.bytes(), self.counted);
        if now > before {
            memory.take(now - before);
        } else if now < before {
            memory.give_back(before - now);
        }
        self.counted = now;
    }
}

impl Drop for Folio {
    fn drop(&mut self) {
        self.memory.give_back(size_of::<Folio>() + self.slots.get_mut().counted);
    }
}

impl Folio {
    /// Drops what is clean, unless it was used since the last call. Returns true if there is something left to come back for.
    pub fn make_room(self: &Arc<Self>) -> bool {
        if self.used.swap(false, Ordering::Relaxed) {
            return true;
        }
        let mut slots = self.slots.lock();
        slots.pages.remove(0..u16::MAX, |p, _| !p.dirty && !p.in_flight);
        slots.count(&self.memory);
        slots.listed = !slots.pages.is_empty();
        if slots.listed {
            return true;
        }
        drop(slots);
        // Whoever else knows it may be about to fill it: then it stays.
        if let Some(home) = self.home.upgrade() {
            let mut folios = home.folios.write();
            if Arc::strong_count(self) == 2 && self.slots.lock().pages.is_empty() {
                folios.remove(&self.number);
            }
        }
        false
    }
}
