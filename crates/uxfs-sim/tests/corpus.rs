//! What the fuzzers begin with and what they found, and bytes near it: all of it returns.

use std::path::Path;
use std::time::{Duration, Instant};
use uxfs_sim::fuzz::run;
use uxfs_sync::Chance;

/// Changed inputs for each file of the corpus.
const NEAR: u64 = 6;
/// One input is done within this.
const LONGEST: Duration = Duration::from_secs(20);

#[test]
fn the_corpus_of_the_fuzzers_and_bytes_near_it_return() {
    let top = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"));
    let long = std::env::var_os("UXFS_LONG").is_some();
    for target in ["blocks", "replay", "operations"] {
        let mut files: Vec<_> = std::fs::read_dir(top.join(target)).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 5, "{target}: {} files", files.len());
        for (i, path) in files.iter().enumerate() {
            let first = std::fs::read(path).unwrap();
            for near in 0..=if long { 50 * NEAR } else { NEAR } {
                let mut data = first.clone();
                let chance = Chance::seeded(i as u64 * 1000 + near);
                for _ in 0..near {
                    // The first two bytes say what kind of input it is; in operations the second, whether the volume is sound.
                    let at = 2 + chance.below(data.len().saturating_sub(2).max(1) as u64) as usize;
                    if let Some(b) = data.get_mut(at) {
                        *b = [0, 0xff, chance.next_u64() as u8][chance.below(3) as usize];
                    }
                }
                let began = Instant::now();
                assert!(run(target, &data));
                assert!(began.elapsed() < LONGEST, "{} near {near}", path.display());
            }
        }
    }
}
