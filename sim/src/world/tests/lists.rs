//! A small structure of the sort that trees are made of: a linked list that clients push to with CAS, on a network that loses, with
//! clients that die.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use rand::RngExt as _;

use super::{LONG, Lab, Wire};
use crate::world::{LinkFaults, MachineOptions, Options, random};

const HEAD: u64 = 8;

/// Pushes that clients have begun, and those that they have completed.
#[derive(Default)]
struct Said {
    begun: BTreeSet<u64>,
    pushed: BTreeSet<u64>,
}

/// Pushes a node: writes it to a place of its own, then swings the head to it. `None` when a request failed,
/// and it is unknown whether it was carried out.
async fn push(wire: &Wire, node: u64, said: &RefCell<Said>) -> Option<()> {
    said.borrow_mut().begun.insert(node);
    let mut head = u64::from_le_bytes(*wire.read(HEAD, 8).await.ok()?.first_chunk()?);
    loop {
        // Value and link in one line, the line whole.
        let line = [node.to_le_bytes(), head.to_le_bytes()].concat();
        wire.write(64 * node, &line).await.ok()?;
        let found = wire.swap(HEAD, head, node).await.ok()?;
        if found == head {
            said.borrow_mut().pushed.insert(node);
            return Some(());
        }
        head = found;
    }
}

#[test]
fn pushes_that_were_confirmed_are_there_once() {
    let (mut confirmed, mut unconfirmed, mut there) = (0, 0, 0);
    for seed in 0..100 {
        let mut draw = random(seed, 9);
        let link = LinkFaults::rough(&mut draw);
        let lab = Lab::with(
            seed,
            Options::rough(&mut draw),
            4,
            &MachineOptions { link, ..MachineOptions::default() },
        );
        let said = Rc::new(RefCell::new(Said::default()));
        for (client, machine) in lab.clients.iter().enumerate() {
            let (machine, server, said, rkey) =
                (machine.clone(), lab.server.clone(), Rc::clone(&said), lab.region.rkey);
            machine.clone().spawn(async move {
                for number in 0..10 {
                    // One that fails leaves everything as it is: the next has a node of its own and a new connection.
                    let Ok(queue_pair) = machine.dial(&server).await else { continue };
                    let wire = Wire { machine: machine.clone(), queue_pair, rkey };
                    let _ = push(&wire, 1 + client as u64 * 100 + number, &said).await;
                }
            });
            if draw.random_bool(0.5) {
                lab.clients[client].kill_after_polls(draw.random_range(0..200));
            }
        }
        lab.world.run_for(LONG);
        let mut found = BTreeSet::new();
        let mut next = lab.word(HEAD);
        while next != 0 {
            assert!(found.insert(next), "seed {seed}: node {next} is there twice");
            assert_eq!(lab.word(64 * next), next, "seed {seed}: a node that was not written");
            next = lab.word(64 * next + 8);
        }
        let said = said.borrow();
        assert!(said.pushed.is_subset(&found), "seed {seed}: a push was lost");
        assert!(found.is_subset(&said.begun), "seed {seed}: a push from nowhere");
        confirmed += said.pushed.len();
        unconfirmed += said.begun.len() - said.pushed.len();
        there += found.len() - said.pushed.len();
    }
    assert!(confirmed > 1_000 && unconfirmed > 20 && there > 2, "{confirmed}, {unconfirmed}, {there}");
}
