"""What an agent and its collector write each other: a JSON object a line.

The collector asks (`Command`), the agent answers (`Answer`) with what it saw. A part of a snapshot (a record, a target,
the frames of a stack) crosses once, in the answer that needs it first, and is named by a number from then on. Both
sides forget a part that no answer has named for `KEEP` answers: neither grows with time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from hangdoc import __version__
from hangdoc.evidence import End, Unseen, Variable
from hangdoc.evidence.limits import RANKS_MOST

SCHEMA = "hangdoc.agent/1"
KEEP = 16  # answers
# What a host may write. A rank takes some 40 KB at first and 5 KB a round (512 ranks: 20 MB, then 3 MB a round).
LINE_MOST = 32 << 20  # bytes of a line, and of all lines that answer one question
LINES_MOST = 256  # lines between two questions: an answer, pongs, and what a login shell greets with
ELEMENTS_MOST = 4 << 20  # elements of a line's objects and arrays
UNSEEN_MOST = 1024  # sentences in an answer
WHY_MOST = 400  # characters of one

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hello:
    """The agent's first line."""

    schema: str = SCHEMA
    hangdoc: str = __version__
    host: str = ""  # as the host calls itself
    token: str = ""  # of this agent alone; agents on the same kernel see it in its process name
    boot: str = ""  # boot ID of its kernel


@dataclass(frozen=True, slots=True)
class Own:
    """What of a command differs from host to host."""

    still: tuple[int, ...] = ()  # PIDs that stand still: native stacks of them are wanted
    skip: tuple[int, ...] = ()  # PIDs that another agent watches
    forget: tuple[int, ...] = ()  # PIDs whose job has ended
    peers: tuple[str, ...] = ()  # tokens of agents that claim processes of this host: does it show those agents?


@dataclass(frozen=True, slots=True)
class Command:
    """A line to the agent, or to several that hear the same. At the end of its input it ends."""

    do: str  # look | inspect | examine | peers | ping | stop
    id: int = 0
    own: dict[str, Own] = field(default_factory=dict)  # by the agent's token; by "" to the only one that hears it
    fresh: bool = False  # look for new ranks first
    ask: tuple[str, ...] = ()  # what the agent's probes may send (`probes.ASKABLE`)

    def of(self, token: str) -> Own:
        """What concerns one agent."""
        return self.own.get(token) or self.own.get("") or Own()


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping: the host is there, whatever its agent is busy with."""

    pong: bool = True


@dataclass(frozen=True, slots=True)
class Peers:
    """The answer to `peers`: of the tokens asked for, those of agents that this host shows."""

    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A rank in an answer; numbers stand for parts."""

    target: int
    alive: bool | None
    records: dict[str, int]
    exit: str | None = None
    end: End | None = None
    process: str = ""  # the same text for the same process, whoever sees it
    near: int = 0  # the more of its namespaces the agent shares, the larger


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent saw: a snapshot in parts."""

    to: int  # the command's id
    at_s: float
    time: str
    tier: str
    ranks: tuple[Seen, ...]
    records: dict[str, int] = field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()
    parts: dict[int, msgspec.Raw] = field(default_factory=dict)


def line(value: Any) -> bytes:
    """A message as its line, with the line end."""
    return msgspec.json.encode(value) + b"\n"


PING = line(Command("ping"))


def parse(text: bytes, kind: type[T]) -> T:
    """A line as the message it should be; raises ValueError where it is not."""
    if len(text) > LINE_MOST or (len(text) > ELEMENTS_MOST and text.count(b",") > ELEMENTS_MOST):
        raise ValueError("a line of impossible size")
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.MsgspecError as error:  # a ValueError itself only since msgspec 0.21
        raise ValueError(str(error)) from None


MOST = RANKS_MOST  # ranks of a group
SMALL, MEDIUM = 1 << 10, 1 << 14  # ranks of a group, of which so many are kept for all hosts: none more than 80 MB
Runs = tuple[tuple[int, int], ...]  # first and last of ascending numbers without a gap


@dataclass(frozen=True, slots=True)
class Code:
    """A frame without its variables: where equal code stands, this is equal."""

    function: str
    file: str
    line: int | None
    short: str
    native: bool


@dataclass(frozen=True, slots=True)
class ThreadForm:
    """A stack in parts."""

    tid: int
    name: str | None
    code: int  # of tuple[Code, ...]
    variables: dict[int, msgspec.Raw]  # tuple[Variable, ...], by the number of the frame; the others' were not seen
    holds_gil: bool
    active: bool
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class StacksForm:
    """Stacks in parts."""

    threads: tuple[ThreadForm, ...]
    native: bool
    python: str | None
    globals: tuple[Variable, ...] | None
    children: tuple[tuple[int, tuple[ThreadForm, ...]], ...]


@dataclass(frozen=True, slots=True)
class GroupForm:
    """A process group: its members as runs, for there may be thousands, on thousands of ranks."""

    address: int
    name: str
    ranks: Runs
    default: bool
    backend: str | None


@dataclass(frozen=True, slots=True)
class GroupsForm:
    """The process groups of a rank."""

    groups: tuple[GroupForm, ...]
    rank: int | None
    world_size: int | None
    local_rank: int | None
    master: str | None


def runs(numbers: Sequence[int]) -> Runs:
    """The numbers, in their order, as runs."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)


def members(folded: Runs) -> tuple[int, ...]:
    """The numbers of runs; raises ValueError for more than any job has."""
    size = length(folded)
    return _small(folded) if size <= SMALL else _medium(folded) if size <= MEDIUM else _large(folded)


def length(folded: Runs) -> int:
    """How many numbers there are; raises ValueError for more than any job has."""
    size = sum(last - first + 1 for first, last in folded)
    if size > MOST or any(last < first for first, last in folded):
        raise ValueError("a process group of impossible size")
    return size


@lru_cache(maxsize=2048)
def _small(folded: Runs) -> tuple[int, ...]:
    return _unfolded(folded)


@lru_cache(maxsize=128)
def _medium(folded: Runs) -> tuple[int, ...]:
    return _unfolded(folded)


@lru_cache(maxsize=2)
def _large(folded: Runs) -> tuple[int, ...]:
    return _unfolded(folded)


def _unfolded(folded: Runs) -> tuple[int, ...]:
    return tuple(number for first, last in folded for number in range(first, last + 1))
