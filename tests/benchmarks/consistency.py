"""The same broken job asked several times: does `watch --once` give the same answer each time?

python -m tests.benchmarks.consistency [--times 10] [--beside 2] [ID | ID/VARIANT ...]

A job that hangs is asked from 3 s after it stood still, a slow one once it was told to be slow: its caches and limits
may have to fill first. Several watches ask at a time, at random moments.
Exit code 1 where an answer differs from the others or from the diagnosis that the reproducer must get.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from hangdoc.demo import reproducer
from tests.benchmarks.measure import table
from tests.support import reproducers
from tests.support.cli import watch_once
from tests.support.started import started
from tests.tools.matrix import jobs

ONSET_S = 3.0
BETWEEN_S = 3.0  # the longest pause between two questions


def answers(job: reproducer.BrokenJob, times: int, beside: int, draw: random.Random) -> list[str]:
    """Playbook and culprits of each answer, and what is wrong with it."""
    with started(job.running, "loss") as trial:
        if job.goes_on:
            limit_s = time.monotonic() + job.spec.within_s
            while watch_once(trial.launcher_pid, *job.asking).verdict["status"] == "healthy":
                if time.monotonic() > limit_s:
                    return ["(healthy) for as long as it was asked"]
        else:
            trial.wait_still(ONSET_S, job.spec.within_s)
        pauses = [draw.uniform(0, BETWEEN_S) for _ in range(times)]
        with ThreadPoolExecutor(beside) as pool:
            return list(pool.map(lambda pause_s: answer(job, trial.launcher_pid, pause_s), pauses))


def answer(job: reproducer.BrokenJob, launcher: int, pause_s: float) -> str:
    """One answer, after a pause."""
    time.sleep(pause_s)
    said = watch_once(launcher, *job.asking)
    result = reproducers.Result(job, said.verdict, said.code, 0.0)
    wrong = [kind for kind in ("status", "class", "culprits") if kind in result.problems()]
    what = f"{result.said} {[culprit['rank'] for culprit in result.best.get('culprits', ())]}"
    return f"{what}, WRONG in {', '.join(wrong)}" if wrong else what


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("wanted", nargs="*", metavar="ID", help="playbooks, or ID/VARIANT (default: every reproducer)")
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--beside", type=int, default=2, help="watches at a time")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    draw, rows, missed = random.Random(given.seed), [("job", "answers", "")], False
    for wanted in given.wanted or reproducer.ids():
        for job in jobs(wanted, default_only="/" not in wanted):
            if job.spec.watch == "live":  # it is over once it has gone wrong
                continue
            said = Counter(answers(job, given.times, given.beside, draw))
            good = len(said) == 1 and not any("WRONG" in answer for answer in said)
            missed |= not good
            rows.append(
                (
                    job.name,
                    "; ".join(f"{answer} ({count})" for answer, count in said.most_common()),
                    "met" if good else "MISSED",
                )
            )
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    table(f"Answers to the same question, asked {given.times} times", rows)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
