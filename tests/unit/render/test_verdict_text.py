from __future__ import annotations

from hangdoc.incident.incident import File
from hangdoc.render.markdown import ticket
from hangdoc.render.terminal import show
from hangdoc.render.verdict_text import file_text, files_text
from tests.support.verdicts import MakeConsole, uneven, written

FILES = (
    File("fr/rank0", "Flight Recorder dump", 2**20, "0123456789abcdef"),
    File("fr/rank1", "Flight Recorder dump", 2**20),
    File("train.log", "training log", 2**21, "f" * 16),
)


def test_one_line() -> None:
    assert files_text(FILES) == "3 files, 4 MiB: 2 Flight Recorder dumps, 1 training log"
    assert files_text(FILES[2:]) == "1 file, 2 MiB: 1 training log"
    assert files_text((File("x", "log"), *FILES[:1])) == "2 files: 1 log, 1 Flight Recorder dump"
    assert files_text(()) == ""


def test_about_a_file() -> None:
    assert file_text(FILES[0]) == "Flight Recorder dump, 1 MiB, sha256 0123456789abcdef"
    assert file_text(File("x", "log")) == "log"


def test_terminal(console: MakeConsole) -> None:
    shown = console(100)
    show([uneven()], shown, FILES)
    assert written(shown).endswith("\n\n  based on 3 files, 4 MiB: 2 Flight Recorder dumps, 1 training log\n")


def test_ticket() -> None:
    text = ticket(uneven(), FILES * 20, ["b\x1b[2J`c`<d>: no permission", "e: empty"])
    assert "Based on 60 files, 80 MiB: 40 Flight Recorder dumps, 20 training logs: `fr/rank0` (" in text
    assert "sha256 0123456789abcdef), `fr/rank1`" in text
    assert " and 57 more.\n" in text
    assert "Could not read: b\\`c\\`\\<d\\>: no permission (and 1 more)\n" in text
    assert len(text.splitlines()) < 60
