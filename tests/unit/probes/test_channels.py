"""Shared memory and Unix sockets of real processes."""

from __future__ import annotations

import multiprocessing
import os
import socket
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from hangdoc.evidence import ProcessGroups, Target
from hangdoc.evidence.process import Channels
from probes import Observation, Request, Tier
from probes.channels import ChannelsProbe, shared_memory
from tests.support.probe_targets import started

MAPS = """
import json, mmap, sys, time
file = open(sys.argv[1], "r+b")
kept = mmap.mmap(file.fileno(), 0)
print(json.dumps(1), flush=True)
time.sleep(99)
"""


def look(*pids: int, exists: bool | None = False) -> Observation:
    records = {pid: {"groups": ProcessGroups(exists=exists)} for pid in pids}
    return ChannelsProbe().observe(Request([Target(pid, 1, "here", None) for pid in pids], Tier.LOOK, records=records))


def test_processes_with_memory_in_common() -> None:
    file = Path("/dev/shm") / f"hangdoc-{uuid.uuid4()}"
    file.write_bytes(b"\0" * 65536)
    with ExitStack() as stack:
        stack.callback(file.unlink)
        pids = [stack.enter_context(started("-c", MAPS, str(file))).pid for _ in range(2)]
        seen = look(*pids)
    first, second = (seen.by_pid[pid].memory for pid in pids)
    common = first.keys() & second.keys()
    assert [first[name] for name in common] == [65536]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("7f00-9f00 rw-s 00000000 00:1a 42  /dev/shm/x (deleted)", {"00:1a:42": 0x2000}),
        ("7f00-9f00 rw-s 00000000 00:01 43  /dev/zero (deleted)", {"00:01:43": 0x2000}),
        ("7f00-9f00 r--s 00000000 fe:01 44  /data/tokens.bin", {}),
        ("7f00-9f00 rw-p 00000000 00:00 0  [heap]", {}),
        ("7f00-9f00 rw-s 00000000 00:05 45  /dev/nvidia0", {}),
        ("nonsense", {}),
    ],
)
def test_mappings_that_count(line: str, found: dict[str, int]) -> None:
    assert shared_memory(line) == found


def test_both_ends_of_a_unix_socket() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = socket.socketpair()
    ready, done = context.Event(), context.Event()

    def hold() -> None:
        ours.close()
        ready.set()
        done.wait(60)

    child = context.Process(target=hold)
    child.start()
    try:
        theirs.close()
        assert child.pid is not None
        assert ready.wait(60)
        seen = look(os.getpid(), child.pid).by_pid
    finally:
        done.set()
        child.join()
        ours.close()
    assert set(seen[os.getpid()].sockets) & set(seen[child.pid].sockets)


def test_a_rank_with_a_process_group_costs_nothing() -> None:
    assert look(os.getpid(), exists=True).by_pid == look(os.getpid(), exists=None).by_pid == {}


def test_an_ended_process_is_unseen() -> None:
    seen = look(2**22 + 1)
    assert seen.by_pid == {}
    assert [lack.probe for lack in seen.unseen] == ["channels"]
    assert isinstance(look(os.getpid()).by_pid[os.getpid()], Channels)
