/* Fat-B+Tree for Tofino 1 (TNA) and Tofino 2 (T2NA).
 *
 * One program for each role, chosen with -DROLE_CORE, -DROLE_AGGREGATION, -DROLE_EDGE, -DROLE_SINGLE or -DROLE_FOLDED.  The controls are
 * those of the v1model program; here they are spread over the two gresses, which have their stages each but share the stages' memory:
 *
 *                 ingress                                   egress
 *   core          route -> fat root                         node set A
 *   aggregation   node set A, route                         node set B
 *   edge          hosts, first hop or node set A, route     node set B -> last hop?
 *   single        hosts or first hop -> fat root, route     node set A -> last hop?
 *   folded        hosts or first hop -> fat root, route     node set C -> last hop?
 *   its 2nd pipe  node set B, way back                      node set A
 *
 * A folded switch is a single one with a second pass: some of its pipes run the first line, with all hosts on their ports, the others
 * the second, with ports in loopback mode.  A read that set out goes to one of these: through the egress of its pipe, back into its
 * ingress, and on to the server's port.
 */

#if defined(ROLE_CORE)
#define HAS_FAT_ROOT
#elif defined(ROLE_AGGREGATION)
#define WALKS_FIRST
#elif defined(ROLE_EDGE)
#define HAS_HOSTS
#define WALKS_FIRST
#else
#define HAS_HOSTS
#define HAS_FAT_ROOT
#define ROLE_ALONE
#endif

#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

typedef bit<9> port_t;
const port_t NO_PORT = 511;
// The switch's own processor: on a Tofino 1 with two pipes 192, with four 320, on a Tofino 2 port 0.
#ifdef CPU
const port_t CPU_PORT = CPU;
#elif __TARGET_TOFINO__ == 2
const port_t CPU_PORT = 0;
#else
const port_t CPU_PORT = 192;
#endif

