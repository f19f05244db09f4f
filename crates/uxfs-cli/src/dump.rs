//! `dump`: structures as they lie on the device, field by field, under the names and in the form of xfs_db.

use crate::inspect::superblock;
use crate::place::Source;
use crate::show::civil;
use anyhow::{Context, Result, bail};
use std::io::Write;
use uxfs_device::Device;
use uxfs_format::attr::{flag as attr_flag, sf_entries};
use uxfs_format::btree::{self, TreeKind};
use uxfs_format::bytes::{get8, get16, get32, get64, slice};
use uxfs_format::dir::{self, ShortForm};
use uxfs_format::extent::{EXTENT_SIZE, Extent};
use uxfs_format::inode::{Core, Format, INODE_CRC, Timestamp, flag, flag2, mode};
use uxfs_format::{AgNumber, FsBlock, Geometry, Ino, Kind, ag, crc};

/// How a field is shown.
#[derive(Clone, Copy)]
enum As {
    /// A number of so many bytes.
    Number(usize),
    /// The same in hexadecimal digits.
    Hex(usize),
    /// A number, or `null` if all bits are set.
    Pointer(usize),
    Uuid,
    /// Characters in quotes.
    Text(usize),
    /// A checksum; it is held against the bytes.
    Crc,
}

type Field = (&'static str, usize, As);

const SB: &[Field] = &[
    ("magicnum", 0, As::Hex(4)),
    ("blocksize", 4, As::Number(4)),
    ("dblocks", 8, As::Number(8)),
    ("rblocks", 16, As::Number(8)),
    ("rextents", 24, As::Number(8)),
    ("uuid", 32, As::Uuid),
    ("logstart", 48, As::Number(8)),
    ("rootino", 56, As::Pointer(8)),
    ("rbmino", 64, As::Pointer(8)),
    ("rsumino", 72, As::Pointer(8)),
    ("rextsize", 80, As::Number(4)),
    ("agblocks", 84, As::Number(4)),
    ("agcount", 88, As::Number(4)),
    ("rbmblocks", 92, As::Number(4)),
    ("logblocks", 96, As::Number(4)),
    ("versionnum", 100, As::Hex(2)),
    ("sectsize", 102, As::Number(2)),
    ("inodesize", 104, As::Number(2)),
    ("inopblock", 106, As::Number(2)),
    ("fname", 108, As::Text(12)),
    ("blocklog", 120, As::Number(1)),
    ("sectlog", 121, As::Number(1)),
    ("inodelog", 122, As::Number(1)),
    ("inopblog", 123, As::Number(1)),
    ("agblklog", 124, As::Number(1)),
    ("rextslog", 125, As::Number(1)),
    ("inprogress", 126, As::Number(1)),
    ("imax_pct", 127, As::Number(1)),
    ("icount", 128, As::Number(8)),
    ("ifree", 136, As::Number(8)),
    ("fdblocks", 144, As::Number(8)),
    ("frextents", 152, As::Number(8)),
    ("uquotino", 160, As::Pointer(8)),
    ("gquotino", 168, As::Pointer(8)),
    ("qflags", 176, As::Hex(2)),
    ("flags", 178, As::Hex(1)),
    ("shared_vn", 179, As::Number(1)),
    ("inoalignmt", 180, As::Number(4)),
    ("unit", 184, As::Number(4)),
    ("width", 188, As::Number(4)),
    ("dirblklog", 192, As::Number(1)),
    ("logsectlog", 193, As::Number(1)),
    ("logsectsize", 194, As::Number(2)),
    ("logsunit", 196, As::Number(4)),
    ("features2", 200, As::Hex(4)),
    ("bad_features2", 204, As::Hex(4)),
    ("features_compat", 208, As::Hex(4)),
    ("features_ro_compat", 212, As::Hex(4)),
    ("features_incompat", 216, As::Hex(4)),
    ("features_log_incompat", 220, As::Hex(4)),
    ("crc", 224, As::Crc),
    ("spino_align", 228, As::Number(4)),
    ("pquotino", 232, As::Pointer(8)),
    ("lsn", 240, As::Hex(8)),
    ("meta_uuid", 248, As::Uuid),
];

const AGF: &[Field] = &[
    ("magicnum", 0, As::Hex(4)),
    ("versionnum", 4, As::Number(4)),
    ("seqno", 8, As::Number(4)),
    ("length", 12, As::Number(4)),
    ("bnoroot", 16, As::Number(4)),
    ("cntroot", 20, As::Number(4)),
    ("rmaproot", 24, As::Number(4)),
    ("refcntroot", 88, As::Number(4)),
    ("bnolevel", 28, As::Number(4)),
    ("cntlevel", 32, As::Number(4)),
    ("rmaplevel", 36, As::Number(4)),
    ("refcntlevel", 92, As::Number(4)),
    ("rmapblocks", 80, As::Number(4)),
    ("refcntblocks", 84, As::Number(4)),
    ("flfirst", 40, As::Number(4)),
    ("fllast", 44, As::Number(4)),
    ("flcount", 48, As::Number(4)),
    ("freeblks", 52, As::Number(4)),
    ("longest", 56, As::Number(4)),
    ("btreeblks", 60, As::Number(4)),
    ("uuid", 64, As::Uuid),
    ("lsn", 208, As::Hex(8)),
    ("crc", 216, As::Crc),
];

const AGI: &[Field] = &[
    ("magicnum", 0, As::Hex(4)),
    ("versionnum", 4, As::Number(4)),
    ("seqno", 8, As::Number(4)),
    ("length", 12, As::Number(4)),
    ("count", 16, As::Number(4)),
    ("root", 20, As::Number(4)),
    ("level", 24, As::Number(4)),
    ("freecount", 28, As::Number(4)),
    ("newino", 32, As::Pointer(4)),
    ("dirino", 36, As::Pointer(4)),
    ("uuid", 296, As::Uuid),
    ("crc", 312, As::Crc),
    ("lsn", 320, As::Hex(8)),
    ("free_root", 328, As::Number(4)),
    ("free_level", 332, As::Number(4)),
];

const AGI_COUNTS: &[Field] = &[("ino_blocks", 336, As::Number(4)), ("fino_blocks", 340, As::Number(4))];

const AGFL: &[Field] =
    &[("magicnum", 0, As::Hex(4)), ("seqno", 4, As::Number(4)), ("uuid", 8, As::Uuid), ("lsn", 24, As::Hex(8)), ("crc", 32, As::Crc)];

const SHORT: &[Field] = &[
    ("magic", 0, As::Hex(4)),
    ("level", 4, As::Number(2)),
    ("numrecs", 6, As::Number(2)),
    ("leftsib", 8, As::Pointer(4)),
    ("rightsib", 12, As::Pointer(4)),
    ("bno", 16, As::Number(8)),
    ("lsn", 24, As::Hex(8)),
    ("uuid", 32, As::Uuid),
    ("owner", 48, As::Number(4)),
    ("crc", 52, As::Crc),
];

const LONG: &[Field] = &[
    ("magic", 0, As::Hex(4)),
    ("level", 4, As::Number(2)),
    ("numrecs", 6, As::Number(2)),
    ("leftsib", 8, As::Pointer(8)),
    ("rightsib", 16, As::Pointer(8)),
    ("bno", 24, As::Number(8)),
    ("lsn", 32, As::Hex(8)),
    ("uuid", 40, As::Uuid),
    ("owner", 56, As::Number(8)),
    ("crc", 64, As::Crc),
];

fn number(b: &[u8], at: usize, n: usize) -> u64 {
    match n {
        1 => u64::from(get8(b, at)),
        2 => u64::from(get16(b, at)),
        4 => u64::from(get32(b, at)),
        _ => get64(b, at),
    }
}

fn hex(v: u64) -> String {
    if v == 0 { "0".into() } else { format!("{v:#x}") }
}

fn text(b: &[u8]) -> String {
    let one = |c: &u8| match c {
        b' '..=b'~' => char::from(*c).to_string(),
        c => format!("\\{c:03o}"),
    };
    format!("\"{}\"", b.iter().map(one).collect::<String>())
}

fn pointer(v: u64, bytes: usize) -> String {
    let null = if bytes == 4 { u64::from(u32::MAX) } else { u64::MAX };
    if v == null { "null".into() } else { v.to_string() }
}

fn checksum(g: &Geometry, b: &[u8], at: usize) -> String {
    // It lies with the low byte first, and is shown as if it did not.
    let held = hex(get32(b, at).into());
    let word = match crc::verify(b, at) {
        _ if !g.v5() => "unchecked",
        true => "correct",
        false => "bad",
    };
    format!("{held} ({word})")
}

fn fields(g: &Geometry, b: &[u8], list: &[Field], out: &mut dyn Write) -> Result<()> {
    for (name, at, how) in list {
        let shown = match *how {
            As::Number(n) => number(b, *at, n).to_string(),
            As::Hex(n) => hex(number(b, *at, n)),
            As::Pointer(n) => pointer(number(b, *at, n), n),
            As::Uuid => uxfs_mkfs::uuid_text(&slice(b, *at, 16).try_into().unwrap_or_default()),
            As::Text(n) => text(slice(b, *at, n)),
            As::Crc => checksum(g, b, *at),
        };
        writeln!(out, "{name} = {shown}")?;
    }
    Ok(())
}

/// Shows a structure: `sb`, `agf`, `agi` or `agfl` of a group, an `inode`, or a `block` of a tree.
///
/// # Errors
/// There is no such structure; the number lies outside the volume.
pub fn dump(source: &Source, what: &str, number: u64, out: &mut impl Write) -> Result<()> {
    let dev = source.device(false)?;
    superblock(&*dev).with_context(|| format!("cannot open {}", source.name()))?;
    let mut head = vec![0; 4096];
    dev.read(0, &mut head)?;
    let (g, _) = Geometry::parse(&head)?;
    let group = || match u32::try_from(number) {
        Ok(n) if n < g.agcount => Ok(AgNumber(n)),
        _ => bail!("there is no group {number}: {} has {}", source.name(), g.agcount),
    };
    let header = |n: u32| -> Result<Vec<u8>> {
        let mut b = vec![0; g.sectsize as usize];
        dev.read(g.header_daddr(group()?, n).0 * 512, &mut b)?;
        Ok(b)
    };
    match what {
        "sb" => fields(&g, &header(0)?, SB, out),
        "agf" => fields(&g, &header(1)?, AGF, out),
        "agi" => {
            let b = header(2)?;
            let (upper, lower) = AGI.split_at(10);
            fields(&g, &b, upper, out)?;
            let used = (0..ag::UNLINKED_BUCKETS).map(|i| (i, get32(&b, 40 + 4 * i))).filter(|u| u.1 != u32::MAX);
            let used: Vec<String> = used.map(|(i, v)| format!("{i}:{v}")).collect();
            writeln!(out, "unlinked[0-63] = {}", used.join(" "))?;
            fields(&g, &b, lower, out)?;
            fields(&g, &b, if g.has_ro(uxfs_format::superblock::ro_compat::INOBTCNT) { AGI_COUNTS } else { &[] }, out)
        }
        "agfl" => {
            let b = header(3)?;
            fields(&g, &b, if g.v5() { AGFL } else { &[] }, out)?;
            let slots = ag::agfl_slots(&g);
            let list: Vec<String> = (0..slots).map(|i| format!("{i}:{}", pointer(ag::agfl_get(&g, &b, i).into(), 4))).collect();
            writeln!(out, "bno[0-{}] = {}", slots - 1, list.join(" "))?;
            Ok(())
        }
        "inode" => inode(&*dev, &g, Ino(number), out),
        "block" => block(&*dev, &g, FsBlock(number), out),
        _ => bail!("{what} is no structure; sb, agf, agi, agfl, inode and block are"),
    }
}

fn time(t: Timestamp) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = t.sec.div_euclid(86_400);
    let (y, m, d) = civil(days);
    let s = t.sec.rem_euclid(86_400);
    let (week, month) = (DAYS[days.rem_euclid(7) as usize], MONTHS[(m as usize).clamp(1, 12) - 1]);
    format!("{week} {month} {d:2} {:02}:{:02}:{:02} {y}", s / 3600, s / 60 % 60, s % 60)
}

