//! The log's records, operations and items (journal facts, part I): parsing and building, no I/O.

use crate::bytes::*;
use crate::*;

/// Magic number of a record header.
pub const RECORD_MAGIC: u32 = 0xfeed_babe;
/// Bytes of a basic block.
pub const BB: usize = 512;
/// Bytes of the header that its checksum covers, on 64-bit and on 32-bit writers.
pub const CRC_HEADER: [usize; 2] = [328, 324];
/// Bytes of payload whose first words one header block holds.
pub const CYCLE_SPAN: usize = 64 * BB;
/// Bytes of an operation header.
pub const OP_HEADER: usize = 12;
/// `TRAN`
pub const TRANS_MAGIC: u32 = 0x5452_414e;
/// Payload of an unmount record.
pub const UNMOUNT_MAGIC: u16 = 0x556e;

/// Bits of an operation's flags.
pub mod op_flag {
    /// First of a transaction.
    pub const START: u8 = 1;
    /// Last of a transaction.
    pub const COMMIT: u8 = 2;
    /// Goes on in the next record.
    pub const CONTINUE: u8 = 4;
    /// Goes on from the last record.
    pub const WAS_CONT: u8 = 8;
    /// Ends a region that was split.
    pub const END: u8 = 0x10;
    /// The volume was unmounted.
    pub const UNMOUNT: u8 = 0x20;
}
/// Who wrote an operation: a transaction.
pub const CLIENT_TRANS: u8 = 0x69;
/// Who wrote an operation: the log itself.
pub const CLIENT_LOG: u8 = 0xaa;

/// Types of items.
pub mod item {
    /// Intent to free extents.
    pub const EFI: u16 = 0x1236;
    /// Extents freed.
    pub const EFD: u16 = 0x1237;
    /// Inode.
    pub const INODE: u16 = 0x123b;
    /// Buffer.
    pub const BUF: u16 = 0x123c;
    /// Quota record.
    pub const DQUOT: u16 = 0x123d;
    /// Quota turned off; obsolete.
    pub const QUOTAOFF: u16 = 0x123e;
    /// New inode chunk.
    pub const ICREATE: u16 = 0x123f;
    /// Intent to change reverse mappings.
    pub const RUI: u16 = 0x1240;
    /// Reverse mappings changed.
    pub const RUD: u16 = 0x1241;
    /// Intent to change reference counts.
    pub const CUI: u16 = 0x1242;
    /// Reference counts changed.
    pub const CUD: u16 = 0x1243;
    /// Intent to change a mapping.
    pub const BUI: u16 = 0x1244;
    /// Mapping changed.
    pub const BUD: u16 = 0x1245;
    /// Intent to change an attribute.
    pub const ATTRI: u16 = 0x1246;
    /// Attribute changed.
    pub const ATTRD: u16 = 0x1247;
    /// Intent to exchange mappings.
    pub const XMI: u16 = 0x1248;
    /// Mappings exchanged.
    pub const XMD: u16 = 0x1249;

    /// The type of item that says that an intent of this type is done; `None` if it is no intent.
    pub fn completion(intent: u16) -> Option<u16> {
        [EFI, RUI, CUI, BUI, ATTRI, XMI].contains(&intent).then_some(intent + 1)
    }

    /// Name of a type in messages.
    pub fn name(t: u16) -> &'static str {
        match t {
            EFI => "EFI",
            EFD => "EFD",
            INODE => "INODE",
            BUF => "BUF",
            DQUOT => "DQUOT",
            QUOTAOFF => "QUOTAOFF",
            ICREATE => "ICREATE",
            RUI => "RUI",
            RUD => "RUD",
            CUI => "CUI",
            CUD => "CUD",
            BUI => "BUI",
            BUD => "BUD",
            ATTRI => "ATTRI",
            ATTRD => "ATTRD",
            XMI => "XMI",
            XMD => "XMD",
            _ => "unknown",
        }
    }
}

