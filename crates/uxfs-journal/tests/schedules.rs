//! Threads in any order, as a schedule chooses: everybody who waits goes on in the end, and each rule that sees to that is missed when
//! it is switched off. Built only with `--cfg uxfs_holes --cfg uxfs_shuttle`, in a target folder of its own: see `cargo xtask holes`.
#![cfg(all(uxfs_holes, uxfs_shuttle))]

mod common;

use common::{Thing, geometry};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner, thread};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use uxfs_device::{DeviceRef, Faulty, Memory};
use uxfs_format::Lsn;
use uxfs_journal::*;

/// The switches are the whole process's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Schedules a test: 2 000, or ten times that with `UXFS_LONG`.
fn schedules() -> usize {
    if std::env::var_os("UXFS_LONG").is_some() { 20_000 } else { 2000 }
}

/// Runs a body under many schedules: half by chance, half with few changes of who goes first. A deadlock and a body that does not end panic.
fn explore(body: fn(), schedules: usize) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(100_000);
    config.failure_persistence = shuttle::FailurePersistence::None;
    Runner::new(RandomScheduler::new_from_seed(1, schedules / 2), config.clone()).run(body);
    Runner::new(PctScheduler::new_from_seed(1, 3, schedules / 2), config).run(body);
}

/// True if some schedule of the body does not end with the rule off.
fn is_missed(rule: Hole, body: fn()) -> bool {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    set_hole(rule, true);
    let res = catch_unwind(AssertUnwindSafe(|| explore(body, schedules())));
    set_hole(rule, false);
    res.is_err()
}

const FIRST: Lsn = Lsn(1 << 32);
/// Bytes of the log where it is to be short.
const SHORT: u64 = 96 << 10;

fn start(log: u64, cfg: JournalConfig) -> Arc<Journal> {
    let dev: DeviceRef = Arc::new(Memory::new(log + 64 * 512));
    Journal::start(dev.clone(), dev, geometry(log), JournalConfig { bufsize: 16 << 10, buffers: 2, ..cfg }, FIRST, FIRST)
}

/// What was waited for under all schedules of a body so far: log space, memory, a checkpoint that is too large, metadata on its way home.
static WAITED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

fn stop(j: &Arc<Journal>) {
    let s = j.stats();
    for (sum, n) in WAITED.iter().zip([s.sleep_logspace, s.sleep_budget, s.throttled, s.sleep_dirty]) {
        sum.fetch_add(n, Ordering::Relaxed);
    }
    j.stop();
}

/// Threads that each commit `rounds` versions of a thing of their own and force every `every`th.
fn threads(j: &Arc<Journal>, log: u64, n: u64, rounds: u64, bytes: usize, every: u64) {
    let all: Vec<_> = (0..n)
        .map(|t| {
            let j = j.clone();
            thread::spawn(move || -> Result<(), JournalError> {
                let thing = Thing::new(&j, log, t);
                for v in 1..=rounds {
                    let mut ticket = j.reserve(bytes as u64 + 100, 1)?;
                    let seq = j.commit(&mut ticket, thing.commit(v, bytes));
                    j.release(ticket);
                    if v % every == 0 {
                        j.force(seq)?;
                    }
                }
                Ok(())
            })
        })
        .collect();
    for t in all {
        if let Err(e) = t.join().unwrap() {
            assert!(j.shutdown.reason().is_some(), "{e}");
        }
    }
}

/// Some force at once, and share what others began.
fn forces() {
    let j = start(512 << 10, JournalConfig::default());
    threads(&j, 512 << 10, 3, 2, 600, 1);
    stop(&j);
}

/// The log has room for few of them.
fn a_full_log() {
    let j = start(SHORT, JournalConfig::default());
    threads(&j, SHORT, 2, 3, 20 << 10, 9);
    stop(&j);
}

/// One thread that leaves no room for itself.
fn a_log_full_of_one() {
    let j = start(SHORT, JournalConfig::default());
    threads(&j, SHORT, 1, 4, 30 << 10, 1);
    stop(&j);
}

/// What lies at the tail is in the open checkpoint again, which nobody writes for its own sake.
fn pinned_at_the_tail() {
    let j = start(SHORT, JournalConfig::default());
    let things: Vec<_> = (0..2).map(|n| Thing::new(&j, SHORT, n)).collect();
    for (thing, bytes, force) in [(0, 40 << 10, true), (1, 10 << 10, true), (0, 4 << 10, false), (1, 44 << 10, false)] {
        let mut ticket = j.reserve(bytes as u64 + 100, 1).unwrap();
        let seq = j.commit(&mut ticket, things[thing].commit(1, bytes));
        j.release(ticket);
        if force {
            j.force(seq).unwrap();
        }
    }
    stop(&j);
}

