//! Threads that end before what they work for does.

use crate::explored::Mutex;
use crate::explored::thread::{self, JoinHandle};
use std::sync::OnceLock;

/// Threads that work for a volume.
#[derive(Default)]
pub struct Workers {
    begun: OnceLock<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts one, if the host has a thread.
    pub fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) {
        self.threads.lock().extend(thread::Builder::new().name(name.into()).spawn(work).ok());
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
