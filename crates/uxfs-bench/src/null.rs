//! A file system that keeps nothing: what it reaches is what the transport can do.

use anyhow::{Result, bail};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs_transport::abi::{init, open};
use uxfs_transport::{Attr, Caller, Change, Data, Entry, File, New, Opened, Options, Result as Answer, Serve, mount};

/// The bit by which numbers of directories are known.
const DIRECTORY: u64 = 1 << 40;

/// Whatever is asked for is made anew; nothing is found.
struct Null {
    next: AtomicU64,
    /// The kernel keeps what is written until it likes to pass it on.
    writeback: bool,
}

fn attr(node: u64) -> Attr {
    let kind = if node == 1 || node & DIRECTORY != 0 { 0o040_000 } else { 0o100_000 };
    Attr { node, mode: kind | 0o755, nlink: 1, blksize: 4096, ..Attr::default() }
}

impl Serve for Null {
    fn wants(&self, _: u64) -> std::io::Result<u64> {
        let writeback = if self.writeback { init::WRITEBACK_CACHE } else { 0 };
        Ok(init::PARALLEL_DIROPS | init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT | writeback)
    }

    fn lookup(&self, _: u64, _: &[u8]) -> Answer<Option<Entry>> {
        Ok(None)
    }

    fn getattr(&self, node: u64) -> Answer<Attr> {
        Ok(attr(node))
    }

    fn setattr(&self, _: Caller, node: u64, _: Change) -> Answer<Attr> {
        Ok(attr(node))
    }

    fn make(&self, _: u64, _: &[u8], new: New) -> Answer<Entry> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let node = if new.mode & 0o170_000 == 0o040_000 { n | DIRECTORY } else { n };
        Ok(Entry { attr: attr(node), generation: 0 })
    }

    fn create(&self, dir: u64, name: &[u8], new: New, _: i32) -> Answer<(Entry, Opened)> {
        Ok((self.make(dir, name, new)?, Opened { handle: 0, flags: open::KEEP_CACHE }))
    }

    fn fsync(&self, _: Caller, _: File) -> Answer<()> {
        Ok(())
    }

    fn write(&self, _: Caller, _: File, _: u64, data: Data<'_>, _: u32) -> Answer<usize> {
        Ok(data.len())
    }

    fn read(&self, _: File, _: u64, into: &mut [u8]) -> Answer<usize> {
        // Whatever is there: a file system that reads takes no part in what a transport costs.
        Ok(into.len())
    }

    fn unlink(&self, _: u64, _: &[u8]) -> Answer<()> {
        Ok(())
    }
}

/// Serves until it is unmounted.
///
/// # Errors
/// The mount failed.
pub fn serve(dir: &Path, writeback: bool, io_uring: bool) -> Result<()> {
    let o = Options { fsname: "null".into(), subtype: "null".into(), io_uring, ..Options::default() };
    let (session, _) = mount(Arc::new(Null { next: AtomicU64::new(2), writeback }), dir, &o)?.into_parts();
    match session.join() {
        Ok(ended) => Ok(ended?),
        Err(_) => bail!("the thread that waits for the null file system's end panicked"),
    }
}
