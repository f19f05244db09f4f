//! The requests.

use crate::CacheMode;
use crate::attributes::{Numbers, change, entry_kind};
use crate::failures::Failures;
use crate::handles::Handles;
use std::sync::Arc;
use uxfs::{Acl, Allocate, AttrName, Domain, Error, Fs, How, IoMode, Make, Rename, Seek, SetAttr, SetMode, Stat, acl_name};
use uxfs_transport::abi::{init, open, write};
use uxfs_transport::{Attr, Caller, Change, Data, Entry, Errno, File, Listing, New, Opened, Result, Serve, Statfs};

/// Bytes that one request copies; whoever wants more asks again.
const MOST_COPIED: u64 = 256 << 20;

/// Serves one volume.
pub struct Front {
    fs: Arc<Fs>,
    numbers: Numbers,
    cache: CacheMode,
    io_mode: IoMode,
    open: Handles,
    failures: Failures,
}

/// What the kernel is told of an error.
pub fn errno(e: Error) -> Errno {
    Errno::from_raw_os_error(e.errno())
}

impl Front {
    /// Serves `fs`, whose data is cached there.
    pub fn new(fs: Arc<Fs>, cache: CacheMode, io_mode: IoMode) -> Front {
        let numbers = Numbers { root: fs.root(), blksize: fs.statfs().block_size };
        Front { numbers, fs, cache, io_mode, open: Handles::default(), failures: Failures::default() }
    }

    /// How a file that is being opened is read and written: as who opens it says, else as the file does, else as the mount does.
    fn mode_of(&self, ino: u64, flags: i32) -> IoMode {
        if flags & libc::O_DIRECT != 0 {
            return IoMode::Direct;
        }
        // Attributes that cannot be read are said so by whoever looks at them.
        self.fs.io_mode(ino).ok().flatten().unwrap_or(self.io_mode)
    }

    /// Opens a file whose data the kernel does not cache; others need no handle. Of the former it may send several writes at once.
    fn opened(&self, ino: u64, flags: i32, by: Caller) -> uxfs::Result<Opened> {
        if !self.cache.is_ours() {
            return Ok(Opened { handle: 0, flags: open::KEEP_CACHE });
        }
        let how = How { mode: self.mode_of(ino, flags), domain: Domain(by.uid) };
        let handle = self.open.add(self.fs.open_file(ino, how)?);
        Ok(Opened { handle, flags: open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES })
    }

    fn ino(&self, node: u64) -> u64 {
        self.numbers.ino(node)
    }

    fn attr(&self, s: uxfs::Result<Stat>) -> Result<Attr> {
        s.map(|s| self.numbers.attr(&s)).map_err(errno)
    }

    fn entry(&self, s: &Stat) -> Entry {
        Entry { attr: self.numbers.attr(s), generation: s.generation }
    }

    /// Something new, which the kernel now knows.
    fn made(&self, made: uxfs::Result<Stat>) -> Result<Entry> {
        let held = made.and_then(|s| self.fs.hold(s.ino, s.generation).map(|()| s));
        held.map(|s| self.entry(&s)).map_err(errno)
    }

    /// Opens something new that the kernel now knows, or else does not.
    fn made_and_opened(&self, e: Entry, flags: i32, by: Caller) -> Result<(Entry, Opened)> {
        let ino = self.ino(e.attr.node);
        let opened = self.opened(ino, flags, by).or_else(|failed| self.fs.forget(ino, 1).and(Err(failed)));
        opened.map(|o| (e, o)).map_err(errno)
    }

    fn make(new: New) -> Make {
        Make { mode: new.mode as u16, uid: new.by.uid, gid: new.by.gid, rdev: new.rdev, umask: new.umask as u16 & 0o777 }
    }

    /// Takes away the bits by which a file lends its owner's or its group's rights, since somebody changes what it holds or whose it is.
    /// The kernel, which holds the file meanwhile, leaves this to us.
    fn lend_no_rights(&self, ino: u64) -> uxfs::Result<()> {
        let s = self.fs.stat(ino)?;
        let by_group = if s.mode & 0o010 != 0 { 0o2000 } else { 0 };
        let lent = s.mode & (0o4000 | by_group);
        if s.mode & 0o170_000 == 0o040_000 || lent == 0 {
            return Ok(());
        }
        self.fs.setattr(ino, SetAttr { mode: Some(s.mode & 0o7777 & !lent), ..SetAttr::default() }).map(drop)
    }

    /// Before anybody changes a file's data otherwise than by a write: root may keep the bits.
    fn lend_less_changed(&self, ino: u64, by: Caller) -> uxfs::Result<()> {
        if by.uid == 0 { Ok(()) } else { self.lend_no_rights(ino) }
    }

