"""The reader of a job's store never blocks a legacy store, which serves nobody during half a message."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from hangdoc.system import procfs
from hangdoc.system.process_sockets import Endpoint
from hangdoc.system.tcpstore import CHECK, MAGIC, SEGMENT, VALIDATE, StoreReader
from tests.support import requirements
from tests.support.paths import ROOT
from tests.support.polling import until
from tests.support.probe_targets import started

READ = (
    "import sys; from hangdoc.system.process_sockets import Endpoint; from hangdoc.system.tcpstore import StoreReader\n"
    "while True:\n"
    " with StoreReader(Endpoint('127.0.0.1', int(sys.argv[1]))) as store:\n"
    "  for key in ('key', 'missing', 'large') * 3: store.get(key)\n"
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    requirements.met(requirements.torch())
    with started("legacy_store_program.py") as program:
        yield program.said


def answers(port: int) -> bool:
    try:
        with StoreReader(Endpoint("127.0.0.1", port), timeout_s=1.0) as store:
            return store.get("key") == b"value"
    except TimeoutError:
        return False


def test_half_a_message_blocks_the_legacy_store(port: int) -> None:
    """What must not happen: else the tests below show nothing."""
    with socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(struct.pack("<BIBQ", VALIDATE, MAGIC, CHECK, 1))
        until(lambda: not answers(port))
    until(lambda: answers(port))


@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_reader_does_not_block_the_legacy_store(port: int, ended: signal.Signals) -> None:
    rng = random.Random(5)
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", READ, str(port)], cwd=ROOT) as reader:
            try:
                until(
                    lambda: any("socket:" in (procfs.link(f"/proc/{reader.pid}/fd/{fd}") or "") for fd in range(3, 9))
                )
                time.sleep(rng.uniform(0, 0.02))
                os.kill(reader.pid, ended)
                assert answers(port)
            finally:
                reader.kill()


def test_each_message_is_sent_in_one_piece(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """By one system call that takes all of it, small enough for one segment."""
    sent: list[int] = []

    class Socket(socket.socket):
        def send(self, data: bytes, flags: int = 0) -> int:  # type: ignore[override]
            sent.append(len(data))
            return super().send(data, flags)

        def sendall(self, *_: object) -> None:
            raise AssertionError("it may send a part")

    monkeypatch.setattr(socket, "socket", Socket)
    with StoreReader(Endpoint("127.0.0.1", port)) as store:
        assert store.get("key") == b"value"
        with pytest.raises(OSError, match="might hold the store"):
            store.get("k" * SEGMENT)
        assert store.get("key") == b"value"
    assert sent == [5, 1 + 8 + 8 + 4, 1 + 8 + 4, 1 + 8 + 8 + 4, 1 + 8 + 4]
