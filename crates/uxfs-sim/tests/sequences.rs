//! Short sequences of operations with points of durability between them, each cut in many places: what such a sequence may do wrong
//! after a power cut, most file systems once did. (In the manner of CrashMonkey and ACE.)

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use uxfs_sim::{Made, Mix, Op, Plan, Shape, explore, replay, run};
use uxfs_sync::Chance;

const TOP: u32 = 1;
/// Files and directories that are there, and durable, before.
const A: u32 = 10;
const B: u32 = 11;
const DIR: u32 = 12;
const C: u32 = 13;

fn name(s: &str) -> String {
    s.into()
}

fn setup() -> Vec<Op> {
    let file = |dir, id, n: &str| Op::Make { dir, id, name: name(n), what: Made::File };
    vec![
        file(TOP, A, "a"),
        Op::Write { id: A, at: 0, len: 10_000, fill: 1 },
        file(TOP, B, "b"),
        Op::Write { id: B, at: 0, len: 5000, fill: 2 },
        Op::Make { dir: TOP, id: DIR, name: name("dir"), what: Made::Dir },
        file(DIR, C, "c"),
        Op::Sync,
    ]
}

/// What a sequence is made of; `n` tells the names of its parts apart.
fn choices(n: u32) -> Vec<Op> {
    let rename =
        |from: (u32, &str), to: (u32, &str), exchange| Op::Rename { from: (from.0, name(from.1)), to: (to.0, name(to.1)), exchange };
    vec![
        Op::Make { dir: TOP, id: 20 + n, name: name("new"), what: Made::File },
        Op::Make { dir: DIR, id: 30 + n, name: name("new"), what: Made::Dir },
        Op::Make { dir: DIR, id: 40 + n, name: format!("link{n}"), what: Made::Link("x".repeat(300)) },
        Op::Link { id: A, dir: DIR, name: format!("other{n}") },
        Op::Remove { dir: TOP, name: name("a") },
        Op::Remove { dir: DIR, name: name("c") },
        rename((TOP, "a"), (DIR, "c"), false),
        rename((TOP, "a"), (TOP, "b"), false),
        rename((TOP, "a"), (TOP, "b"), true),
        rename((TOP, "b"), (DIR, "b"), false),
        rename((TOP, "dir"), (TOP, "moved"), false),
        Op::Write { id: A, at: 10_000, len: 7000, fill: 5 + n as u8 },
        Op::Write { id: A, at: 2000, len: 9000, fill: 8 + n as u8 },
        Op::Truncate { id: A, size: 3000 },
        Op::Truncate { id: B, size: 50_000 },
        Op::Zero { id: A, at: 1000, len: 6000, hole: true },
        Op::Zero { id: A, at: 4096, len: 4096, hole: false },
        Op::Reserve { id: B, at: 5000, len: 40_000 },
        Op::Clone { from: A, to: B, at: 0, len: 4096 },
        // Where they are the same: behind the clone.
        Op::Dedupe { from: (B, 0), to: (A, 0), len: 4096 },
        Op::Exchange { places: [(A, 0), (B, 0)], len: Some(4096) },
        Op::Exchange { places: [(A, 4096), (B, 0)], len: None },
        Op::Shift { id: A, at: 4096, len: 4096, out: true },
        Op::Shift { id: A, at: 0, len: 4096, out: false },
        Op::SetAttr { id: A, name: name("n"), len: 3000 },
        Op::Chmod { id: B, mode: 0o600 },
    ]
}

/// What makes durable after each operation.
fn points() -> [Option<Op>; 4] {
    [None, Some(Op::Fsync { id: A }), Some(Op::Fsync { id: B }), Some(Op::Sync)]
}

/// Sequence number `n` of those of `len` operations.
fn sequence(len: u32, mut n: usize) -> Vec<Op> {
    let mut ops = setup();
    for i in 0..len {
        let c = choices(i);
        let p = points();
        ops.push(c[n % c.len()].clone());
        n /= c.len();
        ops.extend(p[n % p.len()].clone());
        n /= p.len();
    }
    // Else nothing of what no point made durable would be on its way at any cut.
    ops.push(Op::Sync);
    ops
}

fn shape() -> Shape {
    Shape { workers: 1, newest: true, ..Shape::default() }
}

/// All sequences of one operation, some of two and three; with `UXFS_LONG` all of two and many of three.
#[test]
fn short_sequences_survive_any_cut() {
    let kinds = choices(0).len() * points().len();
    let long = std::env::var_os("UXFS_LONG").is_some();
    let (two, three) = if long { (kinds * kinds, 10_000) } else { (200, 200) };
    let chance = Chance::seeded(11);
    let mut all: Vec<Vec<Op>> = (0..kinds).map(|n| sequence(1, n)).collect();
    match long {
        true => all.extend((0..two).map(|n| sequence(2, n))),
        false => all.extend((0..two).map(|_| sequence(2, chance.below((kinds * kinds) as u64) as usize))),
    }
    all.extend((0..three).map(|_| sequence(3, chance.below((kinds * kinds * kinds) as u64) as usize)));
    let (next, images) = (AtomicUsize::new(0), Mutex::new(std::collections::HashSet::new()));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some(ops) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let j = replay(&shape(), ops).unwrap_or_else(|e| panic!("{ops:?}: {e}"));
                    let plan = Plan { at_flushes: 6, between: 12, again: 6, seed: ops.len() as u64, ..Plan::default() };
                    let f = explore(&j, &plan).unwrap();
                    assert!(f.damage.is_empty(), "{ops:?}: after event {}: {}", f.damage[0].0, f.damage[0].1);
                    images.lock().unwrap().extend(f.images);
                }
            });
        }
    });
    let images = images.into_inner().unwrap().len();
    println!("{} sequences, {images} recovered images", all.len());
    // Of so many sequences, many lead to the same images.
    assert!(images > if long { all.len() / 2 } else { all.len() });
}

/// The record of one worker's history is the same each time, from its seed and from its operations.
#[test]
fn one_worker_s_history_is_the_same_each_time() {
    for seed in 0..4 {
        let mix = Mix { data: 40, sync: 20, churn: true, clones: true };
        let shape = Shape { workers: 1, ops: 200, mix, newest: seed % 2 == 0, seed, ..Shape::default() };
        let (a, b) = (run(&shape).unwrap(), run(&shape).unwrap());
        let c = replay(&shape, &a.histories[0]).unwrap();
        assert!(a.trace.events.len() > 300 && a.histories[0].len() > 100);
        for other in [b, c] {
            assert_eq!(a.histories, other.histories);
            assert_eq!(a.trace.events.len(), other.trace.events.len());
            let first = a.trace.events.iter().zip(&other.trace.events).position(|(x, y)| x != y);
            assert_eq!(first, None, "seed {seed}");
        }
    }
}
