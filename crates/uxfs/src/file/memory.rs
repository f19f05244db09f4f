//! The memory that file data takes, of all files together.
//!
//! Every buffer counts from its making to its end, whoever holds it (one that was given away, from when pages keep it), and so does what
//! folios need to find their pages. Room is made by dropping clean pages, of folios in turn, those that were used lately last. Bytes that
//! are about to be needed are admitted first, a third of the limit at a time.

use super::pages::{FOLIO, Folio};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use uxfs_sync::blocking;
use uxfs_sync::explored::{Condvar, wait};

/// Bytes of a small buffer, at most; they come in few sizes. Of each size up to [`SMALL`] the allocator keeps memory for each thread, of
/// those above a small buffer's much: so what has such a size lies in several small buffers.
pub const PIECE: usize = 64 << 10;
const SMALL: usize = 512 << 10;
/// Bytes of a buffer to which what then lies in several is read.
const SCRATCH: usize = 1 << 20;

/// Bytes that a buffer for so many takes.
fn room_for(bytes: usize) -> usize {
    if bytes <= PIECE { bytes.next_power_of_two() } else { bytes }
}

/// Lines of folios, so that threads seldom meet at one.
const LINES: usize = 8;
/// Folios in a line before it is looked through for those that are gone.
const LEAST_LINE: usize = 512;

/// Bytes of a buffer that is used again: the allocator gives such memory back to the system, which then clears every page of it.
const LARGE: usize = PIECE;
/// What part of the limit such buffers may take while nobody uses them, at most, and also where others have all the rest.
const MOST_SPARE: usize = 2;
const LEAST_SPARE: usize = 16;

/// Folios that may be asked for room, the one that was asked longest ago first. Some may be gone.
#[derive(Default)]
struct Line {
    folios: VecDeque<Weak<Folio>>,
    /// How many were there when it was last looked through.
    kept: usize,
}

impl Line {
    fn push(&mut self, folio: Weak<Folio>) {
        if self.folios.len() > 2 * self.kept + LEAST_LINE {
            self.folios.retain(|f| f.strong_count() > 0);
            self.kept = self.folios.len();
        }
        self.folios.push_back(folio);
    }
}

/// Large buffers that nobody uses.
#[derive(Default)]
struct Spares {
    /// The one that was used last is last.
    all: Vec<Vec<u8>>,
    bytes: usize,
    /// How many of the first were there all the time since the last [`Spares::rested`].
    idle: usize,
}

impl Spares {
    /// One of at least so many bytes and not many more.
    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let fits = |s: &Vec<u8>| (bytes..=bytes + bytes / 8).contains(&s.capacity());
        let n = self.all.iter().rposition(fits)?;
        self.idle = self.idle.min(n);
        self.bytes -= self.all[n].capacity();
        Some(self.all.remove(n))
    }

    fn put(&mut self, buffer: Vec<u8>) {
        self.bytes += buffer.capacity();
        self.all.push(buffer);
    }

    /// Takes the first ones away.
    fn drain(&mut self, n: usize) -> Vec<Vec<u8>> {
        self.idle = self.idle.saturating_sub(n);
        let gone: Vec<_> = self.all.drain(..n).collect();
        self.bytes -= gone.iter().map(Vec::capacity).sum::<usize>();
        gone
    }

    /// Takes away those that were kept longest, until no more than so many bytes are left.
    fn trim(&mut self, most: usize) -> Vec<Vec<u8>> {
        let (mut n, mut left) = (0, self.bytes);
        while left > most {
            left -= self.all[n].capacity();
            n += 1;
        }
        self.drain(n)
    }

    /// Takes away those that nobody took since the last time.
    fn rested(&mut self) -> Vec<Vec<u8>> {
        let gone = self.drain(self.idle);
        self.idle = self.all.len();
        gone
    }
}

/// Bytes of file data, of one block or of many, that never change.
pub struct Buf {
    bytes: Vec<u8>,
    memory: Arc<Memory>,
    counted: AtomicBool,
}

