"""What an agent and its collector write each other: a JSON object a line.

The collector asks (`Command`), the agent answers (`Answer`) with what it saw. A part of a snapshot (a record, a target,
the frames of a stack) crosses once, in the answer that needs it first, and is named by a number from then on. Both
sides forget a part that no answer has named for `KEEP` answers: neither grows with time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from hangdoc import __version__
from hangdoc.evidence import End, Unseen

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
