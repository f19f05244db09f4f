//! The tree of names: every entry leads to an inode, every inode has as many entries as it counts.

use crate::Checker;
use std::collections::HashSet;
use uxfs_format::AgNumber;
use uxfs_format::dir::ftype;
use uxfs_format::inode::{Core, flag2, mode};

/// What is kept of an inode.
#[derive(Clone, Debug)]
pub struct Info {
    pub mode: u16,
    pub nlink: u32,
    pub metadata: bool,
    /// Where `..` leads.
    pub parent: Option<u64>,
    /// Entries of a directory: inode and type.
    pub entries: Vec<(u64, u8)>,
    /// Entries that lead here.
    links: u32,
    /// Directories below.
    subdirs: u32,
    /// The directory that has it; of a directory.
    found_in: Option<u64>,
}

impl Info {
    pub(crate) fn new(c: &Core) -> Info {
        Info {
            mode: c.mode,
            nlink: c.nlink,
            metadata: c.flags2 & flag2::METADATA != 0,
            parent: None,
            entries: Vec::new(),
            links: 0,
            subdirs: 0,
            found_in: None,
        }
    }

    fn is_dir(&self) -> bool {
        self.mode & mode::FMT == mode::DIR
    }
}

impl Checker<'_> {
    fn bad_name(&mut self, code: &'static str, text: &str) {
        self.add(code, "names", None, text);
    }

    /// Follows every entry; then compares counts.
    pub(crate) fn names(&mut self) {
        for agno in 0..self.g.agcount {
            self.refcounts(AgNumber(agno));
        }
        let root = self.g.rootino.0;
        if !self.inodes.get(&root).is_some_and(Info::is_dir) {
            self.bad_name("root", "the root is no directory");
        }
        let mut dirs: Vec<u64> = self.inodes.iter().filter(|i| i.1.is_dir()).map(|i| *i.0).collect();
        dirs.sort_unstable();
        for d in &dirs {
            let entries = self.inodes.get_mut(d).map(|i| std::mem::take(&mut i.entries)).unwrap_or_default();
            for (child, kind) in entries {
                self.follow(*d, child, kind);
            }
        }
        self.reachable(root, &dirs);
        self.link_counts(root);
    }

    fn follow(&mut self, dir: u64, child: u64, kind: u8) {
        let Some(c) = self.inodes.get_mut(&child) else {
            return self.bad_name("entry", &format!("directory {dir} has an entry that leads to inode {child}, which is not in use"));
        };
        c.links += 1;
        let (is_dir, real) = (c.is_dir(), ftype::of_mode(c.mode));
        let twice = is_dir && c.found_in.replace(dir).is_some();
        let parent = c.parent;
        if kind != real {
            self.bad_name("entry-type", &format!("directory {dir} says that inode {child} is of type {kind}, it is {real}"));
        }
        if !is_dir {
            return;
        }
        if twice {
            self.bad_name("dir-twice", &format!("directory {child} has two names"));
        }
        if parent != Some(dir) {
            self.bad_name("dir-parent", &format!("directory {child} lies in {dir}, its .. leads to {parent:?}"));
        }
        if let Some(d) = self.inodes.get_mut(&dir) {
            d.subdirs += 1;
        }
    }

    fn reachable(&mut self, root: u64, dirs: &[u64]) {
        // Upwards from each directory, stopping at what is known to hang on the root.
        let mut good: HashSet<u64> = HashSet::from([root]);
        let mut lost = Vec::new();
        for d in dirs {
            let (mut path, mut at) = (Vec::new(), *d);
            let mut seen = HashSet::new();
            let ends = loop {
                if good.contains(&at) {
                    break true;
                }
                if !seen.insert(at) {
                    break false;
                }
                path.push(at);
                match self.inodes.get(&at).and_then(|i| i.found_in) {
                    Some(up) => at = up,
                    None => break false,
                }
            };
            if ends { good.extend(path) } else { lost.push(*d) }
        }
        for d in lost {
            if self.inodes.get(&d).is_some_and(|i| !i.metadata) {
                self.bad_name("disconnected", &format!("directory {d} cannot be reached from the root"));
            }
        }
        if self.inodes.get(&root).and_then(|r| r.parent).is_some_and(|p| p != root) {
            self.bad_name("dir-parent", "the root's .. leads elsewhere");
        }
    }

    fn link_counts(&mut self, root: u64) {
        // Inodes that the superblock names have no entries.
        let sb = &self.sb;
        let special: HashSet<u64> = [sb.rbmino.get(), sb.rsumino.get(), sb.uquotino.get(), sb.gquotino.get(), sb.pquotino.get()].into();
        let mut bad = Vec::new();
        for (ino, i) in &self.inodes {
            if i.metadata || special.contains(ino) {
                continue;
            }
            let want = if i.is_dir() { i.subdirs + 2 } else { i.links };
            if !i.is_dir() && i.links == 0 {
                bad.push((*ino, "disconnected", format!("inode {ino} has no name (it counts {} links)", i.nlink)));
            } else if i.nlink != want && (*ino == root || i.links > 0) {
                bad.push((*ino, "nlink", format!("inode {ino} counts {} links, it has {want}", i.nlink)));
            }
        }
        bad.sort();
        for (_, code, text) in bad {
            self.bad_name(code, &text);
        }
    }
}