    /// Before a change of attributes.
    fn lend_less(&self, ino: u64, a: &SetAttr, by: Caller) -> uxfs::Result<()> {
        let nothing = a.atime.is_none() && a.mtime.is_none();
        match (a.mode, a.uid.or(a.gid), a.size) {
            (None, Some(_), _) => self.lend_no_rights(ino),
            (None, None, Some(_)) => self.lend_less_changed(ino, by),
            // A change of its owners to nobody by whoever may do that, or what the kernel sends before something that asks for itself.
            (None, None, None) if nothing && self.fs.stat(ino)?.uid == by.uid => self.lend_less_changed(ino, by),
            _ => Ok(()),
        }
    }

    /// Before a write: takes away what it may not keep. Where the kernel caches, it takes the capabilities itself.
    fn lend_less_written(&self, ino: u64, flags: u32) -> uxfs::Result<()> {
        if flags & write::KILL_SUIDGID != 0 {
            self.lend_no_rights(ino)?;
        }
        if self.cache.is_ours() { self.fs.remove_capabilities(ino) } else { Ok(()) }
    }
}

/// The kernel's names of access control lists: what an inode has, and what new entries of a directory inherit.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Whether a name is that of a default list, if it is that of a list at all.
fn acl_kind(name: &[u8]) -> Option<bool> {
    ACLS.iter().position(|a| *a == name).map(|i| i == 1)
}

fn attr_name(name: &[u8]) -> Result<AttrName<'_>> {
    AttrName::parse(name).ok_or(Errno::OPNOTSUPP)
}

