//! The range lock and the workers' kick under every order of its threads' steps that a schedule explorer tries. Built only with
//! `--cfg uxfs_holes --cfg uxfs_shuttle`, in a target folder of its own: see `cargo xtask holes`.
#![cfg(all(uxfs_holes, uxfs_shuttle))]

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::{Config, MaxSteps, Runner, thread};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use uxfs_sync::{Kick, RangeLock, forget_the_queue, look_before_clearing};

const MIB: u64 = 1 << 20;

fn explore(body: fn()) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(20_000);
    config.failure_persistence = shuttle::FailurePersistence::None;
    Runner::new(RandomScheduler::new_from_seed(1, 10_000), config.clone()).run(body);
    Runner::new(PctScheduler::new_from_seed(1, 3, 10_000), config).run(body);
}

/// Ranges in one segment, over several and of everything, in four threads: whoever writes is alone in each MiB of its range.
fn ranges_exclude_each_other() {
    const RANGES: [(u64, u64, bool); 8] =
        [(0, 1, false), (0, 2, true), (1, 3, false), (0, 8, true), (2, 8, false), (5, 6, false), (0, 0, false), (6, 0, false)];
    let lock = Arc::new((RangeLock::default(), [const { AtomicUsize::new(0) }; 8]));
    let work = |t: usize| {
        let lock = lock.clone();
        move || {
            for n in 0..2 {
                let (from, to, shared) = RANGES[(3 * t + 5 * n) % RANGES.len()];
                let end = if to == 0 { u64::MAX } else { to * MIB };
                let _g = if shared { lock.0.read(from * MIB..end) } else { lock.0.write(from * MIB..end) };
                let marks = &lock.1[from as usize..if to == 0 { 8 } else { to as usize }];
                for m in marks {
                    let found = m.fetch_add(if shared { 2 } else { 1 }, Ordering::SeqCst);
                    assert!(if shared { found & 1 == 0 } else { found == 0 });
                }
                for m in marks {
                    m.fetch_sub(if shared { 2 } else { 1 }, Ordering::SeqCst);
                }
            }
        }
    };
    let threads: Vec<_> = (0..4).map(|t| thread::spawn(work(t))).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn everybody_gets_its_range_and_no_other() {
    explore(ranges_exclude_each_other);
    forget_the_queue(true);
    let found = catch_unwind(AssertUnwindSafe(|| explore(ranges_exclude_each_other)));
    forget_the_queue(false);
    assert!(found.is_err(), "a holder that forgets who waits is not found");
}

/// Two make things to do, others do them: none is left behind.
fn all_that_is_asked_for_is_done(workers: usize) {
    const THINGS: usize = 2;
    let shared = Arc::new((Kick::new(0), AtomicUsize::new(0)));
    let makers = (0..2).map(|_| {
        let shared = shared.clone();
        thread::spawn(move || {
            for _ in 0..THINGS {
                shared.1.fetch_add(1, Ordering::SeqCst);
                shared.0.ask();
            }
        })
    });
    let workers = (0..workers).map(|_| {
        let shared = shared.clone();
        thread::spawn(move || {
            // Each takes one thing at a time; who takes the last one ends them all.
            let look = |taken: &mut usize| {
                shared.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).ok()?;
                *taken += 1;
                Some(*taken == 2 * THINGS)
            };
            while let Some(last) = shared.0.next(look) {
                if last {
                    shared.0.stop();
                }
            }
        })
    });
    let all: Vec<_> = makers.chain(workers).collect();
    all.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn no_kick_is_lost() {
    explore(|| all_that_is_asked_for_is_done(1));
    explore(|| all_that_is_asked_for_is_done(2));
    look_before_clearing(true);
    let found = catch_unwind(AssertUnwindSafe(|| explore(|| all_that_is_asked_for_is_done(1))));
    look_before_clearing(false);
    assert!(found.is_err(), "a worker that forgets a wish after its look is not found");
}
