"""Incidents for the renderers: built by hand, and from captures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hangdoc.analysis.facts import Facts
from hangdoc.incident.incident import File, Incident, RankRow, build_incident
from hangdoc.incident.stack_diff import Line, Local, Side
from hangdoc.incident.timeline import Event, Lane, Span, Timeline
from hangdoc.recording.recorder import read
from hangdoc.verdict import Verdict
from tests.support.judge import judge
from tests.support.paths import RECORDINGS, ROOT
from tests.support.replicated_ranks import replicate
from tests.support.verdicts import hostile

ENEMY = (
    "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>\"'`{{ 7*7 }}{% raw %}${7*7}"
    "\x1b[2J\x1b]0;owned\x07[bold red]x[/]\u202egnp.exe\u2066\ufeff\x00\ud800\n\r]]>--></style></svg>&lt;"
) + "W" * 10_000
SECRETS = ("hf_abcdefghijklmnopqrst", "hunter2", "AKIAIOSFODNN7EXAMPLE", "dXNlcjpwYXNz")
LEAKS = f"token={SECRETS[0]} https://bob:{SECRETS[1]}@host/x {SECRETS[2]} Authorization: Basic {SECRETS[3]}"


@cache
def judged(capture: Path, ranks: int = 0, odd: int = 0, blamed: int = 0) -> tuple[Verdict, Facts]:
    """Verdict and facts of a capture; seen of many `ranks`, of which `odd` does what `blamed` of the capture did."""
    looks = read(capture)[0].snapshots
    # Of a large job as few looks as tell that it stands still: to make them takes longer than to judge them.
    facts = judge().facts(replicate((looks[0], *looks[-2:]), ranks, {odd: blamed}) if ranks else looks)
    return judge().verdict(facts), facts


def captured(playbook: str, ranks: int = 0, odd: int = 0, blamed: int = 0) -> Incident:
    """The incident of a playbook's capture."""
    file = File("capture.jsonl.zst", "recording", 7774, "6a03bb97bb744c57")
    return build_incident(*judged(ROOT / "playbooks" / playbook / file.name, ranks, odd, blamed), [file])


def recorded(name: str) -> Incident:
    return build_incident(*judged(RECORDINGS / f"{name}.jsonl.zst"))


def full(text: str = ENEMY) -> Incident:
    """Every part is there, and every text in it is `text`."""
    lines = tuple(Line(text, text, 1, text, i < 2, i == 2, i > 0, (Local(text, text, True),)) for i in range(3))
    spans = (Span(-9, -3, ((text, 0.5), ("compute", 0.5))), Span(-3, 0, ((text, 1.0),)))
    return Incident(
        hostile(text),
        (File(text, text, 1, text),),
        (text,),
        (RankRow(((0, 1),), (text,), text, text, text, 1.0, 2.0, True),),
        (0,),
        ((2, 3),),
        tuple(Side(title, ((0, 1),), text, text, text, lines, 4) for title in ("Culprit", "Waiting")),
        Timeline(
            (Lane(((0, 1),), (text,), text, text, text, spans, (-5.0,), (-4.0,), True),),
            3,
            9.0,
            (Event(text, text, text, 3, ((0, 1),), (text,), 3, 1e9),),
            2,
        ),
        (),
        0,
        1,
    )
