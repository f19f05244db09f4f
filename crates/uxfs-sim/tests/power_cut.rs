//! Workloads are cut in many places; what recovery makes of it is sound and what was promised.

use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use uxfs::{AttrName, CheckpointLimit, Fs, JournalConfig, JournalFlush, Make, Options, SetMode};
use uxfs_check::{Form as On, Forms};
use uxfs_device::timed::{NVME, Timing};
use uxfs_device::{Device, DeviceRef, Memory, Recorder, Trace, WriteFlags};
use uxfs_format::log::BufFormat;
use uxfs_format::superblock::{SB_CRC, Superblock, ro_compat::INOBTCNT};
use uxfs_format::{DiskAddr, Geometry, Kind, Lsn, attr, crc};
use uxfs_journal::{Commit, ItemState, Journal, LogGeometry, LogItem, Push, Regions, find_log_state};
use uxfs_mkfs::Features;
use uxfs_sim::{Data, Findings, Form, Journey, Mix, Op, Plan, Shape, explore, kernel, run};
use uxfs_sync::{BlockingHook, Chance, install_blocking_hook};
use zerocopy::{FromBytes, IntoBytes};

const MIB: u64 = 1 << 20;

fn cut(j: &Journey, plan: &Plan) -> Findings {
    let f = explore(j, plan).unwrap();
    assert!(
        f.damage.is_empty(),
        "{} of {} cuts did damage; the first, after event {}: {}",
        f.damage.len(),
        f.cuts,
        f.damage[0].0,
        f.damage[0].1
    );
    println!(
        "{} cuts, {} recovered images, {} dirty, {} cut again, {} in the life after, {} by the kernel; journal {:?}",
        f.cuts,
        f.images.len(),
        f.dirty,
        f.again,
        f.lives,
        f.kernel,
        j.stats
    );
    f
}

#[test]
fn one_worker_s_names_and_data_survive_any_cut() {
    for seed in 0..4 {
        let mix = Mix { data: 30, sync: 15, churn: seed % 2 == 0, clones: false };
        let j = run(&Shape { workers: 1, ops: 600, mix, newest: seed % 2 == 1, seed, ..Shape::default() }).unwrap();
        let f = cut(&j, &Plan { tear: [512, 4096][seed as usize % 2], lives: 12, kernel: 40, seed, ..Plan::default() });
        assert!(f.images.len() > 10 && f.dirty > 10 && f.lives > 10);
    }
}

/// Blocks are shared, and copied when they are written: what was staged for that is found again after any cut.
#[test]
fn shared_blocks_survive_any_cut() {
    let (mut same, mut exchanged, mut shifted) = (0, 0, 0);
    for seed in [40, 41, 42, 43, 305] {
        let mix = Mix { data: 60, sync: 15, churn: seed == 305, clones: true };
        let j = run(&Shape { workers: 1 + seed as u32 % 3, ops: 400, mix, newest: seed % 4 < 2, seed, ..Shape::default() }).unwrap();
        let shared =
            j.models.iter().flat_map(|m| m.nodes.values()).flat_map(|n| &n.data.events).filter(|e| matches!(e.1, Data::Shared { .. }));
        assert!(shared.count() > 10);
        let done = |what: fn(&Op) -> bool| j.histories.iter().flatten().filter(|op| what(op)).count();
        same += done(|op| matches!(op, Op::Dedupe { .. }));
        exchanged += done(|op| matches!(op, Op::Exchange { .. }));
        shifted += done(|op| matches!(op, Op::Shift { .. }));
        let f = cut(&j, &Plan { tear: [512, 4096][seed as usize % 2], kernel: 40, seed, ..Plan::default() });
        assert!(f.images.len() > 10 && f.dirty > 10);
    }
    assert!(same.min(exchanged).min(shifted) > 20, "{same} dedupes, {exchanged} exchanges, {shifted} shifts");
}

/// Where no free space is in one piece, blocks of directories are not: the kernel recovers what the log has of them, too.
#[test]
fn directory_blocks_in_pieces_survive_any_cut() {
    for (seed, block) in [(3, 4096), (4, 1024)] {
        let mix = Mix { data: 5, sync: 10, churn: true, clones: false };
        let form = Form { block, dir_block: 65_536, ..Form::default() };
        let (size, crowd) = (80_000 * u64::from(block), 1500);
        let shape =
            Shape { size, agcount: 1, workers: 2, ops: 400, mix, newest: seed == 4, form, aged: true, crowd, seed, ..Shape::default() };
        let j = run(&shape).unwrap();
        // The kernel says a page of each piece, which takes its time.
        let f = cut(&j, &Plan { at_flushes: 20, between: 60, kernel: 35, lives: 20, seed, ..Plan::default() });
        assert!(f.forms.highest(On::DirPieces).is_some() && f.kernel > 1, "{:?}, {} by the kernel", f.forms, f.kernel);
    }
}

