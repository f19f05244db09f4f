//! Physical replay: what each kind of item does to the device (journal facts, III.5).
//!
//! Changed blocks gather in memory while transactions of one log position are replayed, and go out together: either all of
//! them bear the new position or none.

use super::pieces::Pieces;
use crate::attr;
use crate::error::{Error, Result};
use crate::inode::Fork;
use crate::trans::IntentItem;
use crate::volume::Volume;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use uxfs_device::{Class, DeviceRef, WriteRequest};
use uxfs_format::attr as attr_format;
use uxfs_format::btree::{self, LONG_OWNER, TreeKind};
use uxfs_format::bytes::{get16, get32, get64, put16, put32, put64};
use uxfs_format::da;
use uxfs_format::inode::{self, CORE_SIZE, Core, Format, INODE_CRC, INODE_LSN, NEXT_UNLINKED, swap_for_log};
use uxfs_format::log::{AttrIntent, BufFormat, ExchangeIntent, IcreateFormat, InodeFormat, Intent, buf_flag, ino_field, item};
use uxfs_format::quota::{self, RecordFormat};
use uxfs_format::{AgIno, DiskAddr, FsBlock, Geometry, Ino, Kind, Lsn, crc};
use uxfs_journal::{JournalError, LogGeometry, LogItem, LogState, Replay, ReplayItem, replay};

/// Intents without a completion.
#[derive(Default)]
pub(super) struct Pending {
    /// By id, with their log position.
    pub(super) intents: BTreeMap<u64, (Lsn, Intent)>,
    /// Attributes that are to be changed.
    pub(super) attrs: BTreeMap<u64, (Lsn, AttrIntent)>,
    /// Files that are to exchange mappings.
    pub(super) exchanges: BTreeMap<u64, (Lsn, ExchangeIntent)>,
    /// How many intents came before one, by id: in this order they are finished. Ids of other writers tell nothing of it.
    pub(super) places: HashMap<u64, usize>,
    seen: usize,
    /// Inodes whose attributes lie outside of them and were changed: some may be hidden.
    attributed: BTreeSet<Ino>,
    /// Leaves with hidden attributes: where they were logged last, and whose they are.
    hidden: BTreeMap<(u64, u32), (Lsn, Ino)>,
    /// The items that hold the tail until the intents are done.
    pub(super) items: parking_lot::Mutex<HashMap<u64, Arc<IntentItem>>>,
    /// What holds the tail until nothing is hidden.
    hold: parking_lot::Mutex<Option<Arc<IntentItem>>>,
}

impl Pending {
    /// An intent comes next in the log; its id may have been that of another one, which is done.
    fn note(&mut self, id: u64) {
        self.seen += 1;
        self.places.insert(id, self.seen);
    }

    /// Where the oldest of them lies.
    pub(super) fn oldest(&self) -> Option<Lsn> {
        let all = self.intents.values().map(|i| i.0).chain(self.attrs.values().map(|i| i.0)).chain(self.exchanges.values().map(|i| i.0));
        all.chain(self.hidden.values().map(|h| h.0)).min()
    }

    /// Puts the intents into the AIL, so that the tail does not pass them before they are done.
    pub(super) fn hold(&self, vol: &Arc<Volume>) {
        // Of an attribute's or an exchange's intent only the identity counts here.
        let bare = |kind: u16, id: u64| Intent { kind, id, extents: Vec::new() };
        let attrs = self.attrs.values().map(|(l, i)| (*l, bare(item::ATTRI, i.id)));
        let exchanges = self.exchanges.values().map(|(l, i)| (*l, bare(item::XMI, i.id)));
        for (lsn, i) in self.intents.values().cloned().chain(attrs).chain(exchanges) {
            let id = i.id;
            let it = IntentItem::new(vol, i);
            let dynamic: Arc<dyn LogItem> = it.clone();
            vol.journal.ail.insert(&dynamic, lsn);
            self.items.lock().insert(id, it);
        }
        if let Some(lsn) = self.hidden.values().map(|h| h.0).min() {
            let it = IntentItem::new(vol, bare(item::ATTRI, 0));
            let dynamic: Arc<dyn LogItem> = it.clone();
            vol.journal.ail.insert(&dynamic, lsn);
            *self.hold.lock() = Some(it);
        }
    }

    /// Inodes of which attributes may be hidden.
    pub(super) fn attributed(&self) -> impl Iterator<Item = Ino> {
        self.attributed.iter().copied()
    }

