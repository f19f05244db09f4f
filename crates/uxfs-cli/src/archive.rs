//! Archives: `tar -x` from a stream into a volume, `tar -c` the other way.
//!
//! Headers are read block by block with the `tar` crate's header type; its entry iterator is not used, since it splits PAX
//! records at newlines and so loses binary attributes.

use crate::acl;
use crate::tree::{CHUNK, Meta, Tree, Unread, Xattr};
use crate::volume::{DIR, FMT, LNK, REG, Volume};
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use tar::{Builder, EntryType, Header};
use uxfs::{Make, Timestamp};

const BLOCK: usize = 512;
/// Records with access control lists as text; the second is for the list that new entries of a directory inherit.
const ACLS: [(&str, bool); 2] = [("SCHILY.acl.access", false), ("SCHILY.acl.default", true)];
/// Longest extension header (names, attributes) that is read.
const MAX_EXTENSION: u64 = 16 << 20;

/// Undoes gzip and zstd, by what the stream begins with.
///
/// # Errors
/// The stream's.
pub fn plain<'a>(input: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    let mut r = BufReader::with_capacity(CHUNK, input);
    let head = r.fill_buf()?;
    Ok(if head.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(r))
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(zstd::stream::read::Decoder::with_buffer(r)?)
    } else {
        Box::new(r)
    })
}

/// Key under which the size of a sparse file is kept, holes included.
const REAL_SIZE: &str = "uxfs.real-size";

/// What extension headers said about the next entry.
#[derive(Clone, Default)]
struct Extra {
    fields: HashMap<String, Vec<u8>>,
    xattrs: Vec<Xattr>,
    /// Pieces of a sparse file: offset and bytes.
    pieces: Vec<(u64, u64)>,
    /// Bytes of data that follow the header.
    stored: u64,
}

/// Most pieces of a sparse file that are read.
const MAX_PIECES: usize = 1 << 20;

fn text_number(b: &[u8]) -> Result<u64> {
    std::str::from_utf8(b).ok().and_then(|s| s.trim().parse().ok()).context("a number in a header is malformed")
}

impl Extra {
    /// Reads PAX records: `LENGTH KEY=VALUE\n`, the length counting all of it.
    fn read_pax(&mut self, mut b: &[u8]) -> Result<()> {
        while !b.is_empty() {
            let bad = "a PAX record is malformed";
            let space = b.iter().position(|c| *c == b' ').context(bad)?;
            let len: usize = std::str::from_utf8(&b[..space])?.parse().context(bad)?;
            let record = b.get(space + 1..len).and_then(|r| r.strip_suffix(b"\n")).context(bad)?;
            let eq = record.iter().position(|c| *c == b'=').context(bad)?;
            let (key, value) = (String::from_utf8_lossy(&record[..eq]).into_owned(), record[eq + 1..].to_vec());
            match key.strip_prefix("SCHILY.xattr.") {
                Some(name) => self.xattrs.push((OsString::from(name), value)),
                // The oldest form repeats these two, a pair for each piece.
                None if key == "GNU.sparse.offset" => self.pieces.push((text_number(&value)?, 0)),
                None if key == "GNU.sparse.numbytes" => {
                    self.pieces.last_mut().context(bad)?.1 = text_number(&value)?;
                }
                None => {
                    self.fields.insert(key, value);
                }
            }
            b = &b[len..];
        }
        Ok(())
    }

    fn number(&self, key: &str) -> Option<u64> {
        std::str::from_utf8(self.fields.get(key)?).ok()?.parse().ok()
    }

    fn time(&self, key: &str) -> Option<Timestamp> {
        let text = std::str::from_utf8(self.fields.get(key)?).ok()?;
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let sec: i64 = whole.parse().ok()?;
        let nsec: u32 = format!("{part:0<9}").get(..9)?.parse().ok()?;
        // Below zero the fraction goes away from it: -1.25 is 0.75 after -2.
        Some(match text.starts_with('-') && nsec > 0 {
            true => Timestamp { sec: sec - 1, nsec: 1_000_000_000 - nsec },
            false => Timestamp { sec, nsec },
        })
    }

