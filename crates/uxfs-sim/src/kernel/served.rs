//! Devices as files: what somebody does to a file here reaches a [`Device`](uxfs_device::Device), its flushes included.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use uxfs_device::DeviceRef;
use uxfs_transport::abi::{init, open};
use uxfs_transport::{Attr, Caller, Data, Entry, Errno, File, Opened, Options, Result, Serve, Unmounter, mount};

/// Node of the first device; the root has 1.
const FIRST: u64 = 2;
/// Threads: a loop device sends several requests at once.
const THREADS: usize = 4;

/// File `n` is device `n`.
struct Files(Vec<DeviceRef>);

impl Files {
    fn device(&self, node: u64) -> Result<&DeviceRef> {
        node.checked_sub(FIRST).and_then(|n| self.0.get(n as usize)).ok_or(Errno::NOENT)
    }
}

fn errno(e: io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::IO)
}

impl Serve for Files {
    fn wants(&self, _: u64) -> io::Result<u64> {
        Ok(init::NO_OPENDIR_SUPPORT)
    }

    fn lookup(&self, _: u64, name: &[u8]) -> Result<Option<Entry>> {
        let n = std::str::from_utf8(name).ok().and_then(|n| n.parse::<u64>().ok()).ok_or(Errno::NOENT)?;
        Ok(Some(Entry { attr: self.getattr(FIRST.saturating_add(n))?, generation: 0 }))
    }

    fn getattr(&self, node: u64) -> Result<Attr> {
        let base = Attr { node, nlink: 1, blksize: 4096, ..Attr::default() };
        if node == 1 {
            return Ok(Attr { mode: 0o040_700, ..base });
        }
        let size = self.device(node)?.size_bytes();
        Ok(Attr { mode: 0o100_700, size, blocks: size / 512, ..base })
    }

    fn open(&self, _: Caller, _: u64, _: i32) -> Result<Opened> {
        Ok(Opened { handle: 0, flags: open::KEEP_CACHE })
    }

    fn read(&self, file: File, offset: u64, into: &mut [u8]) -> Result<usize> {
        let d = self.device(file.node)?;
        let len = into.len().min(d.size_bytes().saturating_sub(offset) as usize);
        d.read(offset, &mut into[..len]).map_err(errno)?;
        Ok(len)
    }

    fn write(&self, _: Caller, file: File, offset: u64, data: Data<'_>, _: u32) -> Result<usize> {
        self.device(file.node)?.write(offset, &data, uxfs_device::WriteFlags::default()).map_err(errno)?;
        Ok(data.len())
    }

    fn fsync(&self, _: Caller, file: File) -> Result<()> {
        self.device(file.node)?.flush().map_err(errno)
    }
}

/// Devices that are served as long as this lives.
pub(super) struct Served {
    dir: PathBuf,
    unmounter: Unmounter,
    session: Option<JoinHandle<io::Result<()>>>,
}

impl Served {
    /// Serves devices as files `0`, `1` and so on in `dir`, which is there.
    pub(super) fn start(devices: Vec<DeviceRef>, dir: &Path) -> io::Result<Served> {
        let o = Options { fsname: "uxfs-sim".into(), subtype: "uxfs-sim".into(), threads: THREADS, ..Options::default() };
        let (session, unmounter) = mount(Arc::new(Files(devices)), dir, &o)?.into_parts();
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
