/* Two ends of an index read, over the system's libibverbs: nothing of this repository's NIC is in here.
 *
 *   index_peer server          registers a region of known bytes, prints its rkey and address, serves connections
 *   index_peer client ADDRESS  connects, then reads lines "REMOTE_ADDRESS RKEY LENGTH" and posts an RDMA READ for each
 *
 * Byte i of the region is (31 i + 17 (i >> 8) + 5) mod 256, so that what a READ brings tells where it was read.
 * Queue pair numbers are exchanged over TCP port 18600.  Output, one line each:
 *
 *   region rkey=0x… address=0x…       server, once
 *   connection qpn=…                  server, for each client; client too
 *   read status=N (text) data=<hex>   client, for each line */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REGION = 8192, TCP_PORT = 18600, IB_PORT = 1 };

struct hello {
    uint32_t qpn;
    uint32_t psn;
    union ibv_gid gid;
};

static void die(const char *what)
{
    printf("index_peer: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *region;
static union ibv_gid gid;
static int gid_index = -1;

static void open_device(int access)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    if (!devices || count == 0) {
        errno = ENODEV;
        die("expected one RDMA device, found none");
    }
    context = ibv_open_device(devices[0]);
    if (!context) die("opening the device");
    /* The GID made of the IPv4 address: ::ffff:a.b.c.d. */
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    for (int i = 0; i < 16 && gid_index < 0; i++)
        if (ibv_query_gid(context, IB_PORT, i, &gid) == 0 && memcmp(gid.raw, mapped, 12) == 0) gid_index = i;
    if (gid_index < 0) die("no GID made of an IPv4 address: does the interface have one?");
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    if (!pd || !cq) die("protection domain or completion queue");
    if (posix_memalign((void **)&region, 4096, REGION)) die("memory");
    memset(region, 0, REGION);
    mr = ibv_reg_mr(pd, region, REGION, access);
    if (!mr) die("registering memory");
}

static struct ibv_qp *make_qp(void)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    if (!qp) die("creating the queue pair");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = IB_PORT, .qp_access_flags = IBV_ACCESS_REMOTE_READ};
    if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)))
        die("queue pair to INIT");
    return qp;
}

static void exchange(int socket, const struct hello *mine, struct hello *theirs)
{
    if (write(socket, mine, sizeof *mine) != sizeof *mine) die("sending the queue pair number");
    if (recv(socket, theirs, sizeof *theirs, MSG_WAITALL) != sizeof *theirs) die("receiving the queue pair number");
}

static struct ibv_qp *connect_qp(int socket)
{
    struct ibv_qp *qp = make_qp();
    struct hello mine = {.qpn = qp->qp_num, .psn = 0x123456, .gid = gid}, theirs;
    exchange(socket, &mine, &theirs);
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs.qpn, .rq_psn = theirs.psn,
        .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = IB_PORT,
                    .grh = {.dgid = theirs.gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64}},
    };
    if ((errno = ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)))
        die("queue pair to RTR");
    /* Time-out 18: about one second, for guests without hardware virtualisation. */
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = mine.psn, .timeout = 18, .retry_cnt = 5,
                              .rnr_retry = 5, .max_rd_atomic = 4};
    if ((errno = ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)))
        die("queue pair to RTS");
    /* Both ends are ready before one of them reads. */
    struct hello ready = mine;
    exchange(socket, &ready, &theirs);
    printf("connection qpn=%u\n", qp->qp_num);
    return qp;
}

static int tcp(void)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one)) die("socket");
    return fd;
}

static void server(void)
{
    open_device(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    for (uint32_t i = 0; i < REGION; i++) region[i] = (uint8_t)(31 * i + 17 * (i >> 8) + 5);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    int listener = tcp();
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 4)) die("listening");
    printf("region rkey=0x%08x address=0x%016lx\n", mr->rkey, (unsigned long)(uintptr_t)region);
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        if (peer < 0) die("accepting");
        struct ibv_qp *qp = connect_qp(peer);
        char nothing;
        while (read(peer, &nothing, 1) > 0) { /* until the client goes */ }
        ibv_destroy_qp(qp);
        close(peer);
    }
}

static void client(const char *address)
{
    open_device(IBV_ACCESS_LOCAL_WRITE);
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    if (inet_pton(AF_INET, address, &there.sin_addr) != 1) die("expected an IPv4 address");
    int peer = tcp();
    if (connect(peer, (struct sockaddr *)&there, sizeof there)) die("connecting");
    struct ibv_qp *qp = connect_qp(peer);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        char *rest = line;
        unsigned long va = strtoul(rest, &rest, 0), rkey = strtoul(rest, &rest, 0), length = strtoul(rest, &rest, 0);
        if (length == 0 || length > REGION) break; /* an empty line ends the client */
        memset(region, 0, REGION);
        struct ibv_sge sge = {.addr = (uintptr_t)region, .length = (uint32_t)length, .lkey = mr->lkey};
        struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
                                 .wr.rdma = {.remote_addr = va, .rkey = (uint32_t)rkey}}, *bad;
        if ((errno = ibv_post_send(qp, &wr, &bad))) die("posting the READ");
        struct ibv_wc wc;
        int found;
        while ((found = ibv_poll_cq(cq, 1, &wc)) == 0) { }
        if (found < 0) die("polling");
        printf("read status=%d (%s) data=", wc.status, ibv_wc_status_str(wc.status));
        for (unsigned long i = 0; wc.status == IBV_WC_SUCCESS && i < length; i++) printf("%02x", region[i]);
        printf("\n");
    }
    printf("client ends\n");
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && strcmp(argv[1], "server") == 0) server();
    else if (argc == 3 && strcmp(argv[1], "client") == 0) client(argv[2]);
    else {
        fprintf(stderr, "usage: index_peer server | index_peer client ADDRESS\n");
        return 2;
    }
    return 0;
}
