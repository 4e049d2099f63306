"""The Flight Recorders of all ranks side by side: of each process group, which calls each of its ranks made.

A collective has a number in its group, the same on all members. Ranks whose calls are the same share one book, so that
what is compared are a few books and not thousands of ranks. Rank numbers are global; those that a send or receive names
are ranks in the group and are translated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.evidence import FlightRecorder, Frame, RecordedCall
from hangdoc.evidence.collectives import pending_call

DEFAULT = "0"  # torch's name of the group of the whole job
Calls = tuple[RecordedCall, ...]  # with one number: several where they were coalesced
Node = int | tuple[int, int]  # a rank; or a ledger, by its place, and the number of a collective in it
Edges = Mapping[Node, frozenset[Node]]


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The collectives of one group as some of its ranks recorded them."""

    calls: Mapping[int, Calls]  # by number
    first: int  # what is older was overwritten
    last: int  # begun
    over: int  # the newest that ended; 0: none did
    ranks: list[int] = field(default_factory=list)  # that recorded just this

    @property
    def pending(self) -> int | None:
        """The oldest that began and did not end."""
        return self.over + 1 if self.over < self.last else None


@dataclass(frozen=True, slots=True)
class Ledger:
    """One process group."""

    name: str
    label: str  # "0 (default_pg)"
    members: tuple[int, ...]  # as declared; else those that recorded anything in it
    declared: bool
    books: Sequence[RankCalls]
    silent: tuple[int, ...]  # members that left no dump

    @property
    def front(self) -> int:
        return max((book.last for book in self.books), default=0)

    def book(self, rank: int) -> RankCalls | None:
        return next((book for book in self.books if rank in book.ranks), None)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A send or receive that began and did not end."""

    rank: int
    peer: int
    sends: bool
    group: str
    call: RecordedCall


def ledgers(records: Mapping[int, FlightRecorder]) -> list[Ledger]:
    """One for each group in which a collective was recorded, by name."""
    split: dict[tuple[str, tuple[int, ...]], dict[tuple[int, ...], RankCalls]] = defaultdict(dict)
    labels: dict[str, str] = {}
    for rank, record in records.items():
        declared = {group.name: group.ranks for group in record.groups if group.name}
        labels.update({name: label for name, label in record.labels.items() if label})
        made = _by_group(record.entries)
        for name, entries in made.items():
            books = split[name, declared.get(name, ())]
            same = tuple(map(id, entries))
            if same not in books:
                books[same] = _book(entries)
            books[same].ranks.append(rank)
        for name, count in record.enqueued.items():
            if name not in made and name in declared:  # its calls were overwritten, or there are none
                over = record.completed.get(name, count)
                none = RankCalls({}, count + 1, max(count, 0), max(over, 0))
                split[name, declared[name]].setdefault((-1, count, over), none).ranks.append(rank)
    everybody = _everybody(records)
    found = []
    for (name, ranks), books in sorted(split.items()):
        label = f"{name} ({labels[name]})" if name in labels else name
        present = {rank for book in books.values() for rank in book.ranks}
        members = ranks or tuple(sorted(present | (everybody if name == DEFAULT else set())))
        silent = tuple(rank for rank in members if rank not in records)
        found.append(Ledger(name, label, members, bool(ranks), tuple(books.values()), silent))
    return found


def _everybody(records: Mapping[int, FlightRecorder]) -> set[int]:
    """Ranks of the job by all that is declared; gloo declares the members of a group without its name."""
    told = {group.ranks for record in records.values() for group in record.groups}
    return set(records).union(*told)


def _by_group(entries: Iterable[RecordedCall]) -> dict[str, list[RecordedCall]]:
    found: dict[str, list[RecordedCall]] = defaultdict(list)
    for entry in entries:
        if not entry.p2p:
            found[entry.group].append(entry)
    return found


def _book(entries: Sequence[RecordedCall]) -> RankCalls:
    calls: dict[int, Calls] = {}
    for entry in entries:
        calls[entry.sequence] = (*calls.get(entry.sequence, ()), entry)
    # On one group one collective follows the other: what began before one that ended has ended as well.
    over = max((number for number, made in calls.items() if all(call.retired for call in made)), default=min(calls) - 1)
    return RankCalls(calls, min(calls), max(calls), over)


def transfers(records: Mapping[int, FlightRecorder]) -> list[Transfer]:
    """The sends and receives that did not end."""
    found: list[Transfer] = []
    for rank, record in records.items():
        members = {group.name: group.ranks for group in record.groups}
        over: set[tuple[str, int | None, int | None]] = set()
        waiting: list[Transfer] = []
        for entry in reversed(record.entries):
            if not entry.p2p or entry.sender is None or entry.receiver is None:
                continue
            pair = entry.group, entry.sender, entry.receiver
            sends = entry.op == "send"
            peer = entry.receiver if sends else entry.sender
            ranks = members.get(entry.group)
            if ranks is not None and peer < len(ranks):
                peer = ranks[peer]
            if entry.retired:
                over.add(pair)
            elif pair not in over and peer != rank:
                waiting.append(Transfer(rank, peer, sends, entry.group, entry))
        found += reversed(waiting)
    return found


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is recorded, and who waits in what."""

    records: Mapping[int, FlightRecorder]
    ledgers: Sequence[Ledger]
    books: Sequence[Mapping[int, RankCalls]]  # of each ledger, by rank
    transfers: Mapping[int, Transfer]  # by rank, the oldest that has no counterpart, else the oldest
    waits: Mapping[int, RecordedCall]  # by rank, the oldest that did not end
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


def site(call: RecordedCall) -> str | None:
    """The line of the user's own code that made a call: "train (train.py:24)"; None where no frames are recorded."""
    frame = own(call)
    return f"{frame.function} ({(frame.short or frame.file).rsplit('/', 1)[-1]}:{frame.line})" if frame else None


def own(call: RecordedCall) -> Frame | None:
    """The innermost frame of the user's own code, else the innermost of all."""
    return next((f for f in call.frames if not is_library(f.file)), call.frames[0] if call.frames else None)
