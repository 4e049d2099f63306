"""Where hangdoc may connect to: what the kernel shows of one process, and of no other."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from hangdoc.system.own_sockets import End, connected, listens
from hangdoc.system.tcpstore import StoreReader
from tests.support.tcp_peers import TcpPeer


def test_only_its_own_ends_count() -> None:
    talker = TcpPeer.start()
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("0.0.0.0", 0)) as everywhere:
            port = server.getsockname()[1]
            assert listens(os.getpid(), port) == End("127.0.0.1", port)
            assert listens(os.getpid(), everywhere.getsockname()[1]) == End("127.0.0.1", everywhere.getsockname()[1])
            assert listens(talker.pid, port) is None
            assert connected(talker.pid, port) is None
            talker.do(f"connect 127.0.0.1 {port}")
            assert connected(talker.pid, port) == End("127.0.0.1", port)
            assert connected(os.getpid(), port) is None
    finally:
        talker.process.kill()
        talker.process.wait()


def test_a_store_that_sends_a_byte_at_a_time_is_left_after_its_time() -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            link = server.accept()[0]
            try:
                link.sendall(b"\0")  # the key is there
                while True:
                    link.sendall(b"\1")
                    time.sleep(0.1)
            except OSError:
                ended.set()

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        end = End("127.0.0.1", server.getsockname()[1])
        with StoreReader(end, timeout_s=0.3) as store, pytest.raises(OSError, match=r"in time|timed out"):
            store.get("key")
        assert time.monotonic() - began < 2
    assert ended.wait(5), "the connection is closed"
