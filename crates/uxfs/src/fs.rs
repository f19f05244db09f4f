//! The inode-numbered interface that every front end speaks. Everything takes `&self`; all of it may be called by many
//! threads at once.

mod attrs;
mod data;
mod flags;
mod open;

pub use attrs::acl_name;
pub use data::MappedExtent;
pub use flags::{FileFlags, xflag};
pub use open::OpenFile;

use crate::attr::{self, SetMode};
use crate::dir::{self, Entry};
use crate::error::{Error, Result};
use crate::file::{self, Why};
use crate::inode::{self, Inode};
use crate::mount::{Devices, Mount, Options, ReaddirCopy};
use crate::namespace::{Names, NewInode, Rename};
use crate::space;
use attrs::{Lists, read_acl};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uxfs_format::acl::NOBODY;
use uxfs_format::inode::{Core, Format, Timestamp, mode};
use uxfs_format::{AgNumber, Geometry, Ino};
use uxfs_sync::{Entered, without_op};

/// What `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Tells incarnations of the number apart.
    pub generation: u32,
    /// Type and permission bits.
    pub mode: u16,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device: (major, minor).
    pub rdev: (u32, u32),
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub crtime: Timestamp,
}

/// What `setattr` changes; `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of the data.
    pub mtime: Option<Timestamp>,
}

/// What `statfs` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes a block.
    pub block_size: u32,
    /// Blocks in all, without the log.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Inodes that could be.
    pub files: u64,
    /// Of those, free.
    pub files_free: u64,
}

/// Who makes something, and how.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device: (major, minor).
    pub rdev: (u32, u32),
    /// Permission bits that it does not get, unless the directory has a default access control list.
    pub umask: u16,
}

/// An open volume.
pub struct Fs {
    mount: Arc<Mount>,
    /// Held shared by each operation while it runs; true once the volume is closed.
    closed: RwLock<bool>,
    readdir_copy: ReaddirCopy,
    /// Held, first of all locks, while permission bits and the access control list of an inode change: each follows the other, by two
    /// transactions. One of them serves many inodes.
    permissions: [Mutex<()>; 16],
}

/// Proof that the volume stays open, and that others are kept out as far as they are to be.
struct Open<'a> {
    _op: Entered,
    _closed: RwLockReadGuard<'a, bool>,
}

/// An inode that an operation works on: though its last name goes meanwhile, it lasts until that has ended.
struct Used<'a> {
    inode: Arc<Inode>,
    names: &'a Names,
}

impl std::ops::Deref for Used<'_> {
    type Target = Arc<Inode>;
    fn deref(&self) -> &Arc<Inode> {
        &self.inode
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        give_back(self.names, &self.inode);
    }
}

/// Refers to an inode no more; who is the last to do so ends one without a name.
fn give_back(names: &Names, inode: &Arc<Inode>) {
    if inode.give_back() && inode.vol.journal.shutdown.reason().is_none() {
        // Should it fail, the inode is on a list of those without names still: the next open frees it.
        let _ = names.release_if_gone(inode);
    }
}

/// Refuses the number that stands for no user and no group: nothing belongs to it.
fn owners(ids: impl IntoIterator<Item = u32>) -> Result<()> {
    if ids.into_iter().any(|id| id == NOBODY) {
        return Err(Error::Invalid { what: "4294967295 is no user and no group" });
    }
    Ok(())
}

impl Fs {
    /// Opens a volume; see [`Options`].
    ///
    /// # Errors
    /// It is no volume, is corrupt, has unsupported features, or the device failed.
    pub fn open(devices: impl Into<Devices>, o: Options) -> Result<Fs> {
        let readdir_copy = o.readdir_copy;
        let mount = Mount::open(devices.into(), o)?;
        Ok(Fs { mount, closed: RwLock::new(false), readdir_copy, permissions: Default::default() })
    }

    /// The root directory.
    pub fn root(&self) -> u64 {
        self.geometry().rootino.0
    }

