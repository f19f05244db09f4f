//! Where the log ends and where replay begins (journal facts, III.1 to III.4).

use crate::stream::LogGeometry;
use crate::{JournalError, gap};
use uxfs_device::{Device, WriteFlags};
use uxfs_format::Lsn;
use uxfs_format::bytes::{put32, put64};
use uxfs_format::log::{self, BB, Op, RECORD_MAGIC, Record, op_flag};

/// Blocks that may have been in flight, in any order, when the power went: 8 buffers of 256 KiB.
const IN_FLIGHT: u32 = (2 << 20) / BB as u32;
/// Offset of the UUID in a record's header.
const UUID_AT: usize = 304;
/// Offset of its checksum.
const CRC_AT: usize = 32;
/// Blocks of the longest record.
const LONGEST: u32 = (256 << 10) / BB as u32 + 8;
/// Records before the head whose checksums the kernel looks at first.
const VERIFY_BACK: usize = 8;

/// What the log says about the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    /// Where the next record goes.
    pub head: Lsn,
    /// Where replay begins; the head if the log is clean.
    pub tail: Lsn,
    /// True after a clean unmount.
    pub clean: bool,
    /// True if what was not whole was cut off at the head.
    pub torn: bool,
}

impl LogState {
    fn clean(head: Lsn, torn: bool) -> LogState {
        LogState { head, tail: head, clean: true, torn }
    }
}

/// Reads blocks of the log, `block` taken modulo its size.
pub(crate) fn read(dev: &dyn Device, geo: &LogGeometry, block: u32, blocks: u32) -> Result<Vec<u8>, JournalError> {
    let mut out = vec![0; blocks as usize * BB];
    let (at, n) = geo.place(block % geo.bbs, out.len());
    dev.read(at, &mut out[..n])?;
    if n < out.len() {
        dev.read(geo.start, &mut out[n..])?;
    }
    Ok(out)
}

fn cycle(dev: &dyn Device, geo: &LogGeometry, block: u32) -> Result<u32, JournalError> {
    Ok(log::block_cycle(&read(dev, geo, block, 1)?))
}

/// The first block in `lo..=hi` whose cycle is `want`, where all from it on have it.
fn bisect(dev: &dyn Device, geo: &LogGeometry, mut lo: u32, mut hi: u32, want: u32) -> Result<u32, JournalError> {
    while lo < hi {
        let mid = lo + (hi - lo) / 2;
        if cycle(dev, geo, mid)? == want { hi = mid } else { lo = mid + 1 }
    }
    Ok(lo)
}

/// The first of `n` blocks from `from` that bears cycle `stop`.
fn scan(dev: &dyn Device, geo: &LogGeometry, from: u32, n: u32, stop: u32) -> Result<Option<u32>, JournalError> {
    let b = read(dev, geo, from, n)?;
    Ok(b.chunks_exact(BB).position(|b| log::block_cycle(b) == stop).map(|i| from + i as u32))
}

