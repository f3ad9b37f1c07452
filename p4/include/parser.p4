/* How a frame is taken apart, in states that every parser of both targets begins at `parse_frame`.
 *
 * VERIFY_IPV4 is where a target checks the header checksum in its parser, TAKE_FROM_CHECKSUM(fields) and REST_OF_CHECKSUM where it finds
 * out what UDP's checksum of a query is without the fields that switches may change (query.p4), or nothing. */

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
        TAKE_FROM_CHECKSUM(hdr.ipv4.dst_addr) \
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
            (UDP_PORT_ROCE, READ_REQUEST_UDP_BYTES): parse_read; \
            (UDP_PORT_QUERY, QUERY_UDP_BYTES .. 0xffff): parse_query_start; \
            default: parse_other_udp; \
        } \
    } \
    state parse_other_udp { \
        packet.extract(hdr.udp_checksum); \
        transition accept; \
    } \
    state parse_read { \
        packet.extract(hdr.udp_checksum); \
        transition parse_bth; \
    } \
    state parse_query_start { \
        transition select(packet.lookahead<bit<24>>()) { \
            0 &&& 0xffff00: parse_other_udp; \
            QUERY_START &&& 0x0000ff: parse_query; \
            default: parse_other_udp; \
        } \
    } \
    state parse_query { \
        packet.extract(hdr.query_checksum); \
        TAKE_FROM_CHECKSUM(hdr.query_checksum.value) \
        packet.extract(hdr.index); \
        packet.extract(hdr.reth); \
        TAKE_FROM_CHECKSUM(QUERY_CHECKSUM_FIELDS(hdr)) \
        REST_OF_CHECKSUM \
        transition accept; \
    } \
    state parse_in_flight { \
        packet.extract(hdr.udp); \
        transition select(hdr.udp.dst_port, hdr.udp.length) { \
            (UDP_PORT_QUERY, QUERY_UDP_BYTES .. 0xffff): parse_query_start; \
            (_, READ_REQUEST_UDP_BYTES + INDEX_BYTES): parse_index; \
            default: parse_other_udp; \
        } \
    } \
    state parse_index { \
        packet.extract(hdr.udp_checksum); \
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
