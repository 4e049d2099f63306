"""Watches the jobs of this host: sample, judge, say so; examine only what already stands still."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from hangdoc.discover import Discovery, discover
from hangdoc.errors import HangdocError
from hangdoc.evidence import Target
from hangdoc.facts import schema
from hangdoc.judge import Judge
from hangdoc.live import Event, Live
from hangdoc.playbook import load
from hangdoc.recording import Recorder
from hangdoc.remains import identified
from hangdoc.session import PATIENCE_S, Options, Session, ended, jobs_of, may_be_stuck, quiet, stuck
from hangdoc.verdict import Verdict

__all__ = ["Event", "Options", "judge_with", "watch", "watch_once"]

WATCH_S = 9.0  # without a stall, `--once` says what it has after this long
LIMIT_S = 14.0  # `--once` never watches longer
ONCE_INTERVAL_S = 0.5  # `--once` has little time and looks more often


def judge_with(playbooks: Sequence[Path], say: Callable[[str], None]) -> Judge:
    """The judge with the shipped playbooks and those of `playbooks`; broken ones are said and left out."""
    import playbooks as shipped

    types = schema()
    library = load((shipped.ROOT, *playbooks), types)
    for problem in library.problems:
        say(str(problem))
    return Judge(library, types)


def watch_once(options: Options, say: Callable[[str], None]) -> tuple[Verdict, ...]:
    """One verdict a job. Raises HangdocError where there is no rank to watch."""
    found = _discover(options, say)
    say(f"watching {_count(found.targets)}")
    with ExitStack() as stack:
        keep = _recorder(options, stack)
        session = Session(_all(found), keep)
        session.look()
        judge = judge_with(options.playbooks, say)
        started = time.monotonic()  # on a busy host the playbooks take seconds to load: they are no watching
        undecided, inspected = set(session.jobs), set[str]()
        verdicts: dict[str, Verdict] = {}
        while undecided:
            session.wait(min(options.interval_s, ONCE_INTERVAL_S))
            session.look()
            elapsed = time.monotonic() - started
            for job in sorted(undecided):
                facts = session.facts(job, judge)
                if stuck(facts, PATIENCE_S) or (facts.job.stall.parked and elapsed >= WATCH_S):
                    say(f"job {job} stands still: examining")
                    verdicts[job] = session.examine(job, judge, facts)
                elif quiet(facts) and job not in inspected:
                    inspected.add(job)
                    session.inspect()
                elif ended(facts) or elapsed >= LIMIT_S or (elapsed >= WATCH_S and not may_be_stuck(facts)):
                    verdicts[job] = judge.verdict(facts)
            undecided -= set(verdicts)
        for verdict in verdicts.values():
            if keep:
                keep.verdict(verdict)
    return tuple(verdicts[job] for job in sorted(verdicts))


def watch(
    options: Options, emit: Callable[[Event], None], status: Callable[[Verdict], None], say: Callable[[str], None]
) -> int:
    """Watch until every job has ended or the caller is interrupted; returns the exit code of the last verdict."""
    found = _discover(options, say)
    say(f"watching {_count(found.targets)}")
    judge = judge_with(options.playbooks, say)
    with ExitStack() as stack:
        return Live(options, Session(_all(found), _recorder(options, stack)), judge, emit, status).run()


def _discover(options: Options, say: Callable[[str], None]) -> Discovery:
    found = discover(options.pids or None)
    if not found.targets:
        told = "; ".join(problem.why for problem in found.problems)
        raise HangdocError(told or "no training rank on this host; name one with `hangdoc watch --pids PID`")
    for problem in found.problems:
        say(problem.why)
    return found


def _all(found: Discovery) -> tuple[Target, ...]:
    return (*found.targets, *identified(found.absent, found.targets))


def _recorder(options: Options, stack: ExitStack) -> Recorder | None:
    return stack.enter_context(Recorder(options.record, platform.node())) if options.record else None


def _count(targets: Sequence[Target]) -> str:
    jobs = len(jobs_of(targets))
    return f"{len(targets)} rank{'s' * (len(targets) != 1)}" + (f" of {jobs} jobs" if jobs > 1 else "")
