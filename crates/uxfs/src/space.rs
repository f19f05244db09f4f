//! Who owns each block: free space in two trees, the free list that feeds them, busy extents, shared blocks.
//!
//! 1. bnobt and cntbt hold the same extents, and extents of bnobt never touch.
//! 2. The free list is refilled before either tree is changed, so that splitting them cannot fail.
//! 3. A freed extent is busy until its freeing is durable: file data, which is written without the log, does not use it.

mod agfl;
mod alloc;
mod busy;
mod freetree;
mod refcount;

pub use alloc::{Want, alloc, alloc_in_group, alloc_metadata, defer_free, free_extent};
pub use busy::is_busy;
pub use refcount::{alloc_cow_staging, defer_decrease, defer_free_cow, finish_refcount, first_shared, free_all_cow_staging};
