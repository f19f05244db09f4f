//! The extents of a fork, out of the inode or out of its tree.

use crate::Checker;
use crate::forms::Form;
use crate::usage::What;
use uxfs_format::btree::rmap_flag;
use uxfs_format::bytes::{get16, get64};
use uxfs_format::extent::{EXTENT_SIZE, Extent};
use uxfs_format::inode::Format;
use uxfs_format::{DiskAddr, Ino, Kind};

/// Header of a tree's root in an inode.
const ROOT_HEADER: usize = 4;

impl Checker<'_> {
    fn bad_fork(&mut self, ino: Ino, what: &str) {
        self.add("fork", "inode", None, &format!("inode {ino} {what}"));
    }

    /// The extents of a fork in order, and the number of blocks of its tree, which would have the form `tree`. What does not hold is left out.
    pub(crate) fn extents(&mut self, ino: Ino, fork: &[u8], tree: Form, format: Format, count: u64, what: What) -> (Vec<Extent>, u64) {
        let mut list = Vec::new();
        let mut blocks = 0;
        let flag = if tree == Form::AttrExtentTree { rmap_flag::ATTR_FORK } else { 0 };
        match format {
            Format::Local | Format::Dev => return (list, 0),
            Format::Extents => list.extend(fork.chunks_exact(EXTENT_SIZE).take(count as usize).map(Extent::decode)),
            Format::Btree => {
                let (level, n) = (get16(fork, 0), usize::from(get16(fork, 2)));
                let max = fork.len().saturating_sub(ROOT_HEADER) / 16;
                if level == 0 || usize::from(level) >= uxfs_format::btree::MAX_LEVELS || n == 0 || n > max {
                    self.bad_fork(ino, "has a tree root out of range");
                    return (list, 0);
                }
                self.form(tree, level + 1);
                let children: Vec<(u64, u64)> =
                    (0..n).map(|i| (get64(fork, ROOT_HEADER + 8 * i), get64(fork, ROOT_HEADER + 8 * (max + i)))).collect();
                blocks = self.walk_fork_tree(ino.0, flag, &children, level, &mut |b| list.push(Extent::decode(b)));
            }
        }
        if list.len() as u64 != count {
            self.bad_fork(ino, &format!("counts {count} extents, it has {}", list.len()));
        }
        let mut end = 0;
        let mut good = Vec::with_capacity(list.len());
        for e in list {
            if e.len == 0 || e.off.0 < end || !self.g.valid_fsb(e.start, e.len) || self.g.fsb_agbno(e.start).0 == 0 {
                self.bad_fork(ino, "has an extent that is out of order or outside the volume");
                continue;
            }
            if e.unwritten && !matches!(what, What::Data(_)) {
                self.bad_fork(ino, "has metadata in an unwritten extent");
            }
            if e.unwritten {
                self.form(Form::Unwritten, 0);
            }
            end = e.end();
            self.claim_fsb(e.start, e.len, what);
            self.claim_for(ino.0, e.start, e.len, e.off.0 | flag | if e.unwritten { rmap_flag::UNWRITTEN } else { 0 });
            good.push(e);
        }
        (good, blocks)
    }

    /// Reads `n` file blocks from `off` on; `None` if they are not all mapped. Returns the address of the first, too.
    pub(crate) fn read_mapped(&mut self, extents: &[Extent], off: u64, n: u64) -> Option<(DiskAddr, Vec<u8>)> {
        let mut out = Vec::new();
        let mut first = None;
        let mut whole = true;
        for o in off..off + n {
            let i = extents.partition_point(|e| e.end() <= o);
            let e = extents.get(i).filter(|e| e.off.0 <= o)?;
            let at = self.g.fsb_daddr(e.at(o));
            let from = *first.get_or_insert(at);
            whole &= at.0 == from.0 + (o - off) * u64::from(self.g.bb_per_block());
            out.extend(self.read(at, self.g.bb_per_block())?);
        }
        // Only directories have blocks of several.
        if !whole {
            self.form(Form::DirPieces, 0);
        }
        if let Some(k) = Kind::sniff(&out) {
            self.saw(k.lsn(&out).unwrap_or_default());
        }
        first.map(|f| (f, out))
    }
}