/// Bits of a buffer item's flags.
pub mod buf_flag {
    /// Inode cluster: only next-unlinked fields count.
    pub const INODE_BUF: u16 = 1;
    /// The buffer was freed: earlier images are not replayed.
    pub const CANCEL: u16 = 2;
    /// Quota records.
    pub const DQUOT: u16 = 4 | 8 | 0x10;
}

/// Bits of an inode item's fields.
pub mod ino_field {
    /// The core.
    pub const CORE: u32 = 1;
    /// Data fork, inline bytes.
    pub const DDATA: u32 = 2;
    /// Data fork, extents.
    pub const DEXT: u32 = 4;
    /// Data fork, root of the bmbt.
    pub const DBROOT: u32 = 8;
    /// Device number.
    pub const DEV: u32 = 0x10;
    /// Attribute fork, inline bytes.
    pub const ADATA: u32 = 0x40;
    /// Attribute fork, extents.
    pub const AEXT: u32 = 0x80;
    /// Attribute fork, root of the bmbt.
    pub const ABROOT: u32 = 0x100;
    /// Blocks of the data fork's bmbt change their owner.
    pub const DOWNER: u32 = 0x200;
    /// Blocks of the attribute fork's bmbt change their owner.
    pub const AOWNER: u32 = 0x400;
    /// All that concern the data fork's bytes.
    pub const DFORK: u32 = DDATA | DEXT | DBROOT | DEV;
    /// All that concern the attribute fork's bytes.
    pub const AFORK: u32 = ADATA | AEXT | ABROOT;
}

/// Operations of refcount intents.
pub mod refcount_op {
    /// One more owner.
    pub const INCREASE: u32 = 1;
    /// One owner less.
    pub const DECREASE: u32 = 2;
    /// Staged for copy-on-write.
    pub const ALLOC_COW: u32 = 3;
    /// No longer staged.
    pub const FREE_COW: u32 = 4;
}

/// Operations and flags of reverse-mapping intents.
pub mod rmap_op {
    /// A file has the extent.
    pub const MAP: u32 = 1;
    /// The same, where others may have it too.
    pub const MAP_SHARED: u32 = 2;
    /// A file no longer has it.
    pub const UNMAP: u32 = 3;
    /// The same, where others may have it too.
    pub const UNMAP_SHARED: u32 = 4;
    /// It is written, or unwritten, from now on.
    pub const CONVERT: u32 = 5;
    /// The same, where others may have it too.
    pub const CONVERT_SHARED: u32 = 6;
    /// Something that is no file has it.
    pub const ALLOC: u32 = 7;
    /// Something that is no file no longer has it.
    pub const FREE: u32 = 8;
    /// In the attribute fork.
    pub const ATTR_FORK: u32 = 1 << 31;
    /// A block of the extent tree.
    pub const BMBT: u32 = 1 << 30;
    /// Unwritten.
    pub const UNWRITTEN: u32 = 1 << 29;
}

/// A record header.
#[derive(Clone, Debug)]
pub struct Record {
    /// Cycle number.
    pub cycle: u32,
    /// Format version, 1 or 2.
    pub version: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Its own position.
    pub lsn: Lsn,
    /// Where replay would begin.
    pub tail: Lsn,
    /// Stored checksum.
    pub crc: u32,
    /// Basic block of the record before.
    pub prev: u32,
    /// Operations that begin in it.
    pub num_ops: u32,
    /// Byte order of the writer: 1 little-endian.
    pub format: u32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// Bytes of the writer's buffer.
    pub size: u32,
}

