//! Switches that hold the program and the routes, programmed by the controller's own writes without gRPC in between.

use std::sync::{Arc, OnceLock};

use fatbtree_controller::{Change, KeeperAnswer, KeeperRequest, Observed, Placement, Plan, Tables, base};
use fatbtree_p4runtime::config::P4Info;
use fatbtree_p4runtime::v1::entity::Entity;
use fatbtree_p4runtime::v1::forwarding_pipeline_config::Cookie;
use fatbtree_p4runtime::v1::get_forwarding_pipeline_config_request::ResponseType;
use fatbtree_p4runtime::v1::stream_message_request::Update as StreamUpdate;
use fatbtree_p4runtime::v1::{
    self, ForwardingPipelineConfig, GetForwardingPipelineConfigRequest, MasterArbitrationUpdate, ReadRequest,
    StreamMessageRequest, Uint128, WriteRequest,
};
use fatbtree_p4runtime::{P4InfoIndex, PacketFormat};
use fatbtree_switch::Program;
use fatbtree_switch::service::{Request, Response, StreamEvent, StreamId, Switch};
use fatbtree_topology::{IN_FLIGHT_PORT, Network as Topology, SwitchId};

/// A write or a read that a switch refused.
#[derive(Debug, thiserror::Error)]
#[error("switch {} refused: {message}", .switch.0)]
pub struct WriteRefused {
    /// The switch.
    pub switch: SwitchId,
    /// gRPC status of the refusal, and the updates' own errors.
    pub message: String,
}

/// Data that a controller needs to write to the switches of one network.
pub struct Network {
    tree: Topology,
    placement: Placement,
    loaded: Arc<Loaded>,
}

/// The compiled program, lowered once for all switches and all scenarios of a process.
struct Loaded {
    program: Arc<Program>,
    info: P4Info,
    index: P4InfoIndex,
    tables: Tables,
    packets: PacketFormat,
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
                packets: PacketFormat::of(index.p4info()).expect("the committed program has both headers"),
                index,
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

