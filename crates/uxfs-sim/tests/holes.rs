//! Each ordering rule of the journal is switched off in turn, and the cuts are seen to find the damage. Built only with
//! `--cfg uxfs_holes`, in a target folder of its own: see `cargo xtask test`.
#![cfg(uxfs_holes)]

use parking_lot::Mutex;
use uxfs::{Hole, JournalConfig, JournalFlush, set_hole};
use uxfs_device::timed::{NVME, Timing};
use uxfs_sim::{Mix, Op, Plan, Shape, explore, replay, run, shrink};

const MIB: u64 = 1 << 20;
/// The switches are the whole process's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// True if some cut of some of the workloads does damage with the rule off.
fn found(hole: Hole, shape: impl Fn(u64) -> Shape, seeds: u64) -> bool {
    let _one = ONE_AT_A_TIME.lock();
    (0..seeds).any(|seed| {
        set_hole(hole, true);
        let j = run(&shape(seed));
        set_hole(hole, false);
        // Recovery runs with all rules on: it is the record that is broken.
        let Ok(j) = j else { return true };
        let f = explore(&j, &Plan { at_flushes: 60, between: 120, again: 0, seed, ..Plan::default() }).unwrap();
        if let Some(d) = f.damage.first() {
            println!("{hole:?}: {} of {} cuts, e.g. {}", f.damage.len(), f.cuts, d.1.lines().next().unwrap_or_default());
        }
        !f.damage.is_empty()
    })
}

/// Metadata goes home while a flush runs that does not cover it.
const SLOW: Timing = Timing { flush: 2000, ..NVME };

fn small(seed: u64) -> Shape {
    Shape { newest: seed % 2 == 1, seed, ..Shape::default() }
}

/// Wraps the smallest log, so that space is used again.
fn wrapping(seed: u64) -> Shape {
    Shape { agcount: 1, ops: 12_000, mix: Mix { data: 0, sync: 1, churn: true, clones: false }, seed, ..Shape::default() }
}

/// Many workers and few syncs: the first checkpoint fills several records, and the next begins while nothing is in the list yet.
fn crowded(seed: u64) -> Shape {
    Shape { workers: 6, ops: 150, mix: Mix { data: 0, sync: 2, churn: false, clones: false }, ..small(seed) }
}

#[test]
fn a_commit_record_that_does_not_flush_is_found() {
    assert!(found(Hole::CommitWithoutPreflush, small, 6));
}

#[test]
fn a_commit_record_that_is_not_durable_is_found() {
    assert!(found(Hole::CommitWithoutFua, small, 6));
}

#[test]
fn data_that_is_not_awaited_is_found() {
    assert!(found(Hole::DataNotAwaited, small, 6));
}

#[test]
fn blocks_that_are_used_again_too_early_are_found() {
    assert!(found(Hole::BusyReuse, small, 20));
}

#[test]
fn an_unstable_tail_is_found() {
    assert!(found(Hole::UnstableTail, wrapping, 20));
}

#[test]
fn a_tail_that_moves_before_the_items_are_in_is_found() {
    assert!(found(Hole::EmptyAilTail, crowded, 20));
}

#[test]
fn blocks_that_are_written_in_place_too_early_are_found() {
    let sharing = |seed| Shape { mix: Mix { data: 60, sync: 15, churn: false, clones: true }, ..small(seed) };
    assert!(found(Hole::UnsharedInPlace, sharing, 40));
}

#[test]
fn blocks_that_moved_are_found_where_they_were() {
    // By an exchange with another file, and within a file.
    for newest in [true, false] {
        let moving = |seed| Shape { mix: Mix { data: 60, sync: 5, churn: false, clones: true }, newest, ..small(seed) };
        assert!(found(Hole::UnforcedMove, moving, 40));
    }
}

#[test]
fn checkpoints_longer_than_the_window_are_found() {
    let long = |seed| Shape {
        size: 300 * MIB,
        log: Some(32 * MIB),
        workers: 4,
        ops: 3000,
        mix: Mix { data: 0, sync: 0, churn: false, clones: false },
        seed,
        ..Shape::default()
    };
    assert!(found(Hole::UnboundedWindow, long, 6));
}

#[test]
fn a_flush_that_reaches_only_the_log_s_device_is_found() {
    assert!(found(Hole::LogDeviceFlush, |seed| Shape { external: true, ..small(seed) }, 6));
}

/// The change that came with Linux 5.14, as it was first published.
#[test]
fn the_published_flush_policy_is_found_wanting() {
    let journal = JournalConfig { flush: JournalFlush::AsPublished, ..JournalConfig::default() };
    let _one = ONE_AT_A_TIME.lock();
    let damage = (0..20).any(|seed| {
        let mix = Mix { data: 0, sync: 12, churn: true, clones: false };
        let shape = Shape { workers: 4, ops: 3000, mix, journal: journal.clone(), timing: Some(SLOW), ..wrapping(seed) };
        let j = run(&shape).unwrap();
        println!("{:?}", j.stats);
        !explore(&j, &Plan { at_flushes: 60, between: 120, again: 0, seed, ..Plan::default() }).unwrap().damage.is_empty()
    });
    assert!(damage);
}

#[test]
fn blocks_that_are_discarded_too_early_are_found() {
    assert!(found(Hole::EarlyDiscard, |seed| Shape { discard: true, ..small(seed) }, 6));
}

/// Somebody syncs everything just then: what an fsync promised afterwards would be cut off.
#[test]
fn a_size_that_comes_after_its_pages_is_found() {
    let busy = |seed| Shape { workers: 4, ops: 200, mix: Mix { data: 50, sync: 27, churn: false, clones: false }, ..small(seed) };
    assert!(found(Hole::LateSize, busy, 6));
}

/// A crash while a value is written would lose its blocks.
#[test]
fn blocks_of_values_that_nobody_gives_back_are_found() {
    // The value is written slowly, while others sync.
    let timing = Some(Timing { write: 1000, ..NVME });
    let mix = Mix { data: 0, sync: 25, churn: false, clones: false };
    assert!(found(Hole::UnintendedStaging, |seed| Shape { workers: 6, ops: 300, mix, timing, ..small(seed) }, 20));
}

/// A history that fails is made shorter until each operation that is left is needed.
#[test]
fn a_failure_shrinks_to_what_it_needs() {
    let _one = ONE_AT_A_TIME.lock();
    let shape = Shape { workers: 1, ops: 200, newest: true, seed: 3, ..Shape::default() };
    let history = run(&shape).unwrap().histories.remove(0);
    let mut fails = |ops: &[Op]| {
        set_hole(Hole::CommitWithoutFua, true);
        let j = replay(&shape, ops);
        set_hole(Hole::CommitWithoutFua, false);
        let Ok(j) = j else { return true };
        !explore(&j, &Plan { at_flushes: 60, between: 120, again: 0, seed: 1, ..Plan::default() }).unwrap().damage.is_empty()
    };
    assert!(history.len() > 100 && fails(&history));
    let left = shrink(&history, &mut fails);
    println!("{} operations, {left:?} are needed", history.len());
    // Something is made, and what makes it durable does not.
    assert!(left.len() <= 4 && left.iter().any(|op| matches!(op, Op::Sync | Op::Fsync { .. })), "{left:?}");
}
