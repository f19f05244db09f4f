//! Locks of byte ranges: those that overlap exclude each other, unless both are shared; whoever came first goes first.
//!
//! A lock is a row of shards, one for each segment of [`SEGMENT`] bytes, taken round; a range takes the shards of its segments, in
//! rising order, each with the whole range. So threads in different segments share no memory, and none waits for a range that does
//! not overlap its own.
//!
//! 1. A shard's word is 0 (free), one holder, packed, or [`QUEUED`] with or without a holder that came before the queue did.
//! 2. While `QUEUED` is set, whoever comes goes to the queue; only who holds the queue's lock sets and clears it.
//! 3. An entry of the queue is granted when no earlier one conflicts with it: nobody is overtaken by who conflicts with it.
//! 4. Who makes the other shards holds all that lies behind the first segment, in the first shard: whoever took that shard only, for a
//!    range without an end, has gone, or sees the others.

use crate::explored::atomic::{AtomicU64, Ordering};
use crate::explored::{Condvar, Mutex, wait};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Bytes that have a shard of their own.
pub const SEGMENT: u64 = 2 << 20;
/// Shards of a lock that was used beyond its first segment.
const SHARDS: usize = 16;

/// Somebody waits, or waited when the holder in the word came to its end.
const QUEUED: u64 = 1;
/// The word has a holder.
const HELD: u64 = 2;
/// The holder shares.
const SHARED: u64 = 4;
/// The word counts in pages of 4 KiB: where the range begins in 40 bits, how many there are in 21, all ones for all that follow.
const PAGE: u64 = 1 << PAGE_BITS;
const PAGE_BITS: u32 = 12;
const LEN_AT: u32 = 3;
const LEN_BITS: u32 = 21;
const START_AT: u32 = LEN_AT + LEN_BITS;
const ENDLESS: u64 = (1 << LEN_BITS) - 1;
/// The first segment that begins too far behind for a word.
const FAR: u64 = (1 << (64 - START_AT)) / (SEGMENT / PAGE);

/// How often a word that is held is looked at before its holder is waited for in the queue.
const SPINS: u32 = if cfg!(uxfs_shuttle) { 1 } else { 100 };

/// A range as a word, rounded to pages; `None` if it begins too far behind.
fn pack(start: u64, end: u64, shared: bool) -> Option<u64> {
    let first = start / PAGE;
    let len = (end.div_ceil(PAGE) - first).min(ENDLESS);
    (first < 1 << (64 - START_AT)).then_some(first << START_AT | len << LEN_AT | bits(shared))
}

/// What a word says beside the range.
#[inline]
fn bits(shared: bool) -> u64 {
    if shared { HELD | SHARED } else { HELD }
}

/// The holder in a word.
fn unpack(word: u64) -> Entry {
    let first = word >> START_AT;
    let end = match word >> LEN_AT & ENDLESS {
        ENDLESS => u64::MAX,
        n => (first + n).saturating_mul(PAGE),
    };
    Entry::holder(first * PAGE, end, word & SHARED != 0)
}

#[derive(Debug)]
struct Entry {
    start: u64,
    end: u64,
    shared: bool,
    /// What it waits at; `None` once it was granted.
    wake: Option<Arc<Condvar>>,
}

impl Entry {
    fn holder(start: u64, end: u64, shared: bool) -> Entry {
        Entry { start, end, shared, wake: None }
    }
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
    fn conflicts(&self, o: &Entry) -> bool {
        self.overlaps(o.start, o.end) && !(self.shared && o.shared)
    }
}

/// Who holds and who waits, in the order of their coming.
#[derive(Debug, Default)]
struct Queue(Vec<Entry>);

impl Queue {
    /// Grants what no earlier entry conflicts with, and wakes it.
    fn grant(&mut self) {
        for i in 0..self.0.len() {
            let (before, rest) = self.0.split_at_mut(i);
            let e = &mut rest[0];
            if e.wake.is_some()
                && !before.iter().any(|b| b.conflicts(e))
                && let Some(w) = e.wake.take()
            {
                w.notify_all();
            }
        }
    }
}

