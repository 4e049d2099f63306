"""Run the real command line over a stub engine: `stub_cli.py SCENE ARGUMENT...`."""

from __future__ import annotations

import os
import sys
import time
import types
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hangdoc import cli
from hangdoc.errors import HangdocError
from hangdoc.incident import incident
from tests.support import verdicts

SCENE = sys.argv.pop(1)


@dataclass(frozen=True)
class WatchOptions:
    pids: tuple[int, ...]
    record: Path | None
    playbooks: tuple[Path, ...]
    interval_s: float
    fleet: object = None
    ask: frozenset[str] = frozenset()
    incidents: Path | None = None
    wait_s: float = 0.0
    below: bool = False


@dataclass(frozen=True)
class Event:
    kind: str
    time: str = "2026-11-21T01:37:00+00:00"
    data: dict[str, Any] = field(default_factory=dict)
    verdict: Any = None


def watch_once(options: WatchOptions, say: Any) -> tuple[Any, ...]:
    say("watching 3 ranks")
    if SCENE == "hang":
        time.sleep(30)
    if SCENE == "refused":
        raise HangdocError("no training rank on this host; select a process with `hangdoc watch --pids PID`")
    if SCENE == "bug":
        raise ZeroDivisionError("a \x1b[31mbug")
    if SCENE == "disk":
        raise OSError(28, "No space left on device", "/x")
    if SCENE == "both":
        return verdicts.healthy(), verdicts.uneven()
    if SCENE == "long":
        return (replace(verdicts.uneven(), findings=verdicts.uneven().findings * 2000),)
    return (getattr(verdicts, SCENE)(),)


def watch(options: WatchOptions, emit: Any, status: Any, say: Any, listeners: Any = ()) -> int:
    emit(Event("started", data={"job": "none", "ranks": [0, 1, 2]}))
    status(verdicts.healthy())
    if SCENE == "uneven":
        emit(Event("verdict", verdict=verdicts.uneven()))
        status(verdicts.uneven())
        return 2
    for _ in range(300):
        time.sleep(0.1)
        status(verdicts.healthy())
    return 0


stub = types.ModuleType("hangdoc.watch.run")
vars(stub).update(WatchOptions=WatchOptions, Event=Event, watch=watch, watch_once=watch_once)
sys.modules["hangdoc.watch.run"] = stub
report = types.ModuleType("hangdoc.postmortem.report")
vars(report).update(
    report=lambda sources, warn, progress, judge, names: None,
    Unrecognised=type("Unrecognised", (HangdocError,), {}),
)
sys.modules["hangdoc.postmortem.report"] = report
vars(incident).update(incidents=lambda report, hashed: (incident.Incident(getattr(verdicts, SCENE)()),))
os.environ.pop("HANGDOC_DEBUG", None)
cli.main()
