//! What the threads of a mount share.

use crate::attach::Guests;
use crate::buffers::Buffers;
use crate::classic::BEFORE_ANSWER;
use crate::pool::Pool;
use crate::relay::Relay;
use crate::request::{Body, Request};
use crate::serve::{Result, Serve};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A mount that is served.
pub struct Session {
    /// By whom.
    pub serve: Arc<dyn Serve>,
    /// Which threads read.
    pub relay: Arc<Relay>,
    /// Threads for syncs that find too many waiting.
    pub waiting: Pool,
    /// Room for long answers, and before it for their headers.
    pub buffers: Buffers,
    guests: Guests,
    owner: u32,
    /// Syncs that wait on threads of the session, and how many may.
    syncs: AtomicUsize,
    most_syncs: usize,
}

impl Session {
    /// Served by so many threads.
    pub fn new(serve: Arc<dyn Serve>, guests: Guests, threads: usize, relay: Arc<Relay>) -> Session {
        Session {
            serve,
            relay,
            waiting: Pool::default(),
            buffers: Buffers::new(BEFORE_ANSWER, crate::MAX_WRITE, threads),
            guests,
            owner: rustix::process::geteuid().as_raw(),
            syncs: AtomicUsize::new(0),
            most_syncs: threads / 2,
        }
    }

    fn keeps_out(&self, r: &Request<'_>) -> bool {
        let uid = r.header.uid;
        self.guests == Guests::Root && uid != self.owner && uid != 0 && !r.may_be_anybodys()
    }

    /// Counts a sync that is to wait on the thread that took it; false if too many do, and few are left for others.
    pub fn sync_begins(&self) -> bool {
        let may = self.syncs.fetch_add(1, Ordering::Relaxed) < self.most_syncs;
        if !may {
            self.sync_ends();
        }
        may
    }

    /// It has waited.
    pub fn sync_ends(&self) {
        self.syncs.fetch_sub(1, Ordering::Relaxed);
    }

    /// Asks whoever serves, who puts the answer in `body`.
    ///
    /// # Errors
    /// As [`Request::answer`]; whoever asks is kept out.
    pub fn ask(&self, r: &Request<'_>, body: &mut Body<'_>) -> Result<()> {
        if self.keeps_out(r) { Err(Errno::ACCESS) } else { r.answer(&*self.serve, body) }
    }
}
