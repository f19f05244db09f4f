//! What POSIX says of permissions, errors, links and times: each check runs on the kernel's XFS and on a mount of uxfs, and both must answer
//! the same. The checks are those of pjdfstest's kind: every call, on every type, by every kind of user; the oracle gives the answers.

#[expect(dead_code, reason = "shared with tests that use more of it")]
mod common;

use common::*;
use rustix::fs::{
    self, Access, AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
};
use rustix::io;
use rustix::process::{Gid, Uid};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Who calls: user, group, and one further group.
#[derive(Clone, Copy)]
struct Actor {
    name: &'static str,
    uid: u32,
    gid: u32,
    group: u32,
}

const ROOT: Actor = Actor { name: "root", uid: 0, gid: 0, group: 0 };
const OWNER: Actor = Actor { name: "owner", uid: 1000, gid: 1000, group: 1001 };
const MEMBER: Actor = Actor { name: "member", uid: 1002, gid: 1002, group: 1000 };
const OTHER: Actor = Actor { name: "other", uid: 1003, gid: 1003, group: 1003 };

/// One of the two trees, and what the calls on it answered.
struct World {
    at: PathBuf,
    said: Vec<String>,
}

type Seen = Option<fs::Stat>;

/// Runs `f` as somebody else, on this thread alone.
fn by<T>(a: Actor, f: impl FnOnce() -> T) -> T {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let id = |u: u32, g: u32| {
        set_thread_res_gid(Gid::ROOT, Gid::from_raw(g), Gid::ROOT).unwrap();
        set_thread_res_uid(Uid::ROOT, Uid::from_raw(u), Uid::ROOT).unwrap();
    };
    set_thread_groups(&[Gid::from_raw(a.group)]).unwrap();
    id(a.uid, a.gid);
    let r = f();
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).unwrap();
    id(0, 0);
    set_thread_groups(&[]).unwrap();
    r
}

fn answer<T>(r: io::Result<T>, show: impl FnOnce(T) -> String) -> String {
    match r {
        Ok(v) => show(v),
        Err(e) => match e.raw_os_error() {
            1 => "EPERM".into(),
            95 => "EOPNOTSUPP".into(),
            n => format!("errno {n}"),
        },
    }
}

fn done<T>(r: io::Result<T>) -> String {
    answer(r, |_| "ok".into())
}

fn describe(s: &Seen) -> String {
    let Some(s) = s else { return "absent".into() };
    let kind = FileType::from_raw_mode(s.st_mode);
    format!("{kind:?} {:o} {}:{} links {} size {} dev {}", s.st_mode & 0o7777, s.st_uid, s.st_gid, s.st_nlink, s.st_size, s.st_rdev)
}

/// Which times moved; access times follow the mount's options, so only explicit changes of them are compared.
fn moved(before: &Seen, after: &Seen) -> String {
    let (Some(b), Some(a)) = (before, after) else { return String::new() };
    if a.st_ino != b.st_ino {
        return " another".into();
    }
    let mut s = String::new();
    if (b.st_mtime, b.st_mtime_nsec) != (a.st_mtime, a.st_mtime_nsec) {
        s.push_str(" mtime");
    }
    if (b.st_ctime, b.st_ctime_nsec) != (a.st_ctime, a.st_ctime_nsec) {
        s.push_str(" ctime");
    }
    s
}

impl World {
    fn new(at: &Path) -> World {
        World { at: at.to_path_buf(), said: Vec::new() }
    }

    fn path(&self, p: &str) -> PathBuf {
        self.at.join(p)
    }

    fn seen(&self, p: &str) -> Seen {
        fs::lstat(self.path(p)).ok()
    }

    fn dir(&self, p: &str, mode: u32, uid: u32, gid: u32) {
        std::fs::create_dir(self.path(p)).unwrap();
        self.own(p, mode, uid, gid);
    }

    /// Gives something away; the mode afterwards, since a change of owners clears bits.
    fn own(&self, p: &str, mode: u32, uid: u32, gid: u32) {
        fs::chownat(CWD, self.path(p), Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW).unwrap();
        if !self.seen(p).is_some_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Symlink) {
            fs::chmod(self.path(p), Mode::from_raw_mode(mode)).unwrap();
        }
    }

    /// Makes one of [`KINDS`] at `p`, and what it points to.
    fn thing(&self, kind: &str, p: &str, mode: u32, uid: u32, gid: u32) {
        let at = self.path(p);
        let node = |t, dev| fs::mknodat(CWD, &at, t, Mode::from_raw_mode(0o600), dev).unwrap();
        match kind {
            "file" => std::fs::write(&at, "twelve bytes").unwrap(),
            "dir" => std::fs::create_dir(&at).unwrap(),
            "full dir" => {
                std::fs::create_dir(&at).unwrap();
                std::fs::write(at.join("entry"), "x").unwrap();
            }
            "fifo" => node(FileType::Fifo, 0),
            "char" => node(FileType::CharacterDevice, fs::makedev(1, 3)),
            "block" => node(FileType::BlockDevice, fs::makedev(7, 77)),
            "socket" => node(FileType::Socket, 0),
            "link to file" => {
                self.thing("file", &format!("{p}-target"), mode, uid, gid);
                fs::symlink(format!("{}-target", p.rsplit('/').next().unwrap()), &at).unwrap();
            }
            "link to dir" => {
                self.thing("dir", &format!("{p}-target"), mode, uid, gid);
                fs::symlink(format!("{}-target", p.rsplit('/').next().unwrap()), &at).unwrap();
            }
            "dangling" => fs::symlink("nothing", &at).unwrap(),
            "loop" => fs::symlink(p.rsplit('/').next().unwrap(), &at).unwrap(),
            "missing" => return,
            k => panic!("{k}"),
        }
        self.own(p, mode, uid, gid);
    }

    /// Makes a call as `a` and notes its answer, and what became of the paths in `watch`.
    fn check(&mut self, what: &str, a: Actor, watch: &[&str], call: impl FnOnce(&World) -> String) {
        let before: Vec<Seen> = watch.iter().map(|p| self.seen(p)).collect();
        let said = by(a, || call(self));
        let mut line = format!("{what} by {}: {said}", a.name);
        for (p, b) in watch.iter().zip(&before) {
            let now = self.seen(p);
            line += &format!("; {p}: {}{}", describe(&now), moved(b, &now));
        }
        self.said.push(line);
    }

    fn clear(&self, p: &str) {
        let at = self.path(p);
        if std::fs::remove_file(&at).is_err() {
            let _ = std::fs::remove_dir_all(&at);
        }
    }
}

