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
const bit<2> KIND_LEAF = 2;
typedef bit<2>  kind_t;        // of a node: 1 = inner, 2 = leaf, 0 = not known; bits 2..1 of the flags in the index header
typedef bit<16> partition_t;
typedef bit<16> sub_table_t;   // one of the 16-bit range tables that make up the fat root; 0 = none
typedef bit<8>  path_t;        // below 64: drawn from the connection
typedef bit<8>  epoch_t;       // number of a complete cache load

const bit<16> ETHER_TYPE_IPV4  = 0x0800;
const bit<16> ETHER_TYPE_ARP   = 0x0806;
const bit<16> ETHER_TYPE_VLAN  = 0x8100;
const bit<16> ETHER_TYPE_IPV6  = 0x86dd;
const bit<16> ETHER_TYPE_PROBE = 0x88b5; // between switches: the controller asks whether a cable is whole (IEEE 802, local experiments)
const bit<8>  IP_PROTOCOL_ICMP = 1;
const bit<8>  IP_PROTOCOL_UDP  = 17;
const bit<16> UDP_PORT_ROCE    = 4791;
const bit<16> UDP_PORT_QUERY   = 4793;
const bit<8>  RC_RDMA_READ_REQUEST = 0x0C;
// A READ with a key where its address would be has an rkey that is none, below 256.  It says what the read wants:
//
//     bits 7..3   the slice of a leaf that begins at this line, in units of 64 bytes; 0 = the whole leaf
//     bits 2..1   not used
//     bit  0      0 = whatever brings the value in the fewest round trips, 1 = a node of the tree
#define IS_KEY_READ(reth) (reth.rkey[31:8] == 0)

const bit<8>  INDEX_VERSION  = 4;
const bit<8>  INDEX_CLIMBING = 1;     // flag: not yet at the core switch that holds the fat root
const bit<8>  INDEX_INNER    = 2;     // flag: `va` is an inner node, which may be cached further on
const bit<8>  INDEX_LEAF     = 4;     // flag: `va` is a leaf, where the walk has ended, and no slice is added to it yet
const bit<16> INDEX_BYTES    = 16;
// A READ request is BTH 12 + RETH 16 + ICRC 4 behind UDP 8: its lengths are known, so others are not index reads.
const bit<16> READ_REQUEST_UDP_BYTES = 40;
// A query is at least its header, 64 bytes behind UDP's 8.
const bit<16> QUERY_UDP_BYTES = 72;
// UDP's checksum, 0 where there is none to keep right, and the version of the index header.
const bit<24> QUERY_START = (bit<24>) INDEX_VERSION;
const partition_t ANY_PARTITION = 0xffff; // of a query that no fat root has led anywhere yet

header ethernet_t {
    mac_addr_t dst_addr;
    mac_addr_t src_addr;
    bit<16>    ether_type;
}

header vlan_t {
    bit<3>  priority;
    bit<1>  drop_eligible;
    bit<12> id;
    bit<16> ether_type;
}

header arp_t {
    bit<32>     kinds;       // of hardware and of protocol: Ethernet and IPv4
    bit<16>     lengths;     // of their addresses: 6 and 4
    bit<16>     operation;
    mac_addr_t  sender_mac;
    ipv4_addr_t sender_ip;
    mac_addr_t  target_mac;
    ipv4_addr_t target_ip;
}

const bit<32> ARP_KINDS   = 0x00010800;
const bit<16> ARP_LENGTHS = 0x0604;
const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY   = 2;

header ipv4_t {
    bit<4>      version;
    bit<4>      ihl;
    bit<8>      tos;
    bit<16>     total_len;
    bit<16>     identification;
    bit<1>      in_flight;   // RFC 791: reserved, 0. Between first and last hop: an index header is behind UDP
    bit<1>      dont_fragment;
    bit<1>      more_fragments;
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
    ipv4.in_flight, ipv4.dont_fragment, ipv4.more_fragments, ipv4.frag_offset, ipv4.ttl, ipv4.protocol, ipv4.src_addr, ipv4.dst_addr

header icmp_t {
    bit<8>  type;
    bit<8>  code;
    bit<16> checksum;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
}

// Behind it; of a query a header of another name.
header udp_checksum_t {
    bit<16> value;
}

header index_t {
    bit<8>      version;
    bit<8>      flags;
    epoch_t     epoch;
    bit<8>      levels;      // how many levels of the tree the network has walked
    partition_t partition;
    path_t      path;        // which of the ways to a fat root it takes
    bit<8>      slice;       // bits 7..3 as in the rkey, bits 2..0 are 0; on the way to a second pass, the queue
    db_key_t    key;
}

// Where the slice of a leaf begins.
#define SLICE_OFFSET(index) (21w0 ++ index.slice[7:3] ++ 6w0)

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
    bit<32> rkey;            // below 256 at the client; the real one from the first hop on
    bit<32> length;
}

header icrc_t {              // least significant byte first
    bit<8> byte_0;
    bit<8> byte_1;
    bit<8> byte_2;
    bit<8> byte_3;
}

// What the controller sends: a frame that leaves by this port as it is.  Ports stand as a Tofino's own headers have them.
@controller_header("packet_out")
header packet_out_t {
    @padding bit<7> padding;
    bit<9> egress_port;
}

// What the controller gets: a probe, or a sample of what was dropped.
@controller_header("packet_in")
header packet_in_t {
    @padding bit<7> padding;
    bit<9> ingress_port;
    bit<8> reason;           // 0: a probe; others: dropped, for this reason
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
    vlan_t       vlan;
    arp_t        arp;
    ipv4_t       ipv4;
    icmp_t       icmp;
    udp_t        udp;
    udp_checksum_t udp_checksum;
    udp_checksum_t query_checksum; // of a query: it has no BTH but an index header and, in the place of the RETH, what is like it
    index_t      index;
    bth_t        bth;
    reth_t       reth;
    icrc_t       icrc;
}

#endif
