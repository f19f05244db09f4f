//! What was found.

use crate::forms::Forms;
use crate::meaning::meaning;
use std::fmt;

/// Findings that are kept; a volume full of damage does not fill the memory.
const MOST: usize = 10_000;

/// One thing that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stays the same from release to release.
    pub code: &'static str,
    /// Which structure.
    pub structure: &'static str,
    /// Where it lies, in basic blocks of 512 bytes; `None` if it is spread.
    pub place: Option<u64>,
    /// What does not hold.
    pub message: String,
}

impl Finding {
    /// What it means for whoever has the volume.
    pub fn meaning(&self) -> &'static str {
        meaning(self.code)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.code, self.structure)?;
        if let Some(p) = self.place {
            write!(f, " at basic block {p}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// All findings, and what was looked at.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order in which they were found.
    pub findings: Vec<Finding>,
    /// Findings beyond those that are kept.
    pub left_out: usize,
    /// What there is, damaged or not.
    pub forms: Forms,
    /// The log was replayed and nothing more: what recovery does then is no finding.
    pub(crate) unfinished: bool,
}

/// What recovery leaves until it has freed what was deleted, and has counted anew.
const UNFINISHED: [&str; 8] =
    ["unlinked", "inode-unlinked", "orphan", "lost-blocks", "attribute-hidden", "sb-fdblocks", "sb-icount", "sb-ifree"];

impl Report {
    /// True if everything holds.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }

    /// Notes a finding.
    pub fn add(&mut self, code: &'static str, structure: &'static str, place: Option<u64>, message: &str) {
        debug_assert!(!meaning(code).is_empty(), "{code} means nothing");
        if self.unfinished && UNFINISHED.contains(&code) {
            return;
        }
        if self.findings.len() >= MOST {
            self.left_out += 1;
            return;
        }
        self.findings.push(Finding { code, structure, place, message: message.to_string() });
    }
}
