//! The driver against a fake fleet: 13 devices behind one gRPC server, each a plain map of entries.

use crate::common;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::plan;
use fatbtree_controller::election::{Bid, Candidate, Seen};
use fatbtree_controller::{
    Ballot, Budget, Controller, Entry, Fleet, FleetOptions, Generations, Placement, Programs, Progress,
    PushError, SETS, Tables, base,
};
use fatbtree_p4runtime::v1::forwarding_pipeline_config::Cookie;
use fatbtree_p4runtime::v1::{
    self, entity, p4_runtime_server, stream_message_request, stream_message_response, update,
};
use fatbtree_p4runtime::{P4InfoIndex, entry::table_entity, status};
use fatbtree_topology::{Cluster, IN_FLIGHT_PORT, Role};
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Key = (u32, String);

#[derive(Clone, Default)]
struct Device {
    pipelines: usize,
    cookie: Option<u64>,
    entries: BTreeMap<Key, v1::TableEntry>,
    default: Option<v1::TableEntry>,
}

/// Devices by id.
#[derive(Clone, Default)]
struct Fake {
    devices: Arc<Mutex<BTreeMap<u64, Device>>>,
    /// Refuse inserts into this table.
    full: Arc<Mutex<Option<u32>>>,
    /// Take updates without keeping them: what is measured then is the controller, gRPC and decoding.
    sink: Arc<Mutex<bool>>,
    /// Say nothing any more, and leave connections open: the process is frozen, or its machine gone.
    frozen: Arc<Mutex<bool>>,
}

