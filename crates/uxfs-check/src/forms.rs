//! In which forms things lie on a volume, and how high its trees are.

use std::collections::BTreeMap;
use std::fmt;

/// What has a form of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// A tree of a group, by its name.
    Tree(&'static str),
    /// Names in the directory's inode.
    DirInline,
    /// Names in one block.
    DirBlock,
    /// Names in blocks, under one leaf that counts their room, too.
    DirLeaf,
    /// Names in blocks, under a tree of hashes.
    DirTree,
    /// A block of a directory that does not lie in one piece.
    DirPieces,
    /// A directory whose extents lie in a tree.
    DirExtentTree,
    /// A file whose extents lie in its inode.
    FileExtents,
    /// A file whose extents lie in a tree.
    FileExtentTree,
    /// An extent that is allocated, and reads as zeros.
    Unwritten,
    /// A run of blocks that several files have.
    Shared,
    /// The target of a symbolic link in its inode.
    LinkInline,
    /// The target of a symbolic link in blocks.
    LinkBlocks,
    /// A device, pipe or socket.
    Special,
    /// Attributes in the inode.
    AttrInline,
    /// Attributes in blocks: leaves under a tree of hashes, of one level if there is one leaf.
    AttrTree,
    /// Attributes whose extents lie in a tree.
    AttrExtentTree,
    /// The value of an attribute in blocks of its own.
    AttrValue,
    /// An inode with times to the nanosecond in 64 bits.
    BigTime,
    /// An inode with wide counters of extents.
    WideCounters,
    /// A chunk of inodes of which some have no blocks.
    SparseChunk,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Form::Tree(name) => name,
            Form::DirInline => "directory in its inode",
            Form::DirBlock => "directory of one block",
            Form::DirLeaf => "directory with one leaf",
            Form::DirTree => "directory with a hash tree",
            Form::DirPieces => "directory block in pieces",
            Form::DirExtentTree => "directory with an extent tree",
            Form::FileExtents => "file with extents in its inode",
            Form::FileExtentTree => "file with an extent tree",
            Form::Unwritten => "unwritten extent",
            Form::Shared => "shared extent",
            Form::LinkInline => "link in its inode",
            Form::LinkBlocks => "link in blocks",
            Form::Special => "device, pipe or socket",
            Form::AttrInline => "attributes in the inode",
            Form::AttrTree => "attributes in a hash tree",
            Form::AttrExtentTree => "attributes with an extent tree",
            Form::AttrValue => "attribute value in blocks",
            Form::BigTime => "inode with 64-bit times",
            Form::WideCounters => "inode with wide counters",
            Form::SparseChunk => "chunk of inodes with holes",
        })
    }
}

/// How many things of a volume have each form and height. A tree's height is its number of levels, root included; what is none has 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forms(BTreeMap<(Form, u16), u64>);

impl Forms {
    /// Counts one.
    pub(crate) fn saw(&mut self, form: Form, height: u16) {
        *self.0.entry((form, height)).or_default() += 1;
    }

    /// Adds what another volume has, or the same one at another time.
    pub fn add(&mut self, other: &Forms) {
        other.0.iter().for_each(|(k, n)| *self.0.entry(*k).or_default() += n);
    }

    /// All, with how high they are and how many there are.
    pub fn iter(&self) -> impl Iterator<Item = (Form, u16, u64)> {
        self.0.iter().map(|((form, height), n)| (*form, *height, *n))
    }

    /// The greatest height of a form; `None` if there is none.
    pub fn highest(&self, form: Form) -> Option<u16> {
        self.0.range((form, 0)..=(form, u16::MAX)).next_back().map(|((_, height), _)| *height)
    }

    /// Those of the wanted ones of which none is so high.
    pub fn missing(&self, wanted: &[(Form, u16)]) -> Vec<(Form, u16)> {
        wanted.iter().filter(|(form, height)| self.highest(*form).is_none_or(|h| h < *height)).copied().collect()
    }
}