/// Memory for few of them.
fn a_small_budget() {
    let j = start(512 << 10, JournalConfig { budget: 32 << 10, ..JournalConfig::default() });
    threads(&j, 512 << 10, 3, 3, 3 << 10, 9);
    stop(&j);
}

/// Checkpoints of which each is over its limit.
fn throttled() {
    let j = start(SHORT, JournalConfig { limit: CheckpointLimit::Window, ..JournalConfig::default() });
    threads(&j, SHORT, 3, 3, 14 << 10, 9);
    stop(&j);
}

/// Memory for two of them that are not home.
fn little_memory_for_what_is_not_home() {
    let j = start(512 << 10, JournalConfig { dirty: 512, ..JournalConfig::default() });
    let things: Vec<_> = (0..6).map(|n| Thing::new(&j, 512 << 10, n)).collect();
    let all: Vec<_> = things
        .chunks(2)
        .map(|own| {
            let (j, own) = (j.clone(), own.to_vec());
            thread::spawn(move || {
                for v in 1..=2 {
                    for t in &own {
                        let mut ticket = j.reserve(700, 1).unwrap();
                        let seq = j.commit(&mut ticket, t.commit(v, 600));
                        j.release(ticket);
                        j.force(seq).unwrap();
                    }
                }
            })
        })
        .collect();
    all.into_iter().for_each(|t| t.join().unwrap());
    stop(&j);
}

/// A device that fails somewhere on the way.
fn a_device_that_fails() {
    let memory: DeviceRef = Arc::new(Memory::new(SHORT + 64 * 512));
    let faulty = Arc::new(Faulty::new(memory, i64::MAX));
    let dev: DeviceRef = faulty.clone();
    let cfg = JournalConfig { bufsize: 16 << 10, buffers: 2, budget: 64 << 10, ..JournalConfig::default() };
    let j = Journal::start(dev.clone(), dev, geometry(SHORT), cfg, FIRST, FIRST);
    let breaker = thread::spawn(move || faulty.allow(0));
    threads(&j, SHORT, 3, 3, 14 << 10, 2);
    breaker.join().unwrap();
    stop(&j);
}

/// Somebody else gives up while others work.
fn somebody_who_fails() {
    let j = start(SHORT, JournalConfig { budget: 64 << 10, ..JournalConfig::default() });
    let other = j.clone();
    let breaker = thread::spawn(move || other.fail("enough"));
    threads(&j, SHORT, 2, 3, 14 << 10, 2);
    breaker.join().unwrap();
    stop(&j);
}

#[test]
fn every_wait_ends() {
    let bodies: [(fn(), Option<usize>); 9] = [
        (forces, None),
        (a_full_log, Some(0)),
        (a_log_full_of_one, Some(0)),
        (pinned_at_the_tail, Some(0)),
        (a_small_budget, Some(1)),
        (throttled, Some(2)),
        (little_memory_for_what_is_not_home, Some(3)),
        (a_device_that_fails, None),
        (somebody_who_fails, None),
    ];
    for (n, (body, waits_for)) in bodies.into_iter().enumerate() {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        WAITED.iter().for_each(|w| w.store(0, Ordering::Relaxed));
        explore(body, schedules());
        println!("body {n}: waits for space, memory, a checkpoint, metadata: {WAITED:?}");
        assert!(waits_for.is_none_or(|i| WAITED[i].load(Ordering::Relaxed) > schedules() as u64 / 10), "{WAITED:?}");
    }
}

/// Row 5: a force waited for a record that nobody released.
#[test]
fn a_force_that_only_waits_is_found() {
    assert!(is_missed(Hole::UnpushedForce, forces));
}

/// Row 6: a push waited for records that come after its own.
#[test]
fn a_wait_for_the_future_is_found() {
    assert!(is_missed(Hole::FutureWait, forces));
}

/// Row 9: the AIL waited for what was pinned, and nobody forced it.
#[test]
fn what_is_pinned_and_not_forced_is_found() {
    assert!(is_missed(Hole::PinnedNotForced, pinned_at_the_tail));
}

/// A tail that moved but that no record bears gives no space.
#[test]
fn a_silent_tail_is_found() {
    assert!(is_missed(Hole::SilentTail, a_log_full_of_one));
}

/// Memory came back, and those who waited for it were not woken.
#[test]
fn silent_durability_is_found() {
    assert!(is_missed(Hole::SilentDurability, a_small_budget));
}
