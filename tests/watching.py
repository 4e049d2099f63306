"""`hangdoc watch --once --json` on a running job, as its users run it: as a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs import ROOT


@dataclass(frozen=True)
class Said:
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
    command = [sys.executable, "-m", "hangdoc.cli", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout
    )


def watch_once(pid: int, *options: str) -> Said:
    """One verdict on the job whose launcher is `pid`."""
    done = hangdoc("watch", "--pids", str(pid), "--once", "--json", *options)
    return Said(done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr)
