/* Fat-B+Tree for BMv2 (v1model) and for the software switch, which runs the same compiled program.
 *
 * One program with everything: fat root, three node sets, first and last hop.  Which role a switch plays is decided by
 * what the controller loads; empty tables do nothing.
 *
 *   ingress   checks, ARP -> first hop? -> route -> fat root -> node sets A, B, C
 *   egress    congestion -> last hop? */

#include <core.p4>
#include <v1model.p4>

typedef bit<9> port_t;
const port_t CPU_PORT = 510; // the controller's: BMv2 is started with --cpu-port 510 --priority-queues 8
const port_t NO_PORT  = 511;

// What differs between the targets, and nothing else.
#define DIRECT_COUNTER(name) direct_counter(CounterType.packets) name;
#define COUNT(name)
#define ATTACH_COUNTER(name) counters = name;
// The last hop goes to the slice.
#define GO_TO_CHILD(va, offset, slice) va[47:0] = offset;
#define INDIRECT_COUNTER(name, size) counter(size, CounterType.packets) name;
#define COUNT_AT(name, index) name.count(index);
#define LINEAR_CRC32(name)
#define HASH_FIELDS(...) __VA_ARGS__
#define LINEAR_CRC32_OF(name, result, ...) \
    hash(result, HashAlgorithm.crc32, 32w0, __VA_ARGS__, 64w0x100000000); \
    result = result ^ CRC32_OF_ZEROS;
#define TAKE_FROM_CHECKSUM(...)
#define REST_OF_CHECKSUM
#define PATH_HASH(name) bit<32> name;
#define PATH_HASH_OF(name, path, ...) \
    hash(name, HashAlgorithm.crc32, 32w0, __VA_ARGS__, 64w0x100000000); \
    path = name[5:0];

// 1024 ranges are the paper's limit; two epochs side by side, at most 3n entries a stage and epoch.
#define FAT_ROOT_STAGE_ENTRIES 8192
// As many slots as there are, in each of two epochs.
#define NODE_SET_NODES 131072
#define NODE_SET_WHOLE_NODES 32768
#define NODE_SET_CHILDREN(nodes) (2 * nodes)
#define NODE_SET_STRIDES 256
#define ROCE_CONNECTIONS 4096
#define HOT_KEYS 262144
#define SWITCH_PORTS 512
#define PARTITIONS 1024
#define IPV4_ROUTES 4096
#define NEIGHBORS 4096
#define PATHS 64
#define TRAFFIC_CLASSES 64
#define ROCE_CONNECTION_PLACE
#define HOT_KEY_PLACE
#define QUERY_SETS_OUT_PLACE
// Packets in a queue, from which on those that can bear a mark are marked (RFC 3168).
#define CONGESTION 64

#include "include/headers.p4"
#include "include/parser.p4"
#include "include/fat_root.p4"
#include "include/node_set.p4"
#include "include/roce.p4"
#include "include/query.p4"
#include "include/forwarding.p4"
#include "include/hosts.p4"

struct metadata_t {
    bit<16> rest_of_checksum; // of a query: without what switches may change
}

parser FrameParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_frame;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition accept;
    }
    FRAME_STATES()
}

control VerifyHeaderChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, { IPV4_CHECKSUM_FIELDS(hdr.ipv4) },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(DROP_REASONS, CounterType.packets) drops;

    Trunks() trunks;
    CheckFrame() check_frame;
    HostPort() host_port;
    CountHops() count_hops;
    FirstHop() first_hop;
    MendSetOut() mend_set_out;
    QuerySetsOut() query_sets_out;
    Climb() climb;
    Forwarding() forwarding;
    FatRoot() fat_root;
    NodeSet(NODE_SET_NODES, NODE_SET_WHOLE_NODES, false) node_set_a;
    NodeSet(NODE_SET_NODES, NODE_SET_WHOLE_NODES, false) node_set_b;
    NodeSet(NODE_SET_NODES, NODE_SET_WHOLE_NODES, false) node_set_c;
    MendWalked() take_away;
    MendWalked() put_back;

    port_t port = 0;
    bit<1> climbed = 0;
    bit<1> is_lost = 0;
    bit<1> at_root = 0;
    epoch_t epoch = 0;
    sub_table_t root_sub_table = 0;

    bit<1> is_damaged = 0;
    bit<1> is_trunk = 0;
    bit<1> is_set_out = 0;
    bit<1> is_hot = 0;
    bit<1> is_answer = 0;
    bit<8> drop_reason = KEEP;

    // RoCE's packets, and whatever else has a code point that the controller knows, have a queue of their own.
    action assign(@name("class") bit<3> class_) { standard_metadata.priority = class_; }
    table traffic_class {
        key = { hdr.ipv4.tos[7:2] : exact @name("dscp"); }
        actions = { assign; @defaultonly NoAction; }
        const default_action = NoAction();
        size = TRAFFIC_CLASSES;
    }

    action to_controller(bit<8> reason) {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = standard_metadata.ingress_port;
        hdr.packet_in.reason = reason;
        standard_metadata.egress_spec = CPU_PORT;
    }

    apply {
        if (hdr.packet_out.isValid()) {
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            exit;
        }
        trunks.apply(standard_metadata.ingress_port, is_trunk);
        if (hdr.ethernet.isValid() && hdr.ethernet.ether_type == ETHER_TYPE_PROBE && is_trunk == 1) {
            to_controller(0);
            exit;
        }
        if (standard_metadata.parser_error != error.NoError || standard_metadata.checksum_error == 1) {
            is_damaged = 1;
        }
        check_frame.apply(hdr, is_damaged, is_trunk, drop_reason);
        if (is_trunk == 0 && drop_reason == KEEP) {
            host_port.apply(hdr, standard_metadata.ingress_port, is_answer, drop_reason);
        }
        if (is_answer == 1) {
            standard_metadata.egress_spec = standard_metadata.ingress_port;
            exit;
        }
        if (drop_reason == KEEP) {
            count_hops.apply(hdr, is_trunk);
            traffic_class.apply();
            if (hdr.query_checksum.isValid()) {
                hash(meta.rest_of_checksum, HashAlgorithm.csum16, 16w0, { hdr.query_checksum.value, hdr.ipv4.dst_addr, QUERY_CHECKSUM_FIELDS(hdr) }, 32w0x10000);
                if (is_trunk == 0) {
                    query_sets_out.apply(hdr, is_set_out);
                }
            } else if (is_trunk == 0 && hdr.reth.isValid() && IS_KEY_READ(hdr.reth)) {
                first_hop.apply(hdr, standard_metadata.ingress_port, is_set_out, is_hot);
                if (is_set_out == 1) {
                    mend_set_out.apply(hdr);
                }
            }
            if (hdr.index.isValid() && hdr.index.flags & INDEX_CLIMBING != 0) {
                climb.apply(hdr, port, climbed, at_root, epoch, root_sub_table);
            }
            if (at_root == 1 || (hdr.index.isValid() && hdr.index.flags & INDEX_INNER != 0)) {
                take_away.apply(hdr);
                if (at_root == 1) {
                    fat_root.apply(hdr.index, hdr.reth.va, epoch, root_sub_table);
                }
                if (hdr.index.flags & INDEX_INNER != 0) {
                    node_set_a.apply(hdr.index, hdr.reth.va, 0);
                }
                if (hdr.index.flags & INDEX_INNER != 0) {
                    node_set_b.apply(hdr.index, hdr.reth.va, 0);
                }
                if (hdr.index.flags & INDEX_INNER != 0) {
                    node_set_c.apply(hdr.index, hdr.reth.va, 0);
                }
                put_back.apply(hdr);
            }
            // Behind the fat root, which chooses the server of a query.
            if (climbed == 0) {
                forwarding.apply(hdr, port, is_lost);
            }
            if (is_lost == 1) {
                drop_reason = DROP_NO_ROUTE;
            }
        }
        if (drop_reason != KEEP) {
            drops.count((bit<32>) drop_reason);
            // The controller sees one of sixteen, for people who ask why.
            bit<4> lot;
            random(lot, 4w0, 4w15);
            if (lot == 0) {
                to_controller(drop_reason);
            } else {
                mark_to_drop(standard_metadata);
            }
            exit;
        }
        standard_metadata.egress_spec = port;
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    ToHost() to_host;
    LastHop() last_hop;
    apply {
        if (standard_metadata.deq_qdepth >= CONGESTION && hdr.ipv4.isValid() && hdr.ipv4.tos[1:0] != 0) {
            hdr.ipv4.tos[1:0] = 3;
        }
        if (hdr.ipv4.isValid()) {
            to_host.apply(hdr, standard_metadata.egress_port);
        }
        if (hdr.query_checksum.isValid()) {
            hash(hdr.query_checksum.value, HashAlgorithm.csum16, 16w0, { meta.rest_of_checksum, hdr.ipv4.dst_addr, QUERY_CHECKSUM_FIELDS(hdr) }, 32w0x10000);
            if (hdr.query_checksum.value == 0) { // which would mean that there is none
                hdr.query_checksum.value = 0xffff;
            }
        } else if (hdr.index.isValid()) {
            last_hop.apply(hdr, standard_metadata.egress_port);
        }
    }
}

control UpdateHeaderChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        // A sample shows what was dropped as it was.
        update_checksum(hdr.ipv4.isValid() && !hdr.packet_in.isValid(), { IPV4_CHECKSUM_FIELDS(hdr.ipv4) },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control FrameDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(FrameParser(), VerifyHeaderChecksum(), ingress(), egress(), UpdateHeaderChecksum(), FrameDeparser()) main;
