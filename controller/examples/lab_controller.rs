//! A controller for the interop lab, told by hand what a daemon will be told over gRPC: it programs the switches of a cluster
//! file, plans their caches from the memory servers' trees, and registers connections. A line in, a line out:
//!
//! ```text
//!   lab_controller cluster.toml          ok: 5 switches programmed, 23 routes written
//!
//!   plan RANGES NODES,NODES,...          ok epoch=1 updates=10532 ranges=4 nodes=546
//!                                        ranges of the fat root, nodes per switch in each layer (see `Budget`)
//!   register CLIENT PARTITION QUEUE_PAIR RKEY ROOT MTU          ok
//!   unregister CLIENT PARTITION QUEUE_PAIR                      ok
//!   counters                             ok fat_root=300 core-0=300 agg-0-0=298 edge-0-0=260
//! ```
//!
//! What fails is answered by `error` and the reason. It ends at the end of its input; what the switches hold they keep.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::str::FromStr;

use fatbtree_blink_host::grpc::TreeCalls as _;
use fatbtree_controller::tables::fat_root;
use fatbtree_controller::{
    Budget, Controller, Entry, Fleet, FleetOptions, Frequencies, Keeper, Placement, Plan, Programs,
    Registration, Tree,
};
use fatbtree_memserver::grpc;
use fatbtree_topology::Cluster;
use tokio::io::{AsyncBufReadExt, BufReader};

type Failure = Box<dyn std::error::Error>;

struct Lab {
    cluster: Cluster,
    fleet: Fleet,
    controller: Controller,
    keepers: Vec<Keeper>,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: lab_controller CLUSTER.toml");
        return ExitCode::from(2);
    };
    match run(&path).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(path: &str) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("reading {path}: {error}"))?;
    let cluster = Cluster::from_toml(&text)?;
    let fleet = Fleet::connect(&cluster, &Programs::v1model()?, FleetOptions::default()).await?;
    let (mut controller, mut keepers) = (Controller::new(&cluster, 1_000, 0), Vec::new());
    let report = fleet.settle(&mut controller, &mut keepers, None).await?;
    println!(
        "ok: {} switches programmed, {} routes written",
        cluster.tree().switches().len(),
        report.updates
    );
    let mut lab = Lab { cluster, fleet, controller, keepers };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match lab.obey(&line).await {
            Ok(said) if said.is_empty() => println!("ok"),
            Ok(said) => println!("ok {said}"),
            Err(error) => println!("error {error}"),
        }
    }
    Ok(())
}

impl Lab {
    async fn obey(&mut self, line: &str) -> Result<String, Failure> {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["plan", ranges, nodes] => self.plan(number(ranges)?, nodes).await,
            ["register", client, partition, queue_pair, rkey, root, mtu] => {
                let connection = Registration {
                    client: number(client)?,
                    queue_pair: number(queue_pair)?,
                    rkey: number(rkey)?,
                    root: number(root)?,
                    mtu: number(mtu)?,
                };
                let refused = self.controller.refused_connections();
                self.controller.opened(number(partition)?, connection);
                if self.controller.refused_connections() > refused {
                    return Err(
                        format!("{client} is no host of the cluster, or its switch has no room").into()
                    );
                }
                self.settle().await
            }
            ["unregister", client, partition, queue_pair] => {
                self.controller.closed(number(partition)?, number(client)?, number(queue_pair)?);
                self.settle().await
            }
            ["counters"] => self.counters().await,
            _ => Err(format!("{line:?}: see the top of this program for what there is").into()),
        }
    }

    /// Plans from what the memory servers say, and loads the plan beside the active one.
    async fn plan(&mut self, ranges: usize, nodes: &str) -> Result<String, Failure> {
        let mut tops = Vec::new();
        for server in self.cluster.servers() {
            tops.push(grpc::Client::connect(&format!("http://{}", server.grpc)).await?.snapshot().await?);
        }
        let budget = format!("fat_root_ranges = {ranges}\nset_nodes = [{nodes}]");
        let budget = Budget::from_toml(&budget)?;
        let (tree, placement) = (Tree::new(&tops)?, Placement::of(&self.cluster));
        let nobody = Frequencies::none(&tree);
        let plan = Plan::new(self.cluster.tree(), &placement, &tree, &nobody, &budget, 1)?;
        let (ranges, nodes) = (plan.fat_root().len(), plan.nodes().len());
        let epoch = self.controller.load(plan, self.controller.trees())?;
        let report = self.fleet.settle(&mut self.controller, &mut self.keepers, None).await?;
        Ok(format!("epoch={epoch} updates={} ranges={ranges} nodes={nodes}", report.updates))
    }

    async fn settle(&mut self) -> Result<String, Failure> {
        self.fleet.settle(&mut self.controller, &mut self.keepers, None).await?;
        Ok(String::new())
    }

    /// Packets that the fat root and each switch's node sets have led on, since the plan was loaded.
    async fn counters(&self) -> Result<String, Failure> {
        let mut fat_root = 0;
        let mut nodes = BTreeMap::<_, u64>::new();
        for (switch, entry, packets) in self.fleet.read_counters().await? {
            match entry {
                Entry::FatRoot(_, fat_root::Action::Land { .. }) => fat_root += packets,
                Entry::Coarse(..) => *nodes.entry(switch).or_default() += packets,
                _ => {}
            }
        }
        let mut words = vec![format!("fat_root={fat_root}")];
        words.extend(
            nodes.iter().map(|(id, packets)| format!("{}={packets}", self.cluster.tree().switch(*id).name())),
        );
        Ok(words.join(" "))
    }
}

fn number<T: FromStr>(word: &str) -> Result<T, Failure> {
    word.parse().map_err(|_| format!("{word:?} is not what was expected here").into())
}
