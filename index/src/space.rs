//! Memory for new nodes and records: what the client has been given of each server, and who waits for more.

use std::collections::BTreeMap;
use std::fmt;
use std::task::Waker;

use crate::address::GlobalAddress;
use crate::record::{RECORD_ALIGN, RecordPointer, place_bytes};

/// What lies in a chunk of memory. It is used for nothing else, ever: a stale pointer to a node must meet a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum ChunkKind {
    /// Leaf nodes.
    Leaves,
    /// Internal nodes.
    InternalNodes,
    /// Records: values out of line.
    Records,
}

impl ChunkKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Leaves, Self::InternalNodes, Self::Records];

    pub(crate) const fn of_nodes(level: u8) -> Self {
        if level == 0 { Self::Leaves } else { Self::InternalNodes }
    }
}

impl fmt::Display for ChunkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leaves => "leaves",
            Self::InternalNodes => "internal nodes",
            Self::Records => "records",
        })
    }
}

/// Freed nodes of a kind on one server that a client keeps for itself.
pub const SURPLUS: usize = 64;

/// The rest of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    next: u64,
    end: u64,
}

/// Memory of one kind on one server.
#[derive(Debug, Default)]
struct Stock {
    rest: Rest,
    /// Nodes that were taken and not used, or merged away.
    returned: Vec<GlobalAddress>,
    /// The owner was asked for more and has not brought it.
    asked: bool,
    waiting: Vec<Waker>,
}

/// Nodes that a client has freed and does not need, for its server's lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReturnedNodes {
    /// Where they are.
    pub server: u16,
    /// Leaves or internal nodes.
    pub kind: ChunkKind,
    /// Their addresses.
    pub nodes: Vec<GlobalAddress>,
}

/// A place for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordPlace {
    pub(crate) address: GlobalAddress,
    /// The version that the next record there has.
    pub(crate) version: u32,
}

/// What a client has been given and not used, and what it has freed.
#[derive(Debug, Default)]
pub(crate) struct Space {
    stocks: BTreeMap<(u16, ChunkKind), Stock>,
    /// Places of freed records, by server and by their bytes.
    places: BTreeMap<(u16, u32), Vec<RecordPlace>>,
}

impl Space {
    /// Takes up a chunk. What was left of the one before is given up: it is less than what was wanted.
    pub(crate) fn supply(&mut self, address: GlobalAddress, bytes: u64, kind: ChunkKind) -> Vec<Waker> {
        let stock = self.stocks.entry((address.server(), kind)).or_default();
        stock.rest = Rest { next: address.offset(), end: address.offset() + bytes };
        stock.asked = false;
        std::mem::take(&mut stock.waiting)
    }

    /// Takes up single nodes that were used before.
    pub(crate) fn supply_nodes(
        &mut self,
        server: u16,
        kind: ChunkKind,
        nodes: &[GlobalAddress],
    ) -> Vec<Waker> {
        let stock = self.stocks.entry((server, kind)).or_default();
        stock.returned.extend_from_slice(nodes);
        stock.asked = false;
        std::mem::take(&mut stock.waiting)
    }

    /// Forgets what is left of chunks on a server, and nodes: some of them may be of such a chunk. Whoever waits asks once more. Places
    /// of freed records stay this client's: records were in them.
    pub(crate) fn forget(&mut self, server: u16) -> Vec<Waker> {
        let stocks = self.stocks.iter_mut().filter(|((found, _), _)| *found == server);
        stocks.flat_map(|(_, stock)| std::mem::take(stock).waiting).collect()
    }

    /// Takes out nodes that were returned, of each kind on each server as many as there are above `keep`: the oldest.
    pub(crate) fn take_returned(&mut self, keep: usize) -> Vec<ReturnedNodes> {
        let above = |(&(server, kind), stock): (&(u16, ChunkKind), &mut Stock)| {
            let above = stock.returned.len().saturating_sub(keep);
            let nodes: Vec<_> = stock.returned.drain(..above).collect();
            (above > 0).then_some(ReturnedNodes { server, kind, nodes })
        };
        self.stocks.iter_mut().filter_map(above).collect()
    }

    /// Memory for a node or record; none when the chunk is used up.
    pub(crate) fn take(&mut self, server: u16, kind: ChunkKind, bytes: u32) -> Option<GlobalAddress> {
        let stock = self.stocks.entry((server, kind)).or_default();
        if kind != ChunkKind::Records
            && let Some(address) = stock.returned.pop()
        {
            return Some(address);
        }
        let Rest { next, end } = stock.rest;
        let behind = next.checked_add(u64::from(bytes).next_multiple_of(RECORD_ALIGN))?;
        if behind > end {
            return None;
        }
        stock.rest.next = behind;
        Some(GlobalAddress::new(server, next))
    }

