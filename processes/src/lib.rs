//! Roles as processes: each value here is a role's whole loop, which joins a sans-IO core with ports, gRPC and the clock.
//!
//! ```text
//!   cluster file ──► this role's place, neighbours                   tokio, one thread
//!                         │                                       ┌─────────────────────────┐
//!    ports ◄─────────► the role's thread ◄───── mailbox ◄─────────│ gRPC: P4Runtime, memory │◄──► controller, clients
//!    (frames)          SwitchProcess: Switch       waker          │ server, Ctrl-C          │
//!                      MemoryServerProcess: MemoryServer<Adapter> └─────────────────────────┘
//!                      ClientProcess: Client<Adapter>
//!                      QueryClientProcess: QueryClient, with UDP sockets or its host's wire, and no device
//!                      ControllerProcess: Controller, without frames: a task for each switch, one that decides
//!                      Supervisor: all of them as child processes
//! ```
//!
//! These loops have a crate of their own because `switch` knows no socket, `memserver` and `client` know no NIC, and `cli` holds only
//! arguments and print. The code that joins them stands above all of them, and can be tested without a command line.
//!
//! [`Adapter`] is a role's device with what moves it: the software NIC and its port, or, with the cargo feature `ibverbs`, an RDMA device of
//! this machine. The loops are the same over both. Over a card there are no frames, and a thread that waits sleeps until the card signals a
//! completion, or for 50 ms: an RDMA card does not signal one-sided WRITEs to the host.
//!
//! A role's thread belongs to its frames. Between batches it looks into its mailbox; when there is nothing it sleeps
//! ([`Waiter`](fatbtree_port::Waiter)). A switch's control plane has lower priority: its thread gets less processor time when processors
//! are
//! short, and its requests are served in parts ([`service`](fatbtree_switch::service)). `examples/forwarding_gap.rs` measures how long
//! packets
//! stop while a controller pushes, reads, deletes and loads programs. A role opens everything before it runs, so errors in ports and
//! addresses appear at once.
//!
//! # Example
//!
//! Both ends of a cable, as the cluster file has them: what a memory server sends to, its edge switch receives at.
//!
//! ```
//! use fatbtree_processes::{host_port, switch_ports};
//! use fatbtree_port::PortSpec;
//! use fatbtree_topology::Cluster;
//!
//! let cluster = Cluster::from_toml(Cluster::local_toml())?;
//! let server = cluster.servers()[0].host;
//! let PortSpec::Udp { local, remote } = host_port(&cluster, server)? else { panic!("the example has UDP wires") };
//! let edge = cluster.tree().edge_of(server).id;
//! let other_end = PortSpec::Udp { local: remote, remote: local };
//! assert!(switch_ports(&cluster, edge)?.iter().any(|(_, port)| *port == other_end));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adapter;
mod ask;
mod channels;
mod client;
mod controller;
mod error;
mod http;
mod live_page;
mod memory_server;
mod metrics;
mod notify;
mod query_client;
mod roster;
mod stop;
mod switch;
mod up;
mod wires;

pub use adapter::{Adapter, NicSpec};
pub use client::{ClientOptions, ClientProcess, Reached, SpreadProcess, StructureProcess};
pub use controller::{ControllerNews, ControllerOptions, ControllerProcess};
pub use error::NodeError;
pub use live_page::LivePage;
pub use memory_server::{
    Hosted, MemoryServerOptions, MemoryServerProcess, MemoryServerReport, PartSource, QueryOptions,
    QueryReport, SYNC, TreeSource,
};
pub use notify::notify_ready;
pub use query_client::{QueryClientOptions, QueryClientProcess, QueryWay};
pub use roster::{certificates_of, roster_of, trust_of};
pub use stop::{Stopper, stop_signal};
pub use switch::{SwitchOptions, SwitchProcess, SwitchReport};
pub use up::{RoleKind, RoleState, Supervisor, UpNews, UpOptions};
pub use wires::{at_free_seat, host_port, switch_ports};
