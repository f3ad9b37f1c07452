/* Headers that come and go: a tunnel header pushed in ingress and popped in egress, a header copied whole, hashes,
 * registers, truncation, exit. */
#include <core.p4>
#include <v1model.p4>

header outer_t { bit<16> type; bit<16> flow; }
header inner_t { bit<8> op; bit<24> a; bit<32> b; bit<128> wide; }
header tail_t { bit<8> note; }
struct headers_t { outer_t outer; inner_t inner; inner_t twin; tail_t tail; }
struct metadata_t { bit<32> hash; bit<16> small; bit<64> sum; }

const bit<8> PLAIN = 0;
const bit<8> PUSH = 1;
const bit<8> TWIN = 2;
const bit<8> HASH = 3;
const bit<8> COUNT = 4;
const bit<8> CUT = 5;
const bit<8> EXIT = 6;
const bit<8> SWAP = 7;
const bit<8> GROUP = 8;
const bit<8> RENEW = 9;
const bit<8> LENGTH = 10;
const bit<8> ZERO = 11;
const bit<8> SHED = 12;

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        transition select(packet.lookahead<bit<16>>()) { 0xffff: outer; default: inner; }
    }
    state outer { packet.extract(hdr.outer); transition inner; }
    state inner {
        packet.extract(hdr.inner);
        transition select(hdr.inner.op) { SWAP: tail; default: accept; }
    }
    state tail { packet.extract(hdr.tail); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(8) seen;
    counter(2, CounterType.packets_and_bytes) done;
    action push(bit<16> flow) {
        hdr.outer.setValid();
        hdr.outer.type = 0xffff;
        hdr.outer.flow = flow;
    }
    table flows {
        key = { hdr.inner.a : exact; }
        actions = { push; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    apply {
        standard.egress_spec = 2;
        if (hdr.inner.op == EXIT) { standard.egress_spec = 3; exit; }
        if (hdr.inner.op == PUSH) { flows.apply(); }
        else if (hdr.inner.op == TWIN) {
            hdr.twin = hdr.inner;
            hdr.twin.b = ~hdr.inner.b;
        } else if (hdr.inner.op == HASH) {
            hash(meta.hash, HashAlgorithm.crc32, 32w0, { hdr.inner.a, hdr.inner.b, 8w7 }, 64w0x100000000);
            hdr.inner.b = meta.hash;
            hash(meta.small, HashAlgorithm.crc16, 16w10, { hdr.inner.a }, 16w100);
            hdr.inner.a = (bit<24>)meta.small;
        } else if (hdr.inner.op == COUNT) {
            bit<32> value;
            seen.read(value, hdr.inner.b);
            value = value + 1;
            seen.write(hdr.inner.b, value);
            hdr.inner.b = value;
        } else if (hdr.inner.op == CUT) { truncate(10); }
        else if (hdr.inner.op == SWAP) {
            hdr.tail.setInvalid();
            hdr.tail.setValid();
            hdr.tail.note = hdr.inner.a[7:0] |+| 8w200;
            meta.sum = (bit<64>)hdr.inner.b << hdr.inner.a[5:0];
            hdr.inner.b = meta.sum[63:32];
        } else if (hdr.inner.op == RENEW) {
            hdr.inner.setInvalid();
            hdr.inner.setValid();
            hdr.inner.op = RENEW;
        } else if (hdr.inner.op == LENGTH) {
            hdr.outer.setValid();
            hdr.outer.type = 0xffff;
        } else if (hdr.inner.op == ZERO) {
            hash(meta.small, HashAlgorithm.crc16, 16w10, { hdr.inner.a }, 16w0);
            hdr.inner.a = (bit<24>)meta.small;
        } else if (hdr.inner.op == GROUP) { standard.mcast_grp = (bit<16>)hdr.inner.a; }
        done.count(1);
    }
}
control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.inner.op == PLAIN && hdr.outer.isValid()) { hdr.outer.setInvalid(); }
        if (hdr.inner.op == LENGTH) { hdr.inner.b = standard.packet_length; }
        if (hdr.inner.op == GROUP) {
            hdr.inner.b = standard.packet_length;
            hdr.inner.a = (bit<24>)standard.egress_rid;
            if (standard.egress_port == 9) { mark_to_drop(standard); }
        }
        if (hdr.inner.op == SHED && hdr.outer.isValid()) { hdr.inner.setInvalid(); }
    }
}
control Compute(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Deparse(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
