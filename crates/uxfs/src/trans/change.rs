//! Changes of buffers that have joined a transaction: what changed is found by comparing, or said by who changed it, and logged.

use super::{Buf, CHUNK, Trans};
use std::cell::Cell;
use std::ops::Range;

thread_local! {
    /// Where a thread keeps what a buffer held before a change, so that it needs no memory anew.
    static BEFORE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Bytes of a buffer that are compared at once.
const PIECE: usize = 8 * CHUNK;

impl Trans {
    /// Puts bytes into a buffer and logs those that were not there already.
    pub fn put(&mut self, b: &Buf, at: usize, bytes: &[u8]) {
        let mut d = b.data_mut();
        let mut changed: Option<Range<usize>> = None;
        for (new, from) in bytes.chunks(CHUNK).zip((at..).step_by(CHUNK)) {
            let place = &mut d[from..from + new.len()];
            if place != new {
                place.copy_from_slice(new);
                changed = Some(changed.map_or(from, |c| c.start)..from + new.len());
            }
        }
        drop(d);
        if let Some(c) = changed {
            self.log(b, c.start, c.end);
        }
    }

    /// Changes a buffer and logs the bytes that really changed.
    pub fn change<R>(&mut self, b: &Buf, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut before = BEFORE.take();
        before.clear();
        let mut d = b.data_mut();
        before.extend_from_slice(&d);
        let r = change(&mut d);
        let mut runs: Vec<Range<usize>> = Vec::new();
        // Most of a block is the same, and looked at in large pieces.
        for (i, (old, new)) in before.chunks(PIECE).zip(d.chunks(PIECE)).enumerate().filter(|(_, (old, new))| old != new) {
            for (k, _) in old.chunks(CHUNK).zip(new.chunks(CHUNK)).enumerate().filter(|(_, (old, new))| old != new) {
                let at = i * PIECE + k * CHUNK;
                match runs.last_mut() {
                    Some(run) if run.end == at => run.end += CHUNK,
                    _ => runs.push(at..at + CHUNK),
                }
            }
        }
        drop(d);
        for run in runs {
            self.log(b, run.start, run.end);
        }
        BEFORE.set(before);
        r
    }

    /// Changes a buffer and logs the bytes that `change` says it has touched, which saves comparing all of them.
    ///
    /// # Panics
    /// With debug assertions, if others changed, too.
    pub fn change_at<R, T: IntoIterator<Item = Range<usize>>>(&mut self, b: &Buf, change: impl FnOnce(&mut [u8]) -> (R, T)) -> R {
        let mut d = b.data_mut();
        let mut before = if cfg!(debug_assertions) { d.clone() } else { Vec::new() };
        let (r, touched) = change(&mut d);
        for t in touched {
            if let Some(old) = before.get_mut(t.clone()) {
                old.copy_from_slice(&d[t.clone()]);
            }
            self.log(b, t.start, t.end);
        }
        debug_assert!(before == *d, "bytes were changed that are not logged");
        r
    }
}
