//! `uxfs mount`, `umount` and `sync`.

use crate::control::{Control, Ending};
use crate::place::{Part, Source, size};
use anyhow::{Context, Result, anyhow, bail};
use rustix::mount::MountFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use uxfs::{Fs, IoMode, JournalFlush, Options};
use uxfs_device::Host;
use uxfs_fuse::Guests;

/// In the environment of the server that `uxfs mount` starts: it says on its standard output when it is ready.
const READY: &str = "UXFS_MOUNT_READY";
/// How long a busy mount may go on after a signal, before it is cut off from its users.
const GRACE: Duration = Duration::from_secs(2);
/// How long `umount` waits for the server to finish its writing.
const LONGEST_FLUSH: Duration = Duration::from_secs(600);

/// A mount as its options describe it.
struct Request {
    source: Source,
    log: Option<PathBuf>,
    host: Host,
    volume: Options,
    front: uxfs_fuse::Options,
}

fn parse(image: &std::ffi::OsStr, options: &[String]) -> Result<Request> {
    let mut r = Request {
        source: Source::parse(image),
        log: None,
        host: Host { direct: true, ..Host::default() },
        volume: Options::default(),
        front: uxfs_fuse::Options::default(),
    };
    let (mut fsname, mut cache) = (None, None);
    for o in options.iter().flat_map(|o| o.split(',')).filter(|o| !o.is_empty()) {
        let (key, value) = o.split_once('=').map_or((o, None), |(k, v)| (k, Some(v)));
        let need = || value.with_context(|| format!("mount option {key} needs a value"));
        let number = || need()?.parse::<u32>().with_context(|| format!("mount option {key} needs a number"));
        match key {
            "ro" => r.volume.read_only = true,
            "rw" => r.volume.read_only = false,
            "norecovery" => (r.volume.norecovery, r.volume.read_only) = (true, true),
            "offset" => r.source.part = Part::Offset(need()?.parse().context("mount option offset needs a number of bytes")?),
            "part" => r.source.part = Part::Number(number()?),
            "hostcache" => r.host.direct = false,
            "nohostcache" => r.host.direct = true,
            "commit" => r.volume.commit = number()?,
            "memory" => r.volume.memory = usize::try_from(size(need()?)?)?,
            "threads" => r.front.mount.threads = number()? as usize,
            "io_uring" => r.front.mount.io_uring = true,
            "logdev" => r.log = Some(std::path::absolute(need()?)?),
            "logbufs" => r.volume.journal.buffers = number()? as usize,
            "logbsize" => r.volume.journal.bufsize = usize::try_from(size(need()?)?)?,
            "journal_flush" => r.volume.journal.flush = flush_policy(need()?)?,
            "checkpoint_limit" => {
                r.volume.journal.limit = need()?.parse().map_err(|e| anyhow!("mount option checkpoint_limit: {e}"))?;
            }
            "cache" => cache = Some(need()?.parse().map_err(|e| anyhow!("mount option cache: {e}"))?),
            "iomode" => r.front.io_mode = need()?.parse().map_err(|e| anyhow!("mount option iomode: {e}"))?,
            "op_lock" => r.volume.op_lock = need()?.parse().map_err(|e| anyhow!("mount option op_lock: {e}"))?,
            "readdir_copy" => r.volume.readdir_copy = need()?.parse().map_err(|e| anyhow!("mount option readdir_copy: {e}"))?,
            "drop_behind" => r.volume.drop_behind = need()?.parse().map_err(|e| anyhow!("mount option drop_behind: {e}"))?,
            "io_lock" => r.volume.io_lock = need()?.parse().map_err(|e| anyhow!("mount option io_lock: {e}"))?,
            "discard" => r.volume.discard = true,
            "nodiscard" => r.volume.discard = false,
            "grpid" | "bsdgroups" => r.volume.grpid = true,
            "nogrpid" | "sysvgroups" => r.volume.grpid = false,
            "wsync" | "dirsync" => r.volume.wsync = true,
            "fsname" => fsname = Some(need()?.to_string()),
            "allow_other" => r.front.mount.guests = Guests::All,
            "allow_root" if r.front.mount.guests == Guests::None => r.front.mount.guests = Guests::Root,
            // Others may, and root with them.
            "allow_root" => {}
            "default_permissions" => r.front.mount.default_permissions = true,
            "dev" => r.front.mount.dev = true,
            "nodev" => r.front.mount.dev = false,
            "suid" => r.front.mount.suid = true,
            "nosuid" => r.front.mount.suid = false,
            "exec" => r.front.mount.exec = true,
            "noexec" => r.front.mount.exec = false,
            // What says nothing here: the kernel's business, XFS's defaults by now, or where its allocator is to look first.
            "defaults" | "nouuid" | "attr2" | "noattr2" | "inode64" | "ikeep" | "noikeep" | "noatime" | "relatime" | "nodiratime"
            | "lazytime" | "async" | "auto" | "noauto" | "user" | "nouser" | "users" | "nofail" | "_netdev" | "noquota" | "subtype"
            | "largeio" | "nolargeio" | "swalloc" | "noalign" | "filestreams" => {}
            "allocsize" => drop(size(need()?)?),
            "uquota" | "usrquota" | "quota" | "uqnoenforce" | "gquota" | "grpquota" | "gqnoenforce" | "pquota" | "prjquota"
            | "pqnoenforce" => {
                bail!("mount option {key} is not supported: quota is neither counted nor enforced here")
            }
            k if k.starts_with("x-") || k.starts_with("comment") => {}
            k => bail!("mount option {k} is not supported"),
        }
    }
    r.front.mount.read_only = r.volume.read_only;
    // How data is read and written is said of the engine's cache.
    let ours = r.front.io_mode != IoMode::Buffered;
    r.front.cache = cache.unwrap_or(if ours { uxfs_fuse::CacheMode::None } else { uxfs_fuse::CacheMode::default() });
    if ours && !r.front.cache.is_ours() {
        bail!("mount option iomode={} needs cache=none: with cache={} the kernel caches", r.front.io_mode, r.front.cache);
    }
    r.volume.cache = r.front.cache.is_ours();
    let full = r.source.file.canonicalize().with_context(|| format!("cannot open {}", r.source.file.display()))?;
    r.front.mount.fsname = fsname.unwrap_or_else(|| full.display().to_string());
    r.source.file = full;
    Ok(r)
}