    /// Placement of the memory servers.
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
                let mut value = blank(switch.id);
                self.load_program(&mut value, switch.id)?;
                become_primary(&mut value, switch.id, StreamId(1));
                // The switch's answers are discarded; a refused arbitration shows at the first write.
                while value.poll_stream().is_some() {}
                let changes: Vec<Change> = base[&switch.id].changes().collect();
                self.write(&mut value, switch.id, &changes)?;
                Ok(value)
            })
            .collect()
    }

    /// Writes a plan into switches that have none, and that no packets pass.
    ///
    /// # Errors
    /// When a switch refuses some of it.
    pub fn load(&self, switches: &mut [Switch], plan: &Plan) -> Result<(), WriteRefused> {
        for (id, entries) in plan.entries() {
            let changes: Vec<Change> = entries.into_iter().map(Change::Insert).collect();
            self.write(&mut switches[id.0 as usize], id, &changes)?;
        }
        for id in plan.roots() {
            self.write(&mut switches[id.0 as usize], *id, &[Change::CoreRoute(plan.descend())])?;
        }
        Ok(())
    }

    /// Carries out a keeper's request on a switch, in a session, and returns the answer.
    ///
    /// # Errors
    /// When the switch refuses.
    pub(crate) fn answer(
        &self,
        switch: &mut Switch,
        id: SwitchId,
        stream: StreamId,
        request: KeeperRequest,
    ) -> Result<KeeperAnswer, WriteRefused> {
        Ok(match request {
            KeeperRequest::Open => {
                become_primary(switch, id, stream);
                KeeperAnswer::Opened
            }
            KeeperRequest::Cookie => KeeperAnswer::Cookie(self.cookie(switch, id)),
            KeeperRequest::Load => {
                self.load_program(switch, id)?;
                KeeperAnswer::Loaded
            }
            KeeperRequest::Read => KeeperAnswer::Holds(self.read_back(switch, id)?),
            KeeperRequest::Write(changes) => {
                self.write(switch, id, &changes)?;
                KeeperAnswer::Written
            }
        })
    }

    /// The cookie of the program that a switch runs, if any.
    fn cookie(&self, switch: &mut Switch, id: SwitchId) -> Option<u64> {
        let request = GetForwardingPipelineConfigRequest {
            device_id: u64::from(id.0) + 1,
            response_type: ResponseType::CookieOnly as i32,
        };
        match switch.handle_request(Request::GetPipeline(request)) {
            Response::GetPipeline(Ok(found)) => Some(found.config?.cookie?.cookie),
            _ => None,
        }
    }

    /// Loads the program, which empties all tables.
    ///
    /// # Errors
    /// When the switch refuses it.
    pub(crate) fn load_program(&self, switch: &mut Switch, id: SwitchId) -> Result<(), WriteRefused> {
        let config = ForwardingPipelineConfig {
            p4info: Some(self.loaded.info.clone()),
            cookie: Some(Cookie { cookie: COOKIE }),
            ..ForwardingPipelineConfig::default()
        };
        let loaded = switch.load_program(config, self.loaded.program.clone());
        loaded.map_err(|status| WriteRefused { switch: id, message: status.to_string() })
    }

    /// Packets from and to the controller.
    pub(crate) fn packets(&self) -> &PacketFormat {
        &self.loaded.packets
    }

    /// Reads back all that a switch holds, as the controller does it.
    ///
    /// # Errors
    /// When the switch refuses, or holds what is none of the controller's.
    pub(crate) fn read_back(&self, switch: &mut Switch, id: SwitchId) -> Result<Observed, WriteRefused> {
        let refused = |message: String| WriteRefused { switch: id, message };
        let Loaded { index, tables, .. } = &*self.loaded;
        let device_id = u64::from(id.0) + 1;
        let mut read = |wanted: v1::Entity| {
            let request = ReadRequest { device_id, entities: vec![wanted], ..ReadRequest::default() };
            match switch.handle_request(Request::Read(request)) {
                Response::Read(outcome) => {
                    outcome.end.map_err(|status| refused(status.to_string()))?;
                    let all = outcome.parts.into_iter().flat_map(|part| part.entities);
                    let entries = all.filter_map(|entity| match entity.entity {
                        Some(Entity::TableEntry(entry)) => Some(entry),
                        _ => None,
                    });
                    Ok(entries.collect::<Vec<_>>())
                }
                other => Err(refused(format!("answered a Read with {other:?}"))),
            }
        };
        let mut entries = Vec::new();
        for table in index.tables() {
            for raw in read(table.read_all(false))? {
                entries.extend(tables.read(&raw).map_err(|error| refused(error.to_string()))?);
            }
        }
        let mut route = None;
        if let Some(table) = tables.core_route_info() {
            for raw in read(table.read_default())? {
                route = tables.read_core_route(&raw).map_err(|error| refused(error.to_string()))?;
            }
        }
        Ok(Observed::new(entries, route))
    }

    /// Applies changes to a switch, as one Write request.
    ///
    /// # Errors
    /// When the switch refuses any of them.
    pub fn write(&self, switch: &mut Switch, id: SwitchId, changes: &[Change]) -> Result<(), WriteRefused> {
        self.write_as(switch, id, ELECTION, changes)
    }

    /// Applies changes to a switch as the controller with this election id, as one Write request.
    ///
    /// # Errors
    /// When the switch refuses any of them.
    pub(crate) fn write_as(
        &self,
        switch: &mut Switch,
        id: SwitchId,
        election_id: Uint128,
        changes: &[Change],
    ) -> Result<(), WriteRefused> {
        let refused = |message: String| WriteRefused { switch: id, message };
        let updates = changes
            .iter()
            .map(|change| change.update(&self.loaded.tables))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| refused(error.to_string()))?;
        let request = WriteRequest {
            device_id: u64::from(id.0) + 1,
            election_id: Some(election_id),
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

/// Cookie by which a switch reports that it runs the program.
pub(crate) const COOKIE: u64 = 0xfa7b;

/// A switch that was just started: no program, no session.
pub(crate) fn blank(id: SwitchId) -> Switch {
    Switch::new(u64::from(id.0) + 1)
}

/// Opens a session that may write.
pub(crate) fn become_primary(switch: &mut Switch, id: SwitchId, stream: StreamId) {
    bid(switch, id, stream, ELECTION);
}

/// Bids in a session, and opens it if it is not open.
pub(crate) fn bid(switch: &mut Switch, id: SwitchId, stream: StreamId, election_id: Uint128) {
    let arbitration = MasterArbitrationUpdate {
        device_id: u64::from(id.0) + 1,
        election_id: Some(election_id),
        ..MasterArbitrationUpdate::default()
    };
    let message = StreamMessageRequest { update: Some(StreamUpdate::Arbitration(arbitration)) };
    switch.handle_request(Request::Stream(stream, StreamEvent::Message(message)));
}
