//! Options as mkfs.xfs spells them: `-d su=64k,sw=4`.

use crate::features::Features;
use crate::geometry::{MkfsError, Options};
use crate::parse_uuid;
use uxfs_format::superblock::ro_compat;

/// What this option says is always so in volumes that uxfs makes.
const FIXED: &[(char, &str, &str)] = &[
    ('m', "crc", "1"),
    ('m', "metadir", "0"),
    ('d', "file", "1"),
    ('d', "rtinherit", "0"),
    ('d', "daxinherit", "0"),
    ('i', "attr", "2"),
    ('i', "projid32bit", "1"),
    ('i', "align", "1"),
    ('l', "internal", "1"),
    ('l', "version", "2"),
    ('l', "lazy-count", "1"),
    ('n', "version", "2"),
    ('n', "ftype", "1"),
];

/// Keys of each section that hold a value, beside those of [`Features`].
const VALUES: &[(char, &[&str])] = &[
    ('b', &["size"]),
    (
        'd',
        &["size", "sectsize", "agcount", "agsize", "su", "sw", "sunit", "swidth", "noalign", "projinherit", "extszinherit", "cowextsize"],
    ),
    ('i', &["size", "perblock", "maxpct"]),
    ('l', &["size", "su", "sunit", "agnum", "logdev"]),
    ('m', &["uuid"]),
    ('n', &["size"]),
    ('s', &["size", "sectsize"]),
];

fn bad<T>(msg: String) -> Result<T, MkfsError> {
    Err(MkfsError::Option(msg))
}

/// A number as mkfs.xfs reads it, which is as C does: `0x` before a hexadecimal one, `0` before an octal one.
fn number(text: &str) -> Option<u64> {
    let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    match (hex, text.strip_prefix('0')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    }
}

/// Reads a number of bytes: digits and a suffix, as mkfs.xfs takes them. Blocks (`b`) and sectors (`s`) are those given.
///
/// # Errors
/// [`MkfsError::Option`] for anything else.
fn bytes(text: &str, block: u32, sector: u32) -> Result<u64, MkfsError> {
    let (start, radix) = if text.starts_with("0x") || text.starts_with("0X") { (2, 16) } else { (0, 10) };
    let cut = text[start..].find(|c: char| !c.is_digit(radix)).map_or(text.len(), |n| start + n);
    let (digits, suffix) = text.split_at(cut);
    let factor = match suffix.to_ascii_lowercase().as_str() {
        "" => Some(1),
        "s" => Some(u64::from(sector)),
        "b" => Some(u64::from(block)),
        one => "kmgtpe".find(one).filter(|_| one.len() == 1).map(|i| 1 << (10 * (i + 1))),
    };
    match (number(digits), factor) {
        (Some(n), Some(f)) => n.checked_mul(f).map_or_else(|| bad(format!("{text} is too large")), Ok),
        _ => bad(format!("{text:?} is no size: digits and one of k, m, g, t, p, e, b (blocks) or s (sectors)")),
    }
}

/// Stripe geometry may come in parts.
#[derive(Default)]
struct Stripe {
    unit: Option<u64>,
    /// In stripe units.
    times: Option<u64>,
    width: Option<u64>,
    off: bool,
}

impl Options {
    /// Takes options as mkfs.xfs does: for each its letter, and the words behind it. Words on sizes of blocks and sectors
    /// may stand behind those that are measured in them.
    ///
    /// # Errors
    /// [`MkfsError::Option`] that names the word and what is possible.
    pub fn take(&mut self, words: &[(char, &str)]) -> Result<(), MkfsError> {
        let pairs: Vec<(char, &str, &str)> = words
            .iter()
            .flat_map(|(section, list)| list.split(',').map(move |w| (*section, w)))
            .map(|(section, w)| w.split_once('=').map_or((section, w, ""), |(k, v)| (section, k, v)))
            .collect();
        // Sizes of blocks and sectors first.
        let mut stripe = Stripe::default();
        let first = |p: &&(char, &str, &str)| matches!((p.0, p.1), ('b' | 's', "size") | ('s' | 'd', "sectsize"));
        for &(section, key, value) in pairs.iter().filter(first).chain(pairs.iter().filter(|p| !first(p))) {
            self.take_one(section, key, value, &mut stripe)?;
        }
        // Counters of a tree that is not wanted go with it, unless somebody wants them.
        let wanted = |p: &(char, &str, &str)| (p.0, p.1) == ('m', "inobtcount") && p.2 != "0";
        if !self.features.ro(ro_compat::FINOBT) && !pairs.iter().any(wanted) {
            self.features.set('m', "inobtcount", false);
        }
        self.finish_stripe(&stripe)
    }

