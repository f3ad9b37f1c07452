//! A memory server's description of itself.

use std::ops::Deref;

use fatbtree_verbs::{Mtu, Region, Remote};

use crate::locks::{Owner, Writer};

/// Origin of a server's structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Origin {
    /// An operator has loaded it, or the server has begun with one that is not empty.
    #[default]
    Meant,
    /// The server has begun with an empty one. It may be the first one, to be filled by clients; or a former one was lost.
    Begun,
    /// The server has begun with an empty one, and was told that there was another one before. It serves no
    /// client until it is loaded.
    Lost,
}

/// Content of a server and how to reach it. The fields of `structure` can be read as if they were here, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerInfo<S> {
    /// The server's number, which is in the addresses of its memory.
    pub server: u16,
    /// The tenant's description of the structure.
    pub structure: S,
    /// Number of times that the region was filled.
    pub generation: u64,
    /// The region. Its first byte is address `server << 48`, so that pointers in the structure are addresses.
    pub region: Region,
    /// Memory for locks, if the server has any.
    pub locks: Option<LockTable>,
    /// The server's device carries out masked atomics.
    pub masked_atomics: bool,
    /// The server's device reads and writes lines of 64 bytes whole.
    pub line_atomicity: bool,
    /// Largest path MTU the server does.
    pub path_mtu: Mtu,
    /// What is written to the server reaches a disk, some time after it is acknowledged.
    pub syncs: bool,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Origin of the structure.
    pub origin: Origin,
}

impl<S> Deref for ServerInfo<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.structure
    }
}

impl<S> ServerInfo<S> {
    /// Data that a client needs to write to this server's memory, for
    /// [`RemoteMemory::set_writer`](crate::RemoteMemory::set_writer): `owner` as its lease tells,
    /// and whether its own device carries out masked atomics, which both must do. Nothing where there are no
    /// locks.
    #[must_use]
    pub fn writer(&self, owner: Option<Owner>, client_masked_atomics: bool) -> Option<Writer> {
        let (table, owner) = (self.locks?, owner?);
        let first = |region: Region| Remote { address: region.iova, rkey: region.rkey };
        // Whole words: some clients change four locks at a time.
        let count = u32::try_from(table.region.len / 8 * 4).unwrap_or(u32::MAX - 3);
        (count > 0).then_some(Writer {
            locks: first(table.region),
            count,
            owners: first(table.owners),
            owner,
            masked_atomics: self.masked_atomics && client_masked_atomics,
            syncs: self.syncs,
        })
    }
}

/// Memory for locks, zeroed.
///
/// Its first byte is address 0: ConnectX registers memory of the device from there and nowhere else (`ibv_reg_dm_mr` wants
/// `IBV_ACCESS_ZERO_BASED`), and what is registered under its own rkey cannot be taken for the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockTable {
    /// Region of the lock table.
    pub region: Region,
    /// Whether it lies on the device itself, where atomics are fast (Sherman section 4.3); otherwise in
    /// ordinary memory, because the device has none.
    pub on_device: bool,
    /// The table of owners, which clients may only read: a bit for each of the 65,536 numbers, word o / 64,
    /// bit o % 64. A bit is set as long as the session that has the number lasts. Cleared after the session's
    /// queue pairs were destroyed: nothing of it is written then. Behind the bits lies the name of each number's session.
    pub owners: Region,
}