/// A policy that is safe; the other one is for benchmarks.
fn flush_policy(name: &str) -> Result<JournalFlush> {
    let p: JournalFlush = name.parse().map_err(|e| anyhow!("mount option journal_flush: {e}"))?;
    if !p.is_safe() {
        bail!("mount option journal_flush={p} is not supported: it loses data in a power cut");
    }
    Ok(p)
}

/// Mounts an image on a directory; returns once it is there, or with `foreground` when it was unmounted. With the option `remount`
/// changes the mount that is there.
///
/// # Errors
/// The volume cannot be opened, the mount is refused, or the last writing failed.
pub fn mount(image: &std::ffi::OsStr, dir: &Path, options: &[String], foreground: bool) -> Result<()> {
    if options.iter().any(|o| o.split(',').any(|o| o == "remount")) {
        return remount(dir, options);
    }
    let r = parse(image, options)?;
    if !dir.is_dir() {
        bail!("{}: not a directory", dir.display());
    }
    if foreground {
        return serve(r, dir);
    }
    // A server of its own: this program again, which says when it is ready.
    let mut child = Command::new(std::env::current_exe()?)
        .args(["mount", "-f"])
        .args(options.iter().flat_map(|o| ["-o", o]))
        .arg(image)
        .arg(dir)
        .env(READY, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("cannot start the server")?;
    let mut said = String::new();
    child.stdout.take().context("no output of the server")?.read_to_string(&mut said)?;
    if said.contains("ready") {
        return Ok(());
    }
    let status = child.wait()?;
    // It has told why on the standard error that it shares.
    std::process::exit(status.code().unwrap_or(1));
}

/// Tells the parent that the mount is there, and lets the terminal go.
fn detach() -> Result<()> {
    if std::env::var_os(READY).is_none() {
        return Ok(());
    }
    // Fails only where this process leads its group already; then it has what it needs.
    let _ = rustix::process::setsid();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let mut out = std::io::stdout();
    out.write_all(b"ready\n")?;
    out.flush()?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")?;
    Ok(())
}

enum Event {
    Ended(std::io::Result<()>),
    Signal,
}

fn serve(r: Request, dir: &Path) -> Result<()> {
    let name = r.source.name();
    // A read-only mount gains from the host's cache and has no flush to wait for.
    let host = Host { direct: r.host.direct && !r.volume.read_only, ..r.host };
    let write = !r.volume.read_only;
    let data = r.source.device_with(write, host)?;
    let devices = crate::place::with_log(data, r.log.as_deref(), write, host)?;
    if r.log.is_some() && devices.log.is_none() {
        bail!("{name} has its log inside: it takes no logdev");
    }
    let fs = Arc::new(Fs::open(devices, r.volume).with_context(|| format!("cannot open {name}"))?);
    let (tx, rx) = mpsc::channel();
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let dir = dir.canonicalize()?;
    let mounted = match uxfs_fuse::mount(fs.clone(), &dir, &r.front) {
        Ok(m) => m,
        Err(e) => {
            fs.close()?;
            return Err(anyhow!(e).context(format!("cannot mount on {}", dir.display())));
        }
    };
    let control = mounts()?.iter().rev().find(|m| m.at == dir).map(|m| Control::serve(fs.clone(), &m.dev));
    if let Some(Err(e)) = &control {
        crate::warn(&format!("uxfs stats will not work: {e:#}"));
    }
    if let Some(what) = uxfs_fuse::is_missing(&mounted, r.front.cache) {
        crate::warn(what);
    }
    let (session, unmounter) = mounted.into_parts();
    detach()?;
    let tx2 = tx.clone();
    std::thread::spawn(move || {
        let ended = session.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread that serves the mount panicked")));
        let _ = tx.send(Event::Ended(ended));
    });
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let _ = tx2.send(Event::Signal);
        }
    });
    let ended = match rx.recv()? {
        Event::Ended(r) => r,
        Event::Signal => {
            if unmounter.unmount().is_err() {
                // In use: it goes from the tree now; its users get errors from here on.
                let _ = uxfs_fuse::unmount(&dir, true);
            }
            let deadline = Instant::now() + GRACE;
            loop {
                match rx.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(Event::Ended(r)) => break r,
                    Ok(Event::Signal) => {}
                    Err(_) => break Ok(()),
                }
            }
        }
    };
    let closed = fs.close().with_context(|| format!("cannot close {name}; the next use recovers it"));
    if let Some(Ok(control)) = &control {
        control.ended(&closed);
    }
    closed.and(ended.context("the connection to the kernel failed"))
}

