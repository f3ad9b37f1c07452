//! Memory that a server grants.

use fatbtree_verbs::Verbs;

use crate::address::GlobalAddress;
use crate::allocator::SizeClass;
use crate::locks::SessionId;
use crate::memory::RemoteMemory;

/// Places in one answer, and in one request, at most.
pub const BLOCKS_AT_ONCE: usize = 256;

/// Memory that a client gets on request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Grant {
    /// A part of a chunk. It is the structure's.
    Chunk(Chunk),
    /// Blocks that were used before; they are the structure's.
    Blocks(FreeBlocks),
}

impl Grant {
    /// Gives it to the client that has asked `server` for it in `session`.
    pub fn hand_to<V: Verbs>(&self, memory: &RemoteMemory<V>, server: u16, session: SessionId) {
        match self {
            Self::Chunk(chunk) => memory.grant(session, chunk.address, chunk.bytes, chunk.class),
            Self::Blocks(places) => {
                memory.grant_blocks(session, server, places.class, places.bytes, &places.addresses);
            }
        }
    }
}

/// Places of one size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreeBlocks {
    /// Class of the places.
    pub class: SizeClass,
    /// Bytes of each.
    pub bytes: u32,
    /// Their addresses.
    pub addresses: Vec<GlobalAddress>,
}

/// A part of a chunk as its holder is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its address, on a line border.
    pub address: GlobalAddress,
    /// Its size: up to that of a chunk.
    pub bytes: u64,
    /// Class of content.
    pub class: SizeClass,
}
