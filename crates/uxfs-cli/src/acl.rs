//! Access control lists as text: `getfacl`, `setfacl`, archives; and as the host's attributes.

use crate::change;
use crate::tree::Xattr;
use crate::volume::{DIR, FMT, Volume};
use anyhow::{Context, Result, anyhow, bail};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uxfs::{Acl, AclEntry, AttrName, Error, Stat, acl_name, acl_tag as tag};

/// The host's names of the two lists: what a file has, and what new entries of a directory inherit.
const HOST: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// An attribute of the volume as the host has it: lists have another name and form there.
pub fn to_host(name: AttrName<'_>, value: &[u8]) -> Option<Xattr> {
    let default = [false, true].into_iter().find(|d| name == acl_name(*d))?;
    Some((HOST[usize::from(default)].into(), Acl::decode(value).ok()?.to_kernel()))
}

/// Takes the host's lists out of a file's attributes and sets them; a list that is not among them is removed.
///
/// # Errors
/// The volume's; a list is malformed.
pub fn set_from_host(v: &Volume, ino: u64, xattrs: &[Xattr]) -> Result<()> {
    for default in [false, true] {
        let found = xattrs.iter().find(|x| x.0 == HOST[usize::from(default)]);
        match found {
            Some((_, value)) => {
                let acl = Acl::from_kernel(value).map_err(|e| anyhow!(e))?;
                v.fs.set_acl(ino, default, Some(&acl))?;
            }
            None => match v.fs.get_attr(ino, acl_name(default)) {
                Err(Error::NoAttribute) => {}
                r => {
                    r?;
                    v.fs.set_acl(ino, default, None)?;
                }
            },
        }
    }
    Ok(())
}

/// True for the host's name of a list.
pub fn is_hosts(name: &std::ffi::OsStr) -> bool {
    HOST.iter().any(|h| name == *h)
}

fn stored(v: &Volume, s: &Stat, default: bool) -> Result<Option<Acl>> {
    match v.fs.get_acl(s.ino, default) {
        Err(Error::NoAttribute) => Ok(None),
        r => Ok(Some(r?)),
    }
}

/// The list of a file, or the one that it would have for its mode.
fn access(v: &Volume, s: &Stat) -> Result<Acl> {
    Ok(stored(v, s, false)?.unwrap_or_else(|| Acl::of_mode(s.mode)))
}

fn perm_text(p: u16) -> String {
    [(4, 'r'), (2, 'w'), (1, 'x')].iter().map(|(bit, c)| if p & bit != 0 { *c } else { '-' }).collect()
}

fn entry_text(e: &AclEntry) -> String {
    let (kind, named) = match e.tag {
        tag::USER_OBJ => ("user", false),
        tag::USER => ("user", true),
        tag::GROUP_OBJ => ("group", false),
        tag::GROUP => ("group", true),
        tag::MASK => ("mask", false),
        _ => ("other", false),
    };
    let id = if named { e.id.to_string() } else { String::new() };
    format!("{kind}:{id}:{}", perm_text(e.perm))
}

/// A list in one line, as archives have it.
pub fn line(acl: &Acl) -> String {
    acl.entries().iter().map(entry_text).collect::<Vec<_>>().join(",")
}

