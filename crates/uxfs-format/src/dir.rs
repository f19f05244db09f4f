//! Directories: short form, data blocks, leaves and free index (format facts, section 8).

use crate::bytes::*;
use crate::*;
use std::borrow::Cow;

/// Block form: `XDB3`
pub const BLOCK_MAGIC: u32 = 0x5844_4233;
/// Data block of the larger forms: `XDD3`
pub const DATA_MAGIC: u32 = 0x5844_4433;
/// Free index: `XDF3`
pub const FREE_MAGIC: u32 = 0x5844_4633;
/// Bytes of a data block's header.
pub const DATA_HEADER: usize = 64;
/// Bytes of a free index block's header.
pub const FREE_HEADER: usize = 64;
/// Byte offset of the checksum of data and free blocks.
pub const DIR_CRC: usize = 4;
/// Offset of the three longest free runs.
pub const BESTFREE: usize = 48;
/// Marks an unused run.
pub const UNUSED_TAG: u16 = 0xffff;
/// No data block there, in bests.
pub const NULL_BEST: u16 = 0xffff;
/// Longest name.
pub const MAX_NAME: usize = 255;

/// File type in a directory entry.
pub mod ftype {
    /// From the type bits of a mode.
    pub fn of_mode(m: u16) -> u8 {
        use crate::inode::mode::*;
        match m & FMT {
            REG => 1,
            DIR => 2,
            CHR => 3,
            BLK => 4,
            FIFO => 5,
            SOCK => 6,
            LNK => 7,
            _ => 0,
        }
    }
}

/// Magic numbers of version 4: block form, data, free index; without file types the first two are told apart in memory only.
mod old {
    pub const BLOCK: u32 = 0x5844_3242;
    pub const DATA: u32 = 0x5844_3244;
    pub const FREE: u32 = 0x5844_3246;
    pub const BLOCK_UNTYPED: u32 = 0x5844_3262;
    pub const DATA_UNTYPED: u32 = 0x5844_3264;
    pub const HEADER: usize = 16;
}

/// Magic number of a data or free block; those of version 4 become those that stand for them here.
pub fn magic(b: &[u8]) -> u32 {
    match get32(b, 0) {
        old::BLOCK | old::BLOCK_UNTYPED => BLOCK_MAGIC,
        old::DATA | old::DATA_UNTYPED => DATA_MAGIC,
        old::FREE => FREE_MAGIC,
        m => m,
    }
}

/// True for a block of a volume of version 4.
pub fn is_old(b: &[u8]) -> bool {
    get32(b, 0) != magic(b)
}

/// Bytes of a data block's header.
fn header(b: &[u8]) -> usize {
    if is_old(b) { old::HEADER } else { DATA_HEADER }
}

/// True if the entries of a block bear file types.
fn is_typed(b: &[u8]) -> bool {
    !matches!(get32(b, 0), old::BLOCK_UNTYPED | old::DATA_UNTYPED)
}

/// Marks a block whose entries bear no file types, as it comes into memory.
pub fn mark_untyped(b: &mut [u8]) {
    match get32(b, 0) {
        old::BLOCK => put32(b, 0, old::BLOCK_UNTYPED),
        old::DATA => put32(b, 0, old::DATA_UNTYPED),
        _ => {}
    }
}

/// A short form whose entries bear no file types, with a type of none for each.
///
/// # Errors
/// An entry runs past the end.
pub fn with_types(fork: &[u8]) -> Result<Vec<u8>, &'static str> {
    let form = ShortForm(fork);
    let isz = form.ino_size();
    let mut out = slice(fork, 0, 2 + isz).to_vec();
    let mut at = 2 + isz;
    for _ in 0..form.count() {
        let n = usize::from(get8(fork, at));
        let end = at + 3 + n + isz;
        if n == 0 || end > fork.len() {
            return Err("short form entry runs past the end");
        }
        out.extend_from_slice(&fork[at..at + 3 + n]);
        out.push(0);
        out.extend_from_slice(&fork[at + 3 + n..end]);
        at = end;
    }
    Ok(out)
}