const KINDS: [&str; 12] =
    ["file", "dir", "full dir", "fifo", "char", "block", "socket", "link to file", "link to dir", "dangling", "loop", "missing"];

type Call = (&'static str, fn(&World) -> String);
type CallOf = (&'static str, fn(&World, &str) -> String);

fn open(w: &World, p: &str, flags: OFlags) -> io::Result<OwnedFd> {
    fs::open(w.path(p), flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::from_raw_mode(0o640))
}

fn rename(w: &World, a: &str, b: &str, f: RenameFlags) -> String {
    done(fs::renameat_with(CWD, w.path(a), CWD, w.path(b), f))
}

fn times(a: i64, m: i64) -> Timestamps {
    let at = |s: i64| match s {
        -1 => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        -2 => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        s => Timespec { tv_sec: s, tv_nsec: 123_456_789 },
    };
    Timestamps { last_access: at(a), last_modification: at(m) }
}

fn touch(w: &World, p: &str, a: i64, m: i64, f: AtFlags) -> String {
    done(fs::utimensat(CWD, w.path(p), &times(a, m), f))
}

fn own(w: &World, p: &str, uid: Option<u32>, gid: Option<u32>, f: AtFlags) -> String {
    done(fs::chownat(CWD, w.path(p), uid.map(Uid::from_raw), gid.map(Gid::from_raw), f))
}

fn allowed(w: &World, p: &str, a: Access) -> String {
    done(fs::accessat(CWD, w.path(p), a, AtFlags::EACCESS))
}

fn get(w: &World, p: &str, name: &str) -> String {
    let mut v = vec![0; 4096];
    answer(fs::lgetxattr(w.path(p), name, &mut v[..]), |n| format!("{:?}", &v[..n]))
}

fn set(w: &World, p: &str, name: &str, value: &[u8], f: XattrFlags) -> String {
    done(fs::lsetxattr(w.path(p), name, value, f))
}

/// An access control list as the kernel takes it: tag, permissions, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut v = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        v.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        v.extend(id.to_le_bytes());
    }
    v
}

const NOBODY: u32 = u32::MAX;

fn sound_acl() -> Vec<u8> {
    acl(&[(1, 7, NOBODY), (2, 5, 1003), (4, 5, NOBODY), (8, 6, 1003), (16, 5, NOBODY), (32, 4, NOBODY)])
}

fn fallocate(w: &World, p: &str, f: FallocateFlags, at: u64, len: u64) -> String {
    answer(open(w, p, OFlags::RDWR), |fd| done(fs::fallocate(fd, f, at, len)))
}

