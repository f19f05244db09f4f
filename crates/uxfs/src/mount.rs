//! Puts an open volume together: superblock, recovery, workers, unmount.

mod budget;
mod describe;
mod devices;
mod features;
mod grow;
mod identity;
mod lost;
mod pieces;
mod recovery;
mod replay;
mod superblock;

pub use describe::{LogSummary, describe_log};
pub use devices::Devices;
pub use features::add_features;
pub use grow::{grow, grown_superblock};
pub use identity::set_identity;

use crate::error::{Error, Result};
use crate::file::{self, DropBehind, FileConfig, Files, IoLock, Why};
use crate::inode::Inodes;
use crate::namespace::Names;
use crate::space;
use crate::volume::{Discards, PerAg, Volume};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uxfs_buffer::BufferCache;
use uxfs_device::{DeviceRef, Overlay};
use uxfs_format::reservation::Reservations;
use uxfs_format::superblock::{INCOMPAT_NAMES, RO_COMPAT_NAMES, Superblock, incompat, log_incompat, names, ro_compat, version};
use uxfs_format::{Geometry, Lsn};
use uxfs_journal::{Journal, JournalConfig, LogGeometry, LogState, clear_stale, find_log_state};
use uxfs_sync::{Chance, Clock, HostClock, Op, OpLock, Workers};

/// How a volume is opened.
pub struct Options {
    /// Nothing on the device is changed.
    pub read_only: bool,
    /// A dirty log is ignored: only with `read_only`, and what is read may be stale. The device may end before the volume does.
    pub norecovery: bool,
    /// With `norecovery`: where the superblock does not hold, a copy of it is searched for on all of the device.
    pub search: bool,
    /// Bytes of memory for buffers and file data; by default [`DEFAULT_MEMORY`], or a quarter of what this process may take.
    pub memory: usize,
    /// Bytes of metadata that stay in memory though nobody uses them; a quarter of `memory` if `None`.
    pub metadata: Option<usize>,
    /// File data stays in memory after it was read or written back, while there is room. Where somebody above keeps it already, as
    /// FUSE's page cache does, once is enough.
    pub cache: bool,
    /// What reads and writes of one file exclude.
    pub io_lock: IoLock,
    /// Who writes back what is dropped behind its writer.
    pub drop_behind: DropBehind,
    /// What operations exclude.
    pub op_lock: OpLock,
    /// When a reader of a directory gives up the lock around everything.
    pub readdir_copy: ReaddirCopy,
    /// Seconds after which what was changed is made durable; 0 for never.
    pub commit: u32,
    /// The time.
    pub clock: Box<dyn Clock>,
    /// Seed of what is left to chance; `None` for one from the time.
    pub seed: Option<u64>,
    /// How the journal works.
    pub journal: JournalConfig,
    /// What is freed is discarded on the device, once the freeing is durable.
    pub discard: bool,
    /// What is made gets the group of its directory, as if each had its set-group-ID bit, which is not handed on.
    pub grpid: bool,
    /// What changes names, owners, permissions, sizes or times is durable on return, and all that came before.
    pub wsync: bool,
    /// The volume is being made: the same operations of one thread, with the same clock and seed, give the same bytes. Blocks
    /// bear no log position, what is freed is not used again, free space is discarded at the end. After a crash such a volume
    /// must not be used.
    pub reproducible: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            norecovery: false,
            search: false,
            memory: budget::default_memory(),
            metadata: None,
            cache: true,
            io_lock: IoLock::default(),
            drop_behind: DropBehind::default(),
            op_lock: OpLock::default(),
            readdir_copy: ReaddirCopy::default(),
            commit: 5,
            clock: Box::new(HostClock),
            seed: None,
            journal: JournalConfig::default(),
            discard: false,
            grpid: false,
            wsync: false,
            reproducible: false,
        }
    }
}

/// How entries of a directory get to whoever reads it, where there is a lock around everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReaddirCopy {
    /// One by one: the lock is given up for each, and its place looked up again.
    PerEntry,
    /// Many are gathered, and handed over together.
    #[default]
    Batch,
}