    /// Says what the newer PAX forms of sparse files say: name, size, and in one of them the pieces.
    fn sparse(&mut self) -> Result<bool> {
        let newest = self.number("GNU.sparse.major") == Some(1);
        let map = self.fields.get("GNU.sparse.map").cloned();
        for (from, to) in [("GNU.sparse.name", "path"), ("GNU.sparse.realsize", REAL_SIZE), ("GNU.sparse.size", REAL_SIZE)] {
            if let Some(v) = self.fields.remove(from) {
                self.fields.insert(to.into(), v);
            }
        }
        if let Some(m) = map {
            let numbers: Vec<u64> = m.split(|c| *c == b',').map(text_number).collect::<Result<_>>()?;
            self.pieces = numbers.chunks_exact(2).map(|p| (p[0], p[1])).collect();
        }
        Ok(newest)
    }

    fn path(&self, key: &str, else_bytes: &[u8]) -> PathBuf {
        OsStr::from_bytes(self.fields.get(key).map_or(else_bytes, Vec::as_slice)).into()
    }
}

/// A stream of archive blocks.
struct Blocks<R> {
    input: R,
    count: u64,
    /// For data on its way; as large as it had to be so far.
    buf: Vec<u8>,
}

impl<R: Read> Blocks<R> {
    /// The next header; `None` at the end.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut b = [0; BLOCK];
        let mut got = 0;
        while got < BLOCK {
            match self.input.read(&mut b[got..])? {
                0 if got == 0 => return Ok(None),
                0 => bail!("the archive ends in the middle of a header"),
                n => got += n,
            }
        }
        self.count += 1;
        if b == [0; BLOCK] {
            return Ok(None);
        }
        let h = Header::from_byte_slice(&b).clone();
        let sum: u32 = b.iter().enumerate().map(|(i, c)| if (148..156).contains(&i) { 32 } else { u32::from(*c) }).sum();
        if h.cksum().ok() != Some(sum) {
            bail!("block {} is no header of a tar archive: its checksum is wrong", self.count);
        }
        Ok(Some(h))
    }

    /// Hands an entry's data on.
    fn data(&mut self, size: u64, sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let most = CHUNK.min(size.next_multiple_of(BLOCK as u64) as usize);
        self.buf.resize(self.buf.len().max(most), 0);
        let mut at = 0;
        while at < size {
            let want = most.min((size - at).next_multiple_of(BLOCK as u64) as usize);
            self.input.read_exact(&mut self.buf[..want]).context("the archive ends in the middle of a file")?;
            self.count += (want / BLOCK) as u64;
            let n = ((size - at) as usize).min(want);
            sink(at, &self.buf[..n])?;
            at += n as u64;
        }
        Ok(())
    }

    /// The list of pieces that stands before the data in the newest form: numbers on lines, in whole blocks. Returns it with
    /// how many bytes it took.
    fn pieces(&mut self, size: u64) -> Result<(Vec<(u64, u64)>, u64)> {
        let (mut text, mut taken) = (Vec::new(), 0);
        loop {
            let lines: Vec<&[u8]> = text.split(|c| *c == b'\n').collect();
            let whole = lines.len().saturating_sub(1);
            let count = if whole == 0 { None } else { Some(text_number(lines[0])?) };
            if count.is_some_and(|c| c as usize > MAX_PIECES) {
                bail!("a sparse file has too many pieces");
            }
            if count.is_some_and(|c| whole > 2 * c as usize) {
                let n = 2 * count.unwrap_or(0) as usize;
                let numbers: Vec<u64> = lines[1..=n].iter().map(|l| text_number(l)).collect::<Result<_>>()?;
                return Ok((numbers.chunks_exact(2).map(|p| (p[0], p[1])).collect(), taken));
            }
            if taken >= size {
                bail!("the pieces of a sparse file are malformed");
            }
            text.extend(self.extension(BLOCK as u64)?);
            taken += BLOCK as u64;
        }
    }

    /// Reads the pieces that an old header names, and the blocks that continue it.
    fn old_pieces(&mut self, h: &Header) -> Result<Vec<(u64, u64)>> {
        let g = h.as_gnu().context("a sparse file has no GNU header")?;
        let piece = |s: &tar::GnuSparseHeader| Ok((s.offset()?, s.length()?));
        let mut out: Vec<(u64, u64)> = g.sparse.iter().filter(|s| !s.is_empty()).map(piece).collect::<Result<_>>()?;
        let mut more = g.is_extended();
        while more {
            let mut e = tar::GnuExtSparseHeader::new();
            e.as_mut_bytes().copy_from_slice(&self.extension(BLOCK as u64)?);
            let next: Vec<(u64, u64)> = e.sparse().iter().filter(|s| !s.is_empty()).map(piece).collect::<Result<_>>()?;
            out.extend(next);
            more = e.is_extended();
            if out.len() > MAX_PIECES {
                bail!("a sparse file has too many pieces");
            }
        }
        Ok(out)
    }

    /// Hands an entry's data on, put where its pieces say; a file that is not sparse is one piece.
    fn sparse_data(&mut self, size: u64, pieces: &[(u64, u64)], sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        if pieces.is_empty() {
            return self.data(size, sink);
        }
        let (mut i, mut into) = (0, 0);
        self.data(size, &mut |_, mut data| {
            while !data.is_empty() {
                let Some((at, len)) = pieces.get(i) else { bail!("a sparse file has more data than pieces") };
                let n = (len - into).min(data.len() as u64);
                if n > 0 {
                    sink(at.checked_add(into).context("a piece of a sparse file is out of range")?, &data[..n as usize])?;
                }
                data = &data[n as usize..];
                into += n;
                if into == *len {
                    (i, into) = (i + 1, 0);
                }
            }
            Ok(())
        })
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > MAX_EXTENSION {
            bail!("an extension header of {size} bytes is too large");
        }
        let mut all = Vec::new();
        self.data(size, &mut |_, d| {
            all.extend_from_slice(d);
            Ok(())
        })?;
        Ok(all)
    }
}

