/* Table sizes of each role on each chip: the largest that fit (RESOURCES.md).  Tables of the tree hold two epochs side
 * by side: a node set of 8192 entries is one of 4096 nodes that can be reloaded without a gap. */

#if __TARGET_TOFINO__ == 2
#define NODE_SET_NODES 16384
#elif defined(ROLE_CORE)
#define NODE_SET_NODES 16384
#elif defined(ROLE_AGGREGATION)
#define NODE_SET_NODES 10240
#else
#define NODE_SET_NODES 8192
#endif
#define NODE_SET_CHILDREN (16 * NODE_SET_NODES)

// TCAM rows: all 24 blocks of a stage (of two on Tofino 2), two blocks wide.  A range takes 1 to 7 of them; how many,
// the controller counts for the plan at hand, so the compiler is told to add as good as none (one range, 6 rows).
#if __TARGET_TOFINO__ == 2
#define FAT_ROOT_STAGE_ENTRIES 12282
#else
#define FAT_ROOT_STAGE_ENTRIES 6138
#endif

#define ROCE_CONNECTIONS 4096
#define SWITCH_PORTS 512
#define PARTITIONS 1024
#define IPV4_ROUTES 1024
