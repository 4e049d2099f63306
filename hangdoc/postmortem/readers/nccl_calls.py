"""The calls of NCCL or RCCL that each process logs with NCCL_DEBUG_SUBSYS=COLL, and where two processes part.

NCCL 2, src/enqueue.cc: `NCCL INFO AllReduce: opCount 1f6 sendbuff ... count N datatype D op O root R comm 0x...
[nranks=2] stream 0x...`. The number is that of the communicator, in hexadecimal. Two processes that made the same calls
and then different ones under the same number do not belong together any more. Only those with one communicator of a
size are compared, and no more of them than it has ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import text_lines

MARK = " opCount "
MAX_CALLS = 200_000
_CALL = re.compile(
    r"(?P<process>[\w.-]{1,100}:\d{1,10}):\d{1,10} \[\d{1,3}\] NCCL INFO (?P<op>[A-Z][A-Za-z]{2,30}): "
    r"opCount (?P<number>[\da-f]{1,16}) .{0,120}?count (?P<count>\d{1,20}) datatype (?P<type>\d{1,3}) "
    r"op \d{1,3} root \d{1,6} comm (?P<comm>0x[\da-f]{1,16}) \[nranks=(?P<size>\d{1,7})\]"
)
_BETWEEN_TWO = frozenset({"Send", "Recv"})


@dataclass(frozen=True, slots=True)
class _Call:
    op: str
    count: int
    type: str
    line: int


@dataclass(slots=True)
class _Communicator:
    """One communicator, as one process logs it."""

    process: str
    calls: dict[int, list[_Call]] = field(default_factory=lambda: defaultdict(list))  # number -> calls of a group


class NcclCallsReader:
    name = "NCCL call log"
    order = 45
    marks = (MARK,)
    help = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL"

    def recognises(self, source: Source) -> bool:
        return MARK in source.head_text and _CALL.search(source.head_text) is not None

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        for found in _by_size(text_lines(source, context)).values():
            for one, other in pairwise(found):
                if parted := _parted(one, other):
                    number, first, second = parted
                    text = (
                        f"NCCL call {number:x}: {first.op} of {first.count} in {one.process}, "
                        f"{second.op} of {second.count} in {other.process}"
                    )
                    event = LogEvent("calls_differ", text, source.name, max(first.line, second.line))
                    yield Piece(ProcessRef(), "logs", Logs((event,)))
                    return


def _by_size(lines: Iterable[str]) -> Mapping[int, list[_Communicator]]:
    """The communicators of each size that can be compared: one of each process, and no more than it has ranks."""
    found: dict[int, dict[str, dict[str, _Communicator]]] = defaultdict(lambda: defaultdict(dict))
    for size, process, comm, number, call in _calls(lines):
        found[size][process].setdefault(comm, _Communicator(process)).calls[number].append(call)
    return {
        size: [one for of_process in processes.values() for one in of_process.values()]
        for size, processes in found.items()
        if 1 < len(processes) <= size and all(len(of_process) == 1 for of_process in processes.values())
    }


def _calls(lines: Iterable[str]) -> Iterator[tuple[int, str, str, int, _Call]]:
    left = MAX_CALLS
    for line, text in enumerate(lines, 1):
        if MARK not in text or (found := _CALL.search(text)) is None or found["op"] in _BETWEEN_TWO:
            continue
        left -= 1
        if left < 0:
            return
        call = _Call(found["op"], int(found["count"]), found["type"], line)
        yield int(found["size"]), found["process"], found["comm"], int(found["number"], 16), call


def _parted(one: _Communicator, other: _Communicator) -> tuple[int, _Call, _Call] | None:
    """The first call that differs, below one or more that agree, if no later one agrees."""
    agreed, parted = 0, None
    for number in sorted(one.calls.keys() & other.calls.keys()):
        for first, second in zip(one.calls[number], other.calls[number], strict=False):
            alike = (first.op, first.count, first.type) == (second.op, second.count, second.type)
            if alike and parted is not None:
                return None
            agreed += alike
            if not alike and parted is None:
                parted = number, first, second
    return parted if agreed else None


READER = NcclCallsReader()
