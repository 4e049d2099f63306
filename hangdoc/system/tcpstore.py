"""A read-only client of a job's TCPStore.

Wire format: TCPStoreBackend.hpp (torch 2.13). A magic number first; then a byte for the kind of query; strings as u64
length and bytes. Every key begins with "/". We never request a missing key, because `get` waits for it.

The legacy store (`use_libuv=False`) has one thread and blocks until a message is complete, so half a message would
block every rank. Each of our messages is one TCP segment: it arrives completely or not at all, even if we die. One cost
remains: for each new connection that thread resolves the client's address by DNS (torch's socket.cpp, for a log line),
and answers no rank meanwhile.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from types import TracebackType

from hangdoc.system.process_sockets import Endpoint, connect

MAGIC = 0x3C85F7CE
VALIDATE, GET, CHECK = 0, 3, 5
READY = 0
LONGEST = 1 << 20  # bytes; longer values are refused
SEGMENT = 512  # bytes of a message; any TCP segment can carry 536 (RFC 9293, 3.7.1)


class StoreReader:
    """A connection to the store at `endpoint`. Raises OSError: no store, or no complete reply within `timeout_s`."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 2.0) -> None:
        self._timeout_s = timeout_s
        self._socket = connect(endpoint, timeout_s)
        self._send(struct.pack("<BI", VALIDATE, MAGIC))

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def has(self, keys: Sequence[str]) -> bool:
        """True if all `keys` are set."""
        self._send(struct.pack("<BQ", CHECK, len(keys)) + b"".join(_string(key) for key in keys))
        return self._read(1)[0] == READY

    def get(self, key: str) -> bytes | None:
        """The value of a key; None: not set."""
        if not self.has([key]):
            return None
        self._send(struct.pack("<B", GET) + _string(key))
        length: int = struct.unpack("<Q", self._read(8))[0]
        if length > LONGEST:
            raise OSError(f"the store's value of {key} has {length} bytes")
        return self._read(length)

    def _send(self, message: bytes) -> None:
        """Send one message by one send(2). The previous reply has arrived, so the send buffer has room."""
        if len(message) > SEGMENT:
            raise OSError(f"a message of {len(message)} bytes might hold the store")
        if self._socket.send(message) < len(message):
            raise OSError("the connection to the store is congested")

    def _read(self, count: int) -> bytes:
        parts, until_s = b"", time.monotonic() + self._timeout_s
        while len(parts) < count:
            if (left_s := until_s - time.monotonic()) <= 0:  # the server may send byte by byte
                raise TimeoutError("the store's reply is not complete in time")
            self._socket.settimeout(left_s)
            part = self._socket.recv(count - len(parts))
            if not part:
                raise OSError("the store closed the connection")
            parts += part
        return parts


def _string(key: str) -> bytes:
    raw = f"/{key}".encode()
    return struct.pack("<Q", len(raw)) + raw
