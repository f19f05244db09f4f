//! On-disk truth of XFS V5: types, features, checks, CRC, name hash, units and log records.
//!
//! This crate does no I/O, never panics on any bytes and contains no `unsafe`. Accessors that take a byte slice are
//! total: a read past the end yields zero, and the verifiers in [`verify`] refuse such a block before anyone relies on it.

pub mod acl;
pub mod ag;
pub mod attr;
pub mod btree;
pub mod bytes;
pub mod crc;
pub mod da;
pub mod dir;
pub mod extent;
pub mod geometry;
pub mod hash;
pub mod inode;
pub mod log;
pub mod quota;
pub mod reservation;
pub mod superblock;
pub mod symlink;
pub mod units;
pub mod verify;

pub use geometry::Geometry;
pub use units::*;
pub use verify::{Corruption, Kind};
