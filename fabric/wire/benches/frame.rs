//! Building and parsing frames, ICRC included: `cargo bench -p fatbtree-wire`.
#![allow(missing_docs)] // criterion's macros make undocumented functions

use criterion::{Criterion, criterion_group, criterion_main};
use fatbtree_wire::{Aeth, Bth, Extension, Flow, Frame, HeaderTemplate, Opcode, Reth, Syndrome, hops};
use std::hint::black_box;

fn frames(c: &mut Criterion) {
    let template = HeaderTemplate::new(&Flow::default());
    let mut out = Vec::new();

    let request = Bth { ack_request: true, ..Bth::new(Opcode::RC_RDMA_READ_REQUEST, 17, 1) };
    let reth = Extension::Reth(Reth { va: 1 << 40, rkey: 7, length: 1024 });
    c.bench_function("build READ request, 74 bytes", |b| {
        b.iter(|| template.emit(&mut out, 1, black_box(&request), black_box(&reth), &[]))
    });
    c.bench_function("parse and verify READ request, 74 bytes", |b| {
        b.iter(|| verify(black_box(&out)));
    });

    let response = Bth::new(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 17, 1);
    let aeth = Extension::Aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    let node = [0xa5; 1024];
    c.bench_function("build READ response, 1 KB", |b| {
        b.iter(|| template.emit(&mut out, 1, black_box(&response), black_box(&aeth), black_box(&node)))
    });
    c.bench_function("parse and verify READ response, 1 KB", |b| {
        b.iter(|| verify(black_box(&out)));
    });

    let reth = Extension::Reth(Reth { va: 1 << 40, rkey: 0, length: 1024 });
    template.emit(&mut out, 1, &request, &reth, &[]);
    hops::admit(&mut out, &Default::default(), 1 << 48, 7);
    c.bench_function("parse and verify index read in flight, 90 bytes", |b| {
        b.iter(|| verify(black_box(&out)));
    });
}

fn verify(frame: &[u8]) {
    let frame = Frame::parse(frame).expect("a good frame");
    assert_eq!(frame.icrc, frame.expected_icrc());
    black_box(frame);
}

criterion_group!(benches, frames);
criterion_main!(benches);
