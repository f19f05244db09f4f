//! How much memory there is: the machine's, or less where a control group of this process says so.

use super::{DEFAULT_MEMORY, LEAST_MEMORY};
use std::fs::read_to_string;
use std::path::Path;
use std::sync::OnceLock;

/// Memory for a volume where nobody says how much: [`DEFAULT_MEMORY`], or a quarter of all there is if that is less.
pub fn default_memory() -> usize {
    static ONCE: OnceLock<usize> = OnceLock::new();
    *ONCE.get_or_init(|| quarter(available(Path::new("/"))))
}

fn quarter(available: u64) -> usize {
    usize::try_from(available / 4).unwrap_or(usize::MAX).clamp(LEAST_MEMORY, DEFAULT_MEMORY)
}

/// Bytes that this process may take, as the files below `root` tell; without them, all.
fn available(root: &Path) -> u64 {
    let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|l| {
        // NUMBER:CONTROLLERS:PATH; of the second version the number is 0, and there are no controllers.
        let mut parts = l.splitn(3, ':');
        let (number, controllers, path) = (parts.next(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (top, file) = match number == Some("0") && controllers.is_empty() {
            true => ("sys/fs/cgroup", "memory.max"),
            false => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        };
        let counts = file == "memory.max" || controllers.split(',').any(|c| c == "memory");
        let top = root.join(top);
        // Each group above limits it, too. In a container the path may be one that is not seen here: then the top is its own.
        let groups: Vec<_> = Path::new(path.trim_start_matches('/')).ancestors().map(|p| top.join(p).join(file)).collect();
        groups.into_iter().filter(move |_| counts)
    });
    let limits = limits.filter_map(|f| read_to_string(f).ok()?.trim().parse().ok());
    limits.chain(total(root)).min().unwrap_or(u64::MAX)
}

/// Bytes of the machine.
fn total(root: &Path) -> Option<u64> {
    let text = read_to_string(root.join("proc/meminfo")).ok()?;
    let kib: u64 = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    #[test]
    fn the_smallest_limit_counts() {
        const MIB: u64 = 1 << 20;
        let root = std::env::temp_dir().join(format!("uxfs-budget-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        };
        assert_eq!(available(&root), u64::MAX);
        put("proc/meminfo", "MemFree: 1 kB\nMemTotal:       4194304 kB\n");
        assert_eq!(available(&root), 4096 * MIB);
        // The first version: a limit that is none, then one.
        put("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/a/b\n");
        put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(available(&root), 4096 * MIB);
        put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
        assert_eq!(available(&root), 1024 * MIB);
        // The second one, whose path is another container's.
        put("proc/self/cgroup", "0::/not/here\n");
        assert_eq!(available(&root), 4096 * MIB);
        put("sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(available(&root), 4096 * MIB);
        put("sys/fs/cgroup/memory.max", "268435456\n");
        assert_eq!(available(&root), 256 * MIB);
        assert_eq!((quarter(256 * MIB), quarter(10 * MIB), quarter(u64::MAX)), (64 << 20, LEAST_MEMORY, DEFAULT_MEMORY));
        std::fs::remove_dir_all(root).unwrap();
    }
}
