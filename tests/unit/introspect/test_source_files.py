"""Source files of targets: hostile content affects only its own file, and caches are bounded."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hangdoc.evidence import Place
from hangdoc.introspect import source_files
from hangdoc.introspect.source_files import MAX_BYTES, Lack, LruCache, Sources
from hangdoc.introspect.source_records import places_of
from hangdoc.system import sandbox
from tests.support.probe_targets import every_python

GOOD = b"def train():\n    for step in range(3):\n        loss(step)\n        step()\n"
HOSTILE = {
    "attributes": b"x = a" + b".b" * 400_000,
    "sums": b"x = 1" + b"+1" * 400_000,
    "calls": b"x = f" + b"()" * 400_000,
    "short chain": b"\n\nx = a" + b".b" * 5_000 + b"()",
    "parentheses": b"x = " + b"(" * 100_000 + b")" * 100_000,
    "unary": b"x = " + b"-" * 900_000 + b"1",
    "lambdas": b"x = " + b"lambda:" * 120_000 + b"1",
    "branches": b"if a:\n f()\n" + b"elif a:\n f()\n" * 60_000,
    "statements": b"a;" * 490_000,
    "zeros": b"x\0 = 1",
    "codec": b"# coding: rot13\nx = 1",
    "numbers": b"x = " + b"9" * 900_000,
}


def sources() -> Sources[Place]:
    return Sources("hangdoc.introspect.parsers.line_context:places", places_of)


def written(folder: Path, name: str, data: bytes) -> str:
    """A file that is older than every process."""
    path = folder / name
    path.write_bytes(data)
    os.utime(path, (1, 1))
    return str(path)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline but that of the CPU: other tests run beside this one."""
    each = sandbox.run_each
    monkeypatch.setattr(sandbox, "run_each", lambda function, questions: each(function, questions, 60.0))


def ask(asked: Sources[Place], *files: str, line: int = 3) -> tuple[dict[str, Place], list[Lack]]:
    found, lacks = asked.ask({os.getpid(): dict.fromkeys(files, (line,))})
    return {file: place for (_, file, _), place in found.items()}, lacks


@pytest.mark.slow("parses what takes seconds")
@every_python
@pytest.mark.usefixtures("patient")
def test_hostile_source_costs_that_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    monkeypatch.setattr(sys, "executable", python)
    bad = [written(tmp_path, f"{name}.py", data) for name, data in HOSTILE.items()]
    good = [written(tmp_path, f"good{size}.py", GOOD + b"#" * size) for size in (0, MAX_BYTES - len(GOOD))]
    asked = sources()
    found, lacks = ask(asked, good[0], *bad, good[1])
    assert list(found) == good
    assert [loop.counters for loop in found[good[1]].loops] == [("step",)]
    assert [lack.file for lack in lacks] == bad
    assert all(lack.why.startswith("could not be parsed") for lack in lacks)
    monkeypatch.setattr(sandbox, "run_each", None)  # none is parsed again
    assert ask(asked, good[0], *bad, good[1]) == (found, lacks)


def test_the_lines_of_a_function_are_known_with_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked = written(tmp_path, "good.py", GOOD), sources()
    ask(asked, file, line=2)
    monkeypatch.setattr(sandbox, "run_each", None)
    assert ask(asked, file, line=4)[0][file].calls == ("step",)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("# coding: latin-1\nname = f('\xff')\n".encode("latin-1"), "name = f('\xff')"),
        (b"\xef\xbb\xbf\nx = f()\n", "x = f()"),
        (b"\x0c\r\nx = f()\r\n", "x = f()"),
        ("# \u2028\nx = f()".encode(), "x = f()"),
    ],
)
def test_a_file_is_read_as_the_interpreter_reads_it(tmp_path: Path, data: bytes, text: str) -> None:
    file = written(tmp_path, "job.py", data)
    found, _ = ask(sources(), file, line=2)
    assert found[file].text == text
    assert found[file].calls == ("f",)


def test_a_million_lines_are_cheap(tmp_path: Path) -> None:
    file = written(tmp_path, "job.py", b"\n" * (MAX_BYTES - 4) + b"f()\n")
    found, lacks = ask(sources(), file, line=MAX_BYTES - 3)
    assert (found[file].calls, lacks) == (("f",), [])
    _, lacks = ask(sources(), written(tmp_path, "larger.py", b"\n" * (MAX_BYTES + 1)))
    assert [lack.why for lack in lacks] == ["has more than 1000000 bytes"]