fn inode(dev: &dyn Device, g: &Geometry, ino: Ino, out: &mut dyn Write) -> Result<()> {
    if !g.valid_ino(ino) {
        bail!("inode {} lies outside the volume", ino.0);
    }
    let agino = g.ino_agino(ino);
    let offset = u64::from(agino.0 & ((1 << g.inopblog) - 1)) * u64::from(g.inodesize);
    let mut b = vec![0; g.inodesize as usize];
    dev.read(g.ag_daddr(g.ino_agno(ino), g.agino_agbno(agino)).0 * 512 + offset, &mut b)?;
    let c = Core::decode(&b);
    let format = |f: Format| match f {
        Format::Dev => "0 (dev)",
        Format::Local => "1 (local)",
        Format::Extents => "2 (extents)",
        Format::Btree => "3 (btree)",
    };
    let mut row = |name: &str, value: String| writeln!(out, "{name} = {value}");
    row("core.magic", format!("{:#x}", get16(&b, 0)))?;
    row("core.mode", format!("0{:o}", c.mode))?;
    row("core.version", get8(&b, 4).to_string())?;
    row("core.format", format(c.format).into())?;
    for (name, v) in [("uid", c.uid), ("gid", c.gid), ("nlinkv2", c.nlink), ("projid_lo", c.projid & 0xffff), ("projid_hi", c.projid >> 16)]
    {
        row(&format!("core.{name}"), v.to_string())?;
    }
    for (name, t) in [("atime", c.atime), ("mtime", c.mtime), ("ctime", c.ctime)] {
        row(&format!("core.{name}.sec"), time(t))?;
        row(&format!("core.{name}.nsec"), t.nsec.to_string())?;
    }
    for (name, v) in [("size", c.size), ("nblocks", c.nblocks), ("extsize", c.extsize.into()), ("nextents", c.nextents)] {
        row(&format!("core.{name}"), v.to_string())?;
    }
    row("core.naextents", c.anextents.to_string())?;
    row("core.forkoff", c.forkoff.to_string())?;
    row("core.aformat", format(c.aformat).into())?;
    let bits = [
        ("prealloc", flag::PREALLOC),
        ("realtime", flag::REALTIME),
        ("immutable", flag::IMMUTABLE),
        ("append", flag::APPEND),
        ("sync", flag::SYNC),
        ("noatime", flag::NOATIME),
        ("nodump", flag::NODUMP),
        ("projinherit", flag::PROJINHERIT),
        ("nosymlinks", flag::NOSYMLINKS),
        ("extsz", flag::EXTSIZE),
        ("extszinherit", flag::EXTSZINHERIT),
        ("nodefrag", flag::NODEFRAG),
        ("filestream", flag::FILESTREAM),
    ];
    for (name, bit) in bits {
        row(&format!("core.{name}"), u8::from(c.flags & bit != 0).to_string())?;
    }
    row("core.gen", c.generation.to_string())?;
    row("next_unlinked", pointer(c.next_unlinked.into(), 4))?;
    if g.v5() {
        newer_core(g, &b, &c, out)?;
    }
    let core = g.core_size();
    let (dsize, asize) = (c.data_fork_size(g).min(b.len() - core), c.attr_fork_size(g));
    let name = if g.v5() { "u3" } else { "u" };
    fork(g, slice(&b, core, dsize), name, c.format, c.nextents, c.kind(), c.size, out)?;
    if asize > 0 && core + dsize + asize <= b.len() {
        fork(g, slice(&b, core + dsize, asize), "a", c.aformat, c.anextents.into(), 0, 0, out)?;
    }
    Ok(())
}

