//! Inodes: their in-core form, their log item, allocation, and the lists of unlinked ones.
//!
//! An in-core inode is *clean*, *logged* (in a checkpoint or the AIL, so it stays in the cache) or *stale* (its chunk was
//! freed). `ilock` orders transactions on it, `data` is a latch for the moment of access.
//!
//! 1. What is in `data` under a shared `ilock` is committed; a transaction changes it under the exclusive one.
//! 2. An inode goes home by being copied whole into its cluster's buffer, unpinned and not locked exclusively.
//! 3. `next_unlinked` belongs to the cluster's buffer: flushing an inode leaves it as it is there.

mod alloc;
mod cache;
mod flags;
mod fork;
mod unlinked;

pub use alloc::{count_trees, dialloc, difree, find};
pub use cache::Inodes;
pub use flags::inherited;
pub use fork::Fork;
pub use unlinked::{unlinked_add, unlinked_remove};

use crate::error::Result;
use crate::trans::{Buf, BufItem, Loggable, Trans};
use crate::volume::Volume;
use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, Mutex, MutexGuard, RawRwLock, RwLock};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use uxfs_format::bytes::put32;
use uxfs_format::inode::{CORE_SIZE, Core, Format, INODE_CRC, NEXT_UNLINKED, flag2, swap_for_log};
use uxfs_format::log::{InodeFormat, ino_field};
use uxfs_format::superblock::incompat;
use uxfs_format::{AgBlock, DiskAddr, Geometry, Ino, Kind, Lsn, crc};
use uxfs_journal::{ItemState, LogItem, Push, Regions, WriteUnit};

/// Core and forks.
#[derive(Clone, Debug, Default)]
pub struct InodeData {
    /// The core.
    pub core: Core,
    /// The data fork.
    pub data: Fork,
    /// The attribute fork; means nothing while `core.forkoff` is 0.
    pub attr: Fork,
}

/// Which fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// File data, directory entries, link target.
    Data,
    /// Attributes.
    Attr,
}

impl InodeData {
    /// A fork.
    pub fn fork(&self, w: Which) -> &Fork {
        if w == Which::Data { &self.data } else { &self.attr }
    }
    /// A fork, to change.
    pub fn fork_mut(&mut self, w: Which) -> &mut Fork {
        if w == Which::Data { &mut self.data } else { &mut self.attr }
    }
    /// How a fork is stored.
    pub fn format(&self, w: Which) -> Format {
        if w == Which::Data { self.core.format } else { self.core.aformat }
    }
    /// Sets how a fork is stored.
    pub fn set_format(&mut self, w: Which, f: Format) {
        if w == Which::Data { self.core.format = f } else { self.core.aformat = f }
    }
    /// Bytes of a fork in the inode.
    pub fn fork_size(&self, w: Which, vol: &Volume) -> usize {
        if w == Which::Data { self.core.data_fork_size(&vol.geo) } else { self.core.attr_fork_size(&vol.geo) }
    }
    /// The inode as it lies on disk, without checksum.
    pub fn encode(&self, b: &mut [u8], vol: &Volume) {
        b.fill(0);
        self.core.encode(b, &vol.geo.meta_uuid);
        for w in [Which::Data, Which::Attr] {
            let size = self.fork_size(w, vol);
            let at = CORE_SIZE + if w == Which::Data { 0 } else { usize::from(self.core.forkoff) * 8 };
            if size > 0 {
                let bytes = self.fork(w).encode(self.format(w), size);
                let n = bytes.len().min(size);
                b[at..at + n].copy_from_slice(&bytes[..n]);
            }
        }
    }
}

/// What became of an inode's chunk.
mod chunk {
    /// It is there.
    pub const LIVE: u8 = 0;
    /// A transaction freed it; that may not be durable yet.
    pub const FREED: u8 = 1;
    /// That is durable.
    pub const GONE: u8 = 2;
}

/// What another room keeps with an inode.
pub trait Attached: Any + Send + Sync {
    /// True if whoever refers to the inode would miss nothing of it.
    fn is_spent(&self) -> bool;
}