uxfs_sync::named!(ReaddirCopy { PerEntry = "per-entry", Batch = "batch" });

/// Memory by default, at most: enough for a busy volume.
pub const DEFAULT_MEMORY: usize = 512 << 20;
/// The least that works: a checkpoint, its buffers, and some dirty data.
pub const LEAST_MEMORY: usize = 16 << 20;

/// Incompatible features that can be read.
const READ: u32 = incompat::FTYPE
    | incompat::SPINODES
    | incompat::META_UUID
    | incompat::BIGTIME
    | incompat::NREXT64
    | incompat::EXCHRANGE
    | incompat::PARENT
    | incompat::METADIR;
/// Of those, the ones that can be written.
const WRITE: u32 = READ & !incompat::METADIR;
/// Read-only-compatible features that can be written.
const WRITE_RO: u32 = ro_compat::FINOBT | ro_compat::RMAPBT | ro_compat::REFLINK | ro_compat::INOBTCNT;

/// An open volume with its workers.
pub struct Mount {
    /// Names and inodes.
    pub names: Names,
    /// What recovery did, for who asks.
    pub recovered: bool,
    /// As the volume sees them: with what is kept in memory.
    pub devices: Devices,
    stop: Arc<Stop>,
    timer: Workers,
    discarder: Workers,
    closed: AtomicBool,
}

#[derive(Default)]
struct Stop {
    flag: Mutex<bool>,
    changed: Condvar,
}

fn unsupported(what: impl Into<String>) -> Error {
    Error::Unsupported { what: what.into() }
}

/// True if the recovery of a dirty log goes on after what is replayed: what is half done is finished, and the log made clean, if only in
/// memory. Volumes of version 4 are not written, not even there: what is half done stays so, and takes nothing but space.
fn finishes(g: &Geometry, dirty: bool) -> bool {
    dirty && g.v5()
}

/// Refuses by name what cannot be opened as asked.
fn check_features(g: &Geometry, sb: &Superblock, read_only: bool) -> Result<()> {
    let unknown = g.incompat & !READ;
    if unknown != 0 {
        return Err(unsupported(format!("volumes with {}", names(unknown, INCOMPAT_NAMES))));
    }
    if g.versionnum & version::BORG != 0 {
        return Err(unsupported("volumes with case-insensitive names"));
    }
    if read_only {
        return Ok(());
    }
    if sb.rblocks.get() != 0 {
        return Err(unsupported("writing volumes with a realtime device; they can be opened read-only"));
    }
    if !g.v5() {
        return Err(unsupported("writing volumes of version 4; they can be opened read-only"));
    }
    let (inc, ro) = (g.incompat & !WRITE, g.ro_compat & !WRITE_RO);
    if inc != 0 || ro != 0 {
        let list = [names(inc, INCOMPAT_NAMES), names(ro, RO_COMPAT_NAMES)].join(" ");
        return Err(unsupported(format!("writing volumes with {}; they can be opened read-only", list.trim())));
    }
    Ok(())
}

fn read_superblock(dev: &DeviceRef) -> Result<(Geometry, Superblock)> {
    let (g, sb) = superblock_of_what_is_there(dev)?;
    check_size(dev, &g, false)?;
    Ok((g, sb))
}

/// The superblock of a device that may be too small for its volume.
fn superblock_of_what_is_there(dev: &DeviceRef) -> Result<(Geometry, Superblock)> {
    let mut head = vec![0; 32768.min(dev.size_bytes()) as usize];
    dev.read(0, &mut head)?;
    // All versions have the same magic number; say which it is.
    let ver = uxfs_format::bytes::get16(&head, 100) & 0xf;
    if uxfs_format::bytes::get32(&head, 0) == uxfs_format::superblock::SB_MAGIC && !matches!(ver, 4 | 5) {
        return Err(unsupported(format!("volumes of version {ver}")));
    }
    Ok(Geometry::parse(&head)?)
}

