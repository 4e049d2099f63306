"""Judged from what is left: every reproducer runs until a timeout strikes; are its logs and dumps enough to say why?

python -m tests.benchmarks.post_mortem --out DIR [--judge] [ID | ID/VARIANT ...]

Each job is the playbook's own, on a short timeout of its process groups, and nobody watches it. Kept are the logs of
the ranks (of a host, where each has its own torchrun), and two kinds of dump: the Flight Recorder of each rank when it
ends, and the stacks of a rank that got SIGTERM. `--judge` judges what DIR already has. Exit code 0 where class and
culprits are those of the live verdict in 90 % of the jobs that failed; also told is what is left without the stacks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hangdoc.demo import reproducer
from hangdoc.postmortem.report import Unrecognised, report
from hangdoc.verdict import Finding
from tests.support import reproducers

ENOUGH = 0.9
PATIENCE_S = 12.0  # for which a process group waits
FAILS_S = 90.0  # by then a job that hangs has met its timeout
GOES_ON_S = 30.0  # by then a job that is slow would have met it
LEAVE_S = 40.0  # for a launcher to end its ranks; torchrun kills them after 30 s
BROADLY = "collective_wait"
HOOK = Path(__file__).parent / "impatient"
STACKS = "stacks"


# --- the collecting ---------------------------------------------------------------------------------


def collect(job: reproducer.BrokenJob, folder: Path) -> None:
    """Run a job to its end; what is left of it is then in `folder`, how it ended in the file beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / STACKS).mkdir(parents=True)
    settings = {
        "HANGDOC_PATIENCE_S": str(PATIENCE_S),
        "HANGDOC_KEEP": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HOOK), os.environ.get("PYTHONPATH")))),
    }
    if job.spec.launcher != "self":
        settings |= {"PET_LOG_DIR": str(folder / "logs"), "PET_REDIRECTS": "3", "PET_TEE": "3"}
    told = job.spec.model_copy(update={"env": {**(job.spec.env or {}), **settings}})
    began = time.monotonic()
    with replace(job, spec=told).running() as trial:
        ended = True
        try:
            trial.launcher.wait(GOES_ON_S if job.goes_on else FAILS_S)
        except subprocess.TimeoutExpired:
            ended = False
            trial.launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                trial.launcher.wait(LEAVE_S)
        code = trial.launcher.poll()
        if not any((folder / "logs").glob("*.log")):  # of hosts or ranks: what they print is there
            shutil.copy(trial.log, folder / "job.log")
    for file in (folder / STACKS).iterdir():
        if not file.stat().st_size:  # it ended by itself
            file.unlink()
    told_of = {"ended": ended, "code": code, "seconds": round(time.monotonic() - began, 1)}
    beside(folder).write_text(json.dumps(told_of) + "\n")


def beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def place(out: Path, job: reproducer.BrokenJob) -> Path:
    return out / job.name.replace(" ", "-")


# --- the judging ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What was said of one job."""

    job: reproducer.BrokenJob
    failed: bool  # a slow job never does, and leaves nothing
    found: Finding | None
    with_stacks: Finding | None  # where the stacks at the end are there as well

    def right(self, found: Finding | None) -> bool:
        return found is not None and (found.cls, ranks(found)) == (self.job.cls, sorted(self.job.spec.expect.culprits))

    def cells(self) -> Iterator[str]:
        yield self.job.name
        yield f"{self.job.cls} {sorted(self.job.spec.expect.culprits)}"
        for found in (self.found, self.with_stacks):
            yield "-" if found is None else f"{found.playbook}, {found.cls} {ranks(found)}, {found.confidence}"
            yield "yes" if self.right(found) else "no"


def ranks(found: Finding) -> list[int]:
    return sorted(one.rank for one in found.culprits if one.rank is not None)


def judge(job: reproducer.BrokenJob, folder: Path) -> Row:
    how = json.loads(beside(folder).read_text())
    left = [path for path in sorted(folder.iterdir()) if path.name != STACKS]
    return Row(job, _failed(job, folder, how), best(left), best([*left, folder / STACKS]))


def _failed(job: reproducer.BrokenJob, folder: Path, how: Mapping[str, Any]) -> bool:
    """It met a timeout or an error; not where only its end by us is left, or nothing (MPI waits for ever)."""
    if not how["ended"] and job.goes_on:
        return False
    raised = any("Traceback" in path.read_text(errors="replace") for path in folder.rglob("*.log"))
    return raised or (how["ended"] and how["code"] != 0) or (not how["ended"] and any(folder.glob("*_trace_rank_*")))


def best(sources: Sequence[Path]) -> Finding | None:
    """The first finding; of the last run where the job was restarted."""
    try:
        verdicts = report(sources).verdicts
    except Unrecognised:
        return None
    return next((verdict.findings[0] for verdict in reversed(verdicts) if verdict.findings), None)


def markdown(rows: Sequence[Row]) -> str:
    head = ("reproducer", "live verdict", "logs, Flight Recorder", "right", "and stacks at the end", "right")
    judged = [row for row in rows if row.failed]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *(row.cells() for row in judged))]
    plain = sum(row.right(row.found) for row in judged)
    stacks = sum(row.right(row.with_stacks) for row in judged)
    count = max(len(judged), 1)
    calm = ", ".join(row.job.name for row in rows if not row.failed) or "none"
    return "\n".join(
        (
            f"{stacks} of {len(judged)} jobs right in class and culprits ({stacks / count:.0%}) from logs, Flight "
            f"Recorder and the stacks at the end; {plain} ({plain / count:.0%}) without these stacks.",
            "",
            *lines,
            "",
            f"Without a failure, a timeout or a dump, so not counted: {calm}.",
        )
    )


def jobs(wanted: Sequence[str]) -> list[reproducer.BrokenJob]:
    """What `ID` (the reproducer itself) and `ID/VARIANT` stand for; those that go on for ever come last.

    Where nothing is wanted: every reproducer, and of the class that timeouts are all about the variants too.
    """
    pairs = [one.partition("/") for one in wanted or reproducer.ids()]
    found = [
        job
        for id, _, name in pairs
        for job in reproducers.variants(id)
        if job.variant == name or (not wanted and job.cls == BROADLY)
    ]
    return sorted(found, key=lambda job: job.goes_on)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wanted", nargs="*", metavar="ID", help="playbooks, or ID/VARIANT (default: see `jobs`)")
    parser.add_argument("--out", type=Path, required=True, help="where the files are kept")
    parser.add_argument("--judge", action="store_true", help="run nothing: judge what is there")
    told = parser.parse_args()
    wanted = [(job, place(told.out.resolve(), job)) for job in jobs(told.wanted)]
    for job, folder in () if told.judge else wanted:
        collect(job, folder)
        print(f"{job.name}: {beside(folder).read_text().strip()}", file=sys.stderr, flush=True)
    rows = [judge(job, folder) for job, folder in wanted if beside(folder).exists()]
    print(markdown(rows))
    failed = [row for row in rows if row.failed]
    return 0 if failed and sum(row.right(row.with_stacks) for row in failed) >= ENOUGH * len(failed) else 1


if __name__ == "__main__":
    sys.exit(main())
