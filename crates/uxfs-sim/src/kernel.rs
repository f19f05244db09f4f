//! The kernel's XFS recovers an image, as a second opinion on what a power cut left, or does the work itself.

mod live;
mod other;
mod served;

pub use live::run;
pub use other::is_old;

use crate::explore::HIDDEN;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use uxfs_device::{Device, FileDevice, Memory, OpenMode, save};

/// A folder in memory-backed storage where there is one, removed when dropped; kept with `UXFS_KEEP`, if what is in it was refused.
struct Folder(PathBuf, bool);

impl Folder {
    fn new() -> std::io::Result<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        let dir = base.join(format!("uxfs-sim-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(dir.join("mnt"))?;
        Ok(Folder(dir, false))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.1 || std::env::var_os("UXFS_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// What is undone when dropped, by this program with this argument.
struct Undo(&'static str, &'static [&'static str], PathBuf);

impl Drop for Undo {
    fn drop(&mut self) {
        let mut args: Vec<&OsStr> = self.1.iter().map(OsStr::new).collect();
        args.push(self.2.as_os_str());
        // Somebody may look at it just now.
        for _ in 0..100 {
            if oracle(self.0, &args).is_ok_and(|o| o.status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn oracle(program: &str, args: &[&OsStr]) -> Result<Output, String> {
    let out = Command::new(program).args(args).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output();
    out.map_err(|e| format!("{program}: {e}; install it with: cargo xtask tools"))
}

/// The beginning of what a program said, without what `xfs_repair` always says.
fn said(o: &Output) -> String {
    let text = format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
    let always =
        ["Phase ", "        - ", "No modify flag set", "Cannot get host filesystem geometry", "Repair may fail", "the image and the host"];
    text.lines().filter(|l| !always.iter().any(|a| l.starts_with(a))).take(6).collect::<Vec<_>>().join(" | ")
}

/// Writes images, and what was done to them, into files, if `UXFS_KEEP` asks for it, and says where they are.
///
/// # Errors
/// The files'.
pub fn keep(images: &[Memory], story: &str) -> std::io::Result<()> {
    if std::env::var_os("UXFS_KEEP").is_none() {
        return Ok(());
    }
    let mut dir = Folder::new()?;
    dir.1 = true;
    println!("as the cut left it: {}", dir.0.display());
    std::fs::write(dir.0.join("history"), story)?;
    images.iter().enumerate().try_for_each(|(i, m)| save(m, &dir.0.join(format!("image{i}"))))
}

/// Opens an image that the kernel had: its loop device goes a moment after the mount, while others look for a free one.
fn open(file: &Path) -> std::io::Result<FileDevice> {
    for _ in 0..100 {
        match FileDevice::open(file, OpenMode::ReadOnly) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(50)),
            r => return r,
        }
    }
    FileDevice::open(file, OpenMode::ReadOnly)
}

/// A program of the newest xfsprogs, which know all features; `cargo xtask tools` puts them there.
pub fn newest(program: &str) -> String {
    cache().join("xfsprogs/bin").join(program).to_string_lossy().into_owned()
}

/// Where tools lie that Debian does not have.
fn cache() -> PathBuf {
    let home = || Path::new(&std::env::var("HOME").unwrap_or_else(|_| "/root".into())).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("uxfs")
}

/// A volume of `size` bytes that the newest mkfs.xfs makes with these options and that `xfs_db -x` then works on by these commands.
///
/// # Errors
/// What they say.
pub fn made(size: u64, mkfs: &[&str], db: &[String]) -> Result<Memory, String> {
    let dir = Folder::new().map_err(|e| e.to_string())?;
    let file = dir.0.join("image");
    File::create(&file).and_then(|f| f.set_len(size)).map_err(|e| e.to_string())?;
    let commands = ["-x".as_ref()].into_iter().chain(db.iter().flat_map(|c| ["-c".as_ref(), OsStr::new(c)]));
    for (program, args) in [("mkfs.xfs", mkfs.iter().map(OsStr::new).collect()), ("xfs_db", commands.collect::<Vec<_>>())] {
        let o = oracle(&newest(program), &[&args[..], &[file.as_ref()]].concat())?;
        if !o.status.success() {
            return Err(format!("{program}: {}", said(&o)));
        }
    }
    open(&file).and_then(|f| Memory::copy_of(&f)).map_err(|e| e.to_string())
}

fn loop_device(file: &Path) -> Result<Undo, String> {
    let o = oracle("losetup", &["--find".as_ref(), "--show".as_ref(), file.as_ref()])?;
    match o.status.success() {
        true => Ok(Undo("losetup", &["-d"], String::from_utf8_lossy(&o.stdout).trim().into())),
        false => Err(format!("no loop device (needs root): {}", said(&o))),
    }
}

/// Lets `xfs_logprint` print the log of an image that has it inside, to the last record.
///
/// Of a record with several header blocks that begins before the log's end and goes on at its start it makes nonsense, also in the
/// kernel's own logs (7.2 says `data block=-1` there, for one): logs that have wrapped with buffers over 32 KiB must not be asked about.
///
/// # Errors
/// It finds something that it does not understand; in words.
pub fn print_log(image: &Memory) -> Result<(), String> {
    let dir = Folder::new().map_err(|e| e.to_string())?;
    let file = dir.0.join("image");
    save(image, &file).map_err(|e| e.to_string())?;
    let o = oracle(&newest("xfs_logprint"), &["-e".as_ref(), file.as_ref()])?;
    let bad = |l: &str| ["ERROR", "Bad ", "inconsistent"].iter().any(|w| l.contains(w));
    let text = format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
    match text.lines().find(|l| bad(l)) {
        None if o.status.success() => Ok(()),
        found => Err(format!("xfs_logprint: {}", found.map_or_else(|| said(&o), str::to_string))),
    }
}

/// Lets this machine's kernel mount images, and unmount them.
fn mount(files: &[PathBuf], at: PathBuf) -> Result<(), String> {
    let log = files.get(1).map(|f| loop_device(f)).transpose()?;
    let options = log.as_ref().map_or("loop,nouuid".into(), |l| format!("loop,nouuid,logdev={}", l.2.display()));
    let o = oracle("mount", &["-t".as_ref(), "xfs".as_ref(), "-o".as_ref(), options.as_ref(), files[0].as_ref(), at.as_ref()])?;
    if !o.status.success() {
        return Err(format!("the kernel does not mount it (needs root): {}", said(&o)));
    }
    drop(Undo("umount", &[], at));
    Ok(())
}

/// Lets the kernel mount the images, data and then the log if it is outside, which recovers them, and unmount them; returns
/// what it left. What it wrote itself (`own`) may have attributes that are hidden, and then goes without `xfs_repair`, which would drop
/// all attributes of such a file and says so at length.
///
/// # Errors
/// The kernel does not mount them, or `xfs_repair -n` finds something afterwards; in words.
pub fn recover(images: &[Memory], own: bool) -> Result<Vec<Memory>, String> {
    // Loop devices are few and looked for by number: one at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let say = |e: std::io::Error| e.to_string();
    let mut dir = Folder::new().map_err(say)?;
    let files: Vec<PathBuf> = (0..images.len()).map(|i| dir.0.join(format!("image{i}"))).collect();
    images.iter().zip(&files).try_for_each(|(i, f)| save(i, f)).map_err(say)?;
    let mounted = match other::release() {
        Some(release) => other::recover(&release, &cache(), &files),
        None => mount(&files, dir.0.join("mnt")),
    };
    if let Err(e) = mounted {
        dir.1 = true;
        return Err(e);
    }
    let read = |f: &PathBuf| Memory::copy_of(&open(f)?);
    let left: Vec<Memory> = files.iter().map(read).collect::<Result<_, _>>().map_err(say)?;
    if own {
        let report = uxfs_check::check_with_log(&left[0], left.get(1).map(|l| l as &dyn Device)).map_err(|e| e.to_string())?;
        if report.findings.iter().any(|f| f.code == HIDDEN) {
            return Ok(left);
        }
    }
    let mut args: Vec<&OsStr> = vec!["-n".as_ref(), "-o".as_ref(), "force_geometry".as_ref()];
    if let Some(l) = files.get(1) {
        args.extend(["-l".as_ref(), l.as_os_str()]);
    }
    args.push(files[0].as_ref());
    let o = oracle(&newest("xfs_repair"), &args)?;
    if !o.status.success() {
        return Err(format!("xfs_repair -n after the kernel's recovery: {}", said(&o)));
    }
    Ok(left)
}
