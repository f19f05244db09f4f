use std::sync::Arc;
use uxfs::*;
use uxfs_device::*;
fn main() {
    let dev: DeviceRef = Arc::new(Memory::new(1 << 30));
    uxfs_mkfs::format(&dev, &uxfs_mkfs::Options::new(1 << 30, [1; 16])).unwrap();
    let v = Fs::open(dev, Options::default()).unwrap();
    let ino = v.create(v.root(), b"file", Make { mode: 0o100644, uid: 0, gid: 0, rdev: (0, 0), umask: 0 }).unwrap().ino;
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    for at in (0..n).step_by(1 << 20) {
        v.write(ino, at, &vec![1; 1 << 20], false).unwrap();
    }
    v.fsync(ino).unwrap();
    let c = uxfs_sync::Chance::seeded(1);
    let mut buf = vec![0; 4096];
    for at in (0..n).step_by(4096) {
        v.read(ino, at, &mut buf).unwrap();
    }
    let b = std::time::Instant::now();
    for _ in 0..5_000_000u64 {
        v.read(ino, c.below(n / 4096) * 4096, &mut buf).unwrap();
    }
    println!("{} ns", b.elapsed().as_nanos() / 5_000_000);
}
