//! Requests, and what a server's answers are as bytes.

use crate::abi::{self, *};
use crate::serve::{Caller, Change, Data, File, Listing, New, Result, Serve, Time, When, split_dev};
use rustix::io::Errno;
use std::cell::Cell;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Data of so many bytes is one piece of a stream.
const STREAM: u32 = 64 << 10;

/// Bytes of the longest answer that has a fixed size.
pub const SMALL: usize = size_of::<StatxOut>();
/// Bytes of the longest link.
const LONGEST_LINK: usize = 4096;

/// A request as it came.
pub struct Request<'a> {
    /// Who asks for what.
    pub header: InHeader,
    /// What belongs to it, its fixed part first.
    pub args: &'a [u8],
    /// What follows the fixed part, where that came apart from it.
    pub rest: Option<&'a [u8]>,
    /// The data of a write that is given away.
    pub data: Cell<Option<Data<'a>>>,
}

/// Where an answer is put.
pub struct Body<'a> {
    /// At least [`Request::room`] bytes.
    pub into: &'a mut [u8],
    /// Bytes that it has.
    pub len: usize,
}

impl<'a> Body<'a> {
    /// Nothing yet.
    pub fn new(into: &'a mut [u8]) -> Body<'a> {
        Body { into, len: 0 }
    }

    fn bytes(&mut self, b: &[u8]) -> Result<()> {
        self.into.get_mut(self.len..self.len + b.len()).ok_or(Errno::RANGE)?.copy_from_slice(b);
        self.len += b.len();
        Ok(())
    }

    fn put(&mut self, what: &(impl IntoBytes + Immutable)) -> Result<()> {
        self.bytes(what.as_bytes())
    }

    /// Attributes' values and names: their size, if that is what was asked for, or themselves, if they are not too long.
    fn sized(&mut self, value: &[u8], size: u32) -> Result<()> {
        match size as usize {
            0 => self.put(&Getxattr { size: value.len() as u32, padding: 0 }),
            n if value.len() > n => Err(Errno::RANGE),
            _ => self.bytes(value),
        }
    }
}

/// Takes a name off, which ends with a NUL.
fn name(b: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = b.iter().position(|c| *c == 0).ok_or(Errno::INVAL)?;
    Ok((&b[..end], &b[end + 1..]))
}

impl<'a> Request<'a> {
    /// What came; `rest` is what follows the fixed part, where that came apart from it.
    pub fn new(header: InHeader, args: &'a [u8], rest: Option<&'a [u8]>) -> Request<'a> {
        Request { header, args, rest, data: Cell::new(None) }
    }

    /// What came in one piece.
    ///
    /// # Errors
    /// It is shorter than it says.
    pub fn parse(bytes: &'a [u8]) -> Result<Request<'a>> {
        let (header, args) = InHeader::read_from_prefix(bytes).map_err(|_| Errno::IO)?;
        if header.len as usize != bytes.len() {
            return Err(Errno::IO);
        }
        Ok(Request::new(header, args, None))
    }

    fn fixed<T: FromBytes>(&self) -> Result<(T, &'a [u8])> {
        let (fixed, rest) = T::read_from_prefix(self.args).map_err(|_| Errno::IO)?;
        Ok((fixed, self.rest.unwrap_or(rest)))
    }

    fn only<T: FromBytes>(&self) -> Result<T> {
        self.fixed().map(|(fixed, _)| fixed)
    }

    /// What belongs to a request without a fixed part.
    fn text(&self) -> &'a [u8] {
        self.rest.unwrap_or(self.args)
    }

    fn by(&self) -> Caller {
        Caller { uid: self.header.uid, gid: self.header.gid, pid: self.header.pid }
    }

    fn file(&self, handle: u64) -> File {
        File { node: self.header.node, handle }
    }

    fn made(&self, mode: u32, umask: u32, rdev: u32) -> New {
        New { by: self.by(), mode, umask, rdev: split_dev(rdev) }
    }

