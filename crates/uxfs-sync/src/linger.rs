//! Moments between a look and the lock that follows, made long.
//!
//! Whoever looks at something and then locks it must look again: between the two, others may have done anything. Mostly they have not,
//! for it is microseconds. With `--cfg uxfs_holes`, one in [`one_in`] of these moments lasts up to a millisecond, so that what a year of
//! use may meet once is met within a test; `UXFS_LINGER=n` in the environment does that to any test.

/// The moment before a lock is taken, or after a wait.
#[inline]
pub fn linger() {
    #[cfg(uxfs_holes)]
    switched::linger();
}

#[cfg(uxfs_holes)]
pub use switched::one_in;

#[cfg(uxfs_holes)]
mod switched {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// One of how many moments lasts; 0 if none does.
    static ONE_IN: LazyLock<AtomicU64> = LazyLock::new(|| {
        let asked = std::env::var("UXFS_LINGER").ok().and_then(|n| n.parse().ok());
        AtomicU64::new(asked.unwrap_or(0))
    });
    static CHANCE: LazyLock<crate::Chance> = LazyLock::new(|| crate::Chance::seeded(u64::from(std::process::id())));

    /// Lets one of `n` moments last; 0 for none.
    pub fn one_in(n: u64) {
        ONE_IN.store(n, Ordering::Relaxed);
    }

    pub fn linger() {
        let n = ONE_IN.load(Ordering::Relaxed);
        if n > 0 && CHANCE.below(n) == 0 {
            std::thread::sleep(Duration::from_micros(CHANCE.below(1000)));
        }
    }
}