impl Record {
    /// Reads a header block; `None` if it is none.
    pub fn parse(b: &[u8]) -> Option<Record> {
        if get32(b, 0) != RECORD_MAGIC {
            return None;
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(b.get(304..320)?);
        Some(Record {
            cycle: get32(b, 4),
            version: get32(b, 8),
            len: get32(b, 12),
            lsn: Lsn(get64(b, 16)),
            tail: Lsn(get64(b, 24)),
            crc: u32::from_le_bytes(b.get(32..36)?.try_into().ok()?),
            prev: get32(b, 36),
            num_ops: get32(b, 40),
            format: get32(b, 300),
            uuid,
            size: get32(b, 320),
        })
    }

    /// Header blocks before the payload.
    pub fn header_blocks(&self) -> u32 {
        if self.version & 2 != 0 && self.size as usize > CYCLE_SPAN { self.size.div_ceil(CYCLE_SPAN as u32) } else { 1 }
    }

    /// Blocks of all of it.
    pub fn blocks(&self) -> u32 {
        self.header_blocks() + self.payload_blocks()
    }

    /// Blocks of the payload. Records of version 1 end where their last operation does; what is left of that block is no part of them.
    pub fn payload_blocks(&self) -> u32 {
        self.len.div_ceil(BB as u32)
    }

    /// True if the record is of the volume with that UUID; one without a UUID is of any.
    pub fn bears(&self, uuid: &[u8; 16]) -> bool {
        self.uuid == *uuid || self.uuid == [0; 16]
    }

    /// Checks what must hold before the payload is read.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self, uuid: &[u8; 16], log_bbs: u32) -> Result<(), &'static str> {
        if !matches!(self.version, 1 | 2) {
            return Err("record version is unknown");
        }
        if !self.bears(uuid) {
            return Err("record bears another volume's UUID");
        }
        if self.version == 2 && !self.len.is_multiple_of(BB as u32) || self.len > 2 << 20 || self.size > 2 << 20 {
            return Err("record length is out of range");
        }
        if self.len > self.size && !(self.num_ops == 1 && self.len <= 256 << 10) {
            return Err("record is longer than its writer's buffer");
        }
        if self.blocks() > log_bbs {
            return Err("record is longer than the log");
        }
        if self.lsn.block() >= log_bbs {
            return Err("record position is outside the log");
        }
        Ok(())
    }
}

/// Next cycle number; the record magic is skipped.
pub fn next_cycle(c: u32) -> u32 {
    let n = c.wrapping_add(1);
    if n == RECORD_MAGIC { n + 1 } else { n }
}

/// The cycle number that a log block shows.
pub fn block_cycle(b: &[u8]) -> u32 {
    let w = get32(b, 0);
    if w == RECORD_MAGIC { get32(b, 4) } else { w }
}

/// Checksum of a record as stored: header with its checksum zero, extended headers, payload.
pub fn record_crc(header: &[u8], header_len: usize, payload: &[u8]) -> u32 {
    let ext = payload.len().div_ceil(CYCLE_SPAN).saturating_sub(1);
    let mut pieces: Vec<&[u8]> = vec![slice(header, 0, 32), &[0; 4], slice(header, 36, header_len - 36)];
    for i in 1..=ext {
        pieces.push(slice(header, i * BB, 260));
    }
    pieces.push(payload);
    crc::crc32c(&pieces)
}

/// Where in the headers the saved first word of payload block `i` lies.
fn cycle_slot(i: usize) -> usize {
    if i < 64 { 44 + 4 * i } else { (i / 64) * BB + 4 + 4 * (i % 64) }
}

/// Puts the saved first words back into a payload that was read.
pub fn unstamp(header: &[u8], payload: &mut [u8]) {
    for (i, b) in payload.chunks_exact_mut(BB).enumerate() {
        put32(b, 0, get32(header, cycle_slot(i)));
    }
}

/// What a record's header says, for [`seal`].
#[derive(Clone, Debug)]
pub struct Seal<'a> {
    /// Position of the record.
    pub lsn: Lsn,
    /// Tail to stamp.
    pub tail: Lsn,
    /// Basic block of the record before, or all ones.
    pub prev: u32,
    /// Operations in it.
    pub num_ops: u32,
    /// The volume's UUID.
    pub uuid: &'a [u8; 16],
    /// Bytes of the in-core buffer, headers included.
    pub size: u32,
    /// Basic blocks of the log: blocks past its end bear the next cycle.
    pub log_bbs: u32,
}

