"""The command line as users run it: `hangdoc`, one verdict on a running job, and a live watch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.paths import ROOT

HANGDOC = [sys.executable, "-m", "hangdoc.cli"]


@dataclass(frozen=True)
class LogEvent:
    """What the command said: exit code, verdicts, progress."""

    code: int
    verdicts: list[dict[str, Any]]
    progress: str

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict of the only job."""
        assert len(self.verdicts) == 1, f"{len(self.verdicts)} verdicts, exit code {self.code}\n{self.progress}"
        return self.verdicts[0]


def hangdoc(
    *arguments: str, timeout: float = 60, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line under this interpreter."""
    command = [*HANGDOC, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout
    )


@dataclass(frozen=True)
class Watching:
    """A running `hangdoc watch --json`."""

    process: subprocess.Popen[str]

    def events(self) -> Iterator[dict[str, Any]]:
        """What it says, as it comes, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def until(self, *kinds: str) -> dict[str, Any]:
        """The next event of one of these kinds."""
        seen = []
        for event in self.events():
            if event["event"] in kinds:
                return event
            seen.append(event["event"])
        raise AssertionError(f"the watch ended without any of {kinds}, after {seen}")


@contextmanager
def watching(pid: int, *options: str, seconds: float = 90) -> Iterator[Watching]:
    """Watch the job whose launcher is `pid` live, for so many seconds at most."""
    command = [*HANGDOC, "watch", "--pids", str(pid), "--json", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    limit = threading.Timer(seconds, process.terminate)
    limit.start()
    try:
        yield Watching(process)
    finally:
        limit.cancel()
        process.terminate()
        process.wait(10)


def watch_once(pid: int, *options: str) -> LogEvent:
    """One verdict on the job whose launcher is `pid`."""
    done = hangdoc("watch", "--pids", str(pid), "--once", "--json", *options)
    return LogEvent(done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr)
