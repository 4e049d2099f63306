"""Whose a dump is, once all dumps of a source are known: ranks, their helpers, and launchers that are no rank."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hangdoc.evidence import Stack, Stacks
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import ParserFactory, parse_channels
from hangdoc.postmortem.readers._torchrun import process_of

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

    process: ProcessRef
    stacks: Stacks
    command: str = ""
    parent: int | None = None
    more: tuple[Piece, ...] = field(default=())  # what else was said of it


def dumped(texts: Iterable[str], opening: re.Pattern[str], parser: ParserFactory) -> Iterator[Dumped]:
    """Every dump in these lines; of whom, as far as the lines say."""
    for piece in parse_channels(texts, opening, parser):
        yield piece.record


def pieces(found: Iterable[Dumped], source: Source, context: ReadContext) -> Iterator[Piece]:
    """A piece for each dump of a rank; the workers of its data loaders are helpers of it."""
    every = list(found)
    ranks = [one for one in every if not _is_launcher(one) and not _is_worker(one)]
    if not ranks:
        ranks = [one for one in every if not _is_worker(one)] or every
    workers = [one for one in every if _is_worker(one) and one not in ranks]
    launchers = {one.process.pid for one in every if one not in ranks and one not in workers}
    by_pid = {one.process.pid: one for one in ranks if one.process.pid is not None}
    helpers: dict[int | None, list[tuple[int, tuple[Stack, ...]]]] = defaultdict(list)
    for child in [
        one for one in ranks if one.parent in by_pid and one.parent not in launchers and one.process.rank is None
    ]:
        workers.append(child)
        ranks.remove(child)
    for worker in workers:
        alone = next(iter(by_pid)) if len(by_pid) == 1 else None
        owner = worker.parent if worker.parent in by_pid else alone
        if owner is None:
            context.warn(
                f"{source.name}: PID {worker.process.pid} is a helper of a rank, but not of which; it is left out"
            )
        else:
            helpers[owner].append((worker.process.pid or -1, worker.stacks.threads))
    for one, process in zip(ranks, _whose(ranks, source), strict=True):
        children = tuple(helpers.pop(one.process.pid, ())) if one.process.pid is not None else ()
        yield Piece(process, "stacks", replace(one.stacks, children=children) if children else one.stacks)
        yield from (replace(piece, process=process) for piece in one.more)


def _is_launcher(one: Dumped) -> bool:
    """A process that started the ranks and waits for them."""
    for stack in one.stacks.threads:
        if stack.name in (None, "MainThread"):
            return any(_LAUNCHER.search(frame.file) and frame.function in _JOINS for frame in stack.frames)
    return False


def _is_worker(one: Dumped) -> bool:
    return any(_WORKER.search(frame.file) for stack in one.stacks.threads for frame in stack.frames)


def _whose(ranks: Sequence[Dumped], source: Source) -> list[ProcessRef]:
    """What the paste says, else the command line, else (where all is of one process) the file, else a variable."""
    told = [replace(one.process, rank=_rank(one)) if one.process.rank is None else one.process for one in ranks]
    told = _local(ranks, told) or told
    if all(process.rank is None for process in told):
        named = of_file(source)
        processes = {_process_key(one) for one in ranks}
        if named is not None and len(processes) == 1 and named.rank != told[0].pid:
            told = [
                replace(one, rank=named.rank, host=one.host or named.host, pid=one.pid or named.pid, run=named.run)
                for one in told
            ]
        else:
            told = _in_variables(ranks, told)
    numbers: dict[object, int] = {}
    unknown = _ANONYMOUS - 1000 * zlib.crc32(source.name.encode("utf-8", "replace"))
    return [
        process
        if (process.rank, process.pid) != (None, None)
        else replace(process, pid=unknown - numbers.setdefault(_process_key(one), len(numbers)))
        for one, process in zip(ranks, told, strict=True)
    ]


def of_file(source: Source) -> ProcessRef | None:
    """Whose a file is by its name, or by its place in the folders of `torchrun --log-dir`."""
    return ProcessRef(source.rank_in_name) if source.rank_in_name is not None else process_of(source)


def _process_key(one: Dumped) -> object:
    """What tells one process from another: its PID, else where its main thread lives."""
    if one.process.pid is not None or one.process.rank is not None:
        return one.process
    main = next((stack.tid for stack in one.stacks.threads if stack.name == "MainThread" and stack.tid), None)
    return main if main is not None else id(one)


def _in_variables(ranks: Sequence[Dumped], told: list[ProcessRef]) -> list[ProcessRef]:
    """By what every one of several processes calls its `rank`, where no two call it the same."""
    found = {_process_key(one): _named(one, ("global_rank", "rank")) for one in ranks}
    sizes = {_named(one, ("world_size",)) for one in ranks} - {None}
    values = list(found.values())
    most = min((size for size in sizes if size is not None), default=len(values))
    if len(values) < 2 or None in values or len(set(values)) < len(values):
        return told
    if not all(value is not None and 0 <= value < most for value in values):
        return told
    return [replace(process, rank=found[_process_key(one)]) for one, process in zip(ranks, told, strict=True)]


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


def _local(ranks: Sequence[Dumped], told: Sequence[ProcessRef]) -> list[ProcessRef] | None:
    """Local ranks are the ranks of a job of one host; None where it may be of several, or they do not tell."""
    numbers = [_LOCAL.search(one.command) for one in ranks]
    if any(process.rank is not None or process.host is not None for process in told) or any(
        _NODES.search(one.command) for one in ranks
    ):
        return None
    found = [int(number[1] or number[2]) for number in numbers if number]
    pids = defaultdict(set)
    for one, rank in zip(ranks, found, strict=False):
        pids[rank].add(one.process.pid)
    if len(found) != len(ranks) or not found or any(len(of) > 1 for of in pids.values()):
        return None
    return [replace(process, rank=rank) for process, rank in zip(told, found, strict=True)]
