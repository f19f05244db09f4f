//! Threads that end before what they work for does.

use crate::explored::Mutex;
use crate::explored::thread::{self, JoinHandle};
use std::sync::OnceLock;

/// Lets the calling thread run on every CPU that its process may use: it has inherited its place from whoever started it, which may be
/// bound to the CPU of those whose requests it answers.
pub fn on_any_cpu() {
    let all = rustix::thread::sched_getaffinity(Some(rustix::process::getpid()));
    // Where the host refuses, it works where it is.
    let _ = all.and_then(|cpus| rustix::thread::sched_setaffinity(None, &cpus));
}

/// Threads that work for a volume.
#[derive(Default)]
pub struct Workers {
    begun: OnceLock<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts one, if the host has a thread.
    pub fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) {
        let in_any_place = || {
            on_any_cpu();
            work();
        };
        self.threads.lock().extend(thread::Builder::new().name(name.into()).spawn(in_any_place).ok());
    }

    /// Starts some that are alike, when this is called first.
    pub fn begin<W: FnOnce() + Send + 'static>(&self, count: usize, name: &str, work: impl Fn() -> W) {
        self.begun.get_or_init(|| (0..count).for_each(|n| self.start(&format!("{name}{n}"), work())));
    }

    /// True if none was started, or all were waited for.
    pub fn is_empty(&self) -> bool {
        self.threads.lock().is_empty()
    }

    /// Waits until they have ended, but for the calling one. Somebody has told them to.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = thread::current().id();
        for t in threads.into_iter().filter(|t| t.thread().id() != me) {
            let _ = t.join();
        }
    }
}

#[cfg(all(test, not(uxfs_shuttle)))]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    #[test]
    fn a_worker_is_not_bound_to_where_it_was_started() {
        let all = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|n| all.is_set(*n)).unwrap();
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &one).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let workers = Workers::default();
        workers.start("worker", move || tell.send(sched_getaffinity(None).unwrap()).unwrap());
        workers.join();
        assert!(told.recv().unwrap() == all);
    }
}
