//! Whatever arrives, the NIC does not panic, and what it says and keeps stays within the rules.
use crate::common;

use common::{End, Pair, drain, fetch_add, read, write};
use fatbtree_soft_nic::QueuePairOptions;
use fatbtree_verbs::{
    Access, Completion, Device, Failure, Memory, Operation, Output, Remote, Verbs, WorkRequest,
};
use fatbtree_wire::{Extension, Frame, Opcode};
use proptest::prelude::*;

/// A frame from one side to the other with a right ICRC, near enough to what is expected to get deep.
#[derive(Clone, Debug)]
struct Forged {
    to: End,
    opcode: u8,
    psn: i32,
    extension: Vec<u8>,
    /// Whether the extension names the region, and where in it.
    aim: Option<(u16, u32)>,
    payload: usize,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Client), Just(End::Server)]
}

fn forged() -> impl Strategy<Value = Forged> {
    let opcode = prop_oneof![9 => 0u8..0x18, 2 => 0xd3u8..0xd5, 1 => any::<u8>()];
    let payload = prop_oneof![4 => Just(0usize), 1 => Just(256), 2 => Just(1024), 2 => 0usize..1100];
    let length = prop_oneof![Just(8u32), Just(1024), 0..3000u32, Just(1 << 31), any::<u32>()];
    let va = prop_oneof![2 => 0u16..4200, 1 => (0u16..520).prop_map(|cell| cell * 8)];
    let aim = prop::option::weighted(0.8, (va, length));
    let extension = prop::collection::vec(any::<u8>(), Extension::MAX_LEN);
    (end(), opcode, -6i32..12, extension, aim, payload).prop_map(
        |(to, opcode, psn, extension, aim, payload)| Forged { to, opcode, psn, extension, aim, payload },
    )
}

#[derive(Clone, Debug)]
enum Event {
    Bytes(End, Vec<u8>),
    Forged(Forged),
    Post {
        signalled: bool,
        operation: Posted,
    },
    Steps(u8),
    /// The client's queue pair is replaced by a new one, and the server's, if it is told.
    Reconnect {
        tells: bool,
    },
    /// The server's region goes, and comes back under another key.
    Reregister,
}