/// A short form whose entries bear file types: as it is where the volume has them, else [`with_types`].
///
/// # Errors
/// An entry runs past the end.
pub fn typed<'a>(fork: &'a [u8], g: &Geometry) -> Result<Cow<'a, [u8]>, &'static str> {
    if g.ftype() { Ok(Cow::Borrowed(fork)) } else { with_types(fork).map(Cow::Owned) }
}

/// Bytes of a data entry with a name of `n` bytes.
pub fn entry_size(n: usize) -> usize {
    (12 + n).next_multiple_of(8)
}

/// One entry of the short form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SfEntry<'a> {
    /// Offset within the fork.
    pub at: usize,
    /// Where it would be in block form.
    pub offset: u16,
    /// The name.
    pub name: &'a [u8],
    /// See [`ftype`].
    pub ftype: u8,
    /// The inode.
    pub ino: Ino,
}

/// A directory in short form, over the bytes of its fork.
#[derive(Clone, Copy, Debug)]
pub struct ShortForm<'a>(pub &'a [u8]);

impl<'a> ShortForm<'a> {
    /// Entries.
    pub fn count(&self) -> usize {
        usize::from(get8(self.0, 0))
    }
    /// True if inode numbers take 8 bytes.
    pub fn wide(&self) -> bool {
        get8(self.0, 1) > 0
    }
    /// Bytes of an inode number.
    pub fn ino_size(&self) -> usize {
        if self.wide() { 8 } else { 4 }
    }
    fn ino_at(&self, at: usize) -> Ino {
        if self.wide() { Ino(get64(self.0, at)) } else { Ino(u64::from(get32(self.0, at))) }
    }
    /// The parent directory.
    pub fn parent(&self) -> Ino {
        self.ino_at(2)
    }
    /// The entries in order; one that does not fit ends the walk with an error.
    pub fn entries(self) -> impl Iterator<Item = Result<SfEntry<'a>, &'static str>> {
        let mut at = 2 + self.ino_size();
        let mut i = 0;
        let (count, isz) = (self.count(), self.ino_size());
        std::iter::from_fn(move || {
            if i >= count {
                return None;
            }
            let n = usize::from(get8(self.0, at));
            let end = at + 3 + n + 1 + isz;
            if n == 0 || end > self.0.len() {
                i = count;
                return Some(Err("short form entry runs past the end"));
            }
            i += 1;
            let e = SfEntry {
                at,
                offset: get16(self.0, at + 1),
                name: slice(self.0, at + 3, n),
                ftype: get8(self.0, at + 3 + n),
                ino: self.ino_at(at + 4 + n),
            };
            at = end;
            Some(Ok(e))
        })
    }
}

/// One entry of a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataEntry<'a> {
    /// Offset within the block.
    pub at: usize,
    /// The inode.
    pub ino: Ino,
    /// The name.
    pub name: &'a [u8],
    /// See [`ftype`].
    pub ftype: u8,
    /// Bytes of the entry.
    pub size: usize,
}

/// What lies at an offset of a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// An entry.
    Entry(DataEntry<'a>),
    /// An unused run.
    Unused {
        /// Offset within the block.
        at: usize,
        /// Bytes.
        len: usize,
    },
}

impl Item<'_> {
    /// First byte behind.
    pub fn end(&self) -> usize {
        match self {
            Item::Entry(e) => e.at + e.size,
            Item::Unused { at, len } => at + len,
        }
    }
}

/// End of a data block's entries: in block form the leaf array follows.
pub fn data_end(b: &[u8]) -> usize {
    if magic(b) == BLOCK_MAGIC {
        let count = get32(b, b.len() - 8) as usize;
        (b.len() - 8).saturating_sub(count.saturating_mul(8))
    } else {
        b.len()
    }
}

