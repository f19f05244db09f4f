//! The requests.

use crate::CacheMode;
use crate::attributes::{entry_kind, file_attr, kind, split_dev, timestamp};
use crate::buffers::Buffers;
use crate::handles::Handles;
use crate::pool::Pool;
use crate::relay::Relay;
use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use uxfs::{Acl, Allocate, AttrName, Domain, Error, Fs, How, IoMode, Make, Rename, Seek, SetAttr, SetMode, Stat, acl_name};

/// How long the kernel may believe names and attributes: it changes them all itself.
const TTL: Duration = Duration::from_secs(3600);
/// Bytes of a request's data.
pub const MAX_WRITE: u32 = 1 << 20;
/// Requests that the kernel may have waiting in the background (read-ahead, write-back of mapped pages).
const BACKGROUND: u16 = 64;
/// Bytes that one request copies; whoever wants more asks again.
const MOST_COPIED: u64 = 256 << 20;
/// The root's node number in FUSE.
const ROOT: u64 = 1;

/// Serves one volume.
pub struct Front {
    fs: Arc<Fs>,
    root: u64,
    blksize: u32,
    cache: CacheMode,
    io_mode: IoMode,
    open: Handles,
    buffers: Buffers,
    /// Syncs that wait on threads of the session, and how many may.
    syncs: AtomicUsize,
    most_syncs: usize,
    waiting: Pool,
    relay: Arc<Relay>,
}

fn errno(e: &Error) -> Errno {
    Errno::from_i32(e.errno())
}

impl Front {
    /// Serves `fs`, whose data is cached there. So many syncs may wait on threads of the session.
    pub fn new(fs: Arc<Fs>, cache: CacheMode, io_mode: IoMode, most_syncs: usize, relay: Arc<Relay>) -> Front {
        let (root, blksize, open) = (fs.root(), fs.statfs().block_size, Handles::default());
        let (buffers, waiting) = (Buffers::new(MAX_WRITE as usize), Pool::default());
        let syncs = AtomicUsize::new(0);
        Front { root, blksize, fs, cache, io_mode, open, buffers, syncs, most_syncs, waiting, relay }
    }

    /// How a file that is being opened is read and written: as who opens it says, else as the file does, else as the mount does.
    fn mode_of(&self, ino: u64, flags: i32) -> IoMode {
        if flags & libc::O_DIRECT != 0 {
            return IoMode::Direct;
        }
        // Attributes that cannot be read are said so by whoever looks at them.
        self.fs.io_mode(ino).ok().flatten().unwrap_or(self.io_mode)
    }

    /// Opens a file whose data the kernel does not cache; others need no handle.
    fn handle(&self, ino: u64, flags: i32, req: &Request) -> Result<FileHandle, Error> {
        if !self.cache.is_ours() {
            return Ok(FileHandle(0));
        }
        let how = How { mode: self.mode_of(ino, flags), domain: Domain(req.uid()) };
        Ok(FileHandle(self.open.add(self.fs.open_file(ino, how)?)))
    }

    /// What the kernel is told of an open file. Of one whose data it does not cache it may send several writes at once.
    fn open_flags(&self) -> FopenFlags {
        match self.cache {
            CacheMode::None => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            CacheMode::Writethrough | CacheMode::Writeback => FopenFlags::FOPEN_KEEP_CACHE,
        }
    }

    fn ino(&self, node: INodeNo) -> u64 {
        if node.0 == ROOT { self.root } else { node.0 }
    }

    fn attr(&self, s: &Stat) -> FileAttr {
        file_attr(s, if s.ino == self.root { ROOT } else { s.ino }, self.blksize)
    }

    /// Finds a name and keeps the inode for the kernel.
    fn lookup_held(&self, dir: u64, name: &[u8]) -> Result<Stat, Error> {
        loop {
            let s = self.fs.lookup(dir, name)?;
            match self.fs.hold(s.ino, s.generation) {
                // It went between the two steps: look again.
                Err(Error::Stale) => {}
                r => return r.map(|()| s),
            }
        }
    }