/// Exclusive hold on an inode.
pub type Exclusive = ArcRwLockWriteGuard<RawRwLock, ()>;
/// Shared hold on an inode.
pub type Shared = ArcRwLockReadGuard<RawRwLock, ()>;

/// An inode in memory.
pub struct Inode {
    /// Its number.
    pub ino: Ino,
    /// The volume.
    pub vol: Arc<Volume>,
    ilock: Arc<RwLock<()>>,
    data: Mutex<InodeData>,
    item: ItemState,
    fields: AtomicU32,
    /// See [`chunk`].
    chunk: AtomicU8,
    /// Its end has begun: no name, no holder.
    ending: AtomicBool,
    /// It lost its last name while somebody referred to it.
    orphan: AtomicBool,
    /// References from outside: open files, names that a front end remembers.
    pub refs: AtomicU64,
    /// Data block of a directory that the last name went into.
    pub last_room: AtomicU32,
    /// Somebody asked the cache for it since that last made room.
    asked_for: AtomicBool,
    /// What the file room attaches.
    pub attached: OnceLock<Box<dyn Attached>>,
    cache: Weak<Inodes>,
    me: Weak<Inode>,
}

impl Inode {
    fn new(ino: Ino, vol: &Arc<Volume>, data: InodeData, cache: Weak<Inodes>) -> Arc<Inode> {
        Arc::new_cyclic(|me| Inode {
            ino,
            vol: vol.clone(),
            ilock: Arc::default(),
            data: Mutex::new(data),
            item: ItemState::default(),
            fields: AtomicU32::new(0),
            chunk: AtomicU8::new(chunk::LIVE),
            ending: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            refs: AtomicU64::new(0),
            last_room: AtomicU32::new(0),
            asked_for: AtomicBool::new(false),
            attached: OnceLock::new(),
            cache,
            me: me.clone(),
        })
    }