/// Fills in the headers at the front of `record` (headers and payload), stamps cycles and the checksum.
pub fn seal(record: &mut [u8], header_blocks: usize, s: &Seal<'_>) {
    let (header, payload) = record.split_at_mut(header_blocks * BB);
    header.fill(0);
    put32(header, 0, RECORD_MAGIC);
    put32(header, 4, s.lsn.cycle());
    put32(header, 8, 2);
    put32(header, 12, payload.len() as u32);
    put64(header, 16, s.lsn.0);
    put64(header, 24, s.tail.0);
    put32(header, 36, s.prev);
    put32(header, 40, s.num_ops);
    put32(header, 300, 1);
    header[304..320].copy_from_slice(s.uuid);
    put32(header, 320, s.size);
    // What lies behind the log's end bears the next cycle, headers among it: recovery looks for the head by these words.
    let start = s.lsn.block() as usize;
    let cycle = |i: usize| if start + i >= s.log_bbs as usize { next_cycle(s.lsn.cycle()) } else { s.lsn.cycle() };
    for i in 1..header_blocks {
        put32(header, i * BB, cycle(i));
    }
    for (i, b) in payload.chunks_exact_mut(BB).enumerate() {
        put32(header, cycle_slot(i), get32(b, 0));
        put32(b, 0, cycle(header_blocks + i));
    }
    let crc = record_crc(header, CRC_HEADER[0], payload);
    header[32..36].copy_from_slice(&crc.to_le_bytes());
}

/// An operation header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Transaction that it belongs to.
    pub tid: u32,
    /// Bytes that follow.
    pub len: u32,
    /// Who wrote it.
    pub client: u8,
    /// See [`op_flag`].
    pub flags: u8,
}

impl Op {
    /// Reads a header.
    pub fn parse(b: &[u8]) -> Option<Op> {
        (b.len() >= OP_HEADER).then(|| Op { tid: get32(b, 0), len: get32(b, 4), client: b[8], flags: b[9] })
    }
    /// Writes a header.
    pub fn put(&self, b: &mut [u8]) {
        put32(b, 0, self.tid);
        put32(b, 4, self.len);
        b[8] = self.client;
        b[9] = self.flags;
        b[10..12].fill(0);
    }
}

/// The one region of an item that says that no extent was freed for an intent that never was. The kernel takes no transaction
/// without an item; this one changes nothing.
pub fn nothing_done() -> [u8; 16] {
    let mut b = [0; 16];
    b[..2].copy_from_slice(&item::EFD.to_le_bytes());
    b[2..4].copy_from_slice(&1u16.to_le_bytes());
    b
}

fn le16(b: &[u8], at: usize) -> u16 {
    get16(b, at).swap_bytes()
}
fn le32(b: &[u8], at: usize) -> u32 {
    get32(b, at).swap_bytes()
}
fn le64(b: &[u8], at: usize) -> u64 {
    get64(b, at).swap_bytes()
}
/// Puts the bytes of a field in their place.
fn put(b: &mut [u8], at: usize, field: &[u8]) {
    b[at..at + field.len()].copy_from_slice(field);
}
/// Type of an item, from its first region.
pub fn item_type(region: &[u8]) -> u16 {
    le16(region, 0)
}
/// Regions of an item, from its first region.
pub fn item_regions(region: &[u8]) -> usize {
    usize::from(le16(region, 2))
}

/// What ties an intent to its completion, from the first region of either.
pub fn item_id(region: &[u8]) -> Option<u64> {
    (region.len() >= 16).then(|| le64(region, 8))
}

/// First region of a buffer item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufFormat {
    /// See [`buf_flag`].
    pub flags: u16,
    /// Buffer type, see [`Kind::log_type`].
    pub kind: u16,
    /// Basic blocks.
    pub bbs: u16,
    /// Where.
    pub daddr: DiskAddr,
    /// Bit n: 128 bytes from 128 n are logged.
    pub map: Vec<u32>,
}

