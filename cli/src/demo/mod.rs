//! `fatbtree demo`: the whole path in one process, measured.

mod arguments;
mod control;
mod data_path;
mod measure;
mod network;
mod report;
mod result;

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use fatbtree_client::workload::Workload;
use fatbtree_client::{Client, ClosedLoop};
use fatbtree_index::PoolConfig;
use fatbtree_memserver::{LoadOptions, ServerOptions, load_cluster, seeded};
use fatbtree_sim::{Cluster, InstantWires};
use fatbtree_topology::{Annotations, FatTree, Switch, render_svg};

use crate::progress;

pub(crate) use arguments::Arguments;
use control::Control;
use data_path::{DataPath, Starter};
use measure::{Measured, TURN};
use network::{Endpoints, Places, is_in_rack};
use result::{DemoResult, Environment, LoadResult, ModeResult, PlanResult, PushResult};

/// Lookups each way before measuring begins: caches of the machine itself warm up.
const WARM_UP_TURNS: u64 = 2;

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let settings = arguments.settings()?;
    // Interrupted: nothing is written yet and nothing outlives the process, so there is nothing to clean up.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            eprintln!("\ninterrupted; nothing was written");
            std::process::exit(130);
        }
    });
    let (result, plan, picture) = runtime.block_on(demonstrate(settings))?;

    println!("{}", table(&result));
    println!(
        "{} lookups under way: in-network latency is {:.2} of the baseline's, throughput {:.2} times; {} wrong answers of {}; {:.1} s in all",
        result.depth,
        result.latency_ratio,
        result.throughput_ratio,
        result.wrong,
        2 * result.lookups,
        result.seconds
    );
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&result)? + "\n";
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
        println!("figures in {}", path.display());
    }
    if let Some(path) = &arguments.plan {
        std::fs::write(path, plan).with_context(|| format!("writing {}", path.display()))?;
        println!("plan in {}", path.display());
    }
    if let Some(path) = &arguments.report {
        report::write(path, &result, &picture)?;
        println!("report in {}", path.display());
    }
    if result.wrong > 0 {
        bail!(
            "{} lookups gave a wrong value, none, or an error: please report this with the seed",
            result.wrong
        );
    }
    Ok(())
}

/// Runs it all; gives the figures, the plan as JSON, and the picture of what is cached where.
async fn demonstrate(mut settings: arguments::Settings) -> Result<(DemoResult, String, String)> {
    let started = Instant::now();
    let tree = FatTree::spine(settings.k)?;
    let places = Places::choose(&tree, settings.servers)?;
    let keys = settings.sorted_keys.len();

    let step = Step::begin(format!("loading {keys} keys into {} memory servers", settings.servers));
    let load_started = Instant::now();
    let seed = settings.seed;
    let loaded = load_cluster(
        &LoadOptions::new(settings.tree, 0),
        settings.servers,
        &std::mem::take(&mut settings.sorted_keys),
        &mut seeded(seed, settings.value_size as u32),
    )?;
    let load_seconds = load_started.elapsed().as_secs_f64();
    step.done(format!("{:.0} keys/s", keys as f64 / load_seconds));

    let step = Step::begin(format!(
        "starting {} switches, loading the P4 program and routes",
        tree.switches().len()
    ));
    let roots = loaded.roots.clone();
    let lows: Vec<u64> = loaded.trees.iter().map(|tree| tree.partition.range.low).collect();
    let starter = Starter::new();
    let waker_of = |switch: &Switch| match is_in_rack(switch) {
        true => starter.waker_of_racks(),
        false => starter.waker_of_fabric(),
    };
    let endpoints = Endpoints::open(&tree, &places, &lows, waker_of, starter.waker_of_racks()).await?;
    let data_path = {
        let pool = PoolConfig { tree: settings.tree, ..PoolConfig::default() };
        let mut nics = Vec::new();
        for host in &places.servers {
            nics.push(network::nic(&tree, *host, seed)?);
        }
        let mut nics = nics.into_iter();
        let next_nic = |_server| nics.next().expect("each memory server has its host");
        let servers = loaded.serve(&ServerOptions::default(), seed, next_nic)?;
        let servers = servers.into_iter().map(|server| server.with_device_counters(network::drops));
        let servers: Vec<_> = places.servers.iter().copied().zip(servers).collect();
        let client_nic = network::nic(&tree, places.client, seed)?;

        let mut in_racks: Vec<bool> = tree.switches().iter().map(is_in_rack).collect();
        in_racks.resize(in_racks.len() + servers.len() + 1, true);
        let (racks_wires, fabric_wires) = InstantWires::pair(&in_racks);
        let inboxes = endpoints.inboxes.into_iter().enumerate();
        let (racks_inboxes, fabric_inboxes) = inboxes.partition(|(switch, _)| in_racks[*switch]);
        let (racks_tree, fabric_tree) = (tree.clone(), tree);
        // A half has a stand-in for each switch of the other: no frame comes to it.
        let racks = move || {
            let clients = vec![(places.client, Client::new(client_nic, pool, roots, seed)?)];
            let switches = network::switches(&racks_tree);
            let cluster = Cluster::new(&racks_tree, switches, servers, clients, racks_wires);
            Ok(DataPath::new(cluster, racks_inboxes, endpoints.mailboxes))
        };
        let fabric = move || {
            let switches = network::switches(&fabric_tree);
            let cluster = Cluster::new(&fabric_tree, switches, Vec::new(), Vec::new(), fabric_wires);
            Ok(DataPath::new(cluster, fabric_inboxes, Vec::new()))
        };
        Arc::new(starter.start(racks, fabric)?)
    };
    let mut control = Control::bring_up(endpoints.cluster).await?;
    step.done(String::new());

    let step = Step::begin("planning the caches".into());
    let planned = control.plan(&settings).await?;
    let summary = planned.plan.summary();
    step.done(format!(
        "{} ranges, {:?} nodes per layer, {:.3} s",
        summary.ranges,
        layer_nodes(&summary),
        planned.seconds
    ));

    let (bar, on_progress) = progress::of_push(summary.entries);
    let push = control.push(&planned.plan, on_progress).await?;
    bar.finish_and_clear();
    eprintln!("pushed over P4Runtime: {} entries, {:.0} entries/s", push.updates, push.rate());

    control.connect_client(&data_path).await?;

    let measured = measure(&settings, &data_path).await?;
    let (baseline, in_network) = (mode_result(&measured.baseline), mode_result(&measured.in_network));
    let lookups = measured.baseline.recorder().operations();
    let good = |way: &ClosedLoop| way.recorder().summary(1).found;
    let annotations: Annotations = planned.plan.annotations().into_iter().collect();
    let result = DemoResult {
        keys: keys as u64,
        value_size: settings.value_size,
        servers: usize::from(settings.servers),
        distribution: arguments::describe(&settings.spec.distribution),
        lookups,
        depth: settings.depth,
        wrong: 2 * lookups - good(&measured.baseline) - good(&measured.in_network),
        latency_ratio: in_network.mean_us / baseline.mean_us,
        throughput_ratio: in_network.ops_per_s / baseline.ops_per_s,
        baseline,
        in_network,
        plan: PlanResult {
            ranges: summary.ranges,
            stage_entries: summary.stage_entries,
            layers: layer_nodes(&summary),
            seconds: planned.seconds,
        },
        push: PushResult { entries: push.updates as u64, seconds: push.seconds, entries_per_s: push.rate() },
        load: LoadResult { seconds: load_seconds, keys_per_s: keys as f64 / load_seconds },
        seconds: started.elapsed().as_secs_f64(),
        environment: Environment {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed,
            cpus: std::thread::available_parallelism().map_or(1, Into::into),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        },
    };
    Ok((result, planned.plan.to_json(), render_svg(control.cluster(), &annotations)))
}

