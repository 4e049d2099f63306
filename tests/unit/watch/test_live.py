"""Events of the live watch, with a scripted session and a scripted judge."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from hangdoc.verdict import Finding, Job, Verdict
from hangdoc.watch.live import Event, Live
from hangdoc.watch.session import WatchOptions

FINDING = Finding("straggler", "slow_compute", "high", "slow", "slow", status="slow")


@dataclass
class Look:
    """The facts of one round, as far as the watch asks for them."""

    status: str = "healthy"
    stalled: bool = False
    seconds: float = 0.0
    internal: bool = False
    alive: bool | None = True  # None: nothing is seen of it
    step_s: float | None = 0.5
    idle: bool = False
    settled: bool = True
    dead_links: int = 0
    still: bool | None = None  # None: as it is stalled
    moving: bool | None = None
    silent_s: float | None = None  # since the last byte between ranks
    standing_s: float | None = None
    phase: str = "compute"
    dead: int | None = None  # PID of another rank, which is gone
    completed: bool | None = None  # it has left a collective; None: unless it is stalled
    progressed: bool = True
    end: str = "finished"  # how it ended
    cause: str = ""  # confidence in a cause of what is wrong with it
    stopped: bool | None = None  # for more than a moment; None: it is not stopped
    pause_s: float | None = None  # it was on the same line for so long, and went on
    parked: bool = False  # nothing shows what it waits for
    native: Look | None = None  # but its native stacks do

    def facts(self) -> Any:
        stall = SimpleNamespace(stalled=self.stalled, seconds=self.seconds, settled=self.settled, idle=self.idle)
        stall.progressed, stall.internal, stall.parked = self.progressed, self.internal, self.parked
        progress = SimpleNamespace(window_s=30.0, period_s=self.step_s, step_s=self.step_s, standing_s=self.standing_s)
        progress.pause_s = self.pause_s
        progress.wait_share, progress.completed = 0.5, not self.stalled if self.completed is None else self.completed
        exits = SimpleNamespace(fault=False, fault_s=None, well=not self.alive)
        rank = SimpleNamespace(
            rank=0,
            pid=100,
            host="node-a",
            alive=self.alive,
            stall=SimpleNamespace(still=self.stalled if self.still is None else self.still),
            divergence=SimpleNamespace(side=0),
            gil=SimpleNamespace(stuck=None),
            network=SimpleNamespace(retransmitting=bool(self.dead_links), faults=(), moving=self.moving),
            progress=progress,
            stack=SimpleNamespace(phase=self.phase, native=True),
            process=SimpleNamespace(
                exit="exit code 0", state="S" if self.stopped is None else "T", stopped=bool(self.stopped)
            ),
            exit=SimpleNamespace(kind=None if self.alive else self.end, oom=False),
        )
        job = SimpleNamespace(
            stall=stall,
            progress=progress,
            exit=exits,
            startup=SimpleNamespace(pending=False),
            network=SimpleNamespace(dead_links=self.dead_links, moving=self.moving, idle_s=self.silent_s),
        )
        gone = [SimpleNamespace(**{**vars(rank), "pid": self.dead, "alive": False})] if self.dead else []
        ranks = [] if self.alive is None else [rank, *gone]
        return SimpleNamespace(ranks=ranks, job=job, look=self, case=SimpleNamespace(history=()))


@dataclass
class Session:
    """Shows one look after the other; an hour may pass between two."""

    looks: list[Look]
    at_s: float = 0.0
    keep: Any = None
    source: Any = None
    shown: Any = None  # the facts of the newest look, in place of its snapshots
    examined: bool = False  # the next history is that of the same look
    jobs: tuple[str, ...] = ("job",)
    away: list[dict[str, str]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    inspected: list[float] = field(default_factory=list)
    natively: list[float] = field(default_factory=list)  # when native stacks were read

    def look(self) -> None:
        self.at_s += 10.0

    def snapshots(self, job: str, since_s: float = 0.0) -> Any:
        if not self.examined and not since_s:
            self.shown = self.looks.pop(0).facts()
        self.examined = False
        return self.shown

    def look_closer(self, ranks: Any = ()) -> None:
        if not ranks:
            self.inspected.append(self.at_s)
            return
        assert list(ranks) == [("node-a", 100)]
        self.examined = True
        self.natively.append(self.at_s)
        if self.shown.look.native:
            self.shown = self.shown.look.native.facts()

    def wait(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def forget(self, job: str) -> None:
        self.jobs = ()

    def lost(self) -> dict[str, str]:
        return self.away.pop(0) if self.away else {}


@dataclass
class Judge:
    usual: list[float | None] = field(default_factory=list)
    before: Look | None = None  # the stall that the ranks died out of

    def facts(self, history: Any) -> Any:
        return history

    def verdict(self, facts: Any, usual_s: float | None = None) -> Verdict:
        self.usual.append(usual_s)
        status = facts.look.status
        cause = replace(FINDING, confidence=facts.look.cause, status=status)
        findings = (FINDING,) if status == "slow" else (cause,) if facts.look.cause else ()
        return Verdict(status, None, Job("job", 1, None, ("node-a",), ()), findings)

    def before_deaths(self, facts: Any) -> Any:
        died = any(rank.alive is False for rank in facts.ranks)
        return self.before.facts() if self.before and died else None


OVER = Look(alive=False)


def idle(*seconds: float) -> list[Look]:
    """One rank waits for something outside the job; nobody knows after 30 s whether that will come."""
    return [Look("unknown" if passed >= 30 else "healthy", idle=True, seconds=passed) for passed in seconds]


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
        (  # a rank spins or polls now and then, and nobody has left the collective
            [
                Look(),
                Look("stalled", True, 12.0),
                *[Look("unknown", step_s=None, completed=False), Look("stalled", True, 32.0)] * 3,
            ],
            ["healthy", "stall", "verdict stalled"],
        ),
        (  # work was seen, but no step of the job
            [Look(), Look("stalled", True, 12.0), *[Look("unknown", progressed=False)] * 3],
            ["healthy", "stall", "verdict stalled"],
        ),
        ([Look(), Look("stalled", True, 7.0, internal=True)], ["healthy", "stall", "verdict stalled"]),
        ([Look(), Look("stalled", True, 12.0, stopped=False), Look()], ["healthy"]),  # a debugger held it
        (
            [Look(), Look("stalled", True, 12.0, stopped=False), Look("stalled", True, 15.0, stopped=True)],
            ["healthy", "stall", "verdict stalled"],
        ),
        ([*[Look()] * 4, Look(pause_s=8.0), Look("stalled", True, 12.0)], ["healthy"]),  # twice the usual pause
        (  # on the same line in each look, but it made steps between them
            [*[Look()] * 4, Look(pause_s=8.0, silent_s=0.1), Look("stalled", True, 12.0)],
            ["healthy", "stall", "verdict stalled"],
        ),
        (
            [*[Look()] * 4, Look(silent_s=8.0), *[Look(pause_s=8.0, silent_s=0.1)] * 2, Look("stalled", True, 12.0)],
            ["healthy"],
        ),
        ([Look(), Look("stalled", True, 7.0)], ["healthy"]),  # what a rank is idle for may still come
        ([Look(), Look("stalled", True, 5.0, dead_links=1)], ["healthy", "stall", "verdict stalled"]),  # no mere pause
        # a rank is stopped; the job stands before its stall is seen
        ([Look(), Look("stalled", cause="high", still=False)], ["healthy", "stall", "verdict stalled"]),
        ([Look(), Look("unknown", idle=True)], ["healthy", "verdict unknown"]),
        (  # as long a pause as before is no news, a longer one is
            [Look(), *idle(5, 15, 25, 35), Look(), *idle(5, 15, 25, 35), Look(), *idle(35, 65, 95), Look()],
            ["healthy", "verdict unknown", "healthy", "verdict unknown", "healthy"],
        ),
        ([Look(), Look("unknown"), Look()], ["healthy"]),  # its launcher has just started its ranks
    ],
)
def test_events(looks: list[Look], events: list[str]) -> None:
    said: list[Event] = []
    Live(WatchOptions(), Session([*looks, OVER]), Judge(), said.append, lambda verdict: None).run()  # type: ignore[arg-type]
    assert [told(event) for event in said] == ["started", *events, "rank_exited", "job_ended"]


@dataclass
class Incidents:
    """Takes down what the watch tells of the incidents."""

    told: list[str] = field(default_factory=list)
    recurrence: str = ""

    def observe(self, job: str, facts: Any, shots: Any, at: float) -> None:
        self.told.append("observe")

    def verdict(self, job: str, verdict: Verdict) -> Any:
        self.told.append(f"verdict {verdict.status}")
        return SimpleNamespace(id="the ID", recurrence=self.recurrence)

    def recovered(self, job: str) -> None:
        self.told.append("recovered")

    def ended(self, job: str, facts: Any) -> None:
        self.told.append("ended")


KILLED = Look("failed", alive=False, end="killed", cause="high")
STALL = Look("stalled", True, 12.0, cause="high")


@pytest.mark.parametrize(
    ("looks", "before", "events"),
    [
        pytest.param([STALL, KILLED], None, ["stall", "verdict stalled"], id="a diagnosed stall is killed"),
        pytest.param(
            [replace(STALL, cause=""), KILLED],
            replace(STALL, cause=""),
            ["stall", "verdict stalled"],
            id="without a cause, too",
        ),
        pytest.param(
            [replace(STALL, status="unknown", cause=""), KILLED],
            STALL,
            ["stall", "verdict unknown", "verdict stalled"],
            id="it began to end while it was examined",
        ),
        pytest.param(
            [replace(STALL, cause=""), KILLED],
            None,
            ["stall", "verdict stalled", "verdict failed"],
            id="a crash is news",
        ),
        pytest.param([Look(), KILLED], None, ["healthy", "verdict failed"], id="a death that is the cause"),
        pytest.param(
            [Look(), KILLED], STALL, ["healthy", "stall", "verdict stalled"], id="killed before it was reported"
        ),
        pytest.param([Look("slow"), KILLED], None, ["verdict slow"], id="a slow job is killed"),
        pytest.param(
            [Look("slow"), replace(KILLED, end="crashed")], None, ["verdict slow", "verdict failed"], id="or crashes"
        ),
    ],
)
def test_what_happens_after_a_diagnosis_is_the_outcome(
    looks: list[Look], before: Look | None, events: list[str]
) -> None:
    said: list[Event] = []
    incidents = Incidents()
    judge = Judge(before=before)
    Live(WatchOptions(), Session(looks), judge, said.append, lambda verdict: None, incidents).run()  # type: ignore[arg-type]
    assert [told(event) for event in said if event.kind not in ("started", "rank_exited", "job_ended")] == events
    assert incidents.told[-1] == "ended"


def test_the_round_is_kept_before_a_closer_look_and_after_it() -> None:
    incidents = Incidents(recurrence="third stall")
    said: list[Event] = []
    looks = [Look(), STALL, STALL, Look(), OVER]
    Live(WatchOptions(), Session(looks), Judge(), said.append, lambda verdict: None, incidents).run()  # type: ignore[arg-type]
    assert incidents.told == [
        *["observe", "recovered"],  # healthy: nothing is left of an earlier incident
        *["observe", "observe", "verdict stalled"],
        *["observe", "observe", "recovered", "observe", "ended"],
    ]
    (event,) = [event for event in said if event.kind == "verdict"]
    assert event.data == {"incident": "the ID"}
    assert event.verdict is not None
    assert event.verdict.note == "third stall"


def test_a_cause_that_becomes_certain_is_reported_and_a_doubt_is_not() -> None:
    said: list[Event] = []
    looks = [replace(STALL, cause=cause) for cause in ["", "", "low", *[""] * 5, "high", *[""] * 20]]
    Live(WatchOptions(), Session([*looks, OVER]), Judge(), said.append, lambda verdict: None).run()  # type: ignore[arg-type]
    found = [event.verdict.findings for event in said if event.verdict]
    assert [one[0].confidence if one else "" for one in found] == ["", "low", "high"]


def test_a_recovery_is_recorded() -> None:
    """A report must not judge by snapshots of a stall that is over."""
    kept: list[str] = []
    keep = SimpleNamespace(verdict=lambda verdict: kept.append(verdict.status), recovered=kept.append)
    looks = [Look(), Look("stalled", True, 12.0), Look(), OVER]
    Live(WatchOptions(), Session(looks, keep=keep), Judge(), lambda event: None, lambda verdict: None).run()  # type: ignore[arg-type]
    assert kept == ["stalled", "job"]


def test_a_lost_host_is_reported_once() -> None:
    away = [{}, {"n1": "silent"}, {"n1": "silent"}, {}, {"n1": "ended", "n2": "ended"}]
    session = Session([*[Look()] * 4, OVER], away=away)
    said: list[Event] = []
    Live(WatchOptions(), session, Judge(), said.append, lambda verdict: None).run()  # type: ignore[arg-type]
    lost = [event.data for event in said if event.kind == "node_lost"]
    assert lost == [{"host": "n1", "why": why} for why in ("silent", "ended")] + [{"host": "n2", "why": "ended"}]


def told(event: Event) -> str:
    more = event.verdict.status if event.verdict else event.data.get("seconds") if event.kind == "recovered" else None
    return f"{event.kind} {more}" if more is not None else event.kind


def test_the_healthy_step_time_is_remembered() -> None:
    judge = Judge()
    looks = [Look(step_s=0.5), Look(step_s=0.4), Look("slow", step_s=2.0), OVER]
    Live(WatchOptions(), Session(looks), judge, lambda event: None, lambda verdict: None).run()  # type: ignore[arg-type]
    assert judge.usual[-2] == 0.4


def watched(*looks: Look) -> tuple[Live, Session, list[Event]]:
    """The live watch of a job that is seen so, and ends."""
    said: list[Event] = []
    session = Session([*looks, OVER])
    live = Live(WatchOptions(), session, Judge(), said.append, lambda verdict: None)  # type: ignore[arg-type]
    live.run()
    return live, session, said


@pytest.mark.parametrize(
    ("looks", "pauses"),
    [
        pytest.param([Look(), Look()], [3.0, 3.0], id="healthy, and it moves"),
        pytest.param([Look(still=True)], [1.0], id="healthy, and it stands"),
        pytest.param([Look(), Look(silent_s=5.0)], [3.0, 1.0], id="healthy, and its ranks are silent"),
        pytest.param(
            [Look(silent_s=3.9), Look(), Look(silent_s=7.0), Look(), Look(silent_s=9.0)],
            [3.0] * 5,
            id="its ranks are silent now and then",
        ),
        pytest.param(
            [Look("stalled", True, 12.0, silent_s=12.0), Look(), Look(), Look(), Look(silent_s=5.0)],
            [3.0, 1.0, 3.0, 1.0],
            id="a stall is no silence of its own",
        ),
        pytest.param([Look(still=True, moving=True)], [3.0], id="it stands, and bytes cross"),
        pytest.param([Look(moving=True, dead_links=1)], [1.0], id="what was sent is sent again"),
        pytest.param([Look("stalled", True, 5.0)] * 5, [1.0] * 5, id="stands, too short to say so"),
        pytest.param([Look("stalled", True, 12.0)] * 2, [3.0] * 2, id="stuck, and that was said"),
        pytest.param(
            [Look("stalled", True, 12.0), Look("stalled", True, 12.0, still=False)],
            [3.0, 1.0],
            id="stuck, and it moves",
        ),
        pytest.param([Look("slow")] * 6, [1.0] * 6, id="slow"),
        pytest.param([Look("unknown", idle=True, still=True)] * 5, [1.0, 1.0, 1.0, 3.0, 3.0], id="at rest for long"),
    ],
)
def test_interval(looks: list[Look], pauses: list[float]) -> None:
    _, session, _ = watched(*looks)
    assert session.pauses == pauses


def test_one_costly_round_delays_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first verdict compiles rules; the job may stall meanwhile."""
    clock = iter([0.0, 0.1, 0.1, 3.1, 3.1, 3.2, 3.2, 3.3, 3.3])
    monkeypatch.setattr("hangdoc.watch.live.time.process_time", lambda: next(clock))
    _, session, _ = watched(Look(), Look(), Look())
    assert session.pauses == [3.0, 3.0, 3.0]


