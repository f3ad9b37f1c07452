/* RoCE: admitting index reads at the first hop, giving ordinary READs to the server at the last, and keeping
 * the ICRC right at every hop in between.
 *
 * The ICRC is a CRC-32, and CRC-32 is linear: what a field contributes can be taken away and put back without looking at
 * the rest.  So no hop recomputes the ICRC over the packet (which would bless damage); each mends it:
 *
 *     icrc ^= L(fields it is about to change)      before
 *     icrc ^= L(the same fields)                   afterwards
 *
 * L is the CRC without its initial value and final xor, of the fields in their places among zeros.
 *
 * While a packet carries the index header, its ICRC covers the header as well, and so it does the fields that an ICRC leaves
 * out and no checksum covers (source MAC, the BTH's congestion byte); without the header these count as zeros.
 * A bit that flips on the way is taken away in its wrong form but was put in in its right form: the difference stays in
 * the ICRC, and the server's NIC drops the packet. */

#ifndef FATBTREE_ROCE_P4
#define FATBTREE_ROCE_P4

// Mends the ICRC by what these fields contribute.  The hash gives a number, the wire has its least significant byte first.
// Two tables, for a chip hashes in one step and combines in the next; there is nothing to load into them.
#define ICRC_CONTRIBUTION(name, ...) \
    LINEAR_CRC32(name##_crc) \
    bit<8> name##_0; \
    bit<8> name##_1; \
    bit<8> name##_2; \
    bit<8> name##_3; \
    action name##_compute() { \
        bit<32> contribution; \
        LINEAR_CRC32_OF(name##_crc, contribution, HASH_FIELDS(__VA_ARGS__)) \
        name##_0 = contribution[7:0]; \
        name##_1 = contribution[15:8]; \
        name##_2 = contribution[23:16]; \
        name##_3 = contribution[31:24]; \
    } \
    @hidden table name { \
        actions = { name##_compute; } \
        const default_action = name##_compute(); \
    } \
    action name##_mend() { \
        hdr.icrc.byte_0 = hdr.icrc.byte_0 ^ name##_0; \
        hdr.icrc.byte_1 = hdr.icrc.byte_1 ^ name##_1; \
        hdr.icrc.byte_2 = hdr.icrc.byte_2 ^ name##_2; \
        hdr.icrc.byte_3 = hdr.icrc.byte_3 ^ name##_3; \
    } \
    @hidden table name##_into_icrc { \
        actions = { name##_mend; } \
        const default_action = name##_mend(); \
    }

// The places of all fields that are ever mended: index header 16 bytes, source MAC 6, congestion byte 1, va 8, rkey 4, and 4
// for the length behind them, which nobody changes.  Targets whose CRC-32 has an initial value and a final xor take away
// the CRC of 39 zeros.
const bit<32> CRC32_OF_ZEROS = 0x80f2f420;

// Why a READ with a key is not admitted: indices of `refused_index_reads`.
#define REFUSED_REASONS 2
const int REFUSED_UNREGISTERED = 0; // on no connection of this host
const int REFUSED_TOO_LONG     = 1; // its response would take several packets, and be resumed at another key

/// First hop: a READ with an rkey below 256 on a connection the controller registered becomes an index packet.  Its ICRC is mended
/// by half: `MendSetOut` does the rest, at once or, where the fat root is in the same switch, behind it.
control FirstHop(inout headers_t hdr, in port_t ingress_port, inout bit<1> is_set_out, inout bit<1> is_hot) {
    INDIRECT_COUNTER(refused_index_reads, REFUSED_REASONS)
    PATH_HASH(path_hash)
    ICRC_CONTRIBUTION(key_read, { 64w0, 64w0, 48w0, 8w0, hdr.reth.va, hdr.reth.rkey, 32w0 })

    bit<32>     rkey = 0;
    partition_t partition = 0;
    address_t   root = 0;
    bit<16>     udp_port = 0;
    bit<16>     spare = 0;
    // A connection is its client's: by the port of the switch, the MAC address and the address.  The partition's root is where the
    // read ends when no switch knows better: whatever is loaded, and be it nothing, the server never sees an rkey below 256 from a
    // registered client.  `mtu` is the longest READ that is answered in one packet.
    action admit(@name("rkey") bit<32> rkey_, @name("partition") partition_t partition_, @name("root") address_t root_,
                 @name("udp_port") bit<16> udp_port_, bit<16> mtu) {
        rkey = rkey_;
        partition = partition_;
        root = root_;
        udp_port = udp_port_;
        spare = mtu - hdr.reth.length[15:0];
    }
    // Passes unchanged; the server refuses it (remote access error).
    action unregistered() { COUNT_AT(refused_index_reads, REFUSED_UNREGISTERED) }
    action too_long() { COUNT_AT(refused_index_reads, REFUSED_TOO_LONG) }
    ROCE_CONNECTION_PLACE
    table roce_connection {
        key = {
            ingress_port          : exact @name("port");
            hdr.ethernet.src_addr : exact @name("src_mac");
            hdr.ipv4.src_addr     : exact @name("src_ip");
            hdr.ipv4.dst_addr     : exact @name("dst_ip");
            hdr.bth.dest_qp       : exact @name("dest_qp");
        }
        actions = { admit; @defaultonly unregistered; }
        const default_action = unregistered();
        size = ROCE_CONNECTIONS;
    }

    // From here on it is an index packet.
    action set_out() {
        hdr.index.setValid();
        hdr.index.version = INDEX_VERSION;
        hdr.index.flags = INDEX_CLIMBING;
        hdr.index.epoch = 0;
        hdr.index.levels = 0;
        hdr.index.partition = partition;
        hdr.index.path[7:6] = 0;
        hdr.index.slice[7:3] = hdr.reth.rkey[7:3];
        hdr.index.slice[2:0] = 0;
        hdr.index.key = hdr.reth.va;
        hdr.udp.dst_port = udp_port;
        hdr.udp.length = hdr.udp.length + INDEX_BYTES;
        hdr.ipv4.total_len = hdr.ipv4.total_len + INDEX_BYTES;
        hdr.ipv4.in_flight = 1;
        is_set_out = 1;
    }

    // By connection: a server wants the packets of one in their order.
    action draw_path() {
        PATH_HASH_OF(path_hash, hdr.index.path[5:0], { hdr.ipv4.src_addr, hdr.bth.dest_qp })
    }

    // Keys that are asked for so often that they have an entry each: where the key's record lies in the server or, where values
    // are in the leaves, its leaf, of which a slice may be wanted. Such a read passes by the fat root and all node sets. Entries have
    // no epoch: each is a hint by itself, and who reads checks what it finds. Entries are for reads that do not want a node.
    address_t hot_address = 0;
    bit<8>    hot_flags = 0;
    action go_to(address_t address, kind_t kind) {
        hot_address = address;
        hot_flags[2:1] = kind;
        is_hot = 1;
    }
    HOT_KEY_PLACE
    table hot_key {
        key = {
            hdr.ipv4.dst_addr  : exact @name("dst_ip");
            hdr.reth.va        : exact @name("key");
            hdr.reth.rkey[0:0] : exact @name("wants_node");
        }
        actions = { go_to; @defaultonly NoAction; }
        const default_action = NoAction();
        size = HOT_KEYS;
    }

    // Address and rkey come last, for the key of `hot_key` is in their places.
    action aim_at_root() {
        hdr.reth.va = root;
        hdr.reth.rkey = rkey;
    }
    action aim_at_value() {
        hdr.reth.va = hot_address;
        hdr.reth.rkey = rkey;
        hdr.index.flags = hot_flags;
    }

    apply {
        key_read.apply();
        if (roce_connection.apply().hit) {
            if (hdr.reth.length[31:15] != 0 || spare[15:15] == 1) {
                too_long();
            } else {
                // `va` is the key, and `rkey` below 256.
                key_read_into_icrc.apply();
                set_out();
                draw_path();
            }
        }
        // Whether or not the connection is known: a chip does both at once.
        hot_key.apply();
        if (is_set_out == 1) {
            if (is_hot == 1) {
                aim_at_value();
            } else {
                aim_at_root();
            }
        }
    }
}

/// A packet that has set out: its ICRC covers what it is now.
control MendSetOut(inout headers_t hdr) {
    ICRC_CONTRIBUTION(in_flight, {
        hdr.index.version, hdr.index.flags, hdr.index.epoch, hdr.index.levels,
        hdr.index.partition, hdr.index.path, hdr.index.slice, hdr.index.key,
        hdr.ethernet.src_addr, hdr.bth.reserved, hdr.reth.va, hdr.reth.rkey, 32w0 })
    apply {
        in_flight.apply();
        in_flight_into_icrc.apply();
    }
}

/// Intermediate hop: mends the ICRC by what a walk may change; once before it and once afterwards.
control MendWalked(inout headers_t hdr) {
    ICRC_CONTRIBUTION(walked, {
        8w0, hdr.index.flags, hdr.index.epoch, hdr.index.levels,
        16w0, 16w0, 64w0,
        48w0, 8w0, hdr.reth.va, 32w0, 32w0 })
    apply {
        walked.apply();
        walked_into_icrc.apply();
    }
}

// `to_roce` leads from the port of packets in flight to RoCE's: a bit that was flipped on the way stays so.
#define LAST_HOP_TABLE \
    action strip(bit<16> to_roce) { \
        hdr.udp.dst_port = hdr.udp.dst_port + to_roce; \
        hdr.udp.length = hdr.udp.length - INDEX_BYTES; \
        hdr.ipv4.total_len = hdr.ipv4.total_len - INDEX_BYTES; \
        hdr.ipv4.in_flight = 0; \
    } \
    table last_hop { \
        key = { egress_port : exact @name("egress_port"); } \
        actions = { strip; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        size = SWITCH_PORTS; \
    }

/// Last hop: the packet leaves the switches towards a server as an ordinary READ, bit for bit.  If the walk has ended at a leaf, it reads
/// the slice that its client wants; the root, an inner node or a hot key's record it reads as a whole.
control LastHop(inout headers_t hdr, in port_t egress_port) {
    address_t moved = 0; // old xor new
    ICRC_CONTRIBUTION(index_header, {
        hdr.index.version, hdr.index.flags, hdr.index.epoch, hdr.index.levels,
        hdr.index.partition, hdr.index.path, hdr.index.slice, hdr.index.key,
        hdr.ethernet.src_addr, hdr.bth.reserved, moved, 32w0, 32w0 })
    LAST_HOP_TABLE
    // A node does not cross a border of 4 GB, so nothing is carried.
    action go_to_slice() {
        moved = hdr.reth.va;
        hdr.reth.va[31:0] = hdr.reth.va[31:0] + SLICE_OFFSET(hdr.index);
        moved = moved ^ hdr.reth.va;
    }
    apply {
        if (last_hop.apply().hit) {
            if (hdr.index.flags & INDEX_LEAF != 0) {
                go_to_slice();
            }
            index_header.apply();
            index_header_into_icrc.apply();
            hdr.index.setInvalid();
        }
    }
}

/// The same behind a walk that has gone to the slice: `MendWalked` has taken away what a walk may change, and it is put back here, if it is still
/// there.
control LastHopOfWalk(inout headers_t hdr, in port_t egress_port) {
    ICRC_CONTRIBUTION(rest, {
        hdr.index.version, 8w0, 8w0, 8w0,
        hdr.index.partition, hdr.index.path, hdr.index.slice, hdr.index.key,
        hdr.ethernet.src_addr, hdr.bth.reserved, hdr.reth.va, 32w0, 32w0 })
    MendWalked() put_back;
    LAST_HOP_TABLE
    apply {
        if (last_hop.apply().hit) {
            rest.apply();
            rest_into_icrc.apply();
            hdr.index.setInvalid();
        } else {
            put_back.apply(hdr);
        }
    }
}

#endif
