//! Kernels of other releases of Debian, in QEMU without KVM: `UXFS_KERNEL=RELEASE` lets them recover in the place of this machine's.

use super::oracle;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Boots that are tried: QEMU's emulation fails now and then before anything is mounted.
const BOOTS: usize = 3;
/// Seconds that one may take.
const LONGEST: &str = "300";

/// The release that is asked for.
pub(super) fn release() -> Option<String> {
    std::env::var("UXFS_KERNEL").ok()
}

/// True if the kernel that recovers knows neither blocks larger than its pages nor parent pointers and exchange-range.
pub fn is_old() -> bool {
    release().is_some_and(|r| ["bullseye", "bookworm"].contains(&r.as_str()))
}

/// Lets the kernel of `release` mount the images, data and then the log if it is outside, and unmount them. One with online scrub looks
/// at everything between.
///
/// # Errors
/// It does not mount them, or finds something; in words.
pub(super) fn recover(release: &str, cache: &Path, files: &[PathBuf]) -> Result<(), String> {
    let dir = cache.join("kernels").join(release);
    let mut args: Vec<OsString> =
        [LONGEST, "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "1024", "-nodefaults", "-no-reboot"]
            .into_iter()
            .chain(["-display", "none", "-serial", "stdio", "-append", "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off"])
            .map(OsString::from)
            .collect();
    args.extend(["-kernel".into(), dir.join("vmlinuz").into(), "-initrd".into(), dir.join("initrd").into()]);
    for f in files {
        let mut drive = OsString::from("format=raw,if=virtio,cache=unsafe,file=");
        drive.push(f);
        args.extend(["-drive".into(), drive]);
    }
    let args: Vec<_> = args.iter().map(OsString::as_os_str).collect();
    let mut said = String::new();
    for _ in 0..BOOTS {
        let o = oracle("timeout", &args)?;
        said = format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
        if said.contains("uxfs: begin") {
            break;
        }
    }
    let bad: Vec<&str> = said.lines().filter(|l| l.contains("uxfs: scrub: ") || l.contains("uxfs: refused: ")).take(5).collect();
    if said.contains("uxfs: recovered") && bad.is_empty() {
        return Ok(());
    }
    let end = said.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
    Err(format!(
        "the kernel of {release}: {} (get it with: cargo xtask power-cut --release={release})",
        if bad.is_empty() { end } else { bad.join(" | ") }
    ))
}
