//! Directories in all four forms, and the way between them.
//!
//! *Short form* lies in the inode. *Block form* is one block with entries and their hashes. *Leaf form* has data blocks and
//! one leaf with hashes and the room left in each block. *Node form* has a tree of leaves, and the room in blocks of its own.
//! A directory is in the smallest form that holds it, but a larger form is only left when an entry goes.

mod block;
mod data;
mod leaf;
mod node;
mod shortform;

use crate::da::{DaFork, Path, Reader, Source};
use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::trans::{Buf, Trans};
use std::sync::Arc;
use uxfs_format::hash::name_hash;
use uxfs_format::inode::{Format, mode};
use uxfs_format::{Ino, Kind, dir};

/// Bytes of a directory in which each entry may be looked at for one name: to find all of its names so takes seconds then.
const MOST_LOOKED_AT: usize = 2 << 20;

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode.
    pub ino: Ino,
    /// Its type as the entry says, see [`uxfs_format::dir::ftype`].
    pub ftype: u8,
    /// Offset in the data space, in 8 bytes; means nothing in short form.
    addr: u32,
}

/// An entry for readdir.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub ftype: u8,
    /// Where reading goes on behind this entry.
    pub next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Short,
    Block,
    Leaf,
    Node,
}

/// What one entry says.
#[derive(Clone, Copy)]
struct New<'a> {
    name: &'a [u8],
    ino: Ino,
    ftype: u8,
}

/// A directory and the way to its blocks.
#[derive(Clone)]
struct Dir {
    fork: DaFork,
    /// Bytes a block.
    size: usize,
}

impl Dir {
    fn of(inode: &Arc<Inode>) -> Dir {
        let g = &inode.vol.geo;
        let fork = DaFork { inode: inode.clone(), which: Which::Data, base: g.dir_leaf_block().0, step: 1 << g.dirblklog };
        Dir { fork, size: g.dirblocksize() as usize }
    }
    fn inode(&self) -> &Arc<Inode> {
        &self.fork.inode
    }
    fn form(&self) -> Result<Form> {
        map::load(self.inode(), Which::Data)?;
        let d = self.inode().data();
        if d.core.mode & mode::FMT != mode::DIR {
            return Err(Error::NotDirectory);
        }
        if d.core.format == Format::Local {
            return Ok(Form::Short);
        }
        let (end, step) = (d.data.end(), u64::from(self.fork.step));
        Ok(match end {
            e if e == step => Form::Block,
            e if e == u64::from(self.fork.base) + step => Form::Leaf,
            e if e > u64::from(self.fork.base) => Form::Node,
            _ => return Err(self.fork.corrupt("has a directory without names' hashes")),
        })
    }
    /// First filesystem block of data block `db`.
    fn data_block(&self, db: u32) -> u32 {
        db * self.fork.step
    }
    /// Blocks in the data space.
    fn data_blocks(&self) -> u32 {
        let d = self.inode().data();
        let end = d.data.extents.range(..u64::from(self.fork.base)).next_back().map_or(0, |e| e.1.end());
        (end as u32).div_ceil(self.fork.step)
    }
    fn read_data(&self, src: &mut impl Source, db: u32) -> Result<Buf> {
        self.fork.read(src, self.data_block(db), Kind::DirData)
    }
    /// Reads block form's only block.
    fn read_block(&self, src: &mut impl Source) -> Result<Buf> {
        self.fork.read(src, 0, Kind::DirBlock)
    }
    /// Maps and initialises data block `db`: one unused run.
    fn new_data(&self, tp: &mut Trans, db: u32) -> Result<Buf> {
        let b = self.fork.add(tp, self.data_block(db), Kind::DirData)?;
        let vol = tp.vol.clone();
        {
            let mut d = b.data_mut();
            dir::init(&mut d, dir::DATA_MAGIC, b.daddr(), self.inode().ino, &vol.geo);
            dir::put_unused(&mut d, dir::DATA_HEADER, self.size - dir::DATA_HEADER);
            dir::rebuild_bestfree(&mut d);
        }
        tp.log_all(&b);
        self.set_size(u64::from(self.data_blocks()));
        Ok(b)
    }
    fn set_size(&self, blocks: u64) {
        self.inode().data().core.size = blocks * self.size as u64;
    }
    /// Logs the inode after its size or form changed.
    fn log(&self, tp: &mut Trans, fields: u32) -> Result<()> {
        self.inode().log(tp, fields)
    }
    /// The entry at `addr`, read from its data block.
    fn entry_at(&self, src: &mut impl Source, addr: u32) -> Result<(Buf, usize)> {
        let at = u64::from(addr) * 8;
        let (db, off) = ((at / self.size as u64) as u32, (at % self.size as u64) as usize);
        if db >= self.data_blocks() {
            return Err(self.fork.corrupt("has a hash that leads outside the directory"));
        }
        let b = self.read_data(src, db)?;
        let sound = dir::data_entry(&b.data(), off, self.size).is_some();
        if sound { Ok((b, off)) } else { Err(self.fork.corrupt("has a hash that leads to no entry")) }
    }
    fn addr(&self, db: u32, off: usize) -> u32 {
        ((u64::from(db) * self.size as u64 + off as u64) / 8) as u32
    }
}

