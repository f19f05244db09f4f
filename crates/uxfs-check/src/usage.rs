//! Who owns each block: everything that was met, laid side by side.

use crate::Checker;
use std::collections::HashSet;
use uxfs_format::btree::{RefcountRec, RmapRec, TreeKind, rmap_flag, rmap_owner};
use uxfs_format::{AgBlock, AgNumber, FsBlock};

/// What a run of blocks is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Headers of the group.
    Header,
    /// The log.
    Log,
    /// The free list.
    FreeList,
    /// A tree of the group.
    Tree(TreeKind),
    /// Inodes.
    Inodes,
    /// Data of a file, which may be shared; the inode.
    Data(u64),
    /// Directory, attribute, link or extent tree block of an inode.
    Meta(u64),
    /// Free.
    Free,
    /// Staged to be written in the place of shared blocks.
    Cow,
}

impl What {
    /// The owner in the rmapbt, unless it is an inode or nobody.
    fn owner(self) -> Option<u64> {
        match self {
            What::Header => Some(rmap_owner::FS),
            What::Log => Some(rmap_owner::LOG),
            What::FreeList | What::Tree(TreeKind::Bno | TreeKind::Cnt | TreeKind::Rmap) => Some(rmap_owner::AG),
            What::Tree(TreeKind::Ino | TreeKind::Fino) => Some(rmap_owner::INOBT),
            What::Tree(TreeKind::Refcount) => Some(rmap_owner::REFCOUNT),
            What::Inodes => Some(rmap_owner::INODES),
            What::Cow => Some(rmap_owner::COW),
            What::Tree(TreeKind::Bmap) | What::Data(_) | What::Meta(_) | What::Free => None,
        }
    }

    fn text(self) -> String {
        match self {
            What::Header => "the group's headers".into(),
            What::Log => "the log".into(),
            What::FreeList => "the free list".into(),
            What::Tree(k) => format!("the {}", k.shape().name),
            What::Inodes => "inodes".into(),
            What::Data(i) => format!("data of inode {i}"),
            What::Meta(i) => format!("metadata of inode {i}"),
            What::Free => "free space".into(),
            What::Cow => "copy-on-write staging".into(),
        }
    }
}

/// A run of blocks of a group.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    pub start: u32,
    pub len: u32,
    pub what: What,
}

