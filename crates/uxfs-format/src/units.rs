//! A unit is a type.

use std::fmt;

macro_rules! unit {
    ($(#[$m:meta])* $name:ident($t:ty)) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $t);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {}", stringify!($name), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
unit!(/// Number of an allocation group.
    AgNumber(u32));
unit!(/// Block within an allocation group.
    AgBlock(u32));
unit!(/// Block of the volume: `agno << agblklog | agbno`, not linear.
    FsBlock(u64));
unit!(/// Address on the device in 512-byte basic blocks.
    DiskAddr(u64));
unit!(/// Block within a file's fork.
    FileBlock(u64));
unit!(/// Inode number of the volume.
    Ino(u64));
unit!(/// Inode number within an allocation group.
    AgIno(u32));
unit!(/// Sequence number of a checkpoint, from 1, in memory only.
    CheckpointSeq(u64));
unit!(/// Block within a directory's or attribute fork's address space.
    DaBlock(u32));
unit!(/// Hash of a directory entry's or attribute's name.
    NameHash(u32));

/// "No block" within an allocation group; also "no inode".
pub const NULL_AG: u32 = u32::MAX;
/// "No block" of the volume.
pub const NULL_FS: u64 = u64::MAX;

/// Position in the log: cycle in the high half, basic block in the low half.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Makes a position from cycle and basic block.
    pub fn new(cycle: u32, block: u32) -> Self {
        Lsn((cycle as u64) << 32 | block as u64)
    }
    /// How many times the log had wrapped, from 1.
    pub fn cycle(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// Basic block from the log's start.
    pub fn block(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.cycle(), self.block())
    }
}
impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
