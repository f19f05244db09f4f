//! A volume's label and UUID, changed while nobody has it open.
//!
//! The log's last record and the superblock bear the UUID both, and no write changes the two at once. So the record gets a UUID
//! of zeros first, which is of any volume, and the new one last: cut anywhere, the volume can be mounted.

use super::{check_features, read_superblock};
use crate::error::{Error, Result};
use uxfs_device::{DeviceRef, WriteFlags};
use uxfs_format::superblock::{SB_CRC, Superblock, incompat};
use uxfs_format::{AgNumber, crc};
use uxfs_journal::{LogGeometry, find_log_state, set_last_uuid};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a label.
const LABEL: usize = 12;

/// Sets the label, the UUID, or both, of a volume whose log is clean.
///
/// # Errors
/// [`Error::Invalid`] for a label that is too long, or a dirty log; the device's.
pub fn set_identity(dev: &DeviceRef, label: Option<&[u8]>, uuid: Option<[u8; 16]>) -> Result<()> {
    let (g, sb) = read_superblock(dev)?;
    check_features(&g, &sb, false)?;
    if label.is_some_and(|l| l.len() > LABEL) {
        return Err(Error::Invalid { what: "the label is longer than 12 bytes" });
    }
    if uuid == Some([0; 16]) {
        return Err(Error::Invalid { what: "a UUID of zeros is none" });
    }
    let mut geo = LogGeometry::of(&g);
    let state = find_log_state(dev, &geo)?;
    if !state.clean {
        return Err(Error::Invalid { what: "the log is dirty: recover the volume first" });
    }
    if uuid.is_some() {
        set_last_uuid(&**dev, &geo, state.head, &[0; 16])?;
    }
    // The first superblock, which counts, comes last.
    for agno in (0..g.agcount).rev() {
        let at = g.header_daddr(AgNumber(agno), 0).0 * 512;
        let mut b = vec![0; g.sectsize as usize];
        dev.read(at, &mut b)?;
        let Ok((mut sb, _)) = Superblock::read_from_prefix(&b) else { continue };
        if let Some(l) = label {
            sb.fname = [0; LABEL];
            sb.fname[..l.len()].copy_from_slice(l);
        }
        if let Some(u) = uuid {
            let own = sb.features_incompat.get() & !incompat::META_UUID;
            let other = u != g.meta_uuid;
            sb.features_incompat.set(own | if other { incompat::META_UUID } else { 0 });
            sb.meta_uuid = if other { g.meta_uuid } else { [0; 16] };
            sb.uuid = u;
        }
        b[..size_of::<Superblock>()].copy_from_slice(sb.as_bytes());
        crc::stamp(&mut b, SB_CRC);
        dev.write(at, &b, WriteFlags { preflush: agno == 0, fua: agno == 0 })?;
    }
    if let Some(u) = uuid {
        geo.uuid = u;
        set_last_uuid(&**dev, &geo, state.head, &u)?;
    }
    Ok(dev.flush()?)
}
