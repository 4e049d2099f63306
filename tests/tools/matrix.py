"""The confusion matrix: run every reproducer live several times; count which playbook is named, and how soon.

python -m tests.tools.matrix [--runs 5] [--beside 1] [--default-only] [--out FILE] [ID | ID/VARIANT ...]

Prints Markdown. With `--beside 2` two of them run at a time: quicker, on a busy host. Ctrl-C prints what there is. FILE
is written anew after every run; the verdict of each run that was misjudged is kept beside it. Exit code 0 where 95 % of
the runs and more were right in class and culprits.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from hangdoc import __version__
from hangdoc.demo import reproducer
from hangdoc.demo.harness import TrialError
from tests.support import reproducers

ENOUGH = 0.95


@dataclass
class Row:
    """The runs of one reproducer."""

    job: reproducer.BrokenJob
    results: list[reproducers.Result] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # runs that gave no verdict at all

    def right(self, *kinds: str) -> int:
        return sum(not set(kinds) & set(result.problems()) for result in self.results)

    @property
    def runs(self) -> int:
        return len(self.results) + len(self.failures)

    def cells(self) -> Iterator[str]:
        said = Counter(result.said for result in self.results)
        if self.failures:
            said["(no verdict)"] = len(self.failures)
        yield self.job.name
        yield ", ".join(f"{name} {count}" for name, count in said.most_common())
        for kind in ("class", "culprits", "evidence"):
            yield f"{self.right(kind)}/{self.runs}"
        seconds = [result.seconds for result in self.results]
        yield f"{statistics.median(seconds):.1f} s" if seconds else "-"
        yield f"{p90(seconds):.1f} s" if seconds else "-"


def p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


def share_right(rows: list[Row]) -> tuple[int, int]:
    """Runs that were right in class and culprits, and all runs."""
    return sum(row.right("playbook", "class", "culprits") for row in rows), sum(row.runs for row in rows)


def markdown(rows: list[Row]) -> str:
    """The matrix, as docs/benchmarks.md shows it."""
    head = ("reproducer", "first playbook said, in how many runs", "class", "culprits", "evidence", "p50", "p90")
    table = [head, tuple("---" for _ in head), *(tuple(row.cells()) for row in rows if row.runs)]
    right, runs = share_right(rows)
    seconds = [result.seconds for row in rows for result in row.results]
    share = f" ({right / runs:.1%})" if runs else ""
    pace = f"; verdict after {statistics.median(seconds):.1f} s (p90 {p90(seconds):.1f} s)" if seconds else ""
    return "\n".join(
        (
            f"{right} of {runs} runs right in playbook, class and culprits{share}{pace}.",
            "",
            *(f"| {' | '.join(cells)} |" for cells in table),
            "",
            versions(),
        )
    )


def versions() -> str:
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d}: hangdoc {__version__}, Python {platform.python_version()}, "
        f"torch {version('torch')}, py-spy {version('py-spy')}, Linux {platform.release()}, "
        f"{len(os.sched_getaffinity(0))} cores."
    )


def run_all(rows: list[Row], runs: int, beside: int, out: Path | None) -> None:
    """Every row `runs` times, round after round, so that a matrix cut short still shows all of them."""

    def one(row: Row, number: int) -> None:
        told = run_one(row, number, out)
        print(f"{datetime.now():%H:%M:%S} {number}/{runs} {row.job.name}: {told}", file=sys.stderr, flush=True)
        if out:
            out.write_text(markdown(rows) + "\n")

    with ThreadPoolExecutor(beside) as pool:
        for number in range(1, runs + 1):
            list(pool.map(one, rows, [number] * len(rows)))


def run_one(row: Row, number: int, out: Path | None) -> str:
    """One run, added to the row; a misjudged one is kept. Returns what to say of it."""
    try:
        result = reproducers.run(row.job)
    except (TrialError, AssertionError, subprocess.TimeoutExpired) as error:
        row.failures.append(str(error))
        return f"no verdict: {error}"
    row.results.append(result)
    problems = result.problems()
    if problems and out:
        file = out.parent / f"{out.stem}-{row.job.name.replace(' ', '-')}-{number}.json"
        file.write_text(result.told() + "\n")
    told = "right" if not problems else f"WRONG {problems}"
    return f"{told} after {result.seconds:.1f} s"


def jobs(wanted: str, default_only: bool) -> list[reproducer.BrokenJob]:
    """What `ID` or `ID/VARIANT` stands for."""
    id, _, variant = wanted.partition("/")
    every = reproducers.variants(id)
    if variant:
        return [job for job in every if job.variant == variant] or sys.exit(f"{id} has no variant {variant!r}")
    return every[:1] if default_only else every


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wanted", nargs="*", metavar="ID", help="playbooks, or ID/VARIANT (default: everything)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--default-only", action="store_true", help="leave the variants out")
    parser.add_argument("--beside", type=int, default=1, help="how many run at a time")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [Row(job) for wanted in args.wanted or reproducer.ids() for job in jobs(wanted, args.default_only)]
    try:
        run_all(rows, args.runs, args.beside, args.out)
    except KeyboardInterrupt:
        print("interrupted: what there is", file=sys.stderr)
    print(markdown(rows))
    right, runs = share_right(rows)
    return 0 if runs and right >= ENOUGH * runs else 1


if __name__ == "__main__":
    sys.exit(main())
