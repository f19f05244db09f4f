//! What a volume is made with, and what releases of mkfs.xfs turn on.

use crate::geometry::MkfsError;
use uxfs_format::superblock::{incompat, ro_compat};

/// Features that a volume can be made with or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Bits of the read-only-compatible word.
    pub ro_compat: u32,
    /// Bits of the incompatible word.
    pub incompat: u32,
}

/// Where an option's bit lies.
#[derive(Clone, Copy)]
enum Bit {
    Ro(u32),
    Inc(u32),
}

/// Section and key as mkfs.xfs has them.
const KEYS: &[(char, &str, Bit)] = &[
    ('m', "finobt", Bit::Ro(ro_compat::FINOBT)),
    ('m', "rmapbt", Bit::Ro(ro_compat::RMAPBT)),
    ('m', "reflink", Bit::Ro(ro_compat::REFLINK)),
    ('m', "inobtcount", Bit::Ro(ro_compat::INOBTCNT)),
    ('m', "bigtime", Bit::Inc(incompat::BIGTIME)),
    ('i', "sparse", Bit::Inc(incompat::SPINODES)),
    ('i', "nrext64", Bit::Inc(incompat::NREXT64)),
    ('i', "exchange", Bit::Inc(incompat::EXCHRANGE)),
    ('n', "parent", Bit::Inc(incompat::PARENT)),
];

const FIRST: Features = Features { ro_compat: ro_compat::FINOBT, incompat: incompat::FTYPE };
const COUNTED: u32 = ro_compat::FINOBT | ro_compat::REFLINK | ro_compat::INOBTCNT;
const TIMED: u32 = incompat::FTYPE | incompat::SPINODES | incompat::BIGTIME;

/// Names of the files that mkfs.xfs brings for kernels that are kept for long, and what they say.
const PROFILES: &[(&str, Features)] = &[
    ("lts_4.19", FIRST),
    ("lts_5.4", Features { ro_compat: ro_compat::FINOBT | ro_compat::REFLINK, incompat: incompat::FTYPE | incompat::SPINODES }),
    ("lts_5.10", Features { ro_compat: ro_compat::FINOBT | ro_compat::REFLINK, incompat: incompat::FTYPE | incompat::SPINODES }),
    ("lts_5.15", Features { ro_compat: COUNTED, incompat: TIMED }),
    ("lts_6.1", Features { ro_compat: COUNTED, incompat: TIMED }),
    ("lts_6.6", Features { ro_compat: COUNTED | ro_compat::RMAPBT, incompat: TIMED | incompat::NREXT64 }),
    ("lts_6.12", Features { ro_compat: COUNTED | ro_compat::RMAPBT, incompat: TIMED | incompat::NREXT64 }),
    ("lts_6.18", Features::NEWEST),
];

impl Features {
    /// What mkfs.xfs 7.2 turns on: kernels from 6.18 on.
    pub const NEWEST: Features =
        Features { ro_compat: COUNTED | ro_compat::RMAPBT, incompat: TIMED | incompat::NREXT64 | incompat::EXCHRANGE | incompat::PARENT };

    /// What mkfs.xfs 6.1 turns on.
    pub const V6_1: Features = Features { ro_compat: COUNTED, incompat: TIMED };

    /// The features of a profile like `lts_6.1`, also as `lts_6.1.conf` or with a path before it.
    ///
    /// # Errors
    /// [`MkfsError::Option`] that names the profiles.
    pub fn profile(name: &str) -> Result<Features, MkfsError> {
        let base = name.rsplit('/').next().unwrap_or(name).trim_end_matches(".conf");
        let known = || PROFILES.iter().map(|p| p.0).collect::<Vec<_>>().join(", ");
        PROFILES
            .iter()
            .find(|p| p.0 == base)
            .map(|p| p.1)
            .ok_or_else(|| MkfsError::Option(format!("{name} is no profile; there are {}", known())))
    }

    /// The keys of a section, as in `-m rmapbt=1`.
    pub fn keys(section: char) -> impl Iterator<Item = &'static str> {
        KEYS.iter().filter(move |k| k.0 == section).map(|k| k.1)
    }

    /// Turns a feature on or off; false if the section has no such key.
    pub fn set(&mut self, section: char, key: &str, on: bool) -> bool {
        let Some((_, _, bit)) = KEYS.iter().find(|k| k.0 == section && k.1 == key) else { return false };
        let (word, bit) = match bit {
            Bit::Ro(b) => (&mut self.ro_compat, b),
            Bit::Inc(b) => (&mut self.incompat, b),
        };
        *word = if on { *word | bit } else { *word & !bit };
        true
    }

    pub(crate) fn ro(&self, bit: u32) -> bool {
        self.ro_compat & bit != 0
    }

    pub(crate) fn inc(&self, bit: u32) -> bool {
        self.incompat & bit != 0
    }

    /// What does not go together.
    pub(crate) fn check(&self) -> Result<(), MkfsError> {
        if self.ro(ro_compat::INOBTCNT) && !self.ro(ro_compat::FINOBT) {
            return Err(MkfsError::Option("inobtcount needs finobt".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_and_keys_lead_to_bits() {
        let mut f = Features::profile("/usr/share/xfsprogs/mkfs/lts_6.6.conf").expect("a profile");
        assert!(f.ro(ro_compat::RMAPBT) && !f.inc(incompat::PARENT));
        assert!(f.set('n', "parent", true) && f.set('i', "exchange", true));
        assert_eq!(f, Features::NEWEST);
        assert!(!f.set('m', "parent", true) && f.set('m', "rmapbt", false) && !f.ro(ro_compat::RMAPBT));
        assert!(Features::profile("lts_9.9").is_err());
    }
}
