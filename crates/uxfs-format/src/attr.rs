//! Attributes in short form, leaves and remote values (format facts, section 9).

use crate::bytes::*;
use crate::hash::name_hash;
use crate::{Ino, da};

/// Bits of an entry's flags.
pub mod flag {
    /// The value is in the leaf.
    pub const LOCAL: u8 = 1;
    /// `trusted.` namespace, and ACLs.
    pub const ROOT: u8 = 2;
    /// `security.` namespace.
    pub const SECURE: u8 = 4;
    /// A parent pointer.
    pub const PARENT: u8 = 8;
    /// Not finished; invisible.
    pub const INCOMPLETE: u8 = 0x80;
    /// The bits that tell namespaces apart.
    pub const NAMESPACE: u8 = ROOT | SECURE | PARENT;
}
/// `XARM`
pub const REMOTE_MAGIC: u32 = 0x5841_524d;
/// Bytes of a leaf's header; entries follow.
pub const LEAF_HEADER: usize = 80;
/// The same in version 4.
const OLD_LEAF_HEADER: usize = 32;
/// Longest value.
pub const MAX_VALUE: usize = 65536;
/// Longest name.
pub const MAX_NAME: usize = 255;
/// Bytes of the short form's header.
pub const SF_HEADER: usize = 4;

/// One entry of the short form.
#[derive(Clone, Copy, Debug)]
pub struct SfEntry<'a> {
    /// Offset within the fork.
    pub at: usize,
    /// See [`flag`].
    pub flags: u8,
    /// The name without its namespace's prefix.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl SfEntry<'_> {
    /// Bytes of the entry.
    pub fn size(&self) -> usize {
        3 + self.name.len() + self.value.len()
    }
}

/// The entries of a fork in short form; an entry that does not fit ends the walk with an error.
pub fn sf_entries(fork: &[u8]) -> impl Iterator<Item = Result<SfEntry<'_>, &'static str>> {
    let total = usize::from(get16(fork, 0));
    let count = usize::from(get8(fork, 2));
    let mut at = SF_HEADER;
    let mut i = 0;
    std::iter::from_fn(move || {
        if i >= count {
            return None;
        }
        let (n, v) = (usize::from(get8(fork, at)), usize::from(get8(fork, at + 1)));
        if total > fork.len() || n == 0 || at + 3 + n + v > total {
            i = count;
            return Some(Err("short form attribute runs past the end"));
        }
        i += 1;
        let e = SfEntry { at, flags: get8(fork, at + 2), name: slice(fork, at + 3, n), value: slice(fork, at + 3 + n, v) };
        at += e.size();
        Some(Ok(e))
    })
}

/// Where an attribute's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// In the leaf.
    Local(&'a [u8]),
    /// In blocks of the attribute fork.
    Remote {
        /// First block within the fork.
        block: u32,
        /// Bytes.
        len: u32,
    },
}

/// One entry of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafEntry<'a> {
    /// Hash of the name.
    pub hash: u32,
    /// Offset of name and value within the block.
    pub nameidx: usize,
    /// See [`flag`].
    pub flags: u8,
    /// The name.
    pub name: &'a [u8],
    /// The value.
    pub value: Value<'a>,
}

/// Bytes of name and value of a local entry.
pub fn local_size(name: usize, value: usize) -> usize {
    (3 + name + value).next_multiple_of(4)
}
/// Bytes of the name and place of a remote entry.
pub fn remote_size(name: usize) -> usize {
    (11 + name).next_multiple_of(4)
}
/// Bytes of a parent pointer's value: the directory's inode number and generation.
pub const PARENT_VALUE: usize = 12;

/// The value of a parent pointer.
pub fn parent_value(dir: Ino, generation: u32) -> [u8; PARENT_VALUE] {
    let mut v = [0; PARENT_VALUE];
    put64(&mut v, 0, dir.0);
    put32(&mut v, 8, generation);
    v
}

/// Hash of an entry: of its name, and for a parent pointer of the directory, too.
pub fn entry_hash(flags: u8, name: &[u8], value: &[u8]) -> u32 {
    let h = name_hash(name).0;
    if flags & flag::PARENT == 0 {
        return h;
    }
    let dir = get64(value, 0);
    h ^ (dir >> 32) as u32 ^ dir as u32
}

/// True if a value of that size is kept in a leaf of `blocksize` bytes.
pub fn is_local(name: usize, value: usize, blocksize: usize) -> bool {
    local_size(name, value) <= blocksize / 4 * 3
}
/// Blocks that a remote value takes.
pub fn remote_blocks(len: usize, blocksize: usize) -> usize {
    len.div_ceil(blocksize - crate::symlink::REMOTE_HEADER)
}
/// Offset of entry `i` of a leaf.
pub fn entry_at(i: usize) -> usize {
    LEAF_HEADER + 8 * i
}
/// Bytes of a leaf's header; in version 4 it is shorter.
fn leaf_header(b: &[u8]) -> usize {
    if da::is_old(b) { OLD_LEAF_HEADER } else { LEAF_HEADER }
}
/// Bytes that a leaf says its names and values take.
pub fn leaf_used(b: &[u8]) -> usize {
    usize::from(get16(b, da::shared(b) + 2))
}
/// First byte in use by names and values.
pub fn firstused(b: &[u8]) -> usize {
    match get16(b, da::shared(b) + 4) {
        0 => 65536,
        v => usize::from(v),
    }
}

/// Entry `i` of a leaf; an error if it runs past the end.
pub fn leaf_entry(b: &[u8], i: usize) -> Result<LeafEntry<'_>, &'static str> {
    let head = leaf_header(b);
    let at = head + 8 * i;
    let (hash, nameidx, flags) = (get32(b, at), usize::from(get16(b, at + 4)), get8(b, at + 6));
    let err = Err("attribute runs past the end");
    if flags & flag::LOCAL != 0 {
        let (v, n) = (usize::from(get16(b, nameidx)), usize::from(get8(b, nameidx + 2)));
        if n == 0 || nameidx < head || nameidx + 3 + n + v > b.len() {
            return err;
        }
        let (name, value) = (slice(b, nameidx + 3, n), Value::Local(slice(b, nameidx + 3 + n, v)));
        Ok(LeafEntry { hash, nameidx, flags, name, value })
    } else {
        let (block, len, n) = (get32(b, nameidx), get32(b, nameidx + 4), usize::from(get8(b, nameidx + 8)));
        if n == 0 || nameidx < head || nameidx + 9 + n > b.len() || len as usize > MAX_VALUE {
            return err;
        }
        Ok(LeafEntry { hash, nameidx, flags, name: slice(b, nameidx + 9, n), value: Value::Remote { block, len } })
    }
}

/// Checks a leaf's header and entries.
pub fn check_leaf(b: &[u8]) -> Result<(), &'static str> {
    let n = da::count(b);
    let first = firstused(b);
    if first > b.len() || leaf_header(b) + 8 * n > first {
        return Err("attribute leaf's entries overlap its names");
    }
    let free = (0..3).map(|i| (usize::from(get16(b, da::shared(b) + 8 + 4 * i)), usize::from(get16(b, da::shared(b) + 10 + 4 * i))));
    if free.into_iter().any(|(base, size)| base % 4 != 0 || size % 4 != 0 || base + size > b.len()) {
        return Err("attribute leaf's free runs are out of range");
    }
    let mut last = 0;
    for i in 0..n {
        let e = leaf_entry(b, i)?;
        if e.nameidx < first || e.hash < last {
            return Err("attribute leaf's entries are out of order");
        }
        last = e.hash;
    }
    Ok(())
}
