"""When the live watch looks next, by the pulse of its jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from hangdoc.evidence import Target
from hangdoc.watch import pace as pacing
from hangdoc.watch.pace import (
    ALERT_GAP_S,
    ALERT_S,
    BEAT_S,
    CALM_FACTOR,
    CALM_GROWTH,
    LONGEST_S,
    PULSE_FACTOR,
    SLOW_BEAT_S,
    Pace,
)
from hangdoc.watch.sampler import Sampler
from hangdoc.watch.sources import LocalSource

TARGET = Target(4711, 1, "node-a", 0, job="job")


@dataclass
class Clock:
    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class Session:
    """A session of this host whose last look was just now; waiting costs no time."""

    clock: Clock
    wakes: float = float("inf")  # when a rank exits
    jobs: tuple[str, ...] = ("job",)
    source: Any = None
    at_s: float = 1000.0

    def __post_init__(self) -> None:
        self.source = LocalSource(sampler=Sampler("node-a", (TARGET,), ()))
        self.source.sampler.exits = self

    def snapshots(self, job: str) -> Sequence[Any]:
        return ()

    def wait(self, until_s: float) -> None:
        """Of the session, until so long after the last look; of the source, until this instant."""
        until_s += self.at_s if until_s < self.at_s else 0.0
        self.clock.now_s = max(self.clock.now_s, min(until_s, self.wakes))


@dataclass
class Pulse:
    """Differs at these beats, and is learned after the first."""

    odd: Collection[int] = ()
    knows_it: bool = True
    beats: int = 0
    restarted: list[str] = field(default_factory=list)

    def learn(self, job: str, shots: Sequence[Any]) -> None:
        pass

    def beat(self, targets: Mapping[str, Sequence[Target]], stalled: Collection[str]) -> frozenset[str]:
        self.beats += 1
        return frozenset(targets) if self.beats in self.odd else frozenset()

    def knows(self, job: str, stalled: bool) -> bool:
        return self.knows_it

    def restart(self, job: str) -> None:
        self.restarted.append(job)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    return clock


def waited(clock: Clock, pulse: Pulse, calm: bool = True, **session: float) -> float:
    began_s = clock.now_s
    Pace(1.0, pulse).wait(Session(clock, **session), calm, frozenset())  # type: ignore[arg-type]
    return clock.now_s - began_s


def test_a_job_that_is_not_calm(clock: Clock) -> None:
    assert waited(clock, Pulse(), calm=False) == 1.0


@pytest.mark.parametrize(
    ("pulse", "seconds"),
    [(Pulse(), PULSE_FACTOR), (Pulse(knows_it=False), CALM_FACTOR), (Pulse(odd={2}), 2 * BEAT_S)],
)
def test_a_calm_job_is_looked_at_rarely_if_its_pulse_is_known(clock: Clock, pulse: Pulse, seconds: float) -> None:
    assert waited(clock, pulse) == pytest.approx(seconds)


def test_an_exit_ends_the_wait(clock: Clock) -> None:
    assert waited(clock, Pulse(), wakes=1000.3) == pytest.approx(0.3)


def test_after_an_alert_looks_are_frequent_and_then_the_pulse_is_not_trusted_for_a_while(clock: Clock) -> None:
    pulse, session = Pulse(odd={1, 5}), Session(clock)
    pace = Pace(1.0, pulse)  # type: ignore[arg-type]
    waits: list[tuple[float, float]] = []
    began_s = clock.now_s
    while clock.now_s - began_s < 2 * (ALERT_S + ALERT_GAP_S):
        session.at_s = clock.now_s
        pace.wait(session, True, frozenset())  # type: ignore[arg-type]
        waits.append((session.at_s - began_s, clock.now_s - session.at_s))
    assert pulse.restarted == ["job"]
    after_s = BEAT_S + ALERT_S
    assert {seconds for at_s, seconds in waits if BEAT_S <= at_s < after_s} == {1.0}
    assert {seconds for at_s, seconds in waits if after_s <= at_s < after_s + ALERT_GAP_S} == {CALM_FACTOR}
    assert waits[-1][1] >= PULSE_FACTOR


def test_bytes_of_a_stalled_job_are_worth_a_look_even_soon_after_an_alert(clock: Clock) -> None:
    pulse, session = Pulse(odd={1, 3}), Session(clock)
    pace = Pace(1.0, pulse)  # type: ignore[arg-type]
    pace.wait(session, True, {"job"})  # type: ignore[arg-type]
    clock.now_s += ALERT_S
    session.at_s = clock.now_s
    pace.wait(session, True, {"job"})  # type: ignore[arg-type]
    assert (clock.now_s - session.at_s, pulse.beats, pulse.restarted) == (2 * BEAT_S, 3, [])


def test_a_fleet_has_no_pulse_here(clock: Clock) -> None:
    pulse, session = Pulse(), Session(clock)
    session.source = None
    Pace(1.0, pulse).wait(session, True, ())  # type: ignore[arg-type]
    assert (clock.now_s - session.at_s, pulse.beats) == (CALM_FACTOR, 0)


def test_the_longer_a_job_is_calm_the_more_rarely_it_is_looked_at(clock: Clock) -> None:
    pulse, session = Pulse(), Session(clock)
    pace = Pace(1.0, pulse)  # type: ignore[arg-type]
    began_s, gaps = clock.now_s, list[tuple[float, float]]()
    while clock.now_s - began_s < 1000.0:
        session.at_s = clock.now_s
        pace.wait(session, True, frozenset())  # type: ignore[arg-type]
        gaps.append((session.at_s - began_s, clock.now_s - session.at_s))
    assert gaps[0] == (0.0, PULSE_FACTOR)
    for at_s, gap_s in gaps:
        assert gap_s == pytest.approx(max(PULSE_FACTOR, min(CALM_GROWTH * at_s, LONGEST_S)))
    assert gaps[-1][1] == LONGEST_S
    pulse.odd = {pulse.beats + 3}
    session.at_s = clock.now_s
    pace.wait(session, True, frozenset())  # type: ignore[arg-type]
    assert clock.now_s - session.at_s == 3 * SLOW_BEAT_S, "a change is seen as soon as ever"
    session.at_s = clock.now_s = clock.now_s + ALERT_S + ALERT_GAP_S
    pace.wait(session, True, frozenset())  # type: ignore[arg-type]
    assert clock.now_s - session.at_s == PULSE_FACTOR, "and begins anew"


def test_a_stalled_job_is_looked_at_as_often_as_before(clock: Clock) -> None:
    """Somebody waits for its recovery."""
    session = Session(clock)
    pace = Pace(1.0, Pulse())  # type: ignore[arg-type]
    for _ in range(30):
        session.at_s = clock.now_s
        pace.wait(session, True, {"job"})  # type: ignore[arg-type]
        assert clock.now_s - session.at_s == PULSE_FACTOR


def test_new_ranks_end_the_wait(clock: Clock) -> None:
    session, searches = Session(clock), iter([False, False, True])
    Pace(1.0, Pulse()).wait(session, True, frozenset(), lambda: next(searches))  # type: ignore[arg-type]
    assert clock.now_s - session.at_s == 3 * BEAT_S
