//! Names: lookup, create, link, unlink, rename; one transaction each. And the end of an inode's life.
//!
//! What is waited for with what in hand:
//!
//! 1. A transaction's room in the log before any inode; nobody waits for room with an inode or a buffer.
//! 2. Inodes that are there before buffers, several of them with none of the others ([`Inode::lock_all`]).
//! 3. AGIs before AGFs, so a rename over a file takes that file's AGI before it touches a directory.
//! 4. An inode that is being made after its AGI, which says that it is free: whoever knew the number from an earlier life may have it
//!    locked, finds it ended, and lets it go without waiting for anything.
//! 5. Blocks of a directory, a tree or attributes by whoever has the inode or the group that owns them: among those there is no order.

use crate::ag;
use crate::attr::{self, parent};
use crate::da::{DaFork, Reader};
use crate::dir;
use crate::error::{Error, Result};
use crate::file::{self, Files};
use crate::inode::{self, Fork, Inode, Inodes, Which};
use crate::link;
use crate::map;
use crate::trans::Trans;
use crate::volume::Volume;
use parking_lot::Mutex;
use std::sync::Arc;
use uxfs_format::dir::ftype::of_mode;
use uxfs_format::inode::{Core, Format, flag, flag2, mode};
use uxfs_format::log::ino_field;
use uxfs_format::superblock::incompat;
use uxfs_format::symlink::MAX_TARGET;
use uxfs_format::{Ino, NULL_AG};
use uxfs_journal::{Hole, hole};

/// Most links of an inode.
const MAX_LINKS: u32 = i32::MAX as u32;
/// Directories above one, before a walk upwards is given up as a loop.
const MAX_DEPTH: usize = 100_000;

/// What the operations on names need.
pub struct Names {
    /// The volume.
    pub vol: Arc<Volume>,
    /// The inode cache.
    pub inodes: Arc<Inodes>,
    /// The file cache.
    pub files: Arc<Files>,
    /// Held while a directory changes its parent, so that two renames cannot tie a loop.
    rename: Mutex<()>,
}

/// What a rename does with a name that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// It goes.
    Replace,
    /// It stays, and the rename fails.
    NoReplace,
    /// The two change places.
    Exchange,
    /// A whiteout stays in the old place: a character device 0/0, as overlay file systems want.
    Whiteout {
        /// Owner of the whiteout.
        uid: u32,
        /// Its group, unless the directory that the entry moves to gives one.
        gid: u32,
        /// As [`Rename::Replace`], else as [`Rename::NoReplace`].
        replace: bool,
    },
}

/// What a new inode gets.
#[derive(Clone, Copy, Debug)]
pub struct NewInode {
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number as on disk, for devices.
    pub rdev: u32,
}

impl Names {
    /// Operations on the names of a volume.
    pub fn new(vol: Arc<Volume>, inodes: Arc<Inodes>, files: Arc<Files>) -> Names {
        Names { vol, inodes, files, rename: Mutex::default() }
    }

    /// Finds a name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`]; the directory is corrupt.
    pub fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Arc<Inode>> {
        self.find(dir, name, |i| i)
    }

    /// Finds a name, and runs `then` while the inode has it.
    ///
    /// # Locks
    /// The directory's, shared, also while the inode is read: as long as it has a name it is not freed, nor its number another file's.
    ///
    /// # Errors
    /// As [`Names::lookup`].
    pub fn find<T>(&self, dir: &Arc<Inode>, name: &[u8], then: impl FnOnce(Arc<Inode>) -> T) -> Result<T> {
        if name.len() > uxfs_format::dir::MAX_NAME {
            return Err(Error::NameTooLong);
        }
        let _d = dir.lock_shared();
        let found = dir::lookup(&mut Reader(&self.vol), dir, name)?;
        // A removed directory still has an entry that led upwards.
        let found = found.filter(|_| dir.data().core.nlink > 0).ok_or(Error::NotFound)?;
        match self.inodes.get(found.ino) {
            Err(Error::Stale) => Err(self.vol.corrupt(dir.ino, "has an entry that leads to a free inode")),
            r => r.map(then),
        }
    }

