"""Analysis `dumps`: the verdict of a job's Flight Recorder dumps.

Do the ranks agree on every collective? Who waits in which one, who never started it, and who waits for whom across
groups and transfers? Pipeline ranks wait in several groups at once: the cause is a rank that waits for nobody, or a
cycle. Where other ranks left a dump, a rank without one was not alive to write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.collectives.fr_divergence import Divergence, divergence
from hangdoc.analysis.collectives.fr_history import JobHistory, Node, RankCalls, Transfer, site
from hangdoc.analysis.collectives.fr_mismatch import KINDS, Mismatch, mismatch, racing_ranks
from hangdoc.analysis.collectives.wait_graph import cycle_nodes
from hangdoc.analysis.thresholds import MIN_GAPS, OVERDUE
from hangdoc.evidence import FlightRecorder, RecordedCall
from hangdoc.evidence.logs import Logs

SAME_CALLS = frozenset({"extra", "joined", "unstarted"})  # faults in which the call sites of the ranks tell nothing
MAX_DIVERGENCES = 64  # outliers' histories whose call sites are compared


@dataclass(frozen=True, slots=True)
class DumpFacts:
    """One rank; None: it left no dump, or has no part in the fault."""

    stuck: bool | None = None  # it waits, or the job has a fault: that holds up every rank
    waits: bool | None = None  # an operation it started did not complete
    outlier: bool | None = None  # it is on the side at fault, not with the majority
    group: str | None = None  # process group at fault: "0 (default_pg)"
    sequence: int | None = None  # sequence number of the collective at fault in that group
    last: int | None = None  # number of the last collective that this rank started in that group
    call: str | None = None  # its call there, or its pending one: "all_reduce [[10]] Float", "send to rank 1"
    site: str | None = None  # line of user code that made it: "train (train.py:24)"
    peer: int | None = None  # of a send or receive
    absent: bool | None = None  # it never started the collective, and waits in nothing else
    relation: str | None = None  # how its call sites diverged from the majority's: `fr_divergence.Divergence.kind`
    parted: str | None = None  # its call site where they diverged
    parted_others: str | None = None  # the majority's call site there
    advancing: bool | None = None  # it was going from call to call when its dump was taken, and so was every rank


@dataclass(frozen=True, slots=True)
class DumpJob:
    """The fault, over all dumps of the job."""

    # operation all_to_all size dtype | threads | order | p2p | absent extra | silent | unstarted | joined
    kind: str | None = None
    group: str | None = None  # process group at fault: "0 (default_pg)"
    sequence: int | None = None  # of the collective at fault
    call: str | None = None  # the majority's call under that number
    tied: bool = False  # both sides are equally large
    waiting: tuple[int, ...] = ()  # ranks with an operation that did not complete
    culprits: tuple[int, ...] = ()
    dumps: int = 0  # dumps read
    silent: tuple[int, ...] = ()  # ranks of the job without a dump
    suspects: tuple[Suspect, ...] = ()  # the same, if the other ranks wait for them
    declared: bool | None = None  # the dumps say who is in the group at fault: nobody else can be missing
    moving: bool = False  # every dump was taken while its rank went from call to call


class DumpDetector(Detector[DumpFacts, DumpJob]):
    rank_facts = DumpFacts
    job_facts = DumpJob

    def derive(self, case: Case) -> tuple[dict[Key, DumpFacts], DumpJob]:
        numbers = {key: rank.target.rank for key, rank in case.ranks.items() if rank.target.rank is not None}
        records = {number: record for key, number in numbers.items() if (record := _dump(case, key)) is not None}
        facts = dict.fromkeys(case.ranks, DumpFacts())
        if not records:
            return facts, DumpJob()
        history = JobHistory.of(records)
        cause = _cause(history)
        if cause.kind not in KINDS and _all_advancing(case, records.values()):
            return dict.fromkeys(case.ranks, DumpFacts(advancing=True)), DumpJob(dumps=len(records), moving=True)
        divergences = _divergences(history, cause)
        if cause.tied and any(d.kind == "in_loop" or d.is_new is False for d in divergences.values()):
            cause = _blame_new_calls(history, cause)
            divergences = _divergences(history, cause)
        dumped = {key: number for key, number in numbers.items() if number in records}
        facts |= {key: _facts(number, history, cause, divergences) for key, number in dumped.items()}
        return facts, _job(history, cause)


def _dump(case: Case, key: Key) -> FlightRecorder | None:
    record = case.record(key, "recorder")
    return record if isinstance(record, FlightRecorder) and record.final else None


def _all_advancing(case: Case, records: Iterable[FlightRecorder]) -> bool:
    """True if every rank's newest call was no older than its usual gap between calls, and no log reports a failure."""
    if any(isinstance(log := case.record(key, "logs"), Logs) and log.said for key in case.ranks):
        return False
    return all(rank.alive is not False for rank in case.ranks.values()) and all(map(_is_advancing, records))


