//! A lock whose neighbours in the same word change all the time, on a card without masked atomics.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fatbtree_remote_memory::{
    ConnectionId, Contention, GlobalAddress, LockError, LockGuard, Owner, RemoteConfig, RemoteMemory,
    RemoteSide, SessionId, Writer,
};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Device as _, Memory, Remote};

const ID: ConnectionId = ConnectionId { server: 0, lane: 0 };
const PATIENCE: Duration = Duration::from_millis(1);

/// What is locked.
const AT: GlobalAddress = GlobalAddress::new(0, 64);
/// The word with all four locks.
const LOCKS: u64 = 1024;
const OWNERS: u64 = 2048;

/// A client of a memory with one word of locks.
fn client(contention: Contention) -> (RemoteMemory<PlainDevice>, Arc<Memory>) {
    let network = PlainNetwork::new();
    let mut server = network.device();
    let memory = Memory::shared(4096).expect("a page");
    let rkey = server.register(&memory, 0, Access::ALL).expect("it is registered").rkey;
    let config = RemoteConfig { patience: PATIENCE, contention, ..RemoteConfig::default() };
    let client = RemoteMemory::new(network.device(), [0].into_iter(), config, 1).expect("there are lanes");
    let at = |address| Remote { address, rkey };
    let owner = Owner { session: SessionId(1), number: 7 };
    let writer =
        Writer { locks: at(LOCKS), count: 4, owners: at(OWNERS), owner, masked_atomics: false, syncs: false };
    client.set_writer(0, writer).expect("there is such a server");
    let endpoint = client.open(ID).expect("it is not up");
    let queue_pair = server.create().expect("a queue pair");
    server.connect(queue_pair, &endpoint).expect("the endpoint is right");
    let endpoint = server.endpoint(queue_pair).expect("it is there");
    client.connected(ID, RemoteSide { endpoint, rkey, registered: false }).expect("it was opened");
    (client, memory)
}

/// Takes the lock while `meanwhile` changes its word, and gives it back. Returns what came of it, the time and the round trips.
fn take(
    client: &RemoteMemory<PlainDevice>,
    mut meanwhile: impl FnMut(),
) -> (Result<(), LockError>, Duration, u32) {
    let lane = client.take_lane();
    let mut now = client.reactor().now();
    let began = now;
    let end = began + PATIENCE * 4;
    let result = {
        let mut taking = pin!(async {
            let (guard, _) = LockGuard::lock_and_read(client, &lane, AT, 8).await?;
            guard.release(&lane).await
        });
        loop {
            client.turn(now);
            meanwhile();
            match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(result) => break result,
                Poll::Pending => assert!(now < end, "it asks for the lock without end"),
            }
            now += Duration::from_micros(1);
        }
    };
    (result, now - began, lane.round_trips())
}

#[test]
fn a_lock_beside_busy_ones_is_asked_for_with_pauses_and_given_up() {
    for (contention, most) in [(Contention::SHERMAN, 700), (Contention::SMART, 600)] {
        let (client, memory) = client(contention);
        let word = || {
            let mut bytes = [0; 8];
            memory.read(LOCKS, &mut bytes).expect("it is there");
            u64::from_le_bytes(bytes)
        };
        let mut lanes = 0;
        let (taken, ..) = take(&client, || lanes |= word());
        assert!(taken.is_ok() && lanes != 0, "{taken:?}");
        let own = lanes.trailing_zeros() / 16;
        // Clients that take and give back the lock beside it, faster than any answer comes.
        let mut others = 0_u64;
        let (taken, waited, trips) = take(&client, || {
            others += 1;
            let neighbour = (others % 0xffff) << ((own + 1) % 4 * 16);
            memory.write(LOCKS, &neighbour.to_le_bytes()).expect("it is there");
        });
        println!("{trips} attempts in {waited:?}");
        assert!(matches!(taken, Err(LockError::Locked)), "{taken:?}");
        assert!(waited <= PATIENCE + PATIENCE / 4 && trips < most, "{trips} attempts in {waited:?}");
        // It was not left unfinished.
        assert!(client.poll_event().is_none());
    }
}
