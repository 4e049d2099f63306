"""Mismatched collectives: calls under one sequence number of a group that cannot be the same collective.

torch's own analyser compares each rank with the lowest one; this counts sides and takes the majority. Some sizes may
legitimately differ: the inputs of a scatter, the outputs of a gather, the splits of an all_to_all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hangdoc.analysis.collectives.fr_history import Calls, GroupHistory, RankCalls
from hangdoc.evidence import RecordedCall

KINDS = ("operation", "all_to_all", "size", "dtype")  # of mismatches, the most obvious first
MAX_LEAD = 16  # collectives by which one thread of a rank may be ahead of another

_STRICT = re.compile(r"^_?(all_?reduce|broadcast|reduce(_scatter)?)(?!.*_v$)")  # never correct with unequal sizes
_OWN_INPUTS, _OWN_OUTPUTS = ("scatter",), ("gather",)  # only one rank has these sizes
_DIMS = re.compile(r"\[([\d, ]*)\]")

Signature = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A collective on which the ranks of its group disagree."""

    group: GroupHistory
    kind: str  # one of KINDS
    sequence: int
    sides: Sequence[tuple[int, ...]]  # ranks that agree with each other, largest side first; all_to_all: one side
    tied: bool  # no single largest side

    @property
    def outliers(self) -> tuple[int, ...]:
        """The ranks outside the largest side; none for an all_to_all."""
        return tuple(sorted(rank for side in self.sides[1:] for rank in side))


def mismatch(group: GroupHistory) -> Mismatch | None:
    """The first collective of a group on which its ranks disagree."""
    histories = [rank_calls for rank_calls in group.histories if rank_calls.calls]
    newest = (call for rank_calls in histories for calls in _newest(rank_calls) for call in calls)
    if len(histories) < 2 and not any(map(_is_all_to_all, newest)):
        return None
    for number in sorted({number for rank_calls in histories for number in rank_calls.calls}):
        here = [(rank_calls, rank_calls.calls[number]) for rank_calls in histories if number in rank_calls.calls]
        kind = _mismatch_kind(here, group)
        if kind is not None:
            return _sides(group, kind, number, here)
    return None


def _newest(rank_calls: RankCalls) -> list[Calls]:
    return [rank_calls.calls[n] for n in (rank_calls.last, rank_calls.pending or 0) if n in rank_calls.calls]


def _mismatch_kind(here: Sequence[tuple[RankCalls, Calls]], group: GroupHistory) -> str | None:
    """The kind of disagreement among the calls under one sequence number, or None."""
    by_identity = {id(calls[0]): calls for _, calls in here}
    if len(by_identity) < 2 and not (by_identity and _is_all_to_all(here[0][1][0])):
        return None
    distinct = list(by_identity.values())
    if len({_operations(calls) for calls in distinct}) > 1:
        return "operation"
    completed = all(call.retired for calls in distinct for call in calls)
    if _is_all_to_all(distinct[0][0]):
        everyone = sum(len(rank_calls.ranks) for rank_calls, _ in here) == len(group.members)
        return "all_to_all" if everyone and not completed and _unbalanced(here) else None
    if completed and not _STRICT.match(distinct[0][0].op):
        return None
    for kind in ("size", "dtype"):
        if len({_signature(kind, calls) for calls in distinct}) > 1:
            return kind
    return None


def _signature(kind: str, calls: Calls) -> Signature:
    return {"operation": _operations, "size": _sizes, "dtype": _dtypes}[kind](calls)


def _operations(calls: Calls) -> Signature:
    return tuple(re.sub(r"^_(.*)_oop$", r"\1", call.op) for call in calls)


def _sizes(calls: Calls) -> Signature:
    return tuple(
        (call.op in _OWN_INPUTS or elements(call.sizes), call.op in _OWN_OUTPUTS or elements(call.outputs))
        for call in calls
    )


def _dtypes(calls: Calls) -> Signature:
    """gloo records an arbitrary dtype, or none, for a barrier and for the ranks without data in a scatter."""
    return tuple(
        ((call.op in _OWN_INPUTS or call.dtypes) if call.sizes else (), ()) for call in calls if call.op != "broadcast"
    )


def elements(sizes: str) -> tuple[int, ...]:
    """Number of elements of each tensor; the shapes do not have to match."""
    dims = _DIMS.findall(sizes[1:-1])
    return tuple(prod(map(int, dim.split(","))) if dim.strip() else 1 for dim in dims)


def _is_all_to_all(call: RecordedCall) -> bool:
    return call.op.startswith(("all_to_all", "alltoall"))


def _unbalanced(here: Sequence[tuple[RankCalls, Calls]]) -> bool:
    """True if total input and total output differ; sizes are recorded since trace version 2.4."""
    inputs = sum(len(rank_calls.ranks) * sum(elements(calls[0].sizes)) for rank_calls, calls in here)
    outputs = sum(len(rank_calls.ranks) * sum(elements(calls[0].outputs)) for rank_calls, calls in here)
    return bool(inputs and outputs) and inputs != outputs


def _sides(group: GroupHistory, kind: str, number: int, here: Sequence[tuple[RankCalls, Calls]]) -> Mismatch:
    sides: dict[Signature, list[int]] = {}
    for rank_calls, calls in here:
        sides.setdefault(() if kind == "all_to_all" else _signature(kind, calls), []).extend(rank_calls.ranks)
    # On a tie, the side with the lowest rank counts as correct: most readers assume rank 0 is.
    ordered = sorted((tuple(sorted(ranks)) for ranks in sides.values()), key=lambda ranks: (-len(ranks), ranks))
    return Mismatch(group, kind, number, ordered, len(ordered) > 1 and len(ordered[0]) == len(ordered[1]))


def racing_ranks(found: Mismatch) -> tuple[int, ...]:
    """The ranks in a race between two of their threads; empty: no race.

    In a race, two sides make the same calls in opposite order, each from two threads.
    """
    histories = [calls for side in found.sides if (calls := found.group.calls_of(side[0])) is not None]
    ranks: set[int] = set()
    for history in histories[1:]:
        if _called_later(histories[0], history, found.sequence) and _called_later(
            history, histories[0], found.sequence
        ):
            ranks.update(rank for side in found.sides for rank in side)
    return tuple(sorted(ranks))


def _called_later(own: RankCalls, peers: RankCalls, number: int) -> bool:
    """True if this rank issued the peers' call slightly later, from another thread."""
    here, wanted = own.calls.get(number), peers.calls.get(number)
    if here is None or wanted is None or here[0].thread is None:
        return False
    later = (own.calls.get(number + lead) for lead in range(1, MAX_LEAD + 1))
    return any(calls is not None and _same(calls, wanted) and calls[0].thread != here[0].thread for calls in later)


def _same(a: Calls, b: Calls) -> bool:
    return [(call.op, call.sizes, call.dtypes) for call in a] == [(call.op, call.sizes, call.dtypes) for call in b]
