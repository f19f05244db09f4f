//! The control socket of a mounted volume: asked in one line, it answers in one line of JSON.
//!
//! It lies in a folder of the user's that serves the volume, named after the mount's device number, which no other live mount
//! has. `stats` is answered with the counters; `end` at once, and again when the volume is closed, or could not be.

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uxfs::Fs;

/// The longest question.
const LONGEST: u64 = 256;
/// How long a client may take to ask, or to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// Folders where a user's sockets may lie, the preferred one first.
fn folders(uid: u32) -> Vec<PathBuf> {
    let mut all = Vec::new();
    if uid == 0 {
        all.push("/run/uxfs".into());
    }
    all.push(format!("/run/user/{uid}/uxfs").into());
    all.push(std::env::temp_dir().join(format!("uxfs-{uid}")));
    all
}

/// A folder that nobody else can write to.
fn is_own(dir: &Path, uid: u32) -> bool {
    dir.symlink_metadata().is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o022 == 0)
}

/// Who waits for the end of a server, and what it said of that. Who was told stays connected until the process is gone.
#[derive(Default)]
struct End {
    said: Option<Value>,
    waiting: Vec<UnixStream>,
}

/// The socket of a mount while it is served; removed when dropped.
pub struct Control {
    path: PathBuf,
    end: Arc<Mutex<End>>,
    /// The socket's own inode number.
    ino: u64,
}

impl Drop for Control {
    fn drop(&mut self) {
        // The mount is gone by now, and its number may be another one's, whose socket lies here.
        if self.path.symlink_metadata().is_ok_and(|m| m.ino() == self.ino) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Control {
    /// Answers questions about `fs`, which is mounted with the device number `dev`, in a thread of its own.
    ///
    /// # Errors
    /// No folder can be written to.
    pub fn serve(fs: Arc<Fs>, dev: &str) -> Result<Control> {
        let uid = rustix::process::geteuid().as_raw();
        let usable = |d: &PathBuf| (std::fs::DirBuilder::new().mode(0o700).create(d).is_ok() || d.is_dir()) && is_own(d, uid);
        let dir = folders(uid).into_iter().find(usable).context("no folder for the control socket")?;
        let path = dir.join(format!("{dev}.sock"));
        // What is left of a server that was killed: its mount is gone, or its number would not be ours.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
        let ino = path.symlink_metadata()?.ino();
        let end = Arc::<Mutex<End>>::default();
        let shared = end.clone();
        std::thread::Builder::new().name("uxfs-control".into()).spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A client that goes away, or is too slow, gets no answer.
                let _ = answer(&fs, &shared, client);
            }
        })?;
        Ok(Control { path, end, ino })
    }

    /// The volume is closed, or could not be: tells who waits for that.
    pub fn ended(&self, closed: &Result<()>) {
        self.end.lock().say(closed);
    }
}

impl End {
    fn say(&mut self, closed: &Result<()>) {
        let said = match closed {
            Ok(()) => json!({"closed": true}),
            Err(e) => json!({"error": format!("{e:#}")}),
        };
        for client in &self.waiting {
            let _ = writeln!(&*client, "{said}");
        }
        self.said = Some(said);
    }
}

fn answer(fs: &Fs, end: &Mutex<End>, client: UnixStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    BufReader::new((&client).take(LONGEST)).read_line(&mut question)?;
    let said = match question.trim() {
        "stats" => {
            let stats: serde_json::Map<_, _> = fs.stats().into_iter().map(|(k, v)| (k.to_string(), v.into())).collect();
            json!({"stats": stats, "shut_down": fs.shutdown_reason(), "read_only": fs.is_read_only()})
        }
        "end" => {
            let mut end = end.lock();
            writeln!(&client, "{}", json!({"waits": true}))?;
            if let Some(said) = &end.said {
                writeln!(&client, "{said}")?;
            }
            client.set_nonblocking(true)?;
            // Those that gave up, since the mount was busy, say, have gone.
            end.waiting.retain(|c| (&*c).read(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));
            end.waiting.push(client);
            return Ok(());
        }
        other => json!({"error": format!("{other:?} is not known; stats and end are")}),
    };
    writeln!(&client, "{said}")
}

/// Times that a server is looked for again, and the time between.
const CONNECTS: u32 = 40;
const BETWEEN: Duration = Duration::from_millis(50);

/// The server of the mount with device number `dev`, if it listens.
fn connect(dev: &str, uid: u32) -> Option<UnixStream> {
    let own = rustix::process::geteuid().as_raw();
    let mut sockets = [uid, own].into_iter().flat_map(|u| folders(u).into_iter().filter(move |d| is_own(d, u)));
    sockets.find_map(|d| UnixStream::connect(d.join(format!("{dev}.sock"))).ok())
}

/// The end of a server, to be waited for.
pub struct Ending(BufReader<UnixStream>);

impl Ending {
    /// That of the mount with device number `dev`; `None` if its server does not answer.
    pub fn of(dev: &str, uid: u32) -> Option<Ending> {
        Ending::on(connect(dev, uid)?)
    }