// What differs between the targets, and nothing else.
#define DIRECT_COUNTER(name) DirectCounter<bit<32>>(CounterType_t.PACKETS) name;
#define COUNT(name) name.count();
#define ATTACH_COUNTER(name) counters = name;
#define GO_TO_CHILD(va, offset, slice) va[31:0] = slice + offset[31:0]; va[47:32] = offset[47:32];
#define INDIRECT_COUNTER(name, size) Counter<bit<64>, bit<8>>(size, CounterType_t.PACKETS) name;
#define COUNT_AT(name, index) name.count(index);
#define LINEAR_CRC32(name) \
    CRCPolynomial<bit<32>>(32w0x04C11DB7, true, false, false, 32w0, 32w0) name##_polynomial; \
    Hash<bit<32>>(HashAlgorithm_t.CUSTOM, name##_polynomial) name;
#define HASH_FIELDS(...) __VA_ARGS__
#define LINEAR_CRC32_OF(name, result, ...) result = name.get(__VA_ARGS__);
#define TAKE_FROM_CHECKSUM(...) sum_of_query.subtract({ __VA_ARGS__ });
#define REST_OF_CHECKSUM meta.rest_of_checksum = sum_of_query.get();
#define PATH_HASH(name) Hash<bit<6>>(HashAlgorithm_t.CRC32) name;
#define PATH_HASH_OF(name, path, ...) path = name.get(__VA_ARGS__);

#include "tna_sizes.p4"

#include "include/headers.p4"
#include "include/parser.p4"
#include "include/fat_root.p4"
#include "include/node_set.p4"
#include "include/roce.p4"
#include "include/query.p4"
#include "include/forwarding.p4"
#include "include/hosts.p4"
#ifdef ROLE_FOLDED
#include "include/second_pass.p4"
#endif

struct metadata_t {
    bool    checksum_error;
    bit<16> rest_of_checksum; // of a query: without what switches may change
}

#define UPDATE_QUERY_CHECKSUM \
    if (hdr.query_checksum.isValid()) { \
        hdr.query_checksum.value = sum_of_query.update( \
            { meta.rest_of_checksum, hdr.ipv4.dst_addr, QUERY_CHECKSUM_FIELDS(hdr) }, true); \
    }

parser IngressFrameParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                          out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() ipv4_checksum;
    Checksum() sum_of_query;
    state start {
        meta.checksum_error = false;
        meta.rest_of_checksum = 0;
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        transition select(intrinsic.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_frame;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition accept;
    }
    FRAME_STATES(ipv4_checksum.add(hdr.ipv4); meta.checksum_error = ipv4_checksum.verify();)
}

#if defined(ROLE_ALONE) && __TARGET_TOFINO__ == 2
// Without it the compiler moves the tag to where its own instructions do not reach.
@pa_no_overlay("ingress", "hdr.vlan.ether_type")
#endif
control FatBTreeIngress(inout headers_t hdr, inout metadata_t meta,
                        in ingress_intrinsic_metadata_t intrinsic,
                        in ingress_intrinsic_metadata_from_parser_t from_parser,
                        inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                        inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    Counter<bit<64>, bit<8>>(DROP_REASONS, CounterType_t.PACKETS) drops;
    Random<bit<4>>() lots;

    Trunks() trunks;
#ifdef HAS_HOSTS
    HostPort() host_port;
    FirstHop() first_hop;
    MendSetOut() mend_set_out;
    QuerySetsOut() query_sets_out;
#endif
    CheckFrame() check_frame;
    CountHops() count_hops;
    Climb() climb;
    Forwarding() forwarding;
#ifdef HAS_FAT_ROOT
    FatRoot() fat_root;
#endif
#ifdef WALKS_FIRST
    NodeSet(NODE_SET_NODES, NODE_SET_WHOLE_NODES, false) node_set_a;
#endif
#ifdef ROLE_FOLDED
    SecondPass() second_pass;
#endif
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
    bit<1> climbs = 0;
    port_t port_up = 0;
    bit<1> is_answer = 0;
    bit<8> drop_reason = KEEP;
    bit<4> lot = 0;
#ifdef ROLE_FOLDED
    bit<3> class = 0;
#endif

    // RoCE's packets, and whatever else has a code point that the controller knows, have a queue and a priority of their own.
    action assign(@name("class") bit<3> class_) {
        for_tm.qid = (QueueId_t) class_;
        for_tm.ingress_cos = class_;
#ifdef ROLE_FOLDED
        class = class_;
#endif
    }
    TRAFFIC_CLASS_PLACE
    table traffic_class {
        key = { hdr.ipv4.tos[7:2] : exact @name("dscp"); }
        actions = { assign; @defaultonly NoAction; }
        const default_action = NoAction();
        size = TRAFFIC_CLASSES;
    }
#ifdef ROLE_FOLDED
    // The queue is chosen once more in the pipe of the second pass, which knows it from here.
    action carry() { hdr.index.slice[2:0] = class; }
    CARRY_CLASS_PLACE
    @hidden table carry_class {
        actions = { carry; }
        const default_action = carry();
    }
#endif

    action to_controller(bit<8> reason) {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = intrinsic.ingress_port;
        hdr.packet_in.reason = reason;
        for_tm.ucast_egress_port = CPU_PORT;
        for_tm.bypass_egress = 1;
    }
    action count_drop() { drops.count(drop_reason); }
    action count_lost() { drops.count(DROP_NO_ROUTE); }
    action draw() { lot = lots.get(); }

    // Packets that are walked, those that set out here, and all others take branches of their own, which a chip has side by side: what
    // others are asked costs the walk no stage.  For the same reason a packet is dropped at the end.  What is not IPv4 has none of the
    // other headers, and what is damaged is in the last branch.
    apply {
        draw();
        trunks.apply(intrinsic.ingress_port, is_trunk);
        if (from_parser.parser_err != 0 || meta.checksum_error) {
            is_damaged = 1;
        }
        if (hdr.ipv4.isValid()) {
            traffic_class.apply();
        }
#ifndef HAS_HOSTS
        check_frame.apply(hdr, is_damaged, is_trunk, drop_reason);
        if (hdr.ipv4.isValid()) {
            count_hops.apply(hdr, is_trunk);
        }
#endif
#ifdef WALKS_FIRST
#ifdef HAS_HOSTS
        if (hdr.index.isValid() && hdr.reth.isValid() && is_trunk == 1 && hdr.index.flags & INDEX_INNER != 0
            && hdr.ipv4.ttl[7:1] != 0 && is_damaged == 0) {
#else
        if (hdr.index.isValid() && hdr.reth.isValid() && is_trunk == 1 && hdr.index.flags & INDEX_INNER != 0) {
#endif
            take_away.apply(hdr);
            node_set_a.apply(hdr.index, hdr.reth.va, 0);
            put_back.apply(hdr);
        } else
#endif
#ifdef ROLE_ALONE
        // Asked for every packet, for it says one thing for all: this is where the fat root is, so it has no entries.
        climb.apply(hdr, port_up, climbed, at_root, epoch, root_sub_table);
        if (hdr.index.isValid() && hdr.reth.isValid() && is_trunk == 1 && hdr.index.flags & INDEX_CLIMBING != 0
            && hdr.ipv4.ttl[7:1] != 0 && is_damaged == 0) {
            take_away.apply(hdr);
            climbs = 1;
        } else
#endif
#ifdef HAS_HOSTS
        if (is_trunk == 0 && hdr.reth.isValid() && hdr.ipv4.in_flight == 0 && hdr.ipv4.ttl != 0 && is_damaged == 0) {
            if (hdr.query_checksum.isValid()) {
                query_sets_out.apply(hdr, is_set_out);
            } else if (IS_KEY_READ(hdr.reth)) {
                first_hop.apply(hdr, intrinsic.ingress_port, is_set_out, is_hot);
            }
#ifndef ROLE_ALONE
            if (is_set_out == 1) {
                mend_set_out.apply(hdr);
            }
            if (hdr.index.isValid() && hdr.index.flags & INDEX_CLIMBING != 0) {
                climb.apply(hdr, port, climbed, at_root, epoch, root_sub_table);
            }
#endif
        } else
#endif
        {
#ifdef HAS_HOSTS
            check_frame.apply(hdr, is_damaged, is_trunk, drop_reason);
#endif
#ifdef ROLE_EDGE
            if (is_trunk == 0 && drop_reason == KEEP) {
                host_port.apply(hdr, intrinsic.ingress_port, is_answer, drop_reason);
            }
#elif !defined(ROLE_ALONE)
            if (hdr.index.isValid() && hdr.index.flags & INDEX_CLIMBING != 0) {
                climb.apply(hdr, port, climbed, at_root, epoch, root_sub_table);
            }
#endif
        }
#ifdef ROLE_FOLDED
        if (is_set_out == 1) {
            carry_class.apply();
        }
#endif
#ifdef ROLE_ALONE
        // What sets out here, and what has climbed from another switch, is looked up once for both, and mended once, behind it.  Others are
        // answered meanwhile: a chip begins nothing before what is in the branches above it, so this is a branch of the same question.
        if (at_root == 1 && (climbs == 1 || (is_set_out == 1 && is_hot == 0))) {
            fat_root.apply(hdr.index, hdr.reth.va, epoch, root_sub_table);
        } else if (is_trunk == 0 && is_set_out == 0 && drop_reason == KEEP) {
            host_port.apply(hdr, intrinsic.ingress_port, is_answer, drop_reason);
        }
#ifdef ROLE_FOLDED
        if (is_set_out == 1 && is_hot == 0 && hdr.index.partition != ANY_PARTITION) {
            second_pass.apply(hdr, port, is_lost);
        } else
#endif
        if (hdr.ipv4.isValid()) {
            forwarding.apply(hdr, port, is_lost);
        }
        if (climbs == 1) {
            put_back.apply(hdr);
        } else if (is_set_out == 1) {
            mend_set_out.apply(hdr);
        }
#else
#ifdef ROLE_CORE
        if (at_root == 1) {
            take_away.apply(hdr);
            fat_root.apply(hdr.index, hdr.reth.va, epoch, root_sub_table);
            put_back.apply(hdr);
        }
#endif
        // Behind the fat root, which chooses the server of a query.
        if (hdr.ipv4.isValid() && climbed == 0) {
            forwarding.apply(hdr, port, is_lost);
        }
#endif
#ifdef HAS_HOSTS
        if (hdr.ipv4.isValid() && is_answer == 0) {
            count_hops.apply(hdr, is_trunk);
        }
#endif
        if (hdr.packet_out.isValid()) {
            for_tm.ucast_egress_port = hdr.packet_out.egress_port;
            for_tm.bypass_egress = 1;
            hdr.packet_out.setInvalid();
        } else if (hdr.ethernet.isValid() && hdr.ethernet.ether_type == ETHER_TYPE_PROBE && is_trunk == 1) {
            to_controller(KEEP);
        } else if (drop_reason != KEEP) {
            count_drop();
            // The controller sees one of sixteen, for people who ask why.
            if (lot == 0) {
                to_controller(drop_reason);
            } else {
                for_deparser.drop_ctl = 1;
            }
        } else if (is_answer == 1) {
            for_tm.ucast_egress_port = intrinsic.ingress_port;
        } else if (is_lost == 1) {
            count_lost();
            if (lot == 0) {
                to_controller(DROP_NO_ROUTE);
            } else {
                for_deparser.drop_ctl = 1;
            }
        } else {
            for_tm.ucast_egress_port = port;
        }
    }
}

// An IPv4 header's own checksum: lengths, TTL and marks change on the way.
#define UPDATE_IPV4_CHECKSUM \
    if (hdr.ipv4.isValid()) { \
        hdr.ipv4.checksum = ipv4_checksum.update({ IPV4_CHECKSUM_FIELDS(hdr.ipv4) }); \
    }

control IngressFrameDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                             in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;
    Checksum() sum_of_query;
    apply {
        UPDATE_IPV4_CHECKSUM
        UPDATE_QUERY_CHECKSUM
        packet.emit(hdr);
    }
}

parser EgressFrameParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                         out egress_intrinsic_metadata_t intrinsic) {
    Checksum() sum_of_query;
    state start {
        meta.checksum_error = false;
        meta.rest_of_checksum = 0;
        packet.extract(intrinsic);
        transition parse_frame;
    }
    FRAME_STATES()
}

