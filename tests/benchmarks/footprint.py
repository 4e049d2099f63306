"""Memory of the live watch (of hangdoc's own process) after a minute on 8 ranks, and time to its first line."""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import HANGDOC, cpu_s, live_watch, met, table
from jobs import HEALTHY, HUNG, ROOT, running

LIMIT_MIB, LIMIT_S = 60.0, 0.5
Row = tuple[str, str, str, str, str, str]


def memory_mib(pid: int) -> tuple[float, float]:
    """Largest so far, and now."""
    text = Path(f"/proc/{pid}/status").read_text()
    largest, now = (int(re.findall(rf"{name}:\s+(\d+) kB", text)[0]) / 1024 for name in ("VmHWM", "VmRSS"))
    return largest, now


def memory_row(name: str, script: Path, until: str, ranks: int, seconds: float) -> Row:
    with running(script, ranks) as trial:
        trial.wait_log(until, 180)
        watch = live_watch(trial)
        try:
            time.sleep(seconds)
            largest, now = memory_mib(watch.pid)
            own, helpers = cpu_s(watch.pid)
        finally:
            watch.kill()
            watch.wait()
    use = f"{100 * own / seconds:.0f} % + {100 * helpers / seconds:.0f} %"
    return f"{name}, {ranks} ranks", f"{largest:.1f}", f"{now:.1f}", f"{LIMIT_MIB:g} MiB", met(largest, LIMIT_MIB), use


def first_line_s(arguments: Sequence[str]) -> float:
    """Seconds from the command line to the first line on stderr or stdout."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*HANGDOC, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    took = time.monotonic() - began
    process.kill()
    process.communicate()
    return took


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("--seconds", type=float, default=60)
    given = options.parse_args()
    rows = [("job", "largest MiB", "now MiB", "limit", "", "CPU of a core: hangdoc + py-spy")]
    rows.append(memory_row("healthy", HEALTHY / "steady.py", "loss", given.ranks, given.seconds))
    rows.append(memory_row("hung", HUNG / "leaves_early.py", "step 10", given.ranks, given.seconds))
    table(f"Memory of `hangdoc watch` after {given.seconds:g} s", rows)
    times = [("command", "median s", "max s", "limit", "")]
    for words in (["watch"], ["watch", "--once"]):
        took = [first_line_s(words) for _ in range(20)]
        middle = statistics.median(took)
        times.append((" ".join(words), f"{middle:.2f}", f"{max(took):.2f}", f"{LIMIT_S:g} s", met(middle, LIMIT_S)))
    table("Start to the first line, 20 runs", times)


if __name__ == "__main__":
    main()