    /// Waits for the inode, to change it.
    pub fn lock(&self) -> Exclusive {
        uxfs_sync::linger();
        self.ilock.try_write_arc().unwrap_or_else(|| uxfs_sync::contended(|| self.ilock.write_arc()))
    }
    /// Waits for several, and keeps none of them while it waits for another: who makes an inode waits for its lock with that of its
    /// directory, and a number that was just given away may be known to somebody who wants both.
    pub fn lock_all(mut list: Vec<&Arc<Inode>>) -> Vec<Exclusive> {
        list.sort_by_key(|i| i.ino);
        list.dedup_by_key(|i| i.ino);
        let mut first = 0;
        loop {
            let mut held = vec![list[first].lock()];
            let others = list.iter().enumerate().filter(|x| x.0 != first);
            let taken = others.map(|(n, i)| i.ilock.try_write_arc().ok_or(n)).try_for_each(|l| l.map(|l| held.push(l)));
            match taken {
                Ok(()) => return held,
                Err(n) => first = n,
            }
        }
    }
    /// Waits for the inode, to look at it.
    pub fn lock_shared(&self) -> Shared {
        uxfs_sync::linger();
        self.ilock.try_read_arc().unwrap_or_else(|| uxfs_sync::contended(|| self.ilock.read_arc()))
    }
    /// Core and forks, for a moment.
    pub fn data(&self) -> MutexGuard<'_, InodeData> {
        self.data.lock()
    }
    /// A copy of the core.
    pub fn core(&self) -> Core {
        self.data.lock().core.clone()
    }
    /// The last checkpoint that changed it, if it is not durable for sure.
    pub fn last_change(&self) -> uxfs_format::CheckpointSeq {
        self.item.seq()
    }
    /// True if it is in a checkpoint or the AIL.
    pub fn is_logged(&self) -> bool {
        self.item.is_pinned() || self.item.ail_lsn().is_some()
    }

    /// True if it is all on its device, so that whoever refers to it from outside need not keep it in memory. One that lost its last name is
    /// not: what becomes of it hangs on who does.
    fn can_be_read_again(&self) -> bool {
        let named = self.data().core.nlink > 0 && !self.ending.load(Ordering::Acquire);
        named && self.attached.get().is_none_or(|a| a.is_spent())
    }

    /// Address and basic blocks of its cluster, and its offset within.
    fn place(&self) -> (DiskAddr, u32, usize) {
        cluster_place(&self.vol.geo, self.ino)
    }

    /// Its cluster's buffer, and its offset within. Nothing keeps it in memory for an inode alone: many changed ones, far from each other,
    /// would hold many times their own size.
    fn cluster_buf(&self) -> Result<(Buf, usize)> {
        let (at, bbs, offset) = self.place();
        Ok((self.vol.bufs.read(&[(at, bbs)], Kind::Inode, &self.vol.geo)?, offset))
    }

    /// Changes the core in a transaction of its own.
    ///
    /// # Locks
    /// Takes the inode exclusively, after log space; the caller has neither.
    ///
    /// # Errors
    /// The volume is shut down.
    pub fn change(self: &Arc<Self>, f: impl FnOnce(&mut Core)) -> Result<()> {
        self.try_change(|c| {
            f(c);
            Ok(())
        })
    }

    /// As [`Inode::change`], where `f` may refuse, and then leaves the core as it was.
    ///
    /// # Errors
    /// `f`'s; the volume is shut down.
    pub fn try_change(self: &Arc<Self>, f: impl FnOnce(&mut Core) -> Result<()>) -> Result<()> {
        let mut tp = Trans::new_must_succeed(&self.vol, self.vol.res.ichange, 0)?;
        let _i = self.lock();
        f(&mut self.data().core)?;
        self.log(&mut tp, 0)?;
        tp.commit().map(|_| ())
    }

    /// Logs what `fields` says changed; the core always goes along.
    ///
    /// # Errors
    /// The cluster cannot be read.
    pub fn log(self: &Arc<Self>, tp: &mut Trans, fields: u32) -> Result<()> {
        if tp.logs(&self.item) {
            tp.note_change();
        } else {
            self.cluster_buf()?;
            let mut d = self.data.lock();
            d.core.changecount += 1;
            if self.vol.geo.has(incompat::BIGTIME) {
                d.core.flags2 |= flag2::BIGTIME;
            }
            tp.log_item(self.clone());
        }
        self.fields.fetch_or(fields | ino_field::CORE, Ordering::AcqRel);
        Ok(())
    }

    /// Its chunk was freed: it will not go home any more.
    pub(crate) fn set_stale(&self) {
        self.chunk.store(chunk::FREED, Ordering::Release);
    }

    fn is_stale(&self) -> bool {
        self.chunk.load(Ordering::Acquire) != chunk::LIVE
    }

    /// The freeing of its chunk is durable: unless it began a new life since, nothing of it is to go home any more.
    pub(crate) fn chunk_is_gone(&self) {
        if self.chunk.compare_exchange(chunk::FREED, chunk::GONE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.vol.journal.ail.remove(self);
        }
    }

    /// Begins its end; false if that had begun before, or somebody refers to it, who then sees that it is an orphan.
    pub(crate) fn begin_end(&self) -> bool {
        loop {
            if self.ending.swap(true, Ordering::SeqCst) {
                return false;
            }
            // Of this look and that of whoever comes, one sees the other.
            if self.refs.load(Ordering::SeqCst) == 0 {
                return true;
            }
            self.ending.store(false, Ordering::SeqCst);
            self.orphan.store(true, Ordering::SeqCst);
            if self.refs.load(Ordering::SeqCst) > 0 {
                return false;
            }
        }
    }

    /// Counts somebody more who refers to it; false if its end has begun, so that it is to be given back at once.
    pub(crate) fn refer(&self) -> bool {
        self.refs.fetch_add(1, Ordering::SeqCst);
        !self.ending.load(Ordering::SeqCst)
    }

    /// As [`Inode::refer`], of one that has no name from its beginning.
    pub(crate) fn refer_unnamed(&self) {
        self.orphan.store(true, Ordering::SeqCst);
        self.refer();
    }

    /// Counts one less; true if that was the last one, and its end waits for that.
    pub(crate) fn give_back(&self) -> bool {
        self.refs.fetch_sub(1, Ordering::SeqCst) == 1 && self.orphan.load(Ordering::SeqCst)
    }

    /// It begins a new life in a chunk that was allocated again.
    pub(crate) fn revive(&self) {
        self.ending.store(false, Ordering::SeqCst);
        self.orphan.store(false, Ordering::SeqCst);
        self.chunk.store(chunk::LIVE, Ordering::Release);
    }

    /// Copies the inode into its cluster's bytes, if it may go home now.
    fn flush_into(&self, bytes: &mut [u8], offset: usize) -> Option<Flushed> {
        let lsn = self.item.ail_lsn()?;
        if self.item.is_pinned() || self.is_stale() {
            return None;
        }
        let hold = self.ilock.try_read_arc()?;
        if self.item.is_pinned() {
            return None;
        }
        let isize = self.vol.geo.inodesize as usize;
        let home = bytes.get_mut(offset..offset + isize)?;
        let next = uxfs_format::bytes::get32(home, NEXT_UNLINKED);
        let mut d = self.data.lock();
        d.core.lsn = self.vol.stamp(lsn);
        d.encode(home, &self.vol);
        put32(home, NEXT_UNLINKED, next);
        crc::stamp(home, INODE_CRC);
        let fields = self.fields.swap(0, Ordering::AcqRel);
        drop(d);
        Some(Flushed { inode: self.me.upgrade()?, lsn, fields, _hold: hold })
    }
}

