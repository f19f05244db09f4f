//! Names of places: `IMG:/path` in a volume, `IMG@2:/path` in a partition, anything else on the host.

use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use uxfs::Devices;
use uxfs_device::{DeviceRef, FileDevice, Host, OpenMode, Slice, find_partition};

/// Which part of a device holds the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// All of it.
    Whole,
    /// Partition by number, from 1.
    Number(u32),
    /// From this byte on.
    Offset(u64),
}

/// A volume: an image file or device, and the part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The file.
    pub file: PathBuf,
    /// The part.
    pub part: Part,
}

/// The log's device for volumes of this command that have their log outside.
static LOG_DEVICE: OnceLock<PathBuf> = OnceLock::new();

/// Notes `--logdev`.
pub fn set_log_device(path: PathBuf) {
    let _ = LOG_DEVICE.set(path);
}

/// Opens a file or device of the host.
fn open(path: &Path, write: bool, host: Host) -> Result<DeviceRef> {
    let mode = if write { OpenMode::ReadWrite } else { OpenMode::ReadOnly };
    Ok(Arc::new(FileDevice::open_with(path, mode, host).with_context(|| format!("cannot open {}", path.display()))?))
}

/// The volume on `data`, with `log` beside it if its log is outside.
///
/// # Errors
/// `log` cannot be opened.
pub fn with_log(data: DeviceRef, log: Option<&Path>, write: bool, host: Host) -> Result<Devices> {
    let outside = crate::inspect::superblock(&*data).is_ok_and(|sb| sb.logstart.get() == 0);
    let log = log.filter(|_| outside).map(|l| open(l, write, host)).transpose()?;
    Ok(Devices { data, log })
}

impl Source {
    /// Reads `IMG`, `IMG@NUMBER` or `IMG@@BYTES`.
    pub fn parse(text: &OsStr) -> Source {
        let whole = Source { file: text.into(), part: Part::Whole };
        let b = text.as_bytes();
        if whole.file.exists() {
            return whole;
        }
        let Some(at) = b.iter().rposition(|c| *c == b'@') else { return whole };
        let number = std::str::from_utf8(&b[at + 1..]).ok().and_then(|s| s.parse::<u64>().ok());
        let offset = at > 0 && b[at - 1] == b'@';
        let file = OsString::from_vec(b[..if offset { at - 1 } else { at }].to_vec()).into();
        match number {
            Some(n) if offset => Source { file, part: Part::Offset(n) },
            Some(n) => u32::try_from(n).map_or(whole, |n| Source { file, part: Part::Number(n) }),
            None => whole,
        }
    }

    /// How messages name it.
    pub fn name(&self) -> String {
        let f = self.file.display();
        match self.part {
            Part::Whole => f.to_string(),
            Part::Number(n) => format!("{f}@{n}"),
            Part::Offset(n) => format!("{f}@@{n}"),
        }
    }

    /// Opens the device, locked against writers, or against everybody if `write`.
    ///
    /// # Errors
    /// It is not there, in use, or has no such partition.
    pub fn device(&self, write: bool) -> Result<DeviceRef> {
        self.device_with(write, Host::default())
    }

    /// As [`Source::device`]; `host` says what of the host is used.
    ///
    /// # Errors
    /// As [`Source::device`].
    pub fn device_with(&self, write: bool, host: Host) -> Result<DeviceRef> {
        self.slice(open(&self.file, write, host)?)
    }

    /// The device, and that of the log which `--logdev` names, if the volume has its log outside.
    ///
    /// # Errors
    /// As [`Source::device`].
    pub fn devices(&self, write: bool) -> Result<Devices> {
        with_log(self.device(write)?, LOG_DEVICE.get().map(PathBuf::as_path), write, Host::default())
    }

