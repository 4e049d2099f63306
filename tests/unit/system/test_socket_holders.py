"""Whose socket it is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from hangdoc.evidence import Target
from hangdoc.system.sockdiag import Fields
from hangdoc.system.socket_holders import LONGEST, Holders, command, lineage
from tests.support.probe_targets import started

ME = Target(os.getpid(), 1, "here", 0)


def fields(server: socket.socket) -> Fields:
    return {"inode": os.fstat(server.fileno()).st_ino, "uid": os.geteuid()}


def test_own_socket_and_one_that_was_passed_on() -> None:
    holders = Holders()
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = fields(server)
        assert holders.of(ME, listening).pid == os.getpid()
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[server.fileno()], text=True
        )
        server.close()
        try:
            found = holders.of(ME, listening)  # what was remembered is checked
            assert found.pid == child.pid
            assert (found.age_s or 0) < 30
        finally:
            child.kill()
            child.communicate()
        assert holders.of(ME, listening).pid is None


def test_a_socket_that_nobody_has_open() -> None:
    found = Holders().of(ME, {"inode": 1, "uid": 7})
    assert (found.pid, found.command, found.uid) == (None, None, 7)


def test_lineage() -> None:
    found = list(lineage(os.getpid()))
    assert found[:2] == [os.getpid(), os.getppid()]
    assert 1 not in found
    assert list(lineage(2**22 + 1)) == [2**22 + 1]


def test_commands_are_short_and_without_secrets() -> None:
    words = ["--api-key=sk-abcdefghijklmnop1234", "x" * 400]
    with started("-c", "import time; print(0, flush=True); time.sleep(30)", *words) as program:
        said = command(program.pid) or ""
    assert "time.sleep" in said
    assert "abcdefghijklmnop" not in said
    assert len(said) == LONGEST
    assert command(2**22 + 1) is None
