"""The loop over every job: an error costs one job one round, and looks come when they are needed."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from hangdoc.daemon import rounds
from hangdoc.daemon.governor import Budget, Governor, Usage
from hangdoc.daemon.health import Liveness, Steps
from hangdoc.daemon.log import Log
from hangdoc.daemon.notify import Notifier
from hangdoc.daemon.probe_limits import LimitedProbe
from hangdoc.daemon.rounds import BLIND_S, LOOK_S, UNDECIDED_S, URGENT_S, Hooks, Rounds
from hangdoc.watch.live import WatchedJob
from hangdoc.watch.pace import LONGEST_S
from hangdoc.watch.session import WatchOptions
from probes import load


@dataclass
class Fake:
    """A source, a session and a live watch in one; `bad` jobs cannot be judged."""

    jobs: tuple[str, ...] = ("one", "two")
    bad: set[str] = field(default_factory=set)
    targets: tuple[Any, ...] = ()
    watched: dict[str, WatchedJob] = field(default_factory=dict)
    followed: list[str] = field(default_factory=list)
    looks: int = 0
    searches: int = 0
    lost: bool = False  # a search fails
    rounds_kept: int = 40
    options: WatchOptions = field(default_factory=WatchOptions)

    @property
    def source(self) -> Fake:
        return self

    @property
    def session(self) -> Fake:
        return self

    def look(self) -> None:
        self.looks += 1

    def rediscover(self) -> None:
        self.searches += 1
        if self.lost:
            raise OSError(24, "Too many open files")

    def report_lost(self) -> None: ...

    def follow(self, job: str) -> None:
        if job in self.bad:
            raise KeyError("a hostile job")
        self.followed.append(job)
        self.watched.setdefault(job, WatchedJob(calm=True))


@dataclass
class Set:
    """What a test looks at."""

    fake: Fake = field(default_factory=Fake)
    failed: list[str] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)
    log: io.StringIO = field(default_factory=io.StringIO)
    usage: Usage = field(default_factory=lambda: Usage(0.0, 50.0))
    fleet: bool = True

    def rounds(self) -> Rounds:
        steps = Steps()
        steps.hand_over(threading.current_thread())
        hooks = Hooks(self.finished.append, self.failed.append, lambda: None)
        governor = Governor(Budget(), lambda: self.usage)
        log = Log(self.log, journal=True)
        probes = () if self.fleet else (LimitedProbe(load()[0], steps, lambda name: None),)
        return Rounds(cast(Any, self.fake), governor, steps, Liveness(Notifier({})), log, probes, hooks)


def test_an_error_in_one_job_costs_that_job_one_round_and_is_said_once() -> None:
    made = Set(Fake(bad={"one"}))
    loop = made.rounds()
    for _ in range(3):
        loop._looked_s = float("-inf")
        loop.round()
    assert made.fake.followed == ["two"] * 3
    assert made.failed == ["judgement"] * 3
    assert len(made.finished) == 3
    assert made.log.getvalue() == "<4>job one: its judgement failed, it is tried again: KeyError: 'a hostile job'\n"
    made.fake.bad.clear()
    loop._looked_s = float("-inf")
    loop.round()
    assert made.fake.followed[-2:] == ["one", "two"]


def test_a_round_that_fails_is_no_sign_of_life_and_many_end_the_daemon() -> None:
    made = Set(Fake(lost=True))
    loop = made.rounds()
    for _ in range(rounds.MAX_FAILURES - 1):
        loop._checked_s = float("-inf")
        loop.round()
    assert not made.finished
    assert made.log.getvalue().count("Too many open files") == 1
    loop._checked_s = float("-inf")
    with pytest.raises(OSError, match="Too many open files"):
        loop.round()


@pytest.mark.parametrize(("fleet", "looks"), [(False, 0), (True, 1)])
def test_without_jobs_there_is_no_look_but_a_search(fleet: bool, looks: int) -> None:
    """The agents of a fleet are the only ones who find jobs, and they do so in a look."""
    made = Set(Fake(jobs=()), fleet=fleet)
    made.rounds().round()
    assert (made.fake.looks, made.fake.searches, len(made.finished)) == (looks, 1, 1)


def test_the_most_urgent_job_decides_when_the_next_look_is_due() -> None:
    made = Set()
    loop = made.rounds()
    loop.round()
    now_s = loop._looked_s
    assert loop._look_interval_s(now_s) == BLIND_S
    loop._pulse.knows = lambda job, stalled: True  # type: ignore[method-assign]
    assert loop._look_interval_s(now_s) == LOOK_S
    loop.governor.level = 2
    assert loop._look_interval_s(now_s) == 4 * LOOK_S
    loop.governor.level = 0
    for same_s, gap_s in ((10.0, LOOK_S), (100.0, 50.0), (1000.0, LONGEST_S)):
        for job in loop._attention.values():
            job.since_s = now_s - same_s
        assert loop._look_interval_s(now_s) == gap_s, "the longer it has been calm, the longer"
    made.fake.watched["one"].state = "stalled"
    assert loop._look_interval_s(now_s) == LOOK_S, "somebody waits for its recovery"
    made.fake.watched["one"].state = "new"
    for job in loop._attention.values():
        job.since_s = now_s
    loop.governor.level = 2
    made.fake.watched["two"].calm = False
    assert loop._look_interval_s(now_s) == made.fake.options.interval_s
    assert loop._look_interval_s(now_s + URGENT_S + 1) == 4 * UNDECIDED_S
    made.fake.jobs = ("one", "two", "new")
    assert loop._look_interval_s(now_s) == made.fake.options.interval_s


def test_a_rank_that_exits_is_worth_a_look() -> None:
    made = Set()
    loop = made.rounds()
    loop.round()
    loop.round()
    assert made.fake.looks == 1
    loop._exited = True
    loop.round()
    assert made.fake.looks == 2


def test_memory_over_the_budget_shortens_the_history() -> None:
    made = Set(usage=Usage(0.0, 500.0))
    loop = made.rounds()
    loop.round()
    loop._trimmed_s = float("-inf")
    loop.round()
    assert made.fake.rounds_kept == rounds.LEAST_ROUNDS
    made.usage = Usage(0.0, 20.0)
    loop.round()
    assert made.fake.rounds_kept == 40
    assert made.log.getvalue().count("memory exceeds the budget") == 1


def test_a_search_that_blocks_is_not_tried_again_soon() -> None:
    made = Set()
    loop = made.rounds()
    loop.abandoned(rounds.SEARCH)
    loop.round()
    assert made.fake.searches == 0
