//! Records that a power cut left out while it kept later ones.

use crate::JournalError;
use crate::head::{payload, read};
use crate::stream::LogGeometry;
use uxfs_device::Device;
use uxfs_format::Lsn;
use uxfs_format::log::{BB, OP_HEADER, Op, Record, op_flag};

/// Blocks that are read at once.
const CHUNK: u32 = 2048;

/// Where replay begins, if what lay at the tail of the last record was written over since: by what follows the head, within
/// `reach` blocks of it. Who writes there has everything at home that the log had there.
///
/// # Errors
/// The device's.
pub(crate) fn past_overwritten(dev: &dyn Device, geo: &LogGeometry, tail: Lsn, head: Lsn, reach: u32) -> Result<Lsn, JournalError> {
    let ahead = |at: Lsn| (at.block() + geo.bbs - head.block() % geo.bbs) % geo.bbs;
    let mut at = tail;
    while at < head && ahead(at) < reach {
        let header = Record::parse(&read(dev, geo, at.block(), 1)?).filter(|r| r.lsn == at);
        if let Some(r) = header
            && payload(dev, geo, at.block(), &r)?.is_some()
        {
            return Ok(at);
        }
        at = geo.advance(at, 1);
    }
    // Nothing that would have been left by that: it is missing for another reason.
    Ok(tail)
}

/// The first place between `tail` and `head` where no whole record follows the one before.
///
/// # Errors
/// The device's; `tail` lies behind `head`, or more than the log before it.
pub(crate) fn first_missing(dev: &dyn Device, geo: &LogGeometry, tail: Lsn, head: Lsn) -> Result<Option<Lsn>, JournalError> {
    let bad = |what: &str| Err(JournalError::Corrupt { block: head.block(), what: what.into() });
    let (mut at, mut left) = (tail, geo.bbs);
    if tail > head || tail.block() >= geo.bbs {
        return bad("the last record has a tail behind itself");
    }
    while at < head {
        let header = Record::parse(&read(dev, geo, at.block(), 1)?).filter(|r| r.lsn == at);
        let Some(r) = header else { return Ok(Some(at)) };
        if payload(dev, geo, at.block(), &r)?.is_none() || geo.after(&r) > head {
            return Ok(Some(at));
        }
        match left.checked_sub(r.blocks()) {
            Some(rest) => left = rest,
            None => return bad("the last record has a tail more than a log before itself"),
        }
        at = geo.after(&r);
    }
    Ok(None)
}

/// True if something between a missing record and `end` says that it was durable: a commit record is written only after all
/// before it is durable, and a tail moves only over what is.
///
/// # Errors
/// The device's.
pub(crate) fn was_durable(dev: &dyn Device, geo: &LogGeometry, missing: Lsn, end: Lsn) -> Result<bool, JournalError> {
    let mut at = missing;
    while at < end {
        let n = CHUNK.min(geo.bbs - at.block());
        let n = if at.cycle() == end.cycle() { n.min(end.block() - at.block()) } else { n };
        let blocks = read(dev, geo, at.block(), n)?;
        for (i, b) in blocks.chunks_exact(BB).enumerate() {
            let here = Lsn::new(at.cycle(), at.block() + i as u32);
            let Some(r) = Record::parse(b).filter(|r| r.lsn == here) else { continue };
            if let Some(p) = payload(dev, geo, here.block(), &r)?
                && (r.tail > missing || commits(&r, &p))
            {
                return Ok(true);
            }
        }
        at = geo.advance(at, n);
    }
    Ok(false)
}

fn commits(r: &Record, payload: &[u8]) -> bool {
    let mut at = 0;
    (0..r.num_ops)
        .map_while(|_| {
            let op = payload.get(at..).and_then(Op::parse)?;
            at += OP_HEADER + if op.flags & op_flag::UNMOUNT == 0 { op.len as usize } else { 0 };
            Some(op.flags & op_flag::COMMIT != 0)
        })
        .any(|c| c)
}