/// Where an entry goes below `root`; names that lead out of it are refused.
fn below(root: &Path, name: &Path) -> Result<PathBuf> {
    let mut out = root.to_path_buf();
    for c in name.components() {
        match c {
            Component::Normal(n) => out.push(n),
            Component::ParentDir => bail!("{}: leads out of the archive", name.display()),
            _ => {}
        }
    }
    Ok(out)
}

/// Unpacks the archive `input` below `root`. What is there already is replaced, directories stay.
///
/// # Errors
/// The first that occurs; what was unpacked stays.
pub fn extract(v: &Volume, root: &Path, input: impl Read, on_bytes: &dyn Fn(u64)) -> Result<()> {
    let mut blocks = Blocks { input: plain(input)?, count: 0, buf: Vec::new() };
    let (mut extra, mut global) = (Extra::default(), Extra::default());
    let mut unpack = Unpack { v, root, dirs: Vec::new(), known: HashMap::new() };
    while let Some(h) = blocks.header()? {
        let size = h.entry_size().context("a size in a header is malformed")?;
        let name_end = |b: Vec<u8>| b.split(|c| *c == 0).next().unwrap_or_default().to_vec();
        match h.entry_type() {
            EntryType::XHeader => extra.read_pax(&blocks.extension(size)?)?,
            EntryType::XGlobalHeader => global.read_pax(&blocks.extension(size)?)?,
            EntryType::GNULongName => {
                let name = name_end(blocks.extension(size)?);
                extra.fields.insert("path".into(), name);
            }
            EntryType::GNULongLink => {
                let name = name_end(blocks.extension(size)?);
                extra.fields.insert("linkpath".into(), name);
            }
            t => {
                let mut x = global.clone();
                x.fields.extend(std::mem::take(&mut extra.fields));
                x.xattrs.append(&mut extra.xattrs);
                x.pieces.append(&mut extra.pieces);
                x.stored = x.number("size").unwrap_or(size);
                if t == EntryType::GNUSparse {
                    x.pieces = blocks.old_pieces(&h)?;
                    let real = h.as_gnu().map(|g| g.real_size()).transpose()?.unwrap_or(0);
                    x.fields.insert(REAL_SIZE.into(), real.to_string().into());
                } else if x.sparse()? {
                    let taken;
                    (x.pieces, taken) = blocks.pieces(x.stored)?;
                    x.stored -= taken.min(x.stored);
                }
                unpack.entry(&h, &x, &mut blocks, on_bytes)?;
            }
        }
    }
    unpack.finish()
}