/// Every call on `d/t`, with `d/n` new, `d/f` a file, and `d/e` an empty directory.
const CALLS: &[Call] = &[
    ("open to read", |w| done(open(w, "d/t", OFlags::RDONLY))),
    ("open to write", |w| done(open(w, "d/t", OFlags::WRONLY))),
    ("open both", |w| done(open(w, "d/t", OFlags::RDWR))),
    ("open and truncate", |w| done(open(w, "d/t", OFlags::WRONLY | OFlags::TRUNC))),
    ("open to read and truncate", |w| done(open(w, "d/t", OFlags::RDONLY | OFlags::TRUNC))),
    ("open to append", |w| answer(open(w, "d/t", OFlags::WRONLY | OFlags::APPEND), |f| answer(io::write(f, b"more"), |n| n.to_string()))),
    ("open or create", |w| done(open(w, "d/t", OFlags::RDWR | OFlags::CREATE))),
    ("create", |w| done(open(w, "d/t", OFlags::RDWR | OFlags::CREATE | OFlags::EXCL))),
    ("open without following", |w| done(open(w, "d/t", OFlags::RDONLY | OFlags::NOFOLLOW))),
    ("open a directory", |w| done(open(w, "d/t", OFlags::RDONLY | OFlags::DIRECTORY))),
    ("open with a slash", |w| done(open(w, "d/t/", OFlags::RDONLY))),
    ("create with a slash", |w| done(open(w, "d/t/", OFlags::RDWR | OFlags::CREATE))),
    ("open noatime", |w| done(open(w, "d/t", OFlags::RDONLY | OFlags::NOATIME))),
    ("open below", |w| done(open(w, "d/t/entry", OFlags::RDONLY))),
    ("create below", |w| done(open(w, "d/t/new", OFlags::RDWR | OFlags::CREATE | OFlags::EXCL))),
    ("write", |w| answer(open(w, "d/t", OFlags::WRONLY), |f| answer(io::write(f, b"written"), |n| n.to_string()))),
    ("write nothing", |w| answer(open(w, "d/t", OFlags::WRONLY), |f| answer(io::write(f, b""), |n| n.to_string()))),
    ("read", |w| answer(open(w, "d/t", OFlags::RDONLY), |f| answer(io::read(f, &mut [0; 9][..]), |n| n.to_string()))),
    ("mkdir", |w| done(fs::mkdir(w.path("d/t"), Mode::from_raw_mode(0o777)))),
    ("mkdir with a slash", |w| done(fs::mkdir(w.path("d/t/"), Mode::from_raw_mode(0o777)))),
    ("mkdir below", |w| done(fs::mkdir(w.path("d/t/new"), Mode::from_raw_mode(0o2777)))),
    ("mkfifo", |w| done(fs::mknodat(CWD, w.path("d/t"), FileType::Fifo, Mode::from_raw_mode(0o666), 0))),
    ("mknod char", |w| {
        done(fs::mknodat(CWD, w.path("d/t"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), fs::makedev(300, 70_000)))
    }),
    ("mknod block", |w| done(fs::mknodat(CWD, w.path("d/t"), FileType::BlockDevice, Mode::from_raw_mode(0o666), fs::makedev(1, 2)))),
    ("mknod socket", |w| done(fs::mknodat(CWD, w.path("d/t"), FileType::Socket, Mode::from_raw_mode(0o666), 0))),
    ("mknod file", |w| done(fs::mknodat(CWD, w.path("d/t"), FileType::RegularFile, Mode::from_raw_mode(0o4666), 0))),
    ("symlink", |w| done(fs::symlink("target", w.path("d/t")))),
    ("symlink to nothing", |w| done(fs::symlink("", w.path("d/t")))),
    ("readlink", |w| answer(fs::readlink(w.path("d/t"), Vec::new()), |t| format!("{t:?}"))),
    ("unlink", |w| done(fs::unlink(w.path("d/t")))),
    ("unlink with a slash", |w| done(fs::unlink(w.path("d/t/")))),
    ("rmdir", |w| done(fs::rmdir(w.path("d/t")))),
    ("rmdir with a slash", |w| done(fs::rmdir(w.path("d/t/")))),
    ("rmdir of itself", |w| done(fs::rmdir(w.path("d/t/.")))),
    ("rmdir of its parent", |w| done(fs::rmdir(w.path("d/t/..")))),
    ("chmod 600", |w| done(fs::chmod(w.path("d/t"), Mode::from_raw_mode(0o600)))),
    ("chmod 7777", |w| done(fs::chmod(w.path("d/t"), Mode::from_raw_mode(0o7777)))),
    ("chmod of a descriptor", |w| answer(open(w, "d/t", OFlags::RDONLY), |f| done(fs::fchmod(f, Mode::from_raw_mode(0o6711))))),
    ("chown to other", |w| own(w, "d/t", Some(1003), Some(1003), AtFlags::empty())),
    ("chown of the link", |w| own(w, "d/t", Some(1003), Some(1003), AtFlags::SYMLINK_NOFOLLOW)),
    ("chown to the same", |w| own(w, "d/t", Some(1000), Some(1000), AtFlags::SYMLINK_NOFOLLOW)),
    ("chown of nothing", |w| own(w, "d/t", None, None, AtFlags::SYMLINK_NOFOLLOW)),
    ("chgrp to a group of the owner", |w| own(w, "d/t", None, Some(1001), AtFlags::SYMLINK_NOFOLLOW)),
    ("chgrp to a stranger", |w| own(w, "d/t", None, Some(1003), AtFlags::SYMLINK_NOFOLLOW)),
    ("chown to oneself", |w| own(w, "d/t", Some(1000), None, AtFlags::empty())),
    ("truncate to 0", |w| done(open(w, "d/t", OFlags::WRONLY).and_then(|f| fs::ftruncate(f, 0)))),
    ("truncate to more", |w| done(open(w, "d/t", OFlags::WRONLY).and_then(|f| fs::ftruncate(f, 123_456)))),
    ("truncate to the same", |w| done(open(w, "d/t", OFlags::WRONLY).and_then(|f| fs::ftruncate(f, 12)))),
    ("truncate to too much", |w| done(open(w, "d/t", OFlags::WRONLY).and_then(|f| fs::ftruncate(f, 1 << 62)))),
    ("truncate what is open to read", |w| done(open(w, "d/t", OFlags::RDONLY).and_then(|f| fs::ftruncate(f, 5)))),
    ("touch", |w| touch(w, "d/t", -1, -1, AtFlags::empty())),
    ("touch the link", |w| touch(w, "d/t", -1, -1, AtFlags::SYMLINK_NOFOLLOW)),
    ("set times", |w| touch(w, "d/t", 1_000_000_000, 1_100_000_000, AtFlags::SYMLINK_NOFOLLOW)),
    ("set one time", |w| touch(w, "d/t", -2, 1_100_000_000, AtFlags::SYMLINK_NOFOLLOW)),
    ("set one, touch one", |w| touch(w, "d/t", -1, 1_100_000_000, AtFlags::SYMLINK_NOFOLLOW)),
    ("touch one", |w| touch(w, "d/t", -1, -2, AtFlags::SYMLINK_NOFOLLOW)),
    ("set no time", |w| touch(w, "d/t", -2, -2, AtFlags::SYMLINK_NOFOLLOW)),
    ("set times before 1970", |w| touch(w, "d/t", -1_000_000, -2_000_000, AtFlags::SYMLINK_NOFOLLOW)),
    ("set times after 2486", |w| touch(w, "d/t", 17_000_000_000, 16_299_260_425, AtFlags::SYMLINK_NOFOLLOW)),
    ("may read", |w| allowed(w, "d/t", Access::READ_OK)),
    ("may write", |w| allowed(w, "d/t", Access::WRITE_OK)),
    ("may execute", |w| allowed(w, "d/t", Access::EXEC_OK)),
    ("exists", |w| allowed(w, "d/t", Access::EXISTS)),
    ("rename to new", |w| rename(w, "d/t", "d/n", RenameFlags::empty())),
    ("rename over a file", |w| rename(w, "d/t", "d/f", RenameFlags::empty())),
    ("rename over a directory", |w| rename(w, "d/t", "d/e", RenameFlags::empty())),
    ("rename to itself", |w| rename(w, "d/t", "d/t", RenameFlags::empty())),
    ("rename below itself", |w| rename(w, "d/t", "d/t/n", RenameFlags::empty())),
    ("rename over its parent", |w| rename(w, "d/t", "d", RenameFlags::empty())),
    ("rename a file over it", |w| rename(w, "d/f", "d/t", RenameFlags::empty())),
    ("rename a directory over it", |w| rename(w, "d/e", "d/t", RenameFlags::empty())),
    ("rename with a slash", |w| rename(w, "d/t/", "d/n", RenameFlags::empty())),
    ("rename to a slash", |w| rename(w, "d/t", "d/n/", RenameFlags::empty())),
    ("rename a dot", |w| rename(w, "d/t/.", "d/n", RenameFlags::empty())),
    ("rename to new, noreplace", |w| rename(w, "d/t", "d/n", RenameFlags::NOREPLACE)),
    ("rename over a file, noreplace", |w| rename(w, "d/t", "d/f", RenameFlags::NOREPLACE)),
    ("exchange with a file", |w| rename(w, "d/t", "d/f", RenameFlags::EXCHANGE)),
    ("exchange with a directory", |w| rename(w, "d/t", "d/e", RenameFlags::EXCHANGE)),
    ("exchange with nothing", |w| rename(w, "d/t", "d/n", RenameFlags::EXCHANGE)),
    ("exchange with an entry", |w| rename(w, "d/t", "d/t/entry", RenameFlags::EXCHANGE)),
    ("rename with whiteout", |w| rename(w, "d/t", "d/n", RenameFlags::WHITEOUT)),
    ("rename over with whiteout", |w| rename(w, "d/t", "d/f", RenameFlags::WHITEOUT)),
    ("rename to new with whiteout, noreplace", |w| rename(w, "d/t", "d/n", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE)),
    ("rename over with whiteout, noreplace", |w| rename(w, "d/t", "d/f", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE)),
    ("exchange, noreplace", |w| rename(w, "d/t", "d/f", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE)),
    ("link", |w| done(fs::linkat(CWD, w.path("d/t"), CWD, w.path("d/n"), AtFlags::empty()))),
    ("link what it points to", |w| done(fs::linkat(CWD, w.path("d/t"), CWD, w.path("d/n"), AtFlags::SYMLINK_FOLLOW))),
    ("link over a file", |w| done(fs::linkat(CWD, w.path("d/t"), CWD, w.path("d/f"), AtFlags::empty()))),
    ("link a file over it", |w| done(fs::linkat(CWD, w.path("d/f"), CWD, w.path("d/t"), AtFlags::empty()))),
    ("link below it", |w| done(fs::linkat(CWD, w.path("d/f"), CWD, w.path("d/t/n"), AtFlags::empty()))),
    ("set user.x", |w| set(w, "d/t", "user.x", b"value", XattrFlags::empty()) + &get(w, "d/t", "user.x")),
    ("set trusted.x", |w| set(w, "d/t", "trusted.x", b"value", XattrFlags::empty()) + &get(w, "d/t", "trusted.x")),
    ("set security.x", |w| set(w, "d/t", "security.x", b"value", XattrFlags::empty()) + &get(w, "d/t", "security.x")),
    ("set nonsense.x", |w| set(w, "d/t", "nonsense.x", b"value", XattrFlags::empty()) + &get(w, "d/t", "nonsense.x")),
    ("set no name", |w| set(w, "d/t", "user.", b"value", XattrFlags::empty())),
    ("set a long name", |w| set(w, "d/t", &format!("user.{}", "n".repeat(251)), b"value", XattrFlags::empty())),
    ("set the longest name", |w| set(w, "d/t", &format!("user.{}", "n".repeat(250)), b"value", XattrFlags::empty())),
    ("set the largest value", |w| set(w, "d/t", "user.x", &[7; 65536], XattrFlags::empty())),
    ("set too large a value", |w| set(w, "d/t", "user.x", &[7; 65537], XattrFlags::empty())),
    ("create user.x", |w| set(w, "d/t", "user.x", b"", XattrFlags::CREATE) + &set(w, "d/t", "user.x", b"", XattrFlags::CREATE)),
    ("replace user.x", |w| set(w, "d/t", "user.x", b"", XattrFlags::REPLACE)),
    ("get user.x", |w| get(w, "d/t", "user.x")),
    ("remove user.x", |w| done(fs::lremovexattr(w.path("d/t"), "user.x"))),
    ("remove trusted.x", |w| done(fs::lremovexattr(w.path("d/t"), "trusted.x"))),
    ("remove security.x", |w| done(fs::lremovexattr(w.path("d/t"), "security.x"))),
    ("list attributes", |w| {
        let mut v = vec![0; 4096];
        answer(fs::llistxattr(w.path("d/t"), &mut v[..]), |n| format!("{:?}", String::from_utf8_lossy(&v[..n])))
    }),
    ("set a list", |w| {
        set(w, "d/t", "system.posix_acl_access", &sound_acl(), XattrFlags::empty()) + &get(w, "d/t", "system.posix_acl_access")
    }),
    ("set a default list", |w| {
        set(w, "d/t", "system.posix_acl_default", &sound_acl(), XattrFlags::empty()) + &get(w, "d/t", "system.posix_acl_default")
    }),
    ("set a list like a mode", |w| {
        let l = acl(&[(1, 6, NOBODY), (4, 4, NOBODY), (32, 0, NOBODY)]);
        set(w, "d/t", "system.posix_acl_access", &l, XattrFlags::empty()) + &get(w, "d/t", "system.posix_acl_access")
    }),
    ("set a list without a mask", |w| {
        set(
            w,
            "d/t",
            "system.posix_acl_access",
            &acl(&[(1, 7, NOBODY), (2, 5, 1003), (4, 5, NOBODY), (32, 4, NOBODY)]),
            XattrFlags::empty(),
        )
    }),
    ("set an empty list", |w| set(w, "d/t", "system.posix_acl_access", &acl(&[]), XattrFlags::empty())),
    ("set a cut list", |w| set(w, "d/t", "system.posix_acl_access", &sound_acl()[..13], XattrFlags::empty())),
    ("remove a list", |w| done(fs::lremovexattr(w.path("d/t"), "system.posix_acl_access"))),
    ("fallocate", |w| fallocate(w, "d/t", FallocateFlags::empty(), 0, 100_000)),
    ("fallocate, keep size", |w| fallocate(w, "d/t", FallocateFlags::KEEP_SIZE, 0, 100_000)),
    ("fallocate nothing", |w| fallocate(w, "d/t", FallocateFlags::empty(), 0, 0)),
    ("fallocate too far", |w| fallocate(w, "d/t", FallocateFlags::empty(), 1 << 62, 1 << 62)),
    ("punch", |w| fallocate(w, "d/t", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 2, 4)),
    ("punch without keep size", |w| fallocate(w, "d/t", FallocateFlags::PUNCH_HOLE, 2, 4)),
    ("zero", |w| fallocate(w, "d/t", FallocateFlags::ZERO_RANGE, 5, 100)),
    ("zero, keep size", |w| fallocate(w, "d/t", FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 5, 100)),
    ("collapse", |w| fallocate(w, "d/t", FallocateFlags::COLLAPSE_RANGE, 0, 4096)),
    ("collapse a bit", |w| fallocate(w, "d/t", FallocateFlags::COLLAPSE_RANGE, 0, 5)),
    ("insert", |w| fallocate(w, "d/t", FallocateFlags::INSERT_RANGE, 0, 4096)),
    ("insert a bit", |w| fallocate(w, "d/t", FallocateFlags::INSERT_RANGE, 0, 7)),
    ("insert behind the end", |w| fallocate(w, "d/t", FallocateFlags::INSERT_RANGE, 8192, 4096)),
    ("unshare", |w| fallocate(w, "d/t", FallocateFlags::UNSHARE_RANGE, 0, 4096)),
    ("collapse and insert", |w| fallocate(w, "d/t", FallocateFlags::COLLAPSE_RANGE | FallocateFlags::INSERT_RANGE, 0, 4096)),
    ("seek to data", |w| answer(open(w, "d/t", OFlags::RDONLY), |f| answer(fs::seek(f, SeekFrom::Data(3)), |n| n.to_string()))),
    ("seek to a hole", |w| answer(open(w, "d/t", OFlags::RDONLY), |f| answer(fs::seek(f, SeekFrom::Hole(3)), |n| n.to_string()))),
    ("seek behind the end", |w| answer(open(w, "d/t", OFlags::RDONLY), |f| answer(fs::seek(f, SeekFrom::Hole(12)), |n| n.to_string()))),
    ("copy into it", |w| copy(w, "d/f", "d/t")),
    ("copy out of it", |w| copy(w, "d/t", "d/f")),
    ("copy within it", |w| copy(w, "d/t", "d/t")),
    ("fsync", |w| answer(open(w, "d/t", OFlags::RDONLY), |f| done(fs::fsync(f)))),
];

