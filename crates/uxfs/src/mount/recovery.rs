//! What is left after replay: intents, unlinked inodes, blocks staged for copy-on-write.

use super::replay::Pending;
use crate::ag;
use crate::attr::{self, AttrName, SetMode, parent};
use crate::error::{Error, Result};
use crate::file;
use crate::inode::Which;
use crate::map;
use crate::namespace::Names;
use crate::space;
use crate::trans::{Deferred, Finish, IntentItem, Trans};
use crate::volume::Volume;
use std::sync::Arc;
use uxfs_format::ag::UNLINKED_BUCKETS;
use uxfs_format::extent::Extent;
use uxfs_format::log::{AttrIntent, ExchangeIntent, IntentExtent, attr_op, item};
use uxfs_format::reservation::Reservation;
use uxfs_format::{AgIno, AgNumber, FileBlock, Ino, NULL_AG};
use uxfs_journal::LogItem;

/// Operations of mapping intents.
const MAP: u32 = 1;
const UNMAP: u32 = 2;
const ATTR_FORK: u32 = 1 << 31;
const UNWRITTEN: u32 = 1 << 30;

/// Finishes every intent that has no completion, in log order.
///
/// # Errors
/// An intent does not fit the volume.
pub(super) fn finish_intents(names: &Names, pending: &Pending) -> Result<()> {
    let vol = &names.vol;
    let mut order: Vec<u64> = pending.intents.keys().chain(pending.attrs.keys()).chain(pending.exchanges.keys()).copied().collect();
    order.sort_unstable_by_key(|id| pending.places.get(id));
    for id in order {
        pending.make_way(vol);
        let Some(it) = pending.items.lock().remove(&id) else { continue };
        if let Some((_, i)) = pending.attrs.get(&id) {
            finish_attr(names, &it, i)?;
            continue;
        }
        if let Some((_, x)) = pending.exchanges.get(&id) {
            finish_exchange(names, it, *x)?;
            continue;
        }
        let mut tp = begin(vol, &it, vol.res.itruncate, vol.res.write_blocks)?;
        let intent = &pending.intents[&id].1;
        // The first extent's link says that the intent is done; the others get intents of their own in the same link.
        let Some((first, rest)) = intent.extents.split_first() else { continue };
        tp.log_done(&it);
        match finisher(intent.kind) {
            Some(finish) => {
                let mine = |e: &IntentExtent| if intent.kind == item::EFI { space::whoever_has(e) } else { *e };
                rest.iter().for_each(|e| tp.defer(Deferred::new(intent.kind, mine(e), finish)));
                finish(&mut tp, &mine(first))?;
            }
            None => finish_map(names, &mut tp, first)?,
        }
        tp.commit()?;
    }
    Ok(())
}

/// Starts a transaction that says that an intent is done.
fn begin(vol: &Arc<Volume>, intent: &Arc<IntentItem>, res: Reservation, blocks: u32) -> Result<Trans> {
    check_room(vol, intent, res.unit)?;
    Trans::new_must_succeed(vol, res.single(), blocks)
}

/// Nothing but its end moves the tail past an intent, so the log must have room for that behind it.
fn check_room(vol: &Arc<Volume>, intent: &Arc<IntentItem>, bytes: u64) -> Result<()> {
    if intent.state().ail_lsn().is_none_or(|at| vol.journal.fits_behind(at, bytes)) {
        return Ok(());
    }
    Err(Error::Unsupported { what: "recovering a log that has no room left behind an unfinished intent".into() })
}

/// What finishes an intent; nothing for a mapping, which needs the inode.
fn finisher(kind: u16) -> Option<Finish> {
    match kind {
        item::EFI => Some(space::finish_free),
        item::RUI => Some(space::finish_rmap),
        item::CUI => Some(space::finish_refcount),
        _ => None,
    }
}

/// Finishes a change of an attribute; parts of it may have been done before the crash.
fn finish_attr(names: &Names, it: &Arc<IntentItem>, i: &AttrIntent) -> Result<()> {
    let vol = &names.vol;
    let inode = names.inodes.get(i.ino)?;
    let most = attr::log_bytes(vol);
    let user = AttrName { namespace: i.namespace, name: &i.name };
    match i.op {
        attr_op::SET | attr_op::REPLACE => {
            check_room(vol, it, most)?;
            attr::set(&inode, user, &i.value, SetMode::Any)?;
        }
        attr_op::REMOVE => {
            check_room(vol, it, most)?;
            match attr::remove(&inode, user) {
                Err(Error::NoAttribute) => {}
                r => r?,
            }
        }
        attr_op::PARENT_SET | attr_op::PARENT_REMOVE | attr_op::PARENT_REPLACE => {
            let mut tp = begin(vol, it, vol.res.rename, parent::blocks(vol))?;
            let _i = inode.lock();
            if i.generation != inode.core().generation {
                return Err(vol.corrupt(i.ino, "is another than the intended parent pointer belongs to"));
            }
            inode.log(&mut tp, 0)?;
            tp.log_done(it);
            if i.op != attr_op::PARENT_SET {
                parent::take_out(&mut tp, &inode, &i.name, &i.value)?;
            }
            let (name, value) = if i.op == attr_op::PARENT_REPLACE { (&i.new_name, &i.new_value) } else { (&i.name, &i.value) };
            if i.op != attr_op::PARENT_REMOVE && !parent::is_there(&inode, name, value)? {
                parent::enter(&mut tp, &inode, name, value)?;
            }
            return tp.commit().map(|_| ());
        }
        _ => return Err(Error::Unsupported { what: format!("recovering attribute intents of operation {}", i.op) }),
    }
    let mut tp = begin(vol, it, vol.res.ichange, 0)?;
    tp.log_done(it);
    tp.commit().map(|_| ())
}