struct Unpack<'a> {
    v: &'a Volume,
    root: &'a Path,
    /// Directories get their metadata at the end: filling them changes their times.
    dirs: Vec<(u64, Meta)>,
    /// Directories that were found or made: path and inode.
    known: HashMap<PathBuf, u64>,
}

impl Unpack<'_> {
    fn meta(h: &Header, x: &Extra) -> Result<Meta> {
        let kind = match h.entry_type() {
            EntryType::Directory => DIR,
            EntryType::Symlink => LNK,
            EntryType::Char => 0o020_000,
            EntryType::Block => 0o060_000,
            EntryType::Fifo => 0o010_000,
            EntryType::Regular | EntryType::Continuous | EntryType::Link | EntryType::GNUSparse => REG,
            t => bail!("{}: entries of type {:?} are not supported", h.path()?.display(), char::from(t.as_byte())),
        };
        let mtime = x.time("mtime").unwrap_or(Timestamp { sec: h.mtime()? as i64, nsec: 0 });
        let owner = |key, short: fn(&Header) -> std::io::Result<u64>| {
            let id = x.number(key).map_or_else(|| short(h), Ok)?;
            u32::try_from(id).with_context(|| format!("{}: no {key} is as large as {id}", String::from_utf8_lossy(&h.path_bytes())))
        };
        Ok(Meta {
            mode: kind | (h.mode()? & 0o7777) as u16,
            uid: owner("uid", Header::uid)?,
            gid: owner("gid", Header::gid)?,
            // Many archives leave these fields empty where there is no device.
            rdev: match kind {
                0o020_000 | 0o060_000 => (h.device_major()?.unwrap_or(0), h.device_minor()?.unwrap_or(0)),
                _ => (0, 0),
            },
            size: x.number(REAL_SIZE).unwrap_or(x.stored),
            nlink: 1,
            id: (0, 0),
            atime: x.time("atime").unwrap_or(mtime),
            mtime,
        })
    }

    fn dir(&mut self, path: &Path) -> Result<u64> {
        if let Some(i) = self.known.get(path) {
            return Ok(*i);
        }
        self.v.mkdir(path, 0o755, true)?;
        let ino = self.v.resolve(path, true)?.ino;
        self.known.insert(path.to_path_buf(), ino);
        Ok(ino)
    }

    fn entry(&mut self, h: &Header, x: &Extra, blocks: &mut Blocks<impl Read>, on_bytes: &dyn Fn(u64)) -> Result<()> {
        let name = x.path("path", &h.path_bytes());
        let target = x.path("linkpath", &h.link_name_bytes().unwrap_or_default());
        let m = Self::meta(h, x).with_context(|| format!("{}: malformed header", name.display()))?;
        let path = below(self.root, &name)?;
        if m.mode & FMT == DIR {
            let ino = self.dir(&path)?;
            self.attributes(ino, &path, x)?;
            self.dirs.push((ino, m));
            return Ok(());
        }
        let (Some(up), Some(last)) = (path.parent(), path.file_name()) else { bail!("{}: has no last name", name.display()) };
        let dir = self.dir(up)?;
        let last = last.as_bytes();
        let fs = &self.v.fs;
        let show = || self.v.at(&path);
        let made = loop {
            let r = match m.mode & FMT {
                _ if h.entry_type() == EntryType::Link => {
                    let old = self.v.resolve(&below(self.root, &target)?, false)?;
                    fs.link(old.ino, dir, last)
                }
                LNK => fs.symlink(dir, last, target.as_os_str().as_bytes(), m.uid, m.gid),
                _ => fs.create(dir, last, Make { mode: m.mode, uid: m.uid, gid: m.gid, rdev: m.rdev, umask: 0 }),
            };
            match r {
                Err(uxfs::Error::Exists) => fs.unlink(dir, last).with_context(show)?,
                r => break r.with_context(show)?,
            }
        };
        if h.entry_type() == EntryType::Link {
            return blocks.data(x.stored, &mut |_, _| Ok(()));
        }
        if m.mode & FMT == REG {
            blocks.sparse_data(x.stored, &x.pieces, &mut |at, data| {
                on_bytes(data.len() as u64);
                fs.write(made.ino, at, data, false).with_context(show)
            })?;
            if fs.stat(made.ino)?.size < m.size {
                fs.setattr(made.ino, uxfs::SetAttr { size: Some(m.size), ..uxfs::SetAttr::default() }).with_context(show)?;
            }
        }
        self.attributes(made.ino, &path, x)?;
        self.v.set_core(made.ino, &m)
    }

    fn attributes(&self, ino: u64, path: &Path, x: &Extra) -> Result<()> {
        self.v.set_xattrs(ino, path, &x.xattrs)?;
        for (key, default) in ACLS {
            if let Some(text) = x.fields.get(key).filter(|t| !t.is_empty()) {
                acl::set_from_text(self.v, ino, default, &String::from_utf8_lossy(text)).with_context(|| self.v.at(path))?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        self.dirs.iter().try_for_each(|(ino, m)| self.v.set_core(*ino, m))
    }
}

fn time_text(t: Timestamp) -> String {
    match (t.sec < 0, t.nsec) {
        (true, n) if n > 0 => format!("-{}.{:09}", -(t.sec + 1), 1_000_000_000 - n),
        (_, n) => format!("{}.{n:09}", t.sec),
    }
}

/// Packs everything below `root` into an archive, with nanosecond times, attributes and hard links, in an order and a form
/// that depend on nothing but the volume.
///
/// # Errors
/// The first that occurs where it is written. What cannot be read is told and passed over, with zeros for data: then that.
pub fn create(v: &Volume, root: &Path, out: impl Write, on_bytes: &dyn Fn(u64)) -> Result<()> {
    let mut p = Packer { b: Builder::new(out), v, on_bytes, unread: Unread::default() };
    let mut seen: HashMap<(u64, u64), PathBuf> = HashMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(rel) = todo.pop() {
        let path = root.join(&rel);
        let Some(m) = p.unread.read(v.meta(&path, rel.as_os_str().is_empty())) else { continue };
        let m = m.with_context(|| format!("{}: no such file or directory", v.at(&path)))?;
        let name = if m.mode & FMT == DIR { Path::new(".").join(&rel).join("") } else { Path::new(".").join(&rel) };
        if m.mode & FMT == DIR {
            todo.extend(Tree::names(v, &path, &mut p.unread).into_iter().rev().map(|n| rel.join(n)));
        }
        if m.mode & FMT == 0o140_000 {
            crate::warn(&format!("{}: sockets are left out", v.at(&path)));
            continue;
        }
        let first = (m.nlink > 1 && m.mode & FMT != DIR).then(|| seen.get(&m.id).cloned()).flatten();
        if first.is_none() {
            seen.insert(m.id, name.clone());
        }
        p.append(&path, &name, &m, first.as_deref())?;
    }
    p.b.finish()?;
    p.b.into_inner()?.flush()?;
    p.unread.finish()
}

/// Fields of a header that are too small for some values; those go into PAX records.
const OCTAL_21: u64 = 0o7_777_777;
const OCTAL_33: u64 = 0o77_777_777_777;

/// An archive that is being written.
struct Packer<'a, W: Write> {
    b: Builder<W>,
    v: &'a Volume,
    on_bytes: &'a dyn Fn(u64),
    unread: Unread,
}