    fn take_one(&mut self, section: char, key: &str, value: &str, stripe: &mut Stripe) -> Result<(), MkfsError> {
        // What is on or off is on where nothing else is said.
        let flag = if value.is_empty() { "1" } else { value };
        let on = || match number(flag) {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            _ => bad(format!("-{section} {key}={value}: 0 and 1 are possible")),
        };
        if let Some((_, _, fixed)) = FIXED.iter().find(|f| f.0 == section && f.1 == key) {
            return if flag == *fixed { Ok(()) } else { bad(format!("-{section} {key}={flag} is not supported; {fixed} is")) };
        }
        if Features::keys(section).any(|k| k == key) {
            self.features.set(section, key, on()?);
            return Ok(());
        }
        if value.is_empty() && key != "noalign" && VALUES.iter().any(|v| v.0 == section && v.1.contains(&key)) {
            return bad(format!("-{section} {key} needs a value"));
        }
        let size = || bytes(value, self.block, self.sector);
        let number = || {
            let n = number(value).and_then(|n| u32::try_from(n).ok());
            n.map_or_else(|| bad(format!("-{section} {key}={value}: a number is needed")), Ok)
        };
        let positive = |n: u64| if n == 0 { bad(format!("-{section} {key}={value} is too small")) } else { Ok(n) };
        let fits = |n: u64| u32::try_from(n).or_else(|_| bad(format!("-{section} {key}={value} is too large")));
        let small = || fits(size()?);
        // Old keys count in units of 512 bytes.
        let old = || number().map(|n| u64::from(n) * 512);
        match (section, key) {
            ('b', "size") => self.block = small()?,
            ('s', "size" | "sectsize") | ('d', "sectsize") => self.sector = small()?,
            ('n', "size") => self.dir_block = Some(small()?),
            ('i', "size") => self.inode = small()?,
            ('i', "perblock") => self.inode = self.block.checked_div(number()?).unwrap_or(0),
            ('i', "maxpct") => self.imax_pct = Some(number()?.min(255) as u8),
            ('d', "size") => self.size = positive(size()?)?,
            ('d', "agcount") => self.agcount = Some(number()?),
            ('d', "agsize") => self.agsize = Some(size()?),
            ('d', "su") => stripe.unit = Some(size()?),
            ('d', "sw") => stripe.times = Some(u64::from(number()?)),
            ('d', "sunit") => stripe.unit = Some(old()?),
            ('d', "swidth") => stripe.width = Some(old()?),
            ('d', "noalign") => stripe.off = on()?,
            ('d', "projinherit") => self.project = Some(number()?),
            ('d', "extszinherit") => self.extsize = Some(number()?),
            ('d', "cowextsize") => self.cowextsize = Some(number()?),
            ('l', "size") => self.log_size = Some(size()?),
            ('l', "su") => self.log_unit = Some(fits(positive(size()?)?)?),
            ('l', "sunit") => self.log_unit = Some(fits(positive(old()?)?)?),
            // Whoever opens devices has looked at it.
            ('l', "logdev" | "name") => {}
            ('l', "agnum") => self.log_group = Some(number()?),
            ('m', "uuid") => self.uuid = parse_uuid(value).map_or_else(|| bad(format!("{value:?} is no UUID")), Ok)?,
            _ => {
                let values = VALUES.iter().filter(|v| v.0 == section).flat_map(|v| v.1.iter().copied());
                let fixed = FIXED.iter().filter(|f| f.0 == section).map(|f| f.1);
                let known: Vec<&str> = values.chain(Features::keys(section)).chain(fixed).collect();
                return bad(format!("-{section} {key} is not supported; {} are", known.join(", ")));
            }
        }
        Ok(())
    }

