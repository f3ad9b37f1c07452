//! Questions of operators to a controller, and its answers, as values that travel as JSON.

use serde::{Deserialize, Serialize};

use crate::occupancy::TableUse;
use crate::plan::Summary;
use crate::reconcile::{Generations, Stage};

/// A question of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// State of the cluster: [`Status`].
    Status,
    /// Content of a plan made now, without loading it: [`Planned`].
    Plan,
    /// Plan, or take a saved plan, and load it: [`Reloaded`].
    Reload {
        /// A saved plan.
        plan: Option<SavedPlan>,
    },
    /// The active plan: [`SavedPlan`].
    Show,
    /// Changes of a plan made now: [`Difference`].
    Diff,
    /// Node at which an index read for a key ends, and the reason: [`Explanation`].
    Explain {
        /// The key.
        key: u64,
    },
    /// Counts of the switches: [`Counters`].
    Counters,
    /// Packets that the switches have dropped, by reason: [`Drops`].
    Drops,
    /// Load the plan that was active before: [`Reloaded`].
    Rollback,
    /// Read all switches back, and make them hold what they should: [`Synced`].
    Sync,
}

/// A plan with the trees that it was made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPlan {
    /// The trees that the plan was made of.
    #[serde(alias = "made_of")] // its name in files of earlier versions
    pub source: Generations,
    /// [`Plan::to_json`](crate::Plan::to_json).
    pub plan: serde_json::Value,
}

/// State of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The active epoch; none while switches lead nowhere. While a reload puts another one active, the one before.
    pub epoch: Option<u8>,
    /// [Fingerprint](crate::Plan::fingerprint) of the active plan; none if it is not known.
    #[serde(default)]
    pub plan: Option<String>,
    /// Entries of the active plan; 0 if it is not known.
    pub entries: usize,
    /// A reload that is under way.
    pub reload: Option<ReloadStatus>,
    /// Reason for which the last attempt at a plan failed.
    pub trouble: Option<String>,
    /// Switches, in the network's order.
    pub switches: Vec<SwitchStatus>,
    /// Memory servers, by key.
    pub servers: Vec<ServerStatus>,
    /// Clients that report.
    pub clients: Vec<ClientStatus>,
    /// Connections that were refused: their client is no host, or their switch is full.
    pub refused_connections: u64,
    /// Index reads that the entries of hot keys led to records, as all clients have reported them since this controller is primary.
    #[serde(default)]
    pub hot_keys: u64,
    /// Switches that cannot be told of anything, by name: paths go round them.
    #[serde(default)]
    pub switches_down: Vec<String>,
    /// Cables between switches that do not carry frames both ways.
    #[serde(default)]
    pub cables_down: Vec<CableStatus>,
    /// Contradictions to the cluster file: a memory server that it does not name, a plan with a partition that it does not have.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Status {
    /// What is missing until the cluster is whole, in words: switches and memory servers that are not settled, what is down, a reload that is
    /// under way. Empty when it is whole. A switch is settled when it holds what it should *now*: routes to what is down are not among that.
    pub fn missing(&self) -> Vec<String> {
        let of = |kind: &str, name: &str, state: RoleState, reason: Option<&str>| {
            let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
            match state {
                RoleState::Settled => None,
                RoleState::Silent => Some(format!("{kind} {name} does not answer{reason}")),
                RoleState::Converging => Some(format!("{kind} {name} does not hold all that it should yet")),
                RoleState::Lost => Some(format!("{kind} {name} has lost its data")),
            }
        };
        let switches = self.switches.iter();
        let switches = switches.filter_map(|it| of("switch", &it.name, it.state, it.reason.as_deref()));
        let servers = self.servers.iter().filter_map(|it| of("memory server", &it.name, it.state, None));
        let down = self.switches_down.iter().map(|name| format!("switch {name} is down"));
        let cables = self.cables_down.iter().map(|cable| format!("cable {cable} is down"));
        let reload = self.reload.iter().map(|reload| format!("epoch {} is on its way", reload.epoch));
        switches.chain(servers).chain(down).chain(cables).chain(reload).collect()
    }
}

/// A cable between two switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CableStatus {
    /// One switch and its port.
    pub a: (String, u16),
    /// The other.
    pub b: (String, u16),
}

impl std::fmt::Display for CableStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { a: (a, a_port), b: (b, b_port) } = self;
        write!(f, "{a} port {a_port} - {b} port {b_port}")
    }
}

