//! A file system that keeps nothing: what it reaches is what the transport can do.

use anyhow::Result;
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session,
    TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TTL: Duration = Duration::from_secs(3600);

/// The bit by which numbers of directories are known.
const DIRECTORY: u64 = 1 << 40;

/// What every file holds, as much of it as anybody asks for at once.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// Whatever is asked for is made anew; nothing is found.
struct Null {
    next: AtomicU64,
    /// The kernel keeps what is written until it likes to pass it on.
    writeback: bool,
}

fn attr(ino: u64, kind: FileType, perm: u16) -> FileAttr {
    let t = UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: t,
        mtime: t,
        ctime: t,
        crtime: t,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Null {
    fn made(&self, kind: FileType) -> FileAttr {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        attr(if kind == FileType::Directory { n | DIRECTORY } else { n }, kind, 0o755)
    }
}

impl Filesystem for Null {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for f in [InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_NO_OPEN_SUPPORT, InitFlags::FUSE_NO_OPENDIR_SUPPORT] {
            let _ = config.add_capabilities(f);
        }
        if self.writeback {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.entry(&TTL, &attr(0, FileType::RegularFile, 0), Generation(0));
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let kind = if ino.0 == 1 || ino.0 & DIRECTORY != 0 { FileType::Directory } else { FileType::RegularFile };
        reply.attr(&TTL, &attr(ino.0, kind, 0o755));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &attr(ino.0, FileType::RegularFile, 0o755));
    }

    fn mkdir(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.entry(&TTL, &self.made(FileType::Directory), Generation(0));
    }

    fn create(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, _flags: i32, reply: ReplyCreate) {
        reply.created(&TTL, &self.made(FileType::RegularFile), Generation(0), FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        reply.data(&ZEROS[..size as usize]);
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// Serves until it is unmounted.
///
/// # Errors
/// The mount failed.
pub fn serve(dir: &Path, writeback: bool) -> Result<()> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("null".into()), MountOption::DefaultPermissions];
    // As many as a mount of ours has.
    config.n_threads = Some(std::thread::available_parallelism().map_or(1, |n| n.get()).max(8) * 2);
    config.clone_fd = true;
    Session::new(Null { next: AtomicU64::new(2), writeback }, dir, &config)?.run()?;
    Ok(())
}
