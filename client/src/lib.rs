//! The client side of Fat-B+Tree: what clients do, how they do it, and how it is measured.
//!
//! ```text
//!  workload/                     roce/                                        measure/
//!  YCSB files ─▶ Operation ─▶ RoceClient ─▶ frames ─▶ switches ─▶ servers
//!  key files                  │  one Lookup per key, many at once
//!                             └─▶ Event::Done { answer, latency, trips } ───▶ Recorder ─▶ Summary
//!                  ClosedLoop keeps the one fed and records the other
//! ```
//!
//! * [`workload`]: YCSB's core workloads A to F and its request distributions, read from files in YCSB's own
//!   property names; keys hashed as YCSB hashes them, ordered, or from a file. Seeded.
//! * [`roce`]: the client over one-sided RDMA READs. Sans-IO: it is handed frames and time, and hands back
//!   frames, deadlines and events.
//! * [`measure`]: HDR histograms of latencies, round trips, rates, and everything that went wrong.
//! * [`ClosedLoop`]: the three together.
//!
//! # Example
//!
//! A memory server with one leaf, and YCSB's workload C on its 20 records, over two NICs back to back.
//!
//! ```
//! use fatbtree_client::ClosedLoop;
//! use fatbtree_client::roce::{ClientConfig, ConnectionId, Event, Mode, RemoteSide, RoceClient, SeededValues};
//! use fatbtree_client::workload::{KeyMap, WorkloadSpec, builtin};
//! use fatbtree_index::node::{LeafBuilder, NodeSpec};
//! use fatbtree_index::{GlobalAddress, KeyRange, Partition, SuperRoot, TreeConfig, ValueLayout, value};
//! use fatbtree_nic::time::{Duration, Instant};
//! use fatbtree_nic::{Access, Nic, NicConfig};
//!
//! let mut properties = builtin("c")?;
//! properties.set("recordcount", "20");
//! let spec = WorkloadSpec::from_properties(&properties)?;
//! let keys = KeyMap::from(spec.insert_order);
//!
//! // The server's memory: a tree that is one leaf, at offset 64.
//! let tree = TreeConfig::new(16, 1024, ValueLayout::Inline(8))?;
//! let root = GlobalAddress::new(0, 64);
//! let leaf = NodeSpec {
//!     address: root, level: 0, range: KeyRange::ALL, sibling: GlobalAddress::NULL, version: 1,
//! };
//! let mut memory = vec![0; 64 + 1024];
//! let mut builder = LeafBuilder::new(&mut memory[64..], tree.leaf_shape(), leaf);
//! for record in 0..spec.record_count {
//!     let key = keys.key(record).unwrap();
//!     value::fill(key, 1, builder.push_inline(key));
//! }
//! builder.finish();
//! let mut server = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 2], [10, 0, 0, 2].into()), 1);
//! let region = server.register_memory(0, memory, Access::READ);
//!
//! let roots = SuperRoot::new(vec![Partition { id: 0, range: KeyRange::ALL, root, root_level: 0 }])?;
//! let nic = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], [10, 0, 0, 1].into()), 2);
//! let config = ClientConfig { tree, depth: 4, ..ClientConfig::default() };
//! let mut client = RoceClient::new(nic, config, roots, SeededValues { seed: 1 })?;
//!
//! // Out of band: both sides tell each other their ends.
//! let mut now = Instant::ZERO;
//! let id = ConnectionId { partition: 0, lane: 0 };
//! let local = client.reconnect(now, id)?;
//! let queue_pair = server.create_queue_pair();
//! server.connect(queue_pair, local)?;
//! let endpoint = server.local_endpoint(queue_pair)?;
//! client.connected(now, id, RemoteSide { endpoint, rkey: region.rkey, registered: false })?;
//!
//! let mut run = ClosedLoop::new(&spec, keys, 1, Mode::Ordinary, 0, 1)?;
//! let mut frame = Vec::new();
//! while !run.is_finished() {
//!     run.fill(now, &mut client);
//!     now += Duration::from_micros(3);
//!     while client.poll_transmit(now, &mut frame) {
//!         server.handle_frame(now, &frame);
//!     }
//!     while server.poll_transmit(now, &mut frame) {
//!         client.handle_frame(now, &frame);
//!     }
//!     while let Some(event) = client.poll_event() {
//!         match event {
//!             Event::Done(done) => run.on_done(now, &done),
//!             Event::ConnectionBroken { .. } => unreachable!("nothing is lost here"),
//!         }
//!     }
//! }
//! let summary = run.summary(&client);
//! assert!(summary.verified());
//! assert_eq!((summary.operations, summary.round_trips), (1000, 1.0));
//! assert!((summary.mean_us - 3.0).abs() < 0.01);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod closed_loop;
pub mod measure;
pub mod roce;
pub mod workload;

pub use closed_loop::{ClosedLoop, ClosedLoopError};