    /// Bytes that its answer may need.
    pub fn room(&self) -> usize {
        let asked = match self.header.opcode {
            opcode::READ | opcode::READDIR | opcode::READDIRPLUS => self.only::<ReadIn>().map_or(0, |r| r.size as usize),
            opcode::GETXATTR | opcode::LISTXATTR => self.only::<Getxattr>().map_or(0, |g| g.size as usize),
            opcode::IOCTL => self.only::<IoctlIn>().map_or(0, |i| size_of::<IoctlOut>() + i.out_size as usize),
            opcode::READLINK => LONGEST_LINK,
            _ => 0,
        };
        asked.clamp(SMALL, crate::MAX_WRITE + LONGEST_LINK)
    }

    /// True if the kernel waits for no answer.
    pub fn is_told(&self) -> bool {
        matches!(self.header.opcode, opcode::FORGET | opcode::BATCH_FORGET)
    }

    /// True if it is answered in little more time than its data takes to be copied, where it does not wait.
    pub fn is_short(&self) -> bool {
        let long = [opcode::IOCTL, opcode::FALLOCATE, opcode::LSEEK, opcode::COPY_FILE_RANGE, opcode::COPY_FILE_RANGE_64];
        !long.contains(&self.header.opcode)
    }

    /// True if the kernel sends many such at once, and waits for none of them: data that it reads ahead or writes back.
    pub fn is_stream(&self) -> bool {
        match self.header.opcode {
            opcode::READ => self.only::<ReadIn>().is_ok_and(|r| r.size >= STREAM),
            opcode::WRITE => self.only::<WriteIn>().is_ok_and(|w| w.size >= STREAM && w.write_flags & write::CACHE != 0),
            _ => false,
        }
    }

    /// True if it may wait for long, and whoever answers it should be stood in for.
    pub fn is_sync(&self) -> bool {
        matches!(self.header.opcode, opcode::FSYNC | opcode::FSYNCDIR)
    }

    /// True if the kernel may send it for a user who is not the one that caused it.
    pub fn may_be_anybodys(&self) -> bool {
        let whose = [
            opcode::READ,
            opcode::WRITE,
            opcode::READDIR,
            opcode::READDIRPLUS,
            opcode::RELEASE,
            opcode::RELEASEDIR,
            opcode::FSYNC,
            opcode::FSYNCDIR,
            opcode::DESTROY,
        ];
        self.is_told() || whose.contains(&self.header.opcode)
    }

