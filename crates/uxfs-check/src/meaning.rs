//! What findings mean for whoever has the volume.

/// Codes that mean the same, and what.
const MEANINGS: &[(&[&str], &str)] = &[
    (
        &["superblock", "superblock-size", "superblock-inprogress", "log-place"],
        "The volume's description of itself cannot be trusted: do not write to it. A partition or image that was cut short, or a mkfs that did not \
         finish, looks so, too.",
    ),
    (
        &["superblock-copy", "superblock-rest", "superblock-quota", "superblock-frextents", "superblock-flags"],
        "Data is not concerned. A copy of the superblock or a field that nobody needs now is wrong; xfs_repair sets it right.",
    ),
    (&["unreadable"], "The device failed to give a block: look at the disk or its image first, before any repair."),
    (
        &[
            "block",
            "tree-level",
            "tree-owner",
            "tree-pointer",
            "tree-loop",
            "tree-few",
            "tree-sibling",
            "tree-order",
            "tree-key",
            "tree-high-key",
        ],
        "A metadata block is damaged: what it leads to may be out of reach. Copy what can be read, then let xfs_repair rebuild it.",
    ),
    (
        &["double-use"],
        "Two owners have the same blocks: at least one of them holds foreign data, and a write to one damages the other. Do not write; copy what matters \
         and compare it.",
    ),
    (&["lost-blocks", "cow-leftover"], "Space is lost, data is not. xfs_repair gives the blocks back."),
    (
        &["free-range", "free-joined", "free-trees", "agfl-indices", "agfl-block", "agf-longest", "agf-btreeblks"],
        "The lists of free space cannot be trusted: blocks in use could be given away by the next write. Do not write before xfs_repair has rebuilt them.",
    ),
    (
        &[
            "agf-freeblks",
            "agf-rmapblocks",
            "agf-refcountblocks",
            "agi-count",
            "agi-freecount",
            "agi-blocks",
            "sb-fdblocks",
            "sb-icount",
            "sb-ifree",
        ],
        "A counter is wrong, data is not. df may tell a wrong number, and a volume could seem full, or fail when it is; xfs_repair counts anew.",
    ),
    (
        &["rmap"],
        "The list of who owns which block disagrees with the owners. Data can be read; repairs that trust the list would go wrong.",
    ),
    (
        &["refcount", "refcount-range", "refcount-one", "refcount-cow"],
        "Shared blocks are miscounted: deleting or changing one file could free or change blocks of another. Do not write before xfs_repair has counted anew.",
    ),
    (
        &["inobt-place", "inobt-align", "inobt-counts", "inobt-overlap", "inobt-missing", "finobt", "inode-not-used", "inode-not-free"],
        "The lists of inodes disagree with the inodes: files could be taken for free and overwritten by new ones. Do not write before xfs_repair.",
    ),
    (
        &["inode", "inode-crc", "inode-forkoff", "inode-blocks", "fork", "symlink"],
        "One inode is damaged: its file, directory or link may not be readable as a whole. Others are not concerned.",
    ),
    (&["inode-field"], "A time, flag or hint of one inode cannot be so. Its data and names are not concerned; xfs_repair sets it right."),
    (
        &["unlinked", "inode-unlinked"],
        "A deleted file waits for its blocks to be freed; the next mount or recovery does that. Nothing that has a name is concerned.",
    ),
    (
        &["directory", "entry", "entry-type", "dir-twice", "dir-parent", "root"],
        "Names in a directory are damaged: files may not be found by name, though they are there. xfs_repair rebuilds it, or puts files into lost+found.",
    ),
    (&["orphan"], "A deleted file was not freed: its blocks and its inode are lost as space. Nothing that has a name is concerned."),
    (&["disconnected"], "Something has no name that leads to it. Its data is there; xfs_repair moves it to lost+found."),
    (
        &["nlink"],
        "A count of names is wrong: deleting one of them could free a file that still has others, or never free it. xfs_repair corrects it.",
    ),
    (
        &["parent-value", "parent-generation", "parent-missing", "parent-extra"],
        "The way back from a file to its directory is wrong. Names and data are not concerned; tools that show a file's path are.",
    ),
    (
        &["attribute-hidden"],
        "A crash left an attribute half set or half removed; nobody sees it. Setting and removing it again takes it out. xfs_repair would drop all attributes of the file.",
    ),
    (&["attribute"], "Extended attributes of a file (labels, access control lists) are damaged; its data is not."),
    (
        &["lsn-ahead"],
        "A block was written later than the log knows, as after a log was zeroed. A crash could then lose changes to it: xfs_repair moves the log ahead.",
    ),
    (
        &["log-recovery"],
        "The last changes before a crash cannot be replayed, so the volume was checked as it lies there. xfs_repair -L throws them away.",
    ),
];

/// What a finding of this code means for whoever has the volume; empty for a code that does not exist.
pub fn meaning(code: &str) -> &'static str {
    MEANINGS.iter().find(|m| m.0.contains(&code)).map_or("", |m| m.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_means_one_thing() {
        let codes: Vec<&str> = MEANINGS.iter().flat_map(|m| m.0).copied().collect();
        let mut once = codes.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), codes.len());
        assert!(meaning("double-use").contains("foreign data") && meaning("nonsense").is_empty());
    }
}
