"""The live watch: the state of each job, and an event for each change of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from hangdoc.analysis import Key
from hangdoc.analysis.facts import Facts
from hangdoc.diagnose import Judge
from hangdoc.discovery.newcomers import Newcomers
from hangdoc.evidence.memory import release
from hangdoc.incident.log import IncidentLog
from hangdoc.verdict import CONFIDENCES, EXIT, Finding, Verdict
from hangdoc.watch.pace import Pace, is_local
from hangdoc.watch.policy import PATIENCE_S as SHORT_PATIENCE_S
from hangdoc.watch.policy import (
    Examination,
    follow,
    has_ended,
    is_held,
    is_quiet,
    is_stuck,
    may_be_stuck,
    needs_inspection,
)
from hangdoc.watch.session import Session, WatchOptions

PATIENCE_S = 10.0  # a shorter stall is not reported
INTERNAL_PATIENCE_S = 6.0  # of one that nothing outside the job can end
WINDOW_S = 9.0  # of history before a job is reported as healthy or slow
SILENCE_S = 2.0  # without a byte between ranks, and
SILENCES = 2.0  # times the longest silence that ended by itself, are no longer calm
SETTLED_S = 30.0  # an idle job counts as calm after its status has not changed for this long
PAUSES = 2.0  # a pause so many times as long as the longest that ended by itself is not usual
INSPECT_S = 60.0  # a job that is quiet for this long is inspected, even if it was quiet for longer before
FIRM_UP_S = 20.0  # after a verdict that is not certain, the job is judged again; then after twice as long each time
CHECK_S = 10.0  # between two checks for new ranks


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the live watch: started healthy stall verdict recovered rank_exited job_ended node_lost."""

    kind: str
    time: str  # ISO-8601
    data: dict[str, Any] = field(default_factory=dict)
    verdict: Verdict | None = None


@dataclass(slots=True)
class WatchedJob:
    """What the live watch has reported about one job so far."""

    state: str = "new"  # new | stalled | failed | slow | ...: the last reported status
    since_s: float = 0.0  # when the stall began
    reported_s: float = 0.0  # when it was reported
    judged_s: float = 0.0  # when the stall was last judged
    rhythm_s: float = 0.0  # longest pause so far that ended by itself
    resumed_s: float = 0.0  # when its last stall was over: that pause is none of its own
    step_s: float | None = None  # shortest step time while healthy
    calm: bool = False  # no change is expected soon
    same_s: float = 0.0  # when the status of the verdict last changed
    quiet_s: float | None = None  # when the current quiet period began
    lull_s: float = 0.0  # longest quiet period so far that ended by itself
    silent_s: float = 0.0  # since the last byte between ranks, at the last look
    silence_s: float = 0.0  # longest time without a byte that ended by itself
    inspected: bool = False  # in this quiet period
    examined: bool = False  # likewise: native stacks were read, to see what its ranks wait for
    gone: set[Key] = field(default_factory=set)  # ranks with a reported exit
    last: Verdict | None = None


