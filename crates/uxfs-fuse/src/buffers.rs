//! Buffers for what is read, used again.

use parking_lot::Mutex;

/// Some buffers of one size, as many as are often needed at once.
pub struct Buffers {
    size: usize,
    most: usize,
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// None yet; each will have `size` bytes.
    pub fn new(size: usize) -> Buffers {
        let most = std::thread::available_parallelism().map_or(1, |n| n.get());
        Buffers { size, most, free: Mutex::default() }
    }

    /// Lends `len` bytes, whatever they hold.
    pub fn with<T>(&self, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut buf = self.free.lock().pop().unwrap_or_default();
        if buf.len() < len {
            buf.resize(len.max(self.size), 0);
        }
        let r = f(&mut buf[..len]);
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
        let b = Buffers { size: 100, most: 2, free: Mutex::default() };
        b.with(1, |x| b.with(2, |y| b.with(300, |z| assert_eq!((x.len(), y.len(), z.len()), (1, 2, 300)))));
        assert_eq!(b.free.lock().iter().map(Vec::len).collect::<Vec<_>>(), [300, 100]);
        b.with(200, |x| x.fill(1));
        assert_eq!(b.free.lock().iter().map(Vec::len).collect::<Vec<_>>(), [300, 200]);
    }
}
