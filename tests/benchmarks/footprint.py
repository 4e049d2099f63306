"""What the live watch takes: memory on 8 ranks, also while 100 short jobs come and go; CPU time on two; its first line.

python -m tests.benchmarks.footprint [--ranks 8] [--seconds 60] [--jobs 100]

Memory is that of hangdoc's own process, CPU time that of its children as well. Run by root, all of it runs in a PID
namespace of its own. Exit code 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hangdoc.demo.harness import running
from tests.benchmarks import short_jobs
from tests.benchmarks.measure import alone, cpu_s, live_watch, memory_mib, met, table
from tests.support.cli import HANGDOC
from tests.support.paths import HEALTHY, HUNG, ROOT

STEPS = Path(__file__).parent / "jobs" / "steps.py"
LIMIT_MIB, LIMIT_S = 60.0, 0.5
LIMIT_CORE = 2.0  # percent of a core, of the watch and its children
SETTLE_S = 20.0  # it has said what it has to say
Row = tuple[str, str, str, str, str, str]


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
    return f"{name}, {ranks} ranks", f"{largest:.1f}", f"{now:.1f}", use, f"{LIMIT_MIB:g} MiB", met(largest, LIMIT_MIB)


def cpu_row(name: str, script: Path, arguments: Sequence[str], until: str, seconds: float) -> Row:
    """CPU time that a watch without options takes on two ranks."""
    with running(script, 2, arguments) as trial:
        trial.wait_log(until, 180)
        watch = live_watch(None)
        try:
            time.sleep(SETTLE_S)
            before, began = cpu_s(watch.pid), time.monotonic()
            time.sleep(seconds)
            after, took = cpu_s(watch.pid), time.monotonic() - began
            assert watch.poll() is None, "the watch has ended"
        finally:
            watch.kill()
            watch.wait()
    own, helpers = (100 * (b - a) / took for a, b in zip(before, after, strict=True))
    both = own + helpers
    return name, f"{own:.2f} %", f"{helpers:.2f} %", f"{both:.2f} %", f"{LIMIT_CORE:g} %", met(both, LIMIT_CORE)


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


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--jobs", type=int, default=100)
    given = options.parse_args()
    alone("tests.benchmarks.footprint")
    rows = [("two ranks, and they are", "hangdoc", "its children", "both", "limit", "")]
    with tempfile.TemporaryDirectory() as folder:
        quiet = [str(Path(folder, "steps")), "--rest", "0.2"]
        rows.append(cpu_row("quiet: a step takes 0.2 s", STEPS, quiet, "loss follows", given.seconds))
    rows.append(cpu_row("hung", HUNG / "leaves_early.py", [], "step 10", given.seconds))
    table(f"CPU time of `hangdoc watch` over {given.seconds:g} s, of a core", rows)
    said = [row[-1] for row in rows]
    churned = short_jobs.rows(given.jobs, given.ranks)
    table(f"Memory of `hangdoc watch` while {given.jobs} jobs of {given.ranks} ranks come and go", churned)
    said += [row[-1] for row in churned]
    rows = [("job", "largest MiB", "now MiB", "CPU of a core: hangdoc + py-spy", "limit", "")]
    rows.append(memory_row("healthy", HEALTHY / "steady.py", "loss", given.ranks, given.seconds))
    rows.append(memory_row("hung", HUNG / "leaves_early.py", "step 10", given.ranks, given.seconds))
    table(f"Memory of `hangdoc watch` after {given.seconds:g} s", rows)
    said += [row[-1] for row in rows]
    times = [("command", "median s", "max s", "limit", "")]
    for words in (["watch"], ["watch", "--once"]):
        took = [first_line_s(words) for _ in range(20)]
        middle = statistics.median(took)
        times.append((" ".join(words), f"{middle:.2f}", f"{max(took):.2f}", f"{LIMIT_S:g} s", met(middle, LIMIT_S)))
    table("Start to the first line, 20 runs", times)
    said += [row[-1] for row in times]
    return int("MISSED" in said)


if __name__ == "__main__":
    sys.exit(main())
