//! The kernel's FUSE: a directory is mounted on, and what is asked there reaches whoever serves it ([`Serve`]).
//!
//! Requests run to their end on the thread that received them. Whoever waits is stood in for by another thread (`relay`). When half of
//! the threads wait for fsyncs, more of these go to a pool, so that any number of them wait together without stalling other requests.
//!
//! A crate of ours, since none that is published answers O_TMPFILE and statx, reads data to where a device can take it, or speaks
//! over io_uring.

pub mod abi;
mod attach;
mod buffers;
mod classic;
mod pool;
mod relay;
mod request;
mod ring;
mod serve;
mod session;

pub use attach::{Guests, Options, unmount};
pub use ring::{Offer, offer_io_uring};
pub use rustix::io::Errno;
pub use serve::{Attr, Caller, Change, Data, Entry, File, Listing, New, Opened, Result, Serve, Statfs, Time, When};

use relay::Relay;
use request::{Request, agree};
use session::Session;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Bytes of data in a request, at most.
pub const MAX_WRITE: usize = 1 << 20;
/// Requests that the kernel may have waiting in the background (read-ahead, write-back of mapped pages).
const BACKGROUND: u16 = 64;
/// Threads of a mount, at least, so that so many requests can wait for the device at once.
const THREADS: usize = 16;
/// How long a thread that is not needed stays away from the session, which may end meanwhile.
const REST: Duration = Duration::from_millis(500);

/// A mount. Dropping it leaves the mount to its users.
pub struct Mounted {
    session: JoinHandle<io::Result<()>>,
    unmounter: Unmounter,
    agreed: u64,
}

impl Mounted {
    /// What the kernel and the server agreed on, of [`abi::init`].
    pub fn agreed(&self) -> u64 {
        self.agreed
    }

    /// The mount's end, and what ends it.
    pub fn into_parts(self) -> (JoinHandle<io::Result<()>>, Unmounter) {
        (self.session, self.unmounter)
    }
}

/// Takes the mount away from any thread.
pub struct Unmounter {
    fd: Arc<OwnedFd>,
    dir: PathBuf,
}

impl Unmounter {
    /// Unmounts, if it is mounted still.
    ///
    /// # Errors
    /// It is busy, or not permitted.
    pub fn unmount(&self) -> io::Result<()> {
        // Else somebody else's mount may be there by now.
        if attach::is_mounted(self.fd.as_fd()) { unmount(&self.dir, false) } else { Ok(()) }
    }
}

/// Agrees with the kernel on what is spoken; returns that.
fn shake_hands(serve: &dyn Serve, fd: &OwnedFd, io_uring: bool) -> io::Result<u64> {
    let gone = || io::Error::new(io::ErrorKind::NotConnected, "the mount went before it was used");
    let mut buf = classic::room();
    loop {
        let len = classic::receive(fd, &mut buf)?.ok_or_else(gone)?;
        let r = Request::parse(buf.first(len))?;
        let mut out = [0; classic::BEFORE_ANSWER + size_of::<abi::InitOut>()];
        let mut send = |result, body: &abi::InitOut| {
            out[classic::BEFORE_ANSWER..].copy_from_slice(body.as_bytes());
            classic::send(fd, r.header.unique, result, &mut out);
        };
        if r.header.opcode != abi::opcode::INIT {
            send(Err(Errno::IO), &abi::InitOut::default());
            continue;
        }
        match agree(&r, serve, io_uring) {
            Ok((answer, flags)) => {
                send(Ok(()), &answer);
                // Without flags it asks again.
                if flags != 0 {
                    return Ok(flags);
                }
            }
            Err(e) => {
                send(Err(Errno::PROTO), &abi::InitOut::default());
                return Err(e);
            }
        }
    }
}

/// Mounts on the directory `dir`; requests are served from when this returns.
///
/// # Errors
/// The kernel or fusermount3 refused.
pub fn mount(serve: Arc<dyn Serve>, dir: &Path, o: &Options) -> io::Result<Mounted> {
    let dir = dir.canonicalize()?;
    let fd = Arc::new(attach::mount(&dir, o)?);
    let unmounter = Unmounter { fd: fd.clone(), dir };
    let started = shake_hands(&*serve, &fd, o.io_uring).and_then(|agreed| Ok((agreed, start(serve, &unmounter, o)?)));
    let (agreed, session) = started.inspect_err(|_| _ = unmount(&unmounter.dir, true))?;
    // Only root may; it works without.
    let _ = read_far_ahead(&unmounter.dir);
    Ok(Mounted { session, unmounter, agreed })
}

/// Starts the threads; the handle is of one that waits until all have ended, or one has failed.
fn start(serve: Arc<dyn Serve>, Unmounter { fd, dir }: &Unmounter, o: &Options) -> io::Result<JoinHandle<io::Result<()>>> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if o.threads > 0 { o.threads } else { THREADS.max(2 * cpus) };
    let session = Arc::new(Session::new(serve, o.guests, threads, Relay::new(threads, cpus, REST)));
    let (ended, ends) = mpsc::channel();
    let start: Arc<ring::Start> = Arc::new(move |name, work| {
        let ended = ended.clone();
        let run = move || {
            let panicked = |_| Err(io::Error::other("a thread that serves the mount panicked"));
            let _ = ended.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(panicked));
        };
        std::thread::Builder::new().name(name).spawn(run).map(drop)
    });
    for n in 0..threads {
        let (session, fd) = (session.clone(), if n == 0 { fd.clone() } else { classic::another(fd) });
        start(format!("uxfs-fuse-{n}"), Box::new(move || classic::serve(&session, &fd)))?;
    }
    if o.io_uring {
        (0..ring::queues()?).try_for_each(|n| ring::Queue::open(&session, fd, n, dir, &start))?;
    }
    drop(start);
    std::thread::Builder::new().name("uxfs-fuse".into()).spawn(move || ends.into_iter().collect())
}

/// Lets the kernel ask for as much at once as a request holds, where somebody reads a file from front to back: its own limit is
/// 128 KiB.
fn read_far_ahead(dir: &Path) -> io::Result<()> {
    let device = std::fs::metadata(dir)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), (MAX_WRITE >> 10).to_string())
}
