/* Where packets go.  Index packets climb to the core switch that holds the fat root, then go down to the server of
 * their partition; everything else is routed by destination address.
 *
 * Hits and misses decide, not variables: a chip then matches partition and address in one step. */

#ifndef FATBTREE_FORWARDING_P4
#define FATBTREE_FORWARDING_P4

// Why a packet goes nowhere: indices of each target's drop counter.
#define DROP_REASONS 4
const int DROP_NOT_IPV4 = 0;
const int DROP_DAMAGED  = 1; // truncated, wrong header checksum, or an index packet that is none
const int DROP_TTL      = 2;
const int DROP_NO_ROUTE = 3;

control Forwarding(in headers_t hdr, inout port_t egress_port, inout bit<1> routed,
                   inout bit<1> at_core, inout epoch_t epoch, inout sub_table_t root_sub_table) {
    // Is this packet still climbing, or is this the switch with the fat root?
    bit<1> climbed = 0;
    action climb(port_t port) {
        egress_port = port;
        routed = 1;
        climbed = 1;
    }
    // One write of this action's parameters moves all later packets to another epoch at once.
    action descend(@name("epoch") epoch_t epoch_, sub_table_t sub_table) {
        epoch = epoch_;
        root_sub_table = sub_table;
        at_core = 1;
    }
    table core_route {
        actions = { climb; descend; NoAction; }
        default_action = NoAction();
        size = 1;
    }

    action forward(port_t port) {
        egress_port = port;
        routed = 1;
    }
    table partition_route {
        key = { hdr.index.partition : exact @name("partition"); }
        actions = { forward; @defaultonly NoAction; }
        const default_action = NoAction();
        size = PARTITIONS;
    }

    table ipv4_route {
        key = { hdr.ipv4.dst_addr : lpm @name("dst_ip"); }
        actions = { forward; @defaultonly NoAction; }
        const default_action = NoAction();
        size = IPV4_ROUTES;
    }

    apply {
        if (hdr.index.isValid() && hdr.index.flags & INDEX_CLIMBING != 0) {
            core_route.apply();
        }
        if (climbed == 0) {
            if (hdr.index.isValid()) {
                // A partition without a route goes where its server's address says.
                if (!partition_route.apply().hit) {
                    ipv4_route.apply();
                }
            } else {
                ipv4_route.apply();
            }
        }
    }
}

#endif
