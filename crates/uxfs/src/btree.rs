//! One cursor for all btrees, over buffers or with its root in an inode. It knows no record: a [`Tree`] does.
//!
//! 1. A node's key is that of the first record below it; changes at the left edge go up at once.
//! 2. No block but the root has fewer than half of what fits.
//! 3. A block that split or merged is linked to its neighbours on the same level.

use crate::error::{Error, Result};
use crate::trans::{Buf, Trans};
use std::cmp::Ordering;
use uxfs_format::btree::{MAX_LEVELS, Shape, TreeKind, numrecs, set_numrecs};
use uxfs_format::bytes::{partition, put32, put64};
use uxfs_format::{Corruption, DiskAddr, Kind};

/// How two keys, as they are on disk, lie to each other.
pub type CompareKeys = fn(&[u8], &[u8]) -> Ordering;

/// What a tree's records are, where its root is, and where its blocks come from.
pub trait Tree {
    /// A record, decoded; also what is searched for.
    type Rec: Copy + PartialEq + std::fmt::Debug;
    /// Which tree.
    fn kind(&self) -> TreeKind;
    /// Reads a record.
    fn decode(&self, b: &[u8]) -> Self::Rec;
    /// Writes a record.
    fn encode(&self, r: &Self::Rec, b: &mut [u8]);
    /// Writes the key of a record, of an overlapping tree both its low and its high one.
    fn put_key(&self, r: &Self::Rec, b: &mut [u8]);
    /// In a tree whose records may overlap, nodes keep for each child its lowest key and its highest one, side by side;
    /// the high key is the latter half. `None` for all other trees, else how two high keys compare.
    fn cmp_high(&self) -> Option<CompareKeys> {
        None
    }
    /// How a stored record lies to what is searched for.
    fn cmp_rec(&self, stored: &Self::Rec, target: &Self::Rec) -> Ordering;
    /// How a stored key lies to what is searched for.
    fn cmp_key(&self, key: &[u8], target: &Self::Rec) -> Ordering;
    /// Pointer to the root and number of levels; `None` as pointer if the root is in the inode.
    fn root(&self) -> (Option<u64>, u16);
    /// Moves the root.
    fn set_root(&mut self, tp: &mut Trans, ptr: Option<u64>, levels: u16);
    /// Device address of a block.
    fn daddr(&self, tp: &Trans, ptr: u64) -> Option<DiskAddr>;
    /// Owner in the blocks' headers.
    fn owner(&self) -> u64;
    /// Allocates a block.
    ///
    /// # Errors
    /// `NoSpace`.
    fn alloc(&mut self, tp: &mut Trans, near: u64) -> Result<u64>;
    /// Frees a block.
    ///
    /// # Errors
    /// A tree of free space is corrupt.
    fn free(&mut self, tp: &mut Trans, ptr: u64) -> Result<()>;
    /// Reads the root in the inode, as a block whose size is what fits.
    fn with_inode_root<R>(&self, f: impl FnOnce(&mut Vec<u8>) -> R) -> Option<R> {
        let _ = f;
        None
    }
    /// The root in the inode was changed.
    fn log_inode_root(&mut self, tp: &mut Trans) {
        let _ = tp;
    }
}

/// A block of the path.
#[derive(Clone)]
enum Node {
    Buf(Buf, u64),
    Root,
}

/// A position in a tree; valid until the next insertion or deletion.
pub struct Cursor<'a, T: Tree> {
    /// The transaction.
    pub tp: &'a mut Trans,
    /// The tree.
    pub tree: T,
    shape: Shape,
    /// From the leaf upwards: block and index.
    path: Vec<(Node, usize)>,
}

impl<'a, T: Tree> Cursor<'a, T> {
    /// A cursor that stands nowhere.
    pub fn new(tp: &'a mut Trans, tree: T) -> Self {
        let shape = tree.kind().shape_in(&tp.vol.geo);
        Cursor { tp, tree, shape, path: Vec::new() }
    }

    fn corrupt(&self, what: &'static str) -> Error {
        Error::Corrupt(Corruption { structure: self.shape.name, place: self.leaf_addr(), what })
    }

    fn leaf_addr(&self) -> DiskAddr {
        match self.path.first() {
            Some((Node::Buf(b, _), _)) => b.daddr(),
            _ => DiskAddr(0),
        }
    }

