/* DPDK as a few plain functions for src/ffi.rs.
 *
 * Most calls of the data path are inline functions of DPDK's headers, and its structures differ between releases.  Compiled
 * against the headers that are installed, both are right; what crosses to Rust are the small structures below, whose sizes are
 * checked on both sides.  Nothing is decided here.
 *
 * Functions that return int return 0 or a negative error number, as DPDK does. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <rte_alarm.h>
#include <rte_config.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

enum { BURST = 64 };

static int error_of(int returned)
{
    if (returned == 0) return 0;
    if (returned < -1) return returned;
    return rte_errno > 0 ? -rte_errno : -EIO;
}

/* --- the environment -------------------------------------------------------------------------------------------------- */

/* Starts the EAL; the calling thread becomes its main one, and is bound to its core.  What it says goes to `log`, which always
 * ends in a zero byte; the list of all options, which it prints when one is wrong, goes nowhere. */
int fatbtree_dpdk_start_eal(int argc, char **argv, char *log, size_t log_bytes)
{
    memset(log, 0, log_bytes);
    FILE *stream = fmemopen(log, log_bytes - 1, "w");
    if (stream) {
        setvbuf(stream, NULL, _IONBF, 0);
        rte_openlog_stream(stream);
    }
    rte_errno = 0;
#ifdef __GLIBC__ /* where these are variables */
    FILE *nowhere = fopen("/dev/null", "w"), *out = stdout, *err = stderr;
    if (nowhere) stdout = nowhere;
    if (stream) stderr = stream;
#endif
    int done = rte_eal_init(argc, argv);
    int error = done < 0 ? error_of(done) : 0;
#ifdef __GLIBC__
    stdout = out;
    stderr = err;
    if (nowhere) fclose(nowhere);
#endif
    rte_openlog_stream(NULL);
    if (stream) fclose(stream);
    return error;
}

/* The first core that the calling thread may run on. */
unsigned fatbtree_dpdk_first_core(void)
{
    cpu_set_t cores;
    if (pthread_getaffinity_np(pthread_self(), sizeof cores, &cores) != 0) return 0;
    unsigned core = 0;
    while (core + 1 < CPU_SETSIZE && !CPU_ISSET(core, &cores)) core++;
    return core;
}

/* Binds the calling thread to the cores of the n-th of the EAL's threads, counted round and round. */
int fatbtree_dpdk_bind_thread(unsigned n)
{
    unsigned lcore;
    n %= rte_lcore_count();
    RTE_LCORE_FOREACH(lcore) {
        if (n-- > 0) continue;
        rte_cpuset_t cores = rte_lcore_cpuset(lcore);
        return -pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
    }
    return -ENOENT;
}

/* Gives the calling thread a place in the EAL: caches of mbufs are by these. */
int fatbtree_dpdk_register_thread(void)
{
    return error_of(rte_thread_register());
}

static void flush_cache(struct rte_mempool *pool, void *lcore)
{
    struct rte_mempool_cache *cache = rte_mempool_default_cache(pool, *(unsigned *)lcore);
    if (cache) rte_mempool_cache_flush(cache, pool);
}

/* Gives the place back, and what lies in its caches to the pools: no other thread gets at that until one has this place. */
void fatbtree_dpdk_unregister_thread(void)
{
    unsigned lcore = rte_lcore_id();
    if (lcore != LCORE_ID_ANY) rte_mempool_walk(flush_cache, &lcore);
    rte_thread_unregister();
}

/* --- devices ---------------------------------------------------------------------------------------------------------- */

int fatbtree_dpdk_find(const char *name, uint16_t *port)
{
    return rte_eth_dev_get_port_by_name(name, port);
}

int fatbtree_dpdk_probe(const char *device)
{
    return error_of(rte_dev_probe(device));
}

struct facts {
    uint64_t rss;
    uint32_t longest_frame;
    uint16_t receive_queues, send_queues;
    uint16_t receive_ring, send_ring;
    uint16_t mtu, most_mtu;
    int32_t socket;
    uint8_t mac[6];
    uint8_t unused[2];
    char driver[32];
};
_Static_assert(sizeof(struct facts) == 72, "as in src/ffi.rs");

