//! Chunks of inodes, and each inode by itself.

use crate::Checker;
use crate::names::Info;
use crate::usage::What;
use uxfs_format::btree::InoRec;
use uxfs_format::bytes::get32;
use uxfs_format::inode::{self, CORE_SIZE, Core, Format, INODE_CRC, NEXT_UNLINKED, mode};
use uxfs_format::symlink::{MAX_TARGET, REMOTE_HEADER};
use uxfs_format::{AgBlock, AgIno, AgNumber, Ino, Kind, NULL_AG, crc};

impl Checker<'_> {
    /// A chunk as the inobt describes it.
    pub(crate) fn chunk(&mut self, agno: AgNumber, r: &InoRec) {
        let g = self.g.clone();
        let first = g.agino_agbno(r.startino).0;
        let at = g.ag_daddr(agno, AgBlock(first.min(g.ag_length(agno))));
        let blocks = g.chunk_blocks();
        if !r.startino.0.is_multiple_of(64) && g.inopblock >= 64
            || u64::from(first) + u64::from(blocks) > u64::from(g.ag_length(agno)) && r.holemask == 0
        {
            return self.add("inobt-place", "inobt", Some(at), "has a chunk outside the group");
        }
        if g.inoalignmt > 1 && !first.is_multiple_of(g.inoalignmt) {
            self.add("inobt-align", "inobt", Some(at), "has a chunk that is not aligned");
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
        if !crc::verify(b, INODE_CRC) {
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
        match (core.mode == 0, free) {
            (true, true) => return,
            (true, false) => return self.bad_inode(ino, "inode-not-used", "is free, but the inobt says that it is in use"),
            (false, true) => self.bad_inode(ino, "inode-not-free", "is in use, but the inobt says that it is free"),
            (false, false) => {}
        }
        if core.format == Format::Dev && core.forkoff > 1 {
            self.bad_inode(ino, "inode-forkoff", "is a device whose attributes do not begin behind its number");
        }
        let mut info = Info::new(&core);
        let (dsize, asize) = (core.data_fork_size(&self.g), core.attr_fork_size(&self.g));
        let data = &b[CORE_SIZE..CORE_SIZE + dsize];
        let kind = core.kind();
        let what = if kind == mode::REG { What::Data(ino.0) } else { What::Meta(ino.0) };
        let (extents, mut blocks) = self.extents(ino, data, false, core.format, core.nextents, what);
        let mut held: u64 = extents.iter().map(|e| u64::from(e.len)).sum();
        match kind {
            mode::DIR => {
                let inline = if core.format == Format::Local { data.get(..core.size as usize) } else { None };
                self.directory(ino, &core, inline, &extents, &mut info);
            }
            mode::LNK if core.format != Format::Local => self.remote_link(ino, &core, &extents),
            mode::LNK => self.target(ino, &data[..(core.size as usize).min(dsize)]),
            _ => {}
        }
        if asize > 0 {
            let fork = &b[CORE_SIZE + dsize..CORE_SIZE + dsize + asize];
            let (attrs, more) = self.extents(ino, fork, true, core.aformat, u64::from(core.anextents), What::Meta(ino.0));
            held += attrs.iter().map(|e| u64::from(e.len)).sum::<u64>();
            blocks += more;
            self.attributes(ino, &core, fork, &attrs);
        }
        if held + blocks != core.nblocks {
            self.bad_inode(ino, "inode-blocks", &format!("counts {} blocks, it has {}", core.nblocks, held + blocks));
        }
        self.inodes.insert(ino.0, info);
    }

    /// A link's target is a path.
    fn target(&mut self, ino: Ino, bytes: &[u8]) {
        if bytes.contains(&0) {
            self.bad_inode(ino, "symlink", "has a target with a zero byte");
        }
    }

    fn remote_link(&mut self, ino: Ino, core: &Core, extents: &[uxfs_format::extent::Extent]) {
        let payload = self.g.blocksize as usize - REMOTE_HEADER;
        if core.size > MAX_TARGET as u64 {
            return self.bad_inode(ino, "symlink", "has a target that is too long");
        }
        let mut left = core.size as usize;
        let (mut i, blocks) = (0, (core.size as usize).div_ceil(payload) as u64);
        // Each extent has one header.
        while i < blocks {
            let Some(e) = extents.iter().find(|e| e.off.0 <= i && i < e.end()) else {
                return self.bad_inode(ino, "symlink", "has a target that is not mapped");
            };
            let len = (e.end() - i).min(blocks - i) as u32;
            let Some(b) = self.read_as(Kind::Symlink, self.g.fsb_daddr(e.at(i)), len * self.g.bb_per_block()) else { return };
            i += u64::from(len);
            let n = get32(&b, 8) as usize;
            if uxfs_format::bytes::get64(&b, 32) != ino.0 || n != left.min(b.len() - REMOTE_HEADER) {
                return self.bad_inode(ino, "symlink", "has a target block of another owner or length");
            }
            self.target(ino, &b[REMOTE_HEADER..REMOTE_HEADER + n]);
            left -= n;
        }
    }
}
