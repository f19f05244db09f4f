//! Buffers for what is asked and answered: data in them begins where a page does, so that a device can take it as it is.

use parking_lot::Mutex;

/// Where pages begin.
const PAGE: usize = 4096;

/// Bytes of which those from some place on begin with a page.
pub struct Aligned {
    bytes: Vec<u8>,
    from: usize,
}

impl Aligned {
    /// `before` bytes, at most a page of them, and after them `len` from where a page begins.
    pub fn new(before: usize, len: usize) -> Aligned {
        Aligned::of(vec![0; Aligned::bytes(before, len)], before)
    }

    /// Bytes of memory for so many before and after.
    pub fn bytes(before: usize, len: usize) -> usize {
        before + PAGE + len
    }

    /// The same, in a buffer that is there, of at least [`Aligned::bytes`].
    pub fn of(bytes: Vec<u8>, before: usize) -> Aligned {
        let page = bytes.as_ptr().align_offset(PAGE);
        Aligned { from: if page < before { page + PAGE - before } else { page - before }, bytes }
    }

    /// The buffer, and where in it both parts begin.
    pub fn into_parts(self) -> (Vec<u8>, usize) {
        (self.bytes, self.from)
    }

    /// So many bytes of both parts.
    pub fn first(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + len]
    }

    /// Whether it has so many bytes.
    fn holds(&self, len: usize) -> bool {
        self.bytes.len() - self.from >= len
    }
}

/// Some buffers of one size, as many as are often needed at once.
pub struct Buffers {
    before: usize,
    size: usize,
    most: usize,
    free: Mutex<Vec<Aligned>>,
}

impl Buffers {
    /// None yet; each will have `before` bytes and `size` more, which begin where a page does. At most so many are kept.
    pub fn new(before: usize, size: usize, most: usize) -> Buffers {
        Buffers { before, size, most, free: Mutex::default() }
    }

    /// Lends the bytes before and `len` more, whatever they hold.
    pub fn with<T>(&self, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
        let kept = self.free.lock().pop().filter(|b| b.holds(self.before + len));
        let mut buf = kept.unwrap_or_else(|| Aligned::new(self.before, len.max(self.size)));
        let r = f(buf.first(self.before + len));
        let mut free = self.free.lock();
        if free.len() < self.most {
            free.push(buf);
        }
        r
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_kept_than_are_often_needed() {
        let b = Buffers { before: 16, size: 100, most: 2, free: Mutex::default() };
        b.with(1, |x| b.with(2, |y| b.with(5000, |z| assert_eq!((x.len(), y.len(), z.len()), (17, 18, 5016)))));
        assert_eq!(b.free.lock().len(), 2);
        b.with(200, |x| x.fill(1));
        assert_eq!(b.free.lock().len(), 2);
    }

    #[test]
    fn data_begins_where_a_page_does() {
        for (before, len) in [(16, 1), (80, 1 << 20), (0, 10), (PAGE, PAGE)] {
            let mut a = Aligned::new(before, len);
            assert_eq!(a.first(before + len)[before..].as_ptr().align_offset(PAGE), 0);
        }
    }
}
