"""What hangdoc adds to the step time of a healthy job: the moments in which it runs, and those around them.

python -m tests.benchmarks.step_time [--seconds 900] [--by daemon] [--busy]

Whole windows with and without a watch differ by more than 1 % on a virtual machine, whatever runs in them. Here, the
steps that overlap a burst of hangdoc's own activity are compared with the quiet steps within two seconds of it: the
machine is the same for both. A burst ends 10 ms after hangdoc's processes slept again. The sum over all bursts,
divided by the time, is what hangdoc costs. The interval is a bootstrap over the bursts. The first minutes of a job are
left out: looks are frequent then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from hangdoc.demo.harness import running
from hangdoc.system import procfs
from tests.benchmarks.look_cost import STEPS
from tests.benchmarks.measure import alone, cpu_s, interval, live_watch, met, table
from tests.support.cli import HANGDOC
from tests.support.paths import ROOT

SAMPLE_S = 0.004  # between two readings of hangdoc's clocks
SETTLE_S = 300.0  # until looks are as rare as they become
TAIL_S = 0.01  # after a burst: caches are cold, and a child may end
AROUND_S = 2.0  # of a burst, in which quiet steps are its baseline
FEWEST = 8  # quiet steps of a baseline
LIMIT_PERCENT = 0.1


def ran_s(pid: int) -> float:
    """Time on a CPU of every thread, with that of the children, running or ended: any change is activity."""
    threads = procfs.numbers(f"/proc/{pid}/task")
    own = sum(int((procfs.read(f"/proc/{pid}/task/{thread}/schedstat") or b"0").split()[0]) for thread in threads)
    return own / 1e9 + cpu_s(pid)[1]


def bursts(pid: int, seconds: float) -> list[tuple[float, float]]:
    """Begin and end of each burst of activity, on the monotonic clock."""
    found: list[tuple[float, float]] = []
    end, before, at = time.monotonic() + seconds, ran_s(pid), time.monotonic()
    while at < end:
        time.sleep(SAMPLE_S)
        now, used = time.monotonic(), ran_s(pid)
        busy = used != before or any(child.state == "R" for child in map(procfs.stat, children(pid)) if child)
        if busy and found and at <= found[-1][1]:
            found[-1] = found[-1][0], now + TAIL_S
        elif busy:
            found.append((at, now + TAIL_S))
        before, at = used, now
    return found


def children(pid: int) -> list[int]:
    return [int(word) for word in (procfs.read(f"/proc/{pid}/task/{pid}/children") or b"").split()]


def extra_s(ends: Sequence[float], active: Sequence[tuple[float, float]]) -> list[float]:
    """For each burst: by how much (s) its steps exceed as many quiet steps around it. Without any, it is left out."""
    steps = list(pairwise(ends))
    starts = [begin for begin, _ in steps]
    stops = [end for _, end in steps]
    begins, finishes = [begin for begin, _ in active], [end for _, end in active]

    def quiet(step: tuple[float, float]) -> bool:
        after = bisect_right(begins, step[1])
        return after == 0 or finishes[after - 1] < step[0]

    found = []
    for begin, end in active:
        within = steps[bisect_right(stops, begin) : bisect_left(starts, end)]
        near = steps[bisect_left(starts, begin - AROUND_S) : bisect_right(stops, end + AROUND_S)]
        baseline = [b - a for a, b in near if quiet((a, b))]
        if within and len(baseline) >= FEWEST:
            found.append(sum(b - a for a, b in within) - len(within) * statistics.fmean(baseline))
    return found


def node_daemon(folder: Path) -> subprocess.Popen[bytes]:
    """A daemon with its default budget, which watches every job of this host."""
    (folder / "hangdoc.toml").write_text("")
    return subprocess.Popen(
        [*HANGDOC, "daemon", "--config", f"{folder}/hangdoc.toml", "--state", f"{folder}/state"],
        cwd=ROOT, env={**os.environ, "RUNTIME_DIRECTORY": str(folder)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def measure(by: str, busy: bool, seconds: float) -> None:
    ranks, rest = (os.cpu_count() or 2, 0.0) if busy else (2, 0.01)
    title = f"{ranks} ranks, {'every core busy' if busy else 'cores partly idle'}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "steps")
        with running(STEPS, ranks, [str(file), "--rest", str(rest)]) as trial:
            trial.wait_log("loss follows", 120)
            watch = node_daemon(Path(folder)) if by == "daemon" else live_watch(trial)
            try:
                time.sleep(SETTLE_S)
                used, began = cpu_s(watch.pid), time.monotonic()
                active = bursts(watch.pid, seconds)
                watched_s = time.monotonic() - began
                own = sum(cpu_s(watch.pid)) - sum(used)
                assert watch.poll() is None, "the watch has ended"
            finally:
                watch.kill()
                watch.wait()
            ends = [float(line) for line in file.read_text().splitlines()[:-1]]
    extra = extra_s(ends, active)
    share = 100 * len(extra) / watched_s
    low, high = (share * value for value in interval(extra, statistics.fmean))
    mean = share * statistics.fmean(extra)
    running_share = 100 * sum(end - begin - TAIL_S for begin, end in active) / watched_s
    table(
        f"Step time beside hangdoc {by}: {title}, {watched_s:.0f} s",
        [
            ("bursts", "active", "CPU", "added to the step time", "95 % interval", f"limit {LIMIT_PERCENT:g} %"),
            (
                str(len(extra)),
                f"{running_share:.1f} %",
                f"{100 * own / watched_s:.1f} % of a core",
                f"{mean:+.3f} %",
                f"{low:+.3f} to {high:+.3f} %",
                met(high, LIMIT_PERCENT),
            ),
        ],
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=900)
    options.add_argument("--by", choices=("watch", "daemon"), default="watch")
    options.add_argument("--busy", action="store_true", help="one rank a core, which never rests")
    chosen = options.parse_args()
    alone("tests.benchmarks.step_time")
    measure(chosen.by, chosen.busy, chosen.seconds)


if __name__ == "__main__":
    main()
