//! `cargo xtask check | tidy | tools | test [--long] | matrix | holes | power-cut [--long] [--kernel] [--release=NAME] | mounts --release=NAME |
//! demo`

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

mod demo;
mod tidy;

/// Debian packages with the oracles and peers that the tests and benches call.
const PACKAGES: &[&str] = &["xfsprogs", "fuse3", "attr", "acl", "dbench", "fsmark", "stress-ng", "fuse2fs"];
/// One program of each package, by which its presence is known.
const PROGRAMS: &[&str] = &["mkfs.xfs", "fusermount3", "setfattr", "setfacl", "dbench", "fs_mark", "stress-ng", "fuse2fs"];

fn cargo(args: &[&str]) -> Result<()> {
    println!("$ cargo {}", args.join(" "));
    let ok = Command::new(env!("CARGO")).args(args).status().context("cannot start cargo")?.success();
    if ok { Ok(()) } else { bail!("cargo {} failed", args.join(" ")) }
}

fn have(program: &str) -> bool {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin"].iter().any(|d| Path::new(d).join(program).exists())
}

/// Installs the Debian packages that are missing, as root, or names them.
fn packages(programs: &[&str], packages: &[&'static str]) -> Result<()> {
    let missing: Vec<&str> = programs.iter().zip(packages).filter(|(prog, _)| !have(prog)).map(|(_, pkg)| *pkg).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let install = format!("apt-get install -y {}", missing.join(" "));
    let root = String::from_utf8(Command::new("id").arg("-u").output()?.stdout)?.trim() == "0";
    if !root {
        bail!("packages are missing; as root: apt-get update && {install}");
    }
    println!("$ {install}");
    let sh = format!("apt-get update -qq && DEBIAN_FRONTEND=noninteractive {install} -qq >/dev/null");
    if Command::new("sh").args(["-c", &sh]).status()?.success() { Ok(()) } else { bail!("{install} failed") }
}

/// Where tools lie that Debian does not have, a folder each.
fn cache(name: &str) -> std::path::PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| Path::new(&std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache"), std::path::PathBuf::from);
    cache.join("uxfs").join(name)
}

/// Debian's newest xfsprogs beside the machine's own, where the tests look for it.
fn newest_xfsprogs() -> Result<()> {
    let dir = cache("xfsprogs");
    let works = Command::new(dir.join("bin/mkfs.xfs")).arg("-V").output().is_ok_and(|o| o.status.success());
    if works {
        return Ok(());
    }
    println!("$ xtask/newest-xfsprogs.sh {}", dir.display());
    let ok = Command::new("sh").arg("xtask/newest-xfsprogs.sh").arg(&dir).status()?.success();
    if ok { Ok(()) } else { bail!("cannot fetch the newest xfsprogs into {}", dir.display()) }
}

/// Suites of others that run over a mount: their crates and versions. They are run, not linked.
const SUITES: [(&str, &str); 2] = [("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

fn suites() -> Result<()> {
    let dir = cache("suites");
    let path = dir.to_str().context("the cache's path is no text")?;
    for (name, version) in SUITES {
        let said = Command::new(dir.join("bin").join(name)).arg("--version").output();
        if said.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains(version)) {
            continue;
        }
        cargo(&["install", "-q", "--locked", "--force", "--root", path, "--version", version, name])?;
    }
    Ok(())
}

/// What the tests call beside this workspace.
fn tools() -> Result<()> {
    packages(PROGRAMS, PACKAGES)?;
    newest_xfsprogs()?;
    suites()
}

/// What needs no program of its own: form, lints, arrows, documents.
fn lint() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "-q", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    tidy::run()?;
    cargo(&["doc", "-q", "--workspace", "--no-deps"])
}

fn check() -> Result<()> {
    lint()?;
    cargo(&["test", "-q", "--workspace", "--lib"])
}

/// All tests; `long` tries more of what is left to chance: ten thousand damaged volumes among it.
fn test(long: bool) -> Result<()> {
    tools()?;
    lint()?;
    let args = ["test", "--profile", "checked", "--workspace"];
    if long {
        with_variables(&args, &[("UXFS_LONG", "1")])?;
    } else {
        cargo(&args)?;
    }
    holes()
}

fn with_variables(args: &[&str], set: &[(&str, &str)]) -> Result<()> {
    let said: String = set.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    println!("$ {said}cargo {}", args.join(" "));
    let ok = Command::new(env!("CARGO")).args(args).envs(set.iter().copied()).status()?.success();
    if ok { Ok(()) } else { bail!("cargo {} failed", args.join(" ")) }
}

/// Writes docs/matrix.md as the tests find it.
fn matrix() -> Result<()> {
    tools()?;
    with_variables(&["test", "--profile", "checked", "-p", "uxfs", "--test", "matrix"], &[("UXFS_WRITE_MATRIX", "1")])
}

/// Switches each rule of the journal, and one of locking, off, and sees the power cuts, the schedules of threads, or threads that
/// linger before locks find it, in target folders of their own: what is built there is never shipped.
fn holes() -> Result<()> {
    let cuts = ("target/holes", "--cfg uxfs_holes");
    let schedules = ("target/schedules", "--cfg uxfs_holes --cfg uxfs_shuttle");
    for ((target, flags), package, test) in [
        (cuts, "uxfs-journal", "full_log"),
        (cuts, "uxfs-sim", "holes"),
        (cuts, "uxfs", "chaos"),
        (schedules, "uxfs-journal", "schedules"),
        (schedules, "uxfs-sync", "schedules"),
    ] {
        let args = ["test", "--profile", "checked", "--target-dir", target, "-p", package, "--test", test];
        println!("$ RUSTFLAGS=\"{flags}\" cargo {}", args.join(" "));
        if !Command::new(env!("CARGO")).args(args).env("RUSTFLAGS", flags).status()?.success() {
            bail!("not every hole is found");
        }
    }
    Ok(())
}

/// The kernel of a Debian release, which QEMU boots.
fn other_kernel(release: &str) -> Result<()> {
    packages(&["qemu-system-x86_64", "busybox", "cpio", "depmod"], &["qemu-system-x86", "busybox-static", "cpio", "kmod"])?;
    let dir = cache("kernels").join(release);
    // What the kernel boots into is made by the script, which may have changed since.
    let script = "xtask/other-kernel.sh";
    if std::fs::read(dir.join("other-kernel.sh")).ok() == Some(std::fs::read(script)?) {
        return Ok(());
    }
    println!("$ {script} {release} {}", dir.display());
    let ok = Command::new("sh").arg(script).args([release.as_ref(), dir.as_os_str(), cache("xfsprogs").as_os_str()]).status()?;
    if ok.success() { Ok(()) } else { bail!("cannot fetch the kernel of {release}") }
}

/// Cuts random workloads, or with `kernel` those of the kernel's XFS, and more of them if `long`; says what was reached. What a kernel
/// recovers, that of a Debian `release` does, if one is named.
fn power_cut(long: bool, kernel: bool, release: Option<&str>) -> Result<()> {
    tools()?;
    if let Some(r) = release {
        other_kernel(r)?;
    }
    let (test, filter) = if kernel { ("kernel_cut", "") } else { ("power_cut", "random") };
    let args = ["test", "--profile", "checked", "-p", "uxfs-sim", "--test", test, filter, "--", "--nocapture"];
    let args: Vec<&str> = args.into_iter().filter(|a| !a.is_empty()).collect();
    let set: Vec<_> = long.then_some(("UXFS_LONG", "1")).into_iter().chain(release.map(|r| ("UXFS_KERNEL", r))).collect();
    with_variables(&args, &set)
}

/// Tests that mount, by the name of their file.
const MOUNTS: [&str; 6] = ["data", "logdev", "mount", "posix", "stalled", "suites"];

/// Runs the tests that mount under the kernel of a Debian release.
fn mounts(release: &str) -> Result<()> {
    tools()?;
    packages(&["chattr", "strip", "kill"], &["e2fsprogs", "binutils", "procps"])?;
    other_kernel(release)?;
    let args = ["test", "--profile", "checked", "-p", "uxfs-cli", "-p", "uxfs-fuse", "--no-run", "--message-format=json"];
    println!("$ cargo {}", args.join(" "));
    let built = Command::new(env!("CARGO")).args(args).stderr(std::process::Stdio::inherit()).output()?;
    if !built.status.success() {
        bail!("the tests cannot be built");
    }
    // Each line describes one program.
    let said = String::from_utf8(built.stdout)?;
    let program = |kind: &str, name: &str| {
        // A program has unit tests, which are another one of that name.
        let is_test = format!("\"test\":{}}}", kind == "test");
        let (kind, named) = (format!("\"kind\":[\"{kind}\"]"), format!("\"name\":\"{name}\""));
        let all = [&kind, &named, &is_test, "\"executable\":\""];
        let line = said.lines().find(|l| all.iter().all(|part| l.contains(*part)));
        let path = line.and_then(|l| l.split("\"executable\":\"").nth(1)?.split('"').next());
        path.with_context(|| format!("no {name} was built"))
    };
    let tests = MOUNTS.iter().map(|name| program("test", name)).collect::<Result<Vec<_>>>()?;
    let (kernel, all) = (cache("kernels").join(release), cache(""));
    println!("$ xtask/mounts-elsewhere.sh {} ...", kernel.display());
    let mut c = Command::new("sh");
    c.arg("xtask/mounts-elsewhere.sh").arg(kernel).arg(all).arg(program("bin", "uxfs")?).args(tests);
    if c.status()?.success() { Ok(()) } else { bail!("not all tests pass under the kernel of {release}") }
}

fn demo() -> Result<()> {
    // Without it only root can mount; the demo goes on without a mount then.
    if let Err(e) = packages(&["fusermount3"], &["fuse3"]) {
        println!("{e}");
    }
    cargo(&["build", "--release", "-p", "uxfs-cli"])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), std::path::PathBuf::from);
    demo::run(&std::path::absolute(target.join("release/uxfs"))?)
}

fn main() -> Result<()> {
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))?;
    let has = |flag: &str| std::env::args().skip(2).any(|a| a == flag);
    let release = std::env::args().skip(2).find_map(|a| a.strip_prefix("--release=").map(str::to_string));
    match std::env::args().nth(1).as_deref() {
        Some("check") => check(),
        Some("tidy") => tidy::run(),
        Some("tools") => tools(),
        Some("test") => test(has("--long")),
        Some("matrix") => matrix(),
        Some("holes") => holes(),
        Some("power-cut") => power_cut(has("--long"), has("--kernel"), release.as_deref()),
        Some("mounts") => mounts(&release.context("of which release? --release=bookworm, trixie, sid")?),
        Some("demo") => demo(),
        _ => bail!(
            "usage: cargo xtask check | tidy | tools | test [--long] | matrix | holes | power-cut [--long] [--kernel] [--release=NAME] | \
             mounts --release=NAME | demo"
        ),
    }
}
