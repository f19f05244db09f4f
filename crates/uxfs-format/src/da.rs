//! Headers and entries shared by directories and attributes (format facts, sections 8 and 9).

use crate::bytes::*;
use crate::*;

/// Inner node of either tree.
pub const DA_NODE_MAGIC: u16 = 0x3ebe;
/// Attribute leaf.
pub const ATTR_LEAF_MAGIC: u16 = 0x3bee;
/// The one leaf of a directory with bests.
pub const DIR_LEAF1_MAGIC: u16 = 0x3df1;
/// A leaf of a directory in node form.
pub const DIR_LEAFN_MAGIC: u16 = 0x3dff;
/// Bytes of the shared header.
pub const DA_HEADER: usize = 56;
/// Bytes of a node's header; entries follow.
pub const NODE_HEADER: usize = 64;
/// The same in version 4.
const OLD_DA_HEADER: usize = 12;
/// Byte offset of the checksum.
pub const DA_CRC: usize = 12;
/// No tree is deeper.
pub const MAX_DEPTH: usize = 5;

/// Magic numbers of version 4, whose blocks have shorter headers.
mod old {
    pub const DA_NODE: u16 = 0xfebe;
    pub const ATTR_LEAF: u16 = 0xfbee;
    pub const DIR_LEAF1: u16 = 0xd2f1;
    pub const DIR_LEAFN: u16 = 0xd2ff;
}

/// Magic number of a block with the shared header; those of version 4 become those that stand for them here.
pub fn magic(b: &[u8]) -> u16 {
    match get16(b, 8) {
        old::DA_NODE => DA_NODE_MAGIC,
        old::ATTR_LEAF => ATTR_LEAF_MAGIC,
        old::DIR_LEAF1 => DIR_LEAF1_MAGIC,
        old::DIR_LEAFN => DIR_LEAFN_MAGIC,
        m => m,
    }
}
/// True for a block of a volume of version 4: what follows the links and the magic number lies further ahead.
pub fn is_old(b: &[u8]) -> bool {
    get16(b, 8) != magic(b)
}
/// Bytes of the shared header.
pub(crate) fn shared(b: &[u8]) -> usize {
    if is_old(b) { OLD_DA_HEADER } else { DA_HEADER }
}
/// Bytes of the header of a node or a directory's leaf.
fn header(b: &[u8]) -> usize {
    if is_old(b) { OLD_DA_HEADER + 4 } else { NODE_HEADER }
}
/// Next block of the same level; 0 for none.
pub fn forw(b: &[u8]) -> u32 {
    get32(b, 0)
}
/// Previous block of the same level; 0 for none.
pub fn back(b: &[u8]) -> u32 {
    get32(b, 4)
}
/// Sets the next block.
pub fn set_forw(b: &mut [u8], v: u32) {
    put32(b, 0, v);
}
/// Sets the previous block.
pub fn set_back(b: &mut [u8], v: u32) {
    put32(b, 4, v);
}
/// Entries in a node, leaf1, leafn or attribute leaf: all keep the count in the same place.
pub fn count(b: &[u8]) -> usize {
    usize::from(get16(b, shared(b)))
}
/// Sets the number of entries.
pub fn set_count(b: &mut [u8], n: usize) {
    put16(b, shared(b), n as u16);
}
/// Level of a node, from 1; stale entries of a directory leaf lie in the same place.
pub fn node_level(b: &[u8]) -> u16 {
    get16(b, shared(b) + 2)
}
/// Sets the level of a node.
pub fn set_node_level(b: &mut [u8], v: u16) {
    put16(b, shared(b) + 2, v);
}
/// Hash of entry `i` of a node or directory leaf.
pub fn entry_hash(b: &[u8], i: usize) -> u32 {
    get32(b, header(b) + 8 * i)
}
/// Child block of entry `i` of a node, or address of entry `i` of a directory leaf.
pub fn entry_value(b: &[u8], i: usize) -> u32 {
    get32(b, header(b) + 8 * i + 4)
}
/// First entry of a node or directory leaf whose hash is not below `hash`.
pub fn lower_bound(b: &[u8], hash: u32) -> usize {
    partition(count(b), |i| entry_hash(b, i) < hash)
}
/// Sets entry `i`.
pub fn set_entry(b: &mut [u8], i: usize, hash: u32, value: u32) {
    put32(b, NODE_HEADER + 8 * i, hash);
    put32(b, NODE_HEADER + 8 * i + 4, value);
}
/// Most entries of a node of `size` bytes.
pub fn node_max(size: usize) -> usize {
    (size - NODE_HEADER) / 8
}
/// Most entries of this very node.
pub fn node_max_of(b: &[u8]) -> usize {
    (b.len() - header(b)) / 8
}
/// Writes a fresh header of `magic`, everything else zero.
pub fn init(b: &mut [u8], magic: u16, daddr: DiskAddr, owner: Ino, g: &Geometry) {
    b.fill(0);
    put16(b, 8, magic);
    put64(b, 16, daddr.0);
    b[32..48].copy_from_slice(&g.meta_uuid);
    put64(b, 48, owner.0);
}
