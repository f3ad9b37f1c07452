/* Queries: operations on keys over UDP, for clients without RDMA (`wire/src/query`).  A memory server's processor answers them; the
 * switches lead a query to the server of its key and tell it a node to begin at, with the tables that lead index reads.
 *
 * A query's own first 32 bytes are what an index read carries in flight: an index header, then the node's address in the place of `va`.
 * So it sets out by writing a few fields, and nothing is put in or taken out.  It has no ICRC; UDP's checksum covers it, and each hop
 * takes away what the fields it may change contribute, and puts it back afterwards:
 *
 *     rest = checksum of { checksum, fields }         before: the sum of all that stays
 *     checksum = checksum of { rest, fields }         afterwards
 *
 * Checksums are in ones' complement: to take away is to add the complement.  Damage stays visible. */

#ifndef FATBTREE_QUERY_P4
#define FATBTREE_QUERY_P4

// What a switch may change, beside the address that the query is sent to and the checksum itself.
#define QUERY_CHECKSUM_FIELDS(hdr) \
    hdr.index.version, hdr.index.flags, hdr.index.epoch, hdr.index.levels, \
    hdr.index.partition, hdr.index.path, hdr.index.slice, hdr.reth.va

/// First hop: whatever the client wrote where switches write is gone, but its path: queries need no order.
control QuerySetsOut(inout headers_t hdr, inout bit<1> is_set_out) {
    action set_out() {
        hdr.index.flags = INDEX_CLIMBING;
        hdr.index.epoch = 0;
        hdr.index.levels = 0;
        hdr.index.partition = ANY_PARTITION;
        hdr.index.path[7:6] = 0;
        hdr.index.slice = 0;
        hdr.reth.va = 0;
        hdr.ipv4.in_flight = 1;
        is_set_out = 1;
    }
    QUERY_SETS_OUT_PLACE
    @hidden table query_sets_out {
        actions = { set_out; }
        const default_action = set_out();
    }
    apply { query_sets_out.apply(); }
}

#endif
