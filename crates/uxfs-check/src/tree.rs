//! Walks a tree of a group or of a fork, block by block, and hands its records on.

use crate::Checker;
use crate::forms::Form;
use crate::usage::What;
use std::collections::HashSet;
use uxfs_format::btree::{self, RmapRec, TreeKind, rmap_flag};
use uxfs_format::bytes::{get32, get64};
use uxfs_format::{AgNumber, FsBlock, Kind};

/// A walk under way.
struct Walk<'t> {
    kind: TreeKind,
    /// Group, or `None` for a fork's tree.
    agno: Option<AgNumber>,
    /// The group, or the inode.
    owner: u64,
    /// For the rmapbt: flags of a fork's tree.
    fork: u64,
    what: What,
    /// Last key at each level, and the block before with its right sibling.
    last: Vec<Option<Key>>,
    before: Vec<Option<(u64, Option<u64>)>>,
    seen: HashSet<u64>,
    record: &'t mut dyn FnMut(&[u8]),
}

impl<'t> Walk<'t> {
    fn new(kind: TreeKind, agno: Option<AgNumber>, owner: u64, fork: u64, what: What, record: &'t mut dyn FnMut(&[u8])) -> Walk<'t> {
        let levels = btree::MAX_LEVELS + 1;
        Walk { kind, agno, owner, fork, what, last: vec![None; levels], before: vec![None; levels], seen: HashSet::new(), record }
    }
}

/// A place in the order of a tree.
type Key = (u128, u64);

/// A record's or key's place in the order.
fn order(kind: TreeKind, b: &[u8]) -> Key {
    let one = match kind {
        TreeKind::Rmap if b.len() == kind.shape().rec => return wide(RmapRec::decode(b).order()),
        TreeKind::Rmap => return half(b),
        TreeKind::Cnt => u128::from(get32(b, 4)) << 32 | u128::from(get32(b, 0)),
        // The start of an extent; nodes hold that alone, leaves packed into a record.
        TreeKind::Bmap if b.len() >= 16 => u128::from((get64(b, 0) >> 9) & ((1 << 54) - 1)),
        TreeKind::Bmap => u128::from(get64(b, 0)),
        _ => u128::from(get32(b, 0)),
    };
    (one, 0)
}

fn wide(k: (u32, u64, u64)) -> Key {
    (u128::from(k.0) << 64 | u128::from(k.1), k.2)
}

/// One of the two keys that a node of the rmapbt keeps for each child.
fn half(b: &[u8]) -> Key {
    wide((get32(b, 0), get64(b, 4), get64(b, 12) & !rmap_flag::UNWRITTEN))
}

impl Checker<'_> {
    /// Walks a tree of group `agno`; returns how many blocks it has.
    pub(crate) fn walk_group_tree(&mut self, kind: TreeKind, agno: AgNumber, root: u32, levels: u32, record: &mut dyn FnMut(&[u8])) -> u32 {
        let mut w = Walk::new(kind, Some(agno), u64::from(agno.0), 0, What::Tree(kind), record);
        if levels == 0 || levels as usize > btree::MAX_LEVELS {
            return 0;
        }
        self.form(Form::Tree(kind.shape().name), levels as u16);
        self.walk_block(&mut w, u64::from(root), levels as u16 - 1, None, true);
        self.walk_end(&w);
        w.seen.len() as u32
    }

    /// Walks the blocks below the root of an inode's extent tree; returns how many there are.
    pub(crate) fn walk_fork_tree(
        &mut self,
        ino: u64,
        fork: u64,
        children: &[(u64, u64)],
        level: u16,
        record: &mut dyn FnMut(&[u8]),
    ) -> u64 {
        let mut w = Walk::new(TreeKind::Bmap, None, ino, fork | rmap_flag::BMBT, What::Meta(ino), record);
        for (key, ptr) in children {
            self.walk_block(&mut w, *ptr, level - 1, Some((u128::from(*key), 0)), false);
        }
        self.walk_end(&w);
        w.seen.len() as u64
    }

