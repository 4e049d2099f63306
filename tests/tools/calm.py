"""Watch every healthy job live for minutes: nothing may be raised.

python -m tests.tools.calm [--seconds 240] [--beside 2] [NAME ...]

Prints a line a job: for how long it was watched, what was raised, and what was said of it otherwise. Exit code 0 where
nothing was raised. "Cannot tell" of a pause that ended by itself raises nothing and is shown: nobody is alerted.
Several run side by side (`--beside`), as on a busy host.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hangdoc.demo.harness import running
from tests.support.cli import watching
from tests.support.paths import HEALTHY

PROGRAMS = {"lifetime", "waits_for_request"}  # no job; one that does nothing until it is asked
SELF_STARTED = {"spawned": ("--ranks", "2")}


@dataclass
class Watch:
    """What was said of one healthy job."""

    name: str
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    alarms: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)  # "cannot tell"

    def __str__(self) -> str:
        said = ", ".join(f"{kind} {count}" for kind, count in self.events.items())
        raised = "; ".join(self.alarms) or "nothing raised"
        return f"{self.name:<18} {self.seconds:6.0f} s   {'; '.join((raised, *self.doubts)):<24}   {said}"


def watch(name: str, seconds: float) -> Watch:
    """Run one healthy job and watch it from its first line on."""
    found = Watch(name)
    args = SELF_STARTED.get(name)
    with running(HEALTHY / f"{name}.py", 2, args or (), launcher="self" if args else "torchrun") as job:
        job.wait_log(r"\S", 120)
        started = time.monotonic()
        with watching(job.launcher_pid, seconds=seconds) as live:
            for event in live.events():
                found.events[event["event"]] += 1
                if event["event"] in ("stall", "verdict"):
                    _note(found, event.get("verdict") or {}, time.monotonic() - started)
        found.seconds = time.monotonic() - started
        job.check()
    return found


def _note(found: Watch, verdict: dict[str, Any], after_s: float) -> None:
    """Add what was said of the job; a stall is an alarm even before its verdict."""
    status = verdict.get("status", "stall")
    first = next((finding["playbook"] for finding in verdict.get("findings", ())), status)
    note = f" ({verdict['note']})" if verdict.get("note") else ""
    (found.doubts if status == "unknown" else found.alarms).append(f"{first} after {after_s:.0f} s{note}")


def names() -> list[str]:
    return sorted({path.stem for path in HEALTHY.glob("*.py")} - PROGRAMS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=240.0, help="how long each is watched")
    parser.add_argument("--beside", type=int, default=2, help="how many run at once")
    args = parser.parse_args()
    said, total = threading.Lock(), 0.0
    alarms = doubts = 0

    def one(name: str) -> None:
        nonlocal total, alarms, doubts
        found = watch(name, args.seconds)
        with said:
            print(found, flush=True)
            total, alarms, doubts = total + found.seconds, alarms + len(found.alarms), doubts + len(found.doubts)

    with ThreadPoolExecutor(args.beside) as pool:
        list(pool.map(one, args.names or names()))
    print(f"{alarms} raised, and {doubts} times 'cannot tell', in {total / 60:.0f} minutes of watching")
    return 1 if alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
