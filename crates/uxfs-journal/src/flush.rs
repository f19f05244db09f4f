//! When the journal has device caches flushed: the one decision in which its variants differ.

/// How often the journal flushes. All other code is shared.
///
/// | | before a checkpoint | its records | its commit record | tail of a record |
/// |---|---|---|---|---|
/// | `EveryRecord` | | flush and FUA each | flush and FUA | sampled before its own flush |
/// | `AsPublished` | flush | | FUA; flush if there were records before it | the AIL's, flushed or not |
/// | `PerCheckpoint` | flush | | FUA; flush if there were records before it | the stable one, or sampled before its flush |
/// | `StableTail` | | | flush and FUA | the stable one, or sampled before its flush |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalFlush {
    /// Each record flushes and is durable itself, as XFS did before Linux 5.14.
    EveryRecord,
    /// The first form of the change that came with 5.14. It loses data in a power cut: for comparisons only.
    AsPublished,
    /// A flush before each checkpoint, and one before its commit record, as XFS does since; what may still go wrong there
    /// with caches that write out of order is closed.
    PerCheckpoint,
    /// One flush a checkpoint, whatever its length.
    #[default]
    StableTail,
}

// The safe ones first.
uxfs_sync::named!(JournalFlush {
    StableTail = "stable-tail",
    PerCheckpoint = "per-checkpoint",
    EveryRecord = "every-record",
    AsPublished = "as-published",
});

impl JournalFlush {
    /// False where a power cut may lose what was synced, or the volume.
    pub fn is_safe(self) -> bool {
        self != JournalFlush::AsPublished
    }

    /// True if the data device is flushed before the first record of a checkpoint is written.
    pub(crate) fn at_start(self) -> bool {
        matches!(self, JournalFlush::AsPublished | JournalFlush::PerCheckpoint)
    }

    /// True if every record flushes what completed before it and is durable itself.
    pub(crate) fn each_record(self) -> bool {
        self == JournalFlush::EveryRecord
    }

    /// True if caches are flushed before a commit record is written, which is durable itself in each variant; `spans` if the
    /// checkpoint has records before it.
    pub(crate) fn flushes_before_commit(self, spans: bool) -> bool {
        spans || matches!(self, JournalFlush::EveryRecord | JournalFlush::StableTail)
    }
}
