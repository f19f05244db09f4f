//! Records writes and flushes of one device or several with their begin and end, and makes the images that a power cut could
//! leave. Each device has a cache of its own.

use crate::{Device, DeviceRef, Memory, WriteFlags};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// What happened, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write was handed to the device.
    WriteBegin {
        /// Ties it to its end.
        id: u32,
        /// Which device.
        dev: usize,
        /// Byte offset.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
        /// Durable at its end.
        fua: bool,
    },
    /// A write completed.
    WriteEnd {
        /// Ties it to its begin.
        id: u32,
    },
    /// A flush was handed to the device.
    FlushBegin {
        /// Ties it to its end.
        id: u32,
        /// Which device.
        dev: usize,
    },
    /// A flush completed.
    FlushEnd {
        /// Ties it to its begin.
        id: u32,
    },
    /// A mark of the workload.
    Mark(u64),
}

/// A recorded history over first images.
pub struct Trace {
    /// What each device held when recording began.
    pub bases: Vec<Memory>,
    /// What happened since.
    pub events: Vec<Event>,
}

#[derive(Default)]
struct History {
    last_id: u32,
    bases: Vec<Memory>,
    events: Vec<Event>,
}

/// Passes everything on to `base` and records it.
pub struct Recorder {
    base: DeviceRef,
    number: usize,
    history: Arc<Mutex<History>>,
}

impl Recorder {
    /// Begins to record over what `base` holds now.
    ///
    /// # Errors
    /// The base's read error.
    pub fn new(base: DeviceRef) -> io::Result<Recorder> {
        Recorder::in_history(base, Arc::default())
    }
    /// Records another device in the same history.
    ///
    /// # Errors
    /// The base's read error.
    pub fn beside(&self, base: DeviceRef) -> io::Result<Recorder> {
        Recorder::in_history(base, self.history.clone())
    }
    fn in_history(base: DeviceRef, history: Arc<Mutex<History>>) -> io::Result<Recorder> {
        let first = Memory::copy_of(&base)?;
        let number = {
            let mut h = history.lock();
            h.bases.push(first);
            h.bases.len() - 1
        };
        Ok(Recorder { base, number, history })
    }
    /// Notes a moment of the workload; returns its place in the history.
    pub fn mark(&self, m: u64) -> usize {
        let mut h = self.history.lock();
        h.events.push(Event::Mark(m));
        h.events.len()
    }
    /// The history so far, of all devices.
    pub fn trace(&self) -> Trace {
        let h = self.history.lock();
        Trace { bases: h.bases.iter().map(Memory::fork).collect(), events: h.events.clone() }
    }
    fn begin(&self, f: impl FnOnce(u32) -> Event) -> u32 {
        let mut h = self.history.lock();
        h.last_id += 1;
        let id = h.last_id;
        h.events.push(f(id));
        id
    }
    fn end(&self, e: Event) {
        self.history.lock().events.push(e);
    }
}

impl Device for Recorder {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.base.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8], flags: WriteFlags) -> io::Result<()> {
        if flags.preflush {
            self.flush()?;
        }
        let id = self.begin(|id| Event::WriteBegin { id, dev: self.number, offset, data: data.into(), fua: flags.fua });
        self.base.write(offset, data, flags)?;
        self.end(Event::WriteEnd { id });
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        let id = self.begin(|id| Event::FlushBegin { id, dev: self.number });
        self.base.flush()?;
        self.end(Event::FlushEnd { id });
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        // As if zeros were written: they may reach the medium or not, and nobody may rely on either.
        let zeros: Arc<[u8]> = vec![0; len as usize].into();
        let id = self.begin(|id| Event::WriteBegin { id, dev: self.number, offset, data: zeros, fua: false });
        self.base.discard(offset, len)?;
        self.end(Event::WriteEnd { id });
        Ok(())
    }
}

/// A write that may or may not have reached the medium at a cut.
struct Pending {
    offset: u64,
    data: Arc<[u8]>,
}

impl Trace {
    /// Places in the history just after a flush or durable write ended.
    pub fn flush_ends(&self) -> Vec<usize> {
        self.events.iter().enumerate().filter(|(_, e)| matches!(e, Event::FlushEnd { .. })).map(|(i, _)| i + 1).collect()
    }

    /// An image of the first device that a power cut after the first `cut` events could leave; see [`Trace::images_at`].
    ///
    /// # Errors
    /// None in practice; the memory device's.
    pub fn image_at(&self, cut: usize, tear: usize, choose: &mut dyn FnMut(u64, usize) -> Vec<bool>) -> io::Result<Memory> {
        self.image_of(0, cut, tear, &mut |_, offset, sectors| choose(offset, sectors))
    }

    /// Images of all devices that a power cut after the first `cut` events could leave.
    ///
    /// What a flush of its device or FUA made durable is there. Of each other write `choose` says how much is: it gets the
    /// device, the offset and the number of sectors, and returns for each whether it reached the medium.
    ///
    /// # Errors
    /// None in practice; the memory device's.
    pub fn images_at(&self, cut: usize, tear: usize, choose: &mut dyn FnMut(usize, u64, usize) -> Vec<bool>) -> io::Result<Vec<Memory>> {
        (0..self.bases.len()).map(|d| self.image_of(d, cut, tear, choose)).collect()
    }

    fn image_of(&self, of: usize, cut: usize, tear: usize, choose: &mut dyn FnMut(usize, u64, usize) -> Vec<bool>) -> io::Result<Memory> {
        let events = &self.events[..cut.min(self.events.len())];
        let mut ended = std::collections::HashMap::new();
        let mut flushes: Vec<usize> = Vec::new();
        let mut begun = std::collections::HashMap::new();
        for (i, e) in events.iter().enumerate() {
            match e {
                Event::WriteEnd { id } => {
                    ended.insert(*id, i);
                }
                Event::FlushBegin { id, dev } if *dev == of => {
                    begun.insert(*id, i);
                }
                Event::FlushEnd { id } => flushes.extend(begun.get(id)),
                _ => {}
            }
        }
        let last_flush = flushes.into_iter().max().unwrap_or(0);
        let image = self.bases[of].fork();
        let mut pending = Vec::new();
        for e in events {
            let Event::WriteBegin { id, dev, offset, data, fua } = e else { continue };
            if *dev != of {
                continue;
            }
            let durable = ended.get(id).is_some_and(|end| *fua || *end < last_flush);
            if durable {
                image.put(*offset, data)?;
                // An older write to the same place that is still in the cache must not come back over it.
                pending.retain(|p: &Pending| p.offset + p.data.len() as u64 <= *offset || p.offset >= *offset + data.len() as u64);
            } else {
                pending.push(Pending { offset: *offset, data: data.clone() });
            }
        }
        for p in &pending {
            let keep = choose(of, p.offset, p.data.len().div_ceil(tear));
            for (i, part) in p.data.chunks(tear).enumerate() {
                if keep.get(i).copied().unwrap_or(false) {
                    image.put(p.offset + (i * tear) as u64, part)?;
                }
            }
        }
        Ok(image)
    }
}
