"""The rounds of the daemon: every job of the node, started and ended all day, in one loop.

A round is a pulse of each job (see `pulse`). A look follows if a pulse differs, if a rank exits, or if the last look is
too long ago. What follows from a look is decided by the live watch.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hangdoc.daemon.board import Asked, Board
from hangdoc.daemon.governor import Governor
from hangdoc.daemon.health import Abandoned, Liveness, Steps
from hangdoc.daemon.log import Log
from hangdoc.daemon.probe_limits import LimitedProbe
from hangdoc.discovery.newcomers import Newcomers
from hangdoc.evidence import Target
from hangdoc.evidence.memory import release
from hangdoc.watch.live import Live
from hangdoc.watch.pace import grown_s
from hangdoc.watch.pulse import Pulse
from hangdoc.watch.session import HISTORY_ROUNDS
from hangdoc.watch.sources import LocalSource
from probes import Tier

PULSE_S = 2.0  # between two pulses; twice that at the two highest levels of the governor
SLOW_PULSE_LEVEL = 3
LOOK_S = 30.0  # between two looks at jobs whose pulse is as before; longer where that has been so for long (`grown_s`)
EMPTY_S = 6.0  # at a fleet without jobs: only its agents find them
BLIND_S = 6.0  # at a job whose pulse would not show a standstill
UNDECIDED_S = 3.0  # at a job whose status has been unclear for URGENT_S
URGENT_S = 60.0  # after a change of status, looks are as frequent as in `hangdoc watch`
ALERT_S = 8.0  # likewise after a pulse that differs
ALERT_GAP_S = 30.0  # between two such alerts of one job, for each level of the governor
STALLED_GAP_S = 2.0  # likewise of a stalled job, whose recovery somebody waits for
CHECK_S = 4.0  # between two checks for new processes
MAX_FAILURES = 20  # of rounds in a row; then a restart is better
LEAST_ROUNDS = 10  # of history kept when memory is short
LEAST_WAIT_S = 0.05  # between two rounds
STOP_CHECK_S = 0.5  # a wait is divided into parts of this length, for SIGTERM
WOKEN_S = 0.02  # a wait that ends so much too early was ended by an exit
BLOCKED_SEARCH_S = 300.0  # until the next search for ranks, after one that blocked
SEARCH = "search for ranks"
TRIM_S = 60.0  # between two attempts to use less memory


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the rounds call, all in their thread."""

    finished: Callable[[float], None]  # a round has finished; its duration (s)
    failed: Callable[[str], None]  # a `judgement` or a `round` has failed
    found: Callable[[], None]  # a search for ranks has ended


@dataclass(slots=True)
class _Attention:
    """Why a job is looked at more often."""

    since_s: float  # when the job was first seen
    until_s: float = 0.0  # of the last alert


