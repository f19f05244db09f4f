//! POSIX access control lists: as attributes hold them, and as the kernel's `system.posix_acl_*` do (format facts, section 9).

use crate::bytes::*;

/// Name of the attribute with the access list, in the namespace `trusted`.
pub const ACCESS: &[u8] = b"SGI_ACL_FILE";
/// The same for the list that new entries of a directory inherit.
pub const DEFAULT: &[u8] = b"SGI_ACL_DEFAULT";
/// Most entries that an attribute holds.
pub const MAX_ENTRIES: usize = 5461;

/// Whom an entry is for.
pub mod tag {
    /// The owner.
    pub const USER_OBJ: u16 = 1;
    /// A user by number.
    pub const USER: u16 = 2;
    /// The group.
    pub const GROUP_OBJ: u16 = 4;
    /// A group by number.
    pub const GROUP: u16 = 8;
    /// The most that named users and groups get.
    pub const MASK: u16 = 0x10;
    /// All others.
    pub const OTHER: u16 = 0x20;
}

/// Version of the kernel's form.
const VERSION: u32 = 2;
/// What both forms have where an entry names nobody: no user and no group has this number.
pub const NOBODY: u32 = u32::MAX;

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// One of [`tag`].
    pub tag: u16,
    /// Number of the user or group; 0 where none is named.
    pub id: u32,
    /// Read 4, write 2, execute 1.
    pub perm: u16,
}

/// A list: one entry for owner, group and others each, then maybe more, with a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

fn is_named(t: u16) -> bool {
    matches!(t, tag::USER | tag::GROUP)
}

