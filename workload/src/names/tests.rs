use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::value;
use proptest::prelude::*;

use super::*;
use crate::{LoadGenerator, Operation, OperationKind, Operations, Pace, ScanParts, Values};

/// Keys of bytes that are answered at once.
#[derive(Default)]
struct Sorted(RefCell<BTreeMap<Vec<u8>, Vec<u8>>>);

fn answer<T>(result: T) -> Answer<T, Infallible> {
    Answer { result: Ok(result), round_trips: 1 }
}

impl Structure for Sorted {
    type Value = Vec<u8>;
    type Error = Infallible;
    type Cursor = u64;

    const NAME: &'static str = "map";

    fn now(&self) -> Instant {
        Instant::ZERO
    }

    fn sleep_until(&self, _: Instant) -> impl Future<Output = ()> {
        ready(())
    }

    async fn get(&self, _: u64) -> Answer<Option<Vec<u8>>, Infallible> {
        unreachable!("its keys are bytes")
    }

    async fn change(&self, _: u64, _: Change<'_>) -> Answer<bool, Infallible> {
        unreachable!("its keys are bytes")
    }

    async fn scan(&self, _: KeyRange, _: Order, _: usize) -> Answer<Pairs, Infallible> {
        unreachable!("its keys are bytes")
    }

    async fn export(&self, _: u64, _: usize) -> Answer<Portion<Bytes, u64>, Infallible> {
        unreachable!("its keys are bytes")
    }

    async fn get_bytes(&self, key: &[u8]) -> Option<Answer<Option<Vec<u8>>, Infallible>> {
        Some(answer(self.0.borrow().get(key).cloned()))
    }

    async fn change_bytes(&self, key: &[u8], change: Change<'_>) -> Option<Answer<bool, Infallible>> {
        let mut pairs = self.0.borrow_mut();
        let applies = change.applies(pairs.contains_key(key));
        match change.value() {
            Some(value) if applies => drop(pairs.insert(key.to_vec(), value.to_vec())),
            None => drop(pairs.remove(key)),
            Some(_) => {}
        }
        Some(answer(applies))
    }

    async fn scan_bytes(
        &self,
        range: BytesRange,
        order: Order,
        most: usize,
    ) -> Option<Answer<BytesPairs, Infallible>> {
        let pairs = self.0.borrow();
        let within = pairs.iter().filter(|(key, _)| range.contains(key));
        let mut found: BytesPairs =
            within.map(|(key, value)| (key.clone().into(), value.clone().into())).collect();
        if order == Order::Backward {
            found.reverse();
        }
        found.truncate(most);
        Some(answer(found))
    }

    fn is_unknown(error: &Infallible) -> bool {
        match *error {}
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing is waited for"),
    }
}

/// A structure that holds these names, with values of `seed`.
fn holding<N: AsRef<[u8]>>(names: &[N], seed: u64) -> Sorted {
    let sorted = Sorted::default();
    for name in names {
        let mut bytes = vec![0; 16];
        value::fill(value_number(name.as_ref()), seed, &mut bytes);
        sorted.0.borrow_mut().insert(name.as_ref().to_vec(), bytes);
    }
    sorted
}

/// Operations that are given.
struct Given(VecDeque<(OperationKind, u64, u32)>);

impl Operations for Given {
    fn next_operation(&mut self) -> Result<Operation, crate::ycsb::WorkloadError> {
        let next = self.0.pop_front().ok_or(crate::ycsb::WorkloadError::TraceEnded { operations: 0 });
        let (kind, key, scan_length) = next?;
        Ok(Operation { kind, record: 0, key, scan_length, value_bytes: None, program: None })
    }

    fn acknowledge_insert(&mut self, _: u64) {}
}

/// Does one operation after the other; what is wrong with the first that is.
fn wrong(
    sorted: &Sorted,
    values: &Values,
    parts: u16,
    given: &[(OperationKind, u64, u32)],
) -> Option<String> {
    let mut done = LoadGenerator::new().scanning(ScanParts { count: parts, spacing: Names::SPACING });
    let names = values.names().expect("they have names").clone();
    let (named, count) = (Named::new(sorted, &names), given.len() as u64);
    let pace = Pace::Closed { depth: 1 };
    now(done.run_on(&named, &mut Given(given.iter().copied().collect()), count, pace, values, |_| {}))
        .expect("there are so many");
    done.first_wrong().map(str::to_owned)
}

use OperationKind::{Delete, Insert, Read, Scan, Update};

