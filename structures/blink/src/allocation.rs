//! Choice of the memory server for new nodes.

/// Choice of the memory server for the node that a split makes. Clients of one tree may differ in this.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Allocation {
    /// The server of the node that is split. All nodes of a partition lie on one server, as index reads need
    /// it: switches route them by their key (Fat-B+Tree section IV).
    #[default]
    Partitioned,
    /// One server after the other, of all that the client may write to (Sherman section 4.2). It spreads the
    /// load of a partition over all servers. Only the root of a partition stays where its superblock is.
    ///
    /// Trees that were written to like this are for clients without switches: a partition's server cannot give a plan the nodes that
    /// lie elsewhere. Neighbours on different servers are never merged, because the keys of a merge move within one chain; an empty
    /// leaf among such neighbours stays. No write waits until what it leads to is on another server's disk: after a power failure of one
    /// server such a tree may lead to nodes that are not there. No role writes trees like this, only the shell in its own memory.
    RoundRobin,
}