/// Goes on with an exchange of mappings.
fn finish_exchange(names: &Names, it: Arc<IntentItem>, x: ExchangeIntent) -> Result<()> {
    let files = [names.inodes.get(x.inos[0])?, names.inodes.get(x.inos[1])?];
    for (f, generation) in files.iter().zip(x.generations) {
        if f.core().generation != generation {
            return Err(names.vol.corrupt(f.ino, "is another than the file that was to exchange its mappings"));
        }
    }
    let begin = |res: Reservation, blocks| begin(&names.vol, &it, res, blocks);
    file::finish_exchange(it.clone(), x, [&files[0], &files[1]], &begin)
}

fn finish_map(names: &Names, tp: &mut Trans, m: &IntentExtent) -> Result<()> {
    let inode = names.inodes.get(Ino(m.owner))?;
    let _i = inode.lock();
    if !tp.vol.geo.valid_fsb(m.start, m.len) || m.flags & ATTR_FORK != 0 {
        return Err(names.vol.corrupt(Ino(m.owner), "has an intended mapping outside the volume"));
    }
    map::load(&inode, Which::Data)?;
    let e = Extent { off: FileBlock(m.offset), start: m.start, len: m.len, unwritten: m.flags & UNWRITTEN != 0 };
    match m.flags & 0xff {
        MAP => map::map(tp, &inode, Which::Data, e),
        UNMAP => {
            let found = inode.data().data.at(m.offset);
            let Some(x) = found.filter(|x| x.end() >= e.end()) else {
                return Err(names.vol.corrupt(Ino(m.owner), "lacks a mapping that was to be removed"));
            };
            map::unmap_piece(tp, &inode, Which::Data, &x, m.offset, e.end()).map(|_| ())
        }
        _ => Err(Error::Unsupported { what: "recovering an unknown mapping intent".into() }),
    }
}

/// Takes out attributes that a crash left hidden, their values not whole: xfs_repair would drop all attributes of their files. What is
/// damaged otherwise stays as it is; the volume can be used without it. Nothing but the log tells which they are, so they hold its
/// tail until it is durable that they are gone.
///
/// # Errors
/// The volume was shut down.
pub(super) fn drop_hidden_attributes(names: &Names, pending: &Pending) -> Result<()> {
    let vol = &names.vol;
    for inode in pending.attributed().filter_map(|ino| names.inodes.get(ino).ok()) {
        pending.make_way(vol);
        let _ = attr::drop_all_hidden(&inode);
    }
    if pending.holds_hidden() {
        vol.journal.force_all()?;
        pending.let_hidden_go(vol);
    }
    Ok(vol.journal.shutdown.check()?)
}

/// Frees the inodes on the unlinked lists.
///
/// # Errors
/// A list is corrupt.
pub(super) fn free_unlinked(names: &Names) -> Result<()> {
    for agno in (0..names.vol.geo.agcount).map(AgNumber) {
        for bucket in 0..UNLINKED_BUCKETS {
            // Each round takes the head off; more rounds than inodes mean a loop.
            let mut last = NULL_AG;
            loop {
                let head = head_of(names, agno, bucket)?;
                if head == NULL_AG {
                    break;
                }
                let ino = names.vol.geo.ino(agno, AgIno(head));
                if head == last {
                    return Err(names.vol.corrupt(ino, "stays on its unlinked list"));
                }
                last = head;
                let inode = names.inodes.get(ino)?;
                if inode.core().nlink != 0 {
                    return Err(names.vol.corrupt(ino, "is on an unlinked list but has names"));
                }
                names.inactivate(&inode)?;
            }
        }
    }
    Ok(())
}

fn head_of(names: &Names, agno: AgNumber, bucket: usize) -> Result<u32> {
    let g = &names.vol.geo;
    let b = names.vol.bufs.read(&[(g.header_daddr(agno, 2), g.bb_per_sector())], uxfs_format::Kind::Agi, g)?;
    Ok(ag::get_agi(&b).unlinked[bucket].get())
}

/// Frees blocks that a crash left staged for copy-on-write.
///
/// # Errors
/// The tree is corrupt.
pub(super) fn free_cow_leftovers(vol: &Arc<Volume>) -> Result<()> {
    if !vol.geo.reflink() {
        return Ok(());
    }
    for agno in (0..vol.geo.agcount).map(AgNumber) {
        loop {
            let mut tp = Trans::new_must_succeed(vol, vol.res.itruncate.single(), vol.res.write_blocks)?;
            let more = space::free_all_cow_staging(&mut tp, agno)?;
            if !more {
                break;
            }
            tp.commit()?;
        }
    }
    Ok(())
}
