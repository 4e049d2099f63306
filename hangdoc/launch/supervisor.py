"""Runs a command as if hangdoc were not there, next to a process that watches it.

Three processes beside the command, all in the process group that the shell gave to hangdoc:

    supervisor       the process that the user started: passes signals on, and ends with the command's exit code
    +- watcher       the parent of the command: yama lets a process read its descendants only (ptrace_scope=1)
    |  +- command    has our streams, terminal, environment and process group
    +- witness       only receives signals: shows which ones were sent to the whole process group

The supervisor does nothing that can fail late. If the watcher dies, the kernel makes the supervisor, a subreaper, the
parent of the command (PR_SET_CHILD_SUBREAPER, Linux 3.4). If the supervisor is killed with SIGKILL, watcher and witness
end, and the command goes on.

Only what the command needs to start is imported here: the command starts before the watch is loaded.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import NoReturn

NOT_STARTED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127  # as of timeout(1) and shells
FAILED = 3  # exit code of a watcher that has reported its own failure
FINISH_S = 5.0  # for the watcher to report on a command that has ended
BROADCAST_S = 0.2  # for a signal to a whole process group, or to each process of a Slurm step, to reach the witness
STOP_POLL_S = (
    0.05  # between looks whether the command has stopped after Ctrl-Z; one that handles it stops later or never
)
_TICK_S = 0.005
_POLL_S = 0.2  # between checks of the command without pidfd_open(2) (Linux < 5.3)
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
# Slurm's --signal may send any of them. SIGTTIN and SIGTTOU stop the whole process group, and so us, by default.
_PASSED = (
    *_ENDING,
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)

# Each discards the other where it is pending (signal(7)), so the witness has the later one of both.
_OPPOSITES: Mapping[int, int] = {signal.SIGCONT: signal.SIGTSTP, signal.SIGTSTP: signal.SIGCONT}


@dataclass(slots=True)
class Command:
    """The command, as its watcher sees it."""

    pid: int
    ordered: int | None = None  # the last signal that asked it to end: from the user, the scheduler or the terminal
    ordered_s: float = 0.0  # when, time.monotonic()
    watched: Callable[[], object] = int  # call it once ranks are watched: from then on the end is worth a report


Watch = Callable[[Command], None]
Say = Callable[[str], None]


def supervise(command: tuple[str, ...], watch: Watch, say: Say, finish_s: float = FINISH_S) -> int:
    """Run a command; returns its exit code, 128+n if signal n ended it, 126 or 127 if it cannot be started.

    `watch` runs in a process of its own until it returns: at most `finish_s` longer than the command if it watches
    ranks, else no longer than the command. It reports its own failures.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    sys.stdout.flush()
    signals = _Signals()
    lifeline, ours = os.pipe()  # closed by the kernel when this process ends, however it ends
    heard, told = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        os.close(ours)
        _watch(command, watch, lifeline, told)
    os.close(told)
    answer, _, watched = os.read(heard, 64).partition(b"\n")
    kind, _, number = answer.partition(b" ")
    if kind != b"pid":
        os.waitpid(watcher, 0)
        return _not_started(command[0], int(number) if kind else None, say)
    return _Supervisor(int(number), watcher, signals, heard, bool(watched), lifeline, ours, finish_s, say).run()


# --- the watcher ----------------------------------------------------------------------------------


def _watch(command: tuple[str, ...], watch: Watch, lifeline: int, told: int) -> NoReturn:
    """Start the command and watch it; never returns, and never collects the command: its end is the supervisor's."""
    code = FAILED
    try:
        signal.set_wakeup_fd(-1)
        try:
            pid = _spawn(command)
        except OSError as error:
            os.write(told, b"errno %d\n" % (error.errno or errno.EIO))
            os._exit(0)
        os.write(told, b"pid %d\n" % pid)
        started = Command(pid, watched=partial(os.write, told, b"watched"))
        _heed(started)
        threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()
        watch(started)
        code = 0
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _spawn(command: tuple[str, ...]) -> int:
    """Start it with all that we inherited; Python ignores SIGPIPE and SIGXFSZ, which it must not inherit."""
    default = (signal.SIGPIPE, signal.SIGXFSZ)
    try:
        return os.posix_spawnp(command[0], command, os.environ, setsigdef=default)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return os.posix_spawnp("/bin/sh", ["/bin/sh", *command], os.environ, setsigdef=default)  # a script without #!


def _heed(command: Command) -> None:
    """Signals to the process group are for the command. Programs that we start get their default actions back."""

    def note(number: int, _: FrameType | None) -> None:
        if number in _ENDING:
            command.ordered, command.ordered_s = number, time.monotonic()

    for number in _PASSED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, note)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a verdict never stops the job, whatever `stty tostop` says


def _end_with(lifeline: int) -> NoReturn:
    """End when the supervisor has ended."""
    os.read(lifeline, 1)
    os._exit(FAILED)


# --- the supervisor -------------------------------------------------------------------------------


class _Signals:
    """Signals that arrive, in order. A signal that was ignored when we started stays so, for the command too."""

    def __init__(self) -> None:
        self.fd, writer = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (*_PASSED, signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, lambda number, frame: None)  # the wakeup descriptor gets its number

    def take(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self.fd, 4096)
        return b""


