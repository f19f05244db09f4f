//! dbench's load: what a file server was asked for by one client, done by [`Fs`]'s own calls.

use crate::peers::file;
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use uxfs::{Error, Fs, Make, Rename, SetAttr, Timestamp};

/// One request. Paths are those below a client's directory, in small letters; handles are the load's.
enum Op {
    /// Opens, makes or looks for a path; under a handle if it is there then.
    Create {
        path: Vec<String>,
        dir: bool,
        make: bool,
        handle: Option<u32>,
    },
    Close(u32),
    Read(u32, u64, usize),
    Write(u32, u64, usize),
    Flush(u32),
    Query(Vec<String>),
    QueryFile(u32),
    QueryFs,
    SetFile(u32),
    Find(Vec<String>),
    Unlink(Vec<String>),
    Rename(Vec<String>, Vec<String>),
}

/// A load, in order.
pub struct Load(Vec<Op>);

/// The words of a line; what stands in quotes is one.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    parts.flat_map(|(i, p)| if i % 2 == 1 { vec![p.to_string()] } else { p.split_whitespace().map(str::to_string).collect() }).collect()
}

/// What lies below a client's own directory.
fn path(text: &str) -> Vec<String> {
    text.split('\\').filter(|c| !c.is_empty()).skip(2).map(str::to_lowercase).collect()
}

impl Load {
    /// Reads a load file.
    ///
    /// # Errors
    /// It is not there, or not understood.
    pub fn read(file: &str) -> Result<Load> {
        let text = std::fs::read_to_string(file).with_context(|| format!("{file}: install it with: apt-get install dbench"))?;
        let ops = text.lines().filter_map(|l| parse(l).with_context(|| l.to_string()).transpose());
        ops.collect::<Result<_>>().map(Load)
    }
}

fn parse(line: &str) -> Result<Option<Op>> {
    let w = words(line);
    let word = |n: usize| w.get(n).map(String::as_str).context("too short");
    let number = |n: usize| -> Result<u64> {
        let t = word(n)?;
        Ok(match t.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16)?,
            None => t.parse()?,
        })
    };
    let handle = |n: usize| number(n).map(|h| h as u32);
    Ok(Some(match word(0)? {
        "NTCreateX" => {
            let found = w.last().is_some_and(|s| s == "NT_STATUS_OK");
            let (dir, make) = (number(2)? & 1 != 0, number(3)? != 1);
            Op::Create { path: path(word(1)?), dir, make, handle: if found { Some(handle(4)?) } else { None } }
        }
        "Close" => Op::Close(handle(1)?),
        "ReadX" => Op::Read(handle(1)?, number(2)?, number(3)? as usize),
        "WriteX" => Op::Write(handle(1)?, number(2)?, number(3)? as usize),
        "Flush" => Op::Flush(handle(1)?),
        "QUERY_PATH_INFORMATION" => Op::Query(path(word(1)?)),
        "QUERY_FILE_INFORMATION" => Op::QueryFile(handle(1)?),
        "QUERY_FS_INFORMATION" => Op::QueryFs,
        "SET_FILE_INFORMATION" => Op::SetFile(handle(1)?),
        "FIND_FIRST" => {
            let mut p = path(word(1)?);
            p.pop();
            Op::Find(p)
        }
        "Unlink" => Op::Unlink(path(word(1)?)),
        "Rename" => Op::Rename(path(word(1)?), path(word(2)?)),
        // Nobody else has these files, and the client's directory is made anew each time.
        "LockX" | "UnlockX" | "Mkdir" | "Deltree" => return Ok(None),
        other => bail!("{other} is no request"),
    }))
}

/// What a client did.
#[derive(Default)]
pub struct Done {
    /// Bytes read and written.
    pub bytes: u64,
    /// Requests.
    pub ops: u64,
    /// The slowest of all.
    pub slowest: Duration,
}

/// A client at work, with its own directory.
struct Client<'a> {
    fs: &'a Fs,
    home: u64,
    open: HashMap<u32, u64>,
    buf: Vec<u8>,
}

