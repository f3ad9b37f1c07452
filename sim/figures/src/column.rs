//! Columns of all figures.

use crate::table::Kind::{Count, Difference, Number, Text};
use crate::table::{Column, Layout};

pub(crate) const NAME: Column = Column::new("name", "", "", Text);
pub(crate) const OPERATIONS: Column = Column::new("operations", "operations", "", Count);
/// Millions of operations or requests in a second.
pub(crate) const MOPS: Column = Column::new("mops", "", "Mop/s", Number(2));
/// Operations in a second, as a multiple of the first row's.
pub(crate) const GAIN: Column = Column::new("gain", "× first", "", Number(2));
/// Latencies. An operation that has not ended when the window does counts with the time it has taken so far.
pub(crate) const P50: Column = Column::new("p50_us", "p50", "µs", Number(1)).or_missing();
pub(crate) const P90: Column = Column::new("p90_us", "p90", "µs", Number(1)).or_missing();
pub(crate) const P99: Column = Column::new("p99_us", "p99", "µs", Number(1)).or_missing();
const P99_WHOLE: Column = Column::new("p99_us", "p99", "µs", Number(0)).or_missing();
pub(crate) const WRITE_TRIPS: Column = Column::new("write_round_trips", "", "trips/write", Number(2));
pub(crate) const READ_TRIPS: Column = Column::new("read_round_trips", "", "trips/read", Number(2));
/// Bytes of nodes that a write sends, on average.
pub(crate) const WRITTEN_BYTES: Column = Column::new("written_bytes", "", "bytes/write", Number(0));
/// Attempts of a write to take a lock that found it taken, on average.
pub(crate) const LOCK_RETRIES: Column = Column::new("lock_retries", "", "retries/write", Number(2));
pub(crate) const HANDED_OVER: Column = Column::new("handed_over_percent", "handed over", "%", Number(1));
/// Time for which the bus of the first client's card is busy towards the host, or waits for the card's cache.
pub(crate) const BUS: Column = Column::new("bus_percent", "bus", "%", Number(0));
pub(crate) const CACHE_BYTES: Column = Column::new("cache_bytes", "cache bytes", "", Count);

pub(crate) const THREADS: Column = Column::new("threads", "threads", "", Count);
/// Requests or operations of a thread at once.
pub(crate) const BATCH: Column = Column::new("batch", "batch", "", Count);
/// [`MOPS`] in the paper.
pub(crate) const PAPER: Column = Column::new("paper", "paper", "", Number(2)).or_missing();
/// Difference of [`MOPS`] from the paper's.
pub(crate) const OFF: Column = Column::new("off_percent", "off by", "%", Difference);
/// Work of the slowest thread, as a part of the mean: 100 is fair, 0 is starvation. Where the number of threads changes, some do not work.
pub(crate) const SLOWEST: Column = Column::new("slowest_thread_percent", "slowest thread", "%", Number(0));
/// Attempts at a lock or a slot within which 99.9 % of operations had it.
pub(crate) const ATTEMPTS: Column = Column::new("attempts_p999", "attempts p99.9", "", Count).or_missing();
/// Time for which the busiest bucket of the servers' atomics is busy.
pub(crate) const BUSIEST_BUCKET: Column =
    Column::new("busiest_bucket_percent", "busiest bucket", "%", Number(0)).or_missing();
/// Part of the threads' time in queues of doorbell registers, and of queue pairs.
pub(crate) const IN_REGISTERS: Column =
    Column::new("in_registers_percent", "in registers", "%", Number(0)).or_missing();
pub(crate) const IN_QUEUE_PAIRS: Column =
    Column::new("in_queue_pairs_percent", "in queue pairs", "%", Number(0)).or_missing();
/// Requests that the card's cache has lost.
pub(crate) const MISSED: Column = Column::new("missed_percent", "cache lost", "%", Number(0)).or_missing();
/// Bytes that a request writes into the host's memory, or reads from it once more.
pub(crate) const MEMORY_BYTES: Column = Column::new("memory_bytes", "bytes of memory", "", Number(0));
/// Requests and doorbells of a transaction, those of attempts that fail included.
pub(crate) const REQUESTS: Column = Column::new("requests_each", "requests each", "", Number(1)).or_missing();
pub(crate) const DOORBELLS: Column =
    Column::new("doorbells_each", "doorbells each", "", Number(1)).or_missing();
/// Transactions that end without a commit, for lack of money or because of a conflict.
pub(crate) const ABORTED: Column = Column::new("aborted_percent", "aborted", "%", Number(1)).or_missing();

pub(crate) const KEYS: Column = Column::new("keys", "keys", "", Count);
/// Bytes of a client's cache that knows every leaf.
pub(crate) const CACHE_EACH: Column = Column::new("cache_bytes", "cache", "bytes/key", Number(2));
/// Bytes of leaves and inner nodes.
pub(crate) const SERVER_EACH: Column = Column::new("server_bytes", "server", "bytes/key", Number(1));
pub(crate) const KEYS_A_LEAF: Column = Column::new("keys_a_leaf", "", "keys/leaf", Number(1));
/// Cache and servers for the paper's number of keys.
pub(crate) const CACHE_MB: Column = Column::new("cache_mb", "client", "MB", Number(0));
pub(crate) const PAPER_CACHE_MB: Column = Column::new("paper_cache_mb", "paper", "", Number(0)).or_missing();
pub(crate) const SERVER_GB: Column = Column::new("server_gb", "servers", "GB", Number(1));
pub(crate) const PAPER_SERVER_GB: Column =
    Column::new("paper_server_gb", "paper", "", Number(0)).or_missing();

