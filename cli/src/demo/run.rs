//! The demo, step by step.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use fatbtree_blink::record::record_bytes;
use fatbtree_blink::{EntryCache, IndexCache, PoolConfig, Start, SuperRoot, ValueLayout};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{Cluster as Loaded, LoadOptions, load_cluster, seeded};
use fatbtree_controller::Summary;
use fatbtree_memserver::ServerOptions;
use fatbtree_remote_memory::Report;
use fatbtree_sim::{Cluster, InstantWires};
use fatbtree_topology::{Annotations, Network, Switch, render_svg};
use fatbtree_verbs::Memory;
use fatbtree_workload::ycsb::{BUILTIN_NAMES, KeyMap};

use super::arguments::{Settings, describe, describe_operations};
use super::control::{Control, Planned};
use super::data_path::{DataPath, DataPathThreads, Starter};
use super::dolphin::Dolphin;
use super::growth::Growth;
use super::measure::{Cache, Kind, Runner, Way, count_wrong};
use super::mixtures::{MixtureResult, Mixtures};
use super::network::{self, Endpoints, Places, is_in_rack};
use super::result::{
    DemoResult, Environment, GrowthResult, LoadResult, PlanResult, PushResult, WayResult, YcsbResult,
};
use super::sessions::{Desk, desk};
use crate::{count, progress};

/// The part of the operations that YCSB's workloads get.
const YCSB_PART: u64 = 10;

/// Results of the demo.
pub(super) struct Demonstrated {
    pub(super) result: DemoResult,
    /// The plan as JSON.
    pub(super) plan: String,
    /// Drawing of what is cached where, as SVG.
    pub(super) picture: String,
}

/// Runs the whole demo.
pub(super) async fn demonstrate(settings: Settings) -> Result<Demonstrated> {
    let started = Instant::now();
    let topology = Network::one_core(settings.k)?;
    let places = Places::choose(&topology, settings.servers)?;

    let (keys, servers) = (count::of(settings.records, "key"), count::of(settings.servers, "memory server"));
    let what = format!("loading {keys} into {servers}");
    let step = Step::begin(what);
    let load_started = Instant::now();
    let loaded = load(&settings)?;
    let load_seconds = load_started.elapsed().as_secs_f64();
    let load = LoadResult { seconds: load_seconds, keys_per_s: settings.records as f64 / load_seconds };
    step.done(format!("{:.0} keys/s", load.keys_per_s));

    let switches = topology.switches().len();
    let step = Step::begin(format!("starting {switches} switches, loading the P4 program and routes"));
    let lows: Vec<u64> = loaded.trees.iter().map(|tree| tree.partition.range.low).collect();
    let starter = Starter::new();
    let waker_of = |switch: &Switch| match is_in_rack(switch) {
        true => starter.waker_of_racks(),
        false => starter.waker_of_fabric(),
    };
    let endpoints = Endpoints::open(&topology, &places, &lows, waker_of, starter.waker_of_racks()).await?;
    let cluster = endpoints.cluster.clone();
    let (desk, carrier) = desk();
    let roots = loaded.roots.clone();
    let (data_path, memories) = start(&settings, topology, &places, (loaded, endpoints, desk), starter)?;
    let mut control = Control::bring_up(cluster, settings.budget.clone()).await?;
    control.connect_client(&data_path, carrier).await?;
    step.done(String::new());

    let mut runner = Runner::new(&data_path, &settings);
    let (blind, _) = plan_and_load(&mut control, &[], "planning without knowing what is asked for").await?;
    let blind = in_network("in-network, planned without knowledge", &blind);
    let (learning, report) = runner.learn(&settings.spec, &blind, settings.learning()).await?;
    let (planned, push) =
        plan_and_load(&mut control, &report.keys, "planning by counters and samples").await?;

    let kinds = kinds(&planned);
    let (spec, lookups) = (&settings.spec, settings.lookups);
    runner.warm(spec, &kinds, settings.learning()).await?;
    let mut ways = runner.measure(spec, &kinds, lookups, "measuring, all ways in turns").await?;
    ways.insert(1, learning);
    let mut mixtures = mixtures(&settings, roots, &memories, &planned)?;
    let (mut ycsb, mut others) = ycsb(&settings, &mut runner, &kinds[..2]).await?;
    let growth = grow(&settings, &mut runner, &mut control, (kinds[1].clone(), report)).await?;
    let growth = growth.map(|(growth, ways)| {
        others.extend(ways);
        growth
    });

    let all = || ways.iter().chain(&others);
    let wrong: u64 = all().map(|way| count_wrong(&way.done)).sum();
    let first_wrong = all().find_map(|way| way.done.first_wrong()).map(str::to_owned);
    let mut ways: Vec<_> = ways.iter().map(WayResult::from).collect();
    drop(others);

    // The trees' memory is free before another index needs as much.
    data_path.end();
    drop(memories);
    let (dolphin, others) = dolphin(&settings, kinds[1].in_switches, &mut mixtures, &mut ycsb)?;
    ways.extend(others);
    let summary = planned.plan.summary();
    let annotations: Annotations = planned.plan.annotations().into_iter().collect();
    let result = DemoResult {
        keys: settings.records,
        value_size: settings.value_size,
        servers: settings.servers.into(),
        workload: format!("{} ({})", settings.workload, describe_operations(&settings.spec)),
        distribution: describe(&settings.spec.distribution),
        lookups: settings.lookups,
        depth: settings.depth,
        wrong: wrong + dolphin.wrong,
        first_wrong: first_wrong.or(dolphin.first_wrong),
        target: settings.describe_target(),
        inner_nodes: planned.inner_nodes,
        cached_share: planned.held_nodes as f64 / planned.inner_nodes.max(1) as f64,
        ways,
        mixtures,
        ycsb,
        ycsb_operations: ycsb_operations(&settings),
        dolphin: dolphin.result,
        growth,
        plan: PlanResult {
            ranges: summary.ranges,
            stage_entries: summary.stage_entries,
            stage_rows: summary.stage_rows,
            layers: layer_nodes(&summary),
            seconds: planned.seconds,
        },
        push,
        load,
        seconds: started.elapsed().as_secs_f64(),
        environment: Environment {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed: settings.seed,
            cpus: std::thread::available_parallelism().map_or(1, Into::into),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        },
    };
    let picture = render_svg(control.cluster(), &annotations);
    Ok(Demonstrated { result, plan: planned.plan.to_json(), picture })
}

