//! Attributes: in the inode, in one leaf, in a tree of leaves, with large values in blocks of their own.
//!
//! A large value is written outside the log, into blocks that an intent gives back after a crash. Then one link maps them, enters the
//! value and takes the old one out, with its blocks; so a crash shows the old value or the new one, whoever recovers. The kernel hides
//! a value meanwhile (it marks its entry incomplete); what a crash left hidden, recovery takes out. No leaf is committed empty.

mod leaf;
pub mod parent;
mod remote;
mod shortform;

use crate::da::{DaFork, Reader};
use crate::dir;
use crate::error::{Error, Result};
use crate::inode::{Fork, Inode, Which};
use crate::link;
use crate::map;
use crate::trans::Trans;
use crate::volume::Volume;
use std::sync::Arc;
use uxfs_format::Kind;
use uxfs_format::attr::{MAX_NAME, MAX_VALUE, entry_hash, flag, is_local, remote_blocks};
use uxfs_format::inode::{Format, mode};
use uxfs_format::log::ino_field;

/// Where a new inode's attribute fork begins, in 8 bytes behind the core.
pub const DEFAULT_FORKOFF: u8 = 24;

/// The same for a device, pipe or socket: right behind the device number.
pub const DEVICE_FORKOFF: u8 = 1;

/// Bytes that an attribute fork has at least.
const LEAST_FORK: usize = 24;

/// The name of an attribute, with its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrName<'a> {
    /// Bits of [`uxfs_format::attr::flag`] that tell the namespace.
    pub namespace: u8,
    /// Without prefix.
    pub name: &'a [u8],
}

/// Prefixes of full names, and the bits of the namespaces that they stand for.
const PREFIXES: &[(&[u8], u8)] = &[(b"user.", 0), (b"trusted.", flag::ROOT), (b"security.", flag::SECURE)];

impl<'a> AttrName<'a> {
    /// Splits a full name like `user.note`; `None` for a namespace that is not stored as it is.
    pub fn parse(full: &'a [u8]) -> Option<AttrName<'a>> {
        PREFIXES.iter().find_map(|(p, namespace)| full.strip_prefix(*p).map(|name| AttrName { namespace: *namespace, name }))
    }

    /// The name with its prefix; `None` for what users do not see.
    pub fn full(&self) -> Option<Vec<u8>> {
        let (prefix, _) = PREFIXES.iter().find(|p| p.1 == self.namespace)?;
        Some([prefix, self.name].concat())
    }
}

/// Whether the attribute must or must not be there before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Either.
    Any,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

fn tree(inode: &Arc<Inode>) -> DaFork {
    DaFork { inode: inode.clone(), which: Which::Attr, base: 0, step: 1 }
}

/// What an entry is found by.
#[derive(Clone, Copy)]
struct Key<'a> {
    name: AttrName<'a>,
    /// Of a parent pointer: its value, since directories may share a name.
    parent: Option<&'a [u8]>,
}

impl<'a> From<AttrName<'a>> for Key<'a> {
    fn from(name: AttrName<'a>) -> Self {
        Key { name, parent: None }
    }
}

impl Key<'_> {
    fn hash(&self) -> u32 {
        entry_hash(self.name.namespace, self.name.name, self.parent.unwrap_or(&[]))
    }
}

fn has_entries(inode: &Inode) -> bool {
    let d = inode.data();
    d.core.forkoff != 0 && (d.core.aformat == Format::Local || d.core.anextents > 0)
}

/// The value of an attribute.
///
/// # Locks
/// The caller has the inode, shared at least.
///
/// # Errors
/// [`Error::NoAttribute`]; the fork is corrupt.
pub fn get(inode: &Arc<Inode>, name: AttrName<'_>) -> Result<Vec<u8>> {
    if !has_entries(inode) {
        return Err(Error::NoAttribute);
    }
    map::load(inode, Which::Attr)?;
    if inode.data().core.aformat == Format::Local {
        return shortform::get(inode, name.into())?.ok_or(Error::NoAttribute);
    }
    let vol = inode.vol.clone();
    let mut src = Reader(&vol);
    match leaf::find(&tree(inode), &mut src, name.into(), false)? {
        Some((_, e)) => e.read(inode),
        None => Err(Error::NoAttribute),
    }
}

