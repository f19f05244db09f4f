//! Total big-endian accessors: a read past the end yields zero, a write past the end is dropped.

macro_rules! accessors {
    ($get:ident, $put:ident, $t:ty, $n:expr) => {
        /// Reads a big-endian integer at byte `at`; zero past the end.
        #[inline]
        pub fn $get(b: &[u8], at: usize) -> $t {
            match b.get(at..).and_then(|b| b.first_chunk::<$n>()) {
                Some(c) => <$t>::from_be_bytes(*c),
                None => 0,
            }
        }
        /// Writes a big-endian integer at byte `at`; nothing happens past the end.
        #[inline]
        pub fn $put(b: &mut [u8], at: usize, v: $t) {
            debug_assert!(at + $n <= b.len(), "write past the end of a block");
            if let Some(c) = b.get_mut(at..).and_then(|b| b.first_chunk_mut::<$n>()) {
                *c = v.to_be_bytes();
            }
        }
    };
}
accessors!(get16, put16, u16, 2);
accessors!(get32, put32, u32, 4);
accessors!(get64, put64, u64, 8);

/// Reads one byte; zero past the end.
#[inline]
pub fn get8(b: &[u8], at: usize) -> u8 {
    b.get(at).copied().unwrap_or(0)
}

/// A sub-slice, clamped to what there is.
#[inline]
pub fn slice(b: &[u8], at: usize, len: usize) -> &[u8] {
    let end = at.saturating_add(len).min(b.len());
    b.get(at.min(end)..end).unwrap_or(&[])
}

/// The first index in `0..n` for which `before` is false.
pub fn partition(n: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut from, mut to) = (0, n);
    while from < to {
        let mid = from.midpoint(to);
        if before(mid) { from = mid + 1 } else { to = mid }
    }
    from
}