/// An inode whose bytes are on their way home; it stays locked against changes until they are there.
struct Flushed {
    inode: Arc<Inode>,
    lsn: Lsn,
    fields: u32,
    _hold: Shared,
}

/// First block of the cluster of an inode.
pub(crate) fn cluster_block(g: &Geometry, ino: Ino) -> AgBlock {
    let agbno = g.agino_agbno(g.ino_agino(ino)).0;
    AgBlock(agbno - agbno % g.cluster_blocks())
}

/// Address and basic blocks of the cluster of an inode, and the inode's offset within.
pub(crate) fn cluster_place(g: &Geometry, ino: Ino) -> (DiskAddr, u32, usize) {
    let first = cluster_block(g, ino);
    let slot = g.ino_agino(ino).0 - g.agbno_agino(first).0;
    (g.ag_daddr(g.ino_agno(ino), first), g.cluster_blocks() * g.bb_per_block(), slot as usize * g.inodesize as usize)
}

/// Bytes of an inode in memory, without long extent lists.
const HELD: u64 = 1024;

impl LogItem for Inode {
    fn state(&self) -> &ItemState {
        &self.item
    }

    fn committed(&self, lsn: Lsn, _: &Regions) -> Option<Lsn> {
        // Also if its chunk is being freed: until that is durable, only the AIL keeps this change from being lost.
        (self.chunk.load(Ordering::Acquire) != chunk::GONE).then_some(lsn)
    }

    fn held_bytes(&self) -> u64 {
        HELD
    }

    fn is_cold(&self) -> bool {
        let (at, bbs, _) = self.place();
        !self.item.is_pinned() && !self.is_stale() && !self.vol.bufs.has(&[(at, bbs)])
    }

    fn warm(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        // Who cannot read it now tries again when it is written home, and says so.
        self.cluster_buf().ok().map(|(b, _)| b as Arc<dyn Any + Send + Sync>)
    }

