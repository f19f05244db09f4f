//! `info`, `log`, `recover` and `check`.

use crate::place::Source;
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::process::ExitCode;
use uxfs::{Fs, Options, describe_log};
use uxfs_check::Form;
use uxfs_device::Device;
use uxfs_format::Geometry;
use uxfs_format::superblock::{Superblock, incompat, ro_compat};

/// Memory for what recovery changes while a dirty volume is only looked at.
const RECOVERY_BYTES: usize = 1 << 30;

/// The superblock as it is on a device.
///
/// # Errors
/// There is no sound one.
pub fn superblock(dev: &dyn Device) -> Result<Superblock> {
    let mut head = vec![0; 32768.min(dev.size_bytes()) as usize];
    dev.read(0, &mut head)?;
    Ok(Geometry::parse(&head)?.1)
}

fn superblock_of(source: &Source) -> Result<Superblock> {
    superblock(&*source.device(false)?).with_context(|| format!("cannot open {}", source.name()))
}

/// Prints the geometry, as `xfs_info` does.
///
/// # Errors
/// There is no sound superblock.
pub fn info(source: &Source, out: &mut impl Write) -> Result<()> {
    let sb = superblock_of(source)?;
    write!(out, "{}", uxfs_mkfs::print_geometry(&source.name(), None, &sb))?;
    Ok(())
}

/// Prints what is in the journal.
///
/// # Errors
/// There is no sound superblock or log.
pub fn log(source: &Source, out: &mut impl Write) -> Result<()> {
    let devices = source.devices(false)?;
    let mut lines = Vec::new();
    let mut count = 0;
    let s = describe_log(&devices, &mut |lsn, items| {
        count += 1;
        lines.push(format!("transaction at cycle {} block {}: {} items", lsn.cycle(), lsn.block(), items.len()));
        lines.extend(items.iter().map(|i| format!("  {i}")));
    })
    .with_context(|| format!("cannot read the log of {}", source.name()))?;
    let state = if s.clean { "clean" } else { "dirty" };
    writeln!(
        out,
        "log: {state}, tail cycle {} block {}, head cycle {} block {}",
        s.tail.cycle(),
        s.tail.block(),
        s.head.cycle(),
        s.head.block()
    )?;
    if s.torn {
        writeln!(out, "records at the head are not whole; recovery drops them")?;
    }
    writeln!(out, "{count} transactions to replay, {} intents to finish", s.unfinished)?;
    lines.iter().try_for_each(|l| writeln!(out, "{l}"))?;
    Ok(())
}

/// What `admin` changes and shows.
pub struct Identity {
    /// Only what is named is shown.
    pub show_label: bool,
    pub show_uuid: bool,
    /// New ones.
    pub label: Option<String>,
    pub uuid: Option<String>,
    /// Features to turn on.
    pub features: Vec<String>,
}

/// The bits of features to turn on: incompatible ones, and those of which readers need not know.
fn feature_bits(features: &[String]) -> Result<(u32, u32)> {
    let (mut incompat, mut ro_compat) = (0, 0);
    for f in features.iter().flat_map(|f| f.split(',')) {
        match f.strip_suffix("=1").unwrap_or(f) {
            "bigtime" => incompat |= incompat::BIGTIME,
            "nrext64" => incompat |= incompat::NREXT64,
            "exchange" => incompat |= incompat::EXCHRANGE,
            "inobtcount" => ro_compat |= ro_compat::INOBTCNT,
            _ => bail!("{f}: bigtime=1, exchange=1, inobtcount=1 and nrext64=1 can be turned on, nothing else"),
        }
    }
    Ok((incompat, ro_compat))
}

/// Changes label, UUID and features, and prints the first two.
///
/// # Errors
/// The volume cannot be recovered or written; the label is too long, the UUID none.
pub fn admin(source: &Source, how: &Identity, out: &mut impl Write) -> Result<()> {
    let (incompat, ro_compat) = feature_bits(&how.features)?;
    let new = match how.uuid.as_deref() {
        None => None,
        Some("generate") => Some(uxfs_mkfs::UuidGenerator::random()?),
        // What the metadata bears since the volume was made.
        Some("restore") => Some(superblock_of(source)?.metadata_uuid()),
        Some(text) => Some(uxfs_mkfs::parse_uuid(text).with_context(|| format!("{text:?} is no UUID"))?),
    };
    let identity = how.label.is_some() || new.is_some();
    let features = incompat | ro_compat != 0;
    if identity || features {
        crate::volume::with(source, true, |_| Ok(()))?;
    }
    if features {
        uxfs::add_features(&source.devices(true)?, incompat, ro_compat).with_context(|| format!("cannot change {}", source.name()))?;
    }
    if identity {
        let label = how.label.as_deref().map(|l| if l == "--" { "" } else { l }.as_bytes());
        uxfs::set_identity(&source.devices(true)?, label, new).with_context(|| format!("cannot change {}", source.name()))?;
    }
    let sb = superblock_of(source)?;
    let label = sb.fname.split(|b| *b == 0).next().unwrap_or(&[]);
    let all = !how.show_label && !how.show_uuid;
    if all || how.show_label {
        writeln!(out, "label = \"{}\"", String::from_utf8_lossy(label))?;
    }
    if all || how.show_uuid {
        writeln!(out, "UUID = {}", uxfs_mkfs::uuid_text(&sb.uuid))?;
    }
    Ok(())
}

