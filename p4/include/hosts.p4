/* What hosts need of a network: their neighbours' MAC addresses, somebody who answers at the gateway's address, and checks of
 * what they send.  Who sends is known by the port: a port without an entry in `trunk_port` leads to a host, and nobody trusts
 * what comes from there. */

#ifndef FATBTREE_HOSTS_P4
#define FATBTREE_HOSTS_P4

// Why a packet goes nowhere: indices of each target's drop counter, and in samples for the controller.
#define DROP_REASONS 10
const bit<8> KEEP           = 0; // it goes on; to the controller it is a probe
const bit<8> DROP_NOT_IP    = 1; // neither IPv4 nor ARP, or two VLAN tags
const bit<8> DROP_IPV6      = 2;
const bit<8> DROP_DAMAGED   = 3; // truncated, wrong header checksum, or an index packet that is none
const bit<8> DROP_OPTIONS   = 4; // IPv4 options
const bit<8> DROP_TTL       = 5;
const bit<8> DROP_NO_ROUTE  = 6;
const bit<8> DROP_FORGED    = 7; // the mark of index packets, from a host
const bit<8> DROP_ARP       = 8; // for an address that nobody has or the sender has itself, or no request
const bit<8> DROP_TO_SWITCH = 9; // to the switch itself, and no echo request

// The network is one hop to its hosts: a packet that one of them sends with less is given this much for its way.
const bit<8> TTL_INSIDE = 16;
const bit<8> TTL_OWN    = 64;
const bit<8> ICMP_ECHO_REQUEST = 8;
const bit<8> ICMP_ECHO_REPLY   = 0;

/// Which ports lead to other switches.
control Trunks(in port_t ingress_port, inout bit<1> is_trunk) {
    action trunk() { is_trunk = 1; }
    table trunk_port {
        key = { ingress_port : exact @name("port"); }
        actions = { trunk; @defaultonly NoAction; }
        const default_action = NoAction();
        size = SWITCH_PORTS;
    }
    apply { trunk_port.apply(); }
}

/// Whether a frame is one that goes on; ARP is a matter of `HostPort`.  One match and not a chain of conditions, each of which a
/// chip would count as a table.
control CheckFrame(in headers_t hdr, in bit<1> is_damaged, in bit<1> is_trunk, inout bit<8> drop_reason) {
    action keep() { }
    action refuse(bit<8> reason) { drop_reason = reason; }
    @hidden table check {
        key = {
            hdr.ipv4.isValid()    : ternary @name("is_ipv4");
            hdr.ipv4.ihl          : ternary @name("ihl");
            is_damaged            : ternary @name("is_damaged");
            hdr.ipv4.in_flight    : ternary @name("in_flight");
            is_trunk              : ternary @name("is_trunk");
            hdr.reth.isValid()    : ternary @name("is_read");
            hdr.ipv4.ttl          : ternary @name("ttl");
            hdr.arp.isValid()     : ternary @name("is_arp");
            hdr.ethernet.ether_type : ternary @name("ether_type");
            hdr.vlan.isValid()    : ternary @name("is_tagged");
            hdr.vlan.ether_type   : ternary @name("ether_type_behind_tag");
        }
        actions = { keep; refuse; }
        const default_action = refuse(DROP_NOT_IP);
        const entries = {
            (true,  8 &&& 8,  _, _, _, _,     _, _,    _,               _,    _)               : refuse(DROP_OPTIONS);
            (true,  6 &&& 14, _, _, _, _,     _, _,    _,               _,    _)               : refuse(DROP_OPTIONS);
            (_,     _,        1, _, _, _,     _, _,    _,               _,    _)               : refuse(DROP_DAMAGED);
            (true,  _,        _, 1, 0, _,     _, _,    _,               _,    _)               : refuse(DROP_FORGED);
            (true,  _,        _, 1, _, false, _, _,    _,               _,    _)               : refuse(DROP_DAMAGED);
            (true,  _,        _, _, _, _,     0, _,    _,               _,    _)               : refuse(DROP_TTL);
            (true,  _,        _, _, 1, _,     1, _,    _,               _,    _)               : refuse(DROP_TTL);
            (true,  _,        _, _, _, _,     _, _,    _,               _,    _)               : keep();
            (false, _,        _, _, 1, _,     _, true, _,               _,    _)               : refuse(DROP_ARP);
            (false, _,        _, _, _, _,     _, true, _,               _,    _)               : keep();
            (false, _,        _, _, _, _,     _, _,    ETHER_TYPE_IPV6, _,    _)               : refuse(DROP_IPV6);
            (false, _,        _, _, _, _,     _, _,    _,               true, ETHER_TYPE_IPV6) : refuse(DROP_IPV6);
        }
    }
    apply { check.apply(); }
}

