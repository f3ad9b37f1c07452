//! The network that Fat-B+Tree lives in: a FatTree of k-port switches, who sits where, and how packets go.
//!
//! ```text
//!                     core-0  (S_c: every index packet turns round here)
//!        ┌───────────────┼───────────────┬───────────────┐
//!     agg-0-0         agg-1-0         agg-2-0         agg-3-0
//!     ┌──┴──┐         ┌──┴──┐         ┌──┴──┐         ┌──┴──┐
//!  edge-0-0 edge-0-1  …                                 edge-3-1
//!   ┌┴┐      ┌┴┐                                          ┌┴┐
//!  host-0-0-0 …                                       host-3-1-1
//! ```
//!
//! The crate is pure data and arithmetic: no sockets, no clock, and nothing whose order depends on a hash.
//! Three things live here.
//!
//! * [`FatTree`]: switches with roles and ports, links, hosts, addresses after Al-Fares et al. (SIGCOMM 2008, §3.2),
//!   IPv4 routes, and the path that an index packet or an ordinary packet takes.
//! * [`Cluster`]: a FatTree plus the placement of memory servers, clients and control endpoints, read from a TOML
//!   [cluster file](Cluster::from_toml) whose every error names line and field.
//! * [`render_text`] and [`render_svg`]: the same for people.
//!
//! The paper's network (Fat-B+Tree §IV-A) uses *one* core switch S_c, so of a k = 4 FatTree's 20 switches only 13
//! work: [`FatTree::spine`] builds exactly these.
//!
//! ```
//! use fatbtree_topology::FatTree;
//!
//! let tree = FatTree::spine(4)?;
//! assert_eq!(tree.switches().len(), 13);
//! let client = tree.host_by_name("host-1-0-0").expect("k = 4 has pod 1").id;
//! let server = tree.host_by_name("host-0-1-1").expect("k = 4 has pod 0").id;
//! let names: Vec<String> = tree.index_path(client, server).iter().map(|hop| tree.switch(hop.switch).name()).collect();
//! assert_eq!(names, ["edge-1-0", "agg-1-0", "core-0", "agg-0-0", "edge-0-1"]);
//! # Ok::<(), fatbtree_topology::TopologyError>(())
//! ```

mod address;
mod cluster;
mod fat_tree;
mod path;
mod render;
mod route;

pub use address::{MacAddress, Prefix};
pub use cluster::{
    Client, Cluster, ClusterError, ClusterProblem, MemoryServer, Named, NoWire, P4RuntimeEndpoint, Wire,
};
pub use fat_tree::{Cores, FatTree, Host, HostId, Link, MAX_K, Peer, Role, Switch, SwitchId, TopologyError};
pub use path::Hop;
pub use render::{Annotations, render_svg, render_text};
pub use route::Route;
