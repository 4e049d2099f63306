"""The demo: run a playbook's reproducer, diagnose it live, and end it."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hangdoc.demo.harness import Trial, TrialError, running
from hangdoc.errors import HangdocError, UsageError
from hangdoc.rules.runbook import folders, require

if TYPE_CHECKING:
    from rich.console import Console

    from hangdoc.rules.schema import Reproducer
    from hangdoc.verdict import Finding, Verdict

DEFAULT = "uneven-batches"
SCRIPT = "reproducer.py"
QUIET_S = 3.0  # of silence in the log, then hangdoc looks
UNDER_WAY_S = 5.0  # after the first line; a slow or diverging job never falls silent
SHOWN = 4  # lines of the job's log at a time
WIDEST = 1000  # characters of such a line
GONE_WRONG = frozenset({"stalled", "failed"})  # statuses that end the live watch


@dataclass(frozen=True, slots=True)
class BrokenJob:
    """A job that reproduces a playbook's failure, and the diagnosis that it must get."""

    playbook: str
    cls: str
    script: Path
    spec: Reproducer  # launch, time limit, expected diagnosis
    status: str = "stalled"
    variant: str = ""  # another job with the same failure, for the tests; "": the job of the demo

    @property
    def name(self) -> str:
        return f"{self.playbook} {self.variant}".rstrip()

    @property
    def goes_on(self) -> bool:
        """True if the job does not hang but is slow or diverges."""
        return self.status in ("slow", "diverging")

    @property
    def asking(self) -> tuple[str, ...]:
        """Options of `watch` that are needed to tell the failure from its look-alikes."""
        return ("--ask", ",".join(self.spec.ask)) if self.spec.ask else ()

    def running(self) -> AbstractContextManager[Trial]:
        """Start the job."""
        return running(self.script, self.spec.ranks, self.spec.args, self.spec.env, self.spec.launcher)

    def meets(self, verdicts: Iterable[Verdict]) -> bool:
        """True if the best finding is this playbook's, on the expected ranks."""
        return any(verdict.findings and self._fits(verdict.findings[0]) for verdict in verdicts)

    def _fits(self, finding: Finding) -> bool:
        culprits = sorted(culprit.rank for culprit in finding.culprits if culprit.rank is not None)
        wanted = (self.playbook, self.cls, sorted(self.spec.expect.culprits))
        return (finding.playbook, finding.cls, culprits) == wanted


def ids() -> list[str]:
    """The playbooks that have a reproducer."""
    return sorted(id for id, folder in folders().items() if (folder / SCRIPT).exists())


def broken(id: str) -> BrokenJob:
    """The reproducer of a playbook; raises HangdocError if there is none or the playbook cannot be read."""
    import yaml

    from hangdoc.rules.schema import Envelope

    folder = require(id)
    try:
        playbook = Envelope.model_validate(yaml.safe_load((folder / "playbook.yaml").read_text(encoding="utf-8")))
    except (ValueError, yaml.YAMLError) as error:
        raise HangdocError(f"{folder / 'playbook.yaml'} cannot be read: {error}") from error
    spec = playbook.reproducer
    if spec is None or not (folder / SCRIPT).exists():
        raise UsageError(f"{id} has no demo; `hangdoc demo --list` lists the failures that have one")
    return BrokenJob(id, playbook.cls, folder / spec.script, spec, spec.expect.status or playbook.status)


def run(id: str | None, console: Console) -> int:
    """Break a job and show its diagnosis on `console`; returns 0 if it is as expected, else 1.

    Raises HangdocError if the job cannot be run or ends by itself. Every process of the job is ended.
    """
    from hangdoc.render.terminal import show

    job = broken(id or DEFAULT)
    say, show_line = narrator()
    say(f"starting {job.spec.ranks} ranks of {job.script} (a real job, about to break)")
    try:
        with job.running() as trial:
            verdicts = diagnose(job, trial, say, show_line)
            console.print()
            show(verdicts, console)
            console.print()
    except TrialError as error:
        raise HangdocError(f"the demo's job could not be run: {error}") from error
    met = job.meets(verdicts)
    wanted = f"{job.playbook}, culprits {list(job.spec.expect.culprits)}"
    say(f"the job and all its processes have ended; the diagnosis is {'' if met else 'NOT '}as expected ({wanted})")
    return 0 if met else 1