impl BufFormat {
    /// Reads the region.
    pub fn parse(b: &[u8]) -> Option<BufFormat> {
        let words = le32(b, 16) as usize;
        if b.len() < 20 || words > 64 || b.len() < 20 + 4 * words {
            return None;
        }
        let flags = le16(b, 4);
        Some(BufFormat {
            flags: flags & 0x7ff,
            kind: flags >> 11,
            bbs: le16(b, 6),
            daddr: DiskAddr(le64(b, 8)),
            map: (0..words).map(|i| le32(b, 20 + 4 * i)).collect(),
        })
    }
    /// The region, for an item of `regions` regions.
    pub fn build(&self, regions: u16) -> Vec<u8> {
        let mut b = Vec::new();
        self.put(regions, &mut b);
        b
    }
    /// Writes the region behind what `b` holds.
    pub fn put(&self, regions: u16, b: &mut Vec<u8>) {
        let mut head = [0; 20];
        put(&mut head, 0, &item::BUF.to_le_bytes());
        put(&mut head, 2, &regions.to_le_bytes());
        put(&mut head, 4, &(self.flags | self.kind << 11).to_le_bytes());
        put(&mut head, 6, &self.bbs.to_le_bytes());
        put(&mut head, 8, &self.daddr.0.to_le_bytes());
        put(&mut head, 16, &(self.map.len() as u32).to_le_bytes());
        b.extend_from_slice(&head);
        self.map.iter().for_each(|w| b.extend(w.to_le_bytes()));
    }
    /// The runs of set bits: (first chunk, chunks).
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let first = self.next(from, true)?;
            from = self.next(first, false).unwrap_or(32 * self.map.len());
            Some((first, from - first))
        })
    }

    /// The first bit from `from` on that is set, or clear.
    fn next(&self, from: usize, set: bool) -> Option<usize> {
        (from / 32..self.map.len()).find_map(|w| {
            let word = if set { self.map[w] } else { !self.map[w] };
            let left = word & u32::MAX.checked_shl(from.saturating_sub(32 * w) as u32)?;
            (left != 0).then(|| 32 * w + left.trailing_zeros() as usize)
        })
    }
}

/// First region of an inode item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeFormat {
    /// See [`ino_field`].
    pub fields: u32,
    /// Bytes of the attribute fork region.
    pub asize: u16,
    /// Bytes of the data fork region.
    pub dsize: u16,
    /// The inode.
    pub ino: Ino,
    /// Device number, if it is one.
    pub rdev: u32,
    /// Its cluster.
    pub daddr: DiskAddr,
    /// Basic blocks of the cluster.
    pub bbs: u32,
    /// Bytes into the cluster.
    pub offset: u32,
}

impl InodeFormat {
    /// Reads the region, of a 64-bit or a 32-bit writer.
    pub fn parse(b: &[u8]) -> Option<InodeFormat> {
        let pad = match b.len() {
            56 => 4,
            52 => 0,
            _ => return None,
        };
        Some(InodeFormat {
            fields: le32(b, 4),
            asize: le16(b, 8),
            dsize: le16(b, 10),
            ino: Ino(le64(b, 12 + pad)),
            rdev: le32(b, 20 + pad),
            daddr: DiskAddr(le64(b, 36 + pad)),
            bbs: le32(b, 44 + pad),
            offset: le32(b, 48 + pad),
        })
    }
    /// Writes the region, for an item of `regions` regions, behind what `b` holds.
    pub fn put(&self, regions: u16, b: &mut Vec<u8>) {
        let mut region = [0; 56];
        put(&mut region, 0, &item::INODE.to_le_bytes());
        put(&mut region, 2, &regions.to_le_bytes());
        put(&mut region, 4, &self.fields.to_le_bytes());
        put(&mut region, 8, &self.asize.to_le_bytes());
        put(&mut region, 10, &self.dsize.to_le_bytes());
        put(&mut region, 16, &self.ino.0.to_le_bytes());
        put(&mut region, 24, &self.rdev.to_le_bytes());
        put(&mut region, 40, &self.daddr.0.to_le_bytes());
        put(&mut region, 48, &self.bbs.to_le_bytes());
        put(&mut region, 52, &self.offset.to_le_bytes());
        b.extend_from_slice(&region);
    }
}