/// Index reads under a plan.
fn in_network(name: &'static str, planned: &Planned) -> Kind {
    let in_switches = planned.plan.entry_bytes() as u64;
    Kind { name, start: Start::IndexRead, cache: Cache::None, entries: None, in_switches }
}

/// All ways under a plan; the first two are without a client's cache.
fn kinds(planned: &Planned) -> Vec<Kind> {
    let in_network = in_network("in-network", planned);
    let (as_many, one_percent) = (in_network.in_switches, planned.inner_bytes / 100);
    let warm = |bytes| Cache::Warm(Arc::new(IndexCache::new(bytes)));
    let cached = |name, cache| Kind { name, start: Start::Cached, cache, entries: None, in_switches: 0 };
    let hot_keys = planned.plan.hot_key_bytes() as u64;
    let speculating =
        |name, cache, bytes| Kind { entries: Some(Arc::new(EntryCache::new(bytes))), ..cached(name, cache) };
    let mut kinds = vec![
        Kind { name: "root-to-leaf", start: Start::Root, cache: Cache::None, entries: None, in_switches: 0 },
        in_network.clone(),
        cached("client cache, as many bytes as the switches, cold", Cache::Cold(as_many)),
        cached("client cache, as many bytes as the switches, warm", warm(as_many)),
        cached("client cache, 1 % of the inner nodes, cold", Cache::Cold(one_percent)),
        cached("client cache, 1 % of the inner nodes, warm", warm(one_percent)),
        Kind {
            name: "in-network, and client cache of 1 %, warm",
            start: Start::CachedOrIndexRead,
            cache: warm(one_percent),
            ..in_network
        },
        speculating("entry cache, as many bytes as the switches, warm", Cache::None, as_many),
        speculating(
            "client cache and entry cache, half of these bytes each, warm",
            warm(as_many / 2),
            as_many / 2,
        ),
    ];
    // Where nodes lead to all leaves that are asked for, no key needs an entry of its own.
    if hot_keys > 0 {
        let name = "entry cache, as many bytes as the switches' hot keys, warm";
        kinds.push(speculating(name, Cache::None, hot_keys));
    }
    kinds
}

