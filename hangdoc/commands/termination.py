"""What ends hangdoc early: SIGTERM, SIGHUP and Ctrl-C, each within a second, whatever hangdoc waits for.

The first of them raises an exception in the main thread, so that what a command started is cleaned up. A second thread
ends the process where that takes too long, or where the main thread cannot take the signal: one that waits for a mount
that does not answer runs no Python code. Only a wait that not even SIGKILL interrupts goes on until it is over.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
CLEAN_S = 0.6  # for the cleaning up
LOOK_S = 0.2  # between looks for a signal that the main thread has not taken
AGAIN_S = 0.2


class Termination:
    """The handling of the signals that end this process; one a process, made by the main thread."""

    def __init__(self) -> None:
        self._code: int | None = None  # to end with; None: nothing ends us
        self._began_s = 0.0

    def install(self) -> None:
        """Handle the signals that are at their defaults: a nohup'ed process goes on ignoring SIGHUP."""
        handled = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
        for number in handled:
            signal.signal(number, self._stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            handled.append(signal.SIGINT)
            for number in (signal.SIGINT, signal.SIGALRM):
                signal.signal(number, self._interrupt)
        threading.Thread(target=self._watch, args=(handled,), name="ending", daemon=True).start()

    def leave_if_begun(self) -> None:
        """Exit at once where a signal has come, now that everything is cleaned up.

        The interpreter would wait for threads first, and CPython (seen with 3.11) ends itself by SIGINT, without the
        exit code, where the Ctrl-C that we caught struck within an `exec`, as `dataclass` uses it.
        """
        if self._code is None:
            return
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(self._code)

    def _begin(self, code: int) -> None:
        if self._code is None:
            self._code, self._began_s = code, time.monotonic()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Unwind, once: a second signal must not interrupt the cleaning up."""
        if self._code is None:
            self._begin(128 + number)
            sys.exit(128 + number)

    def _interrupt(self, number: int, frame: FrameType | None) -> NoReturn:
        """Ctrl-C. In an import CPython may drop the exception (a lock's weakref callback): then it comes once more."""
        self._begin(INTERRUPTED)
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, 0.0 if frame is None else AGAIN_S)
        raise KeyboardInterrupt

    def _watch(self, handled: list[int]) -> None:
        """The second thread. It takes a signal only where the main thread, whom the kernel prefers, has not."""
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        main = threading.main_thread().ident or 0
        while self._code is None or time.monotonic() - self._began_s < CLEAN_S:
            taken = signal.sigtimedwait(handled, LOOK_S)
            if taken is not None and self._code is None:
                self._begin(INTERRUPTED if taken.si_signo == signal.SIGINT else 128 + taken.si_signo)
                signal.pthread_kill(main, taken.si_signo)
        _end_children()
        os._exit(self._code)


def _end_children() -> None:
    """SIGTERM to those that are left: a job that a demo started tidies up by itself then."""
    from hangdoc.system import procfs

    for pid in procfs.children(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