#[derive(Debug, Default)]
struct Shard {
    word: AtomicU64,
    queue: Mutex<Queue>,
}

impl Shard {
    /// Takes a range; true if it is the word's holder, not the queue's.
    fn lock(&self, start: u64, end: u64, shared: bool) -> bool {
        if let Some(word) = pack(start, end, shared) {
            // A holder may be about to go. Nobody who waits is overtaken by that.
            for _ in 0..SPINS {
                match self.word.compare_exchange_weak(0, word, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return true,
                    Err(w) if w & QUEUED != 0 || !unpack(w).overlaps(start, end) => break,
                    Err(_) => std::hint::spin_loop(),
                }
            }
        }
        self.lock_queued(start, end, shared);
        false
    }

    #[cold]
    fn lock_queued(&self, start: u64, end: u64, shared: bool) {
        let mut q = self.queue.lock();
        let before = self.word.fetch_or(QUEUED, Ordering::Acquire);
        if before & (QUEUED | HELD) == HELD {
            q.0.push(unpack(before));
        }
        let mine = Entry::holder(start, end, shared);
        if !q.0.iter().any(|e| e.conflicts(&mine)) {
            return q.0.push(mine);
        }
        let wake = Arc::new(Condvar::new());
        q.0.push(Entry { wake: Some(wake.clone()), ..mine });
        // Only its own thread removes it, so it is there until it is granted.
        let waits = |q: &Queue| q.0.iter().any(|e| e.wake.as_ref().is_some_and(|w| Arc::ptr_eq(w, &wake)));
        while waits(&q) {
            crate::oplock::counted(|| wait(&wake, &mut q));
        }
    }

    /// Gives back what its word holds.
    #[inline]
    fn unlock_word(&self, word: u64) {
        #[cfg(uxfs_holes)]
        if holes::FORGETS.load(Ordering::Relaxed) {
            return self.word.store(0, Ordering::Release);
        }
        if self.word.compare_exchange(word, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.unlock_queued(unpack(word), true);
        }
    }

    #[cold]
    fn unlock_queued(&self, mine: Entry, in_word: bool) {
        let mut q = self.queue.lock();
        // Of several that hold the same, one is as good as another.
        let same = |e: &Entry| e.wake.is_none() && (e.start, e.end, e.shared) == (mine.start, mine.end, mine.shared);
        if let Some(at) = q.0.iter().position(same) {
            q.0.remove(at);
        }
        if in_word {
            self.word.store(QUEUED, Ordering::Relaxed);
        }
        if q.0.is_empty() {
            self.word.store(0, Ordering::Release);
        } else {
            q.grant();
        }
    }
}

/// Keeps neighbours out of each other's cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Apart(Shard);

/// A lock of the ranges of one file.
#[derive(Debug, Default)]
pub struct RangeLock {
    first: Shard,
    others: OnceLock<Box<[Apart]>>,
}

/// A range that is locked; given back when dropped.
#[derive(Debug)]
#[must_use]
pub struct RangeGuard<'a>(Held<'a>);

#[derive(Debug)]
enum Held<'a> {
    /// In the word of one shard.
    Word(&'a Shard, u64),
    /// In several shards, or in a queue.
    Shards { _held: Several<'a> },
}

/// What is held of some shards, a bit for each, and of those in whose words it is.
#[derive(Debug)]
struct Several<'a> {
    lock: &'a RangeLock,
    start: u64,
    end: u64,
    shared: bool,
    shards: u16,
    words: u16,
}

