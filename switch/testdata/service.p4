/* For the P4Runtime service's own tests: one table of every kind that the service treats differently.
 *
 *   p4c-bm2-ss --arch v1model -o service.json --p4runtime-files service.p4info.txtpb service.p4 */

#include <core.p4>
#include <v1model.p4>

header frame_t {
    bit<48> dst;
    bit<48> src;
    bit<16> kind;
}

struct headers_t { frame_t frame; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.frame);
        transition accept;
    }
}

control NoChecksum(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) exact_hits;
    counter(8, CounterType.packets_and_bytes) seen;
    register<bit<16>>(4) last_kind;

    action forward(bit<9> port) { standard_metadata.egress_spec = port; }
    action forward_counted(bit<9> port) {
        exact_hits.count();
        standard_metadata.egress_spec = port;
    }
    action rewrite(bit<48> dst, bit<16> kind) {
        hdr.frame.dst = dst;
        hdr.frame.kind = kind;
    }
    action discard() { mark_to_drop(standard_metadata); }

    table exact_table {
        key = { hdr.frame.dst : exact @name("dst"); }
        actions = { forward_counted; @defaultonly discard; @defaultonly NoAction; }
        default_action = NoAction();
        counters = exact_hits;
        size = 200000;
    }
    table lpm_table {
        key = { hdr.frame.src : lpm @name("src"); }
        actions = { forward; @tableonly rewrite; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    table ternary_table {
        key = {
            hdr.frame.kind : ternary @name("kind");
            hdr.frame.src  : optional @name("src");
        }
        actions = { rewrite; discard; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    table range_table {
        key = {
            standard_metadata.ingress_port : exact @name("port");
            hdr.frame.kind                 : range @name("kind");
        }
        actions = { forward; NoAction; }
        const default_action = NoAction();
        size = 2;
    }
    table const_table {
        key = { hdr.frame.kind : exact @name("kind"); }
        actions = { discard; NoAction; }
        default_action = NoAction();
        const entries = { 0x88cc : discard(); }
    }
    table keyless {
        actions = { forward; NoAction; }
        default_action = NoAction();
    }

    apply {
        seen.count((bit<32>)standard_metadata.ingress_port & 7);
        last_kind.write(0, hdr.frame.kind);
        keyless.apply();
        ternary_table.apply();
        lpm_table.apply();
        range_table.apply();
        exact_table.apply();
        const_table.apply();
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.frame); } }

V1Switch(P(), NoChecksum(), ingress(), egress(), NoChecksum(), D()) main;
