"""Probes: one file for each kind of evidence. A probe reads the operating system or the framework and judges nothing.

Each module defines a `PROBE` that satisfies `Probe`; `load()` finds it. Helpers that are really Linux live in
`hangdoc.system`, those that read another CPython in `hangdoc.introspect`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, runtime_checkable

from hangdoc.evidence import Target, Unseen

STORE, RECORDER, PING, DNS = "store", "recorder", "ping", "dns"
ASKABLE = (STORE, RECORDER, PING, DNS)  # sent only with --ask: docs/what-hangdoc-sends.md


class Tier(IntEnum):
    """What an observation may cost."""

    PULSE = 1  # /proc and sock_diag only, every second
    LOOK = 2  # reads the target's memory, never pauses it
    EXAMINE = 3  # may pause the target, so only once it has stopped


@dataclass(frozen=True, slots=True)
class Request:
    """One round of observation on this host."""

    targets: Sequence[Target]
    tier: Tier
    still: frozenset[int] = frozenset()  # PIDs that have stopped making progress: only these may be paused
    previous: Any = None  # the last Snapshot of this host, or None
    records: Any = None  # PID -> {probe name: record}, from the probes that already ran in this round
    ask: frozenset[str] = frozenset()  # subset of ASKABLE: what the user allows us to send


@dataclass(frozen=True, slots=True)
class Observation:
    """What a probe saw: one record per PID, at most one for the host, and what it could not see."""

    by_pid: dict[int, Any]
    host: Any = None
    unseen: tuple[Unseen, ...] = ()


@runtime_checkable
class Probe(Protocol):
    """A kind of evidence.

    `record` is the type it returns, per rank or for the host (`scope`). Probes run by ascending `order`; one that
    needs another probe's record has the higher order. A `steady` probe sees what hardly changes: it runs once, and
    again when a stall is examined. `observe` never raises; it reports failures in `unseen`.
    """

    name: str
    scope: str  # "rank" | "host"
    tier: Tier
    needs: str  # "nothing" | "ptrace" | "root"
    record: type
    order: int
    steady: bool

    def observe(self, request: Request) -> Observation: ...


def load() -> tuple[Probe, ...]:
    """Every probe in this package, sorted by `order`, then name."""
    found: list[Probe] = []
    for module in pkgutil.iter_modules(__path__):
        probe = getattr(importlib.import_module(f"{__name__}.{module.name}"), "PROBE", None)
        if isinstance(probe, Probe):
            found.append(probe)
    return tuple(sorted(found, key=lambda probe: (probe.order, probe.name)))