def test_a_process_whose_files_overrun_the_parser_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time costs a second: a process must not take it from all others in every look."""
    questions: list[int] = []

    def each(_: str, asked: Sequence[Any]) -> list[Any]:
        questions.append(len(asked))
        return [sandbox.Failed("it takes more than 1 s", ended=True)] * len(asked)

    monkeypatch.setattr(sandbox, "run_each", each)
    asked = sources()
    files = [written(tmp_path, f"{number}.py", b"#" * number) for number in range(source_files.MAX_CRASHES + 2)]
    for file in files:
        _, lacks = ask(asked, file)
        assert [lack.file for lack in lacks] == [file]
    assert len(questions) == source_files.MAX_CRASHES
    assert "files of its process took too long" in lacks[0].why


def test_a_process_with_ever_new_files_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "MAX_PARSED_BYTES", 3 * len(GOOD))
    asked, seen = sources(), []
    for number in range(6):
        found, _ = ask(asked, written(tmp_path, f"{number}.py", GOOD))
        seen.append(len(found))
    assert seen == [1, 1, 1, 1, 0, 0]


def test_no_answer_in_time_may_be_had_another_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked, each = written(tmp_path, "good.py", GOOD), sources(), sandbox.run_each
    monkeypatch.setattr(sandbox, "run_each", lambda function, questions: each(function, questions, 0.0))
    assert ask(asked, file)[0] == {}
    monkeypatch.setattr(sandbox, "run_each", each)
    assert list(ask(asked, file)[0]) == [file]


@pytest.mark.parametrize(("name", "said"), [("fifo", "a FIFO"), ("/dev/zero", "a device"), ("/", "a folder")])
def test_an_irregular_file_is_reported_once(tmp_path: Path, name: str, said: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    odd, good = str(tmp_path / name), written(tmp_path, "good.py", GOOD)
    found, lacks = ask(sources(), odd, good)
    assert list(found) == [good]
    assert [lack.file for lack in lacks] == [odd]
    assert said in lacks[0].why


def test_a_missing_file_is_not_reported(tmp_path: Path) -> None:
    assert ask(sources(), str(tmp_path / "gone.py"), str(tmp_path / "gone" / "x.py"), "<string>") == ({}, [])


@pytest.mark.usefixtures("patient")
def test_trees_are_not_kept(tmp_path: Path) -> None:
    """Twelve jobs, each with a file of its own, cost as much memory as four."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    body = "".join(f"    x{number} = call(a.b, c[{number}], key='value {number}')\n" for number in range(40))
    asked, sizes = sources(), []
    for job in range(12):
        text = f"JOB = {job}\n" + "".join(f"def f{number}(a, c):\n{body}" for number in range(90))
        file = written(tmp_path, f"job{job}.py", text.encode())
        found, _ = ask(asked, file, line=5)
        assert list(found) == [file]
        sizes.append(resident_bytes())
    assert len(text) > 140_000
    assert sizes[-1] - sizes[3] < 4 << 20
    assert len(asked) <= source_files.MAX_CACHED


def test_what_was_not_asked_for_the_longest_goes_first() -> None:
    kept: LruCache[int] = LruCache(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert (kept.get("b"), kept.get("a"), kept.get("c"), len(kept)) == (None, 1, 3, 2)


def test_what_a_hostile_file_makes_us_keep_is_bounded(tmp_path: Path) -> None:
    name = b"n" * 5000
    loops = b"".join(b" for " + name + b"%d in range(9):\n  " % n + name + b"()\n" for n in range(60))
    file = written(tmp_path, "job.py", b"def f():\n" + loops)
    found, _ = ask(sources(), file, line=121)
    place = found[file]
    assert all(len(text) <= 120 for loop in (*place.loops, *place.passed) for text in (loop.header, *loop.counters))
    assert all(len(text) <= 120 for text in (place.text, *place.calls, *place.around))
    (answer,) = sandbox.run_each("hangdoc.introspect.parsers.lock_calls:table", [(b"a.acquire()\n" * 5000, [0])])
    assert isinstance(answer, sandbox.Failed)
    assert len(json.dumps(answer.why)) < 200