    /// Writes its cluster home, with every other inode in it that may go.
    fn push(&self) -> Push {
        if self.item.is_pinned() {
            return Push::Pinned;
        }
        if self.is_stale() {
            // It waits for the checkpoint that frees its chunk.
            return Push::Pinned;
        }
        let Ok((buf, my_offset)) = self.cluster_buf() else {
            self.vol.journal.fail("an inode's cluster cannot be read to write it home");
            return Push::Nothing;
        };
        let Some(held) = buf.hold.try_lock() else { return Push::Locked };
        let item = BufItem::of(&buf, &self.vol);
        if item.state().is_pinned() {
            return Push::Pinned;
        }
        let isize = self.vol.geo.inodesize as usize;
        let first = self.ino.0 - (my_offset / isize) as u64;
        let mut flushed = Vec::new();
        {
            let mut bytes = buf.data_mut();
            let n = bytes.len() / isize;
            for i in 0..n {
                let ino = Ino(first + i as u64);
                let inode = if ino == self.ino { self.me.upgrade() } else { self.cache.upgrade().and_then(|c| c.peek(ino)) };
                flushed.extend(inode.and_then(|x| x.flush_into(&mut bytes, i * isize)));
            }
        }
        if flushed.is_empty() {
            return Push::Locked;
        }
        let buf_lsn = item.state().ail_lsn();
        let pieces = item.prepare_write(None);
        let done = Box::new(move |ok: bool| {
            for f in flushed {
                if ok {
                    f.inode.vol.journal.ail.remove_at(f.inode.as_ref(), f.lsn);
                } else {
                    f.inode.fields.fetch_or(f.fields, Ordering::AcqRel);
                }
            }
            if let Some(lsn) = buf_lsn.filter(|_| ok) {
                item.written(lsn);
            }
            drop(held);
        });
        Push::Write(WriteUnit { pieces, done })
    }
}

impl Loggable for Inode {
    fn is_homeless(&self) -> bool {
        self.is_stale()
    }
    fn format(&self) -> Regions {
        let d = self.data.lock();
        let fields = self.fields.load(Ordering::Acquire);
        let (daddr, bbs, offset) = self.place();
        let g = &self.vol.geo;
        let mut f = InodeFormat { fields: ino_field::CORE, asize: 0, dsize: 0, ino: self.ino, rdev: 0, daddr, bbs, offset: offset as u32 };
        // Of a fork what it is logged as, if it changed and holds anything.
        let region = |w: Which, bits: [u32; 3], size: usize| {
            let (format, fork) = (d.format(w), d.fork(w));
            let bit = match format {
                Format::Dev => return None,
                Format::Local => bits[0],
                Format::Extents => bits[1],
                Format::Btree => bits[2],
            };
            let bytes = || match format {
                Format::Btree => fork.encode_root_for_log(self.ino, g),
                f => fork.encode(f, size),
            };
            (fields & bit != 0).then(bytes).filter(|b| !b.is_empty()).map(|bytes| (bit, bytes))
        };
        let data = region(Which::Data, [ino_field::DDATA, ino_field::DEXT, ino_field::DBROOT], d.core.data_fork_size(g));
        let attr = || region(Which::Attr, [ino_field::ADATA, ino_field::AEXT, ino_field::ABROOT], d.core.attr_fork_size(g));
        let attr = if d.core.forkoff != 0 { attr() } else { None };
        if d.core.format == Format::Dev {
            f.fields |= ino_field::DEV;
            f.rdev = uxfs_format::bytes::get32(&d.data.local, 0);
        }
        let len = |r: &Option<(u32, Vec<u8>)>| r.as_ref().map_or((0, 0), |(bit, b)| (*bit, b.len() as u16));
        let ((data_bit, dsize), (attr_bit, asize)) = (len(&data), len(&attr));
        (f.fields, f.dsize, f.asize) = (f.fields | data_bit | attr_bit, dsize, asize);
        let forks = || data.iter().chain(&attr).map(|r| r.1.as_slice());
        let mut out = Regions::default();
        out.reserve(56 + CORE_SIZE + forks().map(|b| b.len() + 3).sum::<usize>(), 4);
        out.push_with(|b| f.put(2 + forks().count() as u16, b));
        out.push_with(|b| {
            let at = b.len();
            b.resize(at + CORE_SIZE, 0);
            d.core.encode(&mut b[at..], &g.meta_uuid);
            swap_for_log(&mut b[at..], d.core.flags2);
        });
        forks().for_each(|b| out.push(b));
        out
    }

    fn as_item(self: Arc<Self>) -> Arc<dyn LogItem> {
        self
    }
}
