"""How soon the live watch, or the daemon, gives its verdict on a job that has stopped, from the moment it stopped.

python -m tests.benchmarks.detection [--daemon [--calm 300]] [--runs 1] [--limit 10] [ID ...]

A job has stopped when its ranks use no more CPU time; one whose ranks spin is left out. A job that stopped before the
watch saw it counts from the first event. With --daemon, a rank of a healthy job is also stopped and continued, --stops
times: how soon is its job reported as stopped, and as recovered? With --calm, the job is healthy for so long before, so
that looks have become rare. Exit code 1 where a 90th percentile is over the limit.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hangdoc.demo import reproducer
from hangdoc.demo.harness import Trial, TrialError
from hangdoc.demo.reproducer import GONE_WRONG
from tests.benchmarks.measure import cpu_s, met, quantile, table
from tests.support import daemon as daemons
from tests.support import reproducers
from tests.support.cli import watching

LINE = re.compile(r"job (\S+): (watching|no progress|(?:stalled|slow|failed|diverging): (.*))")  # of the daemon's log
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


class Sign(NamedTuple):
    """What a watch reports of a job."""

    verdict: str = ""  # playbook or title of the cause; empty: there is no verdict yet
    stall: bool = False  # an examination begins


Watch = Callable[[reproducer.BrokenJob, Trial], AbstractContextManager[Iterator[Sign]]]


@contextmanager
def by_watch(job: reproducer.BrokenJob, trial: Trial) -> Iterator[Iterator[Sign]]:
    """The events of `hangdoc watch`, started for this job."""
    with watching(trial.launcher_pid, *job.asking, seconds=job.spec.within_s + 60) as watch:
        yield map(_sign, watch.events())


def _sign(event: dict[str, Any]) -> Sign:
    verdict = event.get("verdict") or {}
    if verdict.get("status") not in GONE_WRONG:
        return Sign(stall=event["event"] == "stall")
    return Sign(next((finding["playbook"] for finding in verdict["findings"]), verdict["status"]))


@contextmanager
def by_daemon(daemon: daemons.Daemon, job: reproducer.BrokenJob, trial: Trial) -> Iterator[Iterator[Sign]]:
    """The log of a daemon that ran before this job."""
    yield _signs(daemon, len(daemon.lines), time.monotonic() + job.spec.within_s + 60)


def _signs(daemon: daemons.Daemon, read: int, limit_s: float) -> Iterator[Sign]:
    name = None  # of the job, as the daemon calls it
    while time.monotonic() < limit_s:
        for line in daemon.lines[read:]:
            read += 1
            found = LINE.search(line)
            if found and (name := name or found[1]) == found[1]:
                yield Sign(found[3] or "", found[2] == "no progress")
        time.sleep(EVERY_S)


def delay_s(job: reproducer.BrokenJob, watched: Watch) -> tuple[float | None, str]:
    """Seconds from the stop to the verdict, None if the ranks spin; and the cause. Raises TrialError."""
    with job.running() as trial:
        limit_s = time.monotonic() + START_S
        while len(ranks := trial.rank_pids()) < job.spec.ranks and time.monotonic() < limit_s:
            trial.check()
            time.sleep(EVERY_S)
        with observed(ranks) as activity, watched(job, trial) as signs:
            seen_s = stopped_s = 0.0
            for sign in signs:
                now_s = time.monotonic()
                seen_s = seen_s or now_s
                if sign.stall:  # the examination that follows wakes threads of the ranks
                    stopped_s = activity.last_s
                if sign.verdict:
                    stopped_s = stopped_s or activity.last_s
                    return None if now_s - stopped_s < RESTED_S else now_s - max(stopped_s, seen_s), sign.verdict
    raise TrialError("no verdict")


def recoveries(daemon: daemons.Daemon, folder: Path, calm_s: float, stops: int) -> Iterator[tuple[float, float]]:
    """Seconds until the daemon reports a rank that stops, after so long a calm; and the recovery, once it continues."""
    with daemons.job(folder) as job:
        daemon.says(f"job {job.name}: healthy")
        for _ in range(stops):
            time.sleep(calm_s)
            took = []
            for how, said in ((signal.SIGSTOP, "stopped by a signal"), (signal.SIGCONT, "recovered")):
                read, began_s = len(daemon.lines), time.monotonic()
                os.kill(job.ranks[1].pid, how)
                while not any(f"job {job.name}: " in line and said in line for line in daemon.lines[read:]):
                    if time.monotonic() - began_s > 90:
                        raise TrialError(f"the daemon did not report: {said}")
                    time.sleep(EVERY_S)
                took.append(time.monotonic() - began_s)
            yield took[0], took[1]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("wanted", nargs="*", metavar="ID", help="default: every reproducer that hangs")
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("--limit", type=float, default=10.0)
    options.add_argument("--daemon", action="store_true")
    options.add_argument("--stops", type=int, default=10, help="of a rank of a healthy job, by --daemon")
    options.add_argument("--calm", type=float, default=0.0, help="seconds before a rank is stopped")
    given = options.parse_args()
    jobs = [reproducers.broken(id) for id in given.wanted or reproducer.ids()]
    rows, every = [("job", "verdict after, s", "said")], list[float]()
    worst_s = 0.0
    with ExitStack() as stack:
        watched: Watch = by_watch
        if given.daemon:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            daemon = stack.enter_context(daemons.daemon(folder, labels=["reproducer.py"]))()
            watched = partial(by_daemon, daemon)
        for job in (job for job in jobs if job.status == "stalled"):
            for _ in range(given.runs):
                after_s, said = delay_s(job, watched)
                every += [] if after_s is None else [after_s]
                rows.append((job.name, "spins" if after_s is None else f"{after_s:.1f}", said))
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
        if given.daemon:
            both = list(recoveries(daemon, folder, given.calm, given.stops))
            for name, took in (("a rank stops", [a for a, _ in both]), ("it recovers", [b for _, b in both])):
                worst_s = max(worst_s, quantile(took, 0.9))
                rows.append((name, f"p50 {statistics.median(took):.1f}", f"p90 {quantile(took, 0.9):.1f}"))
    p90 = quantile(every, 0.9)
    rows.append(
        (f"p50 {statistics.median(every):.1f} s", f"p90 {p90:.1f}", f"limit {given.limit:g} s: {met(p90, given.limit)}")
    )
    table(f"{'Daemon' if given.daemon else 'Live watch'}: from the stop to the verdict", rows)
    return int(max(p90, worst_s) > given.limit)


if __name__ == "__main__":
    sys.exit(main())
