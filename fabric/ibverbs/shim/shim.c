/* libibverbs as a few plain functions for src/ffi.rs.
 *
 * Many calls of libibverbs are inline functions of verbs.h, and many of its structures differ between releases.  Compiled
 * against the header that is installed, both are right; what crosses to Rust are the small structures below, whose sizes are
 * checked on both sides.  Nothing is decided here.
 *
 * Functions that return int return 0 or a positive error number of the system; pointers are null with errno set. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, LONGEST_CHAIN = 16, MOST_POLLED = 32 };

/* Error numbers come back as -1 with errno, or as themselves, depending on the call and the driver. */
static int error_of(int returned)
{
    if (returned == 0) return 0;
    if (returned > 0) return returned;
    return errno > 0 ? errno : EIO;
}

/* --- devices ---------------------------------------------------------------------------------------------------------- */

/* Names of the devices there are, at most `max`; how many, or a negative error number. */
int fatbtree_device_names(char (*names)[NAME_BYTES], int max)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    if (!devices) return -(errno > 0 ? errno : EIO);
    if (count > max) count = max;
    for (int i = 0; i < count; i++) {
        memset(names[i], 0, NAME_BYTES);
        strncpy(names[i], ibv_get_device_name(devices[i]), NAME_BYTES - 1);
    }
    ibv_free_device_list(devices);
    return count;
}

/* Makes reads from the descriptor return without waiting. Returns 0 or an error number. */
static int never_wait(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

/* Opens the device of that name; null with errno = ENODEV when there is none. Its events are read without waiting. */
struct ibv_context *fatbtree_open(const char *name)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    if (!devices) return NULL;
    struct ibv_context *context = NULL;
    int error = ENODEV;
    for (int i = 0; i < count; i++) {
        if (strcmp(ibv_get_device_name(devices[i]), name) != 0) continue;
        context = ibv_open_device(devices[i]);
        error = errno > 0 ? errno : EIO;
        break;
    }
    ibv_free_device_list(devices);
    if (context) {
        int refused = never_wait(context->async_fd);
        if (refused) {
            error = refused;
            ibv_close_device(context);
            context = NULL;
        }
    }
    if (!context) errno = error;
    return context;
}

struct fatbtree_limits {
    uint64_t device_memory;
    uint32_t queue_pairs;
    uint32_t completions;
    uint32_t work_requests;
    uint32_t responder_reads;
    uint32_t initiator_reads;
    uint32_t message;
    uint32_t mtu;       /* bytes */
    uint8_t atomics;    /* 0 or 1 */
    uint8_t active;     /* the port: 0 or 1 */
    uint8_t ethernet;   /* the port: 0 or 1 */
    uint8_t port_state; /* as verbs.h numbers it */
};
_Static_assert(sizeof(struct fatbtree_limits) == 40, "as in ffi.rs");

static uint32_t at_least_0(int value) { return value < 0 ? 0 : (uint32_t)value; }

int fatbtree_limits(struct ibv_context *context, uint8_t port, struct fatbtree_limits *limits)
{
    struct ibv_device_attr_ex device;
    struct ibv_port_attr attributes;
    memset(&device, 0, sizeof device);
    memset(&attributes, 0, sizeof attributes);
    int error = error_of(ibv_query_device_ex(context, NULL, &device));
    if (!error) error = error_of(ibv_query_port(context, port, &attributes));
    if (error) return error;
    *limits = (struct fatbtree_limits){
        .device_memory = device.max_dm_size,
        .queue_pairs = at_least_0(device.orig_attr.max_qp),
        .completions = at_least_0(device.orig_attr.max_cqe),
        .work_requests = at_least_0(device.orig_attr.max_qp_wr),
        .responder_reads = at_least_0(device.orig_attr.max_qp_rd_atom),
        .initiator_reads = at_least_0(device.orig_attr.max_qp_init_rd_atom),
        .message = attributes.max_msg_sz,
        .mtu = 128u << attributes.active_mtu,
        .atomics = device.orig_attr.atomic_cap != IBV_ATOMIC_NONE,
        .active = attributes.state == IBV_PORT_ACTIVE,
        .ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET,
        .port_state = (uint8_t)attributes.state,
    };
    return 0;
}

