//! Servers and clients of a test, and a counter that transactions add to.

use std::rc::Rc;

use fatbtree_dtx::{DtxError, Shape, Tables, Transaction, Verdict, Verified, Want};
use fatbtree_remote_memory::{Contention, Origin};
use fatbtree_sim::transactions::lab::{Client, Server, begin, serve};
use fatbtree_sim::world::{Machine, MachineOptions, Options, SimDevice, World, random};
use fatbtree_verbs::time::Duration;

/// Far more time than anything takes when nothing is in the way.
pub(crate) const SOON: Duration = Duration::from_millis(400);
/// A short lease.
pub(crate) const LEASE: Duration = Duration::from_micros(500);
/// A lease that outlasts a machine that is frozen.
pub(crate) const LONG: Duration = Duration::from_millis(3);

pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) servers: Vec<Rc<Server>>,
    pub(crate) shape: Shape,
}

impl Scene {
    pub(crate) fn new(shape: Shape, lease: Duration) -> Self {
        Self::with(shape, lease, Options::default(), 1)
    }

    pub(crate) fn with(shape: Shape, lease: Duration, options: Options, seed: u64) -> Self {
        let world = World::new(seed, options);
        let servers = serve(&world, shape, lease);
        Self { world, servers, shape }
    }

    pub(crate) fn client(&self, name: &str) -> (Machine, Client) {
        let machine = self.world.machine(MachineOptions::named(name));
        let memory = begin(&machine, &self.servers, Contention::SMART, &mut random(1, 1));
        (machine, memory)
    }

    /// Runs something on a machine to its end.
    pub(crate) fn run<T: 'static>(&self, machine: &Machine, work: impl Future<Output = T> + 'static) -> T {
        let task = machine.spawn(work);
        self.world.run_until(|| task.has_ended(), SOON).expect("nothing is in the way for long");
        task.take().expect("the machine lives")
    }

    /// A client that has opened the tables.
    pub(crate) fn open(&self, name: &str) -> (Machine, Rc<Tables<SimDevice>>) {
        let (machine, memory) = self.client(name);
        let tables = self.run(&machine, Tables::open(memory, self.servers[0].number));
        (machine, Rc::new(tables.expect("the servers live")))
    }

    /// A server dies and is started anew, with its memory or without it.
    pub(crate) fn restart(&self, server: usize, keeps: bool) {
        self.restart_with(server, if keeps { None } else { Some(Origin::Lost) });
    }

    /// A server dies and is started anew, with its memory or with empty one.
    pub(crate) fn restart_with(&self, server: usize, empty: Option<Origin>) {
        let server = &self.servers[server];
        match empty {
            None => server.die(),
            Some(origin) => server.lose(origin),
        }
        self.world.run_for(Duration::from_micros(5));
        // Names of sessions never come again.
        server.revive(100 + self.world.now().as_nanos());
    }

    /// A key of table 0, not below `from`, whose primary is at a position, and its backups after that.
    pub(crate) fn key_at(&self, position: usize, from: u64) -> u64 {
        let at = |key: &u64| (self.shape.node_of(0, *key) as usize) % self.shape.server_count() == position;
        (from..).find(at).expect("keys are spread")
    }

    /// What a last client finds of some keys, and in the tables.
    pub(crate) fn look<const N: usize>(
        &self,
        keys: [u64; N],
    ) -> Result<([Option<u64>; N], Verified), String> {
        let (machine, tables) = self.open("last");
        self.run(&machine, async move {
            let mut found = [None; N];
            for (found, key) in found.iter_mut().zip(keys) {
                *found = get(&tables, key).await.map_err(|error| error.to_string())?;
            }
            let verified = tables.verify(|_, _, _| {}).await.map_err(|fault| fault.to_string())?;
            Ok((found, verified))
        })
    }
}

pub(crate) fn number(value: Option<&[u8]>) -> Option<u64> {
    Some(u64::from_le_bytes(*value?.first_chunk()?))
}

pub(crate) async fn put(tables: &Tables<SimDevice>, key: u64, sum: u64) -> Result<(), DtxError> {
    let put = tables.run(async |tx| Ok(Verdict::Commit(tx.write(0, key, &sum.to_le_bytes()).await?)));
    put.await.result
}

pub(crate) async fn get(tables: &Tables<SimDevice>, key: u64) -> Result<Option<u64>, DtxError> {
    let found = tables.run(async |tx| Ok(Verdict::Commit(number(tx.read(0, key).await?))));
    found.await.result
}

/// Adds one to a counter in a transaction.
pub(crate) async fn add_in(tx: &mut Transaction<'_, SimDevice>, key: u64) -> Result<(), DtxError> {
    let [item] = tx.fetch([Want::write(0, key)]).await?;
    let sum = number(tx.value(item)).unwrap_or(0) + 1;
    tx.put(item, &sum.to_le_bytes())
}

/// Adds one to a counter.
pub(crate) async fn add(tables: Rc<Tables<SimDevice>>, key: u64) -> Result<(), DtxError> {
    tables.run(async |tx| Ok(Verdict::Commit(add_in(tx, key).await?))).await.result
}

/// Adds one to a counter in one attempt.
pub(crate) async fn add_once(tables: Rc<Tables<SimDevice>>, key: u64) -> Result<(), DtxError> {
    let mut tx = tables.begin().await?;
    add_in(&mut tx, key).await?;
    tx.commit().await
}

/// What additions were told: how many have counted, and how many may have.
pub(crate) fn told(results: &[Option<Result<(), DtxError>>]) -> std::ops::RangeInclusive<u64> {
    let sure = results.iter().filter(|result| matches!(result, Some(Ok(())))).count() as u64;
    let unsure =
        results.iter().filter(|result| matches!(result, None | Some(Err(DtxError::Unknown)))).count();
    sure..=sure + unsure as u64
}
