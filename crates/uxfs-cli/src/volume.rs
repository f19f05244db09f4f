//! A volume that a command works on: opened, walked by path, and closed with a clean log.

use crate::place::Source;
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use uxfs::{Error, Fs, Make, Options, Stat};

/// Symbolic links followed on one path, as the kernel allows.
const MAX_LINKS: usize = 40;
/// Type bits of a mode.
pub const FMT: u16 = 0o170_000;
/// A directory.
pub const DIR: u16 = 0o040_000;
/// A regular file.
pub const REG: u16 = 0o100_000;
/// A symbolic link.
pub const LNK: u16 = 0o120_000;

/// True if volumes are read as they lie there.
static AS_IT_LIES: AtomicBool = AtomicBool::new(false);

/// Notes `--norecovery`.
pub fn never_recover() {
    AS_IT_LIES.store(true, Ordering::Relaxed);
}

/// An open volume and how messages name it.
pub struct Volume {
    /// The volume.
    pub fs: Fs,
    name: String,
}

/// Opens a volume, runs `work`, and closes the volume, whatever `work` said. A dirty log is recovered first: on the device
/// if `write`, in memory if not.
///
/// # Errors
/// The volume cannot be opened or closed; what `work` says.
pub fn with<T>(source: &Source, write: bool, work: impl FnOnce(&Volume) -> Result<T>) -> Result<T> {
    let v = Volume::open(source, write)?;
    let done = work(&v);
    let closed = v.fs.unmount().with_context(|| format!("cannot close {}; the next use recovers it", v.name));
    done.and_then(|d| closed.map(|()| d))
}

/// Runs `work` on each place, volumes opened once for places that follow each other.
///
/// # Errors
/// As [`with`].
pub fn each(places: &[OsString], write: bool, mut work: impl FnMut(&Volume, &Path) -> Result<()>) -> Result<()> {
    let list: Vec<_> = places.iter().map(|p| crate::place::Place::inside(p)).collect();
    for group in list.chunk_by(|a, b| a.0 == b.0) {
        with(&group[0].0, write, |v| group.iter().try_for_each(|(_, path)| work(v, path)))?;
    }
    Ok(())
}

impl Volume {
    /// Opens a volume.
    ///
    /// # Errors
    /// It is in use, no volume, damaged, or has features that are not supported.
    pub fn open(source: &Source, write: bool) -> Result<Volume> {
        let (name, as_it_lies) = (source.name(), AS_IT_LIES.load(Ordering::Relaxed));
        if write && as_it_lies {
            bail!("{name}: with --norecovery nothing can be changed");
        }
        // To search takes long, and is worth it where somebody means it.
        let open = |norecovery| -> Result<Fs> {
            Ok(Fs::open(source.devices(write)?, Options { read_only: !write, norecovery, search: as_it_lies, ..Options::default() })?)
        };
        let fs = open(as_it_lies).with_context(|| {
            let can_be_read = !write && !as_it_lies && open(true).is_ok_and(|fs| fs.unmount().is_ok());
            let hint = if can_be_read { " (with --norecovery it is read as it lies there)" } else { "" };
            format!("cannot open {name}{hint}")
        })?;
        Ok(Volume { fs, name })
    }

    /// A volume that is open already.
    pub fn over(fs: Fs, name: String) -> Volume {
        Volume { fs, name }
    }

    /// `IMG:/path`, for messages.
    pub fn at(&self, path: &Path) -> String {
        format!("{}:{}", self.name, path.display())
    }

    /// What a path leads to; a symbolic link at its end is followed if `follow`.
    ///
    /// # Errors
    /// There is no such path.
    pub fn resolve(&self, path: &Path, follow: bool) -> Result<Stat> {
        self.walk(path, follow).with_context(|| self.at(path))
    }

