"""Starts a watch of this host or of a fleet: one verdict for each job (`watch_once`), or the live watch (`watch`)."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from hangdoc.analysis.thresholds import STILL_LOOKS
from hangdoc.diagnose import Judge, load_judge
from hangdoc.errors import HangdocError
from hangdoc.evidence import Target
from hangdoc.evidence.memory import share_heap
from hangdoc.formatting import fold_hosts
from hangdoc.incident.log import Change, IncidentLog
from hangdoc.incident.step import step_of
from hangdoc.incident.store import IncidentStore
from hangdoc.recording.recorder import Recorder
from hangdoc.system import procfs
from hangdoc.verdict import Verdict
from hangdoc.watch.live import Event, Live
from hangdoc.watch.node_source import NodeSource
from hangdoc.watch.policy import ONCE_LIMIT_S, Once, follow
from hangdoc.watch.sampler import Sampler
from hangdoc.watch.session import Session, WatchOptions, jobs_of
from hangdoc.watch.sources import LocalSource

__all__ = ["Event", "WatchOptions", "watch", "watch_once"]

MAX_REASONS = 5  # why hosts are not seen, in one error
WAIT_S, MAX_WAIT_S = 1.0, 10.0  # between two searches for ranks that have not started: each reads all of /proc
WAIT_GROWTH = 0.1  # of the pause, for each second waited
QUIET_WAIT_S = 60.0  # a command that is no training job needs no comment
ONCE_INTERVAL_S = 0.4  # `--once` has little time and looks more often


def watch_once(options: WatchOptions, say: Callable[[str], None]) -> tuple[Verdict, ...]:
    """One verdict for each job. Raises HangdocError if there is no rank to watch."""
    with ExitStack() as stack:
        session = _open_session(options, stack, say)
        started = time.monotonic()
        # The ranks are looked at while the playbooks load, which takes seconds of a host whose cores are all in use.
        loading = stack.enter_context(ThreadPoolExecutor(1)).submit(load_judge, options.playbooks, say)
        searched_s = 0.0
        undecided, verdicts = {job: Once(job, say) for job in session.jobs}, dict[str, Verdict]()
        while undecided:
            session.wait(min(options.interval_s, ONCE_INTERVAL_S))
            if time.monotonic() - searched_s >= WAIT_S and any(policy.lacking for policy in undecided.values()):
                session.rediscover()
                searched_s = time.monotonic()
            session.look()
            if not loading.done():
                continue
            judge, elapsed_s = loading.result(), time.monotonic() - started
            for job, policy in sorted(undecided.items()):
                if session.round_count(job) < STILL_LOOKS and elapsed_s < ONCE_LIMIT_S:
                    continue  # too early for any fact, and facts of thousands of ranks take seconds
                if verdict := _verdict(session, judge, job, policy, elapsed_s):
                    verdicts[job] = verdict
                    del undecided[job]
        for verdict in verdicts.values():
            if session.keep:
                session.keep.verdict(verdict)
    return tuple(verdicts[job] for job in sorted(verdicts))


def _verdict(session: Session, judge: Judge, job: str, once: Once, elapsed_s: float) -> Verdict | None:
    """The verdict on a job; None: it is too early."""
    policy = partial(once.decide, elapsed_s=elapsed_s)
    facts, decided = follow(policy, session, judge, job, judge.facts(session.snapshots(job)))
    verdict = judge.verdict(facts) if decided else None
    return verdict if verdict and once.accepts(judge, verdict, facts, elapsed_s) else None


def watch(
    options: WatchOptions,
    emit: Callable[[Event], None],
    status: Callable[[Verdict], None],
    say: Callable[[str], None],
    listeners: Sequence[Callable[[Change], None]] = (),
    is_ordered: Callable[[], bool] = lambda: False,
) -> int:
    """Watch until every job has ended or the user interrupts; returns the exit code of the last verdict.

    `listeners` hear of each incident. `is_ordered`: see `Live`.
    """
    share_heap()
    with ExitStack() as stack:
        session = _open_session(options, stack, say)
        judge = load_judge(options.playbooks, say)
        incidents = _open_incidents(options, stack, say, listeners)
        return Live(options, session, judge, emit, status, incidents, is_ordered).run()


def _open_incidents(
    options: WatchOptions,
    stack: ExitStack,
    say: Callable[[str], None],
    listeners: Sequence[Callable[[Change], None]],
) -> IncidentLog | None:
    """The log of incidents, continuing those that an earlier watch left; None: they are not kept."""
    if options.incidents is None:
        return None
    step = step_of(os.environ) if options.below and options.fleet is None else ""
    log = IncidentLog(IncidentStore(options.incidents, say=say), say, listeners, step)
    stack.callback(log.close)
    log.resume()
    return log


def _open_session(options: WatchOptions, stack: ExitStack, say: Callable[[str], None]) -> Session:
    """A session with its first round. Raises HangdocError if there is no rank."""
    keep = stack.enter_context(Recorder(options.record, platform.node(), say=say)) if options.record else None
    if options.fleet is None:
        source = _local_source(options, say)
        stack.callback(source.close)
        session = Session(source, keep)
        session.look()
        return session
    from hangdoc.fleet.collector import start_fleet

    fleet = start_fleet(options.fleet, say, options.ask)
    stack.callback(fleet.close)
    session = Session(fleet, keep)
    session.look()
    while fleet.pending():
        session.wait(ONCE_INTERVAL_S)  # answers come in meanwhile: on a busy host, or behind a gateway, it takes long
        session.look()
    while not fleet.targets and options.below and _lives(options.pids):
        session.wait(WAIT_S)
        session.rediscover()
        session.look()
    if not fleet.targets:
        reasons = _format_reasons({**fleet.blind(), **fleet.lost()})
        raise HangdocError(f"no training rank on {_format_hosts(len(fleet.hosts))}{reasons}")
    hosts = len({target.host for target in fleet.targets})
    say(f"watching {_format_ranks(fleet.targets)} on {_format_hosts(hosts)}")
    return session


def _local_source(options: WatchOptions, say: Callable[[str], None]) -> NodeSource:
    """The ranks of this host. Raises HangdocError if there are none."""
    own = LocalSource(options.pids, Sampler(platform.node(), (), ask=options.ask), options.below)
    source = NodeSource(own, say).find()
    _await_ranks(source, options, say)
    if not source.targets:
        reasons = "; ".join(problem.why for problem in own.problems)
        raise HangdocError(reasons or "no training rank on this host; select a process with `hangdoc watch --pids PID`")
    for problem in own.problems:
        say(problem.why)
    say(f"watching {_format_ranks(source.targets)}")
    return source


def _await_ranks(source: LocalSource | NodeSource, options: WatchOptions, say: Callable[[str], None]) -> None:
    """Wait until the given processes have started ranks or have ended, or the time is up."""
    began_s = time.monotonic()
    noted = False
    while not source.targets and source.starting:
        waited_s = time.monotonic() - began_s
        if waited_s >= options.wait_s:
            return
        if not noted and waited_s >= (QUIET_WAIT_S if options.below else 0.0):
            noted = True
            pids = ", ".join(map(str, source.starting))
            what = "the command has" if options.below else f"PID {pids} has"
            say(f"{what} not started its ranks yet; waiting for them")
        pause_s = min(max(WAIT_S, waited_s * WAIT_GROWTH), MAX_WAIT_S)
        time.sleep(min(pause_s, options.wait_s - waited_s))
        source.find()


def _lives(pids: Sequence[int]) -> bool:
    """True if one of these processes runs."""
    return any((found := procfs.stat(pid)) is not None and found.state not in "ZX" for pid in pids)


def _format_reasons(lost: Mapping[str, str]) -> str:
    """Why hosts are not seen; hosts with the same reason are listed together."""
    reasons: dict[str, list[str]] = {}
    for host, why in lost.items():
        reasons.setdefault(why, []).append(host)
    return "".join(f"; {fold_hosts(hosts)}: {why}" for why, hosts in list(reasons.items())[:MAX_REASONS])


def _format_hosts(count: int) -> str:
    return f"{count} host{'s' * (count != 1)}"


def _format_ranks(targets: Sequence[Target]) -> str:
    jobs = len(jobs_of(targets))
    return f"{len(targets)} rank{'s' * (len(targets) != 1)}" + (f" of {jobs} jobs" if jobs > 1 else "")
