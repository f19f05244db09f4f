//! All inodes in memory: one object for one number.

use super::{Fork, Inode, InodeData, cluster_block, cluster_place};
use crate::error::{Error, Result};
use crate::volume::Volume;
use foldhash::HashMap;
use parking_lot::Mutex;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use uxfs_format::bytes::get16;
use uxfs_format::dir::with_types;
use uxfs_format::inode::{Core, Format, INODE_CRC, check, mode};
use uxfs_format::{Ino, Kind, crc};

const SHARDS: usize = 16;

#[derive(Default)]
struct Shard {
    inodes: HashMap<u64, Arc<Inode>>,
    /// Inodes that somebody is reading, and has not found in memory. If one comes into memory meanwhile it stays until he has looked again:
    /// it may have been changed since he read, and would be forgotten for what he has.
    reading: Vec<u64>,
    /// How often each inode that is not in memory is referred to.
    away: HashMap<u64, u64>,
    /// Inodes that came since it was last looked through: a quarter of it, before that is done again, since what is in use, or not home,
    /// cannot be dropped.
    new: usize,
}

impl Shard {
    /// Drops the inodes that nothing but their number is needed of, save up to `spare` that were asked for since the last call.
    fn shrink(&mut self, spare: usize) {
        let mut spared = 0;
        self.inodes.retain(|ino, i| {
            let asked_for = i.asked_for.swap(false, Ordering::Relaxed);
            if Arc::strong_count(i) > 1 || self.reading.contains(ino) {
                return true;
            }
            // Whoever let go of it did so before.
            fence(Ordering::Acquire);
            let refs = i.refs.load(Ordering::Relaxed);
            if i.is_logged() || refs > 0 && !i.can_be_read_again() {
                return true;
            }
            if asked_for && spared < spare {
                spared += 1;
                return true;
            }
            if refs > 0 {
                self.away.insert(*ino, refs);
            }
            false
        });
        self.new = 0;
    }
}

/// The inode cache of a volume.
pub struct Inodes {
    /// The volume.
    pub vol: Arc<Volume>,
    shards: Vec<Mutex<Shard>>,
    /// Inodes of a shard beyond which it is looked through for some to drop.
    most: usize,
    me: Weak<Inodes>,
}

impl Inodes {
    /// A cache that keeps about `most` inodes that need not be in memory.
    pub fn new(vol: Arc<Volume>, most: usize) -> Arc<Inodes> {
        Arc::new_cyclic(|me| Inodes { vol, shards: (0..SHARDS).map(|_| Mutex::default()).collect(), most: most / SHARDS, me: me.clone() })
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[(ino.0 % SHARDS as u64) as usize]
    }

    /// The inode if it is in memory.
    pub fn peek(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().inodes.get(&ino.0).cloned()
    }

    /// The inode, read if need be; it must be in use.
    ///
    /// # Errors
    /// [`Error::Stale`] if it is free or its number is no inode's; the device's; it is corrupt.
    pub fn get(&self, ino: Ino) -> Result<Arc<Inode>> {
        let i = self.get_any(ino)?;
        if i.data().core.mode == 0 { Err(Error::Stale) } else { Ok(i) }
    }

    /// The inode, in use or free.
    ///
    /// # Errors
    /// As [`Inodes::get`].
    pub fn get_any(&self, ino: Ino) -> Result<Arc<Inode>> {
        if let Some(i) = self.begin_reading(ino) {
            return Ok(i);
        }
        // That comes after the look into memory: an inode whose cluster was freed stays there until it stands in the list.
        let data = if self.may_exist(ino) { self.read(ino) } else { Err(Error::Stale) };
        self.end_reading(ino, data)
    }

    /// False if the number is none, or its cluster was freed.
    fn may_exist(&self, ino: Ino) -> bool {
        let g = &self.vol.geo;
        g.valid_ino(ino) && {
            let group = &self.vol.groups[g.ino_agno(ino).0 as usize];
            !group.freed_clusters.lock().contains(&cluster_block(g, ino).0)
        }
    }

