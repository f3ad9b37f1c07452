//! Packets that are damaged in flight are dropped, and packets that no switch has admitted are refused.

use crate::common;

use common::{Bench, NOW, Setup, index_read};
use fatbtree_controller::Budget;
use fatbtree_topology::Peer;
use fatbtree_verbs::{Failure, Verbs};
use fatbtree_wire::{Extension, Frame};

fn setup(registered: bool, loaded: bool) -> Setup {
    Setup {
        keys: (0..5_000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect(),
        servers: 4,
        // Few ranges and small sets, so that every hop has a part of the walk.
        budget: loaded.then(|| Budget {
            fat_root_ranges: 8,
            set_nodes: [3, 5, 20, 50, 50, 50, 50, 50, 50, 50],
            ..Budget::bmv2()
        }),
        registered,
    }
}

#[test]
fn a_bit_flipped_between_first_and_last_hop_is_dropped_by_the_server() {
    let mut bench = Bench::new(&setup(true, true));
    let key = *setup(true, true).keys.iter().nth(2_345).unwrap();
    let frame = bench.index_read(key);
    let hops = bench.hops(bench.client_host, &frame);
    assert_eq!(hops.len(), 5, "edge, aggregation, core, aggregation, edge");
    let Peer::Host(home) = hops[4].at else { panic!("it does not arrive") };

    // The intact frame is answered; otherwise this test would prove nothing.
    bench.server_at(home).device_mut().handle_frame(NOW, &hops[4].frame);
    let mut answer = Vec::new();
    assert!(bench.server_at(home).device_mut().poll_transmit(NOW, &mut answer));

    let (mut flips, mut mended) = (0, 0);
    for hop in &hops[..4] {
        let Peer::Switch { switch, port } = hop.at else { panic!("a host in the middle") };
        for bit in 0..hop.frame.len() * 8 {
            let mut damaged = hop.frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (mut switch, mut port) = (switch, port);
            let mut steps = 0;
            let arrived = loop {
                steps += 1;
                assert!(steps < 20, "bit {bit}: the frame goes round in circles");
                let Some(passing) = bench.hop(switch.0, port, &damaged) else { break None };
                damaged = passing.frame;
                match passing.at {
                    Peer::Switch { switch: next, port: next_port } => (switch, port) = (next, next_port),
                    Peer::Host(host) => break Some(host),
                }
            };
            flips += 1;
            if bit / 8 < 6 {
                // The destination's MAC address: the last switch writes it anew, and no other one looks at it.
                mended += 1;
                assert_eq!(arrived, Some(home), "bit {bit} after {:?}: elsewhere", hop.at);
                assert_eq!(damaged, hops[4].frame, "bit {bit} after {:?}: not mended", hop.at);
                continue;
            }
            let Some(host) = arrived else { continue };
            if !bench.server_hosts.contains(&host) {
                continue; // at a host that is no memory server
            }
            let nic = bench.server_at(host).device_mut();
            let dropped = nic.stats().dropped_total();
            nic.handle_frame(NOW, &damaged);
            let mut answer = Vec::new();
            assert!(!nic.poll_transmit(NOW, &mut answer), "bit {bit} after {:?}: answered", hop.at);
            assert_eq!(nic.stats().dropped_total(), dropped + 1, "bit {bit} after {:?}: not dropped", hop.at);
        }
    }
    assert_eq!((flips, mended), (4 * 90 * 8, 4 * 6 * 8));
}

#[test]
fn a_registered_clients_index_read_arrives_with_a_real_rkey_whatever_is_loaded() {
    for loaded in [false, true] {
        let mut bench = Bench::new(&setup(true, loaded));
        for key in [0, 1, u64::MAX, 1 << 63, 0x1234] {
            let frame = bench.index_read(key);
            let hops = bench.hops(bench.client_host, &frame);
            let last = hops.last().unwrap();
            assert!(matches!(last.at, Peer::Host(_)));
            let Extension::Reth(reth) = Frame::parse(&last.frame).unwrap().extension else {
                panic!("no READ")
            };
            assert_ne!(reth.rkey, 0);
            if !loaded {
                assert_eq!(
                    reth.va,
                    bench.roots.partition_of(key).root.raw(),
                    "nothing loaded: the partition's root"
                );
            }
        }
    }
}

#[test]
fn an_unregistered_index_read_is_refused_and_breaks_the_queue_pair() {
    let mut bench = Bench::new(&setup(false, true));
    let frame = bench.index_read(42);
    let hops = bench.hops(bench.client_host, &frame);
    let last = hops.last().unwrap();
    let Peer::Host(host) = last.at else { panic!("it passes to the server") };
    let Extension::Reth(reth) = Frame::parse(&last.frame).unwrap().extension else { panic!("no READ") };
    assert_eq!((reth.va, reth.rkey), (42, 0), "it passes unchanged");

    let nic = bench.server_at(host).device_mut();
    nic.handle_frame(NOW, &last.frame);
    let mut nak = Vec::new();
    assert!(nic.poll_transmit(NOW, &mut nak));
    let back = bench.hops(host, &nak);
    bench.client.handle_frame(NOW, &back.last().unwrap().frame);
    let completion = bench.client.poll().expect("the client is told");
    assert_eq!(completion.result.err(), Some(Failure::RemoteAccess));

    let queue_pair = bench.queue_pairs[usize::from(bench.roots.partition_of(42).id)];
    assert!(bench.client.post(queue_pair, &[index_read(1)]).is_err(), "the queue pair is in the error state");
}
