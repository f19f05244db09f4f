//! What a directory of one worker must look like, after each of its operations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use uxfs::{AttrName, Entry, Fs};
use uxfs_format::crc::crc32c;

/// A file, directory or link of the model.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub mode: u16,
    pub nlink: u32,
    /// Names of a directory.
    pub names: BTreeMap<String, u32>,
    /// Where a symbolic link leads.
    pub target: Option<String>,
    pub attrs: BTreeMap<String, Vec<u8>>,
    /// The file in the volume.
    pub ino: u64,
    pub data: History,
    /// The last operation that changed it or gave it a name.
    pub changed: u64,
}

impl Node {
    pub fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }
    pub fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }
}

/// What happened to a file's data.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// (operation, event), in order.
    pub events: Vec<(u64, Data)>,
    /// Bytes as users see them.
    pub size: u64,
}

/// A change of a file's data.
#[derive(Clone, Debug)]
pub enum Data {
    /// Bytes written at an offset: `len` times `fill`.
    Write { at: u64, len: u64, fill: u8 },
    /// Blocks of another file take the place of what was there.
    Shared { at: u64, bytes: Vec<u8> },
    /// A new size.
    Size(u64),
    /// All of it is durable, once the operation ended, and the namespace as it was after that many operations.
    Synced(u64),
}

/// Names in a worker's directory that all lead to one file outside it. Of them there may be so many that the directory takes its largest
/// forms: of all together no more is told than how many there are, and a sum.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    /// The file in the volume.
    pub ino: u64,
    pub names: BTreeSet<u32>,
    sum: u64,
}

impl Crowd {
    /// A crowd that leads to file `ino`.
    pub fn new(ino: u64, names: impl Iterator<Item = u32>) -> Crowd {
        let mut c = Crowd { ino, ..Crowd::default() };
        names.for_each(|name| c.turn(name));
        c
    }

    /// A name as it stands in the directory.
    pub fn spell(name: u32) -> String {
        format!("~{name}")
    }

    /// A name comes, or goes if it is there.
    pub fn turn(&mut self, name: u32) {
        if !self.names.remove(&name) {
            self.names.insert(name);
        }
        self.sum ^= fnv(&Crowd::spell(name));
    }

    fn line(&self) -> String {
        format!("{} names beside, {:x}\n", self.names.len(), self.sum)
    }
}

/// The model of one worker's directory. A node's number is kept in the volume as its owner.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<u32, Node>,
    pub crowd: Crowd,
    /// Files that are gone; a cut may bring them back.
    pub gone: BTreeMap<u32, Node>,
    /// The namespace, as a digest, as it may be once so many operations have begun; what it is after them comes last.
    pub digests: Vec<(u64, u64)>,
    /// Operations that made everything durable when they ended.
    pub syncs: Vec<u64>,
    /// Operations that exchanged what two files hold: both or neither has what the other had.
    pub exchanges: Vec<u64>,
    /// The highest number given away.
    pub next: u32,
    /// Operations that found no space.
    pub full: u64,
}

/// The worker's own directory.
pub const TOP: u32 = 1;

fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// What is told of a node. Of attributes' values, which may be long, it is the length and a checksum.
fn line(path: &str, id: u32, mode: u16, nlink: u32, target: Option<&str>, attrs: &BTreeMap<String, Vec<u8>>) -> String {
    let mut text = format!("{path} {id} {mode:o} {nlink} {target:?}");
    for (name, value) in attrs {
        let _ = write!(text, " {name:?} {}:{:x}", value.len(), crc32c(&[value]));
    }
    text + "\n"
}

impl Model {
    /// A directory, in the volume at `ino`, that is empty but for a crowd.
    pub fn new(ino: u64, crowd: Crowd) -> Model {
        let top = Node { mode: 0o040_755, nlink: 2, ino, ..Node::default() };
        let mut m = Model {
            nodes: BTreeMap::from([(TOP, top)]),
            crowd,
            gone: BTreeMap::new(),
            digests: Vec::new(),
            syncs: Vec::new(),
            exchanges: Vec::new(),
            next: TOP + 1,
            full: 0,
        };
        m.note(0, None);
        m
    }

