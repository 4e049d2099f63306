"""What being watched costs a job: its step time in windows with and without the live watch, in turns.

hangdoc is held by SIGSTOP in the windows without, so that its start is in none of them. Two jobs: one leaves part of
each core idle, as jobs on accelerators do; the other keeps every core of this machine busy, so that whatever hangdoc
computes is taken from it: the mean then shows hangdoc's CPU time, the median whether a usual step is slower.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from hangdoc.demo.harness import running
from tests.benchmarks.measure import cpu_s, interval, live_watch, table

STEPS = Path(__file__).parent / "jobs" / "steps.py"
SETTLE_S = 0.3  # after SIGSTOP: a py-spy under way may end. After SIGCONT hangdoc looks at once, which counts
NOISY = 6.0  # width of the interval, in percent, from which on other work on this machine decides
Window = tuple[float, float]
Row = tuple[str, str, str, str, str, str]


def windows(pid: int, pairs: int, length_s: float) -> list[tuple[Window, Window]]:
    """(with, without) in turns; which of the two comes first alternates."""
    found = []
    for i in range(pairs):
        pair: dict[int, Window] = {}
        for action in (signal.SIGCONT, signal.SIGSTOP) if i % 2 else (signal.SIGSTOP, signal.SIGCONT):
            os.kill(pid, action)
            began = time.monotonic()
            settled = began + (SETTLE_S if action == signal.SIGSTOP else 0.0)
            time.sleep(settled - began + length_s)
            pair[action] = settled, time.monotonic()
        found.append((pair[signal.SIGCONT], pair[signal.SIGSTOP]))
    os.kill(pid, signal.SIGCONT)
    return found


def steps_within(ends: Sequence[float], window: Window) -> list[float]:
    """Durations, ms, of the steps that lie in the window."""
    return [1000 * (b - a) for a, b in pairwise(ends) if window[0] <= a and b <= window[1]]


def row(
    name: str, pairs: Sequence[tuple[list[float], list[float]]], of: Callable[[list[float]], float]
) -> tuple[str, ...]:
    watched, alone = [of(a) for a, _ in pairs], [of(b) for _, b in pairs]
    changes = [100 * (a / b - 1) for a, b in zip(watched, alone, strict=True)]
    low, high = interval(changes)
    told = "too noisy to tell" if high - low > NOISY else "none measurable" if low <= 0 <= high else "measurable"
    without, with_it = (f"{statistics.median(values):.2f}" for values in (alone, watched))
    return name, without, with_it, f"{statistics.median(changes):+.2f} %", f"{low:+.2f} to {high:+.2f} %", told


def measure(title: str, ranks: int, rest: float, pairs: int, length_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "steps")
        with running(STEPS, ranks, [str(file), "--rest", str(rest)]) as trial:
            trial.wait_log("loss follows", 120)
            watch = live_watch(trial)
            try:
                time.sleep(12)  # it has said "healthy", and has a history
                before, began = cpu_s(watch.pid), time.monotonic()
                taken = windows(watch.pid, pairs, length_s)
                used, on = cpu_s(watch.pid), (time.monotonic() - began) / 2
                assert watch.poll() is None, "the watch has ended"
            finally:
                watch.kill()
                watch.wait()
            ends = [float(line) for line in file.read_text().splitlines()[:-1]]
    seen = [(steps_within(ends, a), steps_within(ends, b)) for a, b in taken]
    own, helpers = ((b - a) / on for a, b in zip(before, used, strict=True))
    rows = [
        ("step time, ms", "alone", "watched", "change", "95 % interval", ""),
        row("median", seen, statistics.median),
        row("mean", seen, statistics.fmean),
    ]
    table(f"Cost of the live watch: {title}, {pairs} pairs of {length_s:g} s windows", rows)
    print(f"  hangdoc uses {100 * own:.1f} % of a core, the py-spy it starts {100 * helpers:.1f} %", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=9)
    options.add_argument("--window", type=float, default=5.5, help="seconds")
    given = options.parse_args()
    measure("2 ranks, cores partly idle", 2, 0.01, given.pairs, given.window)
    measure(f"{os.cpu_count()} ranks, every core busy", os.cpu_count() or 2, 0.0, given.pairs, given.window)


if __name__ == "__main__":
    main()
