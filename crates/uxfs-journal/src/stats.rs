//! Counters of the journal, by the kernel's names where it has them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! stats {
    ($($(#[$m:meta])* $name:ident),* $(,)?) => {
        /// Live counters.
        #[derive(Debug, Default)]
        pub struct Stats { $($(#[$m])* pub $name: AtomicU64,)* }
        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct StatsSnapshot { $($(#[$m])* pub $name: u64,)* }
        impl Stats {
            /// Reads all counters.
            pub fn snapshot(&self) -> StatsSnapshot {
                StatsSnapshot { $($name: self.$name.load(Relaxed),)* }
            }
        }
        impl StatsSnapshot {
            /// Names and values.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}
stats! {
    /// Log records written.
    writes,
    /// Basic blocks written to the log.
    blocks,
    /// Records that had to wait for a buffer.
    noiclogs,
    /// Forces asked for.
    force,
    /// Forces that had to wait.
    force_sleep,
    /// Reservations.
    try_logspace,
    /// Reservations that had to wait.
    sleep_logspace,
    /// Times the AIL was asked to make room.
    push_ail,
    /// Device flushes.
    flushes,
    /// Durable writes.
    fua,
    /// Checkpoints written.
    checkpoints,
    /// Bytes of items in them.
    checkpoint_bytes,
    /// Items in them.
    checkpoint_items,
    /// Microseconds in which they were put into the AIL.
    insert_us,
    /// Most checkpoints in flight at once.
    in_flight_peak,
    /// Times the log wrapped.
    wraps,
    /// Most bytes of the log in use at once.
    used_peak,
    /// Metadata blocks written home.
    metadata_writes,
    /// Intents that never reached the log because their completion came first.
    whiteouts,
    /// Commits that had to wait for a full checkpoint.
    throttled,
    /// Most bytes of memory that checkpoints which were not durable held at once: whole buffers, inodes, and what they log.
    pinned_peak,
    /// Transactions that had to wait for such memory.
    sleep_budget,
    /// Most bytes of memory that metadata on its way home held at once.
    dirty_peak,
    /// Transactions that had to wait until less of it was held.
    sleep_dirty,
    /// Tickets that logged more than they reserved.
    overruns,
}

impl Stats {
    pub(crate) fn add(c: &AtomicU64, n: u64) {
        c.fetch_add(n, Relaxed);
    }
    pub(crate) fn peak(c: &AtomicU64, n: u64) {
        c.fetch_max(n, Relaxed);
    }
}
