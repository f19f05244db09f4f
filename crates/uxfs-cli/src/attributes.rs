//! `getfattr`'s form of attributes.

use crate::acl;
use crate::tree::Xattr;
use crate::volume::Volume;
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use uxfs::AttrName;

/// All attributes of an inode, sorted by name.
///
/// # Errors
/// They are damaged.
pub fn all(v: &Volume, ino: u64) -> Result<Vec<Xattr>> {
    let mut out = Vec::new();
    for (namespace, name, _) in v.fs.list_attrs(ino)? {
        let n = AttrName { namespace, name: &name };
        if let Some(full) = n.full() {
            out.push((OsString::from_vec(full), v.fs.get_attr(ino, n)?));
        }
    }
    out.sort();
    Ok(out)
}

/// All attributes of an inode as the host would have them, where access control lists have other names.
///
/// # Errors
/// They are damaged.
pub fn for_host(v: &Volume, ino: u64) -> Result<Vec<Xattr>> {
    let map = |x: Xattr| AttrName::parse(x.0.as_bytes()).and_then(|n| acl::to_host(n, &x.1)).unwrap_or(x);
    Ok(all(v, ino)?.into_iter().map(map).collect())
}

/// Attributes that two trees can be compared by: without what mkfs.xfs says of a volume on its root.
pub fn comparable(mut list: Vec<Xattr>) -> Vec<Xattr> {
    list.retain(|x| !x.0.as_bytes().starts_with(b"trusted.xfs:"));
    list
}

/// Names whose values differ, or that only one list has.
pub fn differing<'a>(a: &'a [Xattr], b: &'a [Xattr]) -> Vec<&'a OsStr> {
    let mut names: Vec<&OsStr> = a.iter().filter(|x| !b.contains(x)).chain(b.iter().filter(|x| !a.contains(x))).map(|x| &*x.0).collect();
    names.sort();
    names.dedup();
    names
}

/// A value as `getfattr` prints it: text in quotes, anything else in hexadecimal digits.
pub fn show_value(v: &[u8]) -> String {
    let text = std::str::from_utf8(v).ok().filter(|s| !s.chars().any(|c| c.is_control()));
    match text {
        Some(s) => format!("\"{}\"", s.replace('\\', "\\134").replace('"', "\\\"")),
        None => format!("0x{}", v.iter().map(|b| format!("{b:02x}")).collect::<String>()),
    }
}

/// Reads a value as `setfattr` does: `0x` and hexadecimal digits, text in quotes, or text.
///
/// # Errors
/// It is no such value.
pub fn parse_value(v: &OsStr) -> Result<Vec<u8>> {
    let b = v.as_bytes();
    if let Some(hex) = b.strip_prefix(b"0x").or_else(|| b.strip_prefix(b"0X")) {
        if hex.len() % 2 != 0 {
            bail!("a hexadecimal value has an even number of digits");
        }
        let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8).context("not a hexadecimal digit");
        return hex.chunks_exact(2).map(|p| Ok(digit(p[0])? << 4 | digit(p[1])?)).collect();
    }
    if b.starts_with(b"0s") || b.starts_with(b"0S") {
        bail!("values in base 64 are not read; give them as 0x and hexadecimal digits");
    }
    let quoted = b.len() >= 2 && b.starts_with(b"\"") && b.ends_with(b"\"");
    Ok(if quoted { b[1..b.len() - 1].to_vec() } else { b.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_are_shown() {
        for v in [&b"plain"[..], b"\x00\x01\xff", b"caf\xc3\xa9"] {
            assert_eq!(parse_value(OsStr::new(&show_value(v))).ok().as_deref(), Some(v));
        }
        assert!(parse_value(OsStr::new("0x123")).is_err());
    }
}
