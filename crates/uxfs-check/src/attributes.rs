//! Attributes in all forms.

use crate::Checker;
use crate::forms::Form;
use crate::hashtree::{HashTree, Hashes};
use std::collections::HashSet;
use uxfs_format::attr::{self, Value, flag, leaf_entry, sf_entries};
use uxfs_format::bytes::{get16, get32};
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
            self.form(Form::AttrInline, 0);
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
        let tree = HashTree::new(("attribute", "attributes"), Form::AttrTree, ino, extents, 1, da::ATTR_LEAF_MAGIC);
        self.hash_tree(tree, 0, &mut |c, b| c.attr_leaf(ino, extents, b));
    }

    fn attr_leaf(&mut self, ino: Ino, extents: &[Extent], b: &[u8]) -> Hashes {
        let (mut used, mut hashes) = (0, None);
        for i in 0..da::count(b) {
            let e = match leaf_entry(b, i) {
                Ok(e) => e,
                Err(what) => {
                    self.bad_attr(ino, what);
                    return hashes;
                }
            };
            hashes = Some((hashes.map_or(e.hash, |h: (u32, u32)| h.0), e.hash));
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
                self.add("attribute-hidden", "attributes", None, &format!("inode {ino} has an attribute that is not finished"));
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
        if used != attr::leaf_used(b) {
            self.bad_attr(ino, "has an attribute leaf whose used bytes are miscounted");
        }
        hashes
    }

    fn remote_value(&mut self, ino: Ino, extents: &[Extent], block: u32, len: usize) {
        self.form(Form::AttrValue, 0);
        // In version 4 the blocks are nothing but the value.
        let bare = !self.g.v5();
        let payload = self.g.blocksize as usize - if bare { 0 } else { REMOTE_HEADER };
        let mut done = 0;
        for i in 0..len.div_ceil(payload) as u64 {
            let Some((at, b)) = self.read_mapped(extents, u64::from(block) + i, 1) else {
                return self.bad_attr(ino, "has an attribute's value that is not mapped");
            };
            if bare {
                continue;
            }
            if !self.verified(Kind::AttrRemote, &b, at) {
                return;
            }
            let n = get32(&b, 8) as usize;
            if Kind::AttrRemote.owner(&b) != Some(ino.0) || get32(&b, 4) as usize != done || n != payload.min(len - done) {
                return self.bad_attr(ino, "has an attribute's value in a block of another owner, place or length");
            }
            done += n;
        }
    }
}