async fn measure(
    settings: &arguments::Settings,
    data_path: &Arc<data_path::DataPathThreads>,
) -> Result<Measured> {
    let mut workload = Workload::new(&settings.spec, settings.key_map.clone(), settings.seed)?;
    let turns = settings.lookups.div_ceil(TURN);
    let bar = progress::bar("looking up, both ways in turns", turns * TURN);
    let mut measured = Measured::new();
    let (depth, seed) = (settings.depth as usize, settings.seed);
    for turn in 0..WARM_UP_TURNS + turns {
        let lookups = if turn < WARM_UP_TURNS {
            TURN.min(settings.lookups)
        } else {
            TURN.min(settings.lookups - (turn - WARM_UP_TURNS) * TURN)
        };
        let (m, w, outcome) = data_path.call(move |path| {
            let outcome = measured.turn(path, &mut workload, lookups, turn, (depth, seed));
            (measured, workload, outcome)
        })?;
        outcome?;
        (measured, workload) = (m, w);
        if turn + 1 == WARM_UP_TURNS {
            measured = Measured::new();
        } else {
            bar.inc(lookups);
        }
        tokio::task::yield_now().await;
    }
    bar.finish_and_clear();
    Ok(measured)
}

fn mode_result(way: &ClosedLoop) -> ModeResult {
    let summary = way.recorder().summary(way.elapsed().as_nanos());
    ModeResult {
        mean_us: summary.mean_us,
        p50_us: summary.p50_us,
        p90_us: summary.p90_us,
        p99_us: summary.p99_us,
        p999_us: summary.p99_9_us,
        max_us: summary.max_us,
        ops_per_s: summary.ops_per_s,
        round_trips: summary.round_trips,
        round_trip_histogram: summary.round_trip_histogram,
        latency_cdf: way.recorder().cdf().iter().map(|point| (point.us, point.share)).collect(),
    }
}

fn layer_nodes(summary: &fatbtree_controller::Summary) -> Vec<usize> {
    summary.layers.iter().map(|layer| layer.nodes).collect()
}

fn table(result: &DemoResult) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_header(["", "baseline", "in-network", "ratio"]);
    for row in result.rows() {
        table.add_row([row.name.to_owned(), row.baseline, row.in_network, row.ratio]);
    }
    for column in 1..=3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A step without a measure of its progress: says what begins, and how long it took.
struct Step {
    what: String,
    started: Instant,
}

impl Step {
    fn begin(what: String) -> Self {
        if std::io::stderr().is_terminal() {
            eprint!("{what} …");
        }
        Self { what, started: Instant::now() }
    }

    fn done(self, result: String) {
        let separator = if result.is_empty() { "" } else { ": " };
        let back = if std::io::stderr().is_terminal() { "\r" } else { "" };
        eprintln!("{back}{} … {:.2} s{separator}{result}", self.what, self.started.elapsed().as_secs_f64());
    }
}
