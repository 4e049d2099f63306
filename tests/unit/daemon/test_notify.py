"""Datagrams to a real socket, as systemd reads them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangdoc.daemon.notify import LONGEST_STATUS, Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.settimeout(5.0)
        yield path, listening


def test_each_message_is_one_datagram(manager: tuple[str, socket.socket]) -> None:
    path, listening = manager
    notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())})
    assert notifier.watchdog_s == 30.0
    notifier.ready()
    notifier.alive()
    notifier.status("two jobs\nREADY=0 " + "x" * 1000)
    notifier.reloading()
    notifier.stopping()
    got = [listening.recv(4096).decode() for _ in range(5)]
    assert got[:2] == ["READY=1", "WATCHDOG=1"]
    assert got[2].startswith("STATUS=two jobs READY=0 x")
    assert "\n" not in got[2], "a line of its own would be a message of its own"
    assert len(got[2]) <= len("STATUS=") + LONGEST_STATUS
    assert got[3].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert got[4] == "STOPPING=1"


def test_an_abstract_socket() -> None:
    name = f"hangdoc-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.settimeout(5.0)
        Notifier({"NOTIFY_SOCKET": "@" + name}).ready()
        assert listening.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "vsock:2:1", "WATCHDOG_USEC": "soon"},
    ],
)
def test_without_a_manager_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)
    notifier.ready()
    notifier.alive()
    assert notifier.watchdog_s is None


def test_a_manager_that_does_not_read_blocks_nobody(manager: tuple[str, socket.socket]) -> None:
    path, listening = manager
    notifier = Notifier({"NOTIFY_SOCKET": path})
    for _ in range(5000):  # more than its queue holds
        notifier.status("busy")
    assert listening.recv(100) == b"STATUS=busy"