    fn get(&mut self, ptr: u64, level: u16) -> Result<Node> {
        let bad = Corruption { structure: self.shape.name, place: DiskAddr(ptr), what: "a pointer leads outside the volume" };
        let at = self.tree.daddr(self.tp, ptr).ok_or(Error::Corrupt(bad))?;
        let bbs = self.tp.vol.geo.bb_per_block();
        let b = self.tp.read_buf(at, bbs, Kind::Btree(self.tree.kind()))?;
        let (found, n) = {
            let d = b.data();
            (uxfs_format::btree::level(&d), numrecs(&d))
        };
        if found != level || (n == 0 && level > 0) {
            let what = "a block is on another level than its parent says";
            return Err(Error::Corrupt(Corruption { structure: self.shape.name, place: at, what }));
        }
        Ok(Node::Buf(b, ptr))
    }

    fn read<R>(&self, n: &Node, f: impl FnOnce(&[u8]) -> R) -> R {
        match n {
            Node::Buf(b, _) => f(&b.data()),
            Node::Root => {
                let mut f = Some(f);
                let mut out = None;
                self.tree.with_inode_root(|d| out = f.take().map(|f| f(d)));
                match (out, f) {
                    (Some(r), _) => r,
                    (None, Some(f)) => f(&[0; 72]),
                    (None, None) => unreachable!("the closure is taken only when it is run"),
                }
            }
        }
    }

    fn write<R: Default>(&mut self, n: &Node, f: impl FnOnce(&mut [u8]) -> R) -> R {
        match n {
            Node::Buf(b, _) => self.tp.change(b, f),
            Node::Root => {
                let r = self.tree.with_inode_root(|d| f(d)).unwrap_or_default();
                self.tree.log_inode_root(self.tp);
                r
            }
        }
    }

    fn put(&mut self, n: &Node, at: usize, bytes: &[u8]) {
        match n {
            Node::Buf(b, _) => self.tp.put(b, at, bytes),
            Node::Root => self.write(n, |d| d[at..at + bytes.len()].copy_from_slice(bytes)),
        }
    }

    fn count(&self, n: &Node) -> usize {
        self.read(n, numrecs)
    }

    fn max(&self, n: &Node) -> usize {
        let s = self.shape;
        self.read(n, |d| s.max(d.len() as u32, uxfs_format::btree::level(d)))
    }

    fn ptr(&self, n: &Node, i: usize) -> u64 {
        let s = self.shape;
        self.read(n, |d| s.ptr_get(d, d.len() as u32, i))
    }

    fn rec_at(&self, n: &Node, i: usize) -> T::Rec {
        let at = self.shape.rec_at(i);
        self.read(n, |d| self.tree.decode(&d[at..]))
    }

    /// The root and its level.
    fn root(&mut self) -> Result<(Node, u16)> {
        let (ptr, levels) = self.tree.root();
        let Some(top) = levels.checked_sub(1).filter(|t| usize::from(*t) < MAX_LEVELS) else {
            return Err(self.corrupt("has an impossible height"));
        };
        let root = match ptr {
            Some(p) => self.get(p, top)?,
            None => Node::Root,
        };
        Ok((root, top))
    }

    /// The blocks of a group's tree; its leaves are not read.
    ///
    /// # Errors
    /// As [`Cursor::lookup_ge`].
    pub fn blocks(&mut self) -> Result<u32> {
        let (root, top) = self.root()?;
        let mut waiting = vec![(root, top)];
        let mut blocks = 1u32;
        while let Some((node, level)) = waiting.pop() {
            if level == 0 {
                continue;
            }
            let children = self.count(&node);
            blocks = blocks.saturating_add(children as u32);
            if blocks > self.tp.vol.geo.agblocks {
                return Err(self.corrupt("has more blocks than its group"));
            }
            for i in (0..children).filter(|_| level > 1) {
                let child = self.get(self.ptr(&node, i), level - 1)?;
                waiting.push((child, level - 1));
            }
        }
        Ok(blocks)
    }