LULL = Look(still=True, standing_s=5.0, phase="idle")


def test_a_quiet_period_is_inspected_if_it_is_longer_than_those_before() -> None:
    # A look comes every 10 s. The first period lasts 20 s, until it is seen to have ended, and so does the second.
    seen = [LULL, LULL, Look(), LULL, LULL, Look(), *[LULL] * 8]
    shown = [one for look in seen for one in ([look, look] if look is LULL else [look])]  # facts are made anew
    _, session, _ = watched(*shown)
    assert session.inspected[0] == 0.0
    gaps = [b - a for a, b in zip(session.inspected, session.inspected[1:], strict=False)]
    assert len(session.inspected) == 2
    assert gaps[0] > 40.0


def test_a_wait_that_only_native_stacks_show_is_a_stall() -> None:
    parked = replace(LULL, status="unknown", parked=True, progressed=False, native=Look("stalled", True, 40.0))
    _, _, events = watched(*[parked] * 6)
    assert [event.kind for event in events][:3] == ["started", "stall", "verdict"]


def test_native_stacks_that_show_nothing_are_read_once() -> None:
    parked = replace(LULL, status="unknown", parked=True, progressed=False)
    _, session, events = watched(*[parked] * 8)
    assert "stall" not in [event.kind for event in events]
    assert len(session.natively) == 1


