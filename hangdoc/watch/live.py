"""The live watch: a state for every job, an event for every change of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from hangdoc.analysis import Key
from hangdoc.analysis.facts import Facts
from hangdoc.diagnose import Judge
from hangdoc.verdict import EXIT, Verdict
from hangdoc.watch.session import PATIENCE_S as SHORT_PATIENCE_S
from hangdoc.watch.session import Options, Session, ended, may_be_stuck, one_of_each, quiet, stuck, unclear

PATIENCE_S = 10.0  # a stall younger than this is not said
WINDOW_S = 9.0  # healthy or slow is said after so long
CALM = 3  # so many times less often it looks while every job is calm
SETTLED_S = 30.0  # a job that stands still and is not stuck is calm once its status has been the same for so long
INSPECT_S = 60.0  # quiet for so long, a job is looked at closely, however long it was quiet before
CALM_CORES, CALM_S = 0.3, 10.0  # and then takes about so much of a core, but looks that often: ranks may be thousands
REDISCOVER_S = 10.0  # how often it looks for new ranks


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the live watch: started healthy stall verdict recovered rank_exited job_ended node_lost."""

    kind: str
    time: str  # ISO-8601
    data: dict[str, Any] = field(default_factory=dict)
    verdict: Verdict | None = None


@dataclass(slots=True)
class Watched:
    """What the live watch has said of one job so far."""

    state: str = "new"  # new | stalled | failed | slow | ...: the status that was said last
    since_s: float = 0.0  # when the stall began, not when it was said
    rhythm_s: float = 0.0  # longest pause so far that ended by itself
    step_s: float | None = None  # how long a step took while it was healthy, at best
    calm: bool = False  # nothing is to be expected soon
    same_s: float = 0.0  # since when the verdict's status has been what it is
    quiet_s: float | None = None  # since when it is quiet
    lull_s: float = 0.0  # longest quiet period so far that ended by itself
    inspected: bool = False  # in this quiet period
    gone: set[Key] = field(default_factory=set)
    last: Verdict | None = None


