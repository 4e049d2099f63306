"""Collects the events, stacks and exits in one log file, by process."""

from __future__ import annotations

import re
import signal
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice, takewhile

from msgspec.structs import replace as replace_record

from hangdoc.evidence import End, Stacks
from hangdoc.evidence.logs import TEARDOWN, WAITED, LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import Source
from hangdoc.postmortem.readers._host_context import OF_HOST, HostContext, host_in_front
from hangdoc.postmortem.readers._logs.attribution import LineOrigin, OriginResolver, file_origin, pci_address
from hangdoc.postmortem.readers._logs.catalogue import NOTICE
from hangdoc.postmortem.readers._logs.ending import BYTES, Counter, ErrorLine, read_ending
from hangdoc.postmortem.readers._logs.exits import LATER_S, exits_in, failure_entry
from hangdoc.postmortem.readers._logs.nearby_lines import (
    has_peers,
    odd_process,
    raising_rank,
    ranks_alike,
    recorded_rank,
    save_ended,
    spawned_rank,
)
from hangdoc.postmortem.readers._logs.prefixes import Line, PrefixStyle, parse
from hangdoc.postmortem.readers._logs.printed_lines import OF_BATCH
from hangdoc.postmortem.readers._logs.scan import MatchedLine, ScanSummary
from hangdoc.postmortem.readers._logs.tracebacks import (
    CHAINED,
    HEADING,
    LoggedException,
    parse_traceback,
    watchdog_stack,
)
from hangdoc.postmortem.readers._placement.nodes import NodesOfText
from hangdoc.postmortem.readers._placement.placement import Placement
from hangdoc.postmortem.readers.faulthandler import faulthandler_dumps
from hangdoc.redaction.text import redact, redact_identifier, redact_text

