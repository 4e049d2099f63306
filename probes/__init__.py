"""Probes: one file a kind of evidence. Each reads the operating system or the framework and judges nothing.

A probe module has a `PROBE` that satisfies `Probe`. Adding one is adding a file: `load()` finds it.
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
ASKABLE = (STORE, RECORDER, PING, DNS)  # what probes send only where the user asks for it: docs/what-hangdoc-sends.md


class Tier(IntEnum):
    """What an observation may cost."""

    PULSE = 1  # /proc and sock_diag only, every second
    LOOK = 2  # reads the target's memory, never pauses it
    EXAMINE = 3  # may pause the target: only once it stands still


@dataclass(frozen=True, slots=True)
class Request:
    """One round of observation on this host."""

    targets: Sequence[Target]
    tier: Tier
    still: frozenset[int] = frozenset()  # PIDs that stand still: only these may be paused
    previous: Any = None  # the last Snapshot of this host, or None
    records: Any = None  # dict pid -> {probe name: record} of the probes that already ran in this round
    ask: frozenset[str] = frozenset()  # of ASKABLE: what may be sent


@dataclass(frozen=True, slots=True)
class Observation:
    """What a probe saw: a record by PID, at most one for the host, and what it could not see."""

    by_pid: dict[int, Any]
    host: Any = None
    unseen: tuple[Unseen, ...] = ()


@runtime_checkable
class Probe(Protocol):
    """A kind of evidence.

    `record` is the dataclass observed (of a rank where `scope` is "rank"); `order` sorts probes that build
    on others' records in the same round; a `steady` probe sees what hardly changes and is asked once, and again
    when a stall is examined. `observe` never raises: what fails is said in `unseen`.
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
    """Every probe in this package, in order of `order` and name."""
    found: list[Probe] = []
    for module in pkgutil.iter_modules(__path__):
        probe = getattr(importlib.import_module(f"{__name__}.{module.name}"), "PROBE", None)
        if isinstance(probe, Probe):
            found.append(probe)
    return tuple(sorted(found, key=lambda probe: (probe.order, probe.name)))
