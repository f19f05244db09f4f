//! Blocks that hold the target of a long symbolic link (format facts, section 10).

use crate::bytes::*;
use crate::*;

/// `XSLM`
pub const SYMLINK_MAGIC: u32 = 0x5853_4c4d;
/// Bytes of the header, of this and of a remote attribute value.
pub const REMOTE_HEADER: usize = 56;
/// Byte offset of the checksum, of both.
pub const REMOTE_CRC: usize = 12;
/// Longest target.
pub const MAX_TARGET: usize = 1024;

/// Writes the header of a symlink or remote value block: `bytes` of payload from `offset`.
pub fn init(b: &mut [u8], magic: u32, offset: u32, bytes: u32, owner: Ino, daddr: DiskAddr, lsn: Lsn, g: &Geometry) {
    b[..REMOTE_HEADER].fill(0);
    put32(b, 0, magic);
    put32(b, 4, offset);
    put32(b, 8, bytes);
    b[16..32].copy_from_slice(&g.meta_uuid);
    put64(b, 32, owner.0);
    put64(b, 40, daddr.0);
    put64(b, 48, lsn.0);
}
