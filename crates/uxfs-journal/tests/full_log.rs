//! Items that fill the log to the last byte, on a device that forgets what was not flushed: what was forced is there after
//! recovery, and nobody waits for ever.

#![cfg(not(uxfs_shuttle))]

mod common;

use common::found::Found;
use common::{Thing, geometry};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uxfs_device::timed::{NVME, Timed, Timing};
use uxfs_device::{Device, DeviceRef, Event, Memory, Recorder, Trace};
use uxfs_format::Lsn;
use uxfs_journal::*;
use uxfs_sync::Chance;

/// Bytes of the log.
const LOG: u64 = 512 << 10;
const ITEMS: u64 = 24;

/// Commits `rounds` versions from four threads, some forced; the record of the device, and when which version was promised.
fn work(flush: JournalFlush, rounds: u64, seed: u64) -> (Trace, StatsSnapshot) {
    let base: DeviceRef = Arc::new(Timed::new(Arc::new(Memory::new(LOG + ITEMS * 512)), Timing { flush: 100, ..NVME }, 1.0));
    let cfg = JournalConfig { bufsize: 16 << 10, buffers: [4, 8][seed as usize % 2], flush, ..JournalConfig::default() };
    // As mkfs does, a log begins with a record that says that it was unmounted.
    let j = Journal::start(base.clone(), base.clone(), geometry(LOG), cfg.clone(), Lsn::new(1, 0), Lsn::new(1, 0));
    j.unmount().unwrap();
    j.stop();
    let state = find_log_state(&base, &geometry(LOG)).unwrap();
    assert!(state.clean);
    let dev = Arc::new(Recorder::new(base).unwrap());
    let j = Journal::start(dev.clone(), dev.clone(), geometry(LOG), cfg, state.head, state.head);
    let things: Vec<Arc<Thing>> = (0..ITEMS).map(|n| Thing::new(&j, LOG, n)).collect();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let (j, things, dev) = (&j, &things, &dev);
            s.spawn(move || {
                let chance = Chance::seeded(seed << 8 | t);
                for round in 1..=rounds {
                    // Each thread has things of its own. A transaction takes nearly all that it reserves.
                    let thing = &things[(chance.below(ITEMS / 4) * 4 + t) as usize];
                    let bytes = (4 + chance.below(40) as usize) << 10;
                    let mut ticket = j.reserve(bytes as u64 + 100, 1).unwrap();
                    let v = thing.version.load(Ordering::SeqCst) + 1;
                    dev.mark(v << 16 | thing.number << 1);
                    let seq = j.commit(&mut ticket, thing.commit(v, bytes));
                    j.release(ticket);
                    if round % 4 == 0 {
                        j.force(seq).unwrap();
                        dev.mark(v << 16 | thing.number << 1 | 1);
                    }
                }
            });
        }
    });
    let stats = j.stats();
    j.stop();
    (dev.trace(), stats)
}

/// Cuts the record in many places; says what is wrong.
fn damage(t: &Trace, cuts: u64, seed: u64) -> Vec<String> {
    let chance = Chance::seeded(seed);
    let one = |cut: usize| -> Result<(), String> {
        let (keep, log) = ([0, 100, 30, 70][chance.below(4) as usize], chance.below(2) == 0);
        let image = t
            .image_at(cut, 512, &mut |at, n| (0..n).map(|_| log && at < LOG || chance.below(100) < keep).collect())
            .map_err(|e| e.to_string())?;
        let state = find_log_state(&image, &geometry(LOG)).map_err(|e| format!("head and tail: {e}"))?;
        let mut found = Found::default();
        replay(&image, &geometry(LOG), &state, &mut found).map_err(|e| format!("replay: {e}"))?;
        let (mut begun, mut promised) = (HashMap::new(), HashMap::new());
        for e in &t.events[..cut] {
            if let Event::Mark(m) = e {
                let which = if m & 1 == 1 { &mut promised } else { &mut begun };
                which.insert((m & 0xffff) >> 1, m >> 16);
            }
        }
        for number in 0..ITEMS {
            let mut home = [0; 8];
            image.read(LOG + number * 512, &mut home).map_err(|e| e.to_string())?;
            let have = u64::from_le_bytes(home).max(found.0.get(&number).copied().unwrap_or(0));
            let (least, most) = (promised.get(&number).copied().unwrap_or(0), begun.get(&number).copied().unwrap_or(0));
            if !(least..=most).contains(&have) {
                return Err(format!("thing {number} has version {have}, {least} to {most} were possible"));
            }
        }
        Ok(())
    };
    (0..cuts).filter_map(|_| one(chance.below(t.events.len() as u64 + 1) as usize).err()).collect()
}

