//! Which files are to be written back, and whose turn it is.
//!
//! A *domain* is what write-back shares the device's bandwidth out to: a client, or a user. In each, files with pages that are dropped
//! when they are written have a line of their own beside all others, and the two lines share as domains do.
//!
//! 1. A place in a line counts while its stamp is its file's for that line; so places of files that became clean just lie there, for a
//!    while.
//! 2. Whoever was served least goes first. Who had nothing to write for a while gains nothing by that.

use crate::inode::Inode;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Who writes, as far as write-back tells writers apart: a client, or a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(pub u32);

/// What of a domain is counted.
#[derive(Debug, Default)]
pub struct Account {
    behind: AtomicUsize,
    /// Pages that were written for it so far.
    pub written: AtomicU64,
}

impl Account {
    /// Pages that are dirty or on their way, and dropped then.
    pub fn behind(&self) -> usize {
        self.behind.load(Ordering::Acquire)
    }
}

/// The pages of one file that are dirty or on their way and dropped then, counted for the domain that the file is in.
#[derive(Debug)]
pub struct Behind(Mutex<(Arc<Account>, usize)>);

impl Behind {
    /// None yet.
    pub fn new(of: Arc<Account>) -> Behind {
        Behind(Mutex::new((of, 0)))
    }

    /// So many more are, so many others are not any more.
    pub fn change(&self, more: usize, less: usize) {
        if more != less {
            let mut b = self.0.lock();
            b.1 = b.1 + more - less;
            b.0.behind.fetch_add(more, Ordering::AcqRel);
            b.0.behind.fetch_sub(less, Ordering::AcqRel);
        }
    }

    /// The domain that the file is in.
    pub fn account(&self) -> Arc<Account> {
        self.0.lock().0.clone()
    }

    /// The file is another domain's now, and its pages with it.
    fn move_to(&self, to: &Arc<Account>) {
        let mut b = self.0.lock();
        if !Arc::ptr_eq(&b.0, to) {
            to.behind.fetch_add(b.1, Ordering::AcqRel);
            b.0.behind.fetch_sub(b.1, Ordering::AcqRel);
            b.0 = to.clone();
        }
    }

    /// How many there are.
    pub fn pages(&self) -> usize {
        self.0.lock().1
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let (of, pages) = self.0.get_mut();
        of.behind.fetch_sub(*pages, Ordering::AcqRel);
    }
}

/// One line of files.
#[derive(Debug, Default)]
struct Line {
    /// Stamps and inode numbers, the longest dirty first.
    files: VecDeque<(u64, u64)>,
    /// Pages that it was served, on the common scale.
    served: u64,
}

#[derive(Debug, Default)]
struct Lines {
    account: Arc<Account>,
    served: u64,
    of: [Line; 2],
}

struct Entry {
    inode: Arc<Inode>,
    domain: Domain,
    /// Its stamps in its domain's lines, if it stands there.
    stamps: [Option<u64>; 2],
}

/// The line of all files, those of which something stays in memory first of all, and the line of those of which something is dropped.
pub const KEPT: usize = 0;
pub const DROPPED: usize = 1;

/// Whether a file may be written now, in a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It may.
    Now,
    /// Not now.
    Later,
    /// It has no business in this line any more.
    Gone,
}

/// What a worker is to write.
pub struct Turn {
    /// The file.
    pub inode: Arc<Inode>,
    domain: Domain,
    /// The line that it came from.
    pub line: usize,
}

/// Places of files that became clean in a line, before it is put in order.
const STALE_PLACES: usize = 4096;
/// Domains without files, before they are looked through.
const STALE_DOMAINS: usize = 256;
/// Pages that a turn is taken for until it is known how many it was.
const TURN: u64 = 1024;

/// All files with dirty data or times.
#[derive(Default)]
pub struct Dirty {
    files: BTreeMap<u64, Entry>,
    domains: BTreeMap<Domain, Lines>,
    /// What whoever was served last had been served before.
    clock: u64,
    stamp: u64,
}

impl Dirty {
    /// The account of a domain.
    pub fn account(&mut self, id: Domain) -> Arc<Account> {
        self.lines(id).account.clone()
    }

    fn lines(&mut self, id: Domain) -> &mut Lines {
        self.domains.entry(id).or_default()
    }

    /// Pages that would be to be dropped if each domain that has any had as many as `mine`. Of those that there are, what is below the
    /// range is nobody's worry, and what is above everybody's.
    pub fn behind(&self, mine: &Account, range: Range<usize>) -> usize {
        let (mut droppers, mut all) = (0, 0);
        for n in self.domains.values().map(|l| l.account.behind()) {
            (droppers, all) = (droppers + usize::from(n > 0), all + n);
        }
        match all {
            n if n <= range.start => 0,
            n if n > range.end => range.end + 1,
            _ => mine.behind() * droppers,
        }
    }

