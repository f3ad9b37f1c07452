/* RoCE: admitting index reads at the first hop, giving ordinary READs to the server at the last, and keeping
 * the ICRC right at every hop in between.
 *
 * The ICRC is a CRC-32, and CRC-32 is linear: for messages of equal length crc(m) ^ crc(m') depends on m ^ m'
 * only.  So no hop recomputes it over the packet (which would bless damage); each mends it by the difference of
 * what it changed:
 *
 *     icrc ^= crc(covered before ^ covered after) ^ crc(0)
 *
 * While a packet carries the index header, its ICRC covers the header as well, and so it does the fields that an ICRC leaves
 * out and no checksum covers (source MAC, the BTH's congestion byte); without the header these count as zeros.
 * A bit that flips on the way is nobody's change: it stays in the ICRC and the server's NIC drops the packet. */

#ifndef FATBTREE_ROCE_P4
#define FATBTREE_ROCE_P4

// The hash gives a number, the wire has its least significant byte first.
#define ON_THE_WIRE(crc) (crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24])

// crc(0) of the 39 bytes that a difference has, on the wire: index header 16, source MAC 6, congestion byte 1, va 8, rkey 4,
// and 4 for the length behind them, which nobody changes.
const bit<32> ICRC_OF_NO_DIFFERENCE = 0x20f4f280;

/// First hop: a READ with rkey = 0 on a connection the controller registered becomes an index packet.
control FirstHop(inout headers_t hdr) {
    INDIRECT_COUNTER(unregistered_index_reads, 1)
    CRC32(crc)
    bit<32> difference = 0;

    // The partition's root is where the read ends when no switch knows better: whatever is loaded, and be it
    // nothing, the server never sees rkey = 0 from a registered client.
    action admit(bit<32> rkey, partition_t partition, address_t root) {
        hdr.index.setValid();
        hdr.index.version = INDEX_VERSION;
        hdr.index.flags = INDEX_CLIMBING;
        hdr.index.epoch = 0;
        hdr.index.levels = 0;
        hdr.index.partition = partition;
        hdr.index.node_id = 0;
        hdr.index.key = hdr.reth.va;
        hdr.reth.va = root;
        hdr.reth.rkey = rkey;
        hdr.udp.dst_port = UDP_PORT_INDEX;
        hdr.udp.length = hdr.udp.length + INDEX_BYTES;
        hdr.ipv4.total_len = hdr.ipv4.total_len + INDEX_BYTES;
    }
    // Passes unchanged; the server refuses it (remote access error).
    action unregistered() { COUNT_AT(unregistered_index_reads, 0) }
    table roce_connection {
        key = {
            hdr.ipv4.src_addr : exact @name("src_ip");
            hdr.ipv4.dst_addr : exact @name("dst_ip");
            hdr.bth.dest_qp   : exact @name("dest_qp");
        }
        actions = { admit; @defaultonly unregistered; }
        const default_action = unregistered();
        size = ROCE_CONNECTIONS;
    }
    apply {
        if (roce_connection.apply().hit) {
            // `va` was the key and `rkey` was 0.
            CRC32_OF(crc, difference, HASH_FIELDS({
                hdr.index.version, hdr.index.flags, hdr.index.epoch, hdr.index.levels,
                hdr.index.partition, hdr.index.node_id, hdr.index.key,
                hdr.ethernet.src_addr, hdr.bth.reserved, hdr.reth.va ^ hdr.index.key, hdr.reth.rkey, 32w0 }))
            hdr.icrc.value = hdr.icrc.value ^ ON_THE_WIRE(difference) ^ ICRC_OF_NO_DIFFERENCE;
        }
    }
}

/// What a switch that walks the tree may change.
struct walked_t {
    bit<8>    flags;
    epoch_t   epoch;
    bit<8>    levels;
    node_id_t node_id;
    address_t va;
}

/// Intermediate hop: mends the ICRC by what the walk has changed since `before`.
control MendWalk(inout headers_t hdr, in walked_t before) {
    CRC32(crc)
    bit<32> difference = 0;
    apply {
        CRC32_OF(crc, difference, HASH_FIELDS({
            8w0, hdr.index.flags ^ before.flags, hdr.index.epoch ^ before.epoch, hdr.index.levels ^ before.levels,
            16w0, hdr.index.node_id ^ before.node_id, 64w0,
            48w0, 8w0, hdr.reth.va ^ before.va, 32w0, 32w0 }))
        hdr.icrc.value = hdr.icrc.value ^ ON_THE_WIRE(difference) ^ ICRC_OF_NO_DIFFERENCE;
    }
}

/// Last hop: the packet leaves the switches towards a server as an ordinary READ, bit for bit.
control LastHop(inout headers_t hdr, in port_t egress_port) {
    CRC32(crc)
    bit<32> difference = 0;

    action strip() {
        hdr.udp.dst_port = UDP_PORT_ROCE;
        hdr.udp.length = hdr.udp.length - INDEX_BYTES;
        hdr.ipv4.total_len = hdr.ipv4.total_len - INDEX_BYTES;
    }
    table last_hop {
        key = { egress_port : exact @name("egress_port"); }
        actions = { strip; @defaultonly NoAction; }
        const default_action = NoAction();
        size = SWITCH_PORTS;
    }
    apply {
        if (last_hop.apply().hit) {
            CRC32_OF(crc, difference, HASH_FIELDS({
                hdr.index.version, hdr.index.flags, hdr.index.epoch, hdr.index.levels,
                hdr.index.partition, hdr.index.node_id, hdr.index.key,
                hdr.ethernet.src_addr, hdr.bth.reserved, 64w0, 32w0, 32w0 }))
            hdr.icrc.value = hdr.icrc.value ^ ON_THE_WIRE(difference) ^ ICRC_OF_NO_DIFFERENCE;
            hdr.index.setInvalid();
        }
    }
}

#endif
