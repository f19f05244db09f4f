//! Who knows that what was written to a file is lost, where the kernel opens files without asking: each process that was there then is told
//! once, as each open file would be.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use uxfs_transport::{Errno, Result};

/// Files that are remembered; of more, those that failed last.
const MOST: usize = 1000;
/// Parts of a second that Linux tells users times in.
const TICKS: f64 = 100.0;

/// A process: its number, and when it began, in ticks since the machine did.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    pid: u32,
    begun: u64,
}

impl Process {
    /// That of a thread; of one that is not to be seen from here, one for all such.
    fn of(thread: u32) -> Process {
        Process::seen(thread).unwrap_or(Process { pid: 0, begun: 0 })
    }

    fn seen(thread: u32) -> Option<Process> {
        let status = read_to_string(format!("/proc/{thread}/status")).ok()?;
        let pid = status.lines().find_map(|l| l.strip_prefix("Tgid:"))?.trim().parse().ok()?;
        let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, which ends with the last parenthesis, is the second field; when it began is the 22nd.
        let begun = stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()?;
        Some(Process { pid, begun })
    }
}

/// Now, in ticks since the machine began.
fn now() -> u64 {
    let uptime = read_to_string("/proc/uptime").unwrap_or_default();
    let seconds: Option<f64> = uptime.split_whitespace().next().and_then(|s| s.parse().ok());
    // Where it is not to be had, everybody was there. Hundredths are seldom whole in binary: upwards, so that nobody who was there is missed.
    seconds.map_or(u64::MAX, |s| (s * TICKS).ceil() as u64)
}

struct Failure {
    errno: Errno,
    at: u64,
    told: Vec<Process>,
}

/// What failed, by inode and generation.
#[derive(Default)]
pub struct Failures {
    any: AtomicBool,
    files: Mutex<BTreeMap<(u64, u32), Failure>>,
}

impl Failures {
    /// What an fsync says to a thread that asks for it: what it came to, or what failed before and this process was not told of.
    ///
    /// # Errors
    /// That.
    pub fn tell(&self, thread: u32, came_to: Result<()>, file: impl FnOnce() -> (u64, u32)) -> Result<()> {
        if came_to.is_ok() && !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let (file, process) = (file(), Process::of(thread));
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(errno) = came_to {
            files.insert(file, Failure { errno, at: now(), told: vec![process] });
            if files.len() > MOST
                && let Some(oldest) = files.iter().min_by_key(|f| f.1.at).map(|f| *f.0)
            {
                files.remove(&oldest);
            }
            self.any.store(true, Ordering::Release);
            return Err(errno);
        }
        match files.get_mut(&file) {
            Some(f) if process.begun <= f.at && !f.told.contains(&process) => {
                f.told.push(process);
                Err(f.errno)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_once_and_files_are_forgotten() {
        let f = Failures::default();
        let me = std::process::id();
        assert_eq!(f.tell(me, Ok(()), || unreachable!()), Ok(()));
        assert_eq!(f.tell(me, Err(Errno::IO), || (7, 1)), Err(Errno::IO));
        assert_eq!(f.tell(me, Ok(()), || (7, 1)), Ok(()));
        // A thread of this process is this process; the first process of all was there; what cannot be seen is told once.
        let of_thread = || {
            let own = std::fs::read_link("/proc/thread-self").unwrap();
            let own = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
            (own, Process::of(own))
        };
        let (own, process) = std::thread::spawn(of_thread).join().unwrap();
        assert!(own != me && process == Process::of(me) && process.pid == me && process.begun > 0);
        assert_eq!([f.tell(1, Ok(()), || (7, 1)), f.tell(1, Ok(()), || (7, 1))], [Err(Errno::IO), Ok(())]);
        assert_eq!([f.tell(0, Ok(()), || (7, 1)), f.tell(0, Ok(()), || (7, 1))], [Err(Errno::IO), Ok(())]);
        // Another file of that number is another file.
        assert_eq!(f.tell(1, Ok(()), || (7, 2)), Ok(()));
        for i in 0..2 * MOST as u64 {
            let _ = f.tell(me, Err(Errno::NOSPC), || (i, 0));
        }
        assert_eq!(f.files.lock().unwrap().len(), MOST);
    }
}
