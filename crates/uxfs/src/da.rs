//! Blocks of directories and attribute forks, and the tree of name hashes that both use.
//!
//! A tree's root is at the fork's base block; a node's entry holds the highest hash of its child. Leaves are linked. What a
//! leaf holds is its owner's business: this room moves whole blocks and entries of nodes.

use crate::error::{Error, Result};
use crate::inode::{Inode, Which};
use crate::map;
use crate::trans::{Buf, Trans};
use crate::volume::Volume;
use smallvec::SmallVec;
use std::sync::Arc;
use uxfs_format::bytes::put64;
use uxfs_format::da::{self, DA_NODE_MAGIC};
use uxfs_format::{Corruption, DiskAddr, Kind};

/// Where blocks are read from: a transaction locks them, a reader does not.
pub trait Source {
    /// Reads a block.
    ///
    /// # Errors
    /// The device's, or the block is corrupt.
    fn block(&mut self, maps: &[(DiskAddr, u32)], kind: Kind) -> Result<Buf>;
}

impl Source for Trans {
    fn block(&mut self, maps: &[(DiskAddr, u32)], kind: Kind) -> Result<Buf> {
        self.read_maps(maps, kind)
    }
}

/// Reads without a transaction, under the inode's shared lock.
pub struct Reader<'a>(pub &'a Volume);

impl Source for Reader<'_> {
    fn block(&mut self, maps: &[(DiskAddr, u32)], kind: Kind) -> Result<Buf> {
        Ok(self.0.bufs.read(maps, kind, &self.0.geo)?)
    }
}

/// Pieces of a block, in a row where they can be: nearly always one.
type Maps = SmallVec<[(DiskAddr, u32); 1]>;

/// Blocks of a fork that go together: a directory's may be several filesystem blocks each.
#[derive(Clone)]
pub struct DaFork {
    /// The inode.
    pub inode: Arc<Inode>,
    /// Which fork.
    pub which: Which,
    /// First block of the tree.
    pub base: u32,
    /// Filesystem blocks a block.
    pub step: u32,
}

impl DaFork {
    /// A corruption of this inode.
    pub fn corrupt(&self, what: &'static str) -> Error {
        self.inode.vol.corrupt(self.inode.ino, what)
    }

    fn maps(&self, block: u32) -> Option<Maps> {
        let g = &self.inode.vol.geo;
        let d = self.inode.data();
        let f = d.fork(self.which);
        let mut out = Maps::new();
        for i in 0..self.step {
            let off = u64::from(block) + u64::from(i);
            let at = g.fsb_daddr(f.at(off)?.at(off));
            match out.last_mut() {
                Some(l) if l.0.0 + u64::from(l.1) == at.0 => l.1 += g.bb_per_block(),
                _ => out.push((at, g.bb_per_block())),
            }
        }
        Some(out)
    }

    /// Reads a block that must be there.
    ///
    /// # Errors
    /// There is a hole; the device's; the block is corrupt or another inode's.
    pub fn read(&self, src: &mut impl Source, block: u32, kind: Kind) -> Result<Buf> {
        self.read_if(src, block, kind)?.ok_or_else(|| self.corrupt("has a hole where its tree points"))
    }

    /// Reads a block if one is mapped there.
    ///
    /// # Errors
    /// As [`DaFork::read`].
    pub fn read_if(&self, src: &mut impl Source, block: u32, kind: Kind) -> Result<Option<Buf>> {
        let Some(maps) = self.maps(block) else { return Ok(None) };
        let b = src.block(&maps, kind)?;
        if b.kind().owner(&b.data()).is_some_and(|o| o != self.inode.ino.0) {
            let c = Corruption { structure: b.kind().name(), place: b.daddr(), what: "belongs to another inode" };
            return Err(Error::Corrupt(c));
        }
        Ok(Some(b))
    }