/// The entry at offset `at`, if a sound one fits there before `end`.
pub fn data_entry(b: &[u8], at: usize, end: usize) -> Option<DataEntry<'_>> {
    let n = usize::from(get8(b, at + 8));
    let typed = is_typed(b);
    let size = if typed { entry_size(n) } else { (11 + n).next_multiple_of(8) };
    let fits = at >= header(b) && at.is_multiple_of(8) && n > 0 && at + size <= end;
    let tag = get16(b, at + size - 2);
    (fits && usize::from(tag) == at).then(|| DataEntry {
        at,
        ino: Ino(get64(b, at)),
        name: slice(b, at + 9, n),
        ftype: if typed { get8(b, at + 9 + n) } else { 0 },
        size,
    })
}

/// Walks entries and unused runs of a data block; an item that does not fit ends the walk with an error.
pub fn data_items(b: &[u8]) -> impl Iterator<Item = Result<Item<'_>, &'static str>> {
    let end = data_end(b);
    let mut at = header(b);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let item = if get16(b, at) == UNUSED_TAG {
            let len = usize::from(get16(b, at + 2));
            if len < 8 || !len.is_multiple_of(8) || at + len > end || usize::from(get16(b, at + len - 2)) != at {
                at = end;
                return Some(Err("unused run has a wrong length or tag"));
            }
            Item::Unused { at, len }
        } else {
            match data_entry(b, at, end) {
                Some(e) => Item::Entry(e),
                None => {
                    at = end;
                    return Some(Err("directory entry has a wrong length or tag"));
                }
            }
        };
        at = item.end();
        Some(Ok(item))
    })
}

/// Checks a data block: items, coalescing, and the three longest free runs.
pub fn check_data(b: &[u8]) -> Result<(), &'static str> {
    if magic(b) == BLOCK_MAGIC {
        let (count, stale) = (get32(b, b.len() - 8) as usize, get32(b, b.len() - 4) as usize);
        if count.saturating_mul(8) > b.len() - 8 - header(b) || stale > count {
            return Err("leaf count is larger than the block");
        }
    }
    let mut free: Vec<(usize, usize)> = Vec::new();
    let mut after_free = false;
    for item in data_items(b) {
        match item? {
            Item::Unused { at, len } => {
                if after_free {
                    return Err("neighbouring unused runs are not joined");
                }
                after_free = true;
                free.push((len, at));
            }
            Item::Entry(_) => after_free = false,
        }
    }
    let mut last = usize::MAX;
    for i in 0..3 {
        let (off, len) = bestfree(b, i);
        if len == 0 {
            if off != 0 || free.len() > i {
                return Err("longest free runs are incomplete");
            }
            continue;
        }
        if len > last || !free.contains(&(len, off)) {
            return Err("longest free runs are wrong");
        }
        last = len;
    }
    if free.iter().filter(|f| f.0 > bestfree(b, 2).1).count() > 3 {
        return Err("a longer free run is not listed");
    }
    Ok(())
}

/// Entry `i` of the longest free runs: (offset, bytes).
pub fn bestfree(b: &[u8], i: usize) -> (usize, usize) {
    let at = if is_old(b) { 4 } else { BESTFREE } + 4 * i;
    (usize::from(get16(b, at)), usize::from(get16(b, at + 2)))
}

/// Carries the three longest free runs of a data block on: the runs at `gone` are no more, and `new` (offset, bytes; none if there
/// are no bytes) is there. The block is walked only where the three do not tell.
pub fn update_bestfree(b: &mut [u8], gone: &[usize], new: (usize, usize)) {
    let old = [0, 1, 2].map(|i| bestfree(b, i));
    // What is not listed is at most as long as the third.
    let most_unlisted = old[2].1;
    let mut best: Vec<(usize, usize)> = old.into_iter().filter(|r| r.1 > 0 && !gone.contains(&r.0)).collect();
    let at = best.iter().position(|r| new.1 > r.1).unwrap_or(best.len());
    if new.1 > 0 {
        best.insert(at, new);
    }
    if most_unlisted > 0 && best.get(2).is_none_or(|r| r.1 < most_unlisted) {
        return rebuild_bestfree(b);
    }
    best.resize(3, (0, 0));
    put_bestfree(b, &best);
}