/// Makes an empty directory whose parent is `parent`; the inode is locked and logged by this.
///
/// # Errors
/// The volume is shut down.
pub fn init(tp: &mut Trans, inode: &Arc<Inode>, parent: Ino) -> Result<()> {
    shortform::init(&mut inode.data(), parent);
    inode.log(tp, uxfs_format::log::ino_field::DDATA)
}

/// Finds a name. Where the names' hashes are damaged, whoever only reads the volume has each entry looked at.
///
/// # Locks
/// The caller has the directory, shared at least.
///
/// # Errors
/// [`Error::NotDirectory`]; the directory is corrupt.
pub fn lookup(src: &mut impl Source, inode: &Arc<Inode>, name: &[u8]) -> Result<Option<Found>> {
    let d = Dir::of(inode);
    let form = d.form()?;
    if name == b"." {
        return Ok(Some(Found { ino: inode.ino, ftype: 2, addr: 0 }));
    }
    let found = match form {
        Form::Short => Ok(shortform::lookup(&inode.data(), name)),
        Form::Block => block::lookup(&d, src, name),
        Form::Leaf => leaf::lookup(&d, src, name),
        Form::Node => node::lookup(&d, src, name),
    };
    match found {
        Err(e) if e.is_damage() && inode.vol.is_read_only() && d.data_blocks() as usize * d.size <= MOST_LOOKED_AT => {
            look_at_each(inode, name)?.ok_or(e).map(Some)
        }
        found => found,
    }
}

/// Finds a name among all that can be read.
fn look_at_each(inode: &Arc<Inode>, name: &[u8]) -> Result<Option<Found>> {
    let mut found = None;
    list(inode, 0, &mut |_| Ok(()), &mut |e| {
        found = (e.name == name).then_some(Found { ino: e.ino, ftype: e.ftype, addr: 0 });
        found.is_none()
    })?;
    Ok(found)
}

/// Where a name is, or would be: who changes it goes on from there, as far as the transaction still has the blocks on the way.
#[derive(Default)]
pub struct Spot {
    /// The name, if it is there.
    pub found: Option<Found>,
    way: Option<Path>,
}

/// Finds a name, or the place for it, for a change; it means nothing once the directory has changed.
///
/// # Locks
/// As [`add`].
///
/// # Errors
/// As [`lookup`].
pub fn find(tp: &mut Trans, inode: &Arc<Inode>, name: &[u8]) -> Result<Spot> {
    let d = Dir::of(inode);
    if d.form()? != Form::Node {
        return Ok(Spot { found: lookup(tp, inode, name)?, way: None });
    }
    let (path, found) = node::find(&d, tp, name)?;
    Ok(Spot { found, way: Some(path) })
}

/// Enters a name that is not there, at `spot` if that is known.
///
/// # Locks
/// The caller has the directory exclusively.
///
/// # Errors
/// `NoSpace`; the directory is corrupt.
pub fn add(tp: &mut Trans, inode: &Arc<Inode>, name: &[u8], ino: Ino, ftype: u8, spot: Spot) -> Result<()> {
    let d = Dir::of(inode);
    let new = New { name, ino, ftype };
    loop {
        match d.form()? {
            Form::Short => {
                if shortform::add(&d, tp, new)? {
                    return Ok(());
                }
                block::from_shortform(&d, tp)?;
            }
            Form::Block => {
                if block::add(&d, tp, new)? {
                    return Ok(());
                }
                leaf::from_block(&d, tp)?;
            }
            Form::Leaf => {
                if leaf::add(&d, tp, new)? {
                    return Ok(());
                }
                node::from_leaf(&d, tp)?;
            }
            Form::Node => return node::add(&d, tp, new, spot.way),
        }
    }
}

