"""Whether a mismatch is a race: two threads of a rank call collectives of one group, and who is first is chance."""

from __future__ import annotations

from hangdoc.analysis.collectives.fr_history import Calls, RankCalls
from hangdoc.analysis.collectives.fr_mismatch import Mismatch

MOST_LATER = 16  # collectives by which one thread may have been ahead of the other


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
