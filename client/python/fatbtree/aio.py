"""The client for asyncio.

    import asyncio
    from fatbtree import aio

    async def main():
        async with await aio.connect("cluster.toml") as db:
            await asyncio.gather(*(db.put(key, b"x") for key in range(1000)))
            async for key, value in db.scan(0, 10):
                print(key, value)

    asyncio.run(main())

Tasks may be cancelled at any `await`. A change that was queued is carried out to its end, without telling its result.
"""

from collections import deque

from fatbtree import ConflictError, _arguments
from fatbtree._native import AsyncClient

__all__ = ["BytesClient", "Client", "Scan", "Transaction", "connect"]

# Of both clients, as they are there.
OPERATIONS = (
    "get",
    "get_many",
    "put",
    "put_many",
    "insert",
    "update",
    "compare_and_swap",
    "delete",
    "stats",
    "close",
)


class Client:
    """A connection to a cluster, whose methods are coroutines; see `fatbtree.Client` for what each does."""

    def __init__(self, native):
        self._native = native
        # Without a call in between: each is the library's own coroutine.
        for name in OPERATIONS:
            setattr(self, name, getattr(native, name))

    def with_time_limit(self, limit):
        """A client over the same connection, whose operations take at most so many seconds."""
        return Client(self._native.with_time_limit(limit))

    def bytes(self):
        """A client over the same connection to trees or a hash table whose keys are bytes."""
        return BytesClient(self._native.bytes())

    def scan(self, start=0, stop=None, backward=False):
        """The pairs with keys from `start` up to, but without, `stop`, in ascending or descending order: an asynchronous iterator."""
        return Scan(self._native.scan(start, stop, backward))

    def pairs(self):
        """All pairs, in ascending order, or in no order where the structure has none, as a hash table: an asynchronous iterator."""
        return Scan(self._native.pairs())

    async def begin(self):
        """Begins a transaction: an asynchronous context manager that commits at its end, and aborts after an exception."""
        return Transaction(await self._native.begin())

    async def transact(self, work):
        """Awaits `work(transaction)` and commits, again after each ConflictError, as long as the time limit lasts."""
        attempts = self._native.attempts()
        while True:
            native = await attempts.begin()
            tx = Transaction(native)
            try:
                result = await work(tx)
                await tx.commit()
                return result
            except GeneratorExit:
                # Nothing can be awaited: the transaction is dropped, which aborts it.
                raise
            except BaseException as error:
                # It holds no lock when this returns.
                await native.leave(True)
                if not isinstance(error, ConflictError) or not await attempts.pause():
                    raise

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, raised, trace):
        await self.close()


class BytesClient:
    """A client of trees or a hash table whose keys are bytes, whose methods are coroutines; see `fatbtree.BytesClient` for what each does."""

    def __init__(self, native):
        self._native = native
        for name in OPERATIONS:
            setattr(self, name, getattr(native, name))

    def with_time_limit(self, limit):
        """A client over the same connection, whose operations take at most so many seconds."""
        return BytesClient(self._native.with_time_limit(limit))

    def scan(self, start=None, stop=None, backward=False):
        """The pairs with keys from `start` up to, but without, `stop`, in ascending or descending order: an asynchronous iterator."""
        return Scan(self._native.scan(start, stop, backward))

    def scan_prefix(self, prefix, backward=False):
        """The pairs with keys, or tuples, that begin with this one: an asynchronous iterator."""
        return Scan(self._native.scan_prefix(prefix, backward))

    def pairs(self):
        """All pairs, in ascending order, or in no order where the structure has none, as a hash table: an asynchronous iterator."""
        return Scan(self._native.pairs())

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, raised, trace):
        await self.close()


class Transaction:
    """A transaction, whose methods are coroutines; see `fatbtree.Transaction` for what each does."""

    def __init__(self, native):
        self._native = native
        for name in ("get", "get_many", "put", "insert", "delete", "commit", "abort"):
            setattr(self, name, getattr(native, name))

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, raised, trace):
        await self._native.leave(kind is not None)


class Scan:
    """Asynchronous iterator over the pairs of a range of keys, or all."""

    def __init__(self, native):
        self._native = native
        self._pairs = deque()

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._pairs:
            self._pairs.extend(await self._native.next_part())
        if not self._pairs:
            raise StopAsyncIteration
        return self._pairs.popleft()


async def connect(cluster_file="cluster.toml", **options):
    """Connects to a cluster, and returns a `Client`. Options are those of `fatbtree.connect`. Raises ConnectError."""
    return Client(await AsyncClient.connect(_arguments(cluster_file, **options)))
