//! Reads the layer tables of ARCHITECTURE.md and refuses an edge that they do not declare.

use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::path::Path;

/// Rows `| crate | imports |` under the heading that begins with `title`.
fn table(text: &str, title: &str) -> HashMap<String, Vec<String>> {
    let from = text.find(title).unwrap_or(text.len());
    let section = &text[from..];
    let end = section[title.len().min(section.len())..].find("\n## ").map_or(section.len(), |i| i + title.len());
    let row = |l: &str| {
        let c: Vec<&str> = l.trim_matches('|').split('|').map(str::trim).collect();
        (c.len() >= 2).then(|| (c[0].trim_matches('`').to_string(), c[1].split_whitespace().map(str::to_string).collect()))
    };
    section[..end].lines().filter(|l| l.starts_with("| `")).filter_map(row).collect()
}

fn crate_edges(allowed: &HashMap<String, Vec<String>>, faults: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir("crates")? {
        let dir = entry?.path();
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let manifest = std::fs::read_to_string(dir.join("Cargo.toml"))?;
        let Some(ok) = allowed.get(&name) else {
            faults.push(format!("{name}: not in ARCHITECTURE.md's table of crates"));
            continue;
        };
        let deps = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for line in deps.lines().filter(|l| l.starts_with("uxfs")) {
            let dep = line.split_whitespace().next().unwrap_or_default();
            if !ok.iter().any(|o| o == dep) {
                faults.push(format!("{name} imports {dep}: not declared in ARCHITECTURE.md"));
            }
        }
    }
    Ok(())
}

/// Every `.rs` file of a room, which is a file or a folder of that name.
fn room_sources(room: &str) -> Vec<String> {
    let base = Path::new("crates/uxfs/src");
    let mut out: Vec<String> = std::fs::read_to_string(base.join(format!("{room}.rs"))).into_iter().collect();
    if let Ok(d) = std::fs::read_dir(base.join(room)) {
        out.extend(d.flatten().filter_map(|e| std::fs::read_to_string(e.path()).ok()));
    }
    out
}

fn room_edges(order: &[String], faults: &mut Vec<String>) {
    for (i, room) in order.iter().enumerate() {
        for source in room_sources(room) {
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            for later in &order[i + 1..] {
                if code.contains(&format!("crate::{later}::")) || code.contains(&format!("use crate::{later};")) {
                    faults.push(format!("room {room} names room {later}, which stands below it in ARCHITECTURE.md's list"));
                }
            }
        }
    }
}

/// Checks crates and rooms.
pub(crate) fn run() -> Result<()> {
    let text = std::fs::read_to_string("ARCHITECTURE.md").context("ARCHITECTURE.md")?;
    let mut faults = Vec::new();
    crate_edges(&table(&text, "## Crates"), &mut faults)?;
    let rooms: Vec<String> = text
        .lines()
        .skip_while(|l| !l.starts_with("## Rooms"))
        .filter(|l| l.starts_with("| `"))
        .filter_map(|l| l.split('`').nth(1).map(str::to_string))
        .collect();
    room_edges(&rooms, &mut faults);
    if faults.is_empty() {
        println!("tidy: {} rooms, no undeclared edge", rooms.len());
        return Ok(());
    }
    bail!("{}", faults.join("\n"))
}
