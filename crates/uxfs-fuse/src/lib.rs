//! FUSE to [`Fs`]: one request, one call, on the thread that received it.
//!
//! The kernel module caches names, attributes and data; the volume has one writer, so what it caches holds until it changes
//! it itself. It checks permissions, too (`default_permissions`). Nothing about the disk is decided here.
//!
//! Whoever waits in the engine is stood in for by another thread (`relay`). When half of them wait for fsyncs, more of these go to a pool, so
//! that any number of them wait together without stalling other requests.

mod attributes;
mod buffers;
mod front;
mod handles;
mod ioctl;
mod pool;
mod relay;

use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use relay::Relay;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use uxfs::{Fs, IoMode};

/// Threads of a mount, at least, so that so many requests can wait for the device at once.
const THREADS: usize = 16;
/// How long a thread that is not needed stays away from the session, which may end meanwhile.
const REST: Duration = Duration::from_millis(500);

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
#[derive(Clone, Debug)]
pub struct Options {
    /// No changes through the mount.
    pub read_only: bool,
    /// Other users may use it.
    pub allow_other: bool,
    /// root may use it.
    pub allow_root: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// What `mount` and `df` show as the source.
    pub fsname: String,
    /// Where file data is cached.
    pub cache: CacheMode,
    /// How files are read and written that do not say so themselves, where the engine caches.
    pub io_mode: IoMode,
    /// Threads that answer requests; 0 for enough. About as many as there are CPUs do so at once, and others while those wait.
    pub threads: usize,
    /// Device files work.
    pub dev: bool,
    /// Set-user-ID bits work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            allow_other: false,
            allow_root: false,
            default_permissions: true,
            fsname: "uxfs".into(),
            cache: CacheMode::default(),
            io_mode: IoMode::default(),
            threads: 0,
            dev: false,
            suid: false,
            exec: true,
        }
    }
}

/// A mounted volume. Dropping it leaves the mount to its users.
pub struct Mounted {
    session: JoinHandle<io::Result<()>>,
    unmounter: Unmounter,
}

/// Takes the mount away from any thread.
pub struct Unmounter(SessionUnmounter);

impl Unmounter {
    /// Tries to unmount, once: the session below forgets its mount also if that fails.
    ///
    /// # Errors
    /// It is busy, or not permitted; `umount -l` still works.
    pub fn unmount(mut self) -> io::Result<()> {
        self.0.unmount()
    }
}

/// Mounts `fs` on the directory `dir`; requests are served from when this returns.
///
/// # Errors
/// The kernel or fusermount3 refused.
pub fn mount(fs: Arc<Fs>, dir: &Path, o: &Options) -> io::Result<Mounted> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(o.fsname.clone()),
        // As an option of the kernel: fuser's own option reaches only fusermount3.
        MountOption::CUSTOM("subtype=uxfs".into()),
        if o.read_only { MountOption::RO } else { MountOption::RW },
        if o.dev { MountOption::Dev } else { MountOption::NoDev },
        if o.suid { MountOption::Suid } else { MountOption::NoSuid },
        if o.exec { MountOption::Exec } else { MountOption::NoExec },
    ];
    if o.default_permissions {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    config.acl = match (o.allow_other, o.allow_root) {
        (true, _) => SessionACL::All,
        (false, true) => SessionACL::RootAndOwner,
        _ => SessionACL::Owner,
    };
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if o.threads > 0 { o.threads } else { THREADS.max(2 * cpus) };
    config.n_threads = Some(threads);
    // A descriptor a thread spares them a common queue; where /dev/fuse cannot be opened again, they share one.
    config.clone_fd = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !config.clone_fd && std::fs::metadata("/dev/fuse").is_ok() {
        // fusermount3 opens it as the user, too.
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "/dev/fuse is closed to this user; as root: chmod 666 /dev/fuse"));
    }
    let mut session = Session::new(front::Front::new(fs, o.cache, o.io_mode, threads / 2, Relay::new(threads, cpus, REST)), dir, &config)?;
    let unmounter = Unmounter(session.unmount_callable());
    let session = std::thread::Builder::new().name("uxfs-fuse".into()).spawn(move || session.run())?;
    // Only root may; it works without.
    let _ = read_far_ahead(dir);
    Ok(Mounted { session, unmounter })
}

/// Lets the kernel ask for as much at once as a request holds, where somebody reads a file from front to back: its own limit is
/// 128 KiB.
fn read_far_ahead(dir: &Path) -> io::Result<()> {
    let device = std::fs::metadata(dir)?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), (front::MAX_WRITE >> 10).to_string())
}

impl Mounted {
    /// The mount's end, and what ends it.
    pub fn into_parts(self) -> (JoinHandle<io::Result<()>>, Unmounter) {
        (self.session, self.unmounter)
    }
}
