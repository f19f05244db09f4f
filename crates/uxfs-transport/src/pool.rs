//! Threads for what waits long, started as they are needed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// Most threads: as many fsyncs wait together.
const MOST: usize = 128;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stop: bool,
}

/// A pool that grows while all its threads wait.
#[derive(Default)]
pub struct Pool {
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Pool {
    /// Runs `job` on some thread, soon.
    pub fn run(&self, job: Job) {
        let (state, wake) = &*self.shared;
        let mut s = state.lock().unwrap_or_else(PoisonError::into_inner);
        s.jobs.push_back(job);
        if s.idle >= s.jobs.len() || s.threads >= MOST {
            wake.notify_one();
            return;
        }
        s.threads += 1;
        drop(s);
        let shared = self.shared.clone();
        if std::thread::Builder::new().name("uxfs-fsync".into()).spawn(move || work(&shared)).is_err() {
            // No thread to be had: what waits is done here, so that it is done at all.
            let (state, _) = &*self.shared;
            let mut s = state.lock().unwrap_or_else(PoisonError::into_inner);
            s.threads -= 1;
            let job = s.jobs.pop_front();
            drop(s);
            if let Some(j) = job {
                j();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.1.notify_all();
    }
}

fn work(shared: &(Mutex<State>, Condvar)) {
    let (state, wake) = shared;
    let mut s = state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = s.jobs.pop_front() {
            drop(s);
            job();
            s = state.lock().unwrap_or_else(PoisonError::into_inner);
        } else if s.stop {
            return;
        } else {
            s.idle += 1;
            s = wake.wait(s).unwrap_or_else(PoisonError::into_inner);
            s.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        let (pool, barrier) = (Pool::default(), Arc::new(Barrier::new(9)));
        let (tx, rx) = channel();
        for _ in 0..8 {
            let (b, tx) = (barrier.clone(), tx.clone());
            pool.run(Box::new(move || {
                b.wait();
                let _ = tx.send(());
            }));
        }
        barrier.wait();
        assert_eq!((0..8).filter_map(|_| rx.recv().ok()).count(), 8);
    }
}
