"""Small programs for probes to look into: `with started("stacks_program.py") as program:`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hangdoc.evidence import Target
from probes import Request, Tier
from tests.support.paths import PROGRAMS


@dataclass(frozen=True)
class Program:
    pid: int
    said: Any  # the JSON of its first line
    process: subprocess.Popen[str]

    def state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def target(self, children: tuple[int, ...] = ()) -> Target:
        return Target(self.pid, 1, "here", 0, children=children)

    def request(self, tier: Tier = Tier.LOOK, still: bool = False, children: tuple[int, ...] = ()) -> Request:
        return Request([self.target(children)], tier, frozenset({self.pid}) if still else frozenset())


@contextmanager
def started(*command: str, python: str = sys.executable) -> Iterator[Program]:
    """A Python program that has written its first line; killed at the end."""
    process = subprocess.Popen([python, *command], stdout=subprocess.PIPE, text=True, cwd=PROGRAMS)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the program ended before it was ready"
        yield Program(process.pid, json.loads(line), process)
    finally:
        process.kill()
        process.wait()


def _interpreters() -> dict[str, str]:
    """Version -> path of the interpreters of 3.10 to 3.13 installed here, and a static build if there is one."""
    found = {}
    for minor in range(10, 14):
        homes = sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python3"))
        found[f"3.{minor}"] = str(homes[-1]) if homes else ""
    found["system"] = next((path for path in ("/usr/bin/python3",) if os.path.exists(path)), "")
    return found


every_python = pytest.mark.parametrize(
    "python",
    [
        pytest.param(path, id=name, marks=[] if path else pytest.mark.skip(reason=f"no Python {name} here"))
        for name, path in _interpreters().items()
    ],
)
