"""Whether the calls that ranks made under one number of one group can be one collective.

torch's own analyser compares each rank with the lowest; here sides are counted. Sizes need not agree in all operations:
not a scatter's inputs, a gather's outputs, the parts of an all_to_all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hangdoc.analysis.collectives.fr_history import Calls, Ledger, RankCalls
from hangdoc.evidence import RecordedCall

KINDS = ("operation", "all_to_all", "size", "dtype")  # of mismatches, the plainest first
_STRICT = re.compile(r"^_?(all_?reduce|broadcast|reduce(_scatter)?)(?!.*_v$)")  # what cannot go well with unequal sizes
_OWN_INPUTS, _OWN_OUTPUTS = ("scatter",), ("gather",)  # sizes that only one rank has
_DIMS = re.compile(r"\[([\d, ]*)\]")
MOST_LATER = 16  # collectives by which one thread may have been ahead of the other

Signature = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A collective that its ranks do not agree on."""

    ledger: Ledger
    kind: str  # one of KINDS
    sequence: int
    sides: Sequence[tuple[int, ...]]  # ranks that agree with one another, most first; all_to_all: one side
    tied: bool

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks of all sides but the largest; of an all_to_all nobody."""
        return tuple(sorted(rank for side in self.sides[1:] for rank in side))


def mismatch(ledger: Ledger) -> Mismatch | None:
    """The first collective of a group that its ranks do not agree on."""
    books = [book for book in ledger.books if book.calls]
    if len(books) < 2 and not any(_is_all_to_all(call) for book in books for calls in _newest(book) for call in calls):
        return None
    for number in sorted({number for book in books for number in book.calls}):
        here = [(book, book.calls[number]) for book in books if number in book.calls]
        kind = _unlike(here, ledger)
        if kind is not None:
            return _sides(ledger, kind, number, here)
    return None


def _newest(book: RankCalls) -> list[Calls]:
    return [book.calls[number] for number in (book.last, book.pending or 0) if number in book.calls]


def _unlike(here: Sequence[tuple[RankCalls, Calls]], ledger: Ledger) -> str | None:
    calls = {id(made[0]): made for _, made in here}
    if len(calls) < 2 and not (calls and _is_all_to_all(here[0][1][0])):
        return None
    distinct = list(calls.values())
    if len({_operations(made) for made in distinct}) > 1:
        return "operation"
    over = all(call.retired for made in distinct for call in made)
    if _is_all_to_all(distinct[0][0]):
        whole = sum(len(book.ranks) for book, _ in here) == len(ledger.members)
        return "all_to_all" if whole and not over and _unbalanced(here) else None
    if over and not _STRICT.match(distinct[0][0].op):
        return None
    for kind in ("size", "dtype"):
        if len({_signature(kind, made) for made in distinct}) > 1:
            return kind
    return None


def _signature(kind: str, made: Calls) -> Signature:
    return {"operation": _operations, "size": _shapes, "dtype": _types}[kind](made)


def _operations(made: Calls) -> Signature:
    return tuple(re.sub(r"^_(.*)_oop$", r"\1", call.op) for call in made)


def _shapes(made: Calls) -> Signature:
    return tuple(
        (call.op in _OWN_INPUTS or elements(call.sizes), call.op in _OWN_OUTPUTS or elements(call.outputs))
        for call in made
    )


def _types(made: Calls) -> Signature:
    """gloo gives a barrier, and a rank without data its side of a scatter, no type or another."""
    return tuple(
        ((call.op in _OWN_INPUTS or call.dtypes) if call.sizes else (), ()) for call in made if call.op != "broadcast"
    )


def elements(sizes: str) -> tuple[int, ...]:
    """Of each tensor how many elements; what matters is their number, not their shape."""
    dims = _DIMS.findall(sizes[1:-1])
    return tuple(prod(map(int, dim.split(","))) if dim.strip() else 1 for dim in dims)


def _is_all_to_all(call: RecordedCall) -> bool:
    return call.op.startswith(("all_to_all", "alltoall"))


def _unbalanced(here: Sequence[tuple[RankCalls, Calls]]) -> bool:
    """What all ranks give is not what all ranks take; before version 2.4 sizes were not recorded."""
    given = sum(len(book.ranks) * sum(elements(made[0].sizes)) for book, made in here)
    taken = sum(len(book.ranks) * sum(elements(made[0].outputs)) for book, made in here)
    return bool(given and taken) and given != taken


def _sides(ledger: Ledger, kind: str, number: int, here: Sequence[tuple[RankCalls, Calls]]) -> Mismatch:
    sides: dict[Signature, list[int]] = {}
    for book, made in here:
        sides.setdefault(() if kind == "all_to_all" else _signature(kind, made), []).extend(book.ranks)
    # Of two sides alike in size the one of the lower ranks is taken for right, as every reader would.
    ordered = sorted((tuple(sorted(ranks)) for ranks in sides.values()), key=lambda ranks: (-len(ranks), ranks))
    return Mismatch(ledger, kind, number, ordered, len(ordered) > 1 and len(ordered[0]) == len(ordered[1]))


def crossed(found: Mismatch) -> tuple[int, ...]:
    """The ranks that made the same calls from two threads each, in another order than other ranks; empty: no race."""
    books = [book for side in found.sides if (book := found.ledger.book(side[0])) is not None]
    ranks: set[int] = set()
    for book in books[1:]:
        if _swapped(books[0], book, found.sequence) and _swapped(book, books[0], found.sequence):
            ranks.update(rank for side in found.sides for rank in side)
    return tuple(sorted(ranks))


def _swapped(mine: RankCalls, others: RankCalls, number: int) -> bool:
    """What the others called under this number I called a little later, from another thread."""
    here, wanted = mine.calls.get(number), others.calls.get(number)
    if here is None or wanted is None or here[0].thread is None:
        return False
    later = (mine.calls.get(number + ahead) for ahead in range(1, MOST_LATER + 1))
    return any(call is not None and _same(call, wanted) and call[0].thread != here[0].thread for call in later)


def _same(one: Calls, other: Calls) -> bool:
    return [(call.op, call.sizes, call.dtypes) for call in one] == [
        (call.op, call.sizes, call.dtypes) for call in other
    ]