    /// A number for a new node.
    pub fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Notes the namespace as it is when `n` operations have ended, or as it is on the way there while `unowned` has no number.
    pub fn note(&mut self, n: u64, unowned: Option<u32>) {
        let mut text = String::new();
        self.tell(TOP, "", unowned, &mut text);
        text += &self.crowd.line();
        self.digests.push((n, fnv(&text)));
    }

    fn tell(&self, id: u32, path: &str, unowned: Option<u32>, out: &mut String) {
        let n = &self.nodes[&id];
        let shown = if unowned == Some(id) { 0 } else { id };
        *out += &line(path, shown, n.mode, n.nlink, n.target.as_deref(), &n.attrs);
        for (name, child) in &n.names {
            self.tell(*child, &format!("{path}/{name}"), unowned, out);
        }
    }

    /// Where a node is found, from the worker's directory on; each part begins with a slash.
    pub fn path(&self, id: u32) -> Option<String> {
        if id == TOP {
            return Some(String::new());
        }
        let (dir, name) = self.nodes.iter().find_map(|(d, n)| Some((*d, n.names.iter().find(|c| *c.1 == id)?.0)))?;
        Some(format!("{}/{name}", self.path(dir)?))
    }

    /// A node, also one that is gone.
    pub fn any(&self, id: u32) -> Option<&Node> {
        self.nodes.get(&id).or_else(|| self.gone.get(&id))
    }
}

/// What a volume holds in a worker's directory: digest, and the files by number.
pub struct Seen {
    pub digest: u64,
    /// Number, inode, size.
    pub files: Vec<(u32, u64, u64)>,
    pub text: String,
}

/// Reads a worker's directory.
///
/// # Errors
/// The volume's.
pub fn look(fs: &Fs, top: u64) -> uxfs::Result<Seen> {
    let mut seen = Seen { digest: 0, files: Vec::new(), text: String::new() };
    let mut todo = vec![(top, String::new(), TOP)];
    let (mut lines, mut crowd) = (BTreeMap::new(), Crowd::default());
    while let Some((ino, path, known)) = todo.pop() {
        let s = fs.stat(ino)?;
        let id = if known == TOP { TOP } else { s.uid };
        let target = match s.mode & 0o170_000 {
            0o120_000 => Some(String::from_utf8_lossy(&fs.readlink(ino)?).into_owned()),
            _ => None,
        };
        let mut attrs = BTreeMap::new();
        for (namespace, name, _) in fs.list_attrs(ino)? {
            let value = fs.get_attr(ino, AttrName { namespace, name: &name })?;
            attrs.insert(String::from_utf8_lossy(&name).into_owned(), value);
        }
        let mut entries: Vec<Entry> = Vec::new();
        if s.mode & 0o170_000 == 0o040_000 {
            fs.readdir(ino, 0, &mut |e| {
                entries.push(e);
                true
            })?;
        } else if s.mode & 0o170_000 == 0o100_000 {
            seen.files.push((id, ino, s.size));
        }
        for e in entries {
            let name = String::from_utf8_lossy(&e.name).into_owned();
            let beside = if path.is_empty() { name.strip_prefix('~').and_then(|n| n.parse().ok()) } else { None };
            if let Some(n) = beside {
                crowd.turn(n);
            } else if name != "." && name != ".." {
                todo.push((e.ino.0, format!("{path}/{name}"), 0));
            }
        }
        // In the order in which the model tells them: parents first, names sorted.
        lines.insert(order(&path), line(&path, id, s.mode, s.nlink, target.as_deref(), &attrs));
    }
    seen.text = lines.into_values().collect::<String>() + &crowd.line();
    seen.digest = fnv(&seen.text);
    Ok(seen)
}

/// A key under which paths sort as a walk in the order of names meets them.
fn order(path: &str) -> Vec<String> {
    path.split('/').map(str::to_string).collect()
}

