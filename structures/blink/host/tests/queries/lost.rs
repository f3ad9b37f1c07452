//! A query to a server that has lost its tree: its client is told so, and not that data is damaged.

use fatbtree_blink::Integrity;
use fatbtree_blink_host::{LoadOptions, bulk_load, seeded};
use fatbtree_query::{Answer, Ask, Requester, RequesterOptions};
use fatbtree_verbs::time::Duration;
use fatbtree_wire::query::Status;

use crate::lab::{Lab, RANGE, SEED, Worker, ask, config, value_of};

#[test]
fn a_query_for_a_lost_tree_is_refused_by_that_name_until_it_is_loaded() {
    let mut lab = Lab::new(&[]);
    let mut worker = lab.worker(1);
    let mut client = Requester::new(RequesterOptions::default(), 1);
    let mut say = |lab: &mut Lab, worker: &mut Worker, what| ask(lab, worker, &mut client, 1, what, |_| ());
    assert_eq!(say(&mut lab, &mut worker, Ask::get(1000)), Answer::NotFound);
    let generation = lab.server.info().generation;
    lab.server.known_before(generation + 1);
    let asks = [
        Ask::get(1000),
        Ask::scan(1000, 2000, 10),
        Ask::put(1000, value_of(1000, 1)),
        Ask::update(1000, value_of(1000, 1)),
        Ask::delete(1000),
    ];
    for what in asks {
        assert_eq!(say(&mut lab, &mut worker, what.clone()), Answer::Refused(Status::TreeLost), "{what:?}");
    }
    let load = LoadOptions {
        spare_bytes: 4 << 20,
        range: RANGE,
        generation: generation + 2,
        ..LoadOptions::new(config(Integrity::Checksums), 1)
    };
    // The longest pause before a session is asked for again.
    lab.now += Duration::from_secs(1);
    let now = lab.now;
    lab.server.install(now, bulk_load(&load, &[1000], &mut seeded(SEED, 20)).unwrap()).unwrap();
    worker.settle(&mut lab);
    assert_eq!(say(&mut lab, &mut worker, Ask::get(1000)), Answer::Value(value_of(1000, SEED)));
    assert_eq!(worker.worker.stats().damaged, 0);
}
