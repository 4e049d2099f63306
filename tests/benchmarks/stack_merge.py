"""How long it takes to merge the stacks of a large job into the places where its ranks stand, and how these relate.

Stacks, sources and local variables are recorded ones of real jobs; each rank has its own thread ids and addresses. The
analyses `stack` and `position` are the product's own, and so is the fold into groups for people.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hangdoc.analysis import Case, load
from hangdoc.analysis.ranks.divergence import DivergenceJob
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import RankEvidence, Stacks
from hangdoc.evidence.memory import gc_paused
from hangdoc.recording.recorder import read
from hangdoc.render.rank_groups import fold
from hangdoc.verdict import RankLine
from tests.benchmarks.measure import met, table
from tests.support.paths import ROOT
from tests.support.replicated_ranks import Maker, Replica

SIZES = (10, 100, 1_000, 10_000, 131_072)
CLASSES = (3, 12)
CAPTURES = ("uneven-batches", "conditional-collective", "rank-left", "straggler", "ddp-bypassed")
LIMIT_S, LIMIT_MIB = 3.0, 1024.0


def places(count: int) -> list[RankEvidence]:
    """What was seen of one rank at each of so many places that ranks were recorded at; at the first they wait."""
    found: dict[object, RankEvidence] = {}
    for capture in (ROOT / "playbooks" / name / "capture.jsonl.zst" for name in CAPTURES):
        for rank in (rank for shot in read(capture)[0].snapshots for rank in shot.ranks):
            stacks = rank.records.get("stacks")
            if isinstance(stacks, Stacks) and stacks.threads and "source" in rank.records:
                records = {name: rank.records[name] for name in ("stacks", "source")}
                lines = [(f.function, f.line) for f in stacks.threads[0].frames if "/repo/" in f.file]
                found[tuple(lines)] = RankEvidence(rank.target, True, records)
    assert len(found) >= count
    return sorted(found.values(), key=waits, reverse=True)[:count]


def waits(rank: RankEvidence) -> bool:
    return any("distributed_c10d" in frame.file for frame in rank.records["stacks"].threads[0].frames)


def ranks(count: int, classes: Sequence[RankEvidence]) -> Iterator[RankEvidence]:
    """So many: two thirds are at the first place, the others spread over the rest."""
    for number in range(count):
        model = classes[0 if number % 3 else number // 3 % len(classes)]
        yield Maker(Replica(number, count), ())(model)


def merge(case: Case) -> tuple[int, int]:
    """The number of places, and of groups as people see them."""
    job = case.job(DivergenceJob)
    lines = [
        RankLine(case.ranks[key].target.rank, key[1], key[0], facts.phase, facts.op, facts.site)
        for key, facts in case.facts(StackFacts).items()
    ]
    return job.sides, len(fold(lines))


def measured(count: int, classes: Sequence[RankEvidence]) -> tuple[float, int, int]:
    """CPU seconds of the merge, and what came of it."""
    evidence = {(rank.target.host, rank.target.pid): rank for rank in ranks(count, classes)}
    assert len(evidence) == count
    began = time.process_time()
    with gc_paused():
        sides, groups = merge(Case([], evidence))
    return time.process_time() - began, sides, groups


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    given = options.parse_args()
    load()  # imports every analysis
    missed = False
    for count in CLASSES:
        rows = [("stacks", "s", "growth", "us each", "places", "groups", "limit", "")]
        found = [measured(size, places(count)) for size in given.sizes]
        steps = [""] + [f"x {b[0] / a[0]:.1f}" for a, b in pairwise(found)]
        for size, (seconds, sides, groups), step in zip(given.sizes, found, steps, strict=True):
            missed |= seconds > LIMIT_S
            told = (f"{seconds:.3f}", step, f"{1e6 * seconds / size:.1f}", str(sides), str(groups))
            rows.append((str(size), *told, f"{LIMIT_S:g} s", met(seconds, LIMIT_S)))
        table(f"Stacks merged into {count} classes", rows)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nlargest memory of the whole process, with the evidence: {used:.0f} MiB, {met(used, LIMIT_MIB)}")
    sys.exit(missed or used > LIMIT_MIB)


if __name__ == "__main__":
    main()