impl<W: Write> Packer<'_, W> {
    fn append(&mut self, path: &Path, name: &Path, m: &Meta, hard: Option<&Path>) -> Result<()> {
        let v = self.v;
        let mut pax: Vec<(String, Vec<u8>)> =
            vec![("mtime".into(), time_text(m.mtime).into()), ("atime".into(), time_text(m.atime).into())];
        let mut h = Header::new_ustar();
        let target = match (hard, m.mode & FMT) {
            (Some(t), _) => Some(t.to_path_buf()),
            (None, LNK) => match self.unread.read(v.read_link(path)) {
                Some(t) => Some(t),
                None => return Ok(()),
            },
            _ => None,
        };
        h.set_entry_type(match (hard, m.mode & FMT) {
            (Some(_), _) => EntryType::Link,
            (_, DIR) => EntryType::Directory,
            (_, LNK) => EntryType::Symlink,
            (_, 0o020_000) => EntryType::Char,
            (_, 0o060_000) => EntryType::Block,
            (_, 0o010_000) => EntryType::Fifo,
            _ => EntryType::Regular,
        });
        h.set_mode(u32::from(m.mode) & 0o7777);
        h.set_mtime(m.mtime.sec.clamp(0, OCTAL_33 as i64) as u64);
        for (key, value) in [("uid", m.uid), ("gid", m.gid)] {
            if u64::from(value) > OCTAL_21 {
                pax.push((key.into(), value.to_string().into()));
            }
        }
        h.set_uid(u64::from(m.uid).min(OCTAL_21));
        h.set_gid(u64::from(m.gid).min(OCTAL_21));
        h.set_device_major(m.rdev.0)?;
        h.set_device_minor(m.rdev.1)?;
        let size = if hard.is_none() && m.mode & FMT == REG { m.size } else { 0 };
        if size > OCTAL_33 {
            bail!("{}: files over 8 GiB are not supported in archives", v.at(path));
        }
        h.set_size(size);
        if set_field(&mut h.as_ustar_mut().map(|u| &mut u.name[..]), name.as_os_str()).is_none() {
            pax.push(("path".into(), name.as_os_str().as_bytes().to_vec()));
        }
        if let Some(t) = &target
            && set_field(&mut h.as_ustar_mut().map(|u| &mut u.linkname[..]), t.as_os_str()).is_none()
        {
            pax.push(("linkpath".into(), t.as_os_str().as_bytes().to_vec()));
        }
        if hard.is_none() {
            let ino = v.resolve(path, false)?.ino;
            for (key, default) in ACLS {
                if let Ok(a) = v.fs.get_acl(ino, default) {
                    pax.push((key.into(), acl::line(&a).into_bytes()));
                }
            }
            for (n, value) in self.unread.or_nothing(v.xattrs(path)).into_iter().filter(|x| !acl::is_hosts(&x.0)) {
                pax.push((format!("SCHILY.xattr.{}", n.to_string_lossy()), value));
            }
        }
        self.b.append_pax_extensions(pax.iter().map(|(k, v)| (k.as_str(), v.as_slice())))?;
        h.set_cksum();
        let out = self.b.get_mut();
        out.write_all(h.as_bytes())?;
        if size == 0 {
            return Ok(());
        }
        let ino = v.resolve(path, false)?.ino;
        let mut buf = vec![0; CHUNK];
        let mut at = 0;
        while at < size {
            let want = ((size - at) as usize).min(CHUNK);
            let Some(n) = self.unread.read(v.fs.read(ino, at, &mut buf[..want]).with_context(|| v.at(path))) else { break };
            if n == 0 {
                bail!("{}: is shorter than its size says", v.at(path));
            }
            out.write_all(&buf[..n])?;
            (self.on_bytes)(n as u64);
            at += n as u64;
        }
        std::io::copy(&mut std::io::repeat(0).take(size.next_multiple_of(BLOCK as u64) - at), out)?;
        Ok(())
    }
}