MAX_ORIGINS = 20_000
# Kinds about a host, beside OF_HOST.
HARDWARE = frozenset({"disk_failed", "host_hardware", "kernel_wait", "port_in_use", "file_system_full", "unresolved"})
# A row of nvidia-smi, or of its output with commas.
_GPU_ROW = re.compile(
    rb"^(?:\|\s{1,4}(?=\d{1,3}\s{1,4}[A-Z][^|\n]{4,60}\|)|(?:[^\n]{0,60}?[ \t])?(?=\d{1,3}, \d{1,3} %,))(\d{1,3})",
    re.MULTILINE,
)
_LOGIN = re.compile(rb"(?<![\w.@-])[\w.-]{1,32}@([\w-]{1,63})(?=[ :])")  # of a prompt
OF_ANY_PROGRAM = frozenset({"port_in_use"})  # kinds that a web server prints as well
_OF_JOB = re.compile(
    r"torch|\brank|server socket|useIpv6|nccl|gloo|rdzv|rendezvous|master_|c10d|deepspeed|accelerate|lightning|megatron"
    r"|horovod|mpi(?:run|exec)|srun|sbatch|\bray\b|distributed|\bjax\b|launch",
    re.IGNORECASE,
)
OF_PORT = frozenset({"ib_event", "port_event"})  # kinds about a network port, which all ranks of a host share
AT_PEER = ("peer", "address", "mac", "lid", "efa")  # fields with an address of a peer
# Kinds of which people show the line of one rank, and say which ranks print the same.
ALIKE = frozenset({"collective_timeout", "work_status"})
OF_GPU = frozenset({"xid", "gpu_lost", "gpu_hardware"})  # kinds whose line names a GPU by its PCI address
OF_GPU_NUMBER = frozenset({"gpu_out_of_memory", "skipped_batch"})  # by the number that its own process sees
# Kinds whose line names the PID of a process that has not written it.
OF_PROCESS = OF_GPU | {"host_out_of_memory", "process_lost"}
GUARD = frozenset({"unit", "victim"})  # fields of what a guard of the host's memory ended
FATAL = "Fatal Python error"
CUT = "a traceback without its last line"
# What looks like the end of a job, unless somebody counts on after it.
COUNTED_AFTER = frozenset({"exception", "barrier_of_store", "announced", "unresolved"})
MAX_RAISED = 512  # ranks with a traceback, for which those that print its last line alone are looked up
MAX_CHAIN = 600  # lines of a chain of tracebacks
MAX_EVENTS = 64  # kept per origin: so many first and so many last ones
MAX_NOTICES = 16  # kept per origin of messages that no rule reads: the first ones
TEXT, FIELD = 400, 200  # characters kept
LAUNCHER_EXCEPTIONS = re.compile(
    r"ChildFailedError|SignalException|RendezvousGracefulExit|subprocess\.CalledProcessError"
)
FAILURE_KINDS = frozenset({"exception", "collective_timeout", "gloo_timeout", "failed", "failure", "connection_closed"})
OF_LAUNCHER = frozenset({"launch_failed", "daemon_lost", "workers_counted"})  # said by launchers, unless a rank does
SLURM_FAILED = "slurm_failed"  # a task of srun has failed
TORCHELASTIC = frozenset({"failed", "failure", "told_to_end"})
# World sizes in the head of a file: `rank 3 of 8`, `n_ranks=8`, `MEMBER: 2/4` (Lightning), `num_processes: 8`.
# Each begins with a literal text, which makes the search fast.
_SIZES = (
    re.compile(r"(?:world|World|WORLD)[_ ]?(?:size|SIZE|Size)\W{1,4}(\d{1,6})\b"),
    re.compile(r"global_world_sizes=\[(\d{1,6})"),
    re.compile(r"ank[ :=#]{0,2}\d{1,6} ?(?:of|out of|/) ?(\d{1,6})\b"),
    re.compile(r"um(?:ber)?[_ ](?:of[_ ])?(?:processes|ranks|gpus|GPUs)\W{1,3}(\d{1,6})\b"),
    re.compile(r"n_?[rR]anks\W{1,3}(\d{1,6})\b"),
    re.compile(r"MEMBER: \d{1,6}/(\d{1,6})\b"),
    re.compile(r"registered\. Starting with (\d{1,6}) processes"),
)
_VERSIONS = (
    ("nccl", re.compile(r"NCCL version (\d{1,2}\.\d{1,3}(?:\.\d{1,3})?)")),
    ("torch", re.compile(r"orch(?: version|==|[ :=v]{1,3})[ :=v]{0,2}(\d\.\d{1,2}(?:\.\d{1,2})?)\b")),
)
_OF_A_JOB = re.compile(r"torch\.distributed|Dist\w+Error|NCCL|ProcessGroup|c10d|gloo|deepspeed")
# torch.distributed prints uncaught exceptions so (excepthook of init_process_group, distributed_c10d.py).
_BY_TORCH = re.compile(rb"\[rank\d{1,6}\]: ?Traceback")
_TIMED = re.compile(r"\d\d:\d\d:\d\d")
# Ray prints what several processes have written once, as of one of them (ray: python/ray/_private/ray_logging).
_DEDUPLICATED = re.compile(rb"\[repeated \d{1,7}x across cluster\]")

Fields = Mapping[str, str | None]


