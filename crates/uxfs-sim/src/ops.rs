//! Operations as data, so that a workload can be told, done again, and made shorter.

use crate::model::{Data, History, Model, Node, TOP};

/// What is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// An empty file.
    File,
    /// An empty directory.
    Dir,
    /// A symbolic link and where it leads.
    Link(String),
}

impl Made {
    /// Mode of the new inode.
    pub fn mode(&self) -> u16 {
        match self {
            Made::File => 0o100_644,
            Made::Dir => 0o040_755,
            Made::Link(_) => 0o120_777,
        }
    }
}

/// One operation in a worker's directory. Nodes go by their number in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A new node gets a number and a name.
    Make {
        dir: u32,
        id: u32,
        name: String,
        what: Made,
    },
    /// A name goes, and with the last one the node.
    Remove {
        dir: u32,
        name: String,
    },
    /// A file gets one more name.
    Link {
        id: u32,
        dir: u32,
        name: String,
    },
    /// A name moves, over another one perhaps, or two change places.
    Rename {
        from: (u32, String),
        to: (u32, String),
        exchange: bool,
    },
    /// An attribute gets a value of so many bytes.
    SetAttr {
        id: u32,
        name: String,
        len: usize,
    },
    RemoveAttr {
        id: u32,
        name: String,
    },
    Chmod {
        id: u32,
        mode: u16,
    },
    /// `len` times `fill`, which is not 0, so that a written byte differs from a hole.
    Write {
        id: u32,
        at: u64,
        len: u64,
        fill: u8,
    },
    /// `to` shares blocks of `from`, at the same offset.
    Clone {
        from: u32,
        to: u32,
        at: u64,
        len: u64,
    },
    /// `to` shares blocks of `from`, each a file and an offset, which hold the same bytes already.
    Dedupe {
        from: (u32, u64),
        to: (u32, u64),
        len: u64,
    },
    /// Two files, each from an offset on, change what they hold: so many bytes, or all that is there and the sizes. It is durable
    /// when it ends.
    Exchange {
        places: [(u32, u64); 2],
        len: Option<u64>,
    },
    /// Zeros, as a hole or with blocks.
    Zero {
        id: u32,
        at: u64,
        len: u64,
        hole: bool,
    },
    /// A range is taken out, or zeros are put in before it; what lies behind moves.
    Shift {
        id: u32,
        at: u64,
        len: u64,
        out: bool,
    },
    /// Blocks are allocated; the size stays.
    Reserve {
        id: u32,
        at: u64,
        len: u64,
    },
    Truncate {
        id: u32,
        size: u64,
    },
    Fsync {
        id: u32,
    },
    /// A name comes into the worker's directory, or goes, that leads to one file as many others do: see [`Crowd`](crate::model::Crowd).
    Crowd {
        name: u32,
        leaves: bool,
    },
    Sync,
}

/// The value of an attribute of so many bytes.
pub fn value(len: usize) -> Vec<u8> {
    vec![b'a' + (len % 26) as u8; len]
}

impl Op {
    /// True if it may find that there is no space, and then leaves all as it was.
    pub fn takes_space(&self) -> bool {
        let names = matches!(self, Op::Make { .. } | Op::Link { .. } | Op::Rename { .. } | Op::SetAttr { .. });
        names || matches!(self, Op::Dedupe { .. } | Op::Exchange { .. } | Op::Crowd { leaves: false, .. })
    }

    /// The file whose data it changes, in part where there is no space for all.
    pub fn target(&self) -> Option<u32> {
        match self {
            Op::Write { id, .. } | Op::Clone { to: id, .. } | Op::Zero { id, .. } | Op::Shift { id, .. } => Some(*id),
            Op::Reserve { id, .. } | Op::Truncate { id, .. } => Some(*id),
            _ => None,
        }
    }
}

impl Model {
    fn is_file(&self, id: u32) -> bool {
        self.nodes.get(&id).is_some_and(Node::is_file)
    }

    /// Bytes of a file, if it has all of them.
    pub fn bytes(&self, id: u32, at: u64, len: u64) -> Option<Vec<u8>> {
        let node = self.nodes.get(&id).filter(|n| n.is_file() && at + len <= n.data.size)?;
        Some(node.data.content()[at as usize..(at + len) as usize].to_vec())
    }

    fn is_dir(&self, id: u32) -> bool {
        self.nodes.get(&id).is_some_and(Node::is_dir)
    }

