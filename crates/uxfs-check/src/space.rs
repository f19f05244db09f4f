//! Superblocks and the headers and trees of a group.

use crate::Checker;
use crate::forms::Form;
use crate::usage::What;
use uxfs_format::ag::{Agf, Agi, UNLINKED_BUCKETS, agfl_get, agfl_slots};
use uxfs_format::btree::{FreeRec, InoRec, RefcountRec, RmapRec, TreeKind};
use uxfs_format::bytes::{get16, get32, get64};
use uxfs_format::superblock::{METADIRINO, features2, incompat, ro_compat, version};
use uxfs_format::{AgBlock, AgIno, AgNumber, DiskAddr, Kind, NULL_AG};
use zerocopy::FromBytes;

/// Bytes of the superblock's struct, and with a metadata directory; what follows in its sector is zero.
const SB_BYTES: usize = METADIRINO;
const SB_METADIR_BYTES: usize = 288;

/// Bytes of the superblock that are the same in every group.
const SHARED: &[(usize, usize, &str)] = &[
    (0, 4, "magic number"),
    (4, 4, "block size"),
    (8, 24, "number of blocks"),
    (32, 16, "UUID"),
    (48, 8, "place of the log"),
    (80, 4, "realtime geometry"),
    (84, 4, "size of the groups"),
    (88, 4, "number of groups"),
    (92, 8, "size of the log"),
    (102, 2, "sector size"),
    (104, 4, "inode size"),
    (120, 6, "geometry"),
    (179, 21, "alignment"),
    (208, 4, "compatible features"),
    (212, 4, "read-only-compatible features"),
    (216, 4, "incompatible features"),
    (228, 4, "alignment of inodes"),
    (248, 16, "UUID of the metadata"),
    (272, 16, "realtime groups"),
];