/// An inode chunk that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcreateFormat {
    /// Group.
    pub agno: AgNumber,
    /// First block.
    pub agbno: AgBlock,
    /// Inodes.
    pub count: u32,
    /// Bytes an inode.
    pub isize: u32,
    /// Blocks.
    pub len: u32,
    /// Their generation.
    pub generation: u32,
}

impl IcreateFormat {
    /// Reads the region.
    pub fn parse(b: &[u8]) -> Option<IcreateFormat> {
        (b.len() >= 28).then(|| IcreateFormat {
            agno: AgNumber(get32(b, 4)),
            agbno: AgBlock(get32(b, 8)),
            count: get32(b, 12),
            isize: get32(b, 16),
            len: get32(b, 20),
            generation: get32(b, 24),
        })
    }
    /// Writes the region.
    pub fn build(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(28);
        b.extend(item::ICREATE.to_le_bytes());
        b.extend(1u16.to_le_bytes());
        for v in [self.agno.0, self.agbno.0, self.count, self.isize, self.len, self.generation] {
            b.extend(v.to_be_bytes());
        }
        b
    }
}

/// One extent of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntentExtent {
    /// RUI, BUI: the owner, an inode's number above all. Else not on disk.
    pub owner: u64,
    /// First block.
    pub start: FsBlock,
    /// RUI, BUI: place in the file, in blocks. Else not on disk.
    pub offset: u64,
    /// Blocks.
    pub len: u32,
    /// Operation and state; zero for freed extents.
    pub flags: u32,
}

impl IntentExtent {
    /// An extent of an intent that names no owner.
    pub fn new(start: FsBlock, len: u32, flags: u32) -> IntentExtent {
        IntentExtent { owner: 0, start, offset: 0, len, flags }
    }
}

/// What is to be done, so that recovery does it if a crash comes between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Type of the item.
    pub kind: u16,
    /// Ties a completion to its intent, within one recovery.
    pub id: u64,
    /// What it is about; nothing in a completion, but for the EFD.
    pub extents: Vec<IntentExtent>,
}

impl Intent {
    /// Reads an EFI, CUI, RUI, BUI or the completion of one.
    pub fn parse(b: &[u8]) -> Option<Intent> {
        let kind = item_type(b);
        if b.len() < 16 {
            return None;
        }
        let (n, id) = (le32(b, 4) as usize, le64(b, 8));
        if matches!(kind, item::CUD | item::RUD | item::BUD | item::ATTRD | item::XMD) {
            return Some(Intent { kind, id, extents: Vec::new() });
        }
        let each = (b.len() - 16).checked_div(n).unwrap_or(16);
        let sizes: &[usize] = match kind {
            item::RUI | item::BUI => &[32],
            item::CUI => &[16],
            _ => &[12, 16],
        };
        if n > 65536 || (n > 0 && !sizes.contains(&each)) {
            return None;
        }
        let ext = |i: usize| {
            let at = 16 + each * i;
            match each {
                32 => IntentExtent {
                    owner: le64(b, at),
                    start: FsBlock(le64(b, at + 8)),
                    offset: le64(b, at + 16),
                    len: le32(b, at + 24),
                    flags: le32(b, at + 28),
                },
                _ => {
                    let flags = if kind == item::CUI { le32(b, at + 12) } else { 0 };
                    IntentExtent::new(FsBlock(le64(b, at)), le32(b, at + 8), flags)
                }
            }
        };
        Some(Intent { kind, id, extents: (0..n).map(ext).collect() })
    }
    /// Writes the region.
    pub fn build(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(16 + 32 * self.extents.len());
        b.extend(self.kind.to_le_bytes());
        b.extend(1u16.to_le_bytes());
        let n =
            if matches!(self.kind, item::CUD | item::RUD | item::BUD | item::ATTRD | item::XMD) { 0 } else { self.extents.len() as u32 };
        b.extend(n.to_le_bytes());
        b.extend(self.id.to_le_bytes());
        let wide = matches!(self.kind, item::RUI | item::BUI);
        for e in self.extents.iter().take(n as usize) {
            if wide {
                b.extend(e.owner.to_le_bytes());
            }
            b.extend(e.start.0.to_le_bytes());
            if wide {
                b.extend(e.offset.to_le_bytes());
            }
            b.extend(e.len.to_le_bytes());
            b.extend(if matches!(self.kind, item::EFI | item::EFD) { 0 } else { e.flags }.to_le_bytes());
        }
        b
    }
}