    /// Goes down to the leaf where `target` belongs; the index is that of the first record not before it.
    fn descend(&mut self, target: &T::Rec) -> Result<()> {
        self.path.clear();
        let (mut node, top) = self.root()?;
        let mut path = Vec::with_capacity(usize::from(top) + 1);
        for level in (0..top).rev() {
            let n = self.count(&node);
            let (s, tree) = (self.shape, &self.tree);
            let i = self.read(&node, |d| partition(n, |i| tree.cmp_key(&d[s.key_at(i)..], target) != Ordering::Greater));
            let i = i.saturating_sub(1);
            let child = self.ptr(&node, i);
            path.push((node, i));
            node = self.get(child, level)?;
        }
        let n = self.count(&node);
        let (s, tree) = (self.shape, &self.tree);
        let i = self.read(&node, |d| partition(n, |i| tree.cmp_rec(&tree.decode(&d[s.rec_at(i)..]), target) == Ordering::Less));
        path.push((node, i));
        path.reverse();
        self.path = path;
        Ok(())
    }

    /// Stands on the first record that is not before `target`.
    ///
    /// # Errors
    /// The device's, or the tree is corrupt.
    pub fn lookup_ge(&mut self, target: &T::Rec) -> Result<Option<T::Rec>> {
        self.descend(target)?;
        if self.path[0].1 < self.count(&self.path[0].0.clone()) {
            return Ok(self.current());
        }
        self.path[0].1 = self.path[0].1.saturating_sub(1);
        if self.count(&self.path[0].0.clone()) == 0 { Ok(None) } else { self.next() }
    }

    /// Stands on the last record that is not behind `target`; where there is none, on the first of all.
    ///
    /// # Errors
    /// As [`Cursor::lookup_ge`].
    pub fn lookup_le(&mut self, target: &T::Rec) -> Result<Option<T::Rec>> {
        self.descend(target)?;
        if let Some(r) = self.current()
            && self.tree.cmp_rec(&r, target) == Ordering::Equal
        {
            return Ok(Some(r));
        }
        self.prev()
    }

    /// Stands on the record equal to `target`.
    ///
    /// # Errors
    /// As [`Cursor::lookup_ge`].
    pub fn lookup_eq(&mut self, target: &T::Rec) -> Result<Option<T::Rec>> {
        let r = self.lookup_ge(target)?;
        Ok(r.filter(|r| self.tree.cmp_rec(r, target) == Ordering::Equal))
    }

    /// The record it stands on.
    pub fn current(&self) -> Option<T::Rec> {
        let (n, i) = self.path.first()?;
        (*i < self.count(n)).then(|| self.rec_at(n, *i))
    }

    fn step(&mut self, forward: bool) -> Result<Option<T::Rec>> {
        let ok = |n: usize, i: usize| if forward { i + 1 < n } else { i > 0 };
        let up = (0..self.path.len()).find(|l| ok(self.count(&self.path[*l].0), self.path[*l].1));
        let Some(up) = up else { return Ok(None) };
        self.path[up].1 = if forward { self.path[up].1 + 1 } else { self.path[up].1 - 1 };
        for l in (0..up).rev() {
            let p = self.ptr(&self.path[l + 1].0, self.path[l + 1].1);
            let node = self.get(p, l as u16)?;
            let i = if forward { 0 } else { self.count(&node).saturating_sub(1) };
            self.path[l] = (node, i);
        }
        Ok(self.current())
    }

    /// Goes to the next record.
    ///
    /// # Errors
    /// As [`Cursor::lookup_ge`].
    pub fn next(&mut self) -> Result<Option<T::Rec>> {
        self.step(true)
    }

    /// Goes to the record before.
    ///
    /// # Errors
    /// As [`Cursor::lookup_ge`].
    pub fn prev(&mut self) -> Result<Option<T::Rec>> {
        self.step(false)
    }

    /// Replaces the record it stands on; the order may not change.
    ///
    /// # Errors
    /// It stands on none.
    pub fn update(&mut self, r: &T::Rec) -> Result<()> {
        let Some((n, i)) = self.path.first().cloned() else { return Err(self.corrupt("is changed where there is no record")) };
        let (at, len) = (self.shape.rec_at(i), self.shape.rec);
        let mut bytes = vec![0; len];
        self.tree.encode(r, &mut bytes);
        self.put(&n, at, &bytes);
        self.entry_changed(0, i);
        Ok(())
    }

    /// Entry `i` of the block at `level` was changed: the keys above follow where they depend on it.
    fn entry_changed(&mut self, level: usize, i: usize) {
        if i == 0 || self.tree.cmp_high().is_some() {
            self.update_keys(level);
        }
    }

