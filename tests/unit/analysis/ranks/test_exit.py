"""Which rank ended first, and how, from the ends that the kernel reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.evidence import End, RankEvidence, Snapshot, Target
from hangdoc.system.exits import format_exit
from tests.support.synthetic_evidence import Stage, in_c10d

RUNS = None
KILLED, ABORTED, CRASHED, REQUESTED = End(signal=9), End(signal=6), End(signal=11), End(signal=15)


def at(end: End, at_s: float | None) -> End:
    return End(end.code, end.signal, at_s, end.oom_kills, end.oom_counter, end.kernel)


def facts(*ends: End | None, hosts: str = "") -> Facts:
    """One rank for each end; None: it runs."""
    ranks = []
    for number, end in enumerate(ends):
        target = Target(100 + number, 1, hosts[number] if hosts else "a", number, world_size=len(ends))
        ranks.append(RankEvidence(target, end is None, {}, format_exit(end) if end else None, end))
    here = sorted({rank.target.host for rank in ranks})
    shots = [Snapshot(host, 10.0, "", tuple(r for r in ranks if r.target.host == host)) for host in here]
    return derive(shots, schema())


def first(found: Facts) -> list[int]:
    return [rank.rank for rank in found.ranks if rank.exit.first]


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (KILLED, "killed"),
        (CRASHED, "crashed"),
        (End(signal=7), "crashed"),
        (ABORTED, "aborted"),
        (End(code=1), "failed"),
        (REQUESTED, "told"),
        (End(signal=2), "told"),
        (End(code=0), "finished"),
        (End(), None),
    ],
)
def test_kinds(end: End, kind: str | None) -> None:
    assert facts(end, RUNS).ranks[0].exit.kind == kind


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        pytest.param([at(KILLED, 1), at(REQUESTED, 2), at(REQUESTED, 2)], [0], id="torchrun stopped the rest"),
        pytest.param([at(ABORTED, 2), at(KILLED, 1), at(ABORTED, 2)], [1], id="peers aborted later"),
        pytest.param([at(End(code=1), 3), at(ABORTED, 3), at(CRASHED, 3)], [2], id="seen together"),
        pytest.param([at(KILLED, 3), at(KILLED, 3), RUNS], [0, 1], id="two killed at once"),
        pytest.param([at(End(code=0), 1), at(CRASHED, 2), RUNS], [1], id="one had finished"),
        pytest.param([at(REQUESTED, 1), at(KILLED, 31), at(REQUESTED, 1)], [], id="on request, then by force"),
        pytest.param([at(End(code=0), 1), at(End(code=0), 2)], [], id="all finished"),
        pytest.param([KILLED, at(ABORTED, 5), RUNS], [0], id="before the first look"),
        pytest.param([at(End(), 1), at(KILLED, 2)], [], id="first end unknown"),
        pytest.param([RUNS, RUNS], [], id="all running"),
    ],
)
def test_who_ended_first(ends: list[End | None], expected: list[int]) -> None:
    found = facts(*ends)
    assert first(found) == expected
    assert found.job.exit.fault is bool(expected)


def test_ends_found_by_one_look_have_no_order() -> None:
    """A launcher may have killed rank 1 because rank 0 had failed."""
    together = facts(at(End(code=1), 3), at(KILLED, 3))
    assert [rank.exit.unordered for rank in together.ranks] == [False, True]
    assert not facts(at(End(code=1), 4), at(KILLED, 3)).ranks[1].exit.unordered
    assert not facts(at(ABORTED, 3), at(KILLED, 3)).ranks[1].exit.unordered


def test_clocks_of_two_hosts_are_not_compared() -> None:
    found = facts(at(CRASHED, 9000), at(REQUESTED, 9001), at(ABORTED, 3), at(REQUESTED, 4), hosts="aabb")
    assert first(found) == [0]


def test_all_finished() -> None:
    job = facts(End(code=0, at_s=1), End(code=0, at_s=2)).job.exit
    assert (job.ended, job.all_ended, job.well, job.fault) == (2, True, True, False)
    assert not facts(End(code=0, at_s=1), RUNS).job.exit.well
    assert facts(End(code=1, at_s=4), RUNS).job.exit.fault_s == 6.0


@pytest.mark.parametrize(
    ("end", "oom"),
    [
        (End(signal=9, oom_kills=1, oom_counter="memory.events"), True),
        (End(signal=9, oom_kills=0, oom_counter="memory.events"), False),
        (End(signal=9, kernel=("Memory cgroup out of memory: Killed process 100 (python)",)), True),
        (End(signal=9), False),
    ],
)
def test_out_of_memory(end: End, oom: bool) -> None:
    found = facts(end, RUNS)
    assert found.ranks[0].exit.oom is oom
    assert found.job.exit.kernel == end.kernel


def test_the_last_stack_is_kept(tmp_path: Path) -> None:
    stage = Stage("def train():\n    dist.all_reduce(x)\n", tmp_path)
    seen = stage.facts([in_c10d("all_reduce", ("train", 2))]).case.history
    target = seen[-1].ranks[0].target
    gone = RankEvidence(target, False, {}, "signal 9 (SIGKILL)", End(signal=9, at_s=seen[-1].at_s + 0.4))
    last = Snapshot("here", seen[-1].at_s + 1, "", (gone,))
    told = derive([*seen, last], schema()).ranks[0].exit
    assert (told.phase, told.op, told.site, told.waited) == ("collective", "all_reduce", "train (job.py:2)", True)
    assert told.seen_s == pytest.approx(0.4)
    assert told.rss_bytes == 1
