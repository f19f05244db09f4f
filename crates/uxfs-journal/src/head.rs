//! Where the log ends and where replay begins (journal facts, III.1 to III.4).

use crate::JournalError;
use crate::stream::LogGeometry;
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
/// Records before the head whose checksums are looked at first.
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
    /// True if a torn write was cut off at the head.
    pub torn: bool,
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

/// The last record header in the `n` blocks before `head` (which may lie beyond the wrap): its block.
fn header_before(dev: &dyn Device, geo: &LogGeometry, head: u32, n: u32) -> Result<Option<u32>, JournalError> {
    let n = n.min(geo.bbs);
    let from = (head + geo.bbs - n) % geo.bbs;
    let b = read(dev, geo, from, n)?;
    let found = b.chunks_exact(BB).rposition(|b| Record::parse(b).is_some_and(|r| r.bears(&geo.uuid)));
    Ok(found.map(|i| (from + i as u32) % geo.bbs))
}

fn corrupt<T>(block: u32, what: &str) -> Result<T, JournalError> {
    Err(JournalError::Corrupt { block, what: what.into() })
}

fn find_head(dev: &dyn Device, geo: &LogGeometry) -> Result<Option<u32>, JournalError> {
    let (first, last) = (cycle(dev, geo, 0)?, cycle(dev, geo, geo.bbs - 1)?);
    if first == 0 {
        return Ok(None);
    }
    let window = IN_FLIGHT.min(geo.bbs);
    let (mut head, stop) = if last == 0 {
        if first != 1 {
            return corrupt(0, "is no XFS log");
        }
        (bisect(dev, geo, 0, geo.bbs - 1, 0)?, 0)
    } else if first == last {
        (geo.bbs, first.wrapping_sub(1))
    } else {
        (bisect(dev, geo, 0, geo.bbs - 1, last)?, last)
    };
    // Writes may have completed in any order: the head is before the oldest block that is still missing.
    if head >= window {
        if let Some(b) = scan(dev, geo, head - window, window, stop)? {
            head = b;
        }
    } else if last != 0 {
        let wrapped = window - head;
        match scan(dev, geo, geo.bbs - wrapped, wrapped, stop.wrapping_sub(1))? {
            Some(b) => head = b,
            None => head = scan(dev, geo, 0, head, stop)?.unwrap_or(head),
        }
    } else {
        head = scan(dev, geo, 0, head, stop)?.unwrap_or(head);
    }
    // The head may not lie inside a record that was not written to its end.
    if let Some(h) = header_before(dev, geo, head % geo.bbs, LONGEST.min(geo.bbs))? {
        let distance = (head + geo.bbs - h) % geo.bbs;
        let r = parse(dev, geo, h)?;
        if (r.header_blocks() + r.len / BB as u32) % geo.bbs != distance {
            head = h;
        }
    }
    Ok(Some(head % geo.bbs))
}

fn parse(dev: &dyn Device, geo: &LogGeometry, block: u32) -> Result<Record, JournalError> {
    match Record::parse(&read(dev, geo, block, 1)?) {
        Some(r) => Ok(r),
        None => corrupt(block, "there is no record header"),
    }
}

/// True if the record at `block` is whole.
pub(crate) fn crc_ok(dev: &dyn Device, geo: &LogGeometry, block: u32, r: &Record) -> Result<bool, JournalError> {
    if r.check(&geo.uuid, geo.bbs).is_err() {
        return Ok(false);
    }
    let hb = r.header_blocks();
    let header = read(dev, geo, block, hb)?;
    let payload = read(dev, geo, block + hb, r.len / BB as u32)?;
    Ok(r.crc == 0 || log::CRC_HEADER.iter().any(|n| log::record_crc(&header, *n, &payload) == r.crc))
}

