//! Local clients of the memory that a NIC serves: the conformance suite, and locks that both kinds of clients compete for.
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::conformance::{self, Bench, LocalResponder, Responder};
use fatbtree_verbs::local::{LocalHost, LocalVerbs};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{
    Access, Capabilities, Device, Endpoint, Memory, Operation, Output, QueuePairNumber, Region, Remote,
    Verbs, WorkRequest,
};

fn nic(number: u8) -> Nic {
    let config = NicConfig::new([2, 0, 0, 0, 0, number], Ipv4Addr::new(10, 0, 0, number));
    Nic::new(config, number.into()).unwrap()
}

/// The memory is a NIC's, on it or not; links are a local host's.
struct Shared {
    nic: LocalResponder<Nic>,
    host: LocalHost,
}

impl Shared {
    fn share(&self, region: Region, access: Access) -> Region {
        let memory = self.nic.device.shared_memory(region.rkey).unwrap();
        self.host.share(region, &memory, access);
        region
    }
}

impl Responder for Shared {
    /// Capabilities of both together: lines are torn between them.
    fn capabilities(&mut self) -> Result<Capabilities, String> {
        Ok(Capabilities { line_atomicity: false, ..self.nic.capabilities()? })
    }

    fn register(&mut self, len: u64, access: Access) -> Result<Region, String> {
        self.nic.register(len, access).map(|region| self.share(region, access))
    }

    fn register_device_memory(&mut self, len: u64, access: Access) -> Result<Region, String> {
        self.nic.register_device_memory(len, access).map(|region| self.share(region, access))
    }

    fn deregister(&mut self, rkey: u32) -> Result<(), String> {
        self.host.withdraw(rkey);
        self.nic.deregister(rkey)
    }

    fn accept(&mut self, client: &Endpoint) -> Result<Endpoint, String> {
        self.host.accept(client).map_err(|error| error.to_string())
    }

    fn disconnect(&mut self, queue_pair: QueuePairNumber) -> Result<(), String> {
        self.host.disconnect(queue_pair).then_some(()).ok_or("no such link".to_owned())
    }

    fn broken(&mut self) -> Result<Vec<QueuePairNumber>, String> {
        Ok(std::iter::from_fn(|| self.host.poll_broken()).collect())
    }

    fn read(&mut self, rkey: u32, offset: u64, len: u64) -> Result<Vec<u8>, String> {
        self.nic.read(rkey, offset, len)
    }

    fn write(&mut self, rkey: u32, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.nic.write(rkey, offset, bytes)
    }
}

struct LocalBench {
    client: LocalVerbs,
    responder: Shared,
}

impl LocalBench {
    fn new() -> Self {
        let host = LocalHost::new();
        let client = LocalVerbs::new(&host, &LocalVerbs::BUFFERS).unwrap();
        Self { client, responder: Shared { nic: LocalResponder::new(nic(1)), host } }
    }
}

impl Bench for LocalBench {
    type Verbs = LocalVerbs;

    fn verbs(&mut self) -> &mut LocalVerbs {
        &mut self.client
    }

    fn responder(&mut self) -> &mut dyn Responder {
        &mut self.responder
    }

    fn advance(&mut self, _turns: u64) -> bool {
        false
    }
}

#[test]
fn local_verbs_conform() {
    let report = conformance::run(LocalBench::new);
    assert!(report.failures().is_empty(), "{report}");
    assert!(report.cases() > 30, "{} cases", report.cases());
}

fn link(host: &LocalHost, client: &mut LocalVerbs) -> fatbtree_verbs::QueuePair {
    let queue_pair = client.create().unwrap();
    let remote = host.accept(&client.endpoint(queue_pair).unwrap()).unwrap();
    client.connect(queue_pair, &remote).unwrap();
    queue_pair
}

fn take(rkey: u32, owner: u64) -> Operation<'static> {
    let (at, mask) = (Remote { address: 0, rkey }, 0xffff);
    Operation::MaskedCompareSwap { at, compare: 0, compare_mask: mask, swap: owner, swap_mask: mask }
}