/// Keys and how they are chosen.
pub(crate) const WORKLOAD: Column = Column::new("keys", "keys", "", Text);
pub(crate) const CACHE: Column = Column::new("cache", "client's cache", "", Text);
/// Bytes of SRAM that switches have.
pub(crate) const ROOM: Column = Column::new("room_bytes", "SRAM room", "", Count).or_missing();
pub(crate) const SRAM_USED: Column = Column::new("sram_bytes", "SRAM used", "", Count).or_missing();
/// Entries in SRAM: nodes and children, or keys.
pub(crate) const ENTRIES: Column = Column::new("entries", "entries", "", Count).or_missing();
pub(crate) const TCAM_ROWS: Column = Column::new("tcam_rows", "TCAM rows", "", Count).or_missing();
/// Sampled keys that are led to their leaf.
pub(crate) const LED: Column = Column::new("led_percent", "led to leaf", "%", Number(1)).or_missing();
pub(crate) const GET_TRIPS: Column = Column::new("get_round_trips", "", "trips/get", Number(2));
pub(crate) const UPDATE_TRIPS: Column = Column::new("update_round_trips", "", "trips/update", Number(2));

/// Bytes of a key, on average, and of what the first layer leaves out of all of them.
pub(crate) const KEY_BYTES: Column = Column::new("key_bytes", "key", "bytes", Number(1));
pub(crate) const CODE_BYTES: Column = Column::new("code_bytes", "code", "", Count).or_missing();
/// Round trips of a lookup: led by switches, with a cache of as many bytes, from the root.
pub(crate) const LED_TRIPS: Column = Column::new("led_round_trips", "led", "trips", Number(2));
pub(crate) const CACHED_TRIPS: Column = Column::new("cached_round_trips", "cached", "trips", Number(2));
pub(crate) const ROOT_TRIPS: Column = Column::new("root_round_trips", "root", "trips", Number(2));
/// Layers below the first one that a lookup passes.
pub(crate) const LAYERS_MEAN: Column = Column::new("layers", "layers", "", Number(2));
pub(crate) const LAYERS_MOST: Column = Column::new("most_layers", "most", "", Count);
/// Bytes of entries of switches.
pub(crate) const SWITCH_BYTES: Column = Column::new("switch_bytes", "switch bytes", "", Count);

pub(crate) const FIGURE: Column = Column::new("figure", "figure", "", Text);
pub(crate) const INDEX: Column = Column::new("index", "index", "", Text);
pub(crate) const PUBLISHED: Column = Column::new("value", "published", "", Text);

/// Operations of one workload, by several configurations.
#[rustfmt::skip] // lists in the order of their columns, not a line each
pub(crate) static OF_OPERATIONS: Layout = Layout {
    fields: &[
        NAME, OPERATIONS, MOPS, P50, P90, P99, WRITE_TRIPS, READ_TRIPS, WRITTEN_BYTES, LOCK_RETRIES, HANDED_OVER, BUS, CACHE_BYTES,
    ],
    shown: &[NAME, MOPS, GAIN, P50, P90, P99, WRITE_TRIPS, READ_TRIPS, WRITTEN_BYTES, LOCK_RETRIES, HANDED_OVER],
};

/// Threads of clients that share cards.
#[rustfmt::skip] // lists in the order of their columns, not a line each
pub(crate) static OF_THREADS: Layout = Layout {
    fields: &[
        NAME, THREADS, BATCH, MOPS, PAPER, SLOWEST, ATTEMPTS, P50, P99, BUSIEST_BUCKET, IN_REGISTERS, IN_QUEUE_PAIRS, BUS, MISSED,
        MEMORY_BYTES, REQUESTS, DOORBELLS, ABORTED,
    ],
    shown: &[
        NAME, THREADS, BATCH, MOPS, PAPER, OFF, P50, P99_WHOLE, REQUESTS, DOORBELLS, ABORTED, SLOWEST, ATTEMPTS, BUSIEST_BUCKET,
        IN_REGISTERS, IN_QUEUE_PAIRS, BUS, MISSED, MEMORY_BYTES,
    ],
};

/// Bytes that indexes take.
#[rustfmt::skip] // lists in the order of their columns, not a line each
pub(crate) static OF_MEMORY: Layout = Layout {
    fields: &[NAME, KEYS, CACHE_EACH, SERVER_EACH, KEYS_A_LEAF, CACHE_MB, PAPER_CACHE_MB, SERVER_GB, PAPER_SERVER_GB],
    shown: &[NAME, CACHE_EACH, CACHE_MB, PAPER_CACHE_MB, SERVER_EACH, SERVER_GB, PAPER_SERVER_GB, KEYS_A_LEAF],
};

const SWITCHES: &[Column] =
    &[WORKLOAD, NAME, CACHE, ROOM, SRAM_USED, ENTRIES, TCAM_ROWS, LED, GET_TRIPS, UPDATE_TRIPS, MOPS, P50];
/// Round trips with what switches hold.
pub(crate) static OF_SWITCHES: Layout = Layout { fields: SWITCHES, shown: SWITCHES };

const OF_KINDS: &[Column] = &[
    NAME,
    KEYS,
    KEY_BYTES,
    CODE_BYTES,
    LED_TRIPS,
    CACHED_TRIPS,
    ROOT_TRIPS,
    LAYERS_MEAN,
    LAYERS_MOST,
    SWITCH_BYTES,
    SERVER_EACH,
];
/// Lookups of each kind of keys.
pub(crate) static OF_KEYS: Layout = Layout { fields: OF_KINDS, shown: OF_KINDS };

const VALUES: &[Column] = &[FIGURE, INDEX, PUBLISHED];
/// Values that a paper's text gives.
pub(crate) static OF_PAPERS: Layout = Layout { fields: VALUES, shown: VALUES };
