//! A tree to be tried: memory servers and a client in one process, and wires of no length between their NICs.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use anyhow::{Context, Result, bail};
use fatbtree_blink::{
    Allocation, ChunkKind, Event, IndexCache, PoolConfig, RemoteSide, ReturnedBlocks, TreeConfig, ValueLayout,
};
use fatbtree_client::Client;
use fatbtree_memserver::{
    BLOCKS_AT_ONCE, ClientId, Grant, LoadOptions, MemoryServer, ServerOptions, SessionKey, load_cluster,
    load_ranges, varying,
};
use fatbtree_nic::{Nic, NicConfig};
use fatbtree_verbs::Mtu;
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::Frame;

/// What a tree is made with.
pub(super) struct Setting {
    pub(super) config: TreeConfig,
    pub(super) allocation: Allocation,
    pub(super) servers: u16,
    /// The keys 1 to this are loaded.
    pub(super) keys: u64,
    pub(super) cache_bytes: u64,
    /// Bytes of each server for what is written.
    pub(super) spare_bytes: u64,
}

/// Time that a turn of the network takes. Nothing here measures it; it lets those go on who pause.
const TURN: Duration = Duration::from_micros(1);

/// Sessions in one process do not end before it does.
const LEASE: Duration = Duration::from_secs(1 << 33);

const SEED: u64 = 1;

/// The client, and all that it talks to.
pub(super) struct Tree {
    pub(super) client: Client<Nic>,
    network: Network,
}

struct Network {
    now: Instant,
    servers: Vec<(MemoryServer<Nic>, SessionKey)>,
    frame: Vec<u8>,
}

fn nic(config: &TreeConfig, last: [u8; 2]) -> Result<Nic> {
    let [net, host] = last;
    let nodes = config.max_node_bytes() as usize;
    let fits = [Mtu::B1024, Mtu::B2048].into_iter().find(|mtu| mtu.bytes() >= nodes);
    let address = ([2, 0, 0, 0, net, host], [10, 0, net, host].into());
    let config = NicConfig { mtu: fits.unwrap_or(Mtu::B4096), ..NicConfig::new(address.0, address.1) };
    Nic::new(config, SEED + u64::from(net) + 256 * u64::from(host)).context("getting memory for a NIC")
}

/// The value with which a key is loaded: as many digits as the leaves hold, or `v` and the key.
pub(super) fn loaded_value(config: &TreeConfig, key: u64) -> Vec<u8> {
    match config.values() {
        ValueLayout::Inline(bytes) => {
            let bytes = usize::from(bytes);
            let digits = format!("{key:0bytes$}").into_bytes();
            digits[digits.len() - bytes..].to_vec()
        }
        ValueLayout::OutOfLine => format!("v{key}").into_bytes(),
    }
}

impl Tree {
    pub(super) fn new(setting: &Setting) -> Result<Self> {
        let config = setting.config;
        let keys: Vec<u64> = (1..=setting.keys).collect();
        let mut values = varying(
            move |key| loaded_value(&config, key).len() as u32,
            move |key, out: &mut [u8]| out.copy_from_slice(&loaded_value(&config, key)),
        );
        let options = LoadOptions { spare_bytes: setting.spare_bytes, ..LoadOptions::new(config, 0) };
        let cluster = if setting.keys < u64::from(setting.servers) {
            let width = u64::MAX / u64::from(setting.servers);
            let lows: Vec<u64> = (0..u64::from(setting.servers)).map(|server| server * width).collect();
            load_ranges(&options, &lows, &keys, &mut values)?
        } else {
            load_cluster(&options, setting.servers, &keys, &mut values)?
        };
        let roots = cluster.roots.clone();

        let pool = PoolConfig { tree: config, allocation: setting.allocation, ..PoolConfig::default() };
        let client = Client::new(nic(&config, [1, 1])?, pool, roots, SEED)?;
        if setting.cache_bytes > 0 {
            client.set_cache(Some(Arc::new(IndexCache::new(setting.cache_bytes))));
        }
        let options = ServerOptions { lease: LEASE, ..ServerOptions::writable() };
        let mut servers = Vec::new();
        for tree in cluster.trees {
            let nic = nic(&config, [0, tree.partition.id as u8])?;
            servers.push(MemoryServer::new(nic, tree, &options, SEED)?);
        }
        let network = Network { now: Instant::ZERO, servers: Vec::new(), frame: Vec::new() };
        let mut tree = Self { client, network };
        for (server, id) in servers.into_iter().zip(tree.client.pool().connections()) {
            tree.connect(server, id)?;
        }
        Ok(tree)
    }

