//! Who owns each block: free space in two trees, the free list that feeds them, busy extents, shared blocks, reverse mappings.
//!
//! 1. bnobt and cntbt hold the same extents, and extents of bnobt never touch.
//! 2. The free list is refilled before either tree is changed, so that splitting them cannot fail.
//! 3. Each group keeps what its refcountbt, finobt and rmapbt may still need (`kept.rs`).
//! 4. A freed extent is busy until its freeing is durable: nobody gets it before (docs/journal.md, 7), or discards it.

mod agfl;
mod alloc;
mod busy;
mod discard;
mod freetree;
mod kept;
mod refcount;
mod rmap;
mod trim;

pub use alloc::{Want, alloc, alloc_in_group, alloc_metadata, defer_free, finish_free, free_extent, free_now, to_free, whoever_has};
pub use busy::is_busy;
pub use discard::{await_freed, with_freed, work as discard_work};
pub use kept::{grew, is_short, load as load_kept};
pub use refcount::{
    alloc_cow_staging, defer_decrease, defer_free_cow, defer_increase, finish_refcount, first_shared, free_all_cow_staging, free_staged,
};
pub use rmap::{defer_rmap, finish_rmap};
pub use trim::{each_free, trim};

use uxfs_format::Ino;
use uxfs_format::btree::{rmap_flag, rmap_owner};

/// Who gets or gives up blocks, for the rmapbt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    id: u64,
    offset: u64,
}

impl Owner {
    /// A file; its mapping says so in a link of its own.
    pub const FILE: Owner = Owner { id: rmap_owner::NULL, offset: 0 };
    /// Whoever it was: after a crash.
    pub const UNKNOWN: Owner = Owner { id: rmap_owner::UNKNOWN, offset: 0 };
    /// The free list and the trees that it feeds.
    pub const AG: Owner = Owner { id: rmap_owner::AG, offset: 0 };
    /// inobt and finobt.
    pub const INOBT: Owner = Owner { id: rmap_owner::INOBT, offset: 0 };
    /// Inode chunks.
    pub const INODES: Owner = Owner { id: rmap_owner::INODES, offset: 0 };
    /// refcountbt.
    pub const REFCOUNT: Owner = Owner { id: rmap_owner::REFCOUNT, offset: 0 };

    /// True for the extent tree of a file's fork.
    fn is_bmbt(self) -> bool {
        self.offset & rmap_flag::BMBT != 0
    }

    /// The extent tree of a file's fork.
    pub fn bmbt(ino: Ino, attr_fork: bool) -> Owner {
        Owner { id: ino.0, offset: rmap_flag::BMBT | if attr_fork { rmap_flag::ATTR_FORK } else { 0 } }
    }
}
