/* Table sizes of each role on each chip. */
#define FAT_ROOT_STAGE_ENTRIES 2048
#define NODE_SET_NODES 4096
#define NODE_SET_CHILDREN 65536
#define ROCE_CONNECTIONS 4096
#define SWITCH_PORTS 512
#define PARTITIONS 1024
#define IPV4_ROUTES 1024
