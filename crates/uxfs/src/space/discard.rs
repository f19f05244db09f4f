//! What was freed is discarded on the device once the freeing is durable; until that is done, nobody gets it.

use super::busy::{self, is_busy};
use crate::error::{Error, Result};
use crate::volume::{Discards, Volume};
use std::sync::atomic::Ordering;
use std::time::Duration;
use uxfs_format::{AgBlock, AgNumber};
use uxfs_sync::blocking;
use uxfs_sync::explored::{wait, wait_for};

/// How long a wait for discards lasts before it is looked at again whether the volume was shut down.
const RECHECK: Duration = Duration::from_millis(50);

/// Makes all that was freed so far usable: durable, and discarded where that is asked for.
///
/// # Errors
/// The volume is shut down.
pub fn await_freed(vol: &Volume) -> Result<()> {
    vol.journal.force_all()?;
    let Some(d) = &vol.discards else { return Ok(()) };
    let mut q = d.queue.lock();
    while !q.waiting.is_empty() || q.running {
        vol.journal.shutdown.check()?;
        wait_for(&d.changed, &mut q, RECHECK);
    }
    Ok(())
}

/// Looks for space until it is found, or nothing was busy that could have been it: what was freed, by others and by earlier links of
/// this chain, can be had once it is durable. Others may take it first: it is looked for `again` times at most.
///
/// # Errors
/// The look's.
pub fn with_freed<T>(vol: &Volume, again: usize, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..again {
        let before = vol.usable_again.load(Ordering::Acquire);
        let found = look();
        if !matches!(found, Err(Error::NoSpace)) || vol.reproducible {
            return found;
        }
        // Others may have made durable what was busy when this looked.
        if is_busy(vol) {
            await_freed(vol)?;
        } else if vol.usable_again.load(Ordering::Acquire) == before {
            return found;
        }
    }
    look()
}

/// Discards what comes in until the volume is closed. For a thread of its own.
pub fn work(vol: &Volume) {
    let Some(d) = &vol.discards else { return };
    let _op = vol.journal.op().enter();
    while let Some(mut batch) = next(d) {
        batch.sort_unstable();
        if vol.journal.shutdown.reason().is_none() {
            for run in batch.chunk_by(|a, b| a.agno == b.agno && a.start + a.len == b.start) {
                let len = run.iter().map(|e| u64::from(e.len)).sum::<u64>() * u64::from(vol.geo.blocksize);
                // A device that cannot, or will not, is none the worse for it: the blocks are free all the same.
                let at = vol.geo.ag_daddr(AgNumber(run[0].agno), AgBlock(run[0].start)).0 * 512;
                if blocking(|| vol.dev.discard(at, len)).is_ok() {
                    d.bytes.fetch_add(len, Ordering::Relaxed);
                }
            }
        }
        batch.iter().for_each(|e| busy::release(vol, e));
        d.queue.lock().running = false;
        d.changed.notify_all();
    }
}

/// Waits for extents to be discarded; `None` at the end.
fn next(d: &Discards) -> Option<Vec<crate::volume::Freed>> {
    let mut q = d.queue.lock();
    while q.waiting.is_empty() {
        if q.closed {
            return None;
        }
        wait(&d.changed, &mut q);
    }
    q.running = true;
    Some(std::mem::take(&mut q.waiting))
}
