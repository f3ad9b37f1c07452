//! Switches that hold the program and the routes, programmed by the controller's own writes without gRPC in between.

use std::sync::{Arc, OnceLock};

use fatbtree_controller::{Change, Placement, Tables, base};
use fatbtree_p4runtime::P4InfoIndex;
use fatbtree_p4runtime::config::P4Info;
use fatbtree_p4runtime::v1::stream_message_request::Update as StreamUpdate;
use fatbtree_p4runtime::v1::{
    ForwardingPipelineConfig, MasterArbitrationUpdate, StreamMessageRequest, Uint128, WriteRequest,
};
use fatbtree_switch::Program;
use fatbtree_switch::service::{Request, Response, StreamEvent, StreamId, Switch};
use fatbtree_topology::{IN_FLIGHT_PORT, Network as Topology, SwitchId};

/// A write that a switch refused.
#[derive(Debug, thiserror::Error)]
#[error("switch {} refused a write: {message}", .switch.0)]
pub struct WriteRefused {
    /// The switch.
    pub switch: SwitchId,
    /// Its gRPC status and the updates' own errors.
    pub message: String,
}

/// What a controller needs to write to the switches of one network.
pub struct Network {
    tree: Topology,
    placement: Placement,
    loaded: Arc<Loaded>,
}

/// The compiled program, lowered once for all switches and all scenarios of a process.
struct Loaded {
    program: Arc<Program>,
    info: P4Info,
    tables: Tables,
}

fn loaded() -> Arc<Loaded> {
    static LOADED: OnceLock<Arc<Loaded>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            let index = P4InfoIndex::from_text(fatbtree_p4::P4INFO)
                .expect("the committed P4Info is p4c's own output");
            Arc::new(Loaded {
                program: Program::load(fatbtree_p4::PROGRAM)
                    .expect("the committed program runs on this switch"),
                info: index.p4info().clone(),
                tables: Tables::new(&index).expect("the committed program has every table"),
            })
        })
        .clone()
}

impl Network {
    /// The switches of `tree`, for memory servers at `placement`.
    pub fn new(tree: Topology, placement: Placement) -> Self {
        Self { tree, placement, loaded: loaded() }
    }

    /// The topology.
    pub fn tree(&self) -> &Topology {
        &self.tree
    }

    /// Where the memory servers are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The program's tables.
    pub fn tables(&self) -> &Tables {
        &self.loaded.tables
    }

    /// All switches with program, routes and last hops, and nothing cached.
    ///
    /// # Errors
    /// When a switch refuses one of the base entries.
    pub fn switches(&self) -> Result<Vec<Switch>, WriteRefused> {
        let base = base(&self.tree, &self.placement, IN_FLIGHT_PORT);
        self.tree
            .switches()
            .iter()
            .map(|switch| {
                let mut value = Switch::new(u64::from(switch.id.0) + 1);
                let config = ForwardingPipelineConfig {
                    p4info: Some(self.loaded.info.clone()),
                    ..ForwardingPipelineConfig::default()
                };
                let refused = |message: String| WriteRefused { switch: switch.id, message };
                value
                    .load_program(config, self.loaded.program.clone())
                    .map_err(|status| refused(status.to_string()))?;
                become_primary(&mut value, switch.id);
                let changes: Vec<Change> = base[&switch.id].changes().collect();
                self.write(&mut value, switch.id, &changes)?;
                Ok(value)
            })
            .collect()
    }

    /// Applies changes to a switch, as one Write request.
    ///
    /// # Errors
    /// When the switch refuses any of them.
    pub fn write(&self, switch: &mut Switch, id: SwitchId, changes: &[Change]) -> Result<(), WriteRefused> {
        let refused = |message: String| WriteRefused { switch: id, message };
        let updates = changes
            .iter()
            .map(|change| change.update(&self.loaded.tables))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| refused(error.to_string()))?;
        let request = WriteRequest {
            device_id: u64::from(id.0) + 1,
            election_id: Some(ELECTION),
            updates,
            ..WriteRequest::default()
        };
        match switch.handle_request(Request::Write(request)) {
            Response::Write(Ok(_)) => Ok(()),
            Response::Write(Err(status)) => Err(refused(status.to_string())),
            other => Err(refused(format!("answered a Write with {other:?}"))),
        }
    }
}

const ELECTION: Uint128 = Uint128 { high: 0, low: 1 };

fn become_primary(switch: &mut Switch, id: SwitchId) {
    let arbitration = MasterArbitrationUpdate {
        device_id: u64::from(id.0) + 1,
        election_id: Some(ELECTION),
        ..MasterArbitrationUpdate::default()
    };
    let message = StreamMessageRequest { update: Some(StreamUpdate::Arbitration(arbitration)) };
    switch.handle_request(Request::Stream(StreamId(1), StreamEvent::Message(message)));
    // The switch's answers go to nobody; a refused arbitration shows at the first write.
    while switch.poll_stream().is_some() {}
}
