"""Assigns the stack dumps of a source to ranks, their helper processes, and launchers (which are not ranks)."""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hangdoc.evidence import Stack, Stacks
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._owner_hints import LOCAL_PIDS
from hangdoc.postmortem.readers._pasted_text import ParserFactory, parse_channels
from hangdoc.postmortem.readers._placement.placement import Placement
from hangdoc.postmortem.readers._stated_ranks import examined_rank, ranks_in_order
from hangdoc.postmortem.readers._text_source import TextSource, placement_in
from hangdoc.postmortem.readers._torchrun import process_of

_GLOBAL_RANK = re.compile(r"(?:^|\s)--?(?:global[_-])?rank[=\s](\d{1,6})(?=\s|$)|(?:^|[\s(])RANK=(\d{1,6})(?=[\s),]|$)")
MAX_LOCAL = 4096  # ranks of a host
_LOCAL_RANK = re.compile(r"(?:^|\s)--?local[_-]rank[=\s](\d{1,6})(?=\s|$)|(?:^|[\s(])LOCAL_RANK=(\d{1,6})(?=[\s),]|$)")
_NODES = re.compile(r"--?n(?:um_?)?nodes[=\s](?!1(?:\s|$))|--?node[_-]rank[=\s][1-9]")
_LAUNCHER = re.compile(
    r"torch/distributed/(?:elastic/(?:agent|multiprocessing)|launcher)/|torch/distributed/run\.py$"
    r"|torch/multiprocessing/spawn\.py$|deepspeed/launcher/|accelerate/commands/launch\.py$"
)
_WAIT_FUNCTIONS = frozenset(
    {"join", "wait", "_invoke_run", "_monitor_workers", "start_processes", "sigkill_handler", "main", "run"}
)
_WORKER = re.compile(r"torch/utils/data/_utils/worker\.py$")
RANKS_WITH_STACKS = "ranks with stacks"  # key of ReadContext.shared
PROCESSES_WITH_STACKS = "processes with stacks"  # another: their PIDs
MAX_DUMPS = 1000  # of one process in one source; a dump a minute for most of a day
_ANONYMOUS = -(10**6)  # made-up PIDs start here, for processes with neither rank nor PID


@dataclass(frozen=True, slots=True)
class ProcessDump:
    """The stack dump of one process."""

    process: ProcessRef
    stacks: Stacks
    command: str = ""
    parent: int | None = None
    more: tuple[Piece, ...] = field(default=())  # other evidence of the process


def process_dumps(texts: Iterable[str], opening: re.Pattern[str], parser: ParserFactory) -> Iterator[ProcessDump]:
    """Every dump in these lines, with its process as far as the lines name it."""
    for piece in parse_channels(texts, opening, parser):
        yield piece.record


def rank_pieces(found: Iterable[ProcessDump], source: Source, context: ReadContext) -> Iterator[Piece]:
    """One piece per dump of a rank; DataLoader workers and other children become its helpers."""
    every = list(found)
    ranks = [dump for dump in every if not _is_launcher(dump) and not _is_worker(dump)]
    if not ranks:
        ranks = [dump for dump in every if not _is_worker(dump)] or every
    workers = [dump for dump in every if _is_worker(dump) and dump not in ranks]
    launchers = {dump.process.pid for dump in every if dump not in ranks and dump not in workers}
    by_pid = {dump.process.pid: dump for dump in ranks if dump.process.pid is not None}
    helpers: dict[int | None, list[tuple[int, tuple[Stack, ...]]]] = defaultdict(list)
    elsewhere: set[int] = context.shared.setdefault(PROCESSES_WITH_STACKS, set())  # dumped by another tool
    parents = (by_pid.keys() | elsewhere) - launchers
    for child in [dump for dump in ranks if dump.parent in parents and dump.process.rank is None]:
        workers.append(child)
        ranks.remove(child)
    for worker in workers:
        alone = next(iter(by_pid)) if len(by_pid) == 1 and worker.parent not in elsewhere else None
        owner = worker.parent if worker.parent in by_pid else alone
        if owner is None:
            pid = worker.process.pid
            who = f"PID {pid}" if pid is not None else f"a child of PID {worker.parent}"
            context.warn(f"{source.name}: {who} is a helper of an unknown rank; ignored")
        else:
            helpers[owner].append((worker.process.pid or -1, worker.stacks.threads))
    for dump, process in _newest_dumps(list(zip(ranks, _owners(ranks, source), strict=True)), source, context):
        children = tuple(helpers.pop(dump.process.pid, ())) if dump.process.pid is not None else ()
        if process.rank is not None:
            context.shared.setdefault(RANKS_WITH_STACKS, set()).add(process.rank)
        if dump.process.pid is not None:
            elsewhere.add(dump.process.pid)
        yield Piece(process, "stacks", replace(dump.stacks, children=children) if children else dump.stacks)
        yield from (replace(piece, process=process) for piece in dump.more)