/// Removes a name that was found at `spot`.
///
/// # Locks
/// As [`add`].
///
/// # Errors
/// [`Error::NotFound`]; the directory is corrupt.
pub fn remove(tp: &mut Trans, inode: &Arc<Inode>, name: &[u8], spot: Spot) -> Result<()> {
    let d = Dir::of(inode);
    let found = spot.found.ok_or(Error::NotFound)?;
    match d.form()? {
        Form::Short => shortform::remove(&d, tp, name),
        Form::Block => {
            block::remove(&d, tp, name, found)?;
            shortform::from_block(&d, tp)
        }
        Form::Leaf => {
            leaf::remove(&d, tp, name, found)?;
            block::from_leaf(&d, tp)
        }
        Form::Node => {
            node::remove(&d, tp, name, found, spot.way)?;
            leaf::from_node(&d, tp)
        }
    }
}

/// Lets a name that is there, `..` included, lead to another inode.
///
/// # Locks
/// As [`add`].
///
/// # Errors
/// As [`remove`]; `NoSpace` if a wider inode number does not fit the inode any more.
pub fn replace(tp: &mut Trans, inode: &Arc<Inode>, name: &[u8], ino: Ino, ftype: u8) -> Result<()> {
    let d = Dir::of(inode);
    if d.form()? == Form::Short {
        if shortform::replace(&d, tp, name, ino, ftype)? {
            return Ok(());
        }
        block::from_shortform(&d, tp)?;
    }
    let found = lookup(tp, inode, name)?.ok_or(Error::NotFound)?;
    let (b, off) = if d.form()? == Form::Block { (d.read_block(tp)?, found.addr as usize * 8) } else { d.entry_at(tp, found.addr)? };
    tp.change(&b, |bytes| dir::put_entry(bytes, off, ino, name, ftype));
    d.log(tp, 0)
}

/// True if there is nothing in it but `.` and `..`.
///
/// # Errors
/// The directory is corrupt.
pub fn is_empty(inode: &Arc<Inode>) -> Result<bool> {
    let mut seen = false;
    list(inode, 0, &mut Err, &mut |e| {
        seen |= e.name != b"." && e.name != b"..";
        !seen
    })?;
    Ok(!seen)
}

/// Hands entries on from cookie `from` (0 at the start), `.` and `..` first, until `emit` returns false for one it did not take.
/// `on_damage` is told of each block that cannot be read, and whether to go on behind it is its answer.
///
/// # Locks
/// The caller has the directory, shared at least. Nothing is held while `emit` runs but that.
///
/// # Errors
/// The directory is corrupt.
pub fn list(
    inode: &Arc<Inode>,
    from: u64,
    on_damage: &mut dyn FnMut(Error) -> Result<()>,
    emit: &mut dyn FnMut(Entry) -> bool,
) -> Result<()> {
    let d = Dir::of(inode);
    let form = d.form()?;
    if form == Form::Short {
        return shortform::list(inode, from, emit);
    }
    let first = (from / (d.size as u64 / 8)) as u32;
    for db in first..d.data_blocks() {
        match list_block(&d, form, db, from, emit) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) if e.is_damage() => on_damage(e)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Hands on the entries of one block; false if `emit` did not take one.
fn list_block(d: &Dir, form: Form, db: u32, from: u64, emit: &mut dyn FnMut(Entry) -> bool) -> Result<bool> {
    let vol = d.inode().vol.clone();
    let mut src = Reader(&vol);
    let block = match form {
        Form::Block => Some(d.read_block(&mut src)?),
        _ => d.fork.read_if(&mut src, d.data_block(db), Kind::DirData)?,
    };
    let Some(block) = block else { return Ok(true) };
    let bytes = block.data().clone();
    for item in dir::data_items(&bytes) {
        let item = item.map_err(|what| d.fork.corrupt(what))?;
        let dir::Item::Entry(e) = item else { continue };
        if u64::from(d.addr(db, e.at)) < from {
            continue;
        }
        let next = u64::from(d.addr(db, item.end()));
        if !emit(Entry { name: e.name.to_vec(), ino: e.ino, ftype: e.ftype, next }) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks a name that is to be entered.
///
/// # Errors
/// [`Error::Invalid`], [`Error::NameTooLong`].
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > dir::MAX_NAME {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid { what: "a name is empty, a dot, or holds a slash or a zero byte" });
    }
    Ok(())
}

fn hash(name: &[u8]) -> u32 {
    name_hash(name).0
}

/// Moves the entries of a short form directory out of the inode.
///
/// # Locks
/// The caller has the directory exclusively, and reserved what entering a name may take.
///
/// # Errors
/// `NoSpace`; the directory is corrupt.
pub fn move_out(tp: &mut Trans, inode: &Arc<Inode>) -> Result<()> {
    block::from_shortform(&Dir::of(inode), tp)
}
