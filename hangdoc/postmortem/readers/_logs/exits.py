"""Exits of processes, as launchers, schedulers and the kernel report them."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hangdoc.evidence import End
from hangdoc.evidence.limits import parse_count
from hangdoc.evidence.pieces import CONTAINER_PID
from hangdoc.postmortem.readers._logs.attribution import LineOrigin
from hangdoc.postmortem.readers._logs.prefixes import ANSI, Line
from hangdoc.postmortem.readers._logs.scan import MatchedLine
from hangdoc.postmortem.readers._logs.tracebacks import HEADING, LoggedException, parse_traceback

MAX_TASKS = 4096
LATER_S = 0.0  # `at_s` of exits after the root cause, whose own `at_s` is None: before all others
# Signals that a shell reports as 128 plus their number; other codes above 128 are a program's own.
SIGNALS = frozenset(
    {
        signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE,
        signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM,
    }
)  # fmt: skip
_ENTRY = re.compile(r"\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)")
_ROOT = "Root Cause"
_KEYS = ("time", "host", "rank", "exitcode", "error_file", "traceback")
# Where a row begins: of a table whose line breaks were lost, several are in one line.
_ROW = re.compile(rf"(?<![A-Za-z_])(?=(?:{'|'.join(_KEYS)})\s{{0,12}}:)")
_OF_RANK = re.compile(r"(?<![a-z_])rank\s{0,12}:?\s{0,3}(\d{1,7})\s{0,3}\(local_rank:")
_EXIT = re.compile(r"(?P<code>-?\d{1,10})\s+\(pid: (?P<pid>\d{1,10})\)")
_OOM = re.compile(r"python|pt_main|pt_data|torchrun|train|ray::", re.IGNORECASE)
_SLURM = (
    ("out of memory", signal.SIGKILL),
    ("killed", signal.SIGKILL),
    ("segmentation fault", signal.SIGSEGV),
    ("aborted", signal.SIGABRT),
    ("bus error", signal.SIGBUS),
    ("terminated", signal.SIGTERM),
)


@dataclass(frozen=True, slots=True)
class FailureEntry:
    """An entry in the failure table of torchelastic's agent."""

    rank: int | None
    host: str | None
    pid: int | None
    end: End
    exception: LoggedException | None = None
    fields: dict[str, str] = field(default_factory=dict)


def failure_entry(matched: MatchedLine) -> FailureEntry:
    """The entry around the line with the rank."""
    above = [ANSI.sub("", text) for text in matched.before(6)]
    entry = _columns(above)
    for text in above[:2]:
        if (match := _ENTRY.search(text)) and match["name"] in ("host", "time"):
            entry[match["name"]] = match["value"].strip()
    below = [ANSI.sub("", text) for text in matched.after(400)]
    exception = None
    _, rooted, own = ANSI.sub("", matched.text).rpartition(_ROOT)  # a whole table may be in one line
    for number, text in enumerate([own, *below[:4]]):
        entry.update(_rows(text))
        if HEADING in text and "traceback" in entry:
            exception = parse_traceback(line.removeprefix("  ") for line in below[number:])
    ranks = set(_OF_RANK.findall(own))
    rank = int(ranks.pop()) if len(ranks) == 1 else None
    how = _EXIT.search(entry.get("exitcode", ""))
    root = bool(rooted) or any(_ROOT in text for text in above)
    code = int(how["code"]) if how else 1
    end = replace(end_of_code(code), at_s=None if root else LATER_S)
    fields = {name: entry[name] for name in ("time", "host") if name in entry} | {"code": str(code)}
    if rank is not None:
        fields["rank"] = str(rank)
    if root:
        fields["root"] = "yes"
    pid = int(how["pid"]) if how else None
    return FailureEntry(rank, entry.get("host"), pid, end, exception, fields)


def _rows(text: str) -> dict[str, str]:
    """The rows of the table in a line."""
    found: dict[str, str] = {}
    for part in _ROW.split(text):
        if "traceback" not in found and (match := _ENTRY.match(part)):
            found[match["name"]] = match["value"].strip()
    return found


def _columns(above: Sequence[str]) -> dict[str, str]:
    """The rows above that of the rank, where all names were copied before all values. `above`: the last line first."""
    lines = [text.strip(" \t:") for text in reversed(above)]
    names = [at for at, text in enumerate(lines) if text in _KEYS]
    if not names or names[-1] - names[0] != len(names) - 1 or len(lines) - names[-1] - 1 != len(names):
        return {}
    return dict(zip((lines[at] for at in names), lines[names[-1] + 1 :], strict=True))


def exits_in(kind: str, fields: Mapping[str, str], line: Line) -> Iterator[tuple[LineOrigin, End]]:
    """The exits that a line reports."""
    if kind == "mpi_end":
        origin = LineOrigin(rank=int(fields["rank"]), host=fields["host"], pid=int(fields["pid"]))
        yield origin, End(signal=int(fields["signal"]))
    elif kind == "failed" and "pid" in fields:
        yield LineOrigin(local=int(fields["local_rank"]), pid=int(fields["pid"])), end_of_code(int(fields["code"]))
    elif kind == "child_exit":
        yield from _of_child(fields)
    elif kind == "container_exit":
        code = int(fields.get("code") or fields["status"])
        if code:
            yield LineOrigin(host=fields.get("container") or fields["name"], pid=CONTAINER_PID), end_of_code(code)
    elif kind == "oom_kill" and _OOM.search(fields["command"]):
        end = End(signal=signal.SIGKILL, oom_kills=1, kernel=(line.text[:200],))
        yield LineOrigin(host=line.host, pid=int(fields["pid"])), end
    elif kind == "slurm_task":
        end_of_task = _slurm(fields["how"])
        if end_of_task is not None:
            for task in _tasks(fields["tasks"]):
                yield LineOrigin(rank=task, host=fields["host"]), end_of_task


def _of_child(fields: Mapping[str, str]) -> Iterator[tuple[LineOrigin, End]]:
    """The end of a child process, as its launcher reports it."""
    pid = int(fields["pid"]) if "pid" in fields else None
    rank = int(fields["rank"]) if "rank" in fields else None
    local = int(fields["local_rank"]) if "local_rank" in fields else None
    number = int(fields.get("signal") or 0) or getattr(signal, fields.get("name", ""), 0)
    end = End(signal=int(number)) if number else end_of_code(int(fields.get("code", "1")))
    yield LineOrigin(rank=rank, local=local, host=fields.get("host"), pid=pid), end


def end_of_code(code: int) -> End:
    """The end behind an exit code: -9 (torchrun) and 128 + 9 (shells, containers, Slurm) stand for signal 9."""
    if -64 <= code < 0:
        return End(signal=-code)
    return End(signal=code - 128) if code - 128 in SIGNALS else End(code=code)


def _slurm(how: str) -> End | None:
    if match := re.search(r"[Ee]xit(?:ed with exit)? code (\d{1,3})", how):
        return end_of_code(int(match[1]))
    number = next((number for words, number in _SLURM if words in how.lower()), None)
    return End(signal=number, oom_kills=1 if "emory" in how else None) if number is not None else None


def _tasks(text: str) -> Iterator[int]:
    """Expand "0-2,5" to 0, 1, 2, 5."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = parse_count(first), parse_count(last or first)
        if start is not None and end is not None:
            for task in range(start, end + 1):
                count += 1
                if count > MAX_TASKS:
                    return
                yield task
