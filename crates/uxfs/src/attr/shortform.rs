//! Attributes in the inode.

use super::leaf::{Owned, OwnedValue};
use super::{Key, ino_field};
use crate::error::Result;
use crate::inode::{Fork, Inode};
use crate::trans::Trans;
use std::sync::Arc;
use uxfs_format::attr::{SF_HEADER, flag, sf_entries};
use uxfs_format::inode::Format;

fn read(inode: &Inode) -> Result<Vec<Owned>> {
    let bytes = inode.data().attr.local.clone();
    let own = |e: uxfs_format::attr::SfEntry<'_>| Owned {
        flags: e.flags | flag::LOCAL,
        name: e.name.to_vec(),
        value: OwnedValue::Local(e.value.to_vec()),
    };
    sf_entries(&bytes).map(|e| e.map(own).map_err(|w| inode.vol.corrupt(inode.ino, w))).collect()
}

/// The bytes of a short form; `None` if an entry cannot be in one.
pub(super) fn build(entries: &[Owned]) -> Option<Vec<u8>> {
    let mut out = vec![0; SF_HEADER];
    if entries.len() > 255 {
        return None;
    }
    for e in entries {
        let OwnedValue::Local(v) = &e.value else { return None };
        if v.len() > 255 || e.flags & flag::INCOMPLETE != 0 {
            return None;
        }
        out.extend([e.name.len() as u8, v.len() as u8, e.flags & flag::NAMESPACE]);
        out.extend(&e.name);
        out.extend(v);
    }
    let total = u16::try_from(out.len()).ok()?;
    out[..2].copy_from_slice(&total.to_be_bytes());
    out[2] = entries.len() as u8;
    Some(out)
}

pub(super) fn get(inode: &Inode, key: Key<'_>) -> Result<Option<Vec<u8>>> {
    Ok(read(inode)?.into_iter().find(|e| e.is(key)).and_then(|e| match e.value {
        OwnedValue::Local(v) => Some(v),
        OwnedValue::Remote { .. } => None,
    }))
}

pub(super) fn list(inode: &Inode) -> Result<Vec<(u8, Vec<u8>, usize)>> {
    Ok(read(inode)?.into_iter().map(|e| (e.flags & flag::NAMESPACE, e.name.clone(), e.value_len())).collect())
}

/// All entries, to move them elsewhere.
pub(super) fn take(inode: &Inode) -> Result<Vec<Owned>> {
    read(inode)
}

fn store(tp: &mut Trans, inode: &Arc<Inode>, entries: &[Owned]) -> Result<bool> {
    let Some(bytes) = build(entries) else { return Ok(false) };
    let field = {
        let mut d = inode.data();
        if bytes.len() > d.core.attr_fork_size(&tp.vol.geo) {
            return Ok(false);
        }
        d.attr = Fork { loaded: true, ..Fork::default() };
        if entries.is_empty() {
            d.core.aformat = Format::Extents;
            ino_field::AEXT
        } else {
            d.core.aformat = Format::Local;
            d.attr.local = bytes;
            ino_field::ADATA
        }
    };
    inode.log(tp, field)?;
    Ok(true)
}

/// Sets an attribute; false if it does not fit, or the fork is not in this form.
pub(super) fn set(tp: &mut Trans, inode: &Arc<Inode>, key: Key<'_>, value: &[u8]) -> Result<bool> {
    let mut entries = match inode.data().core.clone() {
        c if c.aformat == Format::Extents && c.anextents == 0 => Vec::new(),
        c if c.aformat == Format::Local => Vec::new(),
        _ => return Ok(false),
    };
    if inode.data().core.aformat == Format::Local {
        entries = read(inode)?;
    }
    entries.retain(|e| !e.is(key));
    entries.push(Owned::local(key, value));
    store(tp, inode, &entries)
}

pub(super) fn remove(tp: &mut Trans, inode: &Arc<Inode>, key: Key<'_>) -> Result<()> {
    let mut entries = read(inode)?;
    entries.retain(|e| !e.is(key));
    store(tp, inode, &entries).map(|_| ())
}