    /// Makes an image file hold at least so many bytes of the volume. A device or a partition must do so already.
    ///
    /// # Errors
    /// The host's.
    pub fn extend(&self, bytes: u64) -> Result<()> {
        let start = match self.part {
            Part::Whole => 0,
            Part::Offset(n) => n,
            Part::Number(_) => return Ok(()),
        };
        let m = std::fs::metadata(&self.file).with_context(|| format!("cannot open {}", self.file.display()))?;
        let end = start.checked_add(bytes).context("the size is too large")?;
        if m.is_file() && m.len() < end {
            let f = std::fs::File::options().write(true).open(&self.file);
            f.and_then(|f| f.set_len(end)).with_context(|| format!("cannot extend {}", self.file.display()))?;
        }
        Ok(())
    }

    /// The volume's part of a device.
    ///
    /// # Errors
    /// There is no such partition.
    pub fn slice(&self, dev: DeviceRef) -> Result<DeviceRef> {
        let size = dev.size_bytes();
        let (start, len) = match self.part {
            Part::Whole => return Ok(dev),
            Part::Offset(n) if n >= size => bail!("{} ends before byte {n}", self.file.display()),
            Part::Offset(n) => (n, size - n),
            Part::Number(n) => {
                let p = find_partition(&*dev, n).with_context(|| format!("cannot use {}", self.name()))?;
                (p.start, p.len)
            }
        };
        Ok(Arc::new(Slice::new(dev, start, len)?))
    }
}

/// A place that a command works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A path on the host.
    Host(PathBuf),
    /// A path in a volume.
    Inside(Source, PathBuf),
}

impl Place {
    /// Reads a place; `IMG:` alone is the root of the volume.
    pub fn parse(text: &OsStr) -> Place {
        let b = text.as_bytes();
        let at = b.windows(2).position(|w| w == b":/").or_else(|| b.ends_with(b":").then(|| b.len() - 1)).filter(|a| *a > 0);
        match at {
            Some(at) => {
                let path = if at + 1 < b.len() { &b[at + 1..] } else { b"/" };
                Place::Inside(Source::parse(OsStr::from_bytes(&b[..at])), OsStr::from_bytes(path).into())
            }
            None => Place::Host(text.into()),
        }
    }

    /// Reads a place that must lie in a volume; a bare `IMG` is its root.
    pub fn inside(text: &OsStr) -> (Source, PathBuf) {
        match Place::parse(text) {
            Place::Inside(s, p) => (s, p),
            Place::Host(p) => (Source::parse(p.as_os_str()), "/".into()),
        }
    }
}

/// Reads a size with an optional suffix, in powers of 1024: `300m`, `20G`, `4096`.
///
/// # Errors
/// It is no size.
pub fn size(text: &str) -> Result<u64> {
    let t = text.trim();
    let digits = t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
    let shift = match t[digits..].to_ascii_lowercase().trim_end_matches("ib") {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        other => bail!("{other:?} is no suffix of a size; k, m, g, t and p are"),
    };
    let n: u64 = t[..digits].parse().with_context(|| format!("{text:?} is no size"))?;
    n.checked_mul(1 << shift).with_context(|| format!("{text:?} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        let inside = |f: &str, part, p: &str| Place::Inside(Source { file: f.into(), part }, p.into());
        for (text, want) in [
            ("disk.img:/etc/fstab", inside("disk.img", Part::Whole, "/etc/fstab")),
            ("disk.img@2:/a:/b", inside("disk.img", Part::Number(2), "/a:/b")),
            ("disk.img@@1048576:", inside("disk.img", Part::Offset(1 << 20), "/")),
            ("you@host:/x", inside("you@host", Part::Whole, "/x")),
            ("plain/file", Place::Host("plain/file".into())),
        ] {
            assert_eq!(Place::parse(text.as_ref()), want, "{text}");
        }
    }

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(size("300m").ok(), Some(300 << 20));
        assert_eq!(size("2GiB").ok(), Some(2 << 30));
        assert!(size("12x").is_err() && size("").is_err() && size("99999999p").is_err());
    }
}
