//! Entries and unused runs within one data block.

use super::{Dir, New};
use crate::error::Result;
use crate::trans::{Buf, Trans};
use std::ops::Range;
use uxfs_format::dir::{self, BESTFREE, DataEntry, Item, entry_size};

/// The bytes of a block that a change has touched; the list of the longest runs is always among them.
pub(super) type Touched = [Range<usize>; 3];

const LIST: Range<usize> = BESTFREE..BESTFREE + 12;

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

/// Makes `at..at+len` unused and joins it with its neighbours: (the runs that are no more, the new one).
fn join(b: &mut [u8], at: usize, len: usize) -> (Vec<usize>, (usize, usize)) {
    // The freed bytes may hold anything, also what looks like a run: only what lies around them is asked.
    let before = dir::unused_before(b, at);
    let behind = dir::unused_at(b, at + len);
    let (start, end) = (before.unwrap_or(at), at + len + behind.unwrap_or(0));
    dir::put_unused(b, start, end - start);
    (before.into_iter().chain(behind.map(|_| at + len)).collect(), (start, end - start))
}

/// Makes `at..at+len` unused and joins it with its neighbours; the list of the longest runs is the caller's to rebuild.
pub(super) fn give(b: &mut [u8], at: usize, len: usize) {
    join(b, at, len);
}

/// Enters a name into a run that is long enough; returns its offset, and what was touched.
pub(super) fn put(b: &mut [u8], new: New<'_>) -> Option<(usize, Touched)> {
    let size = entry_size(new.name.len());
    let (at, len) = dir::bestfree(b, 0);
    if len < size || dir::unused_at(b, at) != Some(len) {
        return None;
    }
    let rest = (at + size, len - size);
    if rest.1 > 0 {
        dir::put_unused(b, rest.0, rest.1);
    }
    dir::put_entry(b, at, new.ino, new.name, new.ftype);
    dir::update_bestfree(b, &[at], rest);
    let (end, head) = (at + len, rest.1.min(4));
    Some((at, [at..rest.0 + head, end - 2..end, LIST]))
}

/// As [`put`], in a transaction.
pub(super) fn enter(tp: &mut Trans, block: &Buf, new: New<'_>) -> Option<usize> {
    tp.change_at(block, |bytes| {
        let (at, touched) = put(bytes, new).unzip();
        (at, touched.into_iter().flatten())
    })
}

/// Makes `at..at+len` unused, as [`give`], and carries the list of the longest runs on; returns what was touched.
pub(super) fn free(b: &mut [u8], at: usize, len: usize) -> Touched {
    let (gone, new) = join(b, at, len);
    dir::update_bestfree(b, &gone, new);
    let end = new.0 + new.1;
    [new.0..new.0 + 4, end - 2..end, LIST]
}

/// True if nothing but one unused run is left.
pub(super) fn is_empty(b: &[u8]) -> bool {
    dir::bestfree(b, 0) == (dir::DATA_HEADER, b.len() - dir::DATA_HEADER)
}