/// Operations of attribute intents.
pub mod attr_op {
    /// Set an attribute.
    pub const SET: u32 = 1;
    /// Remove one.
    pub const REMOVE: u32 = 2;
    /// Replace its value.
    pub const REPLACE: u32 = 3;
    /// Enter a parent pointer.
    pub const PARENT_SET: u32 = 4;
    /// Take one out.
    pub const PARENT_REMOVE: u32 = 5;
    /// Put one in the place of another.
    pub const PARENT_REPLACE: u32 = 6;
}

/// An attribute that is to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrIntent {
    /// Ties the completion to it.
    pub id: u64,
    /// Whose.
    pub ino: Ino,
    /// Of a parent pointer: the inode's generation.
    pub generation: u32,
    /// One of [`attr_op`].
    pub op: u32,
    /// Bits of the namespace.
    pub namespace: u8,
    /// The name.
    pub name: Vec<u8>,
    /// The name that takes its place.
    pub new_name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The value that takes its place.
    pub new_value: Vec<u8>,
}

impl AttrIntent {
    /// Reads an ATTRI from its regions.
    pub fn parse(regions: &[Vec<u8>]) -> Option<AttrIntent> {
        let b = regions.first().filter(|b| b.len() >= 40)?;
        let op = le32(b, 24) & 0xff;
        let replace = op == attr_op::PARENT_REPLACE;
        let (name, new_name) = if replace { (le32(b, 28) & 0xffff, le32(b, 28) >> 16) } else { (le32(b, 28), 0) };
        let value = le32(b, 32);
        // Regions are padded to four bytes; one is there for each length that is not zero.
        let mut rest = regions[1..].iter();
        let mut take = |n: u32| if n == 0 { Some(Vec::new()) } else { rest.next()?.get(..n as usize).map(<[u8]>::to_vec) };
        Some(AttrIntent {
            id: le64(b, 8),
            ino: Ino(le64(b, 16)),
            generation: le32(b, 4),
            op,
            namespace: (le32(b, 36) & 0xff) as u8,
            name: take(name)?,
            new_name: take(new_name)?,
            value: take(value)?,
            new_value: take(if replace { value } else { 0 })?,
        })
    }
}

/// Bits of an exchange's flags.
pub mod exchange_flag {
    /// Of attribute forks.
    pub const ATTR: u64 = 1;
    /// The files get each other's sizes.
    pub const SIZES: u64 = 2;
    /// Only where the first file has written data.
    pub const FIRST_WRITTEN: u64 = 4;
    /// At the end the first file shares no blocks.
    pub const FIRST_UNSHARED: u64 = 8;
    /// At the end the second file shares no blocks.
    pub const SECOND_UNSHARED: u64 = 0x10;
}

/// What is left of an exchange of the mappings of two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeIntent {
    /// Ties the completion to it.
    pub id: u64,
    /// The files.
    pub inos: [Ino; 2],
    /// Their generations.
    pub generations: [u32; 2],
    /// Where it goes on, in blocks.
    pub offsets: [u64; 2],
    /// Blocks that are left.
    pub blocks: u64,
    /// See [`exchange_flag`].
    pub flags: u64,
    /// The sizes that the files are to have, with [`exchange_flag::SIZES`]; else [`ExchangeIntent::NO_SIZES`].
    pub sizes: [u64; 2],
}