/// Writes another UUID into the last record of a clean log, in one sector. A record with a UUID of zeros is of any volume.
///
/// # Errors
/// The device's; there is no record.
pub fn set_last_uuid(dev: &dyn Device, geo: &LogGeometry, head: Lsn, uuid: &[u8; 16]) -> Result<(), JournalError> {
    let Some(block) = header_before(dev, geo, head.block(), LONGEST)? else { return corrupt(head.block(), "there is no record before it") };
    let r = parse(dev, geo, block)?;
    let hb = r.header_blocks();
    let mut header = read(dev, geo, block, hb)?;
    let payload = read(dev, geo, block + hb, r.len / BB as u32)?;
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

/// Finds head and tail, cuts a torn head off, and says whether the volume was unmounted.
///
/// # Errors
/// The device's; [`JournalError::Corrupt`] if there is no way to tell.
pub fn find_log_state(dev: &dyn Device, geo: &LogGeometry) -> Result<LogState, JournalError> {
    let fresh = LogState { head: Lsn::new(1, 0), tail: Lsn::new(1, 0), clean: true, torn: false };
    let Some(mut head) = find_head(dev, geo)? else { return Ok(fresh) };
    let Some(mut last) = last_header(dev, geo, head)? else { return corrupt(head, "there is no record before the head") };
    let mut r = parse(dev, geo, last)?;
    let next = (last + r.header_blocks() + r.len / BB as u32) % geo.bbs;
    if next == head && r.num_ops == 1 {
        let op = Op::parse(&read(dev, geo, last + r.header_blocks(), 1)?);
        // The first word of the block was replaced by the cycle number; the flags are not touched by that.
        if op.is_some_and(|o| o.flags & op_flag::UNMOUNT != 0) {
            let head = at_head(&r, last, head);
            return Ok(LogState { head, tail: head, clean: true, torn: false });
        }
    }
    let mut torn = false;
    let mut back = vec![last];
    while back.len() < VERIFY_BACK {
        match last_header(dev, geo, back[back.len() - 1])? {
            Some(b) if !back.contains(&b) && parse(dev, geo, b)?.lsn < parse(dev, geo, back[back.len() - 1])?.lsn => back.push(b),
            _ => break,
        }
    }
    for (i, b) in back.iter().enumerate().rev() {
        let rec = parse(dev, geo, *b)?;
        // A header that recovery left behind to mark stale blocks is whole, but has nothing in it.
        if !crc_ok(dev, geo, *b, &rec)? {
            let Some(prev) = back.get(i + 1) else { return corrupt(*b, "no whole record before a torn one") };
            (head, last, torn) = (*b, *prev, true);
            r = parse(dev, geo, last)?;
            break;
        }
    }
    Ok(LogState { head: at_head(&r, last, head), tail: r.tail, clean: false, torn })
}

/// The head as a position: one cycle on if it wrapped since the last record.
fn at_head(r: &Record, last: u32, head: u32) -> Lsn {
    let cycle = r.lsn.cycle();
    Lsn::new(if head <= last { log::next_cycle(cycle) } else { cycle }, head)
}

fn last_header(dev: &dyn Device, geo: &LogGeometry, head: u32) -> Result<Option<u32>, JournalError> {
    if let Some(b) = header_before(dev, geo, head, LONGEST)? {
        return Ok(Some(b));
    }
    header_before(dev, geo, head, geo.bbs)
}

/// Marks the blocks behind the head as belonging to the cycle before, so that what was in flight there when the power
/// went can never be taken for a record of the coming cycle.
///
/// # Crash
/// A cut in the middle leaves blocks that are still stale; the next recovery finds the same head and does this again.
///
/// # Errors
/// The device's.
pub fn clear_stale(dev: &dyn Device, geo: &LogGeometry, head: Lsn, tail: Lsn) -> Result<(), JournalError> {
    let distance =
        if tail.cycle() == head.cycle() { geo.bbs - (head.block() - tail.block()) } else { tail.block().saturating_sub(head.block()) };
    let n = IN_FLIGHT.min(distance);
    let mut buf = vec![0u8; n as usize * BB];
    for (i, b) in buf.chunks_exact_mut(BB).enumerate() {
        let block = head.block() + i as u32;
        let (cycle, block) = if block >= geo.bbs { (head.cycle(), block - geo.bbs) } else { (head.cycle() - 1, block) };
        put32(b, 0, RECORD_MAGIC);
        put32(b, 4, cycle);
        put32(b, 8, 2);
        put64(b, 16, Lsn::new(cycle, block).0);
        put64(b, 24, tail.0);
        put32(b, 300, 1);
        b[UUID_AT..UUID_AT + 16].copy_from_slice(&geo.uuid);
    }
    let (at, len) = geo.place(head.block(), buf.len());
    dev.write(at, &buf[..len], WriteFlags::default())?;
    if len < buf.len() {
        dev.write(geo.start, &buf[len..], WriteFlags::default())?;
    }
    Ok(())
}
