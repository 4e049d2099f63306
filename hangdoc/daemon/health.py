"""Whether the daemon works: fed by finished rounds and by nothing else. systemd and `/healthz` learn it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hangdoc.daemon.notify import Notifier

STEP_S = 30.0  # one step of a round: longer than every deadline inside; then the round is abandoned
STALE_S = 60.0  # without a finished round, the daemon is unhealthy


class Abandoned(BaseException):
    """Raised in a thread that was given up when it finally goes on; not an Exception, so that nothing handles it."""


class Steps:
    """What the thread that runs the rounds is doing, for the thread that watches it."""

    def __init__(self) -> None:
        self.owner: threading.Thread | None = None
        self._running: tuple[str, float] | None = None  # the innermost step, and when it began

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """One step of a round. Raises Abandoned if the round was given up meanwhile."""
        self.check()
        outer, self._running = self._running, (what, time.monotonic())
        try:
            yield
        finally:
            self.check()
            self._running = outer and (outer[0], time.monotonic())

    def check(self) -> None:
        """Raises Abandoned if another thread runs the rounds now."""
        if threading.current_thread() is not self.owner:
            raise Abandoned

    def hand_over(self, thread: threading.Thread) -> None:
        """From now on, `thread` runs the rounds."""
        self.owner, self._running = thread, None

    def overdue(self, now_s: float) -> str | None:
        """The step that takes longer than STEP_S; None: all is well."""
        running = self._running
        return running[0] if running and now_s - running[1] > STEP_S else None


class Liveness:
    """When the last round finished, and what has blocked one."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._finished_s = time.monotonic()
        self._blocked: str | None = None
        self.rounds = 0

    def finished(self) -> None:
        """A round has finished."""
        self._finished_s, self._blocked = time.monotonic(), None
        self.rounds += 1
        self._notifier.alive()

    def blocked(self, what: str) -> None:
        """A round was abandoned in this step."""
        self._blocked = what

    def trouble(self) -> str:
        """Why the daemon is unhealthy, for `/healthz`; empty while rounds finish."""
        age_s = time.monotonic() - self._finished_s
        if self._blocked is not None:
            return f"blocked: {self._blocked} does not answer"
        if not self.rounds:
            return "starting: no round has finished yet"
        return f"no round has finished for {age_s:.0f} s" if age_s >= STALE_S else ""
