"""The folders of `torchrun --log-dir`: RUN/attempt_0/3/stderr.log, where 3 is the rank on its node.

In what is kept of several nodes each has folders of its own, all counted from 0. Which global ranks these are the lines
of one of its ranks tell (`[rank11]: Traceback`, torch 2.2 and newer); where none does they are not known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile

from hangdoc.readers import Who
from hangdoc.readers._source import Node, Source

TAIL = 16 * 2**10  # bytes at the end of a file that are looked at for its rank
_FILE = re.compile(r"^(.*?)/?attempt_(\d{1,6})/(\d{1,6})/(?:stdout|stderr|error)\.\w+(?:\.\w+)?$")
_RANK = re.compile(rb"^\[rank(\d{1,6})\]:", re.MULTILINE)


def who_of(source: Source) -> Who | None:
    """Whose a file in such a folder is; None of any other. A rank that is not known has a PID below zero."""
    found = _FILE.match(source.path.as_posix())
    if found is None:
        return None
    run, local, node = int(found[2]), int(found[3]), source.node
    if node is None:
        return Who(local, run=run)
    if node.first is None:
        return Who(None, node.name, -1 - local, run)
    return Who(node.first + local, node.name, run=run)


def with_nodes(sources: Sequence[Source]) -> tuple[Source, ...]:
    """The sources; of those in the folders of several torchruns is told of which."""
    trees: dict[str, dict[Source, int]] = defaultdict(dict)
    taken: dict[tuple[str, str], set[str]] = defaultdict(set)
    for source in sources:
        if found := _FILE.match(source.path.as_posix()):
            trees[found[1]][source] = int(found[3])
            taken[found[2], found[3]].add(found[1])
    if all(len(of) < 2 for of in taken.values()):
        return tuple(sources)
    names = _names(list(trees))
    nodes = {source: Node(names[tree], _first(members)) for tree, members in trees.items() for source in members}
    return tuple(replace(source, node=nodes[source]) if source in nodes else source for source in sources)


def _names(trees: Sequence[str]) -> Mapping[str, str]:
    """What each path has that the others have not: `node1` of `logs/node1/run` and `logs/node0/run`."""
    parts = {tree: tree.split("/") for tree in trees}
    common = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, zip(*parts.values(), strict=False)))
    own = {tree: mine[common:] for tree, mine in parts.items()}
    first = {tree: mine[0] for tree, mine in own.items() if mine}
    if len(set(first.values())) == len(trees):
        return first
    return {tree: "/".join(mine) or "." for tree, mine in own.items()}


def _first(members: Mapping[Source, int]) -> int | None:
    """The global rank of the node's first; None where no line tells, or not all of them the same."""
    found = {rank - local for source, local in members.items() for rank in _told(source)}
    first = found.pop() if len(found) == 1 else None
    return first if first is not None and first >= 0 else None


def _told(source: Source) -> Iterator[int]:
    """The ranks that lines at both ends of a file name as their own."""
    tail = b""
    with suppress(OSError), source.path.open("rb") as file:
        file.seek(max(0, source.size - TAIL))
        tail = file.read(TAIL)
    yield from {int(rank) for text in (source.head, tail) for rank in _RANK.findall(text)}