/// What inodes of version 3 have beside the older ones.
fn newer_core(g: &Geometry, b: &[u8], c: &Core, out: &mut dyn Write) -> Result<()> {
    let mut row = |name: &str, value: String| writeln!(out, "{name} = {value}");
    row("v3.crc", checksum(g, b, INODE_CRC))?;
    row("v3.change_count", c.changecount.to_string())?;
    row("v3.lsn", hex(c.lsn.0))?;
    row("v3.flags2", hex(c.flags2))?;
    row("v3.cowextsize", c.cowextsize.to_string())?;
    row("v3.crtime.sec", time(c.crtime))?;
    row("v3.crtime.nsec", c.crtime.nsec.to_string())?;
    row("v3.inumber", c.ino.0.to_string())?;
    row("v3.uuid", uxfs_mkfs::uuid_text(&slice(b, 160, 16).try_into().unwrap_or_default()))?;
    for (name, bit) in [
        ("reflink", flag2::REFLINK),
        ("cowextsz", flag2::COWEXTSIZE),
        ("dax", flag2::DAX),
        ("bigtime", flag2::BIGTIME),
        ("nrext64", flag2::NREXT64),
    ] {
        row(&format!("v3.{name}"), u8::from(c.flags2 & bit != 0).to_string())?;
    }
    Ok(())
}

