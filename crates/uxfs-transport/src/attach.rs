//! Mounts: made by root's `mount`, else by fusermount3, which is set-user-ID root.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// Who may use a mount, beside whoever made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guests {
    /// Nobody.
    #[default]
    None,
    /// root.
    Root,
    /// Everybody.
    All,
}

/// How a directory is mounted on.
#[derive(Clone, Debug)]
pub struct Options {
    /// What `mount` and `df` show as the source.
    pub fsname: String,
    /// The type is `fuse.` and this.
    pub subtype: String,
    /// No changes.
    pub read_only: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-user-ID bits work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// Who may use it.
    pub guests: Guests,
    /// Threads that answer requests; 0 for enough. About as many as there are CPUs do so at once, and others while those wait.
    pub threads: usize,
    /// Requests come over io_uring.
    pub io_uring: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            fsname: "fuse".into(),
            subtype: "uxfs".into(),
            read_only: false,
            dev: false,
            suid: false,
            exec: true,
            default_permissions: true,
            guests: Guests::None,
            threads: 0,
            io_uring: false,
        }
    }
}

impl Options {
    /// What the file system itself is told.
    fn own(&self) -> impl Iterator<Item = String> {
        let permissions = self.default_permissions.then(|| "default_permissions".to_string());
        // That others than root are kept out where only root may come in is seen to with each request.
        let others = (self.guests != Guests::None).then(|| "allow_other".to_string());
        permissions.into_iter().chain(others)
    }

    fn for_kernel(&self, fd: &OwnedFd, dir: &Path) -> io::Result<String> {
        let mode = std::fs::metadata(dir)?.mode();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let start = format!("fd={},rootmode={mode:o},user_id={uid},group_id={gid},subtype={}", fd.as_raw_fd(), self.subtype);
        Ok(self.own().fold(start, |all, o| all + "," + &o))
    }

    fn flags(&self) -> MountFlags {
        let unless = |has, flag| if has { MountFlags::empty() } else { flag };
        let read_only = unless(!self.read_only, MountFlags::RDONLY);
        read_only | unless(self.dev, MountFlags::NODEV) | unless(self.suid, MountFlags::NOSUID) | unless(self.exec, MountFlags::NOEXEC)
    }

    fn for_fusermount(&self) -> String {
        let escaped = self.fsname.replace('\\', "\\\\").replace(',', "\\,");
        let either = |has, yes: &str, no: &str| if has { yes } else { no }.to_string();
        let words = [
            format!("fsname={escaped}"),
            format!("subtype={}", self.subtype),
            either(self.read_only, "ro", "rw"),
            either(self.dev, "dev", "nodev"),
            either(self.suid, "suid", "nosuid"),
            either(self.exec, "exec", "noexec"),
        ];
        words.into_iter().chain(self.own()).collect::<Vec<_>>().join(",")
    }
}

/// Opens the kernel's door for one mount, or for one more reader of it.
pub(crate) fn open_device() -> io::Result<OwnedFd> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| {
        let what = match e {
            Errno::NOENT => "there is no /dev/fuse; as root: modprobe fuse",
            Errno::ACCESS | Errno::PERM => "/dev/fuse is closed to this user; as root: chmod 666 /dev/fuse",
            e => return e.into(),
        };
        io::Error::new(io::Error::from(e).kind(), what)
    })
}

/// Mounts on `dir`; what the kernel's requests are read from.
pub(crate) fn mount(dir: &Path, o: &Options) -> io::Result<OwnedFd> {
    let fd = open_device()?;
    let data = CString::new(o.for_kernel(&fd, dir)?)?;
    match rustix::mount::mount(o.fsname.as_str(), dir, "fuse", o.flags(), data.as_c_str()) {
        Ok(()) => Ok(fd),
        Err(Errno::PERM) => mount_by_fusermount(dir, o),
        Err(e) => Err(e.into()),
    }
}

fn needs_fuse3(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::NotFound => io::Error::new(io::ErrorKind::NotFound, "users need fusermount3 to mount (package fuse3)"),
        _ => e,
    }
}

fn mount_by_fusermount(dir: &Path, o: &Options) -> io::Result<OwnedFd> {
    let (ours, its) = UnixStream::pair()?;
    let mut c = Command::new("fusermount3");
    // The socket that it answers on is its standard input: that alone needs no descriptor that others could inherit, too.
    c.arg("-o").arg(o.for_fusermount()).arg("--").arg(dir).env("_FUSE_COMMFD", "0");
    let mut child = c.stdin(OwnedFd::from(its)).stderr(Stdio::piped()).spawn().map_err(needs_fuse3)?;
    drop(c);
    let received = receive(&ours);
    // It says nothing more than fits a pipe.
    let mut said = String::new();
    if let Some(mut e) = child.stderr.take() {
        let _ = e.read_to_string(&mut said);
    }
    child.wait()?;
    let said = said.trim();
    match received {
        Ok(Some(fd)) => Ok(fd),
        Ok(None) if said.contains("user_allow_other") => Err(io::Error::new(io::ErrorKind::PermissionDenied, said)),
        Ok(None) => Err(io::Error::other(if said.is_empty() { "fusermount3 failed" } else { said })),
        Err(e) => Err(e),
    }
}

/// Takes the descriptor that fusermount3 sends, unless it ends without.
fn receive(from: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let mut fds = control.drain().filter_map(|m| if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds) } else { None }).flatten();
    Ok(fds.next())
}

/// Takes a mount away, with `lazy` as soon as nobody uses it any more.
///
/// # Errors
/// It is in use, or this user may not.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let how = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    // Not umount(8): it may have called us.
    match rustix::mount::unmount(dir, how | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
        r => return Ok(r?),
    }
    let mut c = Command::new("fusermount3");
    let out = c.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir).output().map_err(needs_fuse3)?;
    if out.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&out.stderr).trim()))
}

/// False once the mount is gone.
pub(crate) fn is_mounted(fd: BorrowedFd<'_>) -> bool {
    let mut p = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    poll(&mut p, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && !p[0].revents().contains(PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_commas_stay_one_word_for_fusermount() {
        let o = Options { fsname: r"a,b\c".into(), guests: Guests::Root, ..Options::default() };
        let words = r"fsname=a\,b\\c,subtype=uxfs,rw,nodev,nosuid,exec,default_permissions,allow_other";
        assert_eq!(o.for_fusermount(), words);
        assert_eq!(o.flags(), MountFlags::NODEV | MountFlags::NOSUID);
    }
}
