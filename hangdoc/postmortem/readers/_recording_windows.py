"""Selects the looks to judge in a long recording: its end, and those before the last verdict of unrecovered jobs.

A day of looks is gigabytes of JSON. Only ranks and times of each line are decoded, at 1 us per kB; lines outside the
windows are dropped as text.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from hangdoc.recording.recorder import LEADS

ROUNDS = 120  # looks per host at the end of the recording
FEWEST_ROUNDS = 5  # per host, however many ranks it has
MAX_RANK_LOOKS = 8_000  # looks times ranks, as in a live watch
MAX_HOSTS = 16_384
MAX_JOBS = 16  # with a window before a verdict; as many with a window before a rank's death
MAX_LAST_LOOKS = 4  # per job: last looks at dead ranks
WINDOW_TEXT = 48 * 2**20  # bytes in these windows
MAX_VERDICTS = 5  # earlier verdicts in the message

Rank = tuple[str, int]  # job, PID
T = TypeVar("T")


class _Target(msgspec.Struct):
    job: str = "none"
    pid: int = 0


class _Rank(msgspec.Struct):
    target: _Target
    alive: bool | None = None


class _SnapshotHead(msgspec.Struct):
    host: str
    time: str = ""
    ranks: list[_Rank] = []


class _SnapshotLine(msgspec.Struct):
    snapshot: _SnapshotHead


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """A verdict in a recording."""

    time: str  # time of the look before it
    job: str
    status: str
    playbook: str | None  # of the first finding
    file: str


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A line with a look to judge; `jobs`: only ranks of these jobs, None: all."""

    number: int  # line number in the whole recording
    place: str  # file and line
    text: bytes
    jobs: frozenset[str] | None


@dataclass(slots=True)
class _Window:
    """Looks at one job, kept wherever they are in the recording; `ranks`: the ranks in question."""

    lines: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    ranks: set[Rank] = field(default_factory=set)

    @property
    def size(self) -> int:
        return sum(len(text) for _, text in self.lines.values())


@dataclass(slots=True)
class _Host:
    """The newest looks at one host."""

    looks: deque[tuple[int, str, bytes]]
    ranks: dict[Rank, bool | None] = field(default_factory=dict)  # in the newest look: rank -> alive


