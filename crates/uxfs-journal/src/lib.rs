//! The journal: log space, checkpoints, the AIL, head and tail search, replay.
//!
//! It knows no inode, extent or buffer: what is logged is a [`LogItem`], what is replayed goes to a [`Replay`].
//! The rules and their numbers are in `docs/journal.md`.

mod ail;
mod budget;
mod cil;
mod context;
mod crowd;
mod flush;
mod gap;
mod head;
mod hole;
mod item;
mod line;
mod replay;
mod space;
mod stats;
mod stream;
mod writer;

pub use ail::{Ail, WriteUnit};
pub use budget::CheckpointLimit;
pub use cil::{Commit, Completion, Journal, JournalConfig, Payload};
pub use flush::JournalFlush;
pub use head::{LogState, clear_stale, find_as_kernel, find_log_state, set_last_uuid};
pub use hole::{Hole, hole, set_hole};
pub use item::{ItemState, LogItem, Push, Regions};
pub use replay::{Replay, ReplayItem, replay};
pub use space::Ticket;
pub use stats::{Stats, StatsSnapshot};
pub use stream::LogGeometry;

use std::io;
use std::sync::{Arc, OnceLock};

/// Why the journal cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The volume was shut down; the text says why.
    #[error("the volume is shut down: {0}")]
    Shutdown(String),
    /// The device failed.
    #[error("log: {0}")]
    Io(io::Error),
    /// The log is not sound.
    #[error("log at basic block {block}: {what}")]
    Corrupt {
        /// Basic block within the log.
        block: u32,
        /// What does not hold.
        what: String,
    },
    /// The log holds what this program does not know.
    #[error("log: {0}")]
    Unsupported(String),
}

impl From<io::Error> for JournalError {
    fn from(e: io::Error) -> JournalError {
        JournalError::Io(e)
    }
}

/// The latch that ends all writing: set once, by the first failure.
#[derive(Default)]
pub struct Shutdown {
    reason: OnceLock<String>,
    /// Wakes everybody who waits for something that will not come any more.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Shutdown {
    /// Sets the latch and wakes everybody who waits; the first reason stays.
    ///
    /// # Locks
    /// The caller holds none of the journal's.
    pub fn set(&self, why: impl Into<String>) {
        let _ = self.reason.set(why.into());
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }
    fn on_set(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }
    /// The reason, if it is set.
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }
    /// Fails if the latch is set.
    ///
    /// # Errors
    /// [`JournalError::Shutdown`].
    pub fn check(&self) -> Result<(), JournalError> {
        self.reason().map_or(Ok(()), |r| Err(JournalError::Shutdown(r.into())))
    }
}

/// Who panics has left something half done: nothing more is written, as in a power cut.
struct PanicGuard(Arc<Shutdown>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set("a thread panicked in the journal");
        }
    }
}
