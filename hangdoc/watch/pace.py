"""When the live watch looks next: each interval, but less often while every job is calm.

A calm job of this host whose pulse would show a standstill (see `pulse`) is looked at rarely: a look costs the job a
thousand times as much as a beat.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Set
from dataclasses import dataclass, field

from hangdoc.evidence import Target
from hangdoc.watch.node_source import NodeSource
from hangdoc.watch.pulse import Pulse
from hangdoc.watch.session import Session
from hangdoc.watch.sources import LocalSource

CALM_FACTOR = 3  # the interval grows by this factor while every job is calm
PULSE_FACTOR = 10  # likewise, while each pulse would show a change
BEAT_S = 1.0  # between two beats
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

    def close(self) -> None:
        self.pulse.close()

    def spent(self, round_s: float) -> None:
        """`round_s`: CPU time of a look and its analysis."""
        self._costs.append(round_s)

    def wait(self, session: Session, calm: bool, stalled: Set[str]) -> None:
        """Sleep until the next look is due, a rank exits, or the pulse of a calm job differs.

        `calm`: every job is. `stalled`: jobs whose stall was reported.
        """
        source = session.source
        local = isinstance(source, LocalSource) or (isinstance(source, NodeSource) and source.is_own)
        if not calm or not local or time.monotonic() - self._alert_s < ALERT_S:
            session.wait(self._calm_s(CALM_FACTOR) if calm and not local else self.interval_s)
            return
        for job in session.jobs:
            self.pulse.learn(job, session.snapshots(job)[-1:])
        trusted = time.monotonic() - self._alert_s >= ALERT_S + ALERT_GAP_S
        due_s = session.at_s + self._calm_s(CALM_FACTOR)
        latest_s = session.at_s + self._calm_s(PULSE_FACTOR) if trusted else due_s
        while (now_s := time.monotonic()) < latest_s:
            until_s = min(latest_s, now_s + BEAT_S)
            session.source.wait(until_s)
            if time.monotonic() < until_s - WOKEN_S:
                return
            odd = self.pulse.beat(_by_job(session.source.targets), stalled)
            if odd and (trusted or not odd.isdisjoint(stalled)):  # somebody waits for a recovery
                self._alert_s = time.monotonic()
                for job in odd.difference(stalled):
                    self.pulse.restart(job)
                return
            known = all(self.pulse.knows(job, job in stalled) for job in session.jobs)
            if time.monotonic() >= due_s and not known:
                return

    def _calm_s(self, factor: float) -> float:
        cost_s = min(self._costs, default=0.0)
        return max(self.interval_s * factor, min(cost_s / CALM_CORES, CALM_MAX_S))


def _by_job(targets: Collection[Target]) -> dict[str, list[Target]]:
    found: dict[str, list[Target]] = defaultdict(list)
    for target in targets:
        found[target.job].append(target)
    return found