#[test]
fn workers_at_once_do_not_harm_each_other() {
    let mut in_flight = 0;
    for seed in 10..13 {
        let mix = Mix { data: 20, sync: 15, churn: true, clones: false };
        // Where a flush takes its time, checkpoints meet.
        let timing = (seed == 12).then_some(Timing { flush: 1000, ..NVME });
        let shape =
            Shape { size: 96 * MIB, agcount: 4, workers: 4, ops: 250, mix, newest: seed % 2 == 1, timing, seed, ..Shape::default() };
        let j = run(&shape).unwrap();
        in_flight = in_flight.max(j.stat("in_flight_peak"));
        let f = cut(&j, &Plan { at_flushes: 20, between: 50, kernel: 35, seed, ..Plan::default() });
        assert!(f.images.len() > 10);
    }
    assert!(in_flight >= 2, "never two checkpoints in flight");
}

/// Metadata goes home while the log is full, and is torn on its way. What is home is given up and read again where memory is short.
#[test]
fn a_full_log_survives_any_cut() {
    for seed in 98..101 {
        let mix = Mix { data: 0, sync: 1, churn: true, clones: false };
        let short_of_memory = seed >= 99;
        let j = run(&Shape { ops: 12_000, mix, newest: seed % 2 == 1, short_of_memory, seed, ..Shape::default() }).unwrap();
        assert!(!short_of_memory || j.stat("buffer_reads") > 50, "only {} blocks were read", j.stat("buffer_reads"));
        let used = j.stat("used_peak");
        assert!(used * 2 >= j.log_bytes(), "the log was never half full: {used} of {}", j.log_bytes());
        assert!(j.stat("metadata_writes") > 100, "nothing went home");
        cut(&j, &Plan { at_flushes: 20, between: 40, lives: 20, kernel: 30, seed, ..Plan::default() });
    }
}

/// Each way of flushing that users can choose, with the log inside and on a device with a cache of its own, with few small
/// buffers and with many large ones.
#[test]
fn every_flush_policy_survives_any_cut() {
    for (n, flush) in JournalFlush::ALL.into_iter().filter(|f| f.is_safe()).enumerate() {
        for external in [false, true] {
            let seed = 60 + 2 * n as u64 + u64::from(external);
            let (bufsize, buffers) = if external { (256 << 10, 8) } else { (16 << 10, 2) };
            let journal = JournalConfig { bufsize, buffers, flush, ..JournalConfig::default() };
            let j = run(&Shape { external, journal, newest: n % 2 == 0, seed, ..Shape::default() }).unwrap();
            cut(&j, &Plan { between: 80, kernel: 30, seed, ..Plan::default() });
            // A log that wraps, on a device that is slow to flush: metadata goes home meanwhile.
            let mix = Mix { data: 0, sync: 12, churn: true, clones: false };
            let journal = JournalConfig { bufsize: 16 << 10, ..j.shape.journal.clone() };
            let timing = Some(Timing { flush: 1000, ..NVME });
            let shape = Shape { agcount: 1, workers: 4, ops: 2500, mix, external, journal, timing, seed, ..Shape::default() };
            let j = run(&shape).unwrap();
            assert!(j.stat("wraps") > 0 && j.stat("metadata_writes") > 100);
            cut(&j, &Plan { at_flushes: 20, between: 60, kernel: 40, seed, ..Plan::default() });
        }
    }
}

/// Little memory: workers write back what others write, whoever syncs.
#[test]
fn what_is_written_back_meanwhile_survives_any_cut() {
    // How much they do is left to the scheduler.
    let mut written = 0;
    for seed in 90..100 {
        let mix = Mix { data: 90, sync: 1, churn: false, clones: seed % 2 == 0 };
        let shape = Shape { size: 96 * MIB, agcount: 4, workers: 4, ops: 700, mix, short_of_memory: true, seed, ..Shape::default() };
        let j = run(&shape).unwrap();
        if j.stat("writeback_background_bytes") < 100_000 {
            continue;
        }
        written += j.stat("writeback_background_bytes");
        cut(&j, &Plan { between: 80, kernel: 40, seed, ..Plan::default() });
        if written > 500_000 {
            return;
        }
    }
    panic!("the workers wrote only {written} bytes");
}

