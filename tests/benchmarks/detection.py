"""How soon the live watch gives its verdict on a job that has stopped, from the moment at which it stopped.

python -m tests.benchmarks.detection [--runs 1] [--limit 10] [ID ...]

A job has stopped when its ranks use no more CPU time; one whose ranks spin is left out. A job that stopped before the
watch saw it counts from the first event. Exit code 1 where the 90th percentile is over the limit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hangdoc.demo import reproducer
from hangdoc.demo.harness import TrialError
from hangdoc.demo.reproducer import GONE_WRONG
from tests.benchmarks.measure import cpu_s, met, quantile, table
from tests.support import reproducers
from tests.support.cli import watching

EVERY_S = 0.1
START_S = 10.0  # for every rank to start; some jobs lack one
STEP_S = 0.02  # CPU time of all ranks: two ticks of the clock that counts it
RESTED_S = 1.0  # ranks that used CPU time so shortly before the verdict spin


@dataclass
class Activity:
    """When the ranks of a job last used CPU time (monotonic s)."""

    last_s: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)

    def follow(self, ranks: Sequence[int]) -> None:
        before = _used_s(ranks)
        while not self.over.wait(EVERY_S):
            now = _used_s(ranks)
            if now - before >= STEP_S:
                before, self.last_s = now, time.monotonic()


def _used_s(ranks: Sequence[int]) -> float:
    total = 0.0
    for pid in ranks:
        try:
            total += cpu_s(pid)[0]
        except (OSError, ValueError):
            continue
    return total


@contextmanager
def observed(ranks: Sequence[int]) -> Iterator[Activity]:
    activity = Activity()
    thread = threading.Thread(target=activity.follow, args=[ranks], daemon=True)
    thread.start()
    yield activity
    activity.over.set()
    thread.join()


def delay_s(job: reproducer.BrokenJob) -> tuple[float | None, str]:
    """Seconds from the stop to the verdict, None if the ranks spin; and the playbook. Raises TrialError."""
    with job.running() as trial:
        limit_s = time.monotonic() + START_S
        while len(ranks := trial.rank_pids()) < job.spec.ranks and time.monotonic() < limit_s:
            trial.check()
            time.sleep(EVERY_S)
        with (
            observed(ranks) as activity,
            watching(trial.launcher_pid, *job.asking, seconds=job.spec.within_s + 60) as watch,
        ):
            seen_s = stopped_s = 0.0
            for event in watch.events():
                now_s = time.monotonic()
                seen_s = seen_s or now_s
                if event["event"] == "stall":  # the examination that follows wakes threads of the ranks
                    stopped_s = activity.last_s
                verdict = event.get("verdict") or {}
                if verdict.get("status") in GONE_WRONG:
                    said = next((finding["playbook"] for finding in verdict["findings"]), verdict["status"])
                    stopped_s = stopped_s or activity.last_s
                    return None if now_s - stopped_s < RESTED_S else now_s - max(stopped_s, seen_s), said
    raise TrialError("no verdict")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("wanted", nargs="*", metavar="ID", help="default: every reproducer that hangs")
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("--limit", type=float, default=10.0)
    given = options.parse_args()
    jobs = [reproducers.broken(id) for id in given.wanted or reproducer.ids()]
    rows, every = [("job", "verdict after, s", "said")], list[float]()
    for job in (job for job in jobs if job.status == "stalled"):
        for _ in range(given.runs):
            after_s, said = delay_s(job)
            every += [] if after_s is None else [after_s]
            rows.append((job.name, "spins" if after_s is None else f"{after_s:.1f}", said))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    p90 = quantile(every, 0.9)
    rows.append(
        (f"p50 {statistics.median(every):.1f} s", f"p90 {p90:.1f}", f"limit {given.limit:g} s: {met(p90, given.limit)}")
    )
    table("Live watch: from the stop to the verdict", rows)
    return int(p90 > given.limit)


if __name__ == "__main__":
    sys.exit(main())
