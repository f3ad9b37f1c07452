//! Memory servers with empty tables, and their clients.

use std::rc::Rc;

use fatbtree_dtx::host::{Content, HostTables};
use fatbtree_dtx::{Shape, Tables};
use fatbtree_remote_memory::Contention;
use fatbtree_remote_memory::session_keeper::Notice;
use fatbtree_verbs::time::Duration;

pub use crate::stage::Client;
use crate::stage::{self, client, config, keep, options};
use crate::world::{Machine, Random, World};

/// Time for which an operation tries: far more than one takes when nothing is in the way.
pub const PATIENCE: Duration = Duration::from_millis(20);

/// Bytes of a server's chunks, of which tables have none.
const CHUNK: u64 = 32 << 10;

/// A memory server with its part of tables.
pub type Server = stage::Server<HostTables>;

/// Starts servers with empty tables.
#[must_use]
pub fn serve(world: &World, shape: Shape, lease: Duration) -> Vec<Rc<Server>> {
    let make = |server| HostTables::make(server, shape, Content::Empty, 1).expect("the shape is possible");
    stage::serve(world, shape.servers, &options(CHUNK, lease), make)
}

/// Whether a server's memory has all items.
#[must_use]
pub fn is_whole(server: &Server) -> bool {
    HostTables::is_whole(&server.content())
}

/// Makes a client on a machine that has just booted, and a task that keeps its sessions and connections. What is left is settled when the
/// memory tells of it, as owners do it.
pub fn begin(machine: &Machine, servers: &[Rc<Server>], contention: Contention, draw: &mut Random) -> Client {
    let config = config(contention, PATIENCE, draw);
    let memory = client(machine, servers, config, draw);
    let (of, on, home) = (Rc::downgrade(&memory), machine.clone(), servers[0].number);
    let told = move |notice| {
        if let (Notice::Unfinished { .. }, Some(memory)) = (notice, of.upgrade()) {
            drop(on.spawn(async move {
                if let Ok(tables) = Tables::open(memory, home).await {
                    // What cannot be settled now is told of again.
                    tables.finish().await.ok();
                }
            }));
        }
    };
    keep(machine, Rc::clone(&memory), servers, told);
    memory
}