fn copy(w: &World, from: &str, to: &str) -> String {
    let (mut a, mut b) = (0, 5);
    answer(open(w, from, OFlags::RDONLY), |f| {
        answer(open(w, to, OFlags::WRONLY), |t| answer(fs::copy_file_range(f, Some(&mut a), t, Some(&mut b), 5), |n| n.to_string()))
    })
}

/// Every call on every type, in directories and with modes that let some users in and others not.
fn every_call(w: &mut World) {
    for kind in KINDS {
        for (dir_mode, dir_uid, mode) in
            [(0o777, 0, 0o644), (0o1777, 0, 0o6775), (0o755, 1000, 0o2707), (0o2775, 1000, 0o460), (0o711, 0, 0o1777)]
        {
            for (name, call) in CALLS {
                for a in [ROOT, OWNER, MEMBER, OTHER] {
                    w.dir("d", 0o755, 0, 0);
                    w.thing("file", "d/f", 0o666, 1000, 1000);
                    w.thing("dir", "d/e", 0o777, 1000, 1000);
                    w.thing(kind, "d/t", mode, 1000, 1000);
                    w.own("d", dir_mode, dir_uid, 1000);
                    let watch = ["d", "d/t", "d/f", "d/e", "d/n", "d/t-target"];
                    w.check(&format!("{name}: {kind} {mode:o} in {dir_mode:o} of {dir_uid}"), a, &watch, call);
                    w.clear("d");
                }
            }
        }
    }
}

