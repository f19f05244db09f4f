//! Trees of files that `cp` copies between: a volume's, and the host's.

use crate::volume::{DIR, FMT, LNK, REG, Volume};
use crate::{acl, attributes};
use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use uxfs::{AttrName, Make, Seek, SetAttr, SetMode, Timestamp};

/// Bytes copied at once.
pub const CHUNK: usize = 1 << 20;

/// What is known of a file.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device: (major, minor).
    pub rdev: (u32, u32),
    /// Bytes.
    pub size: u64,
    /// Names.
    pub nlink: u32,
    /// Tells files of the tree apart.
    pub id: (u64, u64),
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
}

/// An attribute: name with prefix, and value.
pub type Xattr = (OsString, Vec<u8>);
/// Takes data at an offset.
pub type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// Reads at an offset.
pub type Reader<'a> = Box<dyn FnMut(u64, &mut [u8]) -> Result<usize> + 'a>;

/// A tree of files.
pub trait Tree {
    /// How messages name a path.
    fn show(&self, path: &Path) -> String;
    /// What is at a path; `None` if nothing is.
    fn meta(&self, path: &Path, follow: bool) -> Result<Option<Meta>>;
    /// Names in a directory, as far as they can be read.
    fn names(&self, path: &Path, unread: &mut Unread) -> Vec<OsString>;
    /// Where a symbolic link leads.
    fn read_link(&self, path: &Path) -> Result<PathBuf>;
    /// Attributes.
    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>>;
    /// Hands the data on, holes left out.
    fn read_data(&self, path: &Path, sink: Sink<'_>) -> Result<()>;
    /// Reads a regular file at any place: fills the buffer as far as there is data, and says how far.
    fn reader<'a>(&'a self, path: &Path) -> Result<Reader<'a>>;
    /// Makes anything but a regular file.
    fn make(&self, path: &Path, m: &Meta, target: Option<&Path>) -> Result<()>;
    /// Makes or empties a regular file and fills it with what `fill` hands on.
    fn write_file(&self, path: &Path, m: &Meta, fill: &mut dyn FnMut(Sink<'_>) -> Result<()>) -> Result<()>;
    /// Gives a file another name.
    fn link(&self, old: &Path, new: &Path) -> Result<()>;
    /// Removes a name that is no directory's.
    fn unlink(&self, path: &Path) -> Result<()>;
    /// Sets owner, permissions, attributes and times.
    fn set_meta(&self, path: &Path, m: &Meta, xattrs: &[Xattr]) -> Result<()>;
}

impl Volume {
    /// Sets attributes; what XFS does not store as it is named is left out with a warning.
    pub fn set_xattrs(&self, ino: u64, path: &Path, xattrs: &[Xattr]) -> Result<()> {
        acl::set_from_host(self, ino, xattrs).with_context(|| self.at(path))?;
        for (name, value) in xattrs.iter().filter(|x| !acl::is_hosts(&x.0)) {
            match AttrName::parse(name.as_bytes()) {
                Some(n) => self.fs.set_attr(ino, n, value, SetMode::Any).with_context(|| self.at(path))?,
                None => crate::warn(&format!("{}: attribute {} is not kept", self.at(path), name.display())),
            }
        }
        Ok(())
    }

    /// Sets permissions, owner and times; a symbolic link has no permissions of its own.
    pub fn set_core(&self, ino: u64, m: &Meta) -> Result<()> {
        let mode = (m.mode & FMT != LNK).then_some(m.mode & 0o7777);
        let a = SetAttr { mode, uid: Some(m.uid), gid: Some(m.gid), size: None, atime: Some(m.atime), mtime: Some(m.mtime) };
        self.fs.setattr(ino, a)?;
        Ok(())
    }
}

impl Tree for Volume {
    fn show(&self, path: &Path) -> String {
        self.at(path)
    }

    fn meta(&self, path: &Path, follow: bool) -> Result<Option<Meta>> {
        Ok(self.find(path, follow)?.map(|s| Meta {
            mode: s.mode,
            uid: s.uid,
            gid: s.gid,
            rdev: s.rdev,
            size: s.size,
            nlink: s.nlink,
            id: (0, s.ino),
            atime: s.atime,
            mtime: s.mtime,
        }))
    }

    fn names(&self, path: &Path, unread: &mut Unread) -> Vec<OsString> {
        unread.read(self.resolve(path, false)).map(|s| unread.names(self, path, s.ino)).unwrap_or_default()
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        let target = self.fs.readlink(self.resolve(path, false)?.ino).with_context(|| self.at(path))?;
        Ok(OsString::from_vec(target).into())
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>> {
        attributes::for_host(self, self.resolve(path, false)?.ino).with_context(|| self.at(path))
    }

    fn read_data(&self, path: &Path, sink: Sink<'_>) -> Result<()> {
        let s = self.resolve(path, false)?;
        let mut buf = vec![0; CHUNK.min(s.size as usize)];
        let mut at = 0;
        let seek = |at, what| self.fs.seek(s.ino, at, what).with_context(|| self.at(path));
        while let Some(from) = seek(at, Seek::Data)? {
            let to = seek(from, Seek::Hole)?.unwrap_or(s.size);
            at = from;
            while at < to {
                let want = ((to - at) as usize).min(buf.len());
                let n = self.fs.read(s.ino, at, &mut buf[..want]).with_context(|| self.at(path))?;
                if n == 0 {
                    break;
                }
                sink(at, &buf[..n])?;
                at += n as u64;
            }
            at = to.max(from + 1);
        }
        Ok(())
    }

    fn reader<'a>(&'a self, path: &Path) -> Result<Reader<'a>> {
        let s = self.resolve(path, false)?;
        let shown = self.at(path);
        Ok(Box::new(move |at, buf| self.fs.read(s.ino, at, buf).with_context(|| shown.clone())))
    }

    fn make(&self, path: &Path, m: &Meta, target: Option<&Path>) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        match target {
            Some(t) => self.fs.symlink(dir.ino, name, t.as_os_str().as_bytes(), m.uid, m.gid),
            None => self.fs.create(dir.ino, name, Make { mode: m.mode, uid: m.uid, gid: m.gid, rdev: m.rdev, umask: 0 }),
        }
        .with_context(|| self.at(path))?;
        Ok(())
    }

