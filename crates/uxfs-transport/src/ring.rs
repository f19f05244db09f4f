//! Requests over io_uring: each is one system call, which takes the last answer along, on the CPU of whoever asks.
//!
//! The kernel has a queue a CPU, to which threads offer *rooms*: memory where a request is put and its answer taken from. Each thread here
//! has one room, and a ring of its own on which it waits for it to be filled. The kernel fills the room that was offered last, whose
//! thread is the warmest.
//!
//! 1. A queue always has a room that is free, or will have soon: who takes the last one starts another thread, up to [`MOST`]. So whoever
//!    waits in the engine stalls nobody. A request that came before the new room was offered lies in the kernel until somebody's answer
//!    makes it look there (seen with Linux 6.18); so something is asked for then that needs no waiting.
//! 2. Pieces of streams, which the kernel reads ahead or writes back many at a time, are answered on other CPUs: that of the queue has
//!    whoever reads or writes the stream. So a thread goes elsewhere with the first such piece, and comes back with another request.
//! 3. A room is the kernel's from when it is offered until the ring says that it is filled, and this thread's from then on.
//!
//! What is told and not asked (FORGET) still comes by /dev/fuse.

#![expect(unsafe_code, reason = "the kernel is given memory")]

use crate::MAX_WRITE;
use crate::abi::{InHeader, OutHeader, RingCommand, RingHeaders, ring};
use crate::buffers::Aligned;
use crate::request::{Body, Request, SMALL};
use crate::session::Session;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use zerocopy::{FromBytes, IntoBytes};

/// Threads of a queue, at most: so many requests of one CPU may wait at once.
const MOST: usize = 64;

/// Room for one request, and the ring by which it is offered.
struct Room {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    fd: Arc<OwnedFd>,
    queue: u16,
    // After the ring: that is gone before them.
    headers: Box<RingHeaders>,
    payload: Aligned,
    /// A request came before it was waited for.
    is_full: bool,
}

impl Room {
    /// Offers room to a queue for the first time.
    fn offer(fd: Arc<OwnedFd>, queue: u16) -> io::Result<Room> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2)?;
        let mut room = Room { ring, fd, queue, headers: Box::default(), payload: Aligned::new(0, MAX_WRITE), is_full: false };
        let payload = room.payload.first(MAX_WRITE);
        let parts = [
            (std::ptr::from_mut(&mut *room.headers) as u64, size_of::<RingHeaders>() as u64),
            (payload.as_mut_ptr() as u64, payload.len() as u64),
        ];
        room.push(ring::REGISTER, 0, parts.as_ptr() as u64, parts.len() as u32)?;
        room.ring.submit()?;
        let done = room.ring.completion().next().map(|c| c.result());
        match done {
            Some(e) if e < 0 => Err(io::Error::from_raw_os_error(-e)),
            _ => Ok(Room { is_full: done.is_some(), ..room }),
        }
    }

    fn push(&mut self, command: u32, commit_id: u64, addr: u64, len: u32) -> io::Result<()> {
        let mut said = [0; 80];
        let c = RingCommand { commit_id, queue: self.queue, ..Default::default() };
        said[..size_of::<RingCommand>()].copy_from_slice(c.as_bytes());
        let mut e = opcode::UringCmd80::new(types::Fd(self.fd.as_raw_fd()), command).cmd(said).addr(Some(addr)).build();
        /// Where an entry has its length.
        const LEN: usize = 24;
        // SAFETY: an entry is 128 bytes of plain numbers, in the kernel's order, and its length a number of 32 bits.
        unsafe { std::ptr::from_mut(&mut e).byte_add(LEN).cast::<u32>().write(len) };
        // SAFETY: the memory that the first command names is this room's, which drops the ring before it; after the command is submitted
        // nobody looks at it until its completion. The list of its parts is read when it is submitted.
        unsafe { self.ring.submission().push(&e) }.map_err(|_| io::Error::other("the ring of a room for one request is full"))
    }

    /// Waits for a request; false when the mount is gone.
    fn fill(&mut self) -> io::Result<bool> {
        if std::mem::take(&mut self.is_full) {
            return Ok(true);
        }
        loop {
            match self.ring.submit_and_wait(1) {
                Err(e) if e.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                r => _ = r?,
            }
            let Some(done) = self.ring.completion().next() else { continue };
            return match -done.result() {
                0 => Ok(true),
                e if e == Errno::NOTCONN.raw_os_error() || e == Errno::NODEV.raw_os_error() => Ok(false),
                e => Err(io::Error::from_raw_os_error(e)),
            };
        }
    }

    /// Answers what is in the room, and offers it again when the next one is waited for.
    fn answer(&mut self, session: &Session, cpu: &mut Cpu) -> io::Result<()> {
        let headers = &mut *self.headers;
        let (header, _) = InHeader::read_from_prefix(headers.in_out.as_bytes()).map_err(|_| Errno::IO)?;
        let payload = self.payload.first(MAX_WRITE);
        let rest = payload.get(..headers.payload_bytes as usize).ok_or(Errno::IO)?;
        let r = Request::new(header, headers.fixed.as_bytes(), Some(rest));
        cpu.leave(r.is_stream());
        let (result, len) = match r.room() {
            SMALL => {
                let mut small = [0; SMALL];
                let mut body = Body::new(&mut small);
                let result = session.ask(&r, &mut body);
                let len = body.len;
                payload[..len].copy_from_slice(&small[..len]);
                (result, len)
            }
            _ => {
                // A long answer takes the place of the little that was asked.
                let rest = rest.to_vec();
                let r = Request::new(header, headers.fixed.as_bytes(), Some(&rest));
                let mut body = Body::new(self.payload.first(MAX_WRITE));
                (session.ask(&r, &mut body), body.len)
            }
        };
        let out = OutHeader::of(header.unique, result, len);
        headers.in_out.as_mut_bytes()[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        headers.payload_bytes = out.len - size_of::<OutHeader>() as u32;
        let commit_id = headers.commit_id;
        self.push(ring::COMMIT_AND_FETCH, commit_id, 0, 0)
    }
}

