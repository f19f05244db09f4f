//! Batches of writes through io_uring, where the host allows it.

use crate::WriteRequest;
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Writes handed to the kernel at once.
pub(crate) const DEPTH: u32 = 64;
/// How often the kernel may take nothing for want of memory, a millisecond apart.
const MOST_REFUSALS: u32 = 10_000;

/// A ring that one batch uses at a time.
pub(crate) struct Ring(Mutex<IoUring>);

impl Ring {
    /// Sets a ring up; `None` where the host refuses io_uring, as containers do.
    pub(crate) fn new() -> Option<Ring> {
        IoUring::new(DEPTH).ok().map(|r| Ring(Mutex::new(r)))
    }

    /// Writes rows of pieces that lie behind each other, and waits for all of them. What a short write leaves of a row behind so many
    /// bytes, `rest` writes.
    pub(crate) fn write_many(
        &self,
        fd: BorrowedFd<'_>,
        rows: &[&[WriteRequest<'_>]],
        rest: &dyn Fn(&[WriteRequest<'_>], usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut ring = self.0.lock();
        let mut first = Ok(());
        for batch in rows.chunks(DEPTH as usize) {
            let slices: Vec<Vec<IoSlice<'_>>> = batch.iter().map(|row| row.iter().map(|r| IoSlice::new(r.data)).collect()).collect();
            let mut queued = 0;
            for (i, (row, data)) in batch.iter().zip(&slices).enumerate() {
                let Some(head) = row.first() else { break };
                let e = opcode::Writev::new(types::Fd(fd.as_raw_fd()), data.as_ptr().cast(), data.len() as u32);
                let e = e.offset(head.offset).build().user_data(i as u64);
                // SAFETY: `slices`, which have the form of `iovec`, and the buffers that they name live for this whole turn of the
                // loop, which does not end before each of its writes has completed (the loop below reaps as many completions as
                // were queued).
                if unsafe { ring.submission().push(&e) }.is_err() {
                    break;
                }
                queued += 1;
            }
            let (mut reaped, mut refused) = (0, 0);
            while reaped < queued {
                match ring.submit_and_wait(queued - reaped) {
                    Ok(_) => {}
                    Err(e) if is(&e, &[Errno::INTR]) => {}
                    // The host is short of memory: what is queued stays so.
                    Err(e) if is(&e, &[Errno::AGAIN, Errno::BUSY, Errno::NOMEM]) && refused < MOST_REFUSALS => {
                        refused += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
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
                    let row = batch[c.user_data() as usize];
                    let res = match c.result() {
                        n if n < 0 => Err(io::Error::from_raw_os_error(-n)),
                        n if (n as usize) < row.iter().map(|r| r.data.len()).sum() => rest(row, n as usize),
                        _ => Ok(()),
                    };
                    if first.is_ok() {
                        first = res;
                    }
                }
            }
            for row in &batch[queued..] {
                first = first.and(rest(row, 0));
            }
        }
        first
    }
}

fn is(e: &io::Error, any: &[Errno]) -> bool {
    any.iter().any(|n| e.raw_os_error() == Some(n.raw_os_error()))
}