@dataclass(slots=True)
class Live:
    """Watches the jobs of a session until all have ended."""

    options: Options
    session: Session
    judge: Judge
    emit: Callable[[Event], None]
    status: Callable[[Verdict], None]
    watched: dict[str, Watched] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)  # hosts that are not seen
    code: int = 0

    def run(self) -> int:
        """Follow what the session has seen, and see more; returns the exit code of the last verdict."""
        looked_for, used_s = time.monotonic(), time.process_time()
        while self.session.jobs:
            self._lost()
            for job in self.session.jobs:
                self._follow(job)
            if time.monotonic() - looked_for > REDISCOVER_S:
                self.session.rediscover()
                looked_for = time.monotonic()
            round_s, used_s = time.process_time() - used_s, time.process_time()
            if self.session.jobs:
                self.session.wait(self._pause_s(round_s))
                self._lost()
                self.session.look()
        return self.code

    def _pause_s(self, round_s: float) -> float:
        """From one look to the next; `round_s`: CPU time that a look and what was made of it took."""
        if not all(self.watched[job].calm for job in self.session.jobs if job in self.watched):
            return self.options.interval_s
        return max(self.options.interval_s * CALM, min(round_s / CALM_CORES, CALM_S))

    def _lost(self) -> None:
        """Say once which hosts are not seen any more."""
        now = self.session.lost()
        for host, why in now.items():
            if host not in self.away:
                self.emit(_event("node_lost", host=host, why=why))
        self.away = set(now)

    def _follow(self, job: str) -> None:
        facts = self.session.facts(job, self.judge)
        if not facts.ranks:
            self._unseen(job)
            return
        mine = self.watched.setdefault(job, Watched())
        if mine.state == "new" and not mine.last:
            self.emit(_event("started", job=job, ranks=[rank.rank for rank in facts.ranks]))
        self._exits(job, facts, mine)
        if ended(facts):
            self._over(job, facts, mine)
            return
        was_stalled = mine.state == "stalled"
        if stuck(facts, _patience_s(facts, mine)) and not was_stalled:
            self._stalled(job, facts, mine)
        elif was_stalled and facts.job.stall.settled and not facts.job.stall.stalled:
            self.emit(_event("recovered", job=job, seconds=round(self.session.at_s - mine.since_s, 1)))
            mine.state = "new"
            if self.session.keep:
                self.session.keep.recovered(job)
        elif not was_stalled:
            facts = self._inspected(job, facts, mine)
        before = mine.last
        if mine.state == "stalled" and mine.last:
            mine.last = replace(mine.last, stalled_for_s=facts.job.stall.seconds)
        else:
            mine.last = self.judge.verdict(facts, mine.step_s)
            if not was_stalled:
                self._unstuck(job, facts, mine, mine.last)
        if before is None or before.status != mine.last.status:
            mine.same_s = self.session.at_s
        mine.calm = _calm(facts, mine, mine.last, self.session.at_s)
        self.status(mine.last)

    def _unseen(self, job: str) -> None:
        """Nothing is seen of it: its hosts are lost, or it has ended while they were."""
        known = self.watched.get(job)
        hosts = known.last.job.hosts if known and known.last else self.away
        if self.away.isdisjoint(hosts):
            self._forget(job)

    def _forget(self, job: str) -> None:
        self.emit(_event("job_ended", job=job))
        self.session.forget(job)
        self.watched.pop(job, None)

    def _stalled(self, job: str, facts: Facts, mine: Watched) -> None:
        seconds = facts.job.stall.seconds
        mine.since_s = self.session.at_s - (seconds or 0.0)
        self.emit(_event("stall", job=job, seconds=seconds))
        mine.last = self.session.examine(job, self.judge, one_of_each(facts))
        mine.state = "stalled"
        self._say(mine.last)

    def _inspected(self, job: str, facts: Facts, mine: Watched) -> Facts:
        """The facts; in a quiet period once after a look at all there is to see.

        That look is dear: a job that is quiet now and then gets it where a period lasts longer than those before.
        """
        now_s = self.session.at_s
        if not unclear(facts):
            if mine.quiet_s is not None:
                mine.lull_s = max(mine.lull_s, now_s - mine.quiet_s)
            mine.quiet_s, mine.inspected = None, False
            return facts
        mine.quiet_s = now_s if mine.quiet_s is None else mine.quiet_s
        due = now_s - mine.quiet_s >= min(2 * mine.lull_s, INSPECT_S) or not quiet(facts)
        if due and not mine.inspected:
            mine.inspected = True
            self.session.inspect()
            return self.session.facts(job, self.judge)
        return facts

    def _unstuck(self, job: str, facts: Facts, mine: Watched, verdict: Verdict) -> None:
        """Healthy or slow: said once, when it has been watched long enough to tell."""
        if not facts.job.stall.settled or may_be_stuck(facts):
            return
        mine.rhythm_s = max(mine.rhythm_s, _longest_pause(facts))
        if (facts.job.progress.window_s or 0) < WINDOW_S:
            return
        period_s = facts.job.progress.period_s
        if verdict.status == "healthy" and period_s is not None:
            mine.step_s = min(period_s, mine.step_s or period_s)
        if verdict.status == mine.state:
            return
        if verdict.status == "unknown" and not facts.job.stall.idle:  # it may just be starting, or ending
            return
        mine.state = verdict.status
        if verdict.findings or verdict.status != "healthy":
            self._say(verdict)
        else:
            self.emit(_event("healthy", job=job, note=verdict.note))

    def _over(self, job: str, facts: Facts, mine: Watched) -> None:
        """Every rank has ended: by a fault of one of them that is the verdict, unless it was said before."""
        verdict = self.judge.verdict(facts)
        said = mine.last.findings if mine.last and mine.state in ("stalled", "failed") else ()
        if verdict.status == "failed" and [f.playbook for f in said[:1]] != [f.playbook for f in verdict.findings[:1]]:
            self._say(verdict)
        self._forget(job)

    def _say(self, verdict: Verdict) -> None:
        self.code = EXIT[verdict.status]
        self.emit(Event("verdict", _now(), {}, verdict))
        if self.session.keep:
            self.session.keep.verdict(verdict)

    def _exits(self, job: str, facts: Facts, mine: Watched) -> None:
        seen = {(rank.host, rank.pid) for rank in facts.ranks}
        mine.gone = {key for key in mine.gone if key in seen or key[0] in self.away}
        for rank in facts.ranks:
            if rank.alive is False and (rank.host, rank.pid) not in mine.gone:
                mine.gone.add((rank.host, rank.pid))
                how = {"exit": rank.process.exit} if rank.process.exit else {}
                self.emit(_event("rank_exited", job=job, rank=rank.rank, pid=rank.pid, host=rank.host, **how))


def _patience_s(facts: Facts, mine: Watched) -> float:
    """A job of which a rank has died, or a link, does not merely pause."""
    broken = facts.job.exit.fault or facts.job.network.dead_links
    return SHORT_PATIENCE_S if broken else max(PATIENCE_S, 2 * mine.rhythm_s)


def _calm(facts: Facts, mine: Watched, verdict: Verdict, now_s: float) -> bool:
    """It can be looked at less often: it goes on, or it is stuck, which was said, or it just stands still."""
    if mine.state == "healthy" and _moves(facts):
        return True
    if any(rank.stall.still is False for rank in facts.ranks):
        return False
    if mine.state == "stalled":
        return True
    at_rest = verdict.status in ("healthy", "unknown") and not facts.job.stall.stalled
    return at_rest and now_s - mine.same_s >= SETTLED_S


def _moves(facts: Facts) -> bool:
    """Somebody does, or bytes cross, and nothing that was sent has to be sent again: that may be a link's end."""
    if any(rank.network.retransmitting for rank in facts.ranks):
        return False
    return bool(facts.job.network.moving) or any(rank.stall.still is False for rank in facts.ranks)


def _longest_pause(facts: Facts) -> float:
    """The job's own rhythm: every rank stood still that long, and went on."""
    pauses = [rank.progress.pause_s for rank in facts.ranks if rank.progress.pause_s is not None]
    return min(pauses, default=0.0)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _event(kind: str, **data: Any) -> Event:
    return Event(kind, _now(), data)