impl Acl {
    /// A list from its entries.
    ///
    /// # Errors
    /// In words, if they are no valid list.
    pub fn new(mut entries: Vec<Entry>) -> Result<Acl, &'static str> {
        entries.sort_by_key(|e| (e.tag, e.id));
        let count = |t: u16| entries.iter().filter(|e| e.tag == t).count();
        if entries.iter().any(|e| e.perm > 7 || e.tag.count_ones() != 1 || e.tag > tag::OTHER) {
            return Err("an access control list has an entry out of range");
        }
        if [tag::USER_OBJ, tag::GROUP_OBJ, tag::OTHER].iter().any(|t| count(*t) != 1) || count(tag::MASK) > 1 {
            return Err("an access control list needs one entry each for owner, group and others, and at most one mask");
        }
        if entries.windows(2).any(|w| is_named(w[0].tag) && (w[0].tag, w[0].id) == (w[1].tag, w[1].id)) {
            return Err("an access control list names somebody twice");
        }
        if count(tag::USER) + count(tag::GROUP) > 0 && count(tag::MASK) == 0 {
            return Err("an access control list that names somebody needs a mask");
        }
        if entries.len() > MAX_ENTRIES {
            return Err("an access control list is too long");
        }
        Ok(Acl(entries))
    }

    /// The list that says what permission bits say.
    pub fn of_mode(mode: u16) -> Acl {
        let entry = |tag, shift: u16| Entry { tag, id: 0, perm: mode >> shift & 7 };
        Acl(vec![entry(tag::USER_OBJ, 6), entry(tag::GROUP_OBJ, 3), entry(tag::OTHER, 0)])
    }

    /// Its entries: the owner, named users, the group, named groups, the mask, others.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// The users and groups that it names.
    pub fn named(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter(|e| is_named(e.tag)).map(|e| e.id)
    }

    /// Reads an attribute's value.
    ///
    /// # Errors
    /// In words.
    pub fn decode(b: &[u8]) -> Result<Acl, &'static str> {
        let n = get32(b, 0) as usize;
        if n > MAX_ENTRIES || b.len() != 4 + 12 * n {
            return Err("an access control list has another size than it says");
        }
        let entry = |i: usize| {
            let at = 4 + 12 * i;
            let t = get32(b, at) as u16;
            Entry { tag: t, id: if is_named(t) { get32(b, at + 4) } else { 0 }, perm: get16(b, at + 8) }
        };
        Acl::new((0..n).map(entry).collect())
    }

    /// The attribute's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; 4 + 12 * self.0.len()];
        put32(&mut b, 0, self.0.len() as u32);
        for (i, e) in self.0.iter().enumerate() {
            let at = 4 + 12 * i;
            put32(&mut b, at, u32::from(e.tag));
            put32(&mut b, at + 4, if is_named(e.tag) { e.id } else { NOBODY });
            put16(&mut b, at + 8, e.perm);
        }
        b
    }

    /// Reads the kernel's form.
    ///
    /// # Errors
    /// In words.
    pub fn from_kernel(b: &[u8]) -> Result<Acl, &'static str> {
        let le16 = |at: usize| get16(b, at).swap_bytes();
        if b.len() < 4 || get32(b, 0).swap_bytes() != VERSION || !(b.len() - 4).is_multiple_of(8) {
            return Err("an access control list is of an unknown form");
        }
        let entry = |at: usize| {
            let t = le16(at);
            Entry { tag: t, id: if is_named(t) { get32(b, at + 4).swap_bytes() } else { 0 }, perm: le16(at + 2) }
        };
        Acl::new((4..b.len()).step_by(8).map(entry).collect())
    }

    /// The kernel's form.
    pub fn to_kernel(&self) -> Vec<u8> {
        let mut b = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            b.extend(e.tag.to_le_bytes());
            b.extend(e.perm.to_le_bytes());
            b.extend(if is_named(e.tag) { e.id } else { NOBODY }.to_le_bytes());
        }
        b
    }

    fn entry_mut(&mut self, t: u16) -> Option<&mut Entry> {
        self.0.iter_mut().find(|e| e.tag == t)
    }

    /// What stands for the group bits of a mode: the mask, or the group without one.
    fn group_tag(&self) -> u16 {
        if self.0.iter().any(|e| e.tag == tag::MASK) { tag::MASK } else { tag::GROUP_OBJ }
    }

    /// The permission bits that the list comes to; true if they say all that it says.
    pub fn mode(&self) -> (u16, bool) {
        let perm = |t: u16| self.0.iter().find(|e| e.tag == t).map_or(0, |e| e.perm);
        (perm(tag::USER_OBJ) << 6 | perm(self.group_tag()) << 3 | perm(tag::OTHER), self.0.len() == 3)
    }

    /// Follows a change of the permission bits.
    pub fn follow_mode(&mut self, mode: u16) {
        for (t, shift) in [(tag::USER_OBJ, 6), (self.group_tag(), 3), (tag::OTHER, 0)] {
            if let Some(e) = self.entry_mut(t) {
                e.perm = mode >> shift & 7;
            }
        }
    }

    /// What a new inode gets from its directory's default list: nothing more than `mode` asks for. Returns its permission
    /// bits.
    pub fn inherit(&mut self, mode: u16) -> u16 {
        for (t, shift) in [(tag::USER_OBJ, 6), (self.group_tag(), 3), (tag::OTHER, 0)] {
            if let Some(e) = self.entry_mut(t) {
                e.perm &= mode >> shift & 7;
            }
        }
        mode & !0o777 | self.mode().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn e(tag: u16, id: u32, perm: u16) -> Entry {
        Entry { tag, id, perm }
    }

    #[test]
    fn lists_come_back_as_they_went_and_follow_modes() {
        let all = vec![e(1, 0, 7), e(2, 1000, 6), e(4, 0, 5), e(8, 5, 4), e(16, 0, 7), e(32, 0, 0)];
        let mut a = Acl::new(all).unwrap();
        assert_eq!(Acl::decode(&a.encode()), Ok(a.clone()));
        assert_eq!(Acl::from_kernel(&a.to_kernel()), Ok(a.clone()));
        assert_eq!(a.mode(), (0o770, false));
        let mut child = a.clone();
        assert_eq!(child.inherit(0o100_664), 0o100_660);
        assert_eq!(child.mode(), (0o660, false));
        a.follow_mode(0o100_705);
        assert_eq!(a.mode(), (0o705, false));
        assert_eq!(Acl::new(vec![e(1, 0, 7), e(4, 0, 5), e(32, 0, 1)]).unwrap().mode(), (0o751, true));
    }

    #[test]
    fn lists_that_are_none_are_refused() {
        for bad in [
            vec![],
            vec![e(1, 0, 7), e(4, 0, 7)],
            vec![e(1, 0, 7), e(2, 9, 7), e(4, 0, 7), e(32, 0, 7)],
            vec![e(1, 0, 8), e(4, 0, 7), e(32, 0, 7)],
        ] {
            assert!(Acl::new(bad).is_err());
        }
        assert!(Acl::decode(&[0, 0, 0, 9]).is_err() && Acl::from_kernel(&[1, 0, 0, 0]).is_err());
    }
}