struct fatbtree_gid {
    uint8_t raw[16];
    uint32_t index;
    uint32_t port;
    uint32_t roce_v2; /* 0 or 1 */
};
_Static_assert(sizeof(struct fatbtree_gid) == 28, "as in ffi.rs");

/* The device's GIDs, at most `max`; how many, or a negative error number. */
int fatbtree_gids(struct ibv_context *context, struct fatbtree_gid *gids, int max)
{
    struct ibv_gid_entry *entries = calloc((size_t)max, sizeof *entries);
    if (!entries) return -ENOMEM;
    ssize_t count = ibv_query_gid_table(context, entries, (size_t)max, 0);
    for (ssize_t i = 0; i < count; i++) {
        gids[i] = (struct fatbtree_gid){
            .index = entries[i].gid_index,
            .port = entries[i].port_num,
            .roce_v2 = entries[i].gid_type == IBV_GID_TYPE_ROCE_V2,
        };
        memcpy(gids[i].raw, entries[i].gid.raw, 16);
    }
    free(entries);
    return (int)count;
}

struct fatbtree_event {
    uint64_t queue_pair; /* as given to fatbtree_create */
    uint32_t kind;       /* 0 something else, 1 the queue pair has failed, 2 the device or its completion queue has */
    uint32_t unused;
};
_Static_assert(sizeof(struct fatbtree_event) == 16, "as in ffi.rs");

/* The next asynchronous event: 0, or EAGAIN when there is none. */
int fatbtree_event(struct ibv_context *context, struct fatbtree_event *event)
{
    struct ibv_async_event found;
    if (ibv_get_async_event(context, &found)) return errno > 0 ? errno : EIO;
    *event = (struct fatbtree_event){0};
    switch (found.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        event->kind = 1;
        event->queue_pair = (uint64_t)(uintptr_t)found.element.qp->qp_context;
        break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
        event->kind = 2;
        break;
    default:
        break;
    }
    /* At once: destroying what an event speaks of waits for this. */
    ibv_ack_async_event(&found);
    return 0;
}

/* Readable when there is an asynchronous event. */
int fatbtree_event_fd(struct ibv_context *context) { return context->async_fd; }

/* --- memory ----------------------------------------------------------------------------------------------------------- */

/* Rights: 1 READ, 2 WRITE, 4 atomics. */
static int access_of(uint32_t rights)
{
    int access = 0;
    if (rights & 1) access |= IBV_ACCESS_REMOTE_READ;
    if (rights & 2) access |= IBV_ACCESS_REMOTE_WRITE;
    if (rights & 4) access |= IBV_ACCESS_REMOTE_ATOMIC;
    return access;
}

struct fatbtree_keys {
    uint32_t local;
    uint32_t remote;
};
_Static_assert(sizeof(struct fatbtree_keys) == 8, "as in ffi.rs");

struct ibv_mr *fatbtree_register(struct ibv_pd *pd, void *memory, uint64_t len, uint64_t iova, uint32_t rights,
                                 struct fatbtree_keys *keys)
{
    /* The device writes into it for others, and for us when rights are 0: the buffers of READs. */
    int access = access_of(rights) | IBV_ACCESS_LOCAL_WRITE;
    struct ibv_mr *region = ibv_reg_mr_iova(pd, memory, len, iova, access);
    if (region) *keys = (struct fatbtree_keys){.local = region->lkey, .remote = region->rkey};
    return region;
}

