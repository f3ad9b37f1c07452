//! Memory servers with an empty index, their clients, and switches that lead these.

use std::ops::RangeInclusive;
use std::rc::Rc;

use fatbtree_dolphin::host::{self, HybridIndex, MakeOptions};
use fatbtree_dolphin::{LEAF_BYTES, Shape};
use fatbtree_memserver::{Loaded, ServerOptions, make};
use fatbtree_remote_memory::{ConnectError, ConnectionId, GlobalAddress, Kept, RemoteMemory, RemoteSide};
use fatbtree_verbs::Remote;
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use crate::stage::{self, Client, options};
use crate::world::{CachedSwitches, Random, SimDevice, World};

/// Bytes of a server's chunks.
pub(super) const CHUNK: u64 = 32 << 10;

/// A memory server with its part of an index.
pub type Server = stage::Server<HybridIndex>;

/// Starts servers with an empty index.
#[must_use]
pub fn serve(world: &World, shape: Shape, spare_bytes: u64, lease: Duration) -> Vec<Rc<Server>> {
    let part = |server| MakeOptions { spare_bytes, chunk_bytes: CHUNK, ..MakeOptions::new(server, shape) };
    let make = |server| make(&part(server)).expect("the shape is possible");
    let reclaim_every = Duration::from_micros(200);
    let options = ServerOptions { reclaim_every, ..options(CHUNK, lease) };
    stage::serve(world, shape.servers, &options, make)
}

/// Leaves in a server's memory with their keys, whatever their state is.
#[must_use]
pub fn leaves(server: &Server) -> Vec<(GlobalAddress, RangeInclusive<u64>)> {
    let Loaded { server, region, spare, chunk_classes, .. } = server.content();
    let mut word = [0; 8];
    let mut is_given_out = |chunk: u64| {
        let table = chunk_classes.iter().any(|table| table.read(chunk * 8, &mut word).is_ok());
        table && word != [0; 8]
    };
    let chunks = (0..).take_while(|chunk| is_given_out(*chunk));
    let offsets = chunks.flat_map(|chunk| {
        let begin = spare.start + chunk * CHUNK;
        (begin..begin + CHUNK).step_by(LEAF_BYTES)
    });
    let leaf = |offset| {
        let (at, mut line) = (GlobalAddress::new(server, offset), [0; 64]);
        region.read(offset, &mut line).ok()?;
        Some((at, host::keys_of_leaf(at, &line)?))
    };
    offsets.filter_map(leaf).collect()
}

/// Leaves in the servers' memory that answer, and to which nothing leads.
#[must_use]
pub fn strays(servers: &[Rc<Server>], shape: &Shape) -> Vec<GlobalAddress> {
    let leaves = servers.iter().flat_map(|server| leaves(server)).map(|(leaf, _)| leaf);
    host::strays(shape, leaves, |at, bytes| read(servers, at, bytes))
}

fn of(servers: &[Rc<Server>], number: u16) -> Option<&Rc<Server>> {
    servers.iter().find(|server| server.number == number)
}

/// Reads the memory of one of the servers, also of one that has died.
fn read(servers: &[Rc<Server>], at: GlobalAddress, bytes: &mut [u8]) -> bool {
    of(servers, at.server()).is_some_and(|server| server.region().read(at.offset(), bytes).is_ok())
}

/// A client's memory under its keeper, with the switches that its queue pairs are registered with.
pub(super) struct Registered {
    pub(super) memory: Client,
    pub(super) switches: Option<CachedSwitches>,
}

impl Kept for Registered {
    type Verbs = SimDevice;
    type Refusal = ConnectError;

    fn remote(&self) -> &RemoteMemory<SimDevice> {
        &self.memory
    }

    fn join(&self, id: ConnectionId, remote: RemoteSide) -> Result<(), ConnectError> {
        let rkey = remote.rkey;
        self.memory.connected(id, RemoteSide { registered: self.switches.is_some(), ..remote })?;
        if let (Some(switches), Some(pair)) = (&self.switches, self.memory.queue_pair(id)) {
            let begin = GlobalAddress::new(id.server, 0).raw();
            switches.register(pair, Remote { address: begin, rkey });
        }
        Ok(())
    }
}

/// Switches that learn the leaves of an index every now and then, some of them wrong. `unlinked`: also leaves to which no node
/// leads, because they are not linked yet, or not any more.
pub(super) fn lead(
    world: &World,
    servers: &[Rc<Server>],
    shape: Shape,
    unlinked: bool,
    mut draw: Random,
) -> CachedSwitches {
    let switches = CachedSwitches::default();
    world.set_switches(switches.clone());
    let (told, servers, operator) = (switches.clone(), servers.to_vec(), world.operator().clone());
    drop(world.operator().spawn(async move {
        loop {
            operator.sleep(Duration::from_micros(draw.random_range(50..600))).await;
            let places = host::places(&shape, |at, bytes| read(&servers, at, bytes));
            for (number, place) in places.iter().enumerate() {
                let Some(server) = of(&servers, place.leaf.server()) else { continue };
                let Some(rkey) = server.rkey() else { continue };
                let at = match draw.random_range(0..10) {
                    // What was there before stays.
                    0..3 => continue,
                    3 => place.leaf.raw() + 64 * draw.random_range(0..4),
                    4 => {
                        let other = &places[(number + 1) % places.len()].leaf;
                        if other.server() == place.leaf.server() { other.raw() } else { place.leaf.raw() }
                    }
                    _ => place.leaf.raw(),
                };
                told.cache(server.machine.id(), place.low..=place.high, Remote { address: at, rkey });
            }
            for server in servers.iter().filter(|_| unlinked) {
                let Some(rkey) = server.rkey() else { continue };
                for (leaf, keys) in leaves(server) {
                    if draw.random_bool(0.5) && places.iter().all(|place| place.leaf != leaf) {
                        told.cache(server.machine.id(), keys, Remote { address: leaf.raw(), rkey });
                    }
                }
            }
        }
    }));
    switches
}
