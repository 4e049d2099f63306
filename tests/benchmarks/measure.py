"""What the benchmarks share: hangdoc as its users start it, quantiles, and a Markdown table."""

from __future__ import annotations

import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from hangdoc import __version__
from hangdoc.demo.harness import Trial
from tests.support.cli import HANGDOC
from tests.support.paths import ROOT

ALONE = "BENCHMARK_ALONE"  # set where no other process of this host is seen


def timed_verdict(trial: Trial) -> tuple[float, str]:
    """Seconds from the command line to the end of `watch --once`, and the verdict's status and best playbook."""
    began = time.monotonic()
    done = subprocess.run(
        [*HANGDOC, "watch", "--once", "--json", "--pids", str(trial.launcher_pid)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    took = time.monotonic() - began
    verdict = json.loads(done.stdout)
    return took, " ".join([verdict["status"], *(finding["playbook"] for finding in verdict["findings"][:1])])


def live_watch(trial: Trial | None) -> subprocess.Popen[bytes]:
    """A live watch of the job, or of every job of this host, its lines thrown away."""
    which = [] if trial is None else ["--pids", str(trial.launcher_pid)]
    return subprocess.Popen(
        [*HANGDOC, "watch", "--json", *which], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def alone(module: str) -> None:
    """Run by root, start over in a PID namespace, where a watch without options finds no other job of this host."""
    if os.geteuid() == 0 and ALONE not in os.environ:
        namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        os.environ[ALONE] = "1"
        # sh stays: it collects what the job's launchers leave behind, as an init does.
        os.execvp(
            namespace[0], [*namespace, "sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", module, *sys.argv[1:]]
        )


def memory_mib(pid: int) -> tuple[float, float]:
    """Largest RSS of a process so far, and now: proc_pid_status(5)."""
    text = Path(f"/proc/{pid}/status").read_text()
    largest, now = (int(re.findall(rf"{name}:\s+(\d+) kB", text)[0]) / 1024 for name in ("VmHWM", "VmRSS"))
    return largest, now


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(share * 100) // 100) - 1)]


def interval(
    values: Sequence[float], of: Callable[[Sequence[float]], float] = statistics.median, rounds: int = 5000
) -> tuple[float, float]:
    """95 % bootstrap interval of a statistic of the values."""
    draw = random.Random(0)
    found = sorted(of(draw.choices(values, k=len(values))) for _ in range(rounds))
    return found[int(0.025 * rounds)], found[int(0.975 * rounds)]


def cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and those of its children that have ended."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    user, system, of_children, in_kernel = (int(number) / os.sysconf("SC_CLK_TCK") for number in numbers)
    return user + system, of_children + in_kernel


def additions_s() -> float:
    """CPU seconds of a loop in this interpreter: the same machine may take twice as long an hour later."""
    began, total = time.process_time(), 0
    for number in range(10_000_000):
        total += number
    return time.process_time() - began


def table(title: str, rows: Sequence[tuple[str, ...]]) -> bool:
    """Print it as a Markdown table, under the title and a line that says where it was measured.

    False if a limit is missed or an answer is wrong.
    """
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "py-spy"))
    machine = f"Linux {platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    machine += f", 10^7 additions in {additions_s():.2f} s"
    print(f"\n**{title}**\n\nhangdoc {__version__}, Python {platform.python_version()}, {packages}, {machine}\n")
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    for row in (rows[0], tuple("-" * width for width in widths), *rows[1:]):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    sys.stdout.flush()
    return not any("MISSED" in cell or "WRONG" in cell for row in rows for cell in row)


def met(value: float, limit: float) -> str:
    return "met" if value <= limit else "MISSED"
