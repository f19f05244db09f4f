//! Random operations on a volume, recorded, with their model.

use crate::model::{Data, History, Model, Node, TOP};
use std::ops::Range;
use std::sync::Arc;
use uxfs::{Allocate, AttrName, Devices, Fs, JournalConfig, Make, Options, Rename, SetAttr, SetMode};
use uxfs_device::timed::{Timed, Timing};
use uxfs_device::{DeviceRef, Memory, Recorder, Trace};
use uxfs_mkfs::Features;
use uxfs_sync::{Chance, FixedClock};

/// The volume and how much is done on it.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Bytes of the volume.
    pub size: u64,
    /// Groups.
    pub agcount: u32,
    /// Bytes of the log; `None` for the smallest.
    pub log: Option<u64>,
    /// Workers at once, each in a directory of its own.
    pub workers: u32,
    /// Operations a worker.
    pub ops: u64,
    /// What they do.
    pub mix: Mix,
    /// With all that mkfs.xfs 7.2 turns on: reverse mappings and parent pointers above all. Else as 6.1 makes it.
    pub newest: bool,
    /// The log has a device of its own.
    pub external: bool,
    /// How the journal works.
    pub journal: JournalConfig,
    /// What is freed is discarded.
    pub discard: bool,
    /// How long the device takes; `None` for no time. Time is where threads come between each other.
    pub timing: Option<Timing>,
    /// Seed of everything that is left to chance.
    pub seed: u64,
}

impl Default for Shape {
    /// Two workers that do a little of everything on a small volume.
    fn default() -> Shape {
        Shape {
            size: 64 << 20,
            agcount: 2,
            log: None,
            workers: 2,
            ops: 500,
            mix: Mix { data: 40, sync: 15, churn: true, clones: false },
            newest: false,
            external: false,
            journal: JournalConfig::default(),
            discard: false,
            timing: None,
            seed: 0,
        }
    }
}

/// How often things are done, out of 100.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Writes and truncations.
    pub data: u64,
    /// fsync of a file, or sync of all; with 0 there is one at the end.
    pub sync: u64,
    /// Files are removed as often as made.
    pub churn: bool,
    /// Files get the blocks of others, too.
    pub clones: bool,
}

