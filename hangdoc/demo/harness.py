"""A trial: a real training job that is started, logged, and ended with every process and file that it made."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from hangdoc.system import programs

MARK = "HANGDOC_TRIAL"  # environment variable inherited by every process of a trial
MAX_STACKS = 32  # processes whose stacks an error shows
GRACE_S = 10.0  # for a self-launched job to tear down what it built (network namespaces)


class TrialError(Exception):
    """The job did not do what the trial waited for; the message ends with the tail of its log, and where it hangs."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A running job."""

    launcher: subprocess.Popen[bytes]
    mark: str
    folder: Path  # the job's TMPDIR; removed at the end
    log: Path

    @property
    def launcher_pid(self) -> int:
        return self.launcher.pid

    def processes(self) -> list[psutil.Process]:
        """Every living process of the trial, orphans included."""
        return carrying(f"{MARK}={self.mark}")

    def rank_pids(self) -> list[int]:
        """PIDs of the ranks in rank order; by PID if the environment has no RANK (spawn)."""
        marked = {process.pid: process for process in self.processes()}
        ranks: list[tuple[int, int]] = []
        for pid, process in marked.items():
            try:
                rank = process.environ().get("RANK")
                parent = marked.get(process.ppid())
                spawned = "spawn_main" in " ".join(process.cmdline()) and process.ppid() == self.launcher_pid
                helper = parent is not None and "RANK" in parent.environ()
            except psutil.Error:
                continue
            if spawned and rank is None:
                ranks.append((pid, pid))
            elif rank is not None and not helper:
                ranks.append((int(rank), pid))
        return [pid for _, pid in sorted(ranks)]

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace")

    def wait_log(self, pattern: str, timeout: float) -> str:
        """Wait (s) for a match of `pattern` in the log and return it; raises TrialError."""
        expression = re.compile(pattern, re.MULTILINE)

        def look() -> str | None:
            match = expression.search(self.text())
            return match.group() if match else None

        return self._wait(look, timeout, f"no {pattern!r} in the log")

    def wait_still(self, seconds: float, timeout: float = 90.0) -> None:
        """Wait until the log has not grown and no rank has used CPU for `seconds`; raises TrialError."""
        since = time.monotonic()
        before = (-1, -1.0)

        def look() -> bool:
            nonlocal since, before
            now = (self.log.stat().st_size, self._cpu_s())
            if now[0] != before[0] or now[1] - before[1] > 0.1:
                since, before = time.monotonic(), now
            return time.monotonic() - since >= seconds

        self._wait(look, timeout, "the job is still busy")

    def check(self) -> None:
        """Raise TrialError if the job has ended by itself."""
        if self.launcher.poll() is not None:
            raise TrialError(f"the job exited with code {self.launcher.returncode}\n{self._tail()}")

    def end(self, grace_s: float = 0.0) -> None:
        """Kill every process of the trial, stopped ones too; the launcher gets `grace_s` to clean up first."""
        if grace_s and self.launcher.poll() is None:
            self.launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.launcher.wait(grace_s)
        deadline = time.monotonic() + 10
        while (alive := self.processes()) and time.monotonic() < deadline:
            for process in alive:
                try:
                    process.kill()
                except psutil.Error:
                    continue
            time.sleep(0.02)  # no wait for zombies: their new parent may never collect them
        self.launcher.wait(5)

    def _cpu_s(self) -> float:
        total = 0.0
        for pid in self.rank_pids():
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
        return total

    def _wait(self, look: Callable[[], str | bool | None], timeout: float, complaint: str) -> str:
        deadline = time.monotonic() + timeout
        while not (found := look()):
            self.check()
            if time.monotonic() > deadline:
                raise TrialError(f"{complaint} after {timeout:.0f} s\n{self._tail()}\n{self._stacks()}")
            time.sleep(0.2)
        return str(found)

    def _tail(self) -> str:
        return "\n".join(self.text().splitlines()[-60:])  # torchrun's failure summary is long

    def _stacks(self) -> str:
        """Python stacks of its processes, for whoever asks later why it did not come further."""
        binary = programs.py_spy()
        return "\n".join(_stack(binary, process.pid) for process in self.processes()[:MAX_STACKS] if binary)


def _stack(py_spy: str, pid: int) -> str:
    try:
        done = subprocess.run([py_spy, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, timeout=10)
    except subprocess.TimeoutExpired:
        return f"PID {pid}: py-spy did not answer"
    return (done.stdout or done.stderr).decode(errors="replace")


def command(script: Path, ranks: int, args: Sequence[str] = (), launcher: str = "torchrun") -> list[str]:
    """Command line of the job: torchrun on a free port, or the script itself."""
    if launcher == "self":
        return [sys.executable, str(script), *args]
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(ranks), str(script), *args),
    ]


def carrying(setting: str) -> list[psutil.Process]:
    """Every running process with `NAME=value` in its initial environment."""
    found = []
    for pid in psutil.pids():
        try:
            if setting.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(psutil.Process(pid))
        except (OSError, psutil.Error):
            continue
    return found


@contextmanager
def running(
    script: Path | str,
    ranks: int,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    launcher: str = "torchrun",
) -> Iterator[Trial]:
    """Run the job in its own session; on exit all its processes and files are removed, whatever happens."""
    mark = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="hangdoc-"))
    log, path = folder / "job.log", Path(script)
    # One thread per rank, as the ranks share this host's cores. Temporary files go with the folder.
    own = {MARK: mark, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    inherited = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    try:
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command(path.absolute() if path.exists() else path, ranks, args, launcher),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**inherited, **own, **(env or {})},
                cwd=folder,  # `python -m` imports from its working directory, which may contain someone else's torch.py
                start_new_session=True,
            )
        trial = Trial(process, mark, folder, log)
        try:
            yield trial
        finally:
            with _signals_ignored():
                trial.end(GRACE_S if launcher == "self" else 0.0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


QUIET = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM during the cleanup; only the main thread can do that."""
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in QUIET}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
