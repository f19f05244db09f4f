//! Directories in all four forms: entries, hashes, free indexes.

use crate::Checker;
use crate::forms::Form;
use crate::hashtree::{HashTree, Hashes};
use crate::names::Info;
use std::collections::HashSet;
use uxfs_format::bytes::{get16, get32};
use uxfs_format::da;
use uxfs_format::dir::{self, FreeCounts, Item, NULL_BEST, ShortForm, bestfree, data_items, ftype};
use uxfs_format::extent::Extent;
use uxfs_format::hash::name_hash;
use uxfs_format::inode::{Core, mode};
use uxfs_format::{DiskAddr, Ino, Kind};

/// Header of an inline directory without the parent.
const SHORT_HEADER: usize = 2;

/// A directory under inspection.
struct Walk<'a> {
    ino: Ino,
    extents: &'a [Extent],
    /// (hash, address) of every entry that the data blocks hold.
    have: Vec<(u32, u32)>,
    /// The same as the leaves have it.
    indexed: Vec<(u32, u32)>,
    names: HashSet<Vec<u8>>,
    /// Longest free run of each data block, `NULL_BEST` where there is none.
    bests: Vec<u16>,
    dots: (bool, bool),
}

impl Checker<'_> {
    fn bad_dir(&mut self, ino: Ino, what: &str) {
        self.add("directory", "directory", None, &format!("inode {ino} {what}"));
    }

    fn entry(&mut self, info: &mut Info, ino: Ino, name: &[u8], child: Ino, ftype: u8) {
        if name.contains(&b'/') || name.contains(&0) {
            self.bad_dir(ino, "has a name with a slash or a zero byte");
        }
        if !self.g.valid_ino(child) {
            return self.bad_dir(ino, &format!("has an entry that leads to inode {child}, which cannot be"));
        }
        self.note_name(ino, name, child);
        info.entries.push((child.0, ftype));
    }

    pub(crate) fn directory(&mut self, ino: Ino, core: &Core, inline: Option<&[u8]>, extents: &[Extent], info: &mut Info) {
        if let Some(b) = inline {
            self.form(Form::DirInline, 0);
            return self.short_form(ino, b, info);
        }
        let per = 1u64 << self.g.dirblklog;
        let leaf = u64::from(self.g.dir_leaf_block().0);
        let blocks: u64 = extents.iter().filter(|e| e.off.0 < leaf).map(|e| e.end().min(leaf)).max().unwrap_or(0).div_ceil(per);
        if core.size != blocks * u64::from(self.g.dirblocksize()) {
            self.bad_dir(ino, "has a size that does not fit its blocks");
        }
        let mut w =
            Walk { ino, extents, have: Vec::new(), indexed: Vec::new(), names: HashSet::new(), bests: Vec::new(), dots: (false, false) };
        let single = blocks == 1 && extents.iter().all(|e| e.end() <= per);
        if single {
            self.form(Form::DirBlock, 0);
        }
        // Only blocks that are mapped are visited: a hostile size costs nothing.
        for e in extents.iter().filter(|e| e.off.0 < leaf) {
            for d in e.off.0.div_ceil(per)..e.end().min(leaf).div_ceil(per) {
                let Some((at, mut b)) = self.read_mapped(extents, d * per, per) else {
                    self.bad_dir(ino, "has a data block that is mapped in part");
                    continue;
                };
                let kind = if single { Kind::DirBlock } else { Kind::DirData };
                kind.adopt(&mut b, &self.g);
                if !self.verified(kind, &b, at) {
                    continue;
                }
                if kind.owner(&b).is_some_and(|o| o != ino.0) {
                    self.bad_dir(ino, "has a data block of another owner");
                    continue;
                }
                w.bests.resize(w.bests.len().max(d as usize), NULL_BEST);
                w.bests.push(bestfree(&b, 0).1 as u16);
                self.data_block(&mut w, d, &b, info);
                if single {
                    self.block_leaf(&mut w, &b);
                }
            }
        }
        if !single {
            self.leaves(&mut w);
        }
        w.have.sort_unstable();
        w.indexed.sort_unstable();
        if w.have != w.indexed {
            self.bad_dir(ino, "has an index by hash that does not match its entries");
        }
        if w.dots != (true, true) {
            self.bad_dir(ino, "has no entry . or ..");
        }
    }

    fn short_form(&mut self, ino: Ino, b: &[u8], info: &mut Info) {
        let b = match dir::typed(b, &self.g) {
            Ok(b) => b,
            Err(what) => return self.bad_dir(ino, what),
        };
        let sf = ShortForm(&b);
        info.parent = Some(sf.parent().0);
        let mut end = SHORT_HEADER + sf.ino_size();
        let mut offset = 0;
        let mut names = HashSet::new();
        for e in sf.entries() {
            match e {
                Ok(e) => {
                    if e.offset <= offset {
                        self.bad_dir(ino, "has inline entries whose offsets do not rise");
                    }
                    offset = e.offset;
                    end = e.at + 4 + e.name.len() + sf.ino_size();
                    if !names.insert(e.name) {
                        self.bad_dir(ino, "has a name twice");
                    }
                    self.entry(info, ino, e.name, e.ino, e.ftype);
                }
                Err(what) => return self.bad_dir(ino, what),
            }
        }
        if end != b.len() {
            self.bad_dir(ino, "has inline entries whose size is wrong");
        }
    }

    fn data_block(&mut self, w: &mut Walk<'_>, d: u64, b: &[u8], info: &mut Info) {
        for item in data_items(b) {
            let Ok(Item::Entry(e)) = item else { continue };
            let address = (d * u64::from(self.g.dirblocksize()) + e.at as u64) >> 3;
            w.have.push((name_hash(e.name).0, address as u32));
            if matches!(e.name, b"." | b"..") && self.g.ftype() && e.ftype != ftype::of_mode(mode::DIR) {
                self.bad_dir(w.ino, "has an entry . or .. that is of another type");
            }
            match e.name {
                b"." => {
                    w.dots.0 = true;
                    if e.ino != w.ino {
                        self.bad_dir(w.ino, "has an entry . that leads elsewhere");
                    }
                }
                b".." => {
                    w.dots.1 = true;
                    info.parent = Some(e.ino.0);
                }
                _ => {
                    if !w.names.insert(e.name.to_vec()) {
                        self.bad_dir(w.ino, "has a name twice");
                    }
                    self.entry(info, w.ino, e.name, e.ino, e.ftype);
                }
            }
        }
    }

    /// The index at the end of a directory in block form.
    fn block_leaf(&mut self, w: &mut Walk<'_>, b: &[u8]) {
        let (count, stale) = (get32(b, b.len() - 8) as usize, get32(b, b.len() - 4) as usize);
        let from = dir::data_end(b);
        let mut last = 0;
        let mut seen_stale = 0;
        for i in 0..count {
            let (hash, address) = (get32(b, from + 8 * i), get32(b, from + 8 * i + 4));
            if hash < last {
                self.bad_dir(w.ino, "has an index that is out of order");
            }
            last = hash;
            if address == 0 { seen_stale += 1 } else { w.indexed.push((hash, address)) }
        }
        if seen_stale != stale {
            self.bad_dir(w.ino, "has an index whose stale entries are miscounted");
        }
    }

    fn leaves(&mut self, w: &mut Walk<'_>) {
        let root = self.g.dir_leaf_block().0;
        let per = 1u64 << self.g.dirblklog;
        let Some((at, b)) = self.read_mapped(w.extents, u64::from(root), per) else {
            return self.bad_dir(w.ino, "has no index by hash");
        };
        if !self.verified(Kind::DaAny, &b, at) {
            return;
        }
        if da::magic(&b) == da::DIR_LEAF1_MAGIC {
            if Kind::DaAny.owner(&b).is_some_and(|o| o != w.ino.0) {
                return self.bad_dir(w.ino, "has a leaf of another owner");
            }
            self.form(Form::DirLeaf, 0);
            if (da::forw(&b), da::back(&b)) != (0, 0) {
                self.bad_dir(w.ino, "has an only leaf with neighbours");
            }
            leaf_entries(&b, &mut w.indexed);
            let n = get32(&b, b.len() - 4) as usize;
            let bests: Vec<u16> = (0..n).map(|i| get16(&b, b.len() - 4 - 2 * (n - i))).collect();
            if bests != w.bests {
                self.bad_dir(w.ino, "has a leaf whose free runs do not match its data blocks");
            }
            return;
        }
        let tree = HashTree::new(("directory", "directory"), Form::DirTree, w.ino, w.extents, per, da::DIR_LEAFN_MAGIC);
        self.hash_tree(tree, root, &mut |_, b| leaf_entries(b, &mut w.indexed));
        self.free_index(w);
    }

    /// The free index of a directory in node form.
    fn free_index(&mut self, w: &mut Walk<'_>) {
        let (from, per) = (u64::from(self.g.dir_free_block().0), 1u64 << self.g.dirblklog);
        let mut bests = vec![NULL_BEST; w.bests.len()];
        let extents = w.extents;
        for e in extents.iter().filter(|e| e.end() > from) {
            for f in (e.off.0.max(from) - from).div_ceil(per)..(e.end() - from).div_ceil(per) {
                let Some((at, b)) = self.read_mapped(extents, from + f * per, per) else { continue };
                if !self.verified(Kind::DirFree, &b, at) {
                    continue;
                }
                self.free_block(w.ino, at, &b, f as usize * dir::free_max_of(&b), &mut bests);
            }
        }
        if bests != w.bests {
            self.bad_dir(w.ino, "has a free index that does not match its data blocks");
        }
    }

    fn free_block(&mut self, ino: Ino, at: DiskAddr, b: &[u8], want_first: usize, bests: &mut [u16]) {
        let FreeCounts { first, valid, used } = dir::free_counts(b);
        if Kind::DirFree.owner(b).is_some_and(|o| o != ino.0) || first != want_first {
            return self.add("directory", "free index", Some(at), &format!("of inode {ino} has another owner or place"));
        }
        let mut count = 0;
        for i in 0..valid {
            let v = dir::free_best(b, i);
            count += usize::from(v != NULL_BEST);
            match bests.get_mut(first + i) {
                Some(x) => *x = v,
                None if v != NULL_BEST => {
                    self.add("directory", "free index", Some(at), &format!("of inode {ino} lists a block that is not there"))
                }
                None => {}
            }
        }
        if count != used {
            self.add("directory", "free index", Some(at), &format!("of inode {ino} miscounts its blocks"));
        }
    }
}

/// Adds the entries of a leaf that are not stale to `all`: (hash, address).
fn leaf_entries(b: &[u8], all: &mut Vec<(u32, u32)>) -> Hashes {
    let entries = (0..da::count(b)).map(|i| (da::entry_hash(b, i), da::entry_value(b, i)));
    all.extend(entries.filter(|e| e.1 != 0));
    let last = da::count(b).checked_sub(1)?;
    Some((da::entry_hash(b, 0), da::entry_hash(b, last)))
}
