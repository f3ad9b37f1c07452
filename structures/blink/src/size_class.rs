//! The size classes of a tree's blocks.

use fatbtree_remote_memory::SizeClass;

use crate::config::TreeConfig;

/// Leaf nodes.
pub const LEAVES: SizeClass = SizeClass(0);

/// Internal nodes.
pub const INTERNAL_NODES: SizeClass = SizeClass(1);

/// Records: values out of line, of several sizes.
pub const RECORDS: SizeClass = SizeClass(2);

/// Layers below the first one: the first leaf of each with the layer's head behind it.
pub const LAYERS: SizeClass = SizeClass(3);

/// Other leaves of layers below the first one. Memory of their nodes never becomes a node of the first layer, where switches lead.
pub const LAYER_LEAVES: SizeClass = SizeClass(4);

/// Internal nodes of layers below the first one.
pub const LAYER_INTERNAL_NODES: SizeClass = SizeClass(5);

/// All of them, by number.
pub const CLASSES: [SizeClass; 6] =
    [LEAVES, INTERNAL_NODES, RECORDS, LAYERS, LAYER_LEAVES, LAYER_INTERNAL_NODES];

/// Names for people, by number.
pub const NAMES: [&str; CLASSES.len()] =
    ["leaves", "internal nodes", "records", "layers", "leaves of layers", "internal nodes of layers"];

/// Class of the nodes of a level.
pub(crate) const fn of_node(tree: &TreeConfig, level: u8) -> SizeClass {
    match (tree.layer(), level) {
        (None, 0) => LEAVES,
        (None, _) => INTERNAL_NODES,
        (Some(_), 0) => LAYER_LEAVES,
        (Some(_), _) => LAYER_INTERNAL_NODES,
    }
}

/// Name of a class.
pub(crate) fn name(class: SizeClass) -> &'static str {
    NAMES.get(usize::from(class.0)).copied().unwrap_or("blocks")
}
