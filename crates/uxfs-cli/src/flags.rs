//! `lsattr` and `chattr`: flags, extent size hints, projects.

use crate::place::size;
use crate::volume::Volume;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uxfs::{FileFlags, Stat, xflag};

/// Letters as `xfs_io -c chattr` has them.
const LETTERS: [(char, u32); 13] = [
    ('i', xflag::IMMUTABLE),
    ('a', xflag::APPEND),
    ('s', xflag::SYNC),
    ('A', xflag::NOATIME),
    ('d', xflag::NODUMP),
    ('P', xflag::PROJINHERIT),
    ('n', xflag::NOSYMLINKS),
    ('e', xflag::EXTSIZE),
    ('E', xflag::EXTSZINHERIT),
    ('f', xflag::NODEFRAG),
    ('S', xflag::FILESTREAM),
    ('x', xflag::DAX),
    ('C', xflag::COWEXTSIZE),
];

/// Prints the flags of a file, with its project and hints if there are any.
///
/// # Errors
/// It does not exist.
pub fn list(v: &Volume, path: &Path, out: &mut impl Write) -> Result<()> {
    let f = v.fs.file_flags(v.resolve(path, false)?.ino)?;
    let letters: String = LETTERS.iter().map(|(c, bit)| if f.bits & bit != 0 { *c } else { '-' }).collect();
    write!(out, "{letters} ")?;
    for (what, n) in [("project", f.project), ("extsize", f.extsize), ("cowextsize", f.cowextsize)] {
        if n != 0 {
            write!(out, "{what}={n} ")?;
        }
    }
    out.write_all(path.as_os_str().as_bytes())?;
    Ok(out.write_all(b"\n")?)
}

/// What `chattr` is to do with each file.
pub struct Change {
    set: u32,
    clear: u32,
    project: Option<u32>,
    extsize: Option<u32>,
    cowextsize: Option<u32>,
}

impl Change {
    /// Reads words in any order: flags like `+i`, `-aS`, `=A`; `-p`, `--extsize` and `--cowextsize` with values; `-R`; paths.
    /// Says what to change, whether below directories, too, and where.
    ///
    /// # Errors
    /// A letter is unknown; a value is no number; there is nothing to change, or no path.
    pub fn parse(words: Vec<OsString>) -> Result<(Change, bool, Vec<OsString>)> {
        let mut c = Change { set: 0, clear: 0, project: None, extsize: None, cowextsize: None };
        let (mut recursive, mut paths) = (false, Vec::new());
        let mut words = words.into_iter();
        while let Some(w) = words.next() {
            let text = w.to_string_lossy().into_owned();
            let mut value = || words.next().map(|v| v.to_string_lossy().into_owned()).with_context(|| format!("{text} needs a value"));
            let bytes = |t: String| u32::try_from(size(&t)?).ok().with_context(|| format!("{t}: the hint is too large"));
            match text.as_str() {
                "-R" => recursive = true,
                "-p" => c.project = Some(value()?.parse().context("-p needs a number")?),
                "--extsize" => c.extsize = Some(bytes(value()?)?),
                "--cowextsize" => c.cowextsize = Some(bytes(value()?)?),
                m if m.starts_with(['+', '-', '=']) => c.letters(m)?,
                _ => paths.push(w),
            }
        }
        if c.set | c.clear == 0 && c.project.is_none() && c.extsize.is_none() && c.cowextsize.is_none() {
            bail!("nothing is to be changed: give +FLAGS, -FLAGS or =FLAGS, -p PROJECT, --extsize or --cowextsize");
        }
        if paths.is_empty() {
            bail!("chattr needs a path in a volume");
        }
        Ok((c, recursive, paths))
    }

    fn letters(&mut self, mode: &str) -> Result<()> {
        let mut bits = 0;
        for l in mode[1..].chars() {
            let all = || LETTERS.iter().map(|x| x.0).collect::<String>();
            bits |= LETTERS.iter().find(|x| x.0 == l).with_context(|| format!("{l:?} is no flag; {} are", all()))?.1;
        }
        match mode.as_bytes()[0] {
            b'+' => self.set |= bits,
            b'-' => self.clear |= bits,
            _ => (self.set, self.clear) = (bits, LETTERS.iter().fold(0, |b, x| b | x.1)),
        }
        Ok(())
    }

    /// Changes one file.
    ///
    /// # Errors
    /// It cannot have the flag.
    pub fn apply(&self, v: &Volume, s: &Stat) -> Result<()> {
        let mut f: FileFlags = v.fs.file_flags(s.ino)?;
        f.bits = f.bits & !self.clear | self.set;
        f.project = self.project.unwrap_or(f.project);
        let dir = s.mode & crate::volume::FMT == crate::volume::DIR;
        for (value, hint, bit) in [
            (self.extsize, &mut f.extsize, if dir { xflag::EXTSZINHERIT } else { xflag::EXTSIZE }),
            (self.cowextsize, &mut f.cowextsize, xflag::COWEXTSIZE),
        ] {
            if let Some(n) = value {
                *hint = n;
                f.bits = if n == 0 { f.bits & !bit } else { f.bits | bit };
            }
        }
        Ok(v.fs.set_file_flags(s.ino, f)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read() {
        let parse = |s: &str| Change::parse(s.split(' ').map(OsString::from).collect());
        let (c, recursive, paths) = parse("=iA -R v.img:/x -p 7 --extsize 64k").expect("a change");
        assert!(c.set == xflag::IMMUTABLE | xflag::NOATIME && c.clear & xflag::APPEND != 0 && recursive && paths.len() == 1);
        assert_eq!((c.project, c.extsize), (Some(7), Some(65536)));
        for bad in ["i v.img:/x", "+Q v.img:/x", "+i", "-p v.img:/x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
