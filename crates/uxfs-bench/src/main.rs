//! `uxfs-bench peers`: uxfs beside other file systems, in one run.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod null;
mod peers;
mod table;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Compares uxfs with its peers, and the variants of its decisions with each other")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Creates, dbench, unpacking and lookups: uxfs, a null file system, fuse2fs and the kernel's XFS, all on images in DIR (needs root)
    Peers {
        /// Where the images and mounts go
        #[arg(long, default_value = "/dev/shm")]
        dir: PathBuf,
        /// Only these parts: create, dbench, cpu, unpack, lookup
        parts: Vec<String>,
    },
    /// Serves a file system that keeps nothing on DIR, until it is unmounted
    Null {
        /// Where
        dir: PathBuf,
    },
}

fn main() -> Result<()> {
    match Args::parse().what {
        What::Peers { dir, parts } => peers::run(&dir, &parts),
        What::Null { dir } => null::serve(&dir),
    }
}