/* Memory on the device, zeroed. Its bytes are numbered from 0. */
struct ibv_dm *fatbtree_device_memory(struct ibv_context *context, uint64_t len)
{
    struct ibv_alloc_dm_attr attributes = {.length = len};
    struct ibv_dm *memory = ibv_alloc_dm(context, &attributes);
    static const char zeros[4096];
    for (uint64_t at = 0; memory && at < len; at += sizeof zeros) {
        uint64_t rest = len - at;
        int error = error_of(ibv_memcpy_to_dm(memory, at, zeros, rest < sizeof zeros ? rest : sizeof zeros));
        if (error) {
            ibv_free_dm(memory);
            memory = NULL;
            errno = error;
        }
    }
    return memory;
}

/* Copies out. */
int fatbtree_read_device_memory(struct ibv_dm *memory, uint64_t offset, void *into, uint64_t len)
{
    return error_of(ibv_memcpy_from_dm(into, memory, offset, len));
}

int fatbtree_free_device_memory(struct ibv_dm *memory) { return error_of(ibv_free_dm(memory)); }

struct ibv_mr *fatbtree_register_device_memory(struct ibv_pd *pd, struct ibv_dm *memory, uint64_t len, uint32_t rights,
                                               struct fatbtree_keys *keys)
{
    unsigned access = (unsigned)access_of(rights) | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED;
    struct ibv_mr *region = ibv_reg_dm_mr(pd, memory, 0, len, access);
    if (region) *keys = (struct fatbtree_keys){.local = region->lkey, .remote = region->rkey};
    return region;
}

/* --- domains of threads ----------------------------------------------------------------------------------------------- */

/* A thread domain: what is made in it is used by one thread at a time, so that it needs no locks, and has a doorbell register of its
 * own. Null with errno = EOPNOTSUPP where the driver has none. */
struct ibv_td *fatbtree_thread_domain(struct ibv_context *context)
{
    struct ibv_td_init_attr attributes = {.comp_mask = 0};
    errno = 0;
    struct ibv_td *domain = ibv_alloc_td(context, &attributes);
    if (!domain && (errno == 0 || errno == ENOSYS || errno == ENOTSUP)) errno = EOPNOTSUPP;
    return domain;
}

int fatbtree_free_thread_domain(struct ibv_td *domain) { return error_of(ibv_dealloc_td(domain)); }

/* A protection domain, which is `pd` for a thread. */
struct ibv_pd *fatbtree_parent_domain(struct ibv_context *context, struct ibv_pd *pd, struct ibv_td *thread)
{
    struct ibv_parent_domain_init_attr attributes = {.pd = pd, .td = thread};
    return ibv_alloc_parent_domain(context, &attributes);
}

/* A completion queue that one thread at a time polls, without a lock where the driver can do without. */
struct ibv_cq *fatbtree_completion_queue(struct ibv_context *context, int entries, struct ibv_comp_channel *channel)
{
    struct ibv_cq_init_attr_ex attributes = {
        .cqe = (uint32_t)entries,
        .channel = channel,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
        .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    };
    struct ibv_cq_ex *queue = ibv_create_cq_ex(context, &attributes);
    return queue ? ibv_cq_ex_to_cq(queue) : ibv_create_cq(context, entries, NULL, channel, 0);
}

/* --- queue pairs ------------------------------------------------------------------------------------------------------ */

struct fatbtree_queue_pair {
    uint64_t name;       /* comes back with events and with the end of the watching receive */
    uint32_t send_queue; /* wanted */
    uint32_t inline_bytes;
    uint32_t number; /* out */
    uint32_t unused;
};
_Static_assert(sizeof(struct fatbtree_queue_pair) == 24, "as in ffi.rs");

struct ibv_qp *fatbtree_create(struct ibv_pd *pd, struct ibv_cq *sends, struct ibv_cq *receives, struct fatbtree_queue_pair *wanted)
{
    struct ibv_qp_init_attr attributes = {
        .qp_context = (void *)(uintptr_t)wanted->name,
        .send_cq = sends,
        .recv_cq = receives,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = wanted->send_queue, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1,
                .max_inline_data = wanted->inline_bytes},
    };
    struct ibv_qp *queue_pair = ibv_create_qp(pd, &attributes);
    if (queue_pair) wanted->number = queue_pair->qp_num;
    return queue_pair;
}

