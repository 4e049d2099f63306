"""Leaves a target alone that makes a probe slow or blocks it, for longer each time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hangdoc.daemon.health import Steps
from hangdoc.evidence import Target, Unseen
from probes import Observation, Probe, Request

SLOW_S = 3.0  # a call that takes longer was slow
FIRST_S, MAX_S = 30.0, 900.0  # how long a slow target is left alone: doubles each time
HOST = 0  # stands for the PID if a probe reads the host

Process = tuple[int, int]  # PID and start time


class LimitedProbe:
    """A probe that skips targets on which it was slow or is still blocked, and reports them as unseen.

    After a slow call for several targets, the next call asks them one by one to find the slow one.
    """

    def __init__(
        self, probe: Probe, steps: Steps, failed: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self.scope, self.tier, self.needs = probe.name, probe.scope, probe.tier, probe.needs
        self.record, self.order, self.steady = probe.record, probe.order, probe.steady
        self._probe, self._steps, self._failed, self._clock = probe, steps, failed, clock
        self._running: dict[threading.Thread, tuple[Process, ...]] = {}  # calls that have not returned
        self._rests: dict[Process, tuple[float, float]] = {}  # how long a target is left alone, and until when
        self._singly = False

    def observe(self, request: Request) -> Observation:
        """One observation of every target that is not left alone."""
        asked: list[Target] = []
        unseen: list[Unseen] = []
        blocked = self._blocked()
        for target in request.targets:
            why = self._why_not(target, blocked)
            if why:
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
            else:
                asked.append(target)
        if not asked:
            return Observation({}, unseen=tuple(unseen))
        singly = self.scope == "rank" and len(asked) > 1 and (self._singly or len(self._running) > 0)
        self._singly = False
        groups = [[target] for target in asked] if singly else [asked]
        found = [self._observe(request, group) for group in groups]
        return Observation(
            {pid: record for one in found for pid, record in one.by_pid.items()},
            next((one.host for one in found if one.host is not None), None),
            (*unseen, *(lack for one in found for lack in one.unseen)),
        )

    def _observe(self, request: Request, targets: Sequence[Target]) -> Observation:
        thread, began_s = threading.current_thread(), self._clock()
        self._running[thread] = keys = self._keys(targets)
        try:
            with self._steps.doing(f"probe {self.name}"):
                return self._probe.observe(replace(request, targets=targets))
        except Exception:
            self._failed(self.name)
            raise
        finally:
            self._running.pop(thread, None)
            if self._steps.owner is thread:
                self._judge(keys, self._clock() - began_s)

    def _judge(self, keys: Sequence[Process], took_s: float) -> None:
        """Leave a slow target alone; if there are several, find it in the next call."""
        if took_s <= SLOW_S:
            for key in keys:
                self._rests.pop(key, None)
            return
        self._failed(self.name)
        if len(keys) > 1:
            self._singly = True
            return
        rest_s = min(2 * self._rests[keys[0]][0], MAX_S) if keys[0] in self._rests else FIRST_S
        self._rests[keys[0]] = rest_s, self._clock() + rest_s

    def _blocked(self) -> frozenset[Process]:
        """Targets that an abandoned call for them alone has not left yet."""
        for thread in [thread for thread in self._running if not thread.is_alive()]:
            self._running.pop(thread, None)
        return frozenset(keys[0] for keys in self._running.values() if len(keys) == 1)

    def _why_not(self, target: Target, blocked: frozenset[Process]) -> str | None:
        (key,) = self._keys((target,))
        if key in blocked:
            return f"left alone: the probe is blocked on PID {key[0]}" if key[0] else "left alone: the probe is blocked"
        left_s = self._rests[key][1] - self._clock() if key in self._rests else 0.0
        return f"left alone for {left_s:.0f} s: the last answer took more than {SLOW_S:g} s" if left_s > 0 else None

    def _keys(self, targets: Sequence[Target]) -> tuple[Process, ...]:
        if self.scope != "rank":
            return ((HOST, 0),)
        return tuple((target.pid, target.start_ticks) for target in targets)

    def forget(self, targets: Sequence[Target]) -> None:
        """Forget targets that are no longer watched."""
        living = {*self._keys(targets), (HOST, 0)}
        self._rests = {key: rest for key, rest in self._rests.items() if key in living}


def limited(probes: Sequence[Probe], steps: Steps, failed: Callable[[str], None]) -> tuple[LimitedProbe, ...]:
    """The probes, each with its limits; `failed` gets the name of a probe that failed or was slow."""
    return tuple(LimitedProbe(probe, steps, failed) for probe in probes)