/// Puts a name into a header's field if it fits, else as much of it as does.
fn set_field(field: &mut Option<&mut [u8]>, name: &OsStr) -> Option<()> {
    let f = field.as_mut()?;
    let n = name.len().min(f.len());
    f[..n].copy_from_slice(&name.as_bytes()[..n]);
    (name.len() <= f.len()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_records_keep_binary_values() {
        let mut x = Extra::default();
        let body = b" SCHILY.xattr.user.x=a\nb\0c\n";
        let record = [format!("{}", body.len() + 2).as_bytes(), body].concat();
        assert!(x.read_pax(&record).is_ok());
        assert_eq!(x.xattrs, [(OsString::from("user.x"), b"a\nb\0c".to_vec())]);
    }

    #[test]
    fn times_survive_as_text() {
        for t in [Timestamp { sec: -2, nsec: 750_000_000 }, Timestamp { sec: 0, nsec: 1 }, Timestamp { sec: -7, nsec: 0 }] {
            let mut x = Extra::default();
            x.fields.insert("mtime".into(), time_text(t).into());
            assert_eq!(x.time("mtime"), Some(t), "{}", time_text(t));
        }
    }

    #[test]
    fn names_do_not_lead_out() {
        assert!(below(Path::new("/a"), Path::new("../etc")).is_err());
        assert_eq!(below(Path::new("/a"), Path::new("/b/./c")).ok(), Some("/a/b/c".into()));
    }
}
