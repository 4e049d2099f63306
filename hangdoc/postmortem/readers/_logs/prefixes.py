"""Log line prefixes of launchers, clusters and containers: rank, host, PID and time of a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import groupby
from operator import itemgetter

from hangdoc.postmortem.readers._host_names import LOG_OF_RANK

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
MAX_PREFIXES = 10  # per line
LABELLED_LINES = 4  # in a row, with the same number or the same words about a step: no list of items has such

_ISO = re.compile(
    r"\[?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?\]?(?::(?= )|,)?"
)
_CLOCK = re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? ")
_SYSLOG = re.compile(
    r"(?P<month>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d) (?P<host>[\w.-]+) "
    r"(?=[\w./-]+(?:\[\d+\])?: )"
)
_GLOG = re.compile(
    r"\[?[EWFI](?P<month>\d{1,2}?)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)\.(?P<part>\d{3,9}) (?:\d+ )?[\w/.-]+:\d+\] ?"
)
_OLD_GLOG = re.compile(r"\[[EWFI] \w+\.\w+:\d+\] ?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_COMPOSE = re.compile(r"(?P<host>(?!\d+ )[a-z0-9][\w.-]*) +\| ")  # docker compose
# Stripped one at a time, in this order: the least specific come last.
_PREFIXES: tuple[re.Pattern[str], ...] = (
    re.compile(r"\[rank(?P<rank>\d{1,6})\]:? ?"),
    re.compile(r"\[\d+,(?P<rank>\d{1,6})\]<(?:stdout|stderr|stddiag)>: ?"),  # mpirun --tag-output
    re.compile(r" {0,8}\[(?:RANK |rank[ _:=-]|r)(?P<rank>\d{1,6})\]:?(?: \|)? ?"),
    re.compile(r"\[(?P<host>[a-z][\w.-]{0,60}\d) (?:rank ?|r)(?P<rank>\d{1,6}) {0,4}\]:? ?"),
    # Loops that people write: `rank 3: `, `rank3 | `; not `rank 3 |w| 61.2`.
    re.compile(r"[Rr]ank[ _-]?(?P<rank>\d{1,6})(?:: |>|\s{0,20}\|(?!\w{1,24}\|))\s?(?=\S)"),
    re.compile(r"(?P<host>[a-z][\w.-]{0,60}\d) [Rr]ank[ _-]?(?P<rank>\d{1,6})(?:: |\s{0,20}\|(?!\w{1,24}\|))\s?(?=\S)"),
    # Columns behind a time: `| rank 3 | `, `| INFO | rank 3 | `, `- rank 3 - `
    re.compile(
        r"(?P<bar>[|-]) (?:[A-Z]{4,8}\s{0,4} (?P=bar) )?[Rr]ank[ =:_-]{0,2}(?P<rank>\d{1,6})\s{0,4} (?P=bar) (?=\S)"
    ),
    re.compile(r"\((?:global |world )?[Rr]ank[ _:=-]?(?P<rank>\d{1,6})\):? (?=\S)"),  # Megatron: `(rank 0) saving ...`
    re.compile(r"rank(?P<rank>\d{1,6})\[(?P<pid>\d{1,9})\]\[[^\[\]]{1,60}\]: (?=\S)"),  # Composer: PID and thread
    re.compile(r"\[?(?:global_)?rank=(?P<rank>\d{1,6})\b\]?[,:]? (?=\S)"),  # structured loggers
    re.compile(r"\[(?:[a-zA-Z]\w*?)?(?P<local>\d{1,4})\]: ?(?=.*\S)"),  # torchrun --tee: role and local rank
    # Ray; where an actor of an actor writes, its own label is behind the other one
    re.compile(r"\([\w.()]*?(?: rank=(?P<rank>\d{1,6}))? ?pid=(?P<own_pid>\d+)(?:, ip=(?P<host>[\w.:-]+))?\) ?"),
    re.compile(r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\] ?"),  # kubectl logs --prefix
    re.compile(r"(?:stdout|stderr) [FP] "),  # files of the container runtime, after the time
    _COMPOSE,
    re.compile(r"(?P<host>[a-z][a-z0-9.-]{1,80}-\d{1,5})\s{1,4}(?=\d{4}-\d\d-\d\dT)"),  # pod and time
    re.compile(r"(?P<host>[a-z0-9][\w.-]+) (?!kernel)[\w.-]+ (?=\d{4}-\d\d-\d\dT)"),  # stern: pod, container, time
    re.compile(r"(?:(?P<kernel_host>[a-zA-Z][\w.-]*) )?kernel: (?:\[ *\d+\.\d+\] )?"),
    re.compile(r"\[ *\d+\.\d{6}\] "),  # dmesg
    re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?(?: [AP]M)?(?: |$)"),  # Jenkins and others; no date
    re.compile(r"[\w.-]+ \[(?:stdout|stderr)\] "),
    re.compile(
        r"\| (?:TRACE|DEBUG|INFO|SUCCESS|WARNING|ERROR|CRITICAL) {0,5}\| [\w.]{1,80}:[\w<>]{1,60}:\d{1,6} - "
    ),  # loguru
    re.compile(r"(?:- )?\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\]?(?: -|:)? "),
)
_LABEL = re.compile(r" {0,6}(?!\d\d:\d\d)(?P<rank>\d{1,6}): ?")  # srun --label
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_OF_STEP = re.compile(r"\b(?:it|iter|iteration|step|batch|epoch|loss)\b")
_TASK = re.compile(_LABEL.pattern.replace("rank", "node"))  # the same, of a task that starts the ranks of its node
_OF_NCCL = re.compile(r"[\w.-]{1,100}:(?P<pid>\d{1,9}):\d{1,9} \[\d{1,3}\] ")
_OF_TORCHRUN = re.compile(
    r"torch/distributed/(?:run|elastic/agent/server/api|elastic/multiprocessing/api)\.py:\d+\]"
    r"|:torch\.distributed\.(?:run|elastic\.agent\.server\.(?:local_elastic_)?(?:api|agent)|elastic\.multiprocessing\.api):"
)
_OF_SIZE = re.compile(r"\[[\w./-]{1,60}\.py:\d{1,5}\] \((?P<rank>\d{1,6})/(?P<size>\d{1,6})\) (?=\S)")  # icefall
_BRACKET = re.compile(r"\[(?P<rank>\d{1,4})\] (?=\S)")  # `[2] text`, where torch calls `[2] [rank2]: text` rank 2
_BRACKETED = re.compile(rf"{_BRACKET.pattern}\[rank(?P<own>\d{{1,6}})\]")
HOST_LABEL = re.compile(rf"(?P<host>(?!{LOG_OF_RANK}:)[a-zA-Z][\w.-]*\d[\w.-]*): ")  # pdsh, clush
_RANK_ANYWHERE = re.compile(r"\[rank(\d{1,6})\]:? ?")  # after a progress bar
_NCCL = re.compile(
    r"(?:^|[\s\]:>])(?P<host>(?:\u2026[.-]{0,2})?[A-Za-z0-9][\w.-]*):(?P<pid>\d+):\d+ \[(?P<device>-?\d+)\] "
)
# UCX: `[n7:3120:0:3120] `, `[1764062000.114] [n7:3120 :0] ` (ucs/debug/log.c); Open MPI: `[n7][[4401,1],3][btl_tcp_...`
_MPI = re.compile(
    r"\[(?P<host>[A-Za-z][\w.-]{0,100})"
    r"(?::(?P<pid>\d{1,9}) ?:\d{1,6}(?::\d{1,9})?\]|\]\[\[\d{1,9},\d{1,9}\],(?P<rank>\d{1,6})\])"
)
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<group>\d+)(?: PG GUID (?P<guid>[^\s(\]]+))?\s*(?:\((?P<group_name>[^)]*)\))?"
    r"\s+Rank (?P<rank>\d+)\]"
)
_GROUP_RANK = re.compile(r"\[Rank (\d+)\]")


@dataclass(slots=True)
class Line:
    """One line without its prefixes; None: not stated. `rank` is global, `group_rank` is relative to `group`."""

    text: str
    rank: int | None = None
    local: int | None = None  # rank on its host
    node: int | None = None  # number of its host in the job
    host: str | None = None
    pid: int | None = None
    device: int | None = None  # CUDA device of the thread, as NCCL prints it: its number among those that it sees
    at: float | None = None  # Unix time (s); UTC if the line names no zone
    group: str | None = None  # torch's name or GUID of the process group
    group_name: str | None = None
    group_rank: int | None = None


@dataclass(frozen=True, slots=True)
class PrefixStyle:
    """Prefix conventions of a whole file, which a single line cannot reveal."""

    labels: bool = False  # srun --label: "3: text"
    tasks: bool = False  # the same, and each task is that of a node, as of torchrun: the label is not a rank
    hosts: bool = False  # "node01: text"
    brackets: bool = False  # "[3] text"
    sizes: bool = False  # icefall: "[train.py:581] (0/4) text", rank and world size
    year: int = 1970  # for times without a year
    month: int = 12  # of the last write: lines of later months belong to the year before


def prefix_style(head: str, written: float) -> PrefixStyle:
    """From the first lines of a file and its modification time (Unix time, s)."""
    lines = [_untimed(line) for line in head.splitlines()[:200] if line.strip()]
    many = max(3, len(lines) * 0.6)
    at = datetime.fromtimestamp(max(written, 0.0), timezone.utc)
    labels = sum(bool(_LABEL.match(line)) for line in lines) >= many or _has_labelled_block(lines)
    tasks = labels and (any(_OF_TORCHRUN.search(line) for line in lines if _LABEL.match(line)) or _are_nodes(lines))
    hosts = [match["host"] for line in lines if (match := HOST_LABEL.match(line))]
    named = len(hosts) >= many and len(set(hosts)) <= len(hosts) / 2
    bracketed = [match for line in lines if (match := _BRACKETED.match(line))]
    brackets = bool(bracketed) and all(match["rank"] == match["own"] for match in bracketed)
    brackets = brackets or (not bracketed and _has_bracketed_block(lines))
    return PrefixStyle(labels, tasks, named, brackets, _has_sizes(lines), at.year, at.month)


def _are_nodes(lines: Sequence[str]) -> bool:
    """True if several processes of NCCL write behind one label."""
    processes: dict[str, set[str]] = {}
    for line in lines:
        if (label := _LABEL.match(line)) and (member := _OF_NCCL.match(line, label.end())):
            processes.setdefault(label["rank"], set()).add(member["pid"])
    return any(len(pids) > 1 for pids in processes.values())


def _has_sizes(lines: Sequence[str]) -> bool:
    """True if the numbers are ranks of one world size, and no count of what is done: all are there, or some again."""
    found = [(int(match["rank"]), int(match["size"])) for line in lines if (match := _OF_SIZE.search(line[:200]))]
    ranks, sizes = {rank for rank, _ in found}, {size for _, size in found}
    if len(sizes) != 1 or len(ranks) < 2 or max(ranks) >= min(sizes):
        return False
    return len(found) > len(ranks) or (min(ranks) == 0 and len(ranks) == min(sizes))


def _has_labelled_block(lines: Sequence[str]) -> bool:
    """True if several lines in a row have the same label, or each its own and the same words about a step.

    Somebody pasted a part of srun's output into a text.
    """
    matches = [_LABEL.match(line) for line in lines]
    labels = [match["rank"] if match else None for match in matches]
    if any(label is not None and sum(1 for _ in run) >= LABELLED_LINES for label, run in groupby(labels)):
        return True
    words = [_NUMBER.sub("#", line[match.end() :]) if match else "" for line, match in zip(lines, matches, strict=True)]
    for text, run in groupby(zip(words, labels, strict=True), key=itemgetter(0)):
        numbers = [label for _, label in run]
        if _OF_STEP.search(text) and len(numbers) == len(set(numbers)) >= LABELLED_LINES:
            return True
    return False


def _has_bracketed_block(lines: Sequence[str]) -> bool:
    """True if lines in a row say the same behind `[0]`, `[1]`, `[2]` and so on, of a batch or a step."""
    run: list[str] = []
    for line in (*lines, ""):
        match = _BRACKET.match(line)
        text = _NUMBER.sub("#", line[match.end() :]) if match else ""
        if match and int(match["rank"]) == len(run) and run[:1] in ([], [text]) and _OF_STEP.search(text):
            run.append(text)
            continue
        if len(run) >= LABELLED_LINES:
            return True
        run = [text] if match and match["rank"] == "0" else []
    return False


def _untimed(line: str) -> str:
    """Without the time that a CI system puts in front of each line, or the name of a container."""
    match = _ISO.match(line) or _CLOCK.match(line) or _COMPOSE.match(line)
    return line[match.end() :].lstrip(" ") if match else line


def parse(raw: str, style: PrefixStyle) -> Line:
    """Strip the prefixes of a line; the indentation of the rest is kept."""
    line = Line(ANSI.sub("", raw).rstrip() if "\x1b" in raw else raw.rstrip())
    for _ in range(MAX_PREFIXES):
        rest = _strip_prefix(line, style)
        if rest is None:
            break
        line.text = rest
    if line.rank is None and (within := _RANK_ANYWHERE.search(line.text)):
        line.rank, line.text = int(within[1]), line.text[within.end() :]
    if match := _GLOG.search(line.text[:300]):
        line.at = _time_without_year(int(match["month"]), match, style) or line.at
        line.text = line.text[match.end() :]
    elif match := _OLD_GLOG.match(line.text):
        line.text = line.text[match.end() :]
    if match := _NCCL.search(line.text[:300]):
        line.host, line.pid = line.host or match["host"], line.pid or int(match["pid"])
        line.device = int(match["device"]) if match["device"][0] != "-" else None
    elif match := _MPI.search(line.text[:300]):
        _apply(line, match.groupdict())
    if match := _GROUP.search(line.text):
        line.group = match["guid"] or match["group"]  # the number may differ between ranks
        line.group_name, line.group_rank = match["group_name"], int(match["rank"])
    elif match := _GROUP_RANK.search(line.text):
        line.group_rank = int(match[1])
    return line


def _strip_prefix(line: Line, style: PrefixStyle) -> str | None:
    """The text after one prefix; None: no prefix."""
    text = line.text
    if match := _ISO.match(text):
        line.at = line.at if line.at is not None else _iso_time(match)
        return text[match.end() :].removeprefix(" ")
    if match := _SYSLOG.match(text):
        month = _MONTHS.index(match["month"]) + 1 if match["month"] in _MONTHS else 0
        line.at = _time_without_year(month, match, style)
        of_kernel = text.startswith("kernel: ", match.end())
        line.host = match["host"] if of_kernel else line.host or match["host"]
        return text[match.end() :]
    for pattern in _PREFIXES:
        if match := pattern.match(text):
            _apply(line, match.groupdict())
            return text[match.end() :]
    styles = (
        (style.labels, _TASK if style.tasks else _LABEL),
        (style.hosts, HOST_LABEL),
        (style.brackets and line.rank is None, _BRACKET),
        (style.sizes, _OF_SIZE),
    )
    for holds, pattern in styles:
        if holds and (match := pattern.match(text)):
            _apply(line, match.groupdict())
            return text[match.end() :]
    return None


def _apply(line: Line, found: Mapping[str, str | None]) -> None:
    """Merge a prefix into the line: the innermost rank wins (the job's), the outermost host and PID (the cluster's).

    Of the labels of Ray, the innermost is that of the process that writes, and `own_pid` is its PID.

    The host that the kernel writes is its own, whatever pod or container printed the line.
    """
    number: Callable[[str], int | None] = lambda name: int(value) if (value := found.get(name)) else None  # noqa: E731
    line.rank = number("rank") if found.get("rank") else line.rank
    line.local = number("local") if found.get("local") else line.local
    line.node = number("node") if found.get("node") else line.node
    line.pid = number("own_pid") or (line.pid if line.pid is not None else number("pid"))
    line.host = found.get("kernel_host") or line.host or found.get("host")


def _iso_time(match: re.Match[str]) -> float | None:
    zone = (match["zone"] or "Z").replace("Z", "+00:00")
    zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    try:
        moment = datetime.fromisoformat(f"{match['date'].replace('/', '-')}T{match['time']}{zone}")
        return moment.timestamp() + float(f"0.{match['part'] or 0}")
    except (ValueError, OverflowError):
        return None


def _time_without_year(month: int, match: re.Match[str], style: PrefixStyle) -> float | None:
    """The time of a line without a year, which is that of the file or the one before."""
    parts = match.groupdict()
    try:
        hour, minute, second = map(int, parts["time"].split(":"))
        year = style.year - (month > style.month)
        moment = datetime(year, month, int(parts["day"]), hour, minute, tzinfo=timezone.utc) + timedelta(seconds=second)
    except (ValueError, OverflowError):
        return None
    return moment.timestamp() + float(f"0.{parts.get('part') or 0}")