    /// A place for the record of a value; none when there is none and the chunk is used up.
    pub(crate) fn take_record(&mut self, server: u16, length: u32) -> Option<RecordPlace> {
        let bytes = place_bytes(length);
        let freed = self.places.get_mut(&(server, bytes)).and_then(Vec::pop);
        freed.or_else(|| {
            let address = self.take(server, ChunkKind::Records, bytes)?;
            Some(RecordPlace { address, version: 1 })
        })
    }

    /// Takes back the place of a record to which no leaf leads any more.
    pub(crate) fn free_record(&mut self, record: RecordPointer) {
        let RecordPointer { address, length, version } = record;
        let place = RecordPlace { address, version: version.wrapping_add(1) };
        self.places.entry((address.server(), place_bytes(length))).or_default().push(place);
    }

    /// Takes back a node that nobody has heard of.
    pub(crate) fn put_back(&mut self, node: GlobalAddress, kind: ChunkKind) {
        self.stocks.entry((node.server(), kind)).or_default().returned.push(node);
    }

    /// Waits for the next chunk. Says whether the owner has to be asked for it.
    pub(crate) fn wait(&mut self, server: u16, kind: ChunkKind, waker: &Waker) -> bool {
        let stock = self.stocks.entry((server, kind)).or_default();
        if !stock.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            stock.waiting.push(waker.clone());
        }
        !std::mem::replace(&mut stock.asked, true)
    }

    /// Whether there is room for so much.
    pub(crate) fn has(&self, server: u16, kind: ChunkKind, bytes: u32) -> bool {
        self.stocks.get(&(server, kind)).is_some_and(|stock| {
            !stock.returned.is_empty() && kind != ChunkKind::Records
                || stock.rest.end - stock.rest.next >= u64::from(bytes).next_multiple_of(RECORD_ALIGN)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_used_up_and_the_owner_is_asked_once() {
        let mut space = Space::default();
        let leaves = ChunkKind::Leaves;
        assert_eq!(space.take(2, leaves, 128), None);
        assert!(space.wait(2, leaves, Waker::noop()) && !space.wait(2, leaves, Waker::noop()));
        assert_eq!(space.supply(GlobalAddress::new(2, 1024), 256, leaves).len(), 1);
        let nodes: Vec<_> = std::iter::from_fn(|| space.take(2, leaves, 128)).collect();
        assert_eq!(nodes, [GlobalAddress::new(2, 1024), GlobalAddress::new(2, 1152)]);
        assert!(!space.has(2, leaves, 128));
        space.put_back(nodes[0], leaves);
        assert!(space.has(2, leaves, 128));
        assert_eq!(space.take(2, leaves, 128), Some(nodes[0]));
        assert!(space.wait(2, leaves, Waker::noop()), "it has come once: the next is asked for again");
        assert_eq!(space.take(2, ChunkKind::Records, 8), None, "kinds do not mix");
    }

    #[test]
    fn what_is_returned_goes_to_others_above_a_bound_and_is_forgotten_with_a_session() {
        let mut space = Space::default();
        let (leaves, inner) = (ChunkKind::Leaves, ChunkKind::InternalNodes);
        let nodes = [1, 2, 3].map(|at| GlobalAddress::new(2, at * 128));
        nodes.iter().for_each(|&node| space.put_back(node, leaves));
        space.put_back(GlobalAddress::new(3, 64), inner);
        let first = ReturnedNodes { server: 2, kind: leaves, nodes: nodes[..1].to_vec() };
        assert_eq!(space.take_returned(2), [first]);
        assert_eq!(space.take_returned(2), []);
        assert_eq!(space.take_returned(0).iter().map(|found| found.nodes.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(space.take(2, leaves, 128), None);

        assert!(space.wait(2, leaves, Waker::noop()));
        assert_eq!(space.supply_nodes(2, leaves, &nodes).len(), 1);
        assert_eq!(space.take(2, leaves, 128), Some(nodes[2]));
        space.supply(GlobalAddress::new(2, 1024), 256, leaves);
        assert!(space.wait(2, inner, Waker::noop()));
        assert_eq!(space.forget(2).len(), 1, "who waits asks again");
        assert!(!space.has(2, leaves, 128) && space.wait(2, inner, Waker::noop()));
    }

    #[test]
    fn records_begin_at_multiples_of_eight() {
        let mut space = Space::default();
        space.supply(GlobalAddress::new(0, 64), 64, ChunkKind::Records);
        let records: Vec<_> = [21, 8, 24, 9].map(|bytes| space.take(0, ChunkKind::Records, bytes)).into();
        let at = |offset| Some(GlobalAddress::new(0, offset));
        assert_eq!(records, [at(64), at(88), at(96), None]);
    }
}