/// Hardly any space, in small pieces: much is refused, and leaves nothing behind.
#[test]
fn full_volumes_survive_any_cut() {
    let base: u64 = std::env::var("UXFS_SEED").map_or(400, |s| s.parse().unwrap());
    let many = if std::env::var_os("UXFS_LONG").is_some() { 200 } else { 6 };
    for seed in base..base + many {
        let mix = Mix { data: 55, sync: 8, churn: seed % 3 == 0, clones: seed % 2 == 0 };
        let room = Some((MIB / 2) << (seed % 4));
        let (workers, short_of_memory) = (1 + seed as u32 % 4, seed % 5 == 0);
        let j = run(&Shape { workers, ops: 400, mix, room, newest: seed % 4 < 2, short_of_memory, seed, ..Shape::default() });
        let j = j.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let full: u64 = j.models.iter().map(|m| m.full).sum();
        println!("seed {seed}: {full} operations found no space");
        cut(&j, &Plan { at_flushes: 20, between: 40, lives: 20, kernel: 30, seed, ..Plan::default() });
    }
}

/// What is freed is discarded, and used again after that.
#[test]
fn discards_harm_nothing() {
    for seed in 80..82 {
        let mix = Mix { data: 40, sync: 15, churn: true, clones: seed % 2 == 0 };
        let j = run(&Shape { discard: true, mix, newest: seed % 2 == 0, seed, ..Shape::default() }).unwrap();
        assert!(j.stat("discarded_bytes") > 100_000);
        cut(&j, &Plan { kernel: 40, seed, ..Plan::default() });
    }
}

/// A checkpoint longer than what recovery searches for lost records: its first ones are lost, the last ones are there.
#[test]
fn a_long_checkpoint_that_loses_its_first_records_is_cut_off() {
    let long = |external| Shape {
        size: 300 * MIB,
        log: Some(32 * MIB),
        workers: 4,
        ops: 3000,
        mix: Mix { data: 0, sync: 0, churn: false, clones: false },
        external,
        seed: 4,
        ..Shape::default()
    };
    for external in [false, true] {
        let j = run(&long(external)).unwrap();
        let f = cut(&j, &Plan { at_flushes: 10, between: 30, lives: 5, kernel: 5, ..Plan::default() });
        assert!(f.dirty > 5 && j.stat("blocks") * 512 / j.stat("checkpoints") > 2 * MIB);
    }
}

/// A checkpoint without content is one to the kernel, too.
#[test]
fn the_kernel_recovers_a_checkpoint_without_content() {
    let dev = Arc::new(Memory::new(64 * MIB));
    let sb = uxfs_mkfs::format(&*dev, &uxfs_mkfs::Options::new(64 * MIB, [4; 16])).unwrap();
    let g = Geometry::parse(sb.as_bytes()).unwrap().0;
    let geo = LogGeometry::of(&g);
    let head = find_log_state(&*dev, &geo).unwrap().head;
    let data: DeviceRef = dev.clone();
    let j = Journal::start(data.clone(), data, geo.clone(), JournalConfig::default(), head, head);
    j.say_tail().unwrap();
    j.say_tail().unwrap();
    j.stop();
    let state = find_log_state(&*dev, &geo).unwrap();
    assert!(!state.clean && state.head.block() > head.block());
    let left = kernel::recover(&[dev.fork()], false).unwrap();
    let ours = Fs::open(dev.clone(), Options::default()).unwrap();
    assert!(ours.was_recovered());
    ours.unmount().unwrap();
    for image in [&left[0], &*dev] {
        let r = uxfs_check::check(image).unwrap();
        assert!(r.is_sound(), "{:?}", r.findings);
    }
}

