"""The protocol between agent and collector: one JSON object per line.

The collector sends a `Command`; the agent replies with an `Answer`, a snapshot in parts. A part (a record, a target,
the frames of a stack) is sent once and then referred to by number. Both sides forget a part that no answer has used for
`KEEP` answers, so neither grows with time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from hangdoc import __version__
from hangdoc.evidence import End, Unseen, Variable
from hangdoc.evidence.limits import MAX_RANKS
from hangdoc.evidence.record import Record

SCHEMA = "hangdoc.agent/1"
KEEP = 16  # answers
# Limits of what a host may write. A rank takes 40 KB at first and 5 KB per round (512 ranks: 20 MB, then 3 MB).
MAX_LINE = 32 << 20  # bytes of a line, and of all lines for one question
MAX_LINES = 256  # lines between two questions: an answer, pongs, and a login banner
MAX_ELEMENTS = 4 << 20  # elements of the objects and arrays in a line
MAX_UNSEEN = 1024  # reasons in an answer
MAX_WHY = 400  # characters of a reason

T = TypeVar("T")


class Hello(Record, frozen=True, omit_defaults=False):
    """The agent's first line."""

    schema: str = SCHEMA
    hangdoc: str = __version__
    host: str = ""  # host name, as the host reports it
    token: str = ""  # unique to this agent; other agents on the same kernel see it as its process name
    boot: str = ""  # boot ID of its kernel


class HostArguments(Record, frozen=True):
    """The part of a command that differs between hosts."""

    still: tuple[int, ...] = ()  # PIDs of stalled ranks: take native stacks
    skip: tuple[int, ...] = ()  # PIDs that another agent watches
    forget: tuple[int, ...] = ()  # PIDs of jobs that have ended
    peers: tuple[str, ...] = ()  # tokens of agents that claim processes of this host: does it show them?


class Command(Record, frozen=True):
    """A line to one agent, or to several that share their input. The agent ends with its input."""

    do: str  # look | inspect | examine | peers | ping | stop
    id: int = 0
    own: Mapping[str, HostArguments] = {}  # by the agent's token; by "" for a single agent
    fresh: bool = False  # look for new ranks first
    ask: tuple[str, ...] = ()  # what the agent's probes may send over the network (`probes.ASKABLE`)

    def of(self, token: str) -> HostArguments:
        """The arguments for one agent."""
        return self.own.get(token) or self.own.get("") or HostArguments()


class Pong(Record, frozen=True, omit_defaults=False):
    """The answer to a ping: the host is up, even if its agent is busy."""

    pong: bool = True


class PeersAnswer(Record, frozen=True):
    """The answer to `peers`: the tokens of agents that this host shows, of those asked for."""

    peers: tuple[str, ...]


class RankEntry(Record, frozen=True):
    """A rank in an answer; records are part numbers."""

    target: int
    alive: bool | None
    records: dict[str, int]
    exit: str | None = None
    end: End | None = None
    process: str = ""  # identifies the process; equal for all agents that see it
    near: int = 0  # higher if the agent shares more namespaces with the process


class Answer(Record, frozen=True):
    """A snapshot in parts."""

    to: int  # ID of the command
    at_s: float
    time: str
    tier: str
    ranks: tuple[RankEntry, ...]
    records: Mapping[str, int] = {}
    unseen: tuple[Unseen, ...] = ()
    parts: Mapping[int, msgspec.Raw] = {}


def line(value: Any) -> bytes:
    """A message as a line, with its newline."""
    return msgspec.json.encode(value) + b"\n"


PING = line(Command("ping"))


def parse(text: bytes, kind: type[T]) -> T:
    """Decode a line. Raises ValueError if it is not a valid message of this type."""
    if len(text) > MAX_LINE or (len(text) > MAX_ELEMENTS and text.count(b",") > MAX_ELEMENTS):
        raise ValueError("a line that is too large")
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.MsgspecError as error:  # a ValueError itself only since msgspec 0.21
        raise ValueError(str(error)) from None


MAX_MEMBERS = MAX_RANKS  # ranks of a group
SMALL, MEDIUM = 1 << 10, 1 << 14  # ranks of a group, by cache size; no cache exceeds 80 MB
Ranges = tuple[tuple[int, int], ...]  # first and last of consecutive numbers


class FrameCode(Record, frozen=True):
    """A frame without its variables: equal on ranks at the same line."""

    function: str
    file: str
    line: int | None
    short: str
    native: bool


class ThreadForm(Record, frozen=True):
    """A stack in parts."""

    tid: int
    name: str | None
    code: int  # part: tuple[FrameCode, ...]
    variables: dict[int, msgspec.Raw]  # tuple[Variable, ...] by frame index; other frames: not read
    holds_gil: bool
    active: bool
    left_out: int = 0


class StacksForm(Record, frozen=True):
    """Stacks in parts."""

    threads: tuple[ThreadForm, ...]
    native: bool
    python: str | None
    globals: tuple[Variable, ...] | None
    children: tuple[tuple[int, tuple[ThreadForm, ...]], ...]


class GroupForm(Record, frozen=True):
    """A process group with its members as ranges: there may be thousands, on thousands of ranks."""

    address: int
    name: str
    ranks: Ranges
    default: bool
    backend: str | None


class GroupsForm(Record, frozen=True):
    """The process groups of a rank."""

    groups: tuple[GroupForm, ...]
    rank: int | None
    world_size: int | None
    local_rank: int | None
    master: str | None
    exists: bool | None = None


def to_ranges(numbers: Sequence[int]) -> Ranges:
    """The numbers, in their order, as ranges."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)


def from_ranges(ranges: Ranges) -> tuple[int, ...]:
    """The numbers in ranges. Raises ValueError for more than any job has."""
    size = range_length(ranges)
    return _small(ranges) if size <= SMALL else _medium(ranges) if size <= MEDIUM else _large(ranges)


def range_length(ranges: Ranges) -> int:
    """The count of numbers in ranges. Raises ValueError for more than any job has."""
    size = sum(last - first + 1 for first, last in ranges)
    if size > MAX_MEMBERS or any(last < first for first, last in ranges):
        raise ValueError("a process group that is too large")
    return size


@lru_cache(maxsize=2048)
def _small(ranges: Ranges) -> tuple[int, ...]:
    return _expand(ranges)


@lru_cache(maxsize=128)
def _medium(ranges: Ranges) -> tuple[int, ...]:
    return _expand(ranges)


@lru_cache(maxsize=2)
def _large(ranges: Ranges) -> tuple[int, ...]:
    return _expand(ranges)


def _expand(ranges: Ranges) -> tuple[int, ...]:
    return tuple(number for first, last in ranges for number in range(first, last + 1))
