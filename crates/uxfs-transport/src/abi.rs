//! What the kernel and a server of FUSE say to each other, as bytes: version 7.31 (Linux 5.4) and later.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The only version there is.
pub const MAJOR: u32 = 7;
/// The first of its revisions that will do, and the last that is spoken.
pub const MINORS: std::ops::RangeInclusive<u32> = 31..=45;

/// Kinds of requests.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// What a server may ask for when it is mounted, as far as the kernel offers it.
pub mod init {
    pub const ASYNC_READ: u64 = 1;
    /// Nodes are found by their numbers, as names `.` and `..` of them, so file handles outlast what the kernel knows.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The server applies the umask.
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// The server takes away set-user-ID bits and capabilities.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests come over io_uring; only offered where root has allowed it.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// What the kernel is told of an open file.
pub mod open {
    pub const DIRECT_IO: u32 = 1;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// What is said of a write.
pub mod write {
    /// It comes from the kernel's cache.
    pub const CACHE: u32 = 1;
    /// It takes away set-user-ID bits.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Commands of io_uring.
pub mod ring {
    /// Offers room for requests of one queue.
    pub const REGISTER: u32 = 1;
    /// Answers a request, and offers the room again.
    pub const COMMIT_AND_FETCH: u32 = 2;
}

/// Which attributes a SETATTR changes.
pub mod valid {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $t:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $t),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// In front of every request.
    InHeader: 40 { len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32, extensions: u16, padding: u16 }
    /// In front of every answer.
    OutHeader: 16 { len: u32, error: i32, unique: u64 }
    /// As much of INIT as every kernel sends; `flags2` follows where `INIT_EXT` is among the flags.
    InitIn: 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32,
        time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, unused: [u32; 6],
    }
    WireAttr: 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut: 128 {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: WireAttr,
    }
    AttrOut: 104 { valid: u64, valid_nsec: u32, dummy: u32, attr: WireAttr }
    Forget: 8 { nlookup: u64 }
    BatchForget: 8 { count: u32, dummy: u32 }
    ForgetOne: 16 { node: u64, nlookup: u64 }
    SetattrIn: 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn: 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn: 8 { mode: u32, umask: u32 }
    RenameIn: 8 { newdir: u64 }
    Rename2In: 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn: 8 { node: u64 }
    OpenIn: 8 { flags: u32, open_flags: u32 }
    OpenOut: 16 { fh: u64, open_flags: u32, backing_id: u32 }
    /// Of CREATE and TMPFILE.
    CreateIn: 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// Of READ, READDIR and READDIRPLUS.
    ReadIn: 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn: 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteOut: 8 { size: u32, padding: u32 }
    StatfsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    FsyncIn: 16 { fh: u64, flags: u32, padding: u32 }
    SetxattrIn: 8 { size: u32, flags: u32 }
    /// Of GETXATTR and LISTXATTR; the same form answers with a size.
    Getxattr: 8 { size: u32, padding: u32 }
    IoctlIn: 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut: 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    FallocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn: 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut: 8 { offset: u64 }
    /// Of both forms of COPY_FILE_RANGE.
    CopyIn: 56 { fh_in: u64, off_in: u64, node_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    CopyOut: 8 { bytes: u64 }
    Dirent: 24 { ino: u64, next: u64, namelen: u32, kind: u32 }
    StatxTime: 16 { sec: i64, nsec: u32, reserved: i32 }
    StatxOut: 288 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2],
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64, size: u64,
        blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime, ctime: StatxTime, mtime: StatxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Parts of a request and its answer that io_uring carries beside the rest: their headers, the request's fixed part, and how much rest
    /// there is.
    RingHeaders: 288 {
        in_out: [u64; 16], fixed: [u64; 16], flags: u64, commit_id: u64, payload_bytes: u32, padding: u32, reserved: u64,
    }
    RingCommand: 24 { flags: u64, commit_id: u64, queue: u16, padding0: u16, padding: u32 }
}

impl OutHeader {
    /// Of an answer: a failed one has no body, whatever `len` says.
    pub fn of(unique: u64, result: crate::Result<()>, len: usize) -> OutHeader {
        let (error, len) = result.map_or_else(|e| (-e.raw_os_error(), 0), |()| (0, len));
        OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique }
    }
}