impl RangeLock {
    /// Waits for a range, to look at it.
    #[inline]
    pub fn read(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, true)
    }

    /// Waits for a range, to change it.
    #[inline]
    pub fn write(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, false)
    }

    fn shard(&self, n: usize) -> &Shard {
        match self.others.get() {
            Some(o) if n > 0 => &o[n - 1].0,
            _ => &self.first,
        }
    }

    #[inline]
    fn lock(&self, range: Range<u64>, shared: bool) -> RangeGuard<'_> {
        crate::linger();
        let (start, last) = (range.start, range.end.wrapping_sub(1));
        if start <= last
            && let Some(shard) = self.only_shard(start, last)
        {
            // What `pack` says, in fewer steps: it is short, and does not begin too far behind. A byte less than whole pages, shifted, is
            // one less than their number.
            let (from, to) = (start & !(PAGE - 1), last | (PAGE - 1));
            let word = (from << (START_AT - PAGE_BITS)) + ((to - from) >> (PAGE_BITS - LEN_AT)) + 1 + bits(shared);
            debug_assert_eq!(Some(word), pack(start, last + 1, shared));
            if shard.word.compare_exchange(0, word, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return RangeGuard(Held::Word(shard, word));
            }
        }
        // What is empty counts as a byte.
        self.lock_several(start, range.end.max(start.saturating_add(1)), shared)
    }

    /// The shard of a range that lies in one segment, not too far behind, if it was made.
    #[inline]
    fn only_shard(&self, start: u64, last: u64) -> Option<&Shard> {
        if last < SEGMENT {
            return Some(&self.first);
        }
        let segment = start / SEGMENT;
        let others = self.others.get().filter(|_| segment == last / SEGMENT && segment < FAR)?;
        Some(others.get((segment % SHARDS as u64).wrapping_sub(1) as usize).map_or(&self.first, |a| &a.0))
    }

    #[cold]
    fn lock_several(&self, start: u64, end: u64, shared: bool) -> RangeGuard<'_> {
        let (from, to) = (start / SEGMENT, (end - 1) / SEGMENT);
        // What begins in the first segment and has no end needs no others: see rule 4.
        let endless = from == 0 && end == u64::MAX;
        if to > 0 && !endless && self.others.get().is_none() {
            self.grow();
        }
        let mut held = Several { lock: self, start, end, shared, shards: 0, words: 0 };
        let mut wanted = u16::MAX;
        if to - from < SHARDS as u64 {
            wanted = (from..=to).fold(0, |m, s| m | 1 << (s % SHARDS as u64));
        }
        for n in (0..SHARDS).filter(|n| wanted & 1 << n != 0) {
            // There are no others only for what has no end; holding the first one, it sees to it that this stays so.
            if n == 0 || self.others.get().is_some() {
                held.take(n);
            }
        }
        RangeGuard(Held::Shards { _held: held })
    }

    /// Makes the other shards.
    #[cold]
    fn grow(&self) {
        // Nobody who holds the first shard only, and means all that follows, may be there: whoever means less need not be waited for.
        let mut held = Several { lock: self, start: SEGMENT, end: u64::MAX, shared: false, shards: 0, words: 0 };
        held.take(0);
        self.others.get_or_init(|| (1..SHARDS).map(|_| Apart::default()).collect());
    }
}

impl Several<'_> {
    fn take(&mut self, n: usize) {
        let in_word = self.lock.shard(n).lock(self.start, self.end, self.shared);
        self.shards |= 1 << n;
        self.words |= u16::from(in_word) << n;
    }
}

impl Drop for Several<'_> {
    fn drop(&mut self) {
        for n in (0..SHARDS).filter(|n| self.shards & 1 << n != 0) {
            let (shard, word) = (self.lock.shard(n), pack(self.start, self.end, self.shared));
            match word.filter(|_| self.words & 1 << n != 0) {
                Some(word) => shard.unlock_word(word),
                None => shard.unlock_queued(Entry::holder(self.start, self.end, self.shared), false),
            }
        }
    }
}

impl Drop for RangeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Held::Word(shard, word) = self.0 {
            shard.unlock_word(word);
        }
    }
}

/// The switch that removes rule 1's other half: a holder that comes to its end looks whether there is a queue.
#[cfg(uxfs_holes)]
pub mod holes {
    pub(super) static FORGETS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

