//! The `uxfs` program: XFS volumes without the kernel.

mod acl;
mod archive;
mod args;
mod attributes;
mod change;
mod compare;
mod control;
mod dump;
mod find;
mod flags;
mod inspect;
mod make;
mod mount;
mod place;
mod proto;
mod show;
mod tree;
mod usage;
mod volume;

use anyhow::{Context, Result, bail};
use args::{Cli, Cmd, Reflink};
use clap::{CommandFactory, Parser};
use indicatif::{ProgressBar, ProgressStyle};
use place::{Place, Source};
use std::ffi::{OsStr, OsString};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tree::{Host, Tree};
use uxfs::{AttrName, Rename, SetAttr, SetMode};
use volume::{DIR, FMT, Volume};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Says something that is no error.
fn warn(text: &str) {
    eprintln!("uxfs: warning: {text}");
}

fn main() -> ExitCode {
    let args = helper_form(std::env::args_os().collect());
    let cli = Cli::try_parse_from(&args).unwrap_or_else(|e| {
        if e.use_stderr() && args.iter().any(|a| a == "check") {
            let _ = e.print();
            std::process::exit(WRONG_USE);
        }
        e.exit()
    });
    let trouble = trouble(&cli.command);
    match run(cli) {
        Ok(code) => code,
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("uxfs: {e:#}");
            ExitCode::from(trouble)
        }
    }
}

/// Exit code of a check that was asked for wrongly, as fsck has it: the usual one says that a log is dirty.
const WRONG_USE: i32 = 16;

