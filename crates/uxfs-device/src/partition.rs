//! Partitions of an image: GPT, and the primary and logical ones of an MBR.

use crate::Device;
use std::io;

/// Where a partition lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number, from 1.
    pub number: u32,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

fn le(b: &[u8], at: usize, n: usize) -> u64 {
    b.iter().skip(at).take(n).rev().fold(0, |a, &x| a << 8 | u64::from(x))
}

fn gpt(dev: &dyn Device, sector: u64) -> io::Result<Vec<Partition>> {
    let mut h = vec![0; 512];
    dev.read(sector, &mut h)?;
    if !h.starts_with(b"EFI PART") {
        return Ok(Vec::new());
    }
    let (lba, count, size) = (le(&h, 72, 8), le(&h, 80, 4).min(1024), le(&h, 84, 4));
    if !(128..=4096).contains(&size) {
        return Ok(Vec::new());
    }
    let mut table = vec![0; (count * size).next_multiple_of(512) as usize];
    dev.read(lba.saturating_mul(sector), &mut table)?;
    let mut out = Vec::new();
    for (i, e) in table.chunks_exact(size as usize).take(count as usize).enumerate() {
        let (first, last) = (le(e, 32, 8), le(e, 40, 8));
        if e[..16] != [0; 16] && last >= first && last < dev.size_bytes() / sector {
            out.push(Partition { number: i as u32 + 1, start: first * sector, len: (last - first + 1) * sector });
        }
    }
    Ok(out)
}

fn mbr(dev: &dyn Device) -> io::Result<Vec<Partition>> {
    let mut b = vec![0; 512];
    dev.read(0, &mut b)?;
    let mut out = Vec::new();
    if b[510..] != [0x55, 0xaa] {
        return Ok(out);
    }
    let entry = |b: &[u8], i: usize| (b[450 + 16 * i], le(b, 454 + 16 * i, 4) * 512, le(b, 458 + 16 * i, 4) * 512);
    let mut extended = None;
    for i in 0..4 {
        let (kind, start, len) = entry(&b, i);
        match kind {
            0 => {}
            5 | 0xf | 0x85 => extended = Some(start),
            _ => out.push(Partition { number: i as u32 + 1, start, len }),
        }
    }
    // Logical partitions are a chain; a loop in it ends after as many links as there could be.
    let Some(first) = extended else { return Ok(out) };
    let mut at = first;
    for number in 5..64 {
        if dev.read(at, &mut b).is_err() || b[510..] != [0x55, 0xaa] {
            break;
        }
        let (kind, start, len) = entry(&b, 0);
        if kind != 0 {
            out.push(Partition { number, start: at + start, len });
        }
        match entry(&b, 1) {
            (0, _, _) => break,
            (_, next, _) => at = first + next,
        }
    }
    Ok(out)
}

/// Finds partition `number` of an image.
///
/// # Errors
/// `NotFound` that lists the partitions that are there; the device's read error.
pub fn find_partition(dev: &dyn Device, number: u32) -> io::Result<Partition> {
    let mut all = gpt(dev, 512)?;
    if all.is_empty() {
        all = gpt(dev, 4096)?;
    }
    if all.is_empty() {
        all = mbr(dev)?;
    }
    all.iter().find(|p| p.number == number).copied().ok_or_else(|| {
        let have: Vec<String> = all.iter().map(|p| p.number.to_string()).collect();
        let have =
            if have.is_empty() { "no partition table or no partitions".into() } else { format!("only partitions {}", have.join(", ")) };
        io::Error::new(io::ErrorKind::NotFound, format!("there is no partition {number}: {have}"))
    })
}
