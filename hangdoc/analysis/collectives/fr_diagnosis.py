"""Analysis `dumps`: what the Flight Recorder dumps that are left of a job say of it.

Whether the ranks agree on every collective (`contract`); who waits in which, who never began it, and who waits for whom
across groups and transfers: ranks of a pipeline wait in different groups at once, and the cause is with those that wait
for nobody, or in a circle. A rank without a dump, where others have one, was not there to write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from hangdoc.analysis import Case, Key
from hangdoc.analysis.collectives.fr_divergence import Parting, parting
from hangdoc.analysis.collectives.fr_history import Node, RankCalls, Scene, Transfer, circle, site
from hangdoc.analysis.collectives.fr_mismatch import KINDS, Mismatch, crossed, mismatch
from hangdoc.analysis.culprits import Suspect
from hangdoc.evidence import FlightRecorder, RecordedCall
from hangdoc.evidence.logs import Logs

MANY = 8  # calls that tell how long it takes from one to the next
MOST_PARTINGS = 64  # books of odd ranks whose call sites are compared


@dataclass(frozen=True, slots=True)
class DumpFacts:
    """One rank; None: it left no dump, or it has no part in what is wrong."""

    stuck: bool | None = None  # what is wrong holds all of them up: those who wait, and who never came to where they do
    waits: bool | None = None  # an operation that it began did not end
    odd: bool | None = None  # it is with those who went wrong, not with most
    group: str | None = None  # process group that this is about: "0 (default_pg)"
    sequence: int | None = None  # number of the collective there
    last: int | None = None  # number of the last one that this rank began there
    call: str | None = None  # what it began under that number, or does: "all_reduce [[10]] Float"; "send to rank 1"
    site: str | None = None  # where: "train (train.py:24)"
    peer: int | None = None  # of a send or receive
    absent: bool | None = None  # it never began it, and waits in nothing else
    relation: str | None = None  # how it parted from most by the call sites (see `parting.Parting`)
    parted: str | None = None  # its own call site there, and that of most
    parted_others: str | None = None
    advancing: bool | None = None  # it went from call to call when its dump was taken, and so did all others


@dataclass(frozen=True, slots=True)
class DumpJob:
    kind: str | None = None  # operation all_to_all size dtype | threads | order | p2p | absent extra | silent | joined
    group: str | None = None
    sequence: int | None = None
    call: str | None = None  # what most ranks began under that number
    tied: bool = False  # as many ranks on one side as on the other
    waiting: tuple[int, ...] = ()  # ranks that began something that did not end
    culprits: tuple[int, ...] = ()
    dumps: int = 0
    silent: tuple[int, ...] = ()  # ranks of the job that left no dump
    suspects: tuple[Suspect, ...] = ()  # the same, where they are what the others wait for
    moving: bool = False  # all dumps were taken while the ranks went from call to call


@dataclass(slots=True)
class DumpAnalysis:
    name: str = "dumps"
    order: int = 53
    rank_facts: type | None = DumpFacts
    job_facts: type | None = DumpJob

    def derive(self, case: Case) -> tuple[dict[Key, DumpFacts], DumpJob]:
        numbers = {key: rank.target.rank for key, rank in case.ranks.items() if rank.target.rank is not None}
        records = {number: record for key, number in numbers.items() if (record := _dump(case, key)) is not None}
        facts = dict.fromkeys(case.ranks, DumpFacts())
        if not records:
            return facts, DumpJob()
        scene = Scene.of(records)
        cause = _cause(scene)
        if cause.kind not in KINDS and _all_go_on(case, records.values()):
            return dict.fromkeys(case.ranks, DumpFacts(advancing=True)), DumpJob(dumps=len(records), moving=True)
        partings = _partings(scene, cause)
        if cause.tied and any(one.kind == "in_loop" or one.strays is False for one in partings.values()):
            cause = _swapped(scene, cause)
            partings = _partings(scene, cause)
        told = {key: _facts(number, scene, cause, partings) for key, number in numbers.items() if number in records}
        return facts | told, _job(scene, cause)


def _dump(case: Case, key: Key) -> FlightRecorder | None:
    record = case.record(key, "recorder")
    return record if isinstance(record, FlightRecorder) and record.final else None


def _all_go_on(case: Case, records: Iterable[FlightRecorder]) -> bool:
    """No rank had been in its newest call for longer than it takes from call to call, and no log tells of an end."""
    told = any(isinstance(log := case.record(key, "logs"), Logs) and log.said for key in case.ranks)
    return not told and all(rank.alive is not False for rank in case.ranks.values()) and all(map(_goes_on, records))


def _goes_on(record: FlightRecorder) -> bool:
    gaps = [b - a for a, b in pairwise(record.begun)]
    if record.written is None or len(gaps) < MANY:
        return False
    return 0.0 <= record.written - record.begun[-1] <= 2.0 * max(gaps) and sum(gap > 0.0 for gap in gaps) >= MANY


# --- the cause ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cause:
    """What is wrong."""

    kind: str | None = None
    culprits: tuple[int, ...] = ()
    ledger: int | None = None  # place of the group in the scene
    sequence: int | None = None
    usual: int | None = None  # a rank that did what most did
    tied: bool = False
    silent: tuple[int, ...] = ()


def _cause(scene: Scene) -> Cause:
    wrong = [(i, found) for i, ledger in enumerate(scene.ledgers) if (found := mismatch(ledger)) is not None]
    if wrong:
        i, found = min(wrong, key=lambda one: (KINDS.index(one[1].kind), -len(one[1].ledger.members)))
        return _of_mismatch(i, found)
    ring = circle(scene.edges)
    ranks = tuple(sorted(node for node in ring if isinstance(node, int)))
    if len(ranks) > 1:
        p2p = any(end in ring for rank in ranks for end in scene.edges[rank] if isinstance(end, int))
        return Cause("p2p" if p2p else "order", ranks)
    return _of_waits(scene)


def _of_mismatch(i: int, found: Mismatch) -> Cause:
    if ranks := crossed(found):
        return Cause("threads", ranks, i, found.sequence)
    culprits = found.odd if found.kind != "all_to_all" else found.sides[0]
    return Cause(found.kind, culprits, i, found.sequence, found.sides[0][0], found.tied)


def _swapped(scene: Scene, cause: Cause) -> Cause:
    """Where as many go on as ever, in a loop say, as do what none did before: these are the odd ones."""
    if cause.ledger is None or cause.sequence is None:
        return cause
    others = [rank for rank in scene.there((cause.ledger, cause.sequence)) if rank not in cause.culprits]
    return replace(cause, culprits=tuple(others), usual=cause.culprits[0]) if others else cause


def _of_waits(scene: Scene) -> Cause:
    """Nobody contradicts anybody: some wait for ranks that wait for nothing, or have left no dump."""
    free = {end for ends in scene.edges.values() for end in ends if isinstance(end, int) and end not in scene.edges}
    for node, ends in sorted(((n, e) for n, e in scene.edges.items() if isinstance(n, tuple)), key=lambda one: one[0]):
        roots, there = tuple(sorted(free & ends)), scene.there(node)
        if roots and len(roots) == len(ends) > len(there):  # most never began it: those who did are the odd ones
            return Cause("extra", there, *node, usual=roots[0], tied=False)
        if roots:
            return Cause("absent", roots, *node, usual=there[0], tied=len(roots) == len(there))
    alone = sorted({one.peer for rank, one in scene.transfers.items() if one.peer in free and rank in scene.edges})
    if alone:
        return Cause("p2p", tuple(alone))
    behind = _behind(scene)
    if behind is not None:
        return behind
    pending = [node for node in scene.edges if isinstance(node, tuple)]
    for i, at in sorted(pending):
        if scene.ledgers[i].silent:
            return Cause("silent", (), i, at, scene.there((i, at))[0], silent=scene.ledgers[i].silent)
    return Cause("joined", (), *min(pending), usual=scene.there(min(pending))[0]) if pending else Cause()


def _behind(scene: Scene) -> Cause | None:
    """gloo calls over what has failed: there a rank that began fewer than the others is all that tells."""
    found: list[Cause] = []
    edges: dict[Node, frozenset[Node]] = {}
    for i, ledger in enumerate(scene.ledgers):
        last = {rank: book.last for rank, book in scene.books[i].items() if book.calls}
        if len(last) < 2 or not any(_of_gloo(book, ledger.front) for book in ledger.books):
            continue
        low = tuple(sorted(rank for rank, number in last.items() if number == min(last.values())))
        there = tuple(sorted(rank for rank in last if rank not in low))
        if there and all(scene.books[i][rank].pending is None for rank in low):
            node = i, last[low[0]] + 1
            found.append(Cause("absent", low, *node, there[0], len(low) == len(there)))
            edges[node] = frozenset(low)
            edges.update({rank: edges.get(rank, frozenset()) | {node} for rank in there})
    ring = tuple(sorted(node for node in circle(edges) if isinstance(node, int)))
    if len(ring) > 1:
        return Cause("order", ring)
    return next((one for one in found if edges.keys().isdisjoint(one.culprits)), next(iter(found), None))


def _of_gloo(book: RankCalls, number: int) -> bool:
    return any(call.state == "scheduled" and call.retired for call in book.calls.get(number, ()))


# --- facts ----------------------------------------------------------------------------------------


def _partings(scene: Scene, cause: Cause) -> dict[int, Parting]:
    """How the culprits parted from the rest, by the sites of their calls."""
    if cause.ledger is None or cause.sequence is None or cause.usual is None or cause.kind in ("extra", "joined"):
        return {}
    books = scene.books[cause.ledger]
    told: dict[int, Parting | None] = {}
    for rank in cause.culprits:
        book = books.get(rank)
        if book is not None and id(book) not in told and len(told) < MOST_PARTINGS:
            told[id(book)] = parting(book, books[cause.usual], cause.sequence)
    return {rank: found for rank in cause.culprits if rank in books and (found := told.get(id(books[rank])))}


def _facts(rank: int, scene: Scene, cause: Cause, partings: Mapping[int, Parting]) -> DumpFacts:
    waits, odd, parted = scene.waits.get(rank), rank in cause.culprits, partings.get(rank)
    book, usual = _book(scene, cause, rank), _book(scene, cause, cause.usual)
    one = scene.transfers.get(rank) if cause.kind == "p2p" else None
    call = one.call if one is not None else _call(book, cause.sequence)
    if call is None and (not odd or cause.kind == "order"):
        call = waits or (_newest(scene.records[rank]) if cause.kind == "order" else None)
    return DumpFacts(
        stuck=True if cause.kind or waits is not None else None,
        waits=waits is not None,
        odd=odd if cause.kind else None,
        group=_label(scene, cause, call),
        sequence=cause.sequence,
        last=book.last if book is not None else None,
        call=_told(call, one) if call is not None else None,
        site=site(call) if call is not None else None,
        peer=one.peer if one is not None else None,
        absent=odd and cause.kind == "absent" if cause.kind else None,
        relation=parted.kind if parted else None,
        parted=_site_at(book, parted),
        parted_others=_site_at(usual, parted),
    )


def _book(scene: Scene, cause: Cause, rank: int | None) -> RankCalls | None:
    """What a rank recorded in the group that the cause is about."""
    return scene.books[cause.ledger].get(rank) if cause.ledger is not None and rank is not None else None


def _call(book: RankCalls | None, number: int | None) -> RecordedCall | None:
    calls = book.calls.get(number) if book is not None and number is not None else None
    return calls[0] if calls else None


def _site_at(book: RankCalls | None, parted: Parting | None) -> str | None:
    call = _call(book, parted.sequence if parted is not None else None)
    return site(call) if call is not None else None


def _newest(record: FlightRecorder) -> RecordedCall | None:
    """The collective that it began last."""
    return next((entry for entry in reversed(record.entries) if not entry.p2p), None)


def _label(scene: Scene, cause: Cause, call: RecordedCall | None) -> str | None:
    if cause.ledger is not None:
        return scene.ledgers[cause.ledger].label
    return next((one.label for one in scene.ledgers if call is not None and one.name == call.group), None) or (
        call.group if call is not None else None
    )


def _told(call: RecordedCall, transfer: Transfer | None) -> str:
    sizes = f" {call.sizes}" if call.sizes else ""
    types = f" {', '.join(dict.fromkeys(call.dtypes))}" if call.sizes and call.dtypes else ""
    if transfer is not None:
        return f"{call.op} {'to' if transfer.sends else 'from'} rank {transfer.peer}{sizes}{types}"
    return f"{call.op}{sizes}{types}"


def _job(scene: Scene, cause: Cause) -> DumpJob:
    call = _call(_book(scene, cause, cause.usual), cause.sequence)
    silent: Iterable[int] = {rank for ledger in scene.ledgers for rank in ledger.silent}
    return DumpJob(
        kind=cause.kind,
        group=scene.ledgers[cause.ledger].label if cause.ledger is not None else None,
        sequence=cause.sequence,
        call=_told(call, None) if call is not None else None,
        tied=cause.tied,
        waiting=tuple(sorted(scene.waits)),
        culprits=cause.culprits,
        dumps=len(scene.records),
        silent=tuple(sorted(silent)),
        suspects=tuple(Suspect(rank) for rank in cause.silent),
    )


ANALYSIS = DumpAnalysis()
