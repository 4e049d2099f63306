"""One host of a fleet, as the collector knows it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from hangdoc.evidence import Snapshot, Target
from hangdoc.fleet.decoder import Reader


@dataclass(slots=True)
class Host:
    """Instants are the collector's."""

    name: str
    reader: Reader
    asked: int | None = None  # the command it has not answered yet
    put_s: float | None = None  # when that was put to it; None: not yet
    patience_s: float = 0.0  # how long the answer to it may take
    started: bool = False
    heard_s: float | None = None  # when it wrote a line last
    open_s: float | None = None  # when the first question was put that it has not answered, with anything
    question_s: float = 0.0  # when a question was put last
    shot: Snapshot | None = None  # the newest
    about: Mapping[Target, tuple[str, int]] = field(default_factory=dict)  # which process a rank in it is, how near
    named: dict[Target, Target] = field(default_factory=dict)  # as the agent names it -> as the fleet does
    news: bool = False  # since the last round
    lost: str | None = None  # why
    ended_s: float | None = None  # when its agent ended
    tries: int = 0
    version: str | None = None
    token: str = ""  # of its agent
    boot: str | None = None  # boot ID of its kernel, as its agent said first; None: it has not
    claims: dict[Target, str] = field(default_factory=dict)  # ranks that are not judged, and why
    peers: tuple[str, ...] = ()  # hosts: it was asked whether their agents run there as well
    stopped: bool = False  # it broke the rules and is ended: what it still writes is not heard
    barred: bool = False  # it flooded us: its agent is not started anew

    def question(self) -> None:
        self.question_s = time.monotonic()
        if self.started and self.open_s is None:
            self.open_s = self.question_s

    def put(self, patience_s: float) -> None:
        """The command is on its way."""
        self.question()
        self.put_s, self.patience_s = self.question_s, patience_s

    def free(self) -> None:
        """No command is open."""
        self.asked = self.put_s = None

    def late(self) -> bool:
        """It says that it is there, and the answer does not come: a probe takes long, or hangs."""
        return self.put_s is not None and time.monotonic() - self.put_s >= self.patience_s

    def silent_s(self) -> float:
        return 0.0 if self.open_s is None else time.monotonic() - self.open_s
