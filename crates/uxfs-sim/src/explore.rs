//! Cuts a recorded workload in many places, recovers what is left, and holds it against the model.

use crate::model::{Data, Model, Node, look};
use crate::workload::{Form, Journey, mark, options, second_life, top_name};
use std::collections::HashSet;
use std::sync::Arc;
use uxfs::{Devices, Fs};
use uxfs_check::Forms;
use uxfs_device::{Device, DeviceRef, Event, Memory, Recorder};
use uxfs_format::Geometry;
use uxfs_journal::{LogGeometry, find_as_kernel, find_log_state};
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
    /// One cut in so many is followed by another one, inside the recovery; 0 for none.
    pub again: usize,
    /// One cut in so many is recovered, worked on, and cut again; 0 for none.
    pub lives: usize,
    /// One cut in so many is recovered by the kernel, too, which needs root; more of those that leave intents; 0 for none.
    pub kernel: usize,
    /// Seed of the choices.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { at_flushes: 25, between: 60, tear: 512, again: 5, lives: 0, kernel: 0, seed: 0 }
    }
}

/// What the cuts showed.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Cuts tried.
    pub cuts: usize,
    /// Different images that recovery led to.
    pub images: HashSet<u64>,
    /// What those have.
    pub forms: Forms,
    /// Of the cuts, with a dirty log.
    pub dirty: usize,
    /// Cuts inside a recovery.
    pub again: usize,
    /// Cuts in the life after a recovery.
    pub lives: usize,
    /// Images that the kernel recovered.
    pub kernel: usize,
    /// Of those, with intents to finish.
    pub intents: usize,
    /// What the kernel wrote and did not mount after a cut: its words.
    pub refused: Vec<String>,
    /// What the kernel wrote and its own recovery lost: what ours found, and what its own did.
    pub lost: Vec<(String, String)>,
    /// What was wrong: cut and words.
    pub damage: Vec<(usize, String)>,
}

impl Findings {
    fn take(&mut self, cut: usize, second: Findings) {
        self.lives += second.cuts;
        self.images.extend(second.images);
        self.forms.add(&second.forms);
        self.damage.extend(second.damage.into_iter().map(|(c, e)| (cut, format!("in the life after it, at {c}: {e}"))));
    }
}

/// Bytes that the kernel takes for granted are written whole: it does not replay onto a block that bears the position already, also
/// if its checksum is wrong.
fn kernel_tear(form: &Form) -> usize {
    form.block.max(form.dir_block).max(4096) as usize
}

/// Of cuts that leave intents, the kernel recovers one in so many: how it finishes ours is its own.
const INTENTS: u64 = 4;