    /// Maps a block at `block` and gets its zeroed buffer.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn add(&self, tp: &mut Trans, block: u32, kind: Kind) -> Result<Buf> {
        let mut done = 0;
        while done < self.step {
            let e = match map::grow_fork(tp, &self.inode, self.which, u64::from(block + done), self.step - done) {
                Err(Error::NoSpace) if self.step > 1 => map::grow_fork(tp, &self.inode, self.which, u64::from(block + done), 1),
                r => r,
            }?;
            done += e.len;
        }
        self.new_buf(tp, block, kind).ok_or_else(|| self.corrupt("lost a block that was just mapped"))
    }

    /// A zeroed buffer for a block, whatever it holds; `None` where no block is mapped.
    pub fn new_buf(&self, tp: &mut Trans, block: u32, kind: Kind) -> Option<Buf> {
        Some(tp.get_buf(&self.maps(block)?, kind))
    }

    /// First unmapped block from `from` on.
    pub fn first_hole(&self, from: u32) -> u32 {
        let d = self.inode.data();
        let mut at = u64::from(from);
        for e in d.fork(self.which).extents.range(u64::from(from)..) {
            if *e.0 > at {
                break;
            }
            at = e.1.end();
        }
        // An extent that begins before `from` may reach beyond it.
        if let Some(e) = d.fork(self.which).at(u64::from(from)) {
            at = at.max(e.end());
        }
        (at as u32).next_multiple_of(self.step)
    }

    /// Says of all blocks of the fork, which holds nothing else, that they are freed.
    ///
    /// # Errors
    /// A block is mapped in part.
    pub fn invalidate_all(&self, tp: &mut Trans) -> Result<()> {
        let step = u64::from(self.step);
        let blocks: std::collections::BTreeSet<u64> = {
            let d = self.inode.data();
            d.fork(self.which).extents.values().flat_map(|e| (e.off.0 / step..e.end().div_ceil(step)).map(|i| i * step)).collect()
        };
        for block in blocks {
            let maps = self.maps(block as u32).ok_or_else(|| self.corrupt("has a block that is mapped in part"))?;
            let b = tp.get_buf(&maps, Kind::DirData);
            tp.invalidate(&b);
        }
        Ok(())
    }

    /// Frees a block.
    ///
    /// # Errors
    /// The fork is corrupt.
    pub fn drop_block(&self, tp: &mut Trans, block: u32, b: &Buf) -> Result<()> {
        tp.invalidate(b);
        let (off, end) = (u64::from(block), u64::from(block + self.step));
        while !map::unmap(tp, &self.inode, self.which, off, end, 1)? {}
        Ok(())
    }
}

/// A way from the root to a leaf.
pub struct Path {
    /// From the root down: block, buffer, index taken.
    pub nodes: Vec<(u32, Buf, usize)>,
    /// The leaf.
    pub leaf: (u32, Buf),
}

impl Path {
    /// True if the transaction has all its blocks, so that nothing on it changed.
    pub fn is_held(&self, tp: &Trans) -> bool {
        tp.has(&self.leaf.1) && self.nodes.iter().all(|n| tp.has(&n.1))
    }
}

/// True if the block is an inner node.
fn is_node(b: &Buf) -> bool {
    da::magic(&b.data()) == DA_NODE_MAGIC
}

impl DaFork {
    /// Goes down to the first leaf that may hold `hash`.
    ///
    /// # Errors
    /// The tree is corrupt.
    pub fn descend(&self, src: &mut impl Source, hash: u32) -> Result<Path> {
        let mut block = self.base;
        let mut nodes: Vec<(u32, Buf, usize)> = Vec::new();
        let mut level: Option<u16> = None;
        loop {
            let b = self.read(src, block, Kind::DaAny)?;
            if !is_node(&b) {
                if level.is_some_and(|l| l != 1) {
                    return Err(self.corrupt("has a leaf of names on the level of a node"));
                }
                return Ok(Path { nodes, leaf: (block, b) });
            }
            let (i, child) = {
                let d = b.data();
                let (n, l) = (da::count(&d), da::node_level(&d));
                if n == 0 || level.is_some_and(|x| l + 1 != x) || l as usize > da::MAX_DEPTH {
                    return Err(self.corrupt("has a node of names without entries or on a wrong level"));
                }
                level = Some(l);
                let i = da::lower_bound(&d, hash).min(n - 1);
                (i, da::entry_value(&d, i))
            };
            nodes.push((block, b, i));
            block = child;
        }
    }

