//! Records that a power cut left out while it kept later ones.

use crate::JournalError;
use crate::head::{corrupt, in_flight, payload, read};
use crate::stream::LogGeometry;
use uxfs_device::Device;
use uxfs_format::Lsn;
use uxfs_format::log::{BB, OP_HEADER, Op, Record, next_cycle, op_flag};

/// Blocks that are read at once.
const CHUNK: u32 = 2048;

/// Where replay begins, if what lay at the tail of the last record was written over since: by what follows the head, within
/// `reach` blocks of it. Who writes there has everything at home that the log had there.
///
/// # Errors
/// The device's.
pub(crate) fn past_overwritten(dev: &dyn Device, geo: &LogGeometry, tail: Lsn, head: Lsn, reach: u32) -> Result<Lsn, JournalError> {
    let mut at = tail;
    while at < head && geo.blocks_between(head, at) < reach {
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

/// The first place between `tail` and `to`, which is no later than `head`, where no whole record follows the one before.
///
/// # Errors
/// The device's; `tail` lies behind `head`, or more than the log before it.
pub(crate) fn first_missing(dev: &dyn Device, geo: &LogGeometry, tail: Lsn, to: Lsn, head: Lsn) -> Result<Option<Lsn>, JournalError> {
    let within = match tail.cycle() == head.cycle() {
        true => tail <= head,
        false => next_cycle(tail.cycle()) == head.cycle() && tail.block() >= head.block(),
    };
    if !within || tail.block() >= geo.bbs {
        return corrupt(head.block(), "the last record has a tail behind itself, or more than a log before");
    }
    let mut at = tail;
    while at < to {
        let header = Record::parse(&read(dev, geo, at.block(), 1)?).filter(|r| r.lsn == at);
        let Some(r) = header else { return Ok(Some(at)) };
        if payload(dev, geo, at.block(), &r)?.is_none() || geo.after(&r) > to {
            return Ok(Some(at));
        }
        at = geo.after(&r);
    }
    Ok(None)
}

/// What is left behind the first record that is missing.
pub(crate) struct Behind {
    /// Looked at from here on.
    from: Lsn,
    end: Lsn,
    /// The newest tail that a record there bears.
    tail: Lsn,
    /// The last of them that commits, and how many blocks may have been on their way with it.
    commit: Option<(Lsn, u32)>,
}

impl Behind {
    /// Nothing yet; what there is ends at `end`.
    pub(crate) fn new(end: Lsn) -> Behind {
        Behind { from: end, end, tail: Lsn(0), commit: None }
    }

    /// True if anything was cut off when the head is at `head`.
    pub(crate) fn has_any(&self, head: Lsn) -> bool {
        head < self.end
    }

    /// True if something behind a missing record says that it was durable: a tail moves only over what is, and a commit record flushes what
    /// completed before it, so all but what was on its way with it. (The kernel does not wait for the records before a commit record whose
    /// checkpoint fits that one record.) Asked for ever earlier ones.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn says_durable(&mut self, dev: &dyn Device, geo: &LogGeometry, missing: Lsn) -> Result<bool, JournalError> {
        let mut at = missing;
        while at < self.from {
            let n = CHUNK.min(geo.bbs - at.block());
            let n = if at.cycle() == self.from.cycle() { n.min(self.from.block() - at.block()) } else { n };
            let blocks = read(dev, geo, at.block(), n)?;
            for (i, b) in blocks.chunks_exact(BB).enumerate() {
                let here = Lsn::new(at.cycle(), at.block() + i as u32);
                let Some(r) = Record::parse(b).filter(|r| r.lsn == here) else { continue };
                if let Some(p) = payload(dev, geo, here.block(), &r)? {
                    self.tail = self.tail.max(r.tail);
                    if commits(&r, &p) {
                        self.commit = self.commit.max(Some((here, in_flight(&r))));
                    }
                }
            }
            at = geo.advance(at, n);
        }
        self.from = missing;
        Ok(self.tail > missing || self.commit.is_some_and(|(at, reach)| geo.blocks_between(missing, at) >= reach))
    }
}

/// True if a record holds the end of a transaction that counts.
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