class Windows:
    """Takes the lines of a recording in order; `kept` returns those to judge."""

    def __init__(self, most_text: int = WINDOW_TEXT) -> None:
        self.most_text = most_text  # bytes of lines kept at the end
        self.seen = 0  # looks
        self.first = self.last = ""  # times of the looks
        self.verdicts: deque[PastVerdict] = deque(maxlen=MAX_VERDICTS)
        self._decoder = msgspec.json.Decoder(_SnapshotLine)
        self._number = 0
        self._ranks = 0  # total in the newest looks
        self._rounds = ROUNDS
        self._text = 0  # bytes of the newest looks
        self._hosts: dict[str, _Host] = {}
        self._verdicts: OrderedDict[str, _Window] = OrderedDict()
        self._deaths: OrderedDict[str, _Window] = OrderedDict()

    def add(self, text: bytes, file: str, line: int) -> None:
        """Add a line. Raises ValueError or RecursionError if it is damaged."""
        self._number += 1
        if text.startswith(b'{"snapshot"'):
            self._add_look(text, f"{file}:{line}")
            return
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("not an object")
        if "snapshot" in value:
            self._add_look(text, f"{file}:{line}")
        elif isinstance(verdict := value.get("verdict"), dict):
            self._add_verdict(verdict, file)
        elif isinstance(job := value.get("recovered"), str):
            self._verdicts.pop(job, None)

    def _add_look(self, text: bytes, place: str) -> None:
        shot = self._parse_snapshot(text)
        self.seen += 1
        self.first, self.last = self.first or shot.time, shot.time or self.last
        ranks = {(rank.target.job, rank.target.pid): rank.alive for rank in shot.ranks}
        host = self._hosts.get(shot.host)
        if host is None:
            if len(self._hosts) == MAX_HOSTS:
                raise ValueError(f"looks at more than {MAX_HOSTS} hosts")
            host = self._hosts[shot.host] = _Host(deque(maxlen=self._rounds))
        before, host.ranks = host.ranks, ranks
        self._ranks += len(ranks) - len(before)
        self._limit_rounds()
        died = {rank for rank, alive in ranks.items() if alive is False and before.get(rank, False) is not False}
        for job in {job for job, _ in died} if host.looks else ():
            number, where, last = host.looks[-1]
            window = self._deaths.setdefault(job, _Window())
            window.lines[number] = where, last
            window.ranks |= {rank for rank in died if rank[0] == job}
            if len(window.lines) > MAX_LAST_LOOKS:
                del window.lines[min(window.lines)]
            _trim(self._deaths, job)
        if len(host.looks) == host.looks.maxlen:
            self._text -= len(host.looks.popleft()[2])
        host.looks.append((self._number, place, text))
        self._text += len(text)
        while self._text > self.most_text and len(host.looks) > 1:
            self._text -= len(host.looks.popleft()[2])

    def _parse_snapshot(self, text: bytes) -> _SnapshotHead:
        try:
            return self._decoder.decode(text).snapshot
        except msgspec.MsgspecError:  # damage, or NaN, which only Python's json reads
            return _converted(json.loads(text), _SnapshotLine).snapshot

    def _limit_rounds(self) -> None:
        """Lower the number of looks per host as the number of ranks grows."""
        rounds = max(FEWEST_ROUNDS, MAX_RANK_LOOKS // max(self._ranks, 1))
        if rounds < self._rounds:
            self._rounds = rounds
            for host in self._hosts.values():
                host.looks = deque(host.looks, rounds)
            self._text = sum(len(text) for host in self._hosts.values() for _, _, text in host.looks)

    def _add_verdict(self, verdict: Mapping[str, Any], file: str) -> None:
        found = _converted(verdict, _Verdict)
        if found.status in ("healthy", "unknown"):
            return
        job = found.job.id
        playbook = found.findings[0].playbook if found.findings else None
        self.verdicts.append(PastVerdict(self.last, job, found.status, playbook, file))
        if found.status not in ("stalled", "failed"):
            return  # slowness is judged over time; the end of the recording shows it as well
        hosts = self._hosts.values()
        lines = {number: (place, text) for host in hosts for number, place, text in _newest_lines(host, LEADS)}
        ranks = {rank for host in hosts for rank in host.ranks if rank[0] == job}
        self._verdicts[job] = _Window(lines, ranks)
        _trim(self._verdicts, job)

    def kept(self) -> Iterator[KeptLine]:
        """The lines to judge, in order."""
        at_end = {rank for host in self._hosts.values() for rank in host.ranks}
        found = {
            number: KeptLine(number, place, text, None)
            for host in self._hosts.values()
            for number, place, text in host.looks
        }
        jobs = {job for job, _ in at_end}
        windows = [
            *((job, window) for job, window in self._deaths.items() if window.ranks & at_end),
            *((job, window) for job, window in self._verdicts.items() if job not in jobs or window.ranks & at_end),
        ]
        for job, window in windows:
            for number, (place, text) in window.lines.items():
                before = found.get(number)
                if before is None or before.jobs is not None:
                    jobs_kept = frozenset({job}) | (before.jobs if before and before.jobs else frozenset())
                    found[number] = KeptLine(number, place, text, jobs_kept)
        return iter([found[number] for number in sorted(found)])


class _Playbook(msgspec.Struct):
    playbook: str


class _Job(msgspec.Struct):
    id: str = "none"


class _Verdict(msgspec.Struct):
    status: str
    job: _Job
    findings: list[_Playbook] = []


def _converted(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:  # a ValueError only since msgspec 0.21
        raise ValueError(str(error)) from None


def _newest_lines(host: _Host, count: int) -> Collection[tuple[int, str, bytes]]:
    return list(host.looks)[-count:]


def _trim(windows: OrderedDict[str, _Window], newest: str) -> None:
    """Drop the oldest windows until the rest fits the limits; keep the newest."""
    windows.move_to_end(newest)
    while len(windows) > 1 and (
        len(windows) > MAX_JOBS or sum(window.size for window in windows.values()) > WINDOW_TEXT
    ):
        windows.popitem(last=False)
