"""Matches the frames of a thread against the table `phases.yaml`: what is it doing?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from hangdoc.analysis.story import Story, is_library
from hangdoc.evidence import Frame, Stack

PHASES = (
    "collective", "p2p", "compute", "input", "checkpoint", "compile", "startup", "teardown", "idle", "stopped",
    "exited", "unknown",
)  # fmt: skip
WAITING = frozenset({"collective", "p2p"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of phases.yaml."""

    phase: str
    op: str
    function: re.Pattern[str] | None
    file: re.Pattern[str] | None
    native: re.Pattern[str] | None
    calls: re.Pattern[str] | None
    when: str | None
    mpi: bool
    group: bool
    weak: bool


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else decides which entries of the table may fit."""

    busy: bool | None
    mpi: bool
    group: bool
    native: bool


@lru_cache(maxsize=1)
def table() -> tuple[Entry, ...]:
    """The entries of phases.yaml, in order."""
    rows = yaml.safe_load(files("hangdoc.analysis").joinpath("phases.yaml").read_text())
    return tuple(_entry(row) for row in rows)


def _entry(row: dict[str, Any]) -> Entry:
    def pattern(name: str) -> re.Pattern[str] | None:
        return re.compile(row[name]) if name in row else None

    return Entry(
        phase=row["phase"],
        op=row["op"],
        function=pattern("function"),
        file=pattern("file"),
        native=pattern("native"),
        calls=pattern("calls"),
        when=row.get("when"),
        mpi=bool(row.get("mpi")),
        group=bool(row.get("group")),
        weak=bool(row.get("weak")),
    )


def phase_of(stack: Stack, story: Story, about: Circumstances) -> tuple[str, str | None]:
    """Phase and operation of one thread."""
    for entry in table():
        if _allowed(entry, about):
            op = _fit(entry, stack.frames, story)
            if op is not None:
                return entry.phase, op
    return ("compute" if about.busy else "idle" if about.busy is False else "unknown"), None


def _allowed(entry: Entry, about: Circumstances) -> bool:
    if (entry.when == "idle" and about.busy is not False) or (entry.when == "busy" and not about.busy):
        return False
    return not ((entry.mpi and not about.mpi) or (entry.group and not about.group))


def _fit(entry: Entry, frames: Sequence[Frame], story: Story) -> str | None:
    names: dict[str, str] = {}
    if entry.function or entry.file:
        frame = next((f for f in frames if not f.native and _fits(entry, f)), None)
        if frame is None:
            return None
        names["function"] = frame.function.rsplit(".", 1)[-1]
    if entry.native:
        found = next(
            (m for f in frames if f.native and (m := entry.native.search(f.function))),
            None,
        )
        if found is None:
            return None
        names["1"] = found.group(1) if found.re.groups else ""
    if entry.calls:
        own = story[-1] if story and (entry.weak is False or not is_library(story[-1].file)) else None
        calls = own.place.calls if own and own.place else ()
        call = next((m for name in calls if (m := entry.calls.search(name))), None)
        if call is None:
            return None
        names["call"] = call.group(1) if call.re.groups else call.group(0).lstrip(".")
    return re.sub(r"\{(\w+)\}", lambda m: names.get(m.group(1), ""), entry.op).lower()


def _fits(entry: Entry, frame: Frame) -> bool:
    name = frame.function.rsplit(".", 1)[-1]
    if entry.function and not entry.function.search(name):
        return False
    return not (entry.file and not entry.file.search(frame.file))
