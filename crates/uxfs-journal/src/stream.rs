//! The stream of records: regions become operations, operations fill in-core buffers, buffers become records.

use crate::stats::Stats;
use uxfs_format::log::{self, BB, CLIENT_LOG, CLIENT_TRANS, OP_HEADER, Op, Record, Seal, op_flag};
use uxfs_format::{Geometry, Lsn, NULL_AG};

/// Where the log lies and how records are cut.
#[derive(Clone, Debug)]
pub struct LogGeometry {
    /// First byte on the log's device.
    pub start: u64,
    /// Basic blocks.
    pub bbs: u32,
    /// Bytes that records are rounded up to.
    pub roundoff: u32,
    /// UUID of the volume.
    pub uuid: [u8; 16],
}

impl LogGeometry {
    /// The internal log of a volume.
    pub fn of(g: &Geometry) -> LogGeometry {
        LogGeometry { start: g.fsb_daddr(g.logstart).0 * BB as u64, bbs: g.log_bbs(), roundoff: g.log_roundoff(), uuid: g.uuid }
    }
    /// Bytes.
    pub fn size(&self) -> u64 {
        u64::from(self.bbs) * BB as u64
    }
    /// The position `blocks` after `at`; at the log's end another turn begins.
    pub(crate) fn advance(&self, at: Lsn, blocks: u32) -> Lsn {
        match (at.block() + blocks).checked_sub(self.bbs) {
            Some(block) => Lsn::new(log::next_cycle(at.cycle()), block),
            None => Lsn::new(at.cycle(), at.block() + blocks),
        }
    }
    /// Blocks from a position to a later one, less than a turn of the log on.
    pub fn blocks_between(&self, from: Lsn, to: Lsn) -> u32 {
        (to.block() + self.bbs - from.block()) % self.bbs
    }
    /// Where the record after `r` begins.
    pub(crate) fn after(&self, r: &Record) -> Lsn {
        self.advance(r.lsn, r.blocks())
    }
    /// Where a position lies, and how much of `len` bytes fits before the log's end.
    pub fn place(&self, block: u32, len: usize) -> (u64, usize) {
        let room = (self.bbs - block) as usize * BB;
        (self.start + u64::from(block) * BB as u64, len.min(room))
    }
}

/// A record ready to be written.
pub(crate) struct SealedRecord {
    pub(crate) lsn: Lsn,
    /// The tail that it bears.
    pub(crate) tail: Lsn,
    /// Where it begins, in bytes of records since the volume was opened.
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
}

impl SealedRecord {
    /// Where it ends, counted as `at` is.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }
}

/// Where the next record goes. One writer at a time has it.
pub(crate) struct Stream {
    pub(crate) geo: LogGeometry,
    /// Bytes of the largest record, headers included; a multiple of the geometry's `roundoff`.
    pub(crate) bufsize: usize,
    /// Position of the next record.
    pub(crate) head: Lsn,
    prev: u32,
    /// Bytes of all records so far.
    sealed: u64,
}

/// Who says which tail a record bears that begins at a place.
pub(crate) struct Tails<'a> {
    /// Of a record.
    pub(crate) record: &'a dyn Fn(u64) -> Lsn,
    /// Of the last one, which is told whether there were others before it.
    pub(crate) commit: &'a dyn Fn(u64, bool) -> Lsn,
}

/// A record being filled.
struct Open {
    buf: Vec<u8>,
    ops: u32,
}

impl Stream {
    pub(crate) fn new(geo: LogGeometry, bufsize: usize, head: Lsn) -> Stream {
        Stream { geo, bufsize, head, prev: NULL_AG, sealed: 0 }
    }

    /// Where the next record begins, in bytes of records since the volume was opened.
    pub(crate) fn position(&self) -> u64 {
        self.sealed
    }

    fn header_blocks(&self) -> usize {
        self.bufsize.div_ceil(log::CYCLE_SPAN)
    }

    /// Bytes by which the head lies past a multiple of the `roundoff`. The next record is that much shorter and ends on one:
    /// who wrote the log before may have rounded less.
    fn misaligned(&self) -> usize {
        self.head.block() as usize * BB % self.geo.roundoff as usize
    }

    /// Most bytes of the next record.
    fn limit(&self) -> usize {
        self.bufsize - self.misaligned()
    }

    fn open(&self) -> Open {
        let mut buf = Vec::with_capacity(self.bufsize);
        buf.resize(self.header_blocks() * BB, 0);
        Open { buf, ops: 0 }
    }