/// Most groups of a volume that is not all there.
const MOST_GROUPS_CUT: u32 = 1 << 16;

/// Refuses a device that is too small; not if it is only read as it lies, since it may be the beginning of a copy that was not finished.
fn check_size(dev: &DeviceRef, g: &Geometry, as_it_lies: bool) -> Result<()> {
    let bytes = g.dblocks.saturating_mul(u64::from(g.blocksize));
    if bytes > dev.size_bytes() && !(as_it_lies && g.agcount <= MOST_GROUPS_CUT) {
        let what = format!("the volume has {bytes} bytes, the device only {}", dev.size_bytes());
        return Err(Error::Io { at: uxfs_format::DiskAddr(0), error: std::io::Error::new(std::io::ErrorKind::UnexpectedEof, what) });
    }
    Ok(())
}

/// Devices that keep in memory what is written; one if they were one.
fn in_memory(dev: DeviceRef, log_dev: DeviceRef, memory: usize) -> (DeviceRef, DeviceRef) {
    let one = Arc::ptr_eq(&dev, &log_dev);
    let over: DeviceRef = Arc::new(Overlay::new(dev, memory));
    let log: DeviceRef = if one { over.clone() } else { Arc::new(Overlay::new(log_dev, memory)) };
    (over, log)
}

impl Mount {
    /// Opens a volume; a dirty one is recovered, into memory if it is opened read-only.
    ///
    /// # Errors
    /// The volume is corrupt, has features that are not supported, or the device failed.
    pub fn open(devices: Devices, o: Options) -> Result<Arc<Mount>> {
        if o.memory < LEAST_MEMORY {
            return Err(Error::Invalid { what: "the memory budget is below 16 MiB, the least that works" });
        }
        o.journal.check().map_err(|what| Error::Invalid { what })?;
        let dev = devices.data.clone();
        if !o.read_only && (dev.is_read_only() || devices.log.as_ref().is_some_and(|l| l.is_read_only())) {
            return Err(Error::ReadOnly);
        }
        let (g, sb) = match superblock_of_what_is_there(&dev) {
            Err(e) if o.norecovery && o.search => lost::copy_of_superblock(&dev).ok_or(e)?,
            found => found?,
        };
        check_size(&dev, &g, o.norecovery)?;
        check_features(&g, &sb, o.read_only)?;
        let (log_dev, geo) = match o.norecovery && devices.log.is_none() {
            // Nobody looks at the log then.
            true => (dev.clone(), LogGeometry::of(&g)),
            false => devices.log_of(&g)?,
        };
        let mut state = match o.norecovery {
            true => LogState { head: Lsn::new(1, 0), tail: Lsn::new(1, 0), clean: true, torn: false },
            false => find_log_state(&log_dev, &geo)?,
        };
        if o.norecovery && !o.read_only {
            return Err(Error::Invalid { what: "norecovery needs a read-only mount" });
        }
        if !o.read_only {
            // A full host must not fail the log: everything else can wait or be refused.
            log_dev.reserve(geo.start, geo.size())?;
        }
        let dirty = !state.clean;
        if dirty && sb.rblocks.get() != 0 {
            return Err(unsupported("recovering volumes with a realtime device; with norecovery they can be read as they are"));
        }
        if dirty && sb.features_log_incompat.get() & !log_incompat::XATTRS != 0 {
            return Err(unsupported("recovering a log with unknown features"));
        }
        // Where a dirty volume is only read, its recovery stays in memory.
        let (dev, log_dev) = if o.read_only && dirty { in_memory(dev, log_dev, o.memory) } else { (dev, log_dev) };
        let pending = if dirty { replay::run(&dev, &log_dev, &geo, &state, &g)? } else { replay::Pending::default() };
        let (g, sb) = if dirty { read_superblock(&dev)? } else { (g, sb) };
        if dirty || !o.read_only {
            // Before anything is written, and also where the log looks clean: the first record since may be lost, and later ones there.
            clear_stale(&log_dev, &geo, state.head, state.tail)?;
        }
        // What was replayed is home and flushed. The log begins anew, at the first intent that is not done, or what holds its tail like one.
        state.tail = pending.oldest().unwrap_or(state.head);
        let (read_only, writable) = (o.read_only, !o.read_only || finishes(&g, dirty));
        let mount = Self::assemble((dev, log_dev), g, &sb, o, &state, dirty)?;
        if writable {
            mount.finish_open(&sb, pending, dirty)?;
        }
        mount.vol().read_only.store(read_only, Ordering::Release);
        Ok(mount)
    }

