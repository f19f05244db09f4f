//! CRC-32C over a block whose checksum field is taken as zero; stored little-endian.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of several pieces in a row.
pub fn crc32c(pieces: &[&[u8]]) -> u32 {
    let mut d = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for p in pieces {
        d.update(p);
    }
    d.finalize() as u32
}

/// Checksum of `block` with the four bytes at `at` taken as zero.
pub fn compute(block: &[u8], at: usize) -> u32 {
    match (block.get(..at), block.get(at + 4..)) {
        (Some(head), Some(tail)) => crc32c(&[head, &[0; 4], tail]),
        _ => 0,
    }
}

/// True if the checksum stored at `at` is right.
pub fn verify(block: &[u8], at: usize) -> bool {
    block.get(at..at + 4).is_some_and(|s| s == compute(block, at).to_le_bytes())
}

/// Computes and stores the checksum at `at`.
pub fn stamp(block: &mut [u8], at: usize) {
    let crc = compute(block, at);
    if let Some(s) = block.get_mut(at..at + 4) {
        s.copy_from_slice(&crc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bitwise(data: &[u8]) -> u32 {
        let mut c = !0u32;
        for &b in data {
            c ^= b as u32;
            for _ in 0..8 {
                c = (c >> 1) ^ if c & 1 != 0 { 0x82f6_3b78 } else { 0 };
            }
        }
        !c
    }

    #[test]
    fn agrees_with_the_bitwise_definition() {
        let data: Vec<u8> = (0..4096u32).map(|i| (i * 7 + 3) as u8).collect();
        for len in [0, 1, 3, 64, 511, 4096] {
            assert_eq!(crc32c(&[&data[..len]]), bitwise(&data[..len]));
        }
        assert_eq!(crc32c(&[b"123456789"]), 0xe306_9283);
    }

    #[test]
    fn a_stamped_block_verifies_and_a_flipped_bit_does_not() {
        let mut b = vec![5u8; 512];
        stamp(&mut b, 216);
        assert!(verify(&b, 216));
        b[400] ^= 1;
        assert!(!verify(&b, 216));
        assert!(!verify(&b[..10], 216));
    }
}
