//! `mkfs`: options, what there was before, and filling the new volume.

use crate::args::Mkfs;
use crate::tree::{self, Host};
use crate::volume::Volume;
use crate::{archive, progress, proto, warn};
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uxfs::{Devices, Error, Fs};
use uxfs_device::{Device, DeviceRef, FileDevice, OpenMode, Withheld};
use uxfs_format::superblock::Superblock;
use uxfs_mkfs::{Features, Options, UuidGenerator};
use uxfs_sync::{Chance, FixedClock};

/// Below this mkfs.xfs makes volumes for its own tests only.
const SMALL: u64 = 300 << 20;
/// Smallest volume, and the step in which a minimized one grows.
const LEAST: u64 = 16 << 20;
const STEP: u64 = 1 << 20;

/// What a new volume is filled with.
enum Content {
    Directory(PathBuf),
    /// A plain archive.
    Archive(File),
}

impl Content {
    /// A directory, an archive, or a prototype file, whose entries get the time `time`.
    fn open(source: &OsStr, time: i64) -> Result<Content> {
        if source == "-" {
            return Self::spool(|to| Ok(std::io::copy(&mut archive::plain(&mut std::io::stdin().lock())?, to)?));
        }
        let path = Path::new(source);
        if path.is_dir() {
            return Ok(Content::Directory(path.to_path_buf()));
        }
        let mut f = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        if is_prototype(&mut f)? {
            let text = std::fs::read(path)?;
            let whole = |to: &mut File| proto::to_archive(&text, time.max(0) as u64, to).with_context(|| path.display().to_string());
            return Self::spool(whole);
        }
        Self::spool(|to| Ok(std::io::copy(&mut archive::plain(&mut f)?, to)?))
    }

    /// Keeps the archive that `fill` writes in a file without a name: it may be read several times.
    fn spool<T>(fill: impl FnOnce(&mut File) -> Result<T>) -> Result<Content> {
        let dir = std::env::temp_dir();
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        let f = rustix::fs::open(&dir, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
        let mut f = File::from(f.with_context(|| format!("cannot make a temporary file in {}", dir.display()))?);
        fill(&mut f)?;
        Ok(Content::Archive(f))
    }

    /// Bytes that are surely enough for a volume with it.
    fn estimate(&self) -> Result<u64> {
        let bytes = match self {
            Content::Directory(d) => {
                let (mut sum, mut left) = (0u64, vec![d.clone()]);
                while let Some(p) = left.pop() {
                    let m = std::fs::symlink_metadata(&p).with_context(|| p.display().to_string())?;
                    sum += m.len().min(std::os::unix::fs::MetadataExt::blocks(&m) * 512) + 8192;
                    if m.is_dir() {
                        left.extend(std::fs::read_dir(&p)?.map(|e| Ok(e?.path())).collect::<Result<Vec<_>>>()?);
                    }
                }
                sum
            }
            Content::Archive(f) => 4 * f.metadata()?.len(),
        };
        Ok(bytes + bytes / 4 + SMALL)
    }

    fn unpack(&mut self, v: &Volume, on_bytes: &dyn Fn(u64)) -> Result<()> {
        match self {
            Content::Directory(d) => tree::copy(&Host { atimes: false }, d, v, Path::new("/"), true, &|_, _| Ok(false), on_bytes),
            Content::Archive(f) => {
                f.seek(SeekFrom::Start(0))?;
                archive::extract(v, Path::new("/"), f, on_bytes)
            }
        }
    }
}

/// True for a prototype file: text, where an archive or a compressed one begins with bytes that no text has.
fn is_prototype(f: &mut File) -> Result<bool> {
    let mut head = [0; 512];
    let mut n = 0;
    while n < head.len() {
        match f.read(&mut head[n..])? {
            0 => break,
            more => n += more,
        }
    }
    f.seek(SeekFrom::Start(0))?;
    Ok(n > 0 && head[..n].iter().all(|b| *b >= b' ' && *b != 0x7f || b.is_ascii_whitespace()))
}

/// A number that the environment gives, to make volumes that can be made again.
fn from_environment(name: &str) -> Result<Option<u64>> {
    let Some(v) = std::env::var_os(name) else { return Ok(None) };
    let number = v.to_str().and_then(|s| s.parse().ok());
    number.map(Some).with_context(|| format!("{name}={} is no number", v.display()))
}

/// Options from the command line, its configuration files first.
fn options(m: &Mkfs, seed: Option<u64>) -> Result<Options> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let time = match from_environment("SOURCE_DATE_EPOCH")? {
        Some(t) => (i64::try_from(t).context("SOURCE_DATE_EPOCH is too large")?, 0),
        None => (now.as_secs() as i64, now.subsec_nanos()),
    };
    let uuid = match seed {
        Some(s) => {
            let c = Chance::seeded(s);
            UuidGenerator::of((u128::from(c.next_u64()) << 64 | u128::from(c.next_u64())).to_be_bytes())
        }
        None => UuidGenerator::random()?,
    };
    let label = m.label.clone().unwrap_or_default().into_bytes();
    let mut o = Options { label, time, features: Features::NEWEST, ..Options::new(0, uuid) };
    let mut words = Vec::new();
    for c in &m.config {
        let name = c.strip_prefix("options=").with_context(|| format!("-c {c} is not supported; options= is"))?;
        match std::fs::read_to_string(name) {
            Ok(text) => words.extend(configuration(name, &text)?),
            Err(_) => o.features = Features::profile(name)?,
        }
    }
    let sections = [
        ('b', &m.block),
        ('s', &m.sector),
        ('d', &m.data),
        ('l', &m.log),
        ('m', &m.meta),
        ('i', &m.inode),
        ('n', &m.naming),
        ('r', &m.realtime),
    ];
    words.extend(sections.into_iter().flat_map(|(section, list)| list.iter().map(move |w| (section, w.clone()))));
    o.take(&words.iter().map(|(c, w)| (*c, w.as_str())).collect::<Vec<_>>())?;
    Ok(o)
}