    /// The node that a name leads to.
    pub fn at(&self, dir: u32, name: &str) -> Option<u32> {
        self.nodes.get(&dir)?.names.get(name).copied()
    }

    fn is_below(&self, id: u32, above: u32) -> bool {
        id == above || self.nodes.get(&above).is_some_and(|n| n.names.values().any(|c| self.is_below(id, *c)))
    }

    /// True if the operation can be done now: what it needs is there, and what it makes is not.
    pub fn fits(&self, op: &Op) -> bool {
        match op {
            Op::Make { dir, id, name, .. } => self.is_dir(*dir) && self.at(*dir, name).is_none() && self.any(*id).is_none(),
            Op::Remove { dir, name } => self.at(*dir, name).is_some_and(|id| self.nodes[&id].names.is_empty()),
            Op::Link { id, dir, name } => self.is_file(*id) && self.is_dir(*dir) && self.at(*dir, name).is_none(),
            Op::Rename { from, to, exchange } => {
                let Some(id) = self.at(from.0, &from.1) else { return false };
                let other = self.at(to.0, &to.1);
                let plain = self.is_dir(to.0) && other != Some(id) && !self.is_below(to.0, id);
                // Directories neither change places nor take another's.
                plain
                    && if *exchange {
                        other.is_some_and(|o| !self.is_dir(o)) && !self.is_dir(id)
                    } else {
                        other.is_none_or(|o| !self.is_dir(id) && self.is_file(o))
                    }
            }
            Op::SetAttr { id, .. } => *id != TOP && self.nodes.contains_key(id),
            Op::RemoveAttr { id, name } => self.nodes.get(id).is_some_and(|n| n.attrs.contains_key(name)),
            Op::Clone { from, to, at, len } => {
                from != to && self.is_file(*from) && self.is_file(*to) && *len > 0 && at + len <= self.nodes[from].data.size
            }
            Op::Dedupe { from, to, len } => {
                let bytes = |(id, at): &(u32, u64)| self.bytes(*id, *at, *len);
                from.0 != to.0 && *len > 0 && bytes(from).is_some_and(|b| Some(b) == bytes(to))
            }
            Op::Exchange { places: [a, b], len } => {
                let behind = |(id, at): &(u32, u64)| self.nodes.get(id).filter(|n| n.is_file())?.data.size.checked_sub(*at);
                let (Some(x), Some(y)) = (behind(a), behind(b)) else { return false };
                a.0 != b.0 && len.map_or(x.max(y) > 0, |l| (1..=x.min(y)).contains(&l))
            }
            Op::Zero { id, at, len, .. } => self.is_file(*id) && *len > 0 && at + len <= self.nodes[id].data.size,
            Op::Shift { id, at, len, out } => self.is_file(*id) && *len > 0 && at + if *out { *len } else { 0 } < self.nodes[id].data.size,
            Op::Chmod { id, .. } | Op::Write { id, .. } | Op::Reserve { id, .. } | Op::Truncate { id, .. } | Op::Fsync { id } => {
                self.is_file(*id)
            }
            Op::Crowd { name, leaves } => self.crowd.names.contains(name) == *leaves,
            Op::Sync => true,
        }
    }

    /// A node, to be changed by operation `n`.
    fn change(&mut self, n: u64, id: u32) -> &mut Node {
        let node = self.nodes.entry(id).or_default();
        node.changed = n;
        node
    }

    fn data(&mut self, id: u32) -> &mut History {
        &mut self.nodes.entry(id).or_default().data
    }

    fn drop_link(&mut self, n: u64, id: u32) {
        let node = self.change(n, id);
        node.nlink -= 1;
        if node.nlink == 0
            && let Some(node) = self.nodes.remove(&id)
        {
            self.gone.insert(id, node);
        }
    }

    /// Operation `n` found no space; a file whose data it was to change has `content` now.
    pub fn fail(&mut self, n: u64, op: &Op, content: Option<Vec<u8>>) {
        self.full += 1;
        if let (Some(id), Some(bytes)) = (op.target(), content) {
            let d = self.data(id);
            d.size = bytes.len() as u64;
            d.events.push((n, Data::Shared { at: 0, bytes }));
            if matches!(op, Op::Shift { .. }) {
                d.events.push((n, Data::Size(d.size)));
            }
        }
    }

