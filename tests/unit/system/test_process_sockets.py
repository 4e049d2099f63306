"""Sockets and the processes that hold them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hangdoc.evidence import Target
from hangdoc.system import procfs
from hangdoc.system.command_text import command_text
from hangdoc.system.process_sockets import Endpoint, SocketHolders, connected_endpoint, listening_endpoint
from hangdoc.system.sockdiag import Fields
from hangdoc.system.tcpstore import StoreReader
from tests.support.pace import slowness
from tests.support.probe_targets import started
from tests.support.tcp_peers import TcpPeer

SELF = Target(os.getpid(), 1, "here", 0)


def fields(server: socket.socket) -> Fields:
    return {"inode": os.fstat(server.fileno()).st_ino, "uid": os.geteuid()}


def test_only_the_process_s_own_sockets_count() -> None:
    talker = TcpPeer.start()
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("0.0.0.0", 0)) as everywhere:
            port = server.getsockname()[1]
            assert listening_endpoint(os.getpid(), port) == Endpoint("127.0.0.1", port)
            assert listening_endpoint(os.getpid(), everywhere.getsockname()[1]) == Endpoint(
                "127.0.0.1", everywhere.getsockname()[1]
            )
            assert listening_endpoint(talker.pid, port) is None
            assert connected_endpoint(talker.pid, port) is None
            talker.do(f"connect 127.0.0.1 {port}")
            assert connected_endpoint(talker.pid, port) == Endpoint("127.0.0.1", port)
            assert connected_endpoint(os.getpid(), port) is None
    finally:
        talker.process.kill()
        talker.process.wait()


def test_a_slow_store_reply_times_out() -> None:
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
        end = Endpoint("127.0.0.1", server.getsockname()[1])
        with StoreReader(end, timeout_s=0.3) as store, pytest.raises(OSError, match=r"in time|timed out"):
            store.get("key")
        assert time.monotonic() - began < 2 * slowness()
    assert ended.wait(5), "the connection is closed"


def test_holder_of_our_own_and_of_an_inherited_socket() -> None:
    holders = SocketHolders()
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = fields(server)
        assert holders.find(SELF, listening).pid == os.getpid()
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[server.fileno()], text=True
        )
        server.close()
        try:
            found = holders.find(SELF, listening)  # checks the remembered PID
            assert found.pid == child.pid
            assert (found.age_s or 0) < 30
        finally:
            child.kill()
            child.communicate()
        assert holders.find(SELF, listening).pid is None


def test_a_socket_without_a_holder() -> None:
    found = SocketHolders().find(SELF, {"inode": 1, "uid": 7})
    assert (found.pid, found.command, found.uid) == (None, None, 7)


def test_lineage() -> None:
    found = list(procfs.lineage(os.getpid()))
    assert found[:2] == [os.getpid(), os.getppid()]
    assert 1 not in found
    assert list(procfs.lineage(2**22 + 1)) == [2**22 + 1]


def test_commands_are_short_and_without_secrets() -> None:
    words = ["--api-key=sk-abcdefghijklmnop1234", "x" * 400]
    with started("-c", "import time; print(0, flush=True); time.sleep(30)", *words) as program:
        text, short = command_text(program.pid) or "", command_text(program.pid, 12, folder=False) or ""
    assert "time.sleep" in text
    assert "abcdefghijklmnop" not in text
    assert len(text) == 200
    assert short.startswith("python")
    assert len(short) == 12
    assert command_text(2**22 + 1) is None


def test_a_long_command_keeps_the_names_of_its_files(tmp_path: Path) -> None:
    script = tmp_path / ("folder" * 10) / "collect.py"
    script.parent.mkdir()
    script.write_text("import time; print(0, flush=True); time.sleep(30)")
    with started(str(script), "--all") as program:
        short, whole = (command_text(program.pid, longest, folder=False) or "" for longest in (60, 400))
    assert short.endswith(" .../collect.py --all")
    assert whole.endswith(f" {script} --all")
