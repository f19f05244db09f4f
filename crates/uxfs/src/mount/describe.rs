//! What is in the journal, in words: for `uxfs log`.

use super::{Devices, read_superblock};
use crate::error::{Error, Result};
use std::collections::HashSet;
use uxfs_format::Lsn;
use uxfs_format::log::{AttrIntent, BufFormat, ExchangeIntent, IcreateFormat, InodeFormat, Intent, item, item_id};
use uxfs_journal::{Replay, ReplayItem, find_log_state};

/// Where the journal begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSummary {
    /// The next record goes here.
    pub head: Lsn,
    /// Recovery begins here.
    pub tail: Lsn,
    /// Nothing is to be recovered.
    pub clean: bool,
    /// Records at the head were not whole.
    pub torn: bool,
    /// Intents that are not done: recovery finishes them.
    pub unfinished: usize,
}

struct Teller<'a> {
    tell: &'a mut dyn FnMut(Lsn, &[String]),
    /// What will say that an intent is done: type and identity.
    awaited: HashSet<(u16, u64)>,
}

impl Replay for Teller<'_> {
    type Error = Error;
    fn transaction(&mut self, pass: u8, lsn: Lsn, items: &[ReplayItem]) -> Result<()> {
        if pass == 1 {
            let lines: Vec<String> = items.iter().map(line).collect();
            (self.tell)(lsn, &lines);
            for i in items {
                let Some(id) = i.regions.first().and_then(|r| item_id(r)) else { continue };
                match item::completion(i.kind()) {
                    Some(done) => self.awaited.insert((done, id)),
                    None => self.awaited.remove(&(i.kind(), id)),
                };
            }
        }
        Ok(())
    }
}

fn line(i: &ReplayItem) -> String {
    let name = item::name(i.kind());
    let Some(first) = i.regions.first() else { return name.into() };
    let bytes: usize = i.regions[1..].iter().map(Vec::len).sum();
    match i.kind() {
        item::BUF => BufFormat::parse(first)
            .map_or_else(|| name.into(), |f| format!("{name} daddr {} len {} flags {:#x}, {bytes} bytes", f.daddr.0, f.bbs, f.flags)),
        item::INODE => {
            InodeFormat::parse(first).map_or_else(|| name.into(), |f| format!("{name} {} fields {:#x}, {bytes} bytes", f.ino.0, f.fields))
        }
        item::ICREATE => IcreateFormat::parse(first)
            .map_or_else(|| name.into(), |f| format!("{name} ag {} agbno {} count {}", f.agno.0, f.agbno.0, f.count)),
        item::ATTRI => AttrIntent::parse(&i.regions).map_or_else(
            || name.into(),
            |a| {
                let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
                let to = if a.new_name.is_empty() { String::new() } else { format!(" to {}", text(&a.new_name)) };
                format!("{name} id {:#x}, op {} on {}, name {}{to}, {} bytes", a.id, a.op, a.ino.0, text(&a.name), a.value.len())
            },
        ),
        item::XMI => ExchangeIntent::parse(first).map_or_else(
            || name.into(),
            |x| {
                let ([a, b], [p, q]) = (x.inos, x.offsets);
                format!("{name} id {:#x}, {} blocks at {p} of {} and {q} of {}, flags {:#x}", x.id, x.blocks, a.0, b.0, x.flags)
            },
        ),
        _ => match Intent::parse(first) {
            Some(f) => format!("{name} id {:#x}, {} extents", f.id, f.extents.len()),
            None => format!("{name}, {} regions", i.regions.len()),
        },
    }
}

/// Tells the committed transactions between tail and head: their position and their items in words.
///
/// # Errors
/// The volume has no readable superblock or log.
pub fn describe_log(devices: &Devices, tell: &mut dyn FnMut(Lsn, &[String])) -> Result<LogSummary> {
    let (g, _) = read_superblock(&devices.data)?;
    let (dev, geo) = devices.log_of(&g)?;
    let state = find_log_state(&dev, &geo)?;
    let mut teller = Teller { tell, awaited: HashSet::new() };
    uxfs_journal::replay(&*dev, &geo, &state, &mut teller)?;
    Ok(LogSummary { head: state.head, tail: state.tail, clean: state.clean, torn: state.torn, unfinished: teller.awaited.len() })
}
