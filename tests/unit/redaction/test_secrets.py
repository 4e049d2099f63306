"""No kind of secret in `tests/data/secrets.yaml` passes a round, a recording, a reader or any output."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from hangdoc.commands.output import say
from hangdoc.evidence import (
    Branch,
    ChildProcess,
    Environ,
    Frame,
    Loop,
    OpenFile,
    Place,
    Process,
    RankEvidence,
    Snapshot,
    Source,
    Stack,
    Stacks,
    Target,
    Unseen,
    Variable,
)
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.evidence.storage import Files
from hangdoc.incident.incident import build_incident
from hangdoc.introspect.local_variables import from_text
from hangdoc.postmortem.assemble import snapshots
from hangdoc.recording.recorder import Recorder, read
from hangdoc.redaction.records import Mask
from hangdoc.redaction.text import HIDDEN, redact_source, redact_text, redact_words
from hangdoc.render.html import page
from hangdoc.render.json import event_line, verdict_line
from hangdoc.render.live import event_text
from hangdoc.render.markdown import document
from hangdoc.render.terminal import show
from hangdoc.system import procfs
from hangdoc.watch.live import Event
from hangdoc.watch.sampler import Sampler
from probes import Observation, Request, Tier
from tests.support.incidents import full
from tests.support.judge import judge
from tests.support.pace import within
from tests.support.secret_kinds import Kind, kinds, leaks
from tests.support.synthetic_evidence import ParsedSource

TEXTS = ("log", "url", "path")
FEWEST = 200


def test_the_corpus_is_large_and_covers_every_place() -> None:
    assert len({one.kind for one in kinds()}) == len(kinds()) >= FEWEST
    assert {one.place for one in kinds()} == {"source", "argv", "environ", "local", *TEXTS}
    assert len({one.name for one in kinds("environ")}) == len(kinds("environ"))
    assert len(leaks("\n".join([one.text + " ".join(one.words) for one in kinds()]))) == len(kinds())


# --- live ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """A probe that has seen the records of all kinds."""

    name: str
    record: type
    value: object
    scope: str = "rank"
    tier: Tier = Tier.PULSE
    needs: str = "nothing"
    order: int = 1
    steady: bool = False

    def observe(self, request: Request) -> Observation:
        lacks = [Unseen(self.name, f"could not be seen: {one.text}", 0, 7) for one in kinds(*TEXTS)]
        return Observation({target.pid: self.value for target in request.targets}, None, tuple(lacks))


def places() -> dict[str, Place]:
    made = {}
    for number, one in enumerate(kinds("source")):
        loops = (Loop(1, 9, one.text, ("step",)),)
        around = (one.text,)
        made[f"/job/{number}.py:3"] = Place(
            one.text,
            loops,
            (Branch(1, "body", one.text),),
            around,
            1,
            9,
            loops,
            around,
            (),
            (Branch(1, "else", one.text),),
        )
    for one in kinds("path"):
        made[f"{one.text}:3"] = Place("step()", (), (), (), 1, 9)
    return made


def stacks() -> Stacks:
    frames = [Frame("train", one.text, 3, one.text) for one in kinds("path")]
    for number, one in enumerate(kinds("local")):
        frames.append(Frame("train", f"/job/{number}.py", 3, variables=(variable(one),)))
    return Stacks((Stack(1, "MainThread", tuple(frames)),), globals=tuple(variable(one) for one in kinds("local")))


def variable(one: Kind) -> Variable:
    return Variable(one.name, one.text, number=float(one.text) if one.text.isdigit() else None, kind="str")


def process() -> Process:
    commands = [one.words for one in kinds("argv")]
    helpers = tuple(ChildProcess(number, "x", words, "S", 0.0) for number, words in enumerate(commands))
    return Process(7, 1, 0, "S", commands[0], None, None, 1.0, 1.0, 1, (), children=helpers)


def probes() -> list[Seen]:
    files = Files(tuple(OpenFile(3, one.text, "file") for one in kinds("path")))
    environ = Environ({one.name: one.text for one in kinds("environ")})
    return [
        Seen("cpu", Process, process()),
        Seen("stacks", Stacks, stacks()),
        Seen("source", Source, Source(places())),
        Seen("environ", Environ, environ),
        Seen("files", Files, files),
        Seen("logs", Logs, Logs(tuple(LogEvent("exception", one.text, "x.log", 1) for one in kinds(*TEXTS)))),
    ]


def sampled() -> Snapshot:
    return sampler().round(Tier.EXAMINE)


def sampler(*more: Seen) -> Sampler:
    """Of this very process, which lives."""
    stat = procfs.stat(os.getpid())
    assert stat is not None
    seen: list[Any] = [*probes(), *more]
    return Sampler("node-a", [Target(stat.pid, stat.start_ticks, "node-a", 0, world_size=1)], seen)


def test_no_secret_leaves_a_round() -> None:
    shot = sampled()
    assert leaks(str(shot)) == []
    shown = {name: str(record) for name, record in shot.ranks[0].records.items()}
    assert list(shown) == [seen.name for seen in probes()]
    assert [name for name in shown if HIDDEN not in shown[name]] == []


def test_no_secret_known_only_to_detect_secrets_leaves_a_round() -> None:
    """detect-secrets beside our own patterns (`tests/unit/probes/test_detectors.py`)."""
    secret, other = "AP5abc9def8ghi7jklm", "k3y9x0q2m8w7t5z1"
    line = f'db_key = "{other}"'
    stands = Stacks((Stack(1, "MainThread", (Frame("go", "/j.py", 3, variables=(Variable("s", f'"x {secret}"'),)),)),))
    command = ("upload", "--to", "artifactory", secret)
    process = Process(7, 1, 0, "S", command, None, None, 1.0, 1.0, 1, ())
    seen: list[Any] = [
        Seen("cpu", Process, process),
        Seen("stacks", Stacks, stands),
        Seen("source", Source, Source({"/j.py:3": Place(line, (), (), (line,), 1, 9)})),
        Seen("logs", Logs, Logs((LogEvent("exception", f"refused {secret}", "x.log", 1),))),
    ]
    assert all(secret in str(one.value) or other in str(one.value) for one in seen)
    records = replace(sampler(), probes=seen).round(Tier.EXAMINE).ranks[0].records
    assert list(records) == ["cpu", "stacks", "source", "logs"]
    assert [name for name, record in records.items() if secret in str(record) or other in str(record)] == []


def test_probes_see_the_files_names_as_they_are() -> None:
    asked: list[Request] = []

    @dataclass(frozen=True, slots=True)
    class Later(Seen):
        def observe(self, request: Request) -> Observation:
            asked.append(request)
            return Observation({})

    sampler(Later("later", Files, None)).round(Tier.EXAMINE)
    assert asked[0].records is not None
    assert asked[0].records[os.getpid()]["files"] == probes()[4].value


def test_unchanged_records_stay_the_same_objects() -> None:
    again = sampler()
    first, second, third = (again.round(Tier.EXAMINE).ranks[0].records for _ in range(3))
    assert first
    assert [name for name in first if first[name] is not second[name] or second[name] is not third[name]] == []


def test_no_secret_is_recorded(tmp_path: Path) -> None:
    import zstandard

    shot = sampled()
    with Recorder(tmp_path, "node-a") as keep:
        keep.snapshot(shot)
        keep.verdict(judge().verdict(judge().facts([shot])))
    (file,) = tmp_path.iterdir()
    unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes()).decode()
    assert HIDDEN in unpacked
    assert leaks(unpacked) == []


def test_no_output_of_a_watch_shows_a_secret() -> None:
    verdict = judge().verdict(judge().facts([sampled()]))
    event = Event("verdict", "2026-01-01T00:00:00Z", {}, verdict)
    shown = [verdict_line(verdict), event_line(event), event_text(event), terminal(verdict)]
    assert HIDDEN in "".join(shown)
    assert leaks("\n".join(shown)) == []


def terminal(verdict: object) -> str:
    written = io.StringIO()
    show([verdict], Console(file=written, width=10_000, markup=False, highlight=False), ())  # type: ignore[list-item]
    return written.getvalue()


def test_no_sentence_on_stderr_shows_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    for one in kinds(*TEXTS):
        say(one.text)
    assert leaks(capsys.readouterr().err) == []


# --- reports ---------------------------------------------------------------------------------------


def pieces() -> Iterator[Piece]:
    for seen in probes():
        yield Piece(ProcessRef(0, "node-a", 7), seen.name, seen.value, job="run")


def raw() -> Snapshot:
    """As an older version recorded it."""
    target = Target(7, 1, "node-a", 0, world_size=1, job="run")
    lacks = tuple(Unseen("stacks", one.text, 0, 7) for one in kinds(*TEXTS))
    return Snapshot("node-a", 0.0, "", (RankEvidence(target, True, {s.name: s.value for s in probes()}),), {}, lacks)


@pytest.mark.parametrize("old", [True, False], ids=["recording", "pieces"])
def test_no_report_shows_a_secret(old: bool, tmp_path: Path) -> None:
    shots = list(snapshots([raw()] if old else pieces()))
    assert leaks(str(shots)) == []
    facts = judge().facts(shots)
    made = build_incident(judge().verdict(facts), facts)
    shown = [verdict_line(made.verdict), terminal(made.verdict), document([made.verdict], (), ()), page([made])]
    assert leaks("\n".join(shown)) == []


def test_secrets_of_an_unmasked_recording_are_masked_when_read(tmp_path: Path) -> None:
    with Recorder(tmp_path, "node-a") as keep:
        keep.snapshot(raw())
    (recording,) = read(tmp_path)
    assert leaks(str(recording.snapshots))  # else this proves nothing
    assert leaks(str(snapshots(recording.snapshots))) == []


@pytest.mark.parametrize("renderer", ["terminal", "json", "markdown", "html"])
def test_masked_texts_stay_masked_in_every_output(renderer: str) -> None:
    text = "\n".join(
        [redact_text(one.text) for one in kinds(*TEXTS)]
        + [redact_source(one.text) for one in kinds("source")]
        + [" ".join(redact_words(one.words)) for one in kinds("argv")]
    )
    made = full(text)
    shown = {
        "terminal": lambda: terminal(made.verdict),
        "json": lambda: verdict_line(made.verdict),
        "markdown": lambda: document([made.verdict], made.files, made.problems),
        "html": lambda: page([made]),
    }[renderer]()
    assert leaks(shown) == []


# --- cuts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", kinds("source"), ids=lambda one: one.kind)
def test_a_line_is_masked_before_it_is_cut(one: Kind, tmp_path: Path) -> None:
    source = f"def f():\n    {'wide = ' * 12}0; {one.text}\n"
    if one.text.endswith(":"):
        source = f"def f():\n    {one.text} pass\n"
    file = tmp_path / "job.py"
    file.write_text(source)
    module = ParsedSource.parse(str(file))
    assert module is not None
    assert leaks(str(module.place(2)), (one,)) == []


@pytest.mark.parametrize("one", kinds("local"), ids=lambda one: one.kind)
def test_a_value_is_masked_before_it_is_cut(one: Kind) -> None:
    for width in (0, 90, 100, 110):
        text = f'"{"x" * width} {one.text[1:]}' if one.text.startswith('"') else one.text
        made = Mask().of(from_text(one.name, text, 1, False, None, None))
        assert leaks(f"{made.text} {made.number}", (one,)) == []


# --- the rest --------------------------------------------------------------------------------------


def test_equal_texts_stay_equal_and_masking_twice_changes_nothing() -> None:
    for one in kinds(*TEXTS, "environ", "local"):
        shown = redact_text(one.text)
        assert redact_text(shown) == shown == redact_text(one.text), one.kind
    for one in kinds("source"):
        assert redact_source(redact_source(one.text)) == redact_source(one.text), one.kind
    for one in kinds("argv"):
        assert redact_words(redact_words(one.words)) == redact_words(one.words), one.kind


def test_a_round_of_many_ranks_costs_little() -> None:
    shot = sampled()
    many = structs.replace(shot, ranks=shot.ranks * 200)
    mask = Mask()
    mask.of(many)
    mask.again()
    with within(0.2):
        assert mask.of(many) is many


def test_what_older_rounds_saw_is_forgotten() -> None:
    mask = Mask()
    mask.of(sampled())
    assert mask._known
    mask.again()
    mask.again()
    assert not mask._known
    assert not mask._before