    /// Asks the server, whose answer goes to `body`.
    ///
    /// # Errors
    /// The server's, and ENOSYS for what nobody here knows.
    pub fn answer(&self, s: &dyn Serve, body: &mut Body<'_>) -> Result<()> {
        let node = self.header.node;
        match self.header.opcode {
            opcode::LOOKUP => body.put(&s.lookup(node, name(self.text())?.0)?.unwrap_or_default().wire()),
            opcode::FORGET => {
                s.forget(node, self.only::<Forget>()?.nlookup);
                Ok(())
            }
            opcode::BATCH_FORGET => self.forget_many(s),
            opcode::GETATTR => body.put(&s.getattr(node)?.attr_out()),
            opcode::STATX => body.put(&s.getattr(node)?.statx_out()),
            opcode::SETATTR => body.put(&s.setattr(self.by(), node, self.change()?)?.attr_out()),
            opcode::READLINK => body.bytes(&s.readlink(node)?),
            opcode::SYMLINK => {
                let (link, rest) = name(self.text())?;
                body.put(&s.symlink(self.by(), node, link, name(rest)?.0)?.wire())
            }
            opcode::MKNOD => {
                let (m, rest) = self.fixed::<MknodIn>()?;
                body.put(&s.make(node, name(rest)?.0, self.made(m.mode, m.umask, m.rdev))?.wire())
            }
            opcode::MKDIR => {
                let (m, rest) = self.fixed::<MkdirIn>()?;
                body.put(&s.make(node, name(rest)?.0, self.made(m.mode & 0o7777 | 0o040_000, m.umask, 0))?.wire())
            }
            opcode::UNLINK => s.unlink(node, name(self.text())?.0),
            opcode::RMDIR => s.rmdir(node, name(self.text())?.0),
            opcode::RENAME => {
                let (r, rest) = self.fixed::<RenameIn>()?;
                self.rename(s, r.newdir, rest, 0)
            }
            opcode::RENAME2 => {
                let (r, rest) = self.fixed::<Rename2In>()?;
                self.rename(s, r.newdir, rest, r.flags)
            }
            opcode::LINK => {
                let (l, rest) = self.fixed::<LinkIn>()?;
                body.put(&s.link(l.node, node, name(rest)?.0)?.wire())
            }
            opcode::OPEN => {
                let o = s.open(self.by(), node, self.only::<OpenIn>()?.flags as i32)?;
                body.put(&OpenOut { fh: o.handle, open_flags: o.flags, backing_id: 0 })
            }
            opcode::CREATE | opcode::TMPFILE => self.create(s, body),
            opcode::READ => {
                let r = self.only::<ReadIn>()?;
                let into = body.into.get_mut(..r.size as usize).ok_or(Errno::INVAL)?;
                body.len = s.read(self.file(r.fh), r.offset, into)?;
                Ok(())
            }
            opcode::WRITE => {
                let (w, rest) = self.fixed::<WriteIn>()?;
                let mut data = self.data.take().unwrap_or(Data::Lent(rest));
                data.truncate(w.size as usize).ok_or(Errno::INVAL)?;
                let size = s.write(self.by(), self.file(w.fh), w.offset, data, w.write_flags)?;
                body.put(&WriteOut { size: size as u32, padding: 0 })
            }
            opcode::STATFS => {
                let f = s.statfs()?;
                body.put(&StatfsOut {
                    blocks: f.blocks,
                    bfree: f.free,
                    bavail: f.available,
                    files: f.files,
                    ffree: f.free_files,
                    bsize: f.block_size,
                    namelen: f.name_len,
                    frsize: f.block_size,
                    ..Default::default()
                })
            }
            opcode::RELEASE => {
                s.release(self.file(self.only::<ReleaseIn>()?.fh));
                Ok(())
            }
            opcode::DESTROY => Ok(()),
            opcode::FSYNC => s.fsync(self.by(), self.file(self.only::<FsyncIn>()?.fh)),
            opcode::FSYNCDIR => s.fsyncdir(node),
            opcode::SETXATTR => {
                let (x, rest) = self.fixed::<SetxattrIn>()?;
                let (key, value) = name(rest)?;
                s.setxattr(node, key, value.get(..x.size as usize).ok_or(Errno::INVAL)?, x.flags)
            }
            opcode::GETXATTR => {
                let (x, rest) = self.fixed::<Getxattr>()?;
                body.sized(&s.getxattr(node, name(rest)?.0)?, x.size)
            }
            opcode::LISTXATTR => {
                let x = self.only::<Getxattr>()?;
                body.sized(&s.listxattr(self.by(), node)?, x.size)
            }
            opcode::REMOVEXATTR => s.removexattr(node, name(self.text())?.0),
            opcode::READDIR | opcode::READDIRPLUS => {
                let r = self.only::<ReadIn>()?;
                let into = body.into.get_mut(..r.size as usize).ok_or(Errno::INVAL)?;
                let mut list = Listing { into, len: 0 };
                s.readdir(node, r.offset, self.header.opcode == opcode::READDIRPLUS, &mut list)?;
                body.len = list.len;
                Ok(())
            }
            opcode::IOCTL => {
                let (i, input) = self.fixed::<IoctlIn>()?;
                let input = input.get(..i.in_size as usize).ok_or(Errno::INVAL)?;
                let out = s.ioctl(self.by(), self.file(i.fh), i.cmd, input)?;
                body.put(&IoctlOut::default())?;
                body.bytes(&out)
            }
            opcode::FALLOCATE => {
                let f = self.only::<FallocateIn>()?;
                s.fallocate(self.by(), self.file(f.fh), f.mode as i32, f.offset, f.length)
            }
            opcode::LSEEK => {
                let l = self.only::<LseekIn>()?;
                body.put(&LseekOut { offset: s.lseek(self.file(l.fh), l.offset, l.whence as i32)? })
            }
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => self.copy(s, body),
            _ => Err(Errno::NOSYS),
        }
    }