/// The last header before `head` (which may lie beyond the wrap) that is `wanted`: its block, and what it says.
fn header_before(
    dev: &dyn Device,
    geo: &LogGeometry,
    head: u32,
    wanted: &dyn Fn(u32, &Record) -> bool,
) -> Result<Option<(u32, Record)>, JournalError> {
    let (mut end, mut left) = (head + geo.bbs, geo.bbs);
    while left > 0 {
        let n = if left == geo.bbs { LONGEST } else { IN_FLIGHT }.min(left);
        (end, left) = (end - n, left - n);
        let b = read(dev, geo, end % geo.bbs, n)?;
        let found = b.chunks_exact(BB).enumerate().rev().find_map(|(i, b)| {
            let block = (end + i as u32) % geo.bbs;
            Record::parse(b).filter(|r| r.bears(&geo.uuid) && wanted(block, r)).map(|r| (block, r))
        });
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

pub(crate) fn corrupt<T>(block: u32, what: &str) -> Result<T, JournalError> {
    Err(JournalError::Corrupt { block, what: what.into() })
}

/// Where blocks of another turn of the log begin.
struct Edge {
    /// May be the log's end.
    block: u32,
    /// The turn of the blocks before it.
    cycle: u32,
    /// The turn of those from it on.
    stop: u32,
    /// The log was never written to its end.
    first_turn: bool,
}

/// Finds an edge; there is one more for each piece that a power cut left out. `None` for a log that was never written.
fn edge(dev: &dyn Device, geo: &LogGeometry) -> Result<Option<Edge>, JournalError> {
    let (first, last) = (cycle(dev, geo, 0)?, cycle(dev, geo, geo.bbs - 1)?);
    let found = |block, stop| Ok(Some(Edge { block, cycle: first, stop, first_turn: last == 0 }));
    match (first, last) {
        (0, _) => Ok(None),
        (1, 0) => found(bisect(dev, geo, 0, geo.bbs - 1, 0)?, 0),
        (_, 0) => corrupt(0, "is no XFS log"),
        _ if first == last => found(geo.bbs, first.wrapping_sub(1)),
        _ => found(bisect(dev, geo, 0, geo.bbs - 1, last)?, last),
    }
}

/// The payload of a record as it was before it was stamped; `None` if the record is not whole. A block that bears another turn is missing
/// also if its bytes do not count: whoever looks for the head by turns would stop there, now or later.
pub(crate) fn payload(dev: &dyn Device, geo: &LogGeometry, block: u32, r: &Record) -> Result<Option<Vec<u8>>, JournalError> {
    if r.check(&geo.uuid, geo.bbs).is_err() {
        return Ok(None);
    }
    let hb = r.header_blocks();
    let mut all = read(dev, geo, block, r.blocks())?;
    let turn = |i: usize| geo.advance(r.lsn, i as u32).cycle();
    if all.chunks_exact(BB).enumerate().any(|(i, b)| log::block_cycle(b) != turn(i)) {
        return Ok(None);
    }
    let (header, payload) = all.split_at_mut(hb as usize * BB);
    let len = r.len as usize;
    if r.crc != 0 && !log::CRC_HEADER.iter().any(|n| log::record_crc(header, *n, &payload[..len]) == r.crc) {
        return Ok(None);
    }
    log::unstamp(header, payload);
    all.truncate(hb as usize * BB + len);
    Ok(Some(all.split_off(hb as usize * BB)))
}

fn says_unmounted(dev: &dyn Device, geo: &LogGeometry, block: u32, r: &Record) -> Result<bool, JournalError> {
    if r.num_ops != 1 {
        return Ok(false);
    }
    // The first word of the block was replaced by the cycle number; the flags are not touched by that.
    let op = Op::parse(&read(dev, geo, block + r.header_blocks(), 1)?);
    Ok(op.is_some_and(|o| o.flags & op_flag::UNMOUNT != 0))
}

/// Writes another UUID into the last record of a clean log, in one sector. A record with a UUID of zeros is of any volume.
///
/// # Errors
/// The device's; there is no record.
pub fn set_last_uuid(dev: &dyn Device, geo: &LogGeometry, head: Lsn, uuid: &[u8; 16]) -> Result<(), JournalError> {
    let Some((block, r)) = header_before(dev, geo, head.block(), &|_, _| true)? else {
        return corrupt(head.block(), "there is no record before it");
    };
    let hb = r.header_blocks();
    let mut header = read(dev, geo, block, hb)?;
    let mut payload = read(dev, geo, block + hb, r.payload_blocks())?;
    payload.truncate(r.len as usize);
    let sum = log::CRC_HEADER.into_iter().find(|n| log::record_crc(&header, *n, &payload) == r.crc);
    header[UUID_AT..UUID_AT + 16].copy_from_slice(uuid);
    // mkfs.xfs leaves the checksum of its first record zero; else it covers the UUID.
    if let Some(n) = sum.filter(|_| r.crc != 0) {
        let crc = log::record_crc(&header, n, &payload);
        header[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
    dev.write(geo.place(block, BB).0, &header[..BB], WriteFlags { preflush: true, fua: true })?;
    Ok(())
}

/// Finds head and tail, cuts off what is not whole, and says whether the volume was unmounted.
///
/// Caches lose what was not flushed in any order, so a record may be missing before others that are there. The head is at the
/// first one that is missing between tail and head, however far back: nobody was told that anything behind it is durable.
///
/// # Errors
/// The device's; [`JournalError::Corrupt`] if there is no way to tell, or if a record is missing that was durable once.
pub fn find_log_state(dev: &dyn Device, geo: &LogGeometry) -> Result<LogState, JournalError> {
    let Some(e) = edge(dev, geo)? else { return Ok(LogState::clean(Lsn::new(1, 0), false)) };
    let mut last = record_before(dev, geo, e.block, e.cycle)?;
    let mut behind = gap::Behind::new(geo.after(&last));
    // Where records begin that are known to follow each other up to the head: a log is walked through once, however much is cut off.
    let mut sound = None;
    loop {
        let (at, head) = (last.lsn.block(), geo.after(&last));
        let torn = behind.has_any(head);
        if payload(dev, geo, at, &last)?.is_some() && says_unmounted(dev, geo, at, &last)? {
            return Ok(LogState::clean(head, torn));
        }
        let tail = gap::past_overwritten(dev, geo, last.tail, head, in_flight(&last))?;
        let Some(missing) = gap::first_missing(dev, geo, tail, sound.unwrap_or(head), head)? else {
            return Ok(LogState { head, tail, clean: false, torn });
        };
        if behind.says_durable(dev, geo, missing)? {
            return corrupt(missing.block(), "a record is missing or damaged that was durable once: later ones rely on it");
        }
        sound = (tail < missing).then_some(tail);
        last = record_before(dev, geo, missing.block(), missing.cycle())?;
        if geo.after(&last) != missing {
            return corrupt(missing.block(), "there is no record before one that is missing");
        }
    }
}

/// Blocks that may have been on their way when a record was, by its writer's buffers.
pub(crate) fn in_flight(r: &Record) -> u32 {
    (8 * r.size / BB as u32).min(IN_FLIGHT)
}

/// The last record before `block`, where those at lower blocks are of turn `cycle`. What recovery left behind to mark stale
/// blocks is none.
fn record_before(dev: &dyn Device, geo: &LogGeometry, block: u32, cycle: u32) -> Result<Record, JournalError> {
    let wanted = |at: u32, r: &Record| {
        let turn = if at < block { r.lsn.cycle() } else { log::next_cycle(r.lsn.cycle()) };
        r.len > 0 && r.lsn.block() == at && turn == cycle && r.check(&geo.uuid, geo.bbs).is_ok()
    };
    match header_before(dev, geo, block, &wanted)? {
        Some((_, r)) => Ok(r),
        None => corrupt(block, "there is no record before it"),
    }
}

/// Finds head and tail as the kernel does (journal facts, III.1 to III.3): it looks no further back than 2 MiB for a record that
/// is missing. What we write must be found by both ways alike.
///
/// # Errors
/// The device's; [`JournalError::Corrupt`] where the kernel would refuse the log.
pub fn find_as_kernel(dev: &dyn Device, geo: &LogGeometry) -> Result<LogState, JournalError> {
    let Some(e) = edge(dev, geo)? else { return Ok(LogState::clean(Lsn::new(1, 0), false)) };
    let mut head = oldest_missing(dev, geo, &e)?;
    let any = |_: u32, _: &Record| true;
    let before = |head: u32| match header_before(dev, geo, head % geo.bbs, &any)? {
        Some(found) => Ok(found),
        None => corrupt(head % geo.bbs, "there is no record before the head"),
    };
    // The head may not lie inside a record that was not written to its end.
    let (mut last, mut r) = before(head)?;
    if r.blocks() % geo.bbs != (head + geo.bbs - last) % geo.bbs {
        head = last;
        (last, r) = before(head)?;
    }
    head %= geo.bbs;
    if (last + r.blocks()) % geo.bbs == head && says_unmounted(dev, geo, last, &r)? {
        return Ok(LogState::clean(at_head(&r, last, head), false));
    }
    let mut torn = false;
    let mut back = vec![(last, r)];
    while back.len() < VERIFY_BACK {
        let (first, newer) = &back[back.len() - 1];
        match header_before(dev, geo, *first, &any)? {
            Some((b, older)) if older.lsn < newer.lsn => back.push((b, older)),
            _ => break,
        }
    }
    for (i, (b, r)) in back.iter().enumerate().rev() {
        if payload(dev, geo, *b, r)?.is_none() {
            let Some(prev) = back.get(i + 1) else { return corrupt(*b, "no whole record before a torn one") };
            (head, last, torn) = (*b, prev.0, true);
            break;
        }
    }
    let Some((_, r)) = back.iter().find(|b| b.0 == last) else { return corrupt(last, "there is no record header") };
    let head = at_head(r, last, head);
    let tail = gap::past_overwritten(dev, geo, r.tail, head, in_flight(r))?;
    match gap::first_missing(dev, geo, tail, head, head)? {
        Some(missing) => corrupt(missing.block(), "there is no whole record"),
        None => Ok(LogState { head, tail, clean: false, torn }),
    }
}

/// Writes may have completed in any order: the first block that is still missing among those that may have been in flight.
fn oldest_missing(dev: &dyn Device, geo: &LogGeometry, e: &Edge) -> Result<u32, JournalError> {
    let window = IN_FLIGHT.min(geo.bbs);
    if e.block >= window {
        return Ok(scan(dev, geo, e.block - window, window, e.stop)?.unwrap_or(e.block));
    }
    if !e.first_turn {
        let wrapped = window - e.block;
        if let Some(b) = scan(dev, geo, geo.bbs - wrapped, wrapped, e.stop.wrapping_sub(1))? {
            return Ok(b);
        }
    }
    Ok(scan(dev, geo, 0, e.block, e.stop)?.unwrap_or(e.block))
}

/// The head as a position: one cycle on if it wrapped since the last record.
fn at_head(r: &Record, last: u32, head: u32) -> Lsn {
    let cycle = r.lsn.cycle();
    Lsn::new(if head <= last { log::next_cycle(cycle) } else { cycle }, head)
}

/// Marks the blocks behind the head that bear its turn of the log, or a later one, as belonging to the turn before: what was in
/// flight there when the power went can never be taken for a record of the coming turn. They are looked for as far as there
/// are some in each 2 MiB. What was marked is durable when this returns; where there is nothing to mark, nothing is written.
///
/// # Crash
/// A cut in the middle leaves blocks that are still stale; the next recovery finds the same head and does this again.
///
/// # Errors
/// The device's.
pub fn clear_stale(dev: &dyn Device, geo: &LogGeometry, head: Lsn, tail: Lsn) -> Result<(), JournalError> {
    let room = if tail.cycle() == head.cycle() {
        geo.bbs - (head.block() - tail.block().min(head.block()))
    } else {
        tail.block().saturating_sub(head.block())
    };
    let mut marked = false;
    for from in (0..room).step_by(IN_FLIGHT as usize) {
        let start = (head.block() + from) % geo.bbs;
        let mut blocks = read(dev, geo, start, IN_FLIGHT.min(room - from))?;
        let mut end = 0;
        for (i, b) in blocks.chunks_exact_mut(BB).enumerate() {
            let block = head.block() + from + i as u32;
            let (own, block) = if block >= geo.bbs { (head.cycle(), block - geo.bbs) } else { (head.cycle() - 1, block) };
            if log::block_cycle(b) > own {
                mark(b, geo, Lsn::new(own, block), tail);
                end = (i + 1) * BB;
            }
        }
        if end == 0 {
            break;
        }
        let (at, len) = geo.place(start, end);
        dev.write(at, &blocks[..len], WriteFlags::default())?;
        if len < end {
            dev.write(geo.start, &blocks[len..end], WriteFlags::default())?;
        }
        marked = true;
    }
    if marked {
        dev.flush()?;
    }
    Ok(())
}

/// Makes a block a header with nothing behind it.
fn mark(b: &mut [u8], geo: &LogGeometry, at: Lsn, tail: Lsn) {
    b.fill(0);
    put32(b, 0, RECORD_MAGIC);
    put32(b, 4, at.cycle());
    put32(b, 8, 2);
    put64(b, 16, at.0);
    put64(b, 24, tail.0);
    put32(b, 300, 1);
    b[UUID_AT..UUID_AT + 16].copy_from_slice(&geo.uuid);
}