    /// Carries the key of the block at `level` up, as far as it matters there.
    fn update_keys(&mut self, level: usize) {
        for l in level..self.path.len() - 1 {
            let key = self.block_key(&self.path[l].0.clone());
            let (n, i) = self.path[l + 1].clone();
            let at = self.shape.key_at(i);
            if self.read(&n, |d| d[at..at + key.len()] == key) {
                break;
            }
            self.put(&n, at, &key);
            if i > 0 && self.tree.cmp_high().is_none() {
                break;
            }
        }
    }

    /// Puts the key of entry `i` of a block's bytes `d` into `out`.
    fn put_key_of(&self, d: &[u8], level: u16, i: usize, out: &mut [u8]) {
        let s = self.shape;
        match level {
            0 => self.tree.put_key(&self.tree.decode(&d[s.rec_at(i)..]), out),
            _ => out.copy_from_slice(&d[s.key_at(i)..s.key_at(i) + s.key]),
        }
    }

    /// Key of entry `i` of a block.
    fn key_of(&self, n: &Node, level: u16, i: usize) -> Vec<u8> {
        let mut key = vec![0; self.shape.key];
        self.read(n, |d| self.put_key_of(d, level, i, &mut key));
        key
    }

    /// The key that a parent keeps for a block: that of its first entry, with the highest of all high keys.
    fn block_key(&self, n: &Node) -> Vec<u8> {
        let mut key = vec![0; self.shape.key];
        self.read(n, |d| {
            let level = uxfs_format::btree::level(d);
            self.put_key_of(d, level, 0, &mut key);
            let Some(cmp) = self.tree.cmp_high() else { return };
            let half = key.len() / 2;
            let mut other = vec![0; key.len()];
            for i in 1..numrecs(d) {
                self.put_key_of(d, level, i, &mut other);
                if cmp(&other[half..], &key[half..]) == Ordering::Greater {
                    key[half..].copy_from_slice(&other[half..]);
                }
            }
        });
        key
    }

    /// Visits the records of an overlapping tree under keys for which `may_hold` is true, in order, until `visit` says false.
    ///
    /// # Errors
    /// As [`Cursor::lookup_ge`].
    pub fn visit_under(&mut self, may_hold: &dyn Fn(&[u8]) -> bool, visit: &mut dyn FnMut(T::Rec) -> bool) -> Result<()> {
        let (root, top) = self.root()?;
        let mut waiting = vec![(root, top)];
        while let Some((node, level)) = waiting.pop() {
            let entries: Vec<usize> = (0..self.count(&node)).filter(|i| may_hold(&self.key_of(&node, level, *i))).collect();
            if level == 0 {
                if !entries.into_iter().all(|i| visit(self.rec_at(&node, i))) {
                    return Ok(());
                }
                continue;
            }
            for i in entries.into_iter().rev() {
                let child = self.get(self.ptr(&node, i), level - 1)?;
                waiting.push((child, level - 1));
            }
        }
        Ok(())
    }

    /// Inserts a record where it belongs.
    ///
    /// # Errors
    /// `NoSpace` for a block; the tree is corrupt, or has the record already.
    pub fn insert(&mut self, r: &T::Rec) -> Result<()> {
        self.descend(r)?;
        if let Some(there) = self.current()
            && self.tree.cmp_rec(&there, r) == Ordering::Equal
        {
            return Err(self.corrupt("has a record already that is inserted"));
        }
        let mut bytes = vec![0; self.shape.rec];
        self.tree.encode(r, &mut bytes);
        self.insert_at(0, &bytes, None)
    }

    /// Inserts an entry at the path's index of `level`: a record, or a key with its pointer.
    fn insert_at(&mut self, level: usize, entry: &[u8], ptr: Option<u64>) -> Result<()> {
        let (node, _) = self.path[level].clone();
        if self.count(&node) == self.max(&node) {
            self.split(level)?;
        }
        let (node, i) = self.path[level].clone();
        let s = self.shape;
        self.write(&node, |d| {
            let n = numrecs(d);
            let bs = d.len() as u32;
            let (at, len) = if ptr.is_none() { (s.rec_at(i), s.rec) } else { (s.key_at(i), s.key) };
            d.copy_within(at..at + (n - i) * len, at + len);
            d[at..at + len].copy_from_slice(entry);
            if let Some(p) = ptr {
                let at = s.ptr_at(bs, i);
                d.copy_within(at..at + (n - i) * s.ptr, at + s.ptr);
                put_ptr(d, at, s.ptr, p);
            }
            set_numrecs(d, n + 1);
        });
        self.entry_changed(level, i);
        Ok(())
    }

