//! Devices as files: what somebody does to a file here reaches a [`Device`], its flushes included.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, SessionUnmounter,
    WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};
use uxfs_device::DeviceRef;

const TTL: Duration = Duration::from_secs(3600);
/// Inode number of the first device; the root has 1.
const FIRST: u64 = 2;

/// File `n` is device `n`.
struct Files(Vec<DeviceRef>);

impl Files {
    fn attr(&self, ino: u64) -> Option<FileAttr> {
        let dev = ino.checked_sub(FIRST).map(|n| self.0.get(n as usize));
        if ino != 1 && !matches!(dev, Some(Some(_))) {
            return None;
        }
        let size = dev.flatten().map_or(0, |d| d.size_bytes());
        let t = UNIX_EPOCH;
        let kind = if ino == 1 { FileType::Directory } else { FileType::RegularFile };
        let base = FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size / 512,
            atime: t,
            mtime: t,
            ctime: t,
            crtime: t,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        Some(base)
    }

    fn device(&self, ino: INodeNo) -> Result<&DeviceRef, Errno> {
        ino.0.checked_sub(FIRST).and_then(|n| self.0.get(n as usize)).ok_or(Errno::ENOENT)
    }
}

fn errno(e: &io::Error) -> Errno {
    Errno::from_i32(e.raw_os_error().unwrap_or(libc::EIO))
}

impl Filesystem for Files {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_READ | InitFlags::FUSE_BIG_WRITES);
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let n = name.to_str().and_then(|n| n.parse::<u64>().ok());
        match n.and_then(|n| self.attr(FIRST + n)) {
            Some(a) => reply.entry(&TTL, &a, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino.0) {
            Some(a) => reply.attr(&TTL, &a),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.device(ino).and_then(|d| {
            let mut b = vec![0; (size as usize).min(d.size_bytes().saturating_sub(offset) as usize)];
            d.read(offset, &mut b).map_err(|e| errno(&e))?;
            Ok(b)
        });
        match read {
            Ok(b) => reply.data(&b),
            Err(e) => reply.error(e),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.device(ino).and_then(|d| d.write(offset, data, uxfs_device::WriteFlags::default()).map_err(|e| errno(&e))) {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        match self.device(ino).and_then(|d| d.flush().map_err(|e| errno(&e))) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }
}

/// Devices that are served as long as this lives.
pub(super) struct Served {
    dir: PathBuf,
    unmounter: SessionUnmounter,
    session: Option<JoinHandle<io::Result<()>>>,
}

impl Served {
    /// Serves devices as files `0`, `1` and so on in `dir`, which is there.
    pub(super) fn start(devices: Vec<DeviceRef>, dir: &Path) -> io::Result<Served> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("uxfs-sim".into())];
        config.n_threads = Some(4);
        config.clone_fd = true;
        let mut session = Session::new(Files(devices), dir, &config)?;
        let unmounter = session.unmount_callable();
        let session = std::thread::Builder::new().name("uxfs-sim-served".into()).spawn(move || session.run())?;
        Ok(Served { dir: dir.into(), unmounter, session: Some(session) })
    }

    pub(super) fn file(&self, n: usize) -> PathBuf {
        self.dir.join(n.to_string())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The loop device may go a moment after the mount did.
        for _ in 0..100 {
            if self.unmounter.unmount().is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if let Some(s) = self.session.take() {
            let _ = s.join();
        }
    }
}
