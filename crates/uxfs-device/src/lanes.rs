//! Classes of I/O: who waits for it decides how much of it may be in flight beside others.

use crate::Class;
use parking_lot::{Condvar, Mutex};

/// Most in flight of a class while nothing more urgent is, and while something is.
const CAPS: [(u32, u32); 4] = [(64, 64), (256, 256), (32, 16), (32, 4)];

/// What is in flight, by class.
#[derive(Default)]
pub(crate) struct Lanes {
    active: Mutex<[u32; 4]>,
    freed: Condvar,
}

/// A share of a class's room in flight, given back when it is dropped.
pub(crate) struct Permit<'a> {
    lanes: &'a Lanes,
    class: Class,
    /// How much was granted, at least one.
    pub(crate) granted: u32,
}

impl Lanes {
    /// Waits until at least one I/O of `class` may start; grants up to `want`.
    ///
    /// Nobody starves: each class keeps some room whatever else is in flight.
    pub(crate) fn enter(&self, class: Class, want: usize) -> Permit<'_> {
        let c = class as usize;
        let mut active = self.active.lock();
        loop {
            let urgent = active[..c].iter().any(|n| *n > 0);
            let cap = if urgent { CAPS[c].1 } else { CAPS[c].0 };
            let room = cap.saturating_sub(active[c]);
            if room > 0 {
                let granted = room.min(want.max(1) as u32);
                active[c] += granted;
                return Permit { lanes: self, class, granted };
            }
            self.freed.wait(&mut active);
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut active = self.lanes.active.lock();
        active[self.class as usize] -= self.granted;
        drop(active);
        self.lanes.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_writes_make_way_for_the_journal() {
        let lanes = Lanes::default();
        assert_eq!(lanes.enter(Class::Background, 100).granted, 32);
        let journal = lanes.enter(Class::Journal, 1);
        let few = lanes.enter(Class::Background, 100);
        assert_eq!(few.granted, 4);
        std::thread::scope(|s| {
            let more = s.spawn(|| lanes.enter(Class::Background, 100).granted);
            // It gets room only once the journal's write or the few are done.
            while lanes.active.try_lock().is_none_or(|a| a[0] != 1) {}
            assert!(!more.is_finished());
            drop(journal);
            assert_eq!(more.join().ok(), Some(28));
        });
        drop(few);
        assert_eq!(*lanes.active.lock(), [0; 4]);
    }
}
