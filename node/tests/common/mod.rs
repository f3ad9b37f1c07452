//! A cluster of one memory server and a client, with nothing between them, on free ports of this machine.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::net::{TcpListener, UdpSocket};

use fatbtree_topology::Cluster;

pub(crate) fn free_udp() -> String {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn free_tcp() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub(crate) fn cluster() -> Cluster {
    let text = format!(
        "[network]\nkind = \"single\"\nhosts = 4\n[[memory_server]]\nhost = \"host-0-0\"\ngrpc = \"{}\"\nquery = \"{}\"\n[[client]]\nhost = \
         \"host-0-1\"\n",
        free_tcp(),
        free_udp()
    );
    Cluster::from_toml(&text).unwrap()
}