/// Cuts a workload as `plan` says.
///
/// # Errors
/// An image could not be made.
pub fn explore(j: &Journey, plan: &Plan) -> std::io::Result<Findings> {
    let chance = Chance::seeded(plan.seed);
    let flushes: Vec<usize> = j.trace.flush_ends().into_iter().filter(|f| *f >= j.ready).collect();
    let mut cuts: Vec<usize> = Vec::new();
    let at_flushes = plan.at_flushes.min(flushes.len());
    cuts.extend((0..at_flushes).map(|i| flushes[i * flushes.len() / at_flushes]));
    // Half of the others anywhere in time, half where it is dangerous: most of the time nothing is on its way.
    let risky = risky_moments(j);
    for i in 0..plan.between {
        cuts.push(match i % 2 {
            1 if !risky.is_empty() => risky[chance.below(risky.len() as u64) as usize],
            _ => j.ready + chance.below((j.trace.events.len() - j.ready) as u64 + 1) as usize,
        });
    }
    let whole_blocks = kernel_tear(&j.shape.form);
    let every = |n: usize, one_in: usize| one_in > 0 && n % one_in == one_in - 1;
    let mut found = Findings::default();
    // It cannot print records with long headers across the log's end.
    if plan.kernel > 0 && (j.shape.journal.bufsize <= 32 << 10 || j.stat("wraps") == 0) {
        // All that was written: no record is missing.
        let end = j.trace.events.len();
        let whole = j.trace.images_at(end, plan.tear, &mut |_, _, sectors| vec![true; sectors])?;
        if let [inside] = whole.as_slice()
            && let Err(e) = crate::kernel::print_log(inside)
        {
            found.damage.push((end, e));
        }
    }
    for (n, cut) in cuts.into_iter().enumerate() {
        let log_first = n >= at_flushes && n % 8 < 5;
        let mut fate = Fate::new(&chance, n, log_first);
        let mut by_kernel = every(n, plan.kernel);
        let tear = if by_kernel { plan.tear.max(whole_blocks) } else { plan.tear };
        let images = j.trace.images_at(cut, tear, &mut |dev, offset, sectors| fate.of(j.is_log(dev, offset), sectors))?;
        found.cuts += 1;
        if plan.kernel > 0 && tear >= whole_blocks && !j.by_kernel && unfinished(&images) {
            by_kernel |= chance.below(INTENTS) == 0;
            found.intents += usize::from(by_kernel);
        }
        if by_kernel {
            found.kernel += 1;
            match crate::kernel::recover(&images, j.by_kernel) {
                Ok(left) => match judge(j, cut, left, false) {
                    Err(e) if j.by_kernel => found.lost.push(("recovered".into(), e)),
                    Err(e) => found.damage.push((cut, format!("recovered by the kernel: {e}"))),
                    Ok(_) => {}
                },
                Err(e) if j.by_kernel => found.refused.push(e),
                Err(e) => found.damage.push((cut, e)),
            }
        }
        if every(n, plan.again) {
            found.again += 1;
            if let Err(e) = cut_recovery(&images, plan.tear, &chance).and_then(|again| judge(j, cut, again, true)) {
                found.damage.push((cut, format!("cut again in its recovery: {e}")));
            }
        }
        if every(n, plan.lives) {
            let seed = chance.next_u64();
            match second_life(j, images.iter().map(Memory::fork).collect(), seed) {
                Ok(second) => {
                    let plan = Plan { at_flushes: 2, between: 6, again: 0, lives: 0, kernel: 0, seed, ..plan.clone() };
                    found.take(cut, explore(&second, &plan)?);
                }
                Err(e) => found.damage.push((cut, format!("in the life after it: {e}"))),
            }
        }
        match judge(j, cut, images.iter().map(Memory::fork).collect(), false) {
            Ok(left) => {
                found.images.insert(left.digest);
                found.forms.add(&left.forms);
                found.dirty += usize::from(left.dirty);
            }
            Err(e) => match j.by_kernel.then(|| crate::kernel::recover(&images, true).and_then(|left| judge(j, cut, left, false))) {
                // It was lost when it was written, if its writer does not find it either.
                Some(Err(own)) => found.lost.push((e, own)),
                _ => found.damage.push((cut, e)),
            },
        }
        if found.damage.last().is_some_and(|d| d.0 == cut) {
            crate::kernel::keep(&images, &story(j, cut))?;
        }
    }
    Ok(found)
}

/// What becomes of writes that were not flushed: all of them are there, none, or a part that differs from cut to cut.
struct Fate<'a> {
    chance: &'a Chance,
    /// Out of 100.
    keep: u64,
    /// A write is there or not, and not in part.
    whole: bool,
    /// At a risky moment, mostly: the log is on the medium, and what was not flushed is there in part.
    log_first: bool,
}

