/* RoCE: admitting index reads at the first hop, giving ordinary READs to the server at the last, and keeping
 * the ICRC right at every hop in between.
 *
 * The ICRC is a CRC-32, and CRC-32 is linear: for messages of equal length crc(m) ^ crc(m') depends on m ^ m'
 * only.  So no hop recomputes it over the packet (which would bless damage); each takes away what the fields it
 * is about to change contribute (`contribution` before) and puts back what they contribute afterwards:
 *
 *     icrc ^= contribution(before) ^ contribution(after)
 *
 * While a packet carries the index header, the header contributes as well, and so do the fields that the ICRC leaves out
 * and no checksum covers (source MAC, the BTH's congestion byte); an absent header contributes zeros.  A bit that flips on the way is taken away in its wrong form but was put in in its right form:
 * the difference stays in the ICRC and the server's NIC drops the packet. */

#ifndef FATBTREE_ROCE_P4
#define FATBTREE_ROCE_P4

// The hash gives a number, the wire has its least significant byte first.
#define ON_THE_WIRE(crc) (crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24])

/// What index header, RETH and the fields left out by the ICRC of a packet in flight contribute to its ICRC.
control InFlightContribution(in headers_t hdr, out bit<32> contribution) {
    CRC32(crc)
    apply {
        CRC32_OF(crc, contribution, HASH_FIELDS({
            hdr.index.version, hdr.index.flags, hdr.index.epoch, hdr.index.levels,
            hdr.index.partition, hdr.index.node_id, hdr.index.key,
            hdr.ethernet.src_addr, hdr.bth.reserved, hdr.reth.va, hdr.reth.rkey, 32w0 }))
    }
}

/// What RETH of a packet without the index header contributes to its ICRC.
control PlainContribution(in headers_t hdr, out bit<32> contribution) {
    CRC32(crc)
    apply {
        CRC32_OF(crc, contribution, HASH_FIELDS({
            128w0, 48w0, 8w0, hdr.reth.va, hdr.reth.rkey, 32w0 }))
    }
}

/// First hop: a READ with rkey = 0 on a connection the controller registered becomes an index packet.
control FirstHop(inout headers_t hdr) {
    INDIRECT_COUNTER(unregistered_index_reads, 1)
    InFlightContribution() in_flight_contribution;
    PlainContribution() plain_contribution;
    bit<32> before = 0;
    bit<32> after = 0;

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
        plain_contribution.apply(hdr, before);
        if (roce_connection.apply().hit) {
            in_flight_contribution.apply(hdr, after);
            hdr.icrc.value = hdr.icrc.value ^ ON_THE_WIRE(before) ^ ON_THE_WIRE(after);
        }
    }
}

/// Last hop: the packet leaves the switches towards a server as an ordinary READ, bit for bit.
control LastHop(inout headers_t hdr, in port_t egress_port) {
    InFlightContribution() in_flight_contribution;
    PlainContribution() plain_contribution;
    bit<32> before = 0;
    bit<32> after = 0;

    action strip() {
        hdr.index.setInvalid();
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
        in_flight_contribution.apply(hdr, before);
        if (last_hop.apply().hit) {
            plain_contribution.apply(hdr, after);
            hdr.icrc.value = hdr.icrc.value ^ ON_THE_WIRE(before) ^ ON_THE_WIRE(after);
        }
    }
}

#endif
