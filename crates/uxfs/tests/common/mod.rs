//! Images, the kernel's mount of one, and the oracles.

#![expect(dead_code, reason = "each test file uses a part")]

pub mod counting;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use uxfs::{Fs, Make, Options};
use uxfs_check::Forms;
use uxfs_device::{Device, DeviceRef, FileDevice, Memory, OpenMode, save};
use uxfs_mkfs::Features;

/// A new regular file of root's.
pub fn file(mode: u16) -> Make {
    Make { mode: 0o100000 | mode, uid: 0, gid: 0, rdev: (0, 0), umask: 0 }
}

/// A new directory of root's.
pub fn dir(mode: u16) -> Make {
    Make { mode: 0o040000 | mode, uid: 0, gid: 0, rdev: (0, 0), umask: 0 }
}

/// One of 1024 names that all have the same hash: its bytes go in by 7 bits, so a bit of one and the next byte's highest weigh the same.
pub fn colliding(n: u64) -> Vec<u8> {
    let mut name = b"abcdefghijklmnopqrst".to_vec();
    for bit in (0..10).filter(|b| n >> b & 1 != 0) {
        name[2 * bit] ^= 1;
        name[2 * bit + 1] ^= 0x80;
    }
    assert_eq!(uxfs_format::hash::name_hash(&name), uxfs_format::hash::name_hash(b"abcdefghijklmnopqrst"));
    name
}

/// What tests that live by chance try: few seeds, or many in the long mode, from `UXFS_SEED` on.
pub fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    let base: u64 = std::env::var("UXFS_SEED").map_or(1, |s| s.parse().unwrap());
    base..base + if std::env::var_os("UXFS_LONG").is_some() { many } else { few }
}

/// A new volume in memory.
pub fn in_memory(size: u64, block: u32, groups: u32, features: Features) -> Arc<Memory> {
    let dev = Arc::new(Memory::new(size));
    let o = uxfs_mkfs::Options { block, agcount: Some(groups), features, ..uxfs_mkfs::Options::new(size, [5; 16]) };
    uxfs_mkfs::format(&*dev, &o).unwrap();
    dev
}

/// A volume in memory.
pub fn open_memory(dev: &Arc<Memory>, metadata: Option<usize>) -> Fs {
    Fs::open(dev.clone() as DeviceRef, Options { commit: 0, metadata, ..Options::default() }).unwrap()
}

/// The end of one: as in a crash, or by an unmount that leaves it sound.
pub fn end_life(fs: Fs, dev: &Memory, crash: bool, what: &str) {
    try_end_life(fs, dev, crash).unwrap_or_else(|e| panic!("{what}: {e}"));
}

/// The same; says what is wrong, or what forms the checker saw.
pub fn try_end_life(fs: Fs, dev: &Memory, crash: bool) -> Result<Forms, String> {
    if crash {
        return fs.shut_down().map(|()| Forms::default()).map_err(|e| e.to_string());
    }
    fs.unmount().map_err(|e| e.to_string())?;
    let r = uxfs_check::check(dev).map_err(|e| e.to_string())?;
    if r.is_sound() { Ok(r.forms) } else { Err(format!("{:?}", r.findings)) }
}

/// Runs an oracle; a missing one fails the test.
pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}; install it with: cargo xtask tools"))
}

/// A program of the newest xfsprogs, which stands beside the machine's own.
pub fn newest(program: &str) -> String {
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or_else(|_| std::env::var("HOME").unwrap() + "/.cache");
    format!("{cache}/uxfs/xfsprogs/bin/{program}")
}

fn text(o: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr))
}

/// An image in a folder of its own, removed at the end.
pub struct Image {
    dir: PathBuf,
    pub path: PathBuf,
}

