"""The folders of `torchrun --log-dir`: RUN/attempt_0/LOCAL_RANK/stderr.log.

With several nodes, each has a folder of its own with local ranks from 0. Global ranks come from rank prefixes in the
lines (`[rank11]: Traceback`, torch 2.2 and newer); without any they stay unknown. Another run of the job in the same
folder is recognised by its time, or by a rank that would occur twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers._input_file import Node, Source

APART_S = 300.0  # s; nodes of one run end together, so a larger gap means another run
TAIL_BYTES = 16 * 2**10  # searched for a rank at the end of a file
_FILE = re.compile(r"^(.*?)/?attempt_(\d{1,6})/(\d{1,6})/(?:stdout|stderr|error)\.\w+(?:\.\w+)?$")
_RANK = re.compile(rb"^\[rank(\d{1,6})\]:", re.MULTILINE)


def process_of(source: Source) -> ProcessRef | None:
    """The process that wrote a file in such a folder; None: another file. An unknown rank gets a negative PID."""
    found = _FILE.match(source.path.as_posix())
    if found is None:
        return None
    run, local, node = int(found[2]), int(found[3]), source.node
    if node is None:
        return ProcessRef(local, run=run)
    if node.first_rank is None:
        return ProcessRef(None, node.name, -1 - local, node.run + run)
    return ProcessRef(node.first_rank + local, node.name, run=node.run + run)


@dataclass(slots=True)
class _LogDir:
    """The log folder of one torchrun."""

    files: dict[Source, tuple[int, int]] = field(default_factory=dict)  # file -> attempt, local rank
    times: list[float] = field(default_factory=list)  # modification times (Unix, s)
    first_rank: int | None = None  # global rank of local rank 0

    def follows(self, run: Sequence[_LogDir]) -> bool:
        """True if this folder belongs to a later run: it ended later, or repeats a rank of `run`."""
        apart = min(self.times, default=0.0) - max((at for member in run for at in member.times), default=0.0)
        repeated = self.first_rank is not None and any(member.first_rank == self.first_rank for member in run)
        return apart > APART_S or repeated


def assign_nodes(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Assign a node and run to each source in the log folders of several torchruns."""
    log_dirs: dict[str, _LogDir] = defaultdict(_LogDir)
    taken: dict[tuple[str, str], set[str]] = defaultdict(set)
    for source in sources:
        if found := _FILE.match(source.path.as_posix()):
            log_dirs[found[1]].files[source] = int(found[2]), int(found[3])
            taken[found[2], found[3]].add(found[1])
    for log_dir in log_dirs.values():
        log_dir.first_rank = _first_rank(log_dir.files)
    if all(len(of) < 2 for of in taken.values()) and not any(log_dir.first_rank for log_dir in log_dirs.values()):
        return tuple(sources)
    for log_dir in log_dirs.values():
        with suppress(OSError):
            log_dir.times = [source.path.stat().st_mtime for source in log_dir.files]
    names, nodes, run = _node_names(list(log_dirs)), dict[Source, Node](), 0
    for members in _runs(log_dirs):
        for name in members:
            alone = Node(None, log_dirs[name].first_rank or 0, run)  # a single node needs no name
            node = alone if len(members) == 1 else Node(names[name], log_dirs[name].first_rank, run)
            nodes |= dict.fromkeys(log_dirs[name].files, node)
        run += 1 + max(attempt for name in members for attempt, _ in log_dirs[name].files.values())
    return tuple(replace(source, node=nodes[source]) if source in nodes else source for source in sources)


def _runs(log_dirs: Mapping[str, _LogDir]) -> Sequence[Sequence[str]]:
    """Log folders grouped by run, oldest run first."""
    found: list[list[str]] = []
    for name in sorted(log_dirs, key=lambda name: max(log_dirs[name].times, default=0.0)):
        if not found or log_dirs[name].follows([log_dirs[other] for other in found[-1]]):
            found.append([])
        found[-1].append(name)
    return found


def _node_names(log_dirs: Sequence[str]) -> Mapping[str, str]:
    """A name for each folder, from the part of its path that differs: `node1` for `logs/node1/run`."""
    parts = {log_dir: log_dir.split("/") for log_dir in log_dirs}
    common = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, zip(*parts.values(), strict=False)))
    own = {log_dir: mine[common:] for log_dir, mine in parts.items()}
    first = {log_dir: mine[0] for log_dir, mine in own.items() if mine}
    if len(set(first.values())) == len(log_dirs):
        return first
    return {log_dir: "/".join(mine) or "." for log_dir, mine in own.items()}


def _first_rank(members: Mapping[Source, tuple[int, int]]) -> int | None:
    """The global rank of local rank 0; None: no line names a rank, or they disagree."""
    found = {rank - local for source, (_, local) in members.items() for rank in _named_ranks(source)}
    first = found.pop() if len(found) == 1 else None
    return first if first is not None and first >= 0 else None


def _named_ranks(source: Source) -> Iterator[int]:
    """The ranks in line prefixes at both ends of a file."""
    tail = b""
    with suppress(OSError), source.path.open("rb") as file:
        file.seek(max(0, source.size - TAIL_BYTES))
        tail = file.read(TAIL_BYTES)
    yield from {int(rank) for text in (source.head, tail) for rank in _RANK.findall(text)}
