//! Features that a volume gets after it was made, while nobody has it open.

use super::{Devices, Mount, Options, check_features, read_superblock, superblock};
use crate::error::{Error, Result};
use crate::inode;
use crate::trans::Trans;
use uxfs_format::reservation::min_log_blocks;
use uxfs_format::superblock::{incompat, ro_compat};
use uxfs_format::{AgNumber, Geometry};
use uxfs_journal::find_log_state;

/// Incompatible features that a volume can get later. Inodes take bigtime and nrext64 over one by one as they change.
const ADDABLE: u32 = incompat::BIGTIME | incompat::NREXT64 | incompat::EXCHRANGE;

/// Features of the same kind with which older programs may read the volume.
const ADDABLE_RO: u32 = ro_compat::INOBTCNT;

/// Turns features on in a volume whose log is clean.
///
/// # Errors
/// [`Error::Unsupported`] for one that is not among them (bigtime, nrext64, exchange-range; inobtcount); [`Error::Invalid`] for a dirty
/// log, one that is too small for the larger transactions, exchange-range without reflink, or inobtcount without finobt.
///
/// # Crash
/// The volume has the features or not; recovery brings the copies of the superblock up to date. The kernel's leaves those as they are.
pub fn add_features(devices: &Devices, incompat: u32, ro_compat: u32) -> Result<()> {
    let dev = &devices.data;
    let (g, sb) = read_superblock(dev)?;
    check_features(&g, &sb, false)?;
    if incompat & !ADDABLE != 0 || ro_compat & !ADDABLE_RO != 0 {
        let what = "adding this feature to a volume; bigtime, nrext64, exchange-range and inobtcount can be";
        return Err(Error::Unsupported { what: what.into() });
    }
    if incompat & incompat::EXCHRANGE != 0 && !g.reflink() {
        return Err(Error::Invalid { what: "exchange-range needs a volume with reflink" });
    }
    if ro_compat & ro_compat::INOBTCNT != 0 && !g.finobt() {
        return Err(Error::Invalid { what: "inobtcount needs a volume with finobt" });
    }
    let (log_dev, geo) = devices.log_of(&g)?;
    if !find_log_state(&log_dev, &geo)?.clean {
        return Err(Error::Invalid { what: "the log is dirty: recover the volume first" });
    }
    let new = Geometry { incompat: g.incompat | incompat, ro_compat: g.ro_compat | ro_compat, ..g.clone() };
    if min_log_blocks(&new) > g.logblocks {
        return Err(Error::Invalid { what: "the log is too small for the transactions of volumes with this feature" });
    }
    let mount = Mount::open(devices.clone(), Options { commit: 0, ..Options::default() })?;
    let vol = mount.vol();
    if ro_compat & !g.ro_compat & ro_compat::INOBTCNT != 0 {
        // Before the feature: until then nobody looks at the counts.
        for agno in (0..g.agcount).map(AgNumber) {
            let mut tp = Trans::new_must_succeed(vol, vol.res.itruncate, 0)?;
            inode::count_trees(&mut tp, agno)?;
            tp.commit()?;
        }
    }
    superblock::change(vol, |sb| {
        sb.features_incompat.set(new.incompat);
        sb.features_ro_compat.set(new.ro_compat);
    })?;
    vol.journal.force_all()?;
    superblock::update_copies(dev, &new)?;
    mount.unmount()
}
