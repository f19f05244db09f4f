//! Logs in which records are missing, as caches that write out of order leave them.
#![cfg(not(uxfs_shuttle))]

mod common;

use common::found::Found;
use common::{Thing, geometry};
use std::collections::HashMap;
use std::sync::Arc;
use uxfs_device::{Device, DeviceRef, Memory, Recorder, WriteFlags};
use uxfs_format::Lsn;
use uxfs_journal::*;

fn versions(image: &Memory, log: u64) -> Result<HashMap<u64, u64>, JournalError> {
    let state = find_log_state(image, &geometry(log))?;
    let mut found = Found::default();
    replay(image, &geometry(log), &state, &mut found)?;
    Ok(found.0)
}

/// Makes each of the commits durable: thing, version, bytes. Returns the head before each and after all, and what the device held then.
fn commits(log: u64, all: &[(u64, u64, usize)]) -> (Vec<Lsn>, Vec<Memory>) {
    commits_in(16 << 10, log, all)
}

fn commits_in(bufsize: usize, log: u64, all: &[(u64, u64, usize)]) -> (Vec<Lsn>, Vec<Memory>) {
    let memory = Arc::new(Memory::new(log + 64 * 512));
    let dev: DeviceRef = memory.clone();
    let cfg = JournalConfig { bufsize, buffers: 4, ..JournalConfig::default() };
    let j = Journal::start(dev.clone(), dev.clone(), geometry(log), cfg.clone(), Lsn::new(1, 0), Lsn::new(1, 0));
    j.unmount().unwrap();
    j.stop();
    let mut heads = vec![find_log_state(&*memory, &geometry(log)).unwrap().head];
    let mut images = vec![memory.fork()];
    let j = Journal::start(dev.clone(), dev, geometry(log), cfg, heads[0], heads[0]);
    let things: Vec<_> = (0..4).map(|n| Thing::new(&j, log, n)).collect();
    for (thing, version, bytes) in all {
        let mut ticket = j.reserve(*bytes as u64 + 100, 1).unwrap();
        let seq = j.commit(&mut ticket, things[*thing as usize].commit(*version, *bytes));
        j.release(ticket);
        j.force(seq).unwrap();
        heads.push(find_log_state(&*memory, &geometry(log)).unwrap().head);
        images.push(memory.fork());
    }
    j.stop();
    (heads, images)
}

/// Puts what `from` holds back over blocks of `image`: they never reached the medium.
fn lose(image: &Memory, from: &Memory, blocks: std::ops::Range<u32>) {
    let mut b = vec![0; blocks.len() * 512];
    from.read(u64::from(blocks.start) * 512, &mut b).unwrap();
    image.write(u64::from(blocks.start) * 512, &b, WriteFlags::default()).unwrap();
}

const LOG: u64 = 16 << 20;

#[test]
fn the_head_is_where_a_record_is_missing_however_far_back() {
    let (heads, images) = commits(LOG, &[(0, 1, 5000), (1, 2, 6 << 20)]);
    let (start, end) = (heads[1].block(), heads[2].block());
    let image = images[2].fork();
    assert_eq!(versions(&image, LOG).unwrap(), HashMap::from([(0, 1), (1, 2)]));
    // The first records, more than 2 MiB before the end, and the last one, with the commit.
    lose(&image, &images[1], start..start + 1000);
    lose(&image, &images[1], end - 64..end);
    assert_eq!(versions(&image, LOG).unwrap(), HashMap::from([(0, 1)]));
    let state = find_log_state(&image, &geometry(LOG)).unwrap();
    assert!(state.torn && state.head == heads[1]);
    assert!(find_as_kernel(&image, &geometry(LOG)).is_err());
    // What is left of it is forgotten, once.
    clear_stale(&image, &geometry(LOG), state.head, state.tail).unwrap();
    let recorder = Recorder::new(Arc::new(image.fork())).unwrap();
    clear_stale(&recorder, &geometry(LOG), state.head, state.tail).unwrap();
    assert!(recorder.trace().events.is_empty(), "it was written again");
    let after = find_log_state(&image, &geometry(LOG)).unwrap();
    assert_eq!((after.head, after.tail), (state.head, state.tail));
    assert_eq!(find_as_kernel(&image, &geometry(LOG)).unwrap().head, state.head);
}