/// Reads a configuration file of mkfs.xfs: sections in brackets, and in each `key = value`.
fn configuration(name: &str, text: &str) -> Result<Vec<(char, String)>> {
    let known = [
        ("block", 'b'),
        ("data", 'd'),
        ("inode", 'i'),
        ("log", 'l'),
        ("metadata", 'm'),
        ("naming", 'n'),
        ("realtime", 'r'),
        ("sector", 's'),
    ];
    let (mut section, mut out) = (None, Vec::new());
    for (i, line) in text.lines().enumerate() {
        let line = line.split(['#', ';']).next().unwrap_or("").trim();
        if let Some(s) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let found = known.iter().find(|k| k.0 == s.trim()).map(|k| k.1);
            section = Some(found.with_context(|| format!("{name}: line {}: there is no section {s}", i + 1))?);
        } else if !line.is_empty() {
            let c = section.with_context(|| format!("{name}: line {}: stands in no section", i + 1))?;
            out.push((c, line.split('=').map(str::trim).collect::<Vec<_>>().join("=")));
        }
    }
    Ok(out)
}

/// Makes a volume.
///
/// # Errors
/// An option is out of range, something is there already, the device failed, the content does not fit.
pub fn mkfs(m: &Mkfs, out: &mut impl Write) -> Result<()> {
    let seed = from_environment("DETERMINISTIC_SEED")?;
    let mut o = options(m, seed)?;
    let exists = m.image.exists();
    let given = (o.size != 0).then_some(o.size);
    if m.minimize && given.is_some() {
        bail!("--minimize finds the size; -d size= gives it");
    }
    if !exists && given.is_none() && !m.minimize {
        bail!("{} does not exist; give -d size= to make it", m.image.display());
    }
    let name = m.image.display().to_string();
    let log_path = log_word(m);
    let log_name = log_path.as_ref().map(|p| p.display().to_string());
    if log_path.is_some() && m.minimize {
        bail!("--minimize makes volumes with their log inside");
    }
    let held = |d: &FileDevice| Device::size_bytes(d);
    if m.dry_run {
        if let Some(p) = &log_path {
            o.log_device = Some(if p.exists() { held(&FileDevice::open(p, OpenMode::ReadOnly)?) } else { o.log_size.unwrap_or(0) });
        }
        if exists && given.is_none() {
            o.size = held(&FileDevice::open(&m.image, OpenMode::ReadOnly)?);
        }
        write!(out, "{}", uxfs_mkfs::print_geometry(&name, log_name.as_deref(), &o.superblock()?))?;
        return Ok(());
    }
    if exists && !m.force && looks_used(&m.image)? {
        bail!("{name} seems to hold something already; use -f to overwrite it");
    }
    // An image that cannot become a volume is not left behind.
    if given.is_some() && log_path.is_none() {
        o.superblock()?;
    }
    let mut content = m.populate.as_deref().map(|p| Content::open(p, o.time.0)).transpose()?;
    let sb = match &mut content {
        Some(c) if m.minimize => minimize(&m.image, &mut o, c, seed)?,
        _ => {
            let dev = FileDevice::create(&m.image, given)?;
            let log = log_path.as_deref().map(|p| log_device(p, &mut o)).transpose()?;
            o.size = given.unwrap_or_else(|| held(&dev));
            if o.size > held(&dev) {
                bail!("{name} has only {} bytes", held(&dev));
            }
            if !m.no_discard {
                dev.discard(0, held(&dev))?;
            }
            make(Devices { data: Arc::new(dev), log }, &o, content.as_mut(), seed)?
        }
    };
    if !m.quiet {
        if o.size < SMALL {
            warn("volumes of less than 300 MiB are for tests and images: mkfs.xfs makes none");
        }
        write!(out, "{}", uxfs_mkfs::print_geometry(&name, log_name.as_deref(), &sb))?;
    }
    Ok(())
}

