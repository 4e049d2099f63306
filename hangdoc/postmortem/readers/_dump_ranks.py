"""Whose a dump is, once all dumps of a source are known: ranks, their helpers, and launchers that are no rank."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hangdoc.evidence import Stack, Stacks
from hangdoc.evidence.pieces import Piece, Who
from hangdoc.postmortem.readers import Notes, Source
from hangdoc.postmortem.readers._pasted_text import ParserFactory, parse_channels
from hangdoc.postmortem.readers._torchrun import who_of

_GLOBAL = re.compile(r"(?:^|\s)--?(?:global[_-])?rank[=\s](\d{1,6})(?=\s|$)|(?:^|\s)RANK=(\d{1,6})(?=\s|$)")
_LOCAL = re.compile(r"(?:^|\s)--?local[_-]rank[=\s](\d{1,6})(?=\s|$)|(?:^|\s)LOCAL_RANK=(\d{1,6})(?=\s|$)")
_NODES = re.compile(r"--?n(?:um_?)?nodes[=\s](?!1(?:\s|$))|--?node[_-]rank[=\s][1-9]")
_LAUNCHER = re.compile(
    r"torch/distributed/(?:elastic/(?:agent|multiprocessing)|launcher)/|torch/distributed/run\.py$"
    r"|torch/multiprocessing/spawn\.py$|deepspeed/launcher/|accelerate/commands/launch\.py$"
)
_JOINS = frozenset(
    {"join", "wait", "_invoke_run", "_monitor_workers", "start_processes", "sigkill_handler", "main", "run"}
)
_WORKER = re.compile(r"torch/utils/data/_utils/worker\.py$")
_ANONYMOUS = -(10**6)  # where a source tells neither rank nor PID, its processes are told apart all the same


@dataclass(frozen=True, slots=True)
class Dumped:
    """The dump of one process."""

    who: Who
    stacks: Stacks
    command: str = ""
    parent: int | None = None
    more: tuple[Piece, ...] = field(default=())  # what else was said of it


def dumped(texts: Iterable[str], opening: re.Pattern[str], parser: ParserFactory) -> Iterator[Dumped]:
    """Every dump in these lines; of whom, as far as the lines say."""
    for piece in parse_channels(texts, opening, parser):
        yield piece.record


def pieces(found: Iterable[Dumped], source: Source, notes: Notes) -> Iterator[Piece]:
    """A piece for each dump of a rank; the workers of its data loaders are helpers of it."""
    every = list(found)
    ranks = [one for one in every if not _is_launcher(one) and not _is_worker(one)]
    if not ranks:
        ranks = [one for one in every if not _is_worker(one)] or every
    workers = [one for one in every if _is_worker(one) and one not in ranks]
    launchers = {one.who.pid for one in every if one not in ranks and one not in workers}
    by_pid = {one.who.pid: one for one in ranks if one.who.pid is not None}
    helpers: dict[int | None, list[tuple[int, tuple[Stack, ...]]]] = defaultdict(list)
    for child in [
        one for one in ranks if one.parent in by_pid and one.parent not in launchers and one.who.rank is None
    ]:
        workers.append(child)
        ranks.remove(child)
    for worker in workers:
        alone = next(iter(by_pid)) if len(by_pid) == 1 else None
        owner = worker.parent if worker.parent in by_pid else alone
        if owner is None:
            notes.problem(
                f"{source.name}: PID {worker.who.pid} is a helper of a rank, but not of which; it is left out"
            )
        else:
            helpers[owner].append((worker.who.pid or -1, worker.stacks.threads))
    for one, who in zip(ranks, _whose(ranks, source), strict=True):
        children = tuple(helpers.pop(one.who.pid, ())) if one.who.pid is not None else ()
        yield Piece(who, "stacks", replace(one.stacks, children=children) if children else one.stacks)
        yield from (replace(piece, who=who) for piece in one.more)


def _is_launcher(one: Dumped) -> bool:
    """A process that started the ranks and waits for them."""
    for stack in one.stacks.threads:
        if stack.name in (None, "MainThread"):
            return any(_LAUNCHER.search(frame.file) and frame.function in _JOINS for frame in stack.frames)
    return False


def _is_worker(one: Dumped) -> bool:
    return any(_WORKER.search(frame.file) for stack in one.stacks.threads for frame in stack.frames)


def _whose(ranks: Sequence[Dumped], source: Source) -> list[Who]:
    """What the paste says, else the command line, else (where all is of one process) the file, else a variable."""
    told = [replace(one.who, rank=_rank(one)) if one.who.rank is None else one.who for one in ranks]
    told = _local(ranks, told) or told
    if all(who.rank is None for who in told):
        named = of_file(source)
        processes = {_process(one) for one in ranks}
        if named is not None and len(processes) == 1 and named.rank != told[0].pid:
            told = [
                replace(who, rank=named.rank, host=who.host or named.host, pid=who.pid or named.pid, run=named.run)
                for who in told
            ]
        else:
            told = _in_variables(ranks, told)
    numbers: dict[object, int] = {}
    unknown = _ANONYMOUS - 1000 * zlib.crc32(source.name.encode("utf-8", "replace"))
    return [
        who
        if (who.rank, who.pid) != (None, None)
        else replace(who, pid=unknown - numbers.setdefault(_process(one), len(numbers)))
        for one, who in zip(ranks, told, strict=True)
    ]


def of_file(source: Source) -> Who | None:
    """Whose a file is by its name, or by its place in the folders of `torchrun --log-dir`."""
    return Who(source.rank_in_name) if source.rank_in_name is not None else who_of(source)


def _process(one: Dumped) -> object:
    """What tells one process from another: its PID, else where its main thread lives."""
    if one.who.pid is not None or one.who.rank is not None:
        return one.who
    main = next((stack.tid for stack in one.stacks.threads if stack.name == "MainThread" and stack.tid), None)
    return main if main is not None else id(one)


def _in_variables(ranks: Sequence[Dumped], told: list[Who]) -> list[Who]:
    """By what every one of several processes calls its `rank`, where no two call it the same."""
    found = {_process(one): _named(one, ("global_rank", "rank")) for one in ranks}
    sizes = {_named(one, ("world_size",)) for one in ranks} - {None}
    values = list(found.values())
    most = min((size for size in sizes if size is not None), default=len(values))
    if len(values) < 2 or None in values or len(set(values)) < len(values):
        return told
    if not all(value is not None and 0 <= value < most for value in values):
        return told
    return [replace(who, rank=found[_process(one)]) for one, who in zip(ranks, told, strict=True)]


def _named(one: Dumped, names: Sequence[str]) -> int | None:
    """The number that the process's main thread has under the first of these names, where all its functions agree."""
    for stack in one.stacks.threads:
        if stack.name == "MainThread":
            for name in names:
                values = {
                    v.number
                    for frame in stack.frames
                    for v in frame.variables or ()
                    if v.name == name and v.kind == "int"
                }
                if len(values) == 1 and (value := values.pop()) is not None:
                    return int(value)
    return None


def _rank(one: Dumped) -> int | None:
    found = _GLOBAL.search(one.command)
    return int(found[1] or found[2]) if found else None


def _local(ranks: Sequence[Dumped], told: Sequence[Who]) -> list[Who] | None:
    """Local ranks are the ranks of a job of one host; None where it may be of several, or they do not tell."""
    numbers = [_LOCAL.search(one.command) for one in ranks]
    if any(who.rank is not None or who.host is not None for who in told) or any(
        _NODES.search(one.command) for one in ranks
    ):
        return None
    found = [int(number[1] or number[2]) for number in numbers if number]
    pids = defaultdict(set)
    for one, rank in zip(ranks, found, strict=False):
        pids[rank].add(one.who.pid)
    if len(found) != len(ranks) or not found or any(len(of) > 1 for of in pids.values()):
        return None
    return [replace(who, rank=rank) for who, rank in zip(told, found, strict=True)]
