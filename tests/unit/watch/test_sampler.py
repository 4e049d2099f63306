"""The sampler: rank numbers from process groups, steady probes, probes that fail."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from hangdoc.evidence import End, ProcessGroups, Target
from hangdoc.system import procfs
from hangdoc.watch.sampler import Sampler, _observe, numbered
from probes import Observation, Request, Tier


def target(pid: int, rank: int | None, size: int | None = None, launcher: str | None = None) -> Target:
    return Target(pid, 1, "here", rank, world_size=size, launcher=launcher)


@pytest.mark.parametrize(
    ("targets", "said", "expected"),
    [
        pytest.param([target(5, None)], {5: ProcessGroups((), 3, 8)}, [(3, 8)], id="unknown"),
        pytest.param([target(5, None)], {5: None}, [(None, None)], id="not seen"),
        pytest.param([target(5, None)], {5: ProcessGroups()}, [(None, None)], id="says nothing"),
        pytest.param([target(5, 2, 4)], {5: ProcessGroups((), 3, 8)}, [(2, 4)], id="the launch gave it"),
        pytest.param([target(5, 2)], {5: ProcessGroups((), 2, 8)}, [(2, 8)], id="the size alone is unknown"),
        pytest.param(
            [target(5, 0, 2, "spawn"), target(6, 1, 2, "spawn")],
            {5: ProcessGroups((), 1, 2), 6: ProcessGroups((), 0, 2)},
            [(1, 2), (0, 2)],
            id="deduced wrongly",
        ),
        pytest.param(
            [target(5, None), target(6, None)],
            {5: ProcessGroups((), 0, 1), 6: ProcessGroups((), 0, 1)},
            [(None, None), (None, None)],
            id="each in a world of its own",
        ),
    ],
)
def test_numbered(
    targets: list[Target], said: dict[int, ProcessGroups | None], expected: list[tuple[int | None, int | None]]
) -> None:
    assert [
        (t.rank, t.world_size) for t in numbered(targets, {(pid, 1): record for pid, record in said.items()})
    ] == expected


class Steady:
    """A probe of what hardly changes; it remembers whom it was asked about."""

    name, scope, tier, needs, record, order, steady = "steady", "rank", Tier.LOOK, "nothing", str, 10, True

    def __init__(self) -> None:
        self.asked: list[int] = []

    def observe(self, request: Request) -> Observation:
        self.asked += [target.start_ticks for target in request.targets]
        return Observation({})


def test_a_steady_probe_runs_once_per_process_not_per_pid() -> None:
    probe = Steady()
    sampler = Sampler("here", (), (probe,), Running())  # type: ignore[arg-type]
    for start in (1, 2):
        sampler.targets = (Target(os.getpid(), start, "here", 0),)
        for _ in range(3):
            sampler.round(Tier.LOOK)
    assert probe.asked == [1, 2]
    assert sampler._asked == {("steady", os.getpid(), 2)}


@dataclass
class State:
    """A probe that reads what runs under a PID, as most do, and is told what was there before."""

    name: str = "state"
    scope: str = "rank"
    tier: Tier = Tier.PULSE
    needs: str = "nothing"
    record: type = str
    order: int = 0
    steady: bool = False
    between: Callable[[], object] = lambda: None  # what happens after it has read

    def observe(self, request: Request) -> Observation:
        before = [rank.target.start_ticks for rank in getattr(request.previous, "ranks", ())]
        found = {target.pid: f"{target.start_ticks}, before {before}" for target in request.targets}
        self.between()
        return Observation(found)


def test_a_rank_that_ended_gets_nothing_of_the_process_that_has_its_pid_now() -> None:
    stat = procfs.stat(os.getpid())
    assert stat is not None
    new = Target(os.getpid(), stat.start_ticks, "here", 0, job="new")
    old = Target(os.getpid(), stat.start_ticks - 1, "here", 0, job="old")
    sampler = Sampler("here", (new, old), (State(),))
    sampler.round(Tier.LOOK)
    shot = sampler.round(Tier.LOOK)
    assert [(rank.target.job, rank.alive, rank.records) for rank in shot.ranks] == [
        ("new", True, {"state": f"{stat.start_ticks}, before [{stat.start_ticks}]"}),
        ("old", False, {}),
    ]


def test_what_was_read_while_a_pid_changed_hands_belongs_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = procfs.stat(os.getpid())
    assert stat is not None
    later = dataclasses.replace(stat, start_ticks=stat.start_ticks + 1)
    probe = State(between=lambda: monkeypatch.setattr(procfs, "stat", lambda pid: later))
    targets = (Target(os.getpid(), stat.start_ticks, "here", 0),)
    (rank,) = Sampler("here", targets, (probe,)).round(Tier.LOOK).ranks
    assert rank.records == {}


class Running:
    """All processes run, whatever /proc says of them."""

    def watch(self, targets: Sequence[Target]) -> None:
        pass

    def is_running(self, target: Target) -> bool:
        return True

    def end(self, target: Target) -> End | None:
        return None


@dataclass
class Fussy:
    """A probe that fails on some processes."""

    bad: frozenset[int]
    name: str = "fussy"
    scope: str = "rank"
    tier: Tier = Tier.PULSE
    needs: str = "nothing"
    record: type = str
    order: int = 0
    steady: bool = False

    def observe(self, request: Request) -> Observation:
        if any(one.pid in self.bad for one in request.targets):
            raise OverflowError("cannot convert float infinity to integer")
        return Observation({one.pid: "seen" for one in request.targets})


@pytest.mark.parametrize("bad", [{3}, {1, 8}, set(range(1, 9))])
def test_a_probe_that_fails_on_one_process_still_covers_the_others(bad: set[int]) -> None:
    targets = [target(pid, pid) for pid in range(1, 9)]
    found = _observe(Fussy(frozenset(bad)), Request(targets, Tier.PULSE))
    assert found.by_pid == {pid: "seen" for pid in range(1, 9) if pid not in bad}
    assert [(lack.pid, lack.rank) for lack in found.unseen] == [(pid, pid) for pid in sorted(bad)]