/// Starts a thread; its result reaches whoever waits for the end of the mount.
pub type Start = dyn Fn(String, Box<dyn FnOnce() -> io::Result<()> + Send>) -> io::Result<()> + Send + Sync;

/// The CPU to which the calling thread belongs. One that is off, or that this process may not use, binds nobody.
struct Cpu {
    own: CpuSet,
    /// The rest of those that the process may use.
    others: CpuSet,
    is_left: bool,
}

impl Cpu {
    /// Binds the calling thread to a CPU.
    fn stay_on(cpu: u16, all: &CpuSet) -> Cpu {
        let (mut own, mut others) = (CpuSet::new(), CpuSet::new());
        for c in (0..CpuSet::MAX_CPU).filter(|c| all.is_set(*c)) {
            if c == usize::from(cpu) { own.set(c) } else { others.set(c) }
        }
        let _ = sched_setaffinity(None, &own);
        Cpu { own, others, is_left: false }
    }

    /// Leaves it to others, or comes back.
    fn leave(&mut self, leave: bool) {
        if leave != self.is_left {
            self.is_left = leave;
            // Where there is no other, nothing changes.
            let _ = sched_setaffinity(None, if leave { &self.others } else { &self.own });
        }
    }
}

/// The rooms of a CPU's queue.
pub struct Queue {
    session: Arc<Session>,
    fd: Arc<OwnedFd>,
    number: u16,
    dir: PathBuf,
    start: Arc<Start>,
    /// The CPUs that the process may use.
    cpus: CpuSet,
    threads: AtomicUsize,
    /// Rooms that are free.
    free: AtomicUsize,
}

