//! The checker: walks every structure of a volume and compares them with each other.
//!
//! It is an oracle for the engine, so it shares nothing with it but the on-disk format; it reads, and never writes. The volume
//! must have a clean log: for a dirty one the caller hands it a device on which the log was recovered.
//!
//! Memory grows with what is on the volume (some 16 bytes an extent, 64 an inode, names of one directory at a time), and no
//! block is walked twice, so a hostile volume cannot make it run on.

mod attributes;
mod directory;
mod fork;
mod forms;
mod hashtree;
mod inodes;
mod meaning;
mod names;
mod report;
mod space;
mod tree;
mod usage;

pub use forms::{Form, Forms};
pub use report::{Finding, Report};

use std::collections::HashMap;
use uxfs_device::Device;
use uxfs_format::btree::RmapRec;
use uxfs_format::bytes::get64;
use uxfs_format::log::block_cycle;
use uxfs_format::superblock::{
    INCOMPAT_NAMES, METADIRINO, RO_COMPAT_NAMES, Superblock, incompat, names as feature_names, ro_compat, version,
};
use uxfs_format::{AgNumber, DiskAddr, Geometry, Kind, Lsn};

/// Why a volume cannot be checked at all.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The volume has features that the checker does not know.
    #[error("volumes with {0} cannot be checked")]
    Unsupported(String),
    /// The device failed.
    #[error("cannot read the volume: {0}")]
    Io(std::io::Error),
}

impl From<std::io::Error> for CheckError {
    fn from(e: std::io::Error) -> CheckError {
        CheckError::Io(e)
    }
}

/// Incompatible features that the checker knows.
const KNOWN: u32 = incompat::FTYPE
    | incompat::SPINODES
    | incompat::META_UUID
    | incompat::BIGTIME
    | incompat::NREXT64
    | incompat::EXCHRANGE
    | incompat::PARENT
    | incompat::METADIR;

/// Read-only-compatible features that the checker knows.
const KNOWN_RO: u32 = ro_compat::FINOBT | ro_compat::RMAPBT | ro_compat::REFLINK | ro_compat::INOBTCNT;

/// All that is known of the volume while it is walked.
pub(crate) struct Checker<'a> {
    dev: &'a dyn Device,
    /// Where the log is, if it has a device of its own.
    log_dev: Option<&'a dyn Device>,
    g: Geometry,
    sb: Superblock,
    /// Where the metadata directory begins, if there is one.
    metadata_root: Option<u64>,
    report: Report,
    usage: Vec<Vec<usage::Use>>,
    /// Owners as the rmapbt of each group should have them, and as it has them.
    owners: Vec<(Vec<RmapRec>, Vec<RmapRec>)>,
    inodes: HashMap<u64, names::Info>,
    /// Names as directories have them, and as parent pointers do.
    parents: (Vec<names::Parent>, Vec<names::Parent>),
    /// Free blocks, inodes and free inodes as the groups count them.
    counted: (u64, u64, u64),
    /// The latest log position that any block bears.
    latest: Lsn,
}

/// Checks a volume.
///
/// # Errors
/// It cannot be read, or has features that are not known. What is damaged is in the report.
pub fn check(dev: &dyn Device) -> Result<Report, CheckError> {
    check_with_log(dev, None)
}

/// As [`check_with_log`], for a volume whose log was replayed and nothing more: what was deleted need not be freed yet.
///
/// # Errors
/// As [`check`].
pub fn check_replayed<'a>(dev: &'a dyn Device, log_dev: Option<&'a dyn Device>) -> Result<Report, CheckError> {
    run(dev, log_dev, Report { unfinished: true, ..Report::default() })
}

/// As [`check`], for a volume whose log is on a device of its own.
///
/// # Errors
/// As [`check`].
pub fn check_with_log<'a>(dev: &'a dyn Device, log_dev: Option<&'a dyn Device>) -> Result<Report, CheckError> {
    run(dev, log_dev, Report::default())
}

fn run<'a>(dev: &'a dyn Device, log_dev: Option<&'a dyn Device>, mut report: Report) -> Result<Report, CheckError> {
    let mut head = vec![0; 32768.min(dev.size_bytes()) as usize];
    dev.read(0, &mut head)?;
    let (g, sb) = match Geometry::parse(&head) {
        Ok(x) => x,
        Err(c) => {
            report.add("superblock", "superblock", Some(0), c.what);
            return Ok(report);
        }
    };
    unknown(&g, &sb)?;
    if g.dblocks.saturating_mul(u64::from(g.blocksize)) > dev.size_bytes() {
        report.add("superblock-size", "superblock", Some(0), "counts more blocks than the device has");
        return Ok(report);
    }
    let metadata_root = g.has(incompat::METADIR).then(|| get64(&head, METADIRINO));
    let usage = (0..g.agcount).map(|_| Vec::new()).collect();
    let owners = (0..g.agcount).map(|_| Default::default()).collect();
    let mut c = Checker {
        dev,
        log_dev,
        g,
        sb,
        metadata_root,
        report,
        usage,
        owners,
        inodes: HashMap::new(),
        parents: Default::default(),
        counted: (0, 0, 0),
        latest: Lsn(0),
    };
    c.superblocks();
    for agno in 0..c.g.agcount {
        c.group(AgNumber(agno));
    }
    c.log_area();
    c.names();
    c.sweep();
    c.owners();
    c.counters();
    c.log_head();
    Ok(c.report)
}

