//! Entries and unused runs within one data block.

use super::{Dir, New};
use crate::error::Result;
use uxfs_format::dir::{self, DataEntry, Item, entry_size};

/// All entries of a block.
pub(super) fn entries<'a>(d: &Dir, b: &'a [u8]) -> Result<Vec<DataEntry<'a>>> {
    let mut out = Vec::new();
    for i in dir::data_items(b) {
        if let Item::Entry(e) = i.map_err(|what| d.fork.corrupt(what))? {
            out.push(e);
        }
    }
    Ok(out)
}

/// The longest unused run.
pub(super) fn best(b: &[u8]) -> usize {
    dir::bestfree(b, 0).1
}

/// The first unused run of at least `size` bytes that ends at `until` at the latest: (offset, bytes).
pub(super) fn find_run(b: &[u8], size: usize) -> Option<(usize, usize)> {
    dir::data_items(b).flatten().find_map(|i| match i {
        Item::Unused { at, len } if len >= size => Some((at, len)),
        _ => None,
    })
}

/// Takes `at..at+len` out of the unused run that covers it.
pub(super) fn take(b: &mut [u8], at: usize, len: usize) {
    let run = dir::data_items(b).flatten().find_map(|i| match i {
        Item::Unused { at: s, len: n } if s <= at && at + len <= s + n => Some((s, n)),
        _ => None,
    });
    if let Some((s, n)) = run {
        if s < at {
            dir::put_unused(b, s, at - s);
        }
        if at + len < s + n {
            dir::put_unused(b, at + len, s + n - at - len);
        }
    }
}

/// Makes `at..at+len` unused and joins it with its neighbours. `end` is where entries end, with the freed bytes included.
pub(super) fn give(b: &mut [u8], at: usize, len: usize) {
    let (mut s, mut e) = (at, at + len);
    // The freed bytes may hold anything: mark them first, so that the walk below sees one sound run after another.
    dir::put_unused(b, s, len);
    let mut runs = Vec::new();
    for i in dir::data_items(b).flatten() {
        if let Item::Unused { at, len } = i {
            runs.push((at, at + len));
        }
    }
    if let Some(l) = runs.iter().find(|r| r.1 == s) {
        s = l.0;
    }
    if let Some(r) = runs.iter().find(|r| r.0 == e) {
        e = r.1;
    }
    dir::put_unused(b, s, e - s);
}

/// Enters a name into a run that is long enough; returns its offset.
pub(super) fn put(b: &mut [u8], new: New<'_>) -> Option<usize> {
    let size = entry_size(new.name.len());
    let (at, _) = find_run(b, size)?;
    take(b, at, size);
    dir::put_entry(b, at, new.ino, new.name, new.ftype);
    dir::rebuild_bestfree(b);
    Some(at)
}

/// Removes the entry at `at`.
pub(super) fn remove(b: &mut [u8], at: usize, name: usize) {
    give(b, at, entry_size(name));
    dir::rebuild_bestfree(b);
}

/// True if nothing but one unused run is left.
pub(super) fn is_empty(b: &[u8]) -> bool {
    dir::bestfree(b, 0) == (dir::DATA_HEADER, b.len() - dir::DATA_HEADER)
}