    fn assemble(
        devices: (DeviceRef, DeviceRef),
        g: Geometry,
        sb: &Superblock,
        o: Options,
        state: &LogState,
        dirty: bool,
    ) -> Result<Arc<Mount>> {
        let (dev, log_dev) = devices;
        let outside = !Arc::ptr_eq(&dev, &log_dev);
        let devices = Devices { data: dev.clone(), log: outside.then(|| log_dev.clone()) };
        let geo = LogGeometry::of(&g);
        let seed = o.seed.unwrap_or_else(|| {
            let (s, n) = o.clock.now();
            (s as u64) << 30 ^ u64::from(n) ^ u64::from(std::process::id()) << 48
        });
        // What checkpoints pin are buffers, above all: no more than may be cached.
        let most = o.memory as u64 / 4;
        let cfg = JournalConfig {
            budget: o.journal.budget.min(most),
            dirty: o.journal.dirty.min(most),
            op: Op::new(o.op_lock),
            ..o.journal.clone()
        };
        let journal = Journal::start(dev.clone(), log_dev, geo, cfg, state.head, state.tail);
        let metadata = o.metadata.unwrap_or(o.memory / 4);
        let vol = Arc::new(Volume {
            res: Reservations::of(&g),
            bufs: BufferCache::new(dev.clone(), metadata),
            groups: (0..g.agcount).map(|_| PerAg::default()).collect(),
            usable_again: Default::default(),
            counters: Default::default(),
            chance: Chance::seeded(seed),
            clock: o.clock,
            read_only: AtomicBool::new(o.read_only && !finishes(&g, dirty)),
            reproducible: o.reproducible,
            grpid: o.grpid,
            wsync: o.wsync,
            discards: (o.discard && !o.read_only && !o.reproducible).then(Discards::default),
            geo: g,
            dev,
            journal,
        });
        superblock::load_counters(&vol, sb, dirty)?;
        let inodes = Inodes::new(vol.clone(), metadata / 4 / 1024);
        let memory = o.memory / 8 * 3;
        let files = Files::new(FileConfig { memory, keep: o.cache, lock: o.io_lock, drop_behind: o.drop_behind }, &vol);
        let mount = Arc::new(Mount {
            names: Names::new(vol, inodes, files),
            recovered: dirty,
            devices,
            stop: Arc::default(),
            timer: Workers::default(),
            discarder: Workers::default(),
            closed: AtomicBool::new(false),
        });
        if o.commit > 0 && !o.read_only {
            mount.start_timer(o.commit);
        }
        if mount.vol().discards.is_some() {
            let vol = mount.vol().clone();
            mount.discarder.start("uxfs-discard", move || space::discard_work(&vol));
        }
        Ok(mount)
    }

    /// What a writable open, or one that recovered into memory, does before anybody may use the volume.
    fn finish_open(self: &Arc<Self>, sb: &Superblock, pending: replay::Pending, dirty: bool) -> Result<()> {
        let vol = self.vol();
        pending.hold(vol);
        if dirty {
            // From here on the log may be written where it was full.
            vol.journal.say_tail()?;
        }
        superblock::note_features(vol, sb)?;
        if dirty {
            recovery::finish_intents(&self.names, &pending)?;
            recovery::drop_hidden_attributes(&self.names, &pending)?;
            recovery::free_unlinked(&self.names)?;
            recovery::free_cow_leftovers(vol)?;
            superblock::update_copies(&vol.dev, &vol.geo)?;
            vol.journal.force_all()?;
        }
        Ok(())
    }

