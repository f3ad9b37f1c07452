//! Damaged memory under a query: the client is told what it is, and is not left to wait.

use fatbtree_query::{Answer, Ask, Requester, RequesterOptions};
use fatbtree_verbs::time::Duration;
use fatbtree_wire::query::Status;

use crate::lab::{Lab, SEED, Worker, ask, value_of};

/// Flips a bit of the value of a key, where it lies in the tree's memory.
fn flip(lab: &Lab, key: u64) {
    let memory = lab.server.memory();
    let mut all = vec![0; usize::try_from(memory.len()).unwrap()];
    memory.read(0, &mut all).unwrap();
    let value = value_of(key, SEED);
    let at = all.windows(value.len()).position(|window| window == value).unwrap();
    memory.write(at as u64 + 7, &[value[7] ^ 4]).unwrap();
}

#[test]
fn a_query_for_a_damaged_record_is_refused_by_that_name_and_counted() {
    let keys: Vec<u64> = (0..100).map(|n| 1000 + n * 10).collect();
    let mut lab = Lab::new(&keys);
    let mut worker = lab.worker(1);
    let mut client = Requester::new(RequesterOptions::default(), 1);
    let (damaged, whole) = (1000 + 50 * 10, 1000 + 51 * 10);
    flip(&lab, damaged);
    let mut say = |lab: &mut Lab, worker: &mut Worker, what| ask(lab, worker, &mut client, 1, what, |_| ());
    let began = lab.now;
    let refused = Answer::Refused(Status::Damaged);
    assert_eq!(say(&mut lab, &mut worker, Ask::get(damaged)), refused);
    assert!(lab.now - began < Duration::from_secs(2), "it took {:?}", lab.now - began);
    assert!(worker.worker.stats().damaged > 0);
    assert_eq!(say(&mut lab, &mut worker, Ask::scan(1000, 2000, 100)), refused);
    // Its neighbours are as they were, and what is written anew is whole.
    assert_eq!(say(&mut lab, &mut worker, Ask::get(whole)), Answer::Value(value_of(whole, SEED)));
    assert_eq!(say(&mut lab, &mut worker, Ask::put(damaged, value_of(damaged, 7))), Answer::Written);
    assert_eq!(say(&mut lab, &mut worker, Ask::get(damaged)), Answer::Value(value_of(damaged, 7)));
}
