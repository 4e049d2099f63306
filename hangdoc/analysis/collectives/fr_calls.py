"""All that the Flight Recorders of a job hold, and who waits for whom by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis.collectives.fr_history import Ledger, RankCalls, Transfer, ledgers, transfers
from hangdoc.evidence import FlightRecorder, Recorded
from hangdoc.evidence.collectives import pending_call

Node = int | tuple[int, int]  # a rank; or a ledger, by its place, and the number of a collective in it
Edges = Mapping[Node, frozenset[Node]]


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is recorded, and who waits in what."""

    records: Mapping[int, FlightRecorder]
    ledgers: Sequence[Ledger]
    books: Sequence[Mapping[int, RankCalls]]  # of each ledger, by rank
    transfers: Mapping[int, Transfer]  # by rank, the oldest that has no counterpart, else the oldest
    waits: Mapping[int, Recorded]  # by rank, the oldest that did not end
    edges: Edges

    @classmethod
    def of(cls, records: Mapping[int, FlightRecorder]) -> Scene:
        found = ledgers(records)
        books = [{rank: book for book in ledger.books for rank in book.ranks} for ledger in found]
        waits = {rank: call for rank, record in records.items() if (call := pending_call(record)) is not None}
        moving = transfers(records)
        known = {(one.rank, one.peer, one.sends, one.group) for one in moving}
        by_rank: dict[int, Transfer] = {}
        for one in sorted(moving, key=lambda one: (one.peer, one.rank, not one.sends, one.group) in known):
            by_rank.setdefault(one.rank, one)
        edges: dict[Node, frozenset[Node]] = {}
        for rank in records:
            ends: set[Node] = {(i, at) for i, of in enumerate(books) if rank in of and (at := of[rank].pending)}
            moved = by_rank.get(rank)
            if moved is not None and (moved.peer, rank, not moved.sends, moved.group) not in known:
                ends.add(moved.peer)
            if ends:
                edges[rank] = frozenset(ends)
        for i, at in {end for ends in edges.values() for end in ends if isinstance(end, tuple)}:
            edges[i, at] = frozenset(_missing(found[i], books[i], at))
        return cls(records, found, books, by_rank, waits, edges)

    def there(self, node: tuple[int, int]) -> tuple[int, ...]:
        """The ranks that began a collective."""
        return tuple(sorted(rank for rank, book in self.books[node[0]].items() if book.last >= node[1]))


def _missing(ledger: Ledger, books: Mapping[int, RankCalls], number: int) -> list[int]:
    """Members that left a dump and did not begin this collective."""
    silent = set(ledger.silent)
    return [r for r in ledger.members if r not in silent and (r not in books or books[r].last < number)]


def circle(edges: Edges) -> set[Node]:
    """What waits for one another: left when all that waits for nothing, or is not waited for, is taken away."""
    left: set[Node] = set(edges)
    while True:
        awaited = {end for node in left for end in edges[node]}
        keep = {node for node in left if node in awaited and not left.isdisjoint(edges[node])}
        if keep == left:
            return left
        left = keep
