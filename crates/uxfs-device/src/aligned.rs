//! Buffers that direct I/O can use: aligned to 4 KiB, used again.

use parking_lot::Mutex;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// What a buffer is aligned to and counted in: enough for every host.
pub(crate) const ALIGN: usize = 4096;
/// Bytes of a buffer.
pub(crate) const BUFFER: usize = 1 << 20;
/// Free buffers kept.
const KEPT: usize = 8;

/// True if direct I/O can use these bytes as they lie in memory.
pub(crate) fn is(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGN)
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Block([u8; ALIGN]);

/// Buffers of [`BUFFER`] bytes.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Vec<Vec<Block>>>);

/// One buffer; it goes back when it is dropped.
pub(crate) struct Buffer<'a> {
    pool: &'a Pool,
    blocks: Vec<Block>,
}

impl Pool {
    pub(crate) fn take(&self) -> Buffer<'_> {
        let blocks = self.0.lock().pop().unwrap_or_else(|| vec![Block::new_zeroed(); BUFFER / ALIGN]);
        Buffer { pool: self, blocks }
    }
}

impl Buffer<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.blocks.as_bytes()
    }
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.blocks.as_mut_bytes()
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.0.lock();
        if free.len() < KEPT {
            free.push(std::mem::take(&mut self.blocks));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_come_back() {
        let pool = Pool::default();
        let at = {
            let b = pool.take();
            assert_eq!((b.bytes().len(), b.bytes().as_ptr() as usize % ALIGN), (BUFFER, 0));
            b.bytes().as_ptr() as usize
        };
        assert_eq!(pool.take().bytes().as_ptr() as usize, at);
    }
}
