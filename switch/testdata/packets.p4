/* For the tests of packets from and to the controller. Compiled like `service.p4`: see compile.sh. */

#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;
const bit<16> PROBE = 0x88b5;
const bit<16> FORWARD = 0x0800;

@controller_header("packet_out")
header packet_out_t { bit<9> egress_port; bit<7> padding; }

@controller_header("packet_in")
header packet_in_t { bit<9> ingress_port; bit<7> reason; }

header frame_t {
    bit<48> dst;
    bit<48> src;
    bit<16> kind;
}

struct headers_t { packet_in_t packet_in; packet_out_t packet_out; frame_t frame; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: from_controller;
            default: frame;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        transition frame;
    }
    state frame {
        packet.extract(hdr.frame);
        transition accept;
    }
}

control NoChecksum(inout headers_t hdr, inout metadata_t meta) { apply { } }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    /* A probe, and one in four of the frames that are dropped, goes to the controller. */
    action to_controller(bit<7> reason) {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = standard_metadata.ingress_port;
        hdr.packet_in.reason = reason;
        standard_metadata.egress_spec = CPU_PORT;
    }
    apply {
        bit<16> draw;
        if (hdr.packet_out.isValid()) {
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else if (hdr.frame.kind == PROBE) {
            to_controller(0);
        } else if (hdr.frame.kind == FORWARD) {
            standard_metadata.egress_spec = 1;
        } else {
            random(draw, 16w0, 16w3);
            if (draw == 0) { to_controller(3); } else { mark_to_drop(standard_metadata); }
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(P(), NoChecksum(), ingress(), egress(), NoChecksum(), D()) main;
