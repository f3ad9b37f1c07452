//! Workloads for anything that has records, and measurements of their runs.
//!
//! ```text
//!  ycsb/, trace/                         Structure                       measure/
//!  YCSB files ─▶ Workload ─▶ Operation ─▶ get, change, scan ──▶ Answer ───▶ Recorder ─▶ Summary
//!  key files       │                      a tree, hash table, …        latencies, round trips,
//!  trace files ─▶ Trace                                                rates, troubles
//!                  └── LoadGenerator begins operations at a Pace, and asks Values whether an answer is right
//! ```
//!
//! * [`ycsb`]: YCSB's core workloads A to F and its request distributions, read from files in YCSB's own
//!   property names; keys hashed as YCSB hashes them, ordered, or from a file. Seeded.
//! * [`trace`]: lines of the public Twitter cache traces as operations, and a maker of such lines.
//! * [`byte_keys`]: keys of bytes of public kinds, such as URLs and UUIDs, by number and seed.
//! * [`Structure`]: what operations are done on: a tree by RDMA, memory servers that are asked, another structure, or your own.
//! * [`LoadGenerator`]: does a workload's operations in a closed or an open loop ([`Pace`]), scans in one or several
//!   [parts](ScanParts), and records every answer.
//! * [`Values`]: the values that a read may return while others write. Each says which write it comes from.
//! * [`Names`], [`Named`]: the same for keys of bytes.
//! * [`measure`]: HDR histograms of latencies, round trips, rates, and everything that went wrong.
//!
//! The crate builds on `fatbtree-blink-client`, which knows nothing of it: a database embeds the client alone.
//!
//! # Example
//!
//! A memory server with one leaf, and YCSB's workload C on its 20 records, over two software NICs back to back.
//!
//! ```
//! use fatbtree_blink_client::Client;
//! use fatbtree_blink::node::{LeafBuilder, NodeSpec};
//! use fatbtree_blink::{
//!     GlobalAddress, KeyRange, Partition, PoolConfig, RemoteSide, Start, SuperRoot, TreeConfig, ValueLayout, value,
//! };
//! use fatbtree_soft_nic::{Nic, NicConfig};
//! use fatbtree_verbs::time::{Duration, Instant};
//! use fatbtree_verbs::{Access, Device, Memory};
//! use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
//! use fatbtree_workload::{LoadGenerator, LoopOptions, Values};
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
//! let mut memory = Memory::anonymous(64 + 1024)?;
//! let mut builder = LeafBuilder::new(&mut memory.as_mut_slice()[64..], tree.leaf_shape(), leaf);
//! for record in 0..spec.record_count {
//!     let key = keys.key(record).unwrap();
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
//! let mut run = LoadGenerator::new();
//! let options = LoopOptions { start: Start::Root, depth: 4 };
//! let (mut workload, values) = (Workload::new(&spec, keys, 1)?, Values::new(1, 8));
//! let work = run.run(&client, &mut workload, spec.operation_count, options, &values);
//! client.pool().reactor().run(work, &mut network)?;
//! let summary = run.summary(&client);
//! assert!(summary.verified(), "{:?}", run.first_wrong());
//! assert_eq!((summary.operations, summary.round_trips), (1000, 1.0));
//! assert!((summary.mean_us - 3.0).abs() < 0.01);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod byte_keys;
mod load_generator;
pub mod measure;
mod names;
mod operation;
mod pace;
mod scan_parts;
mod stride;
pub mod trace;
pub mod transactions;
mod values;
pub mod ycsb;

pub use fatbtree_remote_memory::{Change, Structure};
pub use load_generator::{LoadGenerator, LoopOptions};
pub use names::{Named, Names};
pub use operation::{Operation, OperationKind, Operations};
pub use pace::{Pace, Punctuality};
pub use scan_parts::ScanParts;
pub use stride::stride;
pub use values::Values;