impl Checker<'_> {
    pub(crate) fn superblocks(&mut self) {
        let sector = self.g.bb_per_sector();
        let Some(first) = self.read_as(Kind::Superblock, DiskAddr(0), sector) else { return };
        if self.sb.flags != 0 {
            self.add("superblock-flags", "superblock", Some(DiskAddr(0)), "has unknown flags");
        }
        if self.sb.inprogress != 0 {
            self.add("superblock-inprogress", "superblock", Some(DiskAddr(0)), "says that mkfs did not finish");
        }
        for agno in 0..self.g.agcount {
            let at = self.g.header_daddr(AgNumber(agno), 0);
            let Some(b) = self.read_as(Kind::Superblock, at, sector) else { continue };
            let end = if self.g.has(incompat::METADIR) { SB_METADIR_BYTES } else { SB_BYTES };
            if b[end..].iter().any(|x| *x != 0) {
                self.add("superblock-rest", "superblock", Some(at), "is followed by something in its sector");
            }
            let quota = get16(&b, 100) & version::QUOTA != 0;
            if !quota && [160, 168, 232].iter().any(|o| !matches!(get64(&b, *o), 0 | u64::MAX)) {
                self.add("superblock-quota", "superblock", Some(at), "names quota inodes, but has no quota");
            }
            let foreign = if self.g.v5() { version::OLD_QFLAGS } else { version::NEW_QFLAGS };
            if get16(&b, 176) & foreign != 0 {
                self.add("superblock-quota", "superblock", Some(at), "has quota flags of another version");
            }
            if self.metadata_root.is_some() && [64, 72, 160, 168, 232].iter().any(|o| get64(&b, *o) != 0) {
                self.add("superblock-quota", "superblock", Some(at), "names inodes that belong into the metadata directory");
            }
            if get64(&b, 16) == 0 && get64(&b, 152) != 0 {
                self.add("superblock-frextents", "superblock", Some(at), "counts free realtime extents where there are none");
            }
            // Attributes of the second kind may have come later, too.
            if [200, 204].iter().any(|o| (get32(&b, *o) ^ get32(&first, *o)) & !features2::ATTR2 != 0) {
                self.add("superblock-copy", "superblock", Some(at), "has other feature bits than the first one");
            }
            // A kernel notes its first attribute and quota in the first superblock alone.
            let later = version::ATTR | version::QUOTA;
            if get16(&b, 100) | later != get16(&first, 100) | later {
                self.add("superblock-copy", "superblock", Some(at), "has another version than the first one");
            }
            for (from, len, what) in SHARED {
                if b[*from..from + len] != first[*from..from + len] {
                    self.add("superblock-copy", "superblock", Some(at), &format!("has another {what} than the first one"));
                }
            }
        }
    }

    pub(crate) fn group(&mut self, agno: AgNumber) {
        let sector = self.g.bb_per_sector();
        let headers = (4 * self.g.sectsize).div_ceil(self.g.blocksize);
        self.claim(agno, 0, headers, What::Header);
        let agf_at = self.g.header_daddr(agno, 1);
        if let Some(b) = self.read_as(Kind::Agf, agf_at, sector)
            && let Ok((agf, _)) = Agf::read_from_prefix(&b)
        {
            self.free_space(agno, &agf, agf_at);
        }
        let agi_at = self.g.header_daddr(agno, 2);
        if let Some(b) = self.read_as(Kind::Agi, agi_at, sector)
            && let Ok((agi, _)) = Agi::read_from_prefix(&b)
        {
            self.inode_trees(agno, &agi, agi_at);
        }
    }

    fn free_list(&mut self, agno: AgNumber, agf: &Agf, agf_at: DiskAddr) {
        let slots = agfl_slots(&self.g);
        let (first, last, count) = (agf.flfirst.get(), agf.fllast.get(), agf.flcount.get());
        if first >= slots || last >= slots || (last + slots - first + 1) % slots != count % slots {
            return self.add("agfl-indices", "AGF", Some(agf_at), "has indices of the free list that do not fit its count");
        }
        let at = self.g.header_daddr(agno, 3);
        let Some(b) = self.read_as(Kind::Agfl, at, self.g.bb_per_sector()) else { return };
        for i in 0..count {
            let block = agfl_get(&self.g, &b, (first + i) % slots);
            if block == NULL_AG || block == 0 || block >= self.g.ag_length(agno) {
                self.add("agfl-block", "AGFL", Some(at), &format!("entry {i} is no block of the group"));
            } else {
                self.claim(agno, block, 1, What::FreeList);
            }
        }
    }

    fn free_space(&mut self, agno: AgNumber, agf: &Agf, at: DiskAddr) {
        self.free_list(agno, agf, at);
        let mut by_start = Vec::new();
        let mut by_size = Vec::new();
        let rec = |b: &[u8]| FreeRec { start: get32(b, 0), len: get32(b, 4) };
        let bno = self.walk_group_tree(TreeKind::Bno, agno, agf.roots[0].get(), agf.levels[0].get(), &mut |b| by_start.push(rec(b)));
        let cnt = self.walk_group_tree(TreeKind::Cnt, agno, agf.roots[1].get(), agf.levels[1].get(), &mut |b| by_size.push(rec(b)));
        let mut rmap = 0;
        if self.g.rmapbt() {
            let mut records = Vec::new();
            rmap = self
                .walk_group_tree(TreeKind::Rmap, agno, agf.roots[2].get(), agf.levels[2].get(), &mut |b| records.push(RmapRec::decode(b)));
            self.owners[agno.0 as usize].1 = records;
            if rmap != agf.rmap_blocks.get() {
                self.add("agf-rmapblocks", "AGF", Some(at), &format!("counts {} blocks of the rmapbt, there are {rmap}", agf.rmap_blocks));
            }
        }
        let length = u64::from(self.g.ag_length(agno));
        let (mut free, mut end) = (0u64, 0u64);
        for r in &by_start {
            let (from, to) = (u64::from(r.start), u64::from(r.start) + u64::from(r.len));
            if r.len == 0 || r.start == 0 || to > length {
                self.add(
                    "free-range",
                    "bnobt",
                    Some(self.g.ag_daddr(agno, AgBlock(r.start.min(length as u32)))),
                    "has an extent outside the group",
                );
                continue;
            }
            if from < end || (from == end && end > 0) {
                self.add("free-joined", "bnobt", Some(self.g.ag_daddr(agno, AgBlock(r.start))), "has extents that touch or overlap");
            }
            end = to;
            free += u64::from(r.len);
            self.claim(agno, r.start, r.len, What::Free);
        }
        by_size.sort_unstable();
        by_start.sort_unstable();
        if by_size != by_start {
            self.add("free-trees", "cntbt", Some(at), "and the bnobt of the group have different extents");
        }
        let longest = by_start.iter().map(|r| r.len).max().unwrap_or(0);
        let extra = (bno + cnt + rmap).saturating_sub(2 + u32::from(self.g.rmapbt()));
        // Old volumes need not count the blocks of trees.
        let lazy = self.g.v5() || self.sb.features2.get() & features2::LAZY_COUNT != 0;
        for (code, what, header, real) in [
            ("agf-freeblks", "free blocks", agf.freeblks.get(), free as u32),
            ("agf-longest", "blocks of the longest extent", agf.longest.get(), longest),
            ("agf-btreeblks", "blocks of trees", if lazy { agf.btreeblks.get() } else { extra }, extra),
        ] {
            if header != real {
                self.add(code, "AGF", Some(at), &format!("counts {header} {what}, there are {real}"));
            }
        }
        self.counted.0 += free + u64::from(agf.flcount.get()) + u64::from(extra);
    }

    /// The reference counts of a group; after everything else was claimed.
    pub(crate) fn refcounts(&mut self, agno: AgNumber) {
        let at = self.g.header_daddr(agno, 1);
        let Some(b) = self.read(at, self.g.bb_per_sector()) else { return };
        let Ok((agf, _)) = Agf::read_from_prefix(&b) else { return };
        let mut records = Vec::new();
        if self.g.reflink() && Kind::Agf.verify(&b, at, &self.g, true).is_ok() {
            let blocks = self.walk_group_tree(TreeKind::Refcount, agno, agf.refcount_root.get(), agf.refcount_level.get(), &mut |b| {
                let start = get32(b, 0);
                records.push(RefcountRec { cow: start >> 31 != 0, start: start & 0x7fff_ffff, len: get32(b, 4), count: get32(b, 8) });
            });
            if blocks != agf.refcount_blocks.get() {
                let text = format!("counts {} blocks of the refcountbt, there are {blocks}", agf.refcount_blocks);
                self.add("agf-refcountblocks", "AGF", Some(at), &text);
            }
        }
        let length = u64::from(self.g.ag_length(agno));
        let mut end = (false, 0u64);
        for r in &records {
            let place = self.g.ag_daddr(agno, AgBlock(r.start.min(length as u32)));
            let to = u64::from(r.start) + u64::from(r.len);
            if r.len == 0 || to > length || (r.cow == end.0 && u64::from(r.start) < end.1) {
                self.add("refcount-range", "refcountbt", Some(place), "has an extent that overlaps another or lies outside the group");
                continue;
            }
            end = (r.cow, to);
            if r.cow {
                if r.count != 1 {
                    self.add("refcount-cow", "refcountbt", Some(place), "has a staging extent with a count that is not 1");
                }
                self.add("cow-leftover", "refcountbt", Some(place), &format!("{} blocks are staged for a copy that never finished", r.len));
                self.claim(agno, r.start, r.len, What::Cow);
            } else if r.count < 2 {
                self.add("refcount-one", "refcountbt", Some(place), "has an extent with a count below 2");
            } else {
                self.form(Form::Shared, 0);
            }
        }
        self.references(agno, &records);
    }

    fn inode_trees(&mut self, agno: AgNumber, agi: &Agi, at: DiskAddr) {
        let sparse = self.g.has(incompat::SPINODES);
        let (mut all, mut free) = (Vec::new(), Vec::new());
        let iblocks =
            self.walk_group_tree(TreeKind::Ino, agno, agi.root.get(), agi.level.get(), &mut |b| all.push(InoRec::decode(b, sparse)));
        let mut fblocks = 0;
        if self.g.finobt() {
            let push = &mut |b: &[u8]| free.push(InoRec::decode(b, sparse));
            fblocks = self.walk_group_tree(TreeKind::Fino, agno, agi.free_root.get(), agi.free_level.get(), push);
            let want: Vec<InoRec> = all.iter().filter(|r| r.freecount > 0).copied().collect();
            if want != free {
                self.add("finobt", "finobt", Some(at), "and the inobt of the group disagree over chunks with free inodes");
            }
        }
        if self.g.has_ro(ro_compat::INOBTCNT) && (agi.iblocks.get(), agi.fblocks.get()) != (iblocks, fblocks) {
            let text = format!("counts {} and {} blocks of inode trees, there are {iblocks} and {fblocks}", agi.iblocks, agi.fblocks);
            self.add("agi-blocks", "AGI", Some(at), &text);
        }
        let (mut count, mut freecount) = (0u32, 0u32);
        let mut last = None;
        for r in &all {
            if last.is_some_and(|l: u32| r.startino.0 < l.saturating_add(64)) {
                self.add("inobt-overlap", "inobt", Some(at), "has chunks that overlap");
            }
            last = Some(r.startino.0);
            count += u32::from(r.count);
            freecount += u32::from(r.freecount);
            self.chunk(agno, r);
        }
        // Blocks that hold several chunks hold all of them.
        let first_of = |r: &InoRec| r.startino.0 / self.g.inopblock.max(1);
        let mut in_block = std::collections::BTreeMap::<u32, u32>::new();
        all.iter().for_each(|r| *in_block.entry(first_of(r)).or_default() += 1);
        if self.g.inopblock > 64 && in_block.values().any(|n| n * 64 != self.g.inopblock) {
            self.add("inobt-missing", "inobt", Some(at), "has only some of the chunks of a block");
        }
        for (code, what, header, real) in
            [("agi-count", "inodes", agi.count.get(), count), ("agi-freecount", "free inodes", agi.freecount.get(), freecount)]
        {
            if header != real {
                self.add(code, "AGI", Some(at), &format!("counts {header} {what}, there are {real}"));
            }
        }
        self.counted.1 += u64::from(count);
        self.counted.2 += u64::from(freecount);
        for bucket in 0..UNLINKED_BUCKETS {
            let head = agi.unlinked[bucket].get();
            if head != NULL_AG {
                let ino = self.g.ino(agno, AgIno(head));
                self.add("unlinked", "AGI", Some(at), &format!("inode {} waits on the unlinked list (bucket {bucket})", ino.0));
            }
        }
    }
}
