"""A watched job that hangs, and is then killed with its evidence: what the watch said, and what the disk still says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from hangdoc.demo.harness import Trial, running
from hangdoc.incident.record import IncidentRecord
from hangdoc.incident.store import IncidentStore, parse_time
from tests.support.cli import HANGDOC, hangdoc
from tests.support.paths import HUNG, ROOT
from tests.support.polling import until
from tests.support.started import started

TIMEOUT_S = 15.0  # of a collective, where the job is to end by itself
LONG_S = 1800.0
CAUSE = ("collective_wait", (1,))  # class and culprits: rank 1 has left the loop
PATIENCE_S = 60.0  # for each step of a run, on a busy machine


def kill_ranks(trial: Trial, watch: subprocess.Popen[bytes]) -> None:
    for pid in trial.rank_pids():
        os.kill(pid, signal.SIGKILL)


def kill_launcher(trial: Trial, watch: subprocess.Popen[bytes]) -> None:
    """Its ranks stay, and stand still for ever."""
    os.kill(trial.launcher_pid, signal.SIGKILL)


def end_launcher(trial: Trial, watch: subprocess.Popen[bytes]) -> None:
    """It ends its ranks, as at the end of an allocation."""
    os.kill(trial.launcher_pid, signal.SIGTERM)


def kill_hangdoc(trial: Trial, watch: subprocess.Popen[bytes]) -> None:
    watch.kill()


def wait_for_timeout(trial: Trial, watch: subprocess.Popen[bytes]) -> None:
    trial.launcher.wait(PATIENCE_S)


ENDS: Mapping[str, Callable[[Trial, subprocess.Popen[bytes]], None]] = {
    "timeout": wait_for_timeout,
    "ranks": kill_ranks,
    "launcher": kill_launcher,
    "launcher-term": end_launcher,
    "hangdoc": kill_hangdoc,
}


@dataclass(frozen=True)
class Crash:
    """What is left of one run."""

    events: Sequence[Mapping[str, Any]]  # of the live watch
    incidents: Sequence[IncidentRecord]
    reported: Sequence[Mapping[str, Any]]  # verdicts of `hangdoc report` on the incident
    stderr: str = field(repr=False)

    @property
    def live(self) -> list[tuple[str, tuple[int, ...]]]:
        """Class and culprits of each verdict of the live watch."""
        return [essence(event["verdict"]) for event in self.events if event["event"] == "verdict"]

    @property
    def on_disk(self) -> list[tuple[str, tuple[int, ...]]]:
        return [essence(verdict) for verdict in self.reported]


def essence(verdict: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Class and culprits of the first finding; the status if there is none."""
    for finding in verdict["findings"][:1]:
        return finding["class"], tuple(sorted(one["rank"] for one in finding["culprits"]))
    return f"({verdict['status']})", ()


def suspected(store: IncidentStore, since: datetime) -> bool:
    """True if hangdoc suspects the hang: on a busy machine it may have suspected a job that was only held up."""
    records = store.list()
    return any((parse_time(one.opened) or since) >= since or one.verdicts for one in records)


def crash(how: str, after_s: float, root: Path) -> Crash:
    """Run a job until it hangs, end it (see ENDS) `after_s` after hangdoc's first suspicion, and read what is left."""
    timeout_s = TIMEOUT_S if how == "timeout" else LONG_S
    go = root / "go"
    arguments = ("--pause", "0.3", "--timeout", str(timeout_s), "--go", str(go))
    job = partial(running, HUNG / "leaves_early.py", 2, arguments)
    store, out = IncidentStore(root), root / "events"
    with started(job, "^step 0 ") as trial, out.open("wb") as sink:
        command = [*HANGDOC, "watch", "--pids", str(trial.launcher_pid), "--json", "--incidents", str(root)]
        watch = subprocess.Popen(command, cwd=ROOT, stdout=sink, stderr=subprocess.DEVNULL)
        try:
            until(out.read_text, lambda text: '"event": "healthy"' in text, PATIENCE_S)
            go.touch()
            trial.wait_log("^step 10 ", PATIENCE_S)  # the last one
            hung = datetime.now(timezone.utc)
            until(partial(suspected, store, hung), within_s=PATIENCE_S)
            time.sleep(after_s)
            ENDS[how](trial, watch)
            if how == "launcher":
                until(out.read_text, lambda text: '"event": "verdict"' in text, PATIENCE_S)
                watch.send_signal(signal.SIGINT)
            watch.wait(PATIENCE_S)
        finally:
            watch.kill()
            watch.wait()
    done = hangdoc("report", "latest", "--json", env={"HANGDOC_STATE": str(root)})
    return Crash(
        [json.loads(line) for line in out.read_text().splitlines()],
        store.list(),
        [json.loads(line) for line in done.stdout.splitlines()],
        done.stderr,
    )
