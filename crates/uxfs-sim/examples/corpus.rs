//! Writes the first inputs of the fuzzers into `fuzz/corpus`.

fn main() -> std::io::Result<()> {
    let top = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"));
    for (i, (target, bytes)) in uxfs_sim::fuzz::seeds().into_iter().enumerate() {
        let dir = top.join(target);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(format!("seed-{i:03}")), bytes)?;
    }
    Ok(())
}