    fn write_file(&self, path: &Path, m: &Meta, fill: &mut dyn FnMut(Sink<'_>) -> Result<()>) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let ino = match self.find(path, true)? {
            Some(s) => {
                self.fs.setattr(s.ino, SetAttr { size: Some(0), ..SetAttr::default() }).with_context(|| self.at(path))?;
                s.ino
            }
            None => {
                let new = Make { mode: REG | m.mode & 0o7777, uid: m.uid, gid: m.gid, rdev: (0, 0), umask: 0 };
                self.fs.create(dir.ino, name, new).with_context(|| self.at(path))?.ino
            }
        };
        fill(&mut |at, data| self.fs.write(ino, at, data, false).with_context(|| self.at(path)))?;
        if self.fs.stat(ino)?.size < m.size {
            self.fs.setattr(ino, SetAttr { size: Some(m.size), ..SetAttr::default() })?;
        }
        Ok(())
    }

    fn link(&self, old: &Path, new: &Path) -> Result<()> {
        let s = self.resolve(old, false)?;
        let (dir, name) = self.parent(new)?;
        self.fs.link(s.ino, dir.ino, name).with_context(|| self.at(new))?;
        Ok(())
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.remove(path, false)
    }

    fn set_meta(&self, path: &Path, m: &Meta, xattrs: &[Xattr]) -> Result<()> {
        let ino = self.resolve(path, false)?.ino;
        self.set_xattrs(ino, path, xattrs)?;
        self.set_core(ino, m).with_context(|| self.at(path))
    }
}

/// The host's files.
pub struct Host {
    /// Times of last access are told; else those of the last change stand for them, since looking changes the others.
    pub atimes: bool,
}

fn mode_of(m: &std::fs::Metadata) -> u16 {
    let t = m.file_type();
    let kind = match () {
        () if t.is_dir() => DIR,
        () if t.is_symlink() => LNK,
        () if t.is_fifo() => 0o010_000,
        () if t.is_char_device() => 0o020_000,
        () if t.is_block_device() => 0o060_000,
        () if t.is_socket() => 0o140_000,
        () => REG,
    };
    kind | (m.mode() & 0o7777) as u16
}

fn timespec(t: Timestamp) -> Timespec {
    Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) }
}

impl Tree for Host {
    fn show(&self, path: &Path) -> String {
        path.display().to_string()
    }

    fn meta(&self, path: &Path, follow: bool) -> Result<Option<Meta>> {
        let r = if follow { std::fs::metadata(path) } else { std::fs::symlink_metadata(path) };
        let m = match r {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            r => r.with_context(|| self.show(path))?,
        };
        let mtime = Timestamp { sec: m.mtime(), nsec: m.mtime_nsec() as u32 };
        Ok(Some(Meta {
            mode: mode_of(&m),
            uid: m.uid(),
            gid: m.gid(),
            rdev: (rustix::fs::major(m.rdev()), rustix::fs::minor(m.rdev())),
            size: m.size(),
            nlink: m.nlink() as u32,
            id: (m.dev(), m.ino()),
            atime: if self.atimes { Timestamp { sec: m.atime(), nsec: m.atime_nsec() as u32 } } else { mtime },
            mtime,
        }))
    }