@dataclass(slots=True)
class Live:
    """Watches the jobs of a session until all have ended. `incidents`: what it tells of each job; None: nobody."""

    options: WatchOptions
    session: Session
    judge: Judge
    emit: Callable[[Event], None]
    status: Callable[[Verdict], None]
    incidents: IncidentLog | None = None
    is_ordered: Callable[[], bool] = lambda: False  # true once somebody has asked the job to end: deaths are no failure
    watched: dict[str, WatchedJob] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)  # lost hosts
    code: int = 0
    _newcomers: Newcomers = field(default_factory=Newcomers)
    _checked_s: float = field(default_factory=time.monotonic)

    def run(self) -> int:
        """Watch until every job has ended; returns the exit code of the last verdict."""
        with closing(Pace(self.options.interval_s)) as pace:
            while self.session.jobs:
                used_s = time.process_time()
                self._round()
                pace.spent(time.process_time() - used_s)
                if self.session.jobs:
                    known = {job: self.watched[job] for job in self.session.jobs if job in self.watched}
                    stalled = {job for job, watched in known.items() if watched.state == "stalled"}
                    pace.wait(self.session, all(watched.calm for watched in known.values()), stalled, self._search)
                    self.report_lost()
                    self.session.look()
        return self.code

    def _round(self) -> None:
        """Judge every job after a look; now and then, look for new ranks."""
        self.report_lost()
        for job in self.session.jobs:
            self.follow(job)
        self._search()

    def _search(self) -> bool:
        """Look for new ranks, if it is time to; true if there are some."""
        now_s, source = time.monotonic(), self.session.source
        if now_s - self._checked_s < CHECK_S:
            return False
        self._checked_s = now_s
        if is_local(source) and not self._newcomers.is_search_due(now_s):
            return False
        before = frozenset(source.targets)
        self.session.rediscover()
        return not before.issuperset(source.targets)

    def report_lost(self) -> None:
        """Report each lost host once."""
        lost = self.session.lost()
        for host, why in lost.items():
            if host not in self.away:
                self.emit(_event("node_lost", host=host, why=why))
        self.away = set(lost)

    def _facts(self, job: str) -> Facts:
        return self.judge.facts(self.session.snapshots(job))

    def follow(self, job: str) -> None:
        """Judge one job after a look, and report what has changed."""
        facts = self._facts(job)
        if not facts.ranks:
            self._unseen(job)
            return
        watched = self.watched.setdefault(job, WatchedJob())
        if watched.state == "new" and not watched.last:
            self.emit(_event("started", job=job, ranks=[rank.rank for rank in facts.ranks]))
        self._observe(job, facts)
        self._report_exits(job, facts, watched)
        if has_ended(facts):
            self._end(job, facts, watched)
            return
        was_stalled = watched.state == "stalled"
        if is_stuck(facts, _patience_s(facts, watched)) and not was_stalled:
            self._begin_stall(job, facts, watched)
            self._report_stall(job, facts, watched)
        elif was_stalled and not facts.job.stall.stalled and self._has_resumed(job, facts, watched):
            self.emit(_event("recovered", job=job, seconds=round(self.session.at_s - watched.since_s, 1)))
            watched.state = "new"
            watched.resumed_s, watched.silent_s = self.session.at_s, 0.0
            self._recovered(job)
        elif not was_stalled:
            facts = self._inspect_if_quiet(job, facts, watched)
            self._examine_if_parked(job, facts, watched)
        before = watched.last
        if watched.state == "stalled" and watched.last:
            watched.last = replace(watched.last, stalled_for_s=facts.job.stall.seconds)
            self._firm_up(job, facts, watched)
        else:
            watched.last = self.judge.verdict(facts, watched.step_s)
            if not was_stalled:
                self._report_running(job, facts, watched, watched.last)
        if before is None or before.status != watched.last.status:
            watched.same_s = self.session.at_s
        _listen(facts, watched)
        watched.calm = _calm(facts, watched, watched.last, self.session.at_s)
        self.status(watched.last)

    def _observe(self, job: str, facts: Facts) -> None:
        """The round goes to disk if the job is suspect, before anything else is done with it."""
        if self.incidents:
            self.incidents.observe(job, facts, facts.case.history, self.session.at_s)

    def _recovered(self, job: str) -> None:
        if self.session.keep:
            self.session.keep.recovered(job)
        if self.incidents:
            self.incidents.recovered(job)

    def _unseen(self, job: str) -> None:
        """No rank of the job is seen: its hosts are lost, or it ended while they were."""
        known = self.watched.get(job)
        hosts = known.last.job.hosts if known and known.last else self.away
        if self.away.isdisjoint(hosts):
            if self.incidents:
                self.incidents.ended(job, None)
            self._forget(job)

    def _forget(self, job: str) -> None:
        self.emit(_event("job_ended", job=job))
        self.session.forget(job)
        self.watched.pop(job, None)
        release()

    def _begin_stall(self, job: str, facts: Facts, watched: WatchedJob) -> None:
        seconds = facts.job.stall.seconds
        watched.since_s, watched.reported_s = self.session.at_s - (seconds or 0.0), self.session.at_s
        self.emit(_event("stall", job=job, seconds=seconds))

    def _report_stall(self, job: str, facts: Facts, watched: WatchedJob) -> None:
        examined, _ = follow(Examination().decide, self.session, self.judge, job, facts)
        self._observe(job, examined)
        self._report_as_stalled(job, self.judge.before_deaths(examined) or examined, watched)

    def _report_as_stalled(self, job: str, facts: Facts, watched: WatchedJob) -> None:
        """Report the cause of a stall; what happens to the job from now on is the outcome."""
        watched.last = self.judge.verdict(facts)
        watched.state = "stalled"
        watched.judged_s = self.session.at_s
        self._report(job, watched.last)

    def _firm_up(self, job: str, facts: Facts, watched: WatchedJob) -> None:
        """Judge a stall again that has no certain cause yet, less and less often; report a cause that is more certain.

        A stall out of which ranks died is not judged again: its evidence is older than they are.
        """
        last, now_s = watched.last, self.session.at_s
        due_s = max(FIRM_UP_S, watched.judged_s - watched.reported_s)
        if last is None or _certainty(last) == len(CONFIDENCES) or now_s - watched.judged_s < due_s:
            return
        watched.judged_s = now_s
        if any(rank.alive is False for rank in facts.ranks):
            return
        verdict = self.judge.verdict(facts)
        if verdict.status == "stalled" and _certainty(verdict) > _certainty(last):
            watched.last = verdict
            self._report(job, verdict)

    def _has_resumed(self, job: str, facts: Facts, watched: WatchedJob) -> bool:
        """True if the job has made progress since its stall was reported.

        A rank that spins or polls works now and then, while its peers wait in the same collective as before.
        """
        if not facts.job.stall.settled:
            return False
        since = self.judge.facts(self.session.snapshots(job, watched.reported_s))
        waited = [rank.progress for rank in since.ranks if rank.progress.wait_share]
        stepped = any(progress.completed or progress.period_s is not None for progress in waited)
        return since.job.stall.progressed and (stepped or not waited)

    def _inspect_if_quiet(self, job: str, facts: Facts, watched: WatchedJob) -> Facts:
        """The facts, after one inspection in each quiet period that is longer than those before.

        An inspection is expensive, and some jobs are quiet now and then.
        """
        now_s = self.session.at_s
        if not needs_inspection(facts):
            if watched.quiet_s is not None:
                watched.lull_s = max(watched.lull_s, now_s - watched.quiet_s)
            watched.quiet_s, watched.inspected, watched.examined = None, False, False
            return facts
        watched.quiet_s = now_s if watched.quiet_s is None else watched.quiet_s
        due = now_s - watched.quiet_s >= min(2 * watched.lull_s, INSPECT_S) or not is_quiet(facts)
        if due and not watched.inspected:
            watched.inspected = True
            self.session.look_closer()
            facts = self._facts(job)
        return facts

    def _examine_if_parked(self, job: str, facts: Facts, watched: WatchedJob) -> None:
        """Report the stall of a job whose waits only native stacks show, which are read once in each quiet period."""
        quiet_s = self.session.at_s - watched.quiet_s if watched.quiet_s is not None else 0.0
        if not facts.job.stall.parked or quiet_s < PATIENCE_S or watched.examined:
            return
        watched.examined = True
        examined, _ = follow(Examination().decide, self.session, self.judge, job, facts)
        self._observe(job, examined)
        if is_stuck(examined, PATIENCE_S):
            self._begin_stall(job, examined, watched)
            self._report_as_stalled(job, self.judge.before_deaths(examined) or examined, watched)

    def _report_running(self, job: str, facts: Facts, watched: WatchedJob, verdict: Verdict) -> None:
        """Report healthy or slow, once, after a long enough window."""
        if not facts.job.stall.settled or may_be_stuck(facts):
            return
        window_s = facts.job.progress.window_s or 0.0
        if self.session.at_s - watched.resumed_s > window_s:
            watched.rhythm_s = max(watched.rhythm_s, _longest_pause(facts, watched))
        if window_s < WINDOW_S:
            return
        step_s = facts.job.progress.step_s
        if verdict.status == "healthy" and step_s is not None:
            watched.step_s = min(step_s, watched.step_s or step_s)
        if verdict.status == watched.state:
            return
        if verdict.status == "unknown" and not _is_longer_than_before(facts, watched):
            return
        if verdict.status == "failed" and self.is_ordered():
            return
        before = self.judge.before_deaths(facts) if verdict.status == "failed" else None
        if before is not None or verdict.status == "stalled":
            self._begin_stall(job, before or facts, watched)
            self._report_as_stalled(job, before or facts, watched)
            return
        watched.state = verdict.status
        if verdict.findings or verdict.status != "healthy":
            self._report(job, verdict)
        else:
            self.emit(_event("healthy", job=job, note=verdict.note))
        if verdict.status == "healthy" and self.incidents:
            self.incidents.recovered(job)

    def _end(self, job: str, facts: Facts, watched: WatchedJob) -> None:
        """Every rank has exited. Out of a job that was diagnosed, that is the outcome; else it may be the failure."""
        if not _is_outcome(facts, watched) and not self.is_ordered():
            verdict = self.judge.verdict(facts)
            reported = watched.last.findings if watched.last and watched.state == "failed" else ()
            new = [f.playbook for f in reported[:1]] != [f.playbook for f in verdict.findings[:1]]
            before = self.judge.before_deaths(facts)
            if before is not None and watched.state != "stalled":
                self._begin_stall(job, before, watched)
                self._report_as_stalled(job, before, watched)
            elif before is not None and self.judge.verdict(before).findings:
                self._report_as_stalled(job, before, watched)  # it began to end while it was examined
            elif before is None and verdict.status == "failed" and new:
                self._report(job, verdict)
        if self.incidents:
            self.incidents.ended(job, facts)
        self._forget(job)

    def _report(self, job: str, verdict: Verdict) -> None:
        self.code = EXIT[verdict.status]
        incident = self.incidents.verdict(job, verdict) if self.incidents else None
        about = {"incident": incident.id} if incident else {}
        if incident and incident.recurrence:
            verdict = replace(verdict, note="; ".join(filter(None, (verdict.note, incident.recurrence))))
        self.emit(Event("verdict", _now(), about, verdict))
        if self.session.keep:
            self.session.keep.verdict(verdict)

    def _report_exits(self, job: str, facts: Facts, watched: WatchedJob) -> None:
        seen = {(rank.host, rank.pid) for rank in facts.ranks}
        watched.gone = {key for key in watched.gone if key in seen or key[0] in self.away}
        for rank in facts.ranks:
            if rank.alive is False and (rank.host, rank.pid) not in watched.gone:
                watched.gone.add((rank.host, rank.pid))
                how = {"exit": rank.process.exit} if rank.process.exit else {}
                self.emit(_event("rank_exited", job=job, rank=rank.rank, pid=rank.pid, host=rank.host, **how))


