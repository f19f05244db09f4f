//! Prototype files of mkfs.xfs: what a new volume holds, word by word. They become an archive, and go its way.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// Deeper directories than any path allows.
const DEEPEST: usize = 2048;

/// Words of a prototype, without comments, with their lines.
struct Words<'a> {
    left: std::vec::IntoIter<(usize, &'a [u8])>,
    line: usize,
}

impl<'a> Words<'a> {
    fn of(text: &'a [u8]) -> Words<'a> {
        let mut all = Vec::new();
        for (i, line) in text.split(|b| *b == b'\n').enumerate() {
            let line = line.split(|b| *b == b':').next().unwrap_or_default();
            all.extend(line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).map(|w| (i + 1, w)));
        }
        Words { left: all.into_iter(), line: 1 }
    }

    fn word(&mut self, what: &str) -> Result<&'a [u8]> {
        let (line, w) = self.left.next().with_context(|| format!("line {}: ends where {what} should stand", self.line))?;
        self.line = line;
        Ok(w)
    }

    fn number(&mut self, what: &str) -> Result<u64> {
        let w = self.word(what)?;
        let n = std::str::from_utf8(w).ok().and_then(|s| s.parse().ok());
        n.with_context(|| format!("line {}: {} is no number, {what} should stand there", self.line, String::from_utf8_lossy(w)))
    }
}

/// Writes what the prototype `text` asks for as an archive; times are `time`, seconds since 1970.
///
/// # Errors
/// The prototype is malformed: with the line; a file that it names cannot be read.
pub fn to_archive(text: &[u8], time: u64, out: impl Write) -> Result<()> {
    let mut w = Words::of(text);
    // Names and numbers that nobody has needed for long.
    w.word("the name of a boot block")?;
    w.number("a number of blocks")?;
    w.number("a number of inodes")?;
    let mut b = Builder::new(out);
    let mut dir = PathBuf::from(".");
    if !entry(&mut w, &mut b, &dir, time)? {
        bail!("line {}: the root is no directory", w.line);
    }
    let mut depth = 1;
    while depth > 0 {
        match w.word("a name or $")? {
            b"$" => {
                dir.pop();
                depth -= 1;
            }
            name => {
                if name.contains(&b'/') || name == b"." || name == b".." {
                    bail!("line {}: {} cannot be a name", w.line, String::from_utf8_lossy(name));
                }
                let path = dir.join(OsStr::from_bytes(name));
                if entry(&mut w, &mut b, &path, time)? {
                    if depth == DEEPEST {
                        bail!("line {}: directories are nested too deep", w.line);
                    }
                    dir = path;
                    depth += 1;
                }
            }
        }
    }
    b.finish()?;
    Ok(())
}

/// Reads what stands behind a name, and writes the entry; true for a directory.
fn entry(w: &mut Words<'_>, b: &mut Builder<impl Write>, path: &Path, time: u64) -> Result<bool> {
    let mode = w.word("a mode")?;
    let bad =
        |line: usize| format!("line {line}: {} is no mode: a type of -bcdpl, u or -, g or -, three digits", String::from_utf8_lossy(mode));
    let [kind, setuid @ (b'u' | b'-'), setgid @ (b'g' | b'-'), digits @ ..] = mode else { bail!(bad(w.line)) };
    let bits = std::str::from_utf8(digits).ok().filter(|d| d.len() == 3).and_then(|d| u32::from_str_radix(d, 8).ok());
    let bits = bits.with_context(|| bad(w.line))?;
    let mut h = Header::new_gnu();
    h.set_mode(bits | if *setuid == b'u' { 0o4000 } else { 0 } | if *setgid == b'g' { 0o2000 } else { 0 });
    h.set_uid(w.number("an owner")?);
    h.set_gid(w.number("a group")?);
    h.set_mtime(time);
    h.set_size(0);
    let none = std::io::empty();
    match kind {
        b'd' => {
            h.set_entry_type(EntryType::Directory);
            b.append_data(&mut h, path, none)?;
        }
        b'-' => {
            let source = Path::new(OsStr::from_bytes(w.word("the path of a file's content")?));
            let f = File::open(source).with_context(|| format!("line {}: cannot open {}", w.line, source.display()))?;
            h.set_entry_type(EntryType::Regular);
            h.set_size(f.metadata()?.len());
            b.append_data(&mut h, path, f)?;
        }
        b'l' => {
            h.set_entry_type(EntryType::Symlink);
            b.append_link(&mut h, path, OsStr::from_bytes(w.word("the target of a link")?))?;
        }
        b'p' => {
            h.set_entry_type(EntryType::Fifo);
            b.append_data(&mut h, path, none)?;
        }
        b'b' | b'c' => {
            h.set_entry_type(if *kind == b'b' { EntryType::Block } else { EntryType::Char });
            let mut part = |what| {
                let n = w.number(what)?;
                u32::try_from(n).with_context(|| format!("line {}: {n} is too large for {what}", w.line))
            };
            h.set_device_major(part("a major number")?)?;
            h.set_device_minor(part("a minor number")?)?;
            b.append_data(&mut h, path, none)?;
        }
        _ => bail!(bad(w.line)),
    }
    Ok(*kind == b'd')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let whole = "boot\n1 2\nd--755 0 0\nsub d-g750 1 2\n$\nnode b--600 0 0 7 300 : a comment\nlink l--777 0 0 /target\n$\n";
        let mut out = Vec::new();
        to_archive(whole.as_bytes(), 0, &mut out).unwrap();
        let kinds = tar::Archive::new(&out[..]).entries().unwrap().map(|e| e.unwrap().header().entry_type()).collect::<Vec<_>>();
        assert_eq!(kinds, [EntryType::Directory, EntryType::Directory, EntryType::Block, EntryType::Symlink]);
        for (from, to, line) in
            [("b--600", "x--600", 6), ("d-g750", "d-g75", 4), (" 7 300", " seven 300", 6), ("\n$\n$", "", 0), ("d--755", "p--755", 3)]
        {
            let e = to_archive(whole.replacen(from, to, 1).as_bytes(), 0, Vec::new());
            if line > 0 {
                let e = e.unwrap_err().to_string();
                assert!(e.starts_with(&format!("line {line}: ")), "{e}");
            }
        }
        assert!(to_archive(&whole.as_bytes()[..whole.len() - 2], 0, Vec::new()).unwrap_err().to_string().contains("ends where"));
    }
}