/// All attributes: namespace, name and bytes of the value.
///
/// # Locks
/// As [`get`].
///
/// # Errors
/// The fork is corrupt.
pub fn list(inode: &Arc<Inode>) -> Result<Vec<(u8, Vec<u8>, usize)>> {
    if has_entries(inode) && inode.data().core.aformat == Format::Local {
        return shortform::list(inode);
    }
    let shown = in_leaves(inode)?.into_iter().filter(|e| !e.is_hidden());
    let row = |e: leaf::Owned| {
        let len = e.value_len();
        (e.flags & flag::NAMESPACE, e.name, len)
    };
    Ok(shown.map(row).collect())
}

/// The entries of all leaves, hidden ones, too; none if they lie in the inode.
fn in_leaves(inode: &Arc<Inode>) -> Result<Vec<leaf::Owned>> {
    let mut out = Vec::new();
    if !has_entries(inode) || inode.data().core.aformat == Format::Local {
        return Ok(out);
    }
    map::load(inode, Which::Attr)?;
    let vol = inode.vol.clone();
    let mut src = Reader(&vol);
    let t = tree(inode);
    let mut p = t.descend(&mut src, 0)?;
    for _ in 0..vol.geo.dblocks {
        out.extend(leaf::entries(&t, &p.leaf.1)?);
        if !t.next_leaf(&mut src, &mut p)? {
            break;
        }
    }
    Ok(out)
}

/// True if the entry is there.
fn exists(inode: &Arc<Inode>, key: Key<'_>) -> Result<bool> {
    if !has_entries(inode) {
        return Ok(false);
    }
    map::load(inode, Which::Attr)?;
    if inode.data().core.aformat == Format::Local {
        return Ok(shortform::get(inode, key)?.is_some());
    }
    let vol = inode.vol.clone();
    Ok(leaf::find(&tree(inode), &mut Reader(&vol), key, false)?.is_some())
}

/// Blocks that entering one attribute may allocate, beside its value: a tree may split at every level and push its root down;
/// the fork may turn into a bmbt.
fn tree_blocks(vol: &Volume) -> u32 {
    2 * (uxfs_format::da::MAX_DEPTH as u32 + 2) + 3 * vol.res.write_blocks
}

/// Sets an attribute.
///
/// # Locks
/// Takes the inode exclusively, after log space; the caller has neither.
///
/// # Errors
/// `NoSpace`, [`Error::Range`] for a name or value that is too long, [`Error::Exists`] and [`Error::NoAttribute`] as
/// `mode` says.
///
/// # Crash
/// The old value or the new one, whole.
pub fn set(inode: &Arc<Inode>, name: AttrName<'_>, value: &[u8], mode: SetMode) -> Result<()> {
    if name.name.is_empty() || name.name.len() > MAX_NAME {
        return Err(Error::Range);
    }
    if value.len() > MAX_VALUE {
        return Err(Error::TooLarge);
    }
    let vol = inode.vol.clone();
    let bs = vol.geo.blocksize as usize;
    let local = is_local(name.name.len(), value.len(), bs);
    let value_blocks = if local { 0 } else { remote_blocks(value.len(), bs) as u32 };
    let blocks = tree_blocks(&vol) + value_blocks * (1 + vol.res.write_blocks);
    make_room(inode)?;
    let mut tp = Trans::new(&vol, remote::with_value(&vol, vol.res.attrset), blocks)?;
    let _i = inode.lock();
    match (mode, exists(inode, name.into())?) {
        (SetMode::Create, true) => return Err(Error::Exists),
        (SetMode::Replace, false) => return Err(Error::NoAttribute),
        _ => {}
    }
    let mut staged = Vec::new();
    if !local {
        staged = remote::stage(&mut tp, inode, value_blocks)?;
        tp.roll()?;
        if let Err(e) = remote::write(inode, &staged, value) {
            remote::give_back(&mut tp, staged);
            tp.commit()?;
            return Err(e);
        }
    }
    ensure_fork(&mut tp, inode)?;
    let now = vol.now();
    inode.data().core.ctime = now;
    inode.log(&mut tp, 0)?;
    if local && shortform::set(&mut tp, inode, name.into(), value)? {
        return tp.commit().map(|_| ());
    }
    to_leaf(&mut tp, inode)?;
    let t = tree(inode);
    if local {
        leaf::set_local(&t, &mut tp, name.into(), value)?;
        return tp.commit().map(|_| ());
    }
    let at = remote::map(&mut tp, inode, staged)?;
    // What a crash left hidden under this name goes first.
    while take_out(&mut tp, inode, name.into(), true)? {}
    take_out(&mut tp, inode, name.into(), false)?;
    leaf::insert(&t, &mut tp, leaf::Owned::remote(name, at, value.len() as u32))?;
    tp.commit().map(|_| ())
}

