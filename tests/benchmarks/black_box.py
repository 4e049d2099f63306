"""Whether the evidence of a hung job outlives whatever ends the job, the launcher or hangdoc, at random moments.

python -m tests.benchmarks.black_box [--runs 20] [--beside 2] [--within 12] [--seed 0] [HOW ...]

Each run starts a real torchrun job that hangs, waits for hangdoc's first suspicion, and ends it up to WITHIN seconds
later: by a collective timeout, by kill -9 of every rank, of torchrun or of hangdoc, or by SIGTERM to torchrun. Then
`hangdoc report latest` judges what is on disk. Exit code 1 if class or culprits differ from the live verdict, or from
what is really wrong.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hangdoc.demo.harness import TrialError
from tests.benchmarks.measure import table
from tests.support.black_box import CAUSE, ENDS, Crash, crash


def once(how: str, after_s: float) -> Crash | str:
    """What is left of one run, or why it could not be made."""
    with tempfile.TemporaryDirectory(prefix="black-box-") as folder:
        try:
            return crash(how, after_s, Path(folder))
        except (TrialError, AssertionError, subprocess.TimeoutExpired) as error:
            return str(error)


def row(how: str, runs: Sequence[tuple[float, Crash | str]]) -> tuple[tuple[str, ...], bool]:
    """A row of the table, and whether every run was right."""
    made = [(after_s, left) for after_s, left in runs if isinstance(left, Crash)]
    right = [left for _, left in made if left.on_disk == [CAUSE] and len(left.incidents) == 1]
    live = [left for _, left in made if left.live]
    same = [left for left in live if left.live == left.on_disk]
    outcomes = sorted({one.outcome.kind if one.outcome else "none" for _, left in made for one in left.incidents})
    for after_s, left in runs:
        if not isinstance(left, Crash) or left not in right or left.live not in ([], left.on_disk):
            print(f"{how} after {after_s:.1f} s: {left}", file=sys.stderr, flush=True)
    cells = (
        how,
        str(len(runs)),
        f"{len(right)} of {len(runs)}",
        f"{len(same)} of {len(live)}",
        f"{len(made) - len(live)}",
        ", ".join(outcomes),
    )
    return cells, len(right) == len(runs) and len(same) == len(live)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("wanted", nargs="*", metavar="HOW", help=f"default: {' '.join(ENDS)}")
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--beside", type=int, default=2, help="runs at once")
    options.add_argument("--within", type=float, default=12.0, help="seconds after the first suspicion")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    draw = random.Random(given.seed)
    rows: list[tuple[str, ...]] = [
        ("ended by", "runs", "cause on disk", "as live", "ended before a verdict", "outcomes"),
    ]
    good = True
    with ThreadPoolExecutor(given.beside) as pool:
        plans = {how: [draw.uniform(0, given.within) for _ in range(given.runs)] for how in given.wanted or ENDS}
        left = {how: [(after_s, pool.submit(once, how, after_s)) for after_s in plan] for how, plan in plans.items()}
        for how, runs in left.items():
            cells, right = row(how, [(after_s, run.result()) for after_s, run in runs])
            print(*cells, sep=" | ", file=sys.stderr, flush=True)
            rows.append(cells)
            good = good and right
    table("Black box: the cause on disk, after everything else has died", rows)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