impl Buf {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of memory that it takes.
    pub fn size(&self) -> usize {
        self.bytes.capacity()
    }

    /// Counts it, if it is not counted yet.
    pub fn count(&self) {
        if !self.counted.swap(true, Ordering::AcqRel) {
            self.memory.take(self.size());
        }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if *self.counted.get_mut() {
            self.memory.give_back(self.size());
        }
        if self.size() >= LARGE {
            self.memory.spare(std::mem::take(&mut self.bytes));
        }
    }
}

/// Bytes that may be filled; given back when dropped, whether they were or not.
pub struct Room<'a> {
    memory: &'a Memory,
    bytes: usize,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.memory.admitted.fetch_sub(self.bytes, Ordering::AcqRel);
        if self.memory.waiting.load(Ordering::Acquire) > 0 {
            drop(self.memory.queue.lock());
            self.memory.left.notify_all();
        }
    }
}

/// What file data may take.
pub struct Memory {
    used: AtomicUsize,
    peak: AtomicUsize,
    limit: usize,
    /// Bytes that somebody is about to fill.
    admitted: AtomicUsize,
    /// How many wait for room, whose turn it is, and what that one waits at.
    waiting: AtomicUsize,
    turn: Mutex<()>,
    queue: Mutex<()>,
    left: Condvar,
    lines: [Mutex<Line>; LINES],
    next: AtomicUsize,
    spares: Mutex<Spares>,
}

impl Memory {
    /// At most about `limit` bytes.
    pub fn new(limit: usize) -> Arc<Memory> {
        let zero = || AtomicUsize::new(0);
        let (turn, queue, left, lines) = (Mutex::new(()), Mutex::new(()), Condvar::new(), Default::default());
        let (used, peak, admitted, waiting, next, spares) = (zero(), zero(), zero(), zero(), zero(), Mutex::default());
        Arc::new(Memory { used, peak, limit, admitted, waiting, turn, queue, left, lines, next, spares })
    }

    /// A spare vector for so many bytes, with what it held last.
    fn used_vec(&self, bytes: usize) -> Option<Vec<u8>> {
        if bytes < LARGE {
            return None;
        }
        self.spares.lock().take(bytes)
    }

    /// An empty vector for so many bytes.
    pub fn vec(&self, bytes: usize) -> Vec<u8> {
        let room = room_for(bytes);
        let mut vec = self.used_vec(room).unwrap_or_else(|| Vec::with_capacity(room));
        vec.clear();
        vec
    }

    /// So many bytes, whatever they are: whoever asks fills them.
    pub fn filled(&self, bytes: usize) -> Vec<u8> {
        let room = room_for(bytes);
        let mut vec = self.used_vec(room).unwrap_or_else(|| vec![0; room]);
        vec.resize(bytes, 0);
        vec
    }

