"""When the live watch looks next: each interval, but less often while every job is calm.

A calm job of this host whose pulse would show a standstill (see `pulse`) is looked at rarely, and the more rarely the
longer it is calm: a look costs the job a hundred times as much as a beat.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass, field

from hangdoc.evidence import Target
from hangdoc.watch.node_source import NodeSource
from hangdoc.watch.pulse import Pulse
from hangdoc.watch.session import Session
from hangdoc.watch.sources import LocalSource, Source

CALM_FACTOR = 3  # the interval grows by this factor while every job is calm
PULSE_FACTOR = 10  # likewise, while each pulse would show a change
CALM_GROWTH, LONGEST_S = 0.5, 120.0  # see `grown_s`
BEAT_S = 1.0  # between two beats
SLOW_BEAT_S, SLOW_S = 2.0, 60.0  # between two beats, while the next look is at least SLOW_S after the last
ALERT_S = 8.0  # for so long after a pulse that differs, looks are as frequent as at a job that is not calm
ALERT_GAP_S = 30.0  # from then on, pulses are not trusted for so long: some jobs change all the time
CALM_CORES, CALM_MAX_S = 0.3, 10.0  # CPU share (of a core) while calm, and the longest interval it may lead to
COSTS = 3  # rounds of which the cheapest counts: the first ones compile rules, and would delay the next look by 10 s
WOKEN_S = 0.02  # a wait that ends so much too early was ended by an exit


@dataclass(slots=True)
class Pace:
    """Waits between the looks of a live watch, and takes the pulse of the jobs meanwhile."""

    interval_s: float
    pulse: Pulse = field(default_factory=Pulse)
    _costs: deque[float] = field(default_factory=lambda: deque(maxlen=COSTS))
    _alert_s: float = float("-inf")  # when a pulse last differed
    _restless_s: float = field(default_factory=lambda: time.monotonic())  # when a job was last not calm, or unknown

    def close(self) -> None:
        self.pulse.close()

    def spent(self, round_s: float) -> None:
        """`round_s`: CPU time of a look and its analysis."""
        self._costs.append(round_s)

    def wait(self, session: Session, calm: bool, stalled: Set[str], search: Callable[[], bool] = lambda: False) -> None:
        """Sleep until the next look is due, a rank exits, the pulse of a calm job differs, or there are new ranks.

        `calm`: every job is. `stalled`: jobs whose stall was reported. `search`: looks for ranks if it is time to, and
        tells whether there are new ones.
        """
        local = is_local(session.source)
        if not calm or not local or time.monotonic() - self._alert_s < ALERT_S:
            self._restless_s = time.monotonic()
            session.wait(self._calm_s(CALM_FACTOR) if calm and not local else self.interval_s)
            return
        for job in session.jobs:
            self.pulse.learn(job, session.snapshots(job)[-1:])
        if stalled:
            self._restless_s = time.monotonic()
        trusted_s = self._alert_s + ALERT_S + ALERT_GAP_S
        trusted = time.monotonic() >= trusted_s
        due_s = session.at_s + self._calm_s(CALM_FACTOR)
        gap_s = max(self._calm_s(PULSE_FACTOR), grown_s(session.at_s - max(self._restless_s, trusted_s)))
        latest_s = session.at_s + gap_s if trusted else due_s
        beat_s = SLOW_BEAT_S if gap_s >= SLOW_S else BEAT_S
        while (now_s := time.monotonic()) < latest_s:
            until_s = min(latest_s, now_s + beat_s)
            session.source.wait(until_s)
            if time.monotonic() < until_s - WOKEN_S:
                return
            odd = self.pulse.beat(_by_job(session.source.targets), stalled)
            if odd and (trusted or not odd.isdisjoint(stalled)):  # somebody waits for a recovery
                self._alert_s = time.monotonic()
                for job in odd.difference(stalled):
                    self.pulse.restart(job)
                return
            if search():
                return
            known = all(self.pulse.knows(job, job in stalled) for job in session.jobs)
            if time.monotonic() >= due_s and not known:
                self._restless_s = time.monotonic()
                return

    def _calm_s(self, factor: float) -> float:
        cost_s = min(self._costs, default=0.0)
        return max(self.interval_s * factor, min(cost_s / CALM_CORES, CALM_MAX_S))


def grown_s(quiet_s: float) -> float:
    """The interval between looks after so long a calm, if it is longer than the usual one."""
    return min(CALM_GROWTH * quiet_s, LONGEST_S)


def is_local(source: Source) -> bool:
    """True if the ranks are processes of this host that we look at ourselves."""
    return isinstance(source, LocalSource) or (isinstance(source, NodeSource) and source.is_own)


def _by_job(targets: Collection[Target]) -> dict[str, list[Target]]:
    found: dict[str, list[Target]] = defaultdict(list)
    for target in targets:
        found[target.job].append(target)
    return found