    /// True if hidden attributes hold the tail.
    pub(super) fn holds_hidden(&self) -> bool {
        self.hold.lock().is_some()
    }

    /// Hidden attributes hold the tail no more.
    pub(super) fn let_hidden_go(&self, vol: &Volume) {
        if let Some(it) = self.hold.lock().take() {
            vol.journal.ail.remove(it.as_ref());
        }
    }

    /// Hidden attributes do not keep recovery from going on: they let the tail go if the log has no room left behind them.
    pub(super) fn make_way(&self, vol: &Volume) {
        let r = &vol.res;
        let most = 4 * [attr::log_bytes(vol), r.itruncate.unit, r.rename.unit].into_iter().max().unwrap_or(0);
        let at = self.hold.lock().as_ref().and_then(|it| it.state().ail_lsn());
        if at.is_some_and(|at| !vol.journal.fits_behind(at, most)) {
            self.let_hidden_go(vol);
        }
    }
}

struct Player<'a> {
    dev: &'a DeviceRef,
    /// Grows with the volume.
    g: Geometry,
    cancelled: HashMap<(u64, u32), u32>,
    /// Blocks that transactions of one log position touched. Several of them may change a block, and a block is skipped
    /// that bears a position as late as theirs: so it gets its stamp only when they are all in.
    blocks: HashMap<(u64, u32), Replayed>,
    at: Lsn,
    pieces: Pieces,
    pending: Pending,
}

/// Where a block of a bmbt leads to, and the level there.
pub(super) fn pointers(b: &[u8]) -> Vec<(u64, u16)> {
    let (s, level) = (TreeKind::Bmap.shape(), btree::level(b));
    let n = if level > 0 { btree::numrecs(b).min(s.max(b.len() as u32, level)) } else { 0 };
    (0..n).map(|i| (s.ptr_get(b, b.len() as u32, i), level.saturating_sub(1))).collect()
}

/// True of a leaf of attributes of which some are hidden.
fn hides(b: &[u8]) -> bool {
    let hidden = |i| attr_format::leaf_entry(b, i).is_ok_and(|e| e.flags & attr_format::flag::INCOMPLETE != 0);
    Kind::sniff(b) == Some(Kind::AttrLeaf) && (0..da::count(b)).any(hidden)
}

/// True if an inode is home in a newer state than the log has it in, here. Those of version 4 tell it by how often they went home.
fn is_newer(home: &[u8], logged: &[u8], lsn: Lsn, g: &Geometry) -> bool {
    if g.v5() {
        return get64(home, INODE_LSN) > lsn.0 && crc::verify(home, INODE_CRC) && get64(home, 160) == get64(&g.meta_uuid, 0);
    }
    let (there, here) = (get16(home, inode::FLUSHES), get16(logged, inode::FLUSHES));
    // From the largest number it begins anew.
    here < there && !(there == u16::MAX && here < u16::MAX / 2)
}

fn malformed<T>(what: &str) -> Result<T> {
    Err(Error::Io { at: DiskAddr(0), error: std::io::Error::other(format!("log: an item is malformed: {what}")) })
}

#[derive(Default)]
struct Replayed {
    bytes: Vec<u8>,
    /// It was changed, so it is to be written.
    changed: bool,
    /// It is to bear the position.
    stamp: bool,
}

