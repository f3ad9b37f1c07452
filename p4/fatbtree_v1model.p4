/* Fat-B+Tree for BMv2 (v1model) and for the software switch, which runs the same compiled program.
 *
 * One program with everything: fat root, two node sets, first and last hop.  Which role a switch plays is decided by
 * what the controller loads; empty tables do nothing.
 *
 *   ingress   first hop? -> route -> fat root -> node set A -> node set B
 *   egress    last hop? */

#include <core.p4>
#include <v1model.p4>

typedef bit<9> port_t;

// What differs between the targets, and nothing else.
#define DIRECT_COUNTER(name) direct_counter(CounterType.packets) name;
#define COUNT(name)
#define ATTACH_COUNTER(name) counters = name;
#define INDIRECT_COUNTER(name, size) counter(size, CounterType.packets) name;
#define COUNT_AT(name, index) name.count(index);
#define LINEAR_CRC32(name)
#define HASH_FIELDS(...) __VA_ARGS__
#define LINEAR_CRC32_OF(name, result, ...) \
    hash(result, HashAlgorithm.crc32, 32w0, __VA_ARGS__, 64w0x100000000); \
    result = result ^ CRC32_OF_ZEROS;

// 1024 ranges are the paper's limit; two epochs side by side, at most 3n entries a stage and epoch.
#define FAT_ROOT_STAGE_ENTRIES 8192
// As many slots as there are, in each of two epochs.
#define NODE_SET_NODES 131072
#define NODE_SET_WHOLE_NODES 32768
#define NODE_SET_CHILDREN 262144
#define NODE_SET_STRIDES 256
#define ROCE_CONNECTIONS 4096
#define HOT_KEYS 262144
#define SWITCH_PORTS 512
#define PARTITIONS 1024
#define IPV4_ROUTES 4096

#include "include/headers.p4"
#include "include/parser.p4"
#include "include/fat_root.p4"
#include "include/node_set.p4"
#include "include/roce.p4"
#include "include/forwarding.p4"

struct metadata_t { }

parser FrameParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start { transition parse_frame; }
    FRAME_STATES()
}

control VerifyHeaderChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), { IPV4_CHECKSUM_FIELDS(hdr.ipv4) },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(DROP_REASONS, CounterType.packets) drops;

    FirstHop() first_hop;
    Forwarding() forwarding;
    FatRoot() fat_root;
    NodeSet() node_set_a;
    NodeSet() node_set_b;
    MendWalked() take_away;
    MendWalked() put_back;

    port_t port = 0;
    bit<1> routed = 0;
    bit<1> at_core = 0;
    epoch_t epoch = 0;
    sub_table_t root_sub_table = 0;

    action drop_because(bit<32> reason) {
        drops.count(reason);
        mark_to_drop(standard_metadata);
    }

    apply {
        if (!hdr.ipv4.isValid()) {
            drop_because(DROP_NOT_IPV4);
            exit;
        }
        if (standard_metadata.parser_error != error.NoError || standard_metadata.checksum_error == 1
            || (hdr.index.isValid() && (!hdr.reth.isValid() || hdr.index.version != INDEX_VERSION))) {
            drop_because(DROP_DAMAGED);
            exit;
        }
        if (hdr.ipv4.ttl < 2) {
            drop_because(DROP_TTL);
            exit;
        }
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;

        if (hdr.reth.isValid() && !hdr.index.isValid() && IS_KEY_READ(hdr.reth)) {
            first_hop.apply(hdr);
        }
        forwarding.apply(hdr, port, routed, at_core, epoch, root_sub_table);
        if (routed == 0) {
            drop_because(DROP_NO_ROUTE);
            exit;
        }
        standard_metadata.egress_spec = port;

        if (at_core == 1 || (hdr.index.isValid() && hdr.index.flags & INDEX_INNER != 0)) {
            take_away.apply(hdr);
            if (at_core == 1) {
                fat_root.apply(hdr.index, hdr.reth.va, epoch, root_sub_table);
            }
            if (hdr.index.flags & INDEX_INNER != 0) {
                node_set_a.apply(hdr.index, hdr.reth.va);
            }
            if (hdr.index.flags & INDEX_INNER != 0) {
                node_set_b.apply(hdr.index, hdr.reth.va);
            }
            put_back.apply(hdr);
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    LastHop() last_hop;
    apply {
        if (hdr.index.isValid()) {
            last_hop.apply(hdr, standard_metadata.egress_port);
        }
    }
}

control UpdateHeaderChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), { IPV4_CHECKSUM_FIELDS(hdr.ipv4) },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control FrameDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(FrameParser(), VerifyHeaderChecksum(), ingress(), egress(), UpdateHeaderChecksum(), FrameDeparser()) main;
