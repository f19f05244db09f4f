//! Records of the quota files (format facts, section 10), and the log's items about them.

use crate::bytes::*;
use crate::*;

/// `DQ`
pub const MAGIC: u16 = 0x4451;
/// Bytes of a record in its block.
pub const RECORD: usize = 136;
/// Bytes of it that limits, counters and timers take; what follows is of version 5.
pub const BODY: usize = 104;
/// Byte offset of the checksum.
pub const CRC: usize = 108;
/// Byte offset of the log position.
pub const LSN: usize = 112;
/// Byte offset of the volume's UUID.
pub const UUID: usize = 120;

/// The format region of a quota record's item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFormat {
    /// Whose quota it is.
    pub id: u32,
    /// The block.
    pub daddr: DiskAddr,
    /// File system blocks from there; all other items count basic blocks.
    pub blocks: u32,
    /// Bytes from the block's begin.
    pub offset: u32,
}

impl RecordFormat {
    /// Reads the region.
    pub fn parse(b: &[u8]) -> Option<RecordFormat> {
        let word = |at: usize| b.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let low = u64::from(word(8)?);
        Some(RecordFormat { id: word(4)?, daddr: DiskAddr(low | u64::from(word(12)?) << 32), blocks: word(16)?, offset: word(20)? })
    }
}

/// Puts limits, counters and timers into a record.
pub fn put(record: &mut [u8], body: &[u8], g: &Geometry) {
    let n = BODY.min(body.len()).min(record.len());
    record[..n].copy_from_slice(&body[..n]);
    if g.v5() && record.len() >= RECORD {
        record[UUID..RECORD].copy_from_slice(&g.meta_uuid);
        crc::stamp(&mut record[..RECORD], CRC);
    }
}

/// The log position of a record; `None` where there is no whole one.
pub fn lsn(record: &[u8]) -> Option<Lsn> {
    (get16(record, 0) == MAGIC && crc::verify(slice(record, 0, RECORD), CRC)).then(|| Lsn(get64(record, LSN)))
}