/// With all rules on. The switches are the whole process's, so these are built without them.
#[cfg(not(uxfs_holes))]
mod rules {
    use super::*;
    use std::time::{Duration, Instant};
    use uxfs_device::WriteFlags;

    #[test]
    fn a_log_that_is_full_to_the_last_byte_loses_nothing() {
        let safe = JournalFlush::ALL.into_iter().filter(|f| f.is_safe());
        for (seed, flush) in safe.cycle().take(6).enumerate() {
            let start = Instant::now();
            let (t, stats) = work(flush, 150, seed as u64);
            assert!(start.elapsed() < Duration::from_secs(60), "{flush}: took {:?}; {stats:?}", start.elapsed());
            assert!(stats.wraps >= 4 && stats.sleep_logspace > 0, "{stats:?}");
            assert!(stats.used_peak * 10 >= LOG * 9, "the log was never nearly full: {stats:?}");
            let d = damage(&t, 400, seed as u64);
            assert!(d.is_empty(), "{flush}: {} of 400 cuts did damage: {}", d.len(), d[0]);
        }
    }

    /// One thread that waits for space that only a record of its own could give back: the worker writes one without content.
    #[test]
    fn who_waits_for_space_gets_it_although_nothing_is_left_to_write() {
        let dev: DeviceRef = Arc::new(Memory::new(LOG + ITEMS * 512));
        let cfg = JournalConfig { bufsize: 16 << 10, buffers: 2, ..JournalConfig::default() };
        let j = Journal::start(dev.clone(), dev, geometry(LOG), cfg, Lsn::new(1, 0), Lsn::new(1, 0));
        let thing = Thing::new(&j, LOG, 0);
        let start = Instant::now();
        for _ in 0..100 {
            // Nearly half of the log, durable at once: the second one finds no room until the first is home and said to be.
            let mut ticket = j.reserve(LOG / 2 - (30 << 10), 1).unwrap();
            let seq = j.commit(&mut ticket, thing.commit(1, 200 << 10));
            j.release(ticket);
            j.force(seq).unwrap();
        }
        let stats = j.stats();
        assert!(stats.sleep_logspace > 10 && start.elapsed() < Duration::from_secs(30), "{:?}, {stats:?}", start.elapsed());
        j.stop();
    }

    /// The device writes nothing while nobody asks: a journal that is idle stays silent.
    #[test]
    fn an_idle_journal_writes_nothing() {
        let dev = Arc::new(Recorder::new(Arc::new(Memory::new(LOG + ITEMS * 512))).unwrap());
        let j = Journal::start(dev.clone(), dev.clone(), geometry(LOG), JournalConfig::default(), Lsn::new(1, 0), Lsn::new(1, 0));
        std::thread::sleep(Duration::from_millis(300));
        assert!(dev.trace().events.is_empty());
        dev.write(LOG, &[0; 512], WriteFlags::default()).unwrap();
        assert_eq!(dev.trace().events.len(), 2);
        j.stop();
    }
}

#[cfg(uxfs_holes)]
mod holes {
    use super::*;
    use parking_lot::Mutex;

    /// The switches are the whole process's.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn found(hole: Hole, rounds: u64) -> bool {
        let _one = ONE_AT_A_TIME.lock();
        (0..60).any(|seed| {
            set_hole(hole, true);
            let (t, _) = work(JournalFlush::StableTail, rounds, seed);
            set_hole(hole, false);
            let d = damage(&t, 400, seed);
            println!("{hole:?}: {} of 400 cuts, {:?}", d.len(), d.first());
            !d.is_empty()
        })
    }

    #[test]
    fn space_that_is_used_before_a_record_says_so_is_found() {
        assert!(found(Hole::UnpublishedTail, 150));
    }

    #[test]
    fn a_begin_that_is_written_before_the_end_is_durable_is_found() {
        assert!(found(Hole::EarlyTurn, 40));
    }
}