    /// Switches it.
    pub fn forget_the_queue(yes: bool) {
        FORGETS.store(yes, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(all(test, not(uxfs_shuttle)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn a_word_holds_a_range_rounded_to_pages() {
        for (s, e, shared) in
            [(0, 1, true), (4095, 4097, false), (7 * PAGE, 9 * PAGE, true), (0, u64::MAX, false), (1 << 50, 1 << 51, false)]
        {
            let u = unpack(pack(s, e, shared).unwrap());
            assert!(u.start <= s && s - u.start < PAGE && u.end >= e && u.shared == shared);
            assert!(u.end - e < PAGE || u.end == u64::MAX);
        }
        assert_eq!(pack(u64::MAX - 1, u64::MAX, true), None);
        // What is taken at once has the same word.
        let lock = RangeLock::default();
        drop(lock.read(0..2 * SEGMENT));
        for (s, e, shared) in [(0, 1, true), (4095, 4097, false), (7 * SEGMENT + 1, 8 * SEGMENT, true), (1 << 51, (1 << 51) + 9, true)] {
            let held = if shared { lock.read(s..e) } else { lock.write(s..e) };
            assert!(matches!(held.0, Held::Word(_, w) if Some(w) == pack(s, e, shared)), "{s} {e}");
        }
        assert!(matches!(lock.read(1 << 52..(1 << 52) + 1).0, Held::Shards { .. }));
        // What is empty is a byte, the slow way.
        for (at, end) in [(0, 0), (5, 4), (u64::MAX, u64::MAX)] {
            assert!(matches!(lock.write(at..end).0, Held::Shards { .. }));
        }
    }

    /// Threads take random ranges, and mark each piece of theirs: nobody may find another's mark where one of both writes.
    #[test]
    fn overlapping_ranges_exclude_each_other() {
        const PIECES: usize = 64;
        let (lock, marks) = (RangeLock::default(), [const { AtomicUsize::new(0) }; PIECES]);
        let piece = SEGMENT / 3;
        std::thread::scope(|s| {
            for t in 0..8u64 {
                let (lock, marks) = (&lock, &marks);
                s.spawn(move || {
                    let c = crate::Chance::seeded(t);
                    for n in 0..20_000 {
                        let from = c.below(PIECES as u64);
                        let to = if c.below(100) == 0 { PIECES as u64 } else { (from + 1 + c.below(5)).min(PIECES as u64) };
                        let all = n % 500 == 0;
                        let (from, to) = if all { (0, PIECES as u64) } else { (from, to) };
                        let end = if all { u64::MAX } else { to * piece };
                        let shared = !all && c.below(2) == 0;
                        let _g = if shared { lock.read(from * piece..end) } else { lock.write(from * piece..end) };
                        for m in &marks[from as usize..to as usize] {
                            // Readers count above the writers' bit.
                            let found = m.fetch_add(if shared { 2 } else { 1 }, SeqCst);
                            assert!(if shared { found & 1 == 0 } else { found == 0 }, "{found}");
                        }
                        for m in &marks[from as usize..to as usize] {
                            m.fetch_sub(if shared { 2 } else { 1 }, SeqCst);
                        }
                    }
                });
            }
        });
        for n in 0..SHARDS {
            assert_eq!(lock.shard(n).word.load(SeqCst), 0, "shard {n} is free again");
        }
    }

    /// A writer that waits is not overtaken by readers that come after it.
    #[test]
    fn who_waits_is_not_overtaken() {
        let (lock, order) = (RangeLock::default(), std::sync::Mutex::new(Vec::new()));
        std::thread::scope(|s| {
            let first = lock.read(0..PAGE);
            let waiting = |n: usize| {
                while lock.first.queue.lock().0.iter().filter(|e| e.wake.is_some()).count() < n {
                    std::thread::yield_now();
                }
            };
            s.spawn(|| {
                let _g = lock.write(0..2 * PAGE);
                order.lock().unwrap().push("writer");
            });
            waiting(1);
            s.spawn(|| {
                let _g = lock.read(PAGE..3 * PAGE);
                order.lock().unwrap().push("reader");
            });
            waiting(2);
            // What overlaps neither goes at once.
            drop(lock.write(10 * PAGE..11 * PAGE));
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), ["writer", "reader"]);
    }
}