@dataclass(slots=True)
class _OriginEvents:
    """Events and the best stack of one origin."""

    first: list[LogEvent] = field(default_factory=list)
    last: deque[LogEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    notices: int = 0  # seen, kept or not
    stacks: tuple[int, float | None, Stacks] | None = None  # priority, time, record
    times: list[float] = field(default_factory=list)  # earliest and latest

    def add(self, event: LogEvent) -> None:
        self.notices += event.kind == NOTICE
        if event.kind == NOTICE and self.notices > MAX_NOTICES:
            return  # keeps room for events that rules read
        (self.first if len(self.first) < MAX_EVENTS else self.last).append(event)

    def add_time(self, at: float | None) -> None:
        if at is not None:
            self.times = [min([at, *self.times]), max([at, *self.times])]

    def offer_stack(self, priority: int, at: float | None, stacks: Stacks) -> None:
        """Keep the stack of the highest priority; on a tie, the last one."""
        if self.stacks is None or priority >= self.stacks[0]:
            self.stacks = priority, at, stacks


class LogCollector:
    """Takes the matched lines of a file in order; `pieces` returns the evidence."""

    def __init__(self, source: Source, style: PrefixStyle, crashes: bool = True) -> None:
        self._source, self.name, self.style = source, source.name, style
        self.line_number = source.line_number  # in the file, of a line of the text
        self.crashes = crashes  # False: another reader takes the stacks of fatal errors
        self.path_origin = file_origin(source)
        self.origins = OriginResolver(self.path_origin, source.head_text, style)
        self.run = self.path_origin.process.run
        self.hosts, self.nodes = HostContext(), NodesOfText()  # of a pasted text
        self.host_of: Callable[[str], str | None] = lambda address: None  # likewise
        self.text_line = 0  # of the line that is added, in that text
        self.events: dict[tuple[int, LineOrigin], _OriginEvents] = defaultdict(_OriginEvents)
        self.ends: list[tuple[int, LineOrigin, End]] = []
        self.sigterm_lines: dict[int, int] = {}  # PID -> line of the launcher's closing signal
        self.force_killed: set[int] = set()  # PIDs that the launcher killed with SIGKILL after the closing signal
        self.raised: set[int] = set()  # ranks with a traceback, in the current run
        self.run_kinds: set[str] = set()  # in the current run
        self.file_kinds: set[str] = set()  # in the whole file
        head = source.head_text
        self.size = max((int(found[1]) for size in _SIZES for found in size.finditer(head)), default=None)
        self.versions = {name: found[1] for name, version in _VERSIONS if (found := version.search(head))}

    @property
    def placement(self) -> Placement:
        """Where a pasted text says that the ranks run."""
        return self.origins.placement

    def place(self, content: bytes, placement: Placement, host_of: Callable[[str], str | None]) -> None:
        """Use what a pasted text states about the places of its processes. `host_of`: the host of an address."""
        self.hosts, self.nodes, self.origins.placement = HostContext(content), NodesOfText(content), placement
        self.host_of = host_of

    def add(self, kind: str, matched: MatchedLine, line: Line, match: re.Match[str]) -> None:
        """Record a line that matches a pattern."""
        fields = {name: value.strip() for name, value in match.groupdict().items() if value}
        if self._is_start(kind, fields) or (kind in OF_ANY_PROGRAM and not self._is_of_job(matched)):
            return
        of_host = kind in OF_HOST or kind in HARDWARE or not GUARD.isdisjoint(fields)
        if of_host and line.host is None and line.rank is None:
            line.host = fields.get("host") or self._host_of(matched, line, match)
            if kind == "unresolved" and line.host is None:
                line.host = self._only_login(fields.get("address"))
            # With prompts of several hosts, a joined line may hide the one that counts.
            if kind == "port_in_use" and line.host and {*_LOGIN.findall(self.hosts.content)} - {line.host.encode()}:
                line.host = None
        elif line.host is None and line.rank is not None:
            line.host = host_in_front(matched.text, max(matched.text.find(line.text), 0))
        if _DEDUPLICATED.search(matched.raw):
            fields["deduplicated"] = "yes"
        addresses = (fields[name] for name in AT_PEER if name in fields)
        if host := next(filter(None, map(self.host_of, addresses)), None):
            fields["peer_host"] = host
        self.origins.observe(kind, line, fields)
        origin = self.origins.origin_of(line)
        # Below the prompt or heading of a host, only the client that cannot reach the store is certainly its own.
        host = origin.host or (self.hosts.at(self.text_line) if kind == "unreachable" else None)
        if host is not None and not of_host and origin == LineOrigin(host=origin.host):
            origin = replace(origin, rank=self.placement.rank_alone_on(host))
        if origin.local is not None and origin.rank is None:
            node = self.nodes.at(self.text_line, origin.local)
            origin = replace(origin, node=line.node if node is None else node)
        if kind in ("nccl_rank", "ray_worker"):
            self._set_world_size(fields.get("size"))
            return
        if kind in OF_GPU and line.rank is None and "gpu" in fields:
            origin = replace(origin, gpu=pci_address(fields["gpu"]), rank=self._rank_of_gpu(line, fields))
        if kind in OF_GPU_NUMBER and origin == LineOrigin(host=origin.host):
            origin = replace(origin, local=self._local_of_gpu(fields.get("gpu") or ""))
        if kind in OF_PROCESS and line.rank is None and "pid" in fields:
            origin = self._about(origin, fields)
        if kind in OF_PORT and line.rank is None and line.host and self.origins.rank_of_device(origin) is None:
            fields |= {"of_host": line.host}  # any of its ranks may report it
        if kind in OF_LAUNCHER and line.rank is None:
            origin = replace(origin, launcher=True, pid=None)
            fields |= {"host": fields["own_host"]} if "own_host" in fields else {}
        text = line.text
        if kind == "exception":
            exception = self._traceback(matched, line)
            if exception is None or LAUNCHER_EXCEPTIONS.search(exception.type):
                return
            fields, text = _exception_fields(exception), exception.text or CUT
            fields["by_torch"] = "yes" if _BY_TORCH.search(matched.raw) else None
            if (raiser := raising_rank(matched)) is not None:
                origin, fields["uncaught"] = replace(origin, rank=raiser), "yes"  # its peers re-raise it
            elif origin.rank is None and (spawned := spawned_rank(matched)) is not None:
                origin, fields["uncaught"] = replace(origin, local=spawned), "yes"
            elif origin.rank is None and (logged := recorded_rank(matched)) is not None:
                origin, fields["logged"] = replace(origin, rank=logged), "yes"
        elif kind == "fatal_error" and self.crashes:
            self._add_fatal_error(origin, matched, line)
        elif kind == "failed_stack" and (stacks := watchdog_stack(matched.after(40))):
            self._events_of(origin).offer_stack(2, line.at, stacks)
        elif kind == "failure":
            found = failure_entry(matched)
            fields |= found.fields
            self.ends.append((self.run, LineOrigin(rank=found.rank, host=found.host, pid=found.pid), found.end))
            origin = LineOrigin(rank=found.rank, host=found.host, pid=found.pid)
            if found.exception is not None:
                raised = found.exception
                self._add_event(origin, "exception", raised.text, matched, line, _exception_fields(raised))
                self._events_of(origin).offer_stack(1, line.at, found.exception.stacks)
        elif kind == "gradients_missing" and origin.rank is None:
            origin = replace(origin, rank=int(fields["rank"]))  # DDP names the rank that raises
        elif kind == "split_waits":
            origin = LineOrigin(rank=int(fields["rank"]))  # the coordinator of the data set writes it
        elif kind == "announced" and origin.rank is None and origin.pid is None:
            origin = replace(origin, rank=int(fields["rank"]))  # it speaks of itself
        elif kind == "saving" and save_ended(matched):
            fields["ended"] = "yes"
        elif kind == "calls_differ" and (odd := odd_process(matched)) is not None:
            fields["odd"] = str(odd)
        elif kind == "container_exit" and not has_peers(fields.get("container") or fields["name"], matched):
            return
        elif kind == "told_to_end":
            self.sigterm_lines[int(fields["pid"])] = matched.number
        elif kind == "would_not_end":
            origin = LineOrigin(pid=int(fields["pid"]))
            self.force_killed.add(int(fields["pid"]))
        else:
            before = frozenset(self.file_kinds)
            self.ends += [
                (self.run, ended, self._in_order(kind, end, before)) for ended, end in exits_in(kind, fields, line)
            ]
        if kind in ("clients_missing", "barrier_of_store"):
            self._set_world_size(fields.get("expected"))
        if kind == "exception" and exception is not None and exception.uncaught:
            self._events_of(origin).offer_stack(1, line.at, exception.stacks)
        self._add_event(origin, kind, text, matched, line, fields)
        if kind in ALIKE and origin.rank is not None:
            in_whole = line.group_rank == origin.rank  # in the group of all ranks
            for rank in ranks_alike(matched, origin.rank, self.style):
                said = replace(line, rank=rank, group_rank=rank if in_whole else None)
                self._add_event(LineOrigin(rank=rank, host=origin.host), kind, text, matched, said, fields)
        if kind == "exception" and line.rank is not None:
            if line.rank not in self.raised and len(self.raised) < MAX_RAISED:
                for other in self._last_lines_alike(matched, text, line.rank):
                    self._add_event(self.origins.origin_of(other), kind, text, matched, other, fields)
            self.raised.add(line.rank)

    def _last_lines_alike(self, matched: MatchedLine, text: str, rank: int) -> Iterator[Line]:
        """The last line of this rank's traceback as other ranks print it, where nothing else of theirs is left."""
        whole = {*self.raised, rank}
        for below in matched.after(MAX_CHAIN):
            if HEADING in below or below.endswith(text):
                other = parse(below, self.style)
                if other.rank is not None and other.rank not in whole:
                    whole.add(other.rank)
                    if other.text == text:
                        yield other

    def _about(self, origin: LineOrigin, fields: Fields) -> LineOrigin:
        """The origin of a line about another process, with the rank of that process if the text states it."""
        host, pid = fields.get("host") or origin.host, int((fields["pid"] or "0")[:9])
        rank = origin.rank if origin.rank is not None else self.placement.rank_of(ProcessRef(None, host, pid))
        return replace(origin, rank=rank, host=host, about=pid)

    def _rank_of_gpu(self, line: Line, fields: Fields) -> int | None:
        """The rank of a GPU, or of the process that used it, by where the text says that the ranks run."""
        host, gpu, pid = fields.get("host") or line.host, fields.get("gpu") or "", fields.get("pid")
        if not gpu.isdecimal() or "host" in fields:  # ROCm's runtime numbers GPUs in its own way
            rank = self.placement.rank_of_gpu(host, gpu)
            if rank is not None:
                return rank
        if pid and (rank := self.placement.rank_of(ProcessRef(None, host, int(pid[:9])))) is not None:
            return rank
        return self.placement.rank_of_any_gpu(host) if host else None

    def _local_of_gpu(self, number: str) -> int | None:
        """The number of a process that names its GPU by number, if the text shows all GPUs of the only host.

        Not of GPU 0: a process that sees only its own GPU calls it that.
        """
        shown = {int(gpu) for gpu in _GPU_ROW.findall(self.hosts.content)}
        alone = len({*_LOGIN.findall(self.hosts.content)}) < 2 and len(shown) > 1 and shown == set(range(len(shown)))
        return int(number) if alone and number and int(number) in shown - {0} else None

    def _host_of(self, matched: MatchedLine, line: Line, match: re.Match[str]) -> str | None:
        """The host of a message that names none: a label in front of it, or the text above."""
        raw = matched.text
        at = raw.find(line.text)
        return host_in_front(raw, max(at, 0) + match.start()) or self.hosts.at(self.text_line)

    def _is_of_job(self, matched: MatchedLine) -> bool:
        """True if what is around a line, or the text, has a word of distributed training."""
        around = (matched.text, *matched.before(40), *matched.after(20))
        return any(map(_OF_JOB.search, around)) or self._head_of_job

    @cached_property
    def _head_of_job(self) -> bool:
        return _OF_JOB.search(self._source.head_text) is not None

    def _only_login(self, other: str | None) -> str | None:
        """The host of all prompts of a text, if it is not the `other` one."""
        hosts = {found.decode("ascii") for found in _LOGIN.findall(self.hosts.content)}
        return next(iter(hosts)) if len(hosts) == 1 and other not in hosts else None

    def _add_event(
        self, origin: LineOrigin, kind: str, text: str, matched: MatchedLine, line: Line, fields: Fields
    ) -> None:
        more = {"group": line.group, "group_name": line.group_name}
        more["group_rank"] = str(line.group_rank) if line.group_rank is not None else None
        kept = {name: _redacted_field(name, value)[:FIELD] for name, value in {**more, **fields}.items() if value}
        event = LogEvent(kind, redact_text(text[: 4 * TEXT])[:TEXT], self.name, matched.number, line.at, kept)
        part = self._events_of(origin)
        part.add(event)
        part.add_time(line.at)
        self.run_kinds.add(kind)
        self.file_kinds.add(kind)

    def _events_of(self, origin: LineOrigin) -> _OriginEvents:
        key = self.run, origin
        return self.events[key] if key in self.events or len(self.events) < MAX_ORIGINS else _OriginEvents()

    def _set_world_size(self, size: str | None) -> None:
        if size and int(size) < 10**6:
            self.size = max(int(size), self.size or 0)

    def _is_start(self, kind: str, fields: Mapping[str, str]) -> bool:
        """True if the line only announces a start or restart of the job; counts the runs."""
        if kind not in ("start", "restart"):
            return False
        count = fields.get("count")
        if count is not None:
            self.run = self.path_origin.process.run + int(count[:6])
        elif kind == "restart" or self.run_kinds & FAILURE_KINDS:
            self.run += 1
        if self.run_kinds & FAILURE_KINDS:
            self.run_kinds, self.raised = set(), set()
        return True

    def _traceback(self, matched: MatchedLine, line: Line) -> LoggedException | None:
        """The traceback that begins on this line; None: part of another, or of a launcher's table."""
        front = matched.text.partition(HEADING)[0]
        if "traceback :" in front:
            return None  # in a launcher's table, which failure_entry reads
        timed = bool(_TIMED.search(front))
        if any(CHAINED.search(text) and (timed or text.startswith(front)) for text in matched.before(4)):
            return None  # read with the start of its chain
        return parse_traceback(self._following(matched, line, HEADING))

    def _add_fatal_error(self, origin: LineOrigin, matched: MatchedLine, line: Line) -> None:
        """Record the stacks and the signal of a faulthandler dump."""
        # Stop at the next dump: it belongs to another process.
        texts = takewhile(lambda text: FATAL not in text, self._following(matched, line, FATAL))
        for dump in islice(faulthandler_dumps(chain([line.text], texts)), 1):
            self._events_of(origin).offer_stack(2, line.at, dump.stacks)
            self.ends += [(self.run, origin, more.record) for more in dump.more if isinstance(more.record, End)]

    def _following(self, matched: MatchedLine, line: Line, heading: str) -> Iterator[str]:
        """The next lines of the same process, without their prefixes or the indentation of the first."""
        prefix = matched.raw[: matched.raw.find(heading.encode())]
        if prefix.strip() and not _TIMED.search(prefix.decode("utf-8", "replace")):
            return matched.with_prefix(prefix, 600)
        indent = line.text[: len(line.text) - len(line.text.lstrip())]
        return (text.removeprefix(indent) for text in self._written_by(line, matched))

    def _written_by(self, line: Line, matched: MatchedLine) -> Iterator[str]:
        own = (line.rank, line.local, line.host, line.pid)
        for text in matched.after(3000):
            other = parse(text, self.style)
            if (other.rank, other.local, other.host, other.pid) == own or own == (None, None, None, None):
                yield other.text

    def pieces(self, summary: ScanSummary) -> Iterator[Piece]:
        """All evidence in the file: for each process its events, then its stack, then its exit."""
        for rank, at in self.origins.ranks_seen(summary, self.style):
            self._events_of(LineOrigin(rank=rank)).add_time(at)
        by_process: dict[tuple[int, ProcessRef], list[_OriginEvents]] = defaultdict(list)
        self._add_ending(summary)
        for (run, origin), part in self.events.items():
            by_process[run, self.origins.resolve(origin, run)].append(part)
        launcher, sigterm_lines = self._launcher(), self._sigterm_lines_by_rank()
        for (_, process), parts in by_process.items():
            events = [event for part in parts for event in (*part.first, *part.last)]
            events.sort(key=lambda event: event.line)
            events = [_mark_uncaught(one, events) for one in events]
            if (line := sigterm_lines.get((process.run, process.rank))) is not None:
                events = [_mark_teardown(one) if one.kind == "exception" and one.line > line else one for one in events]
            times = [at for part in parts for at in part.times]
            lines = summary.lines if self.origins.single_writer else 0
            logs = Logs(tuple(events), lines, min(times, default=None), max(times, default=None))
            yield Piece(process, "logs", logs, logs.last, self.size, None, launcher)
            if (process.rank, process.pid) == (None, None):
                continue
            shown = max((part.stacks for part in parts if part.stacks), key=lambda stack: stack[0], default=None)
            if shown is not None:
                yield Piece(process, "stacks", shown[2], shown[1], self.size, None, launcher)
            if (end := _end_by_exception(events)) is not None:
                yield Piece(process, "end", end, None, self.size, None, launcher)
        for run, origin, end in self.ends:
            process = self.origins.resolve(origin, run)
            if origin.pid in self.force_killed and end.signal == signal.SIGKILL:
                end = End(signal=signal.SIGTERM, at_s=end.at_s)  # torn down by the launcher, like the other ranks
            tasks_are_ranks = not self.file_kinds & TORCHELASTIC or "slurm_task" not in self.file_kinds
            if (process.rank is not None and tasks_are_ranks) or process.pid is not None:
                yield Piece(process, "end", end, None, self.size, None, launcher)

    def _add_ending(self, summary: ScanSummary) -> None:
        """The last counters of each rank, error lines without a traceback, and versions.

        Counters and versions explain other evidence; without any, they are of no use.
        """
        one = self.origins.only_rank is not None
        ending = read_ending(summary, self.style, self.origins.origin_of, one)
        known: dict[str, set[int | None]] = defaultdict(set)  # text -> ranks
        for (_, by), part in self.events.items():
            for event in (*part.first, *part.last):
                known[event.text[:80] if event.kind != NOTICE else ""].add(by.rank)
        for origin, error in ending.errors:
            ranks = known.get(error.text[:80])
            also = error.by_torch and ranks is not None and not {None, origin.rank} & ranks  # by another rank, too
            if LAUNCHER_EXCEPTIONS.search(error.type) or (ranks is not None and not also):
                continue
            part = self.events.get((self.run, origin), _OriginEvents())
            tracebacks = [event.line for event in (*part.first, *part.last) if event.kind == "exception"]
            if any(0 <= self.line_number(error.line) - line < MAX_CHAIN for line in tracebacks):
                continue  # an exception of a chain
            known_rank = self.origins.resolve(origin, self.run).rank is not None
            if self.events or known_rank or _OF_A_JOB.search(error.text):
                self._events_of(origin).add(self._error_event(error))
        for origin, counter in ending.counters:
            if counter.unit.startswith(BYTES):
                if self.events:
                    self._events_of(origin).add(self._bytes_event(counter))
            elif self.origins.resolve(origin, self.run).rank is not None or COUNTED_AFTER & self.file_kinds:
                self._events_of(origin).add(self._counter_event(counter))
        for origin, printed in ending.printed:
            if printed.name in OF_BATCH and origin.rank is None and origin.local is not None and origin.host is None:
                origin = LineOrigin(origin.local)  # whatever its rank is: the lists are equal, or not
            fields = {"name": printed.name, "value": redact(printed.name, printed.value)[:FIELD]}
            fields |= {"step": str(printed.step)} if printed.step is not None else {}
            fields |= {"form": redact_text(printed.form)[:FIELD]} if printed.form else {}
            event = LogEvent(
                "printed", printed.text[:TEXT], self.name, self.line_number(printed.line), printed.at_s, fields
            )
            if self.origins.resolve(origin, self.run).rank is not None:
                self._events_of(origin).add(event)
            elif printed.form and origin.host and (placed := self.placement.ranks_of(origin.host)):
                for rank in placed:
                    self._events_of(LineOrigin(rank, None, origin.host)).add(event)
        if (alone := ending.alone) and self.origins.ranks.keys() <= {0}:  # each calls itself rank 0
            fields = {"processes": str(alone.processes), "tasks": str(alone.tasks)}
            event = LogEvent(
                "alone", redact_text(alone.text.strip())[:TEXT], self.name, self.line_number(alone.line), None, fields
            )
            self._events_of(LineOrigin()).add(event)
        if pace := ending.pace:
            fields = {"usual_s": f"{pace.usual_s:.6g}", "recompiling_s": f"{pace.recompiling_s:.6g}"}
            fields |= {"steps": str(pace.recompiling)}
            event = LogEvent(
                "step_pace", redact_text(pace.text)[:TEXT], self.name, self.line_number(pace.line), None, fields
            )
            self._events_of(LineOrigin()).add(event)
        if self.versions and self.events:
            text = ", ".join(f"{name} {version}" for name, version in self.versions.items())
            self._events_of(LineOrigin()).add(LogEvent("versions", text, self.name, 1, None, dict(self.versions)))

    def _error_event(self, error: ErrorLine) -> LogEvent:
        fields = {"type": error.type, "message": error.message[:FIELD], "bare": "yes"}
        fields |= {"by_torch": "yes"} if error.by_torch else {}
        return LogEvent("exception", error.text[:TEXT], self.name, self.line_number(error.line), error.at_s, fields)

    def _counter_event(self, counter: Counter) -> LogEvent:
        numbers = {"epoch": counter.epoch or 0, "at": counter.at, "of": counter.of, "every": counter.every}
        fields = {name: str(number) for name, number in numbers.items() if number is not None}
        return LogEvent(
            "progress",
            counter.text[:TEXT],
            self.name,
            self.line_number(counter.line),
            counter.at_s,
            {"unit": counter.unit, **fields},
        )

    def _bytes_event(self, counter: Counter) -> LogEvent:
        """A file that is read or loaded, as far as its bar shows."""
        fields = {
            "what": counter.unit.removeprefix(BYTES).strip(),
            "percent": str(100 * counter.at // (counter.of or 1)),
        }
        return LogEvent(
            "preparing", counter.text[:TEXT], self.name, self.line_number(counter.line), counter.at_s, fields
        )

    def _in_order(self, kind: str, end: End, before: frozenset[str]) -> End:
        """The end of a process, given the kinds of the lines before.

        A launcher or scheduler that ends a job kills the remaining processes. srun reports exits in order.
        """
        killed = end.signal == signal.SIGKILL and not end.oom_kills
        if killed and kind != "oom_kill" and not before.isdisjoint((SLURM_FAILED, "ended_from_outside")):
            return End(signal=signal.SIGTERM, at_s=end.at_s)
        if kind == "slurm_task" and (end.code or end.oom_kills or end.signal not in (None, signal.SIGTERM)):
            self.file_kinds.add(SLURM_FAILED)
            return End(code=end.code, at_s=LATER_S) if end.code and SLURM_FAILED in before else end
        return end

    def _sigterm_lines_by_rank(self) -> dict[tuple[int, int | None], int]:
        """(run, rank) -> line of the launcher's closing signal."""
        ends = ((run, origin) for run, origin, _ in self.ends if origin.rank is not None)
        lines = self.sigterm_lines
        return {(run, origin.rank): lines[origin.pid] for run, origin in ends if origin.pid in lines}

    def _launcher(self) -> str | None:
        if self.file_kinds & TORCHELASTIC or self.path_origin.torchrun:
            return "torchrun"
        return "mpi" if "mpi_end" in self.file_kinds else "slurm" if "slurm_task" in self.file_kinds else None


def _mark_teardown(event: LogEvent) -> LogEvent:
    """Mark an exception as caused by the launcher's signal."""
    return replace_record(event, fields={**event.fields, TEARDOWN: "yes"})


def _exception_fields(exception: LoggedException) -> dict[str, str | None]:
    site = exception.frames[0] if exception.frames else None
    return {
        "type": exception.type,
        "message": exception.message,
        "cause": exception.causes[0] if exception.causes else None,
        "uncaught": "yes" if exception.uncaught else None,
        "site": f"{site.function} ({site.short}:{site.line})" if site else None,
        "innermost": exception.innermost,
    }


def _mark_uncaught(event: LogEvent, events: Sequence[LogEvent]) -> LogEvent:
    """Mark an exception that torch's handler of uncaught exceptions printed, unless the rank went on counting."""
    if event.kind != "exception" or "uncaught" in event.fields or "by_torch" not in event.fields:
        return event
    goes_on = any(other.kind == "progress" and other.line > event.line for other in events)
    return event if goes_on else replace_record(event, fields={**event.fields, "uncaught": "yes"})


def _end_by_exception(events: Sequence[LogEvent]) -> End | None:
    """The end of a process that an uncaught exception ended; None: no exception did, or a timeout came before."""
    if {event.kind for event in events} & WAITED:
        return None
    uncaught = [event for event in events if event.kind == "exception" and "uncaught" in event.fields]
    if not uncaught or not uncaught[-1].fields.get("type"):
        return None  # a traceback that was cut may be that of a wait
    interrupted = uncaught[-1].fields.get("type") == "KeyboardInterrupt"
    return End(signal=signal.SIGINT) if interrupted else End(code=1)


def _redacted_field(name: str, value: str) -> str:
    """A field without secrets; a process group's name may be a hash."""
    return redact_identifier(value) if name.startswith("group") else redact(name, value)
