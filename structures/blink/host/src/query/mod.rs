//! The server's end of the [query protocol](fatbtree_wire::query): client-server mode, for clients without RDMA.
//!
//! ```text
//!   datagrams ─► QueryWorker::handle ─► Responder ─► operation on the tree (index) ─► LocalVerbs ─► the tree's memory
//!             ◄─ poll_transmit ◄─────── finish ◄───────────────┘                                        ▲
//!                                                                                     RDMA clients ─► NIC
//! ```
//!
//! A [`QueryWorker`] is one thread's: it has its own responder, its own session with the memory server and its own queues. What several
//! share is the tree, as RDMA clients share it: by locks in the server's memory. All datagrams of one client must come to the same
//! worker, which is what `SO_REUSEPORT` does.
//!
//! A worker is without sockets and clock. Its [`SessionKeeper`](fatbtree_remote_memory::session_keeper::SessionKeeper) keeps the session by calls that
//! the driver carries to the memory server.

mod node_map;
mod operation;
mod worker;

pub use node_map::NodeMap;
pub use operation::ScanBounds;
pub use worker::{QueryWorker, WorkerError, WorkerOptions, WorkerStats, worker_cache};
