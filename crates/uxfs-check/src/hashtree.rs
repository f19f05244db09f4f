//! The trees of hashes that directories and attributes share.

use crate::Checker;
use crate::forms::Form;
use std::collections::HashSet;
use uxfs_format::extent::Extent;
use uxfs_format::{Ino, Kind, da};

/// A tree under inspection.
pub(crate) struct HashTree<'a> {
    /// Code and structure of findings.
    pub of: (&'static str, &'static str),
    /// The form of what has it.
    pub form: Form,
    pub ino: Ino,
    pub extents: &'a [Extent],
    /// Filesystem blocks a block.
    pub per: u64,
    /// Magic number of its leaves.
    pub leaf: u16,
    /// The highest hash so far.
    last: u32,
    visited: HashSet<u32>,
    /// At each level, from the leaves: the block before, and the one that it says comes next.
    before: [Option<(u32, u32)>; da::MAX_DEPTH + 1],
}

/// The first hash of a leaf and the last, unless it is empty.
pub(crate) type Hashes = Option<(u32, u32)>;

impl<'a> HashTree<'a> {
    pub(crate) fn new(of: (&'static str, &'static str), form: Form, ino: Ino, extents: &'a [Extent], per: u64, leaf: u16) -> HashTree<'a> {
        HashTree { of, form, ino, extents, per, leaf, last: 0, visited: HashSet::new(), before: [None; da::MAX_DEPTH + 1] }
    }

    /// Notes that a block comes next at its level; false if its neighbours do not say so.
    fn follows(&mut self, level: u16, block: u32, b: &[u8]) -> bool {
        let before = self.before[usize::from(level)].replace((block, da::forw(b)));
        before.map_or(da::back(b) == 0, |(left, forw)| forw == block && da::back(b) == left)
    }
}

impl Checker<'_> {
    /// Walks a tree from the block `root` on; `leaf` looks at each leaf.
    pub(crate) fn hash_tree(&mut self, mut t: HashTree<'_>, root: u32, leaf: &mut dyn FnMut(&mut Self, &[u8]) -> Hashes) {
        self.hash_block(&mut t, root, None, leaf);
        if t.before.iter().flatten().any(|b| b.1 != 0) {
            self.bad_tree(&t, "has a last block of its tree with a right sibling");
        }
    }

    fn bad_tree(&mut self, t: &HashTree<'_>, what: &str) {
        self.add(t.of.0, t.of.1, None, &format!("inode {} {what}", t.ino));
    }

    fn hash_block(&mut self, t: &mut HashTree<'_>, block: u32, level: Option<u16>, leaf: &mut dyn FnMut(&mut Self, &[u8]) -> Hashes) {
        if !t.visited.insert(block) {
            return self.bad_tree(t, "has a loop in its tree");
        }
        let Some((at, b)) = self.read_mapped(t.extents, u64::from(block), t.per) else {
            return self.bad_tree(t, "has a block of its tree that is not mapped");
        };
        if !self.verified(Kind::DaAny, &b, at) {
            return;
        }
        if Kind::DaAny.owner(&b).is_some_and(|o| o != t.ino.0) {
            return self.bad_tree(t, "has a block of its tree of another owner");
        }
        let is_node = da::magic(&b) == da::DA_NODE_MAGIC;
        if !is_node && da::magic(&b) != t.leaf {
            return self.bad_tree(t, "has a block of its tree of the wrong kind");
        }
        let found = if is_node { da::node_level(&b) } else { 0 };
        if level.is_some_and(|l| l != found) {
            return self.bad_tree(t, "has a block of its tree at the wrong level");
        }
        if level.is_none() {
            self.form(t.form, found + 1);
        }
        if !t.follows(found, block, &b) {
            self.bad_tree(t, "has blocks of its tree that are not linked with each other");
        }
        if !is_node {
            if let Some((first, last)) = leaf(self, &b) {
                if first < t.last {
                    self.bad_tree(t, "has leaves out of order");
                }
                t.last = last;
            }
            return;
        }
        for i in 0..da::count(&b) {
            self.hash_block(t, da::entry_value(&b, i), Some(found - 1), leaf);
            if t.last != da::entry_hash(&b, i) {
                self.bad_tree(t, "has a node whose hash is not its child's last");
            }
        }
    }
}
