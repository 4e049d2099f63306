"""The healthy demo: hangdoc watches the reference job from start to end and must raise no alarm."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hangdoc.demo.harness import Trial, running
from hangdoc.demo.reproducer import Log, narrator
from hangdoc.errors import HangdocError

if TYPE_CHECKING:
    from hangdoc.verdict import Verdict
    from hangdoc.watch.run import Event

ID = "healthy"
RANKS = 2
ALARMS = frozenset({"stall", "verdict"})  # events that a healthy job must not cause
PULSE_S = 0.5  # the second run takes only seconds, so the end of the first must be noticed at once
EVERYTHING = 10_000  # lines; the results at the end are shown in full


def run(write: Callable[[str], None]) -> int:
    """Run and watch the reference job; events and the outcome go to `write`.

    Returns 0 if the job succeeded without an alarm, else 1. Raises HangdocError if the job cannot be run.
    """
    import playbooks

    say, show_line = narrator()
    folder = Path(tempfile.mkdtemp(prefix="hangdoc-reference-"))
    script = playbooks.ROOT / ID / "reference.py"
    say(f"starting {RANKS} ranks of {script} (a real, healthy job); its results go to {folder}")
    started = time.monotonic()
    with running(script, RANKS, ["--out", str(folder)], launcher="self") as trial:
        log = Log(trial, show_line)
        raised = follow(trial, log, write)
        code = trial.launcher.wait(60)
        log.show(EVERYTHING)
    if code not in (0, 1):
        raise HangdocError(f"the reference job could not be run (exit code {code}); see its last lines above")
    outcome = f"raised {', '.join(raised)} on a healthy job" if raised else "raised no alarm"
    equal = "" if code == 0 else "; the ranks' final states DIFFER"
    write(f"hangdoc watched for {time.monotonic() - started:.0f} s and {outcome}{equal}")
    write(f"results: {folder}")
    return 1 if raised or code else 0


def follow(trial: Trial, log: Log, write: Callable[[str], None]) -> list[str]:
    """Watch the ranks of the job until it ends; returns the kinds of false alarms."""
    from hangdoc.discovery.ranks import discover
    from hangdoc.watch.run import WatchOptions, watch

    raised: list[str] = []

    def emit(event: Event) -> None:
        from hangdoc.render.live import event_text

        write(event_text(event))
        if event.kind in ALARMS:
            raised.append(event.kind)

    def status(_: Verdict) -> None:
        log.show()

    while trial.launcher.poll() is None:
        log.show()
        ranks = tuple(trial.rank_pids())
        seen = {target.pid for target in discover((trial.launcher_pid,)).targets}
        if not ranks or not seen.issuperset(ranks):  # starting, or between its two runs
            time.sleep(0.2)
            continue
        with suppress(HangdocError):  # they ended before the first sample
            watch(WatchOptions(pids=ranks, interval_s=PULSE_S), emit, status, lambda text: None)
    return raised
