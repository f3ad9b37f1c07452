//! Virtual time, determinism, and running.

use std::rc::Rc;

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Operation, Reactor};

use super::{LONG, Lab};
use crate::world::{Driven, MachineOptions, Options, random};

fn busy(seed: u64) -> (u64, Vec<u64>) {
    let lab = Lab::new(seed, Options::rough(&mut random(seed, 9)), 3);
    let tasks: Vec<_> = (0..3)
        .flat_map(|client| {
            let wire = lab.connect(client);
            (0..4).map(move |_| wire.clone())
        })
        .map(|wire| {
            wire.machine.clone().spawn(async move {
                let mut found = Vec::new();
                for _ in 0..20 {
                    found.push(wire.add(64, 1).await.unwrap());
                }
                found
            })
        })
        .collect();
    lab.run_all(&tasks);
    assert_eq!(lab.word(64), 240);
    (lab.world.fingerprint(), tasks.iter().flat_map(|task| task.take().unwrap()).collect())
}

#[test]
fn a_seed_replays_itself_and_no_other() {
    let all: Vec<_> = (0..20).map(|seed| (busy(seed), busy(seed))).collect();
    assert!(all.iter().all(|(once, again)| once == again));
    assert!(all.windows(2).all(|two| two[0].0 != two[1].0), "two seeds did the same");
}

#[test]
fn which_of_the_ready_goes_first_is_the_seeds_affair() {
    let order = |seed| {
        let lab = Lab::new(seed, Options::default(), 1);
        let order = std::rc::Rc::new(std::cell::RefCell::new(String::new()));
        for name in ["a", "b", "c"] {
            let order = std::rc::Rc::clone(&order);
            lab.clients[0].spawn(async move { order.borrow_mut().push_str(name) });
        }
        lab.world.run();
        order.take()
    };
    let mut orders: Vec<_> = (0..60).map(order).collect();
    orders.sort();
    orders.dedup();
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn sleepers_wake_in_time_wherever_they_sleep() {
    let lab = Lab::new(1, Options::default(), 2);
    let (one, two) = (lab.clients[0].clone(), lab.clients[1].clone());
    // The second client's reactor has heard of nothing when its task is woken by the first one's.
    let first = one.clone().spawn(async move {
        one.sleep(Duration::from_micros(7)).await;
        one.now()
    });
    assert_eq!(two.reactor().now(), Instant::ZERO);
    let second = two.clone().spawn(async move {
        let woken = first.await.unwrap();
        two.reactor().sleep(Duration::from_micros(2)).await;
        two.sleep(Duration::from_micros(3)).await;
        (woken, two.now(), two.reactor().now())
    });
    lab.world.run_until(|| second.has_ended(), LONG).unwrap();
    let at = |micros| Instant::ZERO + Duration::from_micros(micros);
    assert_eq!(second.take(), Some((at(7), at(12), at(12))));
}

#[test]
fn running_stops_where_it_is_told_to() {
    let lab = Lab::new(1, Options::default(), 1);
    let client = lab.clients[0].clone();
    let task = client.clone().spawn(async move { client.sleep(Duration::from_millis(3)).await });
    lab.world.run_for(Duration::from_millis(1));
    assert_eq!((lab.world.now(), task.has_ended()), (Instant::ZERO + Duration::from_millis(1), false));
    let stuck = lab.world.run_until(|| task.has_ended(), Duration::from_millis(1)).unwrap_err();
    assert_eq!(stuck.reason, "and something is still going on");
    let took = lab.world.run_until(|| task.has_ended(), Duration::from_millis(5)).unwrap();
    assert_eq!(lab.world.now(), Instant::ZERO + Duration::from_millis(3));
    assert!(took <= Duration::from_millis(2));
    let stuck = lab.world.block_on(std::future::pending::<()>(), LONG).unwrap_err();
    assert!(stuck.to_string().contains("1 tasks wait, and nothing is going on"), "{stuck}");
}

/// A client that has a reactor of its own: its machine tells it of completions and of the time, and sleeps by it.
#[test]
fn a_machine_uses_the_reactor_that_it_is_given() {
    let lab = Lab::new(1, Options::default(), 0);
    let client = lab.world.machine(MachineOptions::named("client"));
    let own = Rc::new(Reactor::new(client.device()));
    client.set_driven(Rc::clone(&own) as Rc<dyn Driven>);
    let (machine, server, at) = (client.clone(), lab.server.clone(), lab.at(64));
    let reactor = Rc::clone(&own);
    let task = client.spawn(async move {
        let queue_pair = machine.dial(&server).await.unwrap();
        machine.sleep(Duration::from_micros(5)).await;
        reactor.chain(queue_pair, [Operation::FetchAdd { at, add: 3 }]).await.unwrap();
    });
    lab.world.run_until(|| task.has_ended(), LONG).unwrap();
    assert_eq!((lab.word(64), own.now()), (3, lab.world.now()));
}

#[test]
#[should_panic(expected = "has a reactor")]
fn a_card_has_one_reactor() {
    let lab = Lab::new(1, Options::default(), 1);
    let _first = lab.clients[0].reactor();
    lab.clients[0].set_driven(Rc::new(Reactor::new(lab.clients[0].device())));
}
