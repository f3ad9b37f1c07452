/* Where packets go.  Index packets climb to a switch that holds the fat root, each by its path, then go down to the server of
 * their partition; everything else is routed by destination address.
 *
 * Hits and misses decide, not variables: a chip then matches partition and address in one step. */

#ifndef FATBTREE_FORWARDING_P4
#define FATBTREE_FORWARDING_P4

/// On the way up: by which port, or is this a switch with the fat root?
control Climb(in headers_t hdr, inout port_t egress_port, inout bit<1> climbed,
              inout bit<1> at_root, inout epoch_t epoch, inout sub_table_t root_sub_table) {
    action climb(port_t port) {
        egress_port = port;
        climbed = 1;
    }
    // One write of this action's parameters moves all later packets to another epoch at once.
    action descend(@name("epoch") epoch_t epoch_, sub_table_t sub_table) {
        epoch = epoch_;
        root_sub_table = sub_table;
        at_root = 1;
    }
    // A switch with the fat root has the default action alone, the others an entry for each path.
    table core_route {
        key = { hdr.index.path : exact @name("path"); }
        actions = { @tableonly climb; @defaultonly descend; @defaultonly NoAction; }
        default_action = NoAction();
        size = PATHS;
    }
    apply { core_route.apply(); }
}

/// On the way down, and everywhere else.
control Forwarding(in headers_t hdr, inout port_t egress_port, inout bit<1> is_lost) {
    action forward(port_t port) { egress_port = port; }
    action no_route() { is_lost = 1; }
    table partition_route {
        key = { hdr.index.partition : exact @name("partition"); }
        actions = { forward; @defaultonly NoAction; }
        const default_action = NoAction();
        size = PARTITIONS;
    }

    table ipv4_route {
        key = { hdr.ipv4.dst_addr : lpm @name("dst_ip"); }
        actions = { forward; @defaultonly no_route; }
        const default_action = no_route();
        size = IPV4_ROUTES;
    }

    apply {
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

#endif
