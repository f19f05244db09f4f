//! Attributes in all forms.

use crate::Checker;
use std::collections::HashSet;
use uxfs_format::attr::{self, Value, flag, leaf_entry, remote_blocks, sf_entries};
use uxfs_format::bytes::{get16, get32, get64};
use uxfs_format::da;
use uxfs_format::extent::Extent;
use uxfs_format::inode::{Core, Format};
use uxfs_format::symlink::REMOTE_HEADER;
use uxfs_format::{Ino, Kind};

impl Checker<'_> {
    fn bad_attr(&mut self, ino: Ino, what: &str) {
        self.add("attribute", "attributes", None, &format!("inode {ino} {what}"));
    }

    pub(crate) fn attributes(&mut self, ino: Ino, core: &Core, fork: &[u8], extents: &[Extent]) {
        if core.aformat == Format::Local {
            let total = usize::from(get16(fork, 0));
            let mut end = attr::SF_HEADER;
            let mut seen = HashSet::new();
            let entries: Vec<_> = sf_entries(fork).map(|e| e.map(|e| (e.size(), e.flags, e.name.to_vec(), e.value.to_vec()))).collect();
            for e in entries {
                match e {
                    Ok((size, flags, name, value)) => {
                        end += size;
                        if flags & !flag::NAMESPACE != 0 {
                            self.bad_attr(ino, "has an attribute with unknown flags");
                        }
                        let parent = flags & flag::PARENT != 0;
                        if parent {
                            self.note_parent(ino, &name, &value);
                        }
                        if !seen.insert((flags, name, parent.then_some(value))) {
                            self.bad_attr(ino, "has an attribute twice");
                        }
                    }
                    Err(what) => return self.bad_attr(ino, what),
                }
            }
            if end != total {
                self.bad_attr(ino, "has inline attributes whose size is wrong");
            }
            return;
        }
        if extents.is_empty() {
            return;
        }
        let mut hash = 0;
        let mut visited = HashSet::new();
        let mut before: Option<(u32, u32)> = None;
        self.attr_block(ino, extents, 0, None, &mut hash, &mut visited, &mut before);
        if before.is_some_and(|b| b.1 != 0) {
            self.bad_attr(ino, "has a last leaf with a right sibling");
        }
    }

    fn attr_block(
        &mut self,
        ino: Ino,
        extents: &[Extent],
        block: u32,
        level: Option<u16>,
        last: &mut u32,
        visited: &mut HashSet<u32>,
        before: &mut Option<(u32, u32)>,
    ) {
        if !visited.insert(block) || visited.len() > 1 << 20 {
            return self.bad_attr(ino, "has a loop in its attribute tree");
        }
        let Some((at, b)) = self.read_mapped(extents, u64::from(block), 1) else {
            return self.bad_attr(ino, "has an attribute block that is not mapped");
        };
        if !self.verified(Kind::DaAny, &b, at) {
            return;
        }
        if get64(&b, 48) != ino.0 {
            return self.bad_attr(ino, "has an attribute block of another owner");
        }
        match da::magic(&b) {
            da::DA_NODE_MAGIC => {
                let l = da::node_level(&b);
                if level.is_some_and(|want| want != l) {
                    return self.bad_attr(ino, "has an attribute node of the wrong level");
                }
                for i in 0..da::count(&b) {
                    self.attr_block(ino, extents, da::entry_value(&b, i), Some(l - 1), last, visited, before);
                    if *last != da::entry_hash(&b, i) {
                        self.bad_attr(ino, "has an attribute node whose hash is not its child's last");
                    }
                }
            }
            da::ATTR_LEAF_MAGIC if level.is_none_or(|l| l == 0) => {
                if before.is_some_and(|(p, forw)| forw != block || da::back(&b) != p) || (before.is_none() && da::back(&b) != 0) {
                    self.bad_attr(ino, "has attribute leaves that are not linked with each other");
                }
                *before = Some((block, da::forw(&b)));
                self.attr_leaf(ino, extents, &b, last);
            }
            _ => self.bad_attr(ino, "has an attribute block of the wrong kind"),
        }
    }

    fn attr_leaf(&mut self, ino: Ino, extents: &[Extent], b: &[u8], last: &mut u32) {
        let mut used = 0;
        for i in 0..da::count(b) {
            let e = match leaf_entry(b, i) {
                Ok(e) => e,
                Err(what) => return self.bad_attr(ino, what),
            };
            if e.hash < *last {
                self.bad_attr(ino, "has attributes out of order");
            }
            *last = e.hash;
            let value = match e.value {
                Value::Local(v) => v,
                Value::Remote { .. } => &[],
            };
            if attr::entry_hash(e.flags, e.name, value) != e.hash {
                self.bad_attr(ino, "has an attribute with a wrong hash");
            }
            if e.flags & flag::PARENT != 0 {
                self.note_parent(ino, e.name, value);
            }
            if e.flags & flag::INCOMPLETE != 0 {
                self.bad_attr(ino, "has an attribute that is not finished");
            }
            used += match e.value {
                Value::Local(v) => attr::local_size(e.name.len(), v.len()),
                Value::Remote { block, len } => {
                    if e.flags & flag::INCOMPLETE == 0 {
                        self.remote_value(ino, extents, block, len as usize);
                    }
                    attr::remote_size(e.name.len())
                }
            };
        }
        if used != usize::from(get16(b, 58)) {
            self.bad_attr(ino, "has an attribute leaf whose used bytes are miscounted");
        }
    }

    fn remote_value(&mut self, ino: Ino, extents: &[Extent], block: u32, len: usize) {
        let payload = self.g.blocksize as usize - REMOTE_HEADER;
        let mut done = 0;
        for i in 0..remote_blocks(len, self.g.blocksize as usize) as u64 {
            let Some((at, b)) = self.read_mapped(extents, u64::from(block) + i, 1) else {
                return self.bad_attr(ino, "has an attribute's value that is not mapped");
            };
            if !self.verified(Kind::AttrRemote, &b, at) {
                return;
            }
            let n = get32(&b, 8) as usize;
            if get64(&b, 32) != ino.0 || get32(&b, 4) as usize != done || n != payload.min(len - done) {
                return self.bad_attr(ino, "has an attribute's value in a block of another owner, place or length");
            }
            done += n;
        }
    }
}
