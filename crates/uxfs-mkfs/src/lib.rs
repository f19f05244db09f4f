//! Geometry and first blocks of a new volume, as `mkfs.xfs` lays them out.
//!
//! Nothing here depends on the machine: the same options give the same bytes.

mod features;
mod geometry;
mod words;
mod write;

pub use features::Features;
pub use geometry::{MkfsError, Options, print_geometry};
pub use write::{UuidGenerator, add_groups, format, format_with_log, fresh_log};

/// Reads a UUID as text, with or without dashes.
pub fn parse_uuid(s: &str) -> Option<[u8; 16]> {
    let hex: Vec<u8> = s.bytes().filter(|b| *b != b'-').collect();
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut out = [0; 16];
    for (o, h) in out.iter_mut().zip(hex.chunks_exact(2)) {
        *o = u8::from_str_radix(std::str::from_utf8(h).ok()?, 16).ok()?;
    }
    Some(out)
}

/// A UUID as text.
pub fn uuid_text(u: &[u8; 16]) -> String {
    let h: String = u.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &h[..8], &h[8..12], &h[12..16], &h[16..20], &h[20..])
}
