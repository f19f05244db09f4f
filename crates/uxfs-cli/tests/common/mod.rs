//! A folder with images, the program under test, the oracles, and mounts that are undone when a test ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use uxfs_transport::Offer;

/// A folder that goes when it is dropped, and the mounts below it.
pub struct Place {
    pub dir: PathBuf,
}

pub fn text(o: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr))
}

/// Runs an oracle or a load; a missing one fails the test.
pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("TZ", "UTC")
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}; install it with: cargo xtask tools"))
}

pub fn must(program: &str, args: &[&str]) -> String {
    let o = run(program, args);
    assert!(o.status.success(), "{program} {args:?}: {}", text(&o));
    String::from_utf8_lossy(&o.stdout).into_owned()
}

/// A program of the newest xfsprogs, which stands beside the machine's own.
pub fn newest(program: &str) -> String {
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or_else(|_| std::env::var("HOME").unwrap() + "/.cache");
    format!("{cache}/uxfs/xfsprogs/bin/{program}")
}

/// The program under test.
pub fn uxfs() -> Command {
    Command::new(env!("CARGO_BIN_EXE_uxfs"))
}

/// What xfs_repair says that it does not say of every sound volume.
fn odd_lines(out: &str) -> Vec<String> {
    let usual = [
        "Phase ",
        "        - ",
        "No modify flag set",
        "Cannot get host filesystem geometry",
        "Repair may fail",
        "the image and the host",
        "Only one AG detected",
    ];
    out.lines().filter(|l| !l.is_empty() && !usual.iter().any(|u| l.starts_with(u))).map(str::to_string).collect()
}

/// True on that version of Linux or a later one: what FUSE asks a server depends on it (docs/mounting.md).
pub fn linux(major: u32, minor: u32) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

/// True if files can be mapped for changes on a mount with such options.
pub fn maps_files(options: &str) -> bool {
    linux(6, 6) || !options.contains("none")
}

/// Requests may come over io_uring while this lives; none where the kernel has no such thing (before Linux 6.14).
pub fn rings() -> Option<Offer> {
    match uxfs_transport::offer_io_uring() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("this kernel has no FUSE over io_uring: what is to be tried so is tried without");
            None
        }
        offer => Some(offer.unwrap()),
    }
}

impl Place {
    pub fn new(name: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("uxfs-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Place { dir }
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_string()
    }

    /// Runs the program in the folder; returns its output, success or not.
    pub fn try_uxfs(&self, args: &[&str]) -> Output {
        uxfs().args(args).current_dir(&self.dir).output().unwrap()
    }

    pub fn uxfs(&self, args: &[&str]) -> String {
        let o = self.try_uxfs(args);
        assert!(o.status.success(), "uxfs {args:?}: {}", text(&o));
        String::from_utf8_lossy(&o.stdout).into_owned()
    }

    /// Makes a volume with mkfs.xfs.
    pub fn mkfs_xfs(&self, name: &str, args: &[&str]) {
        let file = self.path(name);
        let mut all = args.to_vec();
        all.push(&file);
        must("mkfs.xfs", &all);
    }

    pub fn image(&self, name: &str, size: u64) {
        std::fs::File::create(self.dir.join(name)).unwrap().set_len(size).unwrap();
    }

    pub fn copy(&self, from: &str, to: &str) {
        must("cp", &["--sparse=always", &self.path(from), &self.path(to)]);
    }

    /// What xfs_repair -n says beside its phases; nothing for a sound volume.
    pub fn repair(&self, name: &str) -> Vec<String> {
        odd_lines(&text(&run("xfs_repair", &["-n", "-o", "force_geometry", &self.path(name)])))
    }

    /// The newest xfs_repair finds nothing: it knows features that the machine's own does not.
    pub fn newest_is_silent(&self, name: &str) {
        let o = run(&newest("xfs_repair"), &["-n", "-o", "force_geometry", &self.path(name)]);
        assert_eq!(odd_lines(&text(&o)), Vec::<String>::new(), "{name}: the newest xfs_repair -n");
    }

    pub fn is_sound(&self, name: &str) {
        assert_eq!(self.repair(name), Vec::<String>::new(), "{name}: xfs_repair -n");
        let o = self.try_uxfs(&["check", name]);
        assert!(o.status.success(), "uxfs check {name}: {}", text(&o));
    }

    /// Mounts with the kernel.
    pub fn kernel(&self, name: &str, options: &str) -> Mount {
        let at = self.dir.join(format!("kernel-{name}"));
        std::fs::create_dir_all(&at).unwrap();
        let o = run("mount", &["-t", "xfs", "-o", options, &self.path(name), at.to_str().unwrap()]);
        assert!(o.status.success(), "the kernel does not mount {name} (tests that mount need root): {}", text(&o));
        Mount { at }
    }

    /// Mounts with the program under test, in the foreground, so that its process is known; over io_uring only where there is that.
    pub fn serve(&self, name: &str, options: &str) -> Server {
        let has_rings = Path::new("/sys/module/fuse/parameters/enable_uring").exists();
        let options: Vec<&str> = options.split(',').filter(|o| has_rings || *o != "io_uring").collect();
        let options = options.join(",");
        let at = self.dir.join(format!("mount-{name}"));
        std::fs::create_dir_all(&at).unwrap();
        let mut c = uxfs();
        c.args(["mount", "-f"]).current_dir(&self.dir).stderr(Stdio::piped());
        if !options.is_empty() {
            c.args(["-o", &options]);
        }
        let mut child = c.arg(name).arg(&at).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_mounted(&at) {
            assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "{name} is not mounted");
            std::thread::sleep(Duration::from_millis(10));
        }
        Server { child, at }
    }
}

