//! One lock around everything, as it was before there were finer ones: to compare with, and to tell whether an error is one of locking.
//!
//! 1. Whoever runs an operation of the volume, or works for it, holds it; but nobody while waiting: [`blocking`](crate::blocking)
//!    gives it up and takes it back, however deep in operations that call others.
//! 2. A lock that somebody may keep across a wait is itself waited for so ([`lock`], [`contended`]). What is left is held for moments, by
//!    threads that wait for nothing meanwhile.
//! 3. Who wakes up at a condition takes this lock back before the condition's own.

use crate::{Held, Hold, linger};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What operations exclude.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpLock {
    /// All others of the process, on whatever volume.
    Process,
    /// All others on the same volume.
    Volume,
    /// Those that meet at the same inode, group, buffer or range.
    #[default]
    Fine,
}

crate::named!(OpLock { Process = "process", Volume = "volume", Fine = "fine" });

/// How often a lock was taken, how often it had to be waited for, and how long it was waited for and held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Times that it was taken, or taken back.
    pub taken: u64,
    /// Times that it was not free.
    pub waits: u64,
    /// Waited for, in all.
    pub waited: Duration,
    /// Held, in all.
    pub held: Duration,
}

#[derive(Debug, Default)]
struct Counted {
    taken: AtomicU64,
    waits: AtomicU64,
    waited: AtomicU64,
    held: AtomicU64,
}

impl Counted {
    const fn new() -> Counted {
        Counted { taken: AtomicU64::new(0), waits: AtomicU64::new(0), waited: AtomicU64::new(0), held: AtomicU64::new(0) }
    }
    fn waited<T>(&self, wait: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let t = wait();
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.waited.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        t
    }
    fn get(&self) -> Waits {
        let n = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let time = |a: &AtomicU64| Duration::from_nanos(n(a));
        Waits { taken: n(&self.taken), waits: n(&self.waits), waited: time(&self.waited), held: time(&self.held) }
    }
}

#[derive(Debug, Default)]
struct Big {
    lock: Hold,
    counted: Counted,
}

impl Big {
    fn take(&self) -> (Held, Instant) {
        self.counted.taken.fetch_add(1, Ordering::Relaxed);
        let held = match self.lock.try_lock() {
            Some(h) => h,
            None => self.counted.waited(|| self.lock.lock_as_it_is()),
        };
        (held, Instant::now())
    }
}

/// What a thread has entered.
struct Mine {
    big: Arc<Big>,
    /// Operations that called each other.
    depth: usize,
    /// `None` while it waits.
    held: Option<(Held, Instant)>,
}

impl Mine {
    /// Lets the lock go, if it is held.
    fn release(&mut self) {
        if let Some((lock, since)) = self.held.take() {
            self.big.counted.held.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
            drop(lock);
        }
    }
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

/// Somebody chose a lock around everything, ever.
static USED: AtomicBool = AtomicBool::new(false);
/// Waits for locks that may be kept across waits, of all volumes.
static CONTENDED: Counted = Counted::new();

/// The lock around everything of a volume, if it has one.
#[derive(Clone, Debug, Default)]
pub struct Op(Option<Arc<Big>>);

/// Proof that an operation runs; over when dropped.
#[must_use]
pub struct Entered {
    /// What the thread was in before, if that was another lock's; `None` if there is no lock.
    entered: Option<Option<GivenUp>>,
}

/// The lock, given up for a while; taken back when dropped.
#[must_use]
pub(crate) struct GivenUp(Option<Mine>);

impl Op {
    /// The lock that `how` asks for.
    pub fn new(how: OpLock) -> Op {
        static PROCESS: OnceLock<Arc<Big>> = OnceLock::new();
        let big = match how {
            OpLock::Process => Some(PROCESS.get_or_init(Arc::default).clone()),
            OpLock::Volume => Some(Arc::default()),
            OpLock::Fine => None,
        };
        USED.fetch_or(big.is_some(), Ordering::Relaxed);
        Op(big)
    }

    /// Begins an operation; one may call another.
    pub fn enter(&self) -> Entered {
        let Some(big) = &self.0 else { return Entered { entered: None } };
        let deeper = MINE.with_borrow_mut(|m| match m {
            Some(m) if Arc::ptr_eq(&m.big, big) => {
                m.depth += 1;
                true
            }
            _ => false,
        });
        let before = if deeper { None } else { give_up() };
        if !deeper {
            let mine = Mine { big: big.clone(), depth: 1, held: Some(big.take()) };
            MINE.with_borrow_mut(|m| *m = Some(mine));
        }
        Entered { entered: Some(before) }
    }