    /// The inode if it is in memory; if not, [`Inodes::end_reading`] must follow.
    fn begin_reading(&self, ino: Ino) -> Option<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        match shard.inodes.get(&ino.0) {
            Some(i) => {
                i.asked_for.store(true, Ordering::Relaxed);
                Some(i.clone())
            }
            None => {
                shard.reading.push(ino.0);
                None
            }
        }
    }

    /// The inode as it was read, unless somebody else was faster.
    fn end_reading(&self, ino: Ino, data: Result<InodeData>) -> Result<Arc<Inode>> {
        uxfs_sync::linger();
        let mut shard = self.shard(ino).lock();
        if let Some(at) = shard.reading.iter().position(|x| *x == ino.0) {
            shard.reading.swap_remove(at);
        }
        let data = data?;
        if let Some(i) = shard.inodes.get(&ino.0) {
            return Ok(i.clone());
        }
        let inode = Inode::new(ino, &self.vol, data, self.me.clone());
        inode.refs.store(shard.away.remove(&ino.0).unwrap_or(0), Ordering::Relaxed);
        shard.inodes.insert(ino.0, inode.clone());
        shard.new += 1;
        if shard.inodes.len() > self.most && shard.new > shard.inodes.len() / 4 {
            shard.shrink(self.most / 2);
        }
        Ok(inode)
    }

    /// The inode if it is in memory; if not, whoever refers to it does so `n` times less.
    pub fn peek_or_give_back(&self, ino: Ino, n: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(i) = shard.inodes.get(&ino.0) {
            return Some(i.clone());
        }
        let away = &mut shard.away;
        if let Some(refs) = away.get_mut(&ino.0) {
            *refs = refs.saturating_sub(n);
            if *refs == 0 {
                away.remove(&ino.0);
            }
            if away.capacity() > 64 && away.len() < away.capacity() / 8 {
                away.shrink_to_fit();
            }
        }
        None
    }

    /// Inodes in memory, and those that are referred to and are not.
    pub fn count(&self) -> (usize, usize) {
        self.shards.iter().map(|s| s.lock()).fold((0, 0), |n, s| (n.0 + s.inodes.len(), n.1 + s.away.len()))
    }

    fn read(&self, ino: Ino) -> Result<InodeData> {
        let g = &self.vol.geo;
        let (at, bbs, offset) = cluster_place(g, ino);
        let size = g.inodesize as usize;
        let b = match self.vol.bufs.read(&[(at, bbs)], Kind::Inode, g) {
            Ok(buf) => buf.data()[offset..offset + size].to_vec(),
            // What cannot be read may be one of its neighbours; it can still be read itself.
            Err(_) if self.vol.is_read_only() => {
                let (mut b, place) = (vec![0; size], at.0 * 512 + offset as u64);
                uxfs_sync::blocking(|| self.vol.dev.read(place, &mut b)).map_err(|error| Error::Io { at, error })?;
                b
            }
            Err(e) => return Err(e.into()),
        };
        check(&b, Some(ino), g).map_err(|what| self.vol.corrupt(ino, what))?;
        if g.v5() && !crc::verify(&b, INODE_CRC) {
            return Err(self.vol.corrupt(ino, "has a wrong checksum"));
        }
        decode(&b, &self.vol, ino)
    }

    /// All inodes in memory.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|s| s.lock().inodes.values().cloned().collect::<Vec<_>>()).collect()
    }
}