impl Player<'_> {
    fn block(&mut self, at: DiskAddr, bbs: u32) -> Result<&mut Replayed> {
        let end = (at.0 + u64::from(bbs)).saturating_mul(512);
        if bbs == 0 || bbs > 256 || end > self.g.dblocks.saturating_mul(u64::from(self.g.blocksize)) {
            return malformed("it lies outside the volume");
        }
        match self.blocks.entry((at.0, bbs)) {
            std::collections::hash_map::Entry::Occupied(e) => Ok(e.into_mut()),
            std::collections::hash_map::Entry::Vacant(e) => {
                let mut b = vec![0; bbs as usize * 512];
                self.dev.read(at.0 * 512, &mut b)?;
                Ok(e.insert(Replayed { bytes: b, ..Replayed::default() }))
            }
        }
    }

    /// Writes what gathered, in order of place.
    fn flush(&mut self) -> Result<()> {
        let mut all: Vec<_> = self.blocks.drain().filter(|b| b.1.changed).collect();
        all.sort_by_key(|b| b.0);
        for ((at, _), b) in &mut all {
            // A directory block in several pieces comes piece by piece: see `pieces`.
            let whole = |k: &Kind| *k != Kind::Inode && k.block_bytes(&self.g).is_none_or(|n| n == b.bytes.len());
            if self.g.v5()
                && let Some(k) = Kind::sniff(&b.bytes).filter(whole)
            {
                k.stamp(&mut b.bytes, b.stamp.then_some(self.at));
            }
            if *at == 0 {
                self.g = Geometry::parse(&b.bytes)?.0;
            }
        }
        let reqs: Vec<WriteRequest<'_>> = all.iter().map(|((at, _), b)| WriteRequest { offset: at * 512, data: &b.bytes }).collect();
        Ok(self.dev.write_many(&reqs, Class::Fsync)?)
    }

    fn is_cancelled(&self, at: DiskAddr, bbs: u32) -> bool {
        self.cancelled.get(&(at.0, bbs)).is_some_and(|n| *n > 0)
    }

    fn buffer(&mut self, it: &ReplayItem, lsn: Lsn) -> Result<()> {
        let Some(f) = BufFormat::parse(&it.regions[0]) else { return malformed("buffer format") };
        let bbs = u32::from(f.bbs);
        if f.flags & buf_flag::CANCEL != 0 {
            if let Some(n) = self.cancelled.get_mut(&(f.daddr.0, bbs)) {
                *n = n.saturating_sub(1);
            }
            return Ok(());
        }
        if self.is_cancelled(f.daddr, bbs) {
            return Ok(());
        }
        let runs: Vec<_> = f.runs().collect();
        if runs.len() + 1 > it.regions.len() {
            return malformed("a buffer has fewer regions than its map says");
        }
        if f.flags & buf_flag::INODE_BUF != 0 {
            return self.inode_buffer(&f, &runs, it);
        }
        self.put_regions(&f, &runs, it, lsn)?;
        self.pieces.note(&f, &self.g);
        let key = (f.daddr.0, bbs);
        match self.blocks.get(&key) {
            Some(b) if self.g.v5() && hides(&b.bytes) => {
                self.pending.hidden.insert(key, (lsn, Ino(Kind::AttrLeaf.owner(&b.bytes).unwrap_or(0))))
            }
            _ => self.pending.hidden.remove(&key),
        };
        Ok(())
    }

    fn put_regions(&mut self, f: &BufFormat, runs: &[(usize, usize)], it: &ReplayItem, lsn: Lsn) -> Result<()> {
        let g = self.g.clone();
        let Replayed { bytes: b, changed, stamp } = self.block(f.daddr, u32::from(f.bbs))?;
        // Quota records bear a position each, the block none: whatever seems to be one is of what was there before. Blocks of version 4
        // bear none, and are always replayed.
        if g.v5()
            && f.flags & buf_flag::DQUOT == 0
            && let Some(k) = Kind::sniff(b)
            && k.uuid_matches(b, &g)
            && k.lsn(b).is_some_and(|l| l >= lsn && l.0 != u64::MAX)
            // A block that was torn as it went home has its new head and old sectors behind: its position says nothing.
            && k.is_whole(b)
        {
            return Ok(());
        }
        (*changed, *stamp) = (true, true);
        for ((c, n), region) in runs.iter().zip(&it.regions[1..]) {
            let (from, len) = (c * 128, n * 128);
            if region.len() < len || from + len > b.len() {
                return malformed("a buffer's region does not fit");
            }
            b[from..from + len].copy_from_slice(&region[..len]);
        }
        Ok(())
    }

    /// Of an inode cluster only the next-unlinked fields count.
    fn inode_buffer(&mut self, f: &BufFormat, runs: &[(usize, usize)], it: &ReplayItem) -> Result<()> {
        let (isize, v5) = (self.g.inodesize as usize, self.g.v5());
        let Replayed { bytes: b, changed, .. } = self.block(f.daddr, u32::from(f.bbs))?;
        *changed = true;
        for slot in 0..b.len() / isize {
            let at = slot * isize + NEXT_UNLINKED;
            let hit = runs.iter().zip(&it.regions[1..]).find(|((c, n), _)| c * 128 <= at && at + 4 <= (c + n) * 128);
            let Some(((c, _), region)) = hit else { continue };
            let next = get32(region, at - c * 128);
            if next == 0 {
                return malformed("a next-unlinked field is 0");
            }
            put32(b, at, next);
            if v5 {
                crc::stamp(&mut b[slot * isize..(slot + 1) * isize], INODE_CRC);
            }
        }
        Ok(())
    }

    fn icreate(&mut self, it: &ReplayItem) -> Result<()> {
        let Some(f) = IcreateFormat::parse(&it.regions[0]) else { return malformed("inode chunk") };
        let g = self.g.clone();
        let first = g.fsb(f.agno, f.agbno);
        if f.isize != g.inodesize || f.len == 0 || f.len > 64 || !g.valid_fsb(first, f.len) || f.count != f.len << g.inopblog {
            return malformed("an inode chunk does not fit the volume");
        }
        let cb = g.cluster_blocks().min(f.len);
        let bbs = cb * g.bb_per_block();
        let clusters: Vec<u32> = (0..f.len).step_by(cb as usize).collect();
        let at = |c: u32| g.ag_daddr(f.agno, uxfs_format::AgBlock(f.agbno.0 + c));
        if clusters.iter().any(|c| self.is_cancelled(at(*c), bbs)) {
            return Ok(());
        }
        for c in clusters {
            let ino0 = g.agbno_agino(uxfs_format::AgBlock(f.agbno.0 + c)).0;
            let Replayed { bytes: b, changed, .. } = self.block(at(c), bbs)?;
            *changed = true;
            for (i, d) in b.chunks_exact_mut(g.inodesize as usize).enumerate() {
                inode::init_free(d, g.ino(f.agno, AgIno(ino0 + i as u32)), f.generation, &g);
            }
        }
        Ok(())
    }

    fn inode(&mut self, it: &ReplayItem, lsn: Lsn) -> Result<()> {
        let Some(f) = InodeFormat::parse(&it.regions[0]) else { return malformed("inode format") };
        self.inode_core(&f, it, lsn)?;
        // Also where the inode itself is home: the blocks of its trees need not be.
        if f.fields & (ino_field::DOWNER | ino_field::AOWNER) != 0 { self.take_over(&f) } else { Ok(()) }
    }

    fn inode_core(&mut self, f: &InodeFormat, it: &ReplayItem, lsn: Lsn) -> Result<()> {
        let Some(core) = it.regions.get(1) else { return malformed("inode format") };
        if self.is_cancelled(f.daddr, f.bbs) {
            return Ok(());
        }
        let g = self.g.clone();
        // What the log has of it; of version 4 all but the link to the next unlinked one.
        let logged = if g.v5() { CORE_SIZE } else { NEXT_UNLINKED };
        if core.len() < logged {
            return malformed("an inode's core is cut short");
        }
        let mut be = vec![0; CORE_SIZE];
        be[..logged].copy_from_slice(&core[..logged]);
        // The form of times and counters hangs on flags2, which is host-endian here.
        let flags2 = get64(&be, 120).swap_bytes();
        swap_for_log(&mut be, flags2);
        let new = Core::decode(&be);
        if new.mode != 0 && new.aformat != Format::Local && new.anextents > 0 {
            self.pending.attributed.insert(f.ino);
        } else {
            self.pending.attributed.remove(&f.ino);
        }
        self.pieces.note_inode(f, &new, &self.g);
        let isize = g.inodesize as usize;
        let Replayed { bytes: cluster, changed, .. } = self.block(f.daddr, f.bbs)?;
        let offset = f.offset as usize;
        let Some(home) = cluster.get_mut(offset..offset + isize) else { return malformed("an inode lies outside its cluster") };
        if get16(home, 0) == inode::INODE_MAGIC && is_newer(home, &be, lsn, &g) {
            return Ok(());
        }
        *changed = true;
        if get16(&be, 0) != inode::INODE_MAGIC || g.v5() && get64(&be, 152) != f.ino.0 {
            return malformed("an inode's core is another's");
        }
        let next = get32(home, NEXT_UNLINKED);
        let (core_size, dsize) = (g.core_size(), new.data_fork_size(&g));
        if usize::from(new.forkoff) * 8 >= g.literal_area() {
            return malformed("an inode's attribute fork lies outside");
        }
        home[..core_size].copy_from_slice(&be[..core_size]);
        put32(home, NEXT_UNLINKED, next);
        if g.v5() {
            put64(home, INODE_LSN, lsn.0);
            home[160..176].copy_from_slice(&g.meta_uuid);
        } else {
            put16(home, inode::FLUSHES, 0);
        }
        let mut regions = it.regions[2..].iter();
        let put = |home: &mut [u8], at: usize, size: usize, root: u32, region: Option<&Vec<u8>>| -> Result<()> {
            let Some(r) = region else { return malformed("an inode has fewer regions than it says") };
            home[at..at + size].fill(0);
            if f.fields & root != 0 {
                let Some(r) = Fork::root_from_log(r, size, &g) else { return malformed("an inode's bmbt root does not fit") };
                home[at..at + size].copy_from_slice(&r);
            } else {
                let n = r.len().min(size);
                home[at..at + n].copy_from_slice(&r[..n]);
            }
            Ok(())
        };
        if f.fields & (ino_field::DDATA | ino_field::DEXT | ino_field::DBROOT) != 0 {
            put(home, core_size, dsize, ino_field::DBROOT, regions.next())?;
        } else if f.fields & ino_field::DEV != 0 {
            put32(home, core_size, f.rdev);
        }
        if f.fields & (ino_field::ADATA | ino_field::AEXT | ino_field::ABROOT) != 0 {
            put(home, core_size + dsize, g.literal_area() - dsize, ino_field::ABROOT, regions.next())?;
        }
        if g.v5() {
            crc::stamp(home, INODE_CRC);
        }
        Ok(())
    }

    /// An inode got the extent trees of another one, by an exchange of whole forks: their blocks name the new owner.
    fn take_over(&mut self, f: &InodeFormat) -> Result<()> {
        let g = self.g.clone();
        let offset = f.offset as usize;
        let cluster = &self.block(f.daddr, f.bbs)?.bytes;
        let Some(home) = cluster.get(offset..offset + g.inodesize as usize) else { return Ok(()) };
        let core = Core { ino: f.ino, ..Core::decode(home) };
        let (data, attr) = home[CORE_SIZE..].split_at(core.data_fork_size(&g).min(g.literal_area()));
        let forks = [(ino_field::DOWNER, core.format, data), (ino_field::AOWNER, core.aformat, attr)];
        let mut ways = Vec::new();
        // One that was freed since has no trees any more.
        for (_, _, bytes) in forks.into_iter().filter(|x| core.mode != 0 && f.fields & x.0 != 0 && x.1 == Format::Btree) {
            let Ok(root) = Fork::decode(bytes, Format::Btree, 0, 0) else { return malformed("an inode's bmbt root does not fit") };
            ways.extend(pointers(&root.root));
        }
        let mut seen = HashSet::new();
        while let Some((ptr, level)) = ways.pop() {
            if !g.valid_fsb(FsBlock(ptr), 1) {
                return malformed("a bmbt leads outside the volume");
            }
            if !seen.insert(ptr) {
                continue;
            }
            let Replayed { bytes: b, changed, .. } = self.block(g.fsb_daddr(FsBlock(ptr)), g.bb_per_block())?;
            if Kind::sniff(b) != Some(Kind::Btree(TreeKind::Bmap)) || btree::level(b) != level {
                return malformed("a bmbt leads to what is none");
            }
            *changed |= get64(b, LONG_OWNER) != f.ino.0;
            put64(b, LONG_OWNER, f.ino.0);
            ways.extend(pointers(b));
        }
        Ok(())
    }

    /// Limits and timers are kept; counters are counted anew by the next mount that has quota.
    fn quota(&mut self, it: &ReplayItem, lsn: Lsn) -> Result<()> {
        let (Some(f), Some(body)) = (RecordFormat::parse(&it.regions[0]), it.regions.get(1)) else { return malformed("quota record") };
        let g = self.g.clone();
        let Some(bbs) = f.blocks.checked_mul(g.blocksize / 512) else { return malformed("quota record") };
        if self.is_cancelled(f.daddr, bbs) {
            return Ok(());
        }
        let Replayed { bytes: b, changed, .. } = self.block(f.daddr, bbs)?;
        let (at, fits) = (f.offset as usize, body.len() >= quota::BODY && get16(body, 0) == quota::MAGIC);
        let Some(record) = b.get_mut(at..at + quota::RECORD).filter(|_| fits) else { return malformed("a quota record does not fit") };
        if quota::lsn(record).is_none_or(|l| l < lsn) {
            *changed = true;
            quota::put(record, body, &g);
        }
        Ok(())
    }

    fn other(&mut self, it: &ReplayItem, lsn: Lsn) -> Result<()> {
        match it.kind() {
            item::INODE => self.inode(it, lsn),
            item::EFI | item::CUI | item::RUI | item::BUI => match Intent::parse(&it.regions[0]) {
                Some(i) if i.kind != item::BUI || i.extents.len() == 1 => {
                    self.pending.note(i.id);
                    self.pending.intents.insert(i.id, (lsn, i));
                    Ok(())
                }
                _ => malformed("intent"),
            },
            item::EFD | item::CUD | item::RUD | item::BUD => {
                let Some(done) = Intent::parse(&it.regions[0]) else { return malformed("completion") };
                self.pending.intents.remove(&done.id);
                Ok(())
            }
            item::ATTRI => match AttrIntent::parse(&it.regions) {
                Some(i) => {
                    self.pending.note(i.id);
                    self.pending.attrs.insert(i.id, (lsn, i));
                    Ok(())
                }
                None => malformed("attribute intent"),
            },
            item::XMI => match ExchangeIntent::parse(&it.regions[0]) {
                Some(i) => {
                    self.pending.note(i.id);
                    self.pending.exchanges.insert(i.id, (lsn, i));
                    Ok(())
                }
                None => malformed("exchange intent"),
            },
            item::XMD => {
                let Some(done) = Intent::parse(&it.regions[0]) else { return malformed("completion") };
                self.pending.exchanges.remove(&done.id);
                Ok(())
            }
            item::ATTRD => {
                let Some(done) = Intent::parse(&it.regions[0]) else { return malformed("completion") };
                self.pending.attrs.remove(&done.id);
                Ok(())
            }
            item::DQUOT => self.quota(it, lsn),
            item::QUOTAOFF => Ok(()),
            k => Err(Error::Unsupported { what: format!("recovering log items of type {} ({k:#x})", item::name(k)) }),
        }
    }
}

