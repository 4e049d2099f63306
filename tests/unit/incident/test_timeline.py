from __future__ import annotations

from msgspec.structs import replace

from hangdoc.evidence import FlightRecorder, Process, RankEvidence, Snapshot, Stack, Stacks, Target
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.stacks import Frame
from hangdoc.incident.timeline import MAX_EVENTS, Span, Timeline, timeline
from tests.support.incidents import captured
from tests.support.judge import judge

NEVER = frozenset[tuple[str, int]]()
IN = {
    "collective": ("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py"),
    "compute": ("forward", "/home/me/train.py"),
}


def stacks(phase: str) -> Stacks:
    function, file = IN[phase]
    return Stacks((Stack(1, "MainThread", (Frame(function, file, 7), Frame("main", "/home/me/train.py", 3))),))


def look(host: str, at_s: float, second: int | None, *phases: str, first: int = 0, **records: object) -> Snapshot:
    """Ranks of a host in these phases; `second`: past the minute, by the clock on its wall."""
    time = "" if second is None else f"2026-11-21T03:00:{second:02}+00:00"
    cpu = Process(1, 1, 0, "R", (), None, None, 9.0, 1.0, 1, ())
    ranks = tuple(
        RankEvidence(
            Target(100 + first + i, 1, host, first + i, world_size=4),
            True,
            {"stacks": stacks(phase), "cpu": cpu, **records},
        )
        for i, phase in enumerate(phases)
    )
    return Snapshot(host, at_s, time, ranks, tier="look")


def of(*history: Snapshot, blamed: frozenset[tuple[str, int]] = NEVER) -> Timeline:
    return timeline(judge().facts(history), blamed)


def test_ranks_that_did_the_same_are_one_lane() -> None:
    lanes = of(look("a", 10, 1, *["collective"] * 3), look("a", 14, 5, *["collective"] * 3)).lanes
    assert [[rank for rank, _ in lane.members] for lane in lanes] == [[0, 1, 2]]
    assert lanes[0].spans == (Span(-4.0, 0.0, (("collective", 1.0),)),)


def test_what_they_did_before() -> None:
    shots = [look("a", 10, 1, "collective", "compute"), look("a", 12, 3, "collective", "collective")]
    (lane,) = of(*shots).lanes
    mixes = [span.mix for span in lane.spans]
    assert len(lane.spans) == 2
    assert sorted(share for _, share in mixes[0]) == [0.5, 0.5]
    assert mixes[1] == (("collective", 1.0),)


def test_clocks_of_two_hosts_are_not_compared() -> None:
    """Host b's clocks are a day ahead on the wall and run from elsewhere: its last moment is its own."""
    ahead = [
        replace(look("b", at_s, second, "collective", first=2), time=f"2026-11-22T03:00:{second:02}+00:00")
        for at_s, second in ((99010, 1), (99014, 5))
    ]
    made = of(look("a", 10, 1, "collective"), look("a", 14, 5, "collective"), *ahead)
    (lane,) = made.lanes
    assert lane.hosts == ("a", "b")
    assert lane.spans[0].start_s == -4.0
    assert made.window_s == 4.0


def test_culprits_have_a_lane_of_their_own() -> None:
    shots = [look("a", at_s, at_s, "collective", "collective") for at_s in (10, 14)]
    lanes = of(*shots, blamed=frozenset({("a", 101)})).lanes
    assert [(lane.blamed, lane.members) for lane in lanes] == [(True, ((1, 101),)), (False, ((0, 100),))]


def test_looks_without_a_time_are_not_drawn() -> None:
    assert of(look("a", 0, None, "collective"), look("a", 5, None, "collective")) == Timeline()


def test_lines_of_logs() -> None:
    def said(rank: int, at: float | None) -> LogEvent:
        return LogEvent("collective_timeout", f"[Rank {rank}] timed out", f"rank{rank}.log", 4, at)

    start = 1795230000.0  # 2026-11-21T03:00:00+00:00
    ranks = [
        replace(one, records={"logs": Logs((said(i, start + i),))})
        for i, one in enumerate(look("a", 0, None, *["compute"] * 3).ranks)
    ]
    whole = Logs((LogEvent("told_to_end", "SIGTERM", "launcher.log", 9, start + 60),))
    made = of(replace(look("a", 0, None), ranks=tuple(ranks), records={"logs": whole}))
    assert [(event.kind, event.count, event.at) for event in made.events] == [
        ("collective_timeout", 3, start),
        ("told_to_end", 1, start + 60),
    ]
    assert made.events[0].members == ((0, 100), (1, 101), (2, 102))
    assert made.lanes[0].marks == (-60.0, -59.0, -58.0)


def test_many_lines_keep_the_first_and_the_last() -> None:
    said = tuple(LogEvent("x", "abcdefghijklmnopqrstuvwxyz"[i % 26] * (i + 1), "f", i, 1e9 + i) for i in range(100))
    made = of(replace(look("a", 0, None), records={"logs": Logs(said)}))
    assert len(made.events) == MAX_EVENTS
    assert made.more_events == 100 - MAX_EVENTS
    assert (made.events[0].line, made.events[-1].line) == (0, 99)


def test_operations_that_a_flight_recorder_has() -> None:
    recorder = FlightRecorder("2.10", (), {}, {}, begun=(1e9, 1e9 + 2.0, 1e9 + 9.0))
    made = of(look("a", 0, None, "compute", recorder=recorder))
    assert made.lanes[0].beats == (-9.0, -7.0, 0.0)
    assert made.window_s == 9.0


def test_a_real_stall() -> None:
    lanes = captured("uneven-batches").timeline.lanes
    assert [(lane.blamed, lane.op) for lane in lanes] == [(True, "barrier"), (False, "all_reduce")]
    assert all(span.mix == (("collective", 1.0),) for lane in lanes for span in lane.spans)
