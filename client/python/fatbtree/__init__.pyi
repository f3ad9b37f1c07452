import os
from typing import Any, Literal

from fatbtree._native import (
    BytesClient as BytesClient,
    BytesKey as BytesKey,
    BytesScan as BytesScan,
    Client as Client,
    ClosedError as ClosedError,
    ConflictError as ConflictError,
    ConnectError as ConnectError,
    Element as Element,
    Error as Error,
    FailedError as FailedError,
    OutOfRangeError as OutOfRangeError,
    Scan as Scan,
    Stats as Stats,
    TimedOutError as TimedOutError,
    Transaction as Transaction,
    UnknownError as UnknownError,
    UnsupportedError as UnsupportedError,
    __version__ as __version__,
    decode_key as decode_key,
    encode_key as encode_key,
)

def connect(
    cluster_file: str | os.PathLike[str] = "cluster.toml",
    *,
    client: str | None = None,
    protocol: Literal["rdma", "query"] = "rdma",
    device: str | None = None,
    lanes: int = 2,
    root_to_leaf: bool = False,
    cache: int = 0,
    entry_cache: int = 0,
    patience: float = 10.0,
    time_limit: float = 30.0,
) -> Client: ...
def _arguments(cluster_file: str | os.PathLike[str] = ..., **options: Any) -> dict[str, Any]: ...
