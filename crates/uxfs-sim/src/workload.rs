//! Random operations on a volume, recorded, with their model.

use crate::age::{FILLER, age, fill};
use crate::model::{Crowd, Model, Node, TOP};
use crate::ops::{Made, Op};
use crate::subject::{Done, Subject};
use std::ops::Range;
use std::sync::Arc;
use uxfs::{Allocate, Devices, DropBehind, Fs, JournalConfig, Make, Options};
use uxfs_device::timed::{Timed, Timing};
use uxfs_device::{Device, DeviceRef, Memory, Recorder, Trace};
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
    /// How large things on the volume are.
    pub form: Form,
    /// Bytes that are free at the start, in small pieces all over the volume; `None` for all of it.
    pub room: Option<u64>,
    /// It was in use for long: see [`age`].
    pub aged: bool,
    /// Each worker's directory begins with so many names beside those of the model, which come and go.
    pub crowd: u32,
    /// The log has a device of its own.
    pub external: bool,
    /// How the journal works.
    pub journal: JournalConfig,
    /// What is freed is discarded.
    pub discard: bool,
    /// The least memory that works: what is dirty is written back while more is written, and metadata is read again.
    pub short_of_memory: bool,
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
            form: Form::default(),
            room: None,
            aged: false,
            crowd: 0,
            external: false,
            journal: JournalConfig::default(),
            discard: false,
            short_of_memory: false,
            timing: None,
            seed: 0,
        }
    }
}

/// Bytes of what a volume is made of.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// A block.
    pub block: u32,
    /// A block of a directory.
    pub dir_block: u32,
    /// An inode.
    pub inode: u32,
    /// A sector.
    pub sector: u32,
    /// What goes to one disk of a stripe, and what records of the log are rounded to; 0 for none.
    pub stripe: u32,
}

