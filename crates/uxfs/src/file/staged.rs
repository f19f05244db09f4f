//! Blocks staged for copies that are still to be written.
//!
//! A write to shared blocks takes a window of new ones, as the copy-on-write extent size hint asks, so that writes that follow near
//! it end up near it. What is left of the window waits here; it belongs to the staging records of the refcountbt, so a crash frees
//! it like any copy that never finished. It is given back when no write has used it for a while, when space runs out, and when the
//! file ends or the volume is closed.
//!
//! 1. Each block of a staging record is in a write-back that is on its way, or here.
//! 2. A file is on the list while it has such blocks.

use super::writeback::{begin, near};
use super::{FileState, Files};
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::space::{self, Owner, Want};
use crate::trans::Trans;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use uxfs_format::FsBlock;
use uxfs_format::extent::Extent;
use uxfs_format::inode::flag2;

/// Blocks of a window where no hint says otherwise, as the kernel has it.
const DEFAULT_WINDOW: u32 = 32;
/// Files with staged blocks beyond which the first ones give theirs back.
const MOST_FILES: usize = 256;

/// By the block of the file: first block, blocks.
pub(super) type Staged = Mutex<BTreeMap<u64, (FsBlock, u32)>>;

/// The files that have staged blocks, and whether some were used lately.
pub(super) type Waiting = Mutex<BTreeMap<u64, (Arc<Inode>, bool)>>;

/// Takes staged blocks for the file's block `off`, at most `len`. The caller holds the claim of all that is written back.
pub(super) fn take(inode: &Arc<Inode>, st: &FileState, off: u64, len: u32) -> Option<(FsBlock, u32)> {
    let mut staged = st.staged.lock();
    let (first, (start, n)) = staged.range(..=off).next_back().map(|x| (*x.0, *x.1))?;
    let skip = u32::try_from(off - first).ok().filter(|s| *s < n)?;
    let taken = len.min(n - skip);
    staged.remove(&first);
    put(&mut staged, first, start, skip);
    put(&mut staged, off + u64::from(taken), FsBlock(start.0 + u64::from(skip + taken)), n - skip - taken);
    if let Some(w) = st.files.waiting.lock().get_mut(&inode.ino.0) {
        w.1 = true;
    }
    Some((FsBlock(start.0 + u64::from(skip)), taken))
}

/// Stages blocks that were on their way to the file's block `off` again. The caller holds the claim of all that is written back.
pub(super) fn put_back(inode: &Arc<Inode>, st: &FileState, off: u64, start: FsBlock, len: u32) {
    put(&mut st.staged.lock(), off, start, len);
    st.files.waiting.lock().insert(inode.ino.0, (inode.clone(), true));
}

fn put(staged: &mut BTreeMap<u64, (FsBlock, u32)>, off: u64, start: FsBlock, len: u32) {
    if len > 0 {
        staged.insert(off, (start, len));
    }
}

/// Stages a window around the file's blocks `off..off+len`, which lie in the extent `e` and of which `shared` are shared, `len` at
/// least. Returns the blocks for `off`; `None` if the volume has no such window in a row, or little room: then nothing was done.
///
/// # Locks
/// The caller holds the claim of all that is written back; takes `ilock`.
///
/// # Errors
/// The device's; a tree is corrupt.
pub(super) fn stage(inode: &Arc<Inode>, st: &FileState, (off, len): (u64, u32), e: &Extent, shared: u32) -> Result<Option<FsBlock>> {
    let vol = &inode.vol;
    let hint = {
        let d = inode.data();
        if d.core.flags2 & flag2::COWEXTSIZE != 0 && d.core.cowextsize > 0 { d.core.cowextsize } else { DEFAULT_WINDOW }
    };
    let (hint, end) = (u64::from(hint), off + u64::from(len));
    let (from, to) = {
        let staged = st.staged.lock();
        let before = staged.range(..off).next_back().map_or(0, |x| x.0 + u64::from(x.1.1));
        let behind = staged.range(off..).next().map_or(u64::MAX, |x| *x.0);
        let from = (off - off % hint).max(e.off.0).max(before);
        (from, end.next_multiple_of(hint).min(off + u64::from(shared)).min(behind).max(end))
    };
    let wide = u32::try_from(to - from).unwrap_or(u32::MAX);
    // Where space is short, nobody takes more than is needed.
    if wide <= len || u64::from(wide) > vol.counters.for_statfs().0 / 64 {
        return Ok(None);
    }
    // Not out of what was promised, which is for all that is dirty: what is not needed of that goes back.
    let mut tp = match begin(inode, 0, wide, &mut 0) {
        Err(Error::NoSpace) => return Ok(None),
        t => t?,
    };
    let _i = inode.lock();
    let want = Want { near: near(inode, from), min: wide, max: wide, align: 1, spare: vol.res.write_blocks, owner: Owner::FILE };
    let start = match space::alloc(&mut tp, want) {
        Err(Error::NoSpace) => return Ok(None),
        r => r?.0,
    };
    space::alloc_cow_staging(&mut tp, start, wide);
    tp.commit()?;
    let skip = (off - from) as u32;
    {
        let mut staged = st.staged.lock();
        put(&mut staged, from, start, skip);
        put(&mut staged, end, FsBlock(start.0 + u64::from(skip + len)), wide - skip - len);
    }
    st.files.waiting.lock().insert(inode.ino.0, (inode.clone(), true));
    Ok(Some(FsBlock(start.0 + u64::from(skip))))
}

/// Gives a file's staged blocks back.
///
/// # Locks
/// The file's claim of all that is written back.
///
/// # Errors
/// The volume is shut down, or a tree is corrupt: recovery frees them then.
pub fn release_staged(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    if files.waiting.lock().remove(&inode.ino.0).is_none() {
        return Ok(());
    }
    let st = files.state(inode);
    let _one = st.claims.all();
    let staged = std::mem::take(&mut *st.staged.lock());
    let vol = &inode.vol;
    for (start, len) in staged.into_values() {
        let mut tp = Trans::new_must_succeed(vol, vol.res.itruncate, vol.res.write_blocks)?;
        space::free_staged(&mut tp, start, len);
        tp.commit()?;
    }
    Ok(())
}

/// Gives back what no write has used since the last call; `all` of it if asked for.
///
/// # Errors
/// As [`release_staged`].
pub fn release_idle_staged(files: &Arc<Files>, all: bool) -> Result<()> {
    let idle: Vec<Arc<Inode>> = {
        let mut waiting = files.waiting.lock();
        let spare = waiting.len().saturating_sub(MOST_FILES);
        let used = waiting.values_mut().enumerate();
        used.filter_map(|(i, w)| (all || i < spare || !std::mem::take(&mut w.1)).then(|| w.0.clone())).collect()
    };
    idle.iter().try_for_each(|i| release_staged(files, i))
}
