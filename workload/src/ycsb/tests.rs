//! The operation stream as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::statistics::chi_square;
use super::*;

fn spec(text: &str) -> WorkloadSpec {
    WorkloadSpec::parse("test", &format!("operationcount=1000\n{text}")).unwrap()
}

fn workload(text: &str, seed: u64) -> Workload {
    let spec = spec(text);
    Workload::new(&spec, KeyMap::from(spec.insert_order), seed).unwrap()
}

const MIXED: &str = "recordcount=1000\nreadproportion=0.4\nupdateproportion=0.3\ninsertproportion=0.1\n\
                     scanproportion=0.15\nreadmodifywriteproportion=0.05\nmaxscanlength=7\n";

#[test]
fn proportions() {
    let mut workload = workload(MIXED, 5);
    let mut counts = [0u64; 5];
    for _ in 0..100_000 {
        let operation = workload.next_operation().unwrap();
        let kind = OperationKind::ALL.iter().position(|kind| *kind == operation.kind);
        counts[kind.expect("no transactions")] += 1;
        assert_eq!(operation.scan_length > 0, operation.kind == OperationKind::Scan);
        assert!(operation.scan_length <= 7);
        assert_eq!(operation.key, fnv_hash64(operation.record));
    }
    chi_square(&counts, &[0.4, 0.3, 0.1, 0.15, 0.05]).unwrap();
}

#[test]
fn the_seed_decides_everything() {
    let run = |seed, client| {
        let spec = spec(MIXED);
        let mut workload = Workload::for_client(&spec, KeyMap::Hashed, seed, client, 2).unwrap();
        (0..500)
            .map(|_| {
                let operation = workload.next_operation().unwrap();
                if operation.kind == OperationKind::Insert {
                    workload.acknowledge_insert(operation.record);
                }
                operation
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(run(1, 0), run(1, 0));
    assert_ne!(run(1, 0), run(2, 0));
    assert_ne!(run(1, 0), run(1, 1));
}

/// Every distribution reads only records that are loaded or acknowledged, however late and out of order.
#[test]
fn only_records_that_exist_are_drawn() {
    for distribution in
        ["uniform", "zipfian", "zipfian-ranked", "latest", "hotspot", "sequential", "exponential"]
    {
        for (client, clients) in [(0, 1), (2, 3)] {
            let spec = spec(&format!(
                "recordcount=20\nreadproportion=0.7\ninsertproportion=0.3\nupdateproportion=0\n\
                 requestdistribution={distribution}"
            ));
            let mut workload = Workload::for_client(&spec, KeyMap::Ordered, 3, client, clients).unwrap();
            let mut exists: BTreeSet<u64> = (0..20).collect();
            let mut waiting = Vec::new();
            for step in 0..3000 {
                let operation = workload.next_operation().unwrap();
                if operation.kind == OperationKind::Insert {
                    assert!(exists.insert(operation.record), "record {} twice", operation.record);
                    assert_eq!((operation.record - 20) % clients, client);
                    waiting.push(operation.record);
                } else {
                    let known = exists.contains(&operation.record) && !waiting.contains(&operation.record);
                    assert!(known, "{distribution}: record {} does not exist", operation.record);
                }
                if waiting.len() == 8 {
                    let record = waiting.swap_remove(step % 8);
                    workload.acknowledge_insert(record);
                    workload.acknowledge_insert(record);
                }
            }
        }
    }
}

#[test]
fn new_records_are_read_once_acknowledged() {
    let mut workload = workload(
        "recordcount=10\nreadproportion=0.5\ninsertproportion=0.5\nupdateproportion=0\nrequestdistribution=latest",
        1,
    );
    let mut newest = 0;
    for _ in 0..1000 {
        let operation = workload.next_operation().unwrap();
        match operation.kind {
            OperationKind::Insert => workload.acknowledge_insert(operation.record),
            _ => newest = newest.max(operation.record),
        }
    }
    assert!(newest > 400, "the newest record ever read is {newest}");
    workload.acknowledge_insert(u64::MAX);
    workload.acknowledge_insert(0);
}

#[test]
fn a_key_file_bounds_the_records() {
    let keys = KeyMap::File(Arc::new(KeyFile::from(vec![30, 10, 20])));
    let text = "recordcount=2\nreadproportion=0\nupdateproportion=0\ninsertproportion=1";
    let mut workload = Workload::new(&spec(text), keys.clone(), 1).unwrap();
    assert_eq!(workload.next_operation().unwrap().key, 20);
    let error = workload.next_operation().unwrap_err();
    assert_eq!(error, WorkloadError::KeysUsedUp { record: 3, keys: 3 });
    let error = Workload::new(&spec("recordcount=4"), keys, 1).unwrap_err();
    assert!(error.to_string().contains("4 records") && error.to_string().contains("3 keys"));
}

#[test]
fn a_stride_names_a_client() {
    let error = Workload::for_client(&spec("recordcount=4"), KeyMap::Ordered, 1, 2, 2).unwrap_err();
    assert_eq!(error, WorkloadError::Stride { client: 2, clients: 2 });
}
