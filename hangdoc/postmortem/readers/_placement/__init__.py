"""Where the ranks of a job run, as a text states it in passing: host, PID, GPU and number on the host of each rank.

People write it in prose, as tables, as host files and as options of launchers. A place is used only where it is stated,
or follows without a guess. Of two statements that contradict each other, neither counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hangdoc.evidence import limits
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers._owner_hints import LOCAL_PIDS, as_rank, is_host_name, prompt_of
from hangdoc.postmortem.readers._placement.layout import JobLayout
from hangdoc.postmortem.readers._placement.numbering import RankNumbering
from hangdoc.postmortem.readers._placement.statements import Seat, believable, seats_in
from hangdoc.postmortem.readers._placement.tables import PlacementTable

MAX_LINES = 20_000  # of a text; longer ones are logs, which have prefixes
MAX_SEATS = 20_000
LEAST_SPAN = 4  # ranks in one statement about a host: it speaks of all that run there
LEAST_LABELS = 2  # lines with a name in front that make it a host
_LABEL = re.compile(r"\s{0,4}(?:\[|=+ |-+ |#+ )?([A-Za-z][\w.-]{1,60})(?:\]|:| \||:\d{1,9}:\d{1,9} \[)")


@dataclass(frozen=True, slots=True)
class Placement:
    """What a text states. Names of hosts are in lower case, without their domain."""

    hosts: Mapping[int, str] = field(default_factory=dict)  # rank -> host, as the text writes it
    pids: Mapping[tuple[str | None, int], int] = field(default_factory=dict)  # (host, PID) -> rank
    locals: Mapping[tuple[str, int], int] = field(default_factory=dict)  # (host, number on it) -> rank
    gpus: Mapping[tuple[str, int], int] = field(default_factory=dict)  # (host, GPU) -> rank
    buses: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (host, PCI address) -> rank
    several_hosts: bool = False  # ranks of several hosts are stated: numbers of GPUs are local ones
    index_is_rank: bool = False  # the number of a GPU is its rank
    ordinal_is_rank: bool = False  # the number at the end of a pod's name is its rank

    def rank_of(self, process: ProcessRef) -> int | None:
        """The rank of a process that is known by its PID, or by its number on its host."""
        if process.rank is not None or process.pid is None:
            return process.rank
        host = short(process.host)
        local = LOCAL_PIDS - process.pid
        if 0 <= local < 10**4:
            return self.locals.get((host or "", local), self.gpus.get((host or "", local)))
        found = {rank for (at, pid), rank in self.pids.items() if pid == process.pid and (not at or not host or at == host)}
        return found.pop() if len(found) == 1 else None

    def rank_of_gpu(self, host: str | None, gpu: str) -> int | None:
        """The rank that uses a GPU, by its number or PCI address on a host."""
        name = short(host) or ""
        if gpu.isdecimal():
            return self.gpus.get((name, int(gpu)))
        return self.buses.get((name, bus_name(gpu)))

    def placed(self, piece: Piece) -> Piece:
        """A piece whose process has the rank and the host that the text gives it."""
        process = piece.process
        rank = self.rank_of(process)
        host = process.host or (self.hosts.get(rank) if rank is not None else None)
        if (rank, host) == (process.rank, process.host):
            return piece
        pid = None if process.pid is not None and process.pid < 0 else process.pid
        return replace(piece, process=replace(process, rank=rank, host=host, pid=pid))


def short(host: str | None) -> str | None:
    """A host without its domain, in lower case."""
    return host.lower() if host and host[:1].isdecimal() else host.partition(".")[0].lower() if host else None


def bus_name(address: str) -> str:
    """A PCI address without its domain and function: `9b:00` for `00000000:9B:00.0`."""
    return ":".join(address.lower().partition(".")[0].split(":")[-2:])


def placement_of(text: str) -> Placement:
    """What a text states about the places of its ranks."""
    numbering, layout, table = RankNumbering(), JobLayout(), PlacementTable()
    stated: list[Seat] = []
    hosts: dict[str, int] = defaultdict(int)
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        numbering.feed(line)
        layout.feed(line)
        if len(stated) >= MAX_SEATS:
            continue
        if seat := table.feed(line):
            stated.append(seat)
            continue
        if prompt := prompt_of(line):
            if prompt.host:
                hosts[prompt.host.lower()] += LEAST_LABELS
            continue
        if (label := _LABEL.match(line)) and is_host_name(label[1]) and as_rank(label[1]) is None:
            hosts[label[1].lower()] += 1
        stated += seats_in(line)
    known = frozenset(name for name, count in hosts.items() if count >= LEAST_LABELS)
    seats = believable(stated, known)
    return _joined([*seats, *layout.seats(seats)], numbering, layout.per_node)


def _joined(seats: Sequence[Seat], numbering: RankNumbering, per_node: int | None) -> Placement:
    hosts = _unique((rank, seat.host) for seat in seats if seat.host for rank in seat.ranks)
    ranks_on: dict[str, list[int]] = defaultdict(list)
    for rank, host in sorted(hosts.items()):
        ranks_on[short(host) or ""].append(rank)
    doubted = {rank for seat in seats if seat.host for rank in seat.ranks if rank not in hosts}
    seats = [seat for seat in seats if doubted.isdisjoint(seat.ranks)]
    pids = _unique(
        ((short(seat.host or hosts.get(rank)), pid), rank) for seat in seats for rank, pid in _pairs(seat.ranks, seat.pids)
    )
    pids = {key: rank for key, rank in pids.items() if list(pids.values()).count(rank) == 1}
    locals_, gpus = (
        _unique(
            ((short(seat.host or hosts.get(rank)) or "", number), rank)
            for seat in seats
            for rank, number in _pairs(seat.ranks, getattr(seat, name))
        )
        for name in ("locals", "gpus")
    )
    spans = {seat.ranks for seat in seats if len(seat.ranks) >= LEAST_SPAN}
    whole = len({len(ranks) for ranks in ranks_on.values()}) == 1 and sorted(hosts) == list(range(len(hosts)))
    blocks = {
        host: ranks
        for host, ranks in ranks_on.items()
        if _is_block(ranks, per_node) and (whole or tuple(ranks) in spans or per_node == len(ranks))
    }
    for host, ranks in blocks.items():
        for number, rank in enumerate(ranks):
            locals_.setdefault((host, number), rank)
            if numbering.counts_gpus:
                gpus.setdefault((host, number), rank)
    numbered = {(short(seat.host) or "", bus_name(seat.bus)): seat.gpus[0] for seat in seats if seat.bus and seat.gpus}
    buses = _unique(
        ((short(seat.host or hosts.get(rank)) or "", bus_name(seat.bus)), rank)
        for seat in seats
        if seat.bus and len(seat.ranks) == 1
        for rank in seat.ranks
    )
    buses |= {key: gpus[key[0], gpu] for key, gpu in numbered.items() if (key[0], gpu) in gpus}
    several = len(ranks_on) > 1
    return Placement(
        hosts, pids, locals_, gpus, buses, several, numbering.gpu_is_rank and not several, numbering.ordinal_is_rank
    )


def _is_block(ranks: Sequence[int], per_node: int | None) -> bool:
    """True for the ranks of one host, if they are all of them, in a row."""
    first, count = ranks[0], len(ranks)
    return count > 1 and ranks[-1] - first + 1 == count and first % count == 0 and per_node in (None, count)


def _pairs(ranks: Sequence[int], numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    return zip(ranks, numbers, strict=True) if len(ranks) == len(numbers) else ()


def _unique(pairs: Iterable[tuple]) -> dict:
    """What is stated once, or always in the same way."""
    found: dict = {}
    twice = set()
    for key, value in pairs:
        known = found.setdefault(key, value)
        same = short(known) == short(value) if isinstance(known, str) else known == value
        if not same:
            twice.add(key)
    return {key: value for key, value in found.items() if key not in twice}


__all__ = ["MAX_LINES", "Placement", "bus_name", "limits", "placement_of", "short"]