/// A client's caches of several sizes, alone and with the switches, over the servers' memory as it lies there.
fn mixtures(
    settings: &Settings,
    roots: SuperRoot,
    memories: &[Arc<Memory>],
    planned: &Planned,
) -> Result<Vec<MixtureResult>> {
    let step = Step::begin("counting what caches of other sizes would bring".to_owned());
    let mixtures = Mixtures {
        pool: PoolConfig { tree: settings.tree, ..PoolConfig::default() },
        roots,
        memories,
        plan: &planned.plan,
        keys: settings.key_map.clone(),
        workload: &settings.spec,
        inner_bytes: planned.inner_bytes,
        warm_up: settings.learning(),
        counted: settings.lookups / 4,
        seed: settings.seed,
    };
    let results = mixtures.run()?;
    step.done(String::new());
    Ok(results)
}

/// Loads the memory servers' trees, with room for what will be written.
fn load(settings: &Settings) -> Result<Loaded> {
    let chunk = ServerOptions::default().chunk_bytes;
    let record = match settings.tree.values() {
        ValueLayout::Inline(_) => 0,
        ValueLayout::OutOfLine | ValueLayout::ByLength(_) => {
            u64::from(record_bytes(settings.value_size as u32))
        }
    };
    // A chunk of each kind and some more, and a record for each operation there will be, should all of them insert.
    // Memory that is not written to is not taken from the machine.
    let operations = settings.lookups.saturating_mul(16);
    let spare_bytes = 16 * chunk + operations.saturating_mul(record);
    Ok(load_cluster(
        &LoadOptions { spare_bytes, ..LoadOptions::new(settings.tree, 0) },
        settings.servers,
        &settings.sorted_keys,
        &mut seeded(settings.seed, settings.value_size as u32),
    )?)
}

/// Starts the threads of the data path; gives out the memory of the servers, in their order, too.
fn start(
    settings: &Settings,
    topology: Network,
    places: &Places,
    (loaded, endpoints, desk): (Loaded, Endpoints, Desk),
    starter: Starter,
) -> Result<(Arc<DataPathThreads>, Vec<Arc<Memory>>)> {
    let seed = settings.seed;
    let pool = PoolConfig { tree: settings.tree, ..PoolConfig::default() };
    let roots = loaded.roots.clone();
    let mut nics = Vec::new();
    for host in &places.servers {
        nics.push(network::nic(&topology, *host, seed)?);
    }
    let mut nics = nics.into_iter();
    let next_nic = |_server| nics.next().expect("each memory server has its host");
    let servers = loaded.serve(&ServerOptions::writable(), seed, next_nic)?;
    let servers = servers.into_iter().map(|server| server.with_device_counters(|nic| nic.stats().counters()));
    let servers: Vec<_> = places.servers.iter().copied().zip(servers).collect();
    let memories = servers.iter().map(|(_, server)| Arc::clone(server.memory())).collect();
    let client_host = places.client;
    let client_nic = network::nic(&topology, client_host, seed)?;

    let mut in_racks: Vec<bool> = topology.switches().iter().map(is_in_rack).collect();
    in_racks.resize(in_racks.len() + servers.len() + 1, true);
    let (racks_wires, fabric_wires) = InstantWires::pair(&in_racks);
    let inboxes = endpoints.inboxes.into_iter().enumerate();
    let (racks_inboxes, fabric_inboxes) = inboxes.partition(|(switch, _)| in_racks[*switch]);
    let (racks_topology, fabric_topology) = (topology.clone(), topology);
    // A half has a stand-in for each switch of the other: no frame comes to it.
    let racks = move || {
        let clients = vec![(client_host, Client::new(client_nic, pool, roots, seed)?)];
        let switches = network::switches(&racks_topology);
        let cluster = Cluster::new(&racks_topology, switches, servers, clients, racks_wires);
        Ok(DataPath::new(cluster, racks_inboxes, endpoints.mailboxes, Some(desk)))
    };
    let fabric = move || {
        let switches = network::switches(&fabric_topology);
        let cluster = Cluster::new(&fabric_topology, switches, Vec::new(), Vec::new(), fabric_wires);
        Ok(DataPath::new(cluster, fabric_inboxes, Vec::new(), None))
    };
    Ok((Arc::new(starter.start(racks, fabric)?), memories))
}