    fn on(s: UnixStream) -> Option<Ending> {
        s.set_read_timeout(Some(PATIENCE)).ok()?;
        writeln!(&s, "end").ok()?;
        let mut r = BufReader::new(s);
        let mut line = String::new();
        r.read_line(&mut line).ok()?;
        serde_json::from_str::<Value>(&line).ok()?.get("waits").is_some().then_some(Ending(r))
    }

    /// Waits until the server has ended, at most so long.
    ///
    /// # Errors
    /// The volume could not be closed; the server was killed; it goes on.
    pub fn wait(mut self, longest: Duration) -> Result<()> {
        self.0.get_ref().set_read_timeout(Some(longest))?;
        let mut text = String::new();
        self.0.read_to_string(&mut text).context("its server is still writing")?;
        let said: Value = serde_json::from_str(&text).unwrap_or_default();
        match (said.get("closed"), said["error"].as_str()) {
            (Some(_), _) => Ok(()),
            (_, Some(e)) => bail!("{e}"),
            _ => bail!("its server was killed; the next use recovers it"),
        }
    }
}

/// Asks the server of the mount with device number `dev`.
fn ask(dev: &str, uid: u32, question: &str) -> Result<Value> {
    let connect = || connect(dev, uid);
    // A mount is seen a moment before its server listens: only then it knows the number.
    let mut found = connect();
    for _ in 0..CONNECTS {
        if found.is_some() {
            break;
        }
        std::thread::sleep(BETWEEN);
        found = connect();
    }
    let Some(mut s) = found else { bail!("its server does not answer") };
    s.set_read_timeout(Some(PATIENCE))?;
    writeln!(s, "{question}")?;
    let mut text = String::new();
    s.read_to_string(&mut text)?;
    let said: Value = serde_json::from_str(&text)?;
    match said.get("error") {
        Some(e) => bail!("its server says: {e}"),
        None => Ok(said),
    }
}

/// True if the server of a mount opened its volume read-only.
///
/// # Errors
/// Its server does not answer.
pub fn is_read_only(m: &crate::mount::Mounted) -> Result<bool> {
    let said = ask(&m.dev, m.uid, "stats")?;
    said["read_only"].as_bool().context("its server does not say whether it may write")
}

/// Prints the counters of a mounted volume, a line each or as JSON.
///
/// # Errors
/// `dir` is not on a mount of uxfs; its server does not answer.
pub fn stats(dir: &Path, json: bool, out: &mut impl Write) -> Result<()> {
    let m = crate::mount::mount_of(dir)?;
    let said = ask(&m.dev, m.uid, "stats").with_context(|| dir.display().to_string())?;
    if json {
        writeln!(out, "{said:#}")?;
        return Ok(());
    }
    if let Some(why) = said["shut_down"].as_str() {
        writeln!(out, "the volume is shut down: {why}")?;
    }
    let rows = said["stats"].as_object().context("its server does not say what was asked")?;
    rows.iter().try_for_each(|(k, v)| writeln!(out, "{k:<20} {v}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uxfs_device::{DeviceRef, Memory};

    fn volume() -> Arc<Fs> {
        let size = 300 << 20;
        let dev: DeviceRef = Arc::new(Memory::new(size));
        uxfs_mkfs::format(&dev, &uxfs_mkfs::Options::new(size, [5; 16])).unwrap();
        Arc::new(Fs::open(dev, uxfs::Options::default()).unwrap())
    }

    #[test]
    fn the_end_of_a_server_is_told_as_it_was() {
        let fs = volume();
        let waits = |how: &dyn Fn(&Mutex<End>)| {
            let (server, client) = UnixStream::pair().unwrap();
            let end = Mutex::<End>::default();
            let asked = std::thread::spawn(move || Ending::on(client).unwrap().wait(PATIENCE));
            answer(&fs, &end, server).unwrap();
            how(&end);
            drop(end);
            asked.join().unwrap().map_err(|e| e.to_string())
        };
        assert_eq!(waits(&|end| end.lock().say(&Ok(()))), Ok(()));
        assert_eq!(waits(&|end| end.lock().say(&Err(anyhow::anyhow!("no room")))), Err("no room".into()));
        assert!(waits(&|_| {}).is_err_and(|e| e.contains("was killed")));
        // Who gave up is forgotten.
        let end = Mutex::default();
        let [(first, gave_up), (second, asks)] = [(); 2].map(|()| UnixStream::pair().unwrap());
        writeln!(&gave_up, "end").unwrap();
        writeln!(&asks, "end").unwrap();
        answer(&fs, &end, first).unwrap();
        drop(gave_up);
        answer(&fs, &end, second).unwrap();
        assert_eq!(end.lock().waiting.len(), 1);
        fs.close().unwrap();
    }

    #[test]
    fn a_server_that_ends_leaves_the_socket_of_the_next_one() {
        let fs = volume();
        let number = format!("test-{}", std::process::id());
        let uid = rustix::process::geteuid().as_raw();
        let old = Control::serve(fs.clone(), &number).unwrap();
        let new = Control::serve(fs.clone(), &number).unwrap();
        drop(old);
        assert!(ask(&number, uid, "stats").unwrap().get("stats").is_some());
        let path = new.path.clone();
        drop(new);
        assert!(!path.exists());
        fs.close().unwrap();
    }
}
