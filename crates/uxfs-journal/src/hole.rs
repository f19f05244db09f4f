//! Switches that remove an ordering rule, so that a test can show that the power-cut explorer finds the damage.
//! They exist only under `--cfg uxfs_holes`; elsewhere [`hole`] is constant and the rules cannot be removed.

/// A rule that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Hole {
    /// The commit record does not flush what came before it.
    CommitWithoutPreflush = 1,
    /// The commit record is not durable when a force returns.
    CommitWithoutFua = 2,
    /// Records carry, and space follows, the AIL's tail and not the stable one.
    UnstableTail = 4,
    /// The tail moves to the commit record before its items are in the AIL.
    EmptyAilTail = 8,
    /// A force does not wait for file data.
    DataNotAwaited = 16,
    /// Freed extents are used again before the freeing is durable.
    BusyReuse = 32,
    /// Blocks that had another owner are written in place before it is durable that they have one only.
    UnsharedInPlace = 64,
    /// Any length of the log may be on its way to the medium at once.
    UnboundedWindow = 128,
    /// With an external log, only the log's device is flushed.
    LogDeviceFlush = 256,
    /// What is freed is discarded before the freeing is durable.
    EarlyDiscard = 512,
    /// Log space is used again once the tail is stable, before a durable record says so.
    UnpublishedTail = 1024,
    /// The log's begin is written again before its end is durable.
    EarlyTurn = 2048,
    /// Who forces a checkpoint waits for it without having it written.
    UnpushedForce = 4096,
    /// A commit record waits for the checkpoint behind its own.
    FutureWait = 8192,
    /// What is pinned at the tail is not forced.
    PinnedNotForced = 16384,
    /// A tail that moved is not said by a record of its own, although others wait for the space.
    SilentTail = 32768,
    /// Durability gives memory back without a word to those who wait for it.
    SilentDurability = 65536,
    /// A file grows a moment after the pages are there that make it longer.
    LateSize = 131_072,
    /// Blocks of an attribute's value are taken before it is written, without an intent to give them back.
    UnintendedStaging = 262_144,
    /// Blocks that moved, in an exchange or a shift, are written in place before it is durable that they moved.
    UnforcedMove = 524_288,
    /// What is to be removed is looked at before it is locked, and not again.
    EarlyLook = 1_048_576,
}

#[cfg(uxfs_holes)]
static ON: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// True if the rule is switched off.
#[inline]
pub fn hole(_h: Hole) -> bool {
    #[cfg(uxfs_holes)]
    return ON.load(std::sync::atomic::Ordering::SeqCst) & _h as u32 != 0;
    #[cfg(not(uxfs_holes))]
    false
}

/// Switches a rule off or on; without `--cfg uxfs_holes` it stays on.
pub fn set_hole(_h: Hole, _off: bool) {
    #[cfg(uxfs_holes)]
    {
        use std::sync::atomic::Ordering::SeqCst;
        if _off {
            ON.fetch_or(_h as u32, SeqCst)
        } else {
            ON.fetch_and(!(_h as u32), SeqCst)
        };
    }
}
