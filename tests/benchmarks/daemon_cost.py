"""What `hangdoc daemon` costs a node with its default budget: CPU time and memory beside 8 ranks that train.

python -m tests.benchmarks.daemon_cost [--ranks 8] [--seconds 300]

CPU time and memory are those of the daemon and its children. The pulse is what runs for less than PULSE_MOST_S at a
time: a look takes longer, as it starts py-spy. Exit code 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from hangdoc.daemon.governor import CPU_SHARE, MEMORY_MIB
from hangdoc.demo.harness import running
from tests.benchmarks.look_cost import STEPS
from tests.benchmarks.measure import alone, cpu_s, memory_mib, met, table
from tests.benchmarks.step_time import SAMPLE_S, SETTLE_S, children, node_daemon, ran_s

PULSE_MOST_S = 0.03
PULSE_LIMIT = 0.005  # of a core
QUIET_S = 0.02  # without activity, and the burst is over


def cost(pid: int, seconds: float) -> tuple[float, float, float]:
    """CPU time of the pulse and of the whole, s, and the most memory of the daemon and its children, MiB."""
    began, first, most_mib, pulse_s = time.monotonic(), sum(cpu_s(pid)), 0.0, 0.0
    before = base = ran_s(pid)
    started, active = None, began  # of the burst that goes on: its begin, and its last activity
    while (now := time.monotonic()) < began + seconds:
        used = ran_s(pid)
        if used != before:
            if started is None:
                started, base = now, before
            active = now
        elif started is not None and now - active > QUIET_S:
            if active - started < PULSE_MOST_S:
                pulse_s += used - base
            started = None
        elif started is not None:
            most_mib = max(most_mib, sum(map(_now_mib, (pid, *children(pid)))))
        before = used
        time.sleep(SAMPLE_S)
    return pulse_s, sum(cpu_s(pid)) - first, max(most_mib, memory_mib(pid)[0])


def _now_mib(pid: int) -> float:
    try:
        return memory_mib(pid)[1]
    except (OSError, ValueError):  # it has ended
        return 0.0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("--seconds", type=float, default=300)
    given = options.parse_args()
    alone("tests.benchmarks.daemon_cost")
    with (
        tempfile.TemporaryDirectory() as folder,
        running(STEPS, given.ranks, [f"{folder}/steps", "--rest", "0.2"]) as trial,
    ):
        trial.wait_log("loss follows", 180)
        daemon = node_daemon(Path(folder))
        try:
            time.sleep(SETTLE_S)
            pulse_s, whole_s, most_mib = cost(daemon.pid, given.seconds)
            assert daemon.poll() is None, "the daemon has ended"
        finally:
            daemon.kill()
            daemon.wait()
    pulse, whole = pulse_s / given.seconds, whole_s / given.seconds
    rows = [
        ("", "measured", "limit", ""),
        ("CPU time, of a core", f"{100 * whole:.2f} %", f"{100 * CPU_SHARE:g} %", met(whole, CPU_SHARE)),
        ("of which the pulse", f"{100 * pulse:.2f} %", f"{100 * PULSE_LIMIT:g} %", met(pulse, PULSE_LIMIT)),
        ("memory", f"{most_mib:.1f} MiB", f"{MEMORY_MIB:g} MiB", met(most_mib, MEMORY_MIB)),
    ]
    table(f"`hangdoc daemon` beside {given.ranks} ranks that train, {given.seconds:g} s", rows)
    return int(any(row[-1] == "MISSED" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
