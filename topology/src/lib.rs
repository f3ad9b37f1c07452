//! Networks of a Fat-B+Tree cluster: switches, hosts, their places, and the routes of packets.
//!
//! ```text
//!                 core-0  core-1  …   (hold the fat root: every index packet turns round in one of them)
//!        ┌───────────────┼───────────────┬───────────────┐
//!     agg-0-0 …       agg-1-0 …       agg-2-0 …       agg-3-0 …
//!     ┌──┴──┐         ┌──┴──┐         ┌──┴──┐         ┌──┴──┐
//!  edge-0-0 edge-0-1  …                                 edge-3-1
//!   ┌┴┐      ┌┴┐                                          ┌┴┐
//!  host-0-0-0 …                                       host-3-1-1
//! ```
//!
//! The crate is pure data and arithmetic: no sockets, no clock, and nothing whose order depends on a hash.
//! These live here.
//!
//! * [`Network`]: switches with roles and ports, links, hosts, addresses. One switch, a pair, leaves and spines, or a fat tree: roles
//!   fold into fewer switches. The other parts only need to know [which node sets](Network::sets_to) packets cross.
//! * [`Routing`]: the path of every packet, whatever is [down](Outages): IPv4 routes, and the ports by which index packets climb to a fat
//!   root and go down again.
//! * [`Cluster`]: a network plus the placement of memory servers, clients and control endpoints, read from a TOML
//!   [cluster file](Cluster::from_toml) whose every error names line and field.
//! * [`render_text`] and [`render_svg`]: the same for people.
//!
//! The paper's network (Fat-B+Tree §IV-A) uses *one* core switch S_c, so of a k = 4 FatTree's 20 switches only 13
//! work: [`Network::one_core`] builds exactly these.
//!
//! ```
//! use fatbtree_topology::{Network, Routing};
//!
//! let network = Network::one_core(4)?;
//! assert_eq!(network.switches().len(), 13);
//! let client = network.host_by_name("host-1-0-0").expect("k = 4 has pod 1").id;
//! let server = network.host_by_name("host-0-1-1").expect("k = 4 has pod 0").id;
//! let path = Routing::undisturbed(&network).index_path(client, server, 0).expect("nothing is down");
//! let names: Vec<String> = path.iter().map(|hop| network.switch(hop.switch).name()).collect();
//! assert_eq!(names, ["edge-1-0", "agg-1-0", "core-0", "agg-0-0", "edge-0-1"]);
//! # Ok::<(), fatbtree_topology::TopologyError>(())
//! ```

mod address;
mod cluster;
mod error;
mod fat_tree;
mod network;
mod outages;
mod render;
mod route;
mod routing;
mod sets;
mod small;
#[cfg(test)]
mod tests;

pub use address::{MacAddress, Prefix};
pub use cluster::{
    Client, Cluster, ClusterError, ClusterProblem, IN_FLIGHT_PORT, KeyKind, MAX_SEATS, MemoryServer, Named,
    NoWire, P4RuntimeEndpoint, Seat, Structure, Wire,
};
pub use error::TopologyError;
pub use fat_tree::MAX_K;
pub use network::{Cores, Host, HostId, Kind, Link, Network, NodeSet, Peer, Role, Switch, SwitchId};
pub use outages::Outages;
pub use render::{Annotations, render_svg, render_text};
pub use route::Route;
pub use routing::{Ends, Hop, PATHS, Routing};
pub use sets::SetGroup;
pub use small::{MAX_HOSTS, MAX_LEAVES, MAX_SPINES};
