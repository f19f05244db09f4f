//! What `ls` and `stat` print.

use crate::tree::Unread;
use crate::volume::{DIR, FMT, LNK, Volume};
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uxfs::{Stat, Timestamp};

/// `drwxr-xr-x`
fn mode_text(mode: u16) -> String {
    let kind = match mode & FMT {
        DIR => 'd',
        LNK => 'l',
        0o020_000 => 'c',
        0o060_000 => 'b',
        0o010_000 => 'p',
        0o140_000 => 's',
        _ => '-',
    };
    let mut out = String::from(kind);
    for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift & 7;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => mark,
            (true, false) => mark.to_ascii_uppercase(),
        });
    }
    out
}

/// Year, month and day of a number of days since 1970 (the proleptic Gregorian calendar).
pub fn civil(days: i64) -> (i64, u32, u32) {
    // Eras of 400 years, counted from 1 March of the year 0, so that the leap day is the last of its year.
    let z = days + 719_468;
    let (era, day) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let yday = day - (365 * year + year / 4 - year / 100);
    let month = (5 * yday + 2) / 153;
    let mday = yday - (153 * month + 2) / 5 + 1;
    let m = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(m <= 2), m as u32, mday as u32)
}

/// Days since 1970 of a year, month and day; `None` if there is no such day.
pub fn days(y: i64, m: u32, d: u32) -> Option<i64> {
    let (year, month) = if m > 2 { (y, i64::from(m) - 3) } else { (y - 1, i64::from(m) + 9) };
    let leap = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = 365 * year + leap + (153 * month + 2) / 5 + i64::from(d) - 1 - 719_468;
    (civil(days) == (y, m, d)).then_some(days)
}

/// A time in UTC, to the minute or to the nanosecond.
pub fn time_text(t: Timestamp, full: bool) -> String {
    let (y, m, d) = civil(t.sec.div_euclid(86_400));
    let s = t.sec.rem_euclid(86_400);
    let (h, min, sec) = (s / 3600, s / 60 % 60, s % 60);
    if full {
        format!("{y:04}-{m:02}-{d:02} {h:02}:{min:02}:{sec:02}.{:09} +0000", t.nsec)
    } else {
        format!("{y:04}-{m:02}-{d:02} {h:02}:{min:02}")
    }
}

fn kind_text(s: &Stat) -> &'static str {
    match s.mode & FMT {
        DIR => "directory",
        LNK => "symbolic link",
        0o020_000 => "character special file",
        0o060_000 => "block special file",
        0o010_000 => "fifo",
        0o140_000 => "socket",
        _ if s.size == 0 => "regular empty file",
        _ => "regular file",
    }
}

/// How `ls` shows things.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    /// Modes, owners, sizes, times.
    pub long: bool,
    /// Names that begin with a dot, too.
    pub all: bool,
    /// Inode numbers.
    pub inode: bool,
    /// Directories themselves, not what is in them.
    pub itself: bool,
}

/// Lists a path.
///
/// # Errors
/// It does not exist, or cannot be read.
pub fn list(v: &Volume, path: &Path, how: Listing, out: &mut (impl Write + ?Sized)) -> Result<()> {
    let s = v.resolve(path, !how.long && !how.itself)?;
    let mut unread = Unread::default();
    let mut rows = Vec::new();
    let dir = s.mode & FMT == DIR && !how.itself;
    if dir {
        let plain = !how.long && !how.inode;
        let mut names = unread.names(v, path, s.ino);
        if how.all {
            names.splice(0..0, [OsString::from("."), "..".into()]);
        }
        for n in names.into_iter().filter(|n| how.all || !n.as_bytes().starts_with(b".")) {
            // Names alone need no inode.
            let found = || v.fs.lookup(s.ino, n.as_bytes()).with_context(|| v.at(&path.join(&n)));
            let st = if plain { Some(s) } else { unread.read(found()) };
            rows.extend(st.map(|st| (n, st)));
        }
    } else {
        rows.push((path.as_os_str().to_os_string(), s));
    }
    let width = |f: &dyn Fn(&Stat) -> usize| rows.iter().map(|r| f(&r.1)).max().unwrap_or(0);
    let digits = |n: u64| n.to_string().len();
    let links = width(&|s| digits(u64::from(s.nlink)));
    let (uids, gids) = (width(&|s| digits(u64::from(s.uid))), width(&|s| digits(u64::from(s.gid))));
    let sizes = width(&|s| size_text(s).len());
    let inos = width(&|s| digits(s.ino));
    for (name, s) in &rows {
        if how.inode {
            write!(out, "{:>inos$} ", s.ino)?;
        }
        if how.long {
            let (mode, size, time) = (mode_text(s.mode), size_text(s), time_text(s.mtime, false));
            write!(out, "{mode} {:>links$} {:>uids$} {:>gids$} {size:>sizes$} {time} ", s.nlink, s.uid, s.gid)?;
        }
        out.write_all(name.as_bytes())?;
        if how.long && s.mode & FMT == LNK {
            out.write_all(b" -> ")?;
            out.write_all(&unread.or_nothing(v.fs.readlink(s.ino).with_context(|| v.at(&path.join(name)))))?;
        }
        out.write_all(b"\n")?;
    }
    unread.finish()
}