    /// Splits the full block at `level`; the path then leads to where the entry goes.
    fn split(&mut self, level: usize) -> Result<()> {
        let root = level + 1 == self.path.len();
        if root {
            self.grow()?;
        }
        let (node, i) = self.path[level].clone();
        let Node::Buf(left, left_ptr) = node else {
            // The root in the inode got one child in `grow`; this level is that child now, or has room.
            return Ok(());
        };
        if numrecs(&left.data()) < self.shape.max(left.data().len() as u32, level as u16) {
            return Ok(());
        }
        let right_ptr = self.tree.alloc(self.tp, left_ptr)?;
        let right = self.new_block(right_ptr, level as u16)?;
        let s = self.shape;
        let n = numrecs(&left.data());
        let keep = n.div_ceil(2);
        let old_right = s.right(&left.data());
        let from = left.data().clone();
        self.tp.change(&right, |d| {
            move_entries(&s, &from, keep, d, 0, n - keep);
            set_numrecs(d, n - keep);
            s.set_left(d, Some(left_ptr));
            s.set_right(d, old_right);
        });
        self.tp.change(&left, |d| {
            set_numrecs(d, keep);
            s.set_right(d, Some(right_ptr));
        });
        if let Some(p) = old_right {
            let Node::Buf(b, _) = self.get(p, level as u16)? else { return Ok(()) };
            self.tp.change(&b, |d| s.set_left(d, Some(right_ptr)));
        }
        let key = self.block_key(&Node::Buf(right.clone(), right_ptr));
        if self.tree.cmp_high().is_some() {
            // What went to the right no longer counts on the left.
            self.update_keys(level);
        }
        // The new block's entry goes behind this one's in the parent, which may split in turn.
        self.path[level + 1].1 += 1;
        self.insert_at(level + 1, &key, Some(right_ptr))?;
        if i < keep {
            // Stay on the left: the parent's position goes back by one, maybe across a split above.
            self.step_parent_back(level)?;
            self.path[level] = (Node::Buf(left, left_ptr), i);
        } else {
            self.path[level] = (Node::Buf(right, right_ptr), i - keep);
        }
        Ok(())
    }

    fn step_parent_back(&mut self, level: usize) -> Result<()> {
        let up = (level + 1..self.path.len()).find(|l| self.path[*l].1 > 0);
        let Some(up) = up else { return Err(self.corrupt("lost its way while splitting")) };
        self.path[up].1 -= 1;
        for l in (level + 1..up).rev() {
            let p = self.ptr(&self.path[l + 1].0, self.path[l + 1].1);
            let node = self.get(p, l as u16)?;
            let i = self.count(&node) - 1;
            self.path[l] = (node, i);
        }
        Ok(())
    }

    fn new_block(&mut self, ptr: u64, level: u16) -> Result<Buf> {
        let bad = self.corrupt("got a block outside the volume");
        let at = self.tree.daddr(self.tp, ptr).ok_or(bad)?;
        let b = self.tp.get_buf(&[(at, self.tp.vol.geo.bb_per_block())], Kind::Btree(self.tree.kind()));
        let owner = self.tree.owner();
        let g = self.tp.vol.clone();
        self.shape.init(&mut b.data_mut(), level, at, owner, &g.geo);
        self.tp.log_all(&b);
        Ok(b)
    }

    /// Moves what a root in an inode holds into a block of its own, where the root itself is to become smaller. `any` record of the tree leads
    /// there.
    ///
    /// # Errors
    /// `NoSpace` for the block; the tree is corrupt.
    pub fn lower_root(&mut self, any: &T::Rec) -> Result<()> {
        self.descend(any)?;
        self.grow()
    }

