//! Whatever arrives, the NIC does not panic, and what it says stays within the rules.
#![allow(clippy::unwrap_used)] // a test that unwraps nothing fails, as it should

mod common;

use common::{CLIENT, Pair, SERVER, endpoint};
use fatbtree_nic::{Access, CompletionStatus};
use fatbtree_wire::{Bth, Extension, Flow, Frame, HeaderTemplate, Opcode};
use proptest::prelude::*;

/// A frame from one side to the other with a right ICRC, near enough to what is expected to get deep.
#[derive(Clone, Debug)]
struct Forged {
    to_server: bool,
    opcode: u8,
    psn: i32,
    extension: [u8; 28],
    /// Whether the extension names the region, and where in it.
    aim: Option<(u16, u16)>,
    payload: usize,
    ack: bool,
}

fn forged() -> impl Strategy<Value = Forged> {
    let opcode = prop_oneof![9 => 0u8..0x18, 1 => any::<u8>()];
    let payload = prop_oneof![Just(0usize), Just(256), Just(1024), 0usize..1100];
    let aim = prop::option::weighted(0.7, (0u16..4200, prop_oneof![Just(8u16), Just(1024), 0..3000u16]));
    (any::<bool>(), opcode, -6i32..12, any::<[u8; 28]>(), aim, payload, any::<bool>()).prop_map(
        |(to_server, opcode, psn, extension, aim, payload, ack)| Forged {
            to_server,
            opcode,
            psn,
            extension,
            aim,
            payload,
            ack,
        },
    )
}

#[derive(Clone, Debug)]
enum Event {
    Bytes(bool, Vec<u8>),
    Forged(Forged),
    Read(u16, u16),
    Write(u16, u16),
    Add(u16),
    Steps(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (any::<bool>(), prop::collection::vec(any::<u8>(), 0..120)).prop_map(|(to, bytes)| Event::Bytes(to, bytes)),
        6 => forged().prop_map(Event::Forged),
        2 => (0u16..4200, 0u16..3000).prop_map(|(at, len)| Event::Read(at, len)),
        2 => (0u16..4200, 0u16..3000).prop_map(|(at, len)| Event::Write(at, len)),
        1 => (0u16..520).prop_map(|cell| Event::Add(cell * 8)),
        4 => (1u8..20).prop_map(Event::Steps),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_every_request_ends(events in prop::collection::vec(event(), 1..40)) {
        let mut pair = Pair::new(1);
        let region = pair.server.register_memory(0, vec![0; 4096], Access::ALL);
        let (qpn, rkey) = (pair.qpn, region.rkey);
        let mut posted = Vec::new();
        let mut frame = Vec::new();
        for (id, event) in events.into_iter().enumerate() {
            let id = id as u64;
            let now = pair.now;
            let result = match event {
                Event::Bytes(to_server, bytes) => {
                    if to_server { &mut pair.server } else { &mut pair.client }.handle_frame(now, &bytes);
                    continue;
                }
                Event::Forged(forged) => {
                    forge(&pair, &forged, rkey, &mut frame);
                    prop_assert!(Frame::parse(&frame).is_ok());
                    if forged.to_server { &mut pair.server } else { &mut pair.client }.handle_frame(now, &frame);
                    continue;
                }
                Event::Steps(steps) => {
                    for _ in 0..steps {
                        pair.step();
                    }
                    continue;
                }
                Event::Read(at, len) => pair.client.post_read(now, qpn, id, at.into(), rkey, len.into()),
                Event::Write(at, len) => {
                    pair.client.post_write(now, qpn, id, at.into(), rkey, &vec![1; len.into()])
                }
                Event::Add(at) => pair.client.post_fetch_add(now, qpn, id, at.into(), rkey, 1),
            };
            if result.is_ok() {
                posted.push(id);
            }
        }
        pair.drive();
        // Every request ended, in order, and after one that failed all are flushed.
        let completions = pair.completions();
        let ids: Vec<u64> = completions.iter().map(|completion| completion.wr_id).collect();
        prop_assert_eq!(ids, posted);
        let first_bad = completions.iter().position(|completion| completion.status != CompletionStatus::Success);
        if let Some(at) = first_bad {
            let errors = completions[at..]
                .iter()
                .filter(|completion| completion.status != CompletionStatus::WorkRequestFlushed)
                .count();
            prop_assert!(errors <= 1);
        }
        prop_assert_eq!(pair.client.poll_timeout(), None);
    }
}

fn forge(pair: &Pair, forged: &Forged, rkey: u32, out: &mut Vec<u8>) {
    let (from, to, qpn) =
        if forged.to_server { (CLIENT, SERVER, pair.peer) } else { (SERVER, CLIENT, pair.qpn) };
    let template = HeaderTemplate::new(&Flow {
        source_mac: from.0,
        destination_mac: to.0,
        source_ip: from.1,
        destination_ip: to.1,
        ..Flow::default()
    });
    // Both directions of the client's requests count in its PSNs.
    let psn = endpoint(&pair.client, pair.qpn).psn.wrapping_add_signed(forged.psn);
    let opcode = Opcode(forged.opcode);
    let bth = Bth { ack_request: forged.ack, ..Bth::new(opcode, qpn.0, psn) };
    let mut extension = Extension::parse(opcode, &forged.extension, 0).unwrap();
    if let Some((va, length)) = forged.aim {
        match &mut extension {
            Extension::Reth(reth) => (reth.va, reth.rkey, reth.length) = (va.into(), rkey, length.into()),
            Extension::Atomic(atomic) => (atomic.va, atomic.rkey) = (va.into(), rkey),
            Extension::Aeth(aeth) => aeth.syndrome.0 &= 0x7f,
            _ => {}
        }
    }
    template.emit(out, 1, &bth, &extension, &vec![9; forged.payload]);
}