    /// Opens a session with a server and connects the client's only queue pair to it.
    fn connect(&mut self, mut server: MemoryServer<Nic>, id: fatbtree_blink::ConnectionId) -> Result<()> {
        let pool = self.client.pool();
        let now = self.network.now;
        let local = pool.open(id)?;
        let client = ClientId { host: [127, 0, 0, 1].into(), roce: local.ip };
        let lease = server.open_session(now, client)?;
        let endpoint = server.connect(now, lease.session, &local, None)?;
        let writer = server.info().writer(lease.owner, true).context("a writable server has locks")?;
        pool.set_writer(id.server, writer)?;
        pool.connected(id, RemoteSide { endpoint, rkey: server.info().tree.rkey, registered: false })?;
        self.network.servers.push((server, lease.session));
        Ok(())
    }

    /// Runs a future of the client's to its end.
    ///
    /// # Errors
    /// When a connection breaks.
    pub(super) fn run<F: Future>(&mut self, work: impl FnOnce(Client<Nic>) -> F) -> Result<F::Output> {
        let done = self.network.run(&self.client, work(self.client.clone()));
        if done.is_err() {
            // What was dropped may have left a lock, or what it had begun.
            let client = self.client.clone();
            self.network.run(&self.client, async { client.pool().finish().await })?;
        }
        done
    }
}

impl Network {
    fn run<F: Future>(&mut self, client: &Client<Nic>, future: F) -> Result<F::Output> {
        let mut future = pin!(future);
        let mut context = TaskContext::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            self.turn(client)?;
        }
    }

    /// Carries all frames, and lets the client and the servers do what is due. No frame is ever lost, so no NIC waits for a timer.
    fn turn(&mut self, client: &Client<Nic>) -> Result<()> {
        self.now += TURN;
        let moved = client.pool().reactor().with(|nic| self.carry(nic));
        let woken = client.turn(self.now);
        while let Some(event) = client.poll_event() {
            match event {
                Event::MemoryWanted { server, kind, bytes } => self.grant(client, server, kind, bytes)?,
                Event::ConnectionBroken { id, reason } => bail!("the {id} broke: {reason}"),
                // Whoever dropped the change runs `finish`.
                Event::Unfinished { .. } => {}
            }
        }
        if moved || woken {
            return Ok(());
        }
        if let Some(deadline) = client.next_deadline() {
            self.now = self.now.max(deadline);
        }
        Ok(())
    }

    /// Brings frames from end to end until there are none. Says whether there were any.
    fn carry(&mut self, client: &mut Nic) -> bool {
        let mut any = false;
        let mut more = true;
        while more {
            more = false;
            while client.poll_transmit(self.now, &mut self.frame) {
                let to = Frame::parse(&self.frame).map(|frame| frame.ipv4.destination.octets()[3]);
                let to = to.ok().and_then(|to| self.servers.get_mut(usize::from(to)));
                if let Some((server, _)) = to {
                    server.device_mut().handle_frame(self.now, &self.frame);
                }
                more = true;
            }
            for (server, _) in &mut self.servers {
                while server.device_mut().poll_transmit(self.now, &mut self.frame) {
                    client.handle_frame(self.now, &self.frame);
                    more = true;
                }
            }
            any |= more;
        }
        any
    }

    /// Gets memory of a server for the client, and gives back what the client does not need.
    fn grant(&mut self, client: &Client<Nic>, at: u16, kind: ChunkKind, bytes: u32) -> Result<()> {
        let (now, pool) = (self.now, client.pool());
        for ReturnedBlocks { server, kind, bytes, addresses, .. } in pool.surplus() {
            let (server, session) = self.server(server)?;
            for addresses in addresses.chunks(BLOCKS_AT_ONCE) {
                server.give_back(now, session, kind, bytes, addresses)?;
            }
        }
        let (server, session) = self.server(at)?;
        match server.allocate(now, session, kind, bytes) {
            Ok(grant) => {
                if let Grant::Chunk(chunk) = &grant {
                    server.publish(now, session, chunk.address)?;
                }
                grant.hand_to(pool, at, session.id);
            }
            // The operation says so.
            Err(refusal) => pool.refuse_memory(at, kind, refusal.shortage()),
        }
        Ok(())
    }

    fn server(&mut self, server: u16) -> Result<(&mut MemoryServer<Nic>, SessionKey)> {
        let found = self.servers.get_mut(usize::from(server));
        let (server, session) = found.with_context(|| format!("there is no memory server {server}"))?;
        Ok((server, *session))
    }
}