    /// Checks that a directory may get a name; says where it goes.
    fn check_new(&self, dir: &Arc<Inode>, tp: &mut Trans, name: &[u8]) -> Result<dir::Spot> {
        if dir.data().core.nlink == 0 {
            return Err(Error::NotFound);
        }
        dir.check_mutable()?;
        let spot = dir::find(tp, dir, name)?;
        if spot.found.is_some() { Err(Error::Exists) } else { Ok(spot) }
    }

    fn touch_dir(&self, tp: &mut Trans, dir: &Arc<Inode>) -> Result<()> {
        let now = self.vol.now();
        {
            let mut d = dir.data();
            d.core.mtime = now;
            d.core.ctime = now;
        }
        dir.log(tp, 0)
    }

    /// Fills a new inode in; it is locked.
    fn init_inode(&self, inode: &Arc<Inode>, dir: &Core, new: &NewInode) {
        let now = self.vol.now();
        let g = &self.vol.geo;
        let setgid = dir.mode & 0o2000 != 0;
        let is_dir = new.mode & mode::FMT == mode::DIR;
        let (flags, flags2, extsize, cowextsize) = inode::inherited(dir, new.mode);
        inode.revive();
        let mut d = inode.data();
        d.core = Core {
            mode: new.mode | if setgid && is_dir { 0o2000 } else { 0 },
            uid: new.uid,
            gid: if setgid || self.vol.grpid { dir.gid } else { new.gid },
            nlink: if is_dir { 2 } else { 1 },
            projid: if dir.flags & flag::PROJINHERIT != 0 { dir.projid } else { 0 },
            flags,
            extsize,
            cowextsize,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            forkoff: attr::DEFAULT_FORKOFF,
            aformat: Format::Extents,
            generation: self.vol.chance.next_u64() as u32,
            next_unlinked: NULL_AG,
            changecount: 1,
            flags2: flags2
                | if g.has(incompat::BIGTIME) { flag2::BIGTIME } else { 0 }
                | if g.has(incompat::NREXT64) { flag2::NREXT64 } else { 0 },
            ino: inode.ino,
            lsn: d.core.lsn,
            ..Core::default()
        };
        d.attr = Fork { loaded: true, ..Fork::default() };
        d.data = Fork { loaded: true, ..Fork::default() };
        match new.mode & mode::FMT {
            mode::REG => d.core.format = Format::Extents,
            mode::DIR | mode::LNK => d.core.format = Format::Local,
            _ => {
                d.core.format = Format::Dev;
                d.core.forkoff = attr::DEVICE_FORKOFF;
                d.data.local = new.rdev.to_be_bytes().to_vec();
            }
        }
    }

    /// Makes a file, directory, device, pipe or socket. The caller refers to it, and is to give that back.
    ///
    /// # Errors
    /// [`Error::Exists`], `NoSpace`, the name is not allowed.
    pub fn create(&self, dir: &Arc<Inode>, name: &[u8], new: NewInode) -> Result<Arc<Inode>> {
        dir::check_name(name)?;
        let is_dir = new.mode & mode::FMT == mode::DIR;
        let r = &self.vol.res;
        let res = if is_dir { r.mkdir } else { r.create };
        let mut tp = Trans::new(&self.vol, res, r.ialloc_blocks + r.dir_enter_blocks + parent::blocks(&self.vol))?;
        let _d = dir.lock();
        let spot = self.check_new(dir, &mut tp, name)?;
        let core = dir.core();
        if is_dir && core.nlink >= MAX_LINKS {
            return Err(Error::TooManyLinks);
        }
        let inode = inode::dialloc(&mut tp, &self.inodes, dir.ino, is_dir)?;
        let _i = inode.lock();
        self.init_inode(&inode, &core, &new);
        inode.refer();
        file::begin(&inode);
        inode.log(&mut tp, ino_field::DFORK | ino_field::AEXT)?;
        if is_dir {
            dir::init(&mut tp, &inode, dir.ino)?;
            dir.data().core.nlink += 1;
        }
        dir::add(&mut tp, dir, name, inode.ino, of_mode(new.mode), spot)?;
        parent::add(&mut tp, &inode, dir, name)?;
        self.touch_dir(&mut tp, dir)?;
        tp.commit()?;
        Ok(inode)
    }