    fn seal(&mut self, mut open: Open, tail: Lsn, stats: &Stats) -> SealedRecord {
        let full = (open.buf.len() + self.misaligned()).next_multiple_of(self.geo.roundoff as usize) - self.misaligned();
        open.buf.resize(full, 0);
        let lsn = self.head;
        let seal =
            Seal { lsn, tail, prev: self.prev, num_ops: open.ops, uuid: &self.geo.uuid, size: self.bufsize as u32, log_bbs: self.geo.bbs };
        log::seal(&mut open.buf, self.header_blocks(), &seal);
        let blocks = (full / BB) as u32;
        self.prev = lsn.block();
        self.head = self.geo.advance(lsn, blocks);
        Stats::add(&stats.wraps, u64::from(self.head.cycle() != lsn.cycle()));
        Stats::add(&stats.writes, 1);
        Stats::add(&stats.blocks, u64::from(blocks));
        let at = self.sealed;
        self.sealed += full as u64;
        SealedRecord { lsn, tail, at, bytes: open.buf }
    }

    /// Cuts a checkpoint into records and hands each to `emit` as it is full; the last, with the commit, is returned.
    ///
    pub(crate) fn checkpoint<E>(
        &mut self,
        tid: u32,
        regions: &[&[u8]],
        tails: Tails<'_>,
        stats: &Stats,
        emit: &mut dyn FnMut(SealedRecord) -> Result<(), E>,
    ) -> Result<(Lsn, SealedRecord), E> {
        let start = self.head;
        let mut open = self.open();
        let op = |flags| Op { tid, len: 0, client: CLIENT_TRANS, flags };
        put_op(&mut open, op(op_flag::START), &[]);
        let mut header = Vec::with_capacity(16);
        header.extend(log::TRANS_MAGIC.to_le_bytes());
        header.extend(40u32.to_le_bytes());
        header.extend(tid.to_le_bytes());
        header.extend((regions.len() as u32).to_le_bytes());
        for region in std::iter::once(header.as_slice()).chain(regions.iter().copied()) {
            let mut rest = region;
            let mut split = false;
            loop {
                let room = self.limit().saturating_sub(open.buf.len());
                // A piece needs its header and at least four bytes: less room starts a new record.
                if room < OP_HEADER + 4 {
                    let full = std::mem::replace(&mut open, self.open());
                    let sealed = self.seal(full, (tails.record)(self.sealed), stats);
                    emit(sealed)?;
                    continue;
                }
                let n = rest.len().min((room - OP_HEADER) / 4 * 4);
                let last = n == rest.len();
                let flags = match (split, last) {
                    (false, true) => 0,
                    (false, false) => op_flag::CONTINUE,
                    (true, false) => op_flag::CONTINUE | op_flag::WAS_CONT,
                    (true, true) => op_flag::END | op_flag::WAS_CONT,
                };
                put_op(&mut open, op(flags), &rest[..n]);
                if last {
                    break;
                }
                rest = &rest[n..];
                split = true;
            }
        }
        if self.limit().saturating_sub(open.buf.len()) < OP_HEADER {
            let full = std::mem::replace(&mut open, self.open());
            let sealed = self.seal(full, (tails.record)(self.sealed), stats);
            emit(sealed)?;
        }
        put_op(&mut open, op(op_flag::COMMIT), &[]);
        let spans = self.head != start;
        Ok((start, self.seal(open, (tails.commit)(self.sealed, spans), stats)))
    }

    /// The record that says that the volume was unmounted.
    pub(crate) fn unmount(&mut self, tail: Lsn, stats: &Stats) -> SealedRecord {
        let mut open = self.open();
        let op = Op { tid: 0xb0c0_d0d0, len: 8, client: CLIENT_LOG, flags: op_flag::UNMOUNT };
        let mut magic = [0; 8];
        magic[..2].copy_from_slice(&log::UNMOUNT_MAGIC.to_le_bytes());
        put_op(&mut open, op, &magic);
        self.seal(open, tail, stats)
    }
}

fn put_op(open: &mut Open, mut op: Op, data: &[u8]) {
    op.len = data.len() as u32;
    let at = open.buf.len();
    open.buf.resize(at + OP_HEADER, 0);
    op.put(&mut open.buf[at..]);
    open.buf.extend_from_slice(data);
    open.ops += 1;
}