int fatbtree_dpdk_describe(uint16_t port, struct facts *facts)
{
    struct rte_eth_dev_info info;
    int error = rte_eth_dev_info_get(port, &info);
    if (error) return error;
    uint16_t receive = info.default_rxportconf.ring_size, send = info.default_txportconf.ring_size;
    if (receive == 0) receive = 512;
    if (send == 0) send = 512;
    /* Devices that have no rings of this kind do not mind. */
    rte_eth_dev_adjust_nb_rx_tx_desc(port, &receive, &send);
    *facts = (struct facts){
        .rss = info.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP),
        .longest_frame = info.max_rx_pktlen,
        .receive_queues = info.max_rx_queues,
        .send_queues = info.max_tx_queues,
        .receive_ring = receive,
        .send_ring = send,
        .most_mtu = info.max_mtu,
        .socket = rte_eth_dev_socket_id(port),
    };
    if (info.driver_name) strncpy(facts->driver, info.driver_name, sizeof facts->driver - 1);
    rte_eth_dev_get_mtu(port, &facts->mtu);
    struct rte_ether_addr mac;
    if (rte_eth_macaddr_get(port, &mac) == 0) memcpy(facts->mac, mac.addr_bytes, 6);
    return 0;
}

struct setup {
    uint64_t rss;
    struct rte_mempool *pool;
    uint16_t receive_queues, send_queues;
    uint16_t receive_ring, send_ring;
    uint16_t mtu;
    uint16_t unused[3];
};
_Static_assert(sizeof(struct setup) == 32, "as in src/ffi.rs");

/* Configures a device; `step` says what failed. */
int fatbtree_dpdk_configure(uint16_t port, const struct setup *setup, const char **step)
{
    struct rte_eth_dev_info info;
    *step = "asking for its description";
    int error = rte_eth_dev_info_get(port, &info);
    if (error) return error;
    int single_pool = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE) != 0;
    struct rte_eth_conf conf = {
        .rxmode = { .mq_mode = setup->rss ? RTE_ETH_MQ_RX_RSS : RTE_ETH_MQ_RX_NONE, .mtu = setup->mtu },
        .txmode = { .offloads = single_pool ? RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE : 0 },
        .rx_adv_conf = { .rss_conf = { .rss_hf = setup->rss } },
    };
    *step = "configuring its queues";
    error = rte_eth_dev_configure(port, setup->receive_queues, setup->send_queues, &conf);
    if (error) return error;
    *step = "setting up a receive queue";
    for (uint16_t queue = 0; queue < setup->receive_queues; queue++) {
        error = rte_eth_rx_queue_setup(port, queue, setup->receive_ring, rte_eth_dev_socket_id(port), NULL, setup->pool);
        if (error) return error;
    }
    *step = "setting up a send queue";
    struct rte_eth_txconf send = info.default_txconf;
    send.offloads = conf.txmode.offloads;
    for (uint16_t queue = 0; queue < setup->send_queues; queue++) {
        error = rte_eth_tx_queue_setup(port, queue, setup->send_ring, rte_eth_dev_socket_id(port), &send);
        if (error) return error;
    }
    /* Switches want every frame.  Devices without a filter say that they cannot do this. */
    rte_eth_promiscuous_enable(port);
    return 0;
}

/* A call for a device, made in the EAL's interrupt thread. */
struct errand {
    int (*call)(uint16_t port);
    uint16_t port;
    int returned;
    sem_t done;
};

static void run_errand(void *argument)
{
    struct errand *errand = argument;
    errand->returned = errand->call(errand->port);
    sem_post(&errand->done);
}

/* Starting, stopping and closing take a device's control channel apart, which net_memif also does in the interrupt thread, when
 * the peer comes or goes, without a lock: both at once use freed memory.  So these calls are made there, where alarms run. */
static int in_interrupt_thread(int (*call)(uint16_t port), uint16_t port)
{
    struct errand errand = { .call = call, .port = port };
    sem_init(&errand.done, 0, 0);
    if (rte_eal_alarm_set(1, run_errand, &errand) != 0)
        errand.returned = call(port);
    else
        while (sem_wait(&errand.done) != 0) continue;
    sem_destroy(&errand.done);
    return errand.returned;
}

int fatbtree_dpdk_start(uint16_t port)
{
    return in_interrupt_thread(rte_eth_dev_start, port);
}

static int stop_and_start(uint16_t port)
{
    rte_eth_dev_stop(port);
    return rte_eth_dev_start(port);
}

/* Stops a device and starts it again, with this log off: the driver logs at each start that it has no peer. */
int fatbtree_dpdk_restart(uint16_t port, const char *log)
{
    int type = rte_log_register(log), level = rte_log_get_level(type);
    rte_log_set_level(type, RTE_LOG_EMERG);
    int error = in_interrupt_thread(stop_and_start, port);
    rte_log_set_level(type, level);
    return error;
}

