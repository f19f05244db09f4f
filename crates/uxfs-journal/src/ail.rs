//! The active item list: what is durable in the log and not yet home, in log order.
//!
//! 1. An item enters when its checkpoint is durable, at the position of the checkpoint's *start*, and moves forward only so.
//! 2. It leaves when what it logged is home, if it was not logged again meanwhile.
//! 3. What it holds of memory has a bound: over it, the oldest items are written home also if the log has room; far over it, newcomers wait.
//! 4. The smallest position is the tail that replay would need. While a checkpoint's items are being inserted the tail
//!    does not pass that checkpoint's start, also when the list is empty.

use crate::hole::{Hole, hole};
use crate::item::{LogItem, Push, Regions};
use crate::line::{Line, Wanted, wait_in_line};
use crate::stats::Stats;
use crate::{JournalError, Shutdown};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use uxfs_device::{Class, DeviceRef, WriteRequest};
use uxfs_format::Lsn;
use uxfs_sync::blocking;
use uxfs_sync::explored::{Condvar, Mutex, notify, pause, spawn_scoped, thread};

/// One write of metadata to its home.
pub struct WriteUnit {
    /// Pieces: byte offset and bytes.
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// Called after the write with whether it succeeded; releases the buffer and takes items out of the AIL.
    pub done: Box<dyn FnOnce(bool) + Send>,
}

struct List {
    items: BTreeMap<(u64, u64), Arc<dyn LogItem>>,
    /// Tail when the list is empty: the commit record of the last checkpoint whose items were all inserted.
    empty_tail: Lsn,
    /// Those who wait until less memory is held.
    line: Line,
}

/// The list of one volume.
pub struct Ail {
    list: Mutex<List>,
    /// Bytes of memory that cannot be given up while the items are here. Changes under the list's lock.
    held: AtomicU64,
    left: Condvar,
    shutdown: Arc<Shutdown>,
    stats: Arc<Stats>,
}

/// Times that metadata is written again while the host has no space, and the time between; then the volume shuts down.
const FULL_HOST_TRIES: u32 = 100;
const FULL_HOST_PAUSE: Duration = Duration::from_millis(100);
/// Units that are written together.
const BATCH: usize = 128;
/// Threads that read what is needed to write items home, and is not in memory.
const READERS: usize = 8;

/// Reads what the items need, several at once; it stays in memory as long as what is returned.
fn read_beside(cold: &[&Arc<dyn LogItem>]) -> Vec<Arc<dyn Any + Send + Sync>> {
    let next = AtomicUsize::new(0);
    let read = || {
        let one = || cold.get(next.fetch_add(1, Ordering::Relaxed));
        std::iter::from_fn(one).filter_map(|i| i.warm()).collect::<Vec<_>>()
    };
    thread::scope(|s| {
        // Where the host has no thread, there are fewer.
        let others: Vec<_> = (1..READERS.min(cold.len())).filter_map(|_| spawn_scoped(s, "uxfs-ail-read", read).ok()).collect();
        let mut warm = read();
        for o in others {
            warm.extend(blocking(|| o.join()).unwrap_or_default());
        }
        warm
    })
}

impl Ail {
    pub(crate) fn new(tail: Lsn, shutdown: Arc<Shutdown>, stats: Arc<Stats>) -> Ail {
        let list = Mutex::new(List { items: BTreeMap::new(), empty_tail: tail, line: Line::default() });
        Ail { list, held: AtomicU64::new(0), left: Condvar::new(), shutdown, stats }
    }

    /// Where replay would have to begin.
    pub fn tail(&self) -> Lsn {
        let l = self.list.lock();
        l.items.keys().next().map_or(l.empty_tail, |k| Lsn(k.0))
    }

