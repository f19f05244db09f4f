//! Parent pointers: for each name of an inode an attribute that says which directory has it.
//!
//! They change in the same link as the directory, so no intent is needed to keep the two together.

use super::{AttrName, Key, ensure_fork, leaf, shortform, shrink, to_leaf, tree};
use crate::error::Result;
use crate::inode::Inode;
use crate::trans::Trans;
use crate::volume::Volume;
use std::sync::Arc;
use uxfs_format::attr::{flag, parent_value};
use uxfs_format::inode::Format;
use uxfs_format::superblock::incompat;

/// Blocks that entering one parent pointer may allocate.
pub fn blocks(vol: &Volume) -> u32 {
    if vol.geo.has(incompat::PARENT) { super::tree_blocks(vol) } else { 0 }
}

fn key<'a>(name: &'a [u8], value: &'a [u8]) -> Key<'a> {
    Key { name: AttrName { namespace: flag::PARENT, name }, parent: Some(value) }
}

/// Notes that `dir` has `inode` under `name`.
///
/// # Locks
/// The caller has both inodes exclusively, and reserved [`blocks`].
///
/// # Errors
/// `NoSpace`; the attribute fork is corrupt.
pub fn add(tp: &mut Trans, inode: &Arc<Inode>, dir: &Inode, name: &[u8]) -> Result<()> {
    if !tp.vol.geo.has(incompat::PARENT) {
        return Ok(());
    }
    let value = parent_value(dir.ino, dir.data().core.generation);
    enter(tp, inode, name, &value)
}

/// Enters a parent pointer by its value.
///
/// # Errors
/// As [`add`].
pub fn enter(tp: &mut Trans, inode: &Arc<Inode>, name: &[u8], value: &[u8]) -> Result<()> {
    ensure_fork(tp, inode)?;
    let k = key(name, value);
    if shortform::set(tp, inode, k, value)? {
        return Ok(());
    }
    to_leaf(tp, inode)?;
    leaf::set_local(&tree(inode), tp, k, value)
}

/// Notes that `dir` no longer has `inode` under `name`.
///
/// # Locks
/// As [`add`]; no blocks are needed.
///
/// # Errors
/// The attribute fork is corrupt.
pub fn remove(tp: &mut Trans, inode: &Arc<Inode>, dir: &Inode, name: &[u8]) -> Result<()> {
    if !tp.vol.geo.has(incompat::PARENT) {
        return Ok(());
    }
    let value = parent_value(dir.ino, dir.data().core.generation);
    if take_out(tp, inode, name, &value)? { Ok(()) } else { Err(tp.vol.corrupt(inode.ino, "lacks the parent pointer of one of its names")) }
}

/// Takes a parent pointer out by its value; false if there is none.
///
/// # Errors
/// As [`remove`].
pub fn take_out(tp: &mut Trans, inode: &Arc<Inode>, name: &[u8], value: &[u8]) -> Result<bool> {
    if !is_there(inode, name, value)? {
        return Ok(false);
    }
    let k = key(name, value);
    if inode.data().core.aformat == Format::Local {
        shortform::remove(tp, inode, k)?;
        return Ok(true);
    }
    let t = tree(inode);
    if let Some((p, e)) = leaf::find(&t, tp, k, false)? {
        leaf::take_out(&t, tp, p, &e)?;
        shrink(tp, inode)?;
    }
    Ok(true)
}

/// True if the inode has this parent pointer.
///
/// # Errors
/// As [`remove`].
pub fn is_there(inode: &Arc<Inode>, name: &[u8], value: &[u8]) -> Result<bool> {
    super::exists(inode, key(name, value))
}
