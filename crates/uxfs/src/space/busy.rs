//! Extents that were freed, or lost all owners but one, by a transaction that is not durable yet: a crash gives them back.

use crate::trans::Trans;
use crate::volume::{Freed, List, PerAg, Volume};
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs_format::{AgBlock, AgNumber};
use uxfs_journal::{Hole, hole};

static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Puts an extent on one of its group's lists until the running link is durable; then `durable` takes it off.
fn note(tp: &mut Trans, agno: AgNumber, start: u32, len: u32, list: fn(&PerAg) -> &List, durable: fn(&Volume, Freed)) {
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
    list(&tp.vol.groups[agno.0 as usize]).lock().insert((start, generation), len);
    if tp.vol.reproducible {
        // When it is durable is left to chance: it stays.
        return;
    }
    let extent = Freed { agno: agno.0, start, len, generation };
    if hole(Hole::EarlyDiscard) && tp.vol.discards.is_some() {
        let _ = tp.vol.dev.discard(tp.vol.geo.ag_daddr(agno, AgBlock(start)).0 * 512, u64::from(len) * u64::from(tp.vol.geo.blocksize));
    }
    let vol = std::sync::Arc::downgrade(&tp.vol);
    tp.on_durable(Box::new(move |ok| {
        // After a failure the extent stays, too: nothing is written any more anyway.
        if ok && let Some(v) = vol.upgrade() {
            durable(&v, extent);
        }
    }));
}

/// Takes an extent off the list of busy ones.
pub(super) fn release(vol: &Volume, e: &Freed) {
    let mut busy = vol.groups[e.agno as usize].busy.lock();
    // Before it is off: who has seen it there must not find, afterwards, that nothing was busy.
    vol.usable_again.fetch_add(1, Ordering::AcqRel);
    busy.remove(&(e.start, e.generation));
}

/// An extent may be used again, after it was discarded if that is asked for.
fn freed(vol: &Volume, e: Freed) {
    let Some(d) = &vol.discards else { return release(vol, &e) };
    let mut q = d.queue.lock();
    if q.closed {
        return release(vol, &e);
    }
    q.waiting.push(e);
    d.changed.notify_all();
}

/// Marks blocks that have one owner left until the running link is durable: until then a crash gives them back to the other one,
/// which must not find there what the first has written since.
pub(super) fn mark_unshared(tp: &mut Trans, agno: AgNumber, start: u32, len: u32) {
    // After a crash a reproducible volume is not used.
    if !tp.vol.reproducible {
        note(
            tp,
            agno,
            start,
            len,
            |g| &g.unshared,
            |v, e| {
                v.groups[e.agno as usize].unshared.lock().remove(&(e.start, e.generation));
            },
        );
    }
}

/// The first of such blocks within an extent: (offset into it, blocks).
pub(super) fn first_unshared(tp: &Trans, agno: AgNumber, start: u32, len: u32) -> Option<(u32, u32)> {
    if hole(Hole::UnsharedInPlace) {
        return None;
    }
    let unshared = tp.vol.groups[agno.0 as usize].unshared.lock();
    let end = start + len;
    let parts = unshared.range(..(end, 0)).map(|((s, _), l)| ((*s).max(start), (s + l).min(end)));
    parts.filter(|(from, to)| from < to).min().map(|(from, to)| (from - start, to - from))
}

/// Marks an extent busy until the running link is durable.
pub(super) fn mark(tp: &mut Trans, agno: AgNumber, start: u32, len: u32) {
    note(tp, agno, start, len, |g| &g.busy, freed);
    if tp.vol.reproducible {
        // What stays busy counts as if it were not free.
        tp.vol.counters.aside_changed(i64::from(len));
    }
}

/// The longest part of an extent that is not busy: (start, blocks), blocks 0 if there is none.
pub(super) fn trim(tp: &Trans, agno: AgNumber, start: u32, len: u32) -> (u32, u32) {
    if hole(Hole::BusyReuse) {
        return (start, len);
    }
    let busy = tp.vol.groups[agno.0 as usize].busy.lock();
    let end = start + len;
    let (mut best, mut at) = ((start, 0), start);
    for ((s, _), l) in busy.range(..(end, 0)) {
        if s + l <= at {
            continue;
        }
        if *s > at && s - at > best.1 {
            best = (at, s - at);
        }
        at = at.max(s + l);
    }
    if at < end && end - at > best.1 {
        best = (at, end - at);
    }
    best
}

/// True if any busy extent is left in the volume: [`super::await_freed`] would free them for use.
pub fn is_busy(vol: &Volume) -> bool {
    (0..vol.groups.len()).any(|agno| is_any_in(vol, AgNumber(agno as u32)))
}

/// True if any busy extent is left in a group.
pub(super) fn is_any_in(vol: &Volume, agno: AgNumber) -> bool {
    !vol.groups[agno.0 as usize].busy.lock().is_empty()
}
