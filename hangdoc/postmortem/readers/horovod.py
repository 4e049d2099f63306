"""Horovod's stall inspector: the tensors that some ranks submitted and that the remaining ranks did not.

Forms: Horovod 0.12 to 0.28, horovod/common/stall_inspector.cc (since 0.18: `Missing ranks:` or `Stalled ranks:`, then
a line per rank with the tensors that it did not submit; a rank marked `!` is to be shut down), before that
operations.cc (`Stalled ops:` with `[ready ranks: ...]`, later a line per tensor with `[missing ranks: ...]`). The ranks
are global.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hangdoc.evidence import limits
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import text_lines

_HEAD = re.compile(r"\breduced, gathered or broadcasted by subset of ranks")  # the line before may have been wrapped
_MISSING_RANKS = re.compile(r"(?:Missing|Stalled) ranks:\s*$")
_OF_RANK = re.compile(r"(?:^|[\s:>|])(\d{1,7})!?: \[([^\[\]\n]{1,4000})\]?\s*$")
_OF_TENSOR = re.compile(
    r"([\w./:;-]{1,300})\s{1,4}\[(ready|missing|stalled global) ranks?:? {0,2}([\d, ]{1,40000})[^\]\n]{0,40}\]"
)
MAX_TENSORS = 2000  # of one text
MAX_PAIRS = 64  # events of ranks with different tensors
MAX_NAMED = 3  # tensors in a text
_RANK_LIMIT = limits.MAX_RANKS


@dataclass(slots=True)
class _Stall:
    """All warnings of a text; the last one repeats the first."""

    line: int = 0
    missing: dict[str, set[int]] = field(default_factory=dict)  # tensor -> ranks that did not submit it
    ready: dict[str, set[int]] = field(default_factory=dict)  # tensor -> ranks that did

    def add(self, tensor: str, ranks: Iterable[int], ready: bool) -> None:
        into = self.ready if ready else self.missing
        if tensor in into or len(into) < MAX_TENSORS:
            into.setdefault(tensor, set()).update(rank for rank in ranks if rank < _RANK_LIMIT)

    def complete(self) -> dict[str, set[int]]:
        """The ranks that did not submit each tensor; of a list of ready ranks, those between them are known to miss."""
        found = {tensor: set(ranks) for tensor, ranks in self.missing.items()}
        world = 1 + max((rank for ranks in (*self.ready.values(), *self.missing.values()) for rank in ranks), default=0)
        for tensor, ranks in self.ready.items():
            found.setdefault(tensor, set()).update(set(range(world)) - ranks)
        return found


class HorovodReader:
    name = "Horovod's stall inspector"
    order = 44
    marks = ("by subset of ranks and are waiting", "[missing ranks:", "[ready ranks:")
    help = "the output of rank 0, with HOROVOD_STALL_CHECK_TIME_SECONDS=60"

    def recognises(self, source: Source) -> bool:
        head = source.head_text
        return bool(_HEAD.search(head) or _OF_TENSOR.search(head))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        stall = _stall(text_lines(source, context))
        events = tuple(_events(stall, source.name)) if stall.line else ()
        if events:
            yield Piece(ProcessRef(), "logs", Logs(events))


def _stall(lines: Iterable[str]) -> _Stall:
    stall, table = _Stall(), False
    for number, text in enumerate(lines, 1):
        if _HEAD.search(text):
            stall.line = stall.line or number
        if _MISSING_RANKS.search(text):
            table = True
        elif table and (found := _OF_RANK.search(text)):
            for tensor in found[2].removesuffix(" ...").split(", "):
                stall.add(tensor.strip(), (int(found[1]),), ready=False)
        else:
            table = table and not text.strip()
            for found in _OF_TENSOR.finditer(text):
                stall.line = stall.line or number
                ranks = (int(one) for one in re.findall(r"\d{1,7}", found[3]))
                stall.add(found[1], ranks, found[2] == "ready")
    return stall


def _events(stall: _Stall, source: str) -> Iterator[LogEvent]:
    """Ranks that wait for each other with different tensors, else the ranks that are missing everywhere."""
    missing = stall.complete()
    by_ranks: dict[frozenset[int], list[str]] = {}
    for tensor, ranks in missing.items():
        if ranks:
            by_ranks.setdefault(frozenset(ranks), []).append(tensor)
    sides = sorted(by_ranks, key=lambda ranks: (len(ranks), sorted(ranks)))
    known = frozenset(rank for ranks in (*missing.values(), *stall.ready.values()) for rank in ranks)
    number = stall.line
    if len(sides) == 2 and not sides[0] & sides[1]:
        few, many = sides  # each side submitted what the other one lacks
        calls = {rank: _named(by_ranks[many]) for rank in few} | {rank: _named(by_ranks[few]) for rank in many}
        for one, other in [(min(few), b) for b in sorted(many)] + [(a, min(many)) for a in sorted(few)[1:]]:
            if number - stall.line >= MAX_PAIRS:
                return
            text = f"Horovod: rank {one} submitted {calls[one]}, rank {other} submitted {calls[other]}"[:400]
            fields = {"rank_a": str(one), "op_a": calls[one], "rank_b": str(other), "op_b": calls[other]}
            yield LogEvent("mismatch", text, source, number, None, fields)
            number += 1
        return
    common = frozenset.intersection(*sides) if sides else frozenset()
    ready = frozenset(range(max(known, default=0) + 1)) - common
    text = f"Horovod: {_named(list(missing))} waits for ranks that did not submit it"
    # A rank that is missing may be dead, blocked or late: that it is behind is seen at this moment, and not proved.
    if common and len(common) <= len(ready):
        names = ", ".join(map(str, sorted(common)))
        text = f"Horovod: {_named(list(missing))} waits for rank{'s' if len(common) > 1 else ''} {names}"
        fields = {"ranks": names[:2000], "lag": str(MAX_TENSORS)}
        yield LogEvent("behind_at_a_look", text[:400], source, number, None, fields)
    else:
        yield LogEvent("stalled_tensors", text[:400], source, number, None, {"op": _named(list(missing))})


def _named(tensors: list[str]) -> str:
    more = len(tensors) - MAX_NAMED
    return ", ".join(sorted(tensors)[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


READER = HorovodReader()
