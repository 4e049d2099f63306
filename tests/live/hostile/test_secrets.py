"""Real processes that hold every kind of secret: nothing that the installed hangdoc writes shows one."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

from tests.support.other_user import hangdoc, stranger
from tests.support.polling import until
from tests.support.secret_kinds import Kind, kinds, leaks

WRAPPED = frozenset({"env", "sh", "bash"})  # programs that are there anyway: their words are what counts
PLAIN = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Job:
    """A rank that stands still, and how much of the corpus it holds."""

    pid: int
    held: tuple[Kind, ...]


def sources() -> tuple[Kind, ...]:
    """Lines that may stand behind another statement."""
    found = []
    for one in kinds("source"):
        with suppress(SyntaxError):
            compile(f"def f():\n    f(); {one.text}\n", "job", "exec")
            found.append(one)
    return tuple(found)


def locals_() -> tuple[Kind, ...]:
    """Values that are Python as they are printed."""
    found = []
    for one in kinds("local"):
        with suppress(SyntaxError):
            compile(one.text, "job", "eval")
            if "Namespace" not in one.text:
                found.append(one)
    return tuple(found)


def program() -> str:
    """A script whose main thread stands in a chain of calls, on lines with secrets and beside variables with them."""
    lines = ["import subprocess, sys, time", "def stand():", "    print('ready', flush=True); time.sleep(600)"]
    inner = "stand"
    held = locals_()
    for number, one in enumerate(sources()):
        mine = held[number : number + 1]
        lines.append(f"def step{number}():")
        lines += [f"    {local.name} = {local.text}" for local in mine]
        lines.append(f"    {inner}(); {one.text}")
        inner = f"step{number}"
    lines.append("helpers = [subprocess.Popen(words, stdin=subprocess.PIPE) for words in eval(sys.stdin.readline())]")
    return "\n".join([*lines, f"{inner}()", ""])


@contextmanager
def job(folder: Path) -> Iterator[Job]:
    """The rank, with a helper process for each command line."""
    commands = []
    for one in kinds("argv"):
        name, *words = one.words
        tool = folder / one.kind / name
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\nread line\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        commands.append([str(tool), *words])
    script = folder / "train.py"
    script.write_text(program())
    environment = {one.name: one.text for one in kinds("environ") if PLAIN.fullmatch(one.name)}
    process = subprocess.Popen(
        [sys.executable, str(script), "--password", "correct horse", "--token", kinds("local")[1].secret],
        env={"PATH": os.defpath, **environment, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "run"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{commands!r}\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "ready"
        until(lambda: len(_children(process.pid)) == len(commands))
        yield Job(process.pid, (*kinds("argv", "environ"), *sources(), *locals_()))
    finally:
        process.kill()  # the helpers read the end of their pipes then
        process.wait()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def unpacked(folder: Path) -> str:
    (file,) = folder.iterdir()
    text: str = zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes()).decode()
    return text


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """What `watch --once --json --record` wrote to stdout and stderr, and where it recorded."""
    folder = tmp_path_factory.mktemp("job")
    record = tmp_path_factory.mktemp("record")
    with job(folder) as rank:
        done = hangdoc("watch", "--once", "--json", "--record", str(record), "--pids", str(rank.pid))
    assert json.loads(done.stdout)["job"]["ranks"]
    return done.stdout, done.stderr, record


def test_a_watch_shows_and_records_none(watched: tuple[str, str, Path]) -> None:
    shown, said, record = watched
    kept = unpacked(record)
    snapshot = json.loads(kept.splitlines()[1])["snapshot"]["ranks"][0]["records"]
    assert len(snapshot["cpu"]["children"]) == len(kinds("argv"))  # else this proves nothing
    assert len(snapshot["source"]["places"]) >= len(sources())
    assert kept.count("<redacted>") > 150
    assert leaks(shown) == leaks(said) == leaks(kept) == []
    assert "correct horse" not in kept


def test_a_report_of_the_recording_shows_none(watched: tuple[str, str, Path], tmp_path: Path) -> None:
    _, _, record = watched
    page = tmp_path / "page.html"
    forms = [hangdoc("report", str(record), *form) for form in ((), ("--json",), ("--markdown", "--html", str(page)))]
    shown = [text for done in forms for text in (done.stdout, done.stderr)] + [page.read_text()]
    assert "train.py" in "".join(shown)
    assert [leaks(text) for text in shown] == [[]] * len(shown)


def test_a_report_of_logs_shows_none(tmp_path: Path) -> None:
    held = [one for one in kinds("log", "url", "path") if "\n" not in one.text]
    log = tmp_path / "job.log"
    log.write_text(
        "".join(
            f"[rank{number}]: Traceback (most recent call last):\n"
            f'[rank{number}]:   File "/job/train.py", line 3, in <module>\n'
            f"[rank{number}]:     step()\n"
            f"[rank{number}]: RuntimeError: {one.text}\n"
            for number, one in enumerate(held)
        )
    )
    page = tmp_path / "page.html"
    forms = [hangdoc("report", str(log), *form) for form in (("--json",), ("--markdown", "--html", str(page)))]
    shown = [text for done in forms for text in (done.stdout, done.stderr)] + [page.read_text()]
    assert "RuntimeError" in "".join(shown)
    assert [leaks(text) for text in shown] == [[]] * len(shown)


def test_of_another_user_as_well() -> None:
    source = (
        "import time\ndef train(password='correct horse battery'):\n"
        "    print('ready', flush=True); time.sleep(600); password = 'staple of straw'\ntrain()\n"
    )
    name = kinds("argv")[0].secret
    with stranger(source, "--api-key", name, environment={"RANK": "0", "WORLD_SIZE": "1"}) as rank:
        done = hangdoc("watch", "--once", "--json", "--pids", str(rank.pid))
    assert json.loads(done.stdout)["job"]["ranks"]
    assert not [text for text in ("horse", "straw", name) if text in done.stdout + done.stderr]