    /// As [`Volume::resolve`], with `None` for what does not exist.
    ///
    /// # Errors
    /// Anything but absence.
    pub fn find(&self, path: &Path, follow: bool) -> Result<Option<Stat>> {
        match self.walk(path, follow) {
            Ok(s) => Ok(Some(s)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(anyhow!(e).context(self.at(path))),
        }
    }

    fn walk(&self, path: &Path, follow: bool) -> uxfs::Result<Stat> {
        let mut left: Vec<OsString> = parts(path);
        let mut trail = vec![self.fs.stat(self.fs.root())?];
        let mut links = 0;
        while let Some(name) = left.pop() {
            let dir = trail[trail.len() - 1].ino;
            if name == ".." {
                trail.truncate((trail.len() - 1).max(1));
                continue;
            }
            let s = self.fs.lookup(dir, name.as_bytes())?;
            if s.mode & FMT == LNK && (follow || !left.is_empty()) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Error::Invalid { what: "too many symbolic links" });
                }
                let target = PathBuf::from(OsString::from_vec(self.fs.readlink(s.ino)?));
                if target.is_absolute() {
                    trail.truncate(1);
                }
                left.extend(parts(&target));
            } else {
                trail.push(s);
            }
        }
        Ok(trail[trail.len() - 1])
    }

    /// The directory that holds a path's last name, and that name.
    ///
    /// # Errors
    /// The directory does not exist; the path has no last name.
    pub fn parent<'a>(&self, path: &'a Path) -> Result<(Stat, &'a [u8])> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { bail!("{}: has no last name", self.at(path)) };
        let d = self.resolve(dir, true)?;
        if d.mode & FMT != DIR {
            bail!("{}: not a directory", self.at(dir));
        }
        Ok((d, name.as_bytes()))
    }

    /// Names in a directory, without the dots, sorted.
    ///
    /// # Errors
    /// It is no directory, or not all of it can be read.
    pub fn names(&self, ino: u64) -> Result<Vec<OsString>> {
        let (names, read) = self.names_there_are(ino);
        Ok(read.map(|()| names)?)
    }

    /// The same, as far as they can be read, and whether that is all.
    pub fn names_there_are(&self, ino: u64) -> (Vec<OsString>, uxfs::Result<()>) {
        let mut names = Vec::new();
        let read = self.fs.readdir_past_damage(ino, &mut |e| {
            if e.name != b"." && e.name != b".." {
                names.push(OsString::from_vec(e.name));
            }
        });
        names.sort();
        (names, read)
    }

    /// Makes a directory, and those above it if `parents`; then one that is there already will do.
    ///
    /// # Errors
    /// It exists, or cannot be made.
    pub fn mkdir(&self, path: &Path, mode: u16, parents: bool) -> Result<()> {
        if parents {
            if let Some(s) = self.find(path, true)? {
                return if s.mode & FMT == DIR { Ok(()) } else { bail!("{}: exists and is no directory", self.at(path)) };
            }
            if let Some(up) = path.parent() {
                self.mkdir(up, 0o755, true)?;
            }
        }
        let (dir, name) = self.parent(path)?;
        let m = Make { mode: DIR | mode & 0o7777, uid: 0, gid: 0, rdev: (0, 0), umask: 0 };
        self.fs.create(dir.ino, name, m).with_context(|| self.at(path))?;
        Ok(())
    }

    /// Removes a path; a directory with all that is in it if `recursive`.
    ///
    /// # Errors
    /// It does not exist, or is a directory that is not to be removed.
    pub fn remove(&self, path: &Path, recursive: bool) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let s = self.fs.lookup(dir.ino, name).with_context(|| self.at(path))?;
        self.remove_entry(&dir, name, &s, recursive).with_context(|| self.at(path))
    }

    fn remove_entry(&self, dir: &Stat, name: &[u8], s: &Stat, recursive: bool) -> Result<()> {
        if s.mode & FMT != DIR {
            return Ok(self.fs.unlink(dir.ino, name)?);
        }
        if !recursive {
            bail!("is a directory (use -r)");
        }
        // An explicit stack: a hostile volume's directories may be deeper than the program's stack.
        let mut stack = vec![(dir.ino, name.to_vec(), s.ino, self.names(s.ino)?)];
        while let Some((up, own, ino, names)) = stack.last_mut() {
            match names.pop() {
                Some(n) => {
                    let c = self.fs.lookup(*ino, n.as_bytes())?;
                    if c.mode & FMT == DIR {
                        let entry = (*ino, n.as_bytes().to_vec(), c.ino, self.names(c.ino)?);
                        stack.push(entry);
                    } else {
                        self.fs.unlink(*ino, n.as_bytes())?;
                    }
                }
                None => {
                    self.fs.rmdir(*up, own)?;
                    stack.pop();
                }
            }
        }
        Ok(())
    }
}

/// A path's names, the last first; dots dropped.
fn parts(path: &Path) -> Vec<OsString> {
    let mut v: Vec<OsString> = path
        .components()
        .filter_map(|c| match c {
            Component::Normal(n) => Some(n.to_os_string()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect();
    v.reverse();
    v
}