// The traffic manager was congested when the packet came to its queue: those that can bear a mark are marked (RFC 3168).
#define MARK_CONGESTION \
    if (intrinsic.enq_congest_stat != 0 && hdr.ipv4.isValid() && hdr.ipv4.tos[1:0] != 0) { \
        hdr.ipv4.tos[1:0] = 3; \
    }

control FatBTreeEgress(inout headers_t hdr, inout metadata_t meta,
                       in egress_intrinsic_metadata_t intrinsic,
                       in egress_intrinsic_metadata_from_parser_t from_parser,
                       inout egress_intrinsic_metadata_for_deparser_t for_deparser,
                       inout egress_intrinsic_metadata_for_output_port_t for_port) {
#ifdef HAS_HOSTS
#define GOES_TO_SLICES true
#else
#define GOES_TO_SLICES false
#endif
#if defined(ROLE_FOLDED)
    NodeSet(NODE_SET_NODES, NODE_SET_WHOLE_NODES, GOES_TO_SLICES) node_set_c;
#define EGRESS_NODE_SET node_set_c
#elif defined(HAS_FAT_ROOT)
    NodeSet(NODE_SET_NODES, NODE_SET_WHOLE_NODES, GOES_TO_SLICES) node_set_a;
#define EGRESS_NODE_SET node_set_a
#else
    NodeSet(NODE_SET_NODES, NODE_SET_WHOLE_NODES, GOES_TO_SLICES) node_set_b;
#define EGRESS_NODE_SET node_set_b
#endif
    MendWalked() take_away;
    MendWalked() put_back;
#ifdef HAS_HOSTS
    ToHost() to_host;
    LastHopOfWalk() last_hop;
#endif

    // A walk that has ended at a leaf goes on to the slice here, be this its last hop or not.
    bit<32> slice = 0;
    action go_to_slice() {
        hdr.reth.va[31:0] = hdr.reth.va[31:0] + slice;
        hdr.index.flags[2:2] = 0;
    }

    apply {
        MARK_CONGESTION
        if (hdr.index.isValid()) {
#ifdef HAS_HOSTS
            take_away.apply(hdr);
            slice = SLICE_OFFSET(hdr.index);
            if (hdr.index.flags & INDEX_INNER != 0) {
                EGRESS_NODE_SET.apply(hdr.index, hdr.reth.va, slice);
            } else if (hdr.index.flags & INDEX_LEAF != 0) {
                go_to_slice();
            }
            if (!hdr.query_checksum.isValid()) {
                last_hop.apply(hdr, intrinsic.egress_port);
            }
#else
            if (hdr.index.flags & INDEX_INNER != 0) {
                take_away.apply(hdr);
                EGRESS_NODE_SET.apply(hdr.index, hdr.reth.va, slice);
                put_back.apply(hdr);
            }
#endif
        }
#ifdef HAS_HOSTS
        if (hdr.ipv4.isValid()) {
            to_host.apply(hdr, intrinsic.egress_port);
        }
#endif
    }
}

control EgressFrameDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                            in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;
    Checksum() sum_of_query;
    apply {
        UPDATE_IPV4_CHECKSUM
        UPDATE_QUERY_CHECKSUM
        packet.emit(hdr);
    }
}

Pipeline(IngressFrameParser(), FatBTreeIngress(), IngressFrameDeparser(),
         EgressFrameParser(), FatBTreeEgress(), EgressFrameDeparser()) pipe;

#ifdef ROLE_FOLDED
// The second pass.  Whatever else comes into these pipes goes no further: nothing but their loopback ports is in `way_back`.
control SecondPassIngress(inout headers_t hdr, inout metadata_t meta,
                          in ingress_intrinsic_metadata_t intrinsic,
                          in ingress_intrinsic_metadata_from_parser_t from_parser,
                          inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                          inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) second_pass_drops;
    NodeSet(SECOND_PASS_NODES, NODE_SET_WHOLE_NODES, false) node_set_b;
    MendWalked() take_away;
    MendWalked() put_back;
    WayBack() way_back;
    bit<1> is_lost = 0;
    port_t port = 0;

    apply {
        if (hdr.index.isValid() && hdr.reth.isValid() && hdr.index.flags & INDEX_INNER != 0) {
            take_away.apply(hdr);
            node_set_b.apply(hdr.index, hdr.reth.va, 0);
            put_back.apply(hdr);
        }
        for_tm.qid = (QueueId_t) hdr.index.slice[2:0];
        for_tm.ingress_cos = hdr.index.slice[2:0];
        way_back.apply(hdr, intrinsic.ingress_port, port, is_lost);
        if (is_lost == 1) {
            second_pass_drops.count(0);
            for_deparser.drop_ctl = 1;
        } else {
            for_tm.ucast_egress_port = port;
        }
    }
}

control SecondPassEgress(inout headers_t hdr, inout metadata_t meta,
                         in egress_intrinsic_metadata_t intrinsic,
                         in egress_intrinsic_metadata_from_parser_t from_parser,
                         inout egress_intrinsic_metadata_for_deparser_t for_deparser,
                         inout egress_intrinsic_metadata_for_output_port_t for_port) {
    NodeSet(SECOND_PASS_NODES, NODE_SET_WHOLE_NODES, false) node_set_a;
    MendWalked() take_away;
    MendWalked() put_back;

    apply {
        MARK_CONGESTION
        if (hdr.index.isValid() && hdr.index.flags & INDEX_INNER != 0) {
            take_away.apply(hdr);
            node_set_a.apply(hdr.index, hdr.reth.va, 0);
            put_back.apply(hdr);
        }
    }
}

Pipeline(IngressFrameParser(), SecondPassIngress(), IngressFrameDeparser(),
         EgressFrameParser(), SecondPassEgress(), EgressFrameDeparser()) second_pipe;

Switch(pipe, second_pipe) main;
#else
Switch(pipe) main;
#endif
