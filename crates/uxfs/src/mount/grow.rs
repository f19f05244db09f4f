//! Making a volume larger while nobody has it open.
//!
//! New groups are written behind the end first, where nobody looks. One transaction then lengthens the last group and the
//! superblock: cut anywhere, the volume has its old size or its new one. The copies of the superblock follow; recovery sees
//! to them, too.

use super::superblock::{change_in, update_copies};
use super::{Devices, Mount, Options, check_features, read_superblock};
use crate::ag;
use crate::error::{Error, Result};
use crate::space::{self, Owner};
use crate::trans::Trans;
use uxfs_device::DeviceRef;
use uxfs_format::ag::Agf;
use uxfs_format::superblock::{SB_CRC, Superblock};
use uxfs_format::{AgBlock, AgNumber, Geometry, Kind, crc};
use uxfs_journal::{clear_stale, find_log_state};
use zerocopy::{FromBytes, IntoBytes};

/// Least blocks of a last group.
const LEAST_GROUP: u64 = 64;

/// The superblock that a volume gets when it is grown to `dblocks` blocks, a rest that is too small for a group left out.
///
/// # Errors
/// [`Error::Invalid`] if that is smaller than it is; the device's; the volume cannot be written.
pub fn grown_superblock(dev: &DeviceRef, dblocks: u64) -> Result<(Geometry, Superblock)> {
    let (g, sb) = read_superblock(dev)?;
    check_features(&g, &sb, false)?;
    let ag = u64::from(g.agblocks);
    let rest = dblocks % ag;
    let dblocks = if rest != 0 && rest < LEAST_GROUP && dblocks > ag { dblocks - rest } else { dblocks };
    if dblocks < g.dblocks {
        return Err(Error::Invalid { what: "a volume cannot be made smaller" });
    }
    let mut new = sb;
    new.dblocks.set(dblocks);
    new.agcount.set(u32::try_from(dblocks.div_ceil(ag)).map_err(|_| Error::TooLarge)?);
    let mut sector = new.as_bytes().to_vec();
    sector.resize(g.sectsize as usize, 0);
    crc::stamp(&mut sector, SB_CRC);
    Ok(Geometry::parse(&sector)?)
}

/// Makes a volume with a clean log as large as `new` says, which [`grown_superblock`] gave. The new groups have been written.
///
/// # Errors
/// [`Error::Invalid`] if the log is dirty; the device's; a group is corrupt.
///
/// # Crash
/// The volume has its old size or its new one.
pub fn grow(devices: &Devices, new: Geometry) -> Result<()> {
    let dev = &devices.data;
    let (old, sb) = read_superblock(dev)?;
    let (log_dev, geo) = devices.log_of(&old)?;
    let state = find_log_state(&log_dev, &geo)?;
    if !state.clean {
        return Err(Error::Invalid { what: "the log is dirty: recover the volume first" });
    }
    clear_stale(&log_dev, &geo, state.head, state.tail)?;
    let (dblocks, agcount) = (new.dblocks, new.agcount);
    let g = Geometry { growing_from: old.dblocks, ..new };
    let o = Options { commit: 0, ..Options::default() };
    let mount = Mount::assemble((dev.clone(), log_dev), g, &sb, o, &state, false)?;
    let vol = mount.vol();
    let last = AgNumber(old.agcount - 1);
    let (before, after) = (old.ag_length(last), vol.geo.ag_length(last));
    let mut more = u64::from(after - before);
    for agno in (old.agcount..agcount).map(AgNumber) {
        let b = vol.bufs.read(&[(vol.geo.header_daddr(agno, 1), vol.geo.bb_per_sector())], Kind::Agf, &vol.geo)?;
        if let Ok((a, _)) = Agf::read_from_prefix(&b.data()) {
            more += u64::from(a.freeblks.get()) + u64::from(a.flcount.get());
        }
    }
    let mut tp = Trans::new_must_succeed(vol, vol.res.itruncate, 0)?;
    if after > before {
        let agi = ag::agi(&mut tp, last)?;
        ag::set_agi(&mut tp, &agi, |a| a.length.set(after));
        let agf = ag::agf(&mut tp, last)?;
        ag::set_agf(&mut tp, &agf, |a| a.length.set(after));
        space::free_now(&mut tp, last, AgBlock(before), after - before, Owner::FILE)?;
    }
    change_in(&mut tp, |sb| {
        sb.dblocks.set(dblocks);
        sb.agcount.set(agcount);
    })?;
    tp.commit()?;
    vol.counters.give(more);
    vol.journal.force_all()?;
    update_copies(dev, &vol.geo)?;
    mount.unmount()
}