impl<'a> Fate<'a> {
    fn new(chance: &'a Chance, n: usize, log_first: bool) -> Fate<'a> {
        let keep = match n % 4 {
            0 => 0,
            1 => 100,
            _ => 1 + chance.below(99),
        };
        Fate { chance, keep, whole: n.is_multiple_of(3), log_first }
    }

    fn of(&mut self, log: bool, sectors: usize) -> Vec<bool> {
        if self.log_first && log {
            return vec![true; sectors];
        }
        let all = self.chance.below(100) < self.keep;
        (0..sectors).map(|_| if self.whole { all } else { self.chance.below(100) < self.keep }).collect()
    }
}

fn devices(images: &[Arc<Memory>]) -> Devices {
    Devices { data: images[0].clone(), log: images.get(1).map(|l| l.clone() as DeviceRef) }
}

/// True if the log has intents that are not done.
fn unfinished(images: &[Memory]) -> bool {
    let images: Vec<Arc<Memory>> = images.iter().map(|i| Arc::new(i.fork())).collect();
    uxfs::describe_log(&devices(&images), &mut |_, _| {}).is_ok_and(|l| l.unfinished > 0)
}

/// Recovers images and cuts that somewhere.
fn cut_recovery(images: &[Memory], tear: usize, chance: &Chance) -> Result<Vec<Memory>, String> {
    let say = |e: std::io::Error| e.to_string();
    let data = Arc::new(Recorder::new(Arc::new(images[0].fork())).map_err(say)?);
    let log = images.get(1).map(|l| data.beside(Arc::new(l.fork()))).transpose().map_err(say)?;
    let devices = Devices { data: data.clone(), log: log.map(|l| Arc::new(l) as DeviceRef) };
    // Dropped without an unmount: where it is cut decides how far it came.
    drop(Fs::open(devices, options(1)).map_err(|e| format!("recovery: {e}"))?);
    let trace = data.trace();
    let cut = chance.below(trace.events.len() as u64 + 1) as usize;
    let mut fate = Fate::new(chance, 2 + cut % 2, false);
    trace.images_at(cut, tear, &mut |_, _, sectors| fate.of(false, sectors)).map_err(say)
}

/// Places in the history just after a record was written to the log while something that went home, or data, was not flushed;
/// or after any write, where there is no such place.
fn risky_moments(j: &Journey) -> Vec<usize> {
    let (mut writes, mut risky) = (Vec::new(), Vec::new());
    let (mut in_log, mut unflushed) = (HashSet::new(), false);
    for (i, e) in j.trace.events.iter().enumerate() {
        match e {
            Event::WriteBegin { id, dev, offset, .. } if j.is_log(*dev, *offset) => {
                in_log.insert(*id);
            }
            Event::WriteEnd { id } => {
                writes.push(i + 1);
                if !in_log.remove(id) {
                    unflushed = true;
                } else if unflushed && i >= j.ready {
                    risky.push(i + 1);
                }
            }
            Event::FlushBegin { dev: 0, .. } => unflushed = false,
            _ => {}
        }
    }
    writes.retain(|w| *w >= j.ready);
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

/// What the workers had done at a cut.
fn story(j: &Journey, cut: usize) -> String {
    let mut text = String::new();
    for (w, ops) in (j.first..).zip(&j.histories) {
        let (began, ended) = progress(&j.trace.events[..cut], w);
        text += &format!("worker {w}: {began} began, {ended} ended\n");
        ops.iter().take(began as usize).enumerate().for_each(|(n, op)| text += &format!("{n} {op:?}\n"));
    }
    text
}

/// What the checker calls attributes that a crash left half set.
pub(crate) const HIDDEN: &str = "attribute-hidden";

/// What a recovery left.
struct Left {
    digest: u64,
    forms: Forms,
    /// The log was dirty.
    dirty: bool,
}

/// Recovers images, perhaps `again`, and holds what is there against the models.
fn judge(j: &Journey, cut: usize, images: Vec<Memory>, again: bool) -> Result<Left, String> {
    let images: Vec<Arc<Memory>> = images.into_iter().map(Arc::new).collect();
    if !j.by_kernel && j.shape.journal.flush.is_safe() {
        as_the_kernel(&images)?;
    }
    let fs = Fs::open(devices(&images), options(1)).map_err(|e| format!("recovery: {e}"))?;
    let dirty = fs.was_recovered();
    let events = &j.trace.events[..cut];
    for (w, model) in (j.first..).zip(&j.models) {
        let (began, ended) = progress(events, w);
        worker(&fs, w, model, began, ended)?;
    }
    for (w, digest) in &j.kept {
        let say = |e: uxfs::Error| format!("worker {w}, who does nothing any more: {e}");
        if look(&fs, fs.lookup(fs.root(), top_name(*w).as_bytes()).map_err(say)?.ino).map_err(say)?.digest != *digest {
            return Err(format!("the names of worker {w}, who does nothing any more, changed"));
        }
    }
    fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    let log = images.get(1).map(|l| &**l as &dyn Device);
    let report = uxfs_check::check_with_log(&*images[0], log).map_err(|e| e.to_string())?;
    // The kernel hides attributes while it writes them. Its recovery, after which the log is clean, leaves them; ours takes them out,
    // but one that was cut may have found the log too full to remember them.
    let may_hide = j.by_kernel && (again || !dirty);
    if let Some(f) = report.findings.iter().find(|f| !may_hide || f.code != HIDDEN) {
        return Err(format!("check: {f} ({} findings)", report.findings.len()));
    }
    Ok(Left { digest: images.iter().fold(0, |d, i| d.rotate_left(1) ^ i.digest()), forms: report.forms, dirty })
}

/// The kernel would find the same head and tail: what it looks for is less than what we do.
fn as_the_kernel(images: &[Arc<Memory>]) -> Result<(), String> {
    let mut sector = vec![0; 4096];
    images[0].read(0, &mut sector).map_err(|e| e.to_string())?;
    let (g, _) = Geometry::parse(&sector).map_err(|e| e.to_string())?;
    let log = images.last().map_or(&images[0], |l| l);
    let geo = if images.len() > 1 { LogGeometry { start: 0, ..LogGeometry::of(&g) } } else { LogGeometry::of(&g) };
    let ours = find_log_state(log, &geo).map_err(|e| format!("head and tail: {e}"))?;
    let theirs = find_as_kernel(log, &geo).map_err(|e| format!("head and tail as the kernel looks for them: {e}"))?;
    if (ours.head, ours.tail, ours.clean) != (theirs.head, theirs.tail, theirs.clean) {
        return Err(format!("head and tail: {ours:?}; as the kernel looks for them: {theirs:?}"));
    }
    Ok(())
}

fn worker(fs: &Fs, w: u32, model: &Model, began: u64, ended: u64) -> Result<(), String> {
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
    let possible = |(n, digest): &(u64, u64)| (from..=began).contains(n) && *digest == seen.digest;
    if !model.digests.iter().any(possible) {
        let other = model.digests.iter().rfind(|d| d.1 == seen.digest).map(|d| d.0);
        return Err(format!(
            "worker {w}: the names are those after operation {other:?}, those after {from} to {began} were possible\n{}",
            seen.text
        ));
    }
    let last = began.saturating_sub(1);
    // An exchange in the middle of which it was cut: both files are as they were, or both as they are after it.
    let both = [(last.saturating_sub(1), ended), (last, began)];
    let possible = if began > ended && model.exchanges.contains(&last) { &both[..] } else { &[(last, ended)] };
    // Number 0 is for a file that has not got its own yet.
    let mut files = Vec::new();
    for (id, ino, size) in seen.files.iter().filter(|f| f.0 != 0) {
        let Some(node) = model.any(*id) else { return Err(format!("worker {w}: file {id} was never made")) };
        let mut content = vec![0; *size as usize];
        let n = fs.read(*ino, 0, &mut content).map_err(say)?;
        content.truncate(n);
        files.push((id, node, content));
    }
    let are = |&(last, ended): &(u64, u64)| {
        let one = |(id, node, content): &(&u32, &Node, Vec<u8>)| {
            node.data.check(content, last, ended).map_err(|e| format!("worker {w}: file {id}: {e}"))
        };
        files.iter().try_for_each(one)
    };
    let tried: Vec<_> = possible.iter().map(are).collect();
    if tried.iter().any(Result::is_ok) { Ok(()) } else { tried.into_iter().collect() }
}
