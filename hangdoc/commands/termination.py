"""SIGTERM, SIGHUP and Ctrl-C end hangdoc within a second, even while it is blocked.

The first signal raises an exception in the main thread, so that commands clean up what they started. A second thread
ends the process if the cleanup takes too long, or if the main thread cannot handle the signal: a thread blocked on a
dead mount runs no Python code. Only an uninterruptible wait (state D) outlasts it.
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
CLEANUP_S = 0.6
POLL_S = 0.2  # between checks for a signal that the main thread has not handled
REPEAT_S = 0.2  # until Ctrl-C is raised again


class Termination:
    """Handlers for the signals that end this process; created once, by the main thread."""

    def __init__(self) -> None:
        self._code: int | None = None  # exit code; None: no signal yet
        self._began_s = 0.0

    def install(self) -> None:
        """Handle the signals that have their default handler: under nohup, SIGHUP stays ignored."""
        handled = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
        for number in handled:
            signal.signal(number, self._stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            handled.append(signal.SIGINT)
            for number in (signal.SIGINT, signal.SIGALRM):
                signal.signal(number, self._interrupt)
        sys.unraisablehook = _report_unraisable
        threading.Thread(target=self._watch, args=(handled,), name="ending", daemon=True).start()

    @property
    def begun(self) -> bool:
        """True after a signal."""
        return self._code is not None

    def leave_if_begun(self) -> None:
        """After a signal, exit at once; call it when the cleanup is done.

        A normal exit would wait for threads, and CPython (seen with 3.11) kills itself with SIGINT, losing the exit
        code, if the Ctrl-C arrived inside an `exec`, as in `dataclass`.
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
        """Unwind, once: a second signal must not interrupt the cleanup."""
        if self._code is None:
            self._begin(128 + number)
            sys.exit(128 + number)

    def _interrupt(self, number: int, frame: FrameType | None) -> NoReturn:
        """Ctrl-C. CPython may drop the exception during an import (weakref callback of a lock): raise it again then."""
        self._begin(INTERRUPTED)
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, 0.0 if frame is None else REPEAT_S)
        raise KeyboardInterrupt

    def _watch(self, handled: list[int]) -> None:
        """The second thread. The kernel prefers the main thread, so only unhandled signals arrive here.

        Such a signal wakes nobody else, but it stays in the queue of the process, from which a new wait takes it
        (complete_signal and dequeue_signal in kernel/signal.c). So this thread asks again and again. It does not wait
        in sigtimedwait: if a stop outlasts the timeout, CPython (seen with 3.11) returns a signal that nobody sent.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        main = threading.main_thread().ident or 0
        while self._code is None or time.monotonic() - self._began_s < CLEANUP_S:
            time.sleep(POLL_S)
            taken = signal.sigtimedwait(handled, 0)
            if taken is not None and self._code is None:
                self._begin(INTERRUPTED if taken.si_signo == signal.SIGINT else 128 + taken.si_signo)
                signal.pthread_kill(main, taken.si_signo)
        _end_children()
        os._exit(self._code)


def _report_unraisable(dropped: sys.UnraisableHookArgs) -> None:
    """Print no traceback for a signal that hits a finalizer or a weakref callback: the process ends all the same."""
    if not isinstance(dropped.exc_value, (KeyboardInterrupt, SystemExit)):
        sys.__unraisablehook__(dropped)


def _end_children() -> None:
    """Send SIGTERM to remaining children: a job started by the demo then cleans up by itself."""
    from hangdoc.system import procfs

    for pid in procfs.children(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
