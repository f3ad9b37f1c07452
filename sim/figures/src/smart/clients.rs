//! Threads of clients over a structure: as many operations as they can.

use std::rc::Rc;

use fatbtree_memserver::Tenant;
use fatbtree_remote_memory::{Contention, RemoteConfig};
use fatbtree_verbs::time::Duration;

use crate::card::{Calibration, Cluster, Resources};
use crate::meter::{Done, Measured, Meter};
use crate::rig::{CONNECTING, Client, Rig, Servers, machines};
use fatbtree_sim::world::{Machine, Random};

/// The paper's two memory blades.
pub(super) const SERVERS: u16 = 2;
/// Operations that a thread has under way.
pub(super) const DEPTH: u32 = 8;

/// Threads that are measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup<W> {
    pub(super) calibration: Calibration,
    pub(super) resources: Resources,
    pub(super) contention: Contention,
    /// Clients, each with a card of its own.
    pub(super) clients: u32,
    /// Threads of each client.
    pub(super) threads: u32,
    pub(super) warm_up: Duration,
    pub(super) window: Duration,
    pub(super) seed: u64,
    /// What threads do.
    pub(super) work: W,
}

/// Operations of threads on a structure.
pub(super) trait Operations: 'static {
    /// A thread's end of the structure.
    type Side: 'static;

    /// Opens the structure on a thread's memory.
    async fn open(&self, machine: &Machine, memory: Client) -> Result<Self::Side, String>;

    /// Does the next operation of a slot.
    async fn next(&self, side: &Self::Side, slot: &mut Slot) -> Result<Done, String>;
}

/// One of the operations of a thread that are under way.
pub(super) struct Slot {
    machine: Machine,
    cards: Cluster,
    pub(super) memory: Client,
    meter: Rc<Meter>,
    number: usize,
    pub(super) draw: Random,
    /// Operations that have begun.
    pub(super) begun: u64,
}

impl Slot {
    /// Rests before the operation begins.
    pub(super) async fn rest(&self, span: Duration) {
        self.meter.begin(self.number, self.machine.now() + span);
        self.machine.sleep(span).await;
        self.meter.begin(self.number, self.machine.now());
    }

    /// Does the thread's own work, for which operations of the thread wait for each other.
    pub(super) async fn work(&self, span: Duration) {
        let now = self.machine.now();
        let ready = self.cards.work(now, self.machine.id(), span);
        self.machine.sleep(ready - now).await;
    }
}

/// Runs a measurement. `serve` starts the structure's servers.
///
/// # Errors
/// A wrong answer, or an operation that failed.
pub(super) fn run<W, T: Tenant + 'static>(
    setup: &Setup<W>,
    serve: impl FnOnce(&[Machine]) -> Result<Servers<T>, String>,
    operations: impl Operations,
) -> Result<Measured, String> {
    let seed = setup.seed;
    let mut rig = Rig::new(seed, setup.calibration, 1);
    rig.servers = machines(&rig.world, SERVERS);
    let servers = serve(&rig.servers)?;
    let mut memories = Vec::new();
    for number in 0..setup.clients * setup.threads {
        let config = RemoteConfig { contention: setup.contention, ..RemoteConfig::default() };
        memories.push(rig.begin(
            format!("thread {number}"),
            &servers,
            config,
            seed ^ u64::from(number) << 32,
        )?);
    }
    for of_one in rig.clients.chunks(setup.threads as usize) {
        rig.cards.threads(of_one.iter().map(Machine::id), setup.resources);
    }
    rig.world.run_for(CONNECTING);
    let operations = Rc::new(operations);
    for (number, (machine, memory)) in rig.clients.iter().zip(&memories).enumerate() {
        let (machine, memory, operations) = (machine.clone(), Rc::clone(memory), Rc::clone(&operations));
        let (cards, meter) = (rig.cards.clone(), Rc::clone(&rig.meter));
        drop(machine.clone().spawn(async move {
            let side = match operations.open(&machine, Rc::clone(&memory)).await {
                Ok(side) => Rc::new(side),
                Err(why) => return meter.fail(why),
            };
            meter.occupy((number, &machine), DEPTH, (seed, 10_000), |number, draw| {
                let (machine, cards, memory, meter) =
                    (machine.clone(), cards.clone(), Rc::clone(&memory), Rc::clone(&meter));
                let mut slot = Slot { machine, cards, memory, meter, number, draw, begun: 0 };
                let (operations, side) = (Rc::clone(&operations), Rc::clone(&side));
                async move || {
                    slot.begun += 1;
                    operations.next(&side, &mut slot).await
                }
            });
        }));
    }
    rig.world.run_for(setup.warm_up);
    rig.measure(setup.window, memories.iter().map(|memory| &**memory))
}