/// Recomputes the three longest free runs of a data block.
pub fn rebuild_bestfree(b: &mut [u8]) {
    let mut best = [(0usize, 0usize); 3];
    for item in data_items(b) {
        if let Ok(Item::Unused { at, len }) = item
            && let Some(i) = best.iter().position(|x| len > x.1)
        {
            best[i..].rotate_right(1);
            best[i] = (at, len);
        }
    }
    put_bestfree(b, &best);
}

fn put_bestfree(b: &mut [u8], best: &[(usize, usize)]) {
    for (i, (at, len)) in best.iter().take(3).enumerate() {
        put16(b, BESTFREE + 4 * i, *at as u16);
        put16(b, BESTFREE + 4 * i + 2, *len as u16);
    }
}

/// The unused run at `at`, if there is one: its bytes.
pub fn unused_at(b: &[u8], at: usize) -> Option<usize> {
    let (tag, len) = (get16(b, at), usize::from(get16(b, at + 2)));
    (at >= DATA_HEADER && tag == UNUSED_TAG && len >= 8 && at + len <= data_end(b) && usize::from(get16(b, at + len - 2)) == at)
        .then_some(len)
}

/// The unused run that ends at `end`, if there is one: its offset.
pub fn unused_before(b: &[u8], end: usize) -> Option<usize> {
    // The last two bytes of a run and of an entry say where it begins.
    let at = usize::from(get16(b, end.checked_sub(2)?));
    (end > DATA_HEADER && unused_at(b, at).is_some_and(|len| at + len == end)).then_some(at)
}

/// Writes an unused run.
pub fn put_unused(b: &mut [u8], at: usize, len: usize) {
    put16(b, at, UNUSED_TAG);
    put16(b, at + 2, len as u16);
    put16(b, at + len - 2, at as u16);
}

/// Writes an entry.
pub fn put_entry(b: &mut [u8], at: usize, ino: Ino, name: &[u8], ftype: u8) {
    let size = entry_size(name.len());
    b[at..at + size].fill(0);
    put64(b, at, ino.0);
    b[at + 8] = name.len() as u8;
    b[at + 9..at + 9 + name.len()].copy_from_slice(name);
    b[at + 9 + name.len()] = ftype;
    put16(b, at + size - 2, at as u16);
}

/// Writes the header of a data or free block, everything else zero.
pub fn init(b: &mut [u8], magic: u32, daddr: DiskAddr, owner: Ino, g: &Geometry) {
    b.fill(0);
    put32(b, 0, magic);
    put64(b, 8, daddr.0);
    b[24..40].copy_from_slice(&g.meta_uuid);
    put64(b, 40, owner.0);
}

/// Most bests a free index block of `size` bytes holds.
pub fn free_max(size: usize) -> usize {
    (size - FREE_HEADER) / 2
}
/// Most bests this very block holds.
pub fn free_max_of(b: &[u8]) -> usize {
    (b.len() - header(b)) / 2
}
/// What a free index block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeCounts {
    /// The first data block that it tells of.
    pub first: usize,
    /// Bests in it.
    pub valid: usize,
    /// Of those, of data blocks that are there.
    pub used: usize,
}
/// The counts in a free index block's header.
pub fn free_counts(b: &[u8]) -> FreeCounts {
    let at = if is_old(b) { 4 } else { 48 };
    FreeCounts { first: get32(b, at) as usize, valid: get32(b, at + 4) as usize, used: get32(b, at + 8) as usize }
}
/// Longest free run of the `i`th data block that a free index block tells of.
pub fn free_best(b: &[u8], i: usize) -> u16 {
    get16(b, header(b) + 2 * i)
}
