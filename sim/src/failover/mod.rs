//! Failure of any one cable or switch at any moment: no answer is wrong, and lookups go on.
//!
//! ```text
//!   Controller ── Keeper ── control channel ──┐        in virtual time:
//!       ▲                                     ▼          channels are late, closed, or answer nothing
//!   LinkMonitor ── probes ────────────▶ software switch  the compiled program, its CPU port
//!                                         │ cable        cut, in one direction or both
//!   clients (NIC, tree) ──────────────────┴── memory servers
//! ```
//!
//! The parts are the real ones. The seed decides everything between them: the network, the hosts of clients and
//! servers, and the delays of cables and channels. It also decides what is planned, what dies when and how, and when
//! it comes back.
//!
//! ```
//! use fatbtree_sim::failover::Scenario;
//!
//! let outcome = Scenario::from_seed(1).run()?;
//! assert_eq!((outcome.wrong, outcome.failed), (0, 0));
//! # Ok::<(), fatbtree_sim::failover::ScenarioError>(())
//! ```

mod agenda;
mod asker;
mod cables;
mod channel;
mod control;
mod run;

use std::fmt;

use fatbtree_verbs::time::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use run::Run;

/// Shape of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    LeafSpine {
        leaves: u16,
        spines: u16,
    },
    /// A fat tree of four-port switches, each core with the fat root.
    FatTree,
    /// A fat tree of four-port switches, with the fat root in one core.
    Chosen {
        core: u16,
    },
    Pair,
    Single,
}

impl Shape {
    /// Whether there is a way round anything between the switches with hosts.
    fn has_ways_round(self) -> bool {
        matches!(self, Self::LeafSpine { .. } | Self::FatTree)
    }
}

/// Fault of a cable or switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A cable carries nothing: down, up, or both.
    Cable { down: bool, up: bool },
    /// A switch stands still, and up to `room` frames wait for it.
    Frozen { room: usize },
    /// The process of a switch ends, and its machine reports that.
    Killed,
    /// The machine of a switch loses its power.
    Unpowered,
}

/// Parts that are left out, to measure their benefit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Whether the controller does not hear which cables and switches are dead.
    pub monitor: bool,
    /// Whether nothing dies.
    pub fault: bool,
    /// Whether lookups begin with index reads only, not with ordinary ones.
    pub walks: bool,
}

/// A scenario: everything follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    seed: u64,
    shape: Shape,
    servers: u16,
    clients: u16,
    lanes: u8,
    keys: usize,
    fat_root: usize,
    /// A large tree, of which the first plan takes little and the next one much.
    is_large: bool,
    set_nodes: usize,
    /// NICs that are quick to send again, as hardware is.
    hasty: bool,
    fault: Fault,
    /// Time of the death, since all works.
    dies: Duration,
    /// Time of the return, since the death.
    back: Duration,
    /// Writes of table entries a second, to all switches together.
    writes_per_s: u64,
    /// Time from when all works until a plan is loaded anew.
    reload: Option<Duration>,
    without: Without,
}

/// Bins of [`Outcome::stood`], of 50 ms each; the last one has the rest.
pub const BINS: usize = 24;

/// Results of scenarios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Scenarios.
    pub runs: u64,
    /// Scenarios with a way round the fault.
    pub runs_with_ways: u64,
    /// Cables that died, and switches that froze, were killed, lost power.
    pub faults: [u64; 4],
    /// Scenarios in which a reload was under way when the controller heard of the death.
    pub during_reload: u64,
    /// Lookups.
    pub lookups: u64,
    /// Wrong answers. Always 0.
    pub wrong: u64,
    /// Lookups that ended with an error.
    pub failed: u64,
    /// Connections that broke.
    pub broken: u64,
    /// Frames that were lost.
    pub lost: u64,
    /// Longest stall of a client's lookups where there is a way round, in milliseconds.
    pub stood_still_ms: u64,
    /// Longest time from the death until the last held-up lookup of a client ended, in milliseconds.
    pub held_up_ms: u64,
    /// Longest stall of a client's lookups after the return, in milliseconds.
    pub stood_still_back_ms: u64,
    /// Longest time from the return until the last held-up lookup of a client ended, in milliseconds.
    pub held_up_back_ms: u64,
    /// Number of clients by the time that their lookups were held up after the death, in bins of 50 ms.
    pub stood: [u64; BINS],
    /// Longest time from the return until all was as before, in milliseconds.
    pub whole_again_ms: u64,
    /// Cost of reordered packets before anything died.
    pub calm: Calm,
}

counters! {
    /// Counts of ordinary operation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct Calm {
        /// Lookups that have ended.
        pub lookups: u64,
        /// READs, index reads among them.
        pub reads: u64,
        /// Index reads.
        pub index_reads: u64,
        /// NAKs that servers sent because a READ was overtaken by a later one of its queue pair.
        pub naks: u64,
        /// READs that they dropped for this reason, to be sent again.
        pub dropped: u64,
        /// Queue pairs that waited until the time for an answer was over.
        pub timeouts: u64,
    }
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.runs_with_ways += other.runs_with_ways;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
        self.during_reload += other.during_reload;
        self.lookups += other.lookups;
        self.wrong += other.wrong;
        self.failed += other.failed;
        self.broken += other.broken;
        self.lost += other.lost;
        self.stood_still_ms = self.stood_still_ms.max(other.stood_still_ms);
        self.held_up_ms = self.held_up_ms.max(other.held_up_ms);
        self.stood_still_back_ms = self.stood_still_back_ms.max(other.stood_still_back_ms);
        self.held_up_back_ms = self.held_up_back_ms.max(other.held_up_back_ms);
        self.stood.iter_mut().zip(other.stood).for_each(|(sum, more)| *sum += more);
        self.whole_again_ms = self.whole_again_ms.max(other.whole_again_ms);
        self.calm += other.calm;
    }
}