/// Prints lists as `getfacl -n` does.
///
/// # Errors
/// The path does not exist; the list is damaged.
pub fn get(v: &Volume, path: &Path, out: &mut impl Write) -> Result<()> {
    let s = v.resolve(path, true)?;
    out.write_all(b"# file: ")?;
    out.write_all(path.as_os_str().as_bytes())?;
    writeln!(out, "\n# owner: {}\n# group: {}", s.uid, s.gid)?;
    if s.mode & 0o7000 != 0 {
        let flags: String =
            [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')].iter().map(|(b, c)| if s.mode & b != 0 { *c } else { '-' }).collect();
        writeln!(out, "# flags: {flags}")?;
    }
    let lists = [(access(v, &s).map(Some), ""), (stored(v, &s, true), "default:")];
    for (acl, prefix) in lists {
        let Some(acl) = acl.with_context(|| v.at(path))? else { continue };
        let mask = acl.entries().iter().find(|e| e.tag == tag::MASK).map_or(7, |e| e.perm);
        // Notes on what the mask leaves stand at one tab stop, behind the longest entry.
        let stop = acl.entries().iter().map(|e| entry_text(e).len()).max().unwrap_or(0) / 8 + 1;
        for e in acl.entries() {
            let limited = matches!(e.tag, tag::USER | tag::GROUP_OBJ | tag::GROUP);
            let text = entry_text(e);
            match e.perm & mask {
                p if limited && p != e.perm => {
                    let tabs = "\t".repeat((stop - text.len() / 8).max(1));
                    writeln!(out, "{prefix}{text}{tabs}#effective:{}", perm_text(p))?;
                }
                _ => writeln!(out, "{prefix}{text}")?,
            }
        }
    }
    writeln!(out)?;
    Ok(())
}

/// One entry of a change: for which list, whose, and what; no permissions where an entry is to go.
struct Spec {
    default: bool,
    tag: u16,
    id: u32,
    perm: Option<Perm>,
}

#[derive(Clone, Copy)]
struct Perm {
    bits: u16,
    /// Execute for directories, and files that somebody may execute.
    x_if_any: bool,
}

fn perm(text: &str) -> Option<Perm> {
    if let Ok(n) = text.parse::<u16>() {
        return (n <= 7).then_some(Perm { bits: n, x_if_any: false });
    }
    let mut p = Perm { bits: 0, x_if_any: false };
    for c in text.chars() {
        match c {
            'r' => p.bits |= 4,
            'w' => p.bits |= 2,
            'x' => p.bits |= 1,
            'X' => p.x_if_any = true,
            '-' => {}
            _ => return None,
        }
    }
    Some(p)
}

/// Reads entries between commas or on lines of their own: `[default:]user:NAME:rwx`.
fn specs(v: &Volume, text: &str, with_perm: bool) -> Result<Vec<Spec>> {
    let mut out = Vec::new();
    for word in text.split([',', '\n']).map(str::trim).filter(|w| !w.is_empty() && !w.starts_with('#')) {
        let bad = || format!("{word:?} is no entry of an access control list");
        let mut fields: Vec<&str> = word.split(':').map(str::trim).collect();
        let default = matches!(fields[0], "d" | "default");
        if default {
            fields.remove(0);
        }
        let kind = *fields.first().with_context(bad)?;
        let second = fields.get(1).copied().unwrap_or("");
        // `mask:r-x` and `other:r-x` are written with one colon as well.
        let short = with_perm && fields.len() == 2 && matches!(kind, "m" | "mask" | "o" | "other");
        let (name, perms) = if short { ("", second) } else { (second, fields.get(2).copied().unwrap_or("")) };
        // Some archives give the number behind the permissions.
        let name = fields.get(3).copied().filter(|n| !n.is_empty() && !name.is_empty()).unwrap_or(name);
        let (tag, id) = match (kind, name) {
            ("u" | "user", "") => (tag::USER_OBJ, 0),
            ("u" | "user", n) => (tag::USER, change::id(v, n, "/etc/passwd")?),
            ("g" | "group", "") => (tag::GROUP_OBJ, 0),
            ("g" | "group", n) => (tag::GROUP, change::id(v, n, "/etc/group")?),
            ("m" | "mask", "") => (tag::MASK, 0),
            ("o" | "other", "") => (tag::OTHER, 0),
            _ => bail!(bad()),
        };
        let perm = match with_perm {
            true => Some(perm(perms).filter(|_| !perms.is_empty()).with_context(bad)?),
            false => None,
        };
        out.push(Spec { default, tag, id, perm });
    }
    Ok(out)
}

/// Sets the lists that an archive gives as text.
///
/// # Errors
/// They are malformed.
pub fn set_from_text(v: &Volume, ino: u64, default: bool, text: &str) -> Result<()> {
    let entry = |s: Spec| AclEntry { tag: s.tag, id: s.id, perm: s.perm.map_or(0, |p| p.bits) };
    let acl = Acl::new(specs(v, text, true)?.into_iter().map(entry).collect()).map_err(|e| anyhow!(e))?;
    Ok(v.fs.set_acl(ino, default, Some(&acl))?)
}

/// What `setfacl` is to do.
#[derive(Default)]
pub struct Change<'a> {
    /// Entries to set.
    pub modify: Option<&'a str>,
    /// Entries to remove.
    pub remove: Option<&'a str>,
    /// Remove all but what the mode says.
    pub remove_all: bool,
    /// Remove the default list.
    pub remove_default: bool,
    /// All entries are meant for the default list.
    pub default: bool,
    /// The mask stays as it is.
    pub keep_mask: bool,
}

