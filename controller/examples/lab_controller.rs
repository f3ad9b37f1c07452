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
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::str::FromStr;

use fatbtree_controller::tables::fat_root;
use fatbtree_controller::{
    Budget, Change, Connection, Connections, Entry, Fleet, FleetOptions, Frequencies, Placement, Plan,
    Programs, ReloadSteps, Tree, cluster_base, next_epoch,
};
use fatbtree_memserver::grpc;
use fatbtree_topology::{Cluster, HostId, SwitchId};
use tokio::io::{AsyncBufReadExt, BufReader};

type Failure = Box<dyn std::error::Error>;

struct Lab {
    cluster: Cluster,
    fleet: Fleet,
    plan: Option<Plan>,
    connections: Connections,
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
    fleet.set_pipeline().await?;
    let report = fleet.load_base(&cluster_base(&cluster)).await?;
    println!(
        "ok: {} switches programmed, {} routes written",
        cluster.tree().switches().len(),
        report.updates
    );
    let connections = Connections::of(&cluster);
    let mut lab = Lab { cluster, fleet, plan: None, connections };
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
                let connection = Connection {
                    client: self.host(client)?,
                    partition: number(partition)?,
                    dest_qp: number(queue_pair)?,
                    rkey: number(rkey)?,
                    root: number(root)?,
                    mtu: number(mtu)?,
                };
                let placement = Placement::of(&self.cluster);
                let (switch, change) =
                    self.connections.register(self.cluster.tree(), &placement, connection)?;
                self.apply(change.map(|change| (switch, change))).await
            }
            ["unregister", client, partition, queue_pair] => {
                let placement = Placement::of(&self.cluster);
                let (client, partition, dest_qp) =
                    (self.host(client)?, number(partition)?, number(queue_pair)?);
                let change = self.connections.unregister(
                    self.cluster.tree(),
                    &placement,
                    client,
                    partition,
                    dest_qp,
                )?;
                self.apply(change).await
            }
            ["counters"] => self.counters().await,
            _ => Err(format!("{line:?}: see the top of this program for what there is").into()),
        }
    }

    /// Plans from what the memory servers say, and loads the plan beside the one in force.
    async fn plan(&mut self, ranges: usize, nodes: &str) -> Result<String, Failure> {
        let mut tops = Vec::new();
        for server in self.cluster.servers() {
            tops.push(grpc::Client::connect(&format!("http://{}", server.grpc)).await?.snapshot().await?);
        }
        let budget = format!("fat_root_ranges = {ranges}\nset_nodes = [{nodes}]");
        let budget = Budget::from_toml(&budget)?;
        let epoch = self.plan.as_ref().map_or(1, |plan| next_epoch(plan.epoch()));
        let (tree, placement) = (Tree::new(&tops)?, Placement::of(&self.cluster));
        let nobody = Frequencies::none(&tree);
        let plan = Plan::new(self.cluster.tree(), &placement, &tree, &nobody, &budget, epoch)?;
        let steps = ReloadSteps::new(self.plan.as_ref(), &plan)?;
        let report = self.fleet.reload(&steps, None).await?;
        let (ranges, nodes) = (plan.fat_root().len(), plan.nodes().len());
        self.plan = Some(plan);
        Ok(format!("epoch={epoch} updates={} ranges={ranges} nodes={nodes}", report.updates))
    }

    async fn apply(&self, change: Option<(SwitchId, Change)>) -> Result<String, Failure> {
        if let Some((switch, change)) = change {
            self.fleet.apply(&BTreeMap::from([(switch, vec![change])]), None).await?;
        }
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

    fn host(&self, ip: &str) -> Result<HostId, Failure> {
        let ip: Ipv4Addr = number(ip)?;
        let host = self.cluster.tree().hosts().iter().find(|host| host.ip == ip);
        Ok(host.ok_or_else(|| format!("no host of the cluster has the address {ip}"))?.id)
    }
}

fn number<T: FromStr>(word: &str) -> Result<T, Failure> {
    word.parse().map_err(|_| format!("{word:?} is not what was expected here").into())
}
