/* A node set: thousands of ordinary 16-branch nodes in SRAM exact tables (paper section III-A), each searched in two
 * steps of four:
 *
 *   coarse    node            -> last keys before children 4, 8 and 12; where its children lie    which quarter of the node
 *   fine      slot, quarter   -> last keys before the quarter's other three                       which child of the quarter
 *   run       stride, branch  -> how far that child lies behind the first one
 *   child     slot, branch    -> where the child lies, for nodes whose children do not lie at equal distances
 *
 * The paper compares with all pivots at a time: 16 tables of pivots, 16 of results, and 16 addresses of children.  Two steps
 * take two tables and six compares, and siblings that were written one behind the other need one address for all of them.
 *
 * A node is called by its address, which the packet carries anyway: so it says nothing about its children whether they are
 * cached, and where.  `coarse` matches the address; the slot is what the rest of the node is called by in this set.
 *
 * What is stored is not the pivot but the key before it, the last one of the child before: chips subtract from a
 * table's data, not the other way round, and `last < key` then needs no test for zero.  The first child needs none: a key comes
 * here only because it is in the node's range.  Children that a node does not have begin behind the last of all keys.
 *
 * Most nodes need only one half of their pivots.  The action of an entry says which one: the high half where no pivot has
 * anything in its low half (separators of a tree are short ones), the low half where all keys of the node have the same high
 * half.  Others are in tables of their own, `coarse_whole` and `fine_whole`.
 *
 * 64-bit comparison from 32-bit pieces.  With d = last - key for each half:
 *
 *   high halves differ, same top bit        last < key  iff  d_high has top bit 1
 *   high halves differ, other top bit       last < key  iff  key has top bit 1
 *   high halves equal                       the low halves likewise
 *
 * Where the low half alone counts, d_high is 0; where the high half alone counts, the low halves say no. */

#ifndef FATBTREE_NODE_SET_P4
#define FATBTREE_NODE_SET_P4

#define KEY_HIGH index.key[63:32]
#define KEY_LOW index.key[31:0]

#define COMPARE_VARIABLES(step, i) \
    bit<32> step##_difference_high_##i = 0; \
    bit<32> step##_difference_low_##i = 0; \
    bit<1> step##_last_sign_high_##i = 0; \
    bit<1> step##_last_sign_low_##i = 0;

#define SUBTRACT_HIGH(step, i, last) \
    step##_difference_high_##i = last - index.key[63:32]; \
    step##_last_sign_high_##i = last[31:31];
#define SUBTRACT_LOW(step, i, last) \
    step##_difference_low_##i = last - index.key[31:0]; \
    step##_last_sign_low_##i = last[31:31];

// As if the high halves were equal; the last one's sign is then never below the key's.
#define EQUAL_HIGH(step, i) step##_difference_high_##i = 0; step##_last_sign_high_##i = 1;
// As if the low half of the key were not above this one.
#define NOT_ABOVE_LOW(step, i) step##_difference_low_##i = 0; step##_last_sign_low_##i = 1;

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
            (0, _, _, _, 1, 0)                       : step##_is_##i(); \
            (0, 1, _, _, 0, 0)                       : step##_is_##i(); \
            (0, 1, _, _, 1, 1)                       : step##_is_##i(); \
            (_, _, 1, 0, _, _)                       : step##_is_##i(); \
            (0x80000000 &&& 0x80000000, _, 0, 0, _, _) : step##_is_##i(); \
            (0x80000000 &&& 0x80000000, _, 1, 1, _, _) : step##_is_##i(); \
        } \
    }