/// A scenario that went wrong.
#[derive(Debug, thiserror::Error)]
pub struct ScenarioError {
    scenario: Box<Scenario>,
    what: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  {:?}", self.what, self.scenario)
    }
}

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let shape = match random.random_range(0..20u8) {
            0..=7 => {
                Shape::LeafSpine { leaves: random.random_range(2..=4), spines: random.random_range(2..=3) }
            }
            8..=14 => Shape::FatTree,
            15..=16 => Shape::Chosen { core: random.random_range(0..4) },
            17..=18 => Shape::Pair,
            _ => Shape::Single,
        };
        let fault = match random.random_range(0..10u8) {
            0..=1 => Fault::Cable { down: true, up: true },
            2 => Fault::Cable { down: true, up: false },
            3 => Fault::Cable { down: false, up: true },
            4..=5 => Fault::Frozen { room: random.random_range(0..=200) },
            6..=7 => Fault::Killed,
            _ => Fault::Unpowered,
        };
        // One switch has no cable to another.
        let fault = match (shape, fault) {
            (Shape::Single, Fault::Cable { .. }) => Fault::Killed,
            (_, fault) => fault,
        };
        let servers = random.random_range(1..=3u16);
        let is_large = random.random_bool(0.2);
        let millis = |random: &mut ChaCha8Rng, most: u64| {
            Duration::from_micros(random.random_range(10_000..=1_000 * most))
        };
        let dies = millis(&mut random, 400);
        let most = if random.random_bool(0.2) { 600 } else { 2_500 };
        let back = millis(&mut random, most);
        // From a little before the death to when the network is found to be another one.
        let reload = (is_large || random.random_bool(0.3)).then(|| {
            let early = random.random_range(0..=600_000);
            Duration::from_micros((dies.as_nanos() / 1_000 + 550_000).saturating_sub(early))
        });
        Self {
            seed,
            shape,
            servers,
            clients: random.random_range(1..=3),
            lanes: random.random_range(1..=2),
            keys: if is_large { 20_000 } else { random.random_range(usize::from(servers)..=2_000) },
            fat_root: random.random_range(usize::from(servers)..=60),
            is_large,
            // The default of `fatbtree controller`, and one that spares slow switches.
            writes_per_s: if is_large { 6_000 } else { 60_000 },
            set_nodes: if is_large { 1_000 } else { random.random_range(0..=20) },
            hasty: random.random_bool(0.25),
            fault,
            dies,
            back,
            reload,
            without: Without::default(),
        }
    }

    /// The scenario without some parts.
    #[must_use]
    pub fn without(self, without: Without) -> Self {
        Self { without, ..self }
    }

    /// Runs the scenario to its end.
    ///
    /// # Errors
    /// A wrong answer. A lookup that fails, or never ends. Lookups that are held up for more than a second where
    /// there is a way round. A network that does not become whole again by itself.
    pub fn run(&self) -> Result<Outcome, ScenarioError> {
        let error = |what: String| ScenarioError { scenario: Box::new(self.clone()), what };
        let mut run = Run::new(self).map_err(error)?;
        run.finish().map_err(error)
    }

    /// The cluster file. The caller draws the hosts for servers and clients.
    fn cluster_file(&self, hosts: &mut dyn FnMut(usize) -> usize) -> String {
        use fatbtree_topology::{Cores, Network};
        let room = usize::from(self.servers + self.clients);
        let (text, network) = match self.shape {
            Shape::LeafSpine { leaves, spines } => {
                let hosts = room.div_ceil(usize::from(leaves)) as u16 + 1;
                let text =
                    format!("kind = \"leaf-spine\"\nleaves = {leaves}\nspines = {spines}\nhosts = {hosts}");
                (text, Network::leaf_spine(leaves, spines, hosts))
            }
            Shape::FatTree => ("k = 4\ncores = \"all\"".to_owned(), Network::fat_tree(4, Cores::All)),
            Shape::Chosen { core } => {
                let text = format!("k = 4\ncores = \"all\"\ncore = {core}");
                (text, Network::fat_tree(4, Cores::Chosen(core)))
            }
            Shape::Pair => {
                let hosts = room as u16;
                (format!("kind = \"pair\"\nhosts = {hosts}"), Network::pair(hosts))
            }
            Shape::Single => (format!("kind = \"single\"\nhosts = {room}"), Network::single(room as u16)),
        };
        let network = network.expect("numbers in range");
        let mut names: Vec<String> = network.hosts().iter().map(fatbtree_topology::Host::name).collect();
        let mut draw = || names.swap_remove(hosts(names.len()));
        let mut text = format!("[network]\n{text}\n");
        for server in 0..self.servers {
            let port = 9_700 + server;
            text += &format!("[[memory_server]]\nhost = \"{}\"\ngrpc = \"127.0.0.1:{port}\"\n", draw());
        }
        for _ in 0..self.clients {
            text += &format!("[[client]]\nhost = \"{}\"\n", draw());
        }
        text
    }
}
