//! Memory servers with an empty table, and their clients.

use std::rc::Rc;

use fatbtree_memserver::{ServerOptions, make};
use fatbtree_race::Shape;
use fatbtree_race::host::{HashTable, MakeOptions};
use fatbtree_remote_memory::Contention;
use fatbtree_verbs::time::Duration;

use crate::stage::{self, Client, config, options};
use crate::world::{Machine, Random, World};

/// Time for which an operation tries: far more than one takes when nothing is in the way.
const PATIENCE: Duration = Duration::from_millis(30);

/// A memory server with its part of a table.
pub type Server = stage::Server<HashTable>;

/// Starts servers with an empty table, and so many bytes of chunks each.
pub fn serve(world: &World, shape: Shape, spare: u64, lease: Duration) -> Vec<Rc<Server>> {
    serve_in_chunks(world, shape, (spare, 64 << 10), lease)
}

/// The same with chunks of so many bytes.
pub fn serve_in_chunks(
    world: &World,
    shape: Shape,
    (spare_bytes, chunk_bytes): (u64, u64),
    lease: Duration,
) -> Vec<Rc<Server>> {
    let reclaim_every = Duration::from_micros(200);
    let options = ServerOptions { reclaim_every, ..options(chunk_bytes, lease) };
    let part = |server| MakeOptions { spare_bytes, chunk_bytes, ..MakeOptions::new(server, shape) };
    stage::serve(world, shape.servers, &options, |server| make(&part(server)).expect("the shape is possible"))
}

/// Makes a client on a machine that has just booted, and a task that keeps its sessions and connections.
pub fn begin(machine: &Machine, servers: &[Rc<Server>], contention: Contention, draw: &mut Random) -> Client {
    let config = config(contention, PATIENCE, draw);
    stage::begin(machine, servers, config, draw)
}
