"""Which helpers of real processes are dumped, and when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from hangdoc.evidence import FileCall, Frame, Io, RankEvidence, Snapshot, Stack, Stacks, Target
from hangdoc.system import procfs
from probes import Request, Tier
from probes.cpu import CpuProbe
from probes.io import IoProbe
from probes.stacks import choose_helpers, waits_for_storage
from tests.support.polling import until

LOADER = ("_try_get_data", "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py")
FAMILY = """
import json, os, subprocess, sys, threading
def python(code, *more):
    return subprocess.Popen([sys.executable, "-c", code, *more]).pid
pids = {
    "other program": subprocess.Popen(["sleep", "600"]).pid,
    "servant": python("import time; time.sleep(600)", "multiprocessing.resource" + "_tracker"),
    "gone": os.spawnlp(os.P_NOWAIT, "true", "true"),
}
for name in ("polls", "polls too", "polls as well", "and polls"):
    pids[name] = python("import select; select.poll().poll()")
pids["sleeps"] = python("import time; time.sleep(600)")
pids["locked"] = os.fork()
if not pids["locked"]:
    lock = threading.Lock()
    with lock:
        lock.acquire()
print(json.dumps(pids), flush=True)
input()
"""


@dataclass
class Family:
    """A process with children of many kinds, and what two probes say of it."""

    pid: int
    named: dict[str, int]
    records: dict[str, Any]

    def target(self) -> Target:
        return Target(self.pid, 1, "here", 0)

    def request(self, tier: Tier = Tier.LOOK, innermost: tuple[str, str] | None = None) -> Request:
        """`innermost`: the frame that the look before saw its main thread in."""
        frames = (Frame(innermost[0], innermost[1], 1),) if innermost else ()
        seen = {"stacks": Stacks((Stack(self.pid, "MainThread", frames),))}
        before = Snapshot("here", 0.0, "", (RankEvidence(self.target(), True, seen),), {})
        return Request([self.target()], tier, previous=before, records={self.pid: self.records})

    def chosen(self, tier: Tier, innermost: tuple[str, str] | None = None, most: int = 8) -> list[str]:
        names = {pid: name for name, pid in self.named.items()}
        return [names[pid] for pid in choose_helpers(self.target(), self.request(tier, innermost), most)]


@contextmanager
def family() -> Iterator[Family]:
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        named = json.loads(process.stdout.readline())
        until(lambda: (procfs.text(f"/proc/{named['gone']}/stat") or "").split()[2] == "Z")
        stat, io = procfs.stat(process.pid), IoProbe()
        assert stat
        target = Target(process.pid, stat.start_ticks, "here", 0)
        asleep = {name: "poll" for name in named if "polls" in name} | {"sleeps": "time", "locked": "lock"}
        records: dict[str, Any] = {}
        for _ in range(100):  # until all of them have come to what they do
            before = Snapshot("here", 0.0, "", (RankEvidence(target, True, records),), {})
            request = Request([target], Tier.PULSE, previous=before)
            cpu = CpuProbe().observe(request).by_pid[process.pid]
            request = Request([target], Tier.PULSE, previous=before, records={process.pid: {"cpu": cpu}})
            records = {"cpu": cpu, "io": io.observe(request).by_pid[process.pid]}
            found = {helper.pid: helper for helper in records["io"].helpers}
            if all(found[named[name]].sleeps == how for name, how in asleep.items()) and found[named["locked"]].locked:
                break
            time.sleep(0.05)
        yield Family(process.pid, named, records)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def helpers() -> Iterator[Family]:
    with family() as found:
        yield found


def test_when_examined_every_python_child_the_telling_ones_first(helpers: Family) -> None:
    chosen = helpers.chosen(Tier.EXAMINE)
    assert chosen[:2] == ["locked", "sleeps"]
    assert set(chosen[2:]) == {"polls", "polls too", "polls as well", "and polls"}
    assert helpers.chosen(Tier.EXAMINE, most=3) == chosen[:3]


@pytest.mark.parametrize(
    ("innermost", "looked"),
    [
        (LOADER, 4),
        (("join", "/usr/lib/python3.11/multiprocessing/process.py"), 4),
        (("get", "/usr/lib/python3.11/multiprocessing/queues.py"), 4),
        (("next", "/usr/lib/python3.11/multiprocessing/pool.py"), 4),
        (("result", "/usr/lib/python3.11/concurrent/futures/_base.py"), 4),
        (("train", "/home/me/train.py"), 0),
        (None, 0),
    ],
)
def test_in_an_ordinary_look_only_where_the_rank_waits_for_them(
    helpers: Family, innermost: tuple[str, str] | None, looked: int
) -> None:
    chosen = helpers.chosen(Tier.LOOK, innermost)
    assert len(chosen) == looked
    assert chosen[:2] == ["locked", "sleeps"][:looked]


def test_without_records_the_children_the_target_names(helpers: Family) -> None:
    children = tuple(helpers.named.values())
    target = Target(helpers.pid, 1, "here", 0, children=children)
    chosen = choose_helpers(target, Request([target], Tier.EXAMINE), 8)
    assert set(chosen) == set(children) - {helpers.named["other program"], helpers.named["gone"]}


@pytest.mark.parametrize(
    ("pid", "kind", "state", "at_file"),
    [(7, "file", "S", True), (7, "pipe", "S", False), (7, "pipe", "D", True), (8, "file", "D", False)],
)
def test_at_file(pid: int, kind: str, state: str, at_file: bool) -> None:
    """A call of a helper does not keep the rank itself from being paused."""
    target = Target(7, 1, "here", 0)
    call = FileCall(pid, pid, "read", "/data/x", kind, state)
    request = Request([target], Tier.EXAMINE, records={7: {"io": Io(calls=(call,))}})
    assert waits_for_storage(target, request) is at_file