/// A mount of uxfs.
pub struct Mounted {
    /// Where.
    at: PathBuf,
    /// What is mounted.
    image: PathBuf,
    /// Its device number, as `MAJOR:MINOR`.
    pub dev: String,
    /// Who serves it.
    pub uid: u32,
    /// Its flags, separated by commas.
    flags: String,
}

/// All mounts, the newest last: where they are, and what is known of one of uxfs.
fn all_mounts() -> Result<Vec<(PathBuf, Option<Mounted>)>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    let row = |l: &str| {
        let (left, right) = l.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let (at, dev, flags): (PathBuf, _, _) = (unescape(left.get(4)?).into(), left.get(2)?.to_string(), left.get(5)?.to_string());
        let mut r = right.split(' ');
        let ours = r.next()? == "fuse.uxfs";
        let image = unescape(r.next()?).into();
        let uid = r.next()?.split(',').find_map(|o| o.strip_prefix("user_id=")).and_then(|u| u.parse().ok());
        let mounted = uid.filter(|_| ours).map(|uid| Mounted { at: at.clone(), image, dev, uid, flags });
        Some((at, mounted))
    };
    Ok(text.lines().filter_map(row).collect())
}

fn mounts() -> Result<Vec<Mounted>> {
    Ok(all_mounts()?.into_iter().filter_map(|m| m.1).collect())
}

/// The mount that a file or directory lies on.
///
/// # Errors
/// It does not exist, or lies on no mount of uxfs.
pub fn mount_of(dir: &Path) -> Result<Mounted> {
    let deepest = |p: &Path| -> Result<Option<Mounted>> {
        let above = all_mounts()?.into_iter().filter(|m| p.starts_with(&m.0));
        Ok(above.max_by_key(|m| m.0.as_os_str().len()).and_then(|m| m.1))
    };
    // Not canonicalize at first: it asks a server that may be gone.
    if let Some(m) = deepest(&std::path::absolute(dir)?)? {
        return Ok(m);
    }
    let found = deepest(&dir.canonicalize().with_context(|| dir.display().to_string())?)?;
    found.with_context(|| format!("{}: not on a mount of uxfs", dir.display()))
}