#[derive(Clone, Debug)]
enum Posted {
    Read(u16, u16),
    Write(u16, u16),
    Add(u16),
    MaskedSwap(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let posted = prop_oneof![
        2 => (0u16..4200, 0u16..3000).prop_map(|(at, len)| Posted::Read(at, len)),
        2 => (0u16..4200, 0u16..3000).prop_map(|(at, len)| Posted::Write(at, len)),
        1 => (0u16..520).prop_map(|cell| Posted::Add(cell * 8)),
        1 => (0u16..520).prop_map(|cell| Posted::MaskedSwap(cell * 8)),
    ];
    prop_oneof![
        2 => (end(), prop::collection::vec(any::<u8>(), 0..120)).prop_map(|(to, bytes)| Event::Bytes(to, bytes)),
        24 => forged().prop_map(Event::Forged),
        12 => (any::<bool>(), posted).prop_map(|(signalled, operation)| Event::Post { signalled, operation }),
        10 => (1u8..20).prop_map(Event::Steps),
        1 => any::<bool>().prop_map(|tells| Event::Reconnect { tells }),
        1 => Just(Event::Reregister),
    ]
}

/// Requests that were posted on the present queue pair.
#[derive(Default)]
struct Ledger {
    /// Tag, whether signalled, and the length that a READ must bring.
    posted: Vec<(u64, bool, Option<usize>)>,
}

impl Ledger {
    /// Every signalled request ended once and in order; one failure at most is not a flush, and from the first on requests that
    /// are not signalled speak up, too, unless the queue pair was destroyed.
    fn check(&self, completions: &[Completion], destroyed: bool) -> Result<(), TestCaseError> {
        let mut completions = completions.iter().peekable();
        let (mut failed, mut reasons) = (false, 0);
        for &(tag, signalled, length) in &self.posted {
            let Some(completion) = completions.next_if(|completion| completion.tag == tag) else {
                prop_assert!(!signalled && (!failed || destroyed), "request {} has not ended", tag);
                continue;
            };
            match &completion.result {
                Ok(output) => {
                    prop_assert!(signalled && !failed, "request {}: {:?}", tag, output);
                    if let Output::Read(bytes) = output {
                        prop_assert_eq!(Some(bytes.len()), length);
                    }
                }
                Err(failure) => {
                    failed = true;
                    reasons += u32::from(*failure != Failure::Flushed);
                }
            }
        }
        prop_assert!(reasons <= 1, "{:?}", completions);
        prop_assert!(completions.next().is_none(), "more completions than requests");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_every_request_ends(events in prop::collection::vec(event(), 1..60)) {
        let mut pair = Pair::new(1);
        let (memory, mut region) = pair.register(&[0; 4096], 0, Access::ALL);
        // No peer has rights to this region.
        let (forbidden, _) = pair.register(&[7; 4096], 0, Access::NONE);
        let buffers = pair.client.buffers().free();
        let mut ledger = Ledger::default();
        for (event, tag) in events.into_iter().zip(0..) {
            let now = pair.now;
            match event {
                Event::Bytes(End::Server, bytes) => pair.server.handle_frame(now, &bytes),
                Event::Bytes(End::Client, bytes) => pair.client.handle_frame(now, &bytes),
                Event::Forged(forged) => forge(&mut pair, &forged, region.rkey),
                Event::Steps(steps) => {
                    for _ in 0..steps {
                        pair.step();
                    }
                }
                Event::Post { signalled, operation } => {
                    let at = |address: u16| Remote { address: address.into(), rkey: region.rkey };
                    let data;
                    let mut length = None;
                    let operation = match operation {
                        Posted::Read(address, len) => {
                            length = Some(usize::from(len));
                            read(address.into(), region.rkey, len.into())
                        }
                        Posted::Write(address, len) => {
                            data = vec![1; len.into()];
                            write(address.into(), region.rkey, &data)
                        }
                        Posted::Add(address) => fetch_add(address.into(), region.rkey, 1),
                        Posted::MaskedSwap(address) => Operation::MaskedCompareSwap {
                            at: at(address),
                            compare: 0,
                            compare_mask: 0xff,
                            swap: tag,
                            swap_mask: 0xff,
                        },
                    };
                    if pair.client.post(pair.queue_pair, &[WorkRequest { tag, signalled, operation }]).is_ok() {
                        ledger.posted.push((tag, signalled, length));
                    }
                }
                Event::Reconnect { tells } => {
                    pair.client.destroy(pair.queue_pair);
                    ledger.check(&pair.completions(), true)?;
                    ledger = Ledger::default();
                    if tells {
                        pair.server.destroy(pair.peer);
                    }
                    (pair.queue_pair, pair.peer) =
                        common::connect(&mut pair.client, &mut pair.server, QueuePairOptions::default());
                }
                Event::Reregister => {
                    pair.server.deregister(region.rkey);
                    region = pair.server.register(&memory, 0, Access::ALL).unwrap();
                }
            }
        }
        pair.drive();
        let completions = pair.completions();
        ledger.check(&completions, false)?;
        drop(completions);
        prop_assert_eq!(pair.client.poll_timeout(), None);
        prop_assert_eq!(pair.client.buffers().free(), buffers);
        prop_assert!(contents(&forbidden) == vec![7; 4096], "memory was written without the right");
    }

    /// A peer that only asks, and never takes an answer, for as long as it likes.
    #[test]
    fn what_waits_is_bounded(frames in prop::collection::vec(forged(), 100..400)) {
        let mut pair = Pair::new(1);
        let (_, region) = pair.register(&[0; 4096], 0, Access::ALL);
        // As far as it got: frames in order get deep.
        let mut executed = 0;
        for mut forged in frames {
            forged.to = End::Server;
            forged.psn = executed + forged.psn.min(0) % 3;
            let before = pair.server.stats().requests_executed;
            forge(&mut pair, &forged, region.rkey);
            if pair.server.stats().requests_executed > before {
                let packets = match (Opcode(forged.opcode), forged.aim) {
                    (Opcode::RC_RDMA_READ_REQUEST, Some((_, length))) => length.div_ceil(1024).max(1),
                    _ => 1,
                };
                executed += packets as i32;
            }
        }
        let answers = drain(&mut pair.server, pair.now);
        let others = answers.iter().filter(|frame| !Frame::parse(frame).unwrap().bth.opcode.is_read_response());
        prop_assert!(others.count() <= 2 * 16 + 32);
        // A READ of the whole region has 4 packets.
        prop_assert!(answers.len() <= 4 * (2 * 16 + 32));
        prop_assert_eq!(pair.server.poll_timeout(), None);
    }
}

fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

fn forge(pair: &mut Pair, forged: &Forged, rkey: u32) {
    // Both directions of the client's requests count in its PSNs.
    let psn = pair.first_psn().wrapping_add_signed(forged.psn);
    let opcode = Opcode(forged.opcode);
    let mut extension = Extension::parse(opcode, &forged.extension, 0).unwrap();
    if let Some((va, length)) = forged.aim {
        match &mut extension {
            Extension::Reth(reth) => (reth.va, reth.rkey, reth.length) = (va.into(), rkey, length),
            Extension::Atomic(atomic) | Extension::MaskedAtomic(atomic, _) => {
                (atomic.va, atomic.rkey) = (va.into(), rkey);
            }
            Extension::Aeth(aeth) | Extension::AethAtomicAck(aeth, _) => aeth.syndrome.0 &= 0x7f,
            _ => {}
        }
    }
    let Ok(_) = pair.server.endpoint(pair.peer) else { return };
    let frame = pair.forge(forged.to, opcode, psn, extension, &vec![9; forged.payload]);
    assert!(Frame::parse(&frame).is_ok());
    match forged.to {
        End::Server => pair.server.handle_frame(pair.now, &frame),
        End::Client => pair.client.handle_frame(pair.now, &frame),
    }
}