/* Posts a receive without room. The peer sends nothing: the receive ends when the queue pair fails, and so reports the failure. */
int fatbtree_watch(struct ibv_qp *queue_pair, uint64_t name)
{
    struct ibv_recv_wr receive = {.wr_id = name}, *refused;
    return error_of(ibv_post_recv(queue_pair, &receive, &refused));
}

struct fatbtree_connection {
    uint8_t gid[16]; /* of the other side */
    uint32_t number; /* of the other side's queue pair */
    uint32_t send_psn;
    uint32_t receive_psn;
    uint32_t mtu; /* bytes */
    uint8_t port;
    uint8_t gid_index; /* of this side */
    uint8_t hop_limit;
    uint8_t traffic_class;
    uint8_t responder_reads;
    uint8_t initiator_reads;
    uint8_t timeout;
    uint8_t retries;
    uint8_t atomics; /* 0 or 1: whether the device knows them */
    uint8_t unused[3];
};
_Static_assert(sizeof(struct fatbtree_connection) == 44, "as in ffi.rs");

/* From RESET to RTS. `step`: 1 INIT, 2 the watching receive, 3 RTR, 4 RTS: what was tried last. */
int fatbtree_connect(struct ibv_qp *queue_pair, const struct fatbtree_connection *to, uint32_t *step)
{
    /* What may be done is for the memory regions to say. */
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = to->port,
        .qp_access_flags = (unsigned)access_of(to->atomics ? 7 : 3),
    };
    *step = 1;
    int error = error_of(ibv_modify_qp(queue_pair, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    if (error) return error;

    *step = 2;
    error = fatbtree_watch(queue_pair, (uint64_t)(uintptr_t)queue_pair->qp_context);
    if (error) return error;

    enum ibv_mtu mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && (128u << mtu) < to->mtu) mtu++;
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = to->number,
        .rq_psn = to->receive_psn,
        .max_dest_rd_atomic = to->responder_reads,
        .min_rnr_timer = 12, /* 0.64 ms; no peer sends what needs a receive */
        .ah_attr = {
            .is_global = 1,
            .port_num = to->port,
            .grh = {.sgid_index = to->gid_index, .hop_limit = to->hop_limit, .traffic_class = to->traffic_class},
        },
    };
    memcpy(rtr.ah_attr.grh.dgid.raw, to->gid, 16);
    *step = 3;
    error = error_of(ibv_modify_qp(queue_pair, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    if (error) return error;

    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = to->send_psn,
        .timeout = to->timeout,
        .retry_cnt = to->retries,
        .rnr_retry = 6,
        .max_rd_atomic = to->initiator_reads,
    };
    *step = 4;
    return error_of(ibv_modify_qp(queue_pair, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                                        IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* To ERR (1) or back to RESET (0). */
int fatbtree_leave(struct ibv_qp *queue_pair, uint32_t error)
{
    struct ibv_qp_attr attributes = {.qp_state = error ? IBV_QPS_ERR : IBV_QPS_RESET};
    return error_of(ibv_modify_qp(queue_pair, &attributes, IBV_QP_STATE));
}

/* --- requests and completions ----------------------------------------------------------------------------------------- */

struct fatbtree_request {
    uint64_t id;
    uint64_t local;
    uint64_t remote;
    uint64_t compare_or_add;
    uint64_t swap;
    uint32_t len;
    uint32_t local_key;
    uint32_t remote_key;
    uint8_t operation; /* 0 READ, 1 WRITE, 2 CAS, 3 FAA */
    uint8_t signalled; /* 0 or 1 */
    uint8_t inlined;   /* 0 or 1 */
    uint8_t unused;
};
_Static_assert(sizeof(struct fatbtree_request) == 56, "as in ffi.rs");

/* Posts 1 to 16 requests with one doorbell. */
int fatbtree_post(struct ibv_qp *queue_pair, const struct fatbtree_request *requests, uint32_t count)
{
    struct ibv_send_wr chain[LONGEST_CHAIN], *refused;
    struct ibv_sge parts[LONGEST_CHAIN];
    if (count == 0 || count > LONGEST_CHAIN) return EINVAL;
    memset(chain, 0, count * sizeof *chain);
    for (uint32_t i = 0; i < count; i++) {
        const struct fatbtree_request *request = &requests[i];
        struct ibv_send_wr *wr = &chain[i];
        parts[i] = (struct ibv_sge){.addr = request->local, .length = request->len, .lkey = request->local_key};
        wr->wr_id = request->id;
        wr->next = i + 1 < count ? &chain[i + 1] : NULL;
        wr->sg_list = &parts[i];
        /* A part of length 0 means 2^31 bytes to some cards. */
        wr->num_sge = request->len > 0;
        if (request->signalled) wr->send_flags |= IBV_SEND_SIGNALED;
        if (request->inlined && request->len > 0) wr->send_flags |= IBV_SEND_INLINE;
        if (request->operation < 2) {
            wr->opcode = request->operation == 0 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
            wr->wr.rdma.remote_addr = request->remote;
            wr->wr.rdma.rkey = request->remote_key;
        } else {
            wr->opcode = request->operation == 2 ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr->wr.atomic.remote_addr = request->remote;
            wr->wr.atomic.rkey = request->remote_key;
            wr->wr.atomic.compare_add = request->compare_or_add;
            wr->wr.atomic.swap = request->swap;
        }
    }
    return error_of(ibv_post_send(queue_pair, chain, &refused));
}

struct fatbtree_completion {
    uint64_t id;
    uint32_t status; /* 0 success; 1 remote access, 2 remote invalid request, 3 remote operational, 4 retries, 5 flushed, 6 other */
    uint32_t number; /* of the queue pair */
};
_Static_assert(sizeof(struct fatbtree_completion) == 16, "as in ffi.rs");

static uint32_t status_of(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS: return 0;
    case IBV_WC_REM_ACCESS_ERR: return 1;
    case IBV_WC_REM_INV_REQ_ERR: return 2;
    case IBV_WC_REM_OP_ERR: return 3;
    case IBV_WC_RETRY_EXC_ERR: return 4;
    case IBV_WC_WR_FLUSH_ERR: return 5;
    default: return 6;
    }
}

/* Where completion queues tell that something has come. It is read without waiting. */
struct ibv_comp_channel *fatbtree_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    int refused = channel ? never_wait(channel->fd) : 0;
    if (refused) {
        ibv_destroy_comp_channel(channel);
        errno = refused;
        channel = NULL;
    }
    return channel;
}

/* Readable when a queue has told something. */
int fatbtree_channel_fd(struct ibv_comp_channel *channel) { return channel->fd; }

/* Forgets what queues have told. */
void fatbtree_forget_told(struct ibv_comp_channel *channel)
{
    struct ibv_cq *queue;
    void *of_caller;
    /* At once: destroying a queue waits for this. */
    while (ibv_get_cq_event(channel, &queue, &of_caller) == 0) ibv_ack_cq_events(queue, 1);
}

/* Has the queue tell, once, of what comes from now on. */
int fatbtree_arm(struct ibv_cq *queue) { return error_of(ibv_req_notify_cq(queue, 0)); }

/* Completions, at most 32 and at most `max`; how many, or a negative number when the queue is of no more use. */
int fatbtree_poll(struct ibv_cq *queue, struct fatbtree_completion *completions, int max)
{
    struct ibv_wc found[MOST_POLLED];
    int count = ibv_poll_cq(queue, max < MOST_POLLED ? max : MOST_POLLED, found);
    for (int i = 0; i < count; i++)
        completions[i] = (struct fatbtree_completion){
            .id = found[i].wr_id, .status = status_of(found[i].status), .number = found[i].qp_num,
        };
    return count;
}