/// From a host: answers ARP, and echo requests to the switch itself.
control HostPort(inout headers_t hdr, in port_t ingress_port, inout bit<1> is_answer, inout bit<8> drop_reason) {
    ipv4_addr_t sought = 0;
    mac_addr_t  mac = 0;
    port_t      behind = 0;
    bit<1>      is_known = 0;
    bit<1>      is_this_switch = 0;

    // `port` is where the host is, if at this switch: nobody is told about himself.
    action host(@name("mac") mac_addr_t mac_, port_t port) {
        mac = mac_;
        behind = port;
        is_known = 1;
    }
    action this_switch(@name("mac") mac_addr_t mac_) {
        mac = mac_;
        behind = NO_PORT;
        is_known = 1;
        is_this_switch = 1;
    }
    table neighbor {
        key = { sought : exact @name("ip"); }
        actions = { host; this_switch; @defaultonly NoAction; }
        const default_action = NoAction();
        size = NEIGHBORS;
    }

    action answer_arp() {
        hdr.ethernet.dst_addr = hdr.ethernet.src_addr;
        hdr.ethernet.src_addr = mac;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = mac;
        hdr.arp.sender_ip = sought;
        is_answer = 1;
    }
    action answer_echo() {
        hdr.ethernet.dst_addr = hdr.ethernet.src_addr;
        hdr.ethernet.src_addr = mac;
        hdr.ipv4.dst_addr = hdr.ipv4.src_addr;
        hdr.ipv4.src_addr = sought;
        hdr.ipv4.ttl = TTL_OWN;
        hdr.icmp.type = ICMP_ECHO_REPLY;
        is_answer = 1;
    }
    // The checksum is of ones' complement: what is taken from the type is added to it, and a carry comes back at the low end.
    action add_to_checksum() { hdr.icmp.checksum = hdr.icmp.checksum + 0x0800; }
    action add_to_checksum_and_carry() { hdr.icmp.checksum = hdr.icmp.checksum + 0x0801; }

    bit<1> is_request = 0;
    action request() { is_request = 1; }
    @hidden table arp_request {
        key = {
            hdr.arp.kinds     : exact @name("kinds");
            hdr.arp.lengths   : exact @name("lengths");
            hdr.arp.operation : exact @name("operation");
        }
        actions = { request; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = { (ARP_KINDS, ARP_LENGTHS, ARP_REQUEST) : request(); }
    }

    apply {
        if (hdr.arp.isValid()) {
            arp_request.apply();
            sought = hdr.arp.target_ip;
        } else {
            sought = hdr.ipv4.dst_addr;
        }
        neighbor.apply();
        if (hdr.arp.isValid()) {
            if (is_request == 1 && is_known == 1 && behind != ingress_port) {
                answer_arp();
            } else {
                drop_reason = DROP_ARP;
            }
        } else if (is_this_switch == 1) {
            if (hdr.icmp.isValid() && hdr.icmp.type == ICMP_ECHO_REQUEST && hdr.icmp.code == 0) {
                if (hdr.icmp.checksum[15:11] == 0x1f) {
                    add_to_checksum_and_carry();
                } else {
                    add_to_checksum();
                }
                answer_echo();
            } else {
                drop_reason = DROP_TO_SWITCH;
            }
        }
    }
}

/// To a host: the packet is addressed to it, whatever MAC address it was sent to (a gateway's, where its sender has a route by one).  So is a
/// query, whichever memory server it was sent to, and it is not in flight any more.
control ToHost(inout headers_t hdr, in port_t egress_port) {
    ipv4_addr_t address = 0;
    bit<1>      is_host = 0;
    action address_to(mac_addr_t mac, ipv4_addr_t ip) {
        hdr.ethernet.dst_addr = mac;
        address = ip;
        is_host = 1;
    }
    table host_port {
        key = { egress_port : exact @name("egress_port"); }
        actions = { address_to; @defaultonly NoAction; }
        const default_action = NoAction();
        size = SWITCH_PORTS;
    }
    apply {
        host_port.apply();
        if (is_host == 1 && hdr.query_checksum.isValid() && hdr.ipv4.in_flight == 1) {
            hdr.ipv4.dst_addr = address;
            hdr.ipv4.in_flight = 0;
        }
    }
}

/// A packet that goes on, counted down; from a host as much as the network needs.
control CountHops(inout headers_t hdr, in bit<1> is_trunk) {
    apply {
        if (is_trunk == 0 && hdr.ipv4.ttl[7:4] == 0) {
            hdr.ipv4.ttl = TTL_INSIDE;
        } else {
            hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        }
    }
}

#endif
