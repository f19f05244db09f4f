//! `find`: its expressions, as far as they only look.

use crate::change;
use crate::place::Place;
use crate::show;
use crate::tree::Unread;
use crate::volume::{self, DIR, FMT, Volume};
use anyhow::{Context, Result, bail};
use globset::{GlobBuilder, GlobMatcher};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uxfs::Stat;

/// More than, less than, or exactly.
#[derive(Clone, Copy)]
enum Than {
    More(u64),
    Less(u64),
    Just(u64),
}

impl Than {
    fn parse(text: &str) -> Result<(Than, &str)> {
        let (sign, rest) = match text.as_bytes().first() {
            Some(b'+') => (1, &text[1..]),
            Some(b'-') => (-1, &text[1..]),
            _ => (0, text),
        };
        let cut = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let n = rest[..cut].parse().with_context(|| format!("{text:?} is no number"))?;
        Ok((
            if sign > 0 {
                Than::More(n)
            } else if sign < 0 {
                Than::Less(n)
            } else {
                Than::Just(n)
            },
            &rest[cut..],
        ))
    }

    fn whole(text: &OsStr) -> Result<Than> {
        match Self::parse(&text.to_string_lossy())? {
            (t, "") => Ok(t),
            _ => bail!("{text:?} is no number"),
        }
    }

    fn holds(self, n: u64) -> bool {
        match self {
            Than::More(m) => n > m,
            Than::Less(m) => n < m,
            Than::Just(m) => n == m,
        }
    }
}

enum Perm {
    Just(u16),
    All(u16),
    Any(u16),
}

enum Test {
    True,
    And(Box<Test>, Box<Test>),
    Or(Box<Test>, Box<Test>),
    Not(Box<Test>),
    Name(GlobMatcher),
    Path(GlobMatcher),
    Type(Vec<u16>),
    /// In units of so many bytes, rounded up.
    Size(Than, u64),
    /// Whole units of so many seconds since the last change.
    Modified(Than, i64),
    Inode(Than),
    Links(Than),
    User(OsString),
    Group(OsString),
    Perm(Perm),
    Empty,
    Prune,
    Print(u8),
    Ls,
}

struct Expression {
    test: Test,
    min_depth: usize,
    max_depth: usize,
    prints: bool,
}

