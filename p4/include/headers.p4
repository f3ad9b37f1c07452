/* Packet formats: DESIGN section 5, InfiniBand Architecture Specification vol. 1 chapter 9 and
 * annex A17 (RoCEv2).  Both targets include this file. */

#ifndef FATBTREE_HEADERS_P4
#define FATBTREE_HEADERS_P4

typedef bit<48> mac_addr_t;
typedef bit<32> ipv4_addr_t;
typedef bit<64> db_key_t;      // a key of the B+Tree
typedef bit<64> address_t;     // where a node lies: server (16) and offset (48), as RETH carries it
typedef bit<48> offset_t;      // where it lies in its server: the children of a node are on the node's server
typedef bit<16> slot_t;        // compact name of a cached node in its set
typedef bit<8>  stride_t;      // distance of siblings in units of 64 bytes; 0 = not all at the same distance
typedef bit<16> partition_t;
typedef bit<16> sub_table_t;   // one of the 16-bit range tables that make up the fat root; 0 = none
typedef bit<8>  epoch_t;       // number of a complete cache load

const bit<16> ETHER_TYPE_IPV4 = 0x0800;
const bit<8>  IP_PROTOCOL_UDP = 17;
const bit<16> UDP_PORT_ROCE   = 4791;
const bit<16> UDP_PORT_INDEX  = 4792; // only between first and last hop: a parser never has to guess
const bit<8>  RC_RDMA_READ_REQUEST = 0x0C;
// A READ with a key where its address would be has an rkey that is none: 0 for whatever brings the value in the fewest round
// trips, 1 for a node of the tree.
#define IS_KEY_READ(reth) (reth.rkey[31:1] == 0)

const bit<8>  INDEX_VERSION  = 2;
const bit<8>  INDEX_CLIMBING = 1;     // flag: not yet at the core switch that holds the fat root
const bit<8>  INDEX_INNER    = 2;     // flag: `va` is an inner node, which may be cached further on
const bit<16> INDEX_BYTES    = 16;
// A READ request is BTH 12 + RETH 16 + ICRC 4 behind UDP 8: its lengths are known, so others are not index reads.
const bit<16> READ_REQUEST_UDP_BYTES = 40;

header ethernet_t {
    mac_addr_t dst_addr;
    mac_addr_t src_addr;
    bit<16>    ether_type;
}

header ipv4_t {
    bit<4>      version;
    bit<4>      ihl;
    bit<8>      tos;
    bit<16>     total_len;
    bit<16>     identification;
    bit<3>      flags;
    bit<13>     frag_offset;
    bit<8>      ttl;
    bit<8>      protocol;
    bit<16>     checksum;
    ipv4_addr_t src_addr;
    ipv4_addr_t dst_addr;
}

// What the IPv4 header's own checksum covers: all of the header but itself.
#define IPV4_CHECKSUM_FIELDS(ipv4) \
    ipv4.version, ipv4.ihl, ipv4.tos, ipv4.total_len, ipv4.identification, \
    ipv4.flags, ipv4.frag_offset, ipv4.ttl, ipv4.protocol, ipv4.src_addr, ipv4.dst_addr

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

header index_t {
    bit<8>      version;
    bit<8>      flags;
    epoch_t     epoch;
    bit<8>      levels;      // how many levels of the tree the network has walked
    partition_t partition;
    bit<16>     reserved;    // 0
    db_key_t    key;
}

header bth_t {
    bit<8>  opcode;
    bit<8>  flags;           // solicited event, migration, pad count, transport version
    bit<16> partition_key;
    bit<8>  reserved;        // FECN and BECN: the ICRC leaves it out
    bit<24> dest_qp;
    bit<8>  ack_request;
    bit<24> psn;
}

header reth_t {
    bit<64> va;              // key at the client; node address from the first hop on
    bit<32> rkey;            // 0 or 1 at the client; the real one from the first hop on
    bit<32> length;
}

header icrc_t {              // least significant byte first
    bit<8> byte_0;
    bit<8> byte_1;
    bit<8> byte_2;
    bit<8> byte_3;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t     ipv4;
    udp_t      udp;
    index_t    index;
    bth_t      bth;
    reth_t     reth;
    icrc_t     icrc;
}

#endif