    fn walk_end(&mut self, w: &Walk<'_>) {
        if w.before.iter().flatten().any(|b| b.1.is_some()) {
            self.add("tree-sibling", w.kind.shape().name, None, &format!("of {} has a last block with a right sibling", w.owner));
        }
    }

    /// Returns the highest key of the rmapbt's records below.
    fn walk_block(&mut self, w: &mut Walk<'_>, ptr: u64, level: u16, key: Option<Key>, root: bool) -> Option<Key> {
        let shape = w.kind.shape_in(&self.g);
        let fsb = match w.agno {
            Some(a) => self.g.fsb(a, uxfs_format::AgBlock(ptr as u32)),
            None => FsBlock(ptr),
        };
        if !self.g.valid_fsb(fsb, 1) || self.g.fsb_agbno(fsb).0 == 0 {
            self.add("tree-pointer", shape.name, None, &format!("of {} points outside the volume", w.owner));
            return None;
        }
        let at = self.g.fsb_daddr(fsb);
        if !w.seen.insert(ptr) {
            self.add("tree-loop", shape.name, Some(at), "is reached twice");
            return None;
        }
        self.claim_fsb(fsb, 1, w.what);
        if w.agno.is_none() {
            self.claim_for(w.owner, fsb, 1, w.fork);
        }
        let b = self.read_as(Kind::Btree(w.kind), at, self.g.bb_per_block())?;
        if let Some(owner) = Kind::Btree(w.kind).owner(&b).filter(|o| *o != w.owner) {
            self.add("tree-owner", shape.name, Some(at), &format!("belongs to {owner}, not to {}", w.owner));
            return None;
        }
        if btree::level(&b) != level {
            self.add("tree-level", shape.name, Some(at), "is at another level than its parent says");
            return None;
        }
        let (n, max) = (btree::numrecs(&b), shape.max(self.g.blocksize, level));
        if (!root && n < max / 2) && !(w.agno.is_none() && w.seen.len() == 1) {
            self.add("tree-few", shape.name, Some(at), &format!("has {n} records, fewer than the least of {}", max / 2));
        }
        let l = usize::from(level);
        let (left, right) = (shape.left(&b), shape.right(&b));
        let (want_left, linked) = w.before[l].map_or((None, true), |(p, r)| (Some(p), r == Some(ptr)));
        if left != want_left || !linked {
            self.add("tree-sibling", shape.name, Some(at), "is not linked with its neighbours");
        }
        w.before[l] = Some((ptr, right));
        let mut highest = None;
        for i in 0..n {
            let piece = if level == 0 {
                &b[shape.rec_at(i)..shape.rec_at(i) + shape.rec]
            } else {
                &b[shape.key_at(i)..shape.key_at(i) + shape.key]
            };
            let o = order(w.kind, piece);
            let sorted = w.last[l].is_none_or(|last| o > last);
            if !sorted {
                self.add("tree-order", shape.name, Some(at), &format!("record {i} is out of order"));
            }
            w.last[l] = Some(o);
            if i == 0 && key.is_some_and(|k| k != o) {
                self.add("tree-key", shape.name, Some(at), "begins with another key than its parent says");
            }
            if level == 0 {
                (w.record)(piece);
                if w.kind == TreeKind::Rmap {
                    highest = highest.max(Some(wide(RmapRec::decode(piece).last_order())));
                }
            } else {
                let child = shape.ptr_get(&b, self.g.blocksize, i);
                let below = self.walk_block(w, child, level - 1, Some(o), false);
                if below.is_some_and(|h| h != half(&piece[20..])) {
                    self.add(
                        "tree-high-key",
                        shape.name,
                        Some(at),
                        &format!("entry {i} has another highest key than the block that it leads to"),
                    );
                }
                highest = highest.max(below);
            }
        }
        highest
    }
}
