"""How long `watch --once` takes from the command line: on a job that hangs already, and on a healthy one."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hangdoc.demo.harness import Trial, running
from tests.benchmarks.measure import met, quantile, table, timed_verdict
from tests.support.paths import HEALTHY, HUNG


@contextmanager
def hung(ranks: int) -> Iterator[Trial]:
    with running(HUNG / "leaves_early.py", ranks) as trial:
        trial.wait_log("step 10", 180)
        trial.wait_still(3)
        yield trial


@contextmanager
def healthy(ranks: int) -> Iterator[Trial]:
    with running(HEALTHY / "steady.py", ranks) as trial:
        trial.wait_log("step 20 ", 180)
        yield trial


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=20)
    runs = options.parse_args().runs
    rows = [("job", "runs", "p50 s", "p90 s", "max s", "limit of p90", "", "said")]
    for name, job, ranks, times, limit in (
        ("hung", hung, 3, runs, 8.0),
        ("hung", hung, 8, runs, 8.0),
        ("healthy", healthy, 2, max(runs // 2, 1), 6.0),
    ):
        with job(ranks) as trial:
            seen = [timed_verdict(trial) for _ in range(times)]
        took = [seconds for seconds, _ in seen]
        p50, p90 = statistics.median(took), quantile(took, 0.9)
        said = ", ".join(sorted({words for _, words in seen}))
        numbers = (f"{p50:.2f}", f"{p90:.2f}", f"{max(took):.2f}", f"{limit:g} s")
        rows.append((f"{name}, {ranks} ranks", str(times), *numbers, met(p90, limit), said))
    return 0 if table("Time to the verdict, `hangdoc watch --once`", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