/// A reload that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadStatus {
    /// Epoch of the new plan.
    pub epoch: u8,
    /// Its [fingerprint](crate::Plan::fingerprint).
    #[serde(default)]
    pub plan: String,
    /// Its stage.
    pub stage: Stage,
    /// Entries of the new plan.
    pub entries: usize,
}

/// State of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleState {
    /// The switch does not answer.
    Silent,
    /// The switch answers, and does not hold all that it should yet.
    Converging,
    /// The switch answers, and holds what it should.
    Settled,
    /// A memory server that was started again with an empty tree, which it does not serve: it is loaded again, or told that this is meant.
    Lost,
}

/// State of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Its name.
    pub name: String,
    /// `core`, `aggregation` or `edge`.
    pub role: String,
    /// Address of its P4Runtime server.
    pub address: String,
    /// Its state.
    pub state: RoleState,
    /// Reason for which it does not answer.
    pub reason: Option<String>,
    /// The newest epoch of which it holds entries.
    pub epoch: Option<u8>,
    /// Entries of plans that it holds.
    pub entries: usize,
    /// Use of its tables, as far as they were read.
    pub tables: Vec<TableUse>,
    /// Clients' connections that it admits.
    pub connections: usize,
    /// The program that it runs, as a short hash; none if it does not answer.
    pub program: Option<String>,
}

/// State of a memory server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// Address of its control channel.
    pub address: String,
    /// Its partition.
    pub partition: u16,
    /// Silent, settled, or lost.
    pub state: RoleState,
    /// First key of its partition, when it was heard of.
    pub low: Option<u64>,
    /// The same as text, or `0x` and hexadecimal digits, if keys are bytes. `low` is its word then.
    #[serde(default)]
    pub first_key: Option<String>,
    /// Clients' connections that it has accepted.
    pub connections: usize,
    /// Connections that switches admit.
    pub registered: usize,
    /// Kind of its structure, if it is no tree: it takes no part in plans.
    #[serde(default)]
    pub structure: Option<String>,
    /// Use of its region, as it was last told of; none before.
    #[serde(default)]
    pub room: Option<RoomStatus>,
}

/// Use of a memory server's region, in bytes. Each byte is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomStatus {
    /// The structure's.
    pub live: u64,
    /// Held by clients with sessions, with what they have written there.
    pub held: u64,
    /// Free.
    pub free: u64,
    /// Lost by clients that died, as far as is known, and not found again.
    pub lost: u64,
}

/// State of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its name, or its address if it has none.
    pub name: String,
    /// Index reads that it has told of.
    pub index_reads: u64,
    /// Index reads with a stale hint.
    pub stale_hints: u64,
    /// Index reads that the entry of a hot key led to the record of their key.
    #[serde(default)]
    pub hot_keys: u64,
}

/// A plan that was made and not loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The content.
    pub summary: Summary,
    /// For people.
    pub text: String,
    /// The plan, to be saved.
    pub saved: SavedPlan,
    /// Round trips of an average sampled lookup under the active plan, as far as it is known.
    pub trips_active: Option<f64>,
    /// Round trips under this plan.
    pub trips: f64,
    /// Bytes of nodes that it reads under the active plan, as far as it is known.
    #[serde(default)]
    pub bytes_active: Option<f64>,
    /// Bytes of nodes under this plan; 0: not known.
    #[serde(default)]
    pub bytes: f64,
}

/// A plan was loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The active epoch: the one before where the plan was loaded by its changes.
    pub epoch: u8,
    /// [Fingerprint](crate::Plan::fingerprint) of the plan.
    #[serde(default)]
    pub plan: String,
    /// Entries of the plan.
    pub entries: usize,
    /// Entries that were written or deleted.
    pub changes: usize,
    /// Duration.
    pub seconds: f64,
}

/// Changes that a plan made now would bring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Differences by switch; those without changes are left out.
    pub switches: Vec<SwitchDifference>,
}

/// Changes of one switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchDifference {
    /// Its name.
    pub name: String,
    /// Entries that come.
    pub insert: usize,
    /// Entries that change.
    pub modify: usize,
    /// Entries that go.
    pub delete: usize,
}

/// End of an index read, and the way there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The key.
    pub key: u64,
    /// The active epoch.
    pub epoch: u8,
    /// Its partition.
    pub partition: u16,
    /// The node at which it ends.
    pub address: u64,
    /// Place of a hot key, to which lookups are led at once; what follows is then the way of all other operations.
    pub hot: Option<HotPlace>,
    /// Step of each switch, in path order.
    pub steps: Vec<Step>,
    /// Reason for which it ends there.
    pub because: String,
}

