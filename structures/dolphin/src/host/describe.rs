//! The index's description on the wire.

use std::fmt;

use fatbtree_memserver::grpc::{Describe, MessageError};
use fatbtree_remote_memory::{HEADER_BYTES, ServerSet};

use crate::layout::Shape;

/// The description is the [header](fatbtree_remote_memory::RegionHeader) of a region of the index, but for its length:
/// all of it is there.
impl Describe for Shape {
    const STRUCTURE: &'static str = "dolphin";

    fn encode(&self) -> Vec<u8> {
        self.header(0, 0).to_bytes().into()
    }

    fn decode(_server: u16, description: &[u8]) -> Result<Self, MessageError> {
        let line: Option<&[u8; HEADER_BYTES]> = description.try_into().ok();
        line.and_then(Self::of_header).ok_or_else(|| {
            MessageError::structure(
                "the description is no Dolphin index's of this version: do both ends run the same version?",
            )
        })
    }
}

/// Words for people: `index root=4194432 values to 1048576 bytes, memory servers 0, 1`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (root, servers) = (self.root().at().raw(), ServerSet(self.servers));
        write!(f, "index root={root} values to {} bytes, {servers}", self.max_value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_as_it_was_written() {
        let shape = Shape { servers: 0b1010, max_value: 100 };
        let message = shape.encode();
        assert_eq!(Shape::decode(1, &message).ok(), Some(shape));
        assert!(Shape::decode(1, &message[1..]).is_err());
        assert!(Shape::decode(1, &[0; HEADER_BYTES]).is_err());
    }
}
