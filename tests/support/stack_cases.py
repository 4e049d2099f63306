"""Cases of `tests/data/stacks/*.yaml`: the stacks of a job's ranks in a short form, and the verdict that they carry.

A stack is a list of frames, innermost first. `wait torch/distributed/distributed_c10d.py:12` is a Python frame;
`cudaStreamSynchronize` alone is a native one, and `-- NAME` starts another thread. A folder that only a library has is
made absolute, as the readers of dumps do. `lines` has the call in a line of the source, by "file:line".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from hangdoc.evidence import Place, Snapshot, Source, Stack, Stacks
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.assemble import snapshots
from hangdoc.postmortem.readers._frames import ThreadBuilder, native_frame, python_frame
from tests.support.paths import DATA

FRAME = re.compile(r"(\S+) (\S.*):(\d+)")


@dataclass(frozen=True, slots=True)
class StackCase:
    """One job."""

    name: str
    history: Sequence[Snapshot]
    expect: Mapping[str, Any]


def cases(file: str) -> Iterator[StackCase]:
    """The cases of one file."""
    document = yaml.safe_load((DATA / "stacks" / file).read_text())
    for case in document["cases"]:
        yield StackCase(case["name"], snapshots(_pieces(case, document["stacks"])), case.get("expect") or {})


def _pieces(case: Mapping[str, Any], named: Mapping[str, Sequence[str]]) -> Iterator[Piece]:
    for ranks, stack in case["ranks"].items():
        active = isinstance(stack, str) and stack.startswith("active ")
        frames = named[stack.removeprefix("active ")] if isinstance(stack, str) else stack
        record = _stacks(frames, active)
        for process in _processes(ranks):
            yield Piece(process, "stacks", record)
            if "lines" in case:
                yield Piece(process, "source", Source({at: _place(call) for at, call in case["lines"].items()}))


def _place(call: str) -> Place:
    return Place(f"{call}()", (), (), (call,), 1, 99)


def _processes(ranks: object) -> Iterator[ProcessRef]:
    text = str(ranks)
    if text.startswith("pid "):
        yield ProcessRef(pid=int(text[4:]))
        return
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from (ProcessRef(rank) for rank in range(int(first), int(last or first) + 1))


def _stacks(frames: Sequence[str], active: bool) -> Stacks:
    threads = [ThreadBuilder(1, "MainThread", active=active)]
    for text in frames:
        if text.startswith("-- "):
            threads.append(ThreadBuilder(len(threads) + 1, text[3:]))
        elif found := FRAME.fullmatch(text):
            threads[-1].add(python_frame(found[1], found[2], int(found[3])))
        else:
            threads[-1].add(native_frame(text, "libtorch_cuda.so"))
    stacks: list[Stack] = [thread.stack() for thread in threads]
    return Stacks(tuple(stacks), any(frame.native for stack in stacks for frame in stack.frames))