/// Removes an attribute.
///
/// # Locks
/// As [`set`].
///
/// # Errors
/// [`Error::NoAttribute`]; the fork is corrupt.
pub fn remove(inode: &Arc<Inode>, name: AttrName<'_>) -> Result<()> {
    let vol = inode.vol.clone();
    let mut tp = Trans::new_must_succeed(&vol, remote::with_value(&vol, vol.res.attrrm), 2 * vol.res.write_blocks)?;
    let _i = inode.lock();
    if !exists(inode, name.into())? {
        return Err(Error::NoAttribute);
    }
    let now = vol.now();
    inode.data().core.ctime = now;
    inode.log(&mut tp, 0)?;
    if inode.data().core.aformat == Format::Local {
        shortform::remove(&mut tp, inode, name.into())?;
        return tp.commit().map(|_| ());
    }
    if !take_out(&mut tp, inode, name.into(), false)? {
        return Err(Error::NoAttribute);
    }
    shrink(&mut tp, inode)?;
    tp.commit().map(|_| ())
}

/// Bytes of the log that setting or removing an attribute reserves at most.
pub fn log_bytes(vol: &Volume) -> u64 {
    let bytes = |r| {
        let r = remote::with_value(vol, r);
        r.unit * u64::from(r.count)
    };
    bytes(vol.res.attrset).max(bytes(vol.res.attrrm))
}

/// Takes an attribute that is `hidden`, or one that is not, out of its leaf, with its value's blocks. Returns whether there was one.
fn take_out(tp: &mut Trans, inode: &Arc<Inode>, key: Key<'_>, hidden: bool) -> Result<bool> {
    let t = tree(inode);
    let Some((p, e)) = leaf::find(&t, tp, key, hidden)? else { return Ok(false) };
    leaf::take_out(&t, tp, p, &e)?;
    remote::free(tp, inode, &e)?;
    Ok(true)
}

/// Takes out what a crash left hidden.
///
/// # Locks
/// As [`set`].
///
/// # Errors
/// The fork is corrupt.
pub fn drop_all_hidden(inode: &Arc<Inode>) -> Result<()> {
    let all = {
        let _i = inode.lock_shared();
        in_leaves(inode)?
    };
    for e in all.iter().filter(|e| e.is_hidden()) {
        let vol = &inode.vol;
        let mut tp = Trans::new_must_succeed(vol, remote::with_value(vol, vol.res.attrrm), 2 * vol.res.write_blocks)?;
        let _i = inode.lock();
        inode.log(&mut tp, 0)?;
        take_out(&mut tp, inode, AttrName { namespace: e.flags & flag::NAMESPACE, name: &e.name }.into(), true)?;
        shrink(&mut tp, inode)?;
        tp.commit()?;
    }
    Ok(())
}

/// Goes back to short form, or to an empty fork, if one leaf is left and all fits into the inode.
fn shrink(tp: &mut Trans, inode: &Arc<Inode>) -> Result<()> {
    let t = tree(inode);
    let b = t.read(tp, 0, Kind::DaAny)?;
    if uxfs_format::da::magic(&b.data()) != uxfs_format::da::ATTR_LEAF_MAGIC {
        return Ok(());
    }
    let entries = leaf::entries(&t, &b)?;
    let Some(bytes) = shortform::build(&entries) else { return Ok(()) };
    let room = inode.data().core.attr_fork_size(&tp.vol.geo);
    let end = inode.data().attr.end();
    // Blocks of values that a crash left without an entry may still be mapped; they go with the last attribute.
    if bytes.len() > room || (end > 1 && !entries.is_empty()) {
        return Ok(());
    }
    map::unmap(tp, inode, Which::Attr, 1, end.max(1), usize::MAX)?;
    t.drop_block(tp, 0, &b)?;
    let mut d = inode.data();
    d.attr = Fork { loaded: true, ..Fork::default() };
    d.core.anextents = 0;
    let field = if entries.is_empty() {
        d.core.aformat = Format::Extents;
        ino_field::AEXT
    } else {
        d.core.aformat = Format::Local;
        d.attr.local = bytes;
        ino_field::ADATA
    };
    drop(d);
    inode.log(tp, field)
}