def _is_advancing(record: FlightRecorder) -> bool:
    gaps = [b - a for a, b in pairwise(record.begun)]
    if record.written is None or len(gaps) < MIN_GAPS:
        return False
    on_time = 0.0 <= record.written - record.begun[-1] <= OVERDUE * max(gaps)
    return on_time and sum(gap > 0.0 for gap in gaps) >= MIN_GAPS


# --- the cause ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cause:
    """The fault and the ranks responsible."""

    kind: str | None = None
    culprits: tuple[int, ...] = ()
    group: int | None = None  # index in `JobHistory.groups`
    sequence: int | None = None
    usual: int | None = None  # a rank of the majority
    tied: bool = False
    silent: tuple[int, ...] = ()


def _cause(history: JobHistory) -> Cause:
    wrong = [(i, found) for i, group in enumerate(history.groups) if (found := mismatch(group)) is not None]
    if wrong:
        i, found = min(wrong, key=lambda pair: (KINDS.index(pair[1].kind), -len(pair[1].group.members)))
        return _of_mismatch(i, found)
    cycle = cycle_nodes(history.edges)
    ranks = tuple(sorted(node for node in cycle if isinstance(node, int)))
    if len(ranks) > 1:
        p2p = any(end in cycle for rank in ranks for end in history.edges[rank] if isinstance(end, int))
        return Cause("p2p", _skipped(history, ranks) or ranks) if p2p else Cause("order", ranks)
    return _of_waits(history)


def _of_mismatch(i: int, found: Mismatch) -> Cause:
    if ranks := racing_ranks(found):
        return Cause("threads", ranks, i, found.sequence)
    culprits = found.outliers if found.kind != "all_to_all" else found.sides[0]
    return Cause(found.kind, culprits, i, found.sequence, found.sides[0][0], found.tied)


def _blame_new_calls(history: JobHistory, cause: Cause) -> Cause:
    """On a tie, blame the side whose call is new."""
    if cause.group is None or cause.sequence is None:
        return cause
    new = [rank for rank in history.ranks_in((cause.group, cause.sequence)) if rank not in cause.culprits]
    return replace(cause, culprits=tuple(new), usual=cause.culprits[0]) if new else cause


def _of_waits(history: JobHistory) -> Cause:
    """The fault if no calls conflict: ranks wait for a rank that waits for nothing, or that left no dump."""
    edges = history.edges
    free = {end for ends in edges.values() for end in ends if isinstance(end, int) and end not in edges}
    pending = sorted(node for node in history.edges if isinstance(node, tuple))
    for node in pending:
        ends = history.edges[node]
        roots, there = tuple(sorted(free & ends)), history.ranks_in(node)
        if roots and len(roots) == len(ends) > len(there):  # most never started it: blame those who did
            return Cause("extra", there, *node, usual=roots[0], tied=False)
        if roots:
            return Cause("absent", roots, *node, usual=there[0], tied=len(roots) == len(there))
    peers = {t.peer for rank, t in history.transfers.items() if t.peer in free and rank in history.edges}
    if peers:
        return Cause("p2p", tuple(sorted(peers)))
    behind = _behind(history)
    if behind is not None:
        return behind
    for i, at in pending:
        if history.groups[i].silent:
            return Cause("silent", (), i, at, history.ranks_in((i, at))[0], silent=history.groups[i].silent)
    if not pending:
        return Cause()
    return _unstarted(history, pending) or Cause("joined", (), *pending[0], usual=history.ranks_in(pending[0])[0])


