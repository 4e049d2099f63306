"""Pending sends and receives, and pipeline schedules, read from the memory of a real rank."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from hangdoc.evidence.transfers import PipelineSchedule, Transfer, Transfers
from hangdoc.introspect import gloo_transfers
from hangdoc.introspect.gloo_transfers import buffers_of_works, pending_transfers
from hangdoc.introspect.memory import Memory, Unreadable
from probes import Observation, Request, Tier
from probes.process_groups import GroupsProbe
from probes.stacks import StacksProbe
from probes.transfers import TransfersProbe
from tests.support import requirements
from tests.support.polling import at_rest
from tests.support.probe_targets import Program, started
from tests.unit.introspect.test_module_globals import Garbled


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    requirements.met(requirements.torch())
    with started("transfers_program.py", str(tmp_path_factory.mktemp("transfers"))) as running:
        at_rest(running.pid, running.pid)
        yield running


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_transfers, "DEADLINE_S", 60.0)


def examine(program: Program) -> Observation:
    request = Request([program.target()], Tier.LOOK)
    records = {
        "stacks": StacksProbe().observe(request).by_pid[program.pid],
        "groups": GroupsProbe().observe(request).by_pid[program.pid],
    }
    return TransfersProbe().observe(Request([program.target()], Tier.EXAMINE, records={program.pid: records}))


def test_what_a_rank_has_started(program: Program) -> None:
    """Of two groups, with the variables that hold it; not what has completed, and no collective."""
    world, pair = program.said
    seen = examine(program)
    record = seen.by_pid[program.pid]
    assert seen.unseen == ()
    assert isinstance(record, Transfers)
    assert record.groups == (world, pair)
    assert {one for one in record.pending if one.tag != 11} == {
        Transfer(True, 1, 3, world, ("reqs[1]",)),
        Transfer(False, 1, 5, world, ("req",)),
        Transfer(False, None, 7, world, ("any",)),
        Transfer(True, 1, 9, pair, ("handles[out]",)),
    }
    many = [one.names for one in record.pending if one.tag == 11]
    assert sorted(many) == sorted((f"many[{n}]",) for n in range(40))


def test_pipeline_schedules(program: Program) -> None:
    record = examine(program).by_pid[program.pid]
    assert set(record.pipelines) == {
        PipelineSchedule("Schedule1F1B", (1,), 3, 6, None),
        PipelineSchedule("ScheduleInterleaved1F1B", (0, 2), 4, 4, program.said[1]),
    }


def test_a_group_of_another_size_or_rank_is_not_read(program: Program) -> None:
    memory, world = Memory(program.pid), program.said[0]
    assert len(pending_transfers(memory, world, 0, 2) or ()) == 43
    assert pending_transfers(memory, world, 1, 2) is None
    assert pending_transfers(memory, world, 0, 3) is None
    assert buffers_of_works(memory, [world]) == {}


def test_a_rank_that_takes_too_long_is_left_out(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_transfers, "DEADLINE_S", 0.0)
    assert pending_transfers(Memory(program.pid), program.said[0], 0, 2) is None


@pytest.mark.parametrize("share", [0.3, 0.03, 0.003])
def test_garbage_is_survived(share: float, program: Program) -> None:
    """Memory that changes under the reader never gives a buffer that does not exist."""
    world = program.said[0]
    true = {one.buffer for one in pending_transfers(Memory(program.pid), world, 0, 2) or ()}
    rng = random.Random(7)
    for _ in range(40):
        try:
            found = pending_transfers(Garbled(program.pid, rng, share), world, 0, 2)
        except Unreadable:
            continue
        assert {one.buffer for one in found or ()} <= true