    /// Makes an inode that has no name yet, on an unlinked list: a crash frees it. The caller refers to it, and is to give that back.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn create_unlinked(&self, dir: &Arc<Inode>, new: NewInode) -> Result<Arc<Inode>> {
        let r = &self.vol.res;
        let mut tp = Trans::new(&self.vol, r.create, r.ialloc_blocks)?;
        let core = dir.core();
        dir.check_mutable()?;
        let inode = inode::dialloc(&mut tp, &self.inodes, dir.ino, false)?;
        let _i = inode.lock();
        self.init_inode(&inode, &core, &new);
        inode.data().core.nlink = 0;
        inode.refer_unnamed();
        file::begin(&inode);
        inode.log(&mut tp, ino_field::DFORK | ino_field::AEXT)?;
        inode::unlinked_add(&mut tp, &inode)?;
        tp.commit()?;
        Ok(inode)
    }

    /// Makes a symbolic link. The caller refers to it, and is to give that back.
    ///
    /// # Errors
    /// As [`Names::create`]; a target longer than 1024 bytes or empty.
    pub fn symlink(&self, dir: &Arc<Inode>, name: &[u8], target: &[u8], uid: u32, gid: u32) -> Result<Arc<Inode>> {
        dir::check_name(name)?;
        if target.len() >= MAX_TARGET {
            return Err(Error::NameTooLong);
        }
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        let g = &self.vol.geo;
        let blocks = link::blocks(g, target.len());
        let r = &self.vol.res;
        let mut tp = Trans::new(&self.vol, r.symlink, r.ialloc_blocks + r.dir_enter_blocks + blocks + parent::blocks(&self.vol))?;
        let _d = dir.lock();
        let spot = self.check_new(dir, &mut tp, name)?;
        let inode = inode::dialloc(&mut tp, &self.inodes, dir.ino, false)?;
        let _i = inode.lock();
        self.init_inode(&inode, &dir.core(), &NewInode { mode: mode::LNK | 0o777, uid, gid, rdev: 0 });
        inode.refer();
        link::put(&mut tp, &inode, target)?;
        dir::add(&mut tp, dir, name, inode.ino, of_mode(mode::LNK), spot)?;
        parent::add(&mut tp, &inode, dir, name)?;
        self.touch_dir(&mut tp, dir)?;
        tp.commit()?;
        Ok(inode)
    }

    /// Reads a symbolic link's target.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no symbolic link; it is corrupt.
    pub fn readlink(&self, inode: &Arc<Inode>) -> Result<Vec<u8>> {
        let _i = inode.lock_shared();
        if inode.data().core.kind() != mode::LNK {
            return Err(Error::Invalid { what: "this is no symbolic link" });
        }
        link::get(inode)
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory; [`Error::Exists`], [`Error::TooManyLinks`], `NoSpace`.
    pub fn link(&self, inode: &Arc<Inode>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        dir::check_name(name)?;
        if inode.core().kind() == mode::DIR {
            return Err(Error::NotPermitted);
        }
        let r = &self.vol.res;
        let mut tp = Trans::new(&self.vol, r.link, r.dir_enter_blocks + parent::blocks(&self.vol))?;
        let _l = Inode::lock_all(vec![inode, dir]);
        let spot = self.check_new(dir, &mut tp, name)?;
        inode.check_removable()?;
        dir.check_same_project(inode)?;
        let core = inode.core();
        if core.nlink >= MAX_LINKS {
            return Err(Error::TooManyLinks);
        }
        if core.nlink == 0 {
            // Never had a name, or lost the last: somebody who has it open gives it one.
            inode::unlinked_remove(&mut tp, inode)?;
        }
        dir::add(&mut tp, dir, name, inode.ino, of_mode(core.mode), spot)?;
        let now = self.vol.now();
        {
            let mut d = inode.data();
            d.core.nlink += 1;
            d.core.ctime = now;
        }
        inode.log(&mut tp, 0)?;
        parent::add(&mut tp, inode, dir, name)?;
        self.touch_dir(&mut tp, dir)?;
        tp.commit().map(|_| ())
    }

    /// Takes a link off an inode; the last one puts it on the unlinked list.
    fn drop_link(&self, tp: &mut Trans, inode: &Arc<Inode>, links: u32) -> Result<()> {
        let now = self.vol.now();
        let left = {
            let mut d = inode.data();
            d.core.ctime = now;
            d.core.nlink = d.core.nlink.saturating_sub(links);
            d.core.nlink
        };
        inode.log(tp, 0)?;
        if left == 0 { inode::unlinked_add(tp, inode) } else { Ok(()) }
    }

    /// Removes a name: of a directory if `rmdir`, of something else if not.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::NotDirectory`], [`Error::NotEmpty`].
    pub fn unlink(&self, dir: &Arc<Inode>, name: &[u8], rmdir: bool) -> Result<()> {
        if name == b"." || name == b".." {
            return Err(Error::Invalid { what: "dot entries cannot be removed" });
        }
        self.vol.check_writable()?;
        loop {
            let inode = self.lookup(dir, name)?;
            let fits = || match (inode.core().kind() == mode::DIR, rmdir) {
                (true, false) => Err(Error::IsDirectory),
                (false, true) => Err(Error::NotDirectory),
                _ => Ok(()),
            };
            let early = hole(Hole::EarlyLook).then(fits);
            let r = &self.vol.res;
            let mut tp = Trans::new_must_succeed(&self.vol, r.remove, r.dir_remove_blocks)?;
            let held = Inode::lock_all(vec![&inode, dir]);
            let spot = dir::find(&mut tp, dir, name)?;
            if spot.found.is_none_or(|f| f.ino != inode.ino) {
                continue;
            }
            // Not before: until it was locked, its number could become another one's, and that get the name.
            early.unwrap_or_else(fits)?;
            dir.check_removable()?;
            inode.check_removable()?;
            if rmdir && !dir::is_empty(&inode)? {
                return Err(Error::NotEmpty);
            }
            if rmdir {
                let mut d = dir.data();
                d.core.nlink = d.core.nlink.saturating_sub(1);
            }
            dir::remove(&mut tp, dir, name, spot)?;
            self.touch_dir(&mut tp, dir)?;
            parent::remove(&mut tp, &inode, dir, name)?;
            self.drop_link(&mut tp, &inode, if rmdir { 2 } else { 1 })?;
            tp.commit()?;
            drop(held);
            return self.release_if_gone(&inode);
        }
    }

    /// True if `above` is `dir` or a directory above it.
    fn is_above(&self, above: Ino, dir: &Arc<Inode>) -> Result<bool> {
        let mut at = dir.clone();
        for _ in 0..MAX_DEPTH {
            if at.ino == above {
                return Ok(true);
            }
            if at.ino == self.vol.geo.rootino {
                return Ok(false);
            }
            at = self.lookup(&at, b"..")?;
        }
        Err(self.vol.corrupt(dir.ino, "has a loop of directories above it"))
    }

    /// Moves a name; `how` says what becomes of one that is there.
    ///
    /// # Errors
    /// [`Error::Exists`] for [`Rename::NoReplace`], [`Error::NotFound`] for [`Rename::Exchange`]; [`Error::Invalid`] for a
    /// directory into itself; as [`Names::unlink`] for what is replaced.
    pub fn rename(&self, odir: &Arc<Inode>, oname: &[u8], ndir: &Arc<Inode>, nname: &[u8], how: Rename) -> Result<()> {
        dir::check_name(oname)?;
        dir::check_name(nname)?;
        self.vol.check_writable()?;
        let _one = (odir.ino != ndir.ino).then(|| uxfs_sync::lock(&self.rename));
        let whiteout = match how {
            // As the kernel makes it: with what the new directory hands down.
            Rename::Whiteout { uid, gid, .. } => Some(self.create_unlinked(ndir, NewInode { mode: mode::CHR, uid, gid, rdev: 0 })?),
            _ => None,
        };
        let done = self.try_rename((odir, oname), (ndir, nname), how, whiteout.as_ref());
        if let Some(w) = whiteout {
            w.give_back();
            self.release_if_gone(&w)?;
        }
        done
    }

    fn try_rename(
        &self,
        (odir, oname): (&Arc<Inode>, &[u8]),
        (ndir, nname): (&Arc<Inode>, &[u8]),
        how: Rename,
        whiteout: Option<&Arc<Inode>>,
    ) -> Result<()> {
        loop {
            let src = self.lookup(odir, oname)?;
            let target = match self.lookup(ndir, nname) {
                Ok(t) => Some(t),
                Err(Error::NotFound) if how != Rename::Exchange => None,
                Err(e) => return Err(e),
            };
            // What is checked holds for these; until they are locked, their numbers could become others', and those get the names.
            let incarnations = || (src.core().generation, target.as_ref().map(|t| t.core().generation));
            let checked = incarnations();
            let is_dir = src.core().kind() == mode::DIR;
            odir.check_removable()?;
            src.check_removable()?;
            ndir.check_mutable()?;
            ndir.check_same_project(&src)?;
            if let Some(t) = &target {
                if matches!(how, Rename::NoReplace | Rename::Whiteout { replace: false, .. }) {
                    return Err(Error::Exists);
                }
                if t.ino == src.ino {
                    return Ok(());
                }
                ndir.check_removable()?;
                t.check_removable()?;
                if how == Rename::Exchange {
                    odir.check_same_project(t)?;
                }
                let other_is_dir = t.core().kind() == mode::DIR;
                match (is_dir, other_is_dir) {
                    _ if how == Rename::Exchange => {}
                    (true, false) => return Err(Error::NotDirectory),
                    (false, true) => return Err(Error::IsDirectory),
                    _ => {}
                }
                if how == Rename::Exchange && other_is_dir && odir.ino != ndir.ino && self.is_above(t.ino, odir)? {
                    return Err(Error::Invalid { what: "a directory cannot be moved into itself" });
                }
            }
            if is_dir && odir.ino != ndir.ino && self.is_above(src.ino, ndir)? {
                return Err(Error::Invalid { what: "a directory cannot be moved into itself" });
            }
            let r = &self.vol.res;
            let blocks = r.dir_enter_blocks + r.dir_remove_blocks + 2 * parent::blocks(&self.vol);
            let mut tp = match Trans::new(&self.vol, r.rename, blocks) {
                Err(Error::NoSpace) if target.is_some() => Trans::new_must_succeed(&self.vol, r.rename, blocks)?,
                t => t?,
            };
            let mut all = vec![odir, ndir, &src];
            all.extend(target.as_ref());
            all.extend(whiteout);
            let held = Inode::lock_all(all);
            let now_src = dir::lookup(&mut tp, odir, oname)?.map(|f| f.ino);
            let now_target = dir::lookup(&mut tp, ndir, nname)?.map(|f| f.ino);
            if now_src != Some(src.ino) || now_target != target.as_ref().map(|t| t.ino) || incarnations() != checked {
                continue;
            }
            if ndir.data().core.nlink == 0 {
                return Err(Error::NotFound);
            }
            match (&target, how) {
                (Some(t), Rename::Exchange) => return self.exchange_locked(tp, (odir, oname), (ndir, nname), &src, t),
                _ => self.rename_locked(tp, (odir, oname), (ndir, nname), &src, target.as_ref(), whiteout)?,
            }
            drop(held);
            return target.map_or(Ok(()), |t| self.release_if_gone(&t));
        }
    }

    /// A directory that moves to another one has that as parent.
    fn move_dir(&self, tp: &mut Trans, moved: &Arc<Inode>, from: &Arc<Inode>, to: &Arc<Inode>) -> Result<()> {
        if moved.core().kind() != mode::DIR || from.ino == to.ino {
            return Ok(());
        }
        dir::replace(tp, moved, b"..", to.ino, 2)?;
        let mut d = from.data();
        d.core.nlink = d.core.nlink.saturating_sub(1);
        drop(d);
        to.data().core.nlink += 1;
        Ok(())
    }

    fn exchange_locked(
        &self,
        mut trans: Trans,
        (odir, oname): (&Arc<Inode>, &[u8]),
        (ndir, nname): (&Arc<Inode>, &[u8]),
        src: &Arc<Inode>,
        other: &Arc<Inode>,
    ) -> Result<()> {
        let tp = &mut trans;
        dir::replace(tp, odir, oname, other.ino, of_mode(other.core().mode))?;
        dir::replace(tp, ndir, nname, src.ino, of_mode(src.core().mode))?;
        self.move_dir(tp, src, odir, ndir)?;
        self.move_dir(tp, other, ndir, odir)?;
        self.touch_dir(tp, odir)?;
        if odir.ino != ndir.ino {
            self.touch_dir(tp, ndir)?;
        }
        let now = self.vol.now();
        for (i, from, to) in [(src, (odir, oname), (ndir, nname)), (other, (ndir, nname), (odir, oname))] {
            i.data().core.ctime = now;
            i.log(tp, 0)?;
            parent::remove(tp, i, from.0, from.1)?;
            parent::add(tp, i, to.0, to.1)?;
        }
        trans.commit().map(|_| ())
    }

    fn rename_locked(
        &self,
        mut trans: Trans,
        (odir, oname): (&Arc<Inode>, &[u8]),
        (ndir, nname): (&Arc<Inode>, &[u8]),
        src: &Arc<Inode>,
        target: Option<&Arc<Inode>>,
        whiteout: Option<&Arc<Inode>>,
    ) -> Result<()> {
        let tp = &mut trans;
        let core = src.core();
        let (ftype, is_dir) = (of_mode(core.mode), core.kind() == mode::DIR);
        if let Some(t) = target
            && is_dir
            && !dir::is_empty(t)?
        {
            // POSIX allows this as well as ENOTEMPTY, and the kernel's XFS has chosen it.
            return Err(Error::Exists);
        }
        // The AGIs of what joins or leaves an unlinked list come before any AGF that a directory may need, in rising order.
        let mut groups: Vec<_> = target.into_iter().chain(whiteout).map(|i| self.vol.geo.ino_agno(i.ino)).collect();
        groups.sort();
        for agno in groups {
            ag::agi(tp, agno)?;
        }
        match target {
            Some(t) => {
                dir::replace(tp, ndir, nname, src.ino, ftype)?;
                parent::remove(tp, t, ndir, nname)?;
                self.drop_link(tp, t, if is_dir { 2 } else { 1 })?;
                if is_dir {
                    let mut d = ndir.data();
                    d.core.nlink = d.core.nlink.saturating_sub(1);
                }
            }
            None => dir::add(tp, ndir, nname, src.ino, ftype, dir::Spot::default())?,
        }
        self.move_dir(tp, src, odir, ndir)?;
        match whiteout {
            Some(w) => {
                inode::unlinked_remove(tp, w)?;
                w.data().core.nlink = 1;
                w.log(tp, 0)?;
                dir::replace(tp, odir, oname, w.ino, of_mode(mode::CHR))?;
                parent::add(tp, w, odir, oname)?;
            }
            None => {
                let spot = dir::find(tp, odir, oname)?;
                dir::remove(tp, odir, oname, spot)?
            }
        }
        self.touch_dir(tp, odir)?;
        if odir.ino != ndir.ino {
            self.touch_dir(tp, ndir)?;
        }
        let now = self.vol.now();
        src.data().core.ctime = now;
        src.log(tp, 0)?;
        parent::remove(tp, src, odir, oname)?;
        parent::add(tp, src, ndir, nname)?;
        trans.commit().map(|_| ())
    }

    /// Frees an inode that has no name and that nobody refers to.
    ///
    /// # Errors
    /// It is corrupt, or the volume is shut down.
    pub fn release_if_gone(&self, inode: &Arc<Inode>) -> Result<()> {
        let gone = {
            let _i = inode.lock();
            let core = inode.core();
            core.nlink == 0 && core.mode != 0
        };
        if gone && !self.vol.is_read_only() { self.inactivate(inode) } else { Ok(()) }
    }

    /// Frees what an unlinked inode holds, then the inode. Nobody can get hold of it any more.
    ///
    /// # Locks
    /// The inode's, anew for each transaction and after that one's log space: who waits for space with an inode locked that
    /// the tail of the log hangs on waits for ever.
    ///
    /// # Crash
    /// It stays on the unlinked list until the last transaction, so recovery goes on where this stopped.
    ///
    /// # Errors
    /// It is corrupt, or the volume is shut down.
    pub fn inactivate(&self, inode: &Arc<Inode>) -> Result<()> {
        {
            let _i = inode.lock();
            let core = inode.core();
            if core.mode == 0 || core.nlink > 0 || !inode.begin_end() {
                return Ok(());
            }
        }
        file::release_staged(&self.files, inode)?;
        file::forget(&self.files, inode);
        let core = inode.core();
        if matches!(core.format, Format::Extents | Format::Btree) {
            self.free_data(inode, &core)?;
        }
        attr::inactivate(inode)?;
        let r = &self.vol.res;
        let mut tp = Trans::new_must_succeed(&self.vol, r.ifree, r.ialloc_blocks)?;
        let _i = inode.lock();
        inode::unlinked_remove(&mut tp, inode)?;
        inode::difree(&mut tp, &self.inodes, inode)?;
        {
            let mut d = inode.data();
            d.core = Core {
                ino: inode.ino,
                generation: core.generation.wrapping_add(1),
                next_unlinked: NULL_AG,
                changecount: d.core.changecount,
                flags2: core.flags2 & (flag2::BIGTIME | flag2::NREXT64),
                lsn: d.core.lsn,
                ctime: core.ctime,
                mtime: core.mtime,
                ..Core::default()
            };
            d.data = Fork { loaded: true, ..Fork::default() };
            d.attr = Fork { loaded: true, ..Fork::default() };
        }
        inode.log(&mut tp, ino_field::DEXT)?;
        tp.commit().map(|_| ())
    }

    fn free_data(&self, inode: &Arc<Inode>, core: &Core) -> Result<()> {
        let r = &self.vol.res;
        let mut tp = Trans::new_must_succeed(&self.vol, r.itruncate, r.write_blocks)?;
        let _i = inode.lock();
        map::load(inode, Which::Data)?;
        if core.kind() != mode::REG {
            self.invalidate_blocks(&mut tp, inode, core)?;
        } else {
            inode.data().core.size = 0;
        }
        inode.log(&mut tp, 0)?;
        file::free_behind(&mut tp, inode, 0)?;
        tp.commit().map(|_| ())
    }

    /// Blocks of a directory or link may be in the log: their images must not come back over whatever is there next.
    fn invalidate_blocks(&self, tp: &mut Trans, inode: &Arc<Inode>, core: &Core) -> Result<()> {
        if core.kind() == mode::LNK {
            link::invalidate(tp, inode);
            return Ok(());
        }
        let g = &self.vol.geo;
        DaFork { inode: inode.clone(), which: Which::Data, base: 0, step: 1 << g.dirblklog }.invalidate_all(tp)
    }
}
