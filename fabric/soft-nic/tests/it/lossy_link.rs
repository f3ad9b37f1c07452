//! Random operations over a link that loses, doubles, damages and reorders frames, against a plain model of memory.
use crate::common;

use common::{Pair, client_config, read, server_config, write};
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_soft_nic::{NicConfig, QueuePairOptions};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Device, Mtu, Operation, Output, QueuePairState, Remote, Verbs, WorkRequest};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::{BTreeSet, VecDeque};

const LEN: usize = 12_000;
const IOVA: u64 = 5 << 48;

/// Expected answer of an operation, noted when it was posted.
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
    /// Not signalled: nothing is said of it.
    Silence,
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

    fn word(&self, start: usize) -> u64 {
        u64::from_le_bytes(self.memory[start..start + 8].try_into().unwrap())
    }

    fn atomic(&mut self, start: usize, operation: &Operation<'_>) -> Expect {
        let original = self.word(start);
        self.write(start, &operation.apply(original).unwrap().to_le_bytes());
        Expect::Atomic { original }
    }
}

fn run(seed: u64, rates: FaultRates, operations: u64) -> Pair {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xabcd);
    let mut below = |n: u32| rng.next_u32() % n;
    let mtus = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let client = NicConfig {
        mtu: mtus[below(5) as usize],
        retry_count: 100,
        initiator_reads: 1 + below(16) as u8,
        ..client_config()
    };
    let server = NicConfig { responder_reads: 1 + below(16) as u8, ..server_config() };
    // Half of the runs cross the end of the PSN space.
    let psn = (below(2) == 0).then(|| 0xff_ffff - below(200));
    let mut pair = Pair::with(seed, client, server, QueuePairOptions { psn, ..Default::default() }, rates);
    let (memory, region) = pair.register(&[0; LEN], IOVA, Access::ALL);
    let mut model = Model { memory: vec![0; LEN], pending: VecDeque::new() };
    let (rkey, buffers) = (region.rkey, pair.client.buffers().free());
    let window = 1 + below(20) as usize;

    let mut posted = 0;
    while posted < operations || !model.pending.is_empty() {
        if posted < operations && model.pending.len() < window && below(3) > 0 {
            let len = if below(4) == 0 { below(9_000) } else { below(300) } as usize;
            let start = below((LEN - len) as u32) as usize;
            let (cell, tag) = ((start & !7).min(LEN - 8), posted);
            let at = Remote { address: IOVA + cell as u64, rkey };
            let mut data = Vec::new();
            let kind = below(10);
            if (3..6).contains(&kind) {
                data.extend((0..len).map(|_| below(256) as u8));
            }
            let here = model.word(cell);
            let compare = if below(2) == 0 { here } else { 1 };
            let operation = match kind {
                0..3 => read(IOVA + start as u64, rkey, len as u32),
                3..6 => write(IOVA + start as u64, rkey, &data),
                6 => Operation::FetchAdd { at, add: 3 },
                7 => Operation::CompareSwap { at, compare, swap: tag },
                8 => Operation::MaskedFetchAdd { at, add: 0xfff1_fff1, boundary: 0x8000_8000_8000_8000 },
                _ => Operation::MaskedCompareSwap {
                    at,
                    compare,
                    compare_mask: 0xffff_0000,
                    swap: !tag,
                    swap_mask: 0xff00,
                },
            };
            // The last request must be signalled, or the test cannot tell when the run is over.
            let signalled = below(4) > 0 || posted + 1 == operations;
            let queue_pair = pair.queue_pair;
            pair.client.post(queue_pair, &[WorkRequest { tag, signalled, operation }]).unwrap();
            let expect = match operation {
                Operation::Read { .. } => {
                    let there = &model.memory[start..start + len];
                    Expect::Read {
                        start,
                        allowed: there.iter().map(|&byte| BTreeSet::from([byte])).collect(),
                    }
                }
                Operation::Write { .. } => {
                    model.write(start, &data);
                    Expect::Write
                }
                _ => model.atomic(cell, &operation),
            };
            model.pending.push_back((tag, if signalled { expect } else { Expect::Silence }));
            posted += 1;
        } else {
            let busy = pair.step();
            let may_post = posted < operations && model.pending.len() < window;
            let silent = model.pending.iter().all(|(_, expect)| matches!(expect, Expect::Silence));
            assert!(busy || may_post || silent, "seed {seed}, {rates:?}: stuck with {}", model.pending.len());
            if !busy && silent {
                model.pending.clear();
            }
        }
        for completion in pair.completions() {
            while let Some((_, Expect::Silence)) = model.pending.front() {
                model.pending.pop_front();
            }
            let (tag, expect) = model.pending.pop_front().expect("nothing else was posted");
            let context = format!("seed {seed}, {rates:?}, operation {tag}");
            assert_eq!(completion.tag, tag, "{context}");
            match (expect, completion.result) {
                (Expect::Write, Ok(Output::Written)) => {}
                (Expect::Atomic { original }, Ok(Output::Atomic(found))) => {
                    assert_eq!(found, original, "{context}");
                }
                (Expect::Read { allowed, .. }, Ok(Output::Read(bytes))) => {
                    assert_eq!(bytes.len(), allowed.len(), "{context}");
                    for (at, (byte, allowed)) in bytes.iter().zip(&allowed).enumerate() {
                        assert!(allowed.contains(byte), "{context}: byte {at} is {byte}, not in {allowed:?}");
                    }
                }
                (_, result) => panic!("{context}: {result:?}"),
            }
        }
    }
    pair.drive();
    let mut found = vec![0; LEN];
    memory.read(0, &mut found).unwrap();
    assert_eq!(found, model.memory, "seed {seed}, {rates:?}");
    assert_eq!(pair.client.poll_timeout(), None, "an idle NIC has no deadline");
    assert_eq!(pair.client.state(pair.queue_pair), Some(QueuePairState::ReadyToSend));
    let pool = pair.client.buffers();
    assert_eq!(pool.free(), buffers, "seed {seed}: buffers are lost: {pool:?}");
    pair
}

#[test]
fn a_perfect_link_needs_no_retransmission() {
    for seed in 0..40 {
        let pair = run(seed, FaultRates::NONE, 100);
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
        let mut up_to =
            |n: u32| if rng.next_u32().is_multiple_of(3) { 0 } else { (rng.next_u32() % n) as u16 };
        let rates = FaultRates {
            drop: up_to(2_000),
            duplicate: up_to(2_000),
            corrupt: up_to(1_000),
            delay: up_to(3_000),
            longest_delay: Duration::from_micros(300),
        };
        let pair = run(seed, rates, 60);
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
    let rates = FaultRates {
        drop: 1_000,
        duplicate: 500,
        corrupt: 500,
        delay: 1_000,
        longest_delay: Duration::from_micros(300),
    };
    let (a, b) = (run(7, rates, 100), run(7, rates, 100));
    assert_eq!(a.now, b.now);
    assert_eq!(a.client.stats(), b.client.stats());
    assert_eq!(a.server.stats(), b.server.stats());
    assert_eq!(a.link.faults().counts, b.link.faults().counts);
}
