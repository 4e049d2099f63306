"""py-spy as a library: one process, one dump, or one sentence that says why not.

py-spy has no Python API; it is a binary beside the interpreter or on the PATH.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from probes._redact import redact_text
from hangdoc.system import programs
from probes._refusal import remedy

ATTEMPTS = 3  # a nonblocking dump of a running process now and then reads a torn structure
AGAIN_S = 1.0  # a torn one is noticed at once: what fails after that fails again
TIMEOUT_S = 5.0  # measured 5-12 ms; a host with more runnable threads than cores needs longer
NATIVE_TIMEOUT_S = 15.0  # measured 0.35-1 s, most of it symbols of libtorch

_FIELDS = {"thread_id", "thread_name", "os_thread_id", "active", "owns_gil", "frames"}


class Refused(Exception):
    """A dump that did not succeed; the text is one sentence for the user, with the remedy."""


def find() -> str | None:
    """Path of the py-spy binary: beside this interpreter, else on the PATH (of root: where only root may write)."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else programs.find("py-spy")


class _Torn(Refused):
    """Worth another attempt."""


class PySpy:
    """The binary, and the dumps that it is taking."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def dump(self, pid: int) -> list[dict[str, Any]]:
        """All Python threads of `pid` with locals, as py-spy's JSON has them. The process is not paused.

        Raises Refused.
        """
        until_s = time.monotonic() + AGAIN_S
        for attempt in range(ATTEMPTS):
            try:
                return self._run(["--nonblocking"], pid, TIMEOUT_S)
            except _Torn:
                if attempt == ATTEMPTS - 1 or time.monotonic() > until_s:
                    raise
        raise AssertionError("unreachable")

    def dump_native(self, pid: int) -> list[dict[str, Any]]:
        """The same with native frames interleaved. Pauses the process for 0.35-1 s: only for one that stands still.

        Raises Refused.
        """
        return self._run(["--native"], pid, NATIVE_TIMEOUT_S)

    def end(self) -> None:
        """Kill what runs, from any thread; whoever waits for it, or asks for more, is refused.

        py-spy 0.4 attaches with PTRACE_SEIZE, which sends no signal: killed half-way it leaves nothing stopped.
        """
        self._ended = True
        for process in tuple(self._running):
            process.kill()

    def _run(self, how: list[str], pid: int, timeout_s: float) -> list[dict[str, Any]]:
        command = [self._binary, "dump", "--json", "--locals", *how, "--pid", str(pid)]
        try:
            # A session of its own: Ctrl-C on our terminal is for us, who end it.
            started = subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True)
        except OSError as error:
            raise Refused(f"py-spy could not be started ({error}); reinstall it: `pip install py-spy`") from None
        with started as process:
            self._running.add(process)
            try:
                if self._ended:  # while it was started
                    process.kill()
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Refused(
                    f"py-spy did not answer within {timeout_s:g} s for PID {pid}; look again when the host is less busy"
                ) from None
            except BaseException:
                process.kill()
                raise
            finally:
                self._running.discard(process)
        if self._ended:
            raise Refused(f"the look at PID {pid} was interrupted")
        return _threads(process.returncode, out, err, pid)


def in_parallel(spy: PySpy, look: Callable[[int], Any], pids: Sequence[int], workers: int) -> dict[int, Any]:
    """What `look`, which uses `spy`, returned, or the exception it raised, for each process.

    On Ctrl-C no process is held any longer when this returns.
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
    """py-spy's JSON, checked. Raises Refused."""
    if returncode != 0:
        raise _refusal(pid, err.decode(errors="replace"))
    try:
        threads = json.loads(out)
    except ValueError:
        raise _Torn(f"py-spy wrote no JSON for PID {pid}; check `py-spy --version` (0.4 or later)") from None
    if not isinstance(threads, list) or not threads:
        raise _Torn(f"py-spy saw no Python thread in PID {pid}: its interpreter is starting or ending")
    if not all(isinstance(thread, dict) and thread.keys() >= _FIELDS for thread in threads):
        raise Refused("this version of py-spy writes other fields than 0.4 does: `pip install 'py-spy>=0.4,<0.5'`")
    return threads


def _refusal(pid: int, stderr: str) -> Refused:
    """One sentence from py-spy's message; the Rust backtrace is left out."""
    state = _state(pid)
    if state is None:
        return Refused(f"PID {pid} has ended")
    if state in "ZX":
        return Refused(f"PID {pid} is a zombie: it has ended and its parent has not collected it")
    if re.search(r"permission denied|operation not permitted|eperm|eacces", stderr, re.IGNORECASE):
        return Refused(f"reading PID {pid} was refused{_hindrance(pid)}")
    if "Failed to find python version" in stderr or "python interpreter" in stderr:
        # Also what a process says that is just being started, or whose memory changed under a nonblocking look.
        return _Torn(f"PID {pid} is not a Python process, or its interpreter is still starting or unknown to py-spy")
    reason = re.sub(r"\s+", " ", stderr.split("Stack backtrace:")[0]).strip().removeprefix("Error: ")
    reason = redact_text(reason)
    return _Torn(f"py-spy could not read PID {pid}: {reason[:160] or 'no reason given'}; try again, or update py-spy")


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def _hindrance(pid: int) -> str:
    """Why a process may not be read, as far as it can be told, and the remedy."""
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
