//! A volume's label and UUID, changed while nobody has it open; the label also while it is.
//!
//! The log's last record and the superblock bear the UUID both, and no write changes the two at once. So the record gets a UUID
//! of zeros first, which is of any volume, and the new one last: cut anywhere, the volume can be mounted.

use super::{Devices, check_features, read_superblock, superblock};
use crate::error::{Error, Result};
use crate::volume::Volume;
use std::sync::Arc;
use uxfs_format::superblock::incompat;
use uxfs_journal::{find_log_state, set_last_uuid};

/// Bytes of a label.
const LABEL: usize = 12;

/// Sets the label, the UUID, or both, of a volume whose log is clean.
///
/// # Errors
/// [`Error::Invalid`] for a label that is too long, or a dirty log; the device's.
pub fn set_identity(devices: &Devices, label: Option<&[u8]>, uuid: Option<[u8; 16]>) -> Result<()> {
    let dev = &devices.data;
    let (g, sb) = read_superblock(dev)?;
    check_features(&g, &sb, false)?;
    let label = label.map(padded).transpose()?;
    if uuid == Some([0; 16]) {
        return Err(Error::Invalid { what: "a UUID of zeros is none" });
    }
    let (log_dev, mut geo) = devices.log_of(&g)?;
    let state = find_log_state(&log_dev, &geo)?;
    if !state.clean {
        return Err(Error::Invalid { what: "the log is dirty: recover the volume first" });
    }
    if uuid.is_some() {
        set_last_uuid(&*log_dev, &geo, state.head, &[0; 16])?;
    }
    superblock::change_copies(dev, &g, 0..g.agcount, |sb| {
        sb.fname = label.unwrap_or(sb.fname);
        if let Some(u) = uuid {
            let own = sb.features_incompat.get() & !incompat::META_UUID;
            let other = u != g.meta_uuid;
            sb.features_incompat.set(own | if other { incompat::META_UUID } else { 0 });
            sb.meta_uuid = if other { g.meta_uuid } else { [0; 16] };
            sb.uuid = u;
        }
    })?;
    if let Some(u) = uuid {
        geo.uuid = u;
        set_last_uuid(&*log_dev, &geo, state.head, &u)?;
    }
    Ok(uxfs_sync::blocking(|| dev.flush())?)
}

/// A label as the superblock has it.
fn padded(label: &[u8]) -> Result<[u8; LABEL]> {
    let mut l = [0; LABEL];
    let place = l.get_mut(..label.len()).ok_or(Error::Invalid { what: "the label is longer than 12 bytes" })?;
    place.copy_from_slice(label);
    Ok(l)
}

/// Sets the label of an open volume; durable on return.
///
/// # Errors
/// [`Error::Invalid`] for a label that is too long; the device's; the volume cannot be written.
///
/// # Crash
/// The label is the old one or the new one; copies of the superblock may be behind.
pub(super) fn set_label(vol: &Arc<Volume>, label: &[u8]) -> Result<()> {
    let label = padded(label)?;
    superblock::change(vol, |sb| sb.fname = label)?;
    vol.journal.force_all()?;
    superblock::change_copies(&vol.dev, &vol.geo, 1..vol.geo.agcount, |sb| sb.fname = label)?;
    Ok(uxfs_sync::blocking(|| vol.dev.flush())?)
}
