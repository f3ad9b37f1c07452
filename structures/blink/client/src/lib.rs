//! The client that a database embeds.
//!
//! ```text
//!  database ──▶ Client::get(key).await ──▶ Pool ──▶ Verbs: software NIC, libibverbs, a simulator
//!               │  futures, many at once
//!               └─▶ Lookup { result, trips, latency }
//!
//!  database ──▶ QueryClient::get(key).await ───▶ Requester ──▶ datagrams to memory servers
//! ```
//!
//! * [`Client`]: `client.get(key).await`, batches, streams, changes, scans. Over any
//!   [`Verbs`](fatbtree_verbs::Verbs).
//! * [`ComputeServer`]: several threads in one process, each with its own client, and one index cache.
//! * [`QueryClient`]: a client without RDMA, which asks memory servers.
//! * Both are [structures](fatbtree_remote_memory::Structure). [`NoAnswer`]: errors of queries.
//! * [`KeySample`], [`Report`](fatbtree_remote_memory::Report): report of a client to planners of switch caches, with the keys that it is
//!   asked for, and the number of stale hints from switches.
//! * [`OperationLatencies`](fatbtree_remote_memory::OperationLatencies): latencies of a client's operations, for monitoring.
//!
//! Workloads, load generation and measurement are in the crate `fatbtree-workload`, which builds on this one.
//!
//! # Example
//!
//! A memory server with one leaf of 20 records, over two software NICs back to back.
//!
//! ```
//! use fatbtree_blink_client::Client;
//! use fatbtree_blink::node::{LeafBuilder, NodeSpec};
//! use fatbtree_blink::{
//!     GlobalAddress, KeyRange, Partition, PoolConfig, RemoteSide, SuperRoot, TreeConfig, ValueLayout, value,
//! };
//! use fatbtree_soft_nic::{Nic, NicConfig};
//! use fatbtree_verbs::time::{Duration, Instant};
//! use fatbtree_verbs::{Access, Device, Memory};
//!
//! // The server's memory: a tree that is one leaf, at offset 64.
//! let tree = TreeConfig::new(16, 1024, ValueLayout::Inline(8))?;
//! let root = GlobalAddress::new(0, 64);
//! let leaf = NodeSpec {
//!     address: root, level: 0, range: KeyRange::ALL, sibling: GlobalAddress::NULL, version: 1,
//! };
//! let mut memory = Memory::anonymous(64 + 1024)?;
//! let mut builder = LeafBuilder::new(&mut memory.as_mut_slice()[64..], tree.leaf_shape(), leaf);
//! for key in 0..20 {
//!     value::fill(key, 1, builder.push_inline(key));
//! }
//! builder.finish();
//! let mut server = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 2], [10, 0, 0, 2].into()), 1)?;
//! let region = server.register(&memory.into(), 0, Access::READ)?;
//!
//! let roots = SuperRoot::new(vec![Partition { id: 0, range: KeyRange::ALL, root, root_level: 0 }])?;
//! let nic = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], [10, 0, 0, 1].into()), 2)?;
//! let client = Client::new(nic, PoolConfig { tree, ..PoolConfig::default() }, roots, 1)?;
//!
//! // Out of band: both sides tell each other their ends.
//! let id = client.pool().connections()[0];
//! let local = client.pool().open(id)?;
//! let queue_pair = server.create()?;
//! server.connect(queue_pair, &local)?;
//! let endpoint = server.endpoint(queue_pair)?;
//! client.pool().connected(id, RemoteSide { endpoint, rkey: region.rkey, registered: false })?;
//!
//! // The network: every frame takes no time, and a turn of the loop 3 µs.
//! let mut now = Instant::ZERO;
//! let mut frame = Vec::new();
//! let mut network = |nic: &mut Nic| {
//!     now += Duration::from_micros(3);
//!     while nic.poll_transmit(now, &mut frame) {
//!         server.handle_frame(now, &frame);
//!     }
//!     while server.poll_transmit(now, &mut frame) {
//!         nic.handle_frame(now, &frame);
//!     }
//!     now
//! };
//! let value = client.pool().reactor().run(client.get(7), &mut network)?.ok_or("the key is there")?;
//! assert!(value::check(7, 1, &value));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod client;
mod compute_server;
mod query;
mod sample;
mod structure;

pub use answer::NoAnswer;
pub use client::Client;
pub use compute_server::ComputeServer;
pub use fatbtree_query::RequesterStats;
pub use query::QueryClient;
pub use sample::KeySample;