impl ExchangeIntent {
    /// What the kernel writes where sizes stay.
    pub const NO_SIZES: [u64; 2] = [u64::MAX; 2];

    /// Reads an XMI.
    pub fn parse(b: &[u8]) -> Option<ExchangeIntent> {
        let pair = |at: usize| [le64(b, at), le64(b, at + 8)];
        (b.len() >= 88).then(|| ExchangeIntent {
            id: le64(b, 8),
            inos: pair(16).map(Ino),
            generations: [le32(b, 32), le32(b, 36)],
            offsets: pair(40),
            blocks: le64(b, 56),
            flags: le64(b, 64),
            sizes: pair(72),
        })
    }
    /// Writes the region.
    pub fn build(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(88);
        b.extend(item::XMI.to_le_bytes());
        b.extend(1u16.to_le_bytes());
        b.extend([0; 4]);
        b.extend(self.id.to_le_bytes());
        self.inos.iter().for_each(|i| b.extend(i.0.to_le_bytes()));
        self.generations.iter().for_each(|g| b.extend(g.to_le_bytes()));
        for v in self.offsets.into_iter().chain([self.blocks, self.flags]).chain(self.sizes) {
            b.extend(v.to_le_bytes());
        }
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_record_parses_and_its_payload_comes_back() {
        let mut rec = vec![0u8; 3 * BB];
        rec[BB..].iter_mut().enumerate().for_each(|(i, b)| *b = i as u8 | 1);
        let want = rec[BB..].to_vec();
        let uuid = [9; 16];
        let s = Seal { lsn: Lsn::new(3, 99), tail: Lsn::new(2, 7), prev: 90, num_ops: 1, uuid: &uuid, size: 32768, log_bbs: 101 };
        seal(&mut rec, 1, &s);
        let r = Record::parse(&rec).unwrap();
        assert_eq!((r.lsn, r.tail, r.len, r.prev), (Lsn::new(3, 99), Lsn::new(2, 7), 1024, 90));
        r.check(&uuid, 101).unwrap();
        assert_eq!(record_crc(&rec[..BB], 328, &rec[BB..]), r.crc);
        assert_eq!((block_cycle(&rec[BB..]), block_cycle(&rec[2 * BB..])), (3, 4), "the wrapped block bears the next cycle");
        let (h, p) = rec.split_at_mut(BB);
        unstamp(h, p);
        assert_eq!(p, want);
    }

    #[test]
    fn formats_come_back_as_they_went() {
        let b = BufFormat { flags: 2, kind: 5, bbs: 8, daddr: DiskAddr(1234), map: vec![0b1110_0101] };
        assert_eq!(BufFormat::parse(&b.build(4)).unwrap(), b);
        assert!(b.runs().eq([(0, 1), (2, 1), (5, 3)]));
        let i = InodeFormat { fields: 5, asize: 0, dsize: 32, ino: Ino(131), rdev: 0, daddr: DiskAddr(128), bbs: 32, offset: 1536 };
        let mut region = Vec::new();
        i.put(3, &mut region);
        assert_eq!(InodeFormat::parse(&region).unwrap(), i);
        for kind in [item::EFI, item::CUI, item::RUI, item::BUI] {
            let wide = IntentExtent { owner: 9, start: FsBlock(5), offset: 8, len: 6, flags: 2 };
            let extent = match kind {
                item::EFI => IntentExtent::new(FsBlock(5), 6, 0),
                item::CUI => IntentExtent::new(FsBlock(5), 6, 2),
                _ => wide,
            };
            let e = Intent { kind, id: 77, extents: vec![extent; 3] };
            assert_eq!(Intent::parse(&e.build()).unwrap(), e);
        }
        let x = ExchangeIntent {
            id: 1,
            inos: [Ino(2), Ino(3)],
            generations: [4, 5],
            offsets: [6, 7],
            blocks: 8,
            flags: exchange_flag::SIZES,
            sizes: [9, 10],
        };
        assert_eq!(ExchangeIntent::parse(&x.build()).unwrap(), x);
    }
}