impl Queue {
    /// Of CPU `number`, with one room, which the kernel has when this returns.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(session: &Arc<Session>, fd: &Arc<OwnedFd>, number: u16, dir: &Path, start: &Arc<Start>) -> io::Result<()> {
        let (threads, free) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (session, fd, dir, start) = (session.clone(), fd.clone(), dir.into(), start.clone());
        let cpus = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let queue = Arc::new(Queue { session, fd, number, dir, start, cpus, threads, free });
        let (tell, told) = channel();
        queue.add(Some(tell))?;
        let offered = told.recv().unwrap_or_else(|_| Err(io::Error::other("a thread that was to serve the mount ended")));
        // Containers forbid it, for one.
        offered.map_err(|e| io::Error::new(e.kind(), format!("no FUSE over io_uring: {e}")))
    }

    /// Starts one more thread. The first one tells when it has offered its room.
    fn add(self: &Arc<Self>, tell: Option<Sender<io::Result<()>>>) -> io::Result<()> {
        let n = self.threads.fetch_add(1, Ordering::Relaxed);
        if n >= MOST {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        let queue = self.clone();
        (self.start)(format!("uxfs-fuse-{}.{n}", self.number), Box::new(move || queue.serve(tell)))
    }

    /// Makes the kernel look for requests that wait for a room.
    fn stir(&self) {
        let (number, cpus, dir) = (self.number, self.cpus, self.dir.clone());
        let ask = move || {
            let _ = Cpu::stay_on(number, &cpus);
            // Whatever it says: a question was asked.
            let _ = rustix::fs::statfs(&dir);
            Ok(())
        };
        let _ = (self.start)("uxfs-fuse-stir".into(), Box::new(ask));
    }

    fn serve(self: &Arc<Self>, tell: Option<Sender<io::Result<()>>>) -> io::Result<()> {
        let mut cpu = Cpu::stay_on(self.number, &self.cpus);
        self.free.fetch_add(1, Ordering::AcqRel);
        let offered = Room::offer(self.fd.clone(), self.number);
        let (room, said) = offered.map_or_else(|e| (None, Err(e)), |room| (Some(room), Ok(())));
        match tell {
            Some(first) => _ = first.send(said),
            None => self.stir(),
        }
        let Some(mut room) = room else {
            self.free.fetch_sub(1, Ordering::AcqRel);
            return Ok(());
        };
        while room.fill()? {
            if self.free.fetch_sub(1, Ordering::AcqRel) == 1 {
                // Without another one, requests of this CPU wait for this one to end.
                let _ = self.add(None);
            }
            room.answer(&self.session, &mut cpu)?;
            self.free.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }
}

/// The queues that the kernel has: one for each CPU that there may ever be.
///
/// # Errors
/// The system does not say.
pub fn queues() -> io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<u16>().ok());
    last.map(|n| n + 1).ok_or_else(|| io::Error::other("/sys/devices/system/cpu/possible names no CPUs"))
}

/// Where root says whether the kernel offers this.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The kernel offers io_uring while this lives, and then what it offered before.
pub struct Offer(());

/// How many want it offered, and what was there before the first.
static OFFERS: Mutex<(usize, String)> = Mutex::new((0, String::new()));

/// Lets the kernel offer io_uring to all who ask for it from now on.
///
/// # Errors
/// It has none, or this user may not say so.
pub fn offer_io_uring() -> io::Result<Offer> {
    let mut offers = OFFERS.lock();
    if offers.0 == 0 {
        let before = std::fs::read_to_string(SWITCH)?;
        std::fs::write(SWITCH, "Y")?;
        offers.1 = before;
    }
    offers.0 += 1;
    Ok(Offer(()))
}

impl Drop for Offer {
    fn drop(&mut self) {
        let mut offers = OFFERS.lock();
        offers.0 -= 1;
        if offers.0 == 0 {
            let _ = std::fs::write(SWITCH, offers.1.trim());
        }
    }
}

/// Refuses by name what is not offered.
///
/// # Errors
/// The kernel does not offer it.
pub fn is_offered(offered: bool) -> io::Result<()> {
    let what = || format!("this kernel offers no FUSE over io_uring (Linux 6.14 and later do; as root: echo Y > {SWITCH})");
    offered.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, what()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_does_not_offer_is_refused_by_name() {
        assert!(is_offered(false).unwrap_err().to_string().contains("enable_uring") && is_offered(true).is_ok());
        assert!(queues().unwrap() >= 1);
    }
}
