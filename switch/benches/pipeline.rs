//! What a frame costs in one switch that runs the project's data plane, and what a table entry costs.
//!
//! `cargo bench -p fatbtree-switch`
#![allow(clippy::unwrap_used)] // a benchmark that cannot go on says so

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use fatbtree_switch::{ActionCall, Entry, MatchValue, Output, Pipeline, Program, TableRef};

const FATBTREE: &str = include_str!("../../p4/build/fatbtree_v1model.json");
/// Flags of the index header.
const CLIMBING: u64 = 1;
const INNER: u64 = 2;
const EXACT: fn(u64) -> MatchValue = MatchValue::Exact;
/// Ports that lead to a host, and to another switch.
const HOST: u16 = 1;
const TRUNK: u16 = 2;

fn insert(
    pipeline: &mut Pipeline,
    table: &str,
    priority: i32,
    key: &[MatchValue],
    action: &str,
    params: &[u64],
) {
    let reference = pipeline.program().table(table).unwrap();
    let action = pipeline.program().table_action(reference, action).unwrap();
    let entry = Entry::new(key.to_vec(), action, params.to_vec()).with_priority(priority);
    pipeline.insert(reference, &entry).unwrap();
}

/// A pipeline with the entries that every switch has.
fn routed(program: &Arc<Program>) -> Pipeline {
    let mut pipeline = Pipeline::new(program.clone());
    for host in 0..16 {
        let key = [MatchValue::Lpm { value: 0x0a01_0000 + host, prefix_len: 32 }];
        insert(&mut pipeline, "ingress.forwarding.ipv4_route", 0, &key, "ingress.forwarding.forward", &[4]);
    }
    for host in 0..16 {
        let (table, action) = ("ingress.host_port.neighbor", "ingress.host_port.host");
        insert(&mut pipeline, table, 0, &[EXACT(0x0a01_0000 + host)], action, &[0x0200_0000_0002, 511]);
    }
    for port in [2, 3] {
        insert(&mut pipeline, "ingress.trunks.trunk_port", 0, &[EXACT(port)], "ingress.trunks.trunk", &[]);
    }
    for (dscp, class) in [(26, 3), (48, 6)] {
        insert(&mut pipeline, "ingress.traffic_class", 0, &[EXACT(dscp)], "ingress.assign", &[class]);
    }
    let key = [MatchValue::Lpm { value: 0x0a00_0000, prefix_len: 24 }];
    insert(&mut pipeline, "ingress.forwarding.ipv4_route", 0, &key, "ingress.forwarding.forward", &[5]);
    let (table, action) = ("ingress.forwarding.partition_route", "ingress.forwarding.forward");
    insert(&mut pipeline, table, 0, &[EXACT(1)], action, &[6]);
    pipeline
}

/// Ethernet, IPv4, UDP, BTH and `rest`, with the index header `(flags, key)` if there is one.
fn frame(index: Option<(u64, u64)>, opcode: u8, rest: &[u8]) -> Vec<u8> {
    let mut udp = vec![0xc0, 1, 0x12, if index.is_some() { 0xb8 } else { 0xb7 }, 0, 0, 0, 0];
    if let Some((flags, key)) = index {
        udp.extend((4 << 56 | flags << 48 | 3 << 40 | 1 << 16).to_be_bytes());
        udp.extend(key.to_be_bytes());
    }
    udp.extend([opcode, 0, 0xff, 0xff, 0, 0, 0, 0x77, 0x80, 0, 0, 5]);
    udp.extend(rest);
    let length = udp.len() as u16;
    udp[4..6].copy_from_slice(&length.to_be_bytes());
    let mut ip = vec![0x45, 0];
    ip.extend((20 + length).to_be_bytes());
    let mark = if index.is_some() { 0x80 } else { 0x40 };
    ip.extend([0x12, 0x34, mark, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 1, 0, 1]);
    let sum: u32 = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0], ip.as_slice(), udp.as_slice()].concat()
}

/// RETH and ICRC of a READ request with this address and rkey.
fn reth(va: u64, rkey: u8) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&va.to_be_bytes());
    bytes[11] = rkey;
    bytes
}

fn bench(c: &mut Criterion, name: &str, pipeline: &mut Pipeline, frames: &[Vec<u8>]) {
    let mut out = Output::new();
    let mut next = frames.iter().cycle();
    c.bench_function(name, |b| {
        b.iter(|| {
            out.clear();
            let frame = black_box(next.next().unwrap());
            let port = if frame[20] & 0x80 == 0 { HOST } else { TRUNK };
            pipeline.process(0, port, frame, &mut out);
            assert_eq!(out.len(), 1);
        });
    });
}

