//! The free list: blocks kept aside for the trees of free space.

use super::{Owner, alloc, rmap};
use crate::ag;
use crate::error::Result;
use crate::trans::{Buf, Trans};
use uxfs_format::AgNumber;
use uxfs_format::ag::{agfl_get, agfl_put, agfl_slots};
use uxfs_format::reservation::Levels;

/// Blocks beyond the least that the list keeps before it gives one back: taking and giving alternate otherwise.
const SLACK: u32 = 6;

/// Least length of the list: each tree may split at every level and grow by one, and refilling may itself split a leaf.
pub(super) fn least(tp: &Trans, agf: &Buf) -> u32 {
    let max = Levels::of(&tp.vol.geo).alloc as u32;
    let a = ag::get_agf(agf);
    let rmap = if tp.vol.geo.rmapbt() { (a.levels[2].get() + 1).min(Levels::of(&tp.vol.geo).rmap as u32) } else { 0 };
    (0..2).map(|t| (a.levels[t].get() + 1).min(max) + 1).sum::<u32>() + rmap
}

/// Makes a list whose indices do not fit the sector usable again; its blocks are lost until a repair.
fn reset_if_wrapped(tp: &mut Trans, agf: &Buf) {
    let a = ag::get_agf(agf);
    let slots = agfl_slots(&tp.vol.geo);
    let (first, last, count) = (a.flfirst.get(), a.fllast.get(), a.flcount.get());
    let active = if last >= first { last - first + 1 } else { slots - first + last + 1 };
    if first < slots && last < slots && (count == active || (count == 0 && (last + 1) % slots == first)) {
        return;
    }
    ag::set_agf(tp, agf, |a| {
        a.flfirst.set(0);
        a.fllast.set(slots - 1);
        a.flcount.set(0);
    });
}

/// Fills the list to its least length. Returns false if the group is too full for that.
pub(super) fn fix(tp: &mut Trans, agno: AgNumber, agf: &Buf) -> Result<bool> {
    reset_if_wrapped(tp, agf);
    let need = least(tp, agf);
    loop {
        let a = ag::get_agf(agf);
        let have = a.flcount.get();
        if have > need + SLACK {
            let b = take(tp, agno, agf)?;
            alloc::defer_free_agfl(tp, agno, b);
            return Ok(true);
        }
        if have >= need {
            return Ok(true);
        }
        let Some(block) = alloc::take_for_list(tp, agno, agf)? else { return Ok(false) };
        put(tp, agno, agf, block)?;
        rmap::change(tp, agno, agf, block, 1, Owner::AG, true)?;
    }
}

/// Takes a block off the list's front.
pub(super) fn take(tp: &mut Trans, agno: AgNumber, agf: &Buf) -> Result<u32> {
    let list = ag::agfl(tp, agno)?;
    let a = ag::get_agf(agf);
    if a.flcount.get() == 0 {
        return Err(ag::corrupt(agf, "ran out of blocks on its free list"));
    }
    let slots = agfl_slots(&tp.vol.geo);
    let block = agfl_get(&tp.vol.geo, &list.data(), a.flfirst.get());
    if block == 0 || block >= a.length.get() {
        return Err(ag::corrupt(&list, "holds a block outside the group"));
    }
    ag::set_agf(tp, agf, |a| {
        a.flfirst.set((a.flfirst.get() + 1) % slots);
        a.flcount.set(a.flcount.get() - 1);
    });
    Ok(block)
}

/// Takes a block for one of the trees that the list feeds, and counts it as theirs.
pub(super) fn take_for_tree(tp: &mut Trans, agno: AgNumber, agf: &Buf) -> Result<u64> {
    let b = take(tp, agno, agf)?;
    count_in_trees(tp, agf, 1);
    Ok(u64::from(b))
}

/// Takes a block back from such a tree.
pub(super) fn put_from_tree(tp: &mut Trans, agno: AgNumber, agf: &Buf, ptr: u64) -> Result<()> {
    count_in_trees(tp, agf, -1);
    put(tp, agno, agf, ptr as u32)
}

fn count_in_trees(tp: &mut Trans, agf: &Buf, by: i32) {
    ag::set_agf(tp, agf, |a| a.btreeblks.set(a.btreeblks.get().saturating_add_signed(by)));
    tp.vol.counters.trees_changed(i64::from(by));
}

/// Puts a block on the list's end.
pub(super) fn put(tp: &mut Trans, agno: AgNumber, agf: &Buf, block: u32) -> Result<()> {
    let list = ag::agfl(tp, agno)?;
    let slots = agfl_slots(&tp.vol.geo);
    let a = ag::get_agf(agf);
    if a.flcount.get() >= slots {
        return Err(ag::corrupt(agf, "has a full free list"));
    }
    let at = (a.fllast.get() + 1) % slots;
    tp.change(&list, |d| agfl_put(d, at, block));
    ag::set_agf(tp, agf, |a| {
        a.fllast.set(at);
        a.flcount.set(a.flcount.get() + 1);
    });
    Ok(())
}