/// Renames and removals between directories with and without the sticky bit.
fn sticky(w: &mut World) {
    for kind in ["file", "dir"] {
        for (from_mode, from_uid) in [(0o777, 1000), (0o1777, 0), (0o1777, 1000), (0o1777, 1003)] {
            for (to_mode, to_uid) in [(0o777, 1003), (0o1777, 0), (0o1777, 1000), (0o1777, 1003)] {
                for uid in [0, 1000, 1003] {
                    for there in [None, Some(0), Some(1000), Some(1003)] {
                        for how in [RenameFlags::empty(), RenameFlags::EXCHANGE] {
                            for a in [OWNER, OTHER] {
                                w.dir("a", 0o755, 0, 0);
                                w.dir("b", 0o755, 0, 0);
                                w.thing(kind, "a/t", 0o755, uid, 1000);
                                if let Some(u) = there {
                                    w.thing(kind, "b/t", 0o755, u, 1000);
                                }
                                w.own("a", from_mode, from_uid, 0);
                                w.own("b", to_mode, to_uid, 0);
                                let what = format!(
                                    "{how:?} {kind} of {uid} from {from_mode:o} of {from_uid} to {to_mode:o} of {to_uid} over {there:?}"
                                );
                                w.check(&what, a, &["a", "b", "a/t", "b/t"], |w| rename(w, "a/t", "b/t", how));
                                let gone = ["a/t", "b/t"];
                                w.check("and then remove", a, &gone, |w| {
                                    gone.map(|p| done(fs::unlink(w.path(p))) + &done(fs::rmdir(w.path(p)))).concat()
                                });
                                w.clear("a");
                                w.clear("b");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Set-user-ID and set-group-ID bits go when somebody without privilege changes a file.
fn set_id_bits(w: &mut World) {
    let calls: [Call; 9] = [
        ("write", |w| done(open(w, "t", OFlags::WRONLY).and_then(|f| io::write(f, b"x")))),
        ("write to the end", |w| done(open(w, "t", OFlags::WRONLY | OFlags::APPEND).and_then(|f| io::write(f, b"x")))),
        ("truncate", |w| done(open(w, "t", OFlags::WRONLY).and_then(|f| fs::ftruncate(f, 3)))),
        ("open and truncate", |w| done(open(w, "t", OFlags::WRONLY | OFlags::TRUNC))),
        ("fallocate", |w| fallocate(w, "t", FallocateFlags::empty(), 0, 9000)),
        ("punch", |w| fallocate(w, "t", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 2)),
        ("chown", |w| own(w, "t", Some(1000), Some(1001), AtFlags::empty())),
        ("chown of nothing", |w| own(w, "t", None, None, AtFlags::empty())),
        ("chmod", |w| done(fs::chmod(w.path("t"), Mode::from_raw_mode(0o7777)))),
    ];
    for kind in ["file", "dir"] {
        for mode in [0o4777, 0o2777, 0o6777, 0o2767, 0o6767, 0o1777] {
            for gid in [1000, 1001, 1003] {
                for (name, call) in calls {
                    for a in [ROOT, OWNER, MEMBER, OTHER] {
                        w.thing(kind, "t", mode, 1000, gid);
                        fs::lsetxattr(
                            w.path("t"),
                            "security.capability",
                            &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                            XattrFlags::empty(),
                        )
                        .unwrap();
                        w.check(&format!("{name}: {kind} {mode:o} of group {gid}"), a, &["t"], call);
                        let capability = get(w, "t", "security.capability");
                        w.said.last_mut().unwrap().push_str(&format!("; capability {capability}"));
                        w.clear("t");
                    }
                }
            }
        }
    }
}

/// Names and paths at their limits.
fn names(w: &mut World) {
    let long = "n".repeat(255);
    let too_long = "n".repeat(256);
    let utf = "ä".repeat(127) + "x";
    w.dir("d", 0o777, 0, 0);
    let deep = format!("d{}", "/.".repeat(2000));
    for p in [&long, &too_long, &utf, &deep, "d/.", "d/..", ".", "..", "", "d//", "d/ ", "d/\n", "d/\u{1}", "no/thing"] {
        let calls: [CallOf; 9] = [
            ("create", |w, p| done(open(w, p, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL))),
            ("stat", |w, p| done(fs::lstat(w.path(p)))),
            ("link", |w, p| done(fs::linkat(CWD, w.path(p), CWD, w.path("linked"), AtFlags::empty()))),
            ("unlink", |w, p| done(fs::unlink(w.path(p)))),
            ("mkdir", |w, p| done(fs::mkdir(w.path(p), Mode::from_raw_mode(0o755)))),
            ("rename", |w, p| rename(w, p, "d/renamed", RenameFlags::empty())),
            ("rename back", |w, p| rename(w, "d/renamed", p, RenameFlags::empty())),
            ("symlink", |w, p| done(fs::symlink("target", w.path(p)))),
            ("rmdir", |w, p| done(fs::rmdir(w.path(p)))),
        ];
        for (name, call) in calls {
            let short = &p[..p.char_indices().nth(6).map_or(p.len(), |c| c.0)];
            w.check(&format!("{name} {} bytes of {short:?}", p.len()), OWNER, &["d"], |w| call(w, p));
        }
        w.clear("linked");
    }
    for n in [1, 1023, 1024, 4095, 4096] {
        w.check(&format!("a target of {n} bytes"), OWNER, &["d/s"], |w| done(fs::symlink("t".repeat(n), w.path("d/s"))));
        w.clear("d/s");
    }
    w.clear("d");
}

/// What a new entry gets from its directory: group, bits, lists and the mask of its maker.
fn inheritance(w: &mut World) {
    let lists = [
        None,
        Some(sound_acl()),
        Some(acl(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 1, NOBODY)])),
        Some(acl(&[(1, 6, NOBODY), (2, 7, 1003), (4, 7, NOBODY), (16, 2, NOBODY), (32, 0, NOBODY)])),
    ];
    for (i, list) in lists.iter().enumerate() {
        for dir_mode in [0o777, 0o2777, 0o3777] {
            for mask in [0, 0o22, 0o77] {
                for mode in [0o666, 0o777, 0o6777, 0o2755, 0] {
                    for a in [ROOT, OWNER, MEMBER, OTHER] {
                        w.dir("d", dir_mode, 1000, 1000);
                        if let Some(l) = list {
                            fs::lsetxattr(w.path("d"), "system.posix_acl_default", l, XattrFlags::empty()).unwrap();
                        }
                        let old = rustix::process::umask(Mode::from_raw_mode(mask));
                        let m = Mode::from_raw_mode(mode);
                        let what = format!("{mode:o} with mask {mask:o} in {dir_mode:o} with list {i}");
                        w.check(&format!("a file {what}"), a, &["d/f", "d"], |w| {
                            done(fs::open(w.path("d/f"), OFlags::CREATE | OFlags::WRONLY, m))
                        });
                        w.check(&format!("a directory {what}"), a, &["d/d", "d"], |w| done(fs::mkdir(w.path("d/d"), m)));
                        w.check(&format!("a fifo {what}"), a, &["d/p", "d"], |w| {
                            done(fs::mknodat(CWD, w.path("d/p"), FileType::Fifo, m, 0))
                        });
                        w.check(&format!("a link {what}"), a, &["d/l", "d"], |w| done(fs::symlink("x", w.path("d/l"))));
                        rustix::process::umask(old);
                        for p in ["d/f", "d/d", "d/p"] {
                            w.check(p, ROOT, &[], |w| get(w, p, "system.posix_acl_access") + &get(w, p, "system.posix_acl_default"));
                            for who in [OWNER, MEMBER, OTHER] {
                                w.check(p, who, &[], |w| {
                                    [Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK].map(|x| allowed(w, p, x)).concat()
                                });
                            }
                            w.check(p, a, &[p], |w| done(fs::chmod(w.path(p), Mode::from_raw_mode(0o2640))));
                            w.check(p, ROOT, &[], |w| get(w, p, "system.posix_acl_access"));
                        }
                        w.clear("d");
                    }
                }
            }
        }
    }
}

/// A file that is made without a name: what it gets, what it is without one, and that it can be given one unless it was to stay so.
fn unnamed(w: &mut World) {
    let told = |f: &OwnedFd| describe(&fs::fstat(f).ok());
    for list in [None, Some(sound_acl())] {
        for (dir, owner) in [(0o777, 1000), (0o1777, 0), (0o2777, 1000), (0o755, 1000), (0o555, 1000), (0o300, 1003)] {
            for a in [ROOT, OWNER, MEMBER, OTHER] {
                for (exclusive, flag) in [("", OFlags::empty()), (" for good", OFlags::EXCL)] {
                    w.dir("d", dir, owner, 1000);
                    if let Some(l) = &list {
                        fs::lsetxattr(w.path("d"), "system.posix_acl_default", l, XattrFlags::empty()).unwrap();
                    }
                    let what = format!("a file without a name{exclusive} in {dir:o} of {owner} with list {}", list.is_some());
                    w.check(&what, a, &["d", "d/n"], |w| {
                        let made = fs::open(w.path("d"), OFlags::TMPFILE | OFlags::RDWR | flag, Mode::from_raw_mode(0o6776));
                        answer(made, |f| {
                            let before = told(&f);
                            let written = done(io::write(&f, b"12345"));
                            let fd = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&f));
                            let named = done(fs::linkat(CWD, fd, CWD, w.path("d/n"), AtFlags::SYMLINK_FOLLOW));
                            format!("{before}, {written}, {named}, {}", told(&f))
                        })
                    });
                    let name = w.path("d/n");
                    let birth = || fs::statx(CWD, &name, AtFlags::empty(), fs::StatxFlags::BTIME | fs::StatxFlags::MTIME);
                    w.check("its birth", ROOT, &[], |_| {
                        answer(birth(), |s| {
                            let is_told = s.stx_mask & fs::StatxFlags::BTIME.bits() != 0;
                            // Where the kernel gives a write's time it does so by a clock that stands still for milliseconds.
                            let is_now = (s.stx_mtime.tv_sec - s.stx_btime.tv_sec).abs() <= 1;
                            format!("is told {is_told}, when it was written {is_now}")
                        })
                    });
                    w.clear("d");
                }
            }
        }
    }
}

/// Random calls by random users on a small tree.
fn at_random(w: &mut World, steps: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % n
    };
    w.dir("r", 0o777, 0, 0);
    let name = ["a", "b", "c", "d", "a/a", "a/b", "b/a", "c/d", "a/a/c", "b/a/a", "d/d/d/d", "b/c/b"];
    for i in 0..steps {
        let a = [ROOT, OWNER, MEMBER, OTHER][random(4)];
        let (p, q) = (format!("r/{}", name[random(name.len())]), format!("r/{}", name[random(name.len())]));
        let mode = Mode::from_raw_mode([0o777, 0o755, 0o644, 0o4711, 0o2770, 0o1777][random(6)]);
        let n = random(200_000) as u64;
        let kind = [FileType::Fifo, FileType::Socket, FileType::RegularFile][random(3)];
        let way =
            [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE, RenameFlags::WHITEOUT][random(5)];
        let owner = [0, 1000, 1002, 1003][random(4)];
        let what = random(16);
        w.check(&format!("step {i}: {what} {p} {q}"), a, &["r", &p, &q], |w| match what {
            0 | 1 => done(fs::mkdir(w.path(&p), mode)),
            2 | 3 => done(fs::open(w.path(&p), OFlags::CREATE | OFlags::RDWR | OFlags::NONBLOCK, mode)),
            4 => done(fs::open(w.path(&p), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, mode)),
            5 => done(fs::linkat(CWD, w.path(&p), CWD, w.path(&q), AtFlags::empty())),
            6 | 7 => rename(w, &p, &q, way),
            8 => done(fs::unlink(w.path(&p))),
            9 => done(fs::rmdir(w.path(&p))),
            10 => done(fs::symlink(format!("../{q}"), w.path(&p))),
            11 => done(fs::chmod(w.path(&p), mode)),
            12 => own(w, &p, Some(owner), Some(owner), AtFlags::SYMLINK_NOFOLLOW),
            13 => done(open(w, &p, OFlags::RDWR).and_then(|f| fs::ftruncate(f, n))),
            14 => answer(open(w, &p, OFlags::RDWR), |f| answer(io::pwrite(f, &[n as u8; 3000], n), |n| n.to_string())),
            _ => done(fs::mknodat(CWD, w.path(&p), kind, mode, 0)),
        });
        if i % 500 == 499 {
            w.said.extend(listing(&w.path("r")).iter().map(|l| without_time(l)));
        }
        if i % 4000 == 3999 {
            w.clear("r");
            w.dir("r", 0o777, 0, 0);
        }
    }
    w.clear("r");
}

/// A line of a listing without its time, which each tree has for itself.
fn without_time(l: &str) -> String {
    l.split(' ').filter(|f| !(f.contains('.') && f.bytes().next().is_some_and(|b| b.is_ascii_digit()))).collect::<Vec<_>>().join(" ")
}

/// What no FUSE server can answer as the kernel's XFS does, since the kernel's FUSE does not ask it: collapsing, inserting and unsharing
/// ranges, seeking in directories, the set-group-ID bit without the group's execution bit, which it leaves to a stranger's write, and a
/// chown to neither owner nor group, which looks like what it sends before root's writes.
fn is_not_asked(theirs: &str, ours: &str) -> bool {
    let call = theirs.split(':').next().unwrap_or_default();
    let kind = theirs.split(": ").nth(1).unwrap_or_default();
    let range = ["collapse", "insert", "unshare"].iter().any(|c| call.starts_with(c)) && ours.contains("EOPNOTSUPP");
    let seek = call.starts_with("seek") && ["dir", "full dir", "link to dir"].iter().any(|k| kind.starts_with(k));
    let bits = [(" 2707 ", " 707 "), (" 2767 ", " 767 "), (" 6767 ", " 4767 ")];
    // Root keeps the bits, and a stranger is not told that he may not; neither changes anything else.
    let plain = |l: &str| l.split("; capability").next().unwrap_or_default().replace(" ctime", "");
    let octal = |s: &str| u32::from_str_radix(s, 8).ok();
    let bits_only = |t: &str, o: &str| octal(t).zip(octal(o)).is_some_and(|(t, o)| o & !t & !0o6000 == 0 && t & !o == 0);
    let kept = |t: &str, o: &str| theirs.contains(" by root: ") && bits_only(t, o);
    let but = |(t, o): (&str, &str)| t == o || (t, o) == ("EPERM;", "ok;") || kept(t, o);
    let birth = call == "its birth by root" && !linux(6, 6);
    let nothing = call == "chown of nothing" && plain(theirs).split(' ').zip(plain(ours).split(' ')).all(but);
    range || seek || birth || nothing || bits.iter().any(|(o, t)| ours.contains(o) && (theirs.contains(t) || theirs.contains("EPERM")))
}

/// True if two changes can have the same time, though somebody looked between them: on kernels before Linux 6.13.
fn stands_still(at: &Path) -> bool {
    let file = at.join("clock");
    let times: Vec<_> = (0..20)
        .map(|n| {
            std::fs::write(&file, [n]).unwrap();
            fs::stat(&file).map(|s| (s.st_ctime, s.st_ctime_nsec)).unwrap()
        })
        .collect();
    std::fs::remove_file(&file).unwrap();
    times.windows(2).any(|w| w[0] == w[1])
}

/// Runs `f` on both trees, and compares the answers.
fn the_same(name: &str, options: &str, f: fn(&mut World)) {
    // The mask of new files' modes belongs to the whole process.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let p = Place::new(name);
    for n in ["kernel.img", "uxfs.img"] {
        p.image(n, 0);
        p.mkfs_xfs(n, &["-q", "-d", "size=1g,file"]);
    }
    let k = p.kernel("kernel.img", "loop,nodev,nosuid");
    let s = p.serve("uxfs.img", &format!("allow_other,{options}"));
    std::os::unix::fs::chown(&k.at, Some(0), Some(0)).unwrap();
    let run = |at: &Path| {
        let mut w = World::new(at);
        // Users other than root must be able to come here.
        fs::chmod(at, Mode::from_raw_mode(0o777)).unwrap();
        f(&mut w);
        w.said
    };
    fs::chmod(&p.dir, Mode::from_raw_mode(0o755)).unwrap();
    let (mut theirs, mut ours) = (run(&k.at), run(&s.at));
    if options == "cache=writeback" || stands_still(&k.at) {
        // There the kernel's clock for files gives the times, or gave its own file system them, which stands still for milliseconds.
        theirs.iter_mut().chain(&mut ours).for_each(|l| *l = l.replace(" mtime", "").replace(" ctime", ""));
    }
    s.unmount();
    p.is_sound("uxfs.img");
    assert_eq!(theirs.len(), ours.len());
    assert!(theirs.len() > 100, "only {} checks ran", theirs.len());
    let mut odd: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (t, o) in theirs.iter().zip(&ours).filter(|(t, o)| t != o && !is_not_asked(t, o)) {
        let group = t.split(':').next().unwrap().to_string();
        odd.entry(group).or_insert_with(|| (0, format!("kernel: {t}\n  uxfs: {o}"))).0 += 1;
    }
    let total: usize = odd.values().map(|v| v.0).sum();
    let shown: Vec<String> = odd.iter().take(60).map(|(g, (n, first))| format!("{n} of {g}\n{first}")).collect();
    println!("{name}: {} checks", theirs.len());
    assert!(odd.is_empty(), "{total} of {} answers differ:\n{}", theirs.len(), shown.join("\n"));
}

#[test]
fn every_call_on_every_type_by_every_user_answers_as_the_kernel_does() {
    the_same("calls", "cache=writethrough", every_call);
}

#[test]
fn the_sticky_bit_protects_what_it_protects_in_the_kernel() {
    the_same("sticky", "cache=writethrough", sticky);
}

#[test]
fn set_id_bits_and_capabilities_go_when_the_kernel_takes_them_away() {
    for cache in ["none", "writethrough", "writeback"] {
        the_same(&format!("bits-{cache}"), &format!("cache={cache}"), set_id_bits);
    }
}

#[test]
fn names_at_their_limits_are_judged_as_by_the_kernel() {
    the_same("names", "cache=writethrough", names);
}

#[test]
fn what_a_new_entry_inherits_is_what_the_kernel_gives_it() {
    the_same("inheritance", "cache=writethrough", inheritance);
}

#[test]
fn files_without_a_name_are_those_of_the_kernel() {
    for cache in ["none", "writethrough", "writeback"] {
        the_same(&format!("unnamed-{cache}"), &format!("cache={cache}"), unnamed);
    }
}

#[test]
fn random_calls_by_random_users_answer_as_the_kernel_does() {
    the_same("random", "cache=writethrough", |w| at_random(w, 20_000));
    let _offered = rings();
    the_same("random-ring", "cache=none,io_uring", |w| at_random(w, 20_000));
}

#[test]
fn only_those_come_in_who_may() {
    let _offered = rings();
    let p = Place::new("guests");
    p.uxfs(&["mkfs", "-q", "-c", "options=lts_6.6", "-d", "size=400m", "v.img"]);
    fs::chmod(&p.dir, Mode::from_raw_mode(0o755)).unwrap();
    for (options, all) in [("rw", false), ("allow_root", false), ("allow_other", true), ("allow_other,allow_root", true)] {
        for way in ["", ",io_uring"] {
            let s = p.serve("v.img", &format!("{options}{way}"));
            let look = |a| by(a, || std::fs::read_dir(&s.at).map(drop).map_err(|e| e.raw_os_error()));
            assert_eq!(look(ROOT), Ok(()), "{options}{way}");
            assert_eq!(look(OTHER), if all { Ok(()) } else { Err(Some(13)) }, "{options}{way}");
            s.unmount();
        }
    }
}
