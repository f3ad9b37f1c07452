//! A cluster of one memory server and a client, with nothing between them, on ports of this test's own.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

mod ports;

use fatbtree_topology::Cluster;

/// An address with a port of this test's own.
pub(crate) fn own_address() -> String {
    format!("127.0.0.1:{}", ports::take(1))
}

pub(crate) fn cluster() -> Cluster {
    let text = format!(
        "[network]\nkind = \"single\"\nhosts = 4\n[[memory_server]]\nhost = \"host-0-0\"\ngrpc = \"{}\"\nquery = \"{}\"\n[[client]]\nhost = \
         \"host-0-1\"\n",
        own_address(),
        own_address()
    );
    Cluster::from_toml(&text).unwrap()
}
