//! A structure that no part of the program names, the smallest one: served by a memory server with a data folder, used by the library,
//! measured as `fatbtree bench` does, and verified. Its line of the registry is all that joins it.

use fatbtree::Error;
use fatbtree_processes::{Adapter, ClientOptions, NicSpec, SpreadProcess, host_port};
use fatbtree_remote_memory::Spread as _;
use fatbtree_topology::Cluster;
use fatbtree_workload::measure::Troubles;
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, Pace, Values};
use kind::{COUNTERS, Counters, Toy};

use crate::common::Running;

#[path = "../../../remote-memory/tests/counters/kind.rs"]
mod kind;

fn value(sum: u64) -> [u8; 8] {
    sum.to_le_bytes()
}

#[tokio::test]
async fn a_structure_of_ones_own_is_served_and_used_and_found_again_in_its_folder() {
    let data = tempfile::tempdir().unwrap();
    let mut cluster = Running::with_data::<Toy>(data.path());
    let db = cluster.options().connect_to::<Toy>().await.unwrap();
    assert_eq!(db.get(7).await.unwrap().as_deref(), Some(&value(0)[..]));
    db.put(7, value(5)).await.unwrap();
    assert!(db.compare_and_swap(7, value(5), value(6)).await.unwrap());
    assert!(!db.compare_and_swap(7, value(5), value(9)).await.unwrap());
    assert!(db.update(8, value(1)).await.unwrap() && !db.update(COUNTERS.into(), value(1)).await.unwrap());
    let refused = db.insert(9, value(1)).await.unwrap_err();
    assert!(matches!(refused, Error::NotInStructure { operation: "insert", .. }), "{refused:?}");
    let refused = db.delete(7).await.unwrap_err().to_string();
    assert!(refused.starts_with("a counter array does not have the operation delete; use get"), "{refused}");
    db.close().await;
    cluster.stop();

    let cluster = Running::with_data::<Toy>(data.path());
    let db = cluster.options().connect_to::<Toy>().await.unwrap();
    let (mut scan, mut found) = (db.scan(6..=8), Vec::new());
    while let Some(pair) = scan.next().await {
        found.push(pair.unwrap());
    }
    assert_eq!(found, [(6, 0), (7, 6), (8, 1)].map(|(key, sum)| (key, value(sum).to_vec().into())));
    db.close().await;
}

#[test]
fn a_structure_of_ones_own_is_measured_and_verified() {
    let running = Running::with::<Toy>();
    let file = std::fs::read_to_string(running.folder.path().join("cluster.toml")).unwrap();
    let cluster = Cluster::from_toml(&file).unwrap();
    let host = cluster.clients()[0].host;
    let nic = NicSpec::Software(host_port(&cluster, host).unwrap());
    let options = ClientOptions::new(cluster.tree().host(host).clone(), nic, cluster.servers());
    let mut process = SpreadProcess::<Counters<Adapter>>::open(&options).unwrap();
    let client = process.client().clone();
    let mut properties = builtin("a").unwrap();
    properties.set("recordcount", &COUNTERS.to_string());
    let spec = WorkloadSpec::from_properties(&properties).unwrap();
    let mut workload = Workload::new(&spec, KeyMap::Ordered, 1).unwrap();
    let values = Values::new(1, 8).loaded_with(|_, bytes| bytes == [0; 8]);
    let (mut load, pace) = (LoadGenerator::new(), Pace::Closed { depth: 16 });
    process.run(load.run_on(&client, &mut workload, 2_000, pace, &values, |_| {})).unwrap().unwrap();
    let summary = load.summary_of(&Troubles::default());
    assert!(summary.verified() && summary.operations == 2_000, "{:?}", load.first_wrong());
    let verified = process.run(async { client.structure().await.unwrap().verify().await });
    assert!(verified.unwrap().unwrap().starts_with("whole: 200 counters, memory server 0"));
    process.close();
}
