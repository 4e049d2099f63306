"""Attributes the lines of a file to ranks, by the file's path, its first lines and the prefixes of each line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.evidence.placement import short_name
from hangdoc.postmortem.readers import Source
from hangdoc.postmortem.readers._logs.prefixes import Line, PrefixStyle, parse
from hangdoc.postmortem.readers._logs.scan import ScanSummary
from hangdoc.postmortem.readers._placement.placement import Placement
from hangdoc.postmortem.readers._torchrun import process_of

SAMPLED_LINES = 40  # at the beginning and end of a file, to see whether one rank wrote it
MAX_TAIL_LINES = 20_000  # searched at the end of a file with several writers
_RANK = re.compile(rb"\[rank(\d{1,5})\]:")
_PCI = re.compile(r"(?:PCI:)?(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")
MAX_GPUS = 65_536
_JOB_ID = re.compile(r"^(?:slurm|job|output|out|err|log)?[-_.]?\d{5,}\.", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LineOrigin:
    """What a line states about the process that wrote it."""

    rank: int | None = None
    local: int | None = None
    host: str | None = None
    pid: int | None = None
    group_rank: int | None = None  # in the default group
    gpu: int | None = None  # its PCI address, as NCCL prints it
    device: int | None = None  # its number among the GPUs that the process sees
    node: int | None = None  # the number of its host in the job
    launcher: bool = False  # a launcher wrote it, about processes that may not exist
    about: int | None = None  # PID of the process that the line is about; another process wrote it


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """The process that wrote a file, by its path."""

    process: ProcessRef = field(default_factory=ProcessRef)
    torchrun: bool = False


def pci_address(text: str) -> int | None:
    """`PCI:0000:c9:00` or `0000:C9:00.0` as the number that NCCL prints as busId (nccl: src/misc/utils.cc)."""
    found = _PCI.fullmatch(text.rstrip(":."))
    return int(f"{found[1] or '0'}{found[2]}{found[3]}{found[4] or '0'}", 16) if found else None


def file_origin(source: Source) -> FileOrigin:
    """From the folders of `torchrun --log-dir` (`attempt_0/3/stderr.log`), else from the file name."""
    if process := process_of(source):
        return FileOrigin(process, torchrun=True)
    return FileOrigin() if _JOB_ID.match(source.path.name) else FileOrigin(ProcessRef(source.rank_in_name))


class OriginResolver:
    """Collects origins line by line, then resolves them to processes."""

    def __init__(self, path_origin: FileOrigin, head: str, style: PrefixStyle) -> None:
        self.path_origin = path_origin
        self.placement = Placement()  # of a pasted text
        self.ranks: Counter[int] = Counter()  # lines per named rank
        self._heard: set[tuple[int, str]] = set()  # rank and text of the first ones, as a line may be observed again
        self.offsets: Counter[int] = Counter()  # global rank minus local rank
        self.processes: dict[tuple[str | None, int], tuple[int, int]] = {}  # (host, PID) -> (world size, rank)
        self.hosts_of_pid: dict[int, set[str | None]] = {}  # hosts with a rank of this PID
        self.gpus: dict[tuple[str, int], dict[int, set[int]]] = {}  # (host, PCI address) -> world size -> ranks
        self.hosts: Counter[str] = Counter()
        self.sees_several = False  # processes of this job see more than one GPU
        self.failed: set[int] = set()  # ranks in torchelastic's failure tables
        self.ended: bool = False  # the agent sent closing signals to other ranks
        self.neighbours: bool = False  # a local rank above 0 failed: its host has other ranks
        for raw in islice(head.splitlines(), SAMPLED_LINES):
            self.observe("", parse(raw, style), {})

    def observe(self, kind: str, line: Line, fields: Mapping[str, str]) -> None:
        """Record what a line states about its writer and about other processes."""
        if line.rank is not None:
            said = line.rank, line.text
            self.ranks[line.rank] += said not in self._heard
            if len(self._heard) < SAMPLED_LINES:
                self._heard.add(said)
            if line.local is not None:
                self.offsets[line.rank - line.local] += 1
        if line.host:
            self.hosts[line.host] += 1
        self.sees_several = self.sees_several or (line.device or 0) > 0
        if kind == "failure":
            rank = int(fields["rank"])
            self.failed.add(rank)
            self.neighbours = self.neighbours or int(fields["local_rank"]) > 0
            self.offsets[rank - int(fields["local_rank"])] += 1
        elif kind == "failed" and "local_rank" in fields:
            self.neighbours = self.neighbours or int(fields["local_rank"]) > 0
        elif kind == "told_to_end":
            self.ended = True
        elif kind == "nccl_rank" and line.pid is not None:
            key, size_and_rank = (line.host, line.pid), (int(fields["size"]), int(fields["rank"]))
            self.hosts_of_pid.setdefault(line.pid, set()).add(line.host)
            self.processes[key] = max(size_and_rank, self.processes.get(key, (0, 0)), key=lambda one: one[0])
            if line.host and "bus" in fields and len(self.gpus) < MAX_GPUS:
                gpu = self.gpus.setdefault((short_name(line.host), int(fields["bus"], 16)), {})
                gpu.setdefault(size_and_rank[0], set()).add(size_and_rank[1])
        elif kind == "ray_worker":
            for host in (fields["host"], None):
                self.processes[host, int(fields["pid"])] = 10**6, int(fields["rank"])

    def origin_of(self, line: Line) -> LineOrigin:
        """The origin that a line states."""
        default = line.group in (None, "0") and line.group_name in (None, "default_pg", "")
        group_rank = line.group_rank if default else None
        return LineOrigin(line.rank, line.local, line.host, line.pid, group_rank, device=line.device)

    @property
    def single_writer(self) -> bool:
        """True if one process wrote the whole file."""
        return self.only_rank is not None or (self.path_origin.process.pid is not None and len(self.ranks) < 2)

    @property
    def only_rank(self) -> int | None:
        """The only rank that wrote the file, if there is one; lines take precedence over the file name."""
        path_names_process = self.path_origin.process != ProcessRef()
        if len(self.ranks) > 1:
            return None
        if self.ranks:
            only = next(iter(self.ranks))
            alone = self.ranks[only] >= 3 and not self._others_wrote and self.failed <= {only}
            certain = path_names_process or alone or self._only_failed_rank == only
            return only if certain else None
        return self.path_origin.process.rank if path_names_process else self._only_failed_rank

    @property
    def _others_wrote(self) -> bool:
        """True if lines of other processes are certain: of another host, or of a launcher of several ranks."""
        return self.ended or self.neighbours or len(self.hosts) > 1

    @property
    def _only_failed_rank(self) -> int | None:
        """The only rank of a host: torchrun lists one failed rank and ended no other."""
        alone = len(self.failed) == 1 and not self.ended and not self.neighbours
        return next(iter(self.failed)) if alone else None

    def resolve(self, origin: LineOrigin, run: int) -> ProcessRef:
        """The process behind an origin."""
        if origin.launcher:
            return ProcessRef(None, origin.host, None, run)
        rank = origin.rank
        if rank is None and origin.about is not None:
            rank = self._rank_of_pid(origin.host, origin.about)
        if rank is None and origin.pid is not None:
            rank = self._rank_of_pid(origin.host, origin.pid)
        if rank is None and origin.local is not None:
            rank = self._rank_of_local(origin)
        if rank is None and origin.gpu is not None and (host := origin.host or self._only_host_of_gpus):
            rank = self._rank_on(host, origin.gpu)
        if rank is None:
            rank = self.rank_of_device(origin)
        if rank is None:
            rank = self.only_rank
        if rank is None:
            rank = origin.group_rank
        host, pid = origin.host, origin.pid
        if host is None and self.single_writer:
            host = next(iter(self.hosts)) if len(self.hosts) == 1 else self.path_origin.process.host
        if (rank, pid) == (None, None) and self.single_writer:
            host, pid = self.path_origin.process.host, self.path_origin.process.pid
        return ProcessRef(rank, host, pid, run)

    def _rank_of_pid(self, host: str | None, pid: int) -> int | None:
        """The rank of a process, as its framework or NCCL printed it at the start."""
        if host is None and len(self.hosts_of_pid.get(pid, ())) == 1:
            (host,) = self.hosts_of_pid[pid]  # no other host has a rank with this PID
        known = self.processes.get((host, pid)) or self.processes.get((None, pid))
        return known[1] if known is not None else None

    def rank_of_device(self, origin: LineOrigin) -> int | None:
        """The rank that uses the GPU of this number: the only one of its host, or the one that the text states.

        The number tells processes apart only where they see more than their own GPU. There, launchers give each rank
        the GPU of its own number on the host.
        """
        if origin.device is None or not origin.host:
            return None
        alone = self.placement.rank_alone_on(origin.host)
        if alone is not None or not self.sees_several:
            return alone
        rank = self.placement.rank_of_gpu(origin.host, str(origin.device))
        stated = rank is None and self.placement.places(origin.host)
        return self.placement.rank_of_local(origin.host, None, origin.device) if stated else rank

    def _rank_of_local(self, origin: LineOrigin) -> int | None:
        """The rank of a process by its number on its host: as other lines show, or as the text says."""
        if origin.local is None or self.offsets:
            return None if origin.local is None else origin.local + self.offsets.most_common(1)[0][0]
        return self.placement.rank_of_local(origin.host, origin.node, origin.local)

    @property
    def _only_host_of_gpus(self) -> str | None:
        """The host of every process that names itself, and of every GPU whose address is known."""
        known = {host for host, _ in self.gpus} | set(map(short_name, self.hosts))
        return next(iter(known)) if len(known) == 1 else None

    def _rank_on(self, host: str, gpu: int) -> int | None:
        """The rank that uses a GPU, by its largest communicator. None: unknown, or more than one."""
        sizes = self.gpus.get((short_name(host), gpu))
        ranks = sizes[max(sizes)] if sizes else set()
        return next(iter(ranks)) if len(ranks) == 1 else None

    def ranks_seen(self, summary: ScanSummary, style: PrefixStyle) -> Iterator[tuple[int, float | None]]:
        """The ranks that wrote in the file, and when each wrote last; None: long before the end, or no time."""
        several = len(self.ranks) > 1
        tail = summary.tail[-(len(summary.tail) if several else 2**14) :].decode("utf-8", "replace").splitlines()
        found: dict[int, float | None] = dict.fromkeys(self.ranks)
        if several:
            found |= {int(rank): None for rank in _RANK.findall(summary.head)}
        for raw in tail[-MAX_TAIL_LINES if several else -SAMPLED_LINES :]:
            line = parse(raw, style)
            rank = self.resolve(self.origin_of(line), 0).rank
            if rank is not None and (several or self.single_writer):
                found[rank] = line.at if line.at is not None else found.get(rank)
        if self.only_rank is not None:
            found.setdefault(self.only_rank, None)
        yield from found.items()
