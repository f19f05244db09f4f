//! Space: `du`, `df`, `freesp`, `trim`.

use crate::inspect;
use crate::place::{Source, size};
use crate::tree::Unread;
use crate::volume::{self, DIR, FMT, Volume};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How `du` counts and shows.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Only what is named, not what is below.
    pub summarize: bool,
    /// Files, too.
    pub all: bool,
    /// Bytes of the files instead of what they occupy.
    pub apparent: bool,
}

/// Prints what directories occupy, in KiB, as `du` does.
///
/// # Errors
/// The path does not exist; what cannot be read is told and not counted.
pub fn du(v: &Volume, top: &Path, how: Summary, out: &mut impl Write) -> Result<()> {
    let mut seen = HashSet::new();
    let first = v.resolve(top, false)?;
    // Directories stay on the stack until all below them is counted.
    let mut unread = Unread::default();
    let mut stack = vec![(top.to_path_buf(), first, 0u64, names(v, top, &first, &mut unread))];
    let mut row = |path: &Path, units: u64| -> Result<()> {
        write!(out, "{}\t", if how.apparent { units } else { units.div_ceil(2) })?;
        out.write_all(path.as_os_str().as_bytes())?;
        Ok(out.write_all(b"\n")?)
    };
    let own = |s: &uxfs::Stat| if how.apparent { s.size } else { s.blocks };
    while let Some((path, s, sum, left)) = stack.last_mut() {
        if let Some(n) = left.pop() {
            let below: PathBuf = path.join(&n);
            let Some(b) = unread.read(v.fs.lookup(s.ino, n.as_bytes()).with_context(|| v.at(&below))) else { continue };
            if b.mode & FMT == DIR {
                let names = names(v, &below, &b, &mut unread);
                stack.push((below, b, 0, names));
            } else if b.nlink < 2 || seen.insert(b.ino) {
                *sum += own(&b);
                if how.all && !how.summarize {
                    row(&below, own(&b))?;
                }
            }
            continue;
        }
        let Some((path, s, sum, _)) = stack.pop() else { break };
        let total = sum + own(&s);
        if let Some(up) = stack.last_mut() {
            up.2 += total;
        }
        if !how.summarize || stack.is_empty() {
            row(&path, total)?;
        }
    }
    unread.finish()
}

/// Names in a directory, the last first; none for anything else.
fn names(v: &Volume, path: &Path, s: &uxfs::Stat, unread: &mut Unread) -> Vec<OsString> {
    let mut n = if s.mode & FMT == DIR { unread.names(v, path, s.ino) } else { Vec::new() };
    n.reverse();
    n
}

/// Prints how much of volumes is used, as `df` does.
///
/// # Errors
/// A volume cannot be opened.
pub fn df(images: &[OsString], inodes: bool, out: &mut impl Write) -> Result<()> {
    let (total, used) = if inodes { ("Inodes", "IUsed") } else { ("1K-blocks", "Used") };
    writeln!(out, "{:<20} {total:>12} {used:>12} {:>12} Use%", "Filesystem", if inodes { "IFree" } else { "Available" })?;
    for image in images {
        let source = Source::parse(image);
        let s = volume::with(&source, false, |v| Ok(v.fs.statfs()))?;
        let unit = u64::from(s.block_size) / 512;
        let (all, free) = if inodes { (s.files, s.files_free) } else { (s.blocks * unit / 2, s.free * unit / 2) };
        let taken = all - free.min(all);
        writeln!(out, "{:<20} {all:>12} {taken:>12} {free:>12} {:>3}%", source.name(), (100 * taken).div_ceil(all.max(1)))?;
    }
    Ok(())
}

/// Prints how many free extents there are of which lengths, as `xfs_spaceman -c freesp` does.
///
/// # Errors
/// The volume cannot be opened, or a group is corrupt.
pub fn freesp(source: &Source, out: &mut impl Write) -> Result<()> {
    volume::with(source, false, |v| {
        // By the power of two that a length begins at.
        let mut rows: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        v.fs.free_extents(&mut |_, _, len| {
            let r = rows.entry(len.checked_ilog2().unwrap_or(0)).or_default();
            *r = (r.0 + 1, r.1 + u64::from(len));
        })?;
        let all: u64 = rows.values().map(|r| r.1).sum();
        let most = u64::from(v.fs.geometry().agblocks);
        writeln!(out, "{:>7} {:>7} {:>7} {:>7} {:>6}", "from", "to", "extents", "blocks", "pct")?;
        for (power, (extents, blocks)) in rows {
            let (from, to) = (1u64 << power, ((2u64 << power) - 1).min(most));
            writeln!(out, "{from:>7} {to:>7} {extents:>7} {blocks:>7} {:>6.2}", 100.0 * blocks as f64 / all.max(1) as f64)?;
        }
        Ok(())
    })
}

/// Gives free space back to what the volume lies on, as `fstrim -v` does.
///
/// # Errors
/// The volume cannot be opened for writing.
pub fn trim(source: &Source, least: Option<&str>, out: &mut impl Write) -> Result<()> {
    let least = least.map(size).transpose()?.unwrap_or(0);
    let done = volume::with(source, true, |v| Ok(v.fs.trim(least)?))?;
    writeln!(out, "{}: {done} bytes trimmed", source.name())?;
    Ok(())
}

/// Makes a volume larger: to what it lies on, or to a size, for which an image grows. The log is recovered first.
///
/// # Errors
/// The size is smaller than the volume; the volume is in use, or cannot be written.
pub fn grow(source: &Source, to: Option<&str>, out: &mut impl Write) -> Result<()> {
    volume::with(source, true, |_| Ok(()))?;
    let to = to.map(size).transpose()?;
    if let Some(bytes) = to {
        source.extend(bytes)?;
    }
    let devices = source.devices(true)?;
    let dev = devices.data.clone();
    let before = inspect::superblock(&*dev).with_context(|| format!("cannot open {}", source.name()))?;
    let blocks = to.unwrap_or_else(|| dev.size_bytes()) >> before.blocklog;
    let what = || format!("cannot grow {}", source.name());
    if blocks << before.blocklog > dev.size_bytes() {
        bail!("{}: it lies on only {} bytes", what(), dev.size_bytes());
    }
    let (g, sb) = uxfs::grown_superblock(&dev, blocks).with_context(what)?;
    if g.dblocks > before.dblocks.get() {
        uxfs_mkfs::add_groups(&*dev, &g, &sb, before.agcount.get())?;
        uxfs::grow(&devices, g.clone()).with_context(what)?;
    }
    writeln!(out, "data blocks changed from {} to {}", before.dblocks, g.dblocks)?;
    Ok(())
}
