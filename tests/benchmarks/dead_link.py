"""From the break of a link to the live watch's word of it, with default settings: the variants of `dead-link`.

python -m tests.benchmarks.dead_link [--runs 3]     needs root and `ip`

The watch is there before the break. The break is where the job's log ends: it prints a line a step. Exit code 1 where a
run took longer than the limit, or another playbook was named.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from datetime import datetime

from hangdoc.demo import reproducer
from tests.benchmarks.measure import met, table
from tests.support import reproducers
from tests.support.cli import watching

LIMIT_S = 10.0
STEPS = 1500  # that succeed: the watch has long begun


def told_after(job: reproducer.BrokenJob) -> tuple[float, str]:
    """Seconds from the break to the verdict, and the playbook it names."""
    with job.running() as trial:
        trial.wait_log("loss", 90)
        with watching(trial.launcher_pid, seconds=180) as watch:
            event = watch.until("verdict")
            said = datetime.fromisoformat(event["time"]).timestamp()
            time.sleep(1.0)
            took = said - trial.log.stat().st_mtime
    findings = event["verdict"]["findings"]
    return took, findings[0]["playbook"] if findings else event["verdict"]["status"]


def later(job: reproducer.BrokenJob) -> reproducer.BrokenJob:
    """The same job, with more steps before the break."""
    told = job.spec.model_copy(update={"args": [*job.spec.args, "--steps-before", str(STEPS)]})
    return replace(job, spec=told)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=3)
    runs = options.parse_args().runs
    rows, good = [("job", "told after, s", f"limit {LIMIT_S:g} s", "said")], True
    for job in map(later, reproducers.variants("dead-link")):
        seen = [told_after(job) for _ in range(runs)]
        took = [seconds for seconds, _ in seen]
        said = sorted({playbook for _, playbook in seen})
        good &= max(took) <= LIMIT_S and said == ["dead-link"]
        rows.append((job.name, ", ".join(f"{s:.1f}" for s in took), met(max(took), LIMIT_S), ", ".join(said)))
    table("From the break of a link to the verdict, live", rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
