"""A small schema of facts and playbooks over it, so that the engine's tests depend on no real analysis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hangdoc.analysis import Case
from hangdoc.analysis.facts import Facts, Schema
from hangdoc.evidence import Snapshot
from hangdoc.rules.library import Library
from hangdoc.rules.loader import load
from tests.support.toy_types import schema

PROBES = frozenset({"cpu", "stacks", "io", "host"})


@dataclass(frozen=True, slots=True)
class StackFacts:
    op: str | None = None
    site: str | None = None
    waits: bool | None = None
    step: float | None = None
    depth: int = 0
    names: tuple[str, ...] = ()
    phase: str = "compute"


@dataclass(frozen=True, slots=True)
class StorageFacts:
    share: float | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class StallJob:
    stalled: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LinkFacts:
    from_rank: int
    to_rank: int
    local: str
    remote: str
    interface: str | None = None
    dead: bool | None = None


@dataclass(frozen=True, slots=True)
class NetworkJob:
    links: tuple[LinkFacts, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExitFacts:
    site: str | None = None


@dataclass(frozen=True, slots=True)
class DivergenceFacts:
    inner: str | None = None


@dataclass(frozen=True, slots=True)
class AftermathJob:
    doubts: tuple[str, ...] = ()


@dataclass(slots=True)
class Group:
    """An analysis that derives nothing."""

    name: str
    rank_facts: type | None = None
    job_facts: type | None = None
    seen_by: tuple[str, ...] = ()

    def derive(self, case: Case) -> Any:
        raise NotImplementedError


STACK, STORAGE = Group("stack", StackFacts, seen_by=("stacks",)), Group("storage", StorageFacts, seen_by=("io",))
DIVERGENCE = Group("divergence", DivergenceFacts)
STALL, NETWORK = Group("stall", None, StallJob), Group("network", None, NetworkJob)
EXIT, DUMPS, AFTERMATH = Group("exit", ExitFacts), Group("dumps", ExitFacts), Group("aftermath", None, AftermathJob)
SCHEMA = schema((STACK, STORAGE, DIVERGENCE, EXIT, DUMPS, STALL, NETWORK, AFTERMATH))


def facts(
    *stacks: StackFacts | None,
    storage: Sequence[StorageFacts | None] = (),
    stall: StallJob | None = None,
    network: NetworkJob | None = None,
    dead: frozenset[int] = frozenset(),
    numbered: bool = True,
    types: Schema = SCHEMA,
) -> Facts:
    """Ranks with these facts; None, or no `storage`: the probe has not seen that rank."""
    job = types.job(stall=stall or StallJob(True, 41.0), network=network or NetworkJob(), aftermath=AftermathJob())
    ranks = tuple(
        types.rank(
            rank=number if numbered else -1,
            pid=100 + number,
            host=f"node{number % 2}",
            alive=number not in dead,
            seen=("cpu", *(("io",) if written else ()), *(("stacks",) if stack else ())),
            job=job,
            stack=stack or StackFacts(),
            storage=written or StorageFacts(),
            divergence=DivergenceFacts(),
            exit=ExitFacts(),
            dumps=ExitFacts(),
        )
        for number, (stack, written) in enumerate(zip_longest(stacks, storage[: len(stacks)]))
    )
    shots = [Snapshot(host, 0.0, "t", (), {"host": object()}) for host in ("node0", "node1")]
    return Facts(ranks, job, Case(shots, {}), types.seen_by)


def playbook(**changes: Any) -> dict[str, Any]:
    """A sound playbook, with changes; None takes a field out."""
    whole = {
        "id": "late",
        "class": "collective_wait",
        "title": "A rank is late",
        "needs": ["stacks"],
        "select": {"late": "not stack.waits", "waiting": "stack.waits"},
        "when": "job.stall.stalled and any(late)",
        "culprits": "late",
        "summary": "{{ late|ranks }}: {{ waiting|ranks }} at {{ waiting|sites }}.",
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def write(directory: Path, *playbooks: dict[str, Any]) -> Path:
    """Playbook folders in `directory`."""
    for one in playbooks:
        folder = directory / str(one["id"])
        folder.mkdir(parents=True)
        (folder / "playbook.yaml").write_text(json.dumps(one))  # which is YAML
    return directory


def library(directory: Path, *playbooks: dict[str, Any]) -> Library:
    """The library of these playbooks; they must be sound."""
    found = load([write(directory, *playbooks)], SCHEMA, PROBES)
    assert found.problems == ()
    return found