/// A finished workload.
pub struct Journey {
    /// What the device saw.
    pub trace: Trace,
    /// One for each worker.
    pub models: Vec<Model>,
    /// How the journal worked.
    pub journal: JournalConfig,
    /// The journal's counters at the end.
    pub stats: Vec<(&'static str, u64)>,
    /// Bytes of the log.
    pub log: u64,
    /// The device that it lies on, and where.
    pub log_at: (usize, Range<u64>),
}

impl Journey {
    /// True if a write goes to the log.
    pub(crate) fn is_log(&self, dev: usize, offset: u64) -> bool {
        dev == self.log_at.0 && self.log_at.1.contains(&offset)
    }
}

/// Marks: worker, operation, and whether it ended.
pub(crate) fn mark(worker: u32, op: u64, end: bool) -> u64 {
    u64::from(worker) << 48 | op << 1 | u64::from(end)
}

/// Name of a worker's directory.
pub(crate) fn top_name(worker: u32) -> String {
    format!("worker{worker}")
}

/// Options that leave nothing to time.
pub(crate) fn options(seed: u64) -> Options {
    Options {
        commit: 0,
        clock: Box::new(FixedClock(1_700_000_000)),
        seed: Some(seed),
        journal: JournalConfig::default(),
        ..Options::default()
    }
}

/// Makes a volume, works on it, and stops it as a power cut would, without an unmount.
///
/// # Errors
/// An operation failed that should not have.
pub fn run(shape: &Shape) -> Result<Journey, String> {
    let base: DeviceRef = Arc::new(Memory::new(shape.size));
    let log_bytes = shape.log.unwrap_or(shape.size / 8);
    let log: Option<DeviceRef> = shape.external.then(|| Arc::new(Memory::new(log_bytes)) as DeviceRef);
    let o = uxfs_mkfs::Options {
        agcount: Some(shape.agcount),
        log_size: shape.log,
        log_device: shape.external.then_some(log_bytes),
        least_log: shape.log.is_none(),
        features: if shape.newest { Features::NEWEST } else { Features::V6_1 },
        ..uxfs_mkfs::Options::new(shape.size, [7; 16])
    };
    uxfs_mkfs::format_with_log(&*base, log.as_ref().unwrap_or(&base), &o).map_err(|e| e.to_string())?;
    let say = |e: uxfs::Error| e.to_string();
    // The workers' directories are there from the start.
    let fs = Fs::open(Devices { data: base.clone(), log: log.clone() }, options(shape.seed)).map_err(say)?;
    for w in 0..shape.workers {
        fs.create(fs.root(), top_name(w).as_bytes(), Make { mode: 0o040_755, uid: TOP, gid: 0, rdev: (0, 0), umask: 0 }).map_err(say)?;
    }
    fs.unmount().map_err(say)?;
    let slow = |dev: DeviceRef| -> DeviceRef {
        match shape.timing {
            Some(t) => Arc::new(Timed::new(dev, t, 1.0)),
            None => dev,
        }
    };
    let recorder = Arc::new(Recorder::new(slow(base)).map_err(|e| e.to_string())?);
    let log = log.map(slow).map(|l| recorder.beside(l)).transpose().map_err(|e| e.to_string())?;
    let devices = Devices { data: recorder.clone(), log: log.map(|l| Arc::new(l) as DeviceRef) };
    let fs = Fs::open(devices, Options { journal: shape.journal.clone(), discard: shape.discard, ..options(shape.seed) }).map_err(say)?;
    let models = std::thread::scope(|s| {
        let (fs, recorder) = (&fs, &*recorder);
        let jobs: Vec<_> = (0..shape.workers).map(|w| s.spawn(move || Worker::new(w, fs, recorder, shape)?.work())).collect();
        jobs.into_iter().map(|j| j.join().unwrap_or_else(|_| Err("a worker panicked".into()))).collect::<Result<Vec<_>, String>>()
    })?;
    if shape.mix.sync == 0 {
        // What was gathered all the time goes to the log at once. Nobody was promised anything.
        fs.sync().map_err(say)?;
    }
    if let Some(why) = fs.shutdown_reason() {
        return Err(why);
    }
    let (stats, log) = (fs.stats(), fs.log_usage().1);
    let start = fs.geometry().fsb_daddr(fs.geometry().logstart).0 * 512;
    let trace = recorder.trace();
    drop(fs);
    Ok(Journey { trace, models, journal: shape.journal.clone(), stats, log, log_at: (usize::from(shape.external), start..start + log) })
}

struct Worker<'a> {
    number: u32,
    fs: &'a Fs,
    recorder: &'a Recorder,
    chance: Chance,
    model: Model,
    shape: &'a Shape,
    /// The operation under way.
    op: u64,
}

/// Longest file of a workload, in bytes.
const LONGEST: u64 = 200_000;