/// A cut in the first checkpoint after a clean unmount: the log looks clean, and what is left lies behind its head.
#[test]
fn what_is_left_behind_a_clean_head_is_forgotten() {
    let (heads, images) = commits(LOG, &[(1, 2, 1 << 20)]);
    let image = images[1].fork();
    lose(&image, &images[0], heads[0].block()..heads[0].block() + 32);
    lose(&image, &images[0], heads[1].block() - 64..heads[1].block());
    let state = find_log_state(&image, &geometry(LOG)).unwrap();
    assert!(state.clean && state.head == heads[0]);
    clear_stale(&image, &geometry(LOG), state.head, state.tail).unwrap();
    let mut b = vec![0; LOG as usize];
    image.read(0, &mut b).unwrap();
    let stale = |b: &[u8]| uxfs_format::log::block_cycle(b) >= heads[0].cycle();
    assert_eq!(b.chunks(512).skip(heads[0].block() as usize).take(LOG as usize / 512 - 100).filter(|b| stale(b)).count(), 0);
    assert_eq!(find_log_state(&image, &geometry(LOG)).unwrap().head, heads[0]);
}

#[test]
fn a_record_that_was_durable_and_is_missing_is_not_passed_over() {
    let (heads, images) = commits(LOG, &[(0, 1, 5000), (1, 2, 3 << 20), (2, 3, 5000)]);
    let image = images[3].fork();
    lose(&image, &images[1], heads[1].block()..heads[1].block() + 100);
    let e = versions(&image, LOG).unwrap_err().to_string();
    assert!(e.contains("durable once"), "{e}");
}

/// Who recovers a full log writes over its oldest records, with all that they had at home.
#[test]
fn a_tail_that_was_written_over_is_passed() {
    const SHORT: u64 = 512 << 10;
    let (heads, images) = commits(SHORT, &[(0, 1, 20 << 10), (1, 2, 190 << 10), (2, 3, 190 << 10)]);
    let image = images[3].fork();
    assert_eq!(versions(&image, SHORT).unwrap().len(), 3);
    // The first one lies close ahead of the head.
    image.write(u64::from(heads[0].block()) * 512, &[0xff; 512], WriteFlags::default()).unwrap();
    assert_eq!(versions(&image, SHORT).unwrap(), HashMap::from([(1, 2), (2, 3)]));
    assert_eq!(find_as_kernel(&image, &geometry(SHORT)).unwrap(), find_log_state(&image, &geometry(SHORT)).unwrap());
    // One in the middle does not.
    image.write(u64::from(heads[2].block()) * 512, &[0xff; 512], WriteFlags::default()).unwrap();
    assert!(versions(&image, SHORT).is_err());
}

/// Large buffers have header blocks that no checksum covers while a record is short. One that was lost would end the log for whoever looks
/// for the head by turns, also when later records are durable.
#[test]
fn a_header_block_that_is_lost_makes_a_record_torn() {
    let (heads, images) = commits_in(256 << 10, LOG, &[(0, 1, 5000), (1, 2, 5000)]);
    let image = images[2].fork();
    lose(&image, &images[1], heads[1].block() + 5..heads[1].block() + 6);
    for state in [find_log_state(&image, &geometry(LOG)).unwrap(), find_as_kernel(&image, &geometry(LOG)).unwrap()] {
        assert_eq!(state.head, heads[1]);
    }
    assert_eq!(versions(&image, LOG).unwrap(), HashMap::from([(0, 1)]));
}