fn frames(c: &mut Criterion) {
    let program = Program::load(FATBTREE).unwrap();
    let mut plain = routed(&program);
    bench(c, "frame/plain READ request, 74 bytes", &mut plain, &[frame(None, 12, &reth(0, 1))]);
    bench(c, "frame/plain READ response, 1 KB", &mut plain, &[frame(None, 16, &[0; 1028])]);
    bench(c, "frame/index packet, nothing cached", &mut plain, &[frame(Some((0, 5)), 12, &reth(0, 1))]);

    let mut first = routed(&program);
    let connect = |pipeline: &mut Pipeline, queue_pair: u64| {
        let key = [u64::from(HOST), 0x0200_0000_0001, 0x0a00_0001, 0x0a01_0001, queue_pair].map(EXACT);
        let (table, action) = ("ingress.first_hop.roce_connection", "ingress.first_hop.admit");
        insert(pipeline, table, 0, &key, action, &[9, 1, 64, 4792, 1024]);
    };
    connect(&mut first, 0x77);
    bench(c, "frame/first hop", &mut first, &[frame(None, 12, &reth(0, 0))]);
    (0x1000..0x1fff).for_each(|queue_pair| connect(&mut first, queue_pair));
    let of = |queue_pair: u32| {
        let mut frame = frame(None, 12, &reth(0, 0));
        // After Ethernet, IPv4 and UDP, at the BTH's sixth byte.
        frame[47..50].copy_from_slice(&queue_pair.to_be_bytes()[1..]);
        frame
    };
    let scattered: Vec<_> = (0..4095).map(|i| of(0x1000 + i * 1_664_525 % 4095)).collect();
    bench(c, "frame/first hop, 4096 connections", &mut first, &scattered);

    let mut last = routed(&program);
    insert(&mut last, "egress.last_hop.last_hop", 0, &[EXACT(6)], "egress.last_hop.strip", &[0xffff]);
    bench(c, "frame/last hop", &mut last, &[frame(Some((0, 5)), 12, &reth(0, 1))]);

    let mut node_set = routed(&program);
    // Nodes of 512 bytes one after the other, and so their children.
    for id in 1..=4096 {
        let mut put = |table: &str, key: &[u64], action: &str, params: &[u64]| {
            let key: Vec<_> = [3].iter().chain(key).copied().map(EXACT).collect();
            let name = |what: &str| format!("ingress.node_set_a.{what}");
            insert(&mut node_set, &name(table), 0, &key, &name(action), params);
        };
        let last_before = |branch: u64| id << 16 | (branch - 1);
        let [l1, l2, l3] = [4, 8, 12].map(last_before);
        put("coarse", &[id << 9], "quarter_by_high", &[l1, l2, l3, id, id << 13, 8, 0]);
        for quarter in 0..4 {
            let last = [1, 2, 3].map(|child| last_before(4 * quarter + child));
            put("fine", &[id, quarter], "child_by_high", &last);
        }
    }
    for branch in 0..16 {
        let (table, action) = ("ingress.node_set_a.run", "ingress.node_set_a.descend_by");
        insert(&mut node_set, table, 0, &[EXACT(8), EXACT(branch)], action, &[branch << 9]);
    }
    let ask = |id: u64| frame(Some((INNER, id << 48 | (id % 16) << 32 | 3)), 12, &reth(id << 9, 1));
    bench(c, "frame/node set hit, the same node", &mut node_set, &[ask(9)]);
    let scattered: Vec<_> = (0..4096).map(|i| ask(i * 1_664_525 % 4096 + 1)).collect();
    bench(c, "frame/node set hit, 4096 nodes", &mut node_set, &scattered);

    let mut core = routed(&program);
    let table = program.table("ingress.climb.core_route").unwrap();
    let action = program.table_action(table, "ingress.climb.descend").unwrap();
    core.set_default(table, Some(&ActionCall { action, params: vec![6, 20] })).unwrap();
    for slice in 0..256 {
        for stage in 0..4u64 {
            let key = [EXACT(20 + 2 * stage), MatchValue::Range { low: slice << 8, high: slice << 8 | 255 }];
            let table = format!("ingress.fat_root.fat_root_{stage}");
            let (action, params) = match stage {
                0 => ("second_slice", vec![22]),
                1 => ("third_slice", vec![24]),
                2 => ("last_slice", vec![26]),
                _ => ("land", vec![7, 1, 0]),
            };
            insert(&mut core, &table, 1, &key, &format!("ingress.fat_root.{action}_{stage}"), &params);
        }
    }
    let climbing = |i: u64| frame(Some((CLIMBING, i.wrapping_mul(0x9e37_79b9_7f4a_7c15))), 12, &reth(0, 1));
    bench(
        c,
        "frame/core, four stages of 256 ranges",
        &mut core,
        &(0..1024).map(climbing).collect::<Vec<_>>(),
    );
}

fn control(c: &mut Criterion) {
    let program = Program::load(FATBTREE).unwrap();
    // Not the text of a program that is held: that would be found, not loaded.
    let text = format!("{FATBTREE}\n");
    c.bench_function("control/load the program", |b| b.iter(|| Program::load(black_box(&text)).unwrap()));

    let exact = program.table("ingress.node_set_a.child").unwrap();
    let descend = program.table_action(exact, "ingress.node_set_a.descend_to").unwrap();
    let entries: Vec<Entry> = (0..65_536)
        .map(|i| Entry::new(vec![EXACT(1), EXACT(i >> 4), EXACT(i & 15)], descend, vec![i]))
        .collect();
    insert_all(c, "control/insert 65536 exact entries", &program, exact, &entries);

    let ranges = program.table("ingress.fat_root.fat_root_0").unwrap();
    let next = program.table_action(ranges, "ingress.fat_root.second_slice_0").unwrap();
    let entries: Vec<Entry> = (0..1024)
        .map(|i| {
            let key = vec![EXACT(20), MatchValue::Range { low: i << 6, high: i << 6 | 63 }];
            Entry::new(key, next, vec![1]).with_priority(1)
        })
        .collect();
    insert_all(c, "control/insert 1024 ranges", &program, ranges, &entries);
}

/// What it costs to fill an empty table.
fn insert_all(c: &mut Criterion, name: &str, program: &Arc<Program>, table: TableRef, entries: &[Entry]) {
    c.bench_function(name, |b| {
        b.iter_batched(
            || Pipeline::new(program.clone()),
            |mut pipeline| {
                entries.iter().for_each(|entry| pipeline.insert(table, entry).unwrap());
                pipeline
            },
            BatchSize::PerIteration,
        );
    });
}

criterion_group!(benches, frames, control);
criterion_main!(benches);