    /// Does operation `n`, which fits; what it made is inode `ino` of the volume.
    pub fn apply(&mut self, n: u64, op: &Op, ino: u64) {
        match op {
            Op::Make { dir, id, name, what } => {
                let mut node = Node { mode: what.mode(), nlink: 1, changed: n, ino, ..Node::default() };
                match what {
                    Made::Dir => {
                        node.nlink = 2;
                        self.change(n, *dir).nlink += 1;
                    }
                    Made::Link(target) => node.target = Some(target.clone()),
                    Made::File => {}
                }
                self.nodes.insert(*id, node);
                self.change(n, *dir).names.insert(name.clone(), *id);
                self.next = self.next.max(*id);
            }
            Op::Remove { dir, name } => {
                let Some(id) = self.change(n, *dir).names.remove(name) else { return };
                if self.is_dir(id) {
                    self.change(n, *dir).nlink -= 1;
                    self.change(n, id).nlink = 1;
                }
                self.drop_link(n, id);
            }
            Op::Link { id, dir, name } => {
                self.change(n, *id).nlink += 1;
                self.change(n, *dir).names.insert(name.clone(), *id);
            }
            Op::Rename { from, to, exchange } => {
                let Some(id) = self.change(n, from.0).names.remove(&from.1) else { return };
                let other = self.change(n, to.0).names.insert(to.1.clone(), id);
                self.change(n, id);
                match other {
                    Some(o) if *exchange => {
                        self.change(n, from.0).names.insert(from.1.clone(), o);
                        self.change(n, o);
                    }
                    Some(o) => self.drop_link(n, o),
                    None => {}
                }
                if self.is_dir(id) {
                    self.change(n, from.0).nlink -= 1;
                    self.change(n, to.0).nlink += 1;
                }
            }
            Op::SetAttr { id, name, len } => drop(self.change(n, *id).attrs.insert(name.clone(), value(*len))),
            Op::RemoveAttr { id, name } => drop(self.change(n, *id).attrs.remove(name)),
            Op::Chmod { id, mode } => self.change(n, *id).mode = 0o100_000 | mode,
            Op::Write { id, at, len, fill } => {
                let d = self.data(*id);
                d.events.push((n, Data::Write { at: *at, len: *len, fill: *fill }));
                d.size = d.size.max(at + len);
            }
            Op::Clone { from, to, at, len } => {
                let bytes = self.data(*from).content()[*at as usize..(at + len) as usize].to_vec();
                let d = self.data(*to);
                d.events.push((n, Data::Shared { at: *at, bytes }));
                d.size = d.size.max(at + len);
            }
            Op::Dedupe { .. } => {}
            Op::Exchange { places, len } => {
                let had = places.map(|(id, at)| self.data(id).content().split_off(at as usize));
                for ((id, at), mut bytes) in places.iter().copied().zip(had.into_iter().rev()) {
                    bytes.truncate(len.map_or(usize::MAX, |l| l as usize));
                    let d = self.data(id);
                    let size = if len.is_none() { at + bytes.len() as u64 } else { d.size };
                    d.events.extend([(n, Data::Shared { at, bytes }), (n, Data::Size(size)), (n, Data::Synced(n))]);
                    d.size = size;
                }
                self.exchanges.push(n);
            }
            Op::Zero { id, at, len, .. } => self.data(*id).events.push((n, Data::Write { at: *at, len: *len, fill: 0 })),
            // On the way a byte is where it was or where it goes, or there is a hole, which may be where the size changed.
            Op::Shift { id, at, len, out } => {
                let d = self.data(*id);
                let mut bytes = d.content().split_off(*at as usize);
                if *out {
                    drop(bytes.drain(..*len as usize))
                } else {
                    drop(bytes.splice(..0, vec![0; *len as usize]))
                }
                d.size = at + bytes.len() as u64;
                d.events.extend([(n, Data::Shared { at: *at, bytes }), (n, Data::Size(d.size))]);
            }
            Op::Reserve { .. } => {}
            Op::Truncate { id, size } => {
                let d = self.data(*id);
                d.events.push((n, Data::Size(*size)));
                d.size = *size;
            }
            Op::Fsync { id } => {
                let names = self.nodes[id].changed + 1;
                self.data(*id).events.push((n, Data::Synced(names)));
            }
            Op::Crowd { name, .. } => self.crowd.turn(*name),
            Op::Sync => {
                for node in self.nodes.values_mut().filter(|node| node.is_file()) {
                    node.data.events.push((n, Data::Synced(n)));
                }
                self.syncs.push(n);
            }
        }
    }
}