impl Serve for Front {
    fn wants(&self, offered: u64) -> std::io::Result<u64> {
        if self.cache == CacheMode::Writeback && offered & init::WRITEBACK_CACHE == 0 {
            return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "this kernel has no write-back cache for FUSE"));
        }
        // An older kernel lacks some; it works without. HANDLE_KILLPRIV_V2: else it asks before each write whether the file has capabilities.
        let always = init::PARALLEL_DIROPS
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::CACHE_SYMLINKS
            | init::NO_OPENDIR_SUPPORT
            | init::EXPORT_SUPPORT
            | init::ASYNC_DIO
            | init::POSIX_ACL
            | init::DONT_MASK
            | init::HAS_IOCTL_DIR
            | init::HANDLE_KILLPRIV_V2;
        let by_mode = match self.cache {
            // Files that are mapped are cached while they are; so much is allowed.
            CacheMode::None => init::DIRECT_IO_ALLOW_MMAP,
            CacheMode::Writethrough => init::NO_OPEN_SUPPORT,
            CacheMode::Writeback => init::NO_OPEN_SUPPORT | init::WRITEBACK_CACHE,
        };
        Ok(always | by_mode)
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<Entry>> {
        let dir = self.ino(dir);
        loop {
            // By its own name the kernel asks for what a file handle leads to.
            match if name == b"." { self.fs.stat_by_number(dir) } else { self.fs.lookup(dir, name) } {
                Ok(s) => match self.fs.hold(s.ino, s.generation) {
                    Ok(()) => return Ok(Some(self.entry(&s))),
                    // It went between the two steps: look again.
                    Err(Error::Stale) => {}
                    Err(e) => return Err(errno(e)),
                },
                Err(Error::NotFound) => return Ok(None),
                Err(e) => return Err(errno(e)),
            }
        }
    }

    fn forget(&self, node: u64, times: u64) {
        // The inode stays on the unlinked list if this fails, and recovery frees it.
        let _ = self.fs.forget(self.ino(node), times);
    }

    fn getattr(&self, node: u64) -> Result<Attr> {
        self.attr(self.fs.stat(self.ino(node)))
    }

    fn setattr(&self, by: Caller, node: u64, c: Change) -> Result<Attr> {
        let (ino, change) = (self.ino(node), change(&c, || self.fs.now()));
        self.attr(self.lend_less(ino, &change, by).and_then(|()| self.fs.setattr(ino, change)))
    }

    fn readlink(&self, node: u64) -> Result<Vec<u8>> {
        self.fs.readlink(self.ino(node)).map_err(errno)
    }

    fn make(&self, dir: u64, name: &[u8], new: New) -> Result<Entry> {
        self.made(self.fs.create(self.ino(dir), name, Self::make(new)))
    }

    fn symlink(&self, by: Caller, dir: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.made(self.fs.symlink(self.ino(dir), name, target, by.uid, by.gid))
    }

    fn unlink(&self, dir: u64, name: &[u8]) -> Result<()> {
        self.fs.unlink(self.ino(dir), name).map_err(errno)
    }

    fn rmdir(&self, dir: u64, name: &[u8]) -> Result<()> {
        self.fs.rmdir(self.ino(dir), name).map_err(errno)
    }

    fn rename(&self, by: Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<()> {
        let how = match flags {
            0 => Rename::Replace,
            libc::RENAME_NOREPLACE => Rename::NoReplace,
            libc::RENAME_EXCHANGE => Rename::Exchange,
            f if f & !libc::RENAME_NOREPLACE == libc::RENAME_WHITEOUT => {
                Rename::Whiteout { uid: by.uid, gid: by.gid, replace: f == libc::RENAME_WHITEOUT }
            }
            _ => return Err(Errno::INVAL),
        };
        self.fs.rename(self.ino(from.0), from.1, self.ino(to.0), to.1, how).map_err(errno)
    }

    fn link(&self, node: u64, dir: u64, name: &[u8]) -> Result<Entry> {
        self.made(self.fs.link(self.ino(node), self.ino(dir), name))
    }

    fn open(&self, by: Caller, node: u64, flags: i32) -> Result<Opened> {
        // Where the kernel caches, an open file needs nothing here: its hold on the inode keeps it. That it need not ask is remembered.
        if !self.cache.is_ours() {
            return Err(Errno::NOSYS);
        }
        self.opened(self.ino(node), flags, by).map_err(errno)
    }

    fn create(&self, dir: u64, name: &[u8], new: New, flags: i32) -> Result<(Entry, Opened)> {
        let made = self.made(self.fs.create(self.ino(dir), name, Self::make(new)))?;
        self.made_and_opened(made, flags, new.by)
    }

    fn tmpfile(&self, dir: u64, new: New, flags: i32) -> Result<(Entry, Opened)> {
        // Made held, as it has no name to be found by.
        let made = self.fs.create_unnamed(self.ino(dir), Self::make(new)).map_err(errno)?;
        self.made_and_opened(self.entry(&made), flags, new.by)
    }

    fn read(&self, file: File, offset: u64, into: &mut [u8]) -> Result<usize> {
        let read = match self.open.get(file.handle) {
            Some(f) => f.read(offset, into),
            None => self.fs.read(self.ino(file.node), offset, into),
        };
        read.map_err(errno)
    }

    fn write(&self, by: Caller, file: File, offset: u64, data: Data<'_>, flags: u32) -> Result<usize> {
        let (ino, asked) = (self.ino(file.node), data.len());
        // For O_APPEND the kernel holds the file and gives the end as the offset.
        let how = How { mode: IoMode::Buffered, domain: Domain(by.uid) };
        let written = self.lend_less_written(ino, flags).and_then(|()| match (self.open.get(file.handle), data) {
            (Some(f), Data::Lent(data)) => f.write(offset, data),
            (Some(f), Data::Given { buffer, part }) => f.write_given(offset, buffer, part),
            (None, Data::Lent(data)) => self.fs.write_with(ino, offset, data, false, how),
            (None, Data::Given { buffer, part }) => self.fs.write_given(ino, offset, buffer, part, how),
        });
        match written.map_err(errno)? {
            // What the kernel writes back from its cache it cannot write in part.
            n if n < asked && flags & write::CACHE != 0 => Err(Errno::NOSPC),
            n => Ok(n),
        }
    }

    fn buffer(&self, bytes: usize) -> Option<Vec<u8>> {
        Some(self.fs.buffer(bytes))
    }

    fn statfs(&self) -> Result<Statfs> {
        let s = self.fs.statfs();
        Ok(Statfs {
            block_size: s.block_size,
            blocks: s.blocks,
            free: s.free,
            available: s.free,
            files: s.files,
            free_files: s.files_free,
            name_len: 255,
        })
    }

    fn release(&self, file: File) {
        self.open.remove(file.handle);
    }

    fn fsync(&self, by: Caller, file: File) -> Result<()> {
        if let Some(f) = self.open.get(file.handle) {
            return f.fsync().map_err(errno);
        }
        let ino = self.ino(file.node);
        let which = || (ino, self.fs.stat(ino).map_or(0, |s| s.generation));
        self.failures.tell(by.pid, self.fs.fsync(ino).map_err(errno), which)
    }

    fn fsyncdir(&self, node: u64) -> Result<()> {
        // The kernel passes no syncfs on; an fsync of the root stands in for it.
        let ino = self.ino(node);
        if ino == self.fs.root() { self.fs.sync() } else { self.fs.fsync(ino) }.map_err(errno)
    }

    fn setxattr(&self, node: u64, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let ino = self.ino(node);
        if let Some(default) = acl_kind(name) {
            let acl = Acl::from_kernel(value).map_err(|what| Error::Invalid { what });
            return acl.and_then(|a| self.fs.set_acl(ino, default, Some(&a))).map_err(errno);
        }
        let mode = match flags as i32 {
            libc::XATTR_CREATE => SetMode::Create,
            libc::XATTR_REPLACE => SetMode::Replace,
            _ => SetMode::Any,
        };
        self.fs.set_attr(ino, attr_name(name)?, value, mode).map_err(errno)
    }

    fn getxattr(&self, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        let ino = self.ino(node);
        match acl_kind(name) {
            Some(default) => self.fs.get_acl(ino, default).map(|a| a.to_kernel()),
            None => self.fs.get_attr(ino, attr_name(name)?),
        }
        .map_err(errno)
    }

    fn listxattr(&self, by: Caller, node: u64) -> Result<Vec<u8>> {
        let list = self.fs.list_attrs(self.ino(node)).map_err(errno)?;
        let names = || list.iter().map(|(namespace, name, _)| AttrName { namespace: *namespace, name });
        let acls = [false, true].into_iter().filter(|d| names().any(|n| n == acl_name(*d)));
        let acls = acls.map(|default| ACLS[usize::from(default)].to_vec());
        let all = acls.chain(names().filter_map(|n| n.full()));
        let shown = all.filter(|text| by.uid == 0 || !text.starts_with(b"trusted."));
        Ok(shown.flat_map(|text| text.into_iter().chain([0])).collect())
    }

    fn removexattr(&self, node: u64, name: &[u8]) -> Result<()> {
        let ino = self.ino(node);
        match acl_kind(name) {
            Some(default) => self.fs.set_acl(ino, default, None),
            None => self.fs.remove_attr(ino, attr_name(name)?),
        }
        .map_err(errno)
    }

    fn readdir(&self, dir: u64, from: u64, known: bool, into: &mut Listing<'_>) -> Result<()> {
        let listed = self.fs.readdir(self.ino(dir), from, &mut |e| {
            if !known {
                return into.add(self.numbers.node(e.ino.0), e.next, entry_kind(e.ftype), &e.name);
            }
            if !into.has_room(e.name.len()) {
                return false;
            }
            // What went since the directory was read is left out.
            let Ok(s) = self.fs.stat(e.ino.0) else { return true };
            let is_dot = e.name == b"." || e.name == b"..";
            if !is_dot && self.fs.hold(s.ino, s.generation).is_err() {
                return true;
            }
            into.add_known(&self.entry(&s), e.next, &e.name)
        });
        match listed {
            // The kernel gets what was read, asks for more, and is told then.
            Err(_) if !into.is_empty() => Ok(()),
            r => r.map_err(errno),
        }
    }

    fn ioctl(&self, by: Caller, file: File, call: u32, input: &[u8]) -> Result<Vec<u8>> {
        match crate::ioctl::is_for_open_file(call) {
            true => crate::ioctl::answer_open(self.open.get(file.handle).as_deref(), call, input),
            false => crate::ioctl::answer(&self.fs, self.ino(file.node), by.uid, call, input),
        }
    }

    fn fallocate(&self, by: Caller, file: File, mode: i32, offset: u64, len: u64) -> Result<()> {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocate::Reserve { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocate::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero { keep_size },
            libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Allocate::Collapse,
            libc::FALLOC_FL_INSERT_RANGE if !keep_size => Allocate::Insert,
            libc::FALLOC_FL_UNSHARE_RANGE => Allocate::Unshare,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let ino = self.ino(file.node);
        self.lend_less_changed(ino, by).and_then(|()| self.fs.fallocate(ino, what, offset, len)).map_err(errno)
    }

    fn lseek(&self, file: File, offset: u64, whence: i32) -> Result<u64> {
        // What is a hole here may be data in the kernel's cache, which it does not pass on first. It knows the size itself.
        if self.cache == CacheMode::Writeback {
            return Err(Errno::NOSYS);
        }
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        if i64::try_from(offset).is_err() {
            return Err(Errno::NXIO);
        }
        self.fs.seek(self.ino(file.node), offset, what).map_err(errno)?.ok_or(Errno::NXIO)
    }

    fn copy_file_range(&self, by: Caller, from: (File, u64), to: (File, u64), len: u64) -> Result<u64> {
        let (source, target) = (self.ino(from.0.node), self.ino(to.0.node));
        let ready = self.lend_less_changed(target, by);
        let copied = ready.and_then(|()| self.fs.copy_range((source, from.1), (target, to.1), len.min(MOST_COPIED)));
        copied.map_err(errno)
    }
}