    fn finish_stripe(&mut self, s: &Stripe) -> Result<(), MkfsError> {
        let width = match (s.unit, s.times, s.width) {
            _ if s.off => return Ok(()),
            // Disks that are said not to be striped.
            (None | Some(0), None, None) | (None, Some(0), None) => return Ok(()),
            (Some(u), Some(n), None) => u.checked_mul(n),
            (Some(_), None, Some(w)) => Some(w),
            _ => return bad("a stripe needs both su and sw, or both sunit and swidth".into()),
        };
        match (s.unit.map(u32::try_from), width.map(u32::try_from)) {
            (Some(Ok(unit)), Some(Ok(width))) => (self.stripe_unit, self.stripe_width) = (unit, width),
            _ => return bad("the stripe is too large".into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        let read = |t| bytes(t, 4096, 512).ok();
        for (text, n) in [("010", 8), ("0x1f", 31), ("0X10k", 16384), ("0", 0), ("0k", 0), ("2b", 8192), ("3s", 1536), ("7M", 7 << 20)] {
            assert_eq!(read(text), Some(n), "{text}");
        }
        for text in ["", "0x", "08", "x", "1x", "1kk", "-1", "16384p"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_not_said_is_what_mkfs_xfs_takes() {
        let take = |words: &[(char, &str)]| {
            let mut o = Options { features: Features::NEWEST, ..Options::new(300 << 20, [0; 16]) };
            o.take(words).and_then(|()| o.superblock())
        };
        let counted = |words: &[(char, &str)]| take(words).expect("a volume").features_ro_compat.get() & ro_compat::INOBTCNT != 0;
        assert!(counted(&[('m', "finobt")]) && counted(&[('m', "finobt=,rmapbt=0")]));
        assert!(!counted(&[('m', "finobt=0")]) && !counted(&[('m', "inobtcount=0,finobt=0")]));
        for word in ["su=0", "sw=0", "su=0,sw=4", "noalign=0,agcount=010", "extszinherit=9600,cowextsize=0x2580"] {
            assert!(take(&[('d', word)]).is_ok(), "{word}");
        }
        let no = ["size=0", "size=9223372036854775808", "noalign=2", "agcount", "agsize=", "extszinherit", "agsize=1g"];
        for word in no.iter().chain(&["su=64k,sw=0", "extszinherit=9601", "cowextsize=9601", "extszinherit=2097152"]) {
            assert!(take(&[('d', word)]).is_err(), "{word}");
        }
        for words in [('l', "su=0"), ('l', "sunit=0"), ('m', "inobtcount=1,finobt=0"), ('m', "finobt=0,inobtcount")] {
            assert!(take(&[words]).is_err(), "{words:?}");
        }
        assert!(take(&[('m', "reflink=0"), ('d', "cowextsize=4")]).is_err());
    }

    #[test]
    fn words_become_options() {
        let mut o = Options::new(0, [0; 16]);
        o.take(&[('d', "size=10000b,su=4b,sw=3"), ('m', "crc=1,rmapbt"), ('b', "size=1k"), ('l', "sunit=64")]).expect("options");
        assert_eq!((o.size, o.block, o.stripe_unit, o.stripe_width), (10_240_000, 1024, 4096, 12288));
        assert_eq!(o.log_unit, Some(32768));
        for (section, word) in
            [('m', "crc=0"), ('d', "su=64k"), ('i', "size=x"), ('d', "size=9999999999t"), ('r', "rtdev=/dev/x"), ('b', "size=5g")]
        {
            assert!(Options::new(0, [0; 16]).take(&[(section, word)]).is_err(), "-{section} {word}");
        }
    }
}
