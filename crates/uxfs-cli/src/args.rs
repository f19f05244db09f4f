//! What the program is told: verbs and options, from which help, completions and manual pages come.

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Works on XFS volumes without the kernel: image files, partitions of disk images, block devices.
///
/// A path in a volume is written IMG:/path, in a partition IMG@2:/path, from a byte on IMG@@1048576:/path. Commands that
/// change a volume leave a clean log; a dirty one is recovered first.
#[derive(Parser)]
#[command(name = "uxfs", version, arg_required_else_help = true)]
pub struct Cli {
    /// Device or file with the log, for volumes that have it outside
    #[arg(long, global = true, value_name = "FILE")]
    pub logdev: Option<PathBuf>,
    /// Read volumes as they lie there, without what a dirty log holds: also one that cannot be
    /// recovered, an image that was cut short, or a volume that lost its superblock: a copy of it is searched for
    #[arg(long, global = true)]
    pub norecovery: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Cmd,
}

#[derive(Subcommand)]
pub enum Cmd {
    /// Make a volume with the default features of the newest mkfs.xfs
    Mkfs(Mkfs),
    /// Mount a volume on a directory, as an ordinary user
    Mount {
        /// Mount options, separated by commas: ro, norecovery, hostcache, offset=BYTES, part=N, commit=SECONDS, memory=SIZE, threads=N,
        /// logdev=FILE, logbufs=N, logbsize=SIZE,
        /// journal_flush=POLICY, checkpoint_limit=POLICY, cache=MODE, iomode=MODE, drop_behind=POLICY, io_lock=LOCK, op_lock=LOCK, readdir_copy=HOW,
        /// discard, grpid, wsync, fsname=NAME, allow_other, allow_root, dev, suid, noexec
        #[arg(short = 'o', value_name = "OPTIONS")]
        options: Vec<String>,
        /// Stay in the foreground
        #[arg(short, long)]
        foreground: bool,
        /// The image or device
        image: OsString,
        /// Where to
        dir: PathBuf,
    },
    /// Unmount a directory, and wait until everything is written
    Umount {
        /// At once, although it is busy: it ends with the last file that is open, and nobody waits for that
        #[arg(short, long)]
        lazy: bool,
        dir: PathBuf,
    },
    /// Make everything that was written to a mounted volume durable
    Sync { dir: PathBuf },
    /// Show the counters of a mounted volume: the journal's by the kernel's names, flushes, checkpoints, waits
    Stats {
        /// As JSON
        #[arg(long)]
        json: bool,
        dir: PathBuf,
    },
    /// List directories
    Ls {
        /// Modes, owners, sizes, times
        #[arg(short)]
        long: bool,
        /// Names that begin with a dot, too
        #[arg(short)]
        all: bool,
        /// Inode numbers
        #[arg(short)]
        inode: bool,
        /// Directories themselves, not what is in them
        #[arg(short)]
        directory: bool,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Write files to the standard output
    Cat {
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Show what is known of files
    Stat {
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Copy into, out of, inside or between volumes; modes, owners, times, attributes and holes are kept
    Cp {
        /// Directories with all that is in them
        #[arg(short, long, short_alias = 'a', short_alias = 'R')]
        recursive: bool,
        /// Share blocks within a volume: auto (where it can), always, never
        #[arg(long, value_name = "WHEN", default_value = "auto", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
        reflink: Reflink,
        /// What to copy, and last where to
        #[arg(required = true, num_args = 2.., value_name = "PATH")]
        paths: Vec<OsString>,
    },
    /// Rename, or move into a directory
    Mv {
        /// Do not replace what is there
        #[arg(short)]
        no_clobber: bool,
        #[arg(required = true, num_args = 2.., value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Remove files
    Rm {
        /// Directories with all that is in them
        #[arg(short, long, short_alias = 'R')]
        recursive: bool,
        /// What does not exist is no error
        #[arg(short)]
        force: bool,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Make directories
    Mkdir {
        /// Those above, too; what is there already is no error
        #[arg(short)]
        parents: bool,
        /// Mode of the new ones
        #[arg(short, default_value = "755")]
        mode: String,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Make a hard link, or a symbolic one
    Ln {
        /// Symbolic: TARGET is kept as it is written
        #[arg(short)]
        symbolic: bool,
        /// Replace what is there
        #[arg(short)]
        force: bool,
        target: OsString,
        #[arg(value_name = "IMG:/PATH")]
        link: OsString,
    },
    /// Change permissions
    Chmod {
        /// Directories with all that is in them
        #[arg(short = 'R')]
        recursive: bool,
        /// Like 755 or u+x,go=rX
        #[arg(allow_hyphen_values = true)]
        mode: String,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Change owner and group; names are looked up in the volume
    Chown {
        /// Directories with all that is in them
        #[arg(short = 'R')]
        recursive: bool,
        /// OWNER, OWNER:GROUP or :GROUP
        owner: String,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Set times to now, and make files that are missing
    Touch {
        /// Make nothing
        #[arg(short = 'c')]
        no_create: bool,
        /// This time: @SECONDS since 1970, or YYYY-MM-DD [HH:MM[:SS]] as ls shows it, in UTC
        #[arg(short)]
        date: Option<String>,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Set the size of files, and make those that are missing
    Truncate {
        /// Bytes, or with a suffix like 10m
        #[arg(short)]
        size: String,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Show attributes
    Getfattr {
        /// Only this one
        #[arg(short, value_name = "NAME")]
        name: Option<OsString>,
        /// Only the value, as it is
        #[arg(long, requires = "name")]
        only_values: bool,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Set or remove an attribute
    Setfattr {
        /// Set this one
        #[arg(short, value_name = "NAME", conflicts_with = "remove", required_unless_present = "remove")]
        name: Option<OsString>,
        /// To this value: text, or 0x and hexadecimal digits
        #[arg(short, default_value = "", allow_hyphen_values = true)]
        value: OsString,
        /// Remove this one
        #[arg(short = 'x', value_name = "NAME")]
        remove: Option<OsString>,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Unpack an archive from the standard input (plain, gzip or zstd), or pack one to the standard output
    Tar {
        /// Unpack into the directory
        #[arg(short = 'x', conflicts_with = "create", required_unless_present = "create")]
        extract: bool,
        /// Pack the directory
        #[arg(short)]
        create: bool,
        #[arg(value_name = "IMG:/PATH")]
        path: OsString,
    },
    /// Show the geometry and features
    Info { image: OsString },
    /// Show or change label and UUID; a dirty volume is recovered first
    Admin {
        /// Show the label alone
        #[arg(short = 'l')]
        show_label: bool,
        /// Show the UUID alone
        #[arg(short = 'u')]
        show_uuid: bool,
        /// New label, at most 12 bytes; -- for none
        #[arg(short = 'L', value_name = "LABEL", allow_hyphen_values = true)]
        label: Option<String>,
        /// New UUID; generate for one by chance, restore for the first that the volume had
        #[arg(short = 'U', value_name = "UUID")]
        uuid: Option<String>,
        /// Turn features on: bigtime=1, exchange=1, inobtcount=1, nrext64=1
        #[arg(short = 'O', value_name = "FEATURES")]
        features: Vec<String>,
        image: OsString,
    },
    /// Show how much space is used
    Df {
        /// Inodes instead of blocks
        #[arg(short)]
        inodes: bool,
        #[arg(required = true, value_name = "IMG")]
        images: Vec<OsString>,
    },
    /// Show what directories occupy, in KiB
    Du {
        /// Only what is named
        #[arg(short)]
        summarize: bool,
        /// Files, too
        #[arg(short)]
        all: bool,
        /// Bytes of the files instead of what they occupy
        #[arg(short = 'b')]
        apparent: bool,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Look for files: paths, then tests like -name PATTERN, -type f, -size +1M, -mtime -7, -perm -4000, ! ( ) -o, -print0, -ls
    Find {
        #[arg(required = true, value_name = "IMG:/PATH", allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<OsString>,
    },
    /// Show what two trees differ in; exit 0 if in nothing, 1 if they differ, 2 if that cannot be told
    Diff {
        /// Names, types and data only
        #[arg(long)]
        content: bool,
        /// An image, a path in one, or a directory of the host
        first: OsString,
        second: OsString,
    },
    /// Show a structure field by field, as xfs_db does: sb, agf, agi or agfl of a group, an inode, a block of a tree
    Dump {
        image: OsString,
        structure: String,
        /// Group, inode, or block of the volume
        #[arg(default_value_t = 0)]
        number: u64,
    },
    /// Show how free space is cut up
    Freesp { image: OsString },
    /// Make a volume larger: to what it lies on, or to a size, for which an image file grows
    Grow { image: OsString, size: Option<String> },
    /// Give free space back: punches holes into an image, discards on a device
    Trim {
        /// Only extents of at least so many bytes
        #[arg(short, value_name = "SIZE")]
        minimum: Option<String>,
        image: OsString,
    },
    /// Show access control lists
    Getfacl {
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Change access control lists
    Setfacl {
        /// Set entries: u:NAME:rwx, g:NAME:rx, m::r, d:u:NAME:rwx
        #[arg(short, value_name = "ENTRIES")]
        modify: Option<String>,
        /// Remove entries
        #[arg(short = 'x', value_name = "ENTRIES")]
        remove: Option<String>,
        /// Remove all but what the mode says
        #[arg(short = 'b')]
        remove_all: bool,
        /// Remove the default list
        #[arg(short = 'k')]
        remove_default: bool,
        /// Entries are of the default list
        #[arg(short)]
        default: bool,
        /// The mask stays
        #[arg(short = 'n')]
        keep_mask: bool,
        /// Directories with all that is in them
        #[arg(short = 'R')]
        recursive: bool,
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Show flags, projects and extent size hints
    Lsattr {
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Change flags, projects and hints: [-R] [-p PROJECT] [--extsize SIZE] [--cowextsize SIZE] [+FLAGS] [-FLAGS] [=FLAGS] PATH...
    ///
    /// Flags: i immutable, a append only, s sync, A no time of access, d no dump, P project is inherited, n no symbolic links,
    /// e extent size, E extent size is inherited, f no defragmentation, S filestream, x dax, C copy-on-write extent size.
    Chattr {
        #[arg(required = true, value_name = "FLAGS and IMG:/PATH", allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<OsString>,
    },
    /// Write completions for a shell to the standard output
    Completions { shell: clap_complete::Shell },
    /// Write the manual pages into a directory
    Man { dir: PathBuf },
    /// Show where files lie in the volume, in blocks of 512 bytes
    Bmap {
        #[arg(required = true, value_name = "IMG:/PATH")]
        paths: Vec<OsString>,
    },
    /// Recover a dirty volume, so that its log is clean
    Recover { image: OsString },
    /// Check a volume: exit 0 if it is sound, 1 if damaged, 2 if sound with a dirty log, 8 if it cannot be checked
    Check {
        /// Findings as JSON
        #[arg(long)]
        json: bool,
        /// Show in which forms things lie there, how high trees are, and how many there are of each
        #[arg(long)]
        forms: bool,
        image: OsString,
    },
    /// Show what is in the journal
    Log { image: OsString },
}

/// When copies share blocks with their originals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Reflink {
    /// Where the volume can.
    Auto,
    /// A copy that cannot is an error.
    Always,
    /// Data is copied.
    Never,
}

/// What `mkfs` is told: the letters of mkfs.xfs.
#[derive(Args)]
pub struct Mkfs {
    /// Block size: size=SIZE, 1k to 64k
    #[arg(short, value_name = "WORDS")]
    pub block: Vec<String>,
    /// Data section: size=, agcount=, agsize=, su= and sw=, sunit= and swidth=, noalign, projinherit=, extszinherit=, cowextsize=
    #[arg(short, value_name = "WORDS")]
    pub data: Vec<String>,
    /// Log section: size=, su=, sunit=, agnum=, logdev=FILE for a log outside
    #[arg(short, value_name = "WORDS")]
    pub log: Vec<String>,
    /// Metadata: uuid=UUID; finobt=, rmapbt=, reflink=, inobtcount=, bigtime= 0 or 1
    #[arg(short, value_name = "WORDS")]
    pub meta: Vec<String>,
    /// Inodes: size=, perblock=, maxpct=; sparse=, nrext64=, exchange= 0 or 1
    #[arg(short, value_name = "WORDS")]
    pub inode: Vec<String>,
    /// Naming: size= of directory blocks; parent=0 or 1
    #[arg(short, value_name = "WORDS")]
    pub naming: Vec<String>,
    /// Realtime section, which is not supported
    #[arg(short, value_name = "WORDS", hide = true)]
    pub realtime: Vec<String>,
    /// Options from a file, or for the kernel of a long-term release: options=lts_6.1 (4.19, 5.4, 5.10, 5.15, 6.6, 6.12, 6.18)
    #[arg(short, value_name = "options=FILE")]
    pub config: Vec<String>,
    /// Sector size: size=512 or size=4096
    #[arg(short, value_name = "WORDS")]
    pub sector: Vec<String>,
    /// Fill the volume with a directory, a tar archive (a file, or - for the standard input), or what a prototype file of mkfs.xfs says
    #[arg(short, value_name = "SOURCE")]
    pub populate: Option<OsString>,
    /// As small as what it is filled with allows
    #[arg(long, requires = "populate")]
    pub minimize: bool,
    /// Label, at most 12 bytes
    #[arg(short = 'L', allow_hyphen_values = true)]
    pub label: Option<String>,
    /// Overwrite what is there
    #[arg(short)]
    pub force: bool,
    /// Do not discard what is there first
    #[arg(short = 'K')]
    pub no_discard: bool,
    /// Show what would be made
    #[arg(short = 'N')]
    pub dry_run: bool,
    /// Print nothing
    #[arg(short)]
    pub quiet: bool,
    /// Small volumes need no permission here
    #[arg(long, hide = true)]
    pub unsupported: bool,
    /// The image or device; an image that does not exist is made with `-d size=`
    pub image: PathBuf,
}