void fatbtree_dpdk_stop(uint16_t port)
{
    in_interrupt_thread(rte_eth_dev_stop, port);
}

/* Closes a device that was probed, and forgets it. */
void fatbtree_dpdk_remove(uint16_t port)
{
    struct rte_eth_dev_info info;
    if (rte_eth_dev_info_get(port, &info) != 0) return;
    /* net_memif has memory freed that is a part of other memory, which the EAL only complains of. */
    int level = rte_log_get_level(RTE_LOGTYPE_EAL);
    rte_log_set_level(RTE_LOGTYPE_EAL, RTE_LOG_CRIT);
    in_interrupt_thread(rte_eth_dev_close, port);
    rte_dev_remove(info.device);
    rte_log_set_level(RTE_LOGTYPE_EAL, level);
}

int fatbtree_dpdk_is_up(uint16_t port)
{
    struct rte_eth_link link = { .link_status = 0 };
    return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

struct losses {
    uint64_t missed, bad, not_sent;
};

void fatbtree_dpdk_losses(uint16_t port, struct losses *losses)
{
    struct rte_eth_stats stats = { 0 };
    rte_eth_stats_get(port, &stats);
    *losses = (struct losses){ stats.imissed + stats.rx_nombuf, stats.ierrors, stats.oerrors };
}

/* --- frames ----------------------------------------------------------------------------------------------------------- */

struct rte_mempool *fatbtree_dpdk_pool(const char *name, unsigned mbufs, unsigned cache, uint16_t frame, int socket)
{
    return rte_pktmbuf_pool_create(name, mbufs, cache, 0, (uint16_t)(RTE_PKTMBUF_HEADROOM + frame), socket);
}

/* Bytes of memory that an mbuf for frames of this length takes. */
unsigned fatbtree_dpdk_mbuf_bytes(uint16_t frame)
{
    return sizeof(struct rte_mbuf) + RTE_PKTMBUF_HEADROOM + frame + 64;
}

struct frame {
    struct rte_mbuf *mbuf;
    const uint8_t *data;
    size_t length;
};

/* Takes frames from a queue; `room` is at most BURST.  Frames in several pieces are put together, and those that cannot be, or
 * are longer than `longest`, dropped and counted. */
unsigned fatbtree_dpdk_receive(uint16_t port, uint16_t queue, struct frame *frames, unsigned room, size_t longest,
                               unsigned *too_long)
{
    struct rte_mbuf *mbufs[BURST];
    unsigned came = rte_eth_rx_burst(port, queue, mbufs, (uint16_t)room), kept = 0;
    for (unsigned n = 0; n < came; n++) {
        struct rte_mbuf *mbuf = mbufs[n];
        if (unlikely((mbuf->nb_segs > 1 && rte_pktmbuf_linearize(mbuf) != 0) || mbuf->pkt_len > longest)) {
            rte_pktmbuf_free(mbuf);
            ++*too_long;
            continue;
        }
        frames[kept++] = (struct frame){ mbuf, rte_pktmbuf_mtod(mbuf, const uint8_t *), mbuf->data_len };
    }
    for (unsigned n = 0; n < kept; n++) rte_prefetch0(frames[n].data);
    return kept;
}

/* Gives the memory of frames back. */
void fatbtree_dpdk_free(const struct frame *frames, unsigned count)
{
    struct rte_mbuf *mbufs[BURST];
    for (unsigned n = 0; n < count; n++) mbufs[n] = frames[n].mbuf;
    rte_pktmbuf_free_bulk(mbufs, count);
}

struct slice {
    const uint8_t *data;
    size_t length;
};

/* Sends at most BURST frames, each of which fits an mbuf; how many were taken. */
unsigned fatbtree_dpdk_send(uint16_t port, uint16_t queue, struct rte_mempool *pool, const struct slice *frames, unsigned count)
{
    struct rte_mbuf *mbufs[BURST];
    if (rte_pktmbuf_alloc_bulk(pool, mbufs, count) != 0) return 0;
    for (unsigned n = 0; n < count; n++) {
        memcpy(rte_pktmbuf_mtod(mbufs[n], uint8_t *), frames[n].data, frames[n].length);
        mbufs[n]->data_len = (uint16_t)frames[n].length;
        mbufs[n]->pkt_len = (uint32_t)frames[n].length;
    }
    unsigned taken = rte_eth_tx_burst(port, queue, mbufs, (uint16_t)count);
    if (unlikely(taken < count)) rte_pktmbuf_free_bulk(mbufs + taken, count - taken);
    return taken;
}
