//! The array as a tenant of a memory server: all that one must know of it.

use std::convert::Infallible;
use std::ops::Range;

use fatbtree_memserver::{Class, Found, Loaded, Origin, Seen, Shape, Tenant};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, SizeClass};
use fatbtree_verbs::Memory;

use crate::array::array_of;

/// Address and bytes of the array that the header names, if there is one.
#[derive(Debug)]
pub(crate) struct Array(Option<(GlobalAddress, u64)>);

impl Array {
    /// A region without an array, and memory for chunks.
    pub(crate) fn region(server: u16, spare_bytes: u64) -> Loaded<Self> {
        let begin = HEADER_BYTES as u64;
        Loaded {
            server,
            region: Memory::shared(begin + spare_bytes).expect("a small region finds memory"),
            spare: begin..begin + spare_bytes,
            generation: 1,
            origin: Origin::Meant,
            chunk_classes: None,
            shape: Shape {
                classes: vec![Class { name: "counters", ..Class::default() }],
                ..Shape::default()
            },
            tenant: Self(None),
        }
    }
}

impl Tenant for Array {
    type Description = GlobalAddress;
    type Request = Infallible;

    fn description(&self) -> GlobalAddress {
        self.root()
    }

    fn root(&self) -> GlobalAddress {
        self.0.map_or(GlobalAddress::NULL, |(base, _)| base)
    }

    fn see(&mut self, header: &[u8; HEADER_BYTES]) -> Seen {
        match array_of(header) {
            found if found == self.0 => Seen::Same,
            // There is one array for ever.
            Some(found) if self.0.is_none() => {
                self.0 = Some(found);
                Seen::Changed
            }
            _ => Seen::Refused,
        }
    }

    fn find(&self, _class: SizeClass, within: Range<u64>) -> Found {
        match self.0 {
            Some((base, bytes)) if base.offset() <= within.start && within.start < base.offset() + bytes => {
                Found::Block { end: (base.offset() + bytes).min(within.end), stamp: 0 }
            }
            Some((base, _)) if within.contains(&base.offset()) => Found::Nothing(base.offset()),
            _ => Found::Nothing(within.end),
        }
    }

    fn handle(&mut self, request: Infallible) {
        match request {}
    }
}
