//! Extent records of forks and of the bmbt (format facts, section 6).

use crate::bytes::{get64, put64};
use crate::{FileBlock, FsBlock};

/// Longest extent in blocks that one record can hold.
pub const MAX_EXTENT: u32 = (1 << 21) - 1;
/// Largest extent size hint in blocks, where groups have so many: half a group.
pub fn max_hint(agblocks: u32) -> u32 {
    MAX_EXTENT.min(agblocks / 2)
}
/// Bytes a record.
pub const EXTENT_SIZE: usize = 16;
/// Past the last possible file block.
pub const MAX_FILE_BLOCK: u64 = 1 << 54;

/// A run of file blocks that are stored in a run of volume blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block within the fork.
    pub off: FileBlock,
    /// First block on the volume.
    pub start: FsBlock,
    /// Blocks.
    pub len: u32,
    /// Allocated but reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// Reads a record.
    pub fn decode(b: &[u8]) -> Extent {
        let (l0, l1) = (get64(b, 0), get64(b, 8));
        Extent {
            unwritten: l0 >> 63 != 0,
            off: FileBlock((l0 >> 9) & ((1 << 54) - 1)),
            start: FsBlock((l0 & 0x1ff) << 43 | l1 >> 21),
            len: (l1 & ((1 << 21) - 1)) as u32,
        }
    }
    /// Writes a record.
    pub fn encode(&self, b: &mut [u8]) {
        put64(b, 0, u64::from(self.unwritten) << 63 | self.off.0 << 9 | self.start.0 >> 43);
        put64(b, 8, self.start.0 << 21 | u64::from(self.len));
    }
    /// First file block behind.
    pub fn end(&self) -> u64 {
        self.off.0 + u64::from(self.len)
    }
    /// True if `next` goes on where this ends, in the file, on the volume and in state.
    pub fn joins(&self, next: &Extent) -> bool {
        self.end() == next.off.0
            && self.start.0 + u64::from(self.len) == next.start.0
            && self.unwritten == next.unwritten
            && u64::from(self.len) + u64::from(next.len) <= u64::from(MAX_EXTENT)
    }
    /// Volume block of a file block within.
    pub fn at(&self, off: u64) -> FsBlock {
        FsBlock(self.start.0 + (off - self.off.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_went() {
        for e in [
            Extent { off: FileBlock(0), start: FsBlock(1), len: 1, unwritten: false },
            Extent { off: FileBlock((1 << 54) - 1), start: FsBlock((1 << 52) - 1), len: MAX_EXTENT, unwritten: true },
            Extent { off: FileBlock(8_388_608), start: FsBlock(0x123_4567_89ab), len: 77, unwritten: false },
        ] {
            let mut b = [0; 16];
            e.encode(&mut b);
            assert_eq!(Extent::decode(&b), e);
        }
    }
}
