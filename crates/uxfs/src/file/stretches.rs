//! The pages of a folio, those that lie together and are alike as one.

use super::memory::Buf;
use std::ops::Range;
use std::sync::Arc;

/// Where the bytes of a page are, and what is to become of it.
#[derive(Clone)]
pub struct Page {
    pub buf: Arc<Buf>,
    /// Where it lies in the buffer.
    pub at: u32,
    pub dirty: bool,
    /// A block is promised for it.
    pub delayed: bool,
    pub in_flight: bool,
    /// It is dropped as soon as it is clean.
    pub behind: bool,
}

impl Page {
    /// It counts as one that is to be written and dropped.
    pub fn counts(&self) -> bool {
        self.behind && (self.dirty || self.in_flight)
    }
}

/// Pages alike that lie behind each other, in the file and in one buffer.
#[derive(Clone)]
pub struct Stretch {
    /// The first one's number in the folio.
    pub first: u16,
    /// How many.
    pub len: u16,
    /// The first one.
    pub page: Page,
}

impl Stretch {
    fn end(&self) -> u16 {
        self.first + self.len
    }

    /// What lies from its `n`th page on.
    fn tail(&self, n: u16, block: u32) -> Stretch {
        let at = self.page.at + u32::from(n) * block;
        Stretch { first: self.first + n, len: self.len - n, page: Page { at, ..self.page.clone() } }
    }

    /// True if `next` goes on where it ends.
    fn goes_on(&self, next: &Stretch, block: u32) -> bool {
        let flags = |p: &Page| (p.dirty, p.delayed, p.in_flight, p.behind);
        let (a, b) = (&self.page, &next.page);
        self.end() == next.first && Arc::ptr_eq(&a.buf, &b.buf) && a.at + u32::from(self.len) * block == b.at && flags(a) == flags(b)
    }
}

/// Stretches in the file's order.
pub struct Stretches {
    list: Vec<Stretch>,
    block: u32,
}

impl Stretches {
    /// None yet; a page has `block` bytes.
    pub fn new(block: usize) -> Stretches {
        Stretches { list: Vec::new(), block: block as u32 }
    }

