//! The simulated device passes the suite that every implementation passes, however rough its world is.

use fatbtree_verbs::conformance::{self, Bench, LocalResponder, Responder};
use fatbtree_verbs::{BufferClass, Mtu};
use rand::RngExt as _;

use crate::world::{LinkFaults, MachineOptions, Options, Retry, ServiceTimes, SimDevice, World, random};

struct SimBench {
    world: World,
    client: SimDevice,
    responder: LocalResponder<SimDevice>,
}

impl SimBench {
    fn new(seed: u64, options: Options, machine: MachineOptions) -> Self {
        let world = World::new(seed, options);
        let client = world.machine(MachineOptions { name: "client".to_owned(), ..machine.clone() }).device();
        let server = world.machine(MachineOptions { name: "server".to_owned(), ..machine }).device();
        Self { world, client, responder: LocalResponder::new(server) }
    }
}

impl Bench for SimBench {
    type Verbs = SimDevice;

    fn verbs(&mut self) -> &mut SimDevice {
        &mut self.client
    }

    fn responder(&mut self) -> &mut dyn Responder {
        // The owner looks past the network.
        self.world.settle();
        &mut self.responder
    }

    fn advance(&mut self, _turns: u64) -> bool {
        self.world.step()
    }
}

/// Small buffers, so that they are used up soon.
fn machine() -> MachineOptions {
    MachineOptions {
        mtu: Mtu::B1024,
        buffers: vec![BufferClass { count: 64, bytes: 4096 }, BufferClass { count: 4, bytes: 1 << 16 }],
        ..MachineOptions::default()
    }
}

fn check(seed: u64, options: &Options, machine: &MachineOptions) {
    let report = conformance::run(|| SimBench::new(seed, options.clone(), machine.clone()));
    assert!(report.failures().is_empty(), "seed {seed}, {options:?}, {machine:?}\n{report}");
    assert!(report.cases() > 45, "the suite has shrunk to {} cases", report.cases());
}

#[test]
fn in_a_calm_world() {
    check(1, &Options::default(), &machine());
}

fn rough(seed: u64, lost: u32) -> (Options, MachineOptions) {
    let mut draw = random(seed, 99);
    let mut options = Options::rough(&mut draw);
    // Lost messages must come through in the end: the suite expects requests to succeed.
    options.retry.limit = 200;
    let machine = MachineOptions {
        link: LinkFaults { lost, ..LinkFaults::rough(&mut draw) },
        line_atomicity: draw.random_bool(0.5),
        masked_atomics: draw.random_bool(0.7),
        device_memory: if draw.random_bool(0.7) { 65_536 } else { 0 },
        responder_reads: draw.random_range(1..=20),
        initiator_reads: draw.random_range(1..=20),
        send_queue: draw.random_range(20..=130),
        ..machine()
    };
    (options, machine)
}

#[test]
fn in_rough_worlds() {
    for seed in 0..60 {
        let (options, machine) = rough(seed, 0);
        check(seed, &options, &machine);
    }
}

/// A refusal that is lost is not repeated, because the responder's queue pair has failed: then retries run out instead. All else
/// is as without loss.
#[test]
fn where_messages_are_lost() {
    for seed in 0..30 {
        let (options, machine) = rough(seed, 5_000);
        let report = conformance::run(|| SimBench::new(seed, options.clone(), machine.clone()));
        let others = report.failures().iter().filter(|(_, why)| !why.contains("RetryExceeded")).count();
        assert!(others == 0 && report.failures().len() < 10, "seed {seed}\n{report}");
    }
}

#[test]
fn with_every_touch_an_event() {
    for seed in 0..5 {
        let mut options = Options { every_touch_an_event: true, ..Options::rough(&mut random(seed, 99)) };
        options.retry.limit = 200;
        check(seed, &options, &MachineOptions { line_atomicity: false, ..machine() });
    }
}

/// The suite can fail here: a network that loses nearly everything does not pass.
#[test]
fn not_where_retries_run_out() {
    let options = Options {
        retry: Retry { limit: 0, ..Retry::default() },
        times: ServiceTimes::default(),
        ..Options::default()
    };
    let lossy = MachineOptions { link: LinkFaults { lost: 400_000, ..LinkFaults::default() }, ..machine() };
    let report = conformance::run(|| SimBench::new(3, options.clone(), lossy.clone()));
    assert!(report.failures().len() > 10, "{report}");
}
