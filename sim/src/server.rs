//! A memory server on a host: the tree's side, and the NIC that answers for it.

use fatbtree_controller::{Node, Partition};
use fatbtree_memserver::{
    ConnectError, Counter, Endpoint, Mailbox, MemoryServer, OwnerRequest, TreeSnapshot,
};
use fatbtree_nic::{Access, Mtu, Nic, QpError, QueuePairNumber};

/// A memory server and its NIC.
pub struct ServerNode {
    server: MemoryServer,
    nic: Nic,
}

impl ServerNode {
    /// Registers the server's region at the NIC, to be read by clients.
    ///
    /// # Panics
    /// When the server's region was taken before: it can be registered once.
    pub fn new(mut server: MemoryServer, mut nic: Nic) -> Self {
        let region = server.take_region().expect("a new memory server still has its region");
        let registered = nic.register_memory(server.info().region_iova, region, Access::READ);
        server.set_rkey(registered.rkey);
        Self { server, nic }
    }

    /// The tree's side.
    pub fn server(&self) -> &MemoryServer {
        &self.server
    }

    /// The NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// The NIC, to hand frames to.
    pub fn nic_mut(&mut self) -> &mut Nic {
        &mut self.nic
    }

    /// Makes a queue pair and connects it to the client's.
    ///
    /// # Errors
    /// When the client's endpoint makes no sense to the NIC.
    pub fn connect(&mut self, client: Endpoint) -> Result<Endpoint, ConnectError> {
        accept(&mut self.nic, client)
    }

    /// Answers what the control plane has asked meanwhile.
    pub fn answer(&mut self, mailbox: &mut Mailbox) {
        let nic = &mut self.nic;
        mailbox.drain(&mut self.server, |request| match request {
            OwnerRequest::Connect(call) => {
                let answer = accept(nic, call.client);
                call.answer(answer);
            }
            OwnerRequest::Statistics(call) => call.answer(counters(nic)),
        });
    }
}

fn accept(nic: &mut Nic, client: Endpoint) -> Result<Endpoint, ConnectError> {
    let refused = |error: QpError| ConnectError::Refused { reason: error.to_string() };
    let remote = to_nic(client, nic.config().max_outstanding_reads)?;
    let queue_pair = nic.create_queue_pair();
    nic.connect(queue_pair, remote).map_err(refused)?;
    nic.local_endpoint(queue_pair)
        .map(|local| Endpoint { path_mtu: client.path_mtu, ..from_nic(local) })
        .map_err(refused)
}

/// An endpoint as the NIC has it, in the words of the memory server's protocol.
pub fn from_nic(endpoint: fatbtree_nic::Endpoint) -> Endpoint {
    Endpoint {
        mac: endpoint.mac,
        ip: endpoint.ip,
        queue_pair: endpoint.qpn.0,
        first_psn: endpoint.psn,
        path_mtu: endpoint.mtu.bytes() as u32,
    }
}

/// The other way round. The protocol does not tell how many READs the other side takes: `max_reads` is this side's.
///
/// # Errors
/// When the path MTU is none that RoCE has.
pub fn to_nic(endpoint: Endpoint, max_reads: usize) -> Result<fatbtree_nic::Endpoint, ConnectError> {
    let mtu = Mtu::from_bytes(endpoint.path_mtu as usize).ok_or_else(|| ConnectError::Refused {
        reason: format!("path MTU {} is none of 256, 512, 1024, 2048, 4096", endpoint.path_mtu),
    })?;
    Ok(fatbtree_nic::Endpoint {
        mac: endpoint.mac,
        ip: endpoint.ip,
        qpn: QueuePairNumber(endpoint.queue_pair),
        psn: endpoint.first_psn,
        mtu,
        max_reads,
    })
}

/// A memory server's snapshot in the words of the planner, which knows no memory server.
pub fn planner_partition(snapshot: &TreeSnapshot) -> Partition {
    let node = |node: &fatbtree_memserver::SnapshotNode| Node {
        address: node.address,
        level: node.level,
        low: node.low(),
        children: node.children.clone(),
    };
    Partition {
        id: snapshot.partition.id,
        root: snapshot.partition.root.raw(),
        low: snapshot.partition.range.low,
        nodes: snapshot.nodes.iter().map(node).collect(),
    }
}

fn counters(nic: &Nic) -> Vec<Counter> {
    let stats = nic.stats();
    let drops = stats.drops().map(|(reason, count)| (format!("dropped: {reason}"), count));
    drops.collect()
}