    /// Sizes and features.
    pub fn geometry(&self) -> &Geometry {
        &self.mount.vol().geo
    }

    /// The volume's label.
    ///
    /// # Errors
    /// The device's; the superblock is corrupt.
    pub fn label(&self) -> Result<Vec<u8>> {
        let _open = self.enter()?;
        self.mount.label()
    }

    /// Sets the volume's label; it is durable on return.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one of more than 12 bytes; the device's.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        let _open = self.enter()?;
        self.mount.set_label(label)
    }

    /// Makes what was done durable, file data excepted, and then does nothing more: every operation fails, and the log stays dirty. For
    /// tests of what comes after.
    ///
    /// # Errors
    /// The device's; the volume is shut down all the same.
    pub fn shut_down(&self) -> Result<()> {
        let _open = self.enter()?;
        let vol = self.mount.vol();
        let forced = vol.journal.force_all();
        vol.journal.fail("somebody asked for it");
        Ok(forced?)
    }

    /// True if nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.mount.vol().is_read_only()
    }

    /// True if opening recovered a dirty log.
    pub fn was_recovered(&self) -> bool {
        self.mount.recovered
    }

    /// The devices as this volume sees them. Where a dirty volume is only read, what recovery changed is on these alone, in memory.
    pub fn devices(&self) -> Devices {
        self.mount.devices.clone()
    }

    /// Counters since the volume was opened, and what is held now: names and values. Those of the journal bear the kernel's
    /// names where it has them.
    pub fn stats(&self) -> Vec<(&'static str, u64)> {
        let vol = self.mount.vol();
        let mut all = vol.journal.stats().entries();
        let (used, size) = vol.journal.usage();
        all.extend([("log_used_bytes", used), ("log_size_bytes", size), ("ail_items", vol.journal.ail.len() as u64)]);
        all.extend(self.mount.names.files.stats(u64::from(vol.geo.blocksize)));
        let bufs = &vol.bufs;
        all.extend([("pinned_bytes", vol.journal.pinned_bytes()), ("buffer_bytes", bufs.bytes() as u64), ("buffer_reads", bufs.reads())]);
        let (inodes, away) = self.mount.names.inodes.count();
        all.extend([("inodes", inodes as u64), ("inodes_away", away as u64)]);
        let op = vol.journal.op().waits();
        let us = |t: std::time::Duration| t.as_micros() as u64;
        all.extend([
            ("op_lock_taken", op.taken),
            ("op_lock_waits", op.waits),
            ("op_lock_wait_us", us(op.waited)),
            ("op_lock_held_us", us(op.held)),
        ]);
        all.push(("discarded_bytes", vol.discards.as_ref().map_or(0, |d| d.bytes.load(Ordering::Relaxed))));
        all
    }

    /// Bytes of the log in use, and its size.
    pub fn log_usage(&self) -> (u64, u64) {
        self.mount.vol().journal.usage()
    }

    /// Why the volume is shut down, if it is.
    pub fn shutdown_reason(&self) -> Option<String> {
        self.mount.vol().journal.shutdown.reason().map(str::to_string)
    }

    /// Keeps the volume open while an operation runs. One may call another, even while somebody waits to close.
    fn enter(&self) -> Result<Open<'_>> {
        let open = self.closed.read_recursive();
        if *open {
            return Err(Error::Shutdown { why: "the volume is closed".into() });
        }
        Ok(Open { _op: self.mount.vol().journal.op().enter(), _closed: open })
    }

    fn inode(&self, ino: u64) -> Result<Used<'_>> {
        let inode = self.mount.names.inodes.get(Ino(ino))?;
        let lives = inode.refer();
        let used = self.used(inode);
        if lives { Ok(used) } else { Err(Error::Stale) }
    }

    /// An inode that somebody refers to for this operation.
    fn used(&self, inode: Arc<Inode>) -> Used<'_> {
        Used { inode, names: &self.mount.names }
    }

    /// Runs `op`; if there is no space, makes what was freed usable and runs it again, and once more each time that others took that first
    /// and gave it back.
    fn with_retry<T>(&self, op: impl Fn() -> Result<T>) -> Result<T> {
        match op() {
            Err(Error::NoSpace) => {
                self.make_usable()?;
                space::with_freed(self.mount.vol(), RETRIES, op)
            }
            r => r,
        }
    }

    /// Names or an inode's fields were changed: makes that durable where the volume was opened so.
    fn changed(&self) -> Result<()> {
        let vol = self.mount.vol();
        if vol.wsync { Ok(vol.journal.force_all()?) } else { Ok(()) }
    }

    /// Makes what was freed, or kept for later, usable.
    fn make_usable(&self) -> Result<()> {
        if self.mount.vol().journal.shutdown.reason().is_some() {
            return Ok(());
        }
        self.mount.sync(Why::Space)?;
        file::release_idle_staged(&self.mount.names.files, true)?;
        if space::is_busy(self.mount.vol()) {
            space::await_freed(self.mount.vol())?;
        }
        Ok(())
    }

    fn stat_of(&self, inode: &Arc<Inode>) -> Stat {
        let size = if inode.core().kind() == mode::REG { file::size(inode) } else { inode.core().size };
        let promised = file::promised(inode);
        let d = inode.data();
        let c: &Core = &d.core;
        let dev = if c.format == Format::Dev { uxfs_format::bytes::get32(&d.data.local, 0) } else { 0 };
        Stat {
            ino: inode.ino.0,
            generation: c.generation,
            mode: c.mode,
            nlink: c.nlink,
            uid: c.uid,
            gid: c.gid,
            rdev: (dev >> 18, dev & 0x3ffff),
            size,
            blocks: (c.nblocks + promised) * u64::from(self.geometry().bb_per_block()),
            atime: c.atime,
            mtime: c.mtime,
            ctime: c.ctime,
            crtime: c.crtime,
        }
    }

    /// What is known of an inode.
    ///
    /// # Errors
    /// [`Error::Stale`] if it is free.
    pub fn stat(&self, ino: u64) -> Result<Stat> {
        let _open = self.enter()?;
        let i = self.inode(ino)?;
        let _l = i.lock_shared();
        Ok(self.stat_of(&i))
    }

    /// As [`Fs::stat`], of a number that somebody kept or made up, as in a file handle: with the generation, which [`Fs::hold`] checks, it
    /// names an inode as long as that lives, over any number of unmounts.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode, or it is free.
    pub fn stat_by_number(&self, ino: u64) -> Result<Stat> {
        let _open = self.enter()?;
        let found = inode::find(self.mount.vol(), &self.mount.names.inodes, Ino(ino))?;
        let i = self.inode(found.ino.0)?;
        let _l = i.lock_shared();
        Ok(self.stat_of(&i))
    }

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`].
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<Stat> {
        let _open = self.enter()?;
        let dir = self.inode(dir)?;
        let i = self.mount.names.find(&dir, name, |i| {
            i.refer();
            self.used(i)
        })?;
        let _l = i.lock_shared();
        Ok(self.stat_of(&i))
    }

    /// Keeps the incarnation `generation` of an inode alive though its last name may go, until [`Fs::forget`].
    ///
    /// # Errors
    /// [`Error::Stale`] if it is free, on its way to be, or reborn.
    pub fn hold(&self, ino: u64, generation: u32) -> Result<()> {
        let _open = self.enter()?;
        let i = self.inode(ino)?;
        let _l = i.lock_shared();
        let c = i.core();
        if c.mode == 0 || c.generation != generation {
            return Err(Error::Stale);
        }
        i.refer();
        Ok(())
    }

    /// The time by the volume's clock.
    pub fn now(&self) -> Timestamp {
        self.mount.vol().now()
    }

    /// Gives `n` holds back; an inode without names goes with the last.
    ///
    /// # Errors
    /// Freeing it failed.
    pub fn forget(&self, ino: u64, n: u64) -> Result<()> {
        let _open = self.enter()?;
        let Some(i) = self.mount.names.inodes.peek_or_give_back(Ino(ino), n) else { return Ok(()) };
        let before = i.refs.fetch_update(Ordering::AcqRel, Ordering::Acquire, |r| Some(r.saturating_sub(n))).unwrap_or(0);
        if before <= n && i.core().nlink == 0 && self.mount.vol().journal.shutdown.reason().is_none() {
            return self.mount.names.release_if_gone(&i);
        }
        Ok(())
    }

    /// Hands directory entries on from a cookie, until `emit` returns false for one it did not take.
    ///
    /// # Errors
    /// The directory is corrupt; what lies before that was handed on.
    pub fn readdir(&self, ino: u64, from: u64, emit: &mut dyn FnMut(Entry) -> bool) -> Result<()> {
        self.each_entry(ino, from, &mut Err, emit)
    }

    /// Hands all entries of a directory on that can be read, also behind those that cannot.
    ///
    /// # Errors
    /// The directory is corrupt: the first of what could not be read.
    pub fn readdir_past_damage(&self, ino: u64, emit: &mut dyn FnMut(Entry)) -> Result<()> {
        let mut damage = None;
        let mut note = |e| {
            damage.get_or_insert(e);
            Ok(())
        };
        self.each_entry(ino, 0, &mut note, &mut |e| {
            emit(e);
            true
        })?;
        damage.map_or(Ok(()), Err)
    }

    fn each_entry(
        &self,
        ino: u64,
        from: u64,
        on_damage: &mut dyn FnMut(Error) -> Result<()>,
        emit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<()> {
        let _open = self.enter()?;
        let i = self.inode(ino)?;
        // Entries are gathered first: the receiver may look inodes up, which a writer that waits for this directory would stop.
        let most = if self.readdir_copy == ReaddirCopy::Batch { READDIR_BATCH } else { 1 };
        let mut batch = Vec::new();
        let mut at = from;
        loop {
            let listed = {
                let _l = i.lock_shared();
                dir::list(&i, at, on_damage, &mut |e| {
                    batch.push(e);
                    batch.len() < most
                })
            };
            let full = batch.len() >= most;
            let goes_on = without_op(|| {
                batch.drain(..).all(|e| {
                    at = e.next;
                    emit(e)
                })
            });
            if !goes_on {
                return Ok(());
            }
            listed?;
            if !full {
                return Ok(());
            }
        }
    }

    /// Makes a file, directory, device, pipe or socket.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`] and others of its kind; [`Error::Invalid`] for an owner or a device that cannot be.
    pub fn create(&self, dir: u64, name: &[u8], m: Make) -> Result<Stat> {
        let _open = self.enter()?;
        let d = self.inode(dir)?;
        let (new, lists) = self.new_inode(&d, m)?;
        let i = self.used(self.with_retry(|| self.mount.names.create(&d, name, new))?);
        self.give_lists(&i, lists)?;
        self.changed()?;
        Ok(self.stat_of(&i))
    }

    /// Makes a file without a name, which lasts until it is forgotten or given one by [`Fs::link`]. It is held once, as by
    /// [`Fs::hold`].
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::NotDirectory`].
    pub fn create_unnamed(&self, dir: u64, m: Make) -> Result<Stat> {
        let _open = self.enter()?;
        let d = self.inode(dir)?;
        self.mount.vol().check_writable()?;
        if d.core().kind() != mode::DIR {
            return Err(Error::NotDirectory);
        }
        let (new, lists) = self.new_inode(&d, m)?;
        let i = self.with_retry(|| self.mount.names.create_unlinked(&d, new))?;
        self.give_lists(&i, lists)?;
        Ok(self.stat_of(&i))
    }

    /// What a new inode in `dir` gets, and the access control lists that it inherits.
    fn new_inode(&self, dir: &Arc<Inode>, m: Make) -> Result<(NewInode, Lists)> {
        owners([m.uid, m.gid])?;
        let (major, minor) = m.rdev;
        if major >= 1 << 14 || minor >= 1 << 18 {
            return Err(Error::Invalid { what: "a device has a major number of 14 bits and a minor one of 18" });
        }
        let mut new = NewInode { mode: m.mode & !m.umask, uid: m.uid, gid: m.gid, rdev: major << 18 | minor };
        let mut lists = Lists::default();
        if let Some(mut acl) = read_acl(dir, true)? {
            let to_dir = m.mode & mode::FMT == mode::DIR;
            lists.default = to_dir.then(|| acl.clone());
            new.mode = acl.inherit(m.mode);
            lists.access = (!acl.mode().1).then_some(acl);
        }
        Ok((new, lists))
    }

    /// Changes an inode's core, and with it the time of its last change.
    fn change(&self, inode: &Arc<Inode>, f: impl FnOnce(&mut Core)) -> Result<()> {
        self.try_change(inode, |c| {
            f(c);
            Ok(())
        })
    }

    /// The same, where `f` may refuse, and then leaves the core as it was.
    fn try_change(&self, inode: &Arc<Inode>, f: impl FnOnce(&mut Core) -> Result<()>) -> Result<()> {
        inode.try_change(|c| {
            f(c)?;
            c.ctime = self.mount.vol().now();
            Ok(())
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Fs::create`].
    pub fn symlink(&self, dir: u64, name: &[u8], target: &[u8], uid: u32, gid: u32) -> Result<Stat> {
        owners([uid, gid])?;
        let _open = self.enter()?;
        let d = self.inode(dir)?;
        let i = self.used(self.with_retry(|| self.mount.names.symlink(&d, name, target, uid, gid))?);
        self.changed()?;
        Ok(self.stat_of(&i))
    }

    /// Reads a symbolic link's target.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none.
    pub fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        let _open = self.enter()?;
        self.mount.names.readlink(&*self.inode(ino)?)
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotPermitted`] for a directory.
    pub fn link(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Stat> {
        let _open = self.enter()?;
        let (i, d) = (self.inode(ino)?, self.inode(dir)?);
        self.with_retry(|| self.mount.names.link(&i, &d, name))?;
        self.changed()?;
        Ok(self.stat_of(&i))
    }

    /// Removes a name of something that is no directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`].
    pub fn unlink(&self, dir: u64, name: &[u8]) -> Result<()> {
        let _open = self.enter()?;
        self.mount.names.unlink(&*self.inode(dir)?, name, false)?;
        self.changed()
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotDirectory`].
    pub fn rmdir(&self, dir: u64, name: &[u8]) -> Result<()> {
        let _open = self.enter()?;
        self.mount.names.unlink(&*self.inode(dir)?, name, true)?;
        self.changed()
    }

    /// Moves a name; `how` says what becomes of one that is there.
    ///
    /// # Errors
    /// [`Error::Exists`] for [`Rename::NoReplace`], and over a directory with entries.
    pub fn rename(&self, odir: u64, oname: &[u8], ndir: u64, nname: &[u8], how: Rename) -> Result<()> {
        let _open = self.enter()?;
        let (o, n) = (self.inode(odir)?, self.inode(ndir)?);
        self.with_retry(|| self.mount.names.rename(&o, oname, &n, nname, how))?;
        self.changed()
    }

    /// Hands each free extent on, as blocks of a group: (group, first block, blocks).
    ///
    /// # Errors
    /// A group is corrupt.
    pub fn free_extents(&self, f: &mut dyn FnMut(u32, u32, u32)) -> Result<()> {
        let _open = self.enter()?;
        let vol = self.mount.vol();
        for agno in 0..vol.geo.agcount {
            space::each_free(vol, AgNumber(agno), &mut |_, r| {
                f(agno, r.start, r.len);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Gives free extents of at least `least` bytes back to whatever the volume lies on; returns how many bytes those were.
    ///
    /// # Errors
    /// The device's; the volume is read-only; a group is corrupt.
    ///
    /// # Crash
    /// Only what is durably free is discarded.
    pub fn trim(&self, least: u64) -> Result<u64> {
        let _open = self.enter()?;
        let vol = self.mount.vol();
        vol.check_writable()?;
        let blocks = least.div_ceil(u64::from(vol.geo.blocksize));
        let done = space::trim(vol, u32::try_from(blocks).unwrap_or(u32::MAX))?;
        Ok(done * u64::from(vol.geo.blocksize))
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// As [`Fs::fsync`].
    pub fn sync(&self) -> Result<()> {
        let _open = self.enter()?;
        self.mount.sync(Why::Sync)
    }

    /// Changes permissions, owners, size and times.
    ///
    /// # Errors
    /// [`Error::IsDirectory`] for the size of a directory; [`Error::Invalid`] for an owner that cannot be.
    pub fn setattr(&self, ino: u64, a: SetAttr) -> Result<Stat> {
        owners([a.uid, a.gid].into_iter().flatten())?;
        let _open = self.enter()?;
        let i = self.inode(ino)?;
        let times_only = a.mode.is_none() && a.uid.is_none() && a.gid.is_none() && a.size.is_none();
        if times_only { i.check_mutable() } else { i.check_removable() }?;
        if let Some(size) = a.size {
            self.regular(ino)?;
            self.with_retry(|| file::truncate(&self.mount.names.files, &i, size))?;
        }
        let _permissions = a.mode.is_some().then(|| self.permissions(&i));
        // A change of nothing is one, too: it sets the change time, as chown with neither owner nor group does.
        if a.mode.is_some() || a.uid.is_some() || a.gid.is_some() || a.atime.is_some() || a.mtime.is_some() || a.size.is_none() {
            self.change(&i, |c| {
                c.mode = a.mode.map_or(c.mode, |m| c.mode & mode::FMT | m & 0o7777);
                c.uid = a.uid.unwrap_or(c.uid);
                c.gid = a.gid.unwrap_or(c.gid);
                c.atime = a.atime.unwrap_or(c.atime);
                c.mtime = a.mtime.unwrap_or(c.mtime);
            })?;
        }
        if let Some(m) = a.mode
            && let Some(mut acl) = read_acl(&i, false)?
        {
            acl.follow_mode(m);
            self.with_retry(|| attr::set(&i, acl_name(false), &acl.encode(), SetMode::Any))?;
        }
        self.changed()?;
        self.stat(ino)
    }

    fn permissions(&self, inode: &Inode) -> MutexGuard<'_, ()> {
        uxfs_sync::lock(&self.permissions[(inode.ino.0 % self.permissions.len() as u64) as usize])
    }

    /// Free and used space.
    pub fn statfs(&self) -> StatFs {
        let g = self.geometry();
        let (free, icount, ifree) = self.mount.vol().counters.for_statfs();
        let blocks = g.dblocks - g.inner_log_blocks();
        let by_space = free << g.inopblog;
        let most = if g.imax_pct > 0 { (g.dblocks * u64::from(g.imax_pct) / 100) << g.inopblog } else { u64::MAX };
        let files = (icount + by_space).min(most).max(icount);
        StatFs { block_size: g.blocksize, blocks, free, files, files_free: files - icount + ifree }
    }

    /// Writes everything home and marks the log clean.
    ///
    /// # Errors
    /// The volume was shut down; the next open recovers it.
    pub fn unmount(self) -> Result<()> {
        self.close()
    }

    /// As [`Fs::unmount`] for an `Fs` that is shared. Operations that run are waited for, later ones fail.
    ///
    /// # Errors
    /// The same.
    pub fn close(&self) -> Result<()> {
        *self.closed.write() = true;
        self.mount.unmount()
    }
}

/// Entries gathered under the directory's lock before they are handed on.
const READDIR_BATCH: usize = 512;
/// Times that an operation without space is tried again after others had it and gave it back.
const RETRIES: usize = 8;
