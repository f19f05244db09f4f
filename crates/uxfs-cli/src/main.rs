//! The `uxfs` program: XFS volumes without the kernel.

mod archive;
mod attributes;
mod change;
mod inspect;
mod mount;
mod place;
mod show;
mod tree;
mod volume;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use place::{Place, Source};
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tree::{Host, Tree};
use uxfs::{AttrName, Rename, SetAttr, SetMode};
use uxfs_mkfs::Features;
use volume::{DIR, FMT, Volume};

/// Works on XFS volumes without the kernel: image files, partitions of disk images, block devices.
///
/// A path in a volume is written IMG:/path, in a partition IMG@2:/path, from a byte on IMG@@1048576:/path. Commands that
/// change a volume leave a clean log; a dirty one is recovered first.
#[derive(Parser)]
#[command(name = "uxfs", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Make a volume with the default features of the newest mkfs.xfs
    Mkfs(Mkfs),
    /// Mount a volume on a directory, as an ordinary user
    Mount {
        /// Mount options, separated by commas: ro, norecovery, hostcache, offset=BYTES, part=N, commit=SECONDS, memory=SIZE, threads=N,
        /// fsname=NAME, allow_other, allow_root, dev, suid, noexec
        #[arg(short = 'o', value_name = "OPTIONS")]
        options: Vec<String>,
        /// Stay in the foreground
        #[arg(short, long)]
        foreground: bool,
        /// The image or device
        image: OsString,
        /// Where to
        dir: PathBuf,
    },
    /// Unmount a directory, and wait until everything is written
    Umount { dir: PathBuf },
    /// Make everything that was written to a mounted volume durable
    Sync { dir: PathBuf },
    /// List directories
    Ls {
        /// Modes, owners, sizes, times
        #[arg(short)]
        long: bool,
        /// Names that begin with a dot, too
        #[arg(short)]
        all: bool,
        /// Inode numbers
        #[arg(short)]
        inode: bool,
        /// Directories themselves, not what is in them
        #[arg(short)]
        directory: bool,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Write files to the standard output
    Cat {
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Show what is known of files
    Stat {
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Copy into, out of, inside or between volumes; modes, owners, times, attributes and holes are kept
    Cp {
        /// Directories with all that is in them
        #[arg(short, long, short_alias = 'a', short_alias = 'R')]
        recursive: bool,
        /// What to copy, and last where to
        #[arg(required = true, num_args = 2.., value_name = "PATH")]
        paths: Vec<OsString>,
    },
    /// Rename, or move into a directory
    Mv {
        /// Do not replace what is there
        #[arg(short)]
        no_clobber: bool,
        #[arg(required = true, num_args = 2.., value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Remove files
    Rm {
        /// Directories with all that is in them
        #[arg(short, long, short_alias = 'R')]
        recursive: bool,
        /// What does not exist is no error
        #[arg(short)]
        force: bool,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Make directories
    Mkdir {
        /// Those above, too; what is there already is no error
        #[arg(short)]
        parents: bool,
        /// Mode of the new ones
        #[arg(short, default_value = "755")]
        mode: String,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Make a hard link, or a symbolic one
    Ln {
        /// Symbolic: TARGET is kept as it is written
        #[arg(short)]
        symbolic: bool,
        /// Replace what is there
        #[arg(short)]
        force: bool,
        target: OsString,
        #[arg(value_name = "IMG:/PATH")]
        link: OsString,
    },
    /// Change permissions
    Chmod {
        /// Directories with all that is in them
        #[arg(short = 'R')]
        recursive: bool,
        /// Like 755 or u+x,go=rX
        #[arg(allow_hyphen_values = true)]
        mode: String,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Change owner and group; names are looked up in the volume
    Chown {
        /// Directories with all that is in them
        #[arg(short = 'R')]
        recursive: bool,
        /// OWNER, OWNER:GROUP or :GROUP
        owner: String,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Set times to now, and make files that are missing
    Touch {
        /// Make nothing
        #[arg(short = 'c')]
        no_create: bool,
        /// This time: @SECONDS since 1970
        #[arg(short)]
        date: Option<String>,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Set the size of files, and make those that are missing
    Truncate {
        /// Bytes, or with a suffix like 10m
        #[arg(short)]
        size: String,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Show attributes
    Getfattr {
        /// Only this one
        #[arg(short, value_name = "NAME")]
        name: Option<OsString>,
        /// Only the value, as it is
        #[arg(long, requires = "name")]
        only_values: bool,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Set or remove an attribute
    Setfattr {
        /// Set this one
        #[arg(short, value_name = "NAME", conflicts_with = "remove", required_unless_present = "remove")]
        name: Option<OsString>,
        /// To this value: text, or 0x and hexadecimal digits
        #[arg(short, default_value = "", allow_hyphen_values = true)]
        value: OsString,
        /// Remove this one
        #[arg(short = 'x', value_name = "NAME")]
        remove: Option<OsString>,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Unpack an archive from the standard input (plain, gzip or zstd), or pack one to the standard output
    Tar {
        /// Unpack into the directory
        #[arg(short = 'x', conflicts_with = "create", required_unless_present = "create")]
        extract: bool,
        /// Pack the directory
        #[arg(short)]
        create: bool,
        #[arg(value_name = "IMG:/PATH")]
        path: OsString,
    },
    /// Show the geometry and features
    Info { image: OsString },
    /// Show or change label and UUID; a dirty volume is recovered first
    Admin {
        /// New label, at most 12 bytes; -- for none
        #[arg(short = 'L', value_name = "LABEL", allow_hyphen_values = true)]
        label: Option<String>,
        /// New UUID, or generate
        #[arg(short = 'U', value_name = "UUID")]
        uuid: Option<String>,
        image: OsString,
    },
    /// Show how much space is used
    Df {
        /// Inodes instead of blocks
        #[arg(short)]
        inodes: bool,
        #[arg(required = true, value_name = "IMG")]
        images: Vec<OsString>,
    },
    /// Show where files lie in the volume, in blocks of 512 bytes
    Bmap {
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Recover a dirty volume, so that its log is clean
    Recover { image: OsString },
    /// Check a volume: exit 0 if it is sound, 1 if damaged, 2 if sound with a dirty log
    Check {
        /// Findings as JSON
        #[arg(long)]
        json: bool,
        image: OsString,
    },
    /// Show what is in the journal
    Log { image: OsString },
}

#[derive(Args)]
struct Mkfs {
    /// Data section: size=SIZE and agcount=N, separated by commas
    #[arg(short, value_name = "KEY=VALUE")]
    data: Vec<String>,
    /// Log section: size=SIZE
    #[arg(short, value_name = "KEY=VALUE")]
    log: Vec<String>,
    /// Metadata: uuid=UUID; finobt=, rmapbt=, reflink=, inobtcount=, bigtime= 0 or 1
    #[arg(short, value_name = "KEY=VALUE")]
    meta: Vec<String>,
    /// Inodes: sparse=, nrext64=, exchange= 0 or 1
    #[arg(short, value_name = "KEY=VALUE")]
    inode: Vec<String>,
    /// Naming: parent=0 or 1
    #[arg(short, value_name = "KEY=VALUE")]
    naming: Vec<String>,
    /// Features for the kernel of a long-term release: options=lts_6.1 (4.19, 5.4, 5.10, 5.15, 6.6, 6.12, 6.18)
    #[arg(short, value_name = "KEY=VALUE")]
    config: Vec<String>,
    /// Sector size: size=512 or size=4096
    #[arg(short, value_name = "KEY=VALUE")]
    sector: Vec<String>,
    /// Label, at most 12 bytes
    #[arg(short = 'L')]
    label: Option<String>,
    /// Overwrite what is there
    #[arg(short)]
    force: bool,
    /// Show what would be made
    #[arg(short = 'N')]
    dry_run: bool,
    /// Print nothing
    #[arg(short)]
    quiet: bool,
    /// The image or device; an image that does not exist is made with `-d size=`
    image: PathBuf,
}

/// Says something that is no error.
fn warn(text: &str) {
    eprintln!("uxfs: warning: {text}");
}

fn main() -> ExitCode {
    match run(Cli::parse_from(helper_form(std::env::args_os().collect()))) {
        Ok(code) => code,
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("uxfs: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// `uxfs IMG DIR -o ...`, as `mount -t fuse.uxfs` calls it, becomes `uxfs mount IMG DIR -o ...`.
fn helper_form(mut args: Vec<OsString>) -> Vec<OsString> {
    use clap::CommandFactory;
    let known = |a: &OsString| Cli::command().get_subcommands().any(|c| a == c.get_name()) || a == "help";
    if args.len() >= 3 && !args[1].as_bytes().starts_with(b"-") && !known(&args[1]) {
        args.insert(1, "mount".into());
    }
    args
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
    match cli.command {
        Cmd::Mkfs(m) => mkfs(&m, out)?,
        Cmd::Mount { options, foreground, image, dir } => mount::mount(&image, &dir, &options, foreground)?,
        Cmd::Umount { dir } => mount::unmount(&dir)?,
        Cmd::Sync { dir } => mount::sync(&dir)?,
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
        Cmd::Cp { recursive, paths } => cp(&paths, recursive)?,
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
            deep(&paths, recursive, |_, s| Ok(SetAttr { mode: Some(change::mode(&mode, s.mode)?), ..SetAttr::default() }))?
        }
        Cmd::Chown { recursive, owner, paths } => deep(&paths, recursive, |v, _| {
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
        Cmd::Admin { label, uuid, image } => inspect::admin(&Source::parse(&image), label.as_deref(), uuid.as_deref(), out)?,
        Cmd::Df { inodes, images } => show::df(&images, inodes, out)?,
        Cmd::Bmap { paths } => volume::each(&paths, false, |v, p| show::bmap(v, p, out))?,
        Cmd::Recover { image } => inspect::recover(&Source::parse(&image), out)?,
        Cmd::Log { image } => inspect::log(&Source::parse(&image), out)?,
        Cmd::Check { json, image } => {
            let code = inspect::check(&Source::parse(&image), json, out)?;
            out.flush()?;
            return Ok(code);
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Values of the keys that an option may have, from words like `size=1g,agcount=4`.
fn keys(option: char, words: &[String], allowed: &[&str]) -> Result<Vec<(String, String)>> {
    words
        .iter()
        .flat_map(|w| w.split(','))
        .map(|w| match w.split_once('=') {
            Some((k, v)) if allowed.contains(&k) => Ok((k.to_string(), v.to_string())),
            _ => bail!(
                "-{option} {w} is not supported; there {} {}",
                if allowed.len() == 1 { "is" } else { "are" },
                allowed.iter().map(|a| format!("{a}=")).collect::<Vec<_>>().join(", ")
            ),
        })
        .collect()
}

fn feature_keys(section: char) -> Vec<&'static str> {
    Features::keys(section).collect()
}

fn mkfs(m: &Mkfs, out: &mut impl Write) -> Result<()> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut o = uxfs_mkfs::Options {
        label: m.label.clone().unwrap_or_default().into_bytes(),
        time: (now.as_secs() as i64, now.subsec_nanos()),
        features: Features::NEWEST,
        ..uxfs_mkfs::Options::new(0, uxfs_mkfs::UuidGenerator::random()?)
    };
    for c in &m.config {
        let name = c.strip_prefix("options=").with_context(|| format!("-c {c} is not supported; options= is"))?;
        o.features = Features::profile(name)?;
    }
    let mut metadata = feature_keys('m');
    metadata.push("uuid");
    for (section, words, allowed) in [('m', &m.meta, metadata), ('i', &m.inode, feature_keys('i')), ('n', &m.naming, feature_keys('n'))] {
        for (k, v) in keys(section, words, &allowed)? {
            if k == "uuid" {
                o.uuid = uxfs_mkfs::parse_uuid(&v).with_context(|| format!("{v:?} is no UUID"))?;
                continue;
            }
            let on = match v.as_str() {
                "0" => false,
                "1" => true,
                _ => bail!("-{section} {k}={v}: 0 and 1 are possible"),
            };
            o.features.set(section, &k, on);
        }
    }
    let mut size = None;
    for (k, v) in keys('d', &m.data, &["size", "agcount"])? {
        match k.as_str() {
            "size" => size = Some(place::size(&v)?),
            _ => o.agcount = Some(v.parse().context("agcount needs a number")?),
        }
    }
    for (_, v) in keys('l', &m.log, &["size"])? {
        o.log_size = Some(place::size(&v)?);
    }
    for (_, v) in keys('s', &m.sector, &["size"])? {
        o.sector = place::size(&v)? as u32;
    }
    let exists = m.image.exists();
    if !exists && size.is_none() {
        bail!("{} does not exist; give -d size= to make it", m.image.display());
    }
    if m.dry_run {
        let dev_size = if exists {
            uxfs_device::FileDevice::open(&m.image, uxfs_device::OpenMode::ReadOnly).map(|d| uxfs_device::Device::size_bytes(&d))?
        } else {
            0
        };
        o.size = size.unwrap_or(dev_size);
        write!(out, "{}", uxfs_mkfs::print_geometry(&m.image.display().to_string(), &o.superblock()?))?;
        return Ok(());
    }
    if exists && !m.force && looks_used(&m.image)? {
        bail!("{} seems to hold something already; use -f to overwrite it", m.image.display());
    }
    // An image that cannot become a volume is not left behind.
    o.size = size.unwrap_or(0);
    if size.is_some() {
        o.superblock()?;
    }
    let dev = uxfs_device::FileDevice::create(&m.image, size)?;
    o.size = size.unwrap_or_else(|| uxfs_device::Device::size_bytes(&dev));
    if o.size > uxfs_device::Device::size_bytes(&dev) {
        bail!("{} has only {} bytes", m.image.display(), uxfs_device::Device::size_bytes(&dev));
    }
    let sb = uxfs_mkfs::format(&dev, &o)?;
    if !m.quiet {
        write!(out, "{}", uxfs_mkfs::print_geometry(&m.image.display().to_string(), &sb))?;
    }
    Ok(())
}

/// True if an image's first blocks hold anything.
fn looks_used(path: &Path) -> Result<bool> {
    let dev = uxfs_device::FileDevice::open(path, uxfs_device::OpenMode::ReadOnly)?;
    let mut head = vec![0; uxfs_device::Device::size_bytes(&dev).min(65536) as usize];
    uxfs_device::Device::read(&dev, 0, &mut head)?;
    Ok(head.iter().any(|b| *b != 0))
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

fn cp(paths: &[OsString], recursive: bool) -> Result<()> {
    let places: Vec<Place> = paths.iter().map(|p| Place::parse(p)).collect();
    let Some((to, from)) = places.split_last() else { bail!("nothing to copy") };
    let several = from.len() > 1;
    let bar = progress("copying");
    let one =
        |src: &dyn Tree, f: &Path, dst: &dyn Tree, t: &Path| copy_one(src, f, dst, &destination(dst, f, t, several)?, recursive, &bar);
    for f in from {
        match (f, to) {
            (Place::Host(_), Place::Host(_)) => bail!("neither path lies in a volume; one is written IMG:/path"),
            (Place::Inside(s, f), Place::Host(t)) => volume::with(s, false, |v| one(v, f, &Host, t))?,
            (Place::Host(f), Place::Inside(s, t)) => volume::with(s, true, |v| one(&Host, f, v, t))?,
            (Place::Inside(s, f), Place::Inside(d, t)) if s == d => volume::with(s, true, |v| {
                let t = destination(v, f, t, several)?;
                if t.starts_with(f) {
                    bail!("{}: cannot be copied into itself", v.at(f));
                }
                copy_one(v, f, v, &t, recursive, &bar)
            })?,
            (Place::Inside(s, f), Place::Inside(d, t)) => {
                volume::with(s, false, |v| volume::with(d, true, |w| one(v, f, w, t)))?;
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn copy_one(src: &dyn Tree, from: &Path, dst: &dyn Tree, to: &Path, recursive: bool, bar: &ProgressBar) -> Result<()> {
    tree::copy(src, from, dst, to, recursive, &|n| bar.inc(n))
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

fn ln(symbolic: bool, force: bool, target: &std::ffi::OsStr, link: &std::ffi::OsStr) -> Result<()> {
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
fn deep(paths: &[OsString], recursive: bool, change: impl Fn(&Volume, &uxfs::Stat) -> Result<SetAttr>) -> Result<()> {
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
                v.fs.setattr(s.ino, change(v, &s)?).with_context(|| v.at(p))?;
            }
        }
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
