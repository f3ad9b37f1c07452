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
            default: accept; \
        } \
    } \
    state parse_ipv4 { \
        packet.extract(hdr.ipv4); \
        VERIFY_IPV4 \
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.frag_offset, hdr.ipv4.protocol) { \
            (4, 5, 0, IP_PROTOCOL_UDP): parse_udp; \
            default: accept; \
        } \
    } \
    state parse_udp { \
        packet.extract(hdr.udp); \
        transition select(hdr.udp.dst_port, hdr.udp.length) { \
            (UDP_PORT_ROCE, READ_REQUEST_UDP_BYTES): parse_bth; \
            (UDP_PORT_INDEX, READ_REQUEST_UDP_BYTES + INDEX_BYTES): parse_index; \
            default: accept; \
        } \
    } \
    state parse_index { \
        packet.extract(hdr.index); \
        transition parse_bth; \
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
