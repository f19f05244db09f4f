//! Locks, threads and channels whose schedules a test can choose: parking_lot's and the standard ones, or, under
//! `--cfg uxfs_shuttle`, those of shuttle.
//!
//! Under shuttle no wait ends by itself: a wake-up that gets lost is a deadlock, which it finds.

use std::time::Duration;

#[cfg(not(uxfs_shuttle))]
mod real {
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
    use std::io;
    pub use std::sync::{atomic, mpsc};
    pub use std::thread;
    use std::thread::{Scope, ScopedJoinHandle};

    /// Runs `f` while the lock is free.
    pub(super) fn unlocked<T>(g: &mut MutexGuard<'_, T>, f: impl FnOnce()) {
        MutexGuard::unlocked(g, f);
    }

    /// Starts a thread that ends with the scope.
    ///
    /// # Errors
    /// The host has none.
    pub fn spawn_scoped<'s, T: Send + 's>(
        s: &'s Scope<'s, '_>,
        name: &str,
        f: impl FnOnce() -> T + Send + 's,
    ) -> io::Result<ScopedJoinHandle<'s, T>> {
        thread::Builder::new().name(name.into()).spawn_scoped(s, f)
    }
}
#[cfg(uxfs_shuttle)]
mod shuttled;

#[cfg(not(uxfs_shuttle))]
pub use real::*;
#[cfg(uxfs_shuttle)]
pub use shuttled::*;

/// How long a wait lasts before what it waits for is looked at again: should a wake-up ever get lost, it costs no more.
const RECHECK: Duration = Duration::from_millis(50);

/// Waits until it is woken.
pub fn wait<T>(c: &Condvar, g: &mut MutexGuard<'_, T>) {
    wait_for(c, g, RECHECK);
}

/// Waits until it is woken, or for a time.
pub fn wait_for<T>(c: &Condvar, g: &mut MutexGuard<'_, T>, time: Duration) {
    let given_up = crate::oplock::give_up();
    crate::hooked(|| c.wait_for(g, time));
    // Who has the lock around everything may want the one that was waited with.
    if let Some(back) = given_up {
        unlocked(g, || drop(back));
    }
}

/// Wakes all who wait for a change of what `m` guards, also one who has just looked and is about to wait.
pub fn notify<T>(m: &Mutex<T>, c: &Condvar) {
    drop(m.lock());
    c.notify_all();
}

/// Lets others run for a while.
pub fn pause(time: Duration) {
    #[cfg(not(uxfs_shuttle))]
    crate::blocking(|| thread::sleep(time));
    #[cfg(uxfs_shuttle)]
    {
        let _ = time;
        thread::yield_now();
    }
}
