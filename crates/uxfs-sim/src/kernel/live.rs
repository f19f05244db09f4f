//! The kernel's XFS does the work, on loop devices over files that we serve and record.

use super::served::Served;
use super::{Folder, Undo, loop_device, newest, oracle, said};
use crate::model::{Crowd, Model, TOP};
use crate::ops::{Made, Op, value};
use crate::subject::{Done, Subject};
use crate::workload::{Journey, Shape, Work, beside, log_at, make, options, record, top_name, tops, work_on};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, RenameFlags, Uid, XattrFlags};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use uxfs::{Devices, Fs};
use uxfs_device::{Device, DeviceRef, Memory};
use uxfs_format::Geometry;

/// A mounted volume; workers' directories lie in it.
struct Mounted(PathBuf);

impl Mounted {
    /// Where a node is. The worker's directory is known by its number, which stands for its inode.
    fn path(&self, model: &Model, id: u32) -> PathBuf {
        let top = self.0.join(top_name(model.nodes[&TOP].ino as u32));
        match model.path(id) {
            Some(p) if !p.is_empty() => top.join(&p[1..]),
            _ => top,
        }
    }

    fn open(&self, model: &Model, id: u32) -> std::io::Result<File> {
        OpenOptions::new().write(true).open(self.path(model, id))
    }

    /// Lets `xfs_io` do something to a file with another one, which is named between flags and numbers.
    fn xfs_io(&self, model: &Model, id: u32, what: &str, flags: &[&str], with: u32, numbers: &[u64]) -> std::io::Result<()> {
        let numbers: String = numbers.iter().map(|n| format!(" {n}")).collect();
        // By a name without spaces.
        let other = OpenOptions::new().read(true).write(true).open(self.path(model, with))?;
        let name = format!("/proc/{}/fd/{}", std::process::id(), other.as_raw_fd());
        let command = format!("{what} {} {name}{numbers}", flags.join(" "));
        let o = oracle(&newest("xfs_io"), &["-c".as_ref(), command.as_ref(), self.path(model, id).as_ref()]);
        let o = o.map_err(std::io::Error::other)?;
        // It exits with 0, whatever happened.
        if o.status.success() && o.stderr.is_empty() { Ok(()) } else { Err(std::io::Error::other(format!("{command}: {}", said(&o)))) }
    }