def _unstarted(history: JobHistory, pending: Sequence[tuple[int, int]]) -> Cause | None:
    """Every rank called the collective, but the GPUs of a few have not started its kernel: they are in earlier work.

    torch knows of starts only with TORCH_NCCL_ENABLE_TIMING (FlightRecorder.cpp, `update_state`); without it, no call
    is ever in state "started", and nothing follows.
    """
    states: dict[int, dict[int, set[str]]] = {}  # by group and rank
    for i, at in pending:
        calls = {rank: own.calls.get(at, ()) for rank, own in history.by_rank[i].items()}
        states[i] = {rank: {call.state for call in made if not call.retired} for rank, made in calls.items()}
    running = {rank for own in states.values() for rank, seen in own.items() if "started" in seen}
    for i, at in pending:
        started = sorted(rank for rank, seen in states[i].items() if "started" in seen)
        held = tuple(sorted(rank for rank, seen in states[i].items() if seen == {"scheduled"}))
        if held and len(held) < len(started) and running.isdisjoint(held):
            return Cause("unstarted", held, i, at, usual=started[0])
    return None


def _skipped(history: JobHistory, ranks: Iterable[int]) -> tuple[int, ...]:
    """The ranks that wait in a collective before which, the last time, they made the transfer that a peer waits for."""
    found: set[int] = set()
    for transfer in filter(None, map(history.transfers.get, ranks)):
        peer = transfer.peer
        waits = history.waits.get(peer)
        if waits is None or waits.p2p or transfer.call.retired:
            continue
        ends = transfer.call.sender, transfer.call.receiver
        rounds = _transfers_before(history.records[peer].entries, waits)
        if len(rounds) > 1 and ends in rounds[-2] and ends not in rounds[-1]:
            found.add(peer)
    return tuple(sorted(found))


def _transfers_before(
    entries: Iterable[RecordedCall], collective: RecordedCall
) -> Sequence[set[tuple[int | None, int | None]]]:
    """Both ends of the transfers between this collective, each time it was called, and the collective before it."""
    rounds: list[set[tuple[int | None, int | None]]] = []
    ends: set[tuple[int | None, int | None]] = set()
    for entry in entries:
        if entry.p2p:
            ends.add((entry.sender, entry.receiver))
            continue
        if (entry.group, entry.op, entry.sizes) == (collective.group, collective.op, collective.sizes):
            rounds.append(ends)
        ends = set()
        if entry is collective:
            break
    return rounds


def _behind(history: JobHistory) -> Cause | None:
    """gloo marks failed collectives complete: blame the rank that started fewest."""
    found: list[Cause] = []
    edges: dict[Node, frozenset[Node]] = {}
    for i, group in enumerate(history.groups):
        last = {rank: calls.last for rank, calls in history.by_rank[i].items() if calls.calls}
        if len(last) < 2 or not any(_of_gloo(calls, group.newest) for calls in group.histories):
            continue
        fewest = min(last.values())
        low = tuple(sorted(rank for rank, number in last.items() if number == fewest))
        there = tuple(sorted(rank for rank in last if rank not in low))
        if there and all(history.by_rank[i][rank].pending is None for rank in low):
            node = i, fewest + 1
            found.append(Cause("absent", low, *node, there[0], len(low) == len(there)))
            edges[node] = frozenset(low)
            edges.update({rank: edges.get(rank, frozenset()) | {node} for rank in there})
    cycle = tuple(sorted(node for node in cycle_nodes(edges) if isinstance(node, int)))
    if len(cycle) > 1:
        return Cause("order", cycle)
    return next((cause for cause in found if edges.keys().isdisjoint(cause.culprits)), next(iter(found), None))


def _of_gloo(rank_calls: RankCalls, number: int) -> bool:
    return any(call.state == "scheduled" and call.retired for call in rank_calls.calls.get(number, ()))


# --- facts ----------------------------------------------------------------------------------------


