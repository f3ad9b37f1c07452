//! Random operations over a link that loses, doubles, damages and reorders frames, against a plain model of memory.
#![allow(clippy::unwrap_used)] // a test that unwraps nothing fails, as it should

mod common;

use common::{Faults, Pair, client_config, server_config};
use fatbtree_nic::{Access, CompletionStatus, Mtu, NicConfig, Operation, QueuePairOptions, QueuePairState};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::{BTreeSet, VecDeque};

const LEN: usize = 12_000;
const IOVA: u64 = 5 << 48;

/// What an operation must answer, noted when it was posted.
enum Expect {
    /// Start, and per byte what may be read: what was there when the READ was posted, and whatever is written until it completes (a READ
    /// that is sent again may see later WRITEs).
    Read {
        start: usize,
        allowed: Vec<BTreeSet<u8>>,
    },
    Write,
    Atomic {
        original: u64,
    },
}

struct Model {
    memory: Vec<u8>,
    /// Oldest first, as they must complete.
    pending: VecDeque<(u64, Expect)>,
}

impl Model {
    fn write(&mut self, start: usize, data: &[u8]) {
        self.memory[start..start + data.len()].copy_from_slice(data);
        for (_, expect) in &mut self.pending {
            if let Expect::Read { start: read, allowed } = expect {
                for (i, &byte) in data.iter().enumerate() {
                    if let Some(set) = (start + i).checked_sub(*read).and_then(|at| allowed.get_mut(at)) {
                        set.insert(byte);
                    }
                }
            }
        }
    }

    fn atomic(&mut self, start: usize, change: impl FnOnce(u64) -> u64) -> u64 {
        let original = u64::from_le_bytes(self.memory[start..start + 8].try_into().unwrap());
        self.write(start, &change(original).to_le_bytes());
        original
    }
}

fn run(seed: u64, faults: Faults, operations: u64) -> Pair {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xabcd);
    let mut below = |n: u32| rng.next_u32() % n;
    let mtus = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let client = NicConfig {
        mtu: mtus[below(5) as usize],
        retry_count: 100,
        max_outstanding_reads: 1 + below(16) as usize,
        ..client_config()
    };
    let server = NicConfig { max_outstanding_reads: 1 + below(16) as usize, ..server_config() };
    // Half of the runs cross the end of the PSN space.
    let psn = (below(2) == 0).then(|| 0xff_ffff - below(200));
    let mut pair = Pair::with(seed, client, server, QueuePairOptions { psn, ..Default::default() }, faults);
    let region = pair.server.register_memory(IOVA, vec![0; LEN], Access::ALL);
    let mut model = Model { memory: vec![0; LEN], pending: VecDeque::new() };
    let (qpn, rkey) = (pair.qpn, region.rkey);
    let window = 1 + below(20) as usize;

    let mut posted = 0;
    while posted < operations || !model.pending.is_empty() {
        if posted < operations && model.pending.len() < window && below(3) > 0 {
            let len = if below(4) == 0 { below(9_000) } else { below(300) } as usize;
            let start = below((LEN - len) as u32) as usize;
            let (cell, id, now) = (start & !7, posted, pair.now);
            let va = IOVA + start as u64;
            let expect = match below(8) {
                0..3 => {
                    pair.client.post_read(now, qpn, id, va, rkey, len as u32).unwrap();
                    let allowed =
                        model.memory[start..start + len].iter().map(|&byte| BTreeSet::from([byte])).collect();
                    Expect::Read { start, allowed }
                }
                3..6 => {
                    let data: Vec<u8> = (0..len).map(|_| below(256) as u8).collect();
                    pair.client.post_write(now, qpn, id, va, rkey, &data).unwrap();
                    model.write(start, &data);
                    Expect::Write
                }
                6 => {
                    pair.client.post_fetch_add(now, qpn, id, IOVA + cell as u64, rkey, 3).unwrap();
                    Expect::Atomic { original: model.atomic(cell, |old| old.wrapping_add(3)) }
                }
                _ => {
                    let here = u64::from_le_bytes(model.memory[cell..cell + 8].try_into().unwrap());
                    let compare = if below(2) == 0 { here } else { 1 };
                    pair.client
                        .post_compare_swap(now, qpn, id, IOVA + cell as u64, rkey, compare, id)
                        .unwrap();
                    let original = model.atomic(cell, |old| if old == compare { id } else { old });
                    Expect::Atomic { original }
                }
            };
            model.pending.push_back((id, expect));
            posted += 1;
        } else {
            let busy = pair.step();
            let may_post = posted < operations && model.pending.len() < window;
            assert!(busy || may_post, "seed {seed}, {faults:?}: stuck with {} pending", model.pending.len());
        }
        for completion in pair.completions() {
            let (id, expect) = model.pending.pop_front().expect("nothing else was posted");
            let context = format!("seed {seed}, {faults:?}, operation {id}");
            assert_eq!((completion.wr_id, completion.status), (id, CompletionStatus::Success), "{context}");
            match expect {
                Expect::Write => assert_eq!(completion.operation, Operation::Write, "{context}"),
                Expect::Atomic { original } => assert_eq!(completion.original, original, "{context}"),
                Expect::Read { allowed, .. } => {
                    assert_eq!(completion.data.len(), allowed.len(), "{context}");
                    for (at, (byte, allowed)) in completion.data.iter().zip(&allowed).enumerate() {
                        assert!(allowed.contains(byte), "{context}: byte {at} is {byte}, not in {allowed:?}");
                    }
                }
            }
            pair.client.recycle(completion.data);
        }
    }
    pair.drive();
    assert_eq!(pair.server.memory(rkey).unwrap(), model.memory, "seed {seed}, {faults:?}");
    assert_eq!(pair.client.poll_timeout(), None, "an idle NIC has no deadline");
    assert_eq!(pair.client.state(qpn), Some(QueuePairState::ReadyToSend));
    pair
}

#[test]
fn a_perfect_link_needs_no_retransmission() {
    for seed in 0..40 {
        let pair = run(seed, Faults::default(), 100);
        assert_eq!(pair.client.stats().retransmissions, 0, "seed {seed}");
        assert_eq!(pair.client.stats().dropped_total(), 0, "seed {seed}: {}", pair.client.stats());
        assert_eq!(pair.server.stats().dropped_total(), 0, "seed {seed}: {}", pair.server.stats());
    }
}

#[test]
fn every_operation_completes_right_over_bad_links() {
    let (mut timeouts, mut duplicates, mut retransmissions) = (0, 0, 0);
    for seed in 0..150 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut up_to = |n: u32| if rng.next_u32() % 3 == 0 { 0 } else { rng.next_u32() % n };
        let faults =
            Faults { drop: up_to(200), duplicate: up_to(200), corrupt: up_to(100), reorder: up_to(300) };
        let pair = run(seed, faults, 60);
        timeouts += pair.client.stats().timeouts;
        retransmissions += pair.client.stats().retransmissions;
        duplicates += pair.server.stats().duplicate_requests;
    }
    // The faults must have done their work, or this test shows nothing.
    assert!(timeouts > 100 && duplicates > 1000 && retransmissions > timeouts, "{timeouts}, {duplicates}");
}

/// One seed, one sequence of calls: the same frames, bit for bit.
#[test]
fn runs_repeat() {
    let faults = Faults { drop: 100, duplicate: 50, corrupt: 50, reorder: 100 };
    let (a, b) = (run(7, faults, 100), run(7, faults, 100));
    assert_eq!(a.now, b.now);
    assert_eq!(a.client.stats(), b.client.stats());
    assert_eq!(a.server.stats(), b.server.stats());
}