def test_a_rank_with_traffic_is_not_quiet() -> None:
    _, session, _ = watched(*[replace(LULL, moving=True)] * 4)
    assert session.inspected == []


def test_an_ended_job_is_forgotten() -> None:
    live, _, _ = watched(Look(), Look())
    assert live.watched == {}


def test_ranks_that_were_replaced_are_forgotten() -> None:
    """An elastic job restarts its ranks for weeks: those gone long ago are no longer among its facts."""
    gone: list[int] = []
    said: list[Event] = []
    session = Session([*[Look(dead=200 + i) for i in range(30)], OVER])

    def status(verdict: Verdict) -> None:
        gone.append(len(live.watched["job"].gone))

    live = Live(WatchOptions(), session, Judge(), said.append, status)  # type: ignore[arg-type]
    live.run()
    assert gone == [1] * 30
    assert [event.kind for event in said].count("rank_exited") == 31


def test_a_job_that_vanished_has_ended_even_if_another_host_is_lost() -> None:
    """It may still run only if one of its own hosts is lost."""
    for lost, over in (("node-a", False), ("node-b", True)):
        session = Session([Look(), Look(), Look(alive=None), OVER], away=[{}, *[{lost: "silent"}] * 4])
        said: list[Event] = []
        Live(WatchOptions(), session, Judge(), said.append, lambda verdict: None).run()  # type: ignore[arg-type]
        ended = [event.kind for event in said].index("job_ended")
        assert (len(session.looks) > 0) is over
        assert said[ended - 1].kind == ("node_lost" if over else "rank_exited")
