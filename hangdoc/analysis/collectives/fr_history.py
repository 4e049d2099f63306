"""Flight Recorder histories: the collectives and transfers each rank issued, by process group, and who waits for whom.

A collective has one sequence number per group, equal on all members. Ranks with identical calls share one `RankCalls`,
so comparisons run over a few histories, not thousands of ranks. Rank numbers are global; the ranks in a send or receive
are group-local in the recording and are translated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.evidence import FlightRecorder, Frame, RecordedCall
from hangdoc.evidence.collectives import pending_call

DEFAULT = "0"  # torch's name for the default process group
Calls = tuple[RecordedCall, ...]  # the calls under one sequence number: several if coalesced
Node = int | tuple[int, int]  # a rank; or a collective: (index of its group, sequence number)
Edges = Mapping[Node, frozenset[Node]]  # node -> what it waits for


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The collectives of one group as recorded, identically, by some of its ranks."""

    calls: Mapping[int, Calls]  # by sequence number
    first: int  # oldest recorded; older entries were overwritten
    last: int  # newest started
    completed: int  # newest completed; 0: none
    ranks: list[int] = field(default_factory=list)  # ranks with exactly this history

    @property
    def pending(self) -> int | None:
        """The oldest collective that started and did not complete."""
        return self.completed + 1 if self.completed < self.last else None


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """All recorded collectives of one process group."""

    name: str
    label: str  # "0 (default_pg)"
    members: tuple[int, ...]  # as declared; if undeclared, the ranks that recorded anything in it
    declared: bool
    histories: Sequence[RankCalls]
    silent: tuple[int, ...]  # members without a dump

    @property
    def newest(self) -> int:
        """Highest sequence number started by any rank."""
        return max((rank_calls.last for rank_calls in self.histories), default=0)

    def calls_of(self, rank: int) -> RankCalls | None:
        return next((rank_calls for rank_calls in self.histories if rank in rank_calls.ranks), None)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A send or receive that started and did not complete."""

    rank: int
    peer: int
    sends: bool
    group: str
    call: RecordedCall


@dataclass(frozen=True, slots=True)
class JobHistory:
    """All Flight Recorders of a job, and who waits for whom."""

    records: Mapping[int, FlightRecorder]  # by rank
    groups: Sequence[GroupHistory]
    by_rank: Sequence[Mapping[int, RankCalls]]  # for each of `groups`, by rank
    transfers: Mapping[int, Transfer]  # by rank: its oldest transfer without a counterpart, else its oldest
    waits: Mapping[int, RecordedCall]  # by rank: its oldest incomplete call
    edges: Edges

    @classmethod
    def of(cls, records: Mapping[int, FlightRecorder]) -> JobHistory:
        groups = group_histories(records)
        by_rank = [{rank: calls for calls in group.histories for rank in calls.ranks} for group in groups]
        waits = {rank: call for rank, record in records.items() if (call := pending_call(record)) is not None}
        moving = transfers(records)
        known = {(transfer.rank, transfer.peer, transfer.sends, transfer.group) for transfer in moving}

        def has_counterpart(transfer: Transfer) -> bool:
            return (transfer.peer, transfer.rank, not transfer.sends, transfer.group) in known

        oldest: dict[int, Transfer] = {}
        for transfer in sorted(moving, key=has_counterpart):
            oldest.setdefault(transfer.rank, transfer)
        edges: dict[Node, frozenset[Node]] = {}
        for rank in records:
            ends: set[Node] = {(i, at) for i, of in enumerate(by_rank) if rank in of and (at := of[rank].pending)}
            pending = oldest.get(rank)
            if pending is not None and not has_counterpart(pending):
                ends.add(pending.peer)
            if ends:
                edges[rank] = frozenset(ends)
        for i, at in {end for ends in edges.values() for end in ends if isinstance(end, tuple)}:
            edges[i, at] = frozenset(_missing(groups[i], by_rank[i], at))
        return cls(records, groups, by_rank, oldest, waits, edges)

    def ranks_in(self, node: tuple[int, int]) -> tuple[int, ...]:
        """The ranks that started a collective."""
        return tuple(sorted(rank for rank, calls in self.by_rank[node[0]].items() if calls.last >= node[1]))


def group_histories(records: Mapping[int, FlightRecorder]) -> list[GroupHistory]:
    """One history per group with a recorded collective, by group name."""
    split: dict[tuple[str, tuple[int, ...]], dict[tuple[int, ...], RankCalls]] = defaultdict(dict)
    labels: dict[str, str] = {}
    for rank, record in records.items():
        declared = {group.name: group.ranks for group in record.groups if group.name}
        labels.update({name: label for name, label in record.labels.items() if label})
        recorded = _by_group(record.entries)
        for name, entries in recorded.items():
            histories = split[name, declared.get(name, ())]
            identity = tuple(map(id, entries))
            if identity not in histories:
                histories[identity] = _rank_calls(entries)
            histories[identity].ranks.append(rank)
        for name, count in record.enqueued.items():
            if name not in recorded and name in declared:  # its entries were overwritten, or it made no calls
                completed = record.completed.get(name, count)
                empty = RankCalls({}, count + 1, max(count, 0), max(completed, 0))
                split[name, declared[name]].setdefault((-1, count, completed), empty).ranks.append(rank)
    all_ranks = _all_ranks(records)
    groups = []
    for (name, ranks), histories in sorted(split.items()):
        label = f"{name} ({labels[name]})" if name in labels else name
        present = {rank for rank_calls in histories.values() for rank in rank_calls.ranks}
        members = ranks or tuple(sorted(present | (all_ranks if name == DEFAULT else set())))
        silent = tuple(rank for rank in members if rank not in records)
        groups.append(GroupHistory(name, label, members, bool(ranks), tuple(histories.values()), silent))
    return groups


def _all_ranks(records: Mapping[int, FlightRecorder]) -> set[int]:
    """Ranks of the job from every declared group; gloo declares a group's members without its name."""
    declared = {group.ranks for record in records.values() for group in record.groups}
    return set(records).union(*declared)


