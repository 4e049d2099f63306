"""The folders of `torchrun --log-dir`: RUN/attempt_0/3/stderr.log, where 3 is the rank on its node.

In what is kept of several nodes each has folders of its own, all counted from 0. Which global ranks these are the lines
of one of its ranks tell (`[rank11]: Traceback`, torch 2.2 and newer); where none does they are not known. What another
run of the job has left in the same folder is told apart by time, and by ranks that would be there twice.
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

APART_S = 300.0  # nodes of one run end together; what ended so much earlier is an earlier run
TAIL = 16 * 2**10  # bytes at the end of a file that are looked at for its rank
_FILE = re.compile(r"^(.*?)/?attempt_(\d{1,6})/(\d{1,6})/(?:stdout|stderr|error)\.\w+(?:\.\w+)?$")
_RANK = re.compile(rb"^\[rank(\d{1,6})\]:", re.MULTILINE)


def process_of(source: Source) -> ProcessRef | None:
    """Whose a file in such a folder is; None of any other. A rank that is not known has a PID below zero."""
    found = _FILE.match(source.path.as_posix())
    if found is None:
        return None
    run, local, node = int(found[2]), int(found[3]), source.node
    if node is None:
        return ProcessRef(local, run=run)
    if node.first is None:
        return ProcessRef(None, node.name, -1 - local, node.run + run)
    return ProcessRef(node.first + local, node.name, run=node.run + run)


@dataclass(slots=True)
class _Tree:
    """What one torchrun wrote."""

    files: dict[Source, tuple[int, int]] = field(default_factory=dict)  # and attempt and local rank
    times: list[float] = field(default_factory=list)  # at which they were written last
    first: int | None = None  # global rank of its local rank 0

    def follows(self, others: Sequence[_Tree]) -> bool:
        """Another run of the job: later, or of ranks that one of the others has as well."""
        apart = min(self.times, default=0.0) - max((at for one in others for at in one.times), default=0.0)
        return apart > APART_S or (self.first is not None and any(one.first == self.first for one in others))


def with_nodes(sources: Sequence[Source]) -> tuple[Source, ...]:
    """The sources; of those in the folders of several torchruns is told of which node and run."""
    trees: dict[str, _Tree] = defaultdict(_Tree)
    taken: dict[tuple[str, str], set[str]] = defaultdict(set)
    for source in sources:
        if found := _FILE.match(source.path.as_posix()):
            trees[found[1]].files[source] = int(found[2]), int(found[3])
            taken[found[2], found[3]].add(found[1])
    for tree in trees.values():
        tree.first = _first(tree.files)
    if all(len(of) < 2 for of in taken.values()) and not any(tree.first for tree in trees.values()):
        return tuple(sources)
    for tree in trees.values():
        with suppress(OSError):
            tree.times = [source.path.stat().st_mtime for source in tree.files]
    names, nodes, run = _names(list(trees)), dict[Source, Node](), 0
    for members in _runs(trees):
        for name in members:
            alone = Node(None, trees[name].first or 0, run)  # as if there were no others
            node = alone if len(members) == 1 else Node(names[name], trees[name].first, run)
            nodes |= dict.fromkeys(trees[name].files, node)
        run += 1 + max(attempt for name in members for attempt, _ in trees[name].files.values())
    return tuple(replace(source, node=nodes[source]) if source in nodes else source for source in sources)


def _runs(trees: Mapping[str, _Tree]) -> Sequence[Sequence[str]]:
    """The trees that belong together, each as the node of one run; the oldest run first."""
    found: list[list[str]] = []
    for name in sorted(trees, key=lambda name: max(trees[name].times, default=0.0)):
        if not found or trees[name].follows([trees[other] for other in found[-1]]):
            found.append([])
        found[-1].append(name)
    return found


def _names(trees: Sequence[str]) -> Mapping[str, str]:
    """What each path has that the others have not: `node1` of `logs/node1/run` and `logs/node0/run`."""
    parts = {tree: tree.split("/") for tree in trees}
    common = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, zip(*parts.values(), strict=False)))
    own = {tree: mine[common:] for tree, mine in parts.items()}
    first = {tree: mine[0] for tree, mine in own.items() if mine}
    if len(set(first.values())) == len(trees):
        return first
    return {tree: "/".join(mine) or "." for tree, mine in own.items()}


def _first(members: Mapping[Source, tuple[int, int]]) -> int | None:
    """The global rank of the node's first; None where no line tells, or not all of them the same."""
    found = {rank - local for source, (_, local) in members.items() for rank in _told(source)}
    first = found.pop() if len(found) == 1 else None
    return first if first is not None and first >= 0 else None


def _told(source: Source) -> Iterator[int]:
    """The ranks that lines at both ends of a file name as their own."""
    tail = b""
    with suppress(OSError), source.path.open("rb") as file:
        file.seek(max(0, source.size - TAIL))
        tail = file.read(TAIL)
    yield from {int(rank) for text in (source.head, tail) for rank in _RANK.findall(text)}