def _divergences(history: JobHistory, cause: Cause) -> dict[int, Divergence]:
    """How each culprit's call sites diverged from the majority's, by rank."""
    if cause.group is None or cause.sequence is None or cause.usual is None or cause.kind in SAME_CALLS:
        return {}
    by_rank = history.by_rank[cause.group]
    known: dict[int, Divergence | None] = {}  # by identity: ranks with equal calls share one history
    for rank in cause.culprits:
        calls = by_rank.get(rank)
        if calls is not None and id(calls) not in known and len(known) < MAX_DIVERGENCES:
            known[id(calls)] = divergence(calls, by_rank[cause.usual], cause.sequence)
    return {rank: found for rank in cause.culprits if rank in by_rank and (found := known.get(id(by_rank[rank])))}


def _facts(rank: int, history: JobHistory, cause: Cause, divergences: Mapping[int, Divergence]) -> DumpFacts:
    waits, outlier, parted = history.waits.get(rank), rank in cause.culprits, divergences.get(rank)
    rank_calls, usual = _calls_in_group(history, cause, rank), _calls_in_group(history, cause, cause.usual)
    transfer = history.transfers.get(rank) if cause.kind == "p2p" else None
    call = transfer.call if transfer is not None else _call(rank_calls, cause.sequence)
    if call is None and (not outlier or cause.kind == "order"):
        call = waits or (_newest(history.records[rank]) if cause.kind == "order" else None)
    return DumpFacts(
        stuck=True if cause.kind or waits is not None else None,
        waits=waits is not None,
        outlier=outlier if cause.kind else None,
        group=_label(history, cause, call),
        sequence=cause.sequence,
        last=rank_calls.last if rank_calls is not None else None,
        call=_format_call(call, transfer) if call is not None else None,
        site=site(call) if call is not None else None,
        peer=transfer.peer if transfer is not None else None,
        absent=outlier and cause.kind == "absent" if cause.kind else None,
        relation=parted.kind if parted else None,
        parted=_site_at(rank_calls, parted),
        parted_others=_site_at(usual, parted),
    )


def _calls_in_group(history: JobHistory, cause: Cause, rank: int | None) -> RankCalls | None:
    """A rank's calls in the group at fault."""
    return history.by_rank[cause.group].get(rank) if cause.group is not None and rank is not None else None


def _call(rank_calls: RankCalls | None, number: int | None) -> RecordedCall | None:
    calls = rank_calls.calls.get(number) if rank_calls is not None and number is not None else None
    return calls[0] if calls else None


def _site_at(rank_calls: RankCalls | None, parted: Divergence | None) -> str | None:
    call = _call(rank_calls, parted.sequence if parted is not None else None)
    return site(call) if call is not None else None


def _newest(record: FlightRecorder) -> RecordedCall | None:
    """The collective that it started last."""
    return next((entry for entry in reversed(record.entries) if not entry.p2p), None)


def _label(history: JobHistory, cause: Cause, call: RecordedCall | None) -> str | None:
    if cause.group is not None:
        return history.groups[cause.group].label
    if call is None:
        return None
    return next((group.label for group in history.groups if group.name == call.group), None) or call.group


def _format_call(call: RecordedCall, transfer: Transfer | None) -> str:
    sizes = f" {call.sizes}" if call.sizes else ""
    types = f" {', '.join(dict.fromkeys(call.dtypes))}" if call.sizes and call.dtypes else ""
    if transfer is not None:
        return f"{call.op} {'to' if transfer.sends else 'from'} rank {transfer.peer}{sizes}{types}"
    return f"{call.op}{sizes}{types}"


def _job(history: JobHistory, cause: Cause) -> DumpJob:
    call = _call(_calls_in_group(history, cause, cause.usual), cause.sequence)
    silent = {rank for group in history.groups for rank in group.silent}
    return DumpJob(
        kind=cause.kind,
        group=history.groups[cause.group].label if cause.group is not None else None,
        sequence=cause.sequence,
        call=_format_call(call, None) if call is not None else None,
        tied=cause.tied,
        waiting=tuple(sorted(history.waits)),
        culprits=cause.culprits,
        dumps=len(history.records),
        silent=tuple(sorted(silent)),
        suspects=tuple(Suspect(rank) for rank in cause.silent),
        declared=history.groups[cause.group].declared if cause.group is not None else None,
    )


ANALYSIS = DumpDetector()
