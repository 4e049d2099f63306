"""Watches jobs, of this host or of many: sample, judge, say so; examine only what already stands still."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from hangdoc.analysis.facts import schema
from hangdoc.analysis.job.stall import MIN_LOOKS
from hangdoc.diagnose import Judge
from hangdoc.errors import HangdocError
from hangdoc.evidence import Target
from hangdoc.formatting import fold_hosts
from hangdoc.recording.recorder import Recorder
from hangdoc.rules.loader import load
from hangdoc.verdict import Verdict
from hangdoc.watch.live import Event, Live
from hangdoc.watch.sampler import Sampler
from hangdoc.watch.session import (
    PATIENCE_S,
    Options,
    Session,
    ended,
    jobs_of,
    may_be_stuck,
    one_of_each,
    stuck,
    unclear,
)
from hangdoc.watch.sources import LocalSource

__all__ = ["Event", "Options", "judge_with", "watch", "watch_once"]

WATCH_S = 9.0  # without a stall, `--once` says what it has after this long
LIMIT_S = 14.0  # `--once` never watches longer
FIRST_LOOKS = 3  # at a fleet: until then every host has answered, or is lost
REASONS = 5  # why hosts are not seen, that one error tells
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
    with ExitStack() as stack:
        session = _session(options, stack, say)
        judge = judge_with(options.playbooks, say)
        started = time.monotonic()  # on a busy host the playbooks take seconds to load: they are no watching
        undecided, inspected = set(session.jobs), set[str]()
        verdicts: dict[str, Verdict] = {}
        while undecided:
            session.wait(min(options.interval_s, ONCE_INTERVAL_S))
            session.look()
            elapsed = time.monotonic() - started
            for job in sorted(undecided):
                verdict = _decided(session, job, judge, elapsed, inspected, say)
                if verdict is not None:
                    verdicts[job] = verdict
            undecided -= set(verdicts)
        for verdict in verdicts.values():
            if session.keep:
                session.keep.verdict(verdict)
    return tuple(verdicts[job] for job in sorted(verdicts))


def _decided(
    session: Session, job: str, judge: Judge, elapsed: float, inspected: set[str], say: Callable[[str], None]
) -> Verdict | None:
    """The verdict, where enough was seen for one; a job that is quiet is looked at more closely, once."""
    if session.looks(job) < MIN_LOOKS and elapsed < LIMIT_S:
        return None  # of thousands of ranks facts that can tell nothing yet take seconds as well
    facts = session.facts(job, judge)
    if stuck(facts, PATIENCE_S) or (facts.job.stall.parked and elapsed >= WATCH_S):
        say(f"job {job} stands still: examining")
        still = one_of_each(facts)
        del facts  # of thousands of ranks they take much room, and new ones are made
        return session.examine(job, judge, still)
    if unclear(facts) and job not in inspected:
        inspected.add(job)
        session.inspect()
        return None
    over = ended(facts) or elapsed >= LIMIT_S or (elapsed >= WATCH_S and not may_be_stuck(facts))
    return judge.verdict(facts) if over else None


def watch(
    options: Options, emit: Callable[[Event], None], status: Callable[[Verdict], None], say: Callable[[str], None]
) -> int:
    """Watch until every job has ended or the caller is interrupted; returns the exit code of the last verdict."""
    with ExitStack() as stack:
        session = _session(options, stack, say)
        judge = judge_with(options.playbooks, say)
        return Live(options, session, judge, emit, status).run()


def _session(options: Options, stack: ExitStack, say: Callable[[str], None]) -> Session:
    """What is to be watched, seen for the first time. Raises HangdocError where there is no rank."""
    keep = stack.enter_context(Recorder(options.record, platform.node(), say=say)) if options.record else None
    if options.fleet is None:
        session = Session(_here(options, say), keep)
        session.look()
        return session
    from hangdoc.fleet.collector import started

    fleet = started(options.fleet, say, options.ask)
    stack.callback(fleet.close)
    session = Session(fleet, keep)
    for _ in range(FIRST_LOOKS):
        session.look()
        if fleet.targets or not fleet.pending():
            break
    if not fleet.targets:
        raise HangdocError(f"no training rank on {_hosts(len(fleet.hosts))}{_told({**fleet.blind(), **fleet.lost()})}")
    say(f"watching {_count(fleet.targets)} on {_hosts(len({target.host for target in fleet.targets}))}")
    return session


def _here(options: Options, say: Callable[[str], None]) -> LocalSource:
    """The ranks of this host; raises HangdocError where there are none."""
    here = LocalSource(options.pids, Sampler(platform.node(), (), ask=options.ask)).find()
    if not here.targets:
        told = "; ".join(problem.why for problem in here.problems)
        raise HangdocError(told or "no training rank on this host; name one with `hangdoc watch --pids PID`")
    for problem in here.problems:
        say(problem.why)
    say(f"watching {_count(here.targets)}")
    return here


def _told(lost: Mapping[str, str]) -> str:
    """Why hosts are not seen, by reason."""
    reasons: dict[str, list[str]] = {}
    for host, why in lost.items():
        reasons.setdefault(why, []).append(host)
    return "".join(f"; {fold_hosts(hosts)}: {why}" for why, hosts in list(reasons.items())[:REASONS])


def _hosts(count: int) -> str:
    return f"{count} host{'s' * (count != 1)}"


def _count(targets: Sequence[Target]) -> str:
    jobs = len(jobs_of(targets))
    return f"{len(targets)} rank{'s' * (len(targets) != 1)}" + (f" of {jobs} jobs" if jobs > 1 else "")