pub fn is_mounted(at: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().any(|l| l.split(' ').nth(4) == at.to_str())
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::env::var_os("UXFS_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// A mount by the kernel.
pub struct Mount {
    pub at: PathBuf,
}

impl Drop for Mount {
    fn drop(&mut self) {
        // What was killed on it may still be on its way out.
        for _ in 0..200 {
            if Command::new("umount").arg(&self.at).stderr(Stdio::null()).status().is_ok_and(|s| s.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = Command::new("umount").arg(&self.at).status();
    }
}

/// A mount by the program under test.
pub struct Server {
    pub child: Child,
    pub at: PathBuf,
}

impl Server {
    pub fn path(&self, p: &str) -> String {
        self.at.join(p).to_str().unwrap().to_string()
    }

    /// Unmounts and waits for the server's end.
    pub fn unmount(mut self) {
        // What another test has just forked holds this one's files until it becomes a program of its own.
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut o = run("umount", &[self.at.to_str().unwrap()]);
        while text(&o).contains("busy") && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            o = run("umount", &[self.at.to_str().unwrap()]);
        }
        assert!(o.status.success(), "{}", text(&o));
        let s = self.child.wait().unwrap();
        assert!(s.success(), "the server ended with {s}");
    }

    /// Ends the server as `kill -9` does, and takes its mount away.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if is_mounted(&self.at) {
            let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Names, types, modes, owners, links, times, and of files sizes and targets; sorted.
pub fn listing(at: &Path) -> Vec<String> {
    // Sizes of directories are each file system's own business.
    let form = ["-type", "d", "-printf", "%P %y %m %U %G %n %T@\\n", "-o", "-printf", "%P %y %m %U %G %n %s %T@ %l\\n"];
    let out = must("find", &[&[at.to_str().unwrap(), "-mindepth", "1"], &form[..]].concat());
    let mut v: Vec<String> = out.lines().map(str::to_string).collect();
    v.sort();
    v
}

/// Two trees are the same in all of that, and in their data.
pub fn same_tree(a: &Path, b: &Path) {
    let (x, y) = (listing(a), listing(b));
    let odd = |p: &[String], q: &[String]| p.iter().filter(|l| !q.contains(l)).take(3).cloned().collect::<Vec<_>>();
    if x != y {
        panic!("{} and {} differ: {:?} {:?}", a.display(), b.display(), odd(&x, &y), odd(&y, &x));
    }
    let out = text(&run("diff", &["-r", "--no-dereference", a.to_str().unwrap(), b.to_str().unwrap()]));
    // Special files have no content to compare.
    let odd: Vec<&str> = out.lines().filter(|l| !l.contains("special file while") && !l.contains("fifo while")).collect();
    assert_eq!(odd, Vec::<&str>::new());
}

/// Extended attributes of a tree.
pub fn attributes(at: &Path) -> String {
    let out = Command::new("getfattr").args(["-R", "-d", "-h", "-m", "-", "-e", "hex", "."]).current_dir(at).output();
    let out = out.unwrap_or_else(|e| panic!("getfattr: {e}; install it with: apt-get install attr"));
    String::from_utf8_lossy(&out.stdout).into_owned()
}
