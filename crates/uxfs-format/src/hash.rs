//! The hash of names in directories and attributes (format facts, section 8).

use crate::NameHash;

/// Hash of a directory entry's or attribute's name.
pub fn name_hash(name: &[u8]) -> NameHash {
    let mut h = 0u32;
    let (quads, rest) = name.as_chunks::<4>();
    for b in quads.iter().map(|q| q.map(u32::from)) {
        h = (b[0] << 21) ^ (b[1] << 14) ^ (b[2] << 7) ^ b[3] ^ h.rotate_left(28);
    }
    NameHash(match *rest {
        [a, b, c] => (u32::from(a) << 14) ^ (u32::from(b) << 7) ^ u32::from(c) ^ h.rotate_left(21),
        [a, b] => (u32::from(a) << 7) ^ u32::from(b) ^ h.rotate_left(14),
        [a] => u32::from(a) ^ h.rotate_left(7),
        _ => h,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dots_hash_as_on_disk() {
        assert_eq!(name_hash(b".").0, 0x2e);
        assert_eq!(name_hash(b"..").0, 0x172e);
    }
}