    /// Bytes of memory that cannot be given up while the items are here.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Acquire)
    }

    /// Where its oldest quarter ends.
    pub(crate) fn quarter(&self) -> Lsn {
        let l = self.list.lock();
        l.items.keys().nth(l.items.len() / 4).map_or(l.empty_tail, |k| Lsn(k.0))
    }

    /// Waits until no more than `most` bytes of memory are held.
    ///
    /// # Errors
    /// The volume is shut down.
    pub(crate) fn wait_below(&self, most: u64, ask: &dyn Fn()) -> Result<(), JournalError> {
        if self.held() <= most {
            return Ok(());
        }
        let wanted = Wanted {
            line: &|l: &mut List| &mut l.line,
            fits: &|_| self.held() <= most,
            ask,
            waits: &|| Stats::add(&self.stats.sleep_dirty, 1),
        };
        wait_in_line(&self.list, &self.left, &self.shutdown, &wanted).map(drop)
    }

    /// Wakes everybody who waits.
    pub(crate) fn wake(&self) {
        notify(&self.list, &self.left);
    }

    /// An item left; the caller has the list's lock.
    fn gone(&self, l: &List, item: &dyn LogItem) {
        self.held.fetch_sub(item.held_bytes(), Ordering::AcqRel);
        if !l.line.is_empty() {
            self.left.notify_all();
        }
    }

    /// Items in the list.
    pub fn len(&self) -> usize {
        self.list.lock().items.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts an item at `lsn`, or moves it there.
    pub fn insert(&self, item: &Arc<dyn LogItem>, lsn: Lsn) {
        self.insert_locked(&mut self.list.lock(), item, lsn);
    }

    fn insert_locked(&self, l: &mut List, item: &Arc<dyn LogItem>, lsn: Lsn) {
        let s = item.state();
        let old = s.ail_lsn.load(Ordering::Acquire);
        if old != 0 {
            l.items.remove(&(old, s.id));
        } else {
            self.held.fetch_add(item.held_bytes(), Ordering::AcqRel);
            Stats::peak(&self.stats.dirty_peak, self.held());
        }
        l.items.insert((lsn.0.max(old), s.id), item.clone());
        s.ail_lsn.store(lsn.0.max(old), Ordering::Release);
    }

    /// Inserts the items of a checkpoint that became durable, then lets the empty list's tail follow.
    pub(crate) fn insert_checkpoint(&self, items: &[(&Arc<dyn LogItem>, &Regions)], start: Lsn, commit: Lsn) {
        if hole(Hole::EmptyAilTail) {
            let mut l = self.list.lock();
            l.empty_tail = l.empty_tail.max(commit);
            let empty = l.items.is_empty();
            drop(l);
            // Long enough for another checkpoint to sample the tail.
            if empty {
                pause(Duration::from_millis(3));
            }
        }
        let early = hole(Hole::EmptyAilTail);
        debug_assert!(early || self.tail() <= start, "rule 4: the tail passed a checkpoint before its items were in");
        let wanted: Vec<_> = items.iter().filter_map(|(i, r)| Some((i, i.committed(start, r)?))).collect();
        let mut l = self.list.lock();
        for (i, at) in wanted {
            // One that wanted to stay where it was may have gone home since, and the tail have passed that place.
            let at = if i.state().ail_lsn().is_some() { at } else { at.max(start) };
            self.insert_locked(&mut l, i, at);
        }
        l.empty_tail = l.empty_tail.max(commit);
    }

    /// Takes an item out if it is still at `lsn`, so if it was not logged again since.
    pub fn remove_at(&self, item: &dyn LogItem, lsn: Lsn) {
        let mut l = self.list.lock();
        let s = item.state();
        if s.ail_lsn.load(Ordering::Acquire) == lsn.0 && l.items.remove(&(lsn.0, s.id)).is_some() {
            s.ail_lsn.store(0, Ordering::Release);
            self.gone(&l, item);
        }
    }

    /// Takes an item out wherever it is.
    pub fn remove(&self, item: &dyn LogItem) {
        let mut l = self.list.lock();
        let s = item.state();
        let at = s.ail_lsn.swap(0, Ordering::AcqRel);
        if at != 0 {
            l.items.remove(&(at, s.id));
            self.gone(&l, item);
        }
    }

    /// Forgets all items, when nothing will be written any more.
    pub(crate) fn clear(&self) {
        let items = std::mem::take(&mut self.list.lock().items);
        drop(items);
    }

    /// Tries once to write everything up to `target` home. Returns how many units were written, and how many items were
    /// pinned.
    ///
    /// # Errors
    /// A failed write shuts the volume down.
    pub(crate) fn push_to(&self, target: Lsn, dev: &DeviceRef) -> Result<(usize, usize), JournalError> {
        let (mut written, mut pinned) = (0, 0);
        let mut from = (0u64, 0u64);
        loop {
            let next: Vec<((u64, u64), Arc<dyn LogItem>)> = {
                let l = self.list.lock();
                let range = l.items.range((std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded));
                range.take_while(|(k, _)| k.0 <= target.0).take(4 * BATCH).map(|(k, i)| (*k, i.clone())).collect()
            };
            let Some(last) = next.last() else { return Ok((written, pinned)) };
            from = last.0;
            let mut units = Vec::new();
            for some in next.chunks(BATCH) {
                let cold: Vec<_> = some.iter().map(|(_, item)| item).filter(|i| i.is_cold()).collect();
                if !cold.is_empty() {
                    // What is to be written is locked: not while others are read.
                    written += self.write(std::mem::take(&mut units), dev)?;
                }
                let warm = read_beside(&cold);
                for (_, item) in some {
                    match item.push() {
                        Push::Write(u) => units.push(u),
                        Push::Pinned => pinned += 1,
                        Push::Locked | Push::Nothing => {}
                    }
                    if units.len() >= BATCH {
                        written += self.write(std::mem::take(&mut units), dev)?;
                    }
                }
                drop(warm);
            }
            written += self.write(units, dev)?;
        }
    }

    fn write(&self, mut units: Vec<WriteUnit>, dev: &DeviceRef) -> Result<usize, JournalError> {
        if units.is_empty() {
            return Ok(0);
        }
        if let Err(e) = self.shutdown.check() {
            units.into_iter().for_each(|u| (u.done)(false));
            return Err(e);
        }
        units.sort_by_key(|u| u.pieces.first().map_or(0, |p| p.0));
        let n = units.len();
        let requests: Vec<WriteRequest<'_>> =
            units.iter().flat_map(|u| &u.pieces).map(|p| WriteRequest { offset: p.0, data: &p.1 }).collect();
        Stats::add(&self.stats.metadata_writes, requests.len() as u64);
        let write = || blocking(|| dev.write_many(&requests, Class::Background));
        let mut res = write();
        // A host whose file system is full may find room again: nothing is lost while the log has it all.
        for _ in 0..FULL_HOST_TRIES {
            if !res.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::StorageFull) || self.shutdown.reason().is_some() {
                break;
            }
            pause(FULL_HOST_PAUSE);
            res = write();
        }
        if let Err(e) = &res {
            self.shutdown.set(format!("writing metadata home failed: {e}"));
        }
        units.into_iter().for_each(|u| (u.done)(res.is_ok()));
        res.map(|()| n).map_err(JournalError::Io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{ItemState, Push};

    /// Stays where it is when it is committed again, but goes home just then.
    struct Leaves(ItemState, Arc<Ail>);

    impl LogItem for Leaves {
        fn state(&self) -> &ItemState {
            &self.0
        }
        fn committed(&self, _: Lsn, _: &Regions) -> Option<Lsn> {
            let at = self.0.ail_lsn()?;
            self.1.remove_at(self, at);
            Some(at)
        }
        fn push(&self) -> Push {
            Push::Nothing
        }
    }

    #[test]
    fn an_item_that_goes_home_while_it_is_committed_does_not_take_the_tail_back() {
        let ail = Arc::new(Ail::new(Lsn::new(1, 0), Arc::default(), Arc::default()));
        let item: Arc<dyn LogItem> = Arc::new(Leaves(ItemState::default(), ail.clone()));
        ail.insert(&item, Lsn::new(1, 8));
        let regions: Regions = [vec![0; 24]].into();
        ail.insert_checkpoint(&[(&item, &regions)], Lsn::new(1, 40), Lsn::new(1, 48));
        assert_eq!(ail.tail(), Lsn::new(1, 40));
    }
}