    /// Buffers that `read` fills at once with so many bytes, which lie in them one after the other.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read<E>(self: &Arc<Self>, bytes: usize, read: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Vec<Arc<Buf>>, E> {
        if bytes <= PIECE || bytes > SMALL {
            let mut all = self.filled(bytes);
            read(&mut all)?;
            return Ok(vec![self.buf(all)]);
        }
        let mut all = self.filled(SCRATCH);
        let done = read(&mut all[..bytes]);
        let copy = |part: &[u8]| {
            let mut copy = self.vec(part.len());
            copy.extend_from_slice(part);
            self.buf(copy)
        };
        let pieces = done.map(|()| all[..bytes].chunks(PIECE).map(copy).collect());
        self.spare(all);
        pieces
    }

    /// Keeps a large buffer for somebody else, instead of those that were kept longest where room is short.
    fn spare(&self, buffer: Vec<u8>) {
        self.spares.lock().put(buffer);
        self.trim_spares(self.most_spare());
    }

    /// Gives back buffers that nobody uses, until no more than so many bytes are left.
    fn trim_spares(&self, most: usize) {
        // They end without the lock.
        let gone = self.spares.lock().trim(most);
        drop(gone);
    }

    /// Bytes of buffers that nobody uses that may be kept: room that others do not take.
    fn most_spare(&self) -> usize {
        let free = self.limit.saturating_sub(self.used() + self.admitted.load(Ordering::Acquire));
        free.clamp(self.limit / LEAST_SPARE, self.limit / MOST_SPARE)
    }

    /// Bytes of buffers that nobody uses.
    pub fn spare_bytes(&self) -> usize {
        self.spares.lock().bytes
    }

    /// Gives back buffers that nobody used since the last call.
    pub fn rest(&self) {
        let gone = self.spares.lock().rested();
        drop(gone);
    }

    /// Counts bytes that are to be shared.
    pub fn buf(self: &Arc<Self>, bytes: Vec<u8>) -> Arc<Buf> {
        let buf = self.given(bytes);
        buf.count();
        buf
    }

    /// Bytes that may be shared, and are not counted yet.
    pub fn given(self: &Arc<Self>, bytes: Vec<u8>) -> Arc<Buf> {
        Arc::new(Buf { bytes, memory: self.clone(), counted: AtomicBool::new(false) })
    }

    /// Counts memory.
    pub(super) fn take(&self, bytes: usize) {
        let used = self.used.fetch_add(bytes, Ordering::AcqRel) + bytes;
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
    }

    /// Counts it no more.
    pub(super) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// How many folios stand in line, gone ones among them.
    pub fn folios(&self) -> usize {
        self.lines.iter().map(|l| l.lock().folios.len()).sum()
    }

    /// Bytes that are held.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Most bytes that were ever held.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// True if what is held, and what may be filled, is too much.
    pub fn is_short(&self) -> bool {
        self.used() + self.admitted.load(Ordering::Acquire) > self.limit
    }

    fn try_admit(&self, bytes: usize) -> bool {
        let fits = |a: usize| (a == 0 || a + bytes <= self.limit / 3).then_some(a + bytes);
        self.admitted.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    /// Lets somebody fill so many bytes, or [`FOLIO`] if it is more, now or not at all.
    pub fn try_room(&self, bytes: usize) -> Option<Room<'_>> {
        let bytes = bytes.min(FOLIO);
        if self.waiting.load(Ordering::Acquire) > 0 || !self.try_admit(bytes) {
            return None;
        }
        self.make_room();
        Some(Room { memory: self, bytes })
    }

    /// The same, and waits for it, in turn. The caller holds no lock.
    pub fn room(&self, bytes: usize) -> Room<'_> {
        if let Some(r) = self.try_room(bytes) {
            return r;
        }
        let bytes = bytes.min(FOLIO);
        self.waiting.fetch_add(1, Ordering::AcqRel);
        {
            // Who has the turn waits for room, the others for the turn.
            let _turn = blocking(|| self.turn.lock());
            let mut q = self.queue.lock();
            while !self.try_admit(bytes) {
                wait(&self.left, &mut q);
            }
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        self.make_room();
        Room { memory: self, bytes }
    }

    pub(super) fn list(&self, folio: &Arc<Folio>) {
        let line = self.next.fetch_add(1, Ordering::Relaxed) % LINES;
        self.lines[line].lock().push(Arc::downgrade(folio));
    }

    /// Drops clean pages until the limit is kept, somewhat below it. What is dirty stays.
    pub fn make_room(&self) {
        let spare = self.most_spare();
        if spare < self.limit / MOST_SPARE {
            self.trim_spares(spare);
        }
        if !self.is_short() {
            return;
        }
        let goal = (self.limit - self.limit / 16).saturating_sub(self.admitted.load(Ordering::Acquire));
        // Each twice: the first look takes the mark of use away. Lines are of any length.
        let longest = self.lines.iter().map(|l| l.lock().folios.len()).max().unwrap_or(0);
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        for look in 0..2 * LINES * longest {
            if self.used() <= goal {
                break;
            }
            let line = &self.lines[(start + look) % LINES];
            let Some(first) = line.lock().folios.pop_front() else { continue };
            if let Some(folio) = first.upgrade()
                && folio.make_room()
            {
                line.lock().push(first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pages::Pages;
    use super::*;

    #[test]
    fn what_is_clean_makes_room_also_where_few_files_have_anything() {
        const MIB: usize = 1 << 20;
        for files in 1..=2 * LINES {
            let m = Memory::new(files * MIB);
            let account = Arc::default();
            let all: Vec<_> = (0..files)
                .map(|_| {
                    let pages = Pages::new(&m, 4096, Arc::clone(&account));
                    pages.keep(&pages.ticket(0), 0, &m.buf(vec![0; MIB]), false);
                    // It was read, so it is asked twice.
                    assert!(pages.find(0, 1, true).is_some());
                    pages
                })
                .collect();
            assert!(m.is_short());
            m.make_room();
            assert!(m.used() <= files * MIB - MIB / 16, "{} of {files} MiB", m.used());
            drop(all);
            assert_eq!(m.used(), 0);
        }
    }

    #[test]
    fn what_is_read_lies_in_buffers_of_few_sizes() {
        let m = Memory::new(64 << 20);
        for bytes in [512, 4096, 12 << 10, PIECE, PIECE + 512, 200_000, SMALL, SMALL + 512, 2 << 20] {
            let bufs = m.read(bytes, |into| {
                into.iter_mut().zip(0..).for_each(|(b, i): (_, usize)| *b = (i / 512) as u8);
                Ok::<_, ()>(())
            });
            let bufs = bufs.unwrap();
            let all: Vec<u8> = bufs.iter().flat_map(|b| b.bytes()).copied().collect();
            assert!(all.len() == bytes && all.iter().enumerate().all(|(i, b)| *b == (i / 512) as u8), "{bytes}");
            let fits = |b: &Arc<Buf>| b.size() > SMALL || (b.size() <= PIECE && b.size().is_power_of_two());
            assert!(bufs.iter().all(fits) && bufs.len() <= SMALL / PIECE, "{bytes}");
            assert!(m.used() < 2 * bytes, "{bytes}: {}", m.used());
        }
        assert_eq!((m.read(PIECE, |_| Err(5)).err(), m.read(3 * PIECE, |_| Err(6)).err(), m.used()), (Some(5), Some(6), 0));
    }

    #[test]
    fn buffers_are_used_again_while_there_is_room_and_given_back_when_nobody_needs_them() {
        const MIB: usize = 1 << 20;
        let m = Memory::new(32 * MIB);
        let make = |n: usize| (0..n).map(|_| m.buf(m.filled(MIB))).collect::<Vec<_>>();
        // Half of all there is, and less where pages take more.
        drop(make(20));
        assert_eq!((m.used(), m.spare_bytes()), (0, 16 * MIB));
        let some = make(10);
        assert_eq!((m.used(), m.spare_bytes()), (10 * MIB, 6 * MIB));
        let large = m.buf(vec![0; 20 * MIB]);
        m.make_room();
        assert_eq!(m.spare_bytes(), 2 * MIB);
        drop(large);
        drop(some);
        let left = m.spare_bytes();
        // What was taken since is used still.
        m.rest();
        drop(make(3));
        m.rest();
        assert_eq!((left > 3 * MIB, m.spare_bytes()), (true, 3 * MIB));
        m.rest();
        assert_eq!(m.spare_bytes(), 0);
        // What is given away counts from when it is used.
        let given = m.given(vec![0; MIB]);
        assert_eq!(m.used(), 0);
        given.count();
        given.count();
        assert_eq!(m.used(), MIB);
        drop(given);
        assert_eq!(m.used(), 0);
    }
}