impl Default for Form {
    /// As mkfs.xfs makes volumes.
    fn default() -> Form {
        Form { block: 4096, dir_block: 4096, inode: 512, sector: 512, stripe: 0 }
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
    /// Files get the blocks of others, too, by clones, dedupes and exchanges; or theirs move.
    pub clones: bool,
}

/// A finished workload.
pub struct Journey {
    /// What the devices saw.
    pub trace: Trace,
    /// From this event on the workers' directories are durable.
    pub ready: usize,
    /// Number of the first worker.
    pub first: u32,
    /// One for each worker.
    pub models: Vec<Model>,
    /// What each worker did.
    pub histories: Vec<Vec<Op>>,
    /// Digests of other workers' directories, in which nothing is done.
    pub kept: Vec<(u32, u64)>,
    /// What it was made from.
    pub shape: Shape,
    /// The journal's counters at the end; none of the kernel's.
    pub stats: Vec<(&'static str, u64)>,
    /// The device that the log lies on, and where.
    pub log_at: (usize, Range<u64>),
    /// The kernel's XFS worked, not ours.
    pub by_kernel: bool,
}

impl Journey {
    /// True if a write goes to the log.
    pub(crate) fn is_log(&self, dev: usize, offset: u64) -> bool {
        dev == self.log_at.0 && self.log_at.1.contains(&offset)
    }
    /// Bytes of the log.
    pub fn log_bytes(&self) -> u64 {
        self.log_at.1.end - self.log_at.1.start
    }
    /// A counter of the journal; 0 for one that there is not.
    pub fn stat(&self, name: &str) -> u64 {
        self.stats.iter().find(|s| s.0 == name).map_or(0, |s| s.1)
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

/// Name of the file that a worker's crowd of names leads to.
pub(crate) fn beside(worker: u32) -> String {
    format!("beside{worker}")
}

/// Makes the workers' directories, from number `first` on.
pub(crate) fn tops(fs: &Fs, shape: &Shape, first: u32) -> uxfs::Result<()> {
    let make = |mode| Make { mode, uid: TOP, gid: 0, rdev: (0, 0), umask: 0 };
    for w in first..first + shape.workers {
        let top = fs.create(fs.root(), top_name(w).as_bytes(), make(0o040_755))?.ino;
        if shape.crowd > 0 {
            let file = fs.create(fs.root(), beside(w).as_bytes(), make(0o100_644))?.ino;
            crowd(shape).try_for_each(|name| fs.link(file, top, Crowd::spell(name).as_bytes()).map(drop))?;
        }
    }
    Ok(())
}

/// The names that a crowd begins with: every other one.
fn crowd(shape: &Shape) -> impl Iterator<Item = u32> + use<> {
    (0..2 * shape.crowd).step_by(2)
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

/// What the workers do.
#[derive(Clone, Copy)]
pub(crate) enum Work<'a> {
    /// What the shape and its seed say.
    Random,
    /// What one worker did before; what does not fit any more is left out.
    Again(&'a [Op]),
}

/// Makes a volume, works on it, and stops it as a power cut would, without an unmount.
///
/// # Errors
/// An operation failed that should not have.
pub fn run(shape: &Shape) -> Result<Journey, String> {
    live(make(shape)?, shape, 0, Work::Random)
}

/// Does what one worker did before, or a part of it, on a new volume. Of one worker the record is the same each time.
///
/// # Errors
/// An operation failed that should not have.
pub fn replay(shape: &Shape, history: &[Op]) -> Result<Journey, String> {
    let shape = Shape { workers: 1, ..shape.clone() };
    live(make(&shape)?, &shape, 0, Work::Again(history))
}

/// Recovers the volume that a cut of `j` left, and goes on there, with other workers.
///
/// # Errors
/// An operation failed that should not have.
pub(crate) fn second_life(j: &Journey, images: Vec<Memory>, seed: u64) -> Result<Journey, String> {
    let mix = Mix { sync: 30, ..j.shape.mix };
    let shape = Shape { workers: 1, ops: 60, mix, timing: None, seed, ..j.shape.clone() };
    live(images, &shape, j.first + j.models.len() as u32, Work::Random)
}

/// Devices of a new volume, with its log.
///
/// # Errors
/// There is no such volume.
pub(crate) fn make(shape: &Shape) -> Result<Vec<Memory>, String> {
    let log_bytes = shape.log.unwrap_or(shape.size / 4);
    let mut images = vec![Memory::new(shape.size)];
    images.extend(shape.external.then(|| Memory::new(log_bytes)));
    let o = uxfs_mkfs::Options {
        agcount: Some(shape.agcount),
        log_size: shape.log,
        log_device: shape.external.then_some(log_bytes),
        least_log: shape.log.is_none(),
        block: shape.form.block,
        dir_block: Some(shape.form.dir_block),
        inode: shape.form.inode,
        sector: shape.form.sector,
        stripe_unit: shape.form.stripe,
        stripe_width: 2 * shape.form.stripe,
        log_unit: (shape.form.stripe > 0).then_some(shape.form.stripe),
        features: if shape.newest { Features::NEWEST } else { Features::V6_1 },
        ..uxfs_mkfs::Options::new(shape.size, [7; 16])
    };
    let log = images.get(1).unwrap_or(&images[0]);
    uxfs_mkfs::format_with_log(&images[0], log, &o).map_err(|e| e.to_string())?;
    if shape.aged { age(images, shape.seed).map_err(|e| format!("it cannot grow old: {e}")) } else { Ok(images) }
}

/// Devices that record in one history, and take as long as the shape says.
pub(crate) fn record(images: Vec<Memory>, shape: &Shape) -> Result<Vec<Arc<Recorder>>, String> {
    let say = |e: std::io::Error| e.to_string();
    let mut all: Vec<Arc<Recorder>> = Vec::new();
    for i in images {
        let mut dev: DeviceRef = Arc::new(i);
        if let Some(t) = shape.timing {
            dev = Arc::new(Timed::new(dev, t, 1.0));
        }
        let recorder = match all.first() {
            Some(first) => first.beside(dev),
            None => Recorder::new(dev),
        };
        all.push(Arc::new(recorder.map_err(say)?));
    }
    Ok(all)
}

/// The directories of a volume that is open already.
fn kept(fs: &Fs, workers: Range<u32>) -> Result<Vec<(u32, u64)>, uxfs::Error> {
    let one = |w: u32| Ok((w, crate::model::look(fs, fs.lookup(fs.root(), top_name(w).as_bytes())?.ino)?.digest));
    workers.map(one).collect()
}

fn live(images: Vec<Memory>, shape: &Shape, first: u32, work: Work<'_>) -> Result<Journey, String> {
    let say = |e: uxfs::Error| e.to_string();
    let devices = record(images, shape)?;
    let opened = Devices { data: devices[0].clone(), log: devices.get(1).map(|l| l.clone() as DeviceRef) };
    let open = || {
        let memory = if shape.short_of_memory { uxfs::LEAST_MEMORY } else { uxfs::DEFAULT_MEMORY };
        let metadata = shape.short_of_memory.then_some(0);
        // The history of one worker is the same each time: nobody works beside it.
        let drop_behind = if shape.workers == 1 { DropBehind::Inline } else { DropBehind::default() };
        let o = Options { journal: shape.journal.clone(), discard: shape.discard, memory, metadata, drop_behind, ..options(shape.seed) };
        Fs::open(opened.clone(), o).map_err(say)
    };
    let mut fs = open()?;
    let kept = kept(&fs, 0..first).map_err(say)?;
    match shape.room {
        Some(room) if first == 0 => fill(&fs, room, shape.seed).map_err(say)?,
        // Room for the new workers' directories.
        Some(_) => fs.fallocate(fs.lookup(fs.root(), FILLER).map_err(say)?.ino, Allocate::Punch, 0, 4 << 20).map_err(say)?,
        None => {}
    }
    // The workers' directories are there from the start.
    tops(&fs, shape, first).map_err(say)?;
    if first == 0 || shape.seed.is_multiple_of(2) {
        fs.unmount().map_err(say)?;
        fs = open()?;
    } else {
        fs.sync().map_err(say)?;
    }
    let ready = devices[0].mark(u64::MAX);
    let ino = |name: String| fs.lookup(fs.root(), name.as_bytes()).map(|s| s.ino).map_err(say);
    let inos = |w: u32| Ok([ino(top_name(w))?, if shape.crowd > 0 { ino(beside(w))? } else { 0 }]);
    let (models, histories) = work_on(&fs, &devices[0], shape, first, work, &inos)?;
    if shape.mix.sync == 0 {
        // What was gathered all the time goes to the log at once. Nobody was promised anything.
        fs.sync().map_err(say)?;
    }
    if let Some(why) = fs.shutdown_reason() {
        return Err(why);
    }
    let (stats, log_at) = (fs.stats(), log_at(fs.geometry(), &devices));
    let trace = devices[0].trace();
    drop(fs);
    Ok(Journey { trace, ready, first, models, histories, kept, shape: shape.clone(), stats, log_at, by_kernel: false })
}

/// Where the log lies.
pub(crate) fn log_at(g: &uxfs_format::Geometry, devices: &[Arc<Recorder>]) -> (usize, Range<u64>) {
    match devices.get(1) {
        Some(log) => (1, 0..log.size_bytes()),
        None => {
            let start = g.fsb_daddr(g.logstart).0 * 512;
            (0, start..start + u64::from(g.log_bbs()) * 512)
        }
    }
}

/// Lets workers work on a subject, each in its directory; `inos` says the numbers of that and of the file of its crowd.
pub(crate) fn work_on(
    subject: &dyn Subject,
    recorder: &Recorder,
    shape: &Shape,
    first: u32,
    work: Work<'_>,
    inos: &(dyn Fn(u32) -> Result<[u64; 2], String> + Sync),
) -> Result<(Vec<Model>, Vec<Vec<Op>>), String> {
    let one = |number| {
        let chance = Chance::seeded(shape.seed ^ u64::from(number) << 32);
        let [top, ino] = inos(number)?;
        let model = Model::new(top, Crowd::new(ino, crowd(shape)));
        let w = Worker { number, subject, recorder, chance, model, shape, history: Vec::new() };
        w.work(work)
    };
    std::thread::scope(|s| {
        let one = &one;
        let jobs: Vec<_> = (first..first + shape.workers).map(|w| s.spawn(move || one(w))).collect();
        let ended = jobs.into_iter().map(|j| j.join().unwrap_or_else(|_| Err("a worker panicked".into())));
        Ok(ended.collect::<Result<Vec<_>, String>>()?.into_iter().unzip())
    })
}

struct Worker<'a> {
    number: u32,
    subject: &'a dyn Subject,
    recorder: &'a Recorder,
    chance: Chance,
    model: Model,
    shape: &'a Shape,
    history: Vec<Op>,
}

/// Longest file of a workload, in bytes.
const LONGEST: u64 = 200_000;

impl Worker<'_> {
    fn work(mut self, work: Work<'_>) -> Result<(Model, Vec<Op>), String> {
        match work {
            Work::Random => {
                for n in 0..self.shape.ops {
                    if let Some(op) = self.choose(n) {
                        self.step(op)?;
                    }
                }
            }
            Work::Again(ops) => ops.iter().cloned().try_for_each(|op| self.step(op))?,
        }
        Ok((self.model, self.history))
    }

    /// Does an operation, if it fits.
    fn step(&mut self, op: Op) -> Result<(), String> {
        if !self.model.fits(&op) {
            return Ok(());
        }
        let n = self.history.len() as u64;
        self.recorder.mark(mark(self.number, n, false));
        match self.subject.apply(&self.model, &op).map_err(|e| format!("worker {} operation {n}: {e}", self.number))? {
            Done::Whole(ino) => self.model.apply(n, &op, ino),
            Done::Full(left) => self.model.fail(n, &op, left),
        }
        if let (true, Op::Make { id, .. }) = (self.subject.owns_later(), &op) {
            self.model.note(n + 1, Some(*id));
        }
        self.model.note(n + 1, None);
        self.recorder.mark(mark(self.number, n, true));
        self.history.push(op);
        Ok(())
    }

    fn pick(&self, want: impl Fn(&Node) -> bool) -> Option<u32> {
        let all: Vec<u32> = self.model.nodes.iter().filter(|n| want(n.1)).map(|n| *n.0).collect();
        (!all.is_empty()).then(|| all[self.chance.below(all.len() as u64) as usize])
    }

    fn dir(&self) -> u32 {
        // Mostly one directory, so that it takes all forms.
        if self.chance.below(3) > 0 { TOP } else { self.pick(Node::is_dir).unwrap_or(TOP) }
    }

    fn file(&self) -> Option<u32> {
        self.pick(Node::is_file)
    }

    /// A name in a directory, with the node that it leads to.
    fn name(&self) -> Option<(u32, String, u32)> {
        let d = self.pick(|n| !n.names.is_empty())?;
        let names = &self.model.nodes[&d].names;
        let (n, id) = names.iter().nth(self.chance.below(names.len() as u64) as usize)?;
        Some((d, n.clone(), *id))
    }

    fn block(&self) -> u64 {
        u64::from(self.shape.form.block)
    }

    fn size(&self, id: u32) -> u64 {
        self.model.nodes[&id].data.size
    }

    fn choose(&mut self, n: u64) -> Option<Op> {
        if self.shape.crowd > 0 && self.chance.below(4) == 0 {
            return self.come_or_go(n);
        }
        let (roll, mix) = (self.chance.below(100), self.shape.mix);
        if mix.clones && roll < mix.data && self.chance.below(5) == 0 {
            return match self.chance.below(4) {
                0 => self.dedupe(),
                1 if self.shape.newest => self.exchange(),
                _ => self.clone_blocks(),
            };
        }
        if roll < mix.data {
            return match self.chance.below(8) {
                0 => self.truncate(),
                1 if mix.clones && self.chance.below(3) == 0 => self.shift(),
                1 => self.allocate(),
                _ => self.write(n),
            };
        }
        if roll < mix.data + mix.sync {
            return if self.chance.below(4) == 0 { Some(Op::Sync) } else { self.file().map(|id| Op::Fsync { id }) };
        }
        let removals = if mix.churn { 8 } else { 3 };
        match self.chance.below(16 + removals) {
            0..8 => Some(self.make(Made::File)),
            8 | 9 => Some(self.make(Made::Dir)),
            10 => {
                let target = format!("target{}", "/x".repeat(self.chance.below(509) as usize));
                Some(self.make(Made::Link(target)))
            }
            11 => {
                let (id, dir) = (self.file()?, self.dir());
                Some(Op::Link { id, dir, name: format!("link {}", self.model.fresh()) })
            }
            12 | 13 => self.rename(),
            14 => self.attr(),
            15 => {
                let id = self.file()?;
                Some(Op::Chmod { id, mode: self.chance.below(0o1000) as u16 })
            }
            _ => self.name().map(|(dir, name, _)| Op::Remove { dir, name }),
        }
    }

    /// A name of the crowd comes or goes: for a while they mostly come, then they mostly go. Or an attribute does.
    fn come_or_go(&mut self, n: u64) -> Option<Op> {
        if self.chance.below(4) == 0 {
            return self.attr();
        }
        let go = n / 64 % 2 == 1;
        let tries = (0..4).map(|_| self.chance.below(2 * u64::from(self.shape.crowd)) as u32);
        let (name, leaves) = tries.map(|name| (name, self.model.crowd.names.contains(&name))).find(|t| t.1 == go)?;
        Some(Op::Crowd { name, leaves })
    }

    fn make(&mut self, what: Made) -> Op {
        let (dir, id) = (self.dir(), self.model.fresh());
        let name = format!("{}{id}", ["n", "a longer name of a node ", "middling "][self.chance.below(3) as usize]);
        Op::Make { dir, id, name, what }
    }

    fn rename(&mut self) -> Option<Op> {
        let (od, oname, id) = self.name()?;
        let over = self.chance.below(3) == 0;
        let to = match self.name() {
            Some((d, n, other)) if over && other != id && self.model.nodes[&other].is_file() => (d, n),
            _ => (self.dir(), format!("renamed {}", self.model.fresh())),
        };
        // The kernel's exchange changes nothing in the files themselves: an fsync of one of them would not say that it is durable.
        let can = !self.subject.owns_later() && self.model.at(to.0, &to.1).is_some() && !self.model.nodes[&id].is_dir();
        let exchange = can && self.chance.below(2) == 0;
        Some(Op::Rename { from: (od, oname), to, exchange })
    }

    fn attr(&mut self) -> Option<Op> {
        let (_, _, id) = self.name()?;
        // Where names crowd, attributes do so at one node.
        let favourite = if self.shape.crowd > 0 && self.chance.below(4) > 0 { self.pick(|n| n.attrs.len() > 4) } else { None };
        let (id, kinds) = favourite.map_or((id, 6), |id| (id, 60));
        let name = format!("name{}", self.chance.below(kinds));
        let node = &self.model.nodes[&id];
        // The kernel gives links and the like no attributes of users.
        if self.subject.owns_later() && node.target.is_some() {
            return None;
        }
        // A value that the kernel puts in the place of another one may be cut in between: then there is none.
        if node.attrs.contains_key(&name) && (self.subject.owns_later() || self.chance.below(4) == 0) {
            return Some(Op::RemoveAttr { id, name });
        }
        // In the inode, in a leaf, in blocks of its own.
        let most = [300, 300, 1500, 12_000][self.chance.below(4) as usize];
        Some(Op::SetAttr { id, name, len: 1 + self.chance.below(most) as usize })
    }

    fn write(&mut self, n: u64) -> Option<Op> {
        let block = self.block();
        let id = self.file()?;
        let at = if self.chance.below(2) == 0 { self.size(id) } else { self.chance.below(LONGEST / 2) }.min(LONGEST);
        let len = 1 + self.chance.below(if self.chance.below(4) == 0 { 60_000 } else { 5000 });
        // Whole blocks are kept as they are by whoever takes them.
        let (at, len) = if self.chance.below(4) == 0 { (at / block * block, len.next_multiple_of(block)) } else { (at, len) };
        // Where blocks are shared, some are the same.
        let kinds = if self.shape.mix.clones && self.chance.below(3) == 0 { 3 } else { 255 };
        Some(Op::Write { id, at, len, fill: 1 + (n % kinds) as u8 })
    }

    /// Lets a file share blocks of another one, or all that it has.
    fn clone_blocks(&mut self) -> Option<Op> {
        let block = self.block();
        let (from, to) = (self.file()?, self.file()?);
        let (size, over) = (self.size(from), self.size(to));
        if from == to || size == 0 {
            return None;
        }
        let at = self.chance.below(size.div_ceil(block)) * block;
        let some = ((1 + self.chance.below(12)) * block).min(size - at);
        // Up to the end of the source only where that is the end of the other, too.
        let len = if some == size - at && size < over { some / block * block } else { some };
        Some(Op::Clone { from, to, at, len })
    }

    /// Lets a file share blocks of another one that are the same already.
    fn dedupe(&mut self) -> Option<Op> {
        let block = self.block();
        let (from, to) = (self.file()?, self.file()?);
        let [a, b] = [from, to].map(|id| self.model.nodes[&id].data.content());
        let [a, b] = [&a, &b].map(|c| c.chunks_exact(block as usize).collect::<Vec<_>>());
        if from == to || a.is_empty() {
            return None;
        }
        let at = self.chance.below(a.len() as u64) as usize;
        let same: Vec<usize> = (0..b.len()).filter(|i| b[*i] == a[at]).collect();
        let there = *same.get(self.chance.below(same.len().max(1) as u64) as usize)?;
        let blocks = a[at..].iter().zip(&b[there..]).take_while(|(x, y)| x == y).count() as u64;
        Some(Op::Dedupe { from: (from, at as u64 * block), to: (to, there as u64 * block), len: blocks * block })
    }

    /// Lets two files exchange blocks, or all behind a place.
    fn exchange(&mut self) -> Option<Op> {
        let block = self.block();
        let files = [self.file()?, self.file()?];
        let mut places = files.map(|id| (id, self.chance.below(self.size(id) / block + 1) * block));
        let most = places.iter().map(|(id, at)| self.size(*id) - at).min()? / block;
        let len = (most > 0 && self.chance.below(3) > 0).then(|| (1 + self.chance.below(most)) * block);
        // The kernel gives each the other's whole size, wherever the rest of it goes.
        if len.is_none() && self.subject.owns_later() {
            places = files.map(|id| (id, 0));
        }
        (files[0] != files[1]).then_some(Op::Exchange { places, len })
    }

    /// Takes blocks out of a file, or puts some in.
    fn shift(&mut self) -> Option<Op> {
        let block = self.block();
        let id = self.file()?;
        let (size, len) = (self.size(id), (1 + self.chance.below(8)) * block);
        let out = size > LONGEST / 2 || self.chance.below(2) == 0;
        let most = size.checked_sub(1 + if out { len } else { 0 })?;
        Some(Op::Shift { id, at: self.chance.below(most / block + 1) * block, len, out })
    }

    /// Zeroes a range, as a hole or with blocks, or reserves blocks behind the end.
    fn allocate(&mut self) -> Option<Op> {
        let id = self.file()?;
        let size = self.size(id);
        let what = self.chance.below(3);
        if what == 0 {
            return Some(Op::Reserve { id, at: size, len: 1 + self.chance.below(50_000) });
        }
        let at = self.chance.below(size);
        Some(Op::Zero { id, at, len: (1 + self.chance.below(30_000)).min(size - at), hole: what == 1 })
    }

    fn truncate(&mut self) -> Option<Op> {
        let id = self.file()?;
        Some(Op::Truncate { id, size: self.chance.below(self.size(id) + 20_000).min(LONGEST) })
    }
}