fn key(entry: &v1::TableEntry) -> Key {
    (entry.table_id, format!("{:?} {}", entry.r#match, entry.priority))
}

impl Fake {
    fn update(&self, device: &mut Device, update: &v1::Update) -> Result<(), Code> {
        let Some(v1::Entity { entity: Some(entity::Entity::TableEntry(entry)) }) = &update.entity else {
            return Err(Code::InvalidArgument);
        };
        match update.r#type() {
            update::Type::Modify if entry.is_default_action => device.default = Some(entry.clone()),
            update::Type::Insert if *self.full.lock().unwrap() == Some(entry.table_id) => {
                return Err(Code::ResourceExhausted);
            }
            update::Type::Insert => {
                if device.entries.insert(key(entry), entry.clone()).is_some() {
                    return Err(Code::AlreadyExists);
                }
            }
            update::Type::Modify => {
                *device.entries.get_mut(&key(entry)).ok_or(Code::NotFound)? = entry.clone();
            }
            update::Type::Delete => drop(device.entries.remove(&key(entry)).ok_or(Code::NotFound)?),
            update::Type::Unspecified => return Err(Code::InvalidArgument),
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl p4_runtime_server::P4Runtime for Fake {
    type ReadStream = BoxStream<v1::ReadResponse>;
    type StreamChannelStream = BoxStream<v1::StreamMessageResponse>;

    async fn write(&self, request: Request<v1::WriteRequest>) -> Result<Response<v1::WriteResponse>, Status> {
        let request = request.into_inner();
        if *self.sink.lock().unwrap() {
            return Ok(Response::new(v1::WriteResponse {}));
        }
        let mut devices = self.devices.lock().unwrap();
        let device = devices.entry(request.device_id).or_default();
        let results: Vec<_> = request.updates.iter().map(|update| self.update(device, update)).collect();
        if results.iter().all(Result::is_ok) {
            return Ok(Response::new(v1::WriteResponse {}));
        }
        let error = |result: &Result<(), Code>| match result {
            Ok(()) => status::error(Code::Ok, ""),
            Err(code) => status::error(*code, "refused"),
        };
        let errors: Vec<v1::Error> = results.iter().map(error).collect();
        Err(status::batch_status("write", &errors))
    }

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let mut entities = Vec::new();
        let devices = self.devices.lock().unwrap();
        for wanted in request.entities {
            let Some(entity::Entity::TableEntry(filter)) = wanted.entity else { continue };
            if filter.is_default_action {
                entities.extend(devices[&request.device_id].default.clone().map(table_entity));
                continue;
            }
            for entry in
                devices[&request.device_id].entries.values().filter(|e| e.table_id == filter.table_id)
            {
                let counter_data = Some(v1::CounterData { packet_count: 3, byte_count: 300 });
                entities.push(table_entity(v1::TableEntry { counter_data, ..entry.clone() }));
            }
        }
        let parts = [Ok(v1::ReadResponse { entities })];
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<v1::SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<v1::SetForwardingPipelineConfigResponse>, Status> {
        let v1::SetForwardingPipelineConfigRequest { device_id, config, .. } = request.into_inner();
        let cookie = config.and_then(|config| config.cookie).map(|cookie| cookie.cookie);
        let mut devices = self.devices.lock().unwrap();
        let pipelines = devices.entry(device_id).or_default().pipelines + 1;
        devices.insert(device_id, Device { pipelines, cookie, ..Device::default() });
        Ok(Response::new(v1::SetForwardingPipelineConfigResponse {}))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: Request<v1::GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<v1::GetForwardingPipelineConfigResponse>, Status> {
        if *self.frozen.lock().unwrap() {
            std::future::pending::<()>().await;
        }
        let cookie =
            self.devices.lock().unwrap().get(&request.into_inner().device_id).and_then(|it| it.cookie);
        let cookie = cookie.map(|cookie| Cookie { cookie });
        let config = Some(v1::ForwardingPipelineConfig { cookie, ..v1::ForwardingPipelineConfig::default() });
        Ok(Response::new(v1::GetForwardingPipelineConfigResponse { config }))
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<v1::StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let answers = request.into_inner().filter_map(|message| match message.ok()?.update? {
            stream_message_request::Update::Arbitration(bid) => {
                let update = Some(stream_message_response::Update::Arbitration(bid));
                Some(Ok(v1::StreamMessageResponse { update }))
            }
            _ => None,
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn capabilities(
        &self,
        _: Request<v1::CapabilitiesRequest>,
    ) -> Result<Response<v1::CapabilitiesResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

/// The paper's cluster, every switch a device of one server.
async fn start() -> (Fake, Cluster) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let fake = Fake::default();
    let service = p4_runtime_server::P4RuntimeServer::new(fake.clone()).max_decoding_message_size(64 << 20);
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let mut text = Cluster::example_toml()
        .replace("p4runtime = \"127.0.0.1:9559\"\n", &format!("p4runtime = \"{address}\"\n"));
    for switch in Cluster::example().tree().switches().iter().skip(1) {
        text += &format!("[[switch]]\nname = \"{}\"\np4runtime = \"{address}\"\n", switch.name());
    }
    (fake, Cluster::from_toml(&text).unwrap())
}

/// Entries of every device, typed, by device id.
fn held(fake: &Fake) -> BTreeMap<u64, Vec<Entry>> {
    let tables = Tables::new(&P4InfoIndex::from_text(fatbtree_p4::P4INFO).unwrap()).unwrap();
    let devices = fake.devices.lock().unwrap();
    devices
        .iter()
        .map(|(id, device)| {
            let mut entries: Vec<Entry> =
                device.entries.values().map(|e| tables.read(e).unwrap().unwrap()).collect();
            entries.sort_unstable();
            (*id, entries)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_programmed_loaded_reloaded_and_read() {
    let (fake, cluster) = start().await;
    let fleet =
        Fleet::connect(&cluster, &Programs::v1model().unwrap(), FleetOptions::default()).await.unwrap();
    fleet.set_pipeline().await.unwrap();
    let bases = base(cluster.tree(), &Placement::of(&cluster), IN_FLIGHT_PORT);
    let loaded = fleet.load_base(&bases).await.unwrap();
    assert_eq!(loaded.updates, bases.values().map(|base| base.entries.len() + 1).sum::<usize>());

    let budget = Budget { fat_root_ranges: 100, set_nodes: [40; SETS], ..Budget::bmv2() };
    let samples: Vec<u64> = (0..5000).map(|n| n * 97).collect();
    let (one, two) = (plan(&cluster, 5000, &budget, &[], 1), plan(&cluster, 5000, &budget, &samples, 2));
    let seen: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let progress = {
        let seen = seen.clone();
        Arc::new(move |progress: Progress| seen.lock().unwrap().push(progress))
    };
    let (mut controller, mut keepers) = (Controller::new(&cluster, 100, 0), Vec::new());
    assert_eq!(fleet.settle(&mut controller, &mut keepers, None).await.unwrap().updates, 0);
    controller.load(one, Generations::new()).unwrap();
    let first = controller.reload().unwrap().0.len();
    let report = fleet.settle(&mut controller, &mut keepers, Some(progress)).await.unwrap();
    assert_eq!(report.updates, first + cluster.tree().roots().len());
    assert!(report.seconds > 0.0 && report.rate() > 0.0);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.iter().map(|p| p.done).max(), Some(report.updates));
    assert!(seen.iter().all(|p| p.total == first));

    controller.load(two, Generations::new()).unwrap();
    assert!(fleet.settle(&mut controller, &mut keepers, None).await.unwrap().updates > 0);
    let two = controller.plan().unwrap().0.plan();
    let (held, wanted) = (held(&fake), two.entries());
    assert_eq!(held.len(), 13);
    for switch in cluster.tree().switches() {
        let device = cluster.p4runtime(switch.id).device_id;
        let mut expected = bases[&switch.id].entries.clone();
        expected.extend(wanted.get(&switch.id).into_iter().flatten());
        expected.sort_unstable();
        assert_eq!(held[&device], expected, "{}", switch.name());
        let devices = fake.devices.lock().unwrap();
        let default = devices[&device].default.as_ref().expect("every switch has a core_route");
        if two.roots().contains(&switch.id) {
            assert_eq!(
                *default,
                Programs::v1model().unwrap().of(Role::Core).tables().core_route(two.descend()).unwrap()
            );
        }
        assert_eq!(devices[&device].pipelines, 1);
    }

    let counters = fleet.read_counters().await.unwrap();
    let counted = |entry: &Entry| matches!(entry, Entry::FatRoot(..) | Entry::Coarse(..));
    assert_eq!(counters.len(), wanted.values().flatten().filter(|entry| counted(entry)).count());
    assert!(counters.iter().all(|(_, entry, packets)| counted(entry) && *packets == 3));
    assert!(!two.visits(counters, &[]).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_table_stops_the_reload_before_the_flip() {
    let (fake, cluster) = start().await;
    let fleet =
        Fleet::connect(&cluster, &Programs::v1model().unwrap(), FleetOptions::default()).await.unwrap();
    fleet.set_pipeline().await.unwrap();
    let bases = base(cluster.tree(), &Placement::of(&cluster), IN_FLIGHT_PORT);
    fleet.load_base(&bases).await.unwrap();
    let (mut controller, mut keepers) = (Controller::new(&cluster, 100, 0), Vec::new());
    fleet.settle(&mut controller, &mut keepers, None).await.unwrap();
    let core = cluster.p4runtime(cluster.tree().roots()[0]).device_id;
    let before = fake.devices.lock().unwrap()[&core].default.clone();
    let info = P4InfoIndex::from_text(fatbtree_p4::P4INFO).unwrap();
    *fake.full.lock().unwrap() = Some(info.table("node_set_b.fine").unwrap().id);
    let budget = Budget { fat_root_ranges: 100, set_nodes: [40; SETS], ..Budget::bmv2() };
    let plan = plan(&cluster, 5000, &budget, &[], 1);
    controller.load(plan, Generations::new()).unwrap();
    let error = fleet.settle(&mut controller, &mut keepers, None).await.unwrap_err();
    assert!(matches!(error, PushError::Switch { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("agg-0-0") || text.contains("edge-0-"), "the switch is named: {text}");
    assert_eq!(fake.devices.lock().unwrap()[&core].default, before, "the old epoch goes on serving");
}

/// The machine of the primary takes switches with it: what these have said last must not count for ever.
#[tokio::test]
async fn a_switch_that_is_frozen_ends_the_session_of_a_controller_that_looks_on() {
    let (fake, cluster) = start().await;
    let mut options = FleetOptions::default();
    options.election_id =
        Bid { term: 3, candidate: Candidate::new(([127, 0, 0, 1], 9690).into(), 0) }.election_id(0);
    options.client.answer_timeout = Duration::from_millis(300);
    let switch = cluster.tree().switches()[0].id;
    let mut ballot = Ballot::open(&cluster, switch, &options).await.unwrap();
    assert_eq!(ballot.next().await, Seen::Vacant(None), "the fake says that this bid has won");
    // It runs no program: that is an answer.
    let lives = Duration::from_millis(2_500);
    assert!(tokio::time::timeout(lives, ballot.next()).await.is_err(), "nothing has changed");
    *fake.frozen.lock().unwrap() = true;
    let seen = tokio::time::timeout(Duration::from_secs(10), ballot.next()).await.expect("it is noticed");
    let Seen::Silent(reason) = seen else { panic!("{seen:?}") };
    assert!(reason.contains("switch core-0: ") && reason.contains("no answer within 0.3 s"), "{reason}");
}

#[tokio::test]
async fn a_switch_that_is_not_there_is_named() {
    let cluster = Cluster::from_toml(
        "[network]\nk = 2\n[p4runtime]\nfirst_port = 1\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"localhost:1\"\n",
    );
    let error = Fleet::connect(&cluster.unwrap(), &Programs::v1model().unwrap(), FleetOptions::default())
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("no P4Runtime server at 127.0.0.1:"), "{error}");
}

/// `cargo test --release -p fatbtree-controller --test it push:: -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, not a check"]
async fn how_fast_a_push_is() {
    let (fake, cluster) = start().await;
    *fake.sink.lock().unwrap() = true;
    let fleet =
        Fleet::connect(&cluster, &Programs::v1model().unwrap(), FleetOptions::default()).await.unwrap();
    fleet.set_pipeline().await.unwrap();
    let plan = plan(&cluster, 80_000, &Budget::paper(), &[], 1);
    let (mut controller, mut keepers) = (Controller::new(&cluster, 100, 0), Vec::new());
    fleet.settle(&mut controller, &mut keepers, None).await.unwrap();
    controller.load(plan, Generations::new()).unwrap();
    let report = fleet.settle(&mut controller, &mut keepers, None).await.unwrap();
    println!("{} updates in {:.3} s: {:.0} per second", report.updates, report.seconds, report.rate());
}
