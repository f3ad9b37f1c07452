/* A filter over a header of odd fields: ternary, range, optional and exact keys, const entries, masks in the
 * parser's select, lookahead, and both outcomes of an apply. */
#include <core.p4>
#include <v1model.p4>

header first_t { bit<3> kind; bit<13> id; bit<8> low; bit<8> high; }
header extra_t { bit<32> word; }
struct headers_t { first_t first; extra_t extra; }
struct metadata_t { bit<8> mark; bit<1> seen; bit<8> ahead; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        meta.ahead = packet.lookahead<bit<8>>();
        packet.extract(hdr.first);
        transition select(hdr.first.kind, hdr.first.low) {
            (1 &&& 1, 0x80 &&& 0x80): extra;
            (2, _): extra;
            default: accept;
        }
    }
    state extra { packet.extract(hdr.extra); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets) filter_hits;
    action permit(bit<9> port) { standard.egress_spec = port; }
    action deny() { mark_to_drop(standard); }
    action mark(bit<8> value) { meta.mark = value; }
    table filter {
        key = {
            hdr.first.kind : ternary;
            hdr.first.id : optional;
            hdr.first.low : range;
            hdr.extra.isValid() : exact;
        }
        actions = { permit; deny; }
        default_action = deny();
        counters = filter_hits;
        size = 8;
    }
    table classes {
        key = { hdr.first.high : ternary; hdr.extra.isValid() : ternary; }
        actions = { mark; NoAction; }
        const default_action = mark(9);
        const entries = {
            (0x10 &&& 0xf0, _) : mark(1);
            (0x00 &&& 0x80, true) : mark(2);
            (0x00 &&& 0x80, _) : mark(3);
        }
    }
    apply {
        classes.apply();
        if (filter.apply().hit) { meta.seen = 1; }
        if (meta.seen == 1) { hdr.first.high = meta.mark; hdr.first.low = meta.ahead; }
    }
}
control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) { apply { } }
control Compute(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Deparse(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
