//! The headers of the groups: AGF, AGI and AGFL are read and changed here and nowhere else at run time.

use crate::error::{Error, Result};
use crate::trans::{Buf, Trans};
use uxfs_format::ag::{Agf, Agi};
use uxfs_format::{AgNumber, Corruption, Kind};
use zerocopy::{FromBytes, IntoBytes};

/// Locks the AGF of a group and keeps it in the transaction.
///
/// # Locks
/// AGFs are taken in rising order; see [`crate::trans::Trans::highest_agf`].
///
/// # Errors
/// The device's, or the header is corrupt.
pub fn agf(tp: &mut Trans, agno: AgNumber) -> Result<Buf> {
    let (at, bbs) = (tp.vol.geo.header_daddr(agno, 1), tp.vol.geo.bb_per_sector());
    let b = tp.read_buf(at, bbs, Kind::Agf)?;
    tp.highest_agf = tp.highest_agf.max(Some(agno.0));
    Ok(b)
}

/// Locks the AGF if nobody holds it; waits where only write-back could hold it.
///
/// # Errors
/// As [`agf`].
pub fn try_agf(tp: &mut Trans, agno: AgNumber) -> Result<Option<Buf>> {
    if tp.vol.reproducible {
        return agf(tp, agno).map(Some);
    }
    let (at, bbs) = (tp.vol.geo.header_daddr(agno, 1), tp.vol.geo.bb_per_sector());
    let b = tp.try_read_buf(at, bbs, Kind::Agf)?;
    if b.is_some() {
        tp.highest_agf = tp.highest_agf.max(Some(agno.0));
    }
    Ok(b)
}

/// Locks the AGI of a group and keeps it in the transaction. AGI before AGF.
///
/// # Errors
/// The device's, or the header is corrupt.
pub fn agi(tp: &mut Trans, agno: AgNumber) -> Result<Buf> {
    let (at, bbs) = (tp.vol.geo.header_daddr(agno, 2), tp.vol.geo.bb_per_sector());
    tp.read_buf(at, bbs, Kind::Agi)
}

/// Locks the AGI if nobody holds it.
///
/// # Errors
/// As [`agi`].
pub fn try_agi(tp: &mut Trans, agno: AgNumber) -> Result<Option<Buf>> {
    if tp.vol.reproducible {
        return agi(tp, agno).map(Some);
    }
    let (at, bbs) = (tp.vol.geo.header_daddr(agno, 2), tp.vol.geo.bb_per_sector());
    tp.try_read_buf(at, bbs, Kind::Agi)
}

/// Locks the AGFL of a group whose AGF the transaction has.
///
/// # Errors
/// The device's, or the list is corrupt.
pub fn agfl(tp: &mut Trans, agno: AgNumber) -> Result<Buf> {
    let (at, bbs) = (tp.vol.geo.header_daddr(agno, 3), tp.vol.geo.bb_per_sector());
    tp.read_buf(at, bbs, Kind::Agfl)
}

/// A copy of the AGF.
pub fn get_agf(b: &Buf) -> Agf {
    Agf::read_from_prefix(&b.data()).map_or_else(|_| zerocopy::FromZeros::new_zeroed(), |a| a.0)
}

/// A copy of the AGI.
pub fn get_agi(b: &Buf) -> Agi {
    Agi::read_from_prefix(&b.data()).map_or_else(|_| zerocopy::FromZeros::new_zeroed(), |a| a.0)
}

/// Changes the AGF and logs it.
pub fn set_agf(tp: &mut Trans, b: &Buf, change: impl FnOnce(&mut Agf)) {
    let mut a = get_agf(b);
    change(&mut a);
    tp.put(b, 0, a.as_bytes());
}

/// Changes the AGI and logs it.
pub fn set_agi(tp: &mut Trans, b: &Buf, change: impl FnOnce(&mut Agi)) {
    let mut a = get_agi(b);
    change(&mut a);
    tp.put(b, 0, a.as_bytes());
}

/// The error of a header that does not fit the rest.
pub fn corrupt(b: &Buf, what: &'static str) -> Error {
    Error::Corrupt(Corruption { structure: b.kind().name(), place: b.daddr(), what })
}