impl Checker<'_> {
    /// Notes who owns a run of blocks, which lies within the group.
    pub(crate) fn claim(&mut self, agno: AgNumber, start: u32, len: u32, what: What) {
        if len > 0 {
            self.usage[agno.0 as usize].push(Use { start, len, what });
            if let Some(owner) = what.owner() {
                self.owners[agno.0 as usize].0.push(RmapRec { start, len, owner, offset: 0 });
            }
        }
    }

    /// Notes that an inode owns a run of blocks of the volume: `offset` is its place in the file, with flags.
    pub(crate) fn claim_for(&mut self, ino: u64, at: FsBlock, len: u32, offset: u64) {
        let (agno, start) = (self.g.fsb_agno(at), self.g.fsb_agbno(at).0);
        self.owners[agno.0 as usize].0.push(RmapRec { start, len, owner: ino, offset });
    }

    /// Compares the reverse mappings of all groups with what was met.
    pub(crate) fn owners(&mut self) {
        if !self.g.rmapbt() {
            return;
        }
        for agno in 0..self.g.agcount {
            let (met, recorded) = std::mem::take(&mut self.owners[agno as usize]);
            let (met, recorded) = (joined(met), joined(recorded));
            if met == recorded {
                continue;
            }
            let extra = |a: &[RmapRec], b: &[RmapRec]| {
                let b: HashSet<&RmapRec> = b.iter().collect();
                a.iter().find(|r| !b.contains(r)).copied()
            };
            for (r, what) in [(extra(&met, &recorded), "lacks"), (extra(&recorded, &met), "has")] {
                let Some(r) = r else { continue };
                let at = self.g.ag_daddr(AgNumber(agno), AgBlock(r.start));
                let text =
                    format!("{what} {} blocks of owner {} at {:#x} of it, where they are otherwise", r.len, r.owner as i64, r.offset);
                self.add("rmap", "rmapbt", Some(at), &text);
            }
        }
    }

    pub(crate) fn claim_fsb(&mut self, at: FsBlock, len: u32, what: What) {
        let (agno, agbno) = (self.g.fsb_agno(at), self.g.fsb_agbno(at));
        self.claim(agno, agbno.0, len, what);
    }

    pub(crate) fn log_area(&mut self) {
        let (at, len) = (self.g.logstart, self.g.logblocks);
        if at.0 == 0 {
            return;
        }
        if self.g.valid_fsb(at, len) {
            self.claim_fsb(at, len, What::Log);
        } else {
            self.add("log-place", "superblock", None, "has a log outside its group");
        }
    }

    /// Finds blocks with several owners and with none.
    pub(crate) fn sweep(&mut self) {
        for agno in 0..self.g.agcount {
            let mut uses = std::mem::take(&mut self.usage[agno as usize]);
            uses.sort_unstable_by_key(|u| (u.start, u.len));
            let length = self.g.ag_length(AgNumber(agno));
            // The run that reaches furthest of those so far.
            let mut reach: Option<Use> = None;
            let mut end = 0u32;
            for u in &uses {
                let at = self.g.ag_daddr(AgNumber(agno), AgBlock(u.start));
                if u.start > end {
                    let from = self.g.ag_daddr(AgNumber(agno), AgBlock(end));
                    self.add("lost-blocks", "group", Some(from), &format!("{} blocks belong to nobody", u.start - end));
                }
                if let Some(r) = reach.filter(|_| u.start < end) {
                    let both_data = matches!((r.what, u.what), (What::Data(_), What::Data(_)));
                    if !both_data {
                        let text = format!("belong to {} and to {}", r.what.text(), u.what.text());
                        self.add("double-use", "blocks", Some(at), &text);
                    }
                }
                if u.start.saturating_add(u.len) > end {
                    (end, reach) = (u.start.saturating_add(u.len), Some(*u));
                }
            }
            if end < length {
                let from = self.g.ag_daddr(AgNumber(agno), AgBlock(end));
                self.add("lost-blocks", "group", Some(from), &format!("{} blocks belong to nobody", length - end));
            }
            self.usage[agno as usize] = uses;
        }
    }

    /// Compares the reference counts of a group with how often its blocks are really used.
    pub(crate) fn references(&mut self, agno: AgNumber, records: &[RefcountRec]) {
        let mut events: Vec<(u32, i32)> = Vec::new();
        for u in self.usage[agno.0 as usize].iter().filter(|u| matches!(u.what, What::Data(_))) {
            events.extend([(u.start, 1), (u.start.saturating_add(u.len), -1)]);
        }
        events.sort_unstable();
        let mut real: Vec<(u32, u32, u32)> = Vec::new();
        let (mut depth, mut from) = (0i64, 0u32);
        for (at, change) in events {
            if depth >= 2 && at > from {
                push_run(&mut real, from, at - from, depth as u32);
            }
            depth += i64::from(change);
            from = at;
        }
        let mut recorded = Vec::new();
        for r in records.iter().filter(|r| !r.cow) {
            push_run(&mut recorded, r.start, r.len, r.count);
        }
        let only = |a: &[(u32, u32, u32)], b: &[(u32, u32, u32)]| a.iter().find(|x| !b.contains(x)).copied();
        // Most volumes agree; then the search below is not needed.
        if real == recorded {
            return;
        }
        let x = only(&real, &recorded).or_else(|| only(&recorded, &real)).unwrap_or_default();
        let at = self.g.ag_daddr(agno, AgBlock(x.0));
        let text = format!("reference counts and owners disagree over {} blocks ({} owners)", x.1, x.2);
        self.add("refcount", "refcountbt", Some(at), &text);
    }
}

/// Reverse mappings in order, neighbours joined.
fn joined(mut all: Vec<RmapRec>) -> Vec<RmapRec> {
    all.sort_unstable_by_key(|r| (r.owner, r.offset & !rmap_flag::UNWRITTEN, r.start));
    let mut out: Vec<RmapRec> = Vec::with_capacity(all.len());
    for r in all {
        match out.last_mut() {
            Some(l) if l.owner == r.owner && l.end() == r.start && l.next_offset() == r.offset => l.len = l.len.saturating_add(r.len),
            _ => out.push(r),
        }
    }
    out.sort_unstable_by_key(RmapRec::order);
    out
}

/// Appends a run, joined to the last if it goes on with the same count.
fn push_run(v: &mut Vec<(u32, u32, u32)>, start: u32, len: u32, count: u32) {
    match v.last_mut() {
        Some(l) if l.0.saturating_add(l.1) == start && l.2 == count => l.1 = l.1.saturating_add(len),
        _ => v.push((start, len, count)),
    }
}
