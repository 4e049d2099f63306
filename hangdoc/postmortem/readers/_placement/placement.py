"""The host, the PID, the GPU and the number on its host of each rank, as a text states them.

A place is used only where it is stated, or follows without a guess. Of two statements that contradict each other,
neither counts.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from msgspec.structs import replace

from hangdoc.evidence import limits
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.evidence.placement import HostRanks, short_name, whole_names
from hangdoc.postmortem.readers._host_names import as_rank, is_host_name, prompt_of
from hangdoc.postmortem.readers._owner_hints import LOCAL_OF_PID, LOCAL_PIDS
from hangdoc.postmortem.readers._placement.buses import BusList, bus_of, bus_of_number
from hangdoc.postmortem.readers._placement.gpu_use import GpuUse
from hangdoc.postmortem.readers._placement.layout import JobLayout
from hangdoc.postmortem.readers._placement.numbering import RankNumbering
from hangdoc.postmortem.readers._placement.pod_order import node_of
from hangdoc.postmortem.readers._placement.statements import PS_ROW, Seat, believable, may_state, rank_in_note, seats_in
from hangdoc.postmortem.readers._placement.tables import PlacementTable

MAX_LINES = 2_000  # at the beginning of a text, and at its end: nobody states it in the middle of a log
MAX_STATING = 2_000  # lines that name a rank, a node or a process
MAX_LABELLED = 300  # characters of a line with its label
MAX_LOCAL = 10_000  # number of a rank or GPU on its host
LEAST_SPAN = 4  # ranks in one statement about a host: it speaks of all that run there
LEAST_LABELS = 2  # lines with a name in front that make it the name of a host

_TEE = re.compile(r"\[default(\d{1,4})\]:")  # torchrun --tee: the number of a rank on its host
_TORCH = re.compile(r"^\s{0,4}\[rank(\d{1,6})\]:")  # torch: in front of its own warnings and errors
_LABEL = re.compile(r"\s{0,4}(?:\[|=+ |-+ |#+ )?([A-Za-z][\w.-]{1,60})(?:\]|:| \||:\d{1,9}:\d{1,9} \[)")

# torch writes the PID of the rank into its log lines (torch/_logging/_internal.py, since 2.5).
# /proc/PID/status, as it is or quoted: `NSpid:  331876  20513`, the PID on the host first (linux: fs/proc/array.c).
_NESTED = re.compile(r"NSpid\b[^\n]{0,40}?\b(\d{2,10})[\t ]{1,8}(\d{1,10})\b")
_LOGGED = re.compile(
    r"\s{0,4}\[rank(?P<rank>\d{1,6})\]:[VDIWEC]\d{4} \d\d:\d\d:\d\d\.\d{3,9} (?P<pid>\d{1,9}) "
    # Composer (composer/trainer/trainer.py): `2026-07-19 15:40:02,118: rank0[2231][MainThread]: DEBUG: ...`
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: rank(?P<other>\d{1,6})\[(?P<of>\d{1,9})\]\["
)

# `Process 4276: python train.py`, `$ py-spy dump --pid 4276`
_SHOWN = re.compile(
    r"\s{0,4}Process (\d{2,9}): |[^\n]{0,200}?\b(?:py-spy|pystack|gdb|strace)\b[^\n]{0,60}? (?:--pid|-p)[ =](\d{2,9})\b"
    rf"|{PS_ROW}"
)

# A log line that begins with both: `[2024-01-02 10:09:55] cn-234 rank 2: step 880`
_OF_BOTH = re.compile(
    r"(?:\[?\d{4}-\d\d-\d\d[T ][\d:.,]{8,15}\]? )?(?P<host>[a-z][\w.-]{0,60}\d)"
    r" [Rr]ank[ _-]?(?P<rank>\d{1,6})(?:: | ?\|)"
)
_NO_HOST = re.compile(r"(?:gpu|cuda|card|step|epoch|iter|it|attempt|run|stage|worker|proc)[-_]?\d", re.IGNORECASE)
# A command at a prompt that starts one rank: `MASTER_ADDR=... RANK=1 python train.py`
_STARTS_RANK = re.compile(r"(?:^|\s)RANK=(\d{1,6}) (?:\w{1,60}=\S{1,200} ){0,16}(?:\S{0,200}/)?python[\d.]{0,5} ")
# The GPU of a rank, as NCCL prints it at the start of a communicator (nccl: src/init.cc).
_OF_NCCL = re.compile(
    r"(?<![\w.-])([A-Za-z][\w.-]{0,252}):\d{1,9}:\d{1,9} \[\d{1,5}\] NCCL INFO .{0,80}?\brank (\d{1,6})"
    r" n[rR]anks (\d{1,6}) .{0,60}?busId ([0-9a-f]{4,12})\b"
)

# What Ray prints of a dead actor: its PID, and the name that verl gives it, which ends in the first placement group and
# the rank in it (ray: python/ray/exceptions.py; verl: single_controller/ray/base.py).
_ACTOR_PID = re.compile(r"\s{1,8}pid: (\d{1,9})\s*")
_ACTOR_NAME = re.compile(r"\s{1,8}name: \w{0,40}[A-Za-z]_0:(\d{1,4})\s*")

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT", int, str)


@dataclass(frozen=True)
class Placement:
    """What a text states. The hosts in keys are in lower case, without their domain; "": not stated."""

    hosts: Mapping[int, str] = field(default_factory=dict)  # rank -> host, as the text writes it
    pids: Mapping[tuple[str, int], int] = field(default_factory=dict)  # (host, PID) -> rank
    locals: Mapping[tuple[str, int], int] = field(default_factory=dict)  # (host, number on it) -> rank
    gpus: Mapping[tuple[str, int], int] = field(default_factory=dict)  # (host, GPU) -> rank
    buses: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (host, PCI bus and device) -> rank
    indices: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (host, PCI bus and device) -> GPU
    whole: Mapping[str, Sequence[int]] = field(default_factory=dict)  # host -> its ranks, if all of them are stated
    per_node: int | None = None  # ranks on each host
    one_node: bool = False  # the text says that the job runs on one host
    local_is_rank: bool = True  # nothing shows that the number of a rank or GPU on its host is another than its rank
    index_is_rank: bool = False  # the number of a GPU is its rank
    ordinal_is_rank: bool = False  # the number at the end of a pod's name is its rank

    def rank_of(self, process: ProcessRef) -> int | None:
        """The rank of a process that is known by its PID, or by its number on its host."""
        if process.rank is not None or process.pid is None:
            return process.rank
        host, local = _short(process.host), LOCAL_PIDS - process.pid
        if 0 <= local < MAX_LOCAL:
            rank = self.locals.get((host, local), self.gpus.get((host, local)))
            return rank if rank is not None else self.rank_on_node(process.node, local)
        found = {
            rank for (at, pid), rank in self.pids.items() if pid == process.pid and (not at or not host or at == host)
        }
        return found.pop() if len(found) == 1 else None

    @cached_property
    def alone(self) -> Mapping[str, int]:
        """The rank of each host, if every host has one and every rank has a host; else empty."""
        found = {_short(host): rank for rank, host in self.hosts.items()}
        whole = sorted(self.hosts) == list(range(len(found))) and len(found) > 1
        return found if whole and self.per_node in (None, 1) else {}

    @property
    def pieces(self) -> Iterator[Piece]:
        """The ranks of each host of which all are stated, for who looks for the ranks of a host at fault."""
        if self._by_host or self.per_node:
            yield Piece(ProcessRef(), "placement", HostRanks(self._by_host, self.per_node))

    @cached_property
    def _by_host(self) -> Mapping[str, tuple[int, ...]]:
        """The ranks of each host of which all are stated."""
        alone = {host: (rank,) for host, rank in self.alone.items()}
        return alone | {host: tuple(ranks) for host, ranks in self.whole.items()}

    def rank_alone_on(self, host: str) -> int | None:
        """The only rank of a host; None: it has several, or the text does not show all of them."""
        return self.alone.get(_short(host))

    def rank_of_any_gpu(self, host: str) -> int | None:
        """The only rank of a host, unless the text says which GPU or process is its own."""
        return None if _short(host) in self._with_parts else self.rank_alone_on(host)

    @cached_property
    def _with_parts(self) -> frozenset[str]:
        """The hosts of which the text says which GPU or process is whose."""
        return frozenset(at for at, _ in (*self.gpus, *self.pids))

    def ranks_of(self, host: str) -> Sequence[int]:
        """The ranks of a host, if the text states all of them; else empty."""
        return self._by_host.get(_short(host), ())

    def rank_of_local(self, host: str | None, node: int | None, local: int) -> int | None:
        """The rank of a process by its number on its host, which is its rank if nothing shows another host."""
        rank = self.locals.get((_short(host), local))
        if rank is None:
            rank = self.rank_on_node(node, local)
        return local if rank is None and self.local_is_rank and not node else rank

    def places(self, host: str | None) -> bool:
        """True if the text says which ranks run on this host."""
        return any(at == _short(host) for at, _ in self.locals)

    def rank_on_node(self, node: int | None, local: int) -> int | None:
        """The rank of a process by its number on a node, if every node has the same number of ranks."""
        if node is None or (self.per_node is None and node > 0) or local >= (self.per_node or MAX_LOCAL):
            return None
        rank = node * (self.per_node or 0) + local
        return rank if rank < limits.MAX_RANKS else None

    def rank_of_gpu(self, host: str | None, gpu: str) -> int | None:
        """The rank that uses a GPU of a host, by the number or the PCI address of the GPU."""
        if gpu.isdecimal():
            return self.gpus.get((_short(host), int(gpu[:9])))
        at, bus = _short(host), bus_of(gpu)
        if (at, bus) in self.buses:
            return self.buses[at, bus]
        if self.local_is_rank and ("", bus) in self.buses:  # of the only host
            return self.buses["", bus]
        index = self.indices.get((at, bus), self.indices.get(("", bus)))
        rank = self.gpus.get((at, index)) if index is not None else None
        if rank is None and index is not None and self.local_is_rank:
            rank = self.gpus.get(("", index))  # of the only host
        return index if rank is None and self.index_is_rank and not self.gpus else rank

    def placed(self, piece: Piece) -> Piece:
        """A piece whose process has the rank and the host that the text gives it."""
        process = piece.process
        rank = self.rank_of(process)
        if rank is None and process.local is not None and process.pid is not None:
            labelled = process.pid == LOCAL_PIDS - process.local and process.host is None
            if labelled or process.pid > 0:  # `py-spy dump --pid 4110  # local rank 0`
                rank = self.rank_of_local(process.host, process.node, process.local)
        host = process.host or (self.hosts.get(rank) if rank is not None else None)
        if (rank, host) == (process.rank, process.host):
            return piece
        pid = None if process.pid is not None and process.pid < 0 else process.pid
        return replace(piece, process=replace(process, rank=rank, host=host, pid=pid))


def placement_of(text: str) -> Placement:
    """What a text states about the places of its ranks."""
    numbering, layout, table, gpu_use = RankNumbering(), JobLayout(), PlacementTable(), GpuUse()
    buses = BusList(text)
    stated: list[Seat] = []
    hosts: Counter[str] = Counter()
    of_pid: dict[int, int] = {}  # PID -> rank, in log lines
    of_host: dict[int, int] = {}  # PID in a container -> PID on its host
    labelled: dict[tuple[str, int], None] = {}  # host and rank in front of lines
    communicators: dict[int, set[tuple[str, str, int]]] = {}  # size -> host, PCI bus and device, rank
    stating = 0
    processes: set[int] = set()
    of_tee: set[str] = set()
    of_torch: set[int] = set()
    actor: int | None = None  # PID in the line before
    for number, line in outer_lines(text):
        buses.feed(line, number)
        numbering.feed(line)
        layout.feed(line)
        gpu_use.feed(line)
        hosts.update(_named_host(line))
        may_show = "-p" in line or "Process " in line or line.lstrip()[:1].isdigit()
        if may_show and (shown := _SHOWN.match(line)) and len(processes) < MAX_STATING:
            processes.add(int(shown[1] or shown[2] or shown[3]))
        of_tee.update(_TEE.findall(line[:MAX_LABELLED]))
        of_torch.update(map(int, _TORCH.findall(line[:MAX_LABELLED])))
        if actor is not None and (named := _ACTOR_NAME.fullmatch(line)):
            stated.append(Seat((int(named[1]),), pids=(actor,)))
        actor = int(found[1]) if "pid: " in line and (found := _ACTOR_PID.fullmatch(line)) else None
        if row := table.feed(line) or _of_prompt(line):
            stated.append(row)
        elif "LOCAL_RANK=" in line and (one := LOCAL_OF_PID.fullmatch(line)):
            stated.append(Seat((), pids=(int(one[1]),), locals=(int(one[2]),), listed=True))
        elif logged := _LOGGED.match(line):
            of_pid[int(logged["pid"] or logged["of"])] = int(logged["rank"] or logged["other"])
        elif "NSpid" in line and (nested := _NESTED.search(line)) and len(of_host) < MAX_STATING:
            of_host[int(nested[2])] = int(nested[1])
        elif both := _OF_BOTH.match(line):
            if len(labelled) < MAX_STATING and is_host_name(both["host"]) and not _NO_HOST.match(both["host"]):
                labelled[both["host"], int(both["rank"])] = None
        elif " busId " in line and (member := _OF_NCCL.search(line)):
            if bus := bus_of_number(int(member[4], 16)):
                communicators.setdefault(int(member[3]), set()).add((_short(member[1]), bus, int(member[2])))
        elif stating < MAX_STATING and may_state(line) and not prompt_of(line):
            stating += 1
            stated += seats_in(line)
    stated += [Seat((rank,), pids=(pid,)) for pid, rank in of_pid.items()]
    stated += [
        dataclasses.replace(seat, pids=(of_host[pid],)) for seat in stated for pid in seat.pids if pid in of_host
    ]
    one_host_each = len(labelled) == len({rank for _, rank in labelled}) > 1
    stated += [Seat((rank,), host, firm=one_host_each) for host, rank in labelled]
    stated += _seats_of_nccl(communicators)
    known = frozenset(name for name, count in hosts.items() if count >= LEAST_LABELS)
    seats = believable(_of_lettered_hosts(stated, known), known, frozenset(processes))
    # A list of the processes of a host has as many as ranks are heard.
    listed = {local for seat in stated if seat.listed and not seat.ranks for local in seat.locals}
    heard_all = len(of_torch) > 1 and listed == set(range(max(of_torch) + 1))
    placed = _with_beginnings([*seats, *layout.seats(seats)], known)
    placement = _joined(placed, numbering, layout, gpu_use, heard_all)
    lone = len(of_tee) == 1 and not numbering.one_host and not layout.one_node  # one rank's lines, of any node
    return dataclasses.replace(
        placement,
        local_is_rank=placement.local_is_rank and not lone,
        buses={**placement.buses, **_buses_of_nccl(communicators)},
        indices=_unique(((_short(host), bus), gpu) for host, bus, gpu in buses.found),
    )


def outer_lines(text: str) -> list[tuple[int, str]]:
    """The lines in which a text may state where its ranks run, and their numbers, from 1."""
    lines = list(enumerate(text.split("\n"), 1))
    return lines if len(lines) <= 2 * MAX_LINES else [*lines[:MAX_LINES], *lines[-MAX_LINES:]]


def _named_host(line: str) -> dict[str, int]:
    """The host that a prompt names, or perhaps a label in front of the line, and how much that counts."""
    if prompt := prompt_of(line):
        return {prompt.host.lower(): LEAST_LABELS} if prompt.host else {}
    label = _LABEL.match(line)
    is_host = label is not None and is_host_name(label[1]) and as_rank(label[1]) is None
    return {label[1].lower(): 1} if label and is_host else {}


def _of_prompt(line: str) -> Seat | None:
    """The rank of the host of a prompt, by the command or a comment behind it: `me@box-b:~$ hostname  # RANK=1`."""
    prompt = prompt_of(line)
    if prompt is None or not prompt.host or not prompt.states_host:
        return None
    if started := _STARTS_RANK.search(prompt.command):
        return Seat((int(started[1]),), prompt.host)
    noted = rank_in_note(line)
    return Seat(noted[0], prompt.host) if noted else None


def _joined(
    stated: Sequence[Seat], numbering: RankNumbering, layout: JobLayout, gpu_use: GpuUse, heard_all: bool
) -> Placement:
    per_node, stated = layout.per_node, _with_whole_names(stated)
    hosts = _unique((rank, seat.host) for seat in stated if seat.host for rank in seat.ranks)
    hosts |= _between(hosts, per_node)
    doubted = {rank for seat in stated if seat.host for rank in seat.ranks if rank not in hosts}
    seats = [seat for seat in stated if doubted.isdisjoint(seat.ranks)]
    locals_ = _unique(_numbers(seats, "locals", hosts))
    gpus = _unique(_numbers(seats, "gpus", hosts))
    whole = _whole_hosts(seats, hosts, per_node)
    for host, ranks in whole.items():
        for number, rank in enumerate(ranks):
            locals_.setdefault((host, number), rank)
            if numbering.counts_gpus:
                gpus.setdefault((host, number), rank)
    later_node = any(node > 0 for seat in stated for node in seat.nodes)
    several = later_node or layout.several_nodes or numbering.several_hosts
    one_host = not several and len({_short(host) for host in hosts.values()}) < 2
    local_is_rank = one_host and all(number == rank for (_, number), rank in (*locals_.items(), *gpus.items()))
    one_node = local_is_rank and not layout.several_nodes and (numbering.one_host or layout.one_node)
    one_node = one_node or (local_is_rank and heard_all)
    first_node = one_node or layout.first_node or any(number == rank for (_, number), rank in locals_.items())
    pids = _unique(_numbers(seats, "pids", hosts))
    for (host, pid), local in _locals_of_pids(seats).items():
        rank_of_local = local if local_is_rank else locals_.get((host, local))
        if rank_of_local is not None:
            pids.setdefault((host, pid), rank_of_local)
    return Placement(
        hosts,
        pids,
        locals_,
        gpus,
        _buses(seats, hosts, gpus),
        whole=whole,
        per_node=per_node,
        one_node=one_node,
        local_is_rank=local_is_rank,
        index_is_rank=local_is_rank
        and (
            numbering.gpu_is_rank
            or (first_node and gpu_use.whole_host)
            or (one_node and per_node is not None and gpu_use.most_of_host)
        ),
        ordinal_is_rank=numbering.ordinal_is_rank,
    )


def _of_lettered_hosts(seats: Sequence[Seat], hosts: Iterable[str]) -> list[Seat]:
    """The seats, where a letter stands for the host of a series that ends in it, as `a` for `trn-a`."""
    letters = {seat.host for seat in seats if seat.host and len(seat.host) == 1}
    stems = Counter(host[:-1] for host in hosts if host[-2:-1] == "-" and host[-1] in letters)
    stem = next(iter(stems)) if len(stems) == 1 else None
    return [
        dataclasses.replace(seat, host=f"{stem}{seat.host}", firm=True) if stem and seat.host in letters else seat
        for seat in seats
    ]


def _with_beginnings(seats: Sequence[Seat], hosts: Collection[str]) -> list[Seat]:
    """The seats, where people write `c3` for the host `rdma-c3`, and no host is called `c3`."""
    whole = whole_names({seat.host.lower() for seat in seats if seat.host} - {*hosts}, hosts)
    return [dataclasses.replace(seat, host=whole.get((seat.host or "").lower(), seat.host)) for seat in seats]


def _with_whole_names(seats: Sequence[Seat]) -> list[Seat]:
    """The seats, where people write `worker-0` for the pod `bert-worker-0`."""
    whole: dict[str, set[str]] = defaultdict(set)  # as people write it -> pods
    for name in {seat.host for seat in seats if seat.host}:
        if job := node_of(name):
            whole[name.removeprefix(f"{job[0]}-")].add(name)
    only = {short: min(pods) for short, pods in whole.items() if len(pods) == 1}
    return [dataclasses.replace(seat, host=only.get(seat.host or "", seat.host)) for seat in seats]


def _numbers(seats: Iterable[Seat], kind: str, hosts: Mapping[int, str]) -> Iterator[tuple[tuple[str, int], int]]:
    """The PIDs, GPUs or local ranks of ranks, by host. Lists of different lengths say nothing."""
    for seat in seats:
        numbers: tuple[int, ...] = getattr(seat, kind)
        if len(numbers) == len(seat.ranks):
            for rank, number in zip(seat.ranks, numbers, strict=True):
                yield (_short(seat.host or hosts.get(rank)), number), rank


def _locals_of_pids(seats: Iterable[Seat]) -> Mapping[tuple[str, int], int]:
    """The numbers on their host of listed processes of which no rank is stated, by host and PID."""
    return _unique(
        ((_short(seat.host), pid), local)
        for seat in seats
        if (seat.listed or len(seat.pids) > 1) and not seat.ranks and len(seat.pids) == len(seat.locals)
        for pid, local in zip(seat.pids, seat.locals, strict=True)
    )


def _buses(
    seats: Iterable[Seat], hosts: Mapping[int, str], gpus: Mapping[tuple[str, int], int]
) -> dict[tuple[str, str], int]:
    """The ranks at PCI addresses, by a statement about the rank, or about its GPU."""
    found: list[tuple[tuple[str, str], int]] = []
    for seat in seats:
        if seat.bus is None:
            continue
        host = _short(seat.host or (hosts.get(seat.ranks[0]) if seat.ranks else None))
        rank = seat.ranks[0] if len(seat.ranks) == 1 else None
        if rank is None and not seat.ranks and len(seat.gpus) == 1:
            rank = gpus.get((host, seat.gpus[0]))
        if rank is not None:
            found.append(((host, bus_of(seat.bus)), rank))
    return _unique(found)


def _buses_of_nccl(communicators: Mapping[int, set[tuple[str, str, int]]]) -> dict[tuple[str, str], int]:
    """The ranks at PCI addresses, by the largest communicator; for any host if all of its ranks are on one."""
    if not communicators:
        return {}
    size = max(communicators)
    members = communicators[size]
    found = _unique(((host, bus), rank) for host, bus, rank in members)
    if len({host for host, _, _ in members}) == 1 and {rank for *_, rank in members} == set(range(size)):
        found |= {("", bus): rank for (_, bus), rank in found.items()}
    return found


def _seats_of_nccl(communicators: Mapping[int, set[tuple[str, str, int]]]) -> list[Seat]:
    """The hosts of the ranks of the largest communicator."""
    members = communicators[max(communicators)] if communicators else ()
    return [Seat((rank,), host) for host, _, rank in sorted(members)]


def _between(hosts: Mapping[int, str], per_node: int | None) -> dict[int, str]:
    """The hosts of the ranks that a table leaves out: `0 a`, `7 a`, `8 b`, `15 b` shows blocks of eight.

    Every host shows the first and the last rank of its block, or the text gives the number of ranks on each.
    """
    ranks_on: dict[str, list[int]] = defaultdict(list)
    for rank, host in sorted(hosts.items()):
        ranks_on[host].append(rank)
    count = per_node or max((ranks[-1] - ranks[0] + 1 for ranks in ranks_on.values()), default=0)
    blocks: dict[str, range] = {}
    for host, ranks in ranks_on.items():
        first = ranks[0] // count * count
        blocks[host] = range(first, first + count)
        if ranks[-1] not in blocks[host] or not (per_node or (ranks[0], ranks[-1]) == (first, first + count - 1)):
            return {}
    if len({block.start for block in blocks.values()}) < len(blocks) or len(blocks) < 2:
        return {}
    return {rank: host for host, block in blocks.items() for rank in block if rank < limits.MAX_RANKS}


def _whole_hosts(seats: Iterable[Seat], hosts: Mapping[int, str], per_node: int | None) -> dict[str, Sequence[int]]:
    """The ranks of each host of which all ranks are stated, if they are in a row."""
    ranks_on: dict[str, list[int]] = defaultdict(list)
    for rank, host in sorted(hosts.items()):
        ranks_on[_short(host)].append(rank)
    spans = {seat.ranks for seat in seats if len(seat.ranks) >= LEAST_SPAN}
    every = len({len(ranks) for ranks in ranks_on.values()}) == 1 and sorted(hosts) == list(range(len(hosts)))
    return {
        host: ranks
        for host, ranks in ranks_on.items()
        if _is_block(ranks) and per_node in (None, len(ranks)) and (per_node or every or tuple(ranks) in spans)
    }


def _is_block(ranks: Sequence[int]) -> bool:
    """True for consecutive ranks as a launcher gives them to one node."""
    count = len(ranks)
    return count > 1 and ranks[-1] - ranks[0] + 1 == count and ranks[0] % count == 0


def _unique(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, ValueT]:
    """What is stated once, or always in the same way."""
    found: dict[KeyT, ValueT] = {}
    doubted = set()
    for key, value in pairs:
        known = found.setdefault(key, value)
        same = _short(known) == _short(value) if isinstance(known, str) and isinstance(value, str) else known == value
        if not same:
            doubted.add(key)
    return {key: value for key, value in found.items() if key not in doubted}


def _short(host: str | None) -> str:
    """A host without its domain, in lower case; "": none."""
    return short_name(host) if host else ""
