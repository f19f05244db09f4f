//! A queue of those who wait for something under a lock: served in order, newcomers behind those who wait.

use crate::{JournalError, Shutdown};
use std::collections::VecDeque;
use uxfs_sync::explored::{Condvar, Mutex, MutexGuard, wait};

/// The queue, kept beside what is waited for.
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiting: VecDeque<u64>,
    last: u64,
}

impl Line {
    /// True if nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// What is waited for, and how.
pub(crate) struct Wanted<'a, S> {
    /// The queue in what the lock guards.
    pub(crate) line: &'a dyn Fn(&mut S) -> &mut Line,
    /// True if the first in the queue may go on.
    pub(crate) fits: &'a dyn Fn(&S) -> bool,
    /// Called before waiting, without the lock: asks for what is missing.
    pub(crate) ask: &'a dyn Fn(),
    /// Called once if it has to wait.
    pub(crate) waits: &'a dyn Fn(),
}

/// Returns with the lock when it is this caller's turn and `fits` holds.
///
/// # Errors
/// The volume is shut down.
pub(crate) fn wait_in_line<'m, S>(
    lock: &'m Mutex<S>,
    changed: &Condvar,
    shutdown: &Shutdown,
    w: &Wanted<'_, S>,
) -> Result<MutexGuard<'m, S>, JournalError> {
    let mut s = lock.lock();
    if (w.line)(&mut s).is_empty() && (w.fits)(&s) {
        return Ok(s);
    }
    (w.waits)();
    let line = (w.line)(&mut s);
    line.last += 1;
    let me = line.last;
    line.waiting.push_back(me);
    let mut asked = false;
    let res = loop {
        if (w.line)(&mut s).waiting.front() == Some(&me) && (w.fits)(&s) {
            break Ok(());
        }
        if let Err(e) = shutdown.check() {
            break Err(e);
        }
        // Asked before every wait, and looked again after asking: what changed meanwhile woke nobody.
        if asked {
            wait(changed, &mut s);
        } else {
            drop(s);
            (w.ask)();
            s = lock.lock();
        }
        asked = !asked;
    };
    (w.line)(&mut s).waiting.retain(|n| *n != me);
    changed.notify_all();
    res.map(|()| s)
}