fn fork(g: &Geometry, b: &[u8], name: &str, f: Format, extents: u64, kind: u16, size: u64, out: &mut dyn Write) -> Result<()> {
    match f {
        Format::Dev => writeln!(out, "{name}.dev = {:#x}", get32(b, 0))?,
        Format::Extents if extents == 0 => {}
        Format::Extents => extent_rows(b, &format!("{name}.bmx"), (extents as usize).min(b.len() / EXTENT_SIZE), 0, out)?,
        Format::Btree => {
            let (level, n, max) = (get16(b, 0), usize::from(get16(b, 2)), b.len().saturating_sub(4) / 16);
            writeln!(out, "{name}.bmbt.level = {level}\n{name}.bmbt.numrecs = {n}")?;
            let n = n.min(max);
            let keys: Vec<String> = (0..n).map(|i| format!("{}:[{}]", i + 1, get64(b, 4 + 8 * i))).collect();
            let ptrs: Vec<String> = (0..n).map(|i| format!("{}:{}", i + 1, get64(b, 4 + 8 * max + 8 * i))).collect();
            writeln!(out, "{name}.bmbt.keys[1-{n}] = [startoff] {}\n{name}.bmbt.ptrs[1-{n}] = {}", keys.join(" "), ptrs.join(" "))?;
        }
        Format::Local if name == "a" => {
            writeln!(out, "a.sfattr.hdr.totsize = {}\na.sfattr.hdr.count = {}", get16(b, 0), get8(b, 2))?;
            for (i, e) in sf_entries(b).enumerate() {
                let e = e.map_err(|m| anyhow::anyhow!(m))?;
                let at = format!("a.sfattr.list[{i}]");
                writeln!(out, "{at}.namelen = {}\n{at}.valuelen = {}", e.name.len(), e.value.len())?;
                for (what, bit) in [("root", attr_flag::ROOT), ("secure", attr_flag::SECURE), ("parent", attr_flag::PARENT)] {
                    writeln!(out, "{at}.{what} = {}", u8::from(e.flags & bit != 0))?;
                }
                writeln!(out, "{at}.name = {}", text(e.name))?;
                if e.flags & attr_flag::PARENT == 0 {
                    writeln!(out, "{at}.value = {}", text(e.value))?;
                } else {
                    writeln!(out, "{at}.parent_dir.inumber = {}\n{at}.parent_dir.gen = {}", get64(e.value, 0), get32(e.value, 8))?;
                }
            }
        }
        Format::Local if kind == mode::DIR => {
            // Where entries bear no types, the form has another name.
            let typed = dir::typed(b, g).map_err(|m| anyhow::anyhow!(m))?;
            let (s, name) = (ShortForm(&typed), format!("{name}.sfdir{}", if g.ftype() { 3 } else { 2 }));
            let width = if s.wide() { "i8" } else { "i4" };
            writeln!(out, "{name}.hdr.count = {}\n{name}.hdr.i8count = {}", s.count(), get8(b, 1))?;
            writeln!(out, "{name}.hdr.parent.{width} = {}", s.parent().0)?;
            for (i, e) in s.entries().enumerate() {
                let e = e.map_err(|m| anyhow::anyhow!(m))?;
                let at = format!("{name}.list[{i}]");
                writeln!(out, "{at}.namelen = {}\n{at}.offset = {:#x}\n{at}.name = {}", e.name.len(), e.offset, text(e.name))?;
                writeln!(out, "{at}.inumber.{width} = {}", e.ino.0)?;
                if g.ftype() {
                    writeln!(out, "{at}.filetype = {}", e.ftype)?;
                }
            }
        }
        Format::Local => writeln!(out, "{name}.symlink = {}", text(&b[..(size as usize).min(b.len())]))?,
    }
    Ok(())
}

