//! Hosts that have more to send than their wires hold wait; nothing is lost, and nothing piles up.

use std::collections::VecDeque;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{PoolConfig, RemoteSide, Start, TreeConfig, ValueLayout, value};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{LoadOptions, load_cluster, seeded};
use fatbtree_controller::Placement;
use fatbtree_memserver::{ClientId, ServerOptions};
use fatbtree_sim::{Attachment, Clock, Cluster, Delivery, Network, VirtualClock, Wires};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_topology::{HostId, Network as Topology};
use fatbtree_verbs::time::Instant;
use futures_core::Stream;

const ROOM: usize = 8;

/// Instant wires that hold few frames, and remember how many they held.
#[derive(Default)]
struct NarrowWires {
    under_way: VecDeque<Delivery>,
    most: usize,
}

impl Wires for NarrowWires {
    fn has_room(&self, _to: Attachment) -> bool {
        self.under_way.len() < ROOM
    }

    fn send(&mut self, _clock: &impl Clock, to: Attachment, frame: Vec<u8>) {
        self.under_way.push_back(Delivery { to, frame });
        self.most = self.most.max(self.under_way.len());
    }

    fn receive(&mut self, _clock: &impl Clock) -> Option<Delivery> {
        self.under_way.pop_front()
    }

    fn next_arrival(&self) -> Option<Instant> {
        (!self.under_way.is_empty()).then_some(Instant::ZERO)
    }

    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn recycle(&mut self, _buffer: Vec<u8>) {}
}

#[test]
fn long_answers_wait_for_room() {
    let tree = Topology::one_core(4).unwrap();
    let (server_host, client_host) = (HostId(0), HostId(9));
    let nic = |host: HostId| {
        let host = tree.host(host);
        Nic::new(NicConfig::new(host.mac.0, host.ip), 1).unwrap()
    };
    // Answers of 60 frames each.
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    let keys: Vec<u64> = (0..200).collect();
    let loaded = load_cluster(&LoadOptions::new(config, 0), 1, &keys, &mut seeded(3, 60_000)).unwrap();
    let roots = loaded.roots.clone();
    let mut servers = loaded.serve(&ServerOptions::default(), 1, |_| nic(server_host)).unwrap();
    let pool = PoolConfig { tree: config, ..PoolConfig::default() };
    let client = Client::new(nic(client_host), pool, roots, 1).unwrap();

    let (id, now) = (client.pool().connections()[0], Instant::ZERO);
    let local = client.pool().open(id).unwrap();
    let who = ClientId { host: local.ip.into(), roce: local.ip };
    let session = servers[0].open_session(now, who).unwrap().session;
    let endpoint = servers[0].connect(now, session, &local, None).unwrap();
    let rkey = servers[0].info().region.rkey;
    client.pool().connected(id, RemoteSide { endpoint, rkey, registered: false }).unwrap();

    let network = Network::new(tree, Placement::from_iter([(0, server_host)]));
    let switches = network.switches().unwrap();
    let servers = vec![(server_host, servers.remove(0))];
    let clients = vec![(client_host, client.clone())];
    let mut cluster = Cluster::new(network.tree(), switches, servers, clients, NarrowWires::default());

    let clock = VirtualClock::new();
    let mut lookups = pin!(client.lookup_many(keys, Start::Root, 16));
    let mut found = 0;
    loop {
        let mut context = Context::from_waker(Waker::noop());
        match cluster.with_client(0, &clock, |_, _| lookups.as_mut().poll_next(&mut context)) {
            Poll::Ready(None) => break,
            Poll::Ready(Some(lookup)) => {
                assert!(value::check(lookup.key, 3, &lookup.result.unwrap().unwrap()));
                found += 1;
            }
            Poll::Pending => assert!(cluster.step(&clock), "nothing is under way after {found} lookups"),
        }
    }
    assert_eq!((found, cluster.wires().most), (200, ROOM));
}
