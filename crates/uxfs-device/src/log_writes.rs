//! Traces in the format of dm-log-writes, so that its tools can replay ours and ours can cut what it recorded.
//!
//! A sector with the head (magic number, version, entries, bytes of a sector), then the entries: a sector each (place, sectors,
//! flags, bytes of a mark's text, which follows in the same sector), and behind it what was written. All numbers are
//! little-endian. What completed before a flush began stands before it.

use crate::{Event, Memory, Trace};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const SECTOR: usize = 512;
/// Bytes of an entry before a mark's text.
const ENTRY: usize = 32;

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Longest write that is believed, in bytes.
const LONGEST: u64 = 1 << 30;

fn bad<T>(what: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("log of writes: {what}")))
}

fn words<const N: usize>(b: &[u8; SECTOR]) -> [u64; N] {
    std::array::from_fn(|i| b[i * 8..].first_chunk().map_or(0, |w| u64::from_le_bytes(*w)))
}

fn sector(words: &[u64], text: &[u8]) -> [u8; SECTOR] {
    let mut b = [0; SECTOR];
    for (w, to) in words.iter().zip(b.chunks_exact_mut(8)) {
        to.copy_from_slice(&w.to_le_bytes());
    }
    b[ENTRY..ENTRY + text.len()].copy_from_slice(text);
    b
}

/// An entry and what follows it.
struct Entry<'a> {
    words: [u64; 4],
    text: String,
    data: &'a [u8],
}

impl Trace {
    /// Writes what happened on one device. Marks bear their number as text. What was never flushed stands at the end.
    ///
    /// # Errors
    /// Those of `out`; a write that is not of whole sectors.
    pub fn write_log(&self, dev: usize, out: &mut impl Write) -> io::Result<()> {
        let mut begun: HashMap<u32, (u64, &[u8], bool)> = HashMap::new();
        let mut before: HashMap<u32, usize> = HashMap::new();
        let mut entries: Vec<Entry<'_>> = Vec::new();
        let mut completed: Vec<Entry<'_>> = Vec::new();
        for e in &self.events {
            match e {
                Event::WriteBegin { id, dev: d, offset, data, fua } if *d == dev => {
                    if !offset.is_multiple_of(SECTOR as u64) || !data.len().is_multiple_of(SECTOR) {
                        return bad(&format!("{} bytes at {offset} are no whole sectors", data.len()));
                    }
                    begun.insert(*id, (offset / SECTOR as u64, data, *fua));
                }
                Event::WriteEnd { id } => {
                    let Some((at, data, fua)) = begun.remove(id) else { continue };
                    let flags = if fua { FUA } else { 0 };
                    let entry = Entry { words: [at, (data.len() / SECTOR) as u64, flags, 0], text: String::new(), data };
                    if fua { entries.push(entry) } else { completed.push(entry) }
                }
                Event::FlushBegin { id, dev: d } if *d == dev => drop(before.insert(*id, completed.len())),
                Event::FlushEnd { id } => {
                    let Some(n) = before.remove(id) else { continue };
                    // Another flush may have begun and ended meanwhile.
                    let n = n.min(completed.len());
                    before.values_mut().for_each(|b| *b = b.saturating_sub(n));
                    entries.extend(completed.drain(..n));
                    entries.push(Entry { words: [0, 0, FLUSH, 0], text: String::new(), data: &[] });
                }
                Event::Mark(m) => {
                    let text = m.to_string();
                    entries.push(Entry { words: [0, 0, MARK, text.len() as u64], text, data: &[] });
                }
                _ => {}
            }
        }
        entries.append(&mut completed);
        out.write_all(&sector(&[MAGIC, VERSION, entries.len() as u64, SECTOR as u64], &[]))?;
        for e in &entries {
            out.write_all(&sector(&e.words, e.text.as_bytes()))?;
            out.write_all(e.data)?;
        }
        out.flush()
    }

    /// Reads what happened on one device, over what it held before. A mark whose text is no number is left out.
    ///
    /// # Errors
    /// Those of `from`; it is no such log, or it is cut off.
    pub fn read_log(from: &mut impl Read, base: Memory) -> io::Result<Trace> {
        let mut b = [0; SECTOR];
        from.read_exact(&mut b)?;
        let [magic, version, count, size] = words(&b);
        // Bytes of a sector are a word of 32 bits.
        if magic != MAGIC || version != VERSION || size & 0xffff_ffff != SECTOR as u64 {
            return bad("it has another magic number or version, or sectors of other than 512 bytes");
        }
        let mut events = Vec::new();
        let mut id = 0;
        for _ in 0..count {
            from.read_exact(&mut b)?;
            let [at, sectors, flags, len] = words(&b);
            if flags & MARK != 0 {
                let text = b[ENTRY..].get(..len as usize).and_then(|t| std::str::from_utf8(t).ok());
                events.extend(text.and_then(|t| t.trim_end_matches('\0').parse().ok()).map(Event::Mark));
                continue;
            }
            if flags & FLUSH != 0 {
                id += 1;
                events.extend([Event::FlushBegin { id, dev: 0 }, Event::FlushEnd { id }]);
            }
            let (Some(offset), Some(bytes)) = (at.checked_mul(SECTOR as u64), sectors.checked_mul(SECTOR as u64).filter(|n| *n <= LONGEST))
            else {
                return bad("an entry is too long");
            };
            if bytes == 0 {
                continue;
            }
            let mut data = Vec::new();
            if flags & DISCARD != 0 {
                data.resize(bytes as usize, 0);
            } else if from.take(bytes).read_to_end(&mut data)? < bytes as usize {
                return bad("it is cut off");
            }
            id += 1;
            let fua = flags & FUA != 0;
            events.extend([Event::WriteBegin { id, dev: 0, offset, data: Arc::from(data), fua }, Event::WriteEnd { id }]);
        }
        Ok(Trace { bases: vec![base], events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Recorder, WriteFlags};

    #[test]
    fn what_is_written_is_read_again() {
        let r = Recorder::new(Arc::new(Memory::new(1 << 20))).unwrap();
        let write = |at: u64, fill: u8, flags| r.write(at, &[fill; 1024], flags).unwrap();
        write(0, 1, WriteFlags::default());
        r.mark(7);
        write(4096, 2, WriteFlags { preflush: true, fua: true });
        r.flush().unwrap();
        write(0, 3, WriteFlags::default());
        let t = r.trace();
        let mut log = Vec::new();
        t.write_log(0, &mut log).unwrap();
        let back = Trace::read_log(&mut log.as_slice(), t.bases[0].fork()).unwrap();
        assert!(back.events.iter().any(|e| matches!(e, Event::Mark(7))));
        for keep in [false, true] {
            let image = |t: &Trace| t.image_at(t.events.len(), 512, &mut |_, n| vec![keep; n]).unwrap().digest();
            assert_eq!(image(&t), image(&back));
        }
        assert!(Trace::read_log(&mut &log[..log.len() - 1], t.bases[0].fork()).is_err());
        log[3] ^= 1;
        assert!(Trace::read_log(&mut log.as_slice(), t.bases[0].fork()).is_err());
    }
}
