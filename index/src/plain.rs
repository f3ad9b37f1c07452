//! Trees in plain memory: what tests, snapshots and simulators read without a network.

use std::collections::VecDeque;

use crate::address::GlobalAddress;
use crate::config::TreeConfig;
use crate::lookup::{Lookup, Outcome, Progress, Start, Trips};
use crate::super_root::SuperRoot;
use crate::verbs::{OpId, PostError, ReadFailure, Verbs};

/// Memory that can be read by global address.
pub trait Memory {
    /// The `len` bytes at `address`, if all of them exist.
    fn bytes(&self, address: GlobalAddress, len: u32) -> Option<&[u8]>;
}

/// Regions of several memory servers, each beginning at offset 0 of its server.
#[derive(Clone, Debug, Default)]
pub struct Regions<'m> {
    regions: Vec<(u16, &'m [u8])>,
}

impl<'m> Regions<'m> {
    /// Regions and the servers they belong to.
    pub fn new(regions: impl IntoIterator<Item = (u16, &'m [u8])>) -> Self {
        Self { regions: regions.into_iter().collect() }
    }
}

impl Memory for Regions<'_> {
    fn bytes(&self, address: GlobalAddress, len: u32) -> Option<&[u8]> {
        let (_, region) = self.regions.iter().find(|(server, _)| *server == address.server())?;
        let from = usize::try_from(address.offset()).ok()?;
        region.get(from..from.checked_add(len as usize)?)
    }
}

/// Verbs over plain memory: reads are queued and completed in the order in which they were posted.
///
/// `landing` plays the switches: given partition and key, the node on which an index read lands; null means that the
/// switches let it pass as it is, which the server refuses.
pub struct PlainVerbs<'m, M, L> {
    memory: &'m M,
    landing: L,
    posted: VecDeque<(OpId, GlobalAddress, u32)>,
}

impl<'m, M: Memory, L: FnMut(u16, u64) -> GlobalAddress> PlainVerbs<'m, M, L> {
    /// Verbs that read from `memory`.
    pub fn new(memory: &'m M, landing: L) -> Self {
        Self { memory, landing, posted: VecDeque::new() }
    }

    /// Carries out the oldest read that is under way.
    pub fn complete(&mut self) -> Option<(OpId, Result<&'m [u8], ReadFailure>)> {
        let (op, address, len) = self.posted.pop_front()?;
        let bytes = if address.is_null() { None } else { self.memory.bytes(address, len) };
        Some((op, bytes.ok_or(ReadFailure::RemoteAccess)))
    }
}

impl<M: Memory, L: FnMut(u16, u64) -> GlobalAddress> Verbs for PlainVerbs<'_, M, L> {
    fn read(&mut self, op: OpId, addr: GlobalAddress, len: u32) -> Result<(), PostError> {
        self.posted.push_back((op, addr, len));
        Ok(())
    }

    fn index_read(&mut self, op: OpId, partition: u16, key: u64, len: u32) -> Result<(), PostError> {
        let address = (self.landing)(partition, key);
        self.posted.push_back((op, address, len));
        Ok(())
    }
}

/// Runs one lookup to its end in plain memory.
pub fn lookup<'m, M: Memory>(
    memory: &'m M,
    config: &TreeConfig,
    roots: &SuperRoot,
    key: u64,
    start: Start,
    landing: impl FnMut(u16, u64) -> GlobalAddress,
) -> (Outcome<'m>, Trips) {
    let mut verbs = PlainVerbs::new(memory, landing);
    let mut lookup = Lookup::new(OpId(0), config);
    lookup.reset(key);
    lookup.start(roots, start, &mut verbs).expect("plain memory takes every read");
    loop {
        let (_, completion) = verbs.complete().expect("one read is under way until the lookup is done");
        match completion {
            Err(failure) => return (lookup.on_failure(failure), lookup.trips()),
            Ok(bytes) => match lookup.on_read(bytes, &mut verbs).expect("plain memory takes every read") {
                Progress::Posted => {}
                Progress::Done(outcome) => return (outcome, lookup.trips()),
            },
        }
    }
}
