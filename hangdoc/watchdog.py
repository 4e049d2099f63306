"""Watches the jobs of this host: sample, judge, say so; examine only what already stands still."""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hangdoc.discover import Discovery, discover
from hangdoc.errors import HangdocError
from hangdoc.evidence import Snapshot, Target
from hangdoc.facts import Facts, schema
from hangdoc.judge import Judge
from hangdoc.playbook import load
from hangdoc.recording import Recorder
from hangdoc.sampler import Sampler, of_job
from hangdoc.verdict import Verdict
from probes import Tier

HISTORY = 40  # snapshots kept a job: what the shares and changes are judged over
PATIENCE_S = 4.0  # a stall younger than this may be an ordinary pause
WATCH_S = 9.0  # without a stall, `--once` says what it has after this long
LIMIT_S = 14.0  # `--once` never watches longer
ONCE_INTERVAL_S = 0.5  # `--once` has little time and looks more often
LIVE_PATIENCE_S = 10.0
CALM = 3  # so many times less often the live watch looks while every job is healthy and moves
EXAMINATIONS = 3  # rounds: native stacks of many ranks take more than one
REDISCOVER_S = 10.0  # how often the live watch looks for new ranks


@dataclass(frozen=True, slots=True)
class Options:
    """What to watch and how; `pids` empty: every training rank on this host."""

    pids: tuple[int, ...] = ()
    record: Path | None = None
    playbooks: tuple[Path, ...] = ()
    interval_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the live watch: started healthy stall verdict recovered rank_exited job_ended."""

    kind: str
    time: str  # ISO-8601
    data: dict[str, Any] = field(default_factory=dict)
    verdict: Verdict | None = None


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
        session = Session((*found.targets, *found.absent), keep)
        started = time.monotonic()
        session.look()
        judge = judge_with(options.playbooks, say)
        undecided = set(session.jobs)
        verdicts: dict[str, Verdict] = {}
        while undecided:
            _sleep_until(session.at_s + min(options.interval_s, ONCE_INTERVAL_S))
            session.look()
            elapsed = time.monotonic() - started
            for job in sorted(undecided):
                facts = judge.facts(session.history[job])
                if _stuck(facts, PATIENCE_S) or (facts.job.stall.parked and elapsed >= WATCH_S):
                    say(f"job {job} stands still: examining")
                    verdicts[job] = session.examine(job, judge, facts)
                elif _ended(facts) or elapsed >= LIMIT_S or (elapsed >= WATCH_S and not _may_be_stuck(facts)):
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
        live = Live(options, Session((*found.targets, *found.absent), _recorder(options, stack)), judge, emit, status)
        return live.run()


class Session:
    """The targets, the sampler and the history of each job."""

    def __init__(self, targets: Sequence[Target], keep: Recorder | None) -> None:
        self.keep = keep
        self.sampler = Sampler(platform.node(), tuple(targets))
        self.history: dict[str, deque[Snapshot]] = {job: deque(maxlen=HISTORY) for job in _jobs(targets)}
        self.at_s = 0.0

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self.history)

    def look(self) -> None:
        """One round over every rank, without pausing any."""
        self._add(self.sampler.round(Tier.LOOK))

    def examine(self, job: str, judge: Judge, facts: Facts) -> Verdict:
        """Look closely at what stands still, then judge; a stall that ended meanwhile is judged as what it is."""
        asked: set[int] = set()
        for _ in range(EXAMINATIONS):
            asked.update(_one_of_each(facts))
            self._add(self.sampler.round(Tier.EXAMINE, asked))
            facts = judge.facts(self.history[job])
            if asked.issuperset(_one_of_each(facts)):
                break
        return judge.verdict(facts)

    def retarget(self, targets: Sequence[Target]) -> None:
        """Watch other ranks from now on; those that ended stay until their job has ended."""
        self.sampler.targets = tuple(targets)
        for job in _jobs(targets):
            self.history.setdefault(job, deque(maxlen=HISTORY))

    def forget(self, job: str) -> None:
        self.history.pop(job, None)
        self.sampler.targets = tuple(t for t in self.sampler.targets if t.job != job)

    def _add(self, shot: Snapshot) -> None:
        self.at_s = shot.at_s
        for job, history in self.history.items():
            history.append(of_job(shot, job))
        if self.keep:
            self.keep.snapshot(shot)


@dataclass(slots=True)
class Watched:
    """What the live watch has said of one job so far."""

    state: str = "new"  # new | healthy | stalled
    since_s: float = 0.0
    rhythm_s: float = 0.0  # longest pause so far that ended by itself
    calm: bool = False  # healthy, and it moves
    gone: set[int] = field(default_factory=set)
    last: Verdict | None = None


@dataclass(slots=True)
class Live:
    """The live watch: a state for every job, an event for every change of it."""

    options: Options
    session: Session
    judge: Judge
    emit: Callable[[Event], None]
    status: Callable[[Verdict], None]
    watched: dict[str, Watched] = field(default_factory=dict)
    code: int = 0

    def run(self) -> int:
        looked_for = time.monotonic()
        while self.session.jobs:
            self.session.look()
            for job in self.session.jobs:
                self._follow(job)
            if time.monotonic() - looked_for > REDISCOVER_S:
                self._rediscover()
                looked_for = time.monotonic()
            calm = all(self.watched[job].calm for job in self.session.jobs if job in self.watched)
            _sleep_until(self.session.at_s + self.options.interval_s * (CALM if calm else 1))
        return self.code

    def _follow(self, job: str) -> None:
        facts = self.judge.facts(self.session.history[job])
        mine = self.watched.setdefault(job, Watched())
        if mine.state == "new" and not mine.last:
            self.emit(_event("started", job=job, ranks=[rank.rank for rank in facts.ranks]))
        self._exits(job, facts, mine)
        if _ended(facts):
            self.emit(_event("job_ended", job=job))
            self.session.forget(job)
            return
        stuck = _stuck(facts, max(LIVE_PATIENCE_S, 2 * mine.rhythm_s))
        if stuck and mine.state != "stalled":
            self.emit(_event("stall", job=job, seconds=facts.job.stall.seconds))
            self._judge(job, facts, mine)
        elif mine.state == "stalled" and not facts.job.stall.stalled:
            self.emit(_event("recovered", job=job, seconds=round(time.monotonic() - mine.since_s, 1)))
            mine.state = "new"
        elif mine.state != "stalled":
            self._unstuck(job, facts, mine)
        mine.calm = mine.state == "healthy" and any(rank.stall.still is False for rank in facts.ranks)
        if mine.state == "stalled" and mine.last:
            mine.last = replace(mine.last, stalled_for_s=facts.job.stall.seconds)
        else:
            mine.last = self.judge.verdict(facts)
        self.status(mine.last)

    def _judge(self, job: str, facts: Facts, mine: Watched) -> None:
        mine.last = self.session.examine(job, self.judge, facts)
        mine.state, mine.since_s = "stalled", time.monotonic()
        self._say(mine.last)

    def _unstuck(self, job: str, facts: Facts, mine: Watched) -> None:
        """Healthy or slow: said once, when it has been watched long enough to tell."""
        if not facts.job.stall.settled or _may_be_stuck(facts):
            return
        mine.rhythm_s = max(mine.rhythm_s, _longest_pause(facts))
        if (facts.job.progress.window_s or 0) < WATCH_S:
            return
        verdict = self.judge.verdict(facts)
        if verdict.status == mine.state:
            return
        mine.state = verdict.status
        if verdict.findings:
            self._say(verdict)
        else:
            self.emit(_event("healthy", job=job, note=verdict.note))

    def _say(self, verdict: Verdict) -> None:
        from hangdoc.verdict import EXIT

        self.code = EXIT[verdict.status]
        self.emit(Event("verdict", _now(), {}, verdict))
        if self.session.keep:
            self.session.keep.verdict(verdict)

    def _exits(self, job: str, facts: Facts, mine: Watched) -> None:
        for rank in facts.ranks:
            if rank.alive is False and rank.pid not in mine.gone:
                mine.gone.add(rank.pid)
                self.emit(_event("rank_exited", job=job, rank=rank.rank, pid=rank.pid))

    def _rediscover(self) -> None:
        """New ranks appear with a restart or another job; known ones stay, so that an exit is noticed."""
        known = {(t.pid, t.start_ticks) for t in self.session.sampler.targets}
        found = discover(self.options.pids or None).targets
        fresh = [t for t in found if (t.pid, t.start_ticks) not in known]
        if fresh:
            here = {(t.job, t.rank) for t in fresh}
            kept = [t for t in self.session.sampler.targets if t.pid > 0 or (t.job, t.rank) not in here]
            self.session.retarget((*kept, *fresh))


def _one_of_each(facts: Facts) -> list[int]:
    """PIDs whose native stacks are wanted: of the ranks that stand at one place one, since equal stacks tell once."""
    by_place = {rank.position.side: rank.pid for rank in reversed(facts.ranks) if rank.stall.still}
    return list(by_place.values())


def _stuck(facts: Facts, patience_s: float) -> bool:
    stall = facts.job.stall
    return bool(stall.stalled) and (stall.seconds or 0.0) >= patience_s


def _ended(facts: Facts) -> bool:
    return all(rank.alive is False for rank in facts.ranks)


def _may_be_stuck(facts: Facts) -> bool:
    """It stands still, only not long enough to say so."""
    return bool(facts.job.stall.stalled) or not facts.job.stall.settled


def _longest_pause(facts: Facts) -> float:
    """The job's own rhythm: every rank stood still that long, and went on."""
    pauses = [rank.progress.pause_s for rank in facts.ranks if rank.progress.pause_s is not None]
    return min(pauses, default=0.0)


def _discover(options: Options, say: Callable[[str], None]) -> Discovery:
    found = discover(options.pids or None)
    if not found.targets:
        told = "; ".join(problem.why for problem in found.problems)
        raise HangdocError(told or "no training rank on this host; name one with `hangdoc watch --pids PID`")
    for problem in found.problems:
        say(problem.why)
    return found


def _recorder(options: Options, stack: ExitStack) -> Recorder | None:
    return stack.enter_context(Recorder(options.record, platform.node())) if options.record else None


def _jobs(targets: Sequence[Target]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(target.job for target in targets))


def _count(targets: Sequence[Target]) -> str:
    jobs = len(_jobs(targets))
    return f"{len(targets)} rank{'s' * (len(targets) != 1)}" + (f" of {jobs} jobs" if jobs > 1 else "")


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _event(kind: str, **data: Any) -> Event:
    return Event(kind, _now(), data)