/// The file or device that `-l logdev=` names.
fn log_word(m: &Mkfs) -> Option<PathBuf> {
    let words = m.log.iter().flat_map(|l| l.split(','));
    words.filter_map(|w| w.strip_prefix("logdev=").or_else(|| w.strip_prefix("name="))).next_back().map(PathBuf::from)
}

/// Opens the device for the log; a file that does not exist is made as large as the log is to be.
fn log_device(path: &Path, o: &mut Options) -> Result<DeviceRef> {
    if !path.exists() && o.log_size.is_none() {
        bail!("{} does not exist; give -l size= to make it", path.display());
    }
    let new = o.log_size.filter(|_| !path.exists());
    let dev = FileDevice::create(path, new).with_context(|| format!("cannot open {}", path.display()))?;
    o.log_device = Some(dev.size_bytes());
    Ok(Arc::new(dev))
}

/// Makes a volume and fills it. Until it is whole, the device holds none.
fn make(devices: Devices, o: &Options, content: Option<&mut Content>, seed: Option<u64>) -> Result<Superblock> {
    let Devices { data, log } = devices;
    let Some(content) = content else { return Ok(uxfs_mkfs::format_with_log(&*data, log.as_ref().unwrap_or(&data), o)?) };
    let held: Arc<Withheld> = Arc::new(Withheld::new(data, o.sector as usize)?);
    let log_dev = || -> &dyn Device { log.as_deref().unwrap_or(&*held) };
    uxfs_mkfs::format_with_log(&*held, log_dev(), o)?;
    let how = uxfs::Options {
        commit: 0,
        clock: Box::new(FixedClock(o.time.0)),
        seed: Some(seed.unwrap_or(o.time.0 as u64)),
        reproducible: true,
        ..uxfs::Options::default()
    };
    let v = Volume::over(Fs::open(Devices { data: held.clone(), log: log.clone() }, how)?, "the new volume".into());
    let bar = progress("filling");
    content.unpack(&v, &|n| bar.inc(n))?;
    v.fs.unmount()?;
    bar.finish_and_clear();
    let sb = uxfs_mkfs::fresh_log(&*held, log_dev())?;
    held.release()?;
    Ok(sb)
}

fn is_full(e: &anyhow::Error) -> bool {
    e.chain().any(|c| matches!(c.downcast_ref::<Error>(), Some(Error::NoSpace)))
}

/// Makes the smallest volume that holds the content, to one part in a hundred.
fn minimize(image: &Path, o: &mut Options, content: &mut Content, seed: Option<u64>) -> Result<Superblock> {
    o.least_log = true;
    let create = |o: &Options| -> Result<DeviceRef> {
        // Nothing of an earlier try stays.
        FileDevice::create(image, Some(0))?;
        Ok(Arc::new(FileDevice::create(image, Some(o.size))?))
    };
    // Once with room to spare, to see how much it takes.
    o.size = content.estimate()?;
    let sb = make(create(o)?.into(), o, Some(&mut *content), seed)?;
    let used = (sb.dblocks.get() - sb.fdblocks.get()) * u64::from(o.block);
    o.size = used.max(LEAST).next_multiple_of(STEP);
    loop {
        let done = match o.superblock() {
            Ok(_) => make(create(o)?.into(), o, Some(&mut *content), seed),
            Err(e) => Err(e.into()),
        };
        match done {
            // A geometry that cannot be is out of room, too: its log, or its last group.
            Err(e) if is_full(&e) || e.downcast_ref::<uxfs_mkfs::MkfsError>().is_some() => {
                if o.size > 2 * used + SMALL {
                    return Err(e);
                }
                o.size += (o.size / 100).next_multiple_of(STEP);
            }
            other => return other,
        }
    }
}

/// True if an image's first blocks hold anything.
fn looks_used(path: &Path) -> Result<bool> {
    let dev = FileDevice::open(path, OpenMode::ReadOnly)?;
    let mut head = vec![0; dev.size_bytes().min(65536) as usize];
    dev.read(0, &mut head)?;
    Ok(head.iter().any(|b| *b != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_files_become_words() {
        let text = "# for old kernels\n[metadata]\nbigtime = 0\n\n[ data ]\nagcount=3 ; three\n";
        let words = configuration("x", text).expect("a configuration");
        assert_eq!(words, [('m', "bigtime=0".into()), ('d', "agcount=3".into())]);
        assert!(configuration("x", "[nonsense]").is_err() && configuration("x", "bigtime=0").is_err());
    }
}