fn absent<T>(r: Result<T, Error>) -> Result<Option<T>> {
    match r {
        Ok(t) => Ok(Some(t)),
        Err(Error::NotFound | Error::NotDirectory | Error::Stale) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

impl Client<'_> {
    fn find(&self, path: &[String]) -> Result<Option<u64>> {
        let mut at = self.home;
        for name in path {
            match absent(self.fs.lookup(at, name.as_bytes()))? {
                Some(s) => at = s.ino,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// The directory of a path, and its last name.
    fn parent<'p>(&self, path: &'p [String]) -> Result<Option<(u64, &'p [u8])>> {
        let Some((name, above)) = path.split_last() else { return Ok(None) };
        Ok(self.find(above)?.map(|d| (d, name.as_bytes())))
    }

    /// Does one request; returns the bytes that it moved. What is not there, as in the recording, is nothing.
    fn one(&mut self, op: &Op) -> Result<usize> {
        let fs = self.fs;
        let at = |h: &u32| self.open.get(h).copied();
        match op {
            Op::Create { path, dir, make, handle } => {
                let mut found = self.find(path)?;
                if found.is_none()
                    && *make
                    && let Some((d, name)) = self.parent(path)?
                {
                    let m = if *dir { Make { mode: 0o040_755, ..file() } } else { file() };
                    found = Some(fs.create(d, name, m)?.ino);
                }
                if let (Some(ino), Some(h)) = (found, handle) {
                    self.open.insert(*h, ino);
                }
            }
            Op::Close(h) => drop(self.open.remove(h)),
            Op::Read(h, offset, len) => {
                if let Some(ino) = at(h) {
                    return Ok(absent(fs.read(ino, *offset, &mut self.buf[..*len]))?.unwrap_or(0));
                }
            }
            Op::Write(h, offset, len) => {
                if let Some(ino) = at(h) {
                    absent(fs.write(ino, *offset, &self.buf[..*len], false))?;
                    return Ok(*len);
                }
            }
            Op::Flush(h) => {
                at(h).map(|ino| absent(fs.fsync(ino))).transpose()?;
            }
            Op::Query(path) => {
                self.find(path)?;
            }
            Op::QueryFile(h) => {
                at(h).map(|ino| absent(fs.stat(ino))).transpose()?;
            }
            Op::QueryFs => {
                fs.statfs();
            }
            Op::SetFile(h) => {
                let times = SetAttr { mtime: Some(Timestamp { sec: 1_000_000_000, nsec: 0 }), ..SetAttr::default() };
                at(h).map(|ino| absent(fs.setattr(ino, times))).transpose()?;
            }
            Op::Find(path) => {
                if let Some(d) = self.find(path)? {
                    let mut names = 0;
                    absent(fs.readdir(d, 0, &mut |e| {
                        names += e.name.len();
                        true
                    }))?;
                }
            }
            Op::Unlink(path) => {
                if let Some((d, name)) = self.parent(path)? {
                    absent(fs.unlink(d, name))?;
                }
            }
            Op::Rename(from, to) => {
                if let (Some((d, name)), Some((e, new))) = (self.parent(from)?, self.parent(to)?) {
                    absent(fs.rename(d, name, e, new, Rename::Replace))?;
                }
            }
        }
        Ok(0)
    }
}

/// Does the load again and again in a new directory of this name, until `end`.
///
/// # Errors
/// The volume failed.
pub fn run(load: &Load, fs: &Fs, name: &str, end: Instant) -> Result<Done> {
    let mut done = Done::default();
    for turn in 0.. {
        let home = fs.create(fs.root(), format!("{name}-{turn}").as_bytes(), Make { mode: 0o040_755, ..file() })?.ino;
        let mut c = Client { fs, home, open: HashMap::new(), buf: vec![7; 1 << 20] };
        for op in &load.0 {
            let begun = Instant::now();
            done.bytes += c.one(op)? as u64;
            done.ops += 1;
            done.slowest = done.slowest.max(begun.elapsed());
            if begun >= end {
                return Ok(done);
            }
        }
    }
    Ok(done)
}