class Rounds:
    """Runs the rounds; any thread may run them, one at a time (`Steps.owner`)."""

    def __init__(
        self,
        live: Live,
        governor: Governor,
        steps: Steps,
        liveness: Liveness,
        log: Log,
        probes: Sequence[LimitedProbe],
        hooks: Hooks,
        board: Board | None = None,
    ) -> None:
        """`probes`: those of this host, empty for a fleet. `board`: what agents ask for, over the socket."""
        self.live, self.session, self.governor = live, live.session, governor
        self._steps, self._liveness, self._log = steps, liveness, log
        self._probes, self._hooks, self._board = probes, hooks, board
        self._newcomers = Newcomers()
        self._pulse = Pulse()
        self._attention: dict[str, _Attention] = {}
        self._looked_s = self._checked_s = self._trimmed_s = float("-inf")
        self._exited = False  # a rank has exited since the last look
        self._failures = 0

    def run(self, stop: threading.Event) -> None:
        """Run rounds until `stop` is set, or until the thread is given up."""
        try:
            while not stop.is_set():
                self.round()
                self._wait(stop)
        except Abandoned:
            return

    def round(self) -> None:
        """One round. An error costs this round only; too many in a row are raised."""
        began_s = time.monotonic()
        try:
            self._round(began_s)
        except Exception as error:
            self._failures += 1
            self._hooks.failed("round")
            if self._failures >= MAX_FAILURES:
                raise
            self._log.once(f"a round failed, hangdoc goes on: {type(error).__name__}: {error}")
            return
        self._failures = 0
        self._govern()
        self._liveness.finished()
        self._hooks.finished(time.monotonic() - began_s)

    def _round(self, now_s: float) -> None:
        if now_s - self._checked_s >= CHECK_S:
            with self._steps.doing(SEARCH):
                self._search(now_s)
        self.live.report_lost()
        targets = self._targets()
        odd = self._take_pulse(targets)
        for job in odd:
            attention = self._attention[job]
            gap_s = STALLED_GAP_S if self._is_stalled(job) else ALERT_GAP_S
            if now_s - attention.until_s >= gap_s * self.governor.level:
                attention.until_s = now_s + ALERT_S
        due = self._exited or now_s >= self._looked_s + self._look_interval_s(now_s)
        alerted = any(self._attention[job].until_s > now_s for job in odd)
        asked = self._board.take(self._is_busy, self._is_of_stalled) if self._board else None
        if (due or alerted or asked) and (self.session.jobs or self._is_fleet):
            self._look(now_s, asked)

    @property
    def _is_fleet(self) -> bool:
        return not self._probes

    def _search(self, now_s: float) -> None:
        self._checked_s = now_s
        if self._is_fleet or self._newcomers.is_search_due(now_s, self.governor.factor):
            self._discover()
            for probe in self._probes:
                probe.forget(self.session.source.targets)
            self._hooks.found()

    def _discover(self) -> None:
        """Search for ranks; the first search also finds those that died before."""
        source = self.session.source
        if not source.targets and isinstance(source, LocalSource):
            source.find()
        self.session.rediscover()

    def _targets(self) -> dict[str, list[Target]]:
        found: dict[str, list[Target]] = defaultdict(list)
        for target in self.session.source.targets:
            found[target.job].append(target)
        now_s = time.monotonic()
        self._attention = {job: self._attention.get(job) or _Attention(now_s) for job in {*self.session.jobs, *found}}
        return found

    def _take_pulse(self, targets: dict[str, list[Target]]) -> frozenset[str]:
        """The jobs that move otherwise than before. Hosts of a fleet have no pulse here."""
        if self._is_fleet:
            return frozenset()
        with self._steps.doing("pulse"):
            return self._pulse.beat(targets, {job for job in targets if self._is_stalled(job)})

    def _is_stalled(self, job: str) -> bool:
        watched = self.live.watched.get(job)
        return watched is not None and watched.state == "stalled"

    def _is_of_stalled(self, target: Target) -> bool:
        return self._is_stalled(target.job)

    @property
    def _is_busy(self) -> bool:
        return self.governor.level > 0

    def _look(self, now_s: float, asked: Asked | None = None) -> None:
        """Look at every job and judge it. An error in one job's judgement costs that job this round."""
        with self._steps.doing("look"):
            if asked and asked.tier > Tier.LOOK:
                self.session.look_closer([(t.host, t.pid) for t in self.session.source.targets if t.pid in asked.still])
            else:
                self.session.look()
        self._looked_s, self._exited = now_s, False
        for job in self.session.jobs:
            watched = self.live.watched.get(job)
            before = (watched.calm, watched.state) if watched else (False, "new")
            try:
                with self._steps.doing("judgement"):
                    self.live.follow(job)
            except Exception as error:
                self._hooks.failed("judgement")
                self._log.once(f"job {job}: its judgement failed, it is tried again: {type(error).__name__}: {error}")
                continue
            watched = self.live.watched.get(job)
            if watched is None or self._is_fleet:
                continue
            self._pulse.learn(job, self.session.snapshots(job)[-1:])
            attention = self._attention.get(job)
            over = attention is not None and 0 <= now_s - attention.until_s < PULSE_S  # an alert has just ended
            if before != (watched.calm, watched.state) or (over and watched.state != "stalled"):
                self._pulse.restart(job)
            if attention is not None and before[1] != watched.state:
                attention.until_s = 0.0  # the alert has done its work; the next one is about the new state

    def _look_interval_s(self, now_s: float) -> float:
        """The time from the last look to the next one: as short as the most urgent job needs."""
        if not self.session.jobs:
            return EMPTY_S * self.governor.factor if self._is_fleet else LOOK_S
        return min(self._interval_s(job, now_s) for job in self.session.jobs)

    def _interval_s(self, job: str, now_s: float) -> float:
        watched, attention, factor = self.live.watched.get(job), self._attention.get(job), self.governor.factor
        urgent_s = self.live.options.interval_s
        if watched is None or attention is None or now_s < attention.until_s:
            return urgent_s
        changed_s = max(watched.same_s, attention.since_s)
        if not watched.calm:
            return urgent_s if now_s - changed_s < URGENT_S else max(urgent_s, UNDECIDED_S * factor)
        stalled = watched.state == "stalled"
        if not self._pulse.knows(job, stalled):
            return max(urgent_s, BLIND_S * factor)
        same_s = 0.0 if stalled else self._looked_s - max(changed_s, attention.until_s)
        return max(urgent_s, LOOK_S * factor, grown_s(same_s))

    def _wait(self, stop: threading.Event) -> None:
        """Sleep until the next round, or until a rank exits, which is worth a look."""
        now_s = time.monotonic()
        pulse_s = PULSE_S * (2 if self.governor.level >= SLOW_PULSE_LEVEL else 1)
        due_s = self._looked_s + self._look_interval_s(now_s) if self.session.jobs else now_s + pulse_s
        until_s = max(now_s + LEAST_WAIT_S, min(now_s + pulse_s, due_s))
        with self._steps.doing("wait"):
            while (now_s := time.monotonic()) < until_s and not (self._exited or stop.is_set() or self._is_asked()):
                part_s = min(until_s, now_s + STOP_CHECK_S)
                self.session.source.wait(part_s)
                self._exited = time.monotonic() < part_s - WOKEN_S

    def _is_asked(self) -> bool:
        return self._board is not None and self._board.due(self._is_busy)

    def _govern(self) -> None:
        now_s, governor = time.monotonic(), self.governor
        change = governor.measure(now_s)
        if change:
            share, budget = f"{100 * governor.share:.2f} %", f"{100 * governor.budget.cpu_share:g} %"
            what = "looks are rarer now" if change > 0 else "looks are more frequent again"
            self._log.notice(f"CPU {share} of a core, budget {budget}: {what} (level {governor.level})")
        if governor.over_memory and now_s - self._trimmed_s >= TRIM_S:
            self._trimmed_s = now_s
            self.session.rounds_kept = max(LEAST_ROUNDS, self.session.rounds_kept // 2)
            release()
            self._log.once(
                f"memory exceeds the budget of {governor.budget.memory_mib:g} MiB: a shorter history is kept"
            )
        elif governor.usage.memory_mib < 0.8 * governor.budget.memory_mib and self.session.rounds_kept < HISTORY_ROUNDS:
            self.session.rounds_kept = HISTORY_ROUNDS

    def abandoned(self, step: str) -> None:
        """A round was given up in this step: a search for ranks that blocks is not tried again soon."""
        if step == SEARCH:
            self._checked_s = time.monotonic() + BLOCKED_SEARCH_S