impl History {
    /// What a user reads now.
    pub fn content(&self) -> Vec<u8> {
        let mut v = Vec::new();
        self.events.iter().for_each(|(_, e)| apply(&mut v, e));
        v
    }

    /// Checks what a cut left of the file: `began` operations had begun, those below `ended` had ended.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, content: &[u8], began: u64, ended: u64) -> Result<(), String> {
        let base = self.events.iter().rposition(|(op, e)| matches!(e, Data::Synced(_)) && *op < ended).map_or(0, |i| i + 1);
        let (before, since) = self.events.split_at(base);
        let mut synced: Vec<u8> = Vec::new();
        before.iter().for_each(|(_, e)| apply(&mut synced, e));
        let since: Vec<&Data> = since.iter().filter(|(op, _)| *op <= began).map(|(_, e)| e).collect();
        let (mut least, mut most, mut size) = (synced.len() as u64, synced.len() as u64, synced.len() as u64);
        for e in &since {
            size = match e {
                Data::Write { at, len, .. } => size.max(at + len),
                Data::Shared { at, bytes } => size.max(at + bytes.len() as u64),
                Data::Size(s) => *s,
                Data::Synced(_) => size,
            };
            (least, most) = (least.min(size), most.max(size));
        }
        let have = content.len() as u64;
        if have < least || have > most {
            return Err(format!("has {have} bytes, between {least} and {most} were possible"));
        }
        let resized = since.iter().any(|e| matches!(e, Data::Size(_)));
        // Most of it is as it was synced, and looked at in large pieces.
        let same = |range: &Range<usize>| synced.get(range.clone()).is_some_and(|s| *s == content[range.clone()]);
        let pieces = (0..content.len()).step_by(4096).map(|i| i..content.len().min(i + 4096));
        for (i, b) in pieces.filter(|p| !same(p)).flatten().map(|i| (i, &content[i])) {
            let o = i as u64;
            let old = synced.get(i).copied();
            let ok = old == Some(*b) || (*b == 0 && (old.is_none() || resized)) || since.iter().any(|e| may_be(e, o, *b));
            if !ok {
                return Err(format!("byte {o} is {b}, {old:?} was synced and nothing else written there"));
            }
        }
        Ok(())
    }
}

/// True if an event can have left byte `b` at offset `o`.
fn may_be(e: &Data, o: u64, b: u8) -> bool {
    match e {
        Data::Write { at, len, fill } => *fill == b && (*at..at + len).contains(&o),
        Data::Shared { at, bytes } => o.checked_sub(*at).and_then(|i| bytes.get(i as usize)).is_some_and(|x| *x == b),
        Data::Size(_) | Data::Synced(_) => false,
    }
}

fn apply(content: &mut Vec<u8>, e: &Data) {
    match e {
        Data::Write { at, len, fill } => {
            let end = (at + len) as usize;
            if content.len() < end {
                content.resize(end, 0);
            }
            content[*at as usize..end].fill(*fill);
        }
        Data::Shared { at, bytes } => {
            let end = *at as usize + bytes.len();
            content.resize(content.len().max(end), 0);
            content[*at as usize..end].copy_from_slice(bytes);
        }
        Data::Size(s) => content.resize(*s as usize, 0),
        Data::Synced(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_synced_byte_is_noticed() {
        let h = History {
            events: vec![(0, Data::Write { at: 0, len: 4, fill: 7 }), (1, Data::Synced(0)), (2, Data::Write { at: 2, len: 4, fill: 9 })],
            size: 6,
        };
        assert!(h.check(&[7, 7, 9, 9, 9, 9], 2, 2).is_ok());
        assert!(h.check(&[7, 7, 7, 7], 2, 2).is_ok());
        assert!(h.check(&[7, 7, 7, 7, 0, 9], 2, 2).is_ok());
        assert!(h.check(&[0, 7, 7, 7], 2, 2).is_err());
        assert!(h.check(&[7, 7, 7], 2, 2).is_err());
        assert!(h.check(&[], 2, 1).is_ok());
    }
}
