//! Batches of writes through io_uring, where the host allows it.

use crate::WriteRequest;
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Writes handed to the kernel at once.
pub(crate) const DEPTH: u32 = 64;

/// A ring that one batch uses at a time.
pub(crate) struct Ring(Mutex<IoUring>);

impl Ring {
    /// Sets a ring up; `None` where the host refuses io_uring, as containers do.
    pub(crate) fn new() -> Option<Ring> {
        IoUring::new(DEPTH).ok().map(|r| Ring(Mutex::new(r)))
    }

    /// Writes a batch and waits for all of it. A short write is finished by `rest`.
    pub(crate) fn write_many(
        &self,
        fd: BorrowedFd<'_>,
        requests: &[WriteRequest<'_>],
        rest: &dyn Fn(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut ring = self.0.lock();
        let mut first = Ok(());
        for batch in requests.chunks(DEPTH as usize) {
            let mut queued = 0;
            for (i, r) in batch.iter().enumerate() {
                let len = r.data.len().min(1 << 30) as u32;
                let e = opcode::Write::new(types::Fd(fd.as_raw_fd()), r.data.as_ptr(), len).offset(r.offset).build().user_data(i as u64);
                // SAFETY: the buffer is borrowed for this whole call, and the call does not return before each of its
                // writes has completed (the loop below reaps as many completions as were queued).
                if unsafe { ring.submission().push(&e) }.is_err() {
                    break;
                }
                queued += 1;
            }
            let mut reaped = 0;
            while reaped < queued {
                match ring.submit_and_wait(queued - reaped) {
                    Ok(_) => {}
                    Err(e) if e.raw_os_error() == Some(libc_eintr()) => {}
                    Err(e) => {
                        // Nothing may be left in flight over borrowed memory: without completions there is no safe way on.
                        if ring.completion().is_empty() && !ring.submission().is_empty() {
                            std::process::abort();
                        }
                        first = first.and(Err(e));
                    }
                }
                for c in ring.completion() {
                    reaped += 1;
                    let r = batch[c.user_data() as usize];
                    let res = match c.result() {
                        n if n < 0 => Err(io::Error::from_raw_os_error(-n)),
                        n if (n as usize) < r.data.len() => rest(r.offset + n as u64, &r.data[n as usize..]),
                        _ => Ok(()),
                    };
                    if first.is_ok() {
                        first = res;
                    }
                }
            }
            for r in &batch[queued..] {
                first = first.and(rest(r.offset, r.data));
            }
        }
        first
    }
}

fn libc_eintr() -> i32 {
    rustix::io::Errno::INTR.raw_os_error()
}
