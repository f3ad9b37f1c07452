//! Two switches, their network and a plan that they hold.

use std::sync::Arc;

use fatbtree_controller::{Budget, Change, Frequencies, Placement, Plan, Tables, Tree, base};
use fatbtree_blink::{TreeConfig, ValueLayout};
use fatbtree_blink_host::{LoadOptions, load_cluster, seeded};
use fatbtree_p4runtime::P4InfoIndex;
use fatbtree_p4runtime::v1::stream_message_request::Update;
use fatbtree_p4runtime::v1::{
    ForwardingPipelineConfig, MasterArbitrationUpdate, StreamMessageRequest, Uint128, WriteRequest,
};
use fatbtree_switch::service::{Request, Response, StreamEvent, StreamId, Switch};
use fatbtree_switch::{Output, Program};
use fatbtree_topology::{Host, HostId, IN_FLIGHT_PORT, Network, Peer, SwitchId};

const ELECTION: Uint128 = Uint128 { high: 0, low: 1 };
/// Keys of the tree are multiples of this.
pub const STEP: u64 = 5;

/// Switches that hold one plan.
#[derive(Debug)]
pub struct Switches {
    /// The network: two switches, hosts at both.
    pub network: Network,
    /// Memory servers, by partition.
    pub servers: Vec<HostId>,
    /// Where the plan leads keys.
    pub plan: Plan,
    switches: Vec<Switch>,
    output: Output,
}

impl Switches {
    /// The program's own, with a plan for two memory servers.
    pub fn new() -> Self {
        let network = Network::pair(3).expect("there are that many ports");
        let servers: Vec<HostId> = [0, network.hosts().len() - 1].map(|at| network.hosts()[at].id).to_vec();
        let placement: Placement = (0..).zip(servers.iter().copied()).collect();
        let config = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).expect("there is room for entries");
        let keys: Vec<u64> = (0..4000).map(|n| n * STEP).collect();
        let loaded = load_cluster(&LoadOptions::new(config, 0), 2, &keys, &mut seeded(1, 8));
        let tops = loaded.expect("the keys are sorted").tops().expect("no client writes to it");
        let tree = Tree::new(&tops).expect("it was just built");
        let budget = Budget { fat_root_ranges: 12, set_nodes: [4; 10], ..Budget::bmv2() };
        let frequencies = Frequencies::from_keys(&tree, &keys);
        let plan = Plan::new(&network, &placement, &tree, &frequencies, &budget, 1).expect("it fits");
        let program = Program::load(fatbtree_p4::PROGRAM).expect("the committed program runs");
        let switches = switches(&network, &placement, &plan, &program);
        Self { network, servers, plan, switches, output: Output::new() }
    }

    /// A host.
    pub fn host(&self, number: usize) -> &Host {
        let hosts = self.network.hosts();
        &hosts[number % hosts.len()]
    }

    /// What a switch makes of a frame: by which ports it goes, and as what.
    pub fn hop(&mut self, switch: SwitchId, port: u16, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.output.clear();
        let switch = &mut self.switches[switch.0 as usize];
        switch.handle_frame(0, port, frame, &mut self.output);
        while switch.poll_stream().is_some() {}
        self.output.iter().map(|(port, frame)| (port, frame.to_vec())).collect()
    }

    /// The port by which a host's frames come to its switch.
    pub fn port_of(&self, host: HostId) -> (SwitchId, u16) {
        let edge = self.network.edge_of(host).id;
        let port = self.network.ports(edge).find(|(_, peer)| *peer == Peer::Host(host));
        (edge, port.expect("a host is at its edge").0)
    }
}

impl Default for Switches {
    fn default() -> Self {
        Self::new()
    }
}

fn switches(network: &Network, placement: &Placement, plan: &Plan, program: &Arc<Program>) -> Vec<Switch> {
    let index = P4InfoIndex::from_text(fatbtree_p4::P4INFO).expect("it is p4c's own output");
    let tables = Tables::new(&index).expect("the program has every table");
    let base = base(network, placement, IN_FLIGHT_PORT);
    let mut switches: Vec<Switch> = Vec::new();
    for switch in network.switches() {
        let device_id = u64::from(switch.id.0) + 1;
        let mut value = Switch::new(device_id);
        let config = ForwardingPipelineConfig {
            p4info: Some(index.p4info().clone()),
            ..ForwardingPipelineConfig::default()
        };
        value.load_program(config, Arc::clone(program)).expect("P4Info and program are of one source");
        let arbitration = MasterArbitrationUpdate {
            device_id,
            election_id: Some(ELECTION),
            ..MasterArbitrationUpdate::default()
        };
        let message = StreamMessageRequest { update: Some(Update::Arbitration(arbitration)) };
        value.handle_request(Request::Stream(StreamId(1), StreamEvent::Message(message)));
        write(&mut value, device_id, &tables, base[&switch.id].changes());
        switches.push(value);
    }
    for (switch, entries) in plan.entries() {
        let device_id = u64::from(switch.0) + 1;
        let route = plan.roots().contains(&switch).then(|| Change::CoreRoute(plan.descend()));
        let changes = entries.into_iter().map(Change::Insert).chain(route);
        write(&mut switches[switch.0 as usize], device_id, &tables, changes);
    }
    switches
}

fn write(switch: &mut Switch, device_id: u64, tables: &Tables, changes: impl Iterator<Item = Change>) {
    let updates = changes.map(|change| change.update(tables).expect("it is the program's own table"));
    let request = WriteRequest {
        device_id,
        election_id: Some(ELECTION),
        updates: updates.collect(),
        ..WriteRequest::default()
    };
    match switch.handle_request(Request::Write(request)) {
        Response::Write(Ok(_)) => {}
        other => panic!("a switch answered a Write with {other:?}"),
    }
}