impl Replay for Player<'_> {
    type Error = Error;

    fn transaction(&mut self, pass: u8, lsn: Lsn, items: &[ReplayItem]) -> Result<()> {
        if items.iter().any(|i| i.regions.is_empty()) {
            return malformed("it has no region");
        }
        if pass == 1 {
            for f in items.iter().filter(|i| i.kind() == item::BUF).filter_map(|i| BufFormat::parse(&i.regions[0])) {
                if f.flags & buf_flag::CANCEL != 0 {
                    *self.cancelled.entry((f.daddr.0, u32::from(f.bbs))).or_default() += 1;
                }
            }
            return Ok(());
        }
        if lsn != self.at {
            self.flush()?;
            self.at = lsn;
        }
        // Plain buffers and new chunks first, then inodes and intents, then next-unlinked fields, then cancellations.
        let rank = |i: &ReplayItem| match (i.kind(), BufFormat::parse(&i.regions[0])) {
            (item::BUF, Some(f)) if f.flags & buf_flag::CANCEL != 0 => 3,
            (item::BUF, Some(f)) if f.flags & buf_flag::INODE_BUF != 0 => 2,
            (item::BUF | item::ICREATE, _) => 0,
            _ => 1,
        };
        let mut order: Vec<&ReplayItem> = items.iter().collect();
        order.sort_by_key(|i| rank(i));
        for i in order {
            match i.kind() {
                item::BUF => self.buffer(i, lsn)?,
                item::ICREATE => self.icreate(i)?,
                _ => self.other(i, lsn)?,
            }
        }
        Ok(())
    }
}

/// Replays the dirty log of `log_dev` onto `dev`. Returns the intents that are left to be finished.
///
/// # Crash
/// Replay begins anew: what was written already bears its log position and is skipped, or is written again the same.
///
/// # Errors
/// The device's; the log is corrupt, or holds what is not supported.
pub(super) fn run(dev: &DeviceRef, log_dev: &DeviceRef, geo: &LogGeometry, state: &LogState, g: &Geometry) -> Result<Pending> {
    let (pieces, pending) = (Pieces::default(), Pending::default());
    let mut p = Player { dev, g: g.clone(), cancelled: HashMap::new(), blocks: HashMap::new(), at: Lsn(0), pieces, pending };
    replay(log_dev.as_ref(), geo, state, &mut p)?;
    p.flush()?;
    p.pieces.mend(dev, &p.g)?;
    dev.flush().map_err(JournalError::Io)?;
    // What follows needs room in the log: where half of it lies behind something hidden, that does not hold the tail.
    p.pending.attributed.extend(p.pending.hidden.values().map(|h| h.1));
    p.pending.hidden.retain(|_, h| geo.blocks_between(h.0, state.head) < geo.bbs / 2);
    Ok(p.pending)
}