impl<'a> Worker<'a> {
    fn new(number: u32, fs: &'a Fs, recorder: &'a Recorder, shape: &'a Shape) -> Result<Worker<'a>, String> {
        let top = fs.lookup(fs.root(), top_name(number).as_bytes()).map_err(|e| e.to_string())?;
        let chance = Chance::seeded(shape.seed ^ u64::from(number) << 32);
        Ok(Worker { number, fs, recorder, chance, model: Model::new(top.ino), shape, op: 0 })
    }

    fn work(mut self) -> Result<Model, String> {
        for op in 0..self.shape.ops {
            self.op = op;
            self.recorder.mark(mark(self.number, op, false));
            self.step(op).map_err(|e| format!("worker {} operation {op}: {e}", self.number))?;
            self.model.end_op();
            self.recorder.mark(mark(self.number, op, true));
        }
        Ok(self.model)
    }

    fn pick(&self, want: impl Fn(&Node) -> bool) -> Option<u32> {
        let all: Vec<u32> = self.model.nodes.iter().filter(|n| want(n.1)).map(|n| *n.0).collect();
        (!all.is_empty()).then(|| all[self.chance.below(all.len() as u64) as usize])
    }

    fn dir(&self) -> u32 {
        // Mostly one directory, so that it takes all forms.
        if self.chance.below(3) > 0 { TOP } else { self.pick(|n| n.mode & 0o170_000 == 0o040_000).unwrap_or(TOP) }
    }

    fn file(&self) -> Option<u32> {
        self.pick(|n| n.mode & 0o170_000 == 0o100_000)
    }

    /// A name in a directory, with the node that it leads to.
    fn name(&self) -> Option<(u32, String, u32)> {
        let d = self.pick(|n| !n.names.is_empty())?;
        let names = &self.model.nodes[&d].names;
        let (n, id) = names.iter().nth(self.chance.below(names.len() as u64) as usize)?;
        Some((d, n.clone(), *id))
    }

    /// A node, to be changed by the operation under way.
    fn node(&mut self, id: u32) -> &mut Node {
        let n = self.model.nodes.entry(id).or_default();
        n.changed = self.op;
        n
    }

    fn data(&mut self, id: u32) -> &mut History {
        &mut self.model.nodes.entry(id).or_default().data
    }

    fn step(&mut self, op: u64) -> uxfs::Result<()> {
        let (roll, mix) = (self.chance.below(100), self.shape.mix);
        if mix.clones && roll < mix.data && self.chance.below(5) == 0 {
            return self.clone_blocks(op);
        }
        if roll < mix.data {
            return match self.chance.below(8) {
                0 => self.truncate(op),
                1 => self.allocate(op),
                _ => self.write(op),
            };
        }
        if roll < mix.data + mix.sync {
            return if self.chance.below(4) == 0 { self.sync(op) } else { self.fsync(op) };
        }
        let removals = if mix.churn { 8 } else { 3 };
        match self.chance.below(16 + removals) {
            0..8 => self.make(0o100_644),
            8 | 9 => self.make(0o040_755),
            10 => self.make(0o120_777),
            11 => self.link(),
            12 | 13 => self.rename(),
            14 => self.attr(),
            15 => self.chmod(),
            _ => self.remove(),
        }
    }

    fn make(&mut self, mode: u16) -> uxfs::Result<()> {
        let (d, id) = (self.dir(), self.model.fresh());
        let name = format!("{}{id}", ["n", "a longer name of a node ", "middling "][self.chance.below(3) as usize]);
        let dir = self.model.nodes[&d].ino;
        let mut n = Node { mode, nlink: 1, changed: self.op, ..Node::default() };
        let s = if mode & 0o170_000 == 0o120_000 {
            let target = format!("target{}", "/x".repeat(self.chance.below(400) as usize));
            n.target = Some(target.clone());
            self.fs.symlink(dir, name.as_bytes(), target.as_bytes(), id, 0)?
        } else {
            self.fs.create(dir, name.as_bytes(), Make { mode, uid: id, gid: 0, rdev: (0, 0), umask: 0 })?
        };
        n.ino = s.ino;
        if mode & 0o170_000 == 0o040_000 {
            n.nlink = 2;
            self.node(d).nlink += 1;
        }
        self.model.nodes.insert(id, n);
        self.node(d).names.insert(name, id);
        Ok(())
    }

    fn drop_link(&mut self, id: u32) {
        let n = self.node(id);
        n.nlink -= 1;
        if n.nlink == 0
            && let Some(n) = self.model.nodes.remove(&id)
        {
            self.model.gone.insert(id, n);
        }
    }

    fn remove(&mut self) -> uxfs::Result<()> {
        let Some((d, name, id)) = self.name() else { return Ok(()) };
        let dir = self.model.nodes[&d].ino;
        let n = &self.model.nodes[&id];
        if n.mode & 0o170_000 == 0o040_000 {
            if !n.names.is_empty() {
                return Ok(());
            }
            self.fs.rmdir(dir, name.as_bytes())?;
            self.node(d).nlink -= 1;
            self.node(id).nlink = 1;
        } else {
            self.fs.unlink(dir, name.as_bytes())?;
        }
        self.node(d).names.remove(&name);
        self.drop_link(id);
        Ok(())
    }

    fn link(&mut self) -> uxfs::Result<()> {
        let (Some(id), d) = (self.file(), self.dir()) else { return Ok(()) };
        let name = format!("link {}", self.model.fresh());
        self.fs.link(self.model.nodes[&id].ino, self.model.nodes[&d].ino, name.as_bytes())?;
        self.node(id).nlink += 1;
        self.node(d).names.insert(name, id);
        Ok(())
    }

    fn is_below(&self, id: u32, above: u32) -> bool {
        id == above || self.model.nodes[&above].names.values().any(|c| self.is_below(id, *c))
    }

    fn rename(&mut self) -> uxfs::Result<()> {
        let Some((od, oname, id)) = self.name() else { return Ok(()) };
        let over = self.chance.below(3) == 0;
        let (nd, nname) = match self.name() {
            Some((d, n, other)) if over && other != id && self.model.nodes[&other].mode & 0o170_000 == 0o100_000 => (d, n),
            _ => (self.dir(), format!("renamed {}", self.model.fresh())),
        };
        let is_dir = self.model.nodes[&id].mode & 0o170_000 == 0o040_000;
        let replaced = self.model.nodes[&nd].names.get(&nname).copied();
        if let Some(other) = replaced.filter(|r| !is_dir && *r != id && self.chance.below(2) == 0) {
            let (o, n) = (self.model.nodes[&od].ino, self.model.nodes[&nd].ino);
            self.fs.rename(o, oname.as_bytes(), n, nname.as_bytes(), Rename::Exchange)?;
            self.node(od).names.insert(oname, other);
            self.node(nd).names.insert(nname, id);
            self.node(id);
            self.node(other);
            return Ok(());
        }
        if self.is_below(nd, id) || (is_dir && replaced.is_some()) || replaced == Some(id) {
            return Ok(());
        }
        let (o, n) = (self.model.nodes[&od].ino, self.model.nodes[&nd].ino);
        self.fs.rename(o, oname.as_bytes(), n, nname.as_bytes(), Rename::Replace)?;
        self.node(od).names.remove(&oname);
        self.node(nd).names.insert(nname, id);
        self.node(id);
        if is_dir {
            self.node(od).nlink -= 1;
            self.node(nd).nlink += 1;
        }
        if let Some(r) = replaced {
            self.drop_link(r);
        }
        Ok(())
    }

    fn attr(&mut self) -> uxfs::Result<()> {
        let Some((_, _, id)) = self.name() else { return Ok(()) };
        let ino = self.model.nodes[&id].ino;
        let name = format!("name{}", self.chance.below(6));
        if self.chance.below(4) == 0 && self.node(id).attrs.remove(&name).is_some() {
            return self.fs.remove_attr(ino, AttrName { namespace: 0, name: name.as_bytes() });
        }
        let value = vec![b'v'; 1 + self.chance.below(300) as usize];
        self.fs.set_attr(ino, AttrName { namespace: 0, name: name.as_bytes() }, &value, SetMode::Any)?;
        self.node(id).attrs.insert(name, value);
        Ok(())
    }

    fn chmod(&mut self) -> uxfs::Result<()> {
        let Some(id) = self.file() else { return Ok(()) };
        let mode = self.chance.below(0o1000) as u16;
        self.fs.setattr(self.model.nodes[&id].ino, SetAttr { mode: Some(mode), ..SetAttr::default() })?;
        self.node(id).mode = 0o100_000 | mode;
        Ok(())
    }

    fn write(&mut self, op: u64) -> uxfs::Result<()> {
        let Some(id) = self.file() else { return Ok(()) };
        let size = self.model.nodes[&id].data.size;
        let at = if self.chance.below(2) == 0 { size } else { self.chance.below(LONGEST / 2) }.min(LONGEST);
        let len = 1 + self.chance.below(if self.chance.below(4) == 0 { 60_000 } else { 5000 });
        // Never 0, so that a written byte differs from a hole.
        let fill = 1 + (op % 255) as u8;
        self.data(id).events.push((op, Data::Write { at, len, fill }));
        let ino = self.model.nodes[&id].ino;
        self.fs.write(ino, at, &vec![fill; len as usize], false)?;
        let d = self.data(id);
        d.size = d.size.max(at + len);
        Ok(())
    }

    /// Lets a file share blocks of another one, or all that it has.
    fn clone_blocks(&mut self, op: u64) -> uxfs::Result<()> {
        let (Some(from), Some(to)) = (self.file(), self.file()) else { return Ok(()) };
        let bs = u64::from(self.fs.geometry().blocksize);
        let (src, dst) = (self.model.nodes[&from].data.content(), self.model.nodes[&to].data.size);
        let size = src.len() as u64;
        if from == to || size == 0 {
            return Ok(());
        }
        let at = self.chance.below(size.div_ceil(bs)) * bs;
        let some = ((1 + self.chance.below(12)) * bs).min(size - at);
        // Up to the end of the source only where that is the end of the other, too.
        let len = if some == size - at && size < dst { some / bs * bs } else { some };
        if len == 0 {
            return Ok(());
        }
        let bytes = src[at as usize..(at + len) as usize].to_vec();
        self.data(to).events.push((op, Data::Shared { at, bytes }));
        self.fs.clone_range((self.model.nodes[&from].ino, at), (self.model.nodes[&to].ino, at), len)?;
        let d = self.data(to);
        d.size = d.size.max(at + len);
        Ok(())
    }

    /// Zeroes a range, as a hole or with blocks, or reserves blocks behind the end.
    fn allocate(&mut self, op: u64) -> uxfs::Result<()> {
        let Some(id) = self.file() else { return Ok(()) };
        let size = self.model.nodes[&id].data.size;
        let ino = self.model.nodes[&id].ino;
        let what = match self.chance.below(3) {
            0 => return self.fs.fallocate(ino, Allocate::Reserve { keep_size: true }, size, 1 + self.chance.below(50_000)),
            1 => Allocate::Punch,
            _ => Allocate::Zero { keep_size: true },
        };
        let at = self.chance.below(size);
        let len = (1 + self.chance.below(30_000)).min(size - at);
        if len > 0 {
            self.data(id).events.push((op, Data::Write { at, len, fill: 0 }));
            self.fs.fallocate(ino, what, at, len)?;
        }
        Ok(())
    }

    fn truncate(&mut self, op: u64) -> uxfs::Result<()> {
        let Some(id) = self.file() else { return Ok(()) };
        let size = self.chance.below(self.model.nodes[&id].data.size + 20_000).min(LONGEST);
        self.data(id).events.push((op, Data::Size(size)));
        self.fs.setattr(self.model.nodes[&id].ino, SetAttr { size: Some(size), ..SetAttr::default() })?;
        self.data(id).size = size;
        Ok(())
    }

    fn fsync(&mut self, op: u64) -> uxfs::Result<()> {
        let Some(id) = self.file() else { return Ok(()) };
        self.fs.fsync(self.model.nodes[&id].ino)?;
        if let Some(n) = self.model.nodes.get_mut(&id) {
            n.data.events.push((op, Data::Synced(n.changed + 1)));
        }
        Ok(())
    }

    fn sync(&mut self, op: u64) -> uxfs::Result<()> {
        self.fs.sync()?;
        for n in self.model.nodes.values_mut().filter(|n| n.mode & 0o170_000 == 0o100_000) {
            n.data.events.push((op, Data::Synced(op)));
        }
        self.model.syncs.push(op);
        Ok(())
    }
}
