//! The size classes of a tree's blocks.

use fatbtree_remote_memory::SizeClass;

/// Leaf nodes.
pub const LEAVES: SizeClass = SizeClass(0);

/// Internal nodes.
pub const INTERNAL_NODES: SizeClass = SizeClass(1);

/// Records: values out of line, of several sizes.
pub const RECORDS: SizeClass = SizeClass(2);

/// All of them, by number.
pub const CLASSES: [SizeClass; 3] = [LEAVES, INTERNAL_NODES, RECORDS];

/// Names for people, by number.
pub const NAMES: [&str; CLASSES.len()] = ["leaves", "internal nodes", "records"];

/// Class of the nodes of a level.
#[must_use]
pub const fn of_level(level: u8) -> SizeClass {
    if level == 0 { LEAVES } else { INTERNAL_NODES }
}

/// Name of a class.
pub(crate) fn name(class: SizeClass) -> &'static str {
    NAMES.get(usize::from(class.0)).copied().unwrap_or("blocks")
}