    fn forget_many(&self, s: &dyn Serve) -> Result<()> {
        let (b, rest) = self.fixed::<BatchForget>()?;
        for one in rest.chunks_exact(size_of::<ForgetOne>()).take(b.count as usize) {
            let f = ForgetOne::read_from_bytes(one).map_err(|_| Errno::IO)?;
            s.forget(f.node, f.nlookup);
        }
        Ok(())
    }

    fn change(&self) -> Result<Change> {
        let a = self.only::<SetattrIn>()?;
        let has = |flag| a.valid & flag != 0;
        let when = |set, now, sec, nsec| match (has(set), has(now)) {
            (false, _) => None,
            (true, true) => Some(When::Now),
            (true, false) => Some(When::At(Time { sec, nsec })),
        };
        Ok(Change {
            mode: has(valid::MODE).then_some(a.mode),
            uid: has(valid::UID).then_some(a.uid),
            gid: has(valid::GID).then_some(a.gid),
            size: has(valid::SIZE).then_some(a.size),
            atime: when(valid::ATIME, valid::ATIME_NOW, a.atime, a.atimensec),
            mtime: when(valid::MTIME, valid::MTIME_NOW, a.mtime, a.mtimensec),
        })
    }

    fn rename(&self, s: &dyn Serve, to: u64, names: &[u8], flags: u32) -> Result<()> {
        let (old, rest) = name(names)?;
        s.rename(self.by(), (self.header.node, old), (to, name(rest)?.0), flags)
    }

    fn create(&self, s: &dyn Serve, body: &mut Body<'_>) -> Result<()> {
        let (c, rest) = self.fixed::<CreateIn>()?;
        let (new, dir, flags) = (self.made(c.mode & 0o7777 | 0o100_000, c.umask, 0), self.header.node, c.flags as i32);
        let (entry, open) = match self.header.opcode {
            opcode::CREATE => s.create(dir, name(rest)?.0, new, flags)?,
            _ => s.tmpfile(dir, new, flags)?,
        };
        body.put(&entry.wire())?;
        body.put(&OpenOut { fh: open.handle, open_flags: open.flags, backing_id: 0 })
    }

    fn copy(&self, s: &dyn Serve, body: &mut Body<'_>) -> Result<()> {
        let c = self.only::<CopyIn>()?;
        let to = File { node: c.node_out, handle: c.fh_out };
        let most = if self.header.opcode == opcode::COPY_FILE_RANGE { u64::from(u32::MAX) } else { u64::MAX };
        let bytes = s.copy_file_range(self.by(), (self.file(c.fh_in), c.off_in), (to, c.off_out), c.len.min(most))?;
        match self.header.opcode {
            opcode::COPY_FILE_RANGE => body.put(&WriteOut { size: bytes as u32, padding: 0 }),
            _ => body.put(&CopyOut { bytes }),
        }
    }
}

/// The flags of INIT in both their words.
fn offered(args: &[u8], first: &InitIn) -> u64 {
    let more = args.get(size_of::<InitIn>()..).and_then(|b| u32::read_from_prefix(b).ok());
    let more = more.map(|(word, _)| u64::from(word)).filter(|_| u64::from(first.flags) & init::INIT_EXT != 0);
    u64::from(first.flags) | more.unwrap_or(0) << 32
}

