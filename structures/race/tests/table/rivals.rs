//! Four clients in one order: two that insert one key, one that splits its subtable meanwhile, and one that fills a slot which the first two
//! have fought over.

use std::rc::Rc;

use fatbtree_race::{Check, Hash, Shape, Slot, State, Table};
use fatbtree_sim::hash::lab::{Server, serve};
use fatbtree_sim::world::{Options, SimDevice, Task, World};
use fatbtree_verbs::time::Duration;

use crate::model::{SMALL, done, value};
use crate::split::Client;

/// Time in which what a card has begun comes to its end: a few round trips.
const FEW_TRIPS: Duration = Duration::from_micros(20);

/// Far more than an operation takes in which nothing is in the way.
const SOON: Duration = Duration::from_secs(1);

/// Attempts in which an insertion gives way to another one at a lower address.
const GIVES_WAY: usize = 4;

/// Two groups of three buckets. A key whose combined buckets are these has the slots of each group that [`FULL`] has not.
const EMPTY: [u32; 2] = [1, 3];

/// Combined buckets that are full before the split.
const FULL: [u32; 2] = [0, 2];

/// Offset of a main bucket in its subtable: the third one of its group, which belongs to [`EMPTY`] alone.
const fn main_bucket(group: u64) -> u64 {
    64 + group * 192 + 128
}

/// The stage: the only subtable, and clients that go on and stand still one by one.
struct Stage {
    world: World,
    server: Rc<Server>,
    shape: Shape,
}

impl Stage {
    fn slot(&self, offset: u64) -> Slot {
        self.world.settle();
        let mut word = [0; 8];
        let subtable = 64 + self.shape.directory_bytes();
        self.server.region().read(subtable + offset, &mut word).expect("the region has a subtable");
        Slot(u64::from_le_bytes(word))
    }

    /// Whether all slots are frozen.
    fn is_all_frozen(&self) -> bool {
        let slots = (64..self.shape.subtable_bytes()).step_by(8).filter(|offset| offset % 64 != 0);
        slots.into_iter().all(|offset| self.slot(offset).is_frozen())
    }

    /// Lets a client go on until something is so, and stand still then. What its card has begun is finished. Says whether it came so far.
    fn go(&self, client: &Client, within: Duration, is_so: impl FnMut() -> bool) -> bool {
        client.machine.thaw();
        let is_so = self.world.run_until(is_so, within).is_ok();
        client.machine.freeze();
        self.world.run_for(FEW_TRIPS);
        is_so
    }

    /// Lets a client go on until it has posted so many READs more.
    fn go_reads(&self, client: &Client, reads: u64) {
        let most = self.world.counts().reads + reads;
        assert!(self.go(client, SOON, || self.world.counts().reads >= most), "{reads} READs");
    }
}

/// Keys whose combined buckets are these.
fn keys_of(buckets: [u32; 2], shape: Shape) -> impl Iterator<Item = u64> {
    (0..).filter(move |&key| Hash::of(key).buckets(&shape) == buckets)
}

fn insert(client: &Client, key: u64) -> Task<bool> {
    client.spawn(async move |table: Rc<Table<SimDevice>>| done(table.insert(key, &value(key, 0, 20)).await))
}

/// Keys that are not there although their insertion was acknowledged.
///
/// 1. *Late* has read that a slot is empty.
/// 2. *First* fills it, tentatively, with another key.
/// 3. *Second* inserts the same key, gives way until it is out of patience, and looks at its buckets.
/// 4. *Splitting* freezes the slot of *first*, not yet the one that *second* chooses.
/// 5. *Second* puts its own pointer, and sees the other one frozen.
/// 6. *Splitting* freezes all slots, and reads them.
/// 7. *Second* empties the slot of *first*, unless it gives way to the split.
/// 8. *Late* fills that slot, if it is empty: the copy does not have it.
fn lost_keys() -> Vec<u64> {
    let shape = SMALL;
    let world = World::new(1, Options::default());
    let servers = serve(&world, shape, 16 << 20, SOON);
    let names = ["filling", "late", "first", "second", "splitting"];
    let mut number = 0;
    let [filling, late, first, second, splitting] = names.map(|name| {
        number += 1;
        Client::new(&world, &servers, name, number)
    });
    let stage = Stage { world, server: Rc::clone(&servers[0]), shape };
    // Two combined buckets of two groups have 28 slots.
    let full: Vec<u64> = keys_of(FULL, shape).take(29).collect();
    let (&last, rest) = full.split_last().expect("there are many");
    let rest = rest.to_vec();
    filling.run(&stage.world, async move |table| {
        for key in rest {
            assert!(done(table.insert(key, &value(key, 0, 20)).await), "{key}");
        }
    });
    let mut empty = keys_of(EMPTY, shape);
    let key = empty.next().expect("there are many");
    let fingerprint = Hash::of(key).fingerprint();
    let other = empty.find(|&key| Hash::of(key).fingerprint() != fingerprint).expect("there are many");
    let [contested, chosen] = [0, 1].map(|group| main_bucket(group) + 8);
    let is_tentative = |offset| stage.slot(offset).state() == State::Tentative;

    let of_late = insert(&late, other);
    stage.go_reads(&late, 2);
    let of_first = insert(&first, key);
    assert!(stage.go(&first, SOON, || is_tentative(contested)));
    let of_second = insert(&second, key);
    for _ in 0..GIVES_WAY {
        assert!(stage.go(&second, SOON, || is_tentative(chosen)));
        assert!(stage.go(&second, SOON, || stage.slot(chosen).is_empty()));
    }
    stage.go_reads(&second, 2);
    let of_splitting = insert(&splitting, last);
    assert!(stage.go(&splitting, SOON, || stage.slot(contested).is_frozen()));
    assert!(is_tentative(contested) && stage.slot(chosen).is_empty(), "it stands between two doorbells");
    assert!(stage.go(&second, SOON, || is_tentative(chosen)));
    assert!(stage.go(&splitting, SOON, || stage.is_all_frozen()));
    stage.go_reads(&splitting, 1);
    stage.go(&second, FEW_TRIPS * 2, || stage.slot(contested).is_empty());
    let inserted = |stage: &Stage| stage.slot(contested).pointer().is_some() && of_late.has_ended();
    stage.go(&late, FEW_TRIPS * 2, || inserted(&stage));

    let clients = [&late, &first, &second, &splitting];
    clients.iter().for_each(|client| client.machine.thaw());
    let all = [of_late, of_first, of_second, of_splitting];
    stage.world.run_until(|| all.iter().all(Task::has_ended), SOON).expect("nothing is in the way");
    let [of_late, of_first, of_second, of_splitting] =
        all.map(|task| task.take().expect("the machine lives"));
    assert!(of_late && of_splitting && of_first != of_second, "each key is put once");
    let lost = filling.run(&stage.world, async move |table| {
        let mut lost = Vec::new();
        for key in [other, key, last] {
            if table.search(key).await.result.expect("it is right").is_none() {
                lost.push(key);
            }
        }
        lost
    });
    if lost.is_empty() {
        filling.verify(&stage.world);
    }
    lost
}

#[test]
fn an_insertion_leaves_the_frozen_slot_of_its_rival_alone() {
    assert_eq!(lost_keys(), Vec::<u64>::new());
    assert_eq!(Check::FrozenRivals.without(lost_keys).len(), 1, "the slot that was emptied was not filled");
}