    /// Moves the path to the next leaf; false at the end.
    ///
    /// # Errors
    /// The tree is corrupt.
    pub fn next_leaf(&self, src: &mut impl Source, p: &mut Path) -> Result<bool> {
        let up = p.nodes.iter().rposition(|(_, b, i)| i + 1 < da::count(&b.data()));
        let Some(up) = up else { return Ok(false) };
        p.nodes[up].2 += 1;
        p.nodes.truncate(up + 1);
        loop {
            let child = p.nodes.last().map(|(_, b, i)| da::entry_value(&b.data(), *i)).unwrap_or_default();
            let b = self.read(src, child, Kind::DaAny)?;
            if !is_node(&b) {
                p.leaf = (child, b);
                return Ok(true);
            }
            if p.nodes.len() > da::MAX_DEPTH {
                return Err(self.corrupt("has a tree of names that is too deep"));
            }
            p.nodes.push((child, b, 0));
        }
    }

    /// Carries the highest hash of the path's leaf up.
    pub fn fix_hash(&self, tp: &mut Trans, p: &Path, mut hash: u32) {
        for (_, b, i) in p.nodes.iter().rev() {
            let (n, old) = {
                let d = b.data();
                (da::count(&d), da::entry_hash(&d, *i))
            };
            if old != hash {
                tp.change(b, |d| {
                    let v = da::entry_value(d, *i);
                    da::set_entry(d, *i, hash, v);
                });
            }
            if i + 1 < n {
                break;
            }
            hash = da::entry_hash(&b.data(), n - 1);
        }
    }

    /// Copies a block's content to another place: its address in the header changes.
    fn copy(&self, tp: &mut Trans, from: &Buf, to: &Buf) {
        let src = from.data().clone();
        {
            let mut d = to.data_mut();
            d.copy_from_slice(&src);
            put64(&mut d, 16, to.daddr().0);
        }
        to.set_kind(from.kind());
        tp.log_all(to);
    }

    /// Moves the root's content one level down, so that the root can get a second child.
    fn push_root_down(&self, tp: &mut Trans, root: &Buf, last_hash: u32) -> Result<(u32, Buf)> {
        let block = self.first_hole(self.base);
        let child = self.add(tp, block, root.kind())?;
        self.copy(tp, root, &child);
        let level = if is_node(root) { da::node_level(&root.data()) + 1 } else { 1 };
        if level as usize > da::MAX_DEPTH {
            return Err(self.corrupt("would get a tree of names that is too deep"));
        }
        let vol = tp.vol.clone();
        {
            let mut d = root.data_mut();
            da::init(&mut d, DA_NODE_MAGIC, root.daddr(), self.inode.ino, &vol.geo);
            da::set_count(&mut d, 1);
            da::set_node_level(&mut d, level);
            da::set_entry(&mut d, 0, last_hash, block);
        }
        root.set_kind(Kind::DaNode);
        tp.log_all(root);
        Ok((block, child))
    }

    /// Links a new block behind `left` on its level.
    fn link(&self, tp: &mut Trans, left: (u32, &Buf), new: (u32, &Buf)) -> Result<()> {
        let next = da::forw(&left.1.data());
        tp.change(new.1, |d| {
            da::set_forw(d, next);
            da::set_back(d, left.0);
        });
        tp.change(left.1, |d| da::set_forw(d, new.0));
        if next != 0 {
            let b = self.read(tp, next, Kind::DaAny)?;
            tp.change(&b, |d| da::set_back(d, new.0));
        }
        Ok(())
    }

