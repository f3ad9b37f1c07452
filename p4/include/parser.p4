/* How a frame is taken apart, in states that every parser of both targets begins at `parse_frame`.
 *
 * VERIFY_IPV4 is where a target checks the header checksum in its parser, or nothing. */

#ifndef FATBTREE_PARSER_P4
#define FATBTREE_PARSER_P4

#define FRAME_STATES(VERIFY_IPV4) \
    state parse_frame { \
        packet.extract(hdr.ethernet); \
        transition select(hdr.ethernet.ether_type) { \
            ETHER_TYPE_IPV4: parse_ipv4; \
            ETHER_TYPE_VLAN: parse_vlan; \
            ETHER_TYPE_ARP: parse_arp; \
            default: accept; \
        } \
    } \
    state parse_vlan { \
        packet.extract(hdr.vlan); \
        transition select(hdr.vlan.ether_type) { \
            ETHER_TYPE_IPV4: parse_ipv4; \
            ETHER_TYPE_ARP: parse_arp; \
            default: accept; \
        } \
    } \
    state parse_arp { \
        packet.extract(hdr.arp); \
        transition accept; \
    } \
    state parse_ipv4 { \
        packet.extract(hdr.ipv4); \
        VERIFY_IPV4 \
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.in_flight, hdr.ipv4.more_fragments, \
                          hdr.ipv4.frag_offset, hdr.ipv4.protocol) { \
            (4, 5, 0, 0, 0, IP_PROTOCOL_UDP): parse_udp; \
            (4, 5, 1, 0, 0, IP_PROTOCOL_UDP): parse_in_flight; \
            (4, 5, 0, 0, 0, IP_PROTOCOL_ICMP): parse_icmp; \
            default: accept; \
        } \
    } \
    state parse_icmp { \
        packet.extract(hdr.icmp); \
        transition accept; \
    } \
    state parse_udp { \
        packet.extract(hdr.udp); \
        transition select(hdr.udp.dst_port, hdr.udp.length) { \
            (UDP_PORT_ROCE, READ_REQUEST_UDP_BYTES): parse_bth; \
            default: accept; \
        } \
    } \
    state parse_in_flight { \
        packet.extract(hdr.udp); \
        transition select(hdr.udp.length) { \
            READ_REQUEST_UDP_BYTES + INDEX_BYTES: parse_index; \
            default: accept; \
        } \
    } \
    state parse_index { \
        packet.extract(hdr.index); \
        transition select(hdr.index.version) { \
            INDEX_VERSION: parse_bth; \
            default: accept; \
        } \
    } \
    state parse_bth { \
        packet.extract(hdr.bth); \
        transition select(hdr.bth.opcode) { \
            RC_RDMA_READ_REQUEST: parse_reth; \
            default: accept; \
        } \
    } \
    state parse_reth { \
        packet.extract(hdr.reth); \
        packet.extract(hdr.icrc); \
        transition accept; \
    }

#endif
