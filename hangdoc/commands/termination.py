"""SIGTERM, SIGHUP and Ctrl-C end hangdoc within a second, even while it is blocked.

The first signal raises an exception in the main thread, so that commands clean up what they started. A second thread
ends the process if the cleanup takes too long, or if the main thread does not handle the signal:

* A thread blocked on a dead mount runs no Python code. Only an uninterruptible wait (state D) outlasts it.
* The handler in C may run just before the main thread begins to wait for a lock, or in another thread: then the wait is
  not interrupted, and the handler in Python runs after it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
CLEANUP_S = 0.6
POLL_S = 0.2  # between checks for a signal that the main thread has not taken
HANDLED_S = 0.1  # for the main thread to handle a signal that was taken
REPEAT_S = 0.2  # until Ctrl-C is raised again


class Termination:
    """Handlers for the signals that end this process; created once, by the main thread."""

    def __init__(self) -> None:
        self._code: int | None = None  # exit code; None: no signal yet
        self._began_s = 0.0
        self._unwinds = False  # SIGTERM or SIGHUP has raised its exception

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
        taken, take = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(take, warn_on_full_buffer=False)  # the handler in C writes the numbers of signals there
        threading.Thread(target=self._watch, args=(handled, taken), name="ending", daemon=True).start()

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
        self._begin(128 + number)
        if not self._unwinds:
            self._unwinds = True
            sys.exit(self._code)

    def _interrupt(self, number: int, frame: FrameType | None) -> NoReturn:
        """Ctrl-C. CPython may drop the exception during an import (weakref callback of a lock): raise it again then."""
        self._begin(INTERRUPTED)
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, 0.0 if frame is None else REPEAT_S)
        raise KeyboardInterrupt

    def _watch(self, handled: list[int], taken: int) -> None:
        """The second thread. The kernel prefers the main thread, so only signals that it cannot take arrive here.

        Such a signal wakes nobody else, but it stays in the queue of the process, from which a new wait takes it
        (complete_signal and dequeue_signal in kernel/signal.c). So this thread asks again and again. It does not wait
        in sigtimedwait: if a stop outlasts the timeout, CPython (seen with 3.11) returns a signal that nobody sent.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        while self._code is None:
            numbers: list[int] = []
            if select.select([taken], [], [], POLL_S)[0]:
                numbers += [number for number in os.read(taken, 512) if number in handled]
                time.sleep(HANDLED_S)
            if (pending := signal.sigtimedwait(handled, 0)) is not None:
                numbers.append(pending.si_signo)
            if numbers and self._code is None:
                self._wake(numbers[0])
        time.sleep(max(0.0, self._began_s + CLEANUP_S - time.monotonic()))
        _end_children()
        os._exit(self._code)

    def _wake(self, number: int) -> None:
        """Interrupt what the main thread waits for: it then handles the signal."""
        self._begin(INTERRUPTED if number == signal.SIGINT else 128 + number)
        signal.pthread_kill(threading.main_thread().ident or 0, number)


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
