//! A volume's label, UUID and features, changed while nobody has it open; the label also while it is.
//!
//! The log's last record and the superblock bear the UUID both, and no write changes the two at once. So the record gets a UUID
//! of zeros first, which is of any volume, and the new one last: cut anywhere, the volume can be mounted.

use super::{Devices, check_features, read_superblock, superblock};
use crate::error::{Error, Result};
use crate::volume::Volume;
use std::ops::Range;
use std::sync::Arc;
use uxfs_device::{DeviceRef, WriteFlags};
use uxfs_format::reservation::min_log_blocks;
use uxfs_format::superblock::{SB_CRC, Superblock, incompat};
use uxfs_format::{AgNumber, Geometry, crc};
use uxfs_journal::{find_log_state, set_last_uuid};
use zerocopy::{FromBytes, IntoBytes};

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
    each_copy(dev, &g, 0..g.agcount, |sb| {
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
    each_copy(&vol.dev, &vol.geo, 1..vol.geo.agcount, |sb| sb.fname = label)?;
    Ok(uxfs_sync::blocking(|| vol.dev.flush())?)
}

/// Changes the superblocks of these groups; the first one, which counts, comes last.
fn each_copy(dev: &DeviceRef, g: &Geometry, groups: Range<u32>, change: impl Fn(&mut Superblock)) -> Result<()> {
    for agno in groups.rev() {
        let at = g.header_daddr(AgNumber(agno), 0).0 * 512;
        let mut b = vec![0; g.sectsize as usize];
        uxfs_sync::blocking(|| dev.read(at, &mut b))?;
        let Ok((mut sb, _)) = Superblock::read_from_prefix(&b) else { continue };
        change(&mut sb);
        b[..size_of::<Superblock>()].copy_from_slice(sb.as_bytes());
        crc::stamp(&mut b, SB_CRC);
        uxfs_sync::blocking(|| dev.write(at, &b, WriteFlags { preflush: agno == 0, fua: agno == 0 }))?;
    }
    Ok(())
}

/// Features that a volume can get later: inodes take them over one by one as they change.
pub const ADDABLE: u32 = incompat::BIGTIME | incompat::NREXT64;

/// Turns incompatible features on in a volume whose log is clean.
///
/// # Errors
/// [`Error::Unsupported`] for one that is not among them (bigtime, nrext64); [`Error::Invalid`] for a dirty log, or one that is too small for
/// the larger transactions.
///
/// # Crash
/// The volume has the features or not; copies of the superblock may be ahead.
pub fn add_features(devices: &Devices, bits: u32) -> Result<()> {
    let dev = &devices.data;
    let (g, sb) = read_superblock(dev)?;
    check_features(&g, &sb, false)?;
    if bits & !ADDABLE != 0 {
        return Err(Error::Unsupported { what: "adding this feature to a volume; bigtime and nrext64 can be".into() });
    }
    let (log_dev, geo) = devices.log_of(&g)?;
    if !find_log_state(&log_dev, &geo)?.clean {
        return Err(Error::Invalid { what: "the log is dirty: recover the volume first" });
    }
    let new = Geometry { incompat: g.incompat | bits, ..g.clone() };
    if min_log_blocks(&new) > g.logblocks {
        return Err(Error::Invalid { what: "the log is too small for the transactions of volumes with this feature" });
    }
    each_copy(dev, &g, 0..g.agcount, |sb| sb.features_incompat.set(sb.features_incompat.get() | bits))?;
    Ok(uxfs_sync::blocking(|| dev.flush())?)
}
