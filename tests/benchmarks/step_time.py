"""What hangdoc adds to the step time of a healthy job: the moments in which it runs, and those around them.

python -m tests.benchmarks.step_time [--seconds 900] [--by daemon] [--busy]

Whole windows with and without a watch differ by more than 1 % on a virtual machine, whatever runs in them. Here, a
short window around each burst of hangdoc's own activity is paired with the quiet windows of the same length within two
seconds of it: how much less far did the job get? Windows do not depend on where a step begins; whole steps that overlap
a burst would be the longer ones, whatever hangdoc does. The sum over all bursts, divided by the time, is what hangdoc
costs. The interval is a bootstrap over the bursts. Windows between bursts, judged likewise, are the control. The first
minutes of a job are left out: looks are frequent then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from bisect import bisect_right
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
MARGIN_S = 0.03  # before and after a burst, more than a step: what a burst delays may end later
AROUND_S = 2.0  # of a burst, in which quiet windows are its baseline
FEWEST = 8  # quiet windows of a baseline
LIMIT_PERCENT = 0.1
WAKEUP_S = 0.0002  # CPU time; less between two readings is no burst: a thread wakes for 50 µs, five times a second
Windows = Sequence[tuple[float, float]]  # begin and end, on the monotonic clock


def ran_s(pid: int) -> float:
    """Time on a CPU of every thread, with that of the children, running or ended: any change is activity."""
    threads = procfs.numbers(f"/proc/{pid}/task")
    own = sum(int((procfs.read(f"/proc/{pid}/task/{thread}/schedstat") or b"0").split()[0]) for thread in threads)
    return own / 1e9 + cpu_s(pid)[1]


def bursts(pid: int, seconds: float) -> Windows:
    """The bursts of activity of a process and its children."""
    found: list[tuple[float, float]] = []
    end, before, at = time.monotonic() + seconds, ran_s(pid), time.monotonic()
    while at < end:
        time.sleep(SAMPLE_S)
        now, used = time.monotonic(), ran_s(pid)
        if used - before > WAKEUP_S or any(child.state == "R" for child in map(procfs.stat, children(pid)) if child):
            if found and at <= found[-1][1] + 2 * MARGIN_S:
                found[-1] = found[-1][0], now
            else:
                found.append((at, now))
        before, at = used, now
    return found


def children(pid: int) -> list[int]:
    return [int(word) for word in (procfs.read(f"/proc/{pid}/task/{pid}/children") or b"").split()]


def extra_s(ends: Sequence[float], active: Windows, judged: Windows) -> list[float]:
    """For each judged window: how much longer (s) the job took than in quiet windows around it.

    `ends`: when each step ended. `active`: the bursts. A window without quiet ones around it is left out.
    """
    begins, finishes = [begin - MARGIN_S for begin, _ in active], [end + MARGIN_S for _, end in active]

    def steps(at: float) -> float:
        """How far the job had come, in steps and parts of a step."""
        i = bisect_right(ends, at)
        return i + (at - ends[i - 1]) / (ends[i] - ends[i - 1])

    def quiet(begin: float, end: float) -> bool:
        after = bisect_right(begins, end)
        return ends[0] < begin and end < ends[-1] and (after == 0 or finishes[after - 1] < begin)

    found = []
    for begin, end in ((begin - MARGIN_S, end + MARGIN_S) for begin, end in judged):
        length = end - begin
        around = (begin + k * length for k in range(-int(AROUND_S / length), int(AROUND_S / length) + 1) if k)
        usual = [steps(at + length) - steps(at) for at in around if quiet(at, at + length)]
        if len(usual) >= FEWEST and any(usual) and ends[0] < begin and end < ends[-1]:
            mean = statistics.fmean(usual)
            found.append((mean - steps(end) + steps(begin)) * length / mean)
    return found


def moved(active: Windows) -> Windows:
    """Windows as long as the bursts, between two of them: they must show nothing."""
    found = []
    for (begin, end), (following, _) in pairwise(active):
        at = (end + following - (end - begin)) / 2
        if at - end > 3 * MARGIN_S:
            found.append((at, at + end - begin))
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
    running_share = 100 * sum(end - begin for begin, end in active) / watched_s
    rows = [("windows", "", "active", "CPU", "added to the step time", "95 % interval", f"limit {LIMIT_PERCENT:g} %")]
    for name, windows in (("hangdoc runs", active), ("between", moved(active))):
        extra = extra_s(ends, active, windows)
        share = 100 * len(extra) / watched_s
        low, high = (share * value for value in interval(extra, statistics.fmean))
        own_columns = (f"{running_share:.1f} %", f"{100 * own / watched_s:.1f} % of a core")
        row = (f"{share * statistics.fmean(extra):+.3f} %", f"{low:+.3f} to {high:+.3f} %")
        told = met(high, LIMIT_PERCENT) if windows is active else "control"
        rows.append((name, str(len(extra)), *(own_columns if windows is active else ("", "")), *row, told))
    table(f"Step time beside hangdoc {by}: {title}, {watched_s:.0f} s", rows)


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
