"""A stub engine for the command line: every verdict is one of `verdicts`, named as the scene."""

from __future__ import annotations

import sys
import time
import types
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hangdoc.errors import HangdocError
from hangdoc.incident import incident
from tests.support import verdicts


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


def watch_once(scene: str, options: WatchOptions, say: Any) -> tuple[Any, ...]:
    say("watching 3 ranks")
    if scene == "hang":
        time.sleep(30)
    if scene == "refused":
        raise HangdocError("no training rank on this host; select a process with `hangdoc watch --pids PID`")
    if scene == "bug":
        raise ZeroDivisionError("a \x1b[31mbug")
    if scene == "disk":
        raise OSError(28, "No space left on device", "/x")
    if scene == "both":
        return verdicts.healthy(), verdicts.uneven()
    if scene == "long":
        return (replace(verdicts.uneven(), findings=verdicts.uneven().findings * 2000),)
    return (getattr(verdicts, scene)(),)


def watch(scene: str, options: WatchOptions, emit: Any, status: Any, say: Any, listeners: Any = ()) -> int:
    emit(Event("started", data={"job": "none", "ranks": [0, 1, 2]}))
    status(verdicts.healthy())
    if scene == "uneven":
        emit(Event("verdict", verdict=verdicts.uneven()))
        status(verdicts.uneven())
        return 2
    for _ in range(300):
        time.sleep(0.1)
        status(verdicts.healthy())
    return 0


def install(scene: str) -> None:
    """Put the stub in the place of the engine that the commands import."""
    stub = types.ModuleType("hangdoc.watch.run")
    vars(stub).update(
        WatchOptions=WatchOptions, Event=Event, watch=partial(watch, scene), watch_once=partial(watch_once, scene)
    )
    sys.modules["hangdoc.watch.run"] = stub
    report = types.ModuleType("hangdoc.postmortem.report")
    vars(report).update(
        report=lambda sources, warn, progress, judge, names: None,
        Unrecognised=type("Unrecognised", (HangdocError,), {}),
    )
    sys.modules["hangdoc.postmortem.report"] = report
    vars(incident).update(incidents=lambda report, hashed: (incident.Incident(getattr(verdicts, scene)()),))
