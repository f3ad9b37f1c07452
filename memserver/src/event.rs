//! Events for the owner of a memory server, which tell the first-hop entries that there must be.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;

use fatbtree_remote_memory::GlobalAddress;
use fatbtree_verbs::QueuePairNumber;

use crate::fellows::Ask;

/// Data of a connection with which a client's edge switch admits its index reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FirstHop {
    /// Source address of its packets.
    pub client: Ipv4Addr,
    /// Destination address of its packets.
    pub server: Ipv4Addr,
    /// The server's queue pair, to which they go.
    pub queue_pair: QueuePairNumber,
    /// The server's partition.
    pub partition: u16,
    /// Key of the region.
    pub rkey: u32,
    /// Root of the structure.
    pub root: GlobalAddress,
    /// The path MTU: the longest READ that is answered in one packet, in bytes.
    pub mtu: u16,
}

impl fmt::Debug for FirstHop {
    /// Without the rkey: a peer that knows it can write to the region.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, server, queue_pair, partition, root, mtu, rkey: _ } = self;
        f.debug_struct("FirstHop")
            .field("client", client)
            .field("server", server)
            .field("queue_pair", queue_pair)
            .field("partition", partition)
            .field("root", root)
            .field("mtu", mtu)
            .finish_non_exhaustive()
    }
}

/// Something the owner must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<S> {
    /// A queue pair was connected: it can be registered.
    Opened(FirstHop),
    /// The connection is gone: its entry must be removed. Its number may be used again.
    Closed(FirstHop),
    /// The structure has another root. What is registered stays right, but entries with the new root save a step.
    NewRoot(S),
    /// The server was loaded anew: nothing that switches hold of its former structure is true any more. The new one's description may be
    /// another. All queue pairs were closed before.
    Reloaded {
        /// Description of the new structure: its keys and root, for instance.
        structure: S,
        /// Generation of the new region.
        generation: u64,
    },
    /// The server has lost its structure: it has begun with an empty one, and there was another one before. It
    /// serves no client until it is loaded.
    Lost {
        /// Its partition.
        partition: u16,
    },
    /// The server has a question to another one of its structure. The owner brings it there ([`Request::Ask`](crate::Request::Ask)), and the
    /// answer back ([`Request::Answered`](crate::Request::Answered)).
    Ask(Ask),
}

/// A line for people: `opened client=10.1.0.2 server=10.0.0.2 queue_pair=17 partition=0 root=64 mtu=1024`, `closed …` with the same words,
/// `root …` and `reloaded … generation=2` with the words of the structure, `lost partition=0`, or `asks partition=1 sweep=…`. The rkey is not in
/// it: its holder can write to the region.
impl<S: fmt::Display> fmt::Display for Event<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, hop) = match self {
            Self::Opened(hop) => ("opened", hop),
            Self::Closed(hop) => ("closed", hop),
            Self::NewRoot(structure) => return write!(f, "root {structure}"),
            Self::Lost { partition } => return write!(f, "lost partition={partition}"),
            Self::Ask(Ask { of, sweep, .. }) => return write!(f, "asks partition={of} sweep={sweep}"),
            Self::Reloaded { structure, generation } => {
                return write!(f, "reloaded {structure} generation={generation}");
            }
        };
        let FirstHop { client, server, queue_pair, partition, rkey: _, root, mtu } = hop;
        let (number, root) = (queue_pair.0, root.raw());
        write!(
            f,
            "{what} client={client} server={server} queue_pair={number} partition={partition} root={root} mtu={mtu}"
        )
    }
}

/// Events that were not taken yet. If the owner takes none, there are never more than queue pairs: a
/// connection that ends before its event was taken yields no event.
#[derive(Debug)]
pub(crate) struct Events<S> {
    queue: BTreeMap<u64, Event<S>>,
    next: u64,
    /// The one about the root.
    root: Option<u64>,
    /// The one about another structure.
    reloaded: Option<u64>,
}

impl<S> Default for Events<S> {
    fn default() -> Self {
        Self { queue: BTreeMap::new(), next: 0, root: None, reloaded: None }
    }
}

impl<S> Events<S> {
    /// Adds an event; returns its number.
    pub(crate) fn push(&mut self, event: Event<S>) -> u64 {
        let number = self.next;
        self.next += 1;
        let old = match event {
            Event::NewRoot(_) => [self.root.replace(number), None],
            // The root of a former structure is not reported any more.
            Event::Reloaded { .. } => [self.root.take(), self.reloaded.replace(number)],
            Event::Opened(_) | Event::Closed(_) | Event::Lost { .. } | Event::Ask(_) => [None, None],
        };
        for old in old.into_iter().flatten() {
            self.queue.remove(&old);
        }
        self.queue.insert(number, event);
        number
    }

    /// Tells that a queue pair is gone, whose opening had this number.
    pub(crate) fn close(&mut self, opening: u64, hop: FirstHop) {
        if self.queue.remove(&opening).is_none() {
            self.push(Event::Closed(hop));
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Event<S>> {
        self.queue.pop_first().map(|(_, event)| event)
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}
