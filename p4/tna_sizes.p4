/* Table sizes of each role on each chip: the largest tried that fit and leave a stage free in each gress (RESOURCES.md says
 * where one does not).  Tables of the tree hold two epochs side by side: a node set of 8192 entries is one of 4096 nodes that can be
 * reloaded without a gap.
 *
 * ALL_STAGES chooses larger ones for Tofino 1, which take all stages. */

#if __TARGET_TOFINO__ == 2
#if defined(ROLE_CORE)
#define NODE_SET_NODES 98304
#elif defined(ROLE_AGGREGATION)
#define NODE_SET_NODES 65536
#elif defined(ROLE_EDGE)
#define NODE_SET_NODES 61440
#else
#define NODE_SET_NODES 49152
#endif
#define NODE_SET_WHOLE_NODES 4096
#elif defined(ALL_STAGES)
#if defined(ROLE_CORE)
#define NODE_SET_NODES 49152
#elif defined(ROLE_AGGREGATION)
#define NODE_SET_NODES 28672
#elif defined(ROLE_EDGE)
#define NODE_SET_NODES 20480
#else
#define NODE_SET_NODES 24576
#endif
#define NODE_SET_WHOLE_NODES 2048
#else
#if defined(ROLE_CORE)
#define NODE_SET_NODES 49152
#elif defined(ROLE_AGGREGATION)
#define NODE_SET_NODES 20480
#elif defined(ROLE_EDGE)
#define NODE_SET_NODES 16384
#else
#define NODE_SET_NODES 20480
#endif
#define NODE_SET_WHOLE_NODES 2048
#endif
// Of each of the two sets that a second pass brings.
#if __TARGET_TOFINO__ == 2
#define SECOND_PASS_NODES 65536
#elif defined(ALL_STAGES)
#define SECOND_PASS_NODES 28672
#else
#define SECOND_PASS_NODES 24576
#endif
// For one node in sixteen, if all of these have sixteen children.
#define NODE_SET_CHILDREN(nodes) nodes
#define NODE_SET_STRIDES 256

// TCAM rows: all 24 blocks of a stage (of two on Tofino 2), two blocks wide.  A range takes 1 to 7 of them; how many,
// the controller counts for the plan at hand, so the compiler is told to add as good as none (one range, 6 rows).
#if __TARGET_TOFINO__ == 2
#define FAT_ROOT_STAGE_ENTRIES 12282
#else
#define FAT_ROOT_STAGE_ENTRIES 6138
#endif

#define ROCE_CONNECTIONS 4096
// One switch alone, on Tofino 1: connections and hot keys are looked up in the stage before the packet sets out, so that the fat root begins
// in stage 3.
#if defined(ROLE_ALONE) && __TARGET_TOFINO__ == 1
#define ROCE_CONNECTION_PLACE @stage(1)
#ifdef ALL_STAGES
#define HOT_KEYS 65536
#define HOT_KEY_PLACE
#else
#define HOT_KEYS 49152
#define HOT_KEY_PLACE @stage(1)
#endif
#else
#define HOT_KEYS 65536
#define ROCE_CONNECTION_PLACE
#define HOT_KEY_PLACE
#endif
// An edge switch of Tofino 1 walks other packets in the stages before.
#if defined(ROLE_EDGE) && __TARGET_TOFINO__ == 1
#define QUERY_SETS_OUT_PLACE @stage(3)
#else
#define QUERY_SETS_OUT_PLACE
#endif
// A folded switch of Tofino 1 has a stage free only if these do not wait.
#if defined(ROLE_FOLDED) && __TARGET_TOFINO__ == 1
#define TRAFFIC_CLASS_PLACE @stage(0)
#define CARRY_CLASS_PLACE @stage(3)
#else
#define TRAFFIC_CLASS_PLACE
#define CARRY_CLASS_PLACE
#endif
#define SWITCH_PORTS 512
#define PARTITIONS 1024
#define IPV4_ROUTES 1024
#define NEIGHBORS 1024
#define PATHS 64
#define TRAFFIC_CLASSES 64
#define WAYS_BACK 4096
