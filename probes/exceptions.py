"""Probe `exceptions`: the exceptions that the threads of a rank handle, read from its memory.

Nothing runs in the process, and nothing pauses. In an EXAMINE alone: a rank that stands still in `except` or `finally`
still holds the exception that led there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hangdoc.evidence import Unseen
from hangdoc.evidence.stacks import Exceptions
from hangdoc.introspect.exceptions import handled_exceptions
from hangdoc.introspect.interpreter import find
from hangdoc.introspect.memory import Memory, Unreadable
from probes import Observation, Request, Tier


@dataclass(slots=True)
class ExceptionsProbe:
    name: str = "exceptions"
    scope: str = "rank"
    tier: Tier = Tier.EXAMINE
    needs: str = "ptrace"
    record: type = Exceptions
    order: int = 36
    steady: bool = False

    def observe(self, request: Request) -> Observation:
        by_pid: dict[int, Exceptions] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            memory = Memory(target.pid)
            try:
                interpreter = find(memory)
                if interpreter is not None:
                    by_pid[target.pid] = Exceptions(handled_exceptions(memory, interpreter, target.pid))
            except (Unreadable, struct.error) as error:
                why = f"its exceptions could not be read this time ({error})"
                unseen.append(Unseen(self.name, why, rank=target.rank, pid=target.pid, host=target.host))
        return Observation(by_pid, unseen=tuple(unseen))


PROBE = ExceptionsProbe()