struct Parser<'a> {
    words: &'a [OsString],
    e: Expression,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a OsString> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn value(&mut self, of: &OsStr) -> Result<&'a OsString> {
        self.next().with_context(|| format!("{} needs a value", of.display()))
    }

    fn is(&self, words: &[&str]) -> bool {
        self.words.first().is_some_and(|w| words.iter().any(|x| w == x))
    }

    fn either(&mut self) -> Result<Test> {
        let mut t = self.both()?;
        while self.is(&["-o", "-or"]) {
            self.next();
            t = Test::Or(Box::new(t), Box::new(self.both()?));
        }
        Ok(t)
    }

    fn both(&mut self) -> Result<Test> {
        let mut t = self.one()?;
        while !self.words.is_empty() && !self.is(&["-o", "-or", ")"]) {
            if self.is(&["-a", "-and"]) {
                self.next();
            }
            t = Test::And(Box::new(t), Box::new(self.one()?));
        }
        Ok(t)
    }

    fn one(&mut self) -> Result<Test> {
        let word = self.next().context("an expression ends too early")?;
        let glob = |pattern: &OsStr, no_case| -> Result<GlobMatcher> {
            let text = pattern.to_str().with_context(|| format!("{} is no pattern", pattern.display()))?;
            Ok(GlobBuilder::new(text).literal_separator(false).case_insensitive(no_case).backslash_escape(true).build()?.compile_matcher())
        };
        let text = word.to_str().unwrap_or("");
        Ok(match text {
            "(" => {
                let t = self.either()?;
                if self.next().is_none_or(|w| w != ")") {
                    bail!("a parenthesis is not closed");
                }
                t
            }
            "!" | "-not" => Test::Not(Box::new(self.one()?)),
            "-name" | "-iname" => Test::Name(glob(self.value(word)?, text == "-iname")?),
            "-path" | "-wholename" | "-ipath" => Test::Path(glob(self.value(word)?, text == "-ipath")?),
            "-type" => Test::Type(self.value(word)?.to_string_lossy().split(',').map(kind).collect::<Result<_>>()?),
            "-size" => {
                let value = self.value(word)?.to_string_lossy().into_owned();
                let (than, unit) = Than::parse(&value)?;
                let unit = match unit {
                    "" | "b" => 512,
                    "c" => 1,
                    "w" => 2,
                    "k" => 1 << 10,
                    "M" => 1 << 20,
                    "G" => 1 << 30,
                    _ => bail!("{value:?} is no size; c, k, M and G are units"),
                };
                Test::Size(than, unit)
            }
            "-mtime" => Test::Modified(Than::whole(self.value(word)?)?, 86_400),
            "-mmin" => Test::Modified(Than::whole(self.value(word)?)?, 60),
            "-inum" => Test::Inode(Than::whole(self.value(word)?)?),
            "-links" => Test::Links(Than::whole(self.value(word)?)?),
            "-user" | "-uid" => Test::User(self.value(word)?.clone()),
            "-group" | "-gid" => Test::Group(self.value(word)?.clone()),
            "-perm" => {
                let value = self.value(word)?.to_string_lossy().into_owned();
                match value.split_at_checked(1) {
                    Some(("-", m)) => Test::Perm(Perm::All(change::mode(m, 0)?)),
                    Some(("/", m)) => Test::Perm(Perm::Any(change::mode(m, 0)?)),
                    _ => Test::Perm(Perm::Just(change::mode(&value, 0)?)),
                }
            }
            "-empty" => Test::Empty,
            "-true" => Test::True,
            "-prune" => Test::Prune,
            "-maxdepth" | "-mindepth" => {
                let n = self.value(word)?.to_string_lossy().parse().with_context(|| format!("{text} needs a number"))?;
                if text == "-maxdepth" {
                    self.e.max_depth = n;
                } else {
                    self.e.min_depth = n;
                }
                Test::True
            }
            "-print" | "-print0" | "-ls" => {
                self.e.prints = true;
                match text {
                    "-print" => Test::Print(b'\n'),
                    "-print0" => Test::Print(0),
                    _ => Test::Ls,
                }
            }
            _ => bail!("{} is not supported in an expression of find", word.display()),
        })
    }
}

fn kind(letter: &str) -> Result<u16> {
    Ok(match letter {
        "d" => DIR,
        "f" => volume::REG,
        "l" => volume::LNK,
        "c" => 0o020_000,
        "b" => 0o060_000,
        "p" => 0o010_000,
        "s" => 0o140_000,
        _ => bail!("{letter:?} is no type; f, d, l, c, b, p and s are"),
    })
}

fn parse(words: &[OsString]) -> Result<Expression> {
    let mut p = Parser { words, e: Expression { test: Test::True, min_depth: 0, max_depth: usize::MAX, prints: false } };
    if !words.is_empty() {
        p.e.test = p.either()?;
        if let Some(w) = p.words.first() {
            bail!("{} is not expected in an expression of find", w.display());
        }
    }
    Ok(p.e)
}

/// What is looked at.
struct Found<'a> {
    v: &'a Volume,
    path: &'a Path,
    s: Stat,
    pruned: bool,
}

