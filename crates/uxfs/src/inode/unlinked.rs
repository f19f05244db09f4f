//! The lists of inodes that have no name any more but are still in use: a crash finds them there and frees them.

use super::{Inode, cluster_place};
use crate::ag;
use crate::error::Result;
use crate::trans::Trans;
use std::sync::Arc;
use uxfs_format::ag::UNLINKED_BUCKETS;
use uxfs_format::bytes::{get32, put32};
use uxfs_format::inode::{INODE_CRC, NEXT_UNLINKED};
use uxfs_format::{AgIno, AgNumber, Kind, NULL_AG, crc};

/// Sets the next-unlinked field of an inode in its cluster; returns what it was.
fn set_next(tp: &mut Trans, agno: AgNumber, agino: u32, next: u32) -> Result<u32> {
    let g = &tp.vol.geo;
    let (at, bbs, offset) = cluster_place(g, g.ino(agno, AgIno(agino)));
    let isize = g.inodesize as usize;
    let b = tp.read_buf(at, bbs, Kind::Inode)?;
    let old = get32(&b.data(), offset + NEXT_UNLINKED);
    if old != next {
        let mut d = b.data_mut();
        let home = &mut d[offset..offset + isize];
        put32(home, NEXT_UNLINKED, next);
        crc::stamp(home, INODE_CRC);
        drop(d);
        tp.log_inode_buf(&b, offset + NEXT_UNLINKED, offset + NEXT_UNLINKED + 4);
    }
    Ok(old)
}

/// Puts an inode without names at the front of its list.
///
/// # Locks
/// Takes the group's AGI, then the inode's cluster. The caller has the inode locked and no AGF.
///
/// # Errors
/// The group is corrupt.
pub fn unlinked_add(tp: &mut Trans, inode: &Arc<Inode>) -> Result<()> {
    let (agno, agino) = (tp.vol.geo.ino_agno(inode.ino), tp.vol.geo.ino_agino(inode.ino).0);
    let bucket = agino as usize % UNLINKED_BUCKETS;
    let agi = ag::agi(tp, agno)?;
    let head = ag::get_agi(&agi).unlinked[bucket].get();
    if head == agino {
        return Err(ag::corrupt(&agi, "has an inode on its unlinked list already"));
    }
    if head != NULL_AG {
        set_next(tp, agno, agino, head)?;
        tp.vol.groups[agno.0 as usize].unlinked_prev.lock().insert(head, agino);
    }
    inode.data().core.next_unlinked = head;
    ag::set_agi(tp, &agi, |a| a.unlinked[bucket].set(agino));
    Ok(())
}

/// Takes an inode off its list.
///
/// # Locks
/// As [`unlinked_add`].
///
/// # Errors
/// The list is corrupt.
pub fn unlinked_remove(tp: &mut Trans, inode: &Arc<Inode>) -> Result<()> {
    let (agno, agino) = (tp.vol.geo.ino_agno(inode.ino), tp.vol.geo.ino_agino(inode.ino).0);
    let bucket = agino as usize % UNLINKED_BUCKETS;
    let agi = ag::agi(tp, agno)?;
    let head = ag::get_agi(&agi).unlinked[bucket].get();
    let vol = tp.vol.clone();
    let prevs = &vol.groups[agno.0 as usize].unlinked_prev;
    let next = set_next(tp, agno, agino, NULL_AG)?;
    let prev = if head == agino {
        ag::set_agi(tp, &agi, |a| a.unlinked[bucket].set(next));
        None
    } else {
        let known = prevs.lock().get(&agino).copied();
        let prev = match known {
            Some(p) => p,
            None => walk_to(tp, agno, head, agino)?,
        };
        set_next(tp, agno, prev, next)?;
        Some(prev)
    };
    let mut p = prevs.lock();
    p.remove(&agino);
    if next != NULL_AG {
        match prev {
            Some(prev) => p.insert(next, prev),
            None => p.remove(&next),
        };
    }
    inode.data().core.next_unlinked = NULL_AG;
    Ok(())
}

/// The inode before `want` on the list from `head`; each step is one of at most as many inodes as the group has.
fn walk_to(tp: &mut Trans, agno: AgNumber, head: u32, want: u32) -> Result<u32> {
    let g = tp.vol.geo.clone();
    let agi = ag::agi(tp, agno)?;
    let mut at = head;
    for _ in 0..ag::get_agi(&agi).count.get() {
        if at == NULL_AG || !g.valid_ino(g.ino(agno, AgIno(at))) {
            break;
        }
        let (place, bbs, offset) = cluster_place(&g, g.ino(agno, AgIno(at)));
        let b = tp.read_buf(place, bbs, Kind::Inode)?;
        let next = get32(&b.data(), offset + NEXT_UNLINKED);
        if next == want {
            return Ok(at);
        }
        at = next;
    }
    Err(ag::corrupt(&agi, "has an unlinked list without an inode that belongs there"))
}
