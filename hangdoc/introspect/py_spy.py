"""py-spy as a library: a dump of one process, or one sentence why there is none; and native dumps.

py-spy has no Python API; it is a binary next to the interpreter or on the PATH. Every call has a deadline, even if
py-spy cannot be killed: one that is blocked on a dead mount is left behind.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import msgspec

from hangdoc.introspect import _ptrace_guard, deep_stacks
from hangdoc.introspect.frames import trim_frames
from hangdoc.redaction.text import redact_text
from hangdoc.system import procfs
from hangdoc.system.permissions import remedy

ATTEMPTS = 3  # a nonblocking dump of a running process sometimes reads a torn structure
RETRY_S = 1.0  # torn reads fail at once; later failures would fail again
TIMEOUT_S = 5.0  # measured 5-12 ms, longer on an oversubscribed host
NATIVE_TIMEOUT_S = 8.0  # measured 0.15-0.7 s, mostly for symbols, read before py-spy pauses the process
PAUSE_S = 2.0  # longest pause within that time; measured 0.02-0.12 s with torch on a busy host
TOUCH_S = 2.0  # to touch the executed files of the process first; measured 0.01 s
MAX_BYTES = 64 << 20  # of a dump; measured 4 KB per thread, 400 bytes per frame

RESUMED_S = 0.2  # for threads to go back into their system calls after a pause
_TICK_S = 0.02  # interval of checks whether the process is paused and whether we were interrupted
_EXIT_S = 0.5  # for a killed py-spy to exit
_STDERR_BYTES = 1 << 16  # kept
_WORKERS = 4  # each takes 110 MB for the symbols of libtorch, and a core while it pauses the rank
_BUDGET_S = 2.0  # in a round; no dump starts after it
_FIELDS = {"thread_id", "thread_name", "os_thread_id", "active", "owns_gil", "frames"}

Dump = list[dict[str, Any]]  # py-spy's JSON


class Refused(Exception):
    """No dump; the message is one sentence for the user, with the remedy."""


class _Torn(Refused):
    """A torn read; another attempt may succeed."""


class _Denied(Refused):
    """py-spy may not read the process. With yama we may, if we are an ancestor of it: `hangdoc watch -- COMMAND`."""


class Beyond(list[dict[str, Any]]):
    """A dump of a process that py-spy cannot read, without variables and native frames."""

    def __init__(self, found: deep_stacks.Deep, why: str) -> None:
        super().__init__(found.threads)
        self.why = why  # part of a sentence


class PySpy:
    """The binary and its running dumps.

    `stuck`: killed dumps that have not exited, by the PID of their target. Such a target is refused until its dump
    exits.
    """

    def __init__(self, binary: str, stuck: dict[int, subprocess.Popen[bytes]] | None = None) -> None:
        self._binary = binary
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stuck = {} if stuck is None else stuck
        self._ended = False

    def dump(self, pid: int) -> list[dict[str, Any]]:
        """All Python threads of `pid` with locals, in py-spy's JSON format. Does not pause the process.

        Returns `Beyond` if it has more threads or frames than py-spy reads, or if only we may read it. Raises Refused.
        """
        if len(procfs.numbers(f"/proc/{pid}/task")) > deep_stacks.MAX_THREADS and (found := _beyond(pid)):
            return found
        until_s = time.monotonic() + RETRY_S
        for attempt in range(ATTEMPTS):
            try:
                dump = self._run(self._command("--nonblocking", pid), pid, TIMEOUT_S, pauses=False)
                if attempt == 0 and _is_cut(dump):
                    continue
                return dump
            except _Denied:
                if found_here := deep_stacks.read(pid):
                    return Beyond(
                        found_here, "yama lets hangdoc read it, but not py-spy: its stacks are without variables"
                    )
                raise
            except _Torn:
                if attempt == 0 and (found := _beyond(pid)):
                    return found
                if attempt == ATTEMPTS - 1 or time.monotonic() > until_s:
                    raise
        raise AssertionError("unreachable")

    def dump_native(self, pid: int) -> list[dict[str, Any]]:
        """As `dump`, with native frames. Pauses the process for at most PAUSE_S: only for one that has stopped.

        The pause ends with us, however we end: see `_ptrace_guard`. Raises Refused.
        """
        guard = [sys.executable, "-I", "-S", _ptrace_guard.__file__, str(os.getpid()), str(NATIVE_TIMEOUT_S), str(pid)]
        return self._run([*guard, *self._command("--native", pid)], pid, NATIVE_TIMEOUT_S, pauses=True)

    def end(self) -> None:
        """Kill all dumps, from any thread; they, and later ones, raise Refused.

        py-spy 0.4 attaches with PTRACE_SEIZE, which sends no signal: killed midway it leaves nothing stopped.
        """
        self._ended = True
        for process in tuple(self._running):
            process.kill()

    def _command(self, how: str, pid: int) -> list[str]:
        # --full-filenames: to shorten names py-spy looks for __init__.py beside each file, and blocks on a dead mount.
        return [self._binary, "dump", "--json", "--locals", "--full-filenames", how, "--pid", str(pid)]

    def _run(self, command: Sequence[str], pid: int, timeout_s: float, pauses: bool) -> list[dict[str, Any]]:
        if (stuck := self._stuck.get(pid)) is not None and stuck.poll() is None:
            raise Refused(_blocked(pid))
        try:
            # Its own session: Ctrl-C on our terminal reaches only us.
            process = subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True)
        except OSError as error:
            raise Refused(f"py-spy could not be started ({error}); reinstall it: `pip install py-spy`") from None
        self._running.add(process)
        self._stuck.pop(pid, None)
        try:
            if self._ended:  # meanwhile
                process.kill()
            out, err = self._answer(process, pid, timeout_s, pauses)
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Refused(f"py-spy closed its output for PID {pid} but did not exit; reinstall it") from None
        finally:
            self._running.discard(process)
            if not _ended(process):
                self._stuck[pid] = process
                raise Refused(_blocked(pid))
        if self._ended:
            raise Refused(f"the dump of PID {pid} was interrupted")
        return _threads(process.returncode, bytes(out), bytes(err), pid)

    def _answer(
        self, process: subprocess.Popen[bytes], pid: int, timeout_s: float, pauses: bool
    ) -> tuple[bytearray, bytearray]:
        """Its stdout and stderr. Raises Refused if it writes too much, takes too long, or pauses too long."""
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = bytearray(), bytearray()
        touched_s, until_s, paused = time.monotonic() + TOUCH_S, time.monotonic() + timeout_s, False
        with selectors.DefaultSelector() as pipes:
            pipes.register(process.stdout, selectors.EVENT_READ, out)
            pipes.register(process.stderr, selectors.EVENT_READ, err)
            while pipes.get_map() and not self._ended:
                for key, _ in pipes.select(_TICK_S):
                    piece = os.read(key.fd, 1 << 18)
                    if not piece:
                        pipes.unregister(key.fileobj)
                    elif key.data is out or len(err) < _STDERR_BYTES:
                        key.data.extend(piece)
                now_s = time.monotonic()
                if pauses and not paused and _traces(process.pid, pid):
                    until_s, paused = min(until_s, now_s + PAUSE_S), True
                if pauses and not paused and now_s > touched_s and _ptrace_guard.is_touching(process.pid):
                    raise Refused(_blocked(pid))
                if len(out) > MAX_BYTES:
                    raise Refused(f"the stacks of PID {pid} exceed {MAX_BYTES >> 20} MiB")
                if now_s > until_s:
                    raise Refused(_late(pid, PAUSE_S if paused else timeout_s, paused))
        return out, err


def _is_cut(dump: Dump) -> bool:
    """True if the stack of a running main thread does not reach its root: it returned while its frames were read.

    Measured with torch 2.13 and CPython 3.11: one dump in 300 of a rank that computes.
    """
    main = next((thread for thread in dump if thread["thread_name"] == "MainThread"), None)
    if main is None or not main["active"]:
        return False
    return not any(frame["name"] == "<module>" or "runpy" in (frame["filename"] or "") for frame in main["frames"][-1:])


def _beyond(pid: int) -> Beyond | None:
    found = deep_stacks.read(pid)
    return Beyond(found, found.why) if found and found.why else None


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Kill it. False: it has not exited after _EXIT_S, blocked uninterruptibly."""
    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _traces(debugger: int, pid: int) -> bool:
    return procfs.status(pid).get("TracerPid") == str(debugger)


