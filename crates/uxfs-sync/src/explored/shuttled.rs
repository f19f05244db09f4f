//! Shuttle's primitives as parking_lot's look: a lock cannot be poisoned, and a wait takes the guard by reference.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

pub use shuttle::sync::{atomic, mpsc};
pub use shuttle::thread;

/// No schedule has a lock around everything.
pub(super) fn unlocked<T>(_: &mut MutexGuard<'_, T>, f: impl FnOnce()) {
    f();
}

/// Starts a thread that ends with the scope.
///
/// # Errors
/// None.
pub fn spawn_scoped<'s, T: Send + 's>(
    s: &'s thread::Scope<'s, '_>,
    _: &str,
    f: impl FnOnce() -> T + Send + 's,
) -> std::io::Result<thread::ScopedJoinHandle<'s, T>> {
    Ok(s.spawn(f))
}

/// A lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// Proof that it is held. There is none inside only while a wait has it.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

/// What is waited at.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// A lock that many may hold together, or one alone.
#[derive(Debug, Default)]
pub struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock around `t`.
    pub fn new(t: T) -> RwLock<T> {
        RwLock(shuttle::sync::RwLock::new(t))
    }
    /// Waits until nobody has it alone.
    pub fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
    /// Waits until nobody has it.
    pub fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Mutex<T> {
    /// A lock around `t`.
    pub fn new(t: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(t))
    }
    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("no wait has it")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("no wait has it")
    }
}

impl Condvar {
    /// Nobody waits yet.
    pub fn new() -> Condvar {
        Condvar::default()
    }
    /// Waits until it is woken, however long that takes.
    pub fn wait_for<T>(&self, g: &mut MutexGuard<'_, T>, _: Duration) {
        let held = g.0.take().expect("no wait has it");
        g.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }
    /// Wakes one who waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
    /// Wakes all.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
