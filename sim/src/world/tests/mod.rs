//! Promises of the world, one behaviour a file.

mod cards;
mod conformance;
mod deaths;
mod index_reads;
mod lists;
mod losses;
mod registers;
mod stations;
mod tearing;
mod time;

use std::future::Future;
use std::sync::Arc;

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{
    Access, Device as _, Error, IndexTarget, Memory, Operation, Output, QueuePair, Region, Remote,
};

use super::{Machine, MachineOptions, Options, SimDevice, Task, World};

/// Longer than anything may take.
const LONG: Duration = Duration::from_secs(1);

/// A world with a memory server and some clients.
struct Lab {
    world: World,
    server: Machine,
    memory: Arc<Memory>,
    region: Region,
    clients: Vec<Machine>,
}

impl Lab {
    fn new(seed: u64, options: Options, clients: usize) -> Self {
        Self::with(seed, options, clients, &MachineOptions::default())
    }

    fn with(seed: u64, options: Options, clients: usize, machine: &MachineOptions) -> Self {
        let world = World::new(seed, options);
        let named = |name: String| MachineOptions { name, ..machine.clone() };
        let server = world.machine(named("server".to_owned()));
        let memory = Memory::shared(1 << 16).unwrap();
        let region = server.reactor().with(|card| card.register(&memory, 0, Access::ALL)).unwrap();
        let clients = (0..clients).map(|number| world.machine(named(format!("client {number}")))).collect();
        Self { world, server, memory, region, clients }
    }

    fn at(&self, address: u64) -> Remote {
        Remote { address, rkey: self.region.rkey }
    }

    /// A connection of a client to the server.
    fn connect(&self, client: usize) -> Wire {
        let (machine, server) = (self.clients[client].clone(), self.server.clone());
        let dialled = machine.clone();
        let dial = async move { dialled.dial(&server).await.unwrap() };
        let queue_pair = self.world.block_on(dial, LONG).unwrap();
        Wire { machine, queue_pair, rkey: self.region.rkey }
    }

    /// A connection of a client's bare card, which has no reactor: the test polls by itself.
    fn bare(&self, client: usize) -> (SimDevice, QueuePair) {
        let (mut here, mut there) = (self.clients[client].device(), self.server.device());
        let (queue_pair, peer) = (here.create().unwrap(), there.create().unwrap());
        there.connect(peer, &here.endpoint(queue_pair).unwrap()).unwrap();
        here.connect(queue_pair, &there.endpoint(peer).unwrap()).unwrap();
        (here, queue_pair)
    }

    /// Runs a future to its end on the operator.
    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(future, LONG).unwrap()
    }

    fn run_all<T>(&self, tasks: &[Task<T>]) -> Duration {
        self.world.run_until(|| tasks.iter().all(Task::has_ended), LONG).unwrap()
    }

    fn word(&self, address: u64) -> u64 {
        self.world.settle();
        self.memory.update(address, |word| word).unwrap()
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        self.world.settle();
        let mut bytes = vec![0; len];
        self.memory.read(address, &mut bytes).unwrap();
        bytes
    }
}

impl Drop for Lab {
    /// Checks that no message and no access is under way when nothing happens any more.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.world.heal();
            self.world.run();
            assert_eq!(self.world.under_way(), (0, 0), "messages and accesses that nobody took");
        }
    }
}

/// A client's connection.
#[derive(Clone)]
struct Wire {
    machine: Machine,
    queue_pair: QueuePair,
    rkey: u32,
}

impl Wire {
    fn at(&self, address: u64) -> Remote {
        Remote { address, rkey: self.rkey }
    }

    async fn post<const N: usize>(&self, operations: [Operation<'_>; N]) -> Result<[Output; N], Error> {
        self.machine.reactor().chain(self.queue_pair, operations).await
    }

    async fn read(&self, address: u64, len: u32) -> Result<Vec<u8>, Error> {
        match self.post([Operation::Read { from: self.at(address), len }]).await? {
            [Output::Read(bytes)] => Ok(bytes.to_vec()),
            other => panic!("a READ gave {other:?}"),
        }
    }

    async fn index_read(&self, key: u64, len: u32) -> Result<Vec<u8>, Error> {
        match self.post([Operation::IndexRead { key, len, target: IndexTarget::NodeOrRecord }]).await? {
            [Output::Read(bytes)] => Ok(bytes.to_vec()),
            other => panic!("an index read gave {other:?}"),
        }
    }

    async fn write(&self, address: u64, data: &[u8]) -> Result<(), Error> {
        self.post([Operation::Write { to: self.at(address), data }]).await.map(drop)
    }

    async fn atomic(&self, operation: Operation<'_>) -> Result<u64, Error> {
        match self.post([operation]).await? {
            [Output::Atomic(found)] => Ok(found),
            other => panic!("an atomic gave {other:?}"),
        }
    }

    async fn add(&self, address: u64, add: u64) -> Result<u64, Error> {
        self.atomic(Operation::FetchAdd { at: self.at(address), add }).await
    }

    async fn swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64, Error> {
        self.atomic(Operation::CompareSwap { at: self.at(address), compare, swap }).await
    }
}