    /// Something new, kept for the kernel.
    fn held(&self, made: Result<Stat, Error>) -> Result<Stat, Error> {
        made.and_then(|s| self.fs.hold(s.ino, s.generation).map(|()| s))
    }

    /// Answers with something new, which the kernel now knows.
    fn entry(&self, made: Result<Stat, Error>, reply: ReplyEntry) {
        match self.held(made) {
            Ok(s) => reply.entry(&TTL, &self.attr(&s), Generation(u64::from(s.generation))),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn make(req: &Request, mode: u32, umask: u32, rdev: u32) -> Make {
        Make { mode: mode as u16, uid: req.uid(), gid: req.gid(), rdev: split_dev(rdev), umask: umask as u16 & 0o777 }
    }

    /// Takes away the bits by which a file lends its owner's or its group's rights, since somebody changes what it holds or whose it is.
    /// The kernel, which holds the file meanwhile, leaves this to us.
    fn lend_no_rights(&self, ino: u64) -> Result<(), Error> {
        let s = self.fs.stat(ino)?;
        let by_group = if s.mode & 0o010 != 0 { 0o2000 } else { 0 };
        let lent = s.mode & (0o4000 | by_group);
        if kind(s.mode) == Some(FileType::Directory) || lent == 0 {
            return Ok(());
        }
        self.fs.setattr(ino, SetAttr { mode: Some(s.mode & 0o7777 & !lent), ..SetAttr::default() }).map(drop)
    }

    /// Before anybody changes a file's data otherwise than by a write: root may keep the bits.
    fn lend_less_changed(&self, ino: u64, req: &Request) -> Result<(), Error> {
        if req.uid() == 0 { Ok(()) } else { self.lend_no_rights(ino) }
    }

    /// Before a change of attributes.
    fn lend_less(&self, ino: u64, a: &SetAttr, req: &Request) -> Result<(), Error> {
        let nothing = a.atime.is_none() && a.mtime.is_none();
        match (a.mode, a.uid.or(a.gid), a.size) {
            (None, Some(_), _) => self.lend_no_rights(ino),
            (None, None, Some(_)) => self.lend_less_changed(ino, req),
            // A change of its owners to nobody by whoever may do that, or what the kernel sends before something that asks for itself.
            (None, None, None) if nothing && self.fs.stat(ino)?.uid == req.uid() => self.lend_less_changed(ino, req),
            _ => Ok(()),
        }
    }

    /// Before a write: takes away what it may not keep. Where the kernel caches, it takes the capabilities itself.
    fn lend_less_written(&self, ino: u64, flags: WriteFlags) -> Result<(), Error> {
        if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.lend_no_rights(ino)?;
        }
        if self.cache.is_ours() { self.fs.remove_capabilities(ino) } else { Ok(()) }
    }

    fn empty(r: Result<(), Error>, reply: ReplyEmpty) {
        match r {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Answers when a sync is done: here, while there are threads that stand in for this one, else in the pool.
    fn sync(&self, reply: ReplyEmpty, sync: impl FnOnce(&Fs) -> Result<(), Error> + Send + 'static) {
        if self.syncs.fetch_add(1, Ordering::Relaxed) < self.most_syncs {
            Self::empty(sync(&self.fs), reply);
        } else {
            let fs = self.fs.clone();
            self.waiting.run(Box::new(move || Self::empty(sync(&fs), reply)));
        }
        self.syncs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The kernel's names of access control lists: what an inode has, and what new entries of a directory inherit.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Whether a name is that of a default list, if it is that of a list at all.
fn acl_kind(name: &OsStr) -> Option<bool> {
    ACLS.iter().position(|a| *a == name.as_bytes()).map(|i| i == 1)
}

fn xattr_data(value: &[u8], size: u32, reply: ReplyXattr) {
    match size as usize {
        0 => reply.size(value.len() as u32),
        n if value.len() > n => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}

impl Filesystem for Front {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for f in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_HAS_IOCTL_DIR,
            // Else it asks before each write whether the file has capabilities.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            // An older kernel lacks some; it works without.
            let _ = config.add_capabilities(f);
        }
        match self.cache {
            // Files that are mapped are cached while they are; so much is allowed.
            CacheMode::None => drop(config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)),
            CacheMode::Writethrough => drop(config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT)),
            CacheMode::Writeback => {
                let _ = config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT);
                if config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_err() {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel has no write-back cache for FUSE"));
                }
            }
        }
        let _ = config.set_max_write(MAX_WRITE);
        if let Err(most) = config.set_max_readahead(MAX_WRITE) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.relay.begin();
        match self.lookup_held(self.ino(parent), name.as_bytes()) {
            Ok(s) => reply.entry(&TTL, &self.attr(&s), Generation(u64::from(s.generation))),
            // Node 0 says that there is none, and may be remembered like any other answer.
            Err(Error::NotFound) => match self.fs.stat(self.root) {
                Ok(s) => reply.entry(&TTL, &file_attr(&s, 0, self.blksize), Generation(0)),
                Err(e) => reply.error(errno(&e)),
            },
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        // Others may follow it in the same request.
        let _turn = self.relay.begin_part();
        // The inode stays on the unlinked list if this fails, and recovery frees it.
        let _ = self.fs.forget(self.ino(ino), nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _turn = self.relay.begin();
        match self.fs.stat(self.ino(ino)) {
            Ok(s) => reply.attr(&TTL, &self.attr(&s)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _turn = self.relay.begin();
        let time = |t: TimeOrNow| match t {
            TimeOrNow::SpecificTime(t) => timestamp(t),
            TimeOrNow::Now => self.fs.now(),
        };
        let change = SetAttr { mode: mode.map(|m| m as u16 & 0o7777), uid, gid, size, atime: atime.map(time), mtime: mtime.map(time) };
        let ino = self.ino(ino);
        match self.lend_less(ino, &change, req).and_then(|()| self.fs.setattr(ino, change)) {
            Ok(s) => reply.attr(&TTL, &self.attr(&s)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        call: u32,
        input: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let _turn = self.relay.begin();
        let answer = match crate::ioctl::is_for_open_file(call) {
            true => crate::ioctl::answer_open(self.open.get(fh.0).as_deref(), call, input),
            false => crate::ioctl::answer(&self.fs, self.ino(ino), req.uid(), call, input),
        };
        match answer {
            Ok(out) => reply.ioctl(0, &out),
            Err(e) => reply.error(e),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let _turn = self.relay.begin();
        match self.fs.readlink(self.ino(ino)) {
            Ok(t) => reply.data(&t),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let _turn = self.relay.begin();
        self.entry(self.fs.create(self.ino(parent), name.as_bytes(), Self::make(req, mode, umask, rdev)), reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _turn = self.relay.begin();
        let m = Self::make(req, mode & 0o7777 | 0o040_000, umask, 0);
        self.entry(self.fs.create(self.ino(parent), name.as_bytes(), m), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.relay.begin();
        Self::empty(self.fs.unlink(self.ino(parent), name.as_bytes()), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.relay.begin();
        Self::empty(self.fs.rmdir(self.ino(parent), name.as_bytes()), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _turn = self.relay.begin();
        let made = self.fs.symlink(self.ino(parent), link_name.as_bytes(), target.as_os_str().as_bytes(), req.uid(), req.gid());
        self.entry(made, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.relay.begin();
        let how = match flags {
            f if f.is_empty() => Rename::Replace,
            RenameFlags::RENAME_NOREPLACE => Rename::NoReplace,
            RenameFlags::RENAME_EXCHANGE => Rename::Exchange,
            f if f.difference(RenameFlags::RENAME_NOREPLACE) == RenameFlags::RENAME_WHITEOUT => {
                Rename::Whiteout { uid: req.uid(), gid: req.gid(), replace: f == RenameFlags::RENAME_WHITEOUT }
            }
            _ => return reply.error(Errno::EINVAL),
        };
        let r = self.fs.rename(self.ino(parent), name.as_bytes(), self.ino(newparent), newname.as_bytes(), how);
        Self::empty(r, reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _turn = self.relay.begin();
        self.entry(self.fs.link(self.ino(ino), self.ino(newparent), newname.as_bytes()), reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.relay.begin();
        // Where the kernel caches, an open file needs nothing here: its hold on the inode keeps it. That it need not ask is remembered.
        if !self.cache.is_ours() {
            return reply.error(Errno::ENOSYS);
        }
        match self.handle(self.ino(ino), flags.0, req) {
            Ok(h) => reply.opened(h, self.open_flags()),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.relay.begin();
        self.open.remove(fh.0);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.relay.begin();
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _turn = self.relay.begin();
        self.buffers.with(size as usize, |buf| {
            let read = match self.open.get(fh.0) {
                Some(f) => f.read(offset, buf),
                None => self.fs.read(self.ino(ino), offset, buf),
            };
            match read {
                Ok(n) => reply.data(&buf[..n]),
                Err(e) => reply.error(errno(&e)),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _turn = self.relay.begin();
        let ino = self.ino(ino);
        // For O_APPEND the kernel holds the file and gives the end as the offset.
        let written = self.lend_less_written(ino, write_flags).and_then(|()| match self.open.get(fh.0) {
            Some(f) => f.write(offset, data),
            None => self.fs.write_with(ino, offset, data, false, How { mode: IoMode::Buffered, domain: Domain(req.uid()) }),
        });
        match written {
            // What the kernel writes back from its cache it cannot write in part.
            Ok(n) if n < data.len() && write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) => reply.error(Errno::ENOSPC),
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        let _turn = self.relay.begin();
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _turn = self.relay.begin();
        let (file, ino) = (self.open.get(fh.0), self.ino(ino));
        self.sync(reply, move |fs| file.map_or_else(|| fs.fsync(ino), |f| f.fsync()));
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let _turn = self.relay.begin();
        // The kernel passes no syncfs on; an fsync of the root stands in for it.
        let (whole, ino) = (ino.0 == ROOT, self.ino(ino));
        self.sync(reply, move |fs| if whole { fs.sync() } else { fs.fsync(ino) });
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _turn = self.relay.begin();
        let r = self.fs.readdir(self.ino(ino), offset, &mut |e| {
            let node = if e.ino.0 == self.root { ROOT } else { e.ino.0 };
            !reply.add(INodeNo(node), e.next, entry_kind(e.ftype), OsStr::from_bytes(&e.name))
        });
        match r {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let _turn = self.relay.begin();
        let dir = self.ino(ino);
        let r = self.fs.readdir(dir, offset, &mut |e| {
            let name = OsStr::from_bytes(&e.name);
            if e.name == b"." || e.name == b".." {
                return match self.fs.stat(e.ino.0) {
                    Ok(s) => !reply.add(INodeNo(self.attr(&s).ino.0), e.next, name, &TTL, &self.attr(&s), Generation(0)),
                    Err(_) => true,
                };
            }
            // What went since the directory was read is left out.
            let Ok(s) = self.fs.stat(e.ino.0) else { return true };
            if self.fs.hold(s.ino, s.generation).is_err() {
                return true;
            }
            let a = self.attr(&s);
            if reply.add(a.ino, e.next, name, &TTL, &a, Generation(u64::from(s.generation))) {
                let _ = self.fs.forget(s.ino, 1);
                return false;
            }
            true
        });
        match r {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let _turn = self.relay.begin();
        let s = self.fs.statfs();
        reply.statfs(s.blocks, s.free, s.free, s.files, s.files_free, s.block_size, 255, s.block_size);
    }

    fn setxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        let _turn = self.relay.begin();
        if let Some(default) = acl_kind(name) {
            let r = Acl::from_kernel(value).map_err(|what| Error::Invalid { what });
            return Self::empty(r.and_then(|a| self.fs.set_acl(self.ino(ino), default, Some(&a))), reply);
        }
        let Some(n) = AttrName::parse(name.as_bytes()) else { return reply.error(Errno::EOPNOTSUPP) };
        let mode = match flags {
            libc::XATTR_CREATE => SetMode::Create,
            libc::XATTR_REPLACE => SetMode::Replace,
            _ => SetMode::Any,
        };
        Self::empty(self.fs.set_attr(self.ino(ino), n, value, mode), reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _turn = self.relay.begin();
        let value = match (acl_kind(name), AttrName::parse(name.as_bytes())) {
            (Some(default), _) => self.fs.get_acl(self.ino(ino), default).map(|a| a.to_kernel()),
            (None, Some(n)) => self.fs.get_attr(self.ino(ino), n),
            (None, None) => return reply.error(Errno::EOPNOTSUPP),
        };
        match value {
            Ok(v) => xattr_data(&v, size, reply),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.relay.begin();
        match self.fs.list_attrs(self.ino(ino)) {
            Ok(list) => {
                let mut out = Vec::new();
                let names = || list.iter().map(|(namespace, name, _)| AttrName { namespace: *namespace, name });
                let acls = [false, true].into_iter().filter(|d| names().any(|n| n == acl_name(*d)));
                let acls = acls.map(|default| ACLS[usize::from(default)].to_vec());
                let others = names().filter_map(|n| n.full());
                for text in acls.chain(others) {
                    if req.uid() == 0 || !text.starts_with(b"trusted.") {
                        out.extend_from_slice(&text);
                        out.push(0);
                    }
                }
                xattr_data(&out, size, reply);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.relay.begin();
        if let Some(default) = acl_kind(name) {
            return Self::empty(self.fs.set_acl(self.ino(ino), default, None), reply);
        }
        let Some(n) = AttrName::parse(name.as_bytes()) else { return reply.error(Errno::EOPNOTSUPP) };
        Self::empty(self.fs.remove_attr(self.ino(ino), n), reply);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        let _turn = self.relay.begin();
        reply.error(Errno::ENOSYS);
    }

    fn create(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        let _turn = self.relay.begin();
        let m = Self::make(req, mode & 0o7777 | 0o100_000, umask, 0);
        let made = self.fs.create(self.ino(parent), name.as_bytes(), m);
        let opened = self.held(made).and_then(|s| match self.handle(s.ino, flags, req) {
            Ok(h) => Ok((s, h)),
            // The kernel knows of nothing then.
            Err(e) => self.fs.forget(s.ino, 1).and(Err(e)),
        });
        match opened {
            Ok((s, h)) => reply.created(&TTL, &self.attr(&s), Generation(u64::from(s.generation)), h, self.open_flags()),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn fallocate(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let _turn = self.relay.begin();
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocate::Reserve { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocate::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero { keep_size },
            libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Allocate::Collapse,
            libc::FALLOC_FL_INSERT_RANGE if !keep_size => Allocate::Insert,
            libc::FALLOC_FL_UNSHARE_RANGE => Allocate::Unshare,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let ino = self.ino(ino);
        Self::empty(self.lend_less_changed(ino, req).and_then(|()| self.fs.fallocate(ino, what, offset, length)), reply);
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let _turn = self.relay.begin();
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(from) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        match self.fs.seek(self.ino(ino), from, what) {
            Ok(Some(at)) => reply.offset(at as i64),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _turn = self.relay.begin();
        let (from, to) = (self.ino(ino_in), self.ino(ino_out));
        let ready = self.lend_less_changed(to, req);
        match ready.and_then(|()| self.fs.copy_range((from, offset_in), (to, offset_out), len.min(MOST_COPIED))) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }
}
