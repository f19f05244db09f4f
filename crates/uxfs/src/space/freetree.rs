//! The two trees of free extents.

use super::agfl;
use crate::ag;
use crate::btree::Tree;
use crate::error::Result;
use crate::trans::{Buf, Trans};
use std::cmp::Ordering;
use uxfs_format::btree::{FreeRec, TreeKind};
use uxfs_format::bytes::{get32, put32};
use uxfs_format::{AgBlock, AgNumber, DiskAddr};

/// bnobt or cntbt of a group whose AGF the transaction has.
pub(super) struct FreeTree {
    pub(super) agno: AgNumber,
    pub(super) agf: Buf,
    pub(super) by_size: bool,
}

impl FreeTree {
    fn slot(&self) -> usize {
        usize::from(self.by_size)
    }
}

impl Tree for FreeTree {
    type Rec = FreeRec;
    fn kind(&self) -> TreeKind {
        if self.by_size { TreeKind::Cnt } else { TreeKind::Bno }
    }
    fn decode(&self, b: &[u8]) -> FreeRec {
        // One that runs on beyond all numbers is cut, so that sums hold; it is refused where it would be used.
        let start = get32(b, 0);
        FreeRec { start, len: get32(b, 4).min(u32::MAX - start) }
    }
    fn encode(&self, r: &FreeRec, b: &mut [u8]) {
        put32(b, 0, r.start);
        put32(b, 4, r.len);
    }
    fn put_key(&self, r: &FreeRec, b: &mut [u8]) {
        self.encode(r, b);
    }
    fn cmp_rec(&self, s: &FreeRec, t: &FreeRec) -> Ordering {
        if self.by_size { (s.len, s.start).cmp(&(t.len, t.start)) } else { s.start.cmp(&t.start) }
    }
    fn cmp_key(&self, key: &[u8], t: &FreeRec) -> Ordering {
        self.cmp_rec(&self.decode(key), t)
    }
    fn root(&self) -> (Option<u64>, u16) {
        let a = ag::get_agf(&self.agf);
        (Some(u64::from(a.roots[self.slot()].get())), a.levels[self.slot()].get() as u16)
    }
    fn set_root(&mut self, tp: &mut Trans, ptr: Option<u64>, levels: u16) {
        let slot = self.slot();
        ag::set_agf(tp, &self.agf, |a| {
            a.roots[slot].set(ptr.unwrap_or(0) as u32);
            a.levels[slot].set(u32::from(levels));
        });
    }
    fn daddr(&self, tp: &Trans, ptr: u64) -> Option<DiskAddr> {
        group_daddr(tp, self.agno, ptr)
    }
    fn owner(&self) -> u64 {
        u64::from(self.agno.0)
    }
    fn alloc(&mut self, tp: &mut Trans, _near: u64) -> Result<u64> {
        agfl::take_for_tree(tp, self.agno, &self.agf)
    }
    fn free(&mut self, tp: &mut Trans, ptr: u64) -> Result<()> {
        agfl::put_from_tree(tp, self.agno, &self.agf, ptr)
    }
}

/// Address of a block of a group, if it lies within.
pub(super) fn group_daddr(tp: &Trans, agno: AgNumber, ptr: u64) -> Option<DiskAddr> {
    let g = &tp.vol.geo;
    (ptr > 0 && ptr < u64::from(g.ag_length(agno))).then(|| g.ag_daddr(agno, AgBlock(ptr as u32)))
}
