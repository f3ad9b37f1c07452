//! One host asks for everything at once; what another asks meanwhile is answered soon.

use std::net::{Ipv4Addr, SocketAddr};

use fatbtree_wire::query::{Op, Query, QueryHeader, Status};

use super::lab::{Lab, Worker};

const GREEDY: u64 = 7;

fn at(host: u8) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, host), 1).into()
}

/// The status and the bytes of all answers to a host.
fn answers(worker: &mut Worker, to: SocketAddr) -> Vec<(Status, usize)> {
    let sent = std::iter::from_fn(|| worker.worker.poll_transmit()).filter(|sent| sent.to == to);
    sent.map(|sent| (Query::parse(&sent.bytes).unwrap().header.status.unwrap(), sent.bytes.len())).collect()
}

fn scan(request: u64) -> [u8; QueryHeader::LEN] {
    let header = QueryHeader::request(Op::Scan, 1000, GREEDY, request);
    QueryHeader { range_end: u64::MAX, limit: u32::MAX, ..header }.to_bytes()
}

#[test]
fn a_burst_of_scans_leaves_time_for_others() {
    let keys: Vec<u64> = (0..20_000).map(|n| 1000 + n * 10).collect();
    let mut lab = Lab::new(&keys);
    let mut worker = lab.worker(1);
    // From an address that may be forged: no work is done, and no more comes back than was sent.
    for request in 0..1500 {
        worker.worker.handle(lab.now, at(1), &scan(request));
    }
    assert_eq!(worker.worker.under_way(), 0);
    let told = answers(&mut worker, at(1));
    assert_eq!(told, vec![(Status::NotOpen, QueryHeader::LEN); 1500]);
    // From one that is proved: a few are begun, the others are told that the server is busy.
    let open = QueryHeader::request(Op::Open, 0, GREEDY, 1);
    worker.worker.handle(lab.now, at(1), &open.to_bytes());
    let cookie = Query::parse(&worker.worker.poll_transmit().unwrap().bytes).unwrap().header.range_end;
    worker.worker.handle(lab.now, at(1), &QueryHeader { range_end: cookie, ..open }.to_bytes());
    assert_eq!(answers(&mut worker, at(1)), [(Status::Done, QueryHeader::LEN)]);
    for request in 0..1500 {
        worker.worker.handle(lab.now, at(1), &scan(request));
    }
    let begun = worker.worker.under_way();
    assert!((1..=8).contains(&begun), "{begun} scans of thousands of records at once");
    assert_eq!(answers(&mut worker, at(1)).len(), 1500 - begun);
    // Another host's get is answered before they end, and before much is read for them.
    let before = worker.worker.stats().pool.remote.reads;
    worker.worker.handle(lab.now, at(2), &QueryHeader::request(Op::Get, keys[777], 0, 1).to_bytes());
    let mut steps = 0;
    while answers(&mut worker, at(2)).is_empty() {
        assert!(worker.worker.step(lab.now), "it has come to nothing");
        steps += 1;
    }
    let reads = worker.worker.stats().pool.remote.reads - before;
    assert!(steps < 100 && reads < 10_000, "{steps} steps, {reads} reads");
    assert!(worker.worker.under_way() > 0, "scans are still at work");
    // What they are owed comes as well.
    worker.settle(&mut lab);
    let all = answers(&mut worker, at(1));
    assert!(all.len() > begun * 10 && all.iter().all(|(status, _)| *status == Status::Done));
}
