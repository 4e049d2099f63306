"""The daemon: starts the rounds in a thread, watches them, and answers the service manager.

The main thread does nothing that can block. It handles signals, and it gives up a thread whose round does not go on:
nothing ends a thread that is blocked in the kernel.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

from hangdoc.daemon.config import Config, load
from hangdoc.daemon.health import Steps
from hangdoc.daemon.log import Log
from hangdoc.daemon.node import Node
from hangdoc.daemon.notify import Notifier
from hangdoc.errors import HangdocError
from hangdoc.system import procfs

TICK_S = 1.0  # between two checks of the thread that runs the rounds
STOP_S = 3.0  # for the last round after SIGTERM
MAX_ABANDONED = 8  # threads; then only a restart helps
FAILED = 1  # exit code: the service manager starts the daemon again
STOP, RELOAD = "stop", "reload"


def run(path: Path | None, config: Config, root: Path, log: Log, notifier: Notifier) -> int:
    """Watch until SIGTERM or Ctrl-C; returns the exit code. Raises HangdocError if the daemon cannot start."""
    asked = _signals()
    steps = Steps()
    with Node(config, root, steps, log, notifier) as node:
        supervisor = _Supervisor(path, node, steps, log, notifier, asked)
        return supervisor.run()


def _signals() -> SimpleQueue[str]:
    """What signals ask for: SIGTERM and Ctrl-C to stop, SIGHUP to read the configuration again."""
    asked: SimpleQueue[str] = SimpleQueue()
    meaning = {signal.SIGTERM: STOP, signal.SIGINT: STOP, signal.SIGHUP: RELOAD}

    def ask(number: int, frame: FrameType | None) -> None:
        asked.put(meaning[signal.Signals(number)])

    for number in meaning:
        signal.signal(number, ask)
    return asked


class _Supervisor:
    """The main thread."""

    def __init__(
        self, path: Path | None, node: Node, steps: Steps, log: Log, notifier: Notifier, asked: SimpleQueue[str]
    ) -> None:
        self._path, self._node, self._steps = path, node, steps
        self._log, self._notifier, self._asked = log, notifier, asked
        self._stop = threading.Event()
        self._abandoned: list[threading.Thread] = []
        self._thread = self._start()

    def run(self) -> int:
        self._notifier.ready()
        while True:
            with suppress(Empty):
                what = self._asked.get(timeout=TICK_S)
                if what == STOP:
                    return self._end()
                self._reload()
            if not self._thread.is_alive():
                self._log.error("the rounds have ended with an error; the daemon ends, its incidents stay open")
                return FAILED
            step = self._steps.overdue(time.monotonic())
            if step and not self._give_up(step):
                return FAILED
            self._notifier.status(self._node.summary())

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._rounds, name="rounds", daemon=True)
        self._steps.hand_over(thread)
        thread.start()
        return thread

    def _rounds(self) -> None:
        try:
            self._node.rounds.run(self._stop)
        except Exception as error:
            self._log.error(f"too many rounds failed, the last with {type(error).__name__}: {error}")

    def _give_up(self, step: str) -> bool:
        """Abandon the thread that is blocked in this step, and start another; False: there are too many."""
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        self._abandoned.append(self._thread)
        self._log.error(f"{step} does not answer: its round is abandoned, the next one leaves out what blocked it")
        self._node.blocked(step)
        _end_children(self._thread)
        if len(self._abandoned) >= MAX_ABANDONED:
            self._log.error(f"{MAX_ABANDONED} rounds are blocked in the kernel; the daemon ends to be started again")
            return False
        self._thread = self._start()
        return True

    def _reload(self) -> None:
        """Read the configuration again; an invalid one changes nothing."""
        if self._path is None:
            self._log.notice("SIGHUP: there is no configuration file to read again; give one with --config")
            return
        self._notifier.reloading()
        try:
            self._node.configure(load(self._path))
            self._log.notice(f"SIGHUP: {self._path} is in effect")
        except HangdocError as error:
            for line in str(error).splitlines():
                self._log.error(line)
            self._log.error("SIGHUP: the configuration has errors, so the old one stays in effect")
        self._notifier.ready()

    def _end(self) -> int:
        self._notifier.stopping()
        self._stop.set()
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            self._log.warning("the last round does not end; it is abandoned")
            _end_children(self._thread)
        self._log.notice("stopped")
        return 0


def _end_children(thread: threading.Thread) -> None:
    """Kill what a blocked thread has started: only children of this thread of ours."""
    if thread.native_id is None:
        return
    for pid in procfs.children(os.getpid(), [thread.native_id]):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
