//! Chunks of inodes, and each inode by itself.

use crate::Checker;
use crate::forms::Form;
use crate::names::Info;
use crate::usage::What;
use uxfs_format::btree::InoRec;
use uxfs_format::bytes::{get16, get32};
use uxfs_format::inode::{self, Core, Format, INODE_CRC, NEXT_UNLINKED, flag, flag2, mode};
use uxfs_format::symlink::{MAX_TARGET, REMOTE_HEADER};
use uxfs_format::{AgBlock, AgIno, AgNumber, Ino, Kind, NULL_AG, crc, extent};

/// Kinds of metadata files, and the one of directories.
const METATYPES: std::ops::RangeInclusive<u16> = 1..=8;
const METATYPE_DIR: u16 = 1;

impl Checker<'_> {
    /// A chunk as the inobt describes it.
    pub(crate) fn chunk(&mut self, agno: AgNumber, r: &InoRec) {
        let g = self.g.clone();
        let first = g.agino_agbno(r.startino).0;
        let at = g.ag_daddr(agno, AgBlock(first.min(g.ag_length(agno))));
        let blocks = g.chunk_blocks();
        let (range, end) = (g.inode_blocks(agno), u64::from(first) + u64::from(blocks));
        if !r.startino.0.is_multiple_of(64) && g.inopblock >= 64 || first < range.start || end > u64::from(range.end) {
            return self.add("inobt-place", "inobt", Some(at), "has a chunk outside the group, or over its headers or its end");
        }
        if g.inoalignmt > 1 && !first.is_multiple_of(g.inoalignmt) {
            self.add("inobt-align", "inobt", Some(at), "has a chunk that is not aligned");
        }
        if r.holemask != 0 {
            self.form(Form::SparseChunk, 0);
        }
        let exists = !r.hole_bits();
        if u32::from(r.count) != exists.count_ones() || u32::from(r.freecount) != r.really_free().count_ones() {
            self.add(
                "inobt-counts",
                "inobt",
                Some(at),
                &format!("counts {} and {} free inodes in a chunk, its bits differ", r.count, r.freecount),
            );
        }
        let mut bytes: Option<(u32, Vec<u8>)> = None;
        for i in 0..64u32 {
            let agino = AgIno(r.startino.0.saturating_add(i));
            let block = g.agino_agbno(agino).0;
            if exists >> i & 1 == 0 || block >= g.ag_length(agno) {
                continue;
            }
            if bytes.as_ref().is_none_or(|b| b.0 != block) {
                if agino.0.is_multiple_of(g.inopblock) {
                    self.claim(agno, block, 1, What::Inodes);
                }
                let Some(b) = self.read(g.ag_daddr(agno, AgBlock(block)), g.bb_per_block()) else { return };
                bytes = Some((block, b));
            }
            let Some((_, b)) = &bytes else { return };
            let slot = (agino.0 % g.inopblock) as usize * g.inodesize as usize;
            let one = b[slot..slot + g.inodesize as usize].to_vec();
            self.inode(g.ino(agno, agino), &one, r.free >> i & 1 != 0);
        }
    }

    fn bad_inode(&mut self, ino: Ino, code: &'static str, what: &str) {
        let at = self.g.ag_daddr(self.g.ino_agno(ino), self.g.agino_agbno(self.g.ino_agino(ino)));
        self.add(code, "inode", Some(at), &format!("inode {ino} {what}"));
    }

    fn inode(&mut self, ino: Ino, b: &[u8], free: bool) {
        if self.g.v5() && !crc::verify(b, INODE_CRC) {
            self.bad_inode(ino, "inode-crc", "has a wrong checksum");
        }
        if get32(b, NEXT_UNLINKED) != NULL_AG {
            self.bad_inode(ino, "inode-unlinked", "is linked into a list of unlinked inodes");
        }
        if let Err(what) = inode::check(b, Some(ino), &self.g) {
            return self.bad_inode(ino, "inode", what);
        }
        let core = Core::decode(b);
        self.saw(core.lsn);
        self.fields(ino, &core, b);
        match (core.mode == 0, free) {
            (true, true) => return,
            (true, false) => return self.bad_inode(ino, "inode-not-used", "is free, but the inobt says that it is in use"),
            (false, true) => self.bad_inode(ino, "inode-not-free", "is in use, but the inobt says that it is free"),
            (false, false) => {}
        }
        if core.format == Format::Dev && core.forkoff > 1 {
            self.bad_inode(ino, "inode-forkoff", "is a device whose attributes do not begin behind its number");
        }
        for (set, form) in [(flag2::BIGTIME, Form::BigTime), (flag2::NREXT64, Form::WideCounters)] {
            if core.flags2 & set != 0 {
                self.form(form, 0);
            }
        }
        let mut info = Info::new(&core);
        let (dsize, asize) = (core.data_fork_size(&self.g), core.attr_fork_size(&self.g));
        let (data, fork) = b[self.g.core_size()..].split_at(dsize);
        let kind = core.kind();
        let what = if kind == mode::REG { What::Data(ino.0) } else { What::Meta(ino.0) };
        let tree = if kind == mode::DIR { Form::DirExtentTree } else { Form::FileExtentTree };
        let (extents, mut blocks) = self.extents(ino, data, tree, core.format, core.nextents, what);
        let mut held: u64 = extents.iter().map(|e| u64::from(e.len)).sum();
        match kind {
            mode::DIR => {
                let inline = if core.format == Format::Local { data.get(..core.size as usize) } else { None };
                self.directory(ino, &core, inline, &extents, &mut info);
            }
            mode::LNK if core.format != Format::Local => {
                self.form(Form::LinkBlocks, 0);
                self.remote_link(ino, &core, &extents);
            }
            mode::LNK => {
                self.form(Form::LinkInline, 0);
                self.target(ino, &data[..(core.size as usize).min(dsize)]);
            }
            mode::REG if core.format == Format::Extents => self.form(Form::FileExtents, 0),
            mode::REG => {}
            _ => self.form(Form::Special, 0),
        }
        if asize > 0 {
            let fork = &fork[..asize];
            let (attrs, more) = self.extents(ino, fork, Form::AttrExtentTree, core.aformat, u64::from(core.anextents), What::Meta(ino.0));
            held += attrs.iter().map(|e| u64::from(e.len)).sum::<u64>();
            blocks += more;
            self.attributes(ino, &core, fork, &attrs);
        }
        if held + blocks != core.nblocks {
            self.bad_inode(ino, "inode-blocks", &format!("counts {} blocks, it has {}", core.nblocks, held + blocks));
        }
        self.inodes.insert(ino.0, info);
    }

    /// Times, flags and hints, which nothing else hangs on.
    fn fields(&mut self, ino: Ino, c: &Core, b: &[u8]) {
        let (is, set) = (|kind: u16| c.kind() == kind, |f: u16| c.flags & f != 0);
        let births: &[usize] = if self.g.v5() { &[144] } else { &[] };
        let mut times = [32, 40, 48].iter().chain(births);
        let (big, metadata) = (c.flags2 & flag2::BIGTIME != 0, c.flags2 & flag2::METADATA != 0);
        let (sized, inherited, cow) = (set(flag::EXTSIZE), set(flag::EXTSZINHERIT), c.flags2 & flag2::COWEXTSIZE != 0);
        let most = extent::max_hint(self.g.agblocks);
        let of_all = [
            (
                !metadata || c.mode != 0 && self.metadata_root.is_some() && ino != self.g.rootino,
                "says that it is metadata, which it cannot be",
            ),
            (c.flags2 & !flag2::ALL == 0, "has flags that there are not"),
            (c.mode != 0 || c.nblocks == 0 && c.nextents == 0 && c.anextents == 0, "is free, but counts blocks or extents"),
        ];
        let of_used = [
            (big || times.all(|t| get32(b, t + 4) < 1_000_000_000), "has a time of a second or more behind its second"),
            (c.forkoff != 0 || c.aformat == Format::Extents, "has no attributes, but a form of them"),
            (!set(flag::REALTIME) || self.sb.rblocks.get() > 0, "lies on a realtime device, which the volume does not have"),
            (metadata || b[4] == 1 || get16(b, 6) == 0, "counts names where only old inodes do"),
            (c.flags & !flag::ALL == 0, "has flags that there are not"),
            (c.flags2 & flag2::NREXT64 == 0 || get16(b, 80) == 0, "counts extents where it counts them no more"),
            (is(mode::DIR) || !set(flag::RTINHERIT | flag::PROJINHERIT), "is no directory, but has flags of one"),
            (!set(flag::NEWRTBM) || ino.0 == self.sb.rbmino.get(), "says that it is the realtime bitmap"),
            ((sized || inherited) == (c.extsize != 0) && c.extsize <= most, "has an extent size hint that does not fit its flag"),
            ((!sized || is(mode::REG)) && (!inherited || is(mode::DIR)), "has an extent size hint that is for other kinds of files"),
            (cow == (c.cowextsize != 0) && c.cowextsize <= most, "has a copy-on-write hint that does not fit its flag"),
            (!cow || self.g.reflink() && (is(mode::REG) || is(mode::DIR)), "has a copy-on-write hint where nothing is shared"),
            (
                !metadata || METATYPES.contains(&c.metatype) && is(mode::DIR) == (c.metatype == METATYPE_DIR),
                "is metadata of an unknown kind",
            ),
        ];
        let of_used = of_used.into_iter().filter(|_| c.mode != 0);
        for (_, what) in of_all.into_iter().chain(of_used).filter(|c| !c.0) {
            self.bad_inode(ino, "inode-field", what);
        }
    }

    /// A link's target is a path.
    fn target(&mut self, ino: Ino, bytes: &[u8]) {
        if bytes.contains(&0) {
            self.bad_inode(ino, "symlink", "has a target with a zero byte");
        }
    }

    fn remote_link(&mut self, ino: Ino, core: &Core, extents: &[extent::Extent]) {
        let bare = !self.g.v5();
        let header = if bare { 0 } else { REMOTE_HEADER };
        let payload = self.g.blocksize as usize - header;
        if core.size > MAX_TARGET as u64 {
            return self.bad_inode(ino, "symlink", "has a target that is too long");
        }
        let mut left = core.size as usize;
        let (mut i, blocks) = (0, (core.size as usize).div_ceil(payload) as u64);
        // Each extent has one header, in version 4 none.
        while i < blocks {
            let Some(e) = extents.iter().find(|e| e.off.0 <= i && i < e.end()) else {
                return self.bad_inode(ino, "symlink", "has a target that is not mapped");
            };
            let len = (e.end() - i).min(blocks - i) as u32;
            let (at, bbs) = (self.g.fsb_daddr(e.at(i)), len * self.g.bb_per_block());
            let b = if bare { self.read(at, bbs) } else { self.read_as(Kind::Symlink, at, bbs) };
            let Some(b) = b else { return };
            i += u64::from(len);
            let n = left.min(b.len() - header);
            let place = (get32(&b, 4) as usize, get32(&b, 8) as usize);
            if !bare && (Kind::Symlink.owner(&b) != Some(ino.0) || place != (core.size as usize - left, n)) {
                return self.bad_inode(ino, "symlink", "has a target block of another owner, place or length");
            }
            self.target(ino, &b[header..header + n]);
            left -= n;
        }
    }
}