/// Answers INIT: what is agreed on, or the version alone if the kernel has a later one and is to ask again.
///
/// # Errors
/// The kernel is too old, or lacks what the server cannot do without.
pub fn agree(r: &Request<'_>, s: &dyn Serve, io_uring: bool) -> std::io::Result<(InitOut, u64)> {
    let unsupported = |what: String| std::io::Error::new(std::io::ErrorKind::Unsupported, what);
    let first = r.only::<InitIn>()?;
    let answer = InitOut { major: abi::MAJOR, minor: first.minor.min(*abi::MINORS.end()), ..Default::default() };
    if first.major > abi::MAJOR {
        return Ok((InitOut { minor: *abi::MINORS.end(), ..answer }, 0));
    }
    if first.major < abi::MAJOR || first.minor < *abi::MINORS.start() {
        let needed = format!("{}.{} (Linux 5.4)", abi::MAJOR, abi::MINORS.start());
        return Err(unsupported(format!("this kernel speaks FUSE {}.{}; {needed} or later is needed", first.major, first.minor)));
    }
    let offered = offered(r.args, &first);
    let always = init::ASYNC_READ | init::BIG_WRITES | init::MAX_PAGES | init::INIT_EXT;
    if io_uring {
        crate::ring::is_offered(offered & init::OVER_IO_URING != 0)?;
    }
    let over = if io_uring { init::OVER_IO_URING } else { 0 };
    let flags = (s.wants(offered)? & !init::OVER_IO_URING | always | over) & offered;
    let answer = InitOut {
        max_readahead: first.max_readahead.max(crate::MAX_WRITE as u32),
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: crate::BACKGROUND,
        congestion_threshold: crate::BACKGROUND / 4 * 3,
        max_write: crate::MAX_WRITE as u32,
        time_gran: 1,
        max_pages: (crate::MAX_WRITE / 4096) as u16,
        ..answer
    };
    Ok((answer, flags))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::{Attr, Entry};

    struct Echo;

    impl Serve for Echo {
        fn wants(&self, _: u64) -> std::io::Result<u64> {
            Ok(init::POSIX_ACL | init::DIRECT_IO_ALLOW_MMAP)
        }
        fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<Entry>> {
            let attr = Attr { node: dir + name.len() as u64, ..Attr::default() };
            Ok((!name.is_empty()).then_some(Entry { attr, generation: 3 }))
        }
        fn getxattr(&self, _: u64, name: &[u8]) -> Result<Vec<u8>> {
            Ok(name.to_vec())
        }
        fn write(&self, _: Caller, _: File, _: u64, data: Data<'_>, _: u32) -> Result<usize> {
            Ok(data.iter().map(|b| usize::from(*b)).sum())
        }
        fn read(&self, _: File, offset: u64, into: &mut [u8]) -> Result<usize> {
            into.fill(offset as u8);
            Ok(into.len())
        }
    }

    fn ask(opcode: u32, args: &[u8]) -> Result<Vec<u8>> {
        let header = InHeader { opcode, node: 10, len: (40 + args.len()) as u32, ..Default::default() };
        let bytes = [header.as_bytes(), args].concat();
        let r = Request::parse(&bytes)?;
        let mut into = vec![0; r.room()];
        let mut body = Body::new(&mut into);
        r.answer(&Echo, &mut body)?;
        let len = body.len;
        into.truncate(len);
        Ok(into)
    }

    #[test]
    fn what_does_not_fit_its_own_length_is_refused() {
        let whole = [InHeader { opcode: opcode::LOOKUP, len: 43, ..Default::default() }.as_bytes(), b"ab\0"].concat();
        assert!(Request::parse(&whole).is_ok());
        assert!(Request::parse(&whole[..42]).is_err() && Request::parse(&whole[..10]).is_err());
        assert_eq!(ask(opcode::LOOKUP, b"no end"), Err(Errno::INVAL));
        assert_eq!(ask(opcode::WRITE, &[0; 39]), Err(Errno::IO));
        let more_than_there_is = WriteIn { size: 10, ..Default::default() };
        assert_eq!(ask(opcode::WRITE, more_than_there_is.as_bytes()), Err(Errno::INVAL));
        assert_eq!(ask(opcode::READ, ReadIn { size: u32::MAX, ..Default::default() }.as_bytes()), Err(Errno::INVAL));
        assert_eq!(ask(999, &[]), Err(Errno::NOSYS));
    }

    #[test]
    fn of_what_is_given_away_a_write_is_its_own_data() {
        let wrote = |size: u32| {
            let w = WriteIn { size, ..Default::default() };
            let r = Request::new(InHeader { opcode: opcode::WRITE, ..Default::default() }, w.as_bytes(), None);
            r.data.set(Some(Data::Given { buffer: vec![1, 2, 4, 8, 16], part: 1..4 }));
            let mut into = [0; SMALL];
            let mut body = Body::new(&mut into);
            r.answer(&Echo, &mut body).map(|()| (body.len, into[0]))
        };
        assert_eq!([wrote(3), wrote(2), wrote(0)], [Ok((8, 14)), Ok((8, 6)), Ok((8, 0))]);
        assert_eq!([wrote(4), wrote(u32::MAX)], [Err(Errno::INVAL); 2]);
    }

    #[test]
    fn whatever_comes_is_answered_or_refused() {
        let chance = uxfs_sync::Chance::seeded(7);
        for n in 0..200_000u32 {
            let len = chance.below(120) as usize;
            // Small numbers are more often lengths that fit.
            let args: Vec<u8> = (0..len).map(|_| if chance.below(3) == 0 { chance.below(256) as u8 } else { 0 }).collect();
            let _ = ask(n % 60, &args);
        }
    }

    #[test]
    fn answers_are_what_the_kernel_expects() {
        let found = ask(opcode::LOOKUP, b"abc\0").unwrap();
        assert_eq!((found.len(), &found[..16]), (128, [13u64, 3].as_bytes()));
        assert_eq!(ask(opcode::LOOKUP, b"\0").unwrap()[..8], [0; 8]);
        let size = |n: u32| [Getxattr { size: n, padding: 0 }.as_bytes(), b"user.a\0"].concat();
        assert_eq!(ask(opcode::GETXATTR, &size(0)).unwrap(), Getxattr { size: 6, padding: 0 }.as_bytes());
        assert_eq!(ask(opcode::GETXATTR, &size(5)), Err(Errno::RANGE));
        assert_eq!(ask(opcode::GETXATTR, &size(6)).unwrap(), b"user.a");
        assert_eq!(ask(opcode::READ, ReadIn { size: 3, offset: 9, ..Default::default() }.as_bytes()).unwrap(), [9; 3]);
    }

    #[test]
    fn only_what_the_kernel_offers_is_agreed_on() {
        let agree = |first: InitIn, more: u32| {
            let args = [first.as_bytes(), more.as_bytes()].concat();
            let header = InHeader { opcode: opcode::INIT, ..Default::default() };
            super::agree(&Request::new(header, &args, None), &Echo, false)
        };
        let flags = (init::INIT_EXT | init::POSIX_ACL) as u32;
        let kernel = InitIn { major: 7, minor: 99, max_readahead: 1, flags };
        let (out, agreed) = agree(kernel, 1 << 4).unwrap();
        assert_eq!(agreed, init::INIT_EXT | init::POSIX_ACL | init::DIRECT_IO_ALLOW_MMAP);
        assert_eq!((out.minor, out.flags, out.flags2), (*abi::MINORS.end(), flags, 1 << 4));
        // Without the flag that says so there is no second word.
        assert_eq!(agree(InitIn { flags: 0, ..kernel }, 1 << 4).unwrap().1, 0);
        assert!(agree(InitIn { minor: 30, ..kernel }, 0).is_err());
        assert_eq!(agree(InitIn { major: 8, ..kernel }, 0).unwrap().0.major, 7);
    }
}