/// A lock of 16 bits in a card's memory protects a counter in ordinary memory, which is read and written by
/// halves of words: an addition outside of the lock loses what another client adds. Two local threads and an
/// RDMA client compete for it.
#[test]
fn a_lock_keeps_out_whoever_comes_the_other_way() {
    const ROUNDS: u64 = 3000;
    let (mut server, mut client) = (nic(1), nic(2));
    let locks = server.register_device_memory(64, 0, Access::ALL).unwrap();
    let memory = Memory::shared(4096).unwrap();
    let tree = server.register(&memory, 0, Access::READ | Access::WRITE).unwrap();
    let host = LocalHost::new();
    host.share(locks, &server.shared_memory(locks.rkey).unwrap(), Access::ALL);
    host.share(tree, &memory, Access::READ | Access::WRITE);
    let here = client.create().unwrap();
    let there = server.create().unwrap();
    client.connect(here, &server.endpoint(there).unwrap()).unwrap();
    server.connect(there, &client.endpoint(here).unwrap()).unwrap();
    let counter = Remote { address: 12, rkey: tree.rkey };
    let release = Remote { address: 0, rkey: locks.rkey };
    let over = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for owner in [1, 2] {
            let host = host.clone();
            scope.spawn(move || {
                let mut verbs = LocalVerbs::new(&host, &LocalVerbs::BUFFERS).unwrap();
                let queue_pair = link(&host, &mut verbs);
                for _ in 0..ROUNDS {
                    add(
                        |chain| perform(&mut verbs, queue_pair, chain, |_| {}),
                        locks.rkey,
                        owner,
                        counter,
                        release,
                    );
                }
            });
        }
        let flag = Arc::clone(&over);
        scope.spawn(move || {
            let mut frame = Vec::new();
            for _ in 0..ROUNDS {
                add(
                    |chain| {
                        perform(&mut client, here, chain, |client| {
                            while client.poll_transmit(Instant::ZERO, &mut frame) {
                                server.handle_frame(Instant::ZERO, &frame);
                            }
                            while server.poll_transmit(Instant::ZERO, &mut frame) {
                                client.handle_frame(Instant::ZERO, &frame);
                            }
                        })
                    },
                    locks.rkey,
                    3,
                    counter,
                    release,
                );
            }
            flag.store(true, Ordering::Relaxed);
        });
    });
    assert!(over.load(Ordering::Relaxed));
    let mut found = [0; 8];
    memory.read(12, &mut found).unwrap();
    assert_eq!(u64::from_le_bytes(found), 3 * ROUNDS);
}

/// Adds one to the counter under the lock.
fn add(
    mut chain: impl FnMut(&[Operation<'_>]) -> Vec<Output>,
    locks: u32,
    owner: u64,
    counter: Remote,
    release: Remote,
) {
    let value = loop {
        let outputs = chain(&[take(locks, owner), Operation::Read { from: counter, len: 8 }]);
        let [Output::Atomic(found), Output::Read(bytes)] = &outputs[..] else { panic!("{outputs:?}") };
        if found & 0xffff == 0 {
            break u64::from_le_bytes(bytes[..].try_into().unwrap());
        }
        std::thread::yield_now();
    };
    let data = (value + 1).to_le_bytes();
    chain(&[Operation::Write { to: counter, data: &data }, Operation::Write { to: release, data: &[0; 2] }]);
}

fn perform<V: Verbs>(
    verbs: &mut V,
    queue_pair: fatbtree_verbs::QueuePair,
    operations: &[Operation<'_>],
    mut network: impl FnMut(&mut V),
) -> Vec<Output> {
    let request = |&operation: &_| WorkRequest { tag: 0, signalled: true, operation };
    let chain: Vec<WorkRequest<'_>> = operations.iter().map(request).collect();
    verbs.post(queue_pair, &chain).unwrap();
    let mut outputs = Vec::new();
    while outputs.len() < operations.len() {
        network(verbs);
        outputs.extend(verbs.poll().map(|completion| completion.result.unwrap()));
    }
    outputs
}

#[test]
fn nothing_is_carried_out_on_a_link_that_has_ended() {
    let host = LocalHost::new();
    let memory = Memory::shared(64).unwrap();
    host.share(Region { rkey: 7, iova: 0, len: 64 }, &memory, Access::ALL);
    let mut verbs = LocalVerbs::new(&host, &LocalVerbs::BUFFERS).unwrap();
    let queue_pair = verbs.create().unwrap();
    let remote = host.accept(&verbs.endpoint(queue_pair).unwrap()).unwrap();
    verbs.connect(queue_pair, &remote).unwrap();
    let at = Remote { address: 0, rkey: 7 };
    perform(&mut verbs, queue_pair, &[Operation::FetchAdd { at, add: 1 }], |_| {});
    assert!(host.disconnect(remote.queue_pair) && !host.disconnect(remote.queue_pair));
    let operation = Operation::FetchAdd { at, add: 1 };
    verbs.post(queue_pair, &[WorkRequest { tag: 0, signalled: true, operation }]).unwrap();
    assert!(verbs.poll().unwrap().result.is_err());
    assert_eq!(memory.update(0, |found| found).unwrap(), 1);
}