/// Undoes the octal escapes of mountinfo.
fn unescape(s: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"].iter().zip([" ", "\t", "\n", "\\"]).fold(s.to_string(), |s, (code, c)| s.replace(code, c))
}

/// The newest mount on a directory.
fn mounted_on(dir: &Path) -> Result<Mounted> {
    // Not canonicalize at first: it asks a server that may be gone.
    let full = std::path::absolute(dir)?;
    let on = |p: PathBuf| -> Result<Option<Mounted>> { Ok(mounts()?.into_iter().rev().find(|m| m.at == p)) };
    let found = match on(full)? {
        None => dir.canonicalize().ok().map(on).transpose()?.flatten(),
        found => found,
    };
    found.with_context(|| format!("{}: no volume is mounted there by uxfs", dir.display()))
}

/// Flags of a mount that can be changed while it is there: their names, and those that take them away.
const FLAGS: [(&str, &str, MountFlags); 6] = [
    ("ro", "rw", MountFlags::RDONLY),
    ("nosuid", "suid", MountFlags::NOSUID),
    ("nodev", "dev", MountFlags::NODEV),
    ("noexec", "exec", MountFlags::NOEXEC),
    ("noatime", "atime", MountFlags::NOATIME),
    ("nodiratime", "diratime", MountFlags::NODIRATIME),
];

/// Changes a mount's flags; other options stay as they were given when it was mounted. `mount -o remount` passes on all that it knows.
///
/// # Errors
/// Nothing is mounted there by uxfs; the volume was opened read-only and is to be written; something could not be written home; only root may.
fn remount(dir: &Path, options: &[String]) -> Result<()> {
    let m = mounted_on(dir)?;
    let mut flags = MountFlags::empty();
    for o in m.flags.split(',').chain(options.iter().flat_map(|o| o.split(','))) {
        for (on, off, flag) in FLAGS {
            if o == on {
                flags |= flag;
            } else if o == off {
                flags -= flag;
            }
        }
    }
    if flags.contains(MountFlags::RDONLY) {
        sync(&m.at)?;
    } else if crate::control::is_read_only(&m)? {
        bail!("{}: the volume was opened read-only; unmount it, then mount it to write", dir.display());
    }
    rustix::mount::mount_remount(&m.at, flags, "").with_context(|| format!("cannot remount {}", dir.display()))
}

/// Unmounts a directory and waits until its volume is written and closed; `lazy`: does not wait, and takes it from the tree although
/// it is busy.
///
/// # Errors
/// It is no mount of uxfs, or busy; the volume could not be closed.
pub fn unmount(dir: &Path, lazy: bool) -> Result<()> {
    let m = mounted_on(dir)?;
    let ending = if lazy { None } else { Ending::of(&m.dev, m.uid) };
    uxfs_fuse::unmount(&m.at, lazy).with_context(|| format!("cannot unmount {}", dir.display()))?;
    let waited = match ending {
        Some(e) => e.wait(LONGEST_FLUSH),
        None if lazy => Ok(()),
        None => wait_until_free(&m.image),
    };
    waited.with_context(|| format!("{} is unmounted", dir.display()))
}

/// Waits until nobody has an image open to write.
fn wait_until_free(image: &Path) -> Result<()> {
    let Ok(f) = File::open(image) else { return Ok(()) };
    let deadline = Instant::now() + LONGEST_FLUSH;
    while rustix::fs::flock(&f, rustix::fs::FlockOperation::NonBlockingLockShared).is_err() {
        if Instant::now() > deadline {
            bail!("its server is still writing {}", image.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Makes everything that was written to a mounted volume durable.
///
/// # Errors
/// `dir` is not on a mount of uxfs; something could not be written.
pub fn sync(dir: &Path) -> Result<()> {
    let f = File::open(mount_of(dir)?.at)?;
    // First what the kernel still holds of mapped files, then what the server holds.
    rustix::fs::syncfs(&f).with_context(|| dir.display().to_string())?;
    f.sync_all().with_context(|| dir.display().to_string())
}
