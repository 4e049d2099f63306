"""Probe `source`: what the source code says about the lines the ranks stand on.

Which loops and branches enclose a line, and what it calls, decides between "left the loop", "took another branch" and
"is still on its way". Files are read as the target sees them and only parsed, never imported. A file changed after the
process started no longer describes it and is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil

from hangdoc.evidence import Place, Source, Stacks, Unseen
from probes import Observation, Request, Tier
from probes._module import Module

MAX_BYTES = 1_000_000  # a larger file is generated code
CLOCK_SLACK_S = 2.0  # /proc/stat gives the boot time in whole seconds


@dataclass(slots=True)
class SourceProbe:
    """Parses each file once and each line once; the cache is bounded by the files on the stacks."""

    name: str = "source"
    scope: str = "rank"
    tier: Tier = Tier.LOOK
    needs: str = "ptrace"
    record: type = Source
    order: int = 30
    steady: bool = False
    _modules: dict[tuple[str, int, int], Module | None] = field(default_factory=dict)

    def observe(self, request: Request) -> Observation:
        by_pid: dict[int, Source] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            stacks = (request.records or {}).get(target.pid, {}).get("stacks")
            if not isinstance(stacks, Stacks):
                continue
            places: dict[str, Place] = {}
            changed: set[str] = set()
            for file, line in _lines(stacks):
                module = self._module(target.pid, file, changed)
                place = module.place(line) if module else None
                if place is not None:
                    places[f"{file}:{line}"] = place
            by_pid[target.pid] = Source(places)
            unseen += [
                Unseen(
                    self.name,
                    f"{file} changed after the process started; its loops and branches are not used",
                    target.rank,
                    target.pid,
                    target.host,
                )
                for file in sorted(changed)
            ]
        return Observation(by_pid, None, tuple(unseen))

    def _module(self, pid: int, file: str, changed: set[str]) -> Module | None:
        path = _visible(pid, file)
        try:
            found = os.stat(path)
            if found.st_mtime > psutil.Process(pid).create_time() + CLOCK_SLACK_S:
                changed.add(file)
                return None
        except (OSError, psutil.Error):
            return None
        key = (file, found.st_ino, found.st_mtime_ns)
        if key not in self._modules:
            self._modules[key] = Module.parse(path) if found.st_size <= MAX_BYTES else None
        return self._modules[key]


def _lines(stacks: Stacks) -> Iterable[tuple[str, int]]:
    """File and line of every Python frame outside torch and the standard library, once."""
    seen: dict[tuple[str, int], None] = {}
    children = (stack for _, threads in stacks.children for stack in threads)
    for stack in (*stacks.threads, *children):
        for frame in stack.frames:
            if frame.line and not frame.native and _worth(frame.file):
                seen[(frame.file, frame.line)] = None
    return seen


def _worth(file: str) -> bool:
    library = "/site-packages/torch/" in file or ("/lib/python3" in file and "/site-packages/" not in file)
    return not library and not file.startswith("<") and "/torchinductor_" not in file  # what torch.compile writes


def _visible(pid: int, file: str) -> str:
    """The path under which we can read what the target calls `file`."""
    if os.path.isabs(file):
        return f"/proc/{pid}/root{file}"
    return f"/proc/{pid}/cwd/{file}"


PROBE = SourceProbe()
