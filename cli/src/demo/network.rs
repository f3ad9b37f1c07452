//! Building the demo's network: the hosts of servers and client, and every address as a cluster file would have it.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use fatbtree_blink_host as host;
use fatbtree_memserver as memserver;
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_switch::service::{Inbox, Switch, mailbox_with_waker, serve};
use fatbtree_topology::{self as topology, Cluster, HostId, Kind, Network};
use fatbtree_verbs::time::Duration;
use tokio::net::TcpListener;

use super::data_path::Waker;

/// Hosts of memory servers and client: the servers in the first pod, the client in the second.
pub(super) struct Places {
    pub(super) servers: Vec<HostId>,
    pub(super) client: HostId,
}

impl Places {
    pub(super) fn choose(tree: &Network, servers: u16) -> Result<Self> {
        let in_pod = |pod: u16| tree.hosts().iter().filter(move |host| host.pod == pod);
        // One host of every rack before a second one of any: node sets of edge switches add up.
        let mut hosts: Vec<_> = in_pod(0).collect();
        hosts.sort_by_key(|host| (host.index, host.edge));
        if hosts.len() < usize::from(servers) {
            bail!(
                "{servers} memory servers do not fit into one pod of {} hosts: use a larger --k or fewer --servers",
                hosts.len()
            );
        }
        let client = in_pod(1)
            .next()
            .context("a network of one pod has no other pod for the client: use --k 4 or more")?;
        Ok(Self {
            servers: hosts[..usize::from(servers)].iter().map(|host| host.id).collect(),
            client: client.id,
        })
    }
}

/// The control plane's ends of all switches and memory servers, listening on loopback.
pub(super) struct Endpoints {
    pub(super) inboxes: Vec<Inbox>,
    pub(super) mailboxes: Vec<host::TreeMailbox>,
    /// The cluster as a file would describe it.
    pub(super) cluster: Cluster,
}

impl Endpoints {
    /// Opens a P4Runtime server per switch and a gRPC server per memory server, on ports the system chooses.
    /// Each inbox and mailbox wakes the thread that drives its switch or server.
    pub(super) async fn open(
        tree: &Network,
        places: &Places,
        lows: &[u64],
        waker_of: impl Fn(&topology::Switch) -> Waker,
        waker_of_racks: Waker,
    ) -> Result<Self> {
        let Kind::FatTree { k, .. } = tree.kind() else { bail!("the demo runs in a fat tree") };
        let mut file = format!("[network]\nk = {k}\ncores = \"one\"\n");
        let mut inboxes = Vec::new();
        for (number, switch) in tree.switches().iter().enumerate() {
            let waker = waker_of(switch);
            let (mailbox, inbox) = mailbox_with_waker(move || waker.wake());
            let (listener, address) = listen().await?;
            tokio::spawn(serve(listener, mailbox, std::future::pending()));
            inboxes.push(inbox);
            write!(
                file,
                "[[switch]]\nname = \"{}\"\np4runtime = \"{address}\"\ndevice_id = {}\n",
                switch.name(),
                number + 1
            )?;
        }
        let mut mailboxes = Vec::new();
        for (partition, host) in places.servers.iter().enumerate() {
            let waker = waker_of_racks.clone();
            let (handle, mailbox) = memserver::mailbox_with_waker(16, move || waker.wake());
            let (listener, address) = listen().await?;
            tokio::spawn(host::grpc::serve(listener, handle, std::future::pending()));
            mailboxes.push(mailbox);
            write!(
                file,
                "[[memory_server]]\nhost = \"{}\"\npartition = {partition}\nlow = \"{:#x}\"\ngrpc = \"{address}\"\n",
                tree.host(*host).name(),
                lows[partition]
            )?;
        }
        write!(file, "[[client]]\nhost = \"{}\"\n", tree.host(places.client).name())?;
        let cluster = Cluster::from_toml(&file).context("the demo's own cluster file")?;
        Ok(Self { inboxes, mailboxes, cluster })
    }
}

async fn listen() -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("opening a port on loopback")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Whether the switch is in a rack, with the hosts. The others are the fabric between the racks.
pub(super) fn is_in_rack(switch: &topology::Switch) -> bool {
    switch.role.has_hosts()
}

/// Switches without a program, as they come out of the box.
pub(super) fn switches(tree: &Network) -> Vec<Switch> {
    (1..=tree.switches().len() as u64).map(Switch::new).collect()
}

/// The NIC of a host.
pub(super) fn nic(tree: &Network, host: HostId, seed: u64) -> Result<Nic> {
    let address = tree.host(host);
    // Each NIC draws its own numbers from the one seed.
    let seed = seed ^ (u64::from(host.0) + 1) << 32;
    // Nothing is lost here. What is late is late because the machine is busy, and sending it again makes it busier.
    let config =
        NicConfig { ack_timeout: Duration::from_secs(1), ..NicConfig::new(address.mac.0, address.ip) };
    Nic::new(config, seed).context("getting memory for a NIC's buffers")
}
