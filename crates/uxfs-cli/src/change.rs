//! Changes of modes and owners as `chmod` and `chown` write them.

use crate::volume::{DIR, FMT, Volume};
use anyhow::{Context, Result, bail};
use std::path::Path;

/// The mode that `text` makes of `old`: octal digits, or clauses like `u+x,go=rX`.
///
/// # Errors
/// It is no mode.
pub fn mode(text: &str, old: u16) -> Result<u16> {
    if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        let m = u16::from_str_radix(text, 8).ok().filter(|m| *m <= 0o7777);
        return m.with_context(|| format!("{text:?} is no mode"));
    }
    let mut m = old & 0o7777;
    for clause in text.split(',') {
        m = apply(clause, m, old & FMT == DIR).with_context(|| format!("{text:?} is no mode"))?;
    }
    Ok(m)
}

fn apply(clause: &str, mut mode: u16, dir: bool) -> Option<u16> {
    let at = clause.find(['+', '-', '='])?;
    let mut who = 0;
    for c in clause[..at].chars() {
        who |= match c {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    if at == 0 {
        who = 0o7777;
    }
    let mut rest = &clause[at..];
    while let Some(op) = rest.chars().next() {
        let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |i| i + 1);
        let mut bits = 0;
        for c in rest[1..end].chars() {
            bits |= match c {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                'X' if dir || mode & 0o111 != 0 => 0o111,
                'X' => 0,
                's' => 0o6000,
                't' => 0o1000,
                'u' => (mode >> 6 & 7) * 0o111,
                'g' => (mode >> 3 & 7) * 0o111,
                'o' => (mode & 7) * 0o111,
                _ => return None,
            };
        }
        bits &= who;
        mode = match op {
            '+' => mode | bits,
            '-' => mode & !bits,
            // A directory's set-ID bits stay unless they are named.
            _ => mode & !(who & if dir { 0o1777 } else { 0o7777 }) | bits,
        };
        rest = &rest[end..];
    }
    Some(mode)
}

/// Owner and group that `OWNER[:GROUP]` or `:GROUP` name: numbers, or names in the volume's own `/etc/passwd` and
/// `/etc/group`.
///
/// # Errors
/// A name is not known there.
pub fn owner(v: &Volume, text: &str) -> Result<(Option<u32>, Option<u32>)> {
    let (user, group) = match text.split_once(':') {
        Some((u, g)) => (u, Some(g)),
        None => (text, None),
    };
    let uid = if user.is_empty() { None } else { Some(id(v, user, "/etc/passwd")?) };
    let gid = match group {
        None | Some("") => None,
        Some(g) => Some(id(v, g, "/etc/group")?),
    };
    if uid.is_none() && gid.is_none() {
        bail!("{text:?} names neither owner nor group");
    }
    Ok((uid, gid))
}

/// Longest table of users that is read.
const MAX_TABLE: u64 = 16 << 20;

/// The number of a user or group: given as one, or by the name in one of the volume's tables.
///
/// # Errors
/// The table does not have the name.
pub fn id(v: &Volume, name: &str, table: &str) -> Result<u32> {
    if let Ok(n) = name.parse() {
        return Ok(n);
    }
    let unknown = || format!("{name:?} is not in the volume's {table}; a number will do");
    let s = v.find(Path::new(table), true)?.with_context(unknown)?;
    let mut text = vec![0; s.size.min(MAX_TABLE) as usize];
    let n = v.fs.read(s.ino, 0, &mut text)?;
    let text = String::from_utf8_lossy(&text[..n]).into_owned();
    let found = text.lines().find_map(|l| {
        let mut f = l.split(':');
        (f.next() == Some(name)).then(|| f.nth(1)).flatten()?.parse().ok()
    });
    found.with_context(unknown)
}

/// A time as `touch -d` gives it: `@SECONDS[.FRACTION]`.
///
/// # Errors
/// It is no such time.
pub fn time(text: &str) -> Result<uxfs::Timestamp> {
    let bad = || format!("{text:?} is no time; @SECONDS since 1970 is");
    let t = text.strip_prefix('@').with_context(bad)?;
    let (sec, part) = t.split_once('.').unwrap_or((t, ""));
    let nsec = format!("{part:0<9}").get(..9).and_then(|n| n.parse().ok()).with_context(bad)?;
    Ok(uxfs::Timestamp { sec: sec.parse().ok().with_context(bad)?, nsec })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_do_what_chmod_does() {
        for (text, old, new) in [
            ("755", 0o100_600, 0o755),
            ("u+x", 0o100_644, 0o744),
            ("go-rwx", 0o100_777, 0o700),
            ("a=rX", 0o100_600, 0o444),
            ("a=rX", 0o040_700, 0o555),
            ("u+s,o+t", 0o100_755, 0o5755),
            ("g=u", 0o100_640, 0o660),
            ("u=rw,g=", 0o040_770, 0o600),
        ] {
            assert_eq!(mode(text, old).ok(), Some(new), "{text}");
        }
        assert!(mode("u+q", 0).is_err() && mode("9", 0).is_err() && mode("", 0).is_err());
    }
}
