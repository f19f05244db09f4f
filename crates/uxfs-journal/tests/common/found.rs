//! What recovery finds of things.

use super::THING;
use std::collections::HashMap;
use uxfs_format::Lsn;
use uxfs_journal::{JournalError, Replay, ReplayItem};

/// The versions that recovery finds, by number.
#[derive(Default)]
pub struct Found(pub HashMap<u64, u64>);

impl Replay for Found {
    type Error = JournalError;
    fn transaction(&mut self, pass: u8, _: Lsn, items: &[ReplayItem]) -> Result<(), JournalError> {
        for i in items.iter().filter(|i| pass == 2 && i.kind() == THING) {
            let word = |at: usize| u64::from_le_bytes(i.regions[0][at..at + 8].try_into().unwrap());
            assert!(i.regions[1].iter().all(|b| *b == word(16) as u8), "a region of other bytes");
            let v = self.0.entry(word(8)).or_default();
            *v = (*v).max(word(16));
        }
        Ok(())
    }
}
