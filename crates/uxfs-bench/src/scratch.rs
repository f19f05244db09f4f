//! Volumes in files that go when they are closed.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use uxfs_device::{DeviceRef, FileDevice, Host, OpenMode};

/// A sparse file of so many bytes, past the host's page cache where that can be.
///
/// # Errors
/// It cannot be made.
pub fn in_file(dir: &Path, size: u64) -> Result<DeviceRef> {
    let path = dir.join(format!("uxfs-bench-{}.img", std::process::id()));
    let _ = fs::remove_file(&path);
    File::create(&path).and_then(|f| f.set_len(size)).with_context(|| path.display().to_string())?;
    let dev = FileDevice::open_with(&path, OpenMode::ReadWrite, Host { direct: true, ..Host::default() })?;
    fs::remove_file(&path)?;
    Ok(Arc::new(dev))
}
