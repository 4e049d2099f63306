"""`hangdoc report -` in a real pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.samples import SAMPLES

MAIN = [sys.executable, "-c", "from hangdoc.cli import main; main()", "report"]


def run(folder: Path, text: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    return subprocess.run(
        [*MAIN, *arguments], input=text, capture_output=True, timeout=60, env=environment, check=False
    )


def test_reads_a_pipe_and_leaves_nothing(tmp_path: Path) -> None:
    text = b"".join(b"> " + line for line in (SAMPLES / "pyspy" / "text.txt").read_bytes().splitlines(keepends=True))
    done = run(tmp_path, text, "-", "--json")
    assert json.loads(done.stdout)["findings"][0]["playbook"] == "ranks-parted"
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_names_standard_input(tmp_path: Path) -> None:
    done = run(tmp_path, b"hello\n", "-")
    assert done.returncode == 3
    assert b"in standard input" in done.stderr
    assert str(tmp_path).encode() not in done.stderr


def test_without_a_source_it_says_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, b"hello\n")
    assert done.returncode == 64
    assert b"hangdoc report -" in done.stderr
