/* Fat-B+Tree for Tofino 1 (TNA) and Tofino 2 (T2NA).
 *
 * One program for each role, chosen with -DROLE_CORE, -DROLE_AGGREGATION or -DROLE_EDGE.  The controls are those of
 * the v1model program; here they are spread over the two gresses, which have their stages each but share the stages' memory:
 *
 *                 ingress                            egress
 *   core          route -> fat root                  node set A
 *   aggregation   node set A, route                  node set B
 *   edge          first hop or node set A, route     node set B -> last hop?
 */

#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

typedef bit<9> port_t;

// What differs between the targets, and nothing else.
#define DIRECT_COUNTER(name) DirectCounter<bit<32>>(CounterType_t.PACKETS) name;
#define COUNT(name) name.count();
#define ATTACH_COUNTER(name) counters = name;
#define INDIRECT_COUNTER(name, size) Counter<bit<32>, bit<8>>(size, CounterType_t.PACKETS) name;
#define COUNT_AT(name, index) name.count(index);
#define LINEAR_CRC32(name) \
    CRCPolynomial<bit<32>>(32w0x04C11DB7, true, false, false, 32w0, 32w0) name##_polynomial; \
    Hash<bit<32>>(HashAlgorithm_t.CUSTOM, name##_polynomial) name;
#define HASH_FIELDS(...) __VA_ARGS__
#define LINEAR_CRC32_OF(name, result, ...) result = name.get(__VA_ARGS__);

#include "tna_sizes.p4"

#include "include/headers.p4"
#include "include/parser.p4"
#include "include/fat_root.p4"
#include "include/node_set.p4"
#include "include/roce.p4"
#include "include/forwarding.p4"

struct metadata_t {
    bool checksum_error;
}

parser IngressFrameParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                          out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() ipv4_checksum;
    state start {
        meta.checksum_error = false;
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        transition parse_frame;
    }
    FRAME_STATES(ipv4_checksum.add(hdr.ipv4); meta.checksum_error = ipv4_checksum.verify();)
}

control FatBTreeIngress(inout headers_t hdr, inout metadata_t meta,
                        in ingress_intrinsic_metadata_t intrinsic,
                        in ingress_intrinsic_metadata_from_parser_t from_parser,
                        inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                        inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    Counter<bit<32>, bit<8>>(DROP_REASONS, CounterType_t.PACKETS) drops;

#ifdef ROLE_EDGE
    FirstHop() first_hop;
#endif
    Forwarding() forwarding;
#ifdef ROLE_CORE
    FatRoot() fat_root;
#else
    NodeSet() node_set_a;
#endif
    MendWalked() take_away;
    MendWalked() put_back;

    port_t port = 0;
    bit<1> routed = 0;
    bit<1> at_core = 0;
    epoch_t epoch = 0;
    sub_table_t root_sub_table = 0;

    action drop_because(bit<8> reason) {
        drops.count(reason);
        for_deparser.drop_ctl = 1;
    }

    apply {
        if (!hdr.ipv4.isValid()) {
            drop_because(DROP_NOT_IPV4);
        } else if (from_parser.parser_err != 0 || meta.checksum_error
                   || (hdr.index.isValid() && (!hdr.reth.isValid() || hdr.index.version != INDEX_VERSION))) {
            drop_because(DROP_DAMAGED);
        } else if (hdr.ipv4.ttl == 0 || hdr.ipv4.ttl == 1) {
            drop_because(DROP_TTL);
        } else {
            hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
#ifndef ROLE_CORE
            // A packet that comes in at its first hop has no node yet, and where it goes does not depend on the walk: written
            // like this, a chip does them side by side.
#ifdef ROLE_EDGE
            if (hdr.reth.isValid() && !hdr.index.isValid() && IS_KEY_READ(hdr.reth)) {
                first_hop.apply(hdr);
            } else
#endif
            if (hdr.index.isValid() && hdr.index.flags & INDEX_INNER != 0) {
                take_away.apply(hdr);
                node_set_a.apply(hdr.index, hdr.reth.va);
                put_back.apply(hdr);
            }
#endif
            forwarding.apply(hdr, port, routed, at_core, epoch, root_sub_table);
            if (routed == 0) {
                drop_because(DROP_NO_ROUTE);
            } else {
                for_tm.ucast_egress_port = port;
            }
#ifdef ROLE_CORE
            if (at_core == 1) {
                take_away.apply(hdr);
                fat_root.apply(hdr.index, hdr.reth.va, epoch, root_sub_table);
                put_back.apply(hdr);
            }
#endif
        }
    }
}

// An IPv4 header's own checksum: lengths and TTL change on the way.
#define UPDATE_IPV4_CHECKSUM \
    if (hdr.ipv4.isValid()) { \
        hdr.ipv4.checksum = ipv4_checksum.update({ IPV4_CHECKSUM_FIELDS(hdr.ipv4) }); \
    }

control IngressFrameDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                             in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;
    apply {
        UPDATE_IPV4_CHECKSUM
        packet.emit(hdr);
    }
}

parser EgressFrameParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                         out egress_intrinsic_metadata_t intrinsic) {
    state start {
        meta.checksum_error = false;
        packet.extract(intrinsic);
        transition parse_frame;
    }
    FRAME_STATES()
}

control FatBTreeEgress(inout headers_t hdr, inout metadata_t meta,
                       in egress_intrinsic_metadata_t intrinsic,
                       in egress_intrinsic_metadata_from_parser_t from_parser,
                       inout egress_intrinsic_metadata_for_deparser_t for_deparser,
                       inout egress_intrinsic_metadata_for_output_port_t for_port) {
#ifdef ROLE_CORE
    NodeSet() node_set_a;
#define EGRESS_NODE_SET node_set_a
#else
    NodeSet() node_set_b;
#define EGRESS_NODE_SET node_set_b
#endif
    MendWalked() take_away;
    MendWalked() put_back;
#ifdef ROLE_EDGE
    LastHop() last_hop;
#endif

    apply {
        if (hdr.index.isValid()) {
            if (hdr.index.flags & INDEX_INNER != 0) {
                take_away.apply(hdr);
                EGRESS_NODE_SET.apply(hdr.index, hdr.reth.va);
                put_back.apply(hdr);
            }
#ifdef ROLE_EDGE
            last_hop.apply(hdr, intrinsic.egress_port);
#endif
        }
    }
}

control EgressFrameDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                            in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;
    apply {
        UPDATE_IPV4_CHECKSUM
        packet.emit(hdr);
    }
}

Pipeline(IngressFrameParser(), FatBTreeIngress(), IngressFrameDeparser(),
         EgressFrameParser(), FatBTreeEgress(), EgressFrameDeparser()) pipe;

Switch(pipe) main;
