//! `cargo xtask check | tidy | test | demo`

use anyhow::{Context, Result, bail};
use std::process::Command;

mod tidy;

/// Debian packages with the oracles and peers that the tests call.
const PACKAGES: &[&str] = &["xfsprogs", "fuse3", "attr", "acl", "dbench", "fsmark", "stress-ng"];
/// One program of each package, by which its presence is known.
const PROGRAMS: &[&str] = &["mkfs.xfs", "fusermount3", "setfattr", "setfacl", "dbench", "fs_mark", "stress-ng"];

fn cargo(args: &[&str]) -> Result<()> {
    println!("$ cargo {}", args.join(" "));
    let ok = Command::new(env!("CARGO")).args(args).status().context("cannot start cargo")?.success();
    if ok { Ok(()) } else { bail!("cargo {} failed", args.join(" ")) }
}

fn have(program: &str) -> bool {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin"].iter().any(|d| std::path::Path::new(d).join(program).exists())
}

/// Installs the Debian packages that are missing, as root, or names them.
fn packages() -> Result<()> {
    let missing: Vec<&str> = PROGRAMS.iter().zip(PACKAGES).filter(|(prog, _)| !have(prog)).map(|(_, pkg)| *pkg).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let install = format!("apt-get install -y {}", missing.join(" "));
    let root = String::from_utf8(Command::new("id").arg("-u").output()?.stdout)?.trim() == "0";
    if !root {
        bail!("the tests need packages that are not installed; as root: apt-get update && {install}");
    }
    println!("$ {install}");
    let sh = format!("apt-get update -qq && DEBIAN_FRONTEND=noninteractive {install} -qq >/dev/null");
    if Command::new("sh").args(["-c", &sh]).status()?.success() { Ok(()) } else { bail!("{install} failed") }
}

fn check() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "-q", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    tidy::run()?;
    cargo(&["test", "-q", "--workspace", "--lib"])?;
    cargo(&["doc", "-q", "--workspace", "--no-deps"])
}

fn test() -> Result<()> {
    packages()?;
    check()?;
    cargo(&["build", "-q", "--release", "-p", "uxfs-cli"])?;
    cargo(&["test", "--release", "--workspace"])
}

fn main() -> Result<()> {
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))?;
    match std::env::args().nth(1).as_deref() {
        Some("check") => check(),
        Some("tidy") => tidy::run(),
        Some("test") => test(),
        _ => bail!("usage: cargo xtask check | tidy | test"),
    }
}
