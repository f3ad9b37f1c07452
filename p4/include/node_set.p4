/* A node set: up to 4096 ordinary 16-branch nodes in SRAM exact tables (paper section III-A).
 *
 *   pivot_0 .. pivot_15      node -> its i-th pivot; the action subtracts the 32-bit halves and xors their top bits
 *   compare_0 .. compare_15  differences and top bits -> one result bit: key >= pivot
 *   child                    node and the 16 result bits -> child address and the child's own node id
 *
 * pivot_0 is the node's low fence: a key below it gives no result bit, finds no child, and the walk ends at
 * this node.  A node with fewer than 16 children repeats its last pivot.
 *
 * 64-bit comparison from 32-bit pieces.  With d = key - pivot for each half:
 *
 *   high halves differ, same top bit        key >= pivot  iff  d_high has top bit 0
 *   high halves differ, other top bit       key >= pivot  iff  key has top bit 1
 *   high halves equal: the low halves likewise. */

#ifndef FATBTREE_NODE_SET_P4
#define FATBTREE_NODE_SET_P4

#define PIVOT_VARIABLES(i) \
    bit<32> difference_high_##i; \
    bit<32> difference_low_##i; \
    bit<1> signs_differ_high_##i; \
    bit<1> signs_differ_low_##i;

#define PIVOT(i) \
    action compare_with_##i(db_key_t pivot) { \
        difference_high_##i = key_high - pivot[63:32]; \
        difference_low_##i = key_low - pivot[31:0]; \
        signs_differ_high_##i = key_high[31:31] ^ pivot[63:63]; \
        signs_differ_low_##i = key_low[31:31] ^ pivot[31:31]; \
    } \
    table pivot_##i { \
        key = { \
            index.epoch   : exact @name("epoch"); \
            index.node_id : exact @name("node_id"); \
        } \
        actions = { compare_with_##i; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        size = NODE_SET_NODES; \
    } \
    action by_high_key_##i()        { results[i:i] = key_high[31:31]; } \
    action by_high_difference_##i() { results[i:i] = ~difference_high_##i[31:31]; } \
    action by_low_key_##i()         { results[i:i] = key_low[31:31]; } \
    action by_low_difference_##i()  { results[i:i] = ~difference_low_##i[31:31]; } \
    table compare_##i { \
        key = { \
            difference_high_##i   : ternary @name("difference_high"); \
            signs_differ_high_##i : ternary @name("signs_differ_high"); \
            signs_differ_low_##i  : ternary @name("signs_differ_low"); \
        } \
        actions = { by_high_key_##i; by_high_difference_##i; by_low_key_##i; by_low_difference_##i; } \
        const default_action = by_high_difference_##i(); \
        const entries = { \
            (0, _, 0) : by_low_difference_##i(); \
            (0, _, 1) : by_low_key_##i(); \
            (_, 1, _) : by_high_key_##i(); \
        } \
    }

control NodeSet(inout index_t index, inout address_t va) {
    bit<32> key_high = index.key[63:32];
    bit<32> key_low = index.key[31:0];
    bit<16> results = 0;
    PIVOT_VARIABLES(0) PIVOT_VARIABLES(1) PIVOT_VARIABLES(2) PIVOT_VARIABLES(3)
    PIVOT_VARIABLES(4) PIVOT_VARIABLES(5) PIVOT_VARIABLES(6) PIVOT_VARIABLES(7)
    PIVOT_VARIABLES(8) PIVOT_VARIABLES(9) PIVOT_VARIABLES(10) PIVOT_VARIABLES(11)
    PIVOT_VARIABLES(12) PIVOT_VARIABLES(13) PIVOT_VARIABLES(14) PIVOT_VARIABLES(15)

    PIVOT(0) PIVOT(1) PIVOT(2) PIVOT(3) PIVOT(4) PIVOT(5) PIVOT(6) PIVOT(7)
    PIVOT(8) PIVOT(9) PIVOT(10) PIVOT(11) PIVOT(12) PIVOT(13) PIVOT(14) PIVOT(15)

    DIRECT_COUNTER(child_hits)
    action descend_to(address_t address, node_id_t node_id) {
        COUNT(child_hits)
        va = address;
        index.node_id = node_id;
        index.levels = index.levels + 1;
    }
    // The node is here but the key is not in it: the walk ends, for every later set as well.
    action stop() { index.node_id = 0; }
    table child {
        key = {
            index.epoch   : exact @name("epoch");
            index.node_id : exact @name("node_id");
            results       : exact @name("results");
        }
        actions = { descend_to; @defaultonly stop; }
        const default_action = stop();
        ATTACH_COUNTER(child_hits)
        size = NODE_SET_CHILDREN;
    }

    apply {
        // A node that is not in this set passes unchanged: its id may belong to a set further down.
        if (pivot_0.apply().hit) {
            pivot_1.apply(); pivot_2.apply(); pivot_3.apply(); pivot_4.apply(); pivot_5.apply();
            pivot_6.apply(); pivot_7.apply(); pivot_8.apply(); pivot_9.apply(); pivot_10.apply();
            pivot_11.apply(); pivot_12.apply(); pivot_13.apply(); pivot_14.apply(); pivot_15.apply();
            compare_0.apply(); compare_1.apply(); compare_2.apply(); compare_3.apply();
            compare_4.apply(); compare_5.apply(); compare_6.apply(); compare_7.apply();
            compare_8.apply(); compare_9.apply(); compare_10.apply(); compare_11.apply();
            compare_12.apply(); compare_13.apply(); compare_14.apply(); compare_15.apply();
            child.apply();
        }
    }
}

#endif
