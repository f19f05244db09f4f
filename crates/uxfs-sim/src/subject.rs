//! Who does the operations: our engine, or whoever else is held to the same model.

use crate::model::{Crowd, Model, TOP};
use crate::ops::{Made, Op, value};
use uxfs::{Allocate, AttrName, Error, Fs, IoMode, Make, Rename, SetAttr, SetMode};

/// What became of an operation.
pub enum Done {
    /// It was done; the inode number of what it made, else 0.
    Whole(u64),
    /// There was no space. All is as before, but a file whose data was to be changed in place has this content.
    Full(Option<Vec<u8>>),
}

/// A file system under a workload.
pub trait Subject: Sync {
    /// Does an operation that fits the model.
    ///
    /// # Errors
    /// What went wrong, in words.
    fn apply(&self, model: &Model, op: &Op) -> Result<Done, String>;

    /// True if what is made gets its owner, by which it is known, in a step of its own.
    fn owns_later(&self) -> bool {
        false
    }
}

impl Subject for Fs {
    fn apply(&self, model: &Model, op: &Op) -> Result<Done, String> {
        let ino = |id: &u32| model.nodes[id].ino;
        fn attr(name: &str) -> AttrName<'_> {
            AttrName { namespace: 0, name: name.as_bytes() }
        }
        let mut made = 0;
        let done = match op {
            Op::Make { dir, id, name, what } => {
                let s = match what {
                    Made::Link(target) => self.symlink(ino(dir), name.as_bytes(), target.as_bytes(), *id, 0),
                    _ => self.create(ino(dir), name.as_bytes(), Make { mode: what.mode(), uid: *id, gid: 0, rdev: (0, 0), umask: 0 }),
                };
                s.map(|s| made = s.ino)
            }
            Op::Remove { dir, name } => match model.at(*dir, name).is_some_and(|id| model.nodes[&id].is_dir()) {
                true => self.rmdir(ino(dir), name.as_bytes()),
                false => self.unlink(ino(dir), name.as_bytes()),
            },
            Op::Crowd { name, leaves: true } => self.unlink(ino(&TOP), Crowd::spell(*name).as_bytes()),
            Op::Crowd { name, leaves: false } => self.link(model.crowd.ino, ino(&TOP), Crowd::spell(*name).as_bytes()).map(drop),
            Op::Link { id, dir, name } => self.link(ino(id), ino(dir), name.as_bytes()).map(drop),
            Op::Rename { from, to, exchange } => {
                let how = if *exchange { Rename::Exchange } else { Rename::Replace };
                self.rename(ino(&from.0), from.1.as_bytes(), ino(&to.0), to.1.as_bytes(), how)
            }
            Op::SetAttr { id, name, len } => self.set_attr(ino(id), attr(name), &value(*len), SetMode::Any),
            Op::RemoveAttr { id, name } => self.remove_attr(ino(id), attr(name)),
            Op::Chmod { id, mode } => self.setattr(ino(id), SetAttr { mode: Some(*mode), ..SetAttr::default() }).map(drop),
            // Some go past the cache: that promises nothing else.
            Op::Write { id, at, len, fill } => {
                let mode = [IoMode::Direct, IoMode::DropBehind].get(usize::from(fill % 5)).copied().unwrap_or_default();
                let data = vec![*fill; *len as usize];
                let done = match fill % 2 {
                    0 => self.write_given(ino(id), *at, data, 0..*len as usize, mode),
                    _ => self.write_with(ino(id), *at, &data, false, mode),
                };
                done.and_then(|n| if n < *len as usize { Err(Error::NoSpace) } else { Ok(()) })
            }
            Op::Clone { from, to, at, len } => self.clone_range((ino(from), *at), (ino(to), *at), *len),
            Op::Dedupe { from, to, len } => match self.dedupe_range((ino(&from.0), from.1), (ino(&to.0), to.1), *len) {
                Ok(false) => return Err(format!("{op:?}: the same bytes are not found to be the same")),
                done => done.map(drop),
            },
            Op::Exchange { places: [a, b], len } => self.exchange_range((ino(&a.0), a.1), (ino(&b.0), b.1), *len),
            Op::Zero { id, at, len, hole } => {
                self.fallocate(ino(id), if *hole { Allocate::Punch } else { Allocate::Zero { keep_size: true } }, *at, *len)
            }
            Op::Shift { id, at, len, out } => self.fallocate(ino(id), if *out { Allocate::Collapse } else { Allocate::Insert }, *at, *len),
            Op::Reserve { id, at, len } => self.fallocate(ino(id), Allocate::Reserve { keep_size: true }, *at, *len),
            Op::Truncate { id, size } => self.setattr(ino(id), SetAttr { size: Some(*size), ..SetAttr::default() }).map(drop),
            Op::Fsync { id } => self.fsync(ino(id)),
            Op::Sync => self.sync(),
        };
        let say = |e: Error| format!("{op:?}: {e}");
        match (done, op.target()) {
            (Ok(()), _) => Ok(Done::Whole(made)),
            (Err(Error::NoSpace), Some(id)) => {
                let mut content = vec![0; self.stat(ino(&id)).map_err(say)?.size as usize];
                let n = self.read(ino(&id), 0, &mut content).map_err(say)?;
                content.truncate(n);
                Ok(Done::Full(Some(content)))
            }
            (Err(Error::NoSpace), None) if op.takes_space() => Ok(Done::Full(None)),
            (Err(e), _) => Err(say(e)),
        }
    }
}
