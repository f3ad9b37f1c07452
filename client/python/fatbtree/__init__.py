"""Client of Fat-B+Tree: an ordered index of 64-bit keys, or of keys of bytes, in the memory of other machines.

    import fatbtree

    with fatbtree.connect("cluster.toml") as db:
        db.put(1, b"one")
        assert db.get(1) == b"one"
        for key, value in db.scan(0, 10):
            print(key, value)

Methods wait, and other Python threads run meanwhile. One client serves any number of threads. `fatbtree.aio` is the same for asyncio.

Keys are integers from 0 to 2**64 - 1; values are bytes. Where the tree's keys are bytes, `bytes()` gives the client:

    with fatbtree.connect("cluster.toml").bytes() as names:
        names.put("user:4711", b"Ada")
        names.put(("order", 4711, datetime.now(timezone.utc)), b"two lamps")
        for key, value in names.scan_prefix(("order", 4711)):
            kind, user, at = fatbtree.decode_key(key)

Every exception has `may_have_happened`: whether a change may have been carried
out all the same. If not, it can be repeated without harm; otherwise read the key first.

A process that forks must connect in the child: a connection has threads, which do not survive a fork. The parent's client raises
ClosedError there.

Ctrl-C raises KeyboardInterrupt in a method that waits. A change that it interrupts may have been carried out.
"""

from fatbtree._native import (
    BytesClient,
    BytesScan,
    Client,
    ClosedError,
    ConflictError,
    ConnectError,
    Error,
    FailedError,
    OutOfRangeError,
    Scan,
    TimedOutError,
    Transaction,
    UnknownError,
    UnsupportedError,
    __version__,
    decode_key,
    encode_key,
)

__all__ = [
    "BytesClient",
    "BytesScan",
    "Client",
    "ClosedError",
    "ConflictError",
    "ConnectError",
    "Error",
    "FailedError",
    "OutOfRangeError",
    "Scan",
    "TimedOutError",
    "Transaction",
    "UnknownError",
    "UnsupportedError",
    "__version__",
    "connect",
    "decode_key",
    "encode_key",
]


def _arguments(
    cluster_file="cluster.toml",
    *,
    client=None,
    protocol="rdma",
    device=None,
    lanes=2,
    root_to_leaf=False,
    cache=0,
    entry_cache=0,
    patience=10.0,
    time_limit=30.0,
):
    return locals()


def connect(cluster_file="cluster.toml", **options):
    """Connects to a cluster as a client of its cluster file, and returns a `Client`.

    Options, all by name:

    client        name of the client in the cluster file; default: the first one
    protocol      "rdma", or "query" for requests to the processors of the memory servers
    device        RDMA device such as "mlx5_0"; default: the software NIC
    lanes         queue pairs to each memory server
    root_to_leaf  finds keys without the switches
    cache         bytes of a cache of inner nodes
    entry_cache   bytes of a cache of single keys' places
    patience      longest wait for a memory server that does not answer, in seconds
    time_limit    longest time of an operation, in seconds

    Raises ConnectError.
    """
    return Client(_arguments(cluster_file, **options))
