//! `diff`: what two trees of files differ in.

use crate::attributes;
use crate::place::{Place, Source};
use crate::tree::{CHUNK, Host, Meta, Tree, Unread};
use crate::volume::{self, DIR, FMT, LNK, REG};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

/// How trees are compared.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Only names, types and data count.
    pub content_only: bool,
}

/// Prints what differs between two trees, each in a volume or on the host; true if nothing does.
///
/// # Errors
/// What cannot be read is told and passed over: then that.
pub fn diff(a: &OsStr, b: &OsStr, how: How, out: &mut impl Write) -> Result<bool> {
    let host = Host { atimes: true };
    // What is no place in a volume is an image, unless it is a directory of the host.
    let place = |t: &OsStr| match Place::parse(t) {
        Place::Host(p) if !p.is_dir() => Place::Inside(Source::parse(t), "/".into()),
        p => p,
    };
    match (place(a), place(b)) {
        (Place::Inside(s, p), Place::Inside(t, q)) if s == t => volume::with(&s, false, |v| trees((v, &p), (v, &q), how, out)),
        (Place::Inside(s, p), Place::Inside(t, q)) => {
            volume::with(&s, false, |v| volume::with(&t, false, |w| trees((v, &p), (w, &q), how, out)))
        }
        (Place::Inside(s, p), Place::Host(q)) => volume::with(&s, false, |v| trees((v, &p), (&host, &q), how, out)),
        (Place::Host(p), Place::Inside(t, q)) => volume::with(&t, false, |w| trees((&host, &p), (w, &q), how, out)),
        (Place::Host(p), Place::Host(q)) => trees((&host, &p), (&host, &q), how, out),
    }
}

type Side<'a> = (&'a dyn Tree, &'a Path);

fn trees(a: Side<'_>, b: Side<'_>, how: How, out: &mut impl Write) -> Result<bool> {
    let (mut same, mut unread) = (true, Unread::default());
    let mut left = vec![PathBuf::new()];
    while let Some(rel) = left.pop() {
        let (p, q) = (join(a.1, &rel), join(b.1, &rel));
        let (x, y) = (unread.read(a.0.meta(&p, false)), unread.read(b.0.meta(&q, false)));
        let (Some(x), Some(y)) = (x, y) else { continue };
        let (x, y) = match (x, y) {
            (Some(x), Some(y)) => (x, y),
            (None, None) => anyhow::bail!("{}: no such file or directory", a.0.show(&p)),
            (one, _) => {
                let shown = if one.is_some() { a.0.show(&p) } else { b.0.show(&q) };
                writeln!(out, "only {shown}")?;
                same = false;
                continue;
            }
        };
        for what in unread.or_nothing(differences((a.0, &p, &x), (b.0, &q, &y), how)) {
            writeln!(out, "{} and {} differ: {what}", a.0.show(&p), b.0.show(&q))?;
            same = false;
        }
        if x.mode & FMT == DIR && y.mode & FMT == DIR {
            let names: BTreeSet<_> = a.0.names(&p, &mut unread).into_iter().chain(b.0.names(&q, &mut unread)).collect();
            left.extend(names.into_iter().rev().map(|n| rel.join(n)));
        }
    }
    unread.finish().map(|()| same)
}

fn join(top: &Path, rel: &Path) -> PathBuf {
    if rel.as_os_str().is_empty() { top.to_path_buf() } else { top.join(rel) }
}

type File<'a> = (&'a dyn Tree, &'a Path, &'a Meta);

fn differences(a: File<'_>, b: File<'_>, how: How) -> Result<Vec<String>> {
    let (x, y) = (a.2, b.2);
    let kind = x.mode & FMT;
    if kind != y.mode & FMT {
        return Ok(vec!["their types".into()]);
    }
    let mut out = Vec::new();
    let device = matches!(kind, 0o020_000 | 0o060_000);
    if !how.content_only {
        let perm = |m: u16| if kind == LNK { 0 } else { m & 0o7777 };
        let rows = [
            (perm(x.mode) != perm(y.mode), format!("mode {:04o} and {:04o}", x.mode & 0o7777, y.mode & 0o7777)),
            ((x.uid, x.gid) != (y.uid, y.gid), format!("owner {}:{} and {}:{}", x.uid, x.gid, y.uid, y.gid)),
            (x.mtime != y.mtime, format!("time {}.{:09} and {}.{:09}", x.mtime.sec, x.mtime.nsec, y.mtime.sec, y.mtime.nsec)),
            (kind != DIR && x.nlink != y.nlink, format!("links {} and {}", x.nlink, y.nlink)),
        ];
        out.extend(rows.into_iter().filter(|r| r.0).map(|r| r.1));
        let (p, q) = (attributes::comparable(a.0.xattrs(a.1)?), attributes::comparable(b.0.xattrs(b.1)?));
        out.extend(attributes::differing(&p, &q).into_iter().map(|n| format!("attribute {}", n.display())));
    }
    if device && x.rdev != y.rdev {
        out.push(format!("device {},{} and {},{}", x.rdev.0, x.rdev.1, y.rdev.0, y.rdev.1));
    }
    if kind == LNK && a.0.read_link(a.1)? != b.0.read_link(b.1)? {
        out.push("their targets".into());
    }
    if kind == REG {
        if x.size != y.size {
            out.push(format!("size {} and {}", x.size, y.size));
        } else if let Some(at) = first_difference(a, b)? {
            out.push(format!("data from byte {at}"));
        }
    }
    Ok(out)
}

fn first_difference(a: File<'_>, b: File<'_>) -> Result<Option<u64>> {
    let (mut read_a, mut read_b) = (a.0.reader(a.1)?, b.0.reader(b.1)?);
    let (mut x, mut y) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = 0;
    while at < a.2.size {
        let want = ((a.2.size - at) as usize).min(CHUNK);
        let full =
            |n: usize, t: File<'_>| (n == want).then_some(()).with_context(|| format!("{}: cannot be read to its end", t.0.show(t.1)));
        full(read_a(at, &mut x[..want])?, a)?;
        full(read_b(at, &mut y[..want])?, b)?;
        if let Some(i) = x[..want].iter().zip(&y[..want]).position(|(p, q)| p != q) {
            return Ok(Some(at + i as u64));
        }
        at += want as u64;
    }
    Ok(None)
}
