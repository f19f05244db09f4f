//! Comparisons in one run: uxfs beside other file systems, and the variants of its decisions beside each other.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod behind;
mod beside;
mod biglock;
mod data;
mod flush;
mod iolock;
mod limit;
mod loadfile;
mod null;
mod peers;
mod scratch;
mod table;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use uxfs::CheckpointLimit;

#[derive(Parser)]
#[command(about = "Compares uxfs with its peers, and the variants of its decisions with each other")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Creates, dbench, unpacking, lookups and recovery: uxfs, a null file system, fuse2fs and the kernel's XFS, all on images in DIR (needs root)
    Peers {
        /// Where the images and mounts go
        #[arg(long, default_value = "/dev/shm")]
        dir: PathBuf,
        /// Only these parts: create, threads, dbench, cpu, unpack, lookup, recover, data, mounts, rings
        parts: Vec<String>,
    },
    /// When the journal flushes: all variants on modelled devices, in one run
    JournalFlush {
        /// Files that are made and removed in a round
        #[arg(long, default_value_t = 100_000)]
        creates: u64,
        /// Rounds
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// How much longer everything takes than on the device that is modelled
        #[arg(long, default_value_t = 10.0)]
        factor: f64,
        /// CPUs of the machine that is modelled
        #[arg(long, default_value_t = 4.0)]
        cpus: f64,
        /// MiB of the log
        #[arg(long, default_value_t = 64)]
        log: u64,
        /// Where a volume in a file goes: compares there, too, as fast as that is
        #[arg(long)]
        dir: Option<PathBuf>,
        /// Policies to compare, with flushes that are free on a modelled device; all, if none is named
        #[arg(long, value_delimiter = ',')]
        policies: Vec<uxfs::JournalFlush>,
        /// Presets: hdd-array, sata-ssd, nvme, nvme-plp; curve for the curve alone, none for a file alone
        #[arg(default_values_t = ["nvme".to_string(), "sata-ssd".to_string()])]
        presets: Vec<String>,
    },
    /// How large checkpoints become: all variants, in one run
    CheckpointLimit {
        /// Files that are made
        #[arg(long, default_value_t = 600_000)]
        creates: u64,
        /// Threads that make them
        #[arg(long, default_value_t = 16)]
        threads: u64,
        /// MiB of the log
        #[arg(long, default_value_t = 2032)]
        log: u64,
        /// Rounds
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// Where a volume in a file goes
        #[arg(long, default_value = "/dev/shm")]
        dir: PathBuf,
    },
    /// What reads and writes of one file exclude: all variants, in one run
    IoLock {
        /// Seconds of each
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
        /// Where a volume in a file goes: compares there, too, with the kernel's XFS (needs root)
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Who writes back what is dropped behind its writer: all variants beside buffered and direct writes, in one run
    DropBehind {
        /// How much longer everything takes than on the device that is modelled
        #[arg(long, default_value_t = 4.0)]
        factor: f64,
        /// Seconds of the loads that have no end
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
        /// Where a volume in a file goes: compares there, too
        #[arg(long)]
        dir: Option<PathBuf>,
        /// Presets: hdd-array, sata-ssd, nvme, nvme-plp
        #[arg(default_values_t = ["nvme".to_string()])]
        presets: Vec<String>,
    },
    /// One lock around everything beside finer ones: all variants, in one run
    BigLock {
        /// Seconds of each
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
        /// dbench's load
        #[arg(long, default_value = "/usr/share/dbench/client.txt")]
        load: String,
    },
    /// One run of it, which says how much memory the process had at most
    #[command(hide = true)]
    Resident { image: PathBuf, limit: CheckpointLimit, memory: usize, creates: u64, threads: u64, log: u64 },
    /// Serves a file system that keeps nothing on DIR, until it is unmounted
    Null {
        /// Where
        dir: PathBuf,
        /// The kernel keeps what is written until it likes to pass it on
        #[arg(long)]
        writeback: bool,
        /// Requests come over io_uring
        #[arg(long)]
        io_uring: bool,
    },
}

fn main() -> Result<()> {
    match Args::parse().what {
        What::Peers { dir, parts } => peers::run(&dir, &parts),
        What::IoLock { seconds, dir } => iolock::run(seconds, dir.as_deref()),
        What::BigLock { seconds, load } => biglock::run(&biglock::Plan { seconds, load }),
        What::DropBehind { factor, seconds, dir, presets } => behind::run(&behind::Plan { presets, factor, seconds, dir }),
        What::JournalFlush { creates, rounds, factor, cpus, log, dir, policies, presets } => {
            flush::run(&flush::Plan { creates, rounds, factor, cpus, log: log << 20, dir, presets, policies })
        }
        What::CheckpointLimit { creates, threads, log, rounds, dir } => {
            limit::run(&dir, limit::Plan { creates, threads, log: log << 20, rounds })
        }
        What::Resident { image, limit, memory, creates, threads, log } => {
            limit::resident(&image, limit, memory, limit::Plan { creates, threads, log, rounds: 1 })
        }
        What::Null { dir, writeback, io_uring } => null::serve(&dir, writeback, io_uring),
    }
}