    /// What is known of it.
    pub fn waits(&self) -> Waits {
        self.0.as_ref().map(|b| b.counted.get()).unwrap_or_default()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let Some(before) = self.entered.take() else { return };
        let left = MINE.with_borrow_mut(|m| {
            let mine = m.as_mut()?;
            mine.depth -= 1;
            if mine.depth == 0 { m.take() } else { None }
        });
        if let Some(mut mine) = left {
            mine.release();
        }
        drop(before);
    }
}

/// Gives up what the calling thread holds, if it holds anything.
pub(crate) fn give_up() -> Option<GivenUp> {
    if !USED.load(Ordering::Relaxed) {
        return None;
    }
    let mut mine = MINE.with_borrow_mut(|m| m.take())?;
    mine.release();
    Some(GivenUp(Some(mine)))
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some(mut mine) = self.0.take() {
            mine.held = Some(mine.big.take());
            MINE.with_borrow_mut(|m| *m = Some(mine));
        }
    }
}

/// Runs `copy`, which hands something to a client, without the lock around everything.
pub fn without_op<T>(copy: impl FnOnce() -> T) -> T {
    let _given_up = give_up();
    copy()
}

/// Waits for a lock that was not free, and that somebody may keep across a wait.
pub fn contended<T>(lock: impl FnOnce() -> T) -> T {
    crate::blocking(|| CONTENDED.waited(lock))
}

/// Takes a lock that somebody may keep across a wait.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    linger();
    m.try_lock().unwrap_or_else(|| contended(|| m.lock()))
}

/// The same, shared.
pub fn lock_shared<T>(m: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    linger();
    m.try_read().unwrap_or_else(|| contended(|| m.read()))
}

/// The same, alone.
pub fn lock_alone<T>(m: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    linger();
    m.try_write().unwrap_or_else(|| contended(|| m.write()))
}

/// The same, where the wait is one at a condition.
pub(crate) fn counted<T>(wait: impl FnOnce() -> T) -> T {
    CONTENDED.waited(wait)
}

/// Waits for such locks so far, of the whole process.
pub fn contention() -> Waits {
    CONTENDED.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Condvar;
    use std::sync::atomic::AtomicUsize;

    /// Threads in operations that call others, wait, meet at a condition and at another volume: at most one is in each lock's.
    #[test]
    fn one_is_inside_and_nobody_waits_there() {
        for how in [OpLock::Process, OpLock::Volume] {
            let volumes = [Op::new(how), Op::new(how)];
            let inside = [AtomicUsize::new(0), AtomicUsize::new(0)];
            let shared = Arc::new((Mutex::new(0u64), Condvar::new()));
            let alone = |v: usize| {
                let n = if how == OpLock::Process { 0 } else { v };
                assert_eq!(inside[n].fetch_add(1, Ordering::SeqCst), 0, "{how}");
                std::hint::spin_loop();
                inside[n].fetch_sub(1, Ordering::SeqCst);
            };
            std::thread::scope(|s| {
                for t in 0..6u64 {
                    let (volumes, shared, alone) = (&volumes, shared.clone(), &alone);
                    s.spawn(move || {
                        for n in 0..400u64 {
                            let v = ((t + n) % 2) as usize;
                            let _op = volumes[v].enter();
                            alone(v);
                            {
                                let _inner = volumes[v].enter();
                                crate::blocking(std::thread::yield_now);
                                alone(v);
                            }
                            // Each waits for somebody else to come by, with the condition's lock, which all take.
                            let mut g = shared.0.lock();
                            *g += 1;
                            shared.1.notify_all();
                            crate::explored::wait_for(&shared.1, &mut g, Duration::from_micros(50));
                            drop(g);
                            alone(v);
                            if n % 7 == 0 {
                                let _other = volumes[1 - v].enter();
                                alone(1 - v);
                            }
                            alone(v);
                        }
                    });
                }
            });
            assert!(volumes[0].waits().taken > 1000);
            // On a busy machine they may never have met.
            while volumes[0].waits().waits == 0 {
                let taken = volumes[0].waits().taken;
                std::thread::scope(|s| {
                    let inside = volumes[0].enter();
                    s.spawn(|| drop(volumes[0].enter()));
                    while volumes[0].waits().taken < taken + 2 {
                        std::thread::yield_now();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    drop(inside);
                });
            }
        }
        let _fine = Op::new(OpLock::Fine).enter();
        assert!(give_up().is_none());
    }
}
