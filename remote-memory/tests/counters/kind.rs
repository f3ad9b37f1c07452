//! The smallest structure's line of the registry, which is all that joins it: for tests of what is made for any structure.

use fatbtree_registry::SpreadKind;
use fatbtree_verbs::Verbs;

pub(crate) use structure::Counters;
use structure::{Array, Shape};

mod structure;

/// Counters of the structure.
pub(crate) const COUNTERS: u32 = 200;

/// The line of the registry.
pub(crate) struct Toy;

impl SpreadKind for Toy {
    type Structure<V: Verbs + 'static> = Counters<V>;
    type Part = Array;

    fn shape(servers: u32) -> Shape {
        Shape { servers, counters: COUNTERS }
    }
}