    fn act(&self, model: &Model, op: &Op) -> std::io::Result<()> {
        let place = |dir: &u32, name: &String| self.path(model, *dir).join(name);
        let attr = |name: &String| format!("user.{name}");
        match op {
            Op::Make { dir, id, name, what } => {
                let at = place(dir, name);
                match what {
                    Made::File => drop(OpenOptions::new().write(true).create_new(true).open(&at)?),
                    Made::Dir => fs::create_dir(&at)?,
                    Made::Link(target) => symlink(target, &at)?,
                }
                rustix::fs::chownat(CWD, &at, Some(Uid::from_raw(*id)), Some(Gid::ROOT), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Op::Remove { dir, name } => match model.at(*dir, name).is_some_and(|id| model.nodes[&id].is_dir()) {
                true => fs::remove_dir(place(dir, name))?,
                false => fs::remove_file(place(dir, name))?,
            },
            Op::Crowd { name, leaves: true } => fs::remove_file(place(&TOP, &Crowd::spell(*name)))?,
            Op::Crowd { name, leaves: false } => {
                fs::hard_link(self.0.join(beside(model.crowd.ino as u32)), place(&TOP, &Crowd::spell(*name)))?;
            }
            Op::Link { id, dir, name } => fs::hard_link(self.path(model, *id), place(dir, name))?,
            Op::Rename { from, to, exchange } => {
                let flags = if *exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                rustix::fs::renameat_with(CWD, place(&from.0, &from.1), CWD, place(&to.0, &to.1), flags)?;
            }
            Op::SetAttr { id, name, len } => rustix::fs::lsetxattr(self.path(model, *id), attr(name), &value(*len), XattrFlags::empty())?,
            Op::RemoveAttr { id, name } => rustix::fs::lremovexattr(self.path(model, *id), attr(name))?,
            Op::Chmod { id, mode } => fs::set_permissions(self.path(model, *id), Permissions::from_mode(u32::from(*mode)))?,
            Op::Write { id, at, len, fill } => self.open(model, *id)?.write_all_at(&vec![*fill; *len as usize], *at)?,
            // The kernel shares the blocks where it can; else it is a copy, which is as good.
            Op::Clone { from, to, at, len } => {
                let (from, to) = (File::open(self.path(model, *from))?, self.open(model, *to)?);
                let end = at + len;
                let (mut here, mut there) = (*at, *at);
                while here < end {
                    let left = (end - here) as usize;
                    if rustix::fs::copy_file_range(&from, Some(&mut here), &to, Some(&mut there), left)? == 0 {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
            Op::Dedupe { from, to, len } => self.xfs_io(model, to.0, "dedupe", &[], from.0, &[from.1, to.1, *len])?,
            Op::Exchange { places: [(a, at), (b, there)], len } => {
                let (at, there, len) = (at.to_string(), there.to_string(), len.map(|l| l.to_string()));
                let mut how = vec!["-d", &at, "-s", &there];
                how.extend(len.iter().flat_map(|l| ["-l", l]));
                // As ours: all that both had before is durable when it begins, and the exchange when it ends.
                let both = [self.open(model, *a)?, self.open(model, *b)?];
                both.iter().try_for_each(File::sync_all)?;
                self.xfs_io(model, *a, "exchangerange", &how, *b, &[])?;
                both.iter().try_for_each(File::sync_all)?;
            }
            Op::Shift { id, at, len, out } => {
                let how = if *out { FallocateFlags::COLLAPSE_RANGE } else { FallocateFlags::INSERT_RANGE };
                rustix::fs::fallocate(self.open(model, *id)?, how, *at, *len)?;
            }
            Op::Zero { id, at, len, hole } => {
                let how = if *hole { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
                rustix::fs::fallocate(self.open(model, *id)?, how | FallocateFlags::KEEP_SIZE, *at, *len)?;
            }
            Op::Reserve { id, at, len } => rustix::fs::fallocate(self.open(model, *id)?, FallocateFlags::KEEP_SIZE, *at, *len)?,
            Op::Truncate { id, size } => self.open(model, *id)?.set_len(*size)?,
            Op::Fsync { id } => self.open(model, *id)?.sync_all()?,
            Op::Sync => rustix::fs::syncfs(File::open(&self.0)?)?,
        }
        Ok(())
    }
}

impl Subject for Mounted {
    fn apply(&self, model: &Model, op: &Op) -> Result<Done, String> {
        self.act(model, op).map(|()| Done::Whole(0)).map_err(|e| format!("{op:?}: {e}"))
    }
    fn owns_later(&self) -> bool {
        true
    }
}

/// Makes a volume and lets the kernel work on it; the record ends before it is unmounted. Needs root.
///
/// # Errors
/// The kernel does not mount it; an operation failed that should not have.
pub fn run(shape: &Shape) -> Result<Journey, String> {
    let say = |e: std::io::Error| e.to_string();
    let images: Vec<Arc<Memory>> = make(shape)?.into_iter().map(Arc::new).collect();
    let opened = Devices { data: images[0].clone(), log: images.get(1).map(|l| l.clone() as DeviceRef) };
    let fs = Fs::open(opened, options(shape.seed)).map_err(|e| e.to_string())?;
    tops(&fs, shape, 0).and_then(|()| fs.unmount()).map_err(|e| e.to_string())?;
    let devices = record(images.iter().map(|i| i.fork()).collect(), shape)?;
    let mut sector = vec![0; 4096];
    images[0].read(0, &mut sector).map_err(say)?;
    let (g, _) = Geometry::parse(&sector).map_err(|e| e.to_string())?;
    // In the order in which they are undone: the mount, the loop devices, the files, the folder.
    let dir = Folder::new().map_err(say)?;
    let files = dir.0.join("files");
    fs::create_dir(&files).map_err(say)?;
    let served = Served::start(devices.iter().map(|d| d.clone() as DeviceRef).collect(), &files).map_err(say)?;
    let loops = (0..devices.len()).map(|n| loop_device(&served.file(n))).collect::<Result<Vec<Undo>, _>>()?;
    let mnt = dir.0.join("mnt");
    let mut words = format!("nouuid,logbufs={},logbsize={}", shape.journal.buffers, shape.journal.bufsize);
    if let Some(l) = loops.get(1) {
        words += &format!(",logdev={}", l.2.display());
    }
    let args: [&OsStr; 6] = ["-t".as_ref(), "xfs".as_ref(), "-o".as_ref(), words.as_ref(), loops[0].2.as_ref(), mnt.as_ref()];
    let o = oracle("mount", &args)?;
    if !o.status.success() {
        return Err(format!("the kernel does not mount it (needs root): {}", said(&o)));
    }
    let mounted = Undo("umount", &[], mnt.clone());
    let subject = Mounted(mnt);
    let worked = work_on(&subject, &devices[0], shape, 0, Work::Random, &|w| Ok([u64::from(w); 2]));
    if shape.mix.sync == 0 {
        rustix::fs::syncfs(File::open(&subject.0).map_err(say)?).map_err(|e| e.to_string())?;
    }
    let trace = devices[0].trace();
    drop(mounted);
    drop(loops);
    drop(served);
    let (models, histories) = worked?;
    let log_at = log_at(&g, &devices);
    Ok(Journey {
        trace,
        ready: 0,
        first: 0,
        models,
        histories,
        kept: Vec::new(),
        shape: shape.clone(),
        stats: Vec::new(),
        log_at,
        by_kernel: true,
    })
}