    fn names(&self, path: &Path, unread: &mut Unread) -> Vec<OsString> {
        let list = unread.read(std::fs::read_dir(path).with_context(|| self.show(path)));
        let name = |e: std::io::Result<std::fs::DirEntry>| Ok(e.with_context(|| self.show(path))?.file_name());
        let mut v: Vec<OsString> = list.into_iter().flatten().map_while(|e| unread.read(name(e))).collect();
        v.sort();
        v
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        std::fs::read_link(path).with_context(|| self.show(path))
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>> {
        let mut names = [0; 256];
        if rustix::fs::llistxattr(path, &mut names[..]) == Ok(0) {
            return Ok(Vec::new());
        }
        let mut names = vec![0; 65536];
        let n = match rustix::fs::llistxattr(path, &mut names[..]) {
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
            r => r.with_context(|| self.show(path))?,
        };
        let (mut out, mut value) = (Vec::new(), if n > 0 { vec![0; 65536] } else { Vec::new() });
        for name in names[..n].split(|b| *b == 0).filter(|s| !s.is_empty()) {
            let got = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).with_context(|| self.show(path))?;
            out.push((OsStr::from_bytes(name).to_os_string(), value[..got].to_vec()));
        }
        Ok(out)
    }

    fn read_data(&self, path: &Path, sink: Sink<'_>) -> Result<()> {
        let mut f = File::open(path).with_context(|| self.show(path))?;
        // What says that it is empty, as in /proc, may not be.
        let mut buf = vec![0; CHUNK.min(f.metadata()?.len().max(16384) as usize)];
        let mut at = 0;
        loop {
            match rustix::fs::seek(&f, rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => at = data,
                Err(rustix::io::Errno::NXIO) => return Ok(()),
                Err(_) => {}
            }
            f.seek(SeekFrom::Start(at))?;
            let n = f.read_at(&mut buf, at).with_context(|| self.show(path))?;
            if n == 0 {
                return Ok(());
            }
            sink(at, &buf[..n])?;
            at += n as u64;
        }
    }

    fn reader<'a>(&'a self, path: &Path) -> Result<Reader<'a>> {
        let f = File::open(path).with_context(|| self.show(path))?;
        Ok(Box::new(move |at, buf| {
            let mut done = 0;
            while done < buf.len() {
                match f.read_at(&mut buf[done..], at + done as u64)? {
                    0 => break,
                    n => done += n,
                }
            }
            Ok(done)
        }))
    }

    fn make(&self, path: &Path, m: &Meta, target: Option<&Path>) -> Result<()> {
        let perm = rustix::fs::Mode::from_raw_mode(u32::from(m.mode) & 0o7777);
        let kind = rustix::fs::FileType::from_raw_mode(u32::from(m.mode));
        match target {
            Some(t) => rustix::fs::symlink(t, path),
            None if m.mode & FMT == DIR => rustix::fs::mkdir(path, rustix::fs::Mode::RWXU),
            None => rustix::fs::mknodat(CWD, path, kind, perm, rustix::fs::makedev(m.rdev.0, m.rdev.1)),
        }
        .with_context(|| self.show(path))
    }

    fn write_file(&self, path: &Path, m: &Meta, fill: &mut dyn FnMut(Sink<'_>) -> Result<()>) -> Result<()> {
        let f = File::create(path).with_context(|| self.show(path))?;
        fill(&mut |at, data| f.write_all_at(data, at).with_context(|| self.show(path)))?;
        if f.metadata()?.len() < m.size {
            f.set_len(m.size).with_context(|| self.show(path))?;
        }
        Ok(())
    }

    fn link(&self, old: &Path, new: &Path) -> Result<()> {
        std::fs::hard_link(old, new).with_context(|| self.show(new))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path).with_context(|| self.show(path))
    }

    fn set_meta(&self, path: &Path, m: &Meta, xattrs: &[Xattr]) -> Result<()> {
        let root = rustix::process::geteuid().is_root();
        if root {
            std::os::unix::fs::lchown(path, Some(m.uid), Some(m.gid)).with_context(|| self.show(path))?;
        }
        for (name, value) in xattrs {
            if let Err(e) = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()) {
                // An ordinary user may set but its own.
                if root || name.as_bytes().starts_with(b"user.") {
                    crate::warn(&format!("{}: attribute {} is not kept: {e}", path.display(), name.display()));
                }
            }
        }
        if m.mode & FMT != LNK {
            let perm = std::fs::Permissions::from_mode(u32::from(m.mode) & 0o7777);
            std::fs::set_permissions(path, perm).with_context(|| self.show(path))?;
        }
        let times = Timestamps { last_access: timespec(m.atime), last_modification: timespec(m.mtime) };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).with_context(|| self.show(path))
    }
}