/// Room for so many nodes of both epochs, and for so many that are searched by whole keys.  A set that goes to slices leads to the slice of a leaf
/// at once: no later step has to look for it.  Others only say that it is a leaf.
control NodeSet(inout index_t index, inout address_t va, in bit<32> slice)(bit<32> nodes, bit<32> whole_nodes, bool goes_to_slices) {
    bit<4> branch = 0;
    slot_t slot = 0;
    bit<16> first_child_high = 0;
    bit<32> first_child_low = 0;
    stride_t stride = 0;
    kind_t kind = 0;
    bit<32> slice_of_leaf = 0;
    COMPARE_VARIABLES(coarse, 1) COMPARE_VARIABLES(coarse, 2) COMPARE_VARIABLES(coarse, 3)
    COMPARE_VARIABLES(fine, 1) COMPARE_VARIABLES(fine, 2) COMPARE_VARIABLES(fine, 3)

#define COMPARE_HIGH(step) \
    SUBTRACT_HIGH(step, 1, last_1) SUBTRACT_HIGH(step, 2, last_2) SUBTRACT_HIGH(step, 3, last_3) \
    NOT_ABOVE_LOW(step, 1) NOT_ABOVE_LOW(step, 2) NOT_ABOVE_LOW(step, 3)
#define COMPARE_LOW(step) \
    SUBTRACT_LOW(step, 1, last_1) SUBTRACT_LOW(step, 2, last_2) SUBTRACT_LOW(step, 3, last_3) \
    EQUAL_HIGH(step, 1) EQUAL_HIGH(step, 2) EQUAL_HIGH(step, 3)
#define COMPARE_WHOLE(step) \
    SUBTRACT_HIGH(step, 1, last_1[63:32]) SUBTRACT_HIGH(step, 2, last_2[63:32]) SUBTRACT_HIGH(step, 3, last_3[63:32]) \
    SUBTRACT_LOW(step, 1, last_1[31:0]) SUBTRACT_LOW(step, 2, last_2[31:0]) SUBTRACT_LOW(step, 3, last_3[31:0])
#define HALVES bit<32> last_1, bit<32> last_2, bit<32> last_3
#define WHOLES db_key_t last_1, db_key_t last_2, db_key_t last_3

    DIRECT_COUNTER(visits)
    DIRECT_COUNTER(whole_visits)
#define NODE \
    @name("slot") slot_t slot_, offset_t first_child, @name("stride") stride_t stride_, @name("kind") kind_t kind_
#define IS_HERE \
    slot = slot_; \
    first_child_high = first_child[47:32]; \
    first_child_low = first_child[31:0]; \
    stride = stride_; \
    kind = kind_;
    action quarter_by_high(HALVES, NODE) { COUNT(visits) IS_HERE COMPARE_HIGH(coarse) }
    action quarter_by_low(HALVES, NODE) { COUNT(visits) IS_HERE COMPARE_LOW(coarse) }
    action quarter_by_whole(WHOLES, NODE) { COUNT(whole_visits) IS_HERE COMPARE_WHOLE(coarse) }
    table coarse {
        key = {
            index.epoch : exact @name("epoch");
            va          : exact @name("address");
        }
        actions = { quarter_by_high; quarter_by_low; @defaultonly NoAction; }
        const default_action = NoAction();
        ATTACH_COUNTER(visits)
        size = nodes;
    }
    table coarse_whole {
        key = {
            index.epoch : exact @name("epoch");
            va          : exact @name("address");
        }
        actions = { quarter_by_whole; @defaultonly NoAction; }
        const default_action = NoAction();
        ATTACH_COUNTER(whole_visits)
        size = whole_nodes;
    }
    COMPARE(coarse, 1, 3:2) COMPARE(coarse, 2, 3:2) COMPARE(coarse, 3, 3:2)

    action child_by_high(HALVES) { COMPARE_HIGH(fine) }
    action child_by_low(HALVES) { COMPARE_LOW(fine) }
    action child_by_whole(WHOLES) { COMPARE_WHOLE(fine) }
    table fine {
        key = {
            index.epoch   : exact @name("epoch");
            slot          : exact @name("slot");
            branch[3:2]   : exact @name("quarter");
        }
        actions = { child_by_high; child_by_low; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 4 * nodes;
    }
    table fine_whole {
        key = {
            index.epoch   : exact @name("epoch");
            slot          : exact @name("slot");
            branch[3:2]   : exact @name("quarter");
        }
        actions = { child_by_whole; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 4 * whole_nodes;
    }
    COMPARE(fine, 1, 1:0) COMPARE(fine, 2, 1:0) COMPARE(fine, 3, 1:0)

    // The children of a node are inner nodes, all of them or none.
#define DESCEND \
    index.flags[2:1] = kind; \
    index.levels = index.levels + 1;
    // The node is here but the child is not: the walk ends at an inner node, for every later set as well.
    action stop() { index.flags[2:1] = 0; }

    // Runs and nodes do not cross a border of 4 GB, so nothing is carried.
    action descend_by(bit<32> distance) {
        va[31:0] = first_child_low + distance;
        va[47:32] = first_child_high;
        DESCEND
    }
    table run {
        key = {
            stride : exact @name("stride");
            branch : exact @name("branch");
        }
        actions = { descend_by; @defaultonly stop; }
        const default_action = stop();
        size = NODE_SET_STRIDES;
    }

    action descend_to(offset_t offset) {
        GO_TO_CHILD(va, offset, slice_of_leaf)
        DESCEND
    }
    table child {
        key = {
            index.epoch   : exact @name("epoch");
            slot          : exact @name("slot");
            branch        : exact @name("branch");
        }
        actions = { descend_to; @defaultonly stop; }
        const default_action = stop();
        size = NODE_SET_CHILDREN(nodes);
    }

    // While the branch is being found: it costs no stage.
    action go_to_slice() {
        first_child_low = first_child_low + slice;
        slice_of_leaf = slice;
        kind = 0;
    }

    bit<1> is_here = 0;

    apply {
        // A node that is not in this set passes unchanged: it may be in a set further down.
        if (coarse.apply().hit) {
            is_here = 1;
        } else if (coarse_whole.apply().hit) {
            is_here = 1;
        }
        if (is_here == 1) {
            if (goes_to_slices && kind == KIND_LEAF) {
                go_to_slice();
            }
            if (!coarse_compare_3.apply().hit) {
                if (!coarse_compare_2.apply().hit) {
                    coarse_compare_1.apply();
                }
            }
            if (!fine.apply().hit) {
                fine_whole.apply();
            }
            if (!fine_compare_3.apply().hit) {
                if (!fine_compare_2.apply().hit) {
                    fine_compare_1.apply();
                }
            }
            if (stride != 0) {
                run.apply();
            } else {
                child.apply();
            }
        }
    }
}

#endif