impl Image {
    fn empty(name: &str) -> Image {
        let dir = std::env::temp_dir().join(format!("uxfs-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Image { path: dir.join("volume.img"), dir }
    }

    /// A volume that another kernel left, out of `tests/logs`.
    pub fn kept(name: &str, packed: &str) -> Image {
        let i = Self::empty(name);
        let o = run("gzip", &["-dc", &format!("{}/tests/logs/{packed}", env!("CARGO_MANIFEST_DIR"))]);
        assert!(o.status.success(), "{packed}: {}", text(&o));
        std::fs::write(&i.path, o.stdout).unwrap();
        i
    }

    /// A volume made by us.
    pub fn new(name: &str, size: u64) -> Image {
        let i = Self::empty(name);
        let dev = FileDevice::create(&i.path, Some(size)).unwrap();
        let o = uxfs_mkfs::Options::new(size, uxfs_mkfs::UuidGenerator::random().unwrap());
        uxfs_mkfs::format(&dev, &o).unwrap();
        i
    }

    /// A volume made by Debian's mkfs.xfs.
    pub fn theirs(name: &str, size: u64, args: &[&str]) -> Image {
        Self::made_by("mkfs.xfs", name, size, args)
    }

    /// A volume made by a program that is called as mkfs.xfs is.
    pub fn made_by(program: &str, name: &str, size: u64, args: &[&str]) -> Image {
        let i = Self::empty(name);
        std::fs::File::create(&i.path).unwrap().set_len(size).unwrap();
        let mut all = args.to_vec();
        all.push(i.path.to_str().unwrap());
        let o = run(program, &all);
        assert!(o.status.success(), "{}", text(&o));
        i
    }

    /// What a device holds.
    pub fn of(name: &str, dev: &dyn Device) -> Image {
        let i = Self::empty(name);
        save(dev, &i.path).unwrap();
        i
    }

    /// A copy of its bytes.
    pub fn copy(&self, name: &str) -> Image {
        let i = Self::empty(name);
        let o = run("cp", &["--sparse=always", self.path.to_str().unwrap(), i.path.to_str().unwrap()]);
        assert!(o.status.success(), "{}", text(&o));
        i
    }

    pub fn device(&self) -> Arc<dyn Device> {
        // The loop device of a mount goes a moment after it, if somebody looks at it just then.
        for _ in 0..100 {
            match FileDevice::open(&self.path, OpenMode::ReadWrite) {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(std::time::Duration::from_millis(50)),
                r => return Arc::new(r.unwrap()),
            }
        }
        panic!("{} stays in use", self.path.display())
    }

    pub fn open(&self) -> Fs {
        self.open_with(Options::default())
    }

    pub fn open_with(&self, o: Options) -> Fs {
        Fs::open(self.device(), o).unwrap()
    }

    pub fn open_read_only(&self) -> Fs {
        let dev = Arc::new(FileDevice::open(&self.path, OpenMode::ReadOnly).unwrap());
        Fs::open(dev, Options { read_only: true, ..Options::default() }).unwrap()
    }

    /// xfs_repair -n finds nothing.
    pub fn repair_is_silent(&self) {
        self.is_silent_for("xfs_repair");
    }

    /// The same of an xfs_repair of any release.
    pub fn is_silent_for(&self, program: &str) {
        let o = run(program, &["-n", self.path.to_str().unwrap()]);
        let out = text(&o);
        let phases = [
            "Phase ",
            "        - ",
            "No modify flag set",
            "Cannot get host filesystem geometry",
            "Repair may fail",
            "the image and the host",
        ];
        let odd: Vec<&str> = out.lines().filter(|l| !l.is_empty() && !phases.iter().any(|p| l.starts_with(p))).collect();
        assert!(o.status.success() && odd.is_empty(), "xfs_repair -n {}: {}", o.status, out);
    }

    /// The kernel mounts it until the value is dropped.
    pub fn kernel_mount(&self) -> KernelMount {
        self.kernel_mount_with("loop,nouuid")
    }

    pub fn kernel_mount_with(&self, options: &str) -> KernelMount {
        let at = self.dir.join("kernel");
        std::fs::create_dir_all(&at).unwrap();
        let o = run("mount", &["-t", "xfs", "-o", options, self.path.to_str().unwrap(), at.to_str().unwrap()]);
        assert!(o.status.success(), "the kernel does not mount it (tests that mount need root): {}", text(&o));
        KernelMount { at }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if std::env::var_os("UXFS_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// A mount by the kernel, undone when dropped.
pub struct KernelMount {
    pub at: PathBuf,
}

impl KernelMount {
    pub fn path(&self, p: impl AsRef<Path>) -> PathBuf {
        self.at.join(p)
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        // Somebody may look at it just now.
        for _ in 0..100 {
            if Command::new("umount").arg(&self.at).status().is_ok_and(|s| s.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