def _newest_dumps(
    owned: Sequence[tuple[ProcessDump, ProcessRef]], source: Source, context: ReadContext
) -> Iterator[tuple[ProcessDump, ProcessRef]]:
    """The newest MAX_DUMPS of each process, in order; says which process has more."""
    left = Counter(process for _, process in owned)
    for process, count in left.items():
        if count > MAX_DUMPS:
            who = f"rank {process.rank}" if process.rank is not None else "one process"
            context.warn(f"{source.name}: {count} dumps of {who}; the newest {MAX_DUMPS} are used")
    for dump, process in owned:
        if left[process] <= MAX_DUMPS:
            yield dump, process
        left[process] -= 1


def _is_launcher(dump: ProcessDump) -> bool:
    """True if the process started the ranks and waits for them."""
    for stack in dump.stacks.threads:
        if stack.name in (None, "MainThread"):
            return any(_LAUNCHER.search(frame.file) and frame.function in _WAIT_FUNCTIONS for frame in stack.frames)
    return False


def _is_worker(dump: ProcessDump) -> bool:
    return any(_WORKER.search(frame.file) for stack in dump.stacks.threads for frame in stack.frames)


def _owners(ranks: Sequence[ProcessDump], source: Source) -> list[ProcessRef]:
    """Each dump's process: from the text, command line, file name (one process only) or variables, in this order."""
    found = [
        replace(dump.process, rank=_rank_from_command(dump)) if dump.process.rank is None else dump.process
        for dump in ranks
    ]
    found = _ranks_from_gpus(found, placement_in(source))
    found = _ranks_from_local_ranks(ranks, found) or found
    found = _ranks_from_order(ranks, found, source)
    found = _rank_from_sentence(ranks, found, source)
    if all(process.rank is None for process in found):
        named = process_of_file(source)
        processes = {_process_identity(dump) for dump in ranks}
        if named is not None and len(processes) == 1 and named.rank != found[0].pid:
            run, rank, host, pid = named.run, named.rank, named.host, named.pid
            found = [replace(one, rank=rank, host=one.host or host, pid=one.pid or pid, run=run) for one in found]
        else:
            found = _ranks_from_variables(ranks, found)
    numbers: dict[object, int] = {}
    unknown = _ANONYMOUS - 1000 * zlib.crc32(source.name.encode("utf-8", "replace"))
    return [
        process
        if (process.rank, process.pid) != (None, None)
        else replace(process, pid=unknown - numbers.setdefault(_process_identity(dump), len(numbers)))
        for dump, process in zip(ranks, found, strict=True)
    ]


def process_of_file(source: Source) -> ProcessRef | None:
    """The process in a file's name, or in its path below `torchrun --log-dir`."""
    return ProcessRef(source.rank_in_name) if source.rank_in_name is not None else process_of(source)


def _process_identity(dump: ProcessDump) -> object:
    """Key of a process: its rank or PID, else the address of its main thread."""
    if dump.process.pid is not None or dump.process.rank is not None:
        return dump.process
    main = next((stack.tid for stack in dump.stacks.threads if stack.name == "MainThread" and stack.tid), None)
    return main if main is not None else id(dump)


def _ranks_from_order(ranks: Sequence[ProcessDump], processes: list[ProcessRef], source: Source) -> list[ProcessRef]:
    """Ranks of which the text says that its dumps are in their order, if it has one process for each."""
    identities = list(dict.fromkeys(_process_identity(dump) for dump in ranks))
    if len(identities) < 2 or any(process.rank is not None for process in processes):
        return processes
    found = ranks_in_order(source.head_text, len(identities))
    numbers = dict(zip(identities, found, strict=False))
    return [
        replace(process, rank=numbers.get(_process_identity(dump)))
        for dump, process in zip(ranks, processes, strict=True)
    ]


