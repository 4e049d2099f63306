"""The phase of a thread: its frames matched against the rules in `phases.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from hangdoc.analysis.ranks.call_path import CallPath, Frames, is_library

PHASES = (
    "collective", "p2p", "gpu", "compute", "input", "checkpoint", "compile", "startup", "teardown", "idle", "stopped",
    "exited", "unknown",
)  # fmt: skip
WAITING = frozenset({"collective", "p2p"})
GPU = "gpu"  # waits for the GPU; NCCL is asynchronous, so that may be a wait in a collective called before


@dataclass(frozen=True, slots=True)
class PhaseRule:
    """One entry of phases.yaml."""

    phase: str
    op: str
    function: re.Pattern[str] | None
    file: re.Pattern[str] | None
    native: re.Pattern[str] | None
    leaf: re.Pattern[str] | None
    calls: re.Pattern[str] | None
    when: str | None
    mpi: bool
    group: bool
    gpu: bool
    weak: bool
    innermost: bool
    ended: bool


class ProcessContext(NamedTuple):  # a cache key for every rank: a tuple hashes faster than a dataclass
    """State of the process, which decides which rules apply."""

    busy: bool | None  # a thread runs; None: not seen
    mpi: bool  # started by an MPI launcher
    group: bool  # holds a process group
    native: bool  # native frames were captured
    gpu: bool = False  # it uses a GPU, or the job has ended, so that a call that can only wait for a GPU did
    ended: bool = False  # the job has ended: the frames show where a rank stood for good


@lru_cache(maxsize=1)
def table() -> tuple[PhaseRule, ...]:
    """The rules of phases.yaml, in order."""
    rows = yaml.safe_load(files("hangdoc.analysis.ranks").joinpath("phases.yaml").read_text())
    return tuple(_rule(row) for row in rows)


def _rule(row: dict[str, Any]) -> PhaseRule:
    def pattern(name: str) -> re.Pattern[str] | None:
        return re.compile(row[name]) if name in row else None

    return PhaseRule(
        phase=row["phase"],
        op=row["op"],
        function=pattern("function"),
        file=pattern("file"),
        native=pattern("native"),
        leaf=pattern("leaf"),
        calls=pattern("calls"),
        when=row.get("when"),
        mpi=bool(row.get("mpi")),
        group=bool(row.get("group")),
        gpu=bool(row.get("gpu")),
        weak=bool(row.get("weak")),
        innermost=bool(row.get("innermost")),
        ended=bool(row.get("ended")),
    )


def phase_of(path: CallPath, context: ProcessContext) -> tuple[str, str | None]:
    """Phase and operation of one thread."""
    last = path.steps[-1] if path.steps else None
    calls = last.place.calls if last and last.place else ()
    return _phase(path.frames, calls, bool(last and is_library(last.file)), context)


@lru_cache(maxsize=1024)  # most ranks repeat another rank's stack, or their own previous one
def _phase(frames: Frames, calls: tuple[str, ...], in_library: bool, context: ProcessContext) -> tuple[str, str | None]:
    """Phase and operation, from the frames and from the calls in the innermost Python line."""
    for rule in table():
        if _allowed(rule, context):
            op = _fit(rule, frames, () if rule.weak and in_library else calls)
            if op is not None:
                return rule.phase, op
    return ("compute" if context.busy else "idle" if context.busy is False else "unknown"), None


def _allowed(rule: PhaseRule, context: ProcessContext) -> bool:
    if (rule.when == "idle" and context.busy is not False) or (rule.when == "busy" and not context.busy):
        return False
    needs = ((rule.mpi, context.mpi), (rule.group, context.group), (rule.gpu, context.gpu), (rule.ended, context.ended))
    return all(has for needed, has in needs if needed)


def waits(phase: str, context: ProcessContext) -> bool:
    """True if a thread waits for its peers: in a collective, or, post mortem, for a GPU that its peers hold up.

    A rank that trains waits for its GPU all the time, so that this phase alone shows no wait while the job is watched.
    """
    return phase in WAITING or (phase == GPU and context.ended and context.group)


def _fit(rule: PhaseRule, frames: Frames, calls: Sequence[str]) -> str | None:
    names: dict[str, str] = {}
    if rule.leaf:
        leaf = next((file for _, file, _, native in frames if not native), "")
        if not rule.leaf.search(leaf):
            return None
    if rule.function or rule.file:
        python = [(name.rsplit(".", 1)[-1], file) for name, file, _, native in frames if not native]
        python = python[:1] if rule.innermost else python
        function = next((name for name, file in python if _fits(rule, name, file)), None)
        if function is None:
            return None
        names["function"] = function
    if rule.native:
        found = next((m for name, _, _, native in frames if native and (m := rule.native.search(name))), None)
        if found is None:
            return None
        names["1"] = found.group(1) if found.re.groups else ""
    if rule.calls:
        call = next((m for name in calls if (m := rule.calls.search(name))), None)
        if call is None:
            return None
        names["call"] = call.group(1) if call.re.groups else call.group(0).lstrip(".")
    return re.sub(r"\{(\w+)\}", lambda m: names.get(m.group(1), "").lower(), rule.op)


def _fits(rule: PhaseRule, name: str, file: str) -> bool:
    if rule.function and not rule.function.search(name):
        return False
    return not (rule.file and not rule.file.search(file))
