"""The stack that NCCL's watchdog writes of the collective that failed, recorded when it was begun."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangdoc.evidence import Frame, Stack, Stacks

_FRAME = re.compile(r"(?:^|[\s:])#(\d{1,3}) (?P<function>\S{1,200}) from (?P<file>\S{1,1000}):(?P<line>\d{1,9})\s*$")


def trace(lines: Iterable[str]) -> Stacks | None:
    """The frames `#0 all_reduce from FILE:LINE`, innermost first; None where there are none."""
    frames: list[Frame] = []
    for text in lines:
        match = _FRAME.search(text)
        if match is None or int(match[1]) != len(frames):
            break
        file = match["file"]
        frames.append(Frame(match["function"], file, int(match["line"]), file.rpartition("-packages/")[2]))
    return Stacks((Stack(0, "MainThread", tuple(frames)),)) if frames else None