    /// Adds a level at the top.
    fn grow(&mut self) -> Result<()> {
        let top = self.path.len() - 1;
        let (node, i) = self.path[top].clone();
        let s = self.shape;
        let levels = self.path.len() as u16;
        if levels as usize >= MAX_LEVELS {
            return Err(self.corrupt("would grow too high"));
        }
        match node {
            Node::Buf(old, old_ptr) => {
                let key = self.block_key(&Node::Buf(old.clone(), old_ptr));
                let ptr = self.tree.alloc(self.tp, old_ptr)?;
                let b = self.new_block(ptr, levels)?;
                self.tp.change(&b, |d| put_entry(&s, d, 0, &key, old_ptr, 1));
                self.tree.set_root(self.tp, Some(ptr), levels + 1);
                self.path.push((Node::Buf(b, ptr), 0));
            }
            Node::Root => {
                // The inode's root moves into a block and keeps one entry, for that block.
                let ptr = self.tree.alloc(self.tp, self.tree.owner())?;
                let b = self.new_block(ptr, levels - 1)?;
                let old = self.read(&Node::Root, <[u8]>::to_vec);
                let n = numrecs(&old);
                self.tp.change(&b, |d| {
                    move_entries(&s, &old, 0, d, 0, n);
                    set_numrecs(d, n);
                });
                let key = self.block_key(&Node::Buf(b.clone(), ptr));
                self.write(&Node::Root, |d| {
                    uxfs_format::bytes::put16(d, 4, levels);
                    put_entry(&s, d, 0, &key, ptr, 1);
                });
                self.tree.set_root(self.tp, None, levels + 1);
                self.path[top] = (Node::Buf(b, ptr), i);
                self.path.push((Node::Root, 0));
            }
        }
        Ok(())
    }

    /// Deletes the record it stands on.
    ///
    /// # Errors
    /// The tree is corrupt, or it stands on no record.
    pub fn delete(&mut self) -> Result<()> {
        if self.current().is_none() {
            return Err(self.corrupt("has no record where one is deleted"));
        }
        self.delete_at(0)
    }

    fn delete_at(&mut self, level: usize) -> Result<()> {
        let (node, i) = self.path[level].clone();
        let s = self.shape;
        let left = self.write(&node, |d| {
            let n = numrecs(d);
            let bs = d.len() as u32;
            if level == 0 {
                let at = s.rec_at(i);
                d.copy_within(at + s.rec..s.rec_at(n), at);
            } else {
                d.copy_within(s.key_at(i + 1)..s.key_at(n), s.key_at(i));
                let at = s.ptr_at(bs, i);
                d.copy_within(at + s.ptr..at + (n - i) * s.ptr, at);
            }
            set_numrecs(d, n - 1);
            n - 1
        });
        if level + 1 == self.path.len() {
            return self.shrink(level, left);
        }
        if left > 0 {
            self.entry_changed(level, i);
        }
        if left >= self.max(&node) / 2 {
            return Ok(());
        }
        let (parent, _) = self.path[level + 1].clone();
        if matches!(parent, Node::Root) && self.count(&parent) == 1 {
            // The only child of a root in the inode has nobody to be joined with but the root.
            return self.shrink(level + 1, 1);
        }
        self.rebalance(level)
    }

    /// Takes levels off the top while the root has one child.
    fn shrink(&mut self, level: usize, left: usize) -> Result<()> {
        if level == 0 || left != 1 {
            return Ok(());
        }
        let (node, _) = self.path[level].clone();
        let child_ptr = self.ptr(&node, 0);
        let s = self.shape;
        match node {
            Node::Buf(_, ptr) => {
                self.tree.set_root(self.tp, Some(child_ptr), level as u16);
                self.free_block(ptr)
            }
            Node::Root => {
                // A child that fits into the inode moves there; a single leaf is for the fork's own conversion.
                let Node::Buf(child, _) = self.get(child_ptr, level as u16 - 1)? else { return Ok(()) };
                let from = child.data().clone();
                let n = numrecs(&from);
                if level < 2 || n > self.max(&Node::Root) {
                    return Ok(());
                }
                self.write(&Node::Root, |d| {
                    move_entries(&s, &from, 0, d, 0, n);
                    set_numrecs(d, n);
                    uxfs_format::bytes::put16(d, 4, level as u16 - 1);
                });
                self.tree.set_root(self.tp, None, level as u16);
                self.free_block(child_ptr)
            }
        }
    }

    fn free_block(&mut self, ptr: u64) -> Result<()> {
        let bad = self.corrupt("frees a block outside the volume");
        let at = self.tree.daddr(self.tp, ptr).ok_or(bad)?;
        let b = self.tp.read_buf(at, self.tp.vol.geo.bb_per_block(), Kind::Btree(self.tree.kind()))?;
        self.tp.invalidate(&b);
        self.tree.free(self.tp, ptr)
    }

