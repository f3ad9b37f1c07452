/* Where packets go.  Index packets climb to the core switch that holds the fat root, then go down to the server of
 * their partition; everything else is routed by destination address. */

#ifndef FATBTREE_FORWARDING_P4
#define FATBTREE_FORWARDING_P4

/// Is this packet still climbing, or is this the switch with the fat root?
control CoreRoute(inout port_t egress_port, inout bit<1> routed,
                  inout bit<1> at_core, inout epoch_t epoch, inout sub_table_t root_sub_table) {
    action climb(port_t port) {
        egress_port = port;
        routed = 1;
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
    apply { core_route.apply(); }
}

control PartitionRoute(in index_t index, inout port_t egress_port, inout bit<1> routed) {
    action forward(port_t port) {
        egress_port = port;
        routed = 1;
    }
    table partition_route {
        key = { index.partition : exact @name("partition"); }
        actions = { forward; @defaultonly NoAction; }
        const default_action = NoAction();
        size = PARTITIONS;
    }
    apply { partition_route.apply(); }
}

control Ipv4Route(in ipv4_t ipv4, inout port_t egress_port, inout bit<1> routed) {
    action forward(port_t port) {
        egress_port = port;
        routed = 1;
    }
    table ipv4_route {
        key = { ipv4.dst_addr : lpm @name("dst_ip"); }
        actions = { forward; @defaultonly NoAction; }
        const default_action = NoAction();
        size = IPV4_ROUTES;
    }
    apply { ipv4_route.apply(); }
}

#endif