/// Where an inode's attribute fork can begin, in 8 bytes; `None` if its inline bytes leave no room.
fn place_for_fork(inode: &Inode) -> Option<u8> {
    let d = inode.data();
    let need = if d.core.format == Format::Local { d.data.local.len() } else { 0 };
    let least = if d.core.format == Format::Dev { DEVICE_FORKOFF } else { DEFAULT_FORKOFF };
    let forkoff = need.div_ceil(8).max(usize::from(least));
    (forkoff * 8 + LEAST_FORK <= inode.vol.geo.literal_area()).then_some(forkoff as u8)
}

/// Moves a directory or the target of a link out of an inode that it fills, and gives it an attribute fork. Does nothing for others.
///
/// # Locks
/// Takes the inode exclusively, after log space; the caller has neither.
fn make_room(inode: &Arc<Inode>) -> Result<()> {
    let is_full = || inode.data().core.forkoff == 0 && place_for_fork(inode).is_none();
    if !is_full() {
        return Ok(());
    }
    let vol = inode.vol.clone();
    let (r, target) = (&vol.res, inode.data().data.local.len());
    let is_dir = inode.data().core.kind() == mode::DIR;
    let (res, blocks) = if is_dir { (r.create, r.dir_enter_blocks) } else { (r.symlink, link::blocks(&vol.geo, target) + r.write_blocks) };
    let mut tp = Trans::new(&vol, res, blocks)?;
    let _i = inode.lock();
    if !is_full() {
        return Ok(());
    }
    if is_dir { dir::move_out(&mut tp, inode) } else { link::move_out(&mut tp, inode) }?;
    ensure_fork(&mut tp, inode)?;
    tp.commit().map(|_| ())
}

/// Gives an inode without an attribute fork one.
fn ensure_fork(tp: &mut Trans, inode: &Arc<Inode>) -> Result<()> {
    map::load(inode, Which::Data)?;
    if inode.data().core.forkoff != 0 {
        return Ok(());
    }
    let Some(forkoff) = place_for_fork(inode) else { return Err(inode.vol.corrupt(inode.ino, "has no room for attributes")) };
    map::make_room_for_attributes(tp, inode, forkoff)?;
    inode.log(tp, ino_field::AEXT)
}

/// Moves a short form, or nothing, into a leaf.
fn to_leaf(tp: &mut Trans, inode: &Arc<Inode>) -> Result<()> {
    let (format, extents) = {
        let d = inode.data();
        (d.core.aformat, d.core.anextents)
    };
    if format == Format::Btree || (format == Format::Extents && extents > 0) {
        return map::load(inode, Which::Attr);
    }
    let entries = if format == Format::Local { shortform::take(inode)? } else { Vec::new() };
    {
        let mut d = inode.data();
        d.attr = Fork { loaded: true, ..Fork::default() };
        d.core.aformat = Format::Extents;
    }
    leaf::create(&tree(inode), tp, entries)
}

/// Frees everything in the attribute fork of an inode that is going away, and the fork.
///
/// # Locks
/// Takes the inode exclusively, after log space; the caller has neither.
///
/// # Errors
/// The fork is corrupt.
pub fn inactivate(inode: &Arc<Inode>) -> Result<()> {
    if inode.data().core.forkoff == 0 {
        return Ok(());
    }
    let vol = inode.vol.clone();
    let mut tp = Trans::new_must_succeed(&vol, vol.res.itruncate, 0)?;
    let _i = inode.lock();
    map::load(inode, Which::Attr)?;
    inode.log(&mut tp, 0)?;
    let t = tree(inode);
    if inode.data().attr.end() > 1 {
        // Blocks of the tree may be in the log: their images must not come back over whatever is there next.
        leaf::empty(&t, &mut tp)?;
        loop {
            let done = map::unmap(&mut tp, inode, Which::Attr, 1, u64::MAX, 1)?;
            tp.finish_deferred()?;
            tp.roll()?;
            inode.log(&mut tp, 0)?;
            if done {
                break;
            }
        }
    }
    if let Some(root) = t.new_buf(&mut tp, 0, Kind::AttrLeaf) {
        t.drop_block(&mut tp, 0, &root)?;
    }
    tp.finish_deferred()?;
    {
        let mut d = inode.data();
        d.core.forkoff = 0;
        d.core.aformat = Format::Extents;
        d.core.anextents = 0;
        d.attr = Fork { loaded: true, ..Fork::default() };
    }
    map::data_fork_grew(inode);
    inode.log(&mut tp, ino_field::DFORK)?;
    tp.commit().map(|_| ())
}
