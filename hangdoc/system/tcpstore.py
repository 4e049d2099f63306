"""A client of a job's TCPStore that reads and does nothing else.

The wire format is TCPStoreBackend.hpp's (torch 2.13): a byte for the kind of query, strings as u64 length and bytes,
and a magic number first. Every key begins with "/". A key that is missing is never asked for: `get` would wait for it.

The legacy store (`use_libuv=False`) has one thread, which reads the rest of a message for as long as that takes: half a
message would hold it for every rank. Each message is one segment, so that it arrives whole or not at all, whatever
becomes of us. What no client can help: with each new connection that thread asks DNS for the name of the client's
address (torch's socket.cpp, for a log), and answers no rank before DNS does.
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
LONGEST = 1 << 20  # bytes of a value
SEGMENT = 512  # bytes of a message; every TCP segment may hold 536 (RFC 9293, 3.7.1)


class StoreReader:
    """A connection to the store at `end`. Raises OSError where there is none, or a reply is not complete in
    `timeout_s`."""

    def __init__(self, end: Endpoint, timeout_s: float = 2.0) -> None:
        self._timeout_s = timeout_s
        self._socket = connect(end, timeout_s)
        self._send(struct.pack("<BI", VALIDATE, MAGIC))

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def has(self, keys: Sequence[str]) -> bool:
        """Whether every one of `keys` is set."""
        self._send(struct.pack("<BQ", CHECK, len(keys)) + b"".join(_string(key) for key in keys))
        return self._read(1)[0] == READY

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None where it is not set."""
        if not self.has([key]):
            return None
        self._send(struct.pack("<B", GET) + _string(key))
        length: int = struct.unpack("<Q", self._read(8))[0]
        if length > LONGEST:
            raise OSError(f"the store's value of {key} has {length} bytes")
        return self._read(length)

    def _send(self, message: bytes) -> None:
        """One message, by one send(2): the reply to the one before has come, so that the buffer has room for it."""
        if len(message) > SEGMENT:
            raise OSError(f"a message of {len(message)} bytes might hold the store")
        if self._socket.send(message) < len(message):
            raise OSError("the connection to the store is congested")

    def _read(self, count: int) -> bytes:
        parts, until_s = b"", time.monotonic() + self._timeout_s
        while len(parts) < count:
            if (left_s := until_s - time.monotonic()) <= 0:  # a server may send a byte at a time
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
