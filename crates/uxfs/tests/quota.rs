//! Logs with quota records, as kernels with quota leave them. Where tests run the kernel may have none: one such volume is kept here, and
//! records are logged by hand.

mod common;

use common::*;
use std::sync::Arc;
use uxfs::IoMode;
use uxfs_format::bytes::{put16, put32, put64};
use uxfs_format::log::{BufFormat, item};
use uxfs_format::{DiskAddr, Geometry, Lsn, crc, quota};
use uxfs_journal::{Commit, ItemState, Journal, JournalConfig, LogGeometry, LogItem, Push, Regions, find_log_state};

/// Something that is in the log and never goes home.
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

/// The record of user `id` with a limit of blocks.
fn record(id: u32, limit: u64, g: &Geometry) -> Vec<u8> {
    let mut r = vec![0; quota::RECORD];
    put16(&mut r, 0, quota::MAGIC);
    (r[2], r[3]) = (1, 1);
    put32(&mut r, 4, id);
    put64(&mut r, 8, limit);
    r[quota::UUID..].copy_from_slice(&g.meta_uuid);
    crc::stamp(&mut r, quota::CRC);
    r
}

fn buffer(at: DiskAddr, bytes: Vec<u8>) -> Regions {
    // Quota records of users: a flag, and the type of the buffer.
    let f = BufFormat { flags: 4, kind: 1, bbs: 8, daddr: at, map: vec![u32::MAX] };
    [f.build(2), bytes].into()
}

fn change(at: DiskAddr, id: u32, body: &[u8]) -> Regions {
    let mut f = Vec::new();
    f.extend(item::DQUOT.to_le_bytes());
    f.extend(2u16.to_le_bytes());
    f.extend(id.to_le_bytes());
    f.extend(at.0.to_le_bytes());
    f.extend(1u32.to_le_bytes());
    f.extend((id * quota::RECORD as u32).to_le_bytes());
    [f, body[..quota::BODY].to_vec()].into()
}

#[test]
fn quota_records_are_recovered() {
    let img = Image::new("quota", 64 << 20);
    let fs = img.open();
    let g = fs.geometry().clone();
    let f = fs.create(fs.root(), b"records", file(0o600)).unwrap().ino;
    // What was there before looks like a block of another kind, with a later position.
    let mut before = vec![0; 4096];
    put32(&mut before, 8, 0x3bee_0000);
    fs.write_with(f, 0, &before, false, IoMode::Direct).unwrap();
    let at = DiskAddr(fs.extents(f).unwrap()[0].start / 512);
    fs.unmount().unwrap();

    let dev = img.device();
    let geo = LogGeometry::of(&g);
    let state = find_log_state(&*dev, &geo).unwrap();
    let journal = Journal::start(dev.clone(), dev.clone(), geo, JournalConfig::default(), state.head, state.tail);
    let whole: Vec<u8> = (0..30).flat_map(|id| record(id, 0, &g)).chain(vec![0; 4096 - 30 * quota::RECORD]).collect();
    for regions in
        [buffer(at, whole), change(at, 7, &record(7, 700, &g)), change(at, 9, &record(9, 100, &g)), change(at, 9, &record(9, 900, &g))]
    {
        let mut ticket = journal.reserve(100_000, 1).unwrap();
        journal.commit(&mut ticket, Commit { items: vec![(Arc::new(Logged::default()), regions)], ..Commit::default() });
        journal.release(ticket);
        journal.force_all().unwrap();
    }
    journal.fail("a crash");
    journal.stop();
    drop((journal, dev));

    // Others read the log so, too; a kernel without quota passes records over.
    let said = run("xfs_logprint", &["-t", img.path.to_str().unwrap()]);
    assert!(said.status.success(), "{said:?}");
    drop(img.copy("quota-kernel").kernel_mount());

    let fs = img.open();
    assert!(fs.was_recovered());
    let mut block = vec![0; 4096];
    fs.read(f, 0, &mut block).unwrap();
    for (id, r) in block.chunks_exact(quota::RECORD).enumerate() {
        let limit = match id {
            7 => 700,
            9 => 900,
            _ => 0,
        };
        assert_eq!(r, record(id as u32, limit, &g), "record {id}");
    }
    fs.unmount().unwrap();
    img.repair_is_silent();
}

/// Users, groups and projects 1, 7 and 40 have limits, with a file each; then a file went, a limit changed, and Linux 7.2 was cut off.
#[test]
fn quota_records_of_the_kernel_are_recovered() {
    let img = Image::kept("quota-linux", "quota-7.2.gz");
    let limit = |whose: &str, field: &str| {
        let said =
            run("xfs_db", &["-r", "-c", &format!("dquot {whose}"), "-c", &format!("print diskdq.{field}"), img.path.to_str().unwrap()]);
        String::from_utf8(said.stdout).unwrap().trim().to_string()
    };
    // What lies there is not what the log says.
    assert_ne!(limit("-u 40", "blk_softlimit"), "diskdq.blk_softlimit = 3072");

    let fs = img.open();
    assert!(fs.was_recovered());
    fs.unmount().unwrap();
    for (whose, field, value) in [
        ("-u 40", "blk_softlimit", 3 << 10),
        ("-u 40", "blk_hardlimit", 240 << 10),
        ("-u 7", "ino_hardlimit", 70_000),
        ("-u 7", "icount", 0),
        ("-u 40", "icount", 1),
        ("-g 7", "blk_hardlimit", 37 << 10),
        ("-p 40", "blk_hardlimit", 140 << 10),
        ("-p 40", "blk_softlimit", 1 << 10),
    ] {
        assert_eq!(limit(whose, field), format!("diskdq.{field} = {value}"), "{whose}");
    }
    img.repair_is_silent();
}
