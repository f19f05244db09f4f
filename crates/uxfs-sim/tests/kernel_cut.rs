//! The kernel's XFS works, and is cut like ours: what it leaves is recovered by us, and by itself.

use std::sync::Mutex;
use uxfs::JournalConfig;
use uxfs_device::timed::{NVME, Timing};
use uxfs_sim::{Form, Mix, Plan, Shape, explore, kernel};

const MIB: u64 = 1 << 20;

/// One mount at a time.
static ONE: Mutex<()> = Mutex::new(());

fn long() -> bool {
    std::env::var_os("UXFS_LONG").is_some()
}

/// Every image must be recovered by us; the kernel's own refusals are counted and told. Returns how many were dirty.
fn cut(name: &str, shape: &Shape, plan: &Plan) -> usize {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let j = kernel::run(shape).unwrap();
    let f = explore(&j, plan).unwrap();
    println!(
        "{name}: {} events, {} flushes; {} cuts, {} images, {} dirty, {} in the life after; {} by the kernel, of which it refused {}: {:?}",
        j.trace.events.len(),
        j.trace.flush_ends().len(),
        f.cuts,
        f.images.len(),
        f.dirty,
        f.lives,
        f.kernel,
        f.refused.len(),
        f.refused.first()
    );
    for (ours, own) in &f.lost {
        let line = |s: &str| s.lines().next().unwrap_or_default().to_string();
        println!("{name}: lost by the kernel: {}; by uxfs: {}", line(own), line(ours));
    }
    assert!(f.damage.is_empty(), "{name}: {} of {} cuts; after event {}: {}", f.damage.len(), f.cuts, f.damage[0].0, f.damage[0].1);
    assert!(f.images.len() > 3 && (f.kernel > 1 || plan.kernel == 0));
    f.dirty
}

fn plan(seed: u64) -> Plan {
    let (at_flushes, between) = if long() { (60, 120) } else { (15, 35) };
    Plan { at_flushes, between, tear: [512, 4096][seed as usize % 2], again: 8, lives: 10, kernel: 10, seed }
}

#[test]
fn what_the_kernel_leaves_after_any_cut_is_recovered() {
    for seed in 0..if long() { 10 } else { 2 } {
        let mix = Mix { data: 40, sync: 15, churn: true, clones: false };
        let journal = JournalConfig { bufsize: [32, 256][seed as usize % 2] << 10, ..JournalConfig::default() };
        let external = seed % 4 > 1;
        let shape = Shape { workers: 3, ops: 300, mix, newest: seed % 2 == 1, external, journal, seed, ..Shape::default() };
        assert!(cut("names and data", &shape, &plan(seed)) > 3);
    }
}

/// Blocks that the kernel shares, exchanges between files and moves in them.
#[test]
fn what_the_kernel_shares_and_moves_is_recovered_after_any_cut() {
    for seed in 10..if long() { 20 } else { 12 } {
        let mix = Mix { data: 60, sync: 15, churn: true, clones: true };
        let shape = Shape { workers: 3, ops: 300, mix, newest: true, seed, ..Shape::default() };
        assert!(cut("shared blocks", &shape, &plan(seed)) > 3);
    }
}

/// Blocks smaller and larger than pages, large directories and inodes, records rounded to stripes.
#[test]
fn what_the_kernel_leaves_on_volumes_of_other_forms_is_recovered() {
    let form = |block, dir_block, inode, stripe| Form { block, dir_block, inode, sector: 512, stripe };
    let forms =
        [form(1024, 4096, 512, 0), form(2048, 16_384, 1024, 32 << 10), form(16_384, 16_384, 2048, 0), form(65_536, 65_536, 512, 65_536)];
    for (seed, form) in (60..).zip(forms) {
        let mix = Mix { data: 40, sync: 15, churn: true, clones: true };
        let size = if form.block > 4096 { 640 } else { 128 } * MIB;
        let journal = JournalConfig { bufsize: 64 << 10, ..JournalConfig::default() };
        let shape = Shape { size, workers: 3, ops: 200, mix, newest: seed % 2 == 1, form, journal, seed, ..Shape::default() };
        assert!(cut("other forms", &shape, &plan(seed)) > 3);
    }
}

#[test]
fn the_kernel_s_external_log_is_recovered() {
    assert!(cut("external log", &Shape { external: true, seed: 20, ..Shape::default() }, &plan(20)) > 3);
}

/// Blocks of directories that do not lie in one piece: the kernel logs the pieces and not the checksum of the whole, and does not recover
/// them itself. It is not asked to: Linux 6.18 keeps the loop devices of volumes that it refused so.
#[test]
fn directory_blocks_of_the_kernel_in_pieces_are_recovered() {
    for (seed, block) in [(3, 4096), (4, 1024)] {
        let mix = Mix { data: 5, sync: 10, churn: true, clones: false };
        let form = Form { block, dir_block: 65_536, ..Form::default() };
        let (size, crowd) = (80_000 * u64::from(block), 1500);
        let shape = Shape { size, agcount: 1, workers: 2, ops: 400, mix, form, aged: true, crowd, seed, ..Shape::default() };
        assert!(cut("directories in pieces", &shape, &Plan { kernel: 0, ..plan(seed) }) > 3);
    }
}

/// Checkpoints longer than 2 MiB: the kernel does not recover all of these itself.
#[test]
fn long_checkpoints_of_the_kernel_are_recovered() {
    // The kernel decides when it writes its log: most cuts may lie before.
    let mut dirty = 0;
    for seed in 30..40 {
        let mix = Mix { data: 0, sync: 0, churn: false, clones: false };
        let shape = Shape { size: 300 * MIB, log: Some(32 * MIB), workers: 4, ops: 3000, mix, seed, ..Shape::default() };
        dirty += cut("long checkpoint", &shape, &Plan { at_flushes: 6, between: 26, kernel: 2, lives: 8, ..plan(seed) });
        if dirty > 3 && !long() {
            return;
        }
    }
    assert!(dirty > 3);
}

/// A log that wraps, on a device that is slow to flush: where the windows of the order of flushes and tails would show.
#[test]
fn the_kernel_s_log_that_wraps_is_recovered() {
    for seed in 40..if long() { 50 } else { 41 } {
        let mix = Mix { data: 0, sync: 6, churn: true, clones: false };
        let timing = Some(Timing { flush: 2000, ..NVME });
        let shape = Shape {
            agcount: 1,
            workers: [4, 16][seed as usize % 2],
            ops: if long() { 3000 } else { 1200 },
            mix,
            timing,
            seed,
            ..Shape::default()
        };
        assert!(cut("wrapping log", &shape, &plan(seed)) > 3);
    }
}
