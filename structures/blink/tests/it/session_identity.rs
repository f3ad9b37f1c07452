//! A memory server that is started anew gives the same owner numbers and the same memory keys again. Clients tell sessions apart by
//! their names, and drop everything that they have of a server with the session that it was given in.
use crate::common;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use common::{Client, Lab, REGION, SESSION, configs, value_of};
use fatbtree_blink::{
    Change, Event, GlobalAddress, OperationError, Owner, SessionId, Start, TreeConfig, ValueLayout,
};

/// A session of the server that was started anew. The number is the one that the client has had.
const NEXT: Owner = Owner { session: SessionId(0x4e87), number: NUMBER };
const NUMBER: u16 = 1;
/// Offset from which the restarted server gives out memory; memory below it belongs to another client.
const OURS: u64 = REGION / 2;
const THEIRS: u8 = 0xa5;

/// Has a server that was started anew opened a session for the client.
fn reopen(lab: &mut Lab, client: &Client) {
    lab.session.set(NEXT.session);
    while client.poll_event().is_some() {}
    for id in client.connections() {
        client.abandon(id).unwrap();
        lab.connect(client, id, NEXT, true);
    }
}

/// Starts the server anew with an empty tree, in whose memory others have nodes and records.
fn restart_among_others(lab: &mut Lab) {
    lab.restart(0, false);
    let server = &lab.servers[0];
    server.memory.write(8192, &vec![THEIRS; (OURS - 8192) as usize]).unwrap();
    server.next_chunk.set(OURS);
}

fn assert_others_are_left_alone(lab: &Lab) {
    let mut bytes = vec![0; (OURS - 8192) as usize];
    lab.servers[0].memory.read(8192, &mut bytes).unwrap();
    let wrong = bytes.iter().position(|&byte| byte != THEIRS);
    assert_eq!(wrong.map(|at| at + 8192), None, "the client has written into what is not its own");
}

fn out_of_line() -> TreeConfig {
    *configs().iter().find(|config| config.values() == ValueLayout::OutOfLine).unwrap()
}

fn mutate(lab: &Lab, client: &Client, key: u64, mutation: Change<'_>) -> Result<bool, OperationError> {
    lab.run(client, client.mutate(key, mutation, Start::Root)).result
}

/// Leaves the client with the rest of a chunk of each class, with nodes that were merged away, and with places of records.
fn write_and_delete(lab: &Lab, client: &Client) {
    for key in 0..60 {
        mutate(lab, client, key, Change::Upsert(&value_of(&lab.config, key))).unwrap();
    }
    for key in 0..50 {
        mutate(lab, client, key, Change::Delete).unwrap();
    }
}

#[test]
fn what_a_former_session_has_left_is_not_used() {
    for config in configs() {
        let mut lab = Lab::new(config);
        let client = lab.client(NUMBER, true);
        write_and_delete(&lab, &client);
        restart_among_others(&mut lab);
        reopen(&mut lab, &client);
        assert_eq!(client.take_returned(), [], "places of the former session");
        write_and_delete(&lab, &client);
        assert_others_are_left_alone(&lab);
        assert_eq!(lab.contents().len(), 10);
    }
}

#[test]
fn places_are_given_back_in_the_session_that_they_name() {
    let mut lab = Lab::new(out_of_line());
    let client = lab.client(NUMBER, true);
    write_and_delete(&lab, &client);
    let first = client.take_returned();
    reopen(&mut lab, &client);
    write_and_delete(&lab, &client);
    let second = client.take_returned();
    assert!(first.len() > 2 && first.iter().all(|places| places.session == SESSION));
    assert!(second.len() > 2 && second.iter().all(|places| places.session == NEXT.session));
}

#[test]
fn memory_that_was_given_in_a_former_session_is_left_alone_and_asked_for_again() {
    let mut lab = Lab::new(out_of_line());
    let client = lab.client(NUMBER, true);
    let value = value_of(&lab.config, 9);
    let mut insert = pin!(client.mutate(1, Change::Insert(&value), Start::Root));
    let mut turn = || {
        let poll = insert.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        client.turn(client.reactor().now());
        poll
    };
    let mut asked = || {
        for _ in 0..20 {
            assert!(turn().is_pending());
            if let Some(Event::MemoryWanted { class, .. }) = client.poll_event() {
                return class;
            }
        }
        panic!("the operation does not ask for memory");
    };
    let class = asked();
    restart_among_others(&mut lab);
    reopen(&mut lab, &client);
    client.grant(SESSION, GlobalAddress::new(0, 8192), 4096, class);
    client.grant_blocks(SESSION, 0, class, 64, &[GlobalAddress::new(0, 16384)]);
    assert_eq!(asked(), class, "what came late was not taken");
    client.grant(NEXT.session, GlobalAddress::new(0, OURS), 4096, class);
    assert!((0..20).any(|_| matches!(turn(), Poll::Ready(change) if change.result == Ok(true))));
    assert_others_are_left_alone(&lab);
}