/// Plans by what is known now, and loads the plan.
async fn plan_and_load(control: &mut Control, sampled: &[u64], what: &str) -> Result<(Planned, PushResult)> {
    let step = Step::begin(what.to_owned());
    let mut planned = control.plan(sampled).await?;
    let summary = planned.plan.summary();
    step.done(format!(
        "{} ranges, {:?} nodes per layer, {:.3} s",
        summary.ranges,
        layer_nodes(&summary),
        planned.seconds
    ));
    let (bar, on_progress) = progress::of_push(control.begin_load(planned.plan.clone())?);
    let (plan, push) = control.load(on_progress).await?;
    planned.plan = plan;
    bar.finish_and_clear();
    errln!("pushed over P4Runtime: {} updates, {:.0} updates/s", push.updates, push.rate());
    let push = PushResult { entries: push.updates as u64, seconds: push.seconds, entries_per_s: push.rate() };
    Ok((planned, push))
}

fn ycsb_operations(settings: &Settings) -> u64 {
    (settings.lookups / YCSB_PART).max(1)
}

/// YCSB's workloads, their keys drawn as on the command line where YCSB does not want the newest.
async fn ycsb(
    settings: &Settings,
    runner: &mut Runner,
    kinds: &[Kind],
) -> Result<(Vec<YcsbResult>, Vec<Way>)> {
    let (mut results, mut all) = (Vec::new(), Vec::new());
    for name in BUILTIN_NAMES {
        let (spec, possible) = settings.builtin(name, ycsb_operations(settings))?;
        let ways = match possible {
            true => runner.measure(&spec, kinds, ycsb_operations(settings), "YCSB A to F").await?,
            false => Vec::new(),
        };
        results.push(YcsbResult {
            name: name.to_owned(),
            operations: describe_operations(&spec),
            ways: ways.iter().map(WayResult::from).collect(),
        });
        all.extend(ways);
    }
    Ok((results, all))
}

/// Lets the tree grow, and the controller follow it.
async fn grow(
    settings: &Settings,
    runner: &mut Runner,
    control: &mut Control,
    (kind, learned): (Kind, Report),
) -> Result<Option<(GrowthResult, Vec<Way>)>> {
    // Between keys in order there is no room for new ones.
    if matches!(settings.key_map, KeyMap::Ordered) {
        return Ok(None);
    }
    let operations = ycsb_operations(settings);
    let (lookups, _) = settings.builtin("c", operations)?;
    let growth = Growth { lookups, operations, kind, learned };
    let begun = Step::begin("letting the tree grow".to_owned());
    let grown = growth.run(&settings.sorted_keys, runner, control).await?;
    let describe = |growth: &GrowthResult| {
        format!("{} keys inserted, then {} table entries changed", growth.inserted, growth.changes)
    };
    begun.done(grown.as_ref().map_or("no room for new keys".to_owned(), |(growth, _)| describe(growth)));
    Ok(grown)
}

/// Loads the keys into a Dolphin index. Counts its ways, which are returned, and what belongs into the tables of the trees.
fn dolphin<'s>(
    settings: &'s Settings,
    as_many: u64,
    mixtures: &mut [MixtureResult],
    ycsb: &mut [YcsbResult],
) -> Result<(Dolphin<'s>, Vec<WayResult>)> {
    let step = Step::begin("loading the keys into a Dolphin index".to_owned());
    let mut index = Dolphin::load(settings)?;
    step.done(format!("{:.0} keys/s", index.result.load.keys_per_s));
    let step = Step::begin("counting round trips in the Dolphin index".to_owned());
    let ways = index.ways(as_many)?;
    index.add_to(mixtures)?;
    // One client for all of them: a warm-up has more operations than the six workloads.
    index.warm(&settings.spec, as_many)?;
    for workload in ycsb {
        let operations = ycsb_operations(settings);
        let (spec, possible) = settings.builtin(&workload.name, operations)?;
        if possible {
            workload.ways.push(index.ycsb(&spec, as_many, operations)?);
        }
    }
    step.done(String::new());
    Ok((index, ways))
}

fn layer_nodes(summary: &Summary) -> Vec<usize> {
    summary.layers.iter().map(|layer| layer.nodes).collect()
}

/// A step without a measure of its progress: says what begins, and how long it took.
struct Step {
    what: String,
    started: Instant,
}

impl Step {
    fn begin(what: String) -> Self {
        if std::io::stderr().is_terminal() {
            crate::stdout::complain(format_args!("{what} …"));
        }
        Self { what, started: Instant::now() }
    }

    fn done(self, result: String) {
        let separator = if result.is_empty() { "" } else { ": " };
        let back = if std::io::stderr().is_terminal() { "\r" } else { "" };
        errln!("{back}{} … {:.2} s{separator}{result}", self.what, self.started.elapsed().as_secs_f64());
    }
}
