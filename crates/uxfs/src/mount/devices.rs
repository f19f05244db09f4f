//! The devices that a volume lies on, and which of them has the log.

use crate::error::{Error, Result};
use std::sync::Arc;
use uxfs_device::{Device, DeviceRef};
use uxfs_format::{DiskAddr, Geometry};
use uxfs_journal::LogGeometry;

/// The devices of a volume. One with its log inside comes from its device alone.
#[derive(Clone)]
pub struct Devices {
    /// Data and metadata.
    pub data: DeviceRef,
    /// The log, where it has a device of its own.
    pub log: Option<DeviceRef>,
}

impl From<DeviceRef> for Devices {
    fn from(data: DeviceRef) -> Devices {
        Devices { data, log: None }
    }
}

impl From<&DeviceRef> for Devices {
    fn from(data: &DeviceRef) -> Devices {
        data.clone().into()
    }
}

impl<D: Device + 'static> From<Arc<D>> for Devices {
    fn from(data: Arc<D>) -> Devices {
        Devices { data, log: None }
    }
}

impl Devices {
    /// The device with the log, and where the log lies on it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the log is on another device and none was given, or the other way round; the device is too small.
    pub(super) fn log_of(&self, g: &Geometry) -> Result<(DeviceRef, LogGeometry)> {
        let geo = LogGeometry::of(g);
        let dev = match (&self.log, g.logstart.0) {
            (None, 0) => return Err(Error::Invalid { what: "the log of this volume is on another device: name it (logdev)" }),
            (Some(_), 1..) => return Err(Error::Invalid { what: "the log of this volume is inside: it takes no log device (logdev)" }),
            (None, _) => self.data.clone(),
            (Some(log), _) => log.clone(),
        };
        let end = geo.start + geo.size();
        if end > dev.size_bytes() {
            let what = format!("the log ends at byte {end}, its device has only {}", dev.size_bytes());
            return Err(Error::Io { at: DiskAddr(0), error: std::io::Error::new(std::io::ErrorKind::UnexpectedEof, what) });
        }
        Ok((dev, geo))
    }
}