def _late(pid: int, limit_s: float, paused: bool) -> str:
    late = "took more than" if paused else "did not answer within"
    return f"py-spy {late} {limit_s:g} s for PID {pid}; try again when the host is less busy"


def _blocked(pid: int) -> str:
    return f"py-spy is blocked on a file of PID {pid}: a mount does not answer; see `dmesg` and the mount's server"


def in_parallel(spy: PySpy, look: Callable[[int], Any], pids: Sequence[int], workers: int) -> dict[int, Any]:
    """For each process, what `look` (which uses `spy`) returned or raised.

    After Ctrl-C no process is paused when this returns.
    """
    if not pids:
        return {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            futures = {pid: pool.submit(look, pid) for pid in pids}
            wait(futures.values())
        except BaseException:
            spy.end()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {pid: future.exception() or future.result() for pid, future in futures.items()}


def _threads(returncode: int, out: bytes, err: bytes, pid: int) -> list[dict[str, Any]]:
    """py-spy's JSON, checked, the ends of each stack (`left_out`: frames between them). Raises Refused."""
    if returncode != 0:
        raise _refusal(pid, err.decode(errors="replace"))
    try:
        # Thread by thread: as Python objects JSON takes ten times as much memory.
        threads = [_shortened(msgspec.json.decode(one)) for one in msgspec.json.decode(out, type=list[msgspec.Raw])]
    except (ValueError, msgspec.MsgspecError):
        raise _Torn(f"py-spy wrote no JSON for PID {pid}; check `py-spy --version` (0.4 or later)") from None
    if not threads:
        raise _Torn(f"py-spy saw no Python thread in PID {pid}: its interpreter is starting or ending")
    if not all(isinstance(thread, dict) and thread.keys() >= _FIELDS for thread in threads):
        raise Refused("this version of py-spy writes other fields than 0.4 does: `pip install 'py-spy>=0.4,<0.5'`")
    return threads


def _shortened(thread: Any) -> Any:
    if not isinstance(thread, dict) or not isinstance(thread.get("frames"), list):
        return thread
    frames, left_out = trim_frames(thread["frames"])
    return {**thread, "frames": frames, "left_out": left_out}


def _refusal(pid: int, stderr: str) -> Refused:
    """One sentence from py-spy's message, without the Rust backtrace."""
    state = _state(pid)
    if state is None:
        return Refused(f"PID {pid} has ended")
    if state in "ZX":
        return Refused(f"PID {pid} is a zombie: it has ended and its parent has not collected it")
    if re.search(r"permission denied|operation not permitted|eperm|eacces", stderr, re.IGNORECASE):
        return _Denied(f"reading PID {pid} was refused{_refusal_reason(pid)}")
    if "Failed to find python version" in stderr or "python interpreter" in stderr:
        # Also the message for a process that has just started, or whose memory changed meanwhile.
        return _Torn(f"PID {pid} is not a Python process, or its interpreter is still starting or unknown to py-spy")
    reason = re.sub(r"\s+", " ", stderr.split("Stack backtrace:")[0]).strip().removeprefix("Error: ")
    reason = redact_text(reason)
    return _Torn(f"py-spy could not read PID {pid}: {reason[:160] or 'no reason given'}; try again, or update py-spy")


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def _refusal_reason(pid: int) -> str:
    """Why a process may not be read, if known, and the remedy."""
    try:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        tracer, owner = int(status["TracerPid"]), int(status["Uid"].split()[0])
    except (OSError, ValueError, KeyError):
        tracer, owner = 0, -1
    if tracer:
        return f": PID {tracer} is debugging it; end that debugger"
    if os.geteuid() not in (0, owner):
        return f": it belongs to user {owner}; {remedy(pid)}"
    try:
        yama = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        yama = 0
    if yama and os.geteuid() != 0:
        return ": yama forbids ptrace; run hangdoc as root, or `sysctl kernel.yama.ptrace_scope=0`"
    return f"; {remedy(pid)}"


# --- native dumps --------------------------------------------------------------------------------


class NativeDumps:
    """Takes native dumps. They pause the rank, so a dump is reused until one of its threads runs again."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[dict[int, str], Dump]] = {}

    def take(
        self, spy: PySpy, pids: Sequence[int], dumps: Mapping[int, Dump | Exception]
    ) -> dict[int, Dump | Exception]:
        """A native dump, or the exception, for the processes in `pids` that may be paused; distinct stacks first.

        `dumps`: their plain dumps. When the time is up, ranks with the same Python stacks as others are left out.
        """
        self._kept = {
            pid: (runs, dump)
            for pid, (runs, dump) in self._kept.items()
            if runs == _runs(pid, dump) and _place(dump) == _place(dumps.get(pid, dump))
        }
        wanted = [pid for pid in pids if pid not in self._kept and _may_pause(pid)]
        deadline = time.monotonic() + _BUDGET_S

        def dump_in_time(pid: int) -> Dump | None:
            return spy.dump_native(pid) if time.monotonic() < deadline else None

        found = in_parallel(spy, dump_in_time, _rarest_first(wanted, dumps), min(_WORKERS, os.cpu_count() or 1))
        _await_rest([pid for pid, dump in found.items() if isinstance(dump, list)])
        for pid, dump in found.items():
            if isinstance(dump, list) and (runs := _runs(pid, dump)):
                self._kept[pid] = runs, dump
        taken = {pid: dump for pid, dump in found.items() if dump is not None}
        return taken | {pid: dump for pid, (_, dump) in self._kept.items() if pid in pids}


def _may_pause(pid: int) -> bool:
    """True if ptrace can stop every thread: with one in D the others would be paused for long, T and t are stopped."""
    states = _states(pid)
    return bool(states) and not states & set("DTtZX")


def _states(pid: int) -> set[str]:
    """The states of all threads; empty: unknown."""
    try:
        return {
            (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{pid}/task").iterdir()
        }
    except (OSError, IndexError):
        return set()


def _await_rest(pids: Sequence[int]) -> None:
    """Waits until the threads sleep again that the pauses have woken, for RESUMED_S at most in all.

    A thread that was paused runs for a moment to go back into its system call. On a busy host it may do so only after
    py-spy has ended, and would then seem to have run by itself.
    """
    until_s = time.monotonic() + RESUMED_S
    while any("R" in _states(pid) for pid in pids) and time.monotonic() < until_s:
        time.sleep(_TICK_S)


def _runs(pid: int, dump: Dump) -> dict[int, str]:
    """schedstat of each thread of a dump, by TID; empty: unknown."""
    try:
        return {
            tid: Path(f"/proc/{pid}/task/{tid}/schedstat").read_text()
            for tid in (thread["os_thread_id"] or 0 for thread in dump)
        }
    except OSError:
        return {}


def _rarest_first(pids: Sequence[int], dumps: Mapping[int, Dump | Exception]) -> list[int]:
    """One process of each set with equal Python stacks, then the second of each, and so on."""
    places = {pid: _place(dumps.get(pid)) for pid in pids}
    before: Counter[Any] = Counter()
    turns = {}
    for pid in pids:
        turns[pid] = before[places[pid]]
        before[places[pid]] += 1
    return sorted(pids, key=lambda pid: (turns[pid], before[places[pid]]))


def _place(dump: Dump | Exception | None) -> frozenset[Any]:
    """The Python stacks of a process, comparable between processes."""
    if not isinstance(dump, list):
        return frozenset()
    return frozenset(
        tuple((frame["name"], frame["line"]) for frame in thread["frames"] if frame["module"] is None)
        for thread in dump
    )
