"""When ranks that do not move are stalled, and when it is too early to decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangdoc.analysis import Case, Key
from hangdoc.analysis.data.wait_chains import ChainFacts
from hangdoc.analysis.job.stall import StallJob
from hangdoc.analysis.network.links import NetworkJob
from hangdoc.analysis.ranks.divergence import DivergenceFacts
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Connection, Io, RankEvidence, Sockets, Target
from hangdoc.evidence.locks import LockFile, Locks

WAITS = StackFacts("collective", waits=True)
COMPUTES = StackFacts("compute", waits=False)
STILL = ProgressFacts(9, 4.0, False, 4.0, 9, None, 0.0, None, None, 1, None)


def case(stacks: list[StackFacts], progress: list[dict[str, Any]], **records: Any) -> Case:
    keys = [("here", 100 + i) for i in range(len(stacks))]
    ranks = {key: RankEvidence(Target(key[1], 1, "here", i), True, dict(records)) for i, key in enumerate(keys)}
    found = Case([], ranks)
    found.give(StackFacts, dict(zip(keys, stacks, strict=True)))
    found.give(ProgressFacts, {key: replace(STILL, **own) for key, own in zip(keys, progress, strict=True)})
    found.give(DivergenceFacts, dict.fromkeys(keys, DivergenceFacts()))
    return found


def judged(stacks: list[StackFacts], moving: bool, idle_s: float, cpu_share: float = 0.0) -> StallJob:
    found = case(stacks, [{"cpu_share": cpu_share}] * len(stacks))
    found.give_job(NetworkJob(True, moving=moving, idle_s=idle_s))
    return found.job(StallJob)


@pytest.mark.parametrize(
    ("stacks", "moving", "idle_s", "stalled", "settled"),
    [
        ([WAITS, WAITS], False, 9.0, True, True),
        ([WAITS, WAITS], True, 0.1, False, True),  # a large message is in flight
        ([WAITS, WAITS], True, 3.0, False, False),  # bytes moved a moment ago, none since: it may just have stalled
        ([WAITS, COMPUTES], True, 3.0, False, True),
    ],
)
def test_stall(stacks: list[StackFacts], moving: bool, idle_s: float, stalled: bool, settled: bool) -> None:
    found = judged(stacks, moving, idle_s, cpu_share=0.9 if COMPUTES in stacks else 0.0)
    assert (found.stalled, found.settled) == (stalled, settled)


@pytest.mark.parametrize(
    ("first", "second", "progressed"),
    [
        ({"period_s": 0.5}, {"period_s": 0.5}, True),
        ({"completed": True}, {"completed": True}, True),
        ({"cpu_share": 0.9, "changed": True}, {"cpu_share": 0.9, "changed": True}, True),
        ({"cpu_share": 0.9}, {"cpu_share": 0.9}, False),  # CPU time in one place may be a spin
        ({"changed": True}, {"changed": True}, False),  # and a change without CPU time, a poll
        ({"period_s": 0.5}, {}, False),
    ],
)
def test_progress(first: dict[str, Any], second: dict[str, Any], progressed: bool) -> None:
    assert case([COMPUTES, COMPUTES], [first, second]).job(StallJob).progressed is progressed


@pytest.mark.parametrize(("first", "progressed"), [({"period_s": 0.5}, True), ({}, False)])
def test_a_rank_that_waits_for_a_peer_progresses_with_it(first: dict[str, Any], progressed: bool) -> None:
    assert case([COMPUTES, WAITS], [first, {}]).job(StallJob).progressed is progressed


def test_the_sources_of_all_ranks_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the job, not once for each rank: a job has 10,000."""
    found = case([COMPUTES] * 50, [{"cpu_share": 0.0}] * 50, source=[])
    reads = 0
    read = Case.record

    def counted(self: Case, key: Key, probe: str) -> Any:
        nonlocal reads
        reads += probe == "source"
        return read(self, key, probe)

    monkeypatch.setattr(Case, "record", counted)
    found.job(StallJob)
    assert 0 < reads <= 2 * len(found.ranks)


@pytest.mark.parametrize(("arrived_s", "progressed"), [(0.3, True), (20.0, False), (None, False)])
def test_a_read_is_progress_while_bytes_arrive(arrived_s: float | None, progressed: bool) -> None:
    """A download that goes on is work; one that hangs is not."""
    mirror = Connection("10.0.0.1", 40_000, "10.9.9.9", 443, "established", last_receive_s=arrived_s)
    reading = StackFacts("idle", op="recv", waits=False)
    assert case([reading], [{}], sockets=Sockets((mirror,))).job(StallJob).progressed is progressed


@pytest.mark.parametrize(("quiet", "progressed"), [(None, True), (True, False)])
def test_a_wait_for_a_process_that_does_nothing_is_no_progress(quiet: bool | None, progressed: bool) -> None:
    records = {"io": Io(), "locks": Locks(), "lockfile": LockFile()}  # these explain any other wait
    found = case([StackFacts("idle", op="_try_wait", waits=False)], [{}], **records)
    found.give(ChainFacts, {key: ChainFacts(quiet=quiet) for key in found.ranks})
    assert found.job(StallJob).progressed is progressed
