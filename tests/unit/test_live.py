"""What the live watch says of a job, and when: a session that is made up, a judge that is told what to find."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hangdoc.live import Event, Live
from hangdoc.session import Options
from hangdoc.verdict import Finding, Job, Verdict

FINDING = Finding("straggler", "slow_compute", "high", "slow", "slow", status="slow")


@dataclass
class Look:
    """The facts of one round, as far as the watch asks for them."""

    status: str = "healthy"
    stalled: bool = False
    seconds: float = 0.0
    alive: bool = True
    step_s: float | None = 0.5
    idle: bool = False
    settled: bool = True
    dead_links: int = 0

    def facts(self) -> Any:
        stall = SimpleNamespace(stalled=self.stalled, seconds=self.seconds, settled=self.settled, idle=self.idle)
        progress = SimpleNamespace(window_s=30.0, period_s=self.step_s, pause_s=None, standing_s=None)
        exits = SimpleNamespace(fault=False, fault_s=None, well=not self.alive)
        rank = SimpleNamespace(
            rank=0,
            pid=100,
            host="node-a",
            alive=self.alive,
            stall=SimpleNamespace(still=self.stalled),
            position=SimpleNamespace(side=0),
            gil=SimpleNamespace(stuck=None),
            network=SimpleNamespace(retransmitting=bool(self.dead_links), faults=()),
            progress=progress,
            stack=SimpleNamespace(phase="compute"),
            process=SimpleNamespace(exit="exit code 0"),
        )
        job = SimpleNamespace(
            stall=stall,
            progress=progress,
            exit=exits,
            startup=SimpleNamespace(pending=False),
            network=SimpleNamespace(dead_links=self.dead_links, moving=None),
        )
        return SimpleNamespace(ranks=[rank], job=job, look=self)


@dataclass
class Session:
    """Shows one look after the other; an hour may pass between two."""

    looks: list[Look]
    at_s: float = 0.0
    keep: None = None
    shown: Any = None
    jobs: tuple[str, ...] = ("job",)
    away: list[dict[str, str]] = field(default_factory=list)

    def look(self) -> None:
        self.at_s += 10.0

    def facts(self, job: str, judge: Any) -> Any:
        self.shown = self.looks.pop(0).facts()
        return self.shown

    def examine(self, job: str, judge: Any, still: Any) -> Verdict:
        assert list(still) == [("node-a", 100)]
        found: Verdict = judge.verdict(self.shown)
        return found

    def wait(self, seconds: float) -> None:
        pass

    def forget(self, job: str) -> None:
        self.jobs = ()

    def lost(self) -> dict[str, str]:
        return self.away.pop(0) if self.away else {}


@dataclass
class Judge:
    usual: list[float | None] = field(default_factory=list)

    def verdict(self, facts: Any, usual_s: float | None = None) -> Verdict:
        self.usual.append(usual_s)
        status = facts.look.status
        return Verdict(status, None, Job("job", 1, None, (), ()), (FINDING,) if status == "slow" else ())


OVER = Look(alive=False)


@pytest.mark.parametrize(
    ("looks", "events"),
    [
        ([Look(), Look(), Look()], ["healthy"]),  # said once
        ([Look(), Look("slow"), Look("slow"), Look()], ["healthy", "verdict slow", "healthy"]),
        ([Look(), Look("stalled", True, 5.0), Look()], ["healthy"]),  # an ordinary pause
        (
            [Look(), Look("stalled", True, 12.0), Look("stalled", True, 22.0), Look()],
            ["healthy", "stall", "verdict stalled", "recovered 32.0"],
        ),
        (  # of a rank too little is seen yet, as another agent has just come to answer for it
            [Look(), Look("stalled", True, 12.0), Look("unknown", settled=False), Look("stalled", True, 32.0), Look()],
            ["healthy", "stall", "verdict stalled", "recovered 42.0"],
        ),
        ([Look(), Look("stalled", True, 5.0, dead_links=1)], ["healthy", "stall", "verdict stalled"]),  # no mere pause
        ([Look(), Look("unknown", idle=True)], ["healthy", "verdict unknown"]),
        ([Look(), Look("unknown"), Look()], ["healthy"]),  # its launcher has just started its ranks
    ],
)
def test_events(looks: list[Look], events: list[str]) -> None:
    said: list[Event] = []
    Live(Options(), Session([*looks, OVER]), Judge(), said.append, lambda verdict: None).run()  # type: ignore[arg-type]
    assert [told(event) for event in said] == ["started", *events, "rank_exited", "job_ended"]


def test_a_lost_host_is_said_once() -> None:
    away = [{}, {"n1": "silent"}, {"n1": "silent"}, {}, {"n1": "ended", "n2": "ended"}]
    session = Session([*[Look()] * 4, OVER], away=away)
    said: list[Event] = []
    Live(Options(), session, Judge(), said.append, lambda verdict: None).run()  # type: ignore[arg-type]
    lost = [event.data for event in said if event.kind == "node_lost"]
    assert lost == [{"host": "n1", "why": why} for why in ("silent", "ended")] + [{"host": "n2", "why": "ended"}]


def told(event: Event) -> str:
    more = event.verdict.status if event.verdict else event.data.get("seconds") if event.kind == "recovered" else None
    return f"{event.kind} {more}" if more is not None else event.kind


def test_the_step_of_its_healthy_time_is_remembered() -> None:
    judge = Judge()
    looks = [Look(step_s=0.5), Look(step_s=0.4), Look("slow", step_s=2.0), OVER]
    Live(Options(), Session(looks), judge, lambda event: None, lambda verdict: None).run()  # type: ignore[arg-type]
    assert judge.usual[-2] == 0.4