/// Place of a hot key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotPlace {
    /// The record or, where values are in the leaves, the leaf; as it was when the plan was made.
    pub address: u64,
    /// The switches that know it: the first ones of all clients.
    pub switches: Vec<String>,
}

/// Step of an index read in a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The switch's name.
    pub switch: String,
    /// The table: `fat root`, or a layer of nodes.
    pub table: String,
    /// First key of what was found.
    pub low: u64,
    /// First key of what comes after it; none at the end of the keys.
    pub next: Option<u64>,
    /// The node that it leads to.
    pub address: u64,
    /// Whether that node is cached further on.
    pub cached: bool,
}

/// Counts of the switches since the plan was loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// The active epoch.
    pub epoch: Option<u8>,
    /// Counters by table: hot keys, the fat root, then the layers.
    pub tables: Vec<TableCounters>,
    /// Switches that did not answer.
    pub silent: Vec<String>,
}

/// Counts of one table, in all switches together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableCounters {
    /// `hot keys`, `fat root`, or a layer. Clients report the count of hot keys, four times a second; switches count all others.
    pub table: String,
    /// Index reads that found a child here; of hot keys, those that were led to the record of their key.
    pub hits: u64,
    /// Hits that ended at the child, because it is cached nowhere further on.
    pub stops: u64,
}

/// Packets that the switches have dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// Counters by switch, in the network's order.
    pub switches: Vec<SwitchDrops>,
    /// Some of the packets, the newest last.
    pub samples: Vec<DroppedPacket>,
    /// Switches that did not answer.
    pub silent: Vec<String>,
}

/// Packets that a switch has dropped since it was given its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchDrops {
    /// Its name.
    pub name: String,
    /// Counters by reason, all of them.
    pub reasons: Vec<DropCount>,
}

/// Packets that were dropped for a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropCount {
    /// Why.
    pub reason: String,
    /// Number of packets.
    pub packets: u64,
}

/// A packet that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedPacket {
    /// Time at which the controller was told of it, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Where.
    pub switch: String,
    /// The port by which it had come in.
    pub port: u16,
    /// Why.
    pub reason: String,
    /// Its length, bytes.
    pub length: usize,
    /// Its first 128 bytes, hexadecimal.
    pub bytes: String,
}

/// The switches were read back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// Switches that hold what they should now.
    pub settled: usize,
    /// Entries that were not as they should have been, and are now.
    pub mended: usize,
    /// Those that do not, by name, and why.
    pub others: Vec<(String, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_whole_when_all_of_it_is_settled_and_nothing_is_down() {
        let switch = |state| SwitchStatus {
            name: "core-0".to_owned(),
            role: "core".to_owned(),
            address: "127.0.0.1:9600".to_owned(),
            state,
            reason: (state == RoleState::Silent).then(|| "it hangs".to_owned()),
            epoch: None,
            entries: 0,
            tables: Vec::new(),
            connections: 0,
            program: None,
        };
        let server = |state| ServerStatus {
            name: "left".to_owned(),
            address: "127.0.0.1:9700".to_owned(),
            partition: 0,
            state,
            low: None,
            first_key: None,
            connections: 0,
            registered: 0,
            structure: None,
            room: None,
        };
        let whole = Status {
            switches: vec![switch(RoleState::Settled)],
            servers: vec![server(RoleState::Settled)],
            ..Status::default()
        };
        assert_eq!(whole.missing(), Vec::<String>::new());
        let cable = CableStatus { a: ("core-0".to_owned(), 1), b: ("agg-0-0".to_owned(), 3) };
        let (epoch, stage) = (4, Stage::Write);
        let broken = Status {
            switches: vec![switch(RoleState::Silent), switch(RoleState::Converging)],
            servers: vec![server(RoleState::Silent), server(RoleState::Lost)],
            switches_down: vec!["core-1".to_owned()],
            cables_down: vec![cable],
            reload: Some(ReloadStatus { epoch, plan: String::new(), stage, entries: 9 }),
            ..Status::default()
        };
        let missing = [
            "switch core-0 does not answer (it hangs)",
            "switch core-0 does not hold all that it should yet",
            "memory server left does not answer",
            "memory server left has lost its data",
            "switch core-1 is down",
            "cable core-0 port 1 - agg-0-0 port 3 is down",
            "epoch 4 is on its way",
        ];
        assert_eq!(broken.missing(), missing);
    }
}
