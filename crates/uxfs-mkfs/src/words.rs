//! Options as mkfs.xfs spells them: `-d su=64k,sw=4`.

use crate::features::Features;
use crate::geometry::{MkfsError, Options};
use crate::parse_uuid;

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
    ('d', &["size", "agcount", "agsize", "su", "sw", "sunit", "swidth", "noalign", "projinherit", "extszinherit", "cowextsize"]),
    ('i', &["size", "perblock", "maxpct"]),
    ('l', &["size", "su", "sunit", "agnum", "logdev"]),
    ('m', &["uuid"]),
    ('n', &["size"]),
    ('s', &["size"]),
];

fn bad<T>(msg: String) -> Result<T, MkfsError> {
    Err(MkfsError::Option(msg))
}

/// Reads a number of bytes: digits and a suffix, as mkfs.xfs takes them. Blocks (`b`) and sectors (`s`) are those given.
///
/// # Errors
/// [`MkfsError::Option`] for anything else.
fn bytes(text: &str, block: u32, sector: u32) -> Result<u64, MkfsError> {
    let cut = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(cut);
    let factor = match suffix.to_ascii_lowercase().as_str() {
        "" => Some(1),
        "s" => Some(u64::from(sector)),
        "b" => Some(u64::from(block)),
        one => "kmgtpe".find(one).filter(|_| one.len() == 1).map(|i| 1 << (10 * (i + 1))),
    };
    match (digits.parse::<u64>(), factor) {
        (Ok(n), Some(f)) => n.checked_mul(f).map_or_else(|| bad(format!("{text} is too large")), Ok),
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
            .map(|(section, w)| w.split_once('=').map_or((section, w, "1"), |(k, v)| (section, k, v)))
            .collect();
        // Sizes of blocks and sectors first.
        let mut stripe = Stripe::default();
        let first = |p: &&(char, &str, &str)| matches!((p.0, p.1), ('b' | 's', "size"));
        for &(section, key, value) in pairs.iter().filter(first).chain(pairs.iter().filter(|p| !first(p))) {
            self.take_one(section, key, value, &mut stripe)?;
        }
        self.finish_stripe(&stripe)
    }

    fn take_one(&mut self, section: char, key: &str, value: &str, stripe: &mut Stripe) -> Result<(), MkfsError> {
        if let Some((_, _, fixed)) = FIXED.iter().find(|f| f.0 == section && f.1 == key) {
            return if value == *fixed { Ok(()) } else { bad(format!("-{section} {key}={value} is not supported; {fixed} is")) };
        }
        if Features::keys(section).any(|k| k == key) {
            let on = match value {
                "0" => false,
                "1" => true,
                _ => return bad(format!("-{section} {key}={value}: 0 and 1 are possible")),
            };
            self.features.set(section, key, on);
            return Ok(());
        }
        let size = || bytes(value, self.block, self.sector);
        let number = || value.parse::<u32>().or_else(|_| bad(format!("-{section} {key}={value}: a number is needed")));
        let small = || u32::try_from(size()?).or_else(|_| bad(format!("-{section} {key}={value} is too large")));
        // Old keys count in units of 512 bytes.
        let old = || number().map(|n| u64::from(n) * 512);
        match (section, key) {
            ('b', "size") => self.block = small()?,
            ('s', "size") => self.sector = small()?,
            ('n', "size") => self.dir_block = Some(small()?),
            ('i', "size") => self.inode = small()?,
            ('i', "perblock") => self.inode = self.block.checked_div(number()?).unwrap_or(0),
            ('i', "maxpct") => self.imax_pct = Some(number()?.min(255) as u8),
            ('d', "size") => self.size = size()?,
            ('d', "agcount") => self.agcount = Some(number()?),
            ('d', "agsize") => self.agsize = Some(size()?),
            ('d', "su") => stripe.unit = Some(size()?),
            ('d', "sw") => stripe.times = Some(u64::from(number()?)),
            ('d', "sunit") => stripe.unit = Some(old()?),
            ('d', "swidth") => stripe.width = Some(old()?),
            ('d', "noalign") => stripe.off = value != "0",
            ('d', "projinherit") => self.project = Some(number()?),
            ('d', "extszinherit") => self.extsize = Some(number()?),
            ('d', "cowextsize") => self.cowextsize = Some(number()?),
            ('l', "size") => self.log_size = Some(size()?),
            ('l', "su") => self.log_unit = Some(small()?),
            ('l', "sunit") => self.log_unit = Some(u32::try_from(old()?).or_else(|_| bad(format!("-l sunit={value} is too large")))?),
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
            (None, None, None) => return Ok(()),
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
