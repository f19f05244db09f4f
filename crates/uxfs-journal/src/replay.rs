//! Reads records from tail to head, puts transactions together and hands those with a commit on, twice.

use crate::JournalError;
use crate::head::{LogState, payload, read};
use crate::stream::LogGeometry;
use std::collections::HashMap;
use uxfs_device::Device;
use uxfs_format::Lsn;
use uxfs_format::log::{self, OP_HEADER, Op, Record, op_flag};

/// An item as it was logged.
#[derive(Clone, Debug, Default)]
pub struct ReplayItem {
    /// Its regions, the format first.
    pub regions: Vec<Vec<u8>>,
}

impl ReplayItem {
    /// Type of the item.
    pub fn kind(&self) -> u16 {
        self.regions.first().map_or(0, |r| log::item_type(r))
    }
}

/// Who knows what the items mean.
pub trait Replay {
    /// Its error.
    type Error: From<JournalError>;
    /// A transaction with a commit: in pass 1 to learn of cancelled buffers, in pass 2 to replay. `lsn` is the position of
    /// the record with its start.
    ///
    /// # Errors
    /// Ends the replay.
    fn transaction(&mut self, pass: u8, lsn: Lsn, items: &[ReplayItem]) -> Result<(), Self::Error>;
}

#[derive(Default)]
struct Trans {
    lsn: Lsn,
    header: Vec<u8>,
    items: Vec<ReplayItem>,
    in_header: bool,
}

const TRANS_HEADER: usize = 16;

impl Trans {
    fn region(&mut self, data: &[u8], was_cont: bool) -> Result<(), &'static str> {
        if self.in_header || (was_cont && self.items.is_empty()) {
            self.header.extend_from_slice(data);
            self.in_header = self.header.len() < TRANS_HEADER;
            return Ok(());
        }
        if was_cont {
            let last = self.items.last_mut().and_then(|i| i.regions.last_mut()).ok_or("a region goes on that never began")?;
            last.extend_from_slice(data);
            return Ok(());
        }
        let room = self.items.last().is_some_and(|i| i.regions.len() < i.regions.first().map_or(0, |r| log::item_regions(r)));
        if !room {
            if data.len() < 4 {
                return Err("an item's first region is too short");
            }
            self.items.push(ReplayItem::default());
        }
        if let Some(i) = self.items.last_mut() {
            i.regions.push(data.to_vec());
        }
        Ok(())
    }
}

/// Replays everything between tail and head in two passes.
///
/// # Errors
/// A record that is not whole, an operation that does not parse, or the handler's error.
pub fn replay<R: Replay>(dev: &dyn Device, geo: &LogGeometry, state: &LogState, handler: &mut R) -> Result<(), R::Error> {
    if state.clean {
        return Ok(());
    }
    for pass in [1, 2] {
        one_pass(dev, geo, state, handler, pass)?;
    }
    Ok(())
}

fn one_pass<R: Replay>(dev: &dyn Device, geo: &LogGeometry, state: &LogState, handler: &mut R, pass: u8) -> Result<(), R::Error> {
    let mut open: HashMap<u32, Trans> = HashMap::new();
    let (mut at, mut left) = (state.tail, geo.bbs);
    while at < state.head {
        let bad = |what: &str| JournalError::Corrupt { block: at.block(), what: what.into() };
        let r = Record::parse(&read(dev, geo, at.block(), 1)?).ok_or_else(|| bad("there is no record header"))?;
        r.check(&geo.uuid, geo.bbs).map_err(bad)?;
        if r.lsn != at {
            return Err(bad("record is of another turn of the log").into());
        }
        if r.format != 1 {
            return Err(JournalError::Unsupported("it was written by a machine of the other byte order".into()).into());
        }
        left = left.checked_sub(r.blocks()).ok_or_else(|| bad("records run past the head"))?;
        let payload = payload(dev, geo, at.block(), &r)?.ok_or_else(|| bad("record's checksum does not match"))?;
        operations(&r, &payload, &mut open, handler, pass)?;
        at = geo.after(&r);
    }
    Ok(())
}

fn operations<R: Replay>(r: &Record, payload: &[u8], open: &mut HashMap<u32, Trans>, handler: &mut R, pass: u8) -> Result<(), R::Error> {
    let bad = |what: &str| JournalError::Corrupt { block: r.lsn.block(), what: what.into() };
    let mut at = 0;
    for _ in 0..r.num_ops {
        let op = payload.get(at..).and_then(Op::parse).ok_or_else(|| bad("operations run past the record"))?;
        at += OP_HEADER;
        if op.flags & op_flag::UNMOUNT != 0 {
            continue;
        }
        let data = payload.get(at..at.saturating_add(op.len as usize)).ok_or_else(|| bad("an operation runs past the record"))?;
        at += op.len as usize;
        if op.flags & op_flag::START != 0 {
            open.insert(op.tid, Trans { lsn: r.lsn, in_header: true, ..Trans::default() });
            continue;
        }
        // A transaction whose start lies before the tail was complete when the tail moved past it.
        let Some(t) = open.get_mut(&op.tid) else { continue };
        if op.flags & op_flag::COMMIT != 0 {
            let t = open.remove(&op.tid).unwrap_or_default();
            handler.transaction(pass, t.lsn, &t.items)?;
            continue;
        }
        t.region(data, op.flags & op_flag::WAS_CONT != 0).map_err(bad)?;
    }
    Ok(())
}
