//! Waking workers that look for something to do.

use crate::explored::atomic::{AtomicBool, Ordering};
use crate::explored::{Condvar, Mutex, MutexGuard, wait};

/// Workers that sleep while there is nothing to do, and what they keep about it.
///
/// 1. Whoever has made something to do asks after that; a worker takes the wish back before it looks. So either it sees what there
///    is, or it is woken.
/// 2. Who asks while a wish is there wakes nobody: a worker that is awake has not looked yet.
/// 3. A worker that found something wakes another: there may be more.
#[derive(Debug, Default)]
pub struct Kick<S> {
    asked: AtomicBool,
    stopped: AtomicBool,
    state: Mutex<S>,
    work: Condvar,
}

impl<S> Kick<S> {
    /// Nobody has asked for anything yet.
    pub fn new(state: S) -> Kick<S> {
        Kick { asked: AtomicBool::new(false), stopped: AtomicBool::new(false), state: Mutex::new(state), work: Condvar::new() }
    }

    /// What the workers keep.
    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// There may be something to do: wakes the workers, unless somebody has asked and nobody has looked since.
    pub fn ask(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            drop(self.state.lock());
            self.work.notify_all();
        }
    }

    /// Nobody is to begin anything any more.
    pub fn stop(&self) {
        let s = self.state.lock();
        self.stopped.store(true, Ordering::Release);
        drop(s);
        self.work.notify_all();
    }

    /// True after [`Kick::stop`]; whoever has locked what the workers keep sees no change of it.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits until `look` finds something to do; `None` if the workers are to end.
    pub fn next<T>(&self, mut look: impl FnMut(&mut S) -> Option<T>) -> Option<T> {
        let mut s = self.state.lock();
        while !self.is_stopped() {
            let late = late();
            if !late {
                self.asked.swap(false, Ordering::AcqRel);
            }
            if let Some(found) = look(&mut s) {
                self.work.notify_one();
                return Some(found);
            }
            if late {
                self.asked.swap(false, Ordering::AcqRel);
            }
            wait(&self.work, &mut s);
        }
        None
    }
}

/// The switch that breaks rule 1: the wish is taken back after the look.
#[cfg(uxfs_holes)]
pub mod holes {
    pub(super) static LATE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

    /// Switches it.
    pub fn look_before_clearing(yes: bool) {
        LATE.store(yes, std::sync::atomic::Ordering::Relaxed);
    }
}

fn late() -> bool {
    #[cfg(uxfs_holes)]
    return holes::LATE.load(Ordering::Relaxed);
    #[cfg(not(uxfs_holes))]
    false
}
