"""Whose the lines of a file are: what its name, its lines and its beginning tell, put together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers import Source
from hangdoc.postmortem.readers._logs.prefixes import Habits, Line, parse
from hangdoc.postmortem.readers._logs.scan import Tally
from hangdoc.postmortem.readers._torchrun import process_of

LOOKED_AT = 40  # lines at the beginning and at the end of a file that tell whether one rank wrote it
ALL = 20_000  # lines at the end that are looked at where several did
_RANK = re.compile(rb"\[rank(\d{1,5})\]:")
_JOB_ID = re.compile(r"^(?:slurm|job|output|out|err|log)?[-_.]?\d{5,}\.", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Author:
    """As much as a line says of its writer."""

    rank: int | None = None
    local: int | None = None
    host: str | None = None
    pid: int | None = None
    group_rank: int | None = None  # in the default group, where the line names no other


@dataclass(frozen=True, slots=True)
class Placed:
    """What a file's path says of the lines in it."""

    process: ProcessRef = field(default_factory=ProcessRef)
    torchrun: bool = False


def place_of(source: Source) -> Placed:
    """By torchrun's folders (`attempt_0/3/stderr.log`), else by the name."""
    if process := process_of(source):
        return Placed(process, torchrun=True)
    return Placed() if _JOB_ID.match(source.path.name) else Placed(ProcessRef(source.rank_in_name))


class Authors:
    """Learns from the lines who is who, and says at the end."""

    def __init__(self, place: Placed, head: str, told: Habits) -> None:
        self.place = place
        self.ranks: Counter[int] = Counter()  # named by lines
        self.offsets: Counter[int] = Counter()  # global rank less local rank
        self.processes: dict[tuple[str | None, int], tuple[int, int]] = {}  # host and PID -> ranks in all, rank
        self.hosts: Counter[str] = Counter()
        self.others = False  # lines name several writers otherwise than by rank
        self.failed: set[int] = set()  # ranks in the tables of a torchrun
        self.ended: bool = False  # and it ended others
        for raw in islice(head.splitlines(), LOOKED_AT):
            self.learn("", parse(raw, told), {})

    def learn(self, kind: str, line: Line, fields: Mapping[str, str]) -> None:
        """What a line says of its writer, and of others."""
        if line.rank is not None:
            self.ranks[line.rank] += 1
            if line.local is not None:
                self.offsets[line.rank - line.local] += 1
        if line.host:
            self.hosts[line.host] += 1
        if kind == "failure":
            rank = int(fields["rank"])
            self.failed.add(rank)
            self.offsets[rank - int(fields["local_rank"])] += 1
        elif kind == "told_to_end":
            self.ended = True
        elif kind == "nccl_rank" and line.pid is not None:
            key, told = (line.host, line.pid), (int(fields["size"]), int(fields["rank"]))
            self.processes[key] = max(told, self.processes.get(key, (0, 0)), key=lambda one: one[0])
        elif kind == "ray_worker":
            for host in (fields["host"], None):
                self.processes[host, int(fields["pid"])] = 10**6, int(fields["rank"])

    def of(self, line: Line) -> Author:
        """The author that a line names."""
        default = line.group in (None, "0") and line.group_name in (None, "default_pg", "")
        return Author(line.rank, line.local, line.host, line.pid, line.group_rank if default else None)

    @property
    def alone(self) -> bool:
        """One rank wrote the whole file."""
        return self.sole is not None or (self.place.process.pid is not None and len(self.ranks) < 2)

    @property
    def sole(self) -> int | None:
        """The only rank whose the file is, where it is one's: its lines know better than its name."""
        if len(self.ranks) > 1:
            return None
        if self.ranks:
            only = next(iter(self.ranks))
            return (
                only
                if self.place.process != ProcessRef() or self.ranks[only] >= 3 or self._one_failed == only
                else None
            )
        return self.place.process.rank if self.place.process != ProcessRef() else self._one_failed

    @property
    def _one_failed(self) -> int | None:
        """The rank of a host that has just one: its torchrun writes of one that failed, and ended no other."""
        return next(iter(self.failed)) if len(self.failed) == 1 and not self.ended else None

    def resolve(self, author: Author, run: int) -> ProcessRef:
        """The process an author is."""
        known = self.processes.get((author.host, author.pid)) if author.pid is not None else None
        known = known or (self.processes.get((None, author.pid)) if author.pid is not None else None)
        rank = author.rank
        if rank is None and known is not None:
            rank = known[1]
        if rank is None and author.local is not None:
            rank = author.local + (self.offsets.most_common(1)[0][0] if self.offsets else 0)
        if rank is None:
            rank = self.sole
        if rank is None:
            rank = author.group_rank
        host, pid = author.host, author.pid
        if host is None and self.alone:
            host = next(iter(self.hosts)) if len(self.hosts) == 1 else self.place.process.host
        if (rank, pid) == (None, None) and self.alone:
            host, pid = self.place.process.host, self.place.process.pid
        return ProcessRef(rank, host, pid, run)

    def seen(self, tally: Tally, told: Habits) -> Iterator[tuple[int, float | None]]:
        """The ranks that wrote in the file, and when each wrote last; of those who stopped long before, no time."""
        several = len(self.ranks) > 1
        tail = tally.tail[-(len(tally.tail) if several else 2**14) :].decode("utf-8", "replace").splitlines()
        found: dict[int, float | None] = dict.fromkeys(self.ranks)
        if several:
            found |= {int(rank): None for rank in _RANK.findall(tally.head)}
        for raw in tail[-ALL if several else -LOOKED_AT :]:
            line = parse(raw, told)
            rank = self.resolve(self.of(line), 0).rank
            if rank is not None and (several or self.alone):
                found[rank] = line.at if line.at is not None else found.get(rank)
        if self.sole is not None:
            found.setdefault(self.sole, None)
        yield from found.items()