impl Test {
    fn holds(&self, f: &mut Found<'_>, out: &mut dyn Write) -> Result<bool> {
        let s = &f.s;
        Ok(match self {
            Test::True => true,
            Test::And(a, b) => a.holds(f, out)? && b.holds(f, out)?,
            Test::Or(a, b) => a.holds(f, out)? || b.holds(f, out)?,
            Test::Not(a) => !a.holds(f, out)?,
            Test::Name(g) => g.is_match(Path::new(f.path.file_name().unwrap_or(f.path.as_os_str()))),
            Test::Path(g) => g.is_match(f.path),
            Test::Type(kinds) => kinds.contains(&(s.mode & FMT)),
            Test::Size(t, unit) => t.holds(s.size.div_ceil(*unit)),
            Test::Modified(t, unit) => t.holds(((f.v.fs.now().sec - s.mtime.sec) / unit).max(0) as u64),
            Test::Inode(t) => t.holds(s.ino),
            Test::Links(t) => t.holds(u64::from(s.nlink)),
            Test::User(name) => change::id(f.v, &name.to_string_lossy(), "/etc/passwd")? == s.uid,
            Test::Group(name) => change::id(f.v, &name.to_string_lossy(), "/etc/group")? == s.gid,
            Test::Perm(Perm::Just(m)) => s.mode & 0o7777 == *m,
            Test::Perm(Perm::All(m)) => s.mode & m == *m,
            Test::Perm(Perm::Any(m)) => *m == 0 || s.mode & m != 0,
            Test::Empty => match s.mode & FMT {
                DIR => f.v.names(s.ino)?.is_empty(),
                volume::REG => s.size == 0,
                _ => false,
            },
            Test::Prune => {
                f.pruned = true;
                true
            }
            Test::Print(end) => {
                out.write_all(f.path.as_os_str().as_bytes())?;
                out.write_all(&[*end])?;
                true
            }
            Test::Ls => {
                show::list(f.v, f.path, show::Listing { long: true, all: true, inode: true, itself: true }, out)?;
                true
            }
        })
    }
}

/// Looks for files: paths in volumes, then an expression.
///
/// # Errors
/// The expression is malformed; a path does not exist.
pub fn find(words: &[OsString], out: &mut impl Write) -> Result<()> {
    let begins = |w: &OsString| w.as_bytes().starts_with(b"-") || w == "!" || w == "(";
    let paths = words.iter().take_while(|w| !begins(w)).count();
    if paths == 0 {
        bail!("find needs a path in a volume, IMG:/path, before its expression");
    }
    let (paths, expression) = words.split_at(paths);
    let e = parse(expression)?;
    for p in paths {
        let (source, path) = Place::inside(p);
        volume::with(&source, false, |v| walk(v, &path, &e, out))?;
    }
    Ok(())
}

fn walk(v: &Volume, top: &Path, e: &Expression, out: &mut impl Write) -> Result<()> {
    let mut unread = Unread::default();
    let mut left: Vec<(PathBuf, Stat, usize)> = vec![(top.to_path_buf(), v.resolve(top, false)?, 0)];
    while let Some((path, s, depth)) = left.pop() {
        let mut f = Found { v, path: &path, s, pruned: false };
        if depth >= e.min_depth && e.test.holds(&mut f, out)? && !e.prints {
            out.write_all(path.as_os_str().as_bytes())?;
            out.write_all(b"\n")?;
        }
        if s.mode & FMT == DIR && depth < e.max_depth && !f.pruned {
            for n in unread.names(v, &path, s.ino).into_iter().rev() {
                let at = path.join(&n);
                if let Some(below) = unread.read(v.fs.lookup(s.ino, n.as_bytes()).with_context(|| v.at(&at))) {
                    left.push((at, below, depth + 1));
                }
            }
        }
    }
    unread.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_or_refused() {
        let words = |s: &str| s.split(' ').map(OsString::from).collect::<Vec<_>>();
        for good in ["-name *.c", "( -type d -o -type f,l ) -size +10k", "! -empty -maxdepth 3 -print0", "-perm -u+w -a -links 2"] {
            assert!(parse(&words(good)).is_ok(), "{good}");
        }
        for bad in ["-name", "( -type d", "-type x", "-size 5q", "-exec rm", "-empty )"] {
            assert!(parse(&words(bad)).is_err(), "{bad}");
        }
    }
}