    /// Fills a block that became too empty from a neighbour under the same parent, or joins the two.
    fn rebalance(&mut self, level: usize) -> Result<()> {
        let (parent, pi) = self.path[level + 1].clone();
        let n = self.count(&parent);
        if n < 2 {
            return Ok(());
        }
        let li = if pi > 0 { pi - 1 } else { pi };
        let (lp, rp) = (self.ptr(&parent, li), self.ptr(&parent, li + 1));
        let (Node::Buf(left, _), Node::Buf(right, _)) = (self.get(lp, level as u16)?, self.get(rp, level as u16)?) else {
            return Ok(());
        };
        let s = self.shape;
        let (nl, nr) = (numrecs(&left.data()), numrecs(&right.data()));
        let max = self.max(&Node::Buf(left.clone(), lp));
        if nl + nr <= max {
            let from = right.data().clone();
            let next = s.right(&from);
            self.tp.change(&left, |d| {
                move_entries(&s, &from, 0, d, nl, nr);
                set_numrecs(d, nl + nr);
                s.set_right(d, next);
            });
            if let Some(p) = next {
                let Node::Buf(b, _) = self.get(p, level as u16)? else { return Ok(()) };
                self.tp.change(&b, |d| s.set_left(d, Some(lp)));
            }
            // The left one's keys may have changed: it was this block, or took in what it held.
            self.path[level].0 = Node::Buf(left, lp);
            self.path[level + 1].1 = li;
            self.update_keys(level);
            self.free_block(rp)?;
            self.path[level + 1].1 = li + 1;
            return self.delete_at(level + 1);
        }
        let want = (nl + nr) / 2;
        let (l, r) = (left.data().clone(), right.data().clone());
        let mut all = vec![0u8; s.header + 4 * max * (s.rec.max(s.key + s.ptr))];
        // Lay both out in one wide block, then cut it in the middle.
        s_level(&mut all, level as u16);
        move_entries(&s, &l, 0, &mut all, 0, nl);
        move_entries(&s, &r, 0, &mut all, nl, nr);
        for (b, from, count) in [(&left, 0, want), (&right, want, nl + nr - want)] {
            self.tp.change(b, |d| {
                move_entries(&s, &all, from, d, 0, count);
                set_numrecs(d, count);
            });
        }
        let key = self.block_key(&Node::Buf(right, rp));
        let at = s.key_at(li + 1);
        self.write(&parent, |d| d[at..at + key.len()].copy_from_slice(&key));
        self.path[level + 1].1 = li;
        self.path[level].0 = Node::Buf(left, lp);
        self.update_keys(level);
        if self.tree.cmp_high().is_some() {
            self.update_keys(level + 1);
        }
        Ok(())
    }
}

fn s_level(d: &mut [u8], level: u16) {
    uxfs_format::bytes::put16(d, 4, level);
}

fn put_ptr(d: &mut [u8], at: usize, size: usize, p: u64) {
    if size == 4 { put32(d, at, p as u32) } else { put64(d, at, p) }
}

fn put_entry(s: &Shape, d: &mut [u8], i: usize, key: &[u8], ptr: u64, count: usize) {
    let at = s.key_at(i);
    d[at..at + key.len()].copy_from_slice(key);
    let at = s.ptr_at(d.len() as u32, i);
    put_ptr(d, at, s.ptr, ptr);
    set_numrecs(d, count);
}

/// Copies `n` entries between blocks of the same level, whatever their sizes; the level is the source's.
fn move_entries(s: &Shape, from: &[u8], first: usize, to: &mut [u8], at: usize, n: usize) {
    if uxfs_format::btree::level(from) == 0 {
        let src = s.rec_at(first);
        let dst = s.rec_at(at);
        to[dst..dst + n * s.rec].copy_from_slice(&from[src..src + n * s.rec]);
        return;
    }
    let (src, dst) = (s.key_at(first), s.key_at(at));
    to[dst..dst + n * s.key].copy_from_slice(&from[src..src + n * s.key]);
    let (src, dst) = (s.ptr_at(from.len() as u32, first), s.ptr_at(to.len() as u32, at));
    to[dst..dst + n * s.ptr].copy_from_slice(&from[src..src + n * s.ptr]);
}
