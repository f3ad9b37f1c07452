/* A node set: thousands of ordinary 16-branch nodes in SRAM exact tables (paper section III-A), each searched in two
 * steps of four:
 *
 *   coarse    node           -> last keys before children 4, 8 and 12          which quarter of the node
 *   fine      node, quarter  -> last keys before the quarter's other three     which child of the quarter
 *   child     node, branch   -> where the child lies, and the child's own node id
 *
 * The paper compares with all pivots at a time: 16 tables of pivots and 16 of results.  Two steps take two tables and six
 * compares, have three differences alive at a time, and match a 4-bit branch instead of 16 result bits.
 *
 * What is stored is not the pivot but the key before it, the last one of the child before: chips subtract from a
 * table's data, not the other way round, and `last < key` then needs no test of the low half for zero.  The first child
 * needs none: a key comes here only because it is in the node's range.  Children that a node does not have begin behind
 * the last of all keys.
 *
 * 64-bit comparison from 32-bit pieces.  With d = last - key for each half:
 *
 *   high halves differ, same top bit        last < key  iff  d_high has top bit 1
 *   high halves differ, other top bit       last < key  iff  key has top bit 1
 *   high halves equal                       the low halves likewise */

#ifndef FATBTREE_NODE_SET_P4
#define FATBTREE_NODE_SET_P4

#define KEY_HIGH index.key[63:32]
#define KEY_LOW index.key[31:0]

#define COMPARE_VARIABLES(step, i) \
    bit<32> step##_difference_high_##i; \
    bit<32> step##_difference_low_##i; \
    bit<1> step##_last_sign_high_##i; \
    bit<1> step##_last_sign_low_##i;

#define SUBTRACT(step, i) \
    step##_difference_high_##i = last_##i[63:32] - KEY_HIGH; \
    step##_difference_low_##i = last_##i[31:0] - KEY_LOW; \
    step##_last_sign_high_##i = last_##i[63:63]; \
    step##_last_sign_low_##i = last_##i[31:31];

// A hit: the key is above the last one, and these two bits of the branch are `i`.
#define COMPARE(step, i, bits) \
    action step##_is_##i() { branch[bits] = i; } \
    table step##_compare_##i { \
        key = { \
            step##_difference_high_##i       : ternary @name("difference_high"); \
            step##_difference_low_##i[31:31] : ternary @name("difference_low_sign"); \
            index.key[63:63]                 : ternary @name("key_sign_high"); \
            step##_last_sign_high_##i        : ternary @name("last_sign_high"); \
            index.key[31:31]                 : ternary @name("key_sign_low"); \
            step##_last_sign_low_##i         : ternary @name("last_sign_low"); \
        } \
        actions = { step##_is_##i; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            (_, _, 1, 0, _, _)                       : step##_is_##i(); \
            (0x80000000 &&& 0x80000000, _, 0, 0, _, _) : step##_is_##i(); \
            (0x80000000 &&& 0x80000000, _, 1, 1, _, _) : step##_is_##i(); \
            (0, _, _, _, 1, 0)                       : step##_is_##i(); \
            (0, 1, _, _, 0, 0)                       : step##_is_##i(); \
            (0, 1, _, _, 1, 1)                       : step##_is_##i(); \
        } \
    }

control NodeSet(inout index_t index, inout address_t va) {
    bit<4> branch = 0;
    COMPARE_VARIABLES(coarse, 1) COMPARE_VARIABLES(coarse, 2) COMPARE_VARIABLES(coarse, 3)
    COMPARE_VARIABLES(fine, 1) COMPARE_VARIABLES(fine, 2) COMPARE_VARIABLES(fine, 3)

    action compare_quarters(db_key_t last_1, db_key_t last_2, db_key_t last_3) {
        SUBTRACT(coarse, 1) SUBTRACT(coarse, 2) SUBTRACT(coarse, 3)
    }
    table coarse {
        key = {
            index.epoch   : exact @name("epoch");
            index.node_id : exact @name("node_id");
        }
        actions = { compare_quarters; @defaultonly NoAction; }
        const default_action = NoAction();
        size = NODE_SET_NODES;
    }
    COMPARE(coarse, 1, 3:2) COMPARE(coarse, 2, 3:2) COMPARE(coarse, 3, 3:2)

    action compare_children(db_key_t last_1, db_key_t last_2, db_key_t last_3) {
        SUBTRACT(fine, 1) SUBTRACT(fine, 2) SUBTRACT(fine, 3)
    }
    table fine {
        key = {
            index.epoch   : exact @name("epoch");
            index.node_id : exact @name("node_id");
            branch[3:2]   : exact @name("quarter");
        }
        actions = { compare_children; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 4 * NODE_SET_NODES;
    }
    COMPARE(fine, 1, 1:0) COMPARE(fine, 2, 1:0) COMPARE(fine, 3, 1:0)

    DIRECT_COUNTER(child_hits)
    action descend_to(offset_t offset, node_id_t node_id) {
        COUNT(child_hits)
        va[47:0] = offset;
        index.node_id = node_id;
        index.levels = index.levels + 1;
    }
    // The node is here but the child is not: the walk ends, for every later set as well.
    action stop() { index.node_id = 0; }
    table child {
        key = {
            index.epoch   : exact @name("epoch");
            index.node_id : exact @name("node_id");
            branch        : exact @name("branch");
        }
        actions = { descend_to; @defaultonly stop; }
        const default_action = stop();
        ATTACH_COUNTER(child_hits)
        size = NODE_SET_CHILDREN;
    }

    apply {
        // A node that is not in this set passes unchanged: its id may belong to a set further down.
        if (coarse.apply().hit) {
            if (!coarse_compare_3.apply().hit) {
                if (!coarse_compare_2.apply().hit) {
                    coarse_compare_1.apply();
                }
            }
            fine.apply();
            if (!fine_compare_3.apply().hit) {
                if (!fine_compare_2.apply().hit) {
                    fine_compare_1.apply();
                }
            }
            child.apply();
        }
    }
}

#endif