def _rank_from_sentence(ranks: Sequence[ProcessDump], processes: list[ProcessRef], source: Source) -> list[ProcessRef]:
    """The rank of the only process of a text, by the sentences that say on which rank a debugger was used."""
    identities = {_process_identity(dump) for dump in ranks}
    if len(identities) != 1 or any(process.rank is not None for process in processes):
        return processes
    rank = examined_rank(source.head_text) if isinstance(source, TextSource) else None
    return processes if rank is None else [replace(process, rank=rank) for process in processes]


def _ranks_from_variables(ranks: Sequence[ProcessDump], processes: list[ProcessRef]) -> list[ProcessRef]:
    """Ranks from the variable `rank` of each process that shows one, if there are several and all values differ."""
    found = {_process_identity(dump): _variable_value(dump, ("global_rank", "rank")) for dump in ranks}
    sizes = {_variable_value(dump, ("world_size",)) for dump in ranks} - {None}
    values = [value for value in found.values() if value is not None]
    most = min((size for size in sizes if size is not None), default=len(found))
    if len(found) < 2 or len(set(values)) < len(values) or not all(0 <= value < most for value in values):
        return processes
    return [
        replace(process, rank=found[_process_identity(dump)]) for dump, process in zip(ranks, processes, strict=True)
    ]


def _variable_value(dump: ProcessDump, names: Sequence[str]) -> int | None:
    """The integer that the main thread holds under the first of these names; None: absent, or its frames disagree."""
    for stack in dump.stacks.threads:
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


def _rank_from_command(dump: ProcessDump) -> int | None:
    found = _GLOBAL_RANK.search(dump.command)
    return int(found[1] or found[2]) if found else None


def _ranks_from_gpus(processes: list[ProcessRef], placement: Placement) -> list[ProcessRef]:
    """Ranks from the GPU or worker numbers in headings; on several hosts, only those that the text states.

    Beside a PID, the number of a single process is none: its job may have several hosts.
    """
    ranks = [placement.rank_of(process) for process in processes]
    processes = [
        replace(process, rank=rank, pid=process.pid if process.pid is not None and process.pid >= 0 else None)
        if rank is not None
        else process
        for process, rank in zip(processes, ranks, strict=True)
    ]
    if len({process.host for process in processes}) > 1 or not placement.local_is_rank:
        return processes
    several = len({process.local for process in processes if process.local is not None}) > 1
    return [_numbered(process, several or placement.one_node) for process in processes]


def _numbered(process: ProcessRef, several: bool) -> ProcessRef:
    """A process by its number on its host, if that is its rank."""
    if process.local is None or process.rank is not None:
        return process
    if process.pid == LOCAL_PIDS - process.local:
        return replace(process, rank=process.local, pid=None)
    return replace(process, rank=process.local) if several else process


def _local_rank(dump: ProcessDump) -> int | None:
    found = _LOCAL_RANK.search(dump.command)
    return int(found[1] or found[2]) if found else None


def _ranks_from_local_ranks(ranks: Sequence[ProcessDump], processes: Sequence[ProcessRef]) -> list[ProcessRef] | None:
    """Ranks from local ranks on the command line; None: the job may span hosts, or local ranks are missing.

    A launcher starts its ranks in a row: a process without a command line has its number by its PID.
    """
    named = [_local_rank(dump) for dump in ranks]
    if any(process.rank is not None or process.host is not None for process in processes) or any(
        _NODES.search(dump.command) for dump in ranks
    ):
        return None
    told = [(dump.process.pid or 0, number) for dump, number in zip(ranks, named, strict=True) if number is not None]
    first = {pid - number for pid, number in told}
    if len(first) == 1 and len(told) > 1:
        rows = [None if dump.command else (dump.process.pid or 0) - min(first) for dump in ranks]
        named = [row if number is None else number for number, row in zip(named, rows, strict=True)]
    found = [number for number in named if number is not None and 0 <= number < MAX_LOCAL]
    pids = defaultdict(set)
    for dump, rank in zip(ranks, found, strict=False):
        pids[rank].add(dump.process.pid)
    if len(found) != len(ranks) or not found or any(len(of) > 1 for of in pids.values()):
        return None
    return [replace(process, rank=rank) for process, rank in zip(processes, found, strict=True)]
