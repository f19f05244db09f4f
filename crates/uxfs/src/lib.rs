//! XFS without the kernel: the engine and the public library.
//!
//! [`Fs`] opens a volume on a [`uxfs_device::Device`] and works on it by inode number. Everything that changes is journaled
//! as the kernel does it, so the kernel and `xfs_repair` accept what is left behind, after an unmount and after a crash.

mod ag;
mod attr;
mod btree;
mod counters;
mod da;
mod dir;
mod error;
mod file;
mod fs;
mod inode;
mod link;
mod map;
mod mount;
mod namespace;
mod space;
mod trans;
mod volume;

pub use attr::{AttrName, SetMode};
pub use dir::Entry;
pub use error::{Error, Result};
pub use file::{Allocate, Domain, DropBehind, How, IoLock, IoMode, Seek};
pub use fs::{FileFlags, Fs, Make, MappedExtent, OpenFile, SetAttr, Stat, StatFs, acl_name, xflag};
pub use mount::{
    DEFAULT_MEMORY, Devices, LEAST_MEMORY, LogSummary, Options, ReaddirCopy, add_features, describe_log, grow, grown_superblock,
    set_identity,
};
pub use namespace::Rename;
pub use uxfs_format::acl::{Acl, Entry as AclEntry, tag as acl_tag};
pub use uxfs_format::inode::Timestamp;
pub use uxfs_journal::{CheckpointLimit, Hole, JournalConfig, JournalFlush, set_hole};
pub use uxfs_sync::OpLock;
