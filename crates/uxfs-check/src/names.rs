//! The tree of names: every entry leads to an inode, every inode has as many entries as it counts.

use crate::Checker;
use std::collections::HashSet;
use std::hash::Hasher;
use uxfs_format::attr::PARENT_VALUE;
use uxfs_format::bytes::{get32, get64};
use uxfs_format::dir::ftype;
use uxfs_format::inode::{Core, flag2, mode};
use uxfs_format::superblock::incompat;
use uxfs_format::{AgNumber, Ino};

/// That a directory has an inode under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parent {
    child: u64,
    dir: u64,
    /// Of the name.
    digest: u64,
    /// Of the directory; a name knows none.
    generation: Option<u32>,
}

impl Parent {
    fn new(child: Ino, dir: u64, name: &[u8], generation: Option<u32>) -> Parent {
        let mut h = std::hash::DefaultHasher::new();
        h.write(name);
        Parent { child: child.0, dir, digest: h.finish(), generation }
    }
}

/// What is kept of an inode.
#[derive(Clone, Debug)]
pub struct Info {
    pub mode: u16,
    pub nlink: u32,
    pub generation: u32,
    /// It belongs below the metadata directory.
    metadata: bool,
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
            generation: c.generation,
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
        let roots: HashSet<u64> = [root].into_iter().chain(self.metadata_root).collect();
        if let Some(m) = self.metadata_root
            && !self.inodes.get(&m).is_some_and(|i| i.is_dir() && i.metadata)
        {
            self.bad_name("root", "the root of the metadata directory is no directory of metadata");
        }
        self.reachable(&roots, &dirs);
        self.link_counts(&roots);
        self.parent_pointers();
    }

    /// Notes a name, for the parent pointer that belongs to it.
    pub(crate) fn note_name(&mut self, dir: Ino, name: &[u8], child: Ino) {
        if self.g.has(incompat::PARENT) {
            self.parents.0.push(Parent::new(child, dir.0, name, None));
        }
    }

    /// Notes a parent pointer.
    pub(crate) fn note_parent(&mut self, ino: Ino, name: &[u8], value: &[u8]) {
        if value.len() != PARENT_VALUE {
            return self.add("parent-value", "attributes", None, &format!("inode {ino} has a parent pointer of {} bytes", value.len()));
        }
        self.parents.1.push(Parent::new(ino, get64(value, 0), name, Some(get32(value, 8))));
    }

    /// Compares parent pointers with names.
    fn parent_pointers(&mut self) {
        let (mut names, mut pointers) = std::mem::take(&mut self.parents);
        for p in &mut pointers {
            if self.inodes.get(&p.dir).map(|d| d.generation) != p.generation {
                self.bad_name("parent-generation", &format!("inode {} has a parent pointer to an earlier directory {}", p.child, p.dir));
            }
            p.generation = None;
        }
        names.sort_unstable();
        pointers.sort_unstable();
        if names == pointers {
            return;
        }
        let (has, had) = (pointers.iter().collect::<HashSet<_>>(), names.iter().collect::<HashSet<_>>());
        for n in names.iter().filter(|n| !has.contains(n)) {
            self.bad_name("parent-missing", &format!("inode {} has no parent pointer for a name in directory {}", n.child, n.dir));
        }
        for p in pointers.iter().filter(|p| !had.contains(p)) {
            self.bad_name(
                "parent-extra",
                &format!("inode {} has a parent pointer for a name that directory {} does not have", p.child, p.dir),
            );
        }
    }

    fn follow(&mut self, dir: u64, child: u64, kind: u8) {
        let Some(c) = self.inodes.get_mut(&child) else {
            return self.bad_name("entry", &format!("directory {dir} has an entry that leads to inode {child}, which is not in use"));
        };
        c.links += 1;
        let (is_dir, real, metadata) = (c.is_dir(), ftype::of_mode(c.mode), c.metadata);
        let twice = is_dir && c.found_in.replace(dir).is_some();
        let parent = c.parent;
        if self.g.ftype() && kind != real {
            self.bad_name("entry-type", &format!("directory {dir} says that inode {child} is of type {kind}, it is {real}"));
        }
        if self.inodes.get(&dir).is_some_and(|d| d.metadata != metadata) {
            self.bad_name("entry", &format!("directory {dir} has an entry that leads to inode {child}: one of them alone is metadata"));
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

    fn reachable(&mut self, roots: &HashSet<u64>, dirs: &[u64]) {
        // Upwards from each directory, stopping at what is known to hang on a root.
        let mut good = roots.clone();
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
            match self.inodes.get(&d).is_some_and(|i| i.nlink == 0) {
                true => self.bad_name("orphan", &format!("directory {d} has no name and counts none")),
                false => self.bad_name("disconnected", &format!("directory {d} cannot be reached from the root")),
            }
        }
        for root in roots {
            if self.inodes.get(root).and_then(|r| r.parent).is_some_and(|p| p != *root) {
                self.bad_name("dir-parent", "the root's .. leads elsewhere");
            }
        }
    }

    fn link_counts(&mut self, roots: &HashSet<u64>) {
        // Inodes that the superblock names have no entries.
        let sb = &self.sb;
        let special: HashSet<u64> = [sb.rbmino.get(), sb.rsumino.get(), sb.uquotino.get(), sb.gquotino.get(), sb.pquotino.get()].into();
        let mut bad = Vec::new();
        for (ino, i) in &self.inodes {
            if special.contains(ino) {
                continue;
            }
            let want = if i.is_dir() { i.subdirs + 2 } else { i.links };
            if !i.is_dir() && i.links == 0 && i.nlink == 0 {
                bad.push((*ino, "orphan", format!("inode {ino} has no name and counts none")));
            } else if !i.is_dir() && i.links == 0 {
                bad.push((*ino, "disconnected", format!("inode {ino} has no name (it counts {} links)", i.nlink)));
            } else if i.nlink != want && (roots.contains(ino) || i.links > 0) {
                bad.push((*ino, "nlink", format!("inode {ino} counts {} links, it has {want}", i.nlink)));
            }
        }
        bad.sort();
        for (_, code, text) in bad {
            self.bad_name(code, &text);
        }
    }
}