def _is_outcome(facts: Facts, watched: WatchedJob) -> bool:
    """True if the cause was reported before the ranks ended: of a stall, or of a slow job that somebody ended."""
    if watched.last is None or not watched.last.findings:
        return False
    if watched.state == "stalled":
        return True
    ends = [rank.exit for rank in facts.ranks]
    return watched.state in ("slow", "diverging") and all(e.kind in ("killed", "told") and not e.oom for e in ends)


def _certainty(verdict: Verdict) -> int:
    """Confidence in the cause, from 1; 0: no cause is known."""
    best: Finding | None = next(iter(verdict.findings), None)
    return CONFIDENCES.index(best.confidence) + 1 if best and best.confidence in CONFIDENCES else 0


def _patience_s(facts: Facts, watched: WatchedJob) -> float:
    """How long a stall must last to be reported: less if a rank or a link is dead, because that is no mere pause."""
    if facts.job.exit.fault or facts.job.network.dead_links:
        return SHORT_PATIENCE_S
    return max(INTERNAL_PATIENCE_S if facts.job.stall.internal else PATIENCE_S, 2 * watched.rhythm_s)


def _is_longer_than_before(facts: Facts, watched: WatchedJob) -> bool:
    """True if the job is idle, for longer than in any pause that ended by itself. Else it may be starting or ending."""
    seconds = facts.job.stall.seconds or 0.0
    return facts.job.stall.idle and seconds >= PAUSES * max(watched.rhythm_s, watched.lull_s)