@dataclass(slots=True)
class _Supervisor:
    command: int
    watcher: int | None  # None: it has ended
    signals: _Signals
    heard: int  # the watcher writes to it once it watches ranks,
    watched: bool  # which it has done already
    lifeline: int
    ours: int
    finish_s: float
    say: Say
    witness: int | None = field(init=False)  # None: every signal is passed on
    broadcast: int = 0  # signals that earlier witnesses had besides those that were asked for, bit n-1 for signal n
    asked_to_stop: bool = False
    status: int | None = None  # wait status of the command, once it is ours to collect
    ended_s: float | None = None

    def run(self) -> int:
        self.witness = self._start_witness()
        poll = select.poll()
        poll.register(self.signals.fd, select.POLLIN)
        try:
            ending = os.pidfd_open(self.command)
            poll.register(ending, select.POLLIN)
        except (OSError, AttributeError):
            ending = -1
        while self.status is None or self.watcher is not None:
            for fd, _ in poll.poll(self._wait_ms(ending)):
                if fd == ending:
                    poll.unregister(ending)
            for number in self.signals.take():
                self._handle(number)
            self._stop_too()
            self._reap()
            self._finish()
        for number in _PASSED:
            signal.signal(number, signal.SIG_IGN)  # the exit code is that of the command from now on
        _end_witness(self.witness)
        return os.waitstatus_to_exitcode(self.status) if os.WIFEXITED(self.status) else 128 + os.WTERMSIG(self.status)

    def _wait_ms(self, ending: int) -> float | None:
        if self.ended_s is not None and self.watcher is not None:
            return max(0.0, self.ended_s + self.finish_s - time.monotonic()) * 1000
        if self.asked_to_stop:
            return STOP_POLL_S * 1000
        return _POLL_S * 1000 if ending < 0 else None

    def _handle(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if self.ended_s is not None:
            if number in _ENDING:
                self._end_watcher()  # asked again: do not wait for its report
            return
        if not self._was_broadcast(number):
            if number in _ENDING and self.watcher is not None:
                os.kill(self.watcher, number)  # first: it is to know that the end was ordered before it sees the end
            with suppress(OSError):  # `sudo` is not ours to signal
                os.kill(self.command, number)
        if number in _OPPOSITES:
            self.asked_to_stop = number == signal.SIGTSTP

    def _was_broadcast(self, number: int) -> bool:
        """True if the command got the signal as well: from the terminal, `kill %1`, Slurm or systemd."""
        until_s = time.monotonic() + BROADCAST_S
        looked_for = _bit(number) | _bit(_OPPOSITES.get(number, number))
        while not (pending := self.broadcast | _pending(self.witness)) & looked_for:
            if time.monotonic() > until_s:
                return False
            time.sleep(_TICK_S)
        old, self.witness = self.witness, self._start_witness()
        self.broadcast = (pending | _pending(old)) & ~_bit(number)  # Slurm sends SIGCONT and SIGTERM together
        _end_witness(old)
        return True

    def _start_witness(self) -> int | None:
        """A process in which every signal stays pending; None: the limit of processes is reached."""
        before = signal.pthread_sigmask(signal.SIG_SETMASK, _PASSED)
        try:
            witness = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return None
        if witness == 0:
            os.close(self.ours)
            os.read(self.lifeline, 1)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return witness

    def _stop_too(self) -> None:
        """After Ctrl-Z: stop once the command has stopped, so that the shell gets the terminal back."""
        if not self.asked_to_stop or _state(self.command) not in "Tt":
            return
        self.asked_to_stop = False
        for pid in (self.watcher, os.getpid()):
            if pid is not None:
                os.kill(pid, signal.SIGSTOP)
        if self.watcher is not None:  # here we are continued
            os.kill(self.watcher, signal.SIGCONT)

    def _reap(self) -> None:
        """Collect our children: the watcher, then the command that it leaves to us, and orphans of the command."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid == self.command:
                    self.status = status
                elif pid == self.watcher:
                    self.watcher = None
                    if os.WIFSIGNALED(status) and self.ended_s is None:
                        how = signal.strsignal(os.WTERMSIG(status)) or "a signal"
                        self.say(f"the watch has ended ({how}); the command goes on without it")
                elif pid == self.witness:
                    self.witness = None

    def _finish(self) -> None:
        """Once the command has ended: wait for the watcher's report, if there is something to report."""
        if self.ended_s is None and _state(self.command) in "ZX":
            self.ended_s = time.monotonic()
        if self.ended_s is None or self.watcher is None:
            return
        watched = self.watched or bool(select.select([self.heard], [], [], 0)[0])
        if not watched or time.monotonic() >= self.ended_s + self.finish_s:
            self._end_watcher()

    def _end_watcher(self) -> None:
        if self.watcher is not None:
            os.kill(self.watcher, signal.SIGKILL)


def _end_witness(pid: int | None) -> None:
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _bit(number: int) -> int:
    return 1 << (number - 1)


def _state(pid: int) -> str:
    """State of a process, as in proc_pid_stat(5); X: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read().rpartition(b")")[2].split()[0][0])
    except (OSError, IndexError):
        return "X"


def _pending(pid: int | None) -> int:
    """Signals that are pending for a process, bit n-1 for signal n; 0 without a process."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1], 16) for line in file if line.startswith("ShdPnd:")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _not_started(name: str, number: int | None, say: Say) -> int:
    if number is None:
        say(f"{name} was not started, because hangdoc failed; start it without hangdoc")
        return NOT_STARTED
    if number == errno.ENOENT:
        say(f"{name}: command not found")
        return NOT_FOUND
    say(f"{name}: {os.strerror(number)}")
    return NOT_EXECUTABLE