/// Lets the second file share the blocks of the first; false if it cannot.
pub type Share<'a> = &'a dyn Fn(&Path, &Path) -> Result<bool>;

/// What could not be read of a tree, while everything else was: each piece is told when it is met.
#[derive(Default)]
pub struct Unread(u64);

impl Unread {
    /// Tells of one.
    pub fn tell(&mut self, e: &anyhow::Error) {
        eprintln!("uxfs: {e:#}");
        self.0 += 1;
    }

    /// What was read, if it could be.
    pub fn read<T>(&mut self, r: Result<T>) -> Option<T> {
        r.map_err(|e| self.tell(&e)).ok()
    }

    /// What was read; nothing if it could not be.
    pub fn or_nothing<T: Default>(&mut self, r: Result<T>) -> T {
        self.read(r).unwrap_or_default()
    }

    /// Names in a directory, without the dots, sorted, as far as they can be read.
    pub fn names(&mut self, v: &Volume, path: &Path, ino: u64) -> Vec<OsString> {
        let (names, read) = v.names_there_are(ino);
        self.or_nothing(read.with_context(|| v.at(path)));
        names
    }

    /// An error if there was anything.
    ///
    /// # Errors
    /// How much it was.
    pub fn finish(self) -> Result<()> {
        match self.0 {
            0 => Ok(()),
            1 => bail!("one file or directory could not be read as a whole"),
            n => bail!("{n} files or directories could not be read as a whole"),
        }
    }
}

/// Copies `from` of one tree to `to` of another, directories only if `recursive`. Modes, owners, times, attributes, hard
/// links and holes are kept. Data is shared where `share` is given and can.
///
/// # Errors
/// The first that occurs where it is written; what was copied stays. What cannot be read is told and passed over: then that.
pub fn copy(
    src: &dyn Tree,
    from: &Path,
    dst: &dyn Tree,
    to: &Path,
    recursive: bool,
    share: Share<'_>,
    on_bytes: &dyn Fn(u64),
) -> Result<()> {
    let Some(m) = src.meta(from, !recursive)? else { bail!("{}: no such file or directory", src.show(from)) };
    if m.mode & FMT == DIR && !recursive {
        bail!("{}: is a directory (use -r)", src.show(from));
    }
    let mut unread = Unread::default();
    let mut links = std::collections::HashMap::new();
    let mut todo = vec![(from.to_path_buf(), to.to_path_buf(), false)];
    while let Some((f, t, done)) = todo.pop() {
        let Some(m) = unread.read(src.meta(&f, !recursive)) else { continue };
        let Some(m) = m else { bail!("{}: vanished", src.show(&f)) };
        if done {
            dst.set_meta(&t, &m, &unread.or_nothing(src.xattrs(&f)))?;
            continue;
        }
        let there = dst.meta(&t, false)?;
        if m.mode & FMT == DIR {
            match there {
                Some(d) if d.mode & FMT == DIR => {}
                Some(_) => bail!("{}: exists and is no directory", dst.show(&t)),
                None => dst.make(&t, &m, None)?,
            }
            todo.push((f.clone(), t.clone(), true));
            todo.extend(src.names(&f, &mut unread).into_iter().rev().map(|n| (f.join(&n), t.join(&n), false)));
            continue;
        }
        if there.is_some_and(|d| d.mode & FMT == DIR) {
            bail!("{}: is a directory", dst.show(&t));
        }
        if there.is_some_and(|d| d.mode & FMT != REG || m.mode & FMT != REG || m.nlink > 1) {
            dst.unlink(&t)?;
        }
        if m.nlink > 1 {
            match links.entry(m.id) {
                std::collections::hash_map::Entry::Occupied(first) => {
                    let first: &PathBuf = first.get();
                    dst.link(first, &t)?;
                    continue;
                }
                std::collections::hash_map::Entry::Vacant(v) => {
                    v.insert(t.clone());
                }
            }
        }
        match m.mode & FMT {
            REG => {
                // What was read before stays.
                let mut read = Ok(());
                dst.write_file(&t, &m, &mut |sink| {
                    if share(&f, &t)? {
                        return Ok(());
                    }
                    let mut written = Ok(());
                    read = src.read_data(&f, &mut |at, data| {
                        on_bytes(data.len() as u64);
                        sink(at, data).map_err(|e| {
                            written = Err(e);
                            anyhow!("not written")
                        })
                    });
                    written
                })?;
                unread.or_nothing(read);
            }
            LNK => match unread.read(src.read_link(&f)) {
                Some(target) => dst.make(&t, &m, Some(&target))?,
                None => continue,
            },
            _ => dst.make(&t, &m, None)?,
        }
        dst.set_meta(&t, &m, &unread.or_nothing(src.xattrs(&f)))?;
    }
    unread.finish()
}
