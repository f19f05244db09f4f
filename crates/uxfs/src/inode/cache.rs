//! All inodes in memory: one object for one number.

use super::{Fork, Inode, InodeData, cluster_place};
use crate::error::{Error, Result};
use crate::volume::Volume;
use foldhash::HashMap;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use uxfs_format::bytes::get16;
use uxfs_format::dir::with_types;
use uxfs_format::inode::{Core, Format, INODE_CRC, check, mode};
use uxfs_format::{Ino, Kind, crc};

const SHARDS: usize = 16;

#[derive(Default)]
struct Shard {
    inodes: HashMap<u64, Arc<Inode>>,
    /// Inodes that came since it was last looked through: a quarter of it, before that is done again, since what a front end holds, or what
    /// is not home, cannot be dropped.
    new: usize,
}

impl Shard {
    /// Drops three quarters of the inodes that nobody refers to.
    fn shrink(&mut self) {
        let spare = self.inodes.len() / 4;
        let mut idle_kept = 0;
        self.inodes.retain(|_, i| {
            let idle = Arc::strong_count(i) == 1 && i.refs.load(Ordering::Acquire) == 0 && !i.is_logged();
            let keep = !idle || idle_kept < spare;
            idle_kept += usize::from(idle && keep);
            keep
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
    /// A cache that keeps about `most` inodes that nobody refers to.
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
        if let Some(i) = self.peek(ino) {
            return Ok(i);
        }
        if !self.vol.geo.valid_ino(ino) {
            return Err(Error::Stale);
        }
        let data = self.read(ino)?;
        let mut shard = self.shard(ino).lock();
        if let Some(i) = shard.inodes.get(&ino.0) {
            return Ok(i.clone());
        }
        let inode = Inode::new(ino, &self.vol, data, self.me.clone());
        shard.inodes.insert(ino.0, inode.clone());
        shard.new += 1;
        if shard.inodes.len() > self.most && shard.new > shard.inodes.len() / 4 {
            shard.shrink();
        }
        Ok(inode)
    }

    fn read(&self, ino: Ino) -> Result<InodeData> {
        let g = &self.vol.geo;
        let (at, bbs, offset) = cluster_place(g, ino);
        let buf = self.vol.bufs.read(&[(at, bbs)], Kind::Inode, g)?;
        let b = buf.data()[offset..offset + g.inodesize as usize].to_vec();
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
