//! A tree to be tried: memory servers and a client in one process, and wires of no length between their NICs.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use anyhow::{Context, Result, bail};
use fatbtree_blink::{Allocation, IndexCache, Keys, PoolConfig, TreeConfig, ValueLayout};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{LoadOptions, TreeInfo, TreeServer, load_cluster, load_ranges, varying};
use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions};
use fatbtree_remote_memory::session_keeper::{KeeperOptions, Notice, SessionKeeper};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::Mtu;
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::Frame;

use super::place::Place;

/// Parameters of a tree.
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

/// Time that a turn of the network takes. Nothing here measures it; it lets paused operations go on.
const TURN: Duration = Duration::from_micros(1);

/// Sessions in one process do not end before it does.
const LEASE: Duration = Duration::from_secs(1 << 33);

const SEED: u64 = 1;

/// Address of the client's NIC in 10.0.0.0/16.
const CLIENT: [u8; 2] = [1, 1];

/// The client, and all that it talks to.
pub(super) struct Tree {
    client: Client<Nic>,
    config: TreeConfig,
    network: Network,
}

struct Network {
    now: Instant,
    servers: Vec<TreeServer<Nic>>,
    keeper: SessionKeeper<TreeInfo>,
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
fn loaded_value(config: &TreeConfig, key: u64) -> Vec<u8> {
    match config.values() {
        ValueLayout::Inline(bytes) => {
            let bytes = usize::from(bytes);
            let digits = format!("{key:0bytes$}").into_bytes();
            digits[digits.len() - bytes..].to_vec()
        }
        ValueLayout::OutOfLine | ValueLayout::ByLength(_) => format!("v{key}").into_bytes(),
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
        let client = Client::new(nic(&config, CLIENT)?, pool, roots, SEED)?;
        if setting.cache_bytes > 0 {
            client.set_cache(Some(Arc::new(IndexCache::new(setting.cache_bytes))));
        }
        let options = ServerOptions { lease: LEASE, ..ServerOptions::writable() };
        let mut servers = Vec::new();
        for tree in cluster.trees {
            let nic = nic(&config, [0, tree.partition.id as u8])?;
            servers.push(MemoryServer::new(nic, tree, &options, SEED)?);
        }
        let keeper = SessionKeeper::new(client.pool().connections(), KeeperOptions::default());
        let mut network = Network { now: Instant::ZERO, servers, keeper, frame: Vec::new() };
        while !network.keeper.is_connected() {
            network.turn(&client)?;
        }
        Ok(Self { client, config, network })
    }
}

impl Place for Tree {
    type Structure = Client<Nic>;

    fn keys(&self) -> Keys {
        self.config.keys()
    }

    fn structure(&self) -> Rc<Client<Nic>> {
        Rc::new(self.client.clone())
    }

    /// Fails when a connection breaks.
    fn run<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        let done = self.network.run(&self.client, work);
        if done.is_err() {
            // What was dropped may have left a lock, or what it had begun.
            let client = self.client.clone();
            self.network.run(&self.client, async { client.pool().finish().await })?;
        }
        done
    }

    fn reads(&self) -> u64 {
        self.client.pool().stats().remote.reads
    }

    fn verify(&mut self) -> Result<String> {
        let client = self.client.clone();
        Ok(self.run(client.verify())??.to_string())
    }

    fn loaded_value(&self) -> Box<dyn Fn(u64) -> Vec<u8>> {
        let config = self.config;
        Box::new(move |key| loaded_value(&config, key))
    }

    fn statistics(&self) -> Vec<String> {
        let (stats, cache) = (self.client.pool().stats(), self.client.cache_stats());
        vec![
            format!("splits {}, merges {}, new roots {}", stats.splits, stats.merges, stats.new_roots),
            format!(
                "cache: {} bytes in {} nodes; hits {}, misses {}, stale {}, evicted {}",
                cache.bytes, cache.entries, cache.hits, cache.misses, cache.stale, cache.evicted
            ),
        ]
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
        self.keep_sessions(client)?;
        if moved || woken {
            return Ok(());
        }
        let deadline = client.poll_timeout().into_iter().chain([self.keeper.poll_timeout()]).min();
        self.now = self.now.max(deadline.unwrap_or_default());
        Ok(())
    }

    /// Lets servers answer all calls of the client's keeper. Operations report a shortage of memory themselves.
    fn keep_sessions(&mut self, client: &Client<Nic>) -> Result<()> {
        let Self { now, servers, keeper, .. } = self;
        let [net, host] = CLIENT;
        let id = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, net, host].into() };
        keeper
            .pump(*now, client.pool(), |server, call| servers[usize::from(server)].carry_out(*now, id, call));
        while let Some(notice) = keeper.poll_notice() {
            if let Notice::Broken { id, reason } = notice {
                bail!("the {id} broke: {reason}");
            }
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
                if let Some(server) = to {
                    server.device_mut().handle_frame(self.now, &self.frame);
                }
                more = true;
            }
            for server in &mut self.servers {
                while server.device_mut().poll_transmit(self.now, &mut self.frame) {
                    client.handle_frame(self.now, &self.frame);
                    more = true;
                }
            }
            any |= more;
        }
        any
    }
}