    /// Splits the path's leaf: `split` moves entries from the old block to the new one, initialised with its header, and
    /// returns the last hash of each. The path is of no use afterwards.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn split_leaf(
        &self,
        tp: &mut Trans,
        mut p: Path,
        kind: Kind,
        magic: u16,
        split: impl FnOnce(&mut Trans, &Buf, &Buf) -> (u32, u32),
    ) -> Result<()> {
        if p.nodes.is_empty() {
            let root = p.leaf.1.clone();
            let pushed = self.push_root_down(tp, &root, u32::MAX)?;
            p.nodes.push((self.base, root, 0));
            p.leaf = pushed;
        }
        let block = self.first_hole(self.base);
        let new = self.add(tp, block, kind)?;
        let vol = tp.vol.clone();
        da::init(&mut new.data_mut(), magic, new.daddr(), self.inode.ino, &vol.geo);
        let (left_hash, right_hash) = split(tp, &p.leaf.1, &new);
        tp.log_all(&new);
        self.link(tp, (p.leaf.0, &p.leaf.1), (block, &new))?;
        let depth = p.nodes.len() - 1;
        self.insert_child(tp, &mut p.nodes, depth, left_hash, (right_hash, block))
    }

    /// Enters a child behind the one that the path took at `depth`; that one's highest hash becomes `left_hash`.
    fn insert_child(
        &self,
        tp: &mut Trans,
        nodes: &mut Vec<(u32, Buf, usize)>,
        depth: usize,
        left_hash: u32,
        new: (u32, u32),
    ) -> Result<()> {
        let (block, b, i) = nodes[depth].clone();
        tp.change(&b, |d| {
            let v = da::entry_value(d, i);
            da::set_entry(d, i, left_hash, v);
        });
        let n = da::count(&b.data());
        if n < da::node_max(b.data().len()) {
            tp.change(&b, |d| {
                d.copy_within(da::NODE_HEADER + 8 * (i + 1)..da::NODE_HEADER + 8 * n, da::NODE_HEADER + 8 * (i + 2));
                da::set_entry(d, i + 1, new.0, new.1);
                da::set_count(d, n + 1);
            });
            if i + 1 == n {
                self.carry_up(tp, nodes, depth, new.0);
            }
            return Ok(());
        }
        let mut depth = depth;
        let (mut block, mut b) = (block, b);
        if depth == 0 {
            let last = da::entry_hash(&b.data(), n - 1);
            let root = b.clone();
            (block, b) = self.push_root_down(tp, &root, last)?;
            nodes.insert(0, (self.base, root, 0));
            nodes[1] = (block, b.clone(), i);
            depth = 1;
        }
        let keep = n / 2;
        let new_block = self.first_hole(self.base);
        let right = self.add(tp, new_block, Kind::DaNode)?;
        let vol = tp.vol.clone();
        let from = b.data().clone();
        {
            let mut d = right.data_mut();
            da::init(&mut d, DA_NODE_MAGIC, right.daddr(), self.inode.ino, &vol.geo);
            da::set_node_level(&mut d, da::node_level(&from));
            da::set_count(&mut d, n - keep);
            (keep..n).for_each(|k| da::set_entry(&mut d, k - keep, da::entry_hash(&from, k), da::entry_value(&from, k)));
        }
        tp.log_all(&right);
        tp.change(&b, |d| da::set_count(d, keep));
        self.link(tp, (block, &b), (new_block, &right))?;
        let (lh, rh) = (da::entry_hash(&from, keep - 1), da::entry_hash(&from, n - 1));
        self.insert_child(tp, nodes, depth - 1, lh, (rh, new_block))?;
        // The child goes into the half where its left neighbour is now; its parents' hashes follow from the insertion.
        let target = if i < keep { (block, b, i) } else { (new_block, right, i - keep) };
        let (t, at) = (target.1.clone(), target.2);
        let m = da::count(&t.data());
        tp.change(&t, |d| {
            d.copy_within(da::NODE_HEADER + 8 * (at + 1)..da::NODE_HEADER + 8 * m, da::NODE_HEADER + 8 * (at + 2));
            da::set_entry(d, at + 1, new.0, new.1);
            da::set_count(d, m + 1);
        });
        if at + 1 == m {
            // The new child is the last of its node: look the way up again by block, then carry its hash.
            self.carry_by_search(tp, target.0, new.0)?;
        }
        Ok(())
    }

    fn carry_up(&self, tp: &mut Trans, nodes: &[(u32, Buf, usize)], depth: usize, hash: u32) {
        for (_, b, i) in nodes[..depth].iter().rev() {
            tp.change(b, |d| {
                let v = da::entry_value(d, *i);
                da::set_entry(d, *i, hash, v);
            });
            if i + 1 < da::count(&b.data()) {
                break;
            }
        }
    }

    /// Finds node `block` from the root by walking all nodes above its level, and carries `hash` up from it.
    fn carry_by_search(&self, tp: &mut Trans, block: u32, hash: u32) -> Result<()> {
        let mut way: Vec<(u32, Buf, usize)> = Vec::new();
        if !self.find_node(tp, self.base, block, &mut way)? {
            return Err(self.corrupt("lost a node of names while splitting"));
        }
        let depth = way.len();
        self.carry_up(tp, &way, depth, hash);
        Ok(())
    }

    fn find_node(&self, tp: &mut Trans, at: u32, want: u32, way: &mut Vec<(u32, Buf, usize)>) -> Result<bool> {
        if at == want {
            return Ok(true);
        }
        let b = self.read(tp, at, Kind::DaAny)?;
        if !is_node(&b) || da::node_level(&b.data()) == 1 {
            return Ok(false);
        }
        let children: Vec<u32> = (0..da::count(&b.data())).map(|i| da::entry_value(&b.data(), i)).collect();
        for (i, c) in children.into_iter().enumerate() {
            way.push((at, b.clone(), i));
            if self.find_node(tp, c, want, way)? {
                return Ok(true);
            }
            way.pop();
        }
        Ok(false)
    }

    /// Takes the path's leaf, which is empty, out of the tree and frees it. The root's last child moves into the root.
    ///
    /// # Errors
    /// The tree is corrupt.
    pub fn remove_leaf(&self, tp: &mut Trans, p: Path) -> Result<()> {
        let (mut block, mut b) = p.leaf;
        for (depth, (pb, parent, i)) in p.nodes.iter().enumerate().rev() {
            self.unlink(tp, &b)?;
            self.drop_block(tp, block, &b)?;
            let n = da::count(&parent.data());
            tp.change(parent, |d| {
                d.copy_within(da::NODE_HEADER + 8 * (i + 1)..da::NODE_HEADER + 8 * n, da::NODE_HEADER + 8 * i);
                da::set_count(d, n - 1);
            });
            if n > 1 {
                if *i == n - 1 {
                    let hash = da::entry_hash(&parent.data(), n - 2);
                    self.carry_up(tp, &p.nodes, depth, hash);
                }
                break;
            }
            (block, b) = (*pb, parent.clone());
        }
        self.collapse_root(tp)
    }

    fn unlink(&self, tp: &mut Trans, b: &Buf) -> Result<()> {
        let (back, forw) = (da::back(&b.data()), da::forw(&b.data()));
        if back != 0 {
            let l = self.read(tp, back, Kind::DaAny)?;
            tp.change(&l, |d| da::set_forw(d, forw));
        }
        if forw != 0 {
            let r = self.read(tp, forw, Kind::DaAny)?;
            tp.change(&r, |d| da::set_back(d, back));
        }
        Ok(())
    }

    /// While the root has one child, that moves into the root.
    fn collapse_root(&self, tp: &mut Trans) -> Result<()> {
        loop {
            let root = self.read(tp, self.base, Kind::DaAny)?;
            if !is_node(&root) || da::count(&root.data()) != 1 {
                return Ok(());
            }
            let block = da::entry_value(&root.data(), 0);
            let child = self.read(tp, block, Kind::DaAny)?;
            self.copy(tp, &child, &root);
            self.drop_block(tp, block, &child)?;
        }
    }
}
