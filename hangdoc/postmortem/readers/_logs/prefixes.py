"""Who wrote a line of a log, on which host and when: what launchers, clusters and containers put in front of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
MOST = 10  # prefixes in front of one line

_ISO = re.compile(
    r"\[?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?\]?(?::(?= )|,)?"
)
_SYSLOG = re.compile(
    r"(?P<month>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d) (?P<host>[\w.-]+) "
    r"(?=[\w./-]+(?:\[\d+\])?: )"
)
_GLOG = re.compile(
    r"\[?[EWFI](?P<month>\d{1,2}?)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)\.(?P<part>\d{3,9}) (?:\d+ )?[\w/.-]+:\d+\] ?"
)
_OLD_GLOG = re.compile(r"\[[EWFI] \w+\.\w+:\d+\] ?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# Each takes what it knows off the front; those that say least come last.
_FRONT: tuple[re.Pattern[str], ...] = (
    re.compile(r"\[rank(?P<rank>\d{1,6})\]:? ?"),
    re.compile(r"\[\d+,(?P<rank>\d{1,6})\]<(?:stdout|stderr|stddiag)>: ?"),  # mpirun --tag-output
    re.compile(r"\[RANK (?P<rank>\d{1,6})\] ?"),
    re.compile(r"\[(?:[a-zA-Z]\w*?)?(?P<local>\d{1,4})\]: ?(?=.*\S)"),  # torchrun --tee: the role and the local rank
    re.compile(r"\([\w.()]*?(?: rank=(?P<rank>\d{1,6}))? ?pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:-]+))?\) ?"),  # Ray
    re.compile(r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\] ?"),  # kubectl logs --prefix
    re.compile(r"(?:stdout|stderr) [FP] "),  # the container runtime's files, after the time
    re.compile(r"(?P<host>[a-z0-9][\w.-]*) +\| "),  # docker compose
    re.compile(r"(?P<host>[a-z0-9][\w.-]+) (?!kernel)[\w.-]+ (?=\d{4}-\d\d-\d\dT)"),  # stern: pod, container, time
    re.compile(r"(?:(?P<host>[a-zA-Z][\w.-]*) )?kernel: (?:\[ *\d+\.\d+\] )?"),
    re.compile(r"\[ *\d+\.\d{6}\] "),  # dmesg
    re.compile(r"\d\d:\d\d:\d\d[.,]\d+ "),
    re.compile(r"[\w.-]+ \[(?:stdout|stderr)\] "),
    re.compile(r"(?:- )?\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\]?(?: -|:)? "),
)
_LABEL = re.compile(r" {0,6}(?P<rank>\d{1,6}): ?")  # srun --label
_HOST_LABEL = re.compile(r"(?P<host>[a-zA-Z][\w.-]*\d[\w.-]*): ")  # pdsh, clush
_WITHIN = re.compile(r"\[rank(\d{1,6})\]:? ?")  # behind a progress bar
_NCCL = re.compile(r"(?:^|[\s\]:>])(?P<host>[A-Za-z0-9][\w.-]*):(?P<pid>\d+):\d+ \[(?P<device>-?\d+)\] ")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<group>\d+)(?: PG GUID (?P<guid>[^\s(\]]+))?\s*(?:\((?P<group_name>[^)]*)\))?"
    r"\s+Rank (?P<rank>\d+)\]"
)
_GROUP_RANK = re.compile(r"\[Rank (\d+)\]")


@dataclass(slots=True)
class Line:
    """One line; None: it does not say. `rank` is the global one, `group_rank` that in the group named."""

    text: str
    rank: int | None = None
    local: int | None = None  # rank on its host
    host: str | None = None
    pid: int | None = None
    at: float | None = None  # Unix time, taken for UTC where it names no zone
    group: str | None = None  # number of the process group, as torch names it
    group_name: str | None = None
    group_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Habits:
    """What holds for a whole file: what no single line can tell."""

    labels: bool = False  # srun --label: "3: text"
    hosts: bool = False  # "node01: text"
    year: int = 1970  # of times that have none
    month: int = 12  # the file was last written in: no line is of a later month of that year


def habits(head: str, written: float) -> Habits:
    """By the first lines of a file, and when it was last written (Unix time)."""
    lines = [line for line in head.splitlines()[:200] if line.strip()]
    many = max(3, len(lines) * 0.6)
    at = datetime.fromtimestamp(max(written, 0.0), timezone.utc)
    labels = sum(bool(_LABEL.match(line)) for line in lines) >= many
    hosts = [match["host"] for line in lines if (match := _HOST_LABEL.match(line))]
    return Habits(labels, len(hosts) >= many and len(set(hosts)) <= len(hosts) / 2, at.year, at.month)


def parse(raw: str, told: Habits) -> Line:
    """A line without what stands in front of it; the indentation of the rest is kept."""
    line = Line(ANSI.sub("", raw).rstrip() if "\x1b" in raw else raw.rstrip())
    for _ in range(MOST):
        rest = _peeled(line, told)
        if rest is None:
            break
        line.text = rest
    if line.rank is None and (within := _WITHIN.search(line.text)):
        line.rank, line.text = int(within[1]), line.text[within.end() :]
    if match := _GLOG.search(line.text[:300]):
        line.at = _of_year(int(match["month"]), match, told) or line.at
        line.text = line.text[match.end() :]
    elif match := _OLD_GLOG.match(line.text):
        line.text = line.text[match.end() :]
    if match := _NCCL.search(line.text[:300]):
        line.host, line.pid = line.host or match["host"], line.pid or int(match["pid"])
    if match := _GROUP.search(line.text):
        line.group = match["guid"] or match["group"]  # the number may be another one on each rank
        line.group_name, line.group_rank = match["group_name"], int(match["rank"])
    elif match := _GROUP_RANK.search(line.text):
        line.group_rank = int(match[1])
    return line


def _peeled(line: Line, told: Habits) -> str | None:
    """What is left after one prefix; None where there is none."""
    text = line.text
    if match := _ISO.match(text):
        line.at = line.at if line.at is not None else _iso(match)
        return text[match.end() :].removeprefix(" ")
    if match := _SYSLOG.match(text):
        month = _MONTHS.index(match["month"]) + 1 if match["month"] in _MONTHS else 0
        line.at, line.host = _of_year(month, match, told), line.host or match["host"]
        return text[match.end() :]
    for pattern in _FRONT:
        if match := pattern.match(text):
            _take(line, match.groupdict())
            return text[match.end() :]
    for holds, pattern in ((told.labels, _LABEL), (told.hosts, _HOST_LABEL)):
        if holds and (match := pattern.match(text)):
            _take(line, match.groupdict())
            return text[match.end() :]
    return None


def _take(line: Line, found: Mapping[str, str | None]) -> None:
    """What is known stays: the outermost prefix is the cluster's, the innermost the job's; ranks are the job's."""
    number: Callable[[str], int | None] = lambda name: int(value) if (value := found.get(name)) else None  # noqa: E731
    line.rank = number("rank") if found.get("rank") else line.rank
    line.local = number("local") if found.get("local") else line.local
    line.pid = line.pid if line.pid is not None else number("pid")
    line.host = line.host or found.get("host")


def _iso(match: re.Match[str]) -> float | None:
    zone = (match["zone"] or "Z").replace("Z", "+00:00")
    zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    try:
        moment = datetime.fromisoformat(f"{match['date'].replace('/', '-')}T{match['time']}{zone}")
        return moment.timestamp() + float(f"0.{match['part'] or 0}")
    except (ValueError, OverflowError):
        return None


def _of_year(month: int, match: re.Match[str], told: Habits) -> float | None:
    """The time of a line that has no year: that of the file, or the one before."""
    parts = match.groupdict()
    try:
        hour, minute, second = map(int, parts["time"].split(":"))
        year = told.year - (month > told.month)
        moment = datetime(year, month, int(parts["day"]), hour, minute, tzinfo=timezone.utc) + timedelta(seconds=second)
    except (ValueError, OverflowError):
        return None
    return moment.timestamp() + float(f"0.{parts.get('part') or 0}")
