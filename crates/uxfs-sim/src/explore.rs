//! Cuts a recorded workload in many places, recovers what is left, and holds it against the model.

use crate::model::{Data, Model, look};
use crate::workload::{Journey, mark, options, top_name};
use std::collections::HashSet;
use std::sync::Arc;
use uxfs::Fs;
use uxfs_device::{DeviceRef, Event, Memory};
use uxfs_sync::Chance;

/// Where to cut, and how much to look at.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Cuts at the ends of flushes.
    pub at_flushes: usize,
    /// Cuts anywhere else.
    pub between: usize,
    /// Bytes that reach the medium together.
    pub tear: usize,
    /// Seed of the choices.
    pub seed: u64,
}

/// What the cuts showed.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Cuts tried.
    pub cuts: usize,
    /// Different states that recovery led to.
    pub distinct: usize,
    /// Of those, with a dirty log.
    pub dirty: usize,
    /// What was wrong: cut and words.
    pub damage: Vec<(usize, String)>,
}

/// Cuts a workload as `plan` says; the first few damages are kept, the rest only counted by the cuts.
///
/// # Errors
/// An image could not be made.
pub fn explore(j: &Journey, plan: &Plan, oracle: &mut dyn FnMut(&Memory) -> Option<String>) -> std::io::Result<Findings> {
    let chance = Chance::seeded(plan.seed);
    let flushes = j.trace.flush_ends();
    let mut cuts: Vec<usize> = Vec::new();
    for i in 0..plan.at_flushes.min(flushes.len()) {
        cuts.push(flushes[i * flushes.len() / plan.at_flushes.min(flushes.len())]);
    }
    // Half of the others anywhere in time, half where it is dangerous: most of the time nothing is on its way.
    let risky = risky_moments(j);
    for i in 0..plan.between {
        cuts.push(match i % 2 {
            1 if !risky.is_empty() => risky[chance.below(risky.len() as u64) as usize],
            _ => chance.below(j.trace.events.len() as u64 + 1) as usize,
        });
    }
    let mut found = Findings::default();
    let mut states = HashSet::new();
    for (n, cut) in cuts.into_iter().enumerate() {
        // All that was not flushed, none of it, or a part that differs from cut to cut.
        let keep = match n % 4 {
            0 => 0,
            1 => 100,
            _ => 1 + chance.below(99),
        };
        let whole = n % 3 == 0;
        // At a risky moment, mostly: the log is on the medium, and what was not flushed is there in part.
        let log_first = n >= plan.at_flushes.min(flushes.len()) && n % 8 < 5;
        let mut choose = |offset: u64, sectors: usize| {
            if log_first && j.log_at.contains(&offset) {
                return vec![true; sectors];
            }
            let all = chance.below(100) < keep;
            (0..sectors).map(|_| if whole { all } else { chance.below(100) < keep }).collect()
        };
        let image = j.trace.image_at(cut, plan.tear, &mut choose)?;
        found.cuts += 1;
        match judge(j, cut, image, oracle) {
            Ok((digest, dirty)) => {
                states.insert(digest);
                found.dirty += usize::from(dirty);
            }
            Err(e) => found.damage.push((cut, e)),
        }
    }
    found.distinct = states.len();
    Ok(found)
}

/// Places in the history just after a record was written to the log while something that went home, or data, was not flushed;
/// or after any write, where there is no such place.
fn risky_moments(j: &Journey) -> Vec<usize> {
    let (mut writes, mut risky) = (Vec::new(), Vec::new());
    let (mut in_log, mut unflushed) = (HashSet::new(), false);
    for (i, e) in j.trace.events.iter().enumerate() {
        match e {
            Event::WriteBegin { id, offset, .. } if j.log_at.contains(offset) => {
                in_log.insert(*id);
            }
            Event::WriteEnd { id } => {
                writes.push(i + 1);
                if !in_log.remove(id) {
                    unflushed = true;
                } else if unflushed {
                    risky.push(i + 1);
                }
            }
            Event::FlushBegin { .. } => unflushed = false,
            _ => {}
        }
    }
    if risky.is_empty() { writes } else { risky }
}

/// Of one worker, at a cut: the last operation that began, and how many had ended.
fn progress(events: &[Event], worker: u32) -> (u64, u64) {
    let (mut began, mut ended) = (0, 0);
    for e in events {
        if let Event::Mark(m) = e
            && (m >> 48) as u32 == worker
        {
            let op = (m & ((1 << 48) - 1)) >> 1;
            if *m == mark(worker, op, true) { ended = op + 1 } else { began = op + 1 }
        }
    }
    (began, ended)
}

fn judge(j: &Journey, cut: usize, image: Memory, oracle: &mut dyn FnMut(&Memory) -> Option<String>) -> Result<(u64, bool), String> {
    let image = Arc::new(image);
    let dev: DeviceRef = image.clone();
    let fs = Fs::open(dev, options(1)).map_err(|e| format!("recovery: {e}"))?;
    let dirty = fs.was_recovered();
    let events = &j.trace.events[..cut];
    let mut digest = 0u64;
    for (w, model) in j.models.iter().enumerate() {
        let (began, ended) = progress(events, w as u32);
        digest = digest.rotate_left(7) ^ worker(&fs, w as u32, model, began, ended)?;
    }
    fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    let report = uxfs_check::check(&*image).map_err(|e| e.to_string())?;
    if let Some(f) = report.findings.first() {
        return Err(format!("check: {f} ({} findings)", report.findings.len()));
    }
    match oracle(&image) {
        Some(e) => Err(e),
        None => Ok((digest, dirty)),
    }
}

fn worker(fs: &Fs, w: u32, model: &Model, began: u64, ended: u64) -> Result<u64, String> {
    let say = |e: uxfs::Error| format!("worker {w}: {e}");
    let top = fs.lookup(fs.root(), top_name(w).as_bytes()).map_err(say)?;
    let seen = look(fs, top.ino).map_err(say)?;
    // The journal keeps the order of commits: what made a file durable made everything durable that was committed before the
    // file's own last change.
    let events = model.nodes.values().chain(model.gone.values()).flat_map(|n| &n.data.events);
    let synced = events.filter_map(|(op, e)| match e {
        Data::Synced(names) if *op < ended => Some(*names),
        _ => None,
    });
    let from = synced.max().unwrap_or(0).max(model.syncs.iter().filter(|s| **s < ended).map(|s| s + 1).max().unwrap_or(0));
    let possible = &model.digests[from as usize..=(began as usize).min(model.digests.len() - 1)];
    if !possible.contains(&seen.digest) {
        let other = model.digests.iter().rposition(|d| *d == seen.digest);
        return Err(format!(
            "worker {w}: the names are those after operation {other:?}, those after {from} to {began} were possible\n{}",
            seen.text
        ));
    }
    for (id, ino, size) in &seen.files {
        let Some(node) = model.any(*id) else { return Err(format!("worker {w}: file {id} was never made")) };
        let mut content = vec![0; *size as usize];
        let n = fs.read(*ino, 0, &mut content).map_err(say)?;
        content.truncate(n);
        node.data.check(&content, began.saturating_sub(1), ended).map_err(|e| format!("worker {w}: file {id}: {e}"))?;
    }
    Ok(seen.digest)
}