#[test]
fn what_is_wrong_is_found_and_names_the_key() {
    let (names, numbers) = Names::of(["b", "d", "new", "f"]);
    let [b, d, new, f] = numbers[..] else { panic!("four") };
    let values = |sorted: &[u64]| {
        Values::new(5, 16)
            .among_others(77)
            .with_keys(sorted.into())
            .named(Names::of(["b", "d", "new", "f"]).0.into())
    };
    assert_eq!((names.len(), names.name_of(d + 1), names.name_of(0)), (4, None, None));
    let all = [
        (Read, b, 0),
        (Update, d, 0),
        (Read, d, 0),
        (Insert, new, 0),
        (Scan, b, 9),
        (Delete, f, 0),
        (Scan, b, 2),
    ];
    let sorted = holding(&["b", "d", "f"], 5);
    assert_eq!(wrong(&sorted, &values(&[b, d, f]), 1, &all), None);
    assert!(sorted.0.borrow().contains_key(&b"new"[..]) && !sorted.0.borrow().contains_key(&b"f"[..]));
    // Another run believes what this one has written, and the keys that it has inserted: it knows no key "new".
    let (others, numbers) = Names::of(["b", "d", "f"]);
    let names = std::sync::Arc::new(others);
    let others = || Values::new(5, 16).among_others(99).with_keys(numbers[..2].into()).named(names.clone());
    let [b, d] = numbers[..2] else { panic!("two") };
    assert_eq!(wrong(&sorted, &others(), 1, &[(Read, d, 0), (Scan, b, 9), (Scan, d, 1)]), None);
    // Values of other keys, also of keys that the run does not know, and pairs that are missing.
    for (change, operation, message) in [
        (("d", Some("b")), (Read, d, 0), "READ of key \"d\": WrongAnswer"),
        (("new", Some("b")), (Scan, b, 9), "SCAN of key \"b\": WrongAnswer"),
        (("a", Some("b")), (Scan, b, 9), ""),
        (("d", None), (Scan, b, 9), "SCAN of key \"b\": WrongAnswer"),
        (("d", None), (Read, d, 0), "READ of key \"d\": NotFound"),
    ] {
        let damaged = Sorted(RefCell::new(sorted.0.borrow().clone()));
        let (key, of) = change;
        match of {
            Some(of) => {
                let value = damaged.0.borrow()[of.as_bytes()].clone();
                damaged.0.borrow_mut().insert(key.into(), value);
            }
            None => drop(damaged.0.borrow_mut().remove(key.as_bytes())),
        }
        let expected = Some(message.to_owned()).filter(|message| !message.is_empty());
        assert_eq!(wrong(&damaged, &others(), 1, &[operation]), expected, "{change:?}");
    }
}

proptest! {
    /// Scans find the names and the keys of others between them, in their order, in one part as in several.
    #[test]
    fn scans_number_what_they_find(
        known in prop::collection::btree_set(prop::collection::vec(0..4u8, 0..4), 1..20),
        others in prop::collection::btree_set(prop::collection::vec(0..4u8, 0..4), 0..30),
        (from, most, parts, damage) in (0..20usize, 0..40usize, 1..5u16, prop::option::of(0..30usize)),
    ) {
        let known: Vec<Vec<u8>> = known.into_iter().collect();
        let (names, numbers) = Names::of(known.iter().rev());
        prop_assert!(numbers.is_sorted_by(|one, other| one > other));
        let numbers: Vec<u64> = numbers.into_iter().rev().collect();
        let sorted = holding(&known, 5);
        for name in others.iter().filter(|name| names.number(name).is_none()) {
            let mut bytes = vec![0; 16];
            value::stamp(value_number(name), 4711, &mut bytes);
            sorted.0.borrow_mut().insert(name.clone(), bytes);
        }
        let from = from % known.len();
        let expected: Vec<(Vec<u8>, Vec<u8>)> =
            sorted.0.borrow().range(known[from].clone()..).take(most).map(|(key, value)| (key.clone(), value.clone())).collect();
        let named = Named::new(&sorted, &names);
        let spread = ScanParts { count: parts, spacing: Names::SPACING };
        let found = now(spread.scan(&named, numbers[from], most)).result.unwrap_or_else(|error| match error {});
        prop_assert!(found.is_sorted_by(|one, other| one.0 < other.0));
        prop_assert_eq!(found.len(), expected.len());
        for ((number, value), (key, is)) in found.iter().zip(&expected) {
            prop_assert_eq!(&value[..], &is[..]);
            prop_assert_eq!(names.number(key), Some(*number).filter(|number| names.name_of(*number).is_some()));
        }
        let backward = now(named.scan(KeyRange::ALL, Order::Backward, 99)).result.unwrap_or_else(|error| match error {});
        let forward = now(named.scan(KeyRange::ALL, Order::Forward, 99)).result.unwrap_or_else(|error| match error {});
        prop_assert!(backward.iter().rev().eq(&forward));
        // A value that is damaged is noticed wherever a scan meets it.
        if let Some((key, _)) = damage.and_then(|at| expected.get(at)) {
            sorted.0.borrow_mut().get_mut(key).expect("it is there")[9] ^= 1;
            let values = Values::new(5, 16).among_others(77).with_keys(numbers.clone().into()).named(Names::of(&known).0.into());
            prop_assert!(wrong(&sorted, &values, parts, &[(Scan, numbers[from], most as u32)]).is_some());
        }
    }
}
