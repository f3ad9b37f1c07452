/* The fat root: the most visited top nodes of the tree merged into one very wide node, kept as TCAM
 * range tables (paper section III-B).  A 64-bit range look-up is four look-ups of 16 bits: an entry
 * either lands on a child or names the sub-table to use next, and the slice of the key that it looks at.
 *
 * Which stages a sub-table stands in is the controller's choice: a stage that has no entry for a slice
 * leaves everything as it is, and a later one goes on.  So the stages share their rows: where a slice
 * needs more than a stage has, the rest of its sub-tables stands in the next ones, under the same ids. */

#ifndef FATBTREE_FAT_ROOT_P4
#define FATBTREE_FAT_ROOT_P4

// A slice follows the one before it in a later stage: the second one stands in stage 1 at the earliest, and so on.
#define NEXT_SLICE(stage, which, bits) \
    action which##_slice_##stage(sub_table_t next) { \
        COUNT(fat_root_hits_##stage) \
        sub_table = next; \
        slice = key_[bits]; \
    }

#define FAT_ROOT_STAGE(stage, slice_, ways_on, names_of_ways_on, where_none, size_) \
    DIRECT_COUNTER(fat_root_hits_##stage) \
    ways_on \
    action land_##stage(address_t address, partition_t partition, kind_t kind) { \
        COUNT(fat_root_hits_##stage) \
        child_address = address; \
        child_partition = partition; \
        child_kind = kind; \
        landed = 1; \
    } \
    action no_range_##stage() { where_none } \
    @entries_with_ranges(1) \
    table fat_root_##stage { \
        key = { \
            sub_table : exact @name("sub_table"); \
            slice_    : range @name("slice"); \
        } \
        actions = { names_of_ways_on land_##stage; @defaultonly no_range_##stage; } \
        const default_action = no_range_##stage(); \
        ATTACH_COUNTER(fat_root_hits_##stage) \
        size = size_; \
    }

/// At a switch with the fat root: the climb ends, the epoch is set, and the packet lands on a child of the fat root.
control FatRoot(inout index_t index, inout address_t va, in epoch_t epoch, inout sub_table_t sub_table) {
#define key_ index.key
    bit<16>     slice = 0;
    bit<1>      landed = 0;
    address_t   child_address = 0;
    partition_t child_partition = 0;
    kind_t      child_kind = 0;

    // The first stage sees the first slice alone, in the key itself: a chip need not copy it before.
    FAT_ROOT_STAGE(0, key_[63:48],
        NEXT_SLICE(0, second, 47:32),
        second_slice_0;, slice = key_[63:48];, FAT_ROOT_STAGE_ENTRIES)
    FAT_ROOT_STAGE(1, slice,
        NEXT_SLICE(1, second, 47:32) NEXT_SLICE(1, third, 31:16),
        second_slice_1; third_slice_1;, , FAT_ROOT_STAGE_ENTRIES)
    FAT_ROOT_STAGE(2, slice,
        NEXT_SLICE(2, second, 47:32) NEXT_SLICE(2, third, 31:16) NEXT_SLICE(2, last, 15:0),
        second_slice_2; third_slice_2; last_slice_2;, , FAT_ROOT_STAGE_ENTRIES)
    FAT_ROOT_STAGE(3, slice, , , , FAT_ROOT_STAGE_ENTRIES)

    action set_epoch() {
        index.flags = 0;
        index.epoch = epoch;
    }

    apply {
        // Where no stage has an entry the packet goes on with the root of its partition.
        fat_root_0.apply();
        if (landed == 0) { fat_root_1.apply(); }
        if (landed == 0) { fat_root_2.apply(); }
        // Not before the look-ups: a chip begins them while others still write.
        set_epoch();
        if (landed == 0) { fat_root_3.apply(); }
        // The connection decides which server is read.  A fat root that disagrees is newer or older
        // than the client's view of the partitions: end at the root of the client's choice.  A query has none.
        if (landed == 1 && (child_partition == index.partition || index.partition == ANY_PARTITION)) {
            index.partition = child_partition;
            va = child_address;
            index.flags[2:1] = child_kind;
            index.levels = index.levels + 1;
        }
    }
}

#endif