/// The smallest log wraps a hundred times while four threads make, fill and remove files; then everything is sound.
#[test]
fn the_smallest_log_wraps_a_hundred_times() {
    let dev: DeviceRef = Arc::new(Memory::new(64 * MIB));
    let o = uxfs_mkfs::Options { agcount: Some(1), ..uxfs_mkfs::Options::new(64 * MIB, [3; 16]) };
    uxfs_mkfs::format(&*dev, &o).unwrap();
    let fs = Fs::open(dev.clone(), Options { commit: 0, ..Options::default() }).unwrap();
    let file = Make { mode: 0o100_644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 };
    let wraps = || fs.stats().iter().find(|s| s.0 == "wraps").unwrap().1;
    std::thread::scope(|s| {
        for t in 0..4 {
            let (fs, wraps) = (&fs, &wraps);
            s.spawn(move || {
                let d = fs.create(fs.root(), format!("dir{t}").as_bytes(), Make { mode: 0o040_755, ..file }).unwrap().ino;
                for round in 0u64.. {
                    if wraps() >= 100 {
                        return;
                    }
                    for i in 0..200 {
                        let f = fs.create(d, format!("a name that fills directory blocks sooner, {round} {i}").as_bytes(), file).unwrap();
                        fs.set_attr(f.ino, AttrName { namespace: 0, name: b"a" }, &[b'x'; 200], SetMode::Any).unwrap();
                    }
                    fs.sync().unwrap();
                    for i in 0..200 {
                        fs.unlink(d, format!("a name that fills directory blocks sooner, {round} {i}").as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    assert!(wraps() >= 100);
    fs.unmount().unwrap();
    let r = uxfs_check::check(&*dev).unwrap();
    assert!(r.is_sound(), "{:?}", r.findings);
}

/// Cuts a record after each event, with all, none or half of what was not flushed; says what `judge` found damaged.
fn cut_everywhere(trace: &Trace, mut judge: impl FnMut(&Arc<Memory>) -> Result<(), Box<dyn std::error::Error>>) -> Vec<String> {
    let (chance, mut damage) = (Chance::seeded(5), Vec::new());
    for cut in 0..=trace.events.len() {
        for keep in [0, 100, 50, 50] {
            let image = trace.image_at(cut, 512, &mut |_, n| (0..n).map(|_| chance.below(100) < keep).collect()).unwrap();
            damage.extend(judge(&Arc::new(image)).err().map(|e| format!("after event {cut}: {e}")));
        }
    }
    damage
}

/// Opens what a cut left, and looks at it; it is sound when it is closed.
fn opened<T>(image: &Arc<Memory>, look: impl FnOnce(&Fs) -> uxfs::Result<T>) -> Result<T, Box<dyn std::error::Error>> {
    let fs = Fs::open(image.clone(), Options { commit: 0, ..Options::default() })?;
    let seen = look(&fs)?;
    fs.unmount()?;
    let r = uxfs_check::check(&**image)?;
    r.findings.first().map_or(Ok(seen), |f| Err(f.to_string().into()))
}

/// Changes the first superblock as nobody should: where it lies.
fn change_by_hand(dev: &dyn Device, change: impl FnOnce(&mut Superblock)) {
    let mut sector = vec![0; 512];
    dev.read(0, &mut sector).unwrap();
    let (mut sb, _) = Superblock::read_from_prefix(&sector).unwrap();
    change(&mut sb);
    sector[..size_of::<Superblock>()].copy_from_slice(sb.as_bytes());
    crc::stamp(&mut sector, SB_CRC);
    dev.write(0, &sector, WriteFlags::default()).unwrap();
}

/// Grows a volume of two groups of 20 MiB to 50 MiB and cuts it everywhere; says which sizes were seen, and what was damaged.
fn grow_and_cut(journaled: bool) -> (HashSet<u64>, Vec<String>) {
    let base: DeviceRef = Arc::new(Memory::new(50 * MIB));
    let o = uxfs_mkfs::Options { agsize: Some(20 * MIB), features: Features::NEWEST, ..uxfs_mkfs::Options::new(40 * MIB, [7; 16]) };
    uxfs_mkfs::format(&*base, &o).unwrap();
    let fs = Fs::open(base.clone(), Options { commit: 0, ..Options::default() }).unwrap();
    for i in 0..200 {
        let f =
            fs.create(fs.root(), format!("file {i}").as_bytes(), Make { mode: 0o100_644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 }).unwrap();
        fs.write(f.ino, 0, &[i as u8; 9000], false).unwrap();
    }
    let before = fs.geometry().agcount;
    fs.unmount().unwrap();
    let recorder = Arc::new(Recorder::new(base).unwrap());
    let dev: Arc<dyn Device> = recorder.clone();
    let (g, sb) = uxfs::grown_superblock(&dev, 50 * MIB / 4096).unwrap();
    if journaled {
        uxfs_mkfs::add_groups(&*dev, &g, &sb, before).unwrap();
        uxfs::grow(&(&dev).into(), g).unwrap();
    } else {
        // As it would be done without the journal: the superblock and the groups, one after the other.
        change_by_hand(&*dev, |first| {
            first.dblocks = sb.dblocks;
            first.agcount = sb.agcount;
        });
        uxfs_mkfs::add_groups(&*dev, &g, &sb, before).unwrap();
    }
    let mut sizes = HashSet::new();
    let damage = cut_everywhere(&recorder.trace(), |image| {
        let blocks = opened(image, |fs| fs.lookup(fs.root(), b"file 7").map(|_| fs.geometry().dblocks))?;
        sizes.insert(blocks);
        Ok(())
    });
    (sizes, damage)
}

#[test]
fn a_volume_that_grows_has_its_old_size_or_its_new_one() {
    let (sizes, damage) = grow_and_cut(true);
    assert!(damage.is_empty(), "{} damages; {}", damage.len(), damage[0]);
    assert_eq!(sizes, HashSet::from([40 * MIB / 4096, 50 * MIB / 4096]));
    let (_, damage) = grow_and_cut(false);
    assert!(!damage.is_empty());
}

/// Has the blocks of inode trees counted in a volume that lacks that, and cuts it everywhere; says which features were seen, and what
/// was damaged.
fn count_and_cut(first: bool) -> (HashSet<u32>, Vec<String>) {
    let base: DeviceRef = Arc::new(Memory::new(40 * MIB));
    let features = Features { ro_compat: Features::NEWEST.ro_compat & !INOBTCNT, ..Features::NEWEST };
    let o = uxfs_mkfs::Options { agsize: Some(20 * MIB), features, ..uxfs_mkfs::Options::new(40 * MIB, [7; 16]) };
    uxfs_mkfs::format(&*base, &o).unwrap();
    let recorder = Arc::new(Recorder::new(base).unwrap());
    let dev: Arc<dyn Device> = recorder.clone();
    if first {
        uxfs::add_features(&(&dev).into(), 0, INOBTCNT).unwrap();
    } else {
        // The feature before what it says.
        change_by_hand(&*dev, |first| first.features_ro_compat.set(features.ro_compat | INOBTCNT));
    }
    let mut seen = HashSet::new();
    let damage = cut_everywhere(&recorder.trace(), |image| {
        seen.insert(opened(image, |fs| Ok(fs.geometry().ro_compat & INOBTCNT))?);
        Ok(())
    });
    if first {
        // The kernel's recovery, too, of each whole prefix; it takes for granted that blocks are written whole, and leaves copies of the
        // superblock as they are.
        let trace = recorder.trace();
        for cut in 0..=trace.events.len() {
            let image = trace.image_at(cut, 4096, &mut |_, n| vec![true; n]).unwrap();
            let other = kernel::recover(&[image], false).err().filter(|e| !e.contains("would fix ro compat feature mismatch in AG 1"));
            assert_eq!(other, None, "after event {cut}");
        }
    }
    (seen, damage)
}

#[test]
fn a_feature_comes_after_what_it_says() {
    let (seen, damage) = count_and_cut(true);
    assert!(damage.is_empty(), "{} damages; {}", damage.len(), damage[0]);
    assert_eq!(seen.len(), 2);
    let (_, damage) = count_and_cut(false);
    assert!(!damage.is_empty());
}

/// What is left of changes of names when the power goes after the last one, before anything is asked to be durable.
fn left_of_names(wsync: bool) -> Vec<String> {
    let base: DeviceRef = Arc::new(Memory::new(40 * MIB));
    uxfs_mkfs::format(&*base, &uxfs_mkfs::Options::new(40 * MIB, [7; 16])).unwrap();
    let recorder = Arc::new(Recorder::new(base).unwrap());
    let fs = Fs::open(recorder.clone() as DeviceRef, Options { commit: 0, wsync, ..Options::default() }).unwrap();
    let make = |mode| Make { mode, uid: 0, gid: 0, rdev: (0, 0), umask: 0 };
    let root = fs.root();
    let dir = fs.create(root, b"dir", make(0o040_755)).unwrap().ino;
    let file = fs.create(dir, b"first", make(0o100_644)).unwrap().ino;
    fs.link(file, root, b"second").unwrap();
    fs.symlink(root, b"third", b"second", 0, 0).unwrap();
    fs.rename(dir, b"first", root, b"fourth", uxfs::Rename::Replace).unwrap();
    fs.setattr(file, uxfs::SetAttr { mode: Some(0o600), ..Default::default() }).unwrap();
    fs.rmdir(root, b"dir").unwrap();
    fs.unlink(root, b"third").unwrap();
    let trace = recorder.trace();
    let image = trace.image_at(trace.events.len(), 512, &mut |_, n| vec![false; n]).unwrap();
    let fs = Fs::open(Arc::new(image), Options { commit: 0, ..Options::default() }).unwrap();
    let mut found = Vec::new();
    fs.readdir(fs.root(), 0, &mut |e| {
        let name = String::from_utf8(e.name.clone()).unwrap();
        if !name.starts_with('.') {
            found.push(format!("{name} {:o}", fs.stat(e.ino.0).unwrap().mode));
        }
        true
    })
    .unwrap();
    found.sort();
    found
}

#[test]
fn with_wsync_names_are_durable_at_once() {
    assert_eq!(left_of_names(true), ["fourth 100600", "second 100600"]);
    assert_eq!(left_of_names(false), [""; 0]);
}

/// Something in the log that never goes home.
#[derive(Default)]
struct Logged(ItemState);

impl LogItem for Logged {
    fn state(&self) -> &ItemState {
        &self.0
    }
    fn committed(&self, lsn: Lsn, _: &Regions) -> Option<Lsn> {
        Some(lsn)
    }
    fn push(&self) -> Push {
        Push::Nothing
    }
}

/// A log in which an attribute is hidden, as the kernel leaves one in the middle of writing its value, and `behind` images of
/// other blocks. Its recovery is cut everywhere; says what was damaged.
fn hide_and_cut(behind: usize) -> Vec<String> {
    let base: DeviceRef = Arc::new(Memory::new(64 * MIB));
    let g = Geometry::parse(uxfs_mkfs::format(&*base, &uxfs_mkfs::Options::new(64 * MIB, [4; 16])).unwrap().as_bytes()).unwrap().0;
    let fs = Fs::open(base.clone(), Options { commit: 0, ..Options::default() }).unwrap();
    let f = fs.create(fs.root(), b"f", Make { mode: 0o100_644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 }).unwrap().ino;
    for (name, len) in [(b"kept", 3000), (b"lost", 9000)] {
        fs.set_attr(f, AttrName { namespace: 0, name }, &vec![b'x'; len], SetMode::Any).unwrap();
    }
    fs.unmount().unwrap();
    let mut leaf = vec![0; g.blocksize as usize];
    let is_leaf = |at: &u64| base.read(*at, &mut leaf).is_ok() && Kind::sniff(&leaf) == Some(Kind::AttrLeaf);
    let at = (0..64 * MIB).step_by(g.blocksize as usize).find(is_leaf).unwrap();
    let lost = (0..2).find(|i| attr::leaf_entry(&leaf, *i).unwrap().name == b"lost").unwrap();
    leaf[attr::entry_at(lost) + 6] |= attr::flag::INCOMPLETE;

    let geo = LogGeometry::of(&g);
    let state = find_log_state(&*base, &geo).unwrap();
    let journal = Journal::start(base.clone(), base.clone(), geo, JournalConfig::default(), state.head, state.tail);
    let image = |at: u64, kind, bytes: &[u8]| -> (Arc<dyn LogItem>, Regions) {
        let f = BufFormat { flags: 0, kind, bbs: 8, daddr: DiskAddr(at / 512), map: vec![u32::MAX] };
        (Arc::new(Logged::default()), [f.build(2), bytes.to_vec()].into())
    };
    let hides = vec![image(at, Kind::AttrLeaf.log_type(), &leaf)];
    // Of a block that is free.
    let other = || (0..10).map(|_| image(64 * MIB - 4096, 0, &[0; 4096])).collect();
    for items in std::iter::once(hides).chain((0..behind / 10).map(|_| other())) {
        let mut ticket = journal.reserve(100_000, 1).unwrap();
        journal.commit(&mut ticket, Commit { items, ..Commit::default() });
        journal.release(ticket);
        journal.force_all().unwrap();
    }
    journal.fail("a crash");
    journal.stop();
    drop(journal);

    let recorder = Arc::new(Recorder::new(base).unwrap());
    let dev: DeviceRef = recorder.clone();
    drop(Fs::open(dev, Options { commit: 0, ..Options::default() }).unwrap());
    cut_everywhere(&recorder.trace(), |image| {
        let kept = opened(image, |fs| {
            let f = fs.lookup(fs.root(), b"f")?.ino;
            fs.get_attr(f, AttrName { namespace: 0, name: b"kept" })
        })?;
        if kept.len() == 3000 { Ok(()) } else { Err("another value".into()) }
    })
}

/// What is hidden holds the log's tail until it is gone; where more than half of the log lies behind it, it does not.
#[test]
fn hidden_attributes_are_gone_after_any_cut_in_their_recovery() {
    assert_eq!(hide_and_cut(0), Vec::<String>::new());
    let forgotten = hide_and_cut(800);
    assert!(forgotten.iter().any(|d| d.contains("attribute-hidden")), "{forgotten:?}");
}

thread_local! {
    /// What this thread does at each step of what it calls.
    static EACH_STEP: RefCell<Box<dyn Fn()>> = RefCell::new(Box::new(|| {}));
}

struct Steps;

impl BlockingHook for Steps {
    fn enter(&self) {}
    fn leave(&self) {}
    fn step(&self) {
        EACH_STEP.with_borrow(|f| f());
    }
}

/// Removes a file with a tree of attributes in many pieces, with each link of that in a checkpoint of its own, and lets the kernel
/// recover what cuts within leave.
#[test]
fn attributes_of_a_removed_file_are_freed_in_the_kernel_s_recovery_too() {
    install_blocking_hook(Box::new(Steps));
    let base: DeviceRef = Arc::new(Memory::new(64 * MIB));
    uxfs_mkfs::format(&*base, &uxfs_mkfs::Options::new(64 * MIB, [4; 16])).unwrap();
    let open = |dev: DeviceRef| Fs::open(dev, Options { commit: 0, ..Options::default() }).unwrap();
    let fs = open(base.clone());
    let make = |name: &[u8]| fs.create(fs.root(), name, Make { mode: 0o100_644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 }).unwrap().ino;
    let files = [make(b"goes"), make(b"stays")];
    for n in 0..1500 {
        let name = format!("name {n}");
        // A value in blocks of its own now and then.
        let value = vec![b'v'; if n % 50 == 0 { 5000 } else { 200 }];
        files.iter().for_each(|f| fs.set_attr(*f, AttrName { namespace: 0, name: name.as_bytes() }, &value, SetMode::Any).unwrap());
    }
    fs.unmount().unwrap();
    let recorder = Arc::new(Recorder::new(base).unwrap());
    let fs = open(recorder.clone());
    std::thread::scope(|s| {
        let ((step, steps), (synced, syncs)) = (mpsc::channel(), mpsc::channel());
        let fs = &fs;
        s.spawn(move || {
            for () in steps {
                fs.sync().unwrap();
                synced.send(()).unwrap();
            }
        });
        EACH_STEP.set(Box::new(move || {
            step.send(()).unwrap();
            syncs.recv().unwrap();
        }));
        fs.unlink(fs.root(), b"goes").unwrap();
        EACH_STEP.set(Box::new(|| {}));
    });
    drop(fs);
    let trace = recorder.trace();
    let images = trace.flush_ends().into_iter().map(|cut| Arc::new(trace.image_at(cut, 4096, &mut |_, parts| vec![true; parts]).unwrap()));
    let unfinished = |i: &Arc<Memory>| uxfs::describe_log(&(i.clone() as DeviceRef).into(), &mut |_, _| {}).unwrap().unfinished > 0;
    let within: Vec<_> = images.filter(unfinished).collect();
    println!("{} cuts lie within the removal", within.len());
    assert!(within.len() >= 8);
    for image in within.iter().step_by(within.len() / 8) {
        let left = kernel::recover(&[image.fork()], false).unwrap();
        let report = uxfs_check::check(&left[0]).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings[0]);
    }
}

/// A workload of any kind: everything that can be chosen is left to the seed.
fn any_shape(seed: u64) -> Shape {
    let c = Chance::seeded(seed);
    let half = || c.below(2) == 0;
    let journal = JournalConfig {
        bufsize: (16 << 10) << c.below(5),
        buffers: 2 + c.below(7) as usize,
        flush: [JournalFlush::StableTail, JournalFlush::StableTail, JournalFlush::PerCheckpoint, JournalFlush::EveryRecord]
            [c.below(4) as usize],
        limit: CheckpointLimit::ALL[c.below(3) as usize],
        ..JournalConfig::default()
    };
    // Some go on until the log wraps.
    let many = c.below(6) == 0;
    let data = if many { 0 } else { c.below(60) };
    let shape = Shape {
        agcount: if many { 1 } else { 1 + c.below(4) as u32 },
        size: if many { 64 * MIB } else { 96 * MIB },
        workers: if many { 4 } else { 1 + c.below(4) as u32 },
        ops: if many { 2500 } else { 150 + c.below(450) },
        mix: Mix { data, sync: 2 + c.below(30), churn: many || half(), clones: half() },
        newest: half(),
        external: c.below(3) == 0,
        journal,
        discard: half(),
        short_of_memory: half(),
        timing: half().then_some(Timing { flush: 200, ..NVME }),
        // What making one directory sets aside must be there.
        room: (!many && c.below(4) == 0).then(|| ((MIB / 4) << c.below(5)) + 64 * 4096),
        seed,
        ..Shape::default()
    };
    let shape = if half() { shape } else { of_any_form(shape, &c) };
    let shape = if kernel::is_old() { of_old(shape) } else { shape };
    // Trees grow where blocks are small.
    let aged = seed % 3 == 1;
    let form = if aged {
        let block = 1024 << (seed / 6 % 3);
        Form { block, inode: shape.form.inode.min(block / 2), sector: 512, ..shape.form }
    } else {
        shape.form
    };
    // Where a directory of one block becomes one with a leaf, and that one with a tree.
    let crowd = [0, form.dir_block / 24, form.dir_block / 8 - 20][c.below(3) as usize].min(1500);
    Shape { aged, crowd, form, ..shape }
}

/// The same on a volume of blocks, directories, inodes, sectors and stripes of any size.
fn of_any_form(shape: Shape, c: &Chance) -> Shape {
    let block = 1024u32 << c.below(7);
    let least_dir = block.max(4096);
    let form = Form {
        block,
        dir_block: least_dir << c.below(u64::from((65_536 / least_dir).ilog2()) + 1),
        inode: 512 << c.below(u64::from((block / 1024).ilog2().min(2)) + 1),
        sector: if block >= 4096 && c.below(3) == 0 { 4096 } else { 512 },
        stripe: if c.below(3) == 0 { block.max(32 << 10) } else { 0 },
    };
    let large = form.dir_block > 16 << 10;
    // What creating one name in the largest directory sets aside must be there.
    let room = shape.room.map(|r| r * u64::from(block / 4096).max(1) + 32 * u64::from(form.dir_block));
    Shape { size: if large { 640 * MIB } else { 128 * MIB }, room, form, ..shape }
}

/// The same as kernels before 6.12 mount it.
fn of_old(shape: Shape) -> Shape {
    let Form { block, inode, .. } = shape.form;
    let block = block.min(4096);
    Shape { newest: false, form: Form { block, inode: inode.min(block / 2), ..shape.form }, ..shape }
}

/// A workload in which a part of a chunk of inodes lay before the first place where inodes may be, so that the kernel did not mount the volume.
#[test]
fn inodes_lie_where_the_kernel_looks_for_them() {
    let seed = 2_026_126_012;
    let f = cut(&run(&any_shape(seed)).unwrap(), &Plan { at_flushes: 5, between: 10, kernel: 4, seed, ..Plan::default() });
    assert!(f.kernel > 2);
}

/// What the images of random workloads have at least, and how high.
const WANTED: [(On, u16); 25] = [
    (On::Tree("bnobt"), 2),
    (On::Tree("cntbt"), 2),
    (On::Tree("inobt"), 2),
    (On::Tree("finobt"), 2),
    (On::Tree("refcountbt"), 2),
    (On::Tree("rmapbt"), 2),
    (On::DirInline, 0),
    (On::DirBlock, 0),
    (On::DirLeaf, 0),
    (On::DirTree, 2),
    (On::DirExtentTree, 2),
    (On::DirPieces, 0),
    (On::FileExtents, 0),
    (On::FileExtentTree, 2),
    (On::Unwritten, 0),
    (On::Shared, 0),
    (On::LinkInline, 0),
    (On::LinkBlocks, 0),
    (On::AttrInline, 0),
    (On::AttrTree, 2),
    (On::AttrExtentTree, 2),
    (On::AttrValue, 0),
    (On::BigTime, 0),
    (On::WideCounters, 0),
    (On::SparseChunk, 0),
];

/// Random workloads until recovery has led to so many different images, 5 000, or 200 000 with `cargo xtask power-cut --long`, and all kinds
/// of cuts and all forms were among them.
#[test]
fn random_workloads_survive_any_cut() {
    let long = std::env::var_os("UXFS_LONG").is_some();
    let wanted = if long { 200_000 } else { 5000 };
    let seeds = AtomicU64::new(std::env::var("UXFS_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(10_000));
    let seen: Mutex<(HashSet<u64>, [u64; 8], Forms)> = Mutex::default();
    let all_kinds = |[_, _, again, lives, kernel, intents, wraps, checkpoints]: [u64; 8]| {
        again > 100 && lives > 100 && kernel > 10 && intents > 10 && checkpoints > 500 && wraps > 0
    };
    let is_enough = || {
        let (images, sums, forms) = &*seen.lock();
        images.len() >= wanted && (all_kinds(*sums) && forms.missing(&WANTED).is_empty() || images.len() >= 4 * wanted)
    };
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !is_enough() {
                    let seed = seeds.fetch_add(1, Ordering::Relaxed);
                    let j = run(&any_shape(seed)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                    let tear = [512, 4096][seed as usize % 2];
                    let plan = Plan { at_flushes: 40, between: 160, tear, again: 8, lives: 50, kernel: 30, seed };
                    let f = explore(&j, &plan).unwrap();
                    assert!(
                        f.damage.is_empty(),
                        "seed {seed}: {} of {} cuts; after event {}: {}",
                        f.damage.len(),
                        f.cuts,
                        f.damage[0].0,
                        f.damage[0].1
                    );
                    let mut all = seen.lock();
                    let before = all.0.len();
                    all.0.extend(&f.images);
                    all.2.add(&f.forms);
                    if long && all.0.len() / 5000 > before / 5000 {
                        println!("{} of {wanted} images", all.0.len());
                    }
                    let more = [f.cuts, f.dirty, f.again, f.lives, f.kernel, f.intents]
                        .map(|n| n as u64)
                        .into_iter()
                        .chain(["wraps", "checkpoints"].map(|n| j.stat(n)));
                    all.1.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
                }
            });
        }
    });
    let (images, sums, forms) = seen.into_inner();
    let [cuts, dirty, again, lives, kernel, intents, wraps, checkpoints] = sums;
    println!(
        "{cuts} cuts, {} recovered images, {dirty} dirty, {again} cut again, {lives} in the life after, {kernel} by the kernel, {intents} of them with intents; {checkpoints} checkpoints, {wraps} wraps",
        images.len()
    );
    forms.iter().for_each(|(form, height, number)| println!("{form} {height}: {number}"));
    assert!(all_kinds(sums));
    assert_eq!(forms.missing(&WANTED), []);
}
