"""The same broken job asked several times: does `watch --once` give the same answer each time?

python -m tests.benchmarks.consistency [--times 10] [ID | ID/VARIANT ...]

A job that hangs is asked from 3 s after it stood still, a slow one from 5 s after its first line, at random moments.
Exit code 1 where an answer differs from the others or from the diagnosis that the reproducer must get.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

from hangdoc.demo import reproducer
from tests.benchmarks.measure import table
from tests.support import reproducers
from tests.support.cli import watch_once
from tests.support.started import started
from tests.tools.matrix import jobs

ONSET_S = 3.0
BETWEEN_S = 3.0  # the longest pause between two questions


def answers(job: reproducer.BrokenJob, times: int, draw: random.Random) -> Iterator[str]:
    """Playbook and culprits of each answer, and what is wrong with it."""
    with started(job.running, "loss") as trial:
        if job.goes_on:
            time.sleep(reproducer.UNDER_WAY_S)
        else:
            trial.wait_still(ONSET_S, job.spec.within_s)
        for _ in range(times):
            time.sleep(draw.uniform(0, BETWEEN_S))
            said = watch_once(trial.launcher_pid, *job.asking)
            result = reproducers.Result(job, said.verdict, said.code, 0.0)
            wrong = [kind for kind in ("status", "class", "culprits") if kind in result.problems()]
            culprits = [culprit["rank"] for culprit in result.best.get("culprits", ())]
            what = f"{result.said} {culprits}"
            yield f"{what}, WRONG in {', '.join(wrong)}" if wrong else what


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("wanted", nargs="*", metavar="ID", help="playbooks, or ID/VARIANT (default: every reproducer)")
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    draw, rows, missed = random.Random(given.seed), [("job", "answers", "")], False
    for wanted in given.wanted or reproducer.ids():
        for job in jobs(wanted, default_only="/" not in wanted):
            if job.spec.watch == "live":  # it is over once it has gone wrong
                continue
            said = Counter(answers(job, given.times, draw))
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