    /// True if there is no page.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<Stretch>()
    }

    /// Gives back what they do not need any more.
    pub fn shrink(&mut self) {
        if self.list.capacity() > 4 * self.list.len() {
            self.list.shrink_to(2 * self.list.len());
        }
    }

    /// The first one that ends behind a page.
    fn behind(&self, page: u16) -> usize {
        self.list.partition_point(|s| s.end() <= page)
    }

    /// The page of a number, but for its place in the buffer, and how far it is like that: to the end of its stretch, or of the gap.
    pub fn at(&self, page: u16) -> (Option<&Page>, u16) {
        match self.list.get(self.behind(page)) {
            Some(s) if s.first <= page => (Some(&s.page), s.end()),
            next => (None, next.map_or(u16::MAX, |s| s.first)),
        }
    }

    /// What there is of a range.
    pub fn range(&self, pages: Range<u16>) -> impl Iterator<Item = (Range<u16>, u32, &Page)> {
        let from = self.behind(pages.start);
        self.list[from..].iter().take_while(move |s| s.first < pages.end).map(move |s| {
            let (first, end) = (s.first.max(pages.start), s.end().min(pages.end));
            (first..end, s.page.at + u32::from(first - s.first) * self.block, &s.page)
        })
    }

    /// Cuts at both ends of a range; which stretches lie within.
    fn cut(&mut self, pages: &Range<u16>) -> Range<usize> {
        for at in [pages.start, pages.end] {
            let i = self.behind(at);
            if let Some(s) = self.list.get_mut(i)
                && s.first < at
            {
                let tail = s.tail(at - s.first, self.block);
                s.len = at - s.first;
                self.list.insert(i + 1, tail);
            }
        }
        self.behind(pages.start)..self.behind(pages.end.max(pages.start))
    }

    /// Makes one of those that go on, among some of them and their neighbours.
    fn merge(&mut self, which: Range<usize>) {
        let end = (which.end + 1).min(self.list.len());
        let mut kept = which.start.saturating_sub(1);
        if kept + 1 >= end {
            return;
        }
        for i in kept + 1..end {
            if self.list[kept].goes_on(&self.list[i], self.block) {
                self.list[kept].len += self.list[i].len;
            } else {
                kept += 1;
                self.list.swap(kept, i);
            }
        }
        self.list.drain(kept + 1..end);
    }

    /// Changes what there is of a range; `f` is told how many pages it changes.
    pub fn change(&mut self, pages: Range<u16>, mut f: impl FnMut(&mut Page, usize)) {
        let which = self.cut(&pages);
        self.list[which.clone()].iter_mut().for_each(|s| f(&mut s.page, usize::from(s.len)));
        self.merge(which);
    }

    /// Puts pages in a range, `page` and those behind it, whatever was there.
    pub fn put(&mut self, pages: Range<u16>, page: Page) {
        if pages.is_empty() {
            return;
        }
        let which = self.cut(&pages);
        let start = which.start;
        self.list.splice(which, [Stretch { first: pages.start, len: pages.end - pages.start, page }]);
        self.merge(start..start + 1);
    }

    /// The same where nothing is.
    pub fn fill(&mut self, pages: Range<u16>, page: &Page) {
        let mut next = pages.start;
        while next < pages.end {
            let (there, end) = self.at(next);
            let (is_gap, end) = (there.is_none(), end.min(pages.end));
            if is_gap {
                let at = page.at + u32::from(next - pages.start) * self.block;
                self.put(next..end, Page { at, ..page.clone() });
            }
            next = end;
        }
    }

    /// Removes those of a range that `unwanted` chooses; it is told how many pages it chooses.
    pub fn remove(&mut self, pages: Range<u16>, mut unwanted: impl FnMut(&Page, usize) -> bool) {
        let which = self.cut(&pages);
        let start = which.start;
        let gone = self.list.extract_if(which.clone(), |s| unwanted(&s.page, usize::from(s.len))).count();
        self.merge(start..which.end - gone);
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Memory;
    use super::*;
    use std::collections::BTreeMap;
    use uxfs_sync::Chance;

    const BLOCK: usize = 512;
    const PAGES: u16 = 64;

    type Model = BTreeMap<u16, (usize, u32, [bool; 4])>;

    fn known(p: &Page, at: u32) -> (usize, u32, [bool; 4]) {
        (Arc::as_ptr(&p.buf) as usize, at, [p.dirty, p.delayed, p.in_flight, p.behind])
    }

    fn is_like(s: &Stretches, model: &Model) {
        let mut all = Model::new();
        for (pages, at, p) in s.range(0..u16::MAX) {
            for i in pages.clone() {
                assert!(all.insert(i, known(p, at + u32::from(i - pages.start) * BLOCK as u32)).is_none());
            }
        }
        assert_eq!(all, *model);
        assert!(s.list.is_sorted_by(|a, b| a.end() <= b.first && !a.goes_on(b, s.block)), "two that are one");
        assert!(s.list.iter().all(|s| s.len > 0));
    }

    #[test]
    fn stretches_are_as_single_pages() {
        let memory = Memory::new(1 << 20);
        let bufs: Vec<_> = (0..3).map(|_| memory.buf(vec![0; BLOCK * usize::from(PAGES)])).collect();
        for seed in 0..200 {
            let c = Chance::seeded(seed);
            let (mut s, mut model) = (Stretches::new(BLOCK), Model::new());
            for _ in 0..200 {
                let first = c.below(u64::from(PAGES)) as u16;
                let pages = first..(first + c.below(20) as u16).min(PAGES);
                let coin = || c.below(3) == 0;
                // Mostly at the same place of a buffer, so that some go on.
                let at = if coin() { 0 } else { u32::from(first) * BLOCK as u32 };
                let buf = bufs[c.below(3) as usize].clone();
                let page = Page { buf, at, dirty: coin(), delayed: coin(), in_flight: false, behind: false };
                let place = |i: u16| at + u32::from(i - first) * BLOCK as u32;
                let (mut told, mut right) = (0, 0);
                match c.below(4) {
                    0 => {
                        s.put(pages.clone(), page.clone());
                        pages.clone().for_each(|i| _ = model.insert(i, known(&page, place(i))));
                    }
                    1 => {
                        s.fill(pages.clone(), &page);
                        pages.clone().for_each(|i| _ = model.entry(i).or_insert(known(&page, place(i))));
                    }
                    2 => {
                        s.change(pages.clone(), |p, n| {
                            (p.in_flight, p.dirty) = (p.dirty, false);
                            told += n;
                        });
                        for (_, m) in model.range_mut(pages.clone()) {
                            (m.2[2], m.2[0]) = (m.2[0], false);
                            right += 1;
                        }
                    }
                    _ => {
                        s.remove(pages.clone(), |p, n| {
                            told += n * usize::from(!p.dirty);
                            !p.dirty
                        });
                        let before = model.len();
                        model.retain(|i, m| !pages.contains(i) || m.2[0]);
                        right = before - model.len();
                    }
                }
                assert_eq!(told, right);
                is_like(&s, &model);
                let i = c.below(u64::from(PAGES)) as u16;
                let (page, end) = s.at(i);
                assert_eq!(page.map(|p| known(p, 0).0), model.get(&i).map(|m| m.0));
                assert!(end > i);
            }
        }
    }
}
