/* A switch that packets pass twice: there and back by ports in loopback mode, which are in pipes of their own.
 *
 * Only chips need it.  The v1model program has the node sets of both passes one behind the other, and none of these tables. */

#ifndef FATBTREE_SECOND_PASS_P4
#define FATBTREE_SECOND_PASS_P4

/// There: by path, for the packets of a connection stay in their order.
control SecondPass(in headers_t hdr, inout port_t egress_port, inout bit<1> is_lost) {
    action forward(port_t port) { egress_port = port; }
    action no_route() { is_lost = 1; }
    table loopback_port {
        key = { hdr.index.path : exact @name("path"); }
        actions = { forward; @defaultonly no_route; }
        const default_action = no_route();
        size = PATHS;
    }
    apply { loopback_port.apply(); }
}

/// Back, to the server.  One match says where to, and that the packet came by a loopback port.
control WayBack(in headers_t hdr, in port_t ingress_port, inout port_t egress_port, inout bit<1> is_lost) {
    action forward(port_t port) { egress_port = port; }
    action no_route() { is_lost = 1; }
    table way_back {
        key = {
            ingress_port        : exact @name("loopback_port");
            hdr.index.partition : exact @name("partition");
        }
        actions = { forward; @defaultonly no_route; }
        const default_action = no_route();
        size = WAYS_BACK;
    }
    apply { way_back.apply(); }
}

#endif
