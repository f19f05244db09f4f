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

/// A time as `touch -d` gives it: `@SECONDS[.FRACTION]`, or as `ls` and `stat` show it: `YYYY-MM-DD[ HH:MM[:SS[.FRACTION]][ZONE]]`, where
/// the zone is `Z` or `+HHMM` and UTC without it.
///
/// # Errors
/// It is no such time.
pub fn time(text: &str) -> Result<uxfs::Timestamp> {
    let found = match text.strip_prefix('@') {
        Some(seconds) => fraction(seconds).and_then(|(sec, nsec)| Some((sec.parse().ok()?, nsec))),
        None => calendar(text),
    };
    let bad = || format!("{text:?} is no time; @SECONDS since 1970 is, and YYYY-MM-DD HH:MM:SS +HHMM from the date on");
    let (sec, nsec) = found.with_context(bad)?;
    Ok(uxfs::Timestamp { sec, nsec })
}

/// What stands before a point, and nanoseconds from what stands behind it.
fn fraction(text: &str) -> Option<(&str, u32)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let nsec = part.bytes().all(|b| b.is_ascii_digit()).then(|| format!("{part:0<9}"))?;
    Some((whole, nsec.get(..9)?.parse().ok()?))
}

/// Numbers of two digits or more behind each other, at most so many; those that are missing are 0.
fn fields<const N: usize>(text: &str, between: char) -> Option<[u32; N]> {
    let mut all = [0; N];
    let mut given = text.split(between);
    for (to, f) in all.iter_mut().zip(&mut given) {
        *to = (f.len() > 1 && f.bytes().all(|b| b.is_ascii_digit())).then(|| f.parse().ok())??;
    }
    given.next().is_none().then_some(all)
}

fn calendar(text: &str) -> Option<(i64, u32)> {
    let (date, rest) = text.trim().split_once([' ', 'T']).unwrap_or((text.trim(), "00:00"));
    let [y, m, d] = fields(date, '-')?;
    let rest = rest.trim();
    let (clock, zone) = rest.find(['+', '-', 'Z']).map_or((rest, "Z"), |at| rest.split_at(at));
    let (clock, nsec) = fraction(clock.trim_end())?;
    let [h, min, s] = fields(clock, ':')?;
    let east = match zone.strip_prefix(['+', '-']).map(|z| z.replace(':', "")) {
        None if zone == "Z" => 0,
        Some(z) if z.len() == 4 && z.bytes().all(|b| b.is_ascii_digit()) => {
            let [hours, minutes] = [z.get(..2)?.parse::<i64>().ok()?, z.get(2..)?.parse::<i64>().ok()?];
            (hours * 3600 + minutes * 60) * if zone.starts_with('-') { -1 } else { 1 }
        }
        _ => return None,
    };
    if h > 23 || min > 59 || s > 60 || !clock.contains(':') {
        return None;
    }
    Some((crate::show::days(i64::from(y), m, d)? * 86_400 + i64::from(h * 3600 + min * 60 + s) - east, nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_shown() {
        for (text, sec, nsec) in [
            ("@1000000000.5", 1_000_000_000, 500_000_000),
            ("@-1", -1, 0),
            ("2001-09-09 01:46:40", 1_000_000_000, 0),
            ("2001-09-09T01:46:40.25Z", 1_000_000_000, 250_000_000),
            ("2001-09-09 03:46:40.000000001 +0200", 1_000_000_000, 1),
            ("2001-09-08 20:16:40-05:30", 1_000_000_000, 0),
            ("1969-12-31 23:59", -60, 0),
            ("2000-02-29", 951_782_400, 0),
        ] {
            let t = time(text).unwrap();
            assert_eq!((t.sec, t.nsec), (sec, nsec), "{text}");
        }
        let t = uxfs::Timestamp { sec: -12_345_678_901, nsec: 987_654_321 };
        assert_eq!(time(&crate::show::time_text(t, true)).unwrap(), t);
        for bad in [
            "",
            "@",
            "@x",
            "@1.x",
            "yesterday",
            "2023-02-29",
            "2001-09-09 24:00",
            "2001-09-09 1",
            "2001-09-09 01:60",
            "2001-9-9",
            "2001-09-09 01:46:40 CEST",
            "2001-09-09 01:46:40 +2",
            "2001-09-09 01:46:40 +-130",
            "2001-09-09-01",
            "2001-09-09 01:46:40:50",
        ] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

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
