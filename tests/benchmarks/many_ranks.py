"""How long it takes to judge a large job: the facts of all its ranks, and every playbook over them, on one core.

What was recorded of a real job that hangs, with one rank to blame, is seen of many ranks on many hosts; each has its
own numbers (see `replicas`), and has crossed from each host's agent as it does in a fleet: so many ranks are judged
nowhere else. The verdict must be the same at every size.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise

from hangdoc.diagnose import Judge, load_judge
from hangdoc.evidence import Snapshot
from hangdoc.recording.recorder import read
from hangdoc.verdict import Verdict
from tests.benchmarks.measure import met, table
from tests.support.paths import ROOT
from tests.support.replicated_ranks import collected, replicate

SIZES = (10, 100, 1_000, 10_000)
LIMIT_S = 2.0
CAPTURES = {"uneven-batches": 2, "conditional-collective": 1}  # and the rank that is to blame there


def judged(judge: Judge, history: Sequence[Snapshot]) -> tuple[float, float, Verdict]:
    """CPU seconds of the facts, and of all playbooks; and the verdict."""
    began = time.process_time()
    facts = judge.facts(history)
    derived = time.process_time()
    verdict = judge.verdict(facts)
    return derived - began, time.process_time() - derived, verdict


def is_right(verdict: Verdict, playbook: str, rank: int) -> bool:
    best = verdict.findings[0] if verdict.findings else None
    return best is not None and best.playbook == playbook and [one.rank for one in best.culprits] == [rank]


def measure(judge: Judge, playbook: str, sizes: Sequence[int], profile: bool) -> bool:
    """Print how it grows; False where it took too long, or the verdict was not the right one."""
    looks = read(ROOT / "playbooks" / playbook / "capture.jsonl.zst")[0].snapshots
    judged(judge, looks)  # what is loaded and compiled at the first use
    found = []
    for size in sizes:
        blamed = 2 * size // 3
        history = collected(replicate(looks, size, {blamed: CAPTURES[playbook]}))
        with cProfile.Profile() if profile and size == sizes[-1] else nullcontext() as profiler:
            facts_s, rules_s, verdict = judged(judge, history)
        found.append((facts_s, rules_s, is_right(verdict, playbook, blamed)))
        if profile and size == sizes[-1]:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
    totals = [facts_s + rules_s for facts_s, rules_s, _ in found]
    steps = ["", *(f"x {b / a:.1f}" for a, b in pairwise(totals))]
    rows = [("ranks", "facts s", "playbooks s", "together s", "growth", "us a rank", "verdict", "limit", "")]
    for size, (facts_s, rules_s, right), total, step in zip(sizes, found, totals, steps, strict=True):
        numbers = (f"{facts_s:.3f}", f"{rules_s:.3f}", f"{total:.3f}", step, f"{1e6 * total / size:.0f}")
        rows.append((str(size), *numbers, "right" if right else "WRONG", f"{LIMIT_S:g} s", met(total, LIMIT_S)))
    table(f"{playbook}, {len(looks)} looks at each rank", rows)
    return max(totals) <= LIMIT_S and all(right for _, _, right in found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options.add_argument("--profile", action="store_true", help="of the largest size, where the time goes")
    given = options.parse_args()
    judge = load_judge((), print)
    well = [measure(judge, playbook, given.sizes, given.profile) for playbook in CAPTURES]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nlargest memory of the whole process, with the evidence and what its agents keep: {used:.0f} MiB")
    sys.exit(not all(well))


if __name__ == "__main__":
    main()
