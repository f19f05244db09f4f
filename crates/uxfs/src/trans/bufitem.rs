//! The log item of a buffer: which 128-byte chunks of it changed since it was last written home.

use crate::volume::Volume;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use uxfs_buffer::Buffer;
use uxfs_format::Lsn;
use uxfs_format::log::{BufFormat, buf_flag};
use uxfs_journal::{ItemState, LogItem, Push, Regions, WriteUnit};

/// Bytes that are logged together.
pub const CHUNK: usize = 128;

#[derive(Debug, Default)]
struct Logged {
    bits: Vec<u32>,
    cancelled: bool,
    inode_buf: bool,
    ordered: bool,
}

/// The item; it lives as long as a transaction, a checkpoint or the AIL knows it.
pub struct BufItem {
    state: ItemState,
    /// Its buffer.
    pub buf: Arc<Buffer>,
    vol: Weak<Volume>,
    logged: Mutex<Logged>,
    me: Weak<BufItem>,
}

impl BufItem {
    /// The item of a buffer that the caller holds.
    pub fn of(b: &Arc<Buffer>, vol: &Arc<Volume>) -> Arc<BufItem> {
        if let Some(Ok(i)) = b.attachment().map(|a| a.downcast::<BufItem>()) {
            return i;
        }
        let words = (b.bbs() as usize * 512).div_ceil(CHUNK * 32);
        let item = Arc::new_cyclic(|me| BufItem {
            state: ItemState::default(),
            buf: b.clone(),
            vol: Arc::downgrade(vol),
            logged: Mutex::new(Logged { bits: vec![0; words], ..Logged::default() }),
            me: me.clone(),
        });
        let weak: Weak<BufItem> = Arc::downgrade(&item);
        b.attach(weak);
        item
    }

    /// Marks bytes as changed.
    pub fn mark(&self, from: usize, to: usize) {
        let mut l = self.logged.lock();
        let end = to.min(l.bits.len() * 32 * CHUNK);
        for c in from / CHUNK..end.div_ceil(CHUNK) {
            l.bits[c / 32] |= 1 << (c % 32);
        }
        l.cancelled = false;
    }

    pub(super) fn set_inode_buf(&self) {
        self.logged.lock().inode_buf = true;
    }

    pub(super) fn set_ordered(&self) {
        let mut l = self.logged.lock();
        l.ordered = true;
        l.cancelled = false;
    }

    /// The block has a new owner: nothing of the old one counts.
    pub(super) fn reuse(&self) {
        let mut l = self.logged.lock();
        l.cancelled = false;
        l.inode_buf = false;
        l.ordered = false;
        l.bits.fill(0);
    }

    pub(super) fn cancel(&self) {
        let mut l = self.logged.lock();
        l.cancelled = true;
        l.ordered = false;
        l.inode_buf = false;
        l.bits.fill(0);
    }

    /// Adds the regions of one piece of the buffer.
    fn piece(&self, l: &Logged, kind: u16, offset: usize, map: (uxfs_format::DiskAddr, u32), data: &[u8], out: &mut Regions) {
        let chunks = map.1 as usize * 512 / CHUNK;
        let first = offset / CHUNK;
        let words = if first.is_multiple_of(32) && chunks.is_multiple_of(32) {
            l.bits[first / 32..(first + chunks) / 32].to_vec()
        } else {
            let bit = |c: usize| l.bits[(first + c) / 32] >> ((first + c) % 32) & 1;
            let mut words = vec![0u32; chunks.div_ceil(32)];
            (0..chunks).for_each(|c| words[c / 32] |= bit(c) << (c % 32));
            words
        };
        let mut f = BufFormat { flags: 0, kind, bbs: map.1 as u16, daddr: map.0, map: words };
        if l.cancelled {
            (f.flags, f.kind) = (buf_flag::CANCEL, 0);
            return out.push_with(|b| f.put(1, b));
        }
        if l.inode_buf {
            f.flags = buf_flag::INODE_BUF;
        }
        let (mut count, mut bytes) = (1, 0);
        f.runs().for_each(|(_, n)| (count, bytes) = (count + 1, bytes + n * CHUNK));
        if bytes == 0 && self.buf.maps.len() > 1 {
            return;
        }
        out.reserve(20 + 4 * f.map.len() + bytes, count);
        out.push_with(|b| f.put(count as u16, b));
        f.runs().for_each(|(c, n)| out.push(&data[offset + c * CHUNK..][..n * CHUNK]));
    }

