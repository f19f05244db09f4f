//! Requests read from /dev/fuse, a thread a request.

use crate::abi::{InHeader, OutHeader, WriteIn, opcode};
use crate::attach::open_device;
use crate::buffers::Aligned;
use crate::request::{Body, Request, SMALL};
use crate::session::Session;
use crate::{Data, MAX_WRITE, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Bytes before a write's data.
const BEFORE_DATA: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// Bytes of a write whose data is not given away, at most: of less the server would keep much more than it needs.
const MOST_COPIED: usize = BEFORE_DATA + MAX_WRITE / 4 * 3;
/// A read that takes less found a request that was there already.
const AT_ONCE: Duration = Duration::from_micros(3);
/// So many of those, one after the other, are more than what one client leaves: it does not wait for the end of a release.
const ROW: usize = 4;
/// One request in so many is timed.
const LOOKS: usize = 4;
/// How long a request is looked for before the thread sleeps until one comes: about as long as it takes to wake it.
const PATIENCE: Duration = Duration::from_micros(25);
/// After so many misses more than hits, a look is worth no more than one in twice to this power of requests.
const MOST_MISSES: u32 = 8;
/// Bytes before an answer's.
pub const BEFORE_ANSWER: usize = size_of::<OutHeader>();

/// One more descriptor to read the requests of a mount from: readers with one each do not queue for it. Where there is none to be had
/// they share it.
#[expect(unsafe_code, reason = "an ioctl")]
pub fn another(fd: &Arc<OwnedFd>) -> Arc<OwnedFd> {
    const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
    let clone = |new: OwnedFd| {
        // SAFETY: FUSE_DEV_IOC_CLONE reads a 32-bit number, the other descriptor.
        unsafe { rustix::ioctl::ioctl(&new, rustix::ioctl::Setter::<CLONE, u32>::new(fd.as_raw_fd() as u32)) }.map(|()| new)
    };
    open_device().ok().and_then(|new| clone(new).ok()).map_or_else(|| fd.clone(), Arc::new)
}

/// Where a request is read to: the data of a write begins where a page does.
pub fn room() -> Aligned {
    Aligned::new(BEFORE_DATA, MAX_WRITE)
}

/// Reads a request; how many bytes it has, `None` when the mount is gone.
///
/// # Errors
/// The kernel's.
pub fn receive(fd: &OwnedFd, buf: &mut Aligned) -> io::Result<Option<usize>> {
    let buf = buf.first(BEFORE_DATA + MAX_WRITE);
    loop {
        match rustix::io::read(fd, &mut *buf) {
            Ok(n) => return Ok(Some(n)),
            // Whoever asked has gone meanwhile.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

/// True if a request waits to be read, or the mount is gone.
fn is_there(fd: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&at_once)), Ok(0))
}

/// Sends an answer, whose body follows room for its header.
pub fn send(fd: &OwnedFd, unique: u64, result: Result<()>, buf: &mut [u8]) {
    let header = OutHeader::of(unique, result, buf.len() - BEFORE_ANSWER);
    let buf = &mut buf[..header.len as usize];
    buf[..BEFORE_ANSWER].copy_from_slice(header.as_bytes());
    match rustix::io::write(fd, buf) {
        // Nobody waits for it any more, or it is told that it failed.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(_) if result.is_ok() => send(fd, unique, Err(Errno::IO), buf),
        Err(_) => {}
    }
}

fn answer(session: &Session, fd: &OwnedFd, r: &Request<'_>) {
    let answer = |buf: &mut [u8]| {
        let mut body = Body::new(&mut buf[BEFORE_ANSWER..]);
        let result = session.ask(r, &mut body);
        let len = body.len;
        if !r.is_told() {
            send(fd, r.header.unique, result, &mut buf[..BEFORE_ANSWER + len]);
        }
    };
    match r.room() {
        SMALL => answer(&mut [0; BEFORE_ANSWER + SMALL]),
        room => session.buffers.with(room, answer),
    }
}

/// Answers a write of `len` bytes in all; its data is given away with what it was read to.
fn give(session: &Session, fd: &OwnedFd, header: InHeader, mut buf: Aligned, len: usize) {
    let mut before = [0; BEFORE_DATA];
    before.copy_from_slice(buf.first(BEFORE_DATA));
    let (buffer, at) = buf.into_parts();
    let r = Request::new(header, &before[size_of::<InHeader>()..], None);
    r.data.set(Some(Data::Given { buffer, part: at + BEFORE_DATA..at + len }));
    answer(session, fd, &r);
}

/// Whether requests wait to be read, or come so soon that it is better to wait for them awake.
#[derive(Default)]
struct Backlog {
    requests: usize,
    /// How many of the last ones were there already when they were read.
    row: usize,
    /// How many more did not come while they were waited for than did.
    misses: u32,
    /// From which request on it is tried again.
    patient: usize,
}

impl Backlog {
    /// Reads a request, with an eye on how long that takes: always after one that was there already, else now and then.
    fn look<T>(&mut self, read: impl FnOnce() -> T) -> T {
        self.requests += 1;
        if self.row == 0 && !self.requests.is_multiple_of(LOOKS) {
            return read();
        }
        let begun = Instant::now();
        let r = read();
        self.row = if begun.elapsed() < AT_ONCE { self.row + 1 } else { 0 };
        r
    }

    /// Waits awake for a request that is likely to come soon, and reads it; for whoever alone reads and has nothing else to do.
    fn look_awake<T>(&mut self, is_there: impl Fn() -> bool, read: impl FnOnce() -> T) -> T {
        if self.requests < self.patient {
            return self.look(read);
        }
        self.requests += 1;
        if is_there() {
            self.row += 1;
            return read();
        }
        self.row = 0;
        let begun = Instant::now();
        let mut came = false;
        while !came && begun.elapsed() < PATIENCE {
            came = is_there();
        }
        if came {
            self.misses = self.misses.saturating_sub(1);
        } else {
            self.misses = (self.misses + 1).min(MOST_MISSES);
            self.patient = self.requests + (1 << self.misses);
        }
        read()
    }

    fn is_there(&self) -> bool {
        self.row >= ROW
    }
}

/// Answers requests until the mount is gone.
///
/// # Errors
/// The kernel's, and requests that are none.
pub fn serve(session: &Arc<Session>, fd: &Arc<OwnedFd>) -> io::Result<()> {
    session.relay.join();
    let (mut buf, mut backlog) = (room(), Backlog::default());
    loop {
        let read = || receive(fd, &mut buf);
        let read = if session.relay.is_calm() { backlog.look_awake(|| is_there(fd), read) } else { backlog.look(read) };
        let Some(len) = read? else { return Ok(()) };
        let bytes = &*buf.first(len);
        let r = Request::parse(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a request of the kernel is cut short"))?;
        let _turn = session.relay.begin(!backlog.is_there() && r.is_short());
        if r.header.opcode == opcode::WRITE
            && len > MOST_COPIED
            && let Some(next) = session.serve.buffer(Aligned::bytes(BEFORE_DATA, MAX_WRITE))
        {
            let header = r.header;
            give(session, fd, header, std::mem::replace(&mut buf, Aligned::of(next, BEFORE_DATA)), len);
        } else if !r.is_sync() {
            answer(session, fd, &r);
        } else if session.sync_begins() {
            answer(session, fd, &r);
            session.sync_ends();
        } else {
            let (later, fd, bytes) = (session.clone(), fd.clone(), bytes.to_vec());
            session.waiting.run(Box::new(move || {
                if let Ok(r) = Request::parse(&bytes) {
                    answer(&later, &fd, &r);
                }
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Reads a request that is there at the look with this number, the first being 0; how often was looked.
    fn looks(b: &mut Backlog, there_at: usize) -> usize {
        let looks = Cell::new(0);
        let is_there = || looks.replace(looks.get() + 1) >= there_at;
        b.look_awake(is_there, || ());
        looks.get()
    }

    #[test]
    fn requests_are_waited_for_awake_while_they_come_soon() {
        let mut b = Backlog::default();
        for _ in 0..100 {
            assert_eq!(looks(&mut b, 1), 2);
        }
        // What never comes is waited for less and less often.
        let tried = (0..1000).filter(|_| looks(&mut b, usize::MAX) > 0).count();
        assert!((5..20).contains(&tried), "{tried}");
        // And again once it comes: each that does takes back one that did not.
        let tried = (0..1000).filter(|_| looks(&mut b, 1) > 0).count();
        assert!(tried > 500, "{tried}");
    }

    #[test]
    fn requests_that_wait_are_a_backlog() {
        let mut b = Backlog::default();
        (0..ROW).for_each(|_| assert_eq!(looks(&mut b, 0), 1));
        assert!(b.is_there());
        looks(&mut b, 1);
        assert!(!b.is_there());
    }
}