/// Recovers a dirty volume and leaves a clean log.
///
/// # Errors
/// The volume cannot be opened or closed.
pub fn recover(source: &Source, out: &mut impl Write) -> Result<()> {
    let dirty = crate::volume::with(source, true, |v| Ok(v.fs.was_recovered()))?;
    writeln!(out, "{}: {}", source.name(), if dirty { "recovered, the log is clean now" } else { "the log was clean already" })?;
    Ok(())
}

/// Checks a volume without changing it; a dirty log is recovered in memory first. Exit code 0 for sound, 1 for damaged, 2
/// for sound with a dirty log. Shows what there is of each form, too, if asked.
///
/// # Errors
/// The volume cannot be read.
pub fn check(source: &Source, json: bool, forms: bool, out: &mut impl Write) -> Result<ExitCode> {
    let mut seen = source.devices(false)?;
    let (mut dirty, mut finished) = (false, true);
    let mut unrecovered = None;
    match describe_log(&seen, &mut |_, _| {}) {
        Ok(s) if !s.clean => {
            dirty = true;
            // The checker sees what the engine left in memory.
            let o = Options { read_only: true, memory: RECOVERY_BYTES, ..Options::default() };
            match Fs::open(seen.clone(), o).and_then(|fs| Ok((fs.devices(), fs.geometry().v5(), fs.unmount()?))) {
                Ok((recovered, v5, ())) => (seen, finished) = (recovered, v5),
                Err(e) => unrecovered = Some(e),
            }
        }
        Ok(_) => {}
        Err(e) => unrecovered = Some(e),
    }
    // Volumes of version 4 are not written, not even in memory.
    let check = if finished { uxfs_check::check_with_log } else { uxfs_check::check_replayed };
    let mut report = check(&*seen.data, seen.log.as_deref()).with_context(|| format!("cannot check {}", source.name()))?;
    if let Some(e) = unrecovered {
        report.add("log-recovery", "log", None, &format!("cannot be recovered: {e}"));
    }
    if json {
        let rows: Vec<_> = report
            .findings
            .iter()
            .map(|f| {
                serde_json::json!({"code": f.code, "structure": f.structure, "daddr": f.place, "message": f.message, "meaning": f.meaning()})
            })
            .collect();
        let mut all = serde_json::json!({"volume": source.name(), "dirty_log": dirty, "sound": report.is_sound(), "findings": rows});
        if forms {
            let row = |(form, height, number): (Form, u16, u64)| serde_json::json!({"form": form.to_string(), "levels": height, "number": number});
            all["forms"] = report.forms.iter().map(row).collect();
        }
        writeln!(out, "{all:#}")?;
    } else {
        let mut told: Vec<&str> = Vec::new();
        for f in &report.findings {
            writeln!(out, "{f}")?;
            // Once for all findings that mean the same.
            if !told.contains(&f.meaning()) {
                writeln!(out, "    {}", f.meaning())?;
                told.push(f.meaning());
            }
        }
        if report.left_out > 0 {
            writeln!(out, "and {} findings more", report.left_out)?;
        }
        if forms {
            writeln!(out, "{:<32}{:>8}{:>12}", "form", "levels", "number")?;
            for (form, height, number) in report.forms.iter() {
                let height = if height == 0 { "-".into() } else { height.to_string() };
                writeln!(out, "{form:<32}{height:>8}{number:>12}")?;
            }
        }
        if dirty {
            writeln!(out, "{}: the log is dirty; checked as it would be once recovered", source.name())?;
        }
        let state = if report.is_sound() { "sound".into() } else { format!("{} findings", report.findings.len()) };
        writeln!(out, "{}: {state}", source.name())?;
    }
    Ok(match (report.is_sound(), dirty) {
        (false, _) => ExitCode::from(1),
        (true, true) => ExitCode::from(2),
        (true, false) => ExitCode::SUCCESS,
    })
}
