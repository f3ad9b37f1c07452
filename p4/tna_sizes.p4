/* Table sizes of each role on each chip: the largest tried that fit, on Tofino 2 with a stage free in each gress
 * (RESOURCES.md).  Tables of the tree hold two epochs side by side: a node set of 8192 entries is one of 4096 nodes that can be
 * reloaded without a gap.
 *
 * SPARE_STAGE chooses smaller ones for Tofino 1, which leave a stage free in each gress for additions. */

#if __TARGET_TOFINO__ == 2
#if defined(ROLE_CORE)
#define NODE_SET_NODES 98304
#elif defined(ROLE_AGGREGATION)
#define NODE_SET_NODES 65536
#else
#define NODE_SET_NODES 61440
#endif
#define NODE_SET_WHOLE_NODES 4096
#elif defined(SPARE_STAGE)
#if defined(ROLE_CORE)
#define NODE_SET_NODES 49152
#elif defined(ROLE_AGGREGATION)
#define NODE_SET_NODES 20480
#else
#define NODE_SET_NODES 12288
#endif
#define NODE_SET_WHOLE_NODES 1024
#else
#if defined(ROLE_CORE)
#define NODE_SET_NODES 49152
#elif defined(ROLE_AGGREGATION)
#define NODE_SET_NODES 28672
#else
#define NODE_SET_NODES 20480
#endif
#define NODE_SET_WHOLE_NODES 2048
#endif
// For one node in sixteen, if all of these have sixteen children.
#define NODE_SET_CHILDREN NODE_SET_NODES
#define NODE_SET_STRIDES 256

// TCAM rows: all 24 blocks of a stage (of two on Tofino 2), two blocks wide.  A range takes 1 to 7 of them; how many,
// the controller counts for the plan at hand, so the compiler is told to add as good as none (one range, 6 rows).
#if __TARGET_TOFINO__ == 2
#define FAT_ROOT_STAGE_ENTRIES 12282
#else
#define FAT_ROOT_STAGE_ENTRIES 6138
#endif

#define ROCE_CONNECTIONS 4096
#define HOT_KEYS 65536
#define SWITCH_PORTS 512
#define PARTITIONS 1024
#define IPV4_ROUTES 1024
#define NEIGHBORS 1024
#define PATHS 64
#define TRAFFIC_CLASSES 64