    /// Pages of all domains that are to be dropped.
    pub fn all_behind(&self) -> usize {
        self.domains.values().map(|l| l.account.behind()).sum()
    }

    /// A file has something to write, for `domain`; to be dropped then if `drop`. A file that had something is whose it was.
    pub fn add(&mut self, inode: &Arc<Inode>, behind: &Behind, domain: Domain, drop: bool) {
        let ino = inode.ino.0;
        if !self.files.contains_key(&ino) {
            let account = self.account(domain);
            behind.move_to(&account);
            self.files.insert(ino, Entry { inode: inode.clone(), domain, stamps: [None; 2] });
        }
        self.line_up(ino, KEPT);
        if drop {
            self.line_up(ino, DROPPED);
        }
    }

    fn line_up(&mut self, ino: u64, line: usize) {
        let Some(entry) = self.files.get_mut(&ino).filter(|e| e.stamps[line].is_none()) else { return };
        self.stamp += 1;
        entry.stamps[line] = Some(self.stamp);
        let (stamp, domain) = (self.stamp, entry.domain);
        let most = 2 * self.files.len() + STALE_PLACES;
        let Dirty { files, domains, .. } = self;
        let Some(lines) = domains.get_mut(&domain) else { return };
        let places = &mut lines.of[line].files;
        places.push_back((stamp, ino));
        if places.len() > most {
            places.retain(|(s, i)| files.get(i).is_some_and(|e| e.stamps[line] == Some(*s)));
        }
    }

    /// A file has nothing to write any more.
    pub fn remove(&mut self, ino: u64) {
        self.files.remove(&ino);
        // A file that is in memory knows its domain; those that no file knows are forgotten at times.
        if self.domains.len() > 2 * self.files.len() + STALE_DOMAINS {
            let clock = self.clock;
            self.domains.retain(|_, l| Arc::strong_count(&l.account) > 1 || l.served > clock);
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.files.values().map(|e| e.inode.clone()).collect()
    }

    /// Forgets all of them.
    pub fn take_all(&mut self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut self.files).into_values().map(|e| e.inode).collect()
    }

    /// Whose turn it is, of those lines for which `wanted` is true: `fit` says of a file there whether it may be now. It goes to the
    /// end of its line.
    pub fn turn(&mut self, wanted: impl Fn(usize) -> bool, fit: impl Fn(&Inode, usize) -> Fit) -> Option<Turn> {
        let clock = self.clock;
        let mut order: Vec<(u64, Domain)> = self.domains.iter().map(|(d, l)| (l.served.max(clock), *d)).collect();
        order.sort_unstable();
        for (served, domain) in order {
            let Dirty { files, domains, .. } = self;
            let Some(lines) = domains.get_mut(&domain) else { continue };
            let first = if lines.of[DROPPED].served <= lines.of[KEPT].served { DROPPED } else { KEPT };
            for line in [first, 1 - first].into_iter().filter(|l| wanted(*l)) {
                let Some(inode) = rotate(files, &mut lines.of[line].files, line, &fit) else { continue };
                self.clock = served;
                lines.served = served + TURN;
                // A line that had nothing for a while is owed no more than one turn.
                let least = lines.of[line].served.saturating_sub(TURN);
                let other = &mut lines.of[1 - line].served;
                *other = least.max(*other);
                lines.of[line].served += TURN;
                return Some(Turn { inode, domain, line });
            }
        }
        None
    }

    /// A turn came to so many pages.
    pub fn settle(&mut self, turn: &Turn, pages: u64) {
        if let Some(l) = self.domains.get_mut(&turn.domain) {
            l.served = (l.served + pages).saturating_sub(TURN);
            l.of[turn.line].served = (l.of[turn.line].served + pages).saturating_sub(TURN);
        }
    }
}

/// The first file of a line that fits, which goes to its end.
fn rotate(
    files: &mut BTreeMap<u64, Entry>,
    places: &mut VecDeque<(u64, u64)>,
    line: usize,
    fit: impl Fn(&Inode, usize) -> Fit,
) -> Option<Arc<Inode>> {
    for _ in 0..places.len() {
        let (stamp, ino) = places.pop_front()?;
        let Some(entry) = files.get_mut(&ino).filter(|e| e.stamps[line] == Some(stamp)) else { continue };
        match fit(&entry.inode, line) {
            Fit::Gone => entry.stamps[line] = None,
            Fit::Later => places.push_back((stamp, ino)),
            Fit::Now => {
                places.push_back((stamp, ino));
                return Some(entry.inode.clone());
            }
        }
    }
    None
}
