//! Free space as a whole: shown, and given back to whatever the volume lies on.

use super::busy;
use super::freetree::FreeTree;
use crate::ag;
use crate::btree::Cursor;
use crate::error::Result;
use crate::trans::Trans;
use crate::volume::Volume;
use std::sync::Arc;
use uxfs_format::btree::FreeRec;
use uxfs_format::{AgBlock, AgNumber};

/// Extents that are looked at before the group is given up for a moment.
const BATCH: usize = 1024;

/// Free extents of a group from block `from` on, at most [`BATCH`]. The group's AGF stays locked with the transaction.
fn batch(tp: &mut Trans, agno: AgNumber, from: u32) -> Result<Vec<FreeRec>> {
    let agf = ag::agf(tp, agno)?;
    let mut c = Cursor::new(tp, FreeTree { agno, agf, by_size: false });
    let mut out = Vec::new();
    let mut r = c.lookup_ge(&FreeRec { start: from, len: 0 })?;
    while let Some(rec) = r.filter(|_| out.len() < BATCH) {
        out.push(rec);
        r = c.next()?;
    }
    Ok(out)
}

/// Hands the free extents of a group on, by place.
///
/// # Locks
/// The group's AGF, a batch at a time.
///
/// # Errors
/// The group is corrupt.
pub fn each_free(vol: &Arc<Volume>, agno: AgNumber, f: &mut dyn FnMut(&Trans, FreeRec) -> Result<()>) -> Result<()> {
    let mut from = 0;
    loop {
        let mut tp = Trans::reader(vol);
        let found = batch(&mut tp, agno, from)?;
        let Some(last) = found.last() else { return Ok(()) };
        from = last.start.saturating_add(last.len);
        for r in found {
            f(&tp, r)?;
        }
    }
}

/// Discards free extents of at least `least` blocks; returns how many blocks those were. What was freed a moment ago is left.
///
/// # Locks
/// Each group's AGF while a batch of its extents is discarded.
///
/// # Errors
/// The device's; a group is corrupt.
pub fn trim(vol: &Arc<Volume>, least: u32) -> Result<u64> {
    let mut blocks = 0;
    let bs = u64::from(vol.geo.blocksize);
    for agno in (0..vol.geo.agcount).map(AgNumber) {
        each_free(vol, agno, &mut |tp, r| {
            let (start, len) = if vol.reproducible { (r.start, r.len) } else { busy::trim(tp, agno, r.start, r.len) };
            if len > 0 && len >= least {
                let at = vol.geo.ag_daddr(agno, AgBlock(start)).0 * 512;
                uxfs_sync::blocking(|| vol.dev.discard(at, u64::from(len) * bs))?;
                blocks += u64::from(len);
            }
            Ok(())
        })?;
    }
    Ok(blocks)
}
