//! The table's description on the wire.

use fatbtree_memserver::grpc::{Describe, MessageError};
use fatbtree_remote_memory::HEADER_BYTES;

use crate::layout::{Shape, TableInfo};

/// The description is the [header](fatbtree_remote_memory::RegionHeader) of a region of the table, but for its length: all of it is there.
impl Describe for TableInfo {
    const STRUCTURE: &'static str = "hash";

    fn encode(&self) -> Vec<u8> {
        self.shape.header(self.directory, 0, 0).to_bytes().into()
    }

    fn decode(_server: u16, description: &[u8]) -> Result<Self, MessageError> {
        let line: Option<&[u8; HEADER_BYTES]> = description.try_into().ok();
        let found = line.and_then(Shape::of_header);
        let (shape, directory) = found.ok_or_else(|| {
            MessageError::structure(
                "the description is no hash table's of this version: do both ends run the same version?",
            )
        })?;
        Ok(Self { shape, directory })
    }
}
