//! Locks that outlive a scope, locks of ranges, the lock around everything, locks whose schedules can be explored, the blocking hook,
//! clock, chance, and choices that have names.
//!
//! Every wait of the engine (device, log space, a force, a throttle) goes through [`blocking`], so that a front end can
//! let another thread take over while this one waits.

pub mod explored;
mod kick;
mod linger;
mod named;
mod oplock;
mod range;
mod workers;

pub use kick::Kick;
#[cfg(uxfs_holes)]
pub use kick::holes::look_before_clearing;
pub use linger::linger;
#[cfg(uxfs_holes)]
pub use linger::one_in as linger_one_in;
pub use oplock::{Entered, Op, OpLock, Waits, contended, contention, lock, lock_alone, lock_shared, without_op};
#[cfg(uxfs_holes)]
pub use range::holes::forget_the_queue;
pub use range::{RangeGuard, RangeLock, SEGMENT};
pub use workers::{Workers, on_any_cpu};

use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a front end does around a wait, and while much is done.
pub trait BlockingHook: Send + Sync {
    /// The calling thread is about to wait.
    fn enter(&self);
    /// It runs again.
    fn leave(&self);
    /// It goes on with the next of what may be many steps, none of which waits.
    fn step(&self) {}
}

static HOOK: OnceLock<Box<dyn BlockingHook>> = OnceLock::new();

/// Installs the hook of this process; the first one stays.
pub fn install_blocking_hook(hook: Box<dyn BlockingHook>) {
    let _ = HOOK.set(hook);
}

/// Runs `wait`, which may block, with the front end's hook around it, and without the lock around everything ([`OpLock`]).
pub fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    let _given_up = oplock::give_up();
    hooked(wait)
}

/// Tells the front end of one more step of what may be many: a transaction.
pub fn step() {
    linger();
    if let Some(h) = HOOK.get() {
        h.step();
    }
}

/// Runs `wait` with the front end's hook around it.
fn hooked<T>(wait: impl FnOnce() -> T) -> T {
    struct Leave<'a>(&'a dyn BlockingHook);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.leave();
        }
    }
    let _leave = HOOK.get().map(|h| {
        h.enter();
        Leave(h.as_ref())
    });
    let t = wait();
    linger();
    t
}

/// A lock that is held across functions and threads: a transaction keeps it until it commits.
///
/// It guards an order of events, not memory; the memory has a short latch of its own.
#[derive(Debug, Default)]
pub struct Hold(Arc<Mutex<()>>);

/// Proof that a [`Hold`] is held; given up when dropped.
pub type Held = ArcMutexGuard<RawMutex, ()>;

impl Hold {
    /// Waits for the lock.
    pub fn lock(&self) -> Held {
        linger();
        match self.0.try_lock_arc() {
            Some(h) => h,
            None => contended(|| self.0.lock_arc()),
        }
    }
    /// Waits for the lock, whatever the thread holds.
    fn lock_as_it_is(&self) -> Held {
        self.0.lock_arc()
    }
    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Held> {
        self.0.try_lock_arc()
    }
    /// True while somebody holds it.
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

/// The time of day, as a handle: tests and reproducible builds bring their own.
pub trait Clock: Send + Sync {
    /// Seconds from 1970 and nanoseconds.
    fn now(&self) -> (i64, u32);
}

/// The host's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct HostClock;

impl Clock for HostClock {
    fn now(&self) -> (i64, u32) {
        let d = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        (d.as_secs() as i64, d.subsec_nanos())
    }
}

/// A clock that stands still, for volumes that must come out the same.
#[derive(Debug, Clone, Copy)]
pub struct FixedClock(pub i64);

impl Clock for FixedClock {
    fn now(&self) -> (i64, u32) {
        (self.0, 0)
    }
}

/// Chance as a handle: a small generator (splitmix64) from a seed.
#[derive(Debug)]
pub struct Chance(AtomicU64);

impl Chance {
    /// Starts from `seed`; the same seed gives the same numbers.
    pub fn seeded(seed: u64) -> Self {
        Chance(AtomicU64::new(seed))
    }
    /// The next number.
    pub fn next_u64(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// The next number below `n`, which is not 0.
    pub fn below(&self, n: u64) -> u64 {
        self.next_u64() % n.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_outlives_the_function_that_took_it() {
        let h = Hold::default();
        let held = h.lock();
        assert!(h.try_lock().is_none());
        std::thread::scope(|s| {
            s.spawn(move || drop(held));
        });
        assert!(h.try_lock().is_some());
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (a, b) = (Chance::seeded(7), Chance::seeded(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
    }
}