    /// What goes into the log: everything that changed since the buffer was last written home.
    pub(super) fn format(&self) -> Regions {
        let mut l = self.logged.lock();
        if l.ordered && l.bits.iter().all(|b| *b == 0) {
            return Regions::default();
        }
        let kind = self.buf.kind();
        let pieces = self.buf.maps.len() > 1;
        if pieces && !l.cancelled {
            // Replay sees one piece at a time: the checksum of the whole goes along.
            kind.stamp(&mut self.buf.data_mut(), None);
            l.bits[0] |= 1;
        }
        // Of a known type the kernel takes the first piece for the whole, finds it damaged, and refuses the volume.
        let kind = if pieces { 0 } else { kind.log_type() };
        let data = self.buf.data();
        let mut offset = 0;
        let mut out = Regions::default();
        for m in &self.buf.maps {
            self.piece(&l, kind, offset, *m, &data, &mut out);
            offset += m.1 as usize * 512;
        }
        out
    }

    /// What a write of the whole buffer home needs, for a holder who found it unpinned: pieces, and what to do at the end.
    pub fn prepare_write(&self, lsn: Option<Lsn>) -> Vec<(u64, Vec<u8>)> {
        let mut data = self.buf.data_mut();
        self.buf.kind().stamp(&mut data, lsn);
        let mut offset = 0;
        let cut = |m: &(uxfs_format::DiskAddr, u32)| {
            let n = m.1 as usize * 512;
            offset += n;
            (m.0.0 * 512, data[offset - n..offset].to_vec())
        };
        self.buf.maps.iter().map(cut).collect()
    }

    /// The write ended: nothing is unwritten any more, and the item leaves the AIL.
    pub fn written(&self, lsn: Lsn) {
        let mut l = self.logged.lock();
        l.bits.fill(0);
        l.ordered = false;
        l.inode_buf = false;
        drop(l);
        if let Some(v) = self.vol.upgrade() {
            v.journal.ail.remove_at(self, lsn);
        }
    }
}

impl LogItem for BufItem {
    fn state(&self) -> &ItemState {
        &self.state
    }

    fn committed(&self, lsn: Lsn, logged: &Regions) -> Option<Lsn> {
        let cancel = |r: &[u8]| BufFormat::parse(r).is_some_and(|f| f.flags & buf_flag::CANCEL != 0);
        if !logged.iter().next().is_some_and(cancel) {
            // New inodes are in the log once, as numbers in the chunk's own item. Until they are home, a later change of the
            // cluster does not stand for them: moving forward would let the tail pass the only record of them.
            let ordered = self.logged.lock().ordered;
            return Some(self.state.ail_lsn().filter(|_| ordered).unwrap_or(lsn));
        }
        if let Some(v) = self.vol.upgrade() {
            v.journal.ail.remove(self);
            // A new owner of the block may have taken the buffer over, or freed the block again: then it stays, since a
            // second buffer of the same block would not know what this one has in a checkpoint.
            let idle = |_held| !self.state.is_logged_again() && self.logged.lock().cancelled;
            if self.buf.hold.try_lock().is_some_and(idle) {
                v.bufs.forget_unused(&self.buf);
            }
        }
        None
    }

    fn held_bytes(&self) -> u64 {
        u64::from(self.buf.bbs()) * 512
    }

    fn push(&self) -> Push {
        if self.state.is_pinned() {
            return Push::Pinned;
        }
        let Some(held) = self.buf.hold.try_lock() else { return Push::Locked };
        // Pinned since the look above: only a holder pins, and now we are the holder.
        if self.state.is_pinned() {
            return Push::Pinned;
        }
        let (Some(lsn), Some(me)) = (self.state.ail_lsn(), self.me.upgrade()) else { return Push::Nothing };
        let Some(vol) = self.vol.upgrade() else { return Push::Nothing };
        let kind = self.buf.kind();
        let pieces = self.prepare_write(Some(vol.stamp(lsn)));
        if let Err(c) = kind.verify(&self.buf.data(), self.buf.daddr(), &vol.geo, false) {
            vol.journal.fail(format!("refused to write a block that does not verify: {c}"));
            return Push::Nothing;
        }
        let done = Box::new(move |ok: bool| {
            if ok {
                me.written(lsn);
            }
            drop(held);
        });
        Push::Write(WriteUnit { pieces, done })
    }
}
