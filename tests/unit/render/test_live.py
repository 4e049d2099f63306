from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hangdoc.render.json import event_line
from hangdoc.render.live import FAILED, Closed, Lines, Screen, event_parts
from hangdoc.verdict import Verdict
from hangdoc.watch.run import Event
from tests.support.verdicts import HOSTILE, MakeConsole, dead_link, healthy, uneven, written

TIME = "2026-11-21T01:37:00.123+00:00"


def event(kind: str, verdict: Verdict | None = None, **data: Any) -> Event:
    return Event(kind, TIME, data, verdict)


def screen(console: MakeConsole, width: int = 80, colour: bool = False) -> Screen:
    return Screen(console(width, colour), lambda: False)


def picture(shown: Screen) -> str:
    return "\n".join(line.plain for line in shown.picture().lines)


def test_screen_shows_state_then_verdict_then_state_again(console: MakeConsole) -> None:
    shown = screen(console)
    shown.status(healthy())
    assert "HEALTHY  job none  3 ranks on 1 host  step every 0.4 s" in picture(shown)
    assert "compute  ranks 0-2" in picture(shown)
    shown.emit(event("verdict", verdict=uneven()))
    shown.status(uneven())
    assert "culprit  rank 2" in picture(shown)
    assert shown.code == 2
    shown.emit(event("recovered", job="none", seconds=5.0))
    shown.status(healthy())
    assert "culprit" not in picture(shown)
    assert "recovered" in picture(shown)


def test_screen_keeps_several_jobs_apart(console: MakeConsole) -> None:
    shown = screen(console)
    shown.status(healthy())
    shown.emit(event("verdict", verdict=dead_link()))
    shown.status(dead_link())
    assert picture(shown).index("job none") < picture(shown).index("job 7f3a")
    shown.emit(event("job_ended", job="7f3a"))
    assert "dead-link" not in picture(shown)


def test_only_the_last_jobs_that_failed_stay_on_the_screen(console: MakeConsole) -> None:
    shown = screen(console)
    failed = replace(uneven(), status="failed")
    for number in range(FAILED + 5):
        verdict = replace(failed, job=replace(failed.job, id=f"job-{number}"))
        shown.status(verdict)
        shown.emit(event("verdict", verdict=verdict))
        shown.emit(event("job_ended", job=f"job-{number}"))
    heads = [line for line in picture(shown).splitlines() if line.startswith("FAILED")]
    assert [line.split("job ")[1].split()[0] for line in heads] == [f"job-{n}" for n in range(5, FAILED + 5)]


def test_picture_is_cut_to_the_height_and_says_so(console: MakeConsole) -> None:
    made = console(80)
    made.height = 10
    shown = Screen(made, lambda: False)
    shown.emit(event("verdict", verdict=uneven()))
    shown.status(uneven())
    fitted = shown._fitted().plain.splitlines()
    assert len(fitted) < 10
    assert "more lines" in fitted[-1]


def test_screen_leaves_the_terminal_as_it_was_and_the_picture_below(console: MakeConsole) -> None:
    shown = screen(console, colour=True)
    with shown:
        shown.status(healthy())
    text = written(shown._console)
    enter, leave = text.index("\x1b[?1049h"), text.index("\x1b[?1049l")
    assert enter < leave < text.rindex("HEALTHY")
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_nothing_is_drawn_before_there_is_something_to_show(console: MakeConsole) -> None:
    shown = screen(console, colour=True)
    with pytest.raises(RuntimeError), shown:
        raise RuntimeError
    assert written(shown._console) == ""


def test_lines_stop_when_nobody_reads() -> None:
    told: list[str] = []
    gone = False
    shown = Lines(lambda event: event.kind, told.append, lambda: gone)
    shown.emit(event("started"))
    shown.status(healthy())
    gone = True
    with pytest.raises(Closed):
        shown.status(healthy())
    assert told == ["started"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (event("started", job="a", ranks=[0, 1, 2]), "started      job a: ranks 0-2"),
        (event("started", job="a", ranks=[-1]), "started      job a: unknown rank"),
        (event("stall", job="a", seconds=12.3), "stall        job a: no progress for 12 s"),
        (event("node_lost", host="n7", why="its agent is silent"), "node lost    no data from n7: its agent is silent"),
        (event("rank_exited", job="a", rank=2, pid=9), "rank exited  job a: rank 2 (pid 9) ended"),
        (event("job_ended", job="a"), "job ended    job a has ended"),
        (event("problem", text="x.yaml:3: no"), "problem      x.yaml:3: no"),
        (event("healthy", job="a", note="steps"), "healthy      job a: steps"),
        (event("other", node="n1"), "other        job none: node n1"),
        (event("verdict", verdict=uneven()), "verdict      job none: Rank 2 left the training loop"),
    ],
    ids=lambda value: value.kind if isinstance(value, Event) else "",
)
def test_event_as_text(given: Event, told: str) -> None:
    assert "  ".join(part.plain for part in event_parts(given)).startswith(f"01:37:00Z  {told}")


def test_long_event_wraps_beside_its_time(console: MakeConsole) -> None:
    shown = screen(console, 60)
    shown.emit(event("problem", text="late " * 20))
    first, second, *_ = picture(shown).strip("\n").splitlines()
    assert first.startswith("  01:37:00Z  problem      late late")
    assert second.startswith(" " * 26 + "late")


def test_event_as_json() -> None:
    told = json.loads(event_line(event("verdict", verdict=uneven())))
    assert (told["event"], told["time"]) == ("verdict", TIME)
    assert told["verdict"]["schema"] == "hangdoc.verdict/1"
    assert told["verdict"]["findings"][0]["class"] == "collective_wait"


def test_json_of_hostile_text_is_one_ascii_line() -> None:
    told = event_line(event("problem", text=HOSTILE))
    assert told.isascii()
    assert told.isprintable()
    assert json.loads(told)["text"] == HOSTILE