/// A change that was dropped while it had a lock is finished in its session, or not at all.
#[test]
fn locks_that_are_to_be_given_back_go_with_their_session() {
    let mut lab = Lab::new(out_of_line());
    let client = lab.client(NUMBER, true);
    write_and_delete(&lab, &client);
    let unfinished = (1..20).find(|&polls| {
        let value = value_of(&lab.config, 9);
        {
            let mut update = pin!(client.mutate(55, Change::Update(&value), Start::Root));
            for _ in 0..polls {
                let _ = update.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                client.turn(client.reactor().now());
            }
        }
        matches!(client.poll_event(), Some(Event::Unfinished { server: 0 }))
    });
    assert!(unfinished.is_some());
    reopen(&mut lab, &client);
    let id = client.connections()[0];
    client.abandon(id).unwrap();
    client.open(id).unwrap();
    let finish = pin!(client.finish());
    let done = finish.poll(&mut Context::from_waker(Waker::noop()));
    assert!(done.is_ready(), "there is nothing to be done, and no connection to do it");
}

type Running<'c> = Pin<Box<dyn Future<Output = Result<bool, OperationError>> + 'c>>;

/// A server that is started anew at any moment, with or without its memory, has an empty lock table. Asked whether a lock is still taken,
/// it says no; that does not mean that the change was carried out.
#[test]
fn no_change_is_said_to_be_carried_out_because_a_server_has_forgotten_its_lock() {
    let (mut unknown, mut restarts) = (0, 0);
    for config in configs() {
        for keeps_tree in [false, true] {
            let moments = (1..).take_while(|&moment| {
                let broken = restart_at(config, keeps_tree, moment, &mut unknown);
                restarts += u32::from(broken);
                broken
            });
            assert!(moments.count() > 2);
        }
    }
    assert!(restarts > 100 && unknown > 20, "{restarts} {unknown}");
}

/// Starts the server anew after `moment` turns of three changes at one leaf. Says whether they were under
/// way.
fn restart_at(config: TreeConfig, keeps_tree: bool, moment: u32, unknown: &mut u32) -> bool {
    let mut lab = Lab::new(config);
    let client = lab.client(NUMBER, true);
    for key in 0..4 {
        mutate(&lab, &client, key, Change::Insert(&value_of(&config, key))).unwrap();
    }
    let keys = [0, 1, 4];
    let values = keys.map(|key| value_of(&config, key + 100));
    let begin = |at: usize| -> Running<'_> {
        let change = client.mutate(keys[at], Change::Upsert(&values[at]), Start::Root);
        Box::pin(async move { change.await.result })
    };
    let mut running = [0, 1, 2].map(|at| Some(begin(at)));
    let mut results: [Option<Result<bool, OperationError>>; 3] = [None, None, None];
    let (mut turns, mut now) = (0_u32, client.reactor().now());
    let mut was_under_way = false;
    while running.iter().any(Option::is_some) {
        turns += 1;
        assert!(turns < 10_000, "an operation does not end");
        // Requests posted before are answered already; requests posted from now on are lost.
        if turns == moment {
            was_under_way = true;
            lab.restart(0, keeps_tree);
        }
        for (work, result) in running.iter_mut().zip(&mut results) {
            let mut context = Context::from_waker(Waker::noop());
            if let Some(Poll::Ready(done)) = work.as_mut().map(|work| work.as_mut().poll(&mut context)) {
                (*work, *result) = (None, Some(done));
                // Changes answered before the restart are lost with the tree.
                if turns <= moment && !keeps_tree {
                    *result = None;
                }
            }
        }
        match turns.checked_sub(moment) {
            Some(0) => {}
            Some(1) => reopen(&mut lab, &client),
            _ => lab.serve(&client),
        }
        if !client.turn(now) {
            now = client.poll_timeout().unwrap_or(now);
        }
    }
    if turns == moment {
        reopen(&mut lab, &client);
    }
    let found = lab.contents();
    for ((key, value), result) in keys.iter().zip(&values).zip(results) {
        match result {
            Some(Ok(_)) => assert_eq!(found.get(key), Some(value), "moment {moment}: it was not carried out"),
            Some(Err(OperationError::Unknown { .. })) => *unknown += 1,
            Some(Err(error)) => panic!("moment {moment}: {error}"),
            None => {}
        }
    }
    // It goes on as if nothing had been.
    drop(running);
    let client = Rc::clone(&client);
    let mut model: BTreeMap<u64, Vec<u8>> = found;
    for key in 0..30 {
        let value = value_of(&config, key + 200);
        mutate(&lab, &client, key, Change::Upsert(&value)).unwrap();
        model.insert(key, value);
    }
    assert_eq!(lab.contents(), model);
    lab.assert_unlocked(&client);
    was_under_way
}