def _by_group(entries: Iterable[RecordedCall]) -> dict[str, list[RecordedCall]]:
    found: dict[str, list[RecordedCall]] = defaultdict(list)
    for entry in entries:
        if not entry.p2p:
            found[entry.group].append(entry)
    return found


def _rank_calls(entries: Sequence[RecordedCall]) -> RankCalls:
    calls: dict[int, Calls] = {}
    for entry in entries:
        calls[entry.sequence] = (*calls.get(entry.sequence, ()), entry)
    # Collectives of one group run in order: everything before a completed one has completed as well.
    retired = [number for number, made in calls.items() if all(call.retired for call in made)]
    return RankCalls(calls, min(calls), max(calls), max(retired, default=min(calls) - 1))


def _missing(group: GroupHistory, by_rank: Mapping[int, RankCalls], number: int) -> list[int]:
    """Members with a dump that did not start this collective."""
    silent = set(group.silent)
    return [r for r in group.members if r not in silent and (r not in by_rank or by_rank[r].last < number)]


def transfers(records: Mapping[int, FlightRecorder]) -> list[Transfer]:
    """The sends and receives that did not complete."""
    found: list[Transfer] = []
    for rank, record in records.items():
        members = {group.name: group.ranks for group in record.groups}
        completed: set[tuple[str, int | None, int | None]] = set()
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
                completed.add(pair)
            elif pair not in completed and peer != rank:
                waiting.append(Transfer(rank, peer, sends, entry.group, entry))
        found += reversed(waiting)
    return found


def site(call: RecordedCall) -> str | None:
    """The line of user code that made a call: "train (train.py:24)"; None if no frames were recorded."""
    frame = user_frame(call)
    return f"{frame.function} ({(frame.short or frame.file).rsplit('/', 1)[-1]}:{frame.line})" if frame else None


def user_frame(call: RecordedCall) -> Frame | None:
    """The innermost frame of user code, else the innermost frame."""
    return next((f for f in call.frames if not is_library(f.file)), call.frames[0] if call.frames else None)