fn size_text(s: &Stat) -> String {
    match s.mode & FMT {
        0o020_000 | 0o060_000 => format!("{}, {}", s.rdev.0, s.rdev.1),
        _ => s.size.to_string(),
    }
}

/// Prints what is known of a path, as `stat` does.
///
/// # Errors
/// It does not exist.
pub fn stat(v: &Volume, path: &Path, out: &mut impl Write) -> Result<()> {
    let s = v.resolve(path, false)?;
    let name = match s.mode & FMT {
        LNK => [path.as_os_str().as_bytes(), b" -> ", &v.fs.readlink(s.ino)?].concat(),
        _ => path.as_os_str().as_bytes().to_vec(),
    };
    out.write_all(b"  File: ")?;
    out.write_all(&name)?;
    writeln!(out, "\n  Size: {:<10} Blocks: {:<10} IO Block: {:<6} {}", s.size, s.blocks, v.fs.statfs().block_size, kind_text(&s))?;
    write!(out, " Inode: {:<10} Links: {:<11} Generation: {}", s.ino, s.nlink, s.generation)?;
    if matches!(s.mode & FMT, 0o020_000 | 0o060_000) {
        write!(out, "  Device type: {},{}", s.rdev.0, s.rdev.1)?;
    }
    writeln!(out, "\nAccess: ({:04o}/{})  Uid: {}   Gid: {}", s.mode & 0o7777, mode_text(s.mode), s.uid, s.gid)?;
    for (what, t) in [("Access", s.atime), ("Modify", s.mtime), ("Change", s.ctime), (" Birth", s.crtime)] {
        writeln!(out, "{what}: {}", time_text(t, true))?;
    }
    Ok(())
}

/// Prints where a file lies, as `xfs_bmap` does.
///
/// # Errors
/// It is not there, or corrupt.
pub fn bmap(v: &Volume, path: &Path, out: &mut impl Write) -> Result<()> {
    let s = v.resolve(path, true)?;
    let list = v.fs.extents(s.ino)?;
    writeln!(out, "{}:{}", v.at(path), if list.is_empty() { " no extents" } else { "" })?;
    let (mut number, mut at) = (0, 0);
    for e in list {
        if e.offset > at {
            writeln!(out, "\t{number}: [{}..{}]: hole", at / 512, e.offset / 512 - 1)?;
            number += 1;
        }
        at = e.offset + e.len;
        let mark = if e.unwritten { " unwritten" } else { "" };
        writeln!(out, "\t{number}: [{}..{}]: {}..{}{mark}", e.offset / 512, at / 512 - 1, e.start / 512, (e.start + e.len) / 512 - 1)?;
        number += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (sec, text) in
            [(0, "1970-01-01 00:00"), (951_782_400, "2000-02-29 00:00"), (-1, "1969-12-31 23:59"), (4_107_542_399, "2100-02-28 23:59")]
        {
            assert_eq!(time_text(Timestamp { sec, nsec: 0 }, false), text);
        }
        for n in (-900_000..900_000).step_by(37) {
            let (y, m, d) = civil(n);
            assert_eq!(days(y, m, d), Some(n));
        }
        assert_eq!([days(2023, 2, 29), days(2024, 13, 1), days(2024, 4, 31), days(2024, 1, 0)], [None; 4]);
    }

    #[test]
    fn modes_show_their_special_bits() {
        assert_eq!(mode_text(0o104_755), "-rwsr-xr-x");
        assert_eq!(mode_text(0o041_776), "drwxrwxrwT");
    }
}