/// Core and forks of an inode that was checked.
fn decode(b: &[u8], vol: &Volume, ino: Ino) -> Result<InodeData> {
    let core = Core { ino, ..Core::decode(b) };
    let mut d = InodeData { core, ..InodeData::default() };
    if d.core.mode == 0 {
        d.data.loaded = true;
        d.attr.loaded = true;
        return Ok(d);
    }
    let g = &vol.geo;
    let (dsize, asize) = (d.core.data_fork_size(g), d.core.attr_fork_size(g));
    let bad = |what| vol.corrupt(ino, what);
    let fork = &b[g.core_size()..g.core_size() + dsize];
    d.data = Fork::decode(fork, d.core.format, d.core.nextents, d.core.size.min(dsize as u64) as usize).map_err(bad)?;
    if !g.ftype() && d.core.kind() == mode::DIR && d.core.format == Format::Local {
        d.data.local = with_types(&d.data.local).map_err(bad)?;
    }
    d.attr.loaded = true;
    if asize > 0 {
        let fork = &b[g.core_size() + dsize..g.core_size() + dsize + asize];
        let len = if d.core.aformat == Format::Local { usize::from(get16(fork, 0)) } else { 0 };
        d.attr = Fork::decode(fork, d.core.aformat, u64::from(d.core.anextents), len).map_err(bad)?;
    }
    let valid = |f: &Fork| f.extents.values().all(|e| g.valid_fsb(e.start, e.len));
    if !valid(&d.data) || !valid(&d.attr) {
        return Err(bad("has an extent outside the volume"));
    }
    Ok(d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Attached;
    use crate::mount::{Mount, Options};
    use crate::namespace::NewInode;
    use std::sync::atomic::AtomicBool;
    use uxfs_device::{DeviceRef, Memory};

    /// A volume with one file, and the file's number.
    fn volume() -> (Arc<Mount>, Ino) {
        let size = 64 << 20;
        let dev: DeviceRef = Arc::new(Memory::new(size));
        uxfs_mkfs::format(&*dev, &uxfs_mkfs::Options::new(size, [5; 16])).unwrap();
        let m = Mount::open(dev.into(), Options { commit: 0, metadata: Some(0), ..Options::default() }).unwrap();
        let root = m.names.inodes.get(m.vol().geo.rootino).unwrap();
        let i = m.names.create(&root, b"file", NewInode { mode: mode::REG | 0o644, uid: 0, gid: 0, rdev: 0 }).unwrap();
        let ino = i.ino;
        i.give_back();
        drop(i);
        make_room(&m, ino);
        assert!(m.names.inodes.peek(ino).is_none());
        (m, ino)
    }

    /// Writes everything home, so that what need not stay goes.
    fn make_room(m: &Mount, ino: Ino) {
        m.vol().journal.quiesce().unwrap();
        m.names.inodes.shard(ino).lock().shrink(0);
    }

    #[test]
    fn what_was_read_before_a_change_does_not_come_back() {
        let (m, ino) = volume();
        let inodes = &m.names.inodes;
        assert!(inodes.begin_reading(ino).is_none());
        let old = inodes.read(ino);
        // While whoever read that sleeps, another one reads it, changes it, and lets go of it.
        inodes.get(ino).unwrap().change(|c| c.uid = 7).unwrap();
        make_room(&m, ino);
        assert_eq!(inodes.end_reading(ino, old).unwrap().core().uid, 7);
        make_room(&m, ino);
        assert!(inodes.peek(ino).is_none() && inodes.shard(ino).lock().reading.is_empty(), "it stays after it was read");
        m.unmount().unwrap();
    }

    #[test]
    fn a_failed_read_keeps_nothing() {
        let (m, ino) = volume();
        let inodes = &m.names.inodes;
        for bad in [Ino(ino.0 + (1 << 50)), Ino(0)] {
            assert!(inodes.get_any(bad).is_err());
            assert!(inodes.shard(bad).lock().reading.is_empty());
        }
        m.unmount().unwrap();
    }

    #[test]
    fn references_outlive_the_inode_in_memory() {
        let (m, ino) = volume();
        let inodes = &m.names.inodes;
        inodes.get(ino).unwrap().refs.fetch_add(3, Ordering::AcqRel);
        make_room(&m, ino);
        assert_eq!((inodes.peek(ino).is_none(), inodes.count().1), (true, 1));
        // Some are given back while it is away; the rest is there again with it.
        assert!(inodes.peek_or_give_back(ino, 1).is_none());
        assert_eq!((inodes.get(ino).unwrap().refs.load(Ordering::Acquire), inodes.count().1), (2, 0));
        make_room(&m, ino);
        assert!(inodes.peek_or_give_back(ino, 5).is_none());
        assert_eq!((inodes.count().1, inodes.get(ino).unwrap().refs.load(Ordering::Acquire)), (0, 0));
        m.unmount().unwrap();
    }

    #[test]
    fn a_held_inode_stays_while_another_room_would_miss_something() {
        struct Room(Arc<AtomicBool>);
        impl Attached for Room {
            fn is_spent(&self) -> bool {
                self.0.load(Ordering::Relaxed)
            }
        }
        let (m, ino) = volume();
        let inodes = &m.names.inodes;
        let spent = Arc::new(AtomicBool::new(false));
        let i = inodes.get(ino).unwrap();
        i.refer();
        assert!(i.attached.set(Box::new(Room(spent.clone()))).is_ok());
        drop(i);
        make_room(&m, ino);
        assert!(inodes.peek(ino).is_some(), "what the room has went with it");
        spent.store(true, Ordering::Relaxed);
        make_room(&m, ino);
        assert!(inodes.peek(ino).is_none(), "it stays for nothing");
        m.unmount().unwrap();
    }

    #[test]
    fn what_lost_its_last_name_stays_while_somebody_refers_to_it() {
        let (m, ino) = volume();
        let names = &m.names;
        let root = names.inodes.get(m.vol().geo.rootino).unwrap();
        names.inodes.get(ino).unwrap().refs.fetch_add(1, Ordering::AcqRel);
        make_room(&m, ino);
        names.unlink(&root, b"file", false).unwrap();
        make_room(&m, ino);
        let i = names.inodes.peek(ino).expect("it is gone, and with it what ends it");
        assert!(i.give_back(), "nobody waits for its end");
        names.release_if_gone(&i).unwrap();
        assert_eq!(i.core().mode, 0);
        m.unmount().unwrap();
    }

    #[test]
    fn what_was_asked_for_stays_longest() {
        let (m, ino) = volume();
        let inodes = &m.names.inodes;
        drop(inodes.get(ino).unwrap());
        drop(inodes.get(ino).unwrap());
        m.vol().journal.quiesce().unwrap();
        inodes.shard(ino).lock().shrink(1);
        assert!(inodes.peek(ino).is_some(), "it was asked for");
        inodes.shard(ino).lock().shrink(1);
        assert!(inodes.peek(ino).is_none(), "it was not asked for since");
        m.unmount().unwrap();
    }
}
