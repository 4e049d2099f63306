"""Process groups read from memory, compared with what the processes themselves print."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hangdoc.evidence import ProcessGroups, Target
from probes import Observation, Request, Tier, process_groups
from probes.process_groups import GroupsProbe
from tests.support import requirements
from tests.support.paths import PROGRAMS
from tests.support.probe_targets import every_python, started
from tests.unit.introspect.test_module_globals import Garbled

RANKS = 3


class Rank:
    """A real rank that does as it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def says(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@contextmanager
def job(path: Path, way: str = "argument", size: int = RANKS) -> Iterator[list[Rank]]:
    """Ranks that have started and not yet made their process group; killed at the end."""
    requirements.met(requirements.torch())
    environ = {k: v for k, v in os.environ.items() if "RANK" not in k and k not in process_groups.VARIABLES}
    with ExitStack() as stack:
        ranks = []
        for rank in range(size):
            command = [sys.executable, "groups_program.py", str(rank), str(size), str(path / "store"), way]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROGRAMS, env=environ
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(Rank(process))
        for one in ranks:
            one.says()
        yield ranks


def look(probe: GroupsProbe, *ranks: Any) -> Observation:
    return probe.observe(Request([Target(rank.pid, 1, "here", None) for rank in ranks], Tier.LOOK))


def read(probe: GroupsProbe, rank: Any) -> ProcessGroups:
    seen = look(probe, rank)
    assert seen.unseen == ()
    found = seen.by_pid[rank.pid]
    assert isinstance(found, ProcessGroups)
    return found


def as_told(found: ProcessGroups) -> list[list[Any]]:
    return [[g.address, g.name, list(g.ranks), g.default, g.backend] for g in found.groups]


@pytest.mark.slow("processes import torch")
def test_what_the_ranks_say_of_themselves(tmp_path: Path) -> None:
    """From before init_process_group to after its end, the rank told by an argument alone."""
    probe = GroupsProbe()
    with job(tmp_path) as ranks:
        assert [read(probe, rank) for rank in ranks] == [ProcessGroups(exists=False)] * RANKS
        for word in ("init", "pairs", "drop", "many", "end", "init"):
            for rank in ranks:
                rank.tell(word)
            for number, rank in enumerate(ranks):
                told, own, size = rank.says()
                found = read(probe, rank)
                assert as_told(found) == told
                assert found.exists is (word != "end")
                assert len(told) == {"init": 1, "end": 0}.get(word, len(told))
                if word == "end":
                    assert (found.rank, found.world_size) == (None, None)
                else:
                    assert (found.rank, found.world_size) == (own, size) == (number, RANKS)
                    assert [g.default for g in found.groups].count(True) == 1
            if word == "pairs":
                _same_names_on_every_member([read(probe, rank) for rank in ranks])


def _same_names_on_every_member(seen: list[ProcessGroups]) -> None:
    members: dict[str, set[tuple[int, ...]]] = {}
    holders: dict[str, list[int]] = {}
    for rank, record in enumerate(seen):
        for group in record.groups:
            members.setdefault(group.name, set()).add(group.ranks)
            holders.setdefault(group.name, []).append(rank)
    assert sorted(holders.values()) == [[0, 1, 2], [0, 1, 2], [0, 2], [1, 2]]
    assert all(len(told) == 1 and sorted(told.pop()) == holders[name] for name, told in members.items())


def test_an_environment_set_after_the_start(tmp_path: Path) -> None:
    """/proc/PID/environ is silent; `os.environ` is not."""
    with job(tmp_path, "environ", size=1) as (rank,):
        assert b"RANK" not in Path(f"/proc/{rank.pid}/environ").read_bytes()
        assert read(GroupsProbe(), rank) == ProcessGroups((), 0, 1, 0, "10.0.0.1:29500", exists=False)


@every_python
def test_without_torch(python: str) -> None:
    """On every interpreter: no group, and the environment as it is by now."""
    code = (
        "import os, time\nfor i in range(300): os.environ[f'VARIABLE_{i}'] = 'RANK'\n"
        "os.environ.update(RANK='7', WORLD_SIZE='12x', LOCAL_RANK='\\u00e9', MASTER_ADDR='h' * 33, MASTER_PORT='1')\n"
        "print(1, flush=True); time.sleep(99)"
    )
    with started("-c", code, python=python) as program:
        probe = GroupsProbe()
        assert read(probe, program) == read(probe, program) == ProcessGroups((), 7)


@pytest.mark.parametrize("command", [["sleep", "99"], ["true"]], ids=["not-python", "ended"])
def test_an_unreadable_process_is_unseen(command: list[str]) -> None:
    process = subprocess.Popen(command)
    try:
        if command == ["true"]:
            process.wait()
        probe = GroupsProbe()
        for _ in range(5):
            seen = look(probe, process)
            assert seen.by_pid == {}
            assert [(lack.probe, lack.pid) for lack in seen.unseen] == [("groups", process.pid)]
            assert "run hangdoc as that user" in seen.unseen[0].why
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow("reads for seconds while they change")
def test_dicts_that_change_while_they_are_read(tmp_path: Path) -> None:
    """A busy process moves its groups about: what is read is a state that was, never a mixture."""
    probe = GroupsProbe()
    with job(tmp_path, size=1) as (rank,):
        for word in ("init", "many"):
            rank.tell(word)
            told, *_ = rank.says()
        known = {(address, name) for address, name, *_ in told}
        read(probe, rank)
        rank.tell("churn")
        rank.says()
        for _ in range(200):
            found = read(probe, rank)
            assert found.rank == 0
            assert found.groups[0].default
            assert {(g.address, g.name) for g in found.groups} <= known
            assert len(found.groups) >= len(known) - 1


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rank]:
    """A rank with 41 groups that no longer change."""
    with job(tmp_path_factory.mktemp("still"), size=1) as (rank,):
        for word in ("init", "many"):
            rank.tell(word)
            rank.says()
        yield rank


@pytest.mark.parametrize("share", [0.3, 0.03])
def test_garbage_is_survived(still: Rank, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    monkeypatch.setattr(process_groups, "Memory", lambda pid: Garbled(pid, rng, share))
    for _ in range(40):
        look(GroupsProbe(), still)


def test_a_second_look_costs_little(still: Rank) -> None:
    """Two or three system calls: nothing is read again that did not change."""
    probe = GroupsProbe()
    first = read(probe, still)
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        assert read(probe, still) is first
        times.append(time.perf_counter() - begin)
    assert sorted(times)[10] < 0.002