fn extent_rows(b: &[u8], name: &str, n: usize, first: usize, out: &mut dyn Write) -> Result<()> {
    let range = if n == 1 { first.to_string() } else { format!("{first}-{}", first + n - 1) };
    writeln!(out, "{name}[{range}] = [startoff,startblock,blockcount,extentflag]")?;
    for (i, r) in b.chunks_exact(EXTENT_SIZE).take(n).enumerate() {
        let e = Extent::decode(r);
        writeln!(out, "{}:[{},{},{},{}]", first + i, e.off.0, e.start.0, e.len, u8::from(e.unwritten))?;
    }
    Ok(())
}

fn block(dev: &dyn Device, g: &Geometry, at: FsBlock, out: &mut dyn Write) -> Result<()> {
    if !g.valid_fsb(at, 1) {
        bail!("block {} lies outside the volume", at.0);
    }
    let mut b = vec![0; g.blocksize as usize];
    dev.read(g.fsb_daddr(at).0 * 512, &mut b)?;
    let Some(Kind::Btree(t)) = Kind::sniff(&b) else {
        bail!("block {} is no block of a tree; only those are shown, beside headers and inodes", at.0);
    };
    let all = if t == TreeKind::Bmap { LONG } else { SHORT };
    // In version 4 the header ends with the neighbours.
    fields(g, &b, if g.v5() { all } else { &all[..5] }, out)?;
    let (s, n) = (t.shape_in(g), btree::numrecs(&b));
    let n = n.min(s.max(g.blocksize, btree::level(&b)));
    let range = if n == 1 { "1".into() } else { format!("1-{n}") };
    if btree::level(&b) > 0 {
        let key = |i: usize| slice(&b, s.key_at(i), s.key).iter().map(|c| format!("{c:02x}")).collect::<String>();
        writeln!(out, "keys[{range}] =")?;
        (0..n).try_for_each(|i| writeln!(out, "{}:[{}]", i + 1, key(i)))?;
        let ptrs: Vec<String> = (0..n).map(|i| format!("{}:{}", i + 1, s.ptr_get(&b, g.blocksize, i))).collect();
        writeln!(out, "ptrs[{range}] = {}", ptrs.join(" "))?;
        return Ok(());
    }
    if n == 0 {
        return Ok(());
    }
    let r = |i: usize| &b[s.rec_at(i)..s.rec_at(i) + s.rec];
    match t {
        TreeKind::Bmap => return extent_rows(&b[s.header..], "recs", n, 1, out),
        TreeKind::Bno | TreeKind::Cnt => {
            writeln!(out, "recs[{range}] = [startblock,blockcount]")?;
            (0..n).try_for_each(|i| writeln!(out, "{}:[{},{}]", i + 1, get32(r(i), 0), get32(r(i), 4)))?;
        }
        TreeKind::Ino | TreeKind::Fino => {
            let sparse = g.has(uxfs_format::superblock::incompat::SPINODES);
            writeln!(out, "recs[{range}] = [startino,{}freecount,free]", if sparse { "holemask,count," } else { "" })?;
            for i in 0..n {
                let x = btree::InoRec::decode(r(i), sparse);
                let middle = if sparse { format!("{},{},", hex(x.holemask.into()), x.count) } else { String::new() };
                writeln!(out, "{}:[{},{}{},{}]", i + 1, x.startino.0, middle, x.freecount, hex(x.free))?;
            }
        }
        TreeKind::Refcount => {
            writeln!(out, "recs[{range}] = [startblock,blockcount,refcount,cowflag]")?;
            for i in 0..n {
                let start = get32(r(i), 0);
                let row = (start & !(1 << 31), get32(r(i), 4), get32(r(i), 8), start >> 31);
                writeln!(out, "{}:[{},{},{},{}]", i + 1, row.0, row.1, row.2, row.3)?;
            }
        }
        TreeKind::Rmap => {
            writeln!(out, "recs[{range}] = [startblock,blockcount,owner,offset,extentflag,attrfork,bmbtblock]")?;
            for i in 0..n {
                let x = btree::RmapRec::decode(r(i));
                let bit = |n: u32| x.offset >> n & 1;
                let owner = if x.owner >> 63 == 1 { (x.owner as i64).to_string() } else { x.owner.to_string() };
                let offset = x.offset & ((1 << 54) - 1);
                writeln!(out, "{}:[{},{},{owner},{offset},{},{},{}]", i + 1, x.start, x.len, bit(61), bit(63), bit(62))?;
            }
        }
    }
    Ok(())
}