/// Refuses by name what would be taken for damage.
fn unknown(g: &Geometry, sb: &Superblock) -> Result<(), CheckError> {
    let (inc, ro) = (g.incompat & !KNOWN, g.ro_compat & !KNOWN_RO);
    let what = if inc != 0 {
        feature_names(inc, INCOMPAT_NAMES)
    } else if ro != 0 {
        feature_names(ro, RO_COMPAT_NAMES)
    } else if g.versionnum & version::BORG != 0 {
        "case-insensitive names".into()
    } else if sb.rblocks.get() != 0 {
        "a realtime device".into()
    } else {
        return Ok(());
    };
    Err(CheckError::Unsupported(what))
}

impl Checker<'_> {
    fn add(&mut self, code: &'static str, structure: &'static str, place: Option<DiskAddr>, message: &str) {
        self.report.add(code, structure, place.map(|d| d.0), message);
    }

    /// Counts something that has a form.
    fn form(&mut self, form: Form, height: u16) {
        self.report.forms.saw(form, height);
    }

    /// Reads basic blocks; a failure is a finding.
    fn read(&mut self, at: DiskAddr, bbs: u32) -> Option<Vec<u8>> {
        let mut b = vec![0; bbs as usize * 512];
        match self.dev.read(at.0.saturating_mul(512), &mut b) {
            Ok(()) => Some(b),
            Err(e) => {
                self.add("unreadable", "device", Some(at), &format!("cannot be read: {e}"));
                None
            }
        }
    }

    /// Reads a structure and verifies it.
    fn read_as(&mut self, kind: Kind, at: DiskAddr, bbs: u32) -> Option<Vec<u8>> {
        let b = self.read(at, bbs)?;
        self.verified(kind, &b, at).then(|| {
            self.saw(kind.lsn(&b).unwrap_or_default());
            b
        })
    }

    /// Verifies a structure; what does not hold is a finding.
    fn verified(&mut self, kind: Kind, b: &[u8], at: DiskAddr) -> bool {
        let r = kind.verify(b, at, &self.g, true);
        if let Err(c) = &r {
            self.add("block", c.structure, Some(at), c.what);
        }
        r.is_ok()
    }

    /// Notes the log position that a block bears; those of version 4 bear none.
    fn saw(&mut self, lsn: Lsn) {
        if self.g.v5() && lsn.0 != u64::MAX {
            self.latest = self.latest.max(lsn);
        }
    }

    /// No block may bear a position that the log has not reached: recovery would not replay changes onto it.
    fn log_head(&mut self) {
        let (first, blocks) = (self.g.fsb_daddr(self.g.logstart), self.g.log_bbs());
        let log = match self.log_dev {
            Some(d) => d,
            None if self.g.logstart.0 == 0 => return,
            None => self.dev,
        };
        let read = |block: u32| {
            let mut b = [0; 512];
            log.read((first.0 + u64::from(block)) * 512, &mut b).map(|()| block_cycle(&b))
        };
        let Ok(cycle) = read(0) else { return self.add("unreadable", "device", Some(first), "the log cannot be read") };
        // The log is written round and round: up to the head its blocks bear this cycle, behind it an older one.
        let (mut low, mut high) = (1, blocks);
        while low < high {
            let mid = low + (high - low) / 2;
            if read(mid).is_ok_and(|c| c == cycle) { low = mid + 1 } else { high = mid }
        }
        let head = if low == blocks { Lsn::new(cycle.saturating_add(1), 0) } else { Lsn::new(cycle, low) };
        if self.latest > head {
            let text = format!("a block bears the log position {}, the log is at {head}", self.latest);
            self.add("lsn-ahead", "log", Some(first), &text);
        }
    }

    /// Compares the superblock's counters with what the groups count.
    fn counters(&mut self) {
        let have = (self.sb.fdblocks.get(), self.sb.icount.get(), self.sb.ifree.get());
        let (free, icount, ifree) = self.counted;
        for (code, what, sb, groups) in [
            ("sb-fdblocks", "free blocks", have.0, free),
            ("sb-icount", "inodes", have.1, icount),
            ("sb-ifree", "free inodes", have.2, ifree),
        ] {
            if sb != groups {
                self.add(code, "superblock", Some(DiskAddr(0)), &format!("counts {sb} {what}, the groups {groups}"));
            }
        }
    }
}