def narrator() -> tuple[Callable[[str], None], Callable[[str], None]]:
    """Two functions that print to stderr: progress, and a line of the job's log. Raises HangdocError without torch."""
    from rich.console import Console

    if importlib.util.find_spec("torch") is None:
        raise HangdocError("the demo runs a real PyTorch job, which needs torch: pip install 'hangdoc[demo]'")
    progress = Console(file=sys.stderr, markup=False, highlight=False, emoji=False, style="dim")
    return (
        lambda text: progress.print(f"hangdoc: {text}", soft_wrap=True),
        lambda line: progress.print(f"  | {line}", soft_wrap=True),
    )


def diagnose(
    job: BrokenJob, trial: Trial, say: Callable[[str], None], show_line: Callable[[str], None]
) -> tuple[Verdict, ...]:
    """Follow the job's log until it falls silent, then judge like `watch --once` until there is a finding."""
    from hangdoc.watch.run import WatchOptions, watch_once

    deadline = time.monotonic() + job.spec.within_s
    log = Log(trial, show_line)
    if job.spec.watch == "live":
        return _watched(job, trial, log, deadline, say)
    options = WatchOptions(pids=(trial.launcher_pid,), ask=frozenset(job.spec.ask))
    while True:
        quiet = log.follow(deadline, UNDER_WAY_S if job.goes_on else None)
        say(f"{f'no output for {QUIET_S:.0f} s; ' * quiet}running: {' '.join(_command(job, trial, '--once'))}")
        verdicts = watch_once(options, say)
        if any(verdict.findings for verdict in verdicts) or time.monotonic() >= deadline:
            return verdicts


class _Done(Exception):
    """The live watch has its verdict, or has run out of time."""


def _command(job: BrokenJob, trial: Trial, *options: str) -> list[str]:
    return ["hangdoc", "watch", *options, *job.asking, "--pids", str(trial.launcher_pid)]


def _watched(
    job: BrokenJob, trial: Trial, log: Log, deadline: float, say: Callable[[str], None]
) -> tuple[Verdict, ...]:
    """Watch the job live from its first line until it fails or stalls."""
    from hangdoc.render.live import event_text
    from hangdoc.watch.run import Event, WatchOptions, watch

    verdicts: list[Verdict] = []

    def emit(event: Event) -> None:
        say(event_text(event))
        if event.verdict is not None and event.verdict.status in GONE_WRONG:
            verdicts.append(event.verdict)

    def status(_: Verdict) -> None:
        log.show()
        if verdicts or time.monotonic() >= deadline:
            raise _Done

    log.follow(deadline, 0.0)
    while len(trial.rank_pids()) < job.spec.ranks and time.monotonic() < deadline:
        time.sleep(0.1)  # the first line may be the launcher's: a rank that ends before it is seen leaves no cause
    say(f"running: {' '.join(_command(job, trial))}")
    with suppress(_Done):
        watch(WatchOptions(pids=(trial.launcher_pid,), ask=frozenset(job.spec.ask)), emit, status, say)
    log.show()
    return tuple(verdicts)


class Log:
    """Prints the log of a job as it grows."""

    def __init__(self, trial: Trial, show_line: Callable[[str], None]) -> None:
        self._trial = trial
        self._show = show_line
        self._seen = 0

    def follow(self, deadline: float, talk_s: float | None = None) -> bool:
        """Wait for QUIET_S of silence (True), for `deadline` (monotonic s), or for `talk_s` after the first line.

        Raises TrialError if the job has ended.
        """
        last = time.monotonic()
        while time.monotonic() < deadline:
            before = self._seen
            if self.show():
                last = time.monotonic()
                if not before and talk_s is not None:
                    deadline = min(deadline, last + talk_s)
            if self._seen and time.monotonic() - last >= QUIET_S:
                return True
            self._trial.check()
            time.sleep(0.25)
        return False

    def show(self, most: int = SHOWN) -> bool:
        """Print the last `most` of the new lines; True if there are new lines."""
        from hangdoc.render.sanitize import clean

        lines = self._trial.text().splitlines()
        new = lines[self._seen :]
        for line in new[-most:]:
            self._show(clean(line)[:WIDEST])
        self._seen = len(lines)
        return bool(new)