    /// The volume.
    pub fn vol(&self) -> &Arc<Volume> {
        &self.names.vol
    }

    /// The label in the superblock.
    ///
    /// # Errors
    /// The device's.
    pub fn label(&self) -> Result<Vec<u8>> {
        superblock::label(self.vol())
    }

    /// Sets the label.
    ///
    /// # Errors
    /// See [`crate::Fs::set_label`].
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        identity::set_label(self.vol(), label)
    }

    fn start_timer(self: &Arc<Self>, seconds: u32) {
        let (weak, stop) = (Arc::downgrade(self), self.stop.clone());
        let work = move || {
            loop {
                {
                    let mut flag = stop.flag.lock();
                    if !*flag {
                        stop.changed.wait_for(&mut flag, Duration::from_secs(u64::from(seconds)));
                    }
                    if *flag {
                        return;
                    }
                }
                let Some(m) = weak.upgrade() else { return };
                let _op = m.vol().journal.op().enter();
                // Errors are latched where they happen, and reported by the next fsync.
                let _ = m.sync(Why::Periodic);
                m.names.files.rest();
            }
        };
        self.timer.start("uxfs-timer", work);
    }

    /// Makes everything durable, for a reason that is counted.
    ///
    /// # Errors
    /// The first error of a write-back; the volume is shut down.
    pub fn sync(&self, why: Why) -> Result<()> {
        if self.vol().is_read_only() {
            return Ok(());
        }
        let mut first = Ok(());
        for i in self.names.files.dirty() {
            let r = file::write_back(&self.names.files, &i, 0, u64::MAX, why);
            first = first.and(r);
        }
        first = first.and(file::release_idle_staged(&self.names.files, false));
        let token = self.vol().journal.flush_token();
        self.vol().journal.force_all()?;
        self.vol().journal.flush_since(token)?;
        first
    }

    /// Writes everything home and marks the log clean.
    ///
    /// # Errors
    /// The volume is shut down, or was by this: then the next open recovers it.
    pub fn unmount(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.stop_timer();
        let vol = self.vol();
        // What was recovered into memory becomes clean there.
        let res = if vol.is_read_only() && !finishes(&vol.geo, self.recovered) { Ok(()) } else { self.close() };
        self.stop_discards();
        self.names.files.stop();
        vol.journal.stop();
        self.names.files.forget_all();
        res
    }

    fn close(&self) -> Result<()> {
        let vol = self.vol();
        vol.read_only.store(false, Ordering::Release);
        vol.journal.shutdown.check()?;
        while !self.names.files.dirty().is_empty() {
            self.sync(Why::Sync)?;
        }
        self.names.files.stop();
        file::release_idle_staged(&self.names.files, true)?;
        for i in self.names.inodes.all() {
            i.refs.store(0, Ordering::Release);
            self.names.release_if_gone(&i)?;
        }
        debug_assert_eq!(vol.counters.promised(), 0, "blocks are promised to data that is not there");
        vol.journal.quiesce()?;
        space::await_freed(vol)?;
        if vol.reproducible {
            // What was written and freed again depends on when it was written.
            space::trim(vol, 0)?;
        }
        superblock::write_counters(vol)?;
        Ok(vol.journal.unmount()?)
    }

    fn stop_timer(&self) {
        *self.stop.flag.lock() = true;
        self.stop.changed.notify_all();
        self.timer.join();
    }

    fn stop_discards(&self) {
        if let Some(d) = &self.vol().discards {
            d.queue.lock().closed = true;
            d.changed.notify_all();
        }
        self.discarder.join();
    }
}

impl Drop for Mount {
    /// Dropped without an unmount, a volume stops as in a power cut: nothing more is written.
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Acquire) {
            self.vol().journal.fail("the volume was closed without being unmounted");
            self.stop_timer();
            self.stop_discards();
            self.names.files.stop();
            self.vol().journal.stop();
            self.names.files.forget_all();
        }
    }
}
