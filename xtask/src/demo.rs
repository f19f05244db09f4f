//! `cargo xtask demo`: the main job on real input, with a kill in the middle.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Directories of the machine that the volume is filled from; the first that is there.
const SOURCES: &[&str] = &["/usr/share/doc", "/usr/include", "/etc"];
/// How long the work goes on before the kill.
const BEFORE_KILL: Duration = Duration::from_millis(2600);

fn say(text: &str) {
    println!("\n== {text}");
}

/// Runs and shows a command; returns its exit code.
fn show(program: &Path, args: &[&str], dir: &Path) -> Result<i32> {
    println!("$ uxfs {}", args.join(" "));
    let s = Command::new(program).args(args).current_dir(dir).status().context("cannot start uxfs")?;
    Ok(s.code().unwrap_or(-1))
}

fn must(program: &Path, args: &[&str], dir: &Path) -> Result<()> {
    match show(program, args, dir)? {
        0 => Ok(()),
        c => bail!("uxfs {} ended with {c}", args.join(" ")),
    }
}

/// Ends its process when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server in the foreground, its mount taken away when dropped.
struct Mounted {
    server: Running,
    at: PathBuf,
}

impl Mounted {
    fn is_there(at: &Path) -> bool {
        std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|t| t.lines().any(|l| l.split(' ').nth(4) == at.to_str()))
    }

    fn new(program: &Path, image: &str, at: &Path, dir: &Path) -> Result<Option<Mounted>> {
        println!("$ uxfs mount -f -o commit=1 {image} {}", at.display());
        let server = Command::new(program).args(["mount", "-f", "-o", "commit=1", image]).arg(at).current_dir(dir).spawn()?;
        let mut m = Mounted { server: Running(server), at: at.to_path_buf() };
        let deadline = Instant::now() + Duration::from_secs(10);
        while !Self::is_there(at) {
            if m.server.0.try_wait()?.is_some() || Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(m))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.server.0.kill();
        let _ = self.server.0.wait();
        for (program, args) in [("fusermount3", ["-u", "-z"]), ("umount", ["-l", "--"])] {
            if Self::is_there(&self.at) {
                let _ = Command::new(program).args(args).arg(&self.at).stderr(Stdio::null()).status();
            }
        }
    }
}

/// Shows it all, in `target/demo`.
///
/// # Errors
/// A step failed.
pub fn run(program: &Path) -> Result<()> {
    let dir = std::env::current_dir()?.join("target/demo");
    std::fs::create_dir_all(&dir)?;
    let _ = std::fs::remove_file(dir.join("volume.img"));
    let at = dir.join("mnt");
    std::fs::create_dir_all(&at)?;
    let source = SOURCES.iter().find(|s| Path::new(s).is_dir()).context("this machine has none of the usual directories")?;

    say("Make a volume of 1 GiB");
    must(program, &["mkfs", "-d", "size=1g", "volume.img"], &dir)?;
    say(&format!("Fill it from {source}"));
    let begun = Instant::now();
    must(program, &["cp", "-r", source, "volume.img:/filled"], &dir)?;
    println!("({:.2} s)", begun.elapsed().as_secs_f64());
    must(program, &["check", "volume.img"], &dir)?;

    say("Mount it, work in it, and kill the server in the middle of that");
    match Mounted::new(program, "volume.img", &at, &dir)? {
        Some(mut m) => {
            std::fs::write(at.join("synced"), "this was made durable before the kill\n")?;
            std::fs::File::open(at.join("synced"))?.sync_all()?;
            let script = "mkdir work; for i in 1 2 3 4 5 6 7 8 9; do cp -r filled work/copy$i; done";
            println!("$ cd mnt; {script} &");
            let work = Command::new("sh").args(["-c", script]).current_dir(&at).stderr(Stdio::null()).spawn()?;
            let mut work = Running(work);
            std::thread::sleep(BEFORE_KILL);
            println!("$ kill -9 {}", m.server.0.id());
            m.server.0.kill()?;
            m.server.0.wait()?;
            let _ = work.0.wait();
        }
        None => {
            println!("It cannot be mounted here (see above); a copy is killed instead.");
            let args = ["cp", "-r", source, "volume.img:/copied"];
            let child = Command::new(program).args(args).current_dir(&dir).spawn()?;
            let mut work = Running(child);
            std::thread::sleep(BEFORE_KILL / 4);
            println!("$ kill -9 {}", work.0.id());
            work.0.kill()?;
            work.0.wait()?;
        }
    }

    say("The log is dirty now; checked as it will be once recovered");
    if show(program, &["check", "volume.img"], &dir)? == 1 {
        bail!("the volume is damaged");
    }
    say("Recover it, and see what survived");
    must(program, &["recover", "volume.img"], &dir)?;
    must(program, &["ls", "-l", "volume.img"], &dir)?;
    if show(program, &["cat", "volume.img:/synced"], &dir)? == 0 {
        must(program, &["ls", "-l", "volume.img:/work"], &dir)?;
    } else {
        println!("(nothing was synced: it was not mounted)");
    }
    must(program, &["check", "volume.img"], &dir)?;

    say("How to go on");
    println!("The volume is target/demo/volume.img, the program {}:", program.display());
    println!("  uxfs mount target/demo/volume.img target/demo/mnt      and   uxfs umount target/demo/mnt");
    println!("  uxfs ls -l target/demo/volume.img:/filled              any path in a volume is IMG:/PATH");
    println!("  sudo mount -o loop target/demo/volume.img /mnt         the kernel takes it as it is");
    println!("  uxfs help                                              everything else");
    Ok(())
}
