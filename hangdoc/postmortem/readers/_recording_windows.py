"""Of a long recording the looks that matter: its end, and what led to the last verdict of each job that holds still.

A day of looks is gigabytes of JSON. Of each line only who was seen and when is decoded, which costs a microsecond a
kilobyte; the rest stays text, and is dropped unless it lies in a window.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from hangdoc.recording.recorder import LEADS

ROUNDS = 120  # looks at a host, at the end of the recording
SHORTEST = 5  # of a host with however many ranks
LOOKS = 8_000  # at single ranks, together: as many as the live watch judges over
MOST_HOSTS = 16_384
MOST_JOBS = 16  # of which what led to a verdict is kept, and as many of which a rank died
DEATHS = 4  # looks of one job that were the last at a rank
WINDOW_TEXT = 48 * 2**20  # bytes of these
TOLD = 5  # earlier verdicts that are named

Rank = tuple[str, int]  # job, PID
T = TypeVar("T")


class _Target(msgspec.Struct):
    job: str = "none"
    pid: int = 0


class _Rank(msgspec.Struct):
    target: _Target
    alive: bool | None = None


class _Shot(msgspec.Struct):
    host: str
    time: str = ""
    ranks: list[_Rank] = []


class _Line(msgspec.Struct):
    snapshot: _Shot


@dataclass(frozen=True, slots=True)
class Told:
    """A verdict in a recording."""

    time: str  # of the look before it
    job: str
    status: str
    playbook: str | None  # of its best finding
    file: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A line with a look that is to be judged; `jobs`: only what it says of these, None: all."""

    number: int  # of the line, from the first of the recording
    place: str  # file and line
    text: bytes
    jobs: frozenset[str] | None


@dataclass(slots=True)
class _Window:
    """Looks at one job that are kept wherever they lie; `ranks`: whom they are about."""

    lines: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    ranks: set[Rank] = field(default_factory=set)

    @property
    def size(self) -> int:
        return sum(len(text) for _, text in self.lines.values())


@dataclass(slots=True)
class _Host:
    """The newest looks at one host."""

    looks: deque[tuple[int, str, bytes]]
    ranks: dict[Rank, bool | None] = field(default_factory=dict)  # in the newest of them, and whether each lives


class Windows:
    """Takes the lines of a recording in order; says at its end which of them are to be judged."""

    def __init__(self, most_text: int = WINDOW_TEXT) -> None:
        self.most_text = most_text  # bytes of lines at the end that are kept
        self.seen = 0  # looks
        self.first = self.last = ""  # when they were taken
        self.told: deque[Told] = deque(maxlen=TOLD)
        self._decoder = msgspec.json.Decoder(_Line)
        self._number = 0
        self._ranks = 0  # in the newest looks
        self._rounds = ROUNDS
        self._text = 0  # bytes of the newest looks
        self._hosts: dict[str, _Host] = {}
        self._verdicts: OrderedDict[str, _Window] = OrderedDict()
        self._deaths: OrderedDict[str, _Window] = OrderedDict()

    def add(self, text: bytes, file: str, line: int) -> None:
        """One line. Raises ValueError and RecursionError where it is damaged."""
        self._number += 1
        if text.startswith(b'{"snapshot"'):
            self._look(text, f"{file}:{line}")
            return
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("not an object")
        if "snapshot" in value:
            self._look(text, f"{file}:{line}")
        elif isinstance(verdict := value.get("verdict"), dict):
            self._verdict(verdict, file)
        elif isinstance(job := value.get("recovered"), str):
            self._verdicts.pop(job, None)

    def _look(self, text: bytes, place: str) -> None:
        shot = self._shot(text)
        self.seen += 1
        self.first, self.last = self.first or shot.time, shot.time or self.last
        ranks = {(rank.target.job, rank.target.pid): rank.alive for rank in shot.ranks}
        host = self._hosts.get(shot.host)
        if host is None:
            if len(self._hosts) == MOST_HOSTS:
                raise ValueError(f"looks at more than {MOST_HOSTS} hosts")
            host = self._hosts[shot.host] = _Host(deque(maxlen=self._rounds))
        before, host.ranks = host.ranks, ranks
        self._ranks += len(ranks) - len(before)
        self._shorten()
        died = {rank for rank, alive in ranks.items() if alive is False and before.get(rank, False) is not False}
        for job in {job for job, _ in died} if host.looks else ():
            number, where, last = host.looks[-1]
            window = self._deaths.setdefault(job, _Window())
            window.lines[number] = where, last
            window.ranks |= {rank for rank in died if rank[0] == job}
            if len(window.lines) > DEATHS:
                del window.lines[min(window.lines)]
            _trim(self._deaths, job)
        if len(host.looks) == host.looks.maxlen:
            self._text -= len(host.looks.popleft()[2])
        host.looks.append((self._number, place, text))
        self._text += len(text)
        while self._text > self.most_text and len(host.looks) > 1:
            self._text -= len(host.looks.popleft()[2])

    def _shot(self, text: bytes) -> _Shot:
        try:
            return self._decoder.decode(text).snapshot
        except msgspec.MsgspecError:  # NaN, which Python's json writes and others do not read; or damage
            return _converted(json.loads(text), _Line).snapshot

    def _shorten(self) -> None:
        """The more ranks there are, the fewer looks at each."""
        rounds = max(SHORTEST, LOOKS // max(self._ranks, 1))
        if rounds < self._rounds:
            self._rounds = rounds
            for host in self._hosts.values():
                host.looks = deque(host.looks, rounds)
            self._text = sum(len(text) for host in self._hosts.values() for _, _, text in host.looks)

    def _verdict(self, verdict: Mapping[str, Any], file: str) -> None:
        said = _converted(verdict, _Verdict)
        if said.status in ("healthy", "unknown"):
            return
        best = said.findings[0].playbook if said.findings else None
        self.told.append(Told(self.last, said.job.id, said.status, best, file))
        if said.status not in ("stalled", "failed"):
            return  # what is slow is judged over time: at the end of the recording as well as here
        lines = {number: (place, text) for host in self._hosts.values() for number, place, text in _newest(host, LEADS)}
        ranks = {rank for host in self._hosts.values() for rank in host.ranks if rank[0] == said.job.id}
        self._verdicts[said.job.id] = _Window(lines, ranks)
        _trim(self._verdicts, said.job.id)

    def kept(self) -> Iterator[Kept]:
        """The lines that are to be judged, in order."""
        at_end = {rank for host in self._hosts.values() for rank in host.ranks}
        found = {
            number: Kept(number, place, text, None)
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
                    mine = frozenset({job}) | (before.jobs if before and before.jobs else frozenset())
                    found[number] = Kept(number, place, text, mine)
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
    except msgspec.ValidationError as error:  # a ValueError itself only since msgspec 0.21
        raise ValueError(str(error)) from None


def _newest(host: _Host, count: int) -> Collection[tuple[int, str, bytes]]:
    return list(host.looks)[-count:]


def _trim(windows: OrderedDict[str, _Window], newest: str) -> None:
    """Drop the oldest windows until what is left is bounded; the newest stays."""
    windows.move_to_end(newest)
    while len(windows) > 1 and (
        len(windows) > MOST_JOBS or sum(window.size for window in windows.values()) > WINDOW_TEXT
    ):
        windows.popitem(last=False)
