//! Calls of `ioctl` that FUSE carries: flags, hints and projects of files, trimming, label, generation, shutting down.

use crate::front::errno as engine;
use uxfs::{FileFlags, Fs, IoMode, OpenFile, xflag};
use uxfs_transport::{Errno, Result};

/// `FS_IOC_GETFLAGS` and its kin, as numbers of the system.
mod request {
    pub const GETFLAGS: u32 = 0x8008_6601;
    pub const SETFLAGS: u32 = 0x4008_6602;
    pub const GETVERSION: u32 = 0x8008_7601;
    pub const FSGETXATTR: u32 = 0x801c_581f;
    pub const FSSETXATTR: u32 = 0x401c_5820;
    pub const FITRIM: u32 = 0xc018_5879;
    pub const GETFSLABEL: u32 = 0x8100_9431;
    pub const SETFSLABEL: u32 = 0x4100_9432;
    /// `XFS_IOC_GOINGDOWN`. Its number says that it tells something, so FUSE does not pass on whether the log is to be forced: it is.
    pub const GOINGDOWN: u32 = 0x8004_587d;
    /// Ours: how an open file is read and written, as a number of 32 bits (0 buffered, 1 dontcache, 2 direct).
    pub const GETIOMODE: u32 = 0x8004_7540;
    pub const SETIOMODE: u32 = 0x4004_7541;
}

/// The older bits of `FS_IOC_GETFLAGS`, beside ours.
const OLD: [(u32, u32); 7] = [
    (0x8, xflag::SYNC),
    (0x10, xflag::IMMUTABLE),
    (0x20, xflag::APPEND),
    (0x40, xflag::NODUMP),
    (0x80, xflag::NOATIME),
    (0x0200_0000, xflag::DAX),
    (0x2000_0000, xflag::PROJINHERIT),
];
/// Bytes of `struct fsxattr`.
const FSXATTR: usize = 28;
/// Bytes of a label's buffer.
const LABEL: usize = 256;
/// Bits that nobody sets: preallocated, and that there are attributes.
const TOLD: u32 = 0x2 | xflag::HASATTR;

fn translate(bits: u32, to_old: bool) -> u32 {
    OLD.iter()
        .map(|(old, new)| if to_old { (*new, *old) } else { (*old, *new) })
        .filter(|(from, _)| bits & from != 0)
        .fold(0, |b, x| b | x.1)
}

fn word(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn encode(f: &FileFlags) -> Vec<u8> {
    let extents = u32::try_from(f.extents).unwrap_or(u32::MAX);
    let mut out: Vec<u8> = [f.bits, f.extsize, extents, f.project, f.cowextsize].into_iter().flat_map(u32::to_ne_bytes).collect();
    out.resize(FSXATTR, 0);
    out
}

fn decode(b: &[u8]) -> Option<FileFlags> {
    let (bits, extsize, project, cowextsize) = (word(b, 0)?, word(b, 4)?, word(b, 12)?, word(b, 16)?);
    Some(FileFlags { bits, extsize, cowextsize, project, extents: 0 })
}

/// True for calls that are about an open file, not about the inode.
pub fn is_for_open_file(call: u32) -> bool {
    matches!(call, request::GETIOMODE | request::SETIOMODE)
}

/// Answers such a call.
///
/// # Errors
/// `ENOTTY` where the kernel caches: then nobody chooses; `EINVAL` for a number that names no mode.
pub fn answer_open(file: Option<&OpenFile>, call: u32, input: &[u8]) -> Result<Vec<u8>> {
    let file = file.ok_or(Errno::NOTTY)?;
    if call == request::SETIOMODE {
        let mode = word(input, 0).and_then(IoMode::of_number).ok_or(Errno::INVAL)?;
        file.set_mode(mode);
        return Ok(Vec::new());
    }
    Ok(file.mode().number().to_ne_bytes().to_vec())
}

/// Answers a call: what goes back to the caller. The kernel has checked who may change flags.
///
/// # Errors
/// `ENOTTY` for calls that are not known, `EPERM` for those that only root may use; the engine's.
pub fn answer(fs: &Fs, ino: u64, uid: u32, call: u32, input: &[u8]) -> Result<Vec<u8>> {
    match call {
        request::GETFLAGS => {
            let old = translate(fs.file_flags(ino).map_err(engine)?.bits, true);
            Ok(old.to_ne_bytes().to_vec())
        }
        request::SETFLAGS => {
            let old = word(input, 0).ok_or(Errno::INVAL)?;
            let all = OLD.iter().fold(0, |b, x| b | x.0);
            if old & !all != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            let mut f = fs.file_flags(ino).map_err(engine)?;
            f.bits = f.bits & !translate(all, false) | translate(old, false);
            fs.set_file_flags(ino, f).map_err(engine)?;
            Ok(Vec::new())
        }
        request::FSGETXATTR => Ok(encode(&fs.file_flags(ino).map_err(engine)?)),
        request::FSSETXATTR => {
            let mut f = decode(input).ok_or(Errno::INVAL)?;
            // What is told only is often handed back as it was.
            let told = fs.file_flags(ino).map_err(engine)?.bits;
            f.bits = f.bits & !TOLD | told & TOLD;
            fs.set_file_flags(ino, f).map_err(engine)?;
            Ok(Vec::new())
        }
        request::GETVERSION => Ok(u64::from(fs.stat(ino).map_err(engine)?.generation).to_ne_bytes().to_vec()),
        request::FITRIM | request::SETFSLABEL | request::GOINGDOWN if uid != 0 => Err(Errno::PERM),
        request::FITRIM => {
            let number = |i: usize| input.get(8 * i..8 * i + 8).and_then(|b| b.try_into().ok()).map(u64::from_ne_bytes);
            let (Some(start), Some(len), Some(least)) = (number(0), number(1), number(2)) else { return Err(Errno::INVAL) };
            if start != 0 || len < fs.geometry().dblocks << fs.geometry().blocklog {
                return Err(Errno::OPNOTSUPP);
            }
            let done = fs.trim(least).map_err(engine)?;
            Ok([start, done, least].into_iter().flat_map(u64::to_ne_bytes).collect())
        }
        request::GETFSLABEL => {
            let mut label = fs.label().map_err(engine)?;
            label.resize(LABEL, 0);
            Ok(label)
        }
        request::SETFSLABEL => {
            let label = input.split(|c| *c == 0).next().unwrap_or_default();
            fs.set_label(label).map_err(engine)?;
            Ok(Vec::new())
        }
        request::GOINGDOWN => {
            fs.shut_down().map_err(engine)?;
            Ok(vec![0; 4])
        }
        _ => Err(Errno::NOTTY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_both_ways() {
        for (old, new) in OLD {
            assert_eq!((translate(old, false), translate(new, true)), (new, old));
        }
        let f = FileFlags { bits: 0x801, extsize: 4096, cowextsize: 8192, project: 7, extents: 0 };
        assert_eq!((encode(&f).len(), decode(&encode(&f))), (FSXATTR, Some(f)));
    }
}