/// Changes lists as `setfacl` does.
///
/// # Errors
/// An entry is malformed, or there is no such one; the volume's.
pub fn change(v: &Volume, s: &Stat, c: &Change<'_>) -> Result<()> {
    let mut asked = Vec::new();
    for (text, with_perm) in [(c.remove, false), (c.modify, true)] {
        asked.extend(specs(v, text.unwrap_or(""), with_perm)?);
    }
    for to_default in [false, true] {
        let list: Vec<&Spec> = asked.iter().filter(|a| (a.default || c.default) == to_default).collect();
        let dropped = if to_default { c.remove_default || c.remove_all } else { c.remove_all };
        if list.is_empty() && !dropped {
            continue;
        }
        if to_default && s.mode & FMT != DIR {
            if list.is_empty() {
                continue;
            }
            bail!("only directories have default entries");
        }
        let before = if to_default { stored(v, s, true)? } else { Some(access(v, s)?) };
        let base = || access(v, s).map(|a| basic(&a));
        let mut entries = match before {
            _ if dropped && to_default && list.is_empty() => {
                v.fs.set_acl(s.ino, true, None)?;
                continue;
            }
            Some(a) if !dropped => a.entries().to_vec(),
            Some(a) => basic(&a),
            None => base()?,
        };
        apply(&mut entries, &list, s.mode)?;
        let asked_mask = list.iter().any(|a| a.tag == tag::MASK);
        fit_mask(&mut entries, c.keep_mask || asked_mask);
        let acl = Acl::new(entries).map_err(|e| anyhow!(e))?;
        v.fs.set_acl(s.ino, to_default, Some(&acl))?;
    }
    Ok(())
}

/// The three entries that say what a mode says.
fn basic(a: &Acl) -> Vec<AclEntry> {
    a.entries().iter().copied().filter(|e| matches!(e.tag, tag::USER_OBJ | tag::GROUP_OBJ | tag::OTHER)).collect()
}

fn apply(entries: &mut Vec<AclEntry>, list: &[&Spec], mode: u16) -> Result<()> {
    for a in list {
        let at = entries.iter().position(|e| (e.tag, e.id) == (a.tag, a.id));
        let Some(p) = a.perm else {
            let at = at.context("there is no such entry")?;
            entries.remove(at);
            continue;
        };
        let any_x = mode & FMT == DIR || entries.iter().any(|e| e.perm & 1 != 0);
        let perm = p.bits | u16::from(p.x_if_any && any_x);
        match at {
            Some(i) => entries[i].perm = perm,
            None => entries.push(AclEntry { tag: a.tag, id: a.id, perm }),
        }
    }
    Ok(())
}

/// Makes the mask all that named users and groups may do, unless it is kept; a list that names nobody needs none.
fn fit_mask(entries: &mut Vec<AclEntry>, keep: bool) {
    let named = entries.iter().any(|e| matches!(e.tag, tag::USER | tag::GROUP));
    let at = entries.iter().position(|e| e.tag == tag::MASK);
    let union = entries.iter().filter(|e| matches!(e.tag, tag::USER | tag::GROUP_OBJ | tag::GROUP)).fold(0, |p, e| p | e.perm);
    match at {
        Some(_) if keep => {}
        Some(i) => entries[i].perm = union,
        None if named => entries.push(AclEntry { tag: tag::MASK, id: 0, perm: union }),
        None => {}
    }
}
