/* The fat root: the most visited top nodes of the tree merged into one very wide node, kept as TCAM
 * range tables (paper section III-B).  A 64-bit range look-up is four look-ups of 16 bits: each stage
 * either lands on a child or names the sub-table to use in the next stage. */

#ifndef FATBTREE_FAT_ROOT_P4
#define FATBTREE_FAT_ROOT_P4

#define FAT_ROOT_STAGE(stage, slice_bits, size_) \
    DIRECT_COUNTER(fat_root_hits_##stage) \
    action next_table_##stage(sub_table_t next) { \
        COUNT(fat_root_hits_##stage) \
        sub_table = next; \
    } \
    action land_##stage(address_t address, partition_t partition, @name("inner") bit<1> inner) { \
        COUNT(fat_root_hits_##stage) \
        child_address = address; \
        child_partition = partition; \
        child_is_inner = inner; \
        landed = 1; \
    } \
    action no_range_##stage() { sub_table = 0; } \
    @entries_with_ranges(1) \
    table fat_root_##stage { \
        key = { \
            sub_table      : exact @name("sub_table"); \
            key_[slice_bits] : range @name("slice"); \
        } \
        actions = { next_table_##stage; land_##stage; @defaultonly no_range_##stage; } \
        const default_action = no_range_##stage(); \
        ATTACH_COUNTER(fat_root_hits_##stage) \
        size = size_; \
    }

/// At a switch with the fat root: the climb ends, the epoch is set, and the packet lands on a child of the fat root.
control FatRoot(inout index_t index, inout address_t va, in epoch_t epoch, in sub_table_t root_sub_table) {
    db_key_t    key_ = index.key;
    sub_table_t sub_table = root_sub_table;
    bit<1>      landed = 0;
    address_t   child_address = 0;
    partition_t child_partition = 0;
    bit<1>      child_is_inner = 0;

    FAT_ROOT_STAGE(0, 63:48, FAT_ROOT_STAGE_ENTRIES)
    FAT_ROOT_STAGE(1, 47:32, FAT_ROOT_STAGE_ENTRIES)
    FAT_ROOT_STAGE(2, 31:16, FAT_ROOT_STAGE_ENTRIES)
    FAT_ROOT_STAGE(3, 15:0,  FAT_ROOT_STAGE_ENTRIES)

    apply {
        index.flags = 0;
        index.epoch = epoch;
        // A miss names no sub-table: later stages miss as well, and the packet goes on with the root of its partition.
        fat_root_0.apply();
        if (landed == 0) { fat_root_1.apply(); }
        if (landed == 0) { fat_root_2.apply(); }
        if (landed == 0) { fat_root_3.apply(); }
        // The connection decides which server is read.  A fat root that disagrees is newer or older
        // than the client's view of the partitions: end at the root of the client's choice.
        if (landed == 1 && child_partition == index.partition) {
            va = child_address;
            index.flags[1:1] = child_is_inner;
            index.levels = index.levels + 1;
        }
    }
}

#endif