def _listen(facts: Facts, watched: WatchedJob) -> None:
    """Learn how long the ranks of this job are silent between two messages."""
    silent_s = facts.job.network.idle_s or 0.0
    if silent_s < watched.silent_s:
        watched.silence_s = max(watched.silence_s, watched.silent_s)
    watched.silent_s = silent_s


def _calm(facts: Facts, watched: WatchedJob, verdict: Verdict, now_s: float) -> bool:
    """True if a longer interval is safe: the job moves, or its stall was reported, or it is just idle."""
    if watched.state == "healthy" and watched.silent_s > SILENCES * max(watched.silence_s, SILENCE_S):
        return False
    if watched.state == "healthy" and _moves(facts) and not is_held(facts):
        return True
    if is_held(facts) or any(rank.stall.still is False for rank in facts.ranks):
        return False
    if watched.state == "stalled":
        return True
    at_rest = verdict.status in ("healthy", "unknown") and not facts.job.stall.stalled
    return at_rest and now_s - watched.same_s >= SETTLED_S


def _moves(facts: Facts) -> bool:
    """True if a rank or bytes move, and nothing is retransmitted: a retransmission may be the start of a dead link."""
    if any(rank.network.retransmitting for rank in facts.ranks):
        return False
    return bool(facts.job.network.moving) or any(rank.stall.still is False for rank in facts.ranks)


def _longest_pause(facts: Facts, watched: WatchedJob) -> float:
    """The job's own rhythm: every rank paused for at least this long and went on.

    A rank that is on the same line in each look may have made steps between them; bytes between ranks tell.
    """
    pauses = [rank.progress.pause_s for rank in facts.ranks if rank.progress.pause_s is not None]
    if facts.job.network.idle_s is not None:
        pauses.append(watched.silence_s)
    return min(pauses, default=0.0)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _event(kind: str, **data: Any) -> Event:
    return Event(kind, _now(), data)
