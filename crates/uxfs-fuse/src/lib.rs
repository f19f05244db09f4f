//! FUSE to [`Fs`]: one request, one call, on the thread that received it.
//!
//! The kernel module caches names, attributes and data; the volume has one writer, so what it caches holds until it changes
//! it itself. It checks permissions, too (`default_permissions`). Nothing about the disk is decided here.

mod attributes;
mod failures;
mod front;
mod handles;
mod ioctl;

use std::io;
use std::path::Path;
use std::sync::Arc;
use uxfs::{Fs, IoMode};
use uxfs_transport::abi::init;
pub use uxfs_transport::{Guests, Mounted, Unmounter, unmount};

/// Where file data is cached, once. The volume is opened to match: see [`CacheMode::is_ours`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// By the engine: each read and write is one request or several of up to 1 MiB, each of them atomic to others.
    None,
    /// By the kernel, which passes each write on before it returns.
    #[default]
    Writethrough,
    /// By the kernel, which writes back when it likes, or is told to.
    Writeback,
}

uxfs_sync::named!(CacheMode { None = "none", Writethrough = "writethrough", Writeback = "writeback" });

impl CacheMode {
    /// True if the engine's own cache is the only one.
    pub fn is_ours(self) -> bool {
        self == CacheMode::None
    }
}

/// How a volume is mounted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How the kernel treats the mount.
    pub mount: uxfs_transport::Options,
    /// Where file data is cached.
    pub cache: CacheMode,
    /// How files are read and written that do not say so themselves, where the engine caches.
    pub io_mode: IoMode,
}

/// Mounts `fs` on the directory `dir`; requests are served from when this returns.
///
/// # Errors
/// The kernel or fusermount3 refused.
pub fn mount(fs: Arc<Fs>, dir: &Path, o: &Options) -> io::Result<Mounted> {
    uxfs_transport::mount(Arc::new(front::Front::new(fs, o.cache, o.io_mode)), dir, &o.mount)
}

/// What programs on a mount have to do without, as the kernel is too old for it.
pub fn is_missing(m: &Mounted, cache: CacheMode) -> Option<&'static str> {
    let maps = cache != CacheMode::None || m.agreed() & init::DIRECT_IO_ALLOW_MMAP != 0;
    (!maps).then_some("with cache=none this kernel maps no file for changes (Linux 6.6 and later do)")
}