/// Exit code where a command fails. Where 1 is an answer, it is that of fsck, or of diff.
fn trouble(cmd: &Cmd) -> u8 {
    match cmd {
        Cmd::Check { .. } => 8,
        Cmd::Diff { .. } => 2,
        _ => 1,
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The forms in which `mount` and `umount` call their helpers become `uxfs mount -o ... IMG DIR` and `uxfs umount DIR`: this program
/// under the name of a helper, and `uxfs IMG DIR -o ...` from fuse3's own one. Flags for scripts (-n, -s, -v), and what to do if it does
/// not work (-f, and -r of `umount`), say nothing here.
fn helper_form(args: Vec<OsString>) -> Vec<OsString> {
    let known = |a: &OsString| Cli::command().get_subcommands().any(|c| a == c.get_name()) || a == "help";
    let name = args.first().map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str);
    let verb = match name {
        Some("mount.uxfs" | "mount.fuse.uxfs") => "mount",
        Some("umount.uxfs" | "umount.fuse.uxfs") => "umount",
        _ if args.len() >= 3 && !args[1].as_bytes().starts_with(b"-") && !known(&args[1]) => "mount",
        _ => return args,
    };
    let mut out: Vec<OsString> = vec!["uxfs".into(), verb.into()];
    let mut rest = args.into_iter().skip(1);
    while let Some(a) = rest.next() {
        match (a.to_str(), verb) {
            (Some("-n" | "-s" | "-v"), _) | (Some("-f" | "-r"), "umount") => {}
            (Some("-r"), _) => out.extend(["-o".into(), "ro".into()]),
            (Some("-w"), _) => out.extend(["-o".into(), "rw".into()]),
            (Some("-t" | "-N"), _) => drop(rest.next()),
            _ => out.push(a),
        }
    }
    out
}

/// A count of bytes on a terminal; nothing in a pipe.
fn progress(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {bytes} {bytes_per_sec}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

fn run(cli: Cli) -> Result<ExitCode> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let out = &mut out;
    if let Some(path) = cli.logdev {
        place::set_log_device(path);
    }
    if cli.norecovery {
        if matches!(cli.command, Cmd::Mount { .. }) {
            bail!("for a mount it is -o norecovery");
        }
        volume::never_recover();
    }
    match cli.command {
        Cmd::Mkfs(m) => make::mkfs(&m, out)?,
        Cmd::Mount { options, foreground, image, dir } => mount::mount(&image, &dir, &options, foreground)?,
        Cmd::Umount { lazy, dir } => mount::unmount(&dir, lazy)?,
        Cmd::Sync { dir } => mount::sync(&dir)?,
        Cmd::Stats { json, dir } => control::stats(&dir, json, out)?,
        Cmd::Ls { long, all, inode, directory, paths } => {
            let how = show::Listing { long, all, inode, itself: directory };
            let several = paths.len() > 1;
            volume::each(&paths, false, |v, p| {
                if several {
                    writeln!(out, "{}:", v.at(p))?;
                }
                show::list(v, p, how, out)
            })?;
        }
        Cmd::Cat { paths } => volume::each(&paths, false, |v, p| cat(v, p, out))?,
        Cmd::Stat { paths } => volume::each(&paths, false, |v, p| show::stat(v, p, out))?,
        Cmd::Cp { recursive, reflink, paths } => cp(&paths, recursive, reflink)?,
        Cmd::Mv { no_clobber, paths } => mv(&paths, if no_clobber { Rename::NoReplace } else { Rename::Replace })?,
        Cmd::Rm { recursive, force, paths } => volume::each(&paths, true, |v, p| match v.find(p, false)? {
            None if force => Ok(()),
            _ => v.remove(p, recursive),
        })?,
        Cmd::Mkdir { parents, mode, paths } => {
            let mode = change::mode(&mode, DIR)?;
            volume::each(&paths, true, |v, p| v.mkdir(p, mode, parents))?;
        }
        Cmd::Ln { symbolic, force, target, link } => ln(symbolic, force, &target, &link)?,
        Cmd::Chmod { recursive, mode, paths } => {
            set_deep(&paths, recursive, |_, s| Ok(SetAttr { mode: Some(change::mode(&mode, s.mode)?), ..SetAttr::default() }))?
        }
        Cmd::Chown { recursive, owner, paths } => set_deep(&paths, recursive, |v, _| {
            let (uid, gid) = change::owner(v, &owner)?;
            Ok(SetAttr { uid, gid, ..SetAttr::default() })
        })?,
        Cmd::Touch { no_create, date, paths } => {
            let date = date.as_deref().map(change::time).transpose()?;
            volume::each(&paths, true, |v, p| {
                let t = date.unwrap_or_else(|| v.fs.now());
                let Some(ino) = (if no_create { v.find(p, true)?.map(|s| s.ino) } else { Some(file(v, p)?) }) else { return Ok(()) };
                v.fs.setattr(ino, SetAttr { atime: Some(t), mtime: Some(t), ..SetAttr::default() })?;
                Ok(())
            })?;
        }
        Cmd::Truncate { size, paths } => {
            let size = place::size(&size)?;
            volume::each(&paths, true, |v, p| {
                let ino = file(v, p)?;
                v.fs.setattr(ino, SetAttr { size: Some(size), ..SetAttr::default() }).with_context(|| v.at(p))?;
                Ok(())
            })?;
        }
        Cmd::Getfattr { name, only_values, paths } => volume::each(&paths, false, |v, p| getfattr(v, p, name.as_ref(), only_values, out))?,
        Cmd::Setfattr { name, value, remove, paths } => {
            let value = attributes::parse_value(&value)?;
            let full = name.as_ref().or(remove.as_ref()).context("no name is given")?;
            let n = AttrName::parse(full.as_bytes())
                .with_context(|| format!("{}: only user., trusted. and security. attributes are stored as they are", full.display()))?;
            volume::each(&paths, true, |v, p| {
                let ino = v.resolve(p, true)?.ino;
                match remove {
                    Some(_) => v.fs.remove_attr(ino, n),
                    None => v.fs.set_attr(ino, n, &value, SetMode::Any),
                }
                .with_context(|| format!("{}: {}", v.at(p), full.display()))
            })?;
        }
        Cmd::Tar { extract, path, .. } => {
            let (source, path) = Place::inside(&path);
            let bar = progress(if extract { "unpacking" } else { "packing" });
            volume::with(&source, extract, |v| match extract {
                true => archive::extract(v, &path, std::io::stdin().lock(), &|n| bar.inc(n)),
                false => archive::create(v, &path, &mut *out, &|n| bar.inc(n)),
            })?;
            bar.finish_and_clear();
        }
        Cmd::Info { image } => inspect::info(&Source::parse(&image), out)?,
        Cmd::Admin { show_label, show_uuid, label, uuid, features, image } => {
            let how = inspect::Identity { show_label, show_uuid, label, uuid, features };
            inspect::admin(&Source::parse(&image), &how, out)?
        }
        Cmd::Df { inodes, images } => usage::df(&images, inodes, out)?,
        Cmd::Du { summarize, all, apparent, paths } => {
            let how = usage::Summary { summarize, all, apparent };
            volume::each(&paths, false, |v, p| usage::du(v, p, how, out))?;
        }
        Cmd::Find { words } => find::find(&words, out)?,
        Cmd::Diff { content, first, second } => {
            let same = compare::diff(&first, &second, compare::How { content_only: content }, out)?;
            out.flush()?;
            return Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Cmd::Dump { image, structure, number } => dump::dump(&Source::parse(&image), &structure, number, out)?,
        Cmd::Freesp { image } => usage::freesp(&Source::parse(&image), out)?,
        Cmd::Grow { image, size } => usage::grow(&Source::parse(&image), size.as_deref(), out)?,
        Cmd::Trim { minimum, image } => usage::trim(&Source::parse(&image), minimum.as_deref(), out)?,
        Cmd::Getfacl { paths } => volume::each(&paths, false, |v, p| acl::get(v, p, out))?,
        Cmd::Setfacl { modify, remove, remove_all, remove_default, default, keep_mask, recursive, paths } => {
            let (modify, remove) = (modify.as_deref(), remove.as_deref());
            let c = acl::Change { modify, remove, remove_all, remove_default, default, keep_mask };
            deep(&paths, recursive, |v, s| acl::change(v, s, &c))?;
        }
        Cmd::Lsattr { paths } => volume::each(&paths, false, |v, p| flags::list(v, p, out))?,
        Cmd::Chattr { words } => {
            let (c, recursive, paths) = flags::Change::parse(words)?;
            deep(&paths, recursive, |v, s| c.apply(v, s))?;
        }
        Cmd::Completions { shell } => {
            // Apart: `generate` panics where the output has gone.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "uxfs", &mut script);
            out.write_all(&script)?;
        }
        Cmd::Man { dir } => {
            std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
            clap_mangen::generate_to(Cli::command(), &dir).with_context(|| format!("cannot write into {}", dir.display()))?;
        }
        Cmd::Bmap { paths } => volume::each(&paths, false, |v, p| show::bmap(v, p, out))?,
        Cmd::Recover { image } => inspect::recover(&Source::parse(&image), out)?,
        Cmd::Log { image } => inspect::log(&Source::parse(&image), out)?,
        Cmd::Check { json, forms, image } => {
            let code = inspect::check(&Source::parse(&image), json, forms, out)?;
            out.flush()?;
            return Ok(code);
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn cat(v: &Volume, path: &Path, out: &mut impl Write) -> Result<()> {
    let s = v.resolve(path, true)?;
    let mut buf = vec![0; tree::CHUNK];
    let mut at = 0;
    loop {
        let n = v.fs.read(s.ino, at, &mut buf).with_context(|| v.at(path))?;
        if n == 0 {
            return Ok(());
        }
        out.write_all(&buf[..n])?;
        at += n as u64;
    }
}

/// The inode of a file, which is made if it is missing.
fn file(v: &Volume, path: &Path) -> Result<u64> {
    if let Some(s) = v.find(path, true)? {
        return Ok(s.ino);
    }
    let (dir, name) = v.parent(path)?;
    let m = uxfs::Make { mode: volume::REG | 0o644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 };
    Ok(v.fs.create(dir.ino, name, m).with_context(|| v.at(path))?.ino)
}

/// Where something named like `from` goes: into `to` if that is a directory, else to `to` itself.
fn destination(tree: &dyn Tree, from: &Path, to: &Path, must_be_dir: bool) -> Result<PathBuf> {
    let is_dir = tree.meta(to, true)?.is_some_and(|m| m.mode & FMT == DIR);
    if must_be_dir && !is_dir {
        bail!("{}: not a directory", tree.show(to));
    }
    match from.file_name() {
        Some(n) if is_dir => Ok(to.join(n)),
        _ => Ok(to.to_path_buf()),
    }
}

/// The host as `cp` sees it.
const HOST: Host = Host { atimes: true };

fn cp(paths: &[OsString], recursive: bool, reflink: Reflink) -> Result<()> {
    let places: Vec<Place> = paths.iter().map(|p| Place::parse(p)).collect();
    let Some((to, from)) = places.split_last() else { bail!("nothing to copy") };
    let several = from.len() > 1;
    let bar = progress("copying");
    let counted = |n| bar.inc(n);
    let apart: tree::Share<'_> = &|_, _| match reflink {
        Reflink::Always => bail!("only files of one volume share blocks"),
        _ => Ok(false),
    };
    let one = |src: &dyn Tree, f: &Path, dst: &dyn Tree, t: &Path| {
        tree::copy(src, f, dst, &destination(dst, f, t, several)?, recursive, apart, &counted)
    };
    for f in from {
        match (f, to) {
            (Place::Host(_), Place::Host(_)) => bail!("neither path lies in a volume; one is written IMG:/path"),
            (Place::Inside(s, f), Place::Host(t)) => volume::with(s, false, |v| one(v, f, &HOST, t))?,
            (Place::Host(f), Place::Inside(s, t)) => volume::with(s, true, |v| one(&HOST, f, v, t))?,
            (Place::Inside(s, f), Place::Inside(d, t)) if s == d => volume::with(s, true, |v| {
                let t = destination(v, f, t, several)?;
                if t.starts_with(f) {
                    bail!("{}: cannot be copied into itself", v.at(f));
                }
                tree::copy(v, f, v, &t, recursive, &|f, t| share(v, f, t, reflink), &counted)
            })?,
            (Place::Inside(s, f), Place::Inside(d, t)) => {
                volume::with(s, false, |v| volume::with(d, true, |w| one(v, f, w, t)))?;
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Lets a copy share its original's blocks, if it may and can.
fn share(v: &Volume, from: &Path, to: &Path, when: Reflink) -> Result<bool> {
    if when == Reflink::Never {
        return Ok(false);
    }
    let (f, t) = (v.resolve(from, true)?, v.resolve(to, true)?);
    match v.fs.clone_range((f.ino, 0), (t.ino, 0), f.size) {
        Ok(()) => Ok(true),
        Err(uxfs::Error::Unsupported { .. }) if when == Reflink::Auto => Ok(false),
        Err(e) => Err(e).with_context(|| format!("{} cannot share blocks with {}", v.at(to), v.at(from))),
    }
}

fn mv(paths: &[OsString], how: Rename) -> Result<()> {
    let places: Vec<_> = paths.iter().map(|p| Place::inside(p)).collect();
    let Some(((source, to), from)) = places.split_last() else { bail!("nothing to move") };
    if from.iter().any(|f| f.0 != *source) {
        bail!("a move stays in one volume; use cp and rm");
    }
    volume::with(source, true, |v| {
        for (_, f) in from {
            let t = destination(v, f, to, from.len() > 1)?;
            let ((odir, oname), (ndir, nname)) = (v.parent(f)?, v.parent(&t)?);
            v.fs.rename(odir.ino, oname, ndir.ino, nname, how).with_context(|| format!("{} to {}", v.at(f), v.at(&t)))?;
        }
        Ok(())
    })
}

fn ln(symbolic: bool, force: bool, target: &OsStr, link: &OsStr) -> Result<()> {
    let (source, path) = Place::inside(link);
    volume::with(&source, true, |v| {
        let old = match (symbolic, Place::parse(target)) {
            (true, _) => None,
            (false, Place::Inside(s, p)) if s == source => Some(p),
            _ => bail!("a hard link stays in one volume: give its target as {}:/path", source.name()),
        };
        let base = old.as_deref().unwrap_or_else(|| Path::new(target));
        let path = destination(v, base, &path, false)?;
        if force && v.find(&path, false)?.is_some() {
            v.remove(&path, false)?;
        }
        match old {
            Some(p) => Tree::link(v, &p, &path),
            None => {
                let (dir, name) = v.parent(&path)?;
                v.fs.symlink(dir.ino, name, target.as_bytes(), 0, 0).with_context(|| v.at(&path))?;
                Ok(())
            }
        }
    })
}

/// Changes paths, and all that is below them if `recursive`; symbolic links below are left alone.
fn deep(paths: &[OsString], recursive: bool, change: impl Fn(&Volume, &uxfs::Stat) -> Result<()>) -> Result<()> {
    volume::each(paths, true, |v, p| {
        let first = v.resolve(p, true)?;
        let mut todo = vec![first];
        while let Some(s) = todo.pop() {
            if recursive && s.mode & FMT == DIR {
                for n in v.names(s.ino)? {
                    todo.push(v.fs.lookup(s.ino, n.as_bytes())?);
                }
            }
            if s.mode & FMT != volume::LNK {
                change(v, &s).with_context(|| v.at(p))?;
            }
        }
        Ok(())
    })
}

fn set_deep(paths: &[OsString], recursive: bool, change: impl Fn(&Volume, &uxfs::Stat) -> Result<SetAttr>) -> Result<()> {
    deep(paths, recursive, |v, s| {
        v.fs.setattr(s.ino, change(v, s)?)?;
        Ok(())
    })
}

fn getfattr(v: &Volume, path: &Path, only: Option<&OsString>, raw: bool, out: &mut impl Write) -> Result<()> {
    let ino = v.resolve(path, true)?.ino;
    let mut list = attributes::all(v, ino)?;
    if let Some(n) = only {
        list.retain(|x| x.0 == *n);
        if list.is_empty() {
            bail!("{}: {}: no such attribute", v.at(path), n.display());
        }
    }
    if raw {
        return Ok(list.iter().try_for_each(|x| out.write_all(&x.1))?);
    }
    if !list.is_empty() {
        writeln!(out, "# file: {}", path.display())?;
        for (n, value) in list {
            out.write_all(n.as_bytes())?;
            writeln!(out, "={}", attributes::show_value(&value))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_are_called_as_mount_calls_them() {
        let form = |s: &str| helper_form(s.split(' ').map(OsString::from).collect()).join(" ".as_ref()).into_string();
        for (called, becomes) in [
            ("/sbin/mount.uxfs a.img /mnt -s -o rw,user -t uxfs", "uxfs mount a.img /mnt -o rw,user"),
            ("mount.fuse.uxfs a.img /mnt -r", "uxfs mount a.img /mnt -o ro"),
            ("uxfs a.img /mnt -o rw,dev", "uxfs mount a.img /mnt -o rw,dev"),
            ("uxfs ls a.img:/ -a", "uxfs ls a.img:/ -a"),
            ("/sbin/umount.fuse.uxfs /mnt -r -t fuse.uxfs", "uxfs umount /mnt"),
            ("umount.uxfs /mnt -l", "uxfs umount /mnt -l"),
        ] {
            assert_eq!(form(called).as_deref(), Ok(becomes));
        }
    }

    #[test]
    fn the_definitions_hold() {
        Cli::command().debug_assert();
    }
}
