"""CPU time that a playbook may take: nothing that a user's rule or text does goes on for ever.

Rules and texts run in small steps (a round of a comprehension, a filter), none of which takes long; before each step
`check` asks whether there is time left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_end: ContextVar[float] = ContextVar("_end", default=math.inf)  # CPU seconds of this thread


class TooSlow(Exception):
    """The allowance is used up."""


@contextmanager
def allowance(seconds: float) -> Iterator[None]:
    """So much CPU time of this thread for what runs inside; TooSlow where it needs more."""
    token = _end.set(time.thread_time() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


def check() -> None:
    """Raise TooSlow where the allowance is used up."""
    if time.thread_time() > _end.get():
        raise TooSlow
