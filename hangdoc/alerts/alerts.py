"""Alerts: takes changes of incidents, keeps them on disk, and delivers each one to each receiver.

Each receiver has a queue, a thread and a backoff of its own, so that a slow one delays nobody. An alert leaves its
queue once the receiver has taken it; a crash in between sends it again, under the same id.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hangdoc.alerts import message
from hangdoc.alerts.config import AlertsConfig
from hangdoc.alerts.message import Alert
from hangdoc.alerts.receivers import RESOLVED_S, Alertmanager, Apprise, Heartbeat, Later, Receiver, Refused, Webhook
from hangdoc.alerts.spool import MAX_PAST, Announced, Ledger, Past, Queue, open_spool
from hangdoc.errors import HangdocError

if TYPE_CHECKING:
    from hangdoc.incident.log import Change
    from hangdoc.incident.record import IncidentRecord

FORGET_S = 86_400.0  # a resolved incident is known for so long, so that it is not announced again
LOST = "hangdoc no longer has this incident; nobody watches it."
CLOSE_S = 2.0  # for what is under way when the daemon ends; the rest waits on disk
KINDS = {"opened": "fired", "updated": "updated", "closed": "resolved"}


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses after failures, in seconds: doubled each time, with jitter so that many daemons do not come at once."""

    first_s: float = 5.0
    most_s: float = 300.0

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        return min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 30)) * random.uniform(0.5, 1.0)


class Alerts:
    """Delivers alerts. Call `notify` at each change, and `step` after each round that was finished, and only then."""

    def __init__(
        self,
        config: AlertsConfig,
        spool: Path,
        say: Callable[[str], None] = lambda text: None,
        backoff: Backoff | None = None,
    ) -> None:
        """Raises HangdocError if the spool cannot be used, or a file with addresses is missing."""
        open_spool(spool)
        self._ledger = Ledger(spool / "announced")
        self._say = say
        receivers = _receivers(config)
        self._couriers = [
            _Courier(one, Queue(spool / "queue" / one.name), self._ledger, say, backoff or Backoff())
            for one in receivers
        ]
        beats: list[tuple[str, float, Callable[[], None]]] = []
        if config.heartbeat.address:
            beats.append(("heartbeat", config.heartbeat.every_s, Heartbeat(config.heartbeat).beat))
        for one in receivers:
            if isinstance(one, Alertmanager) and config.alertmanager.heartbeat:
                sender = socket.gethostname()
                beats.append((f"heartbeat-{one.name}", config.alertmanager.resend_s, _beat(one, sender)))
        self._beats = [_Beat(*beat, say) for beat in beats]
        for worker in (*self._couriers, *self._beats):
            worker.start()

    @property
    def outcomes(self) -> Mapping[tuple[str, str], int]:
        """How often, by receiver and outcome: delivered, retried, refused, dropped."""
        found: Counter[tuple[str, str]] = Counter()
        for worker in (*self._couriers, *self._beats):
            found.update({(worker.place, outcome): count for outcome, count in worker.outcomes().items()})
        return found

    @property
    def waiting(self) -> Mapping[str, int]:
        """Alerts in the queue of each receiver."""
        return {courier.place: courier.waiting for courier in self._couriers}

    def notify(self, change: Change) -> None:
        """Queue the alert of a change, on disk before this returns. Sends nothing that people know already."""
        self._announce(KINDS[change.kind], change.incident)

    def resume(self, incidents: Iterable[IncidentRecord]) -> None:
        """After a start: announce what changed on disk without an alert, because hangdoc was killed in between.

        `incidents` is all that the store has. What it no longer has is over.
        """
        stored = {incident.id: incident for incident in incidents}
        for known in self._ledger:
            if not known.is_over and known.alert.incident not in stored:
                now = time.time()
                given = {"kind": "resolved", "revision": known.alert.revision + 1, "at": _iso(now), "ended": _iso(now)}
                self._queue(replace(known.alert, **given, outcome_kind="lost", outcome=LOST), known, now)
        for _, incident in sorted(stored.items()):
            if incident.ended is None and incident.verdicts:
                self._announce("updated", incident)
            elif incident.ended is not None and self._ledger.get(incident.id):
                self._announce("resolved", incident)

    def step(self, now: float | None = None) -> None:
        """A round was finished: feeds the heartbeats, writes what a full disk did not take, and forgets old incidents.

        `now`: seconds since the epoch.
        """
        now = time.time() if now is None else now
        self._ledger.save()
        for courier in self._couriers:
            courier.save()
        for beat in self._beats:
            beat.feed()
        for one in self._ledger:
            if one.is_over and now - one.at > FORGET_S:
                self._ledger.remove(one)

    def close(self) -> None:
        """Stop; what is not delivered waits on disk. Takes at most CLOSE_S."""
        limit = time.monotonic() + CLOSE_S
        workers = (*self._couriers, *self._beats)
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(max(0.0, limit - time.monotonic()))

    def _announce(self, kind: str, incident: IncidentRecord) -> None:
        known = self._ledger.get(incident.id)
        if known and known.is_over and (kind == "resolved" or known.alert.outcome_kind != "lost"):
            return  # one that was lost may be found again
        if kind != "resolved":
            kind = "updated" if known and not known.is_over else "fired"
        now = time.time()
        revision = known.alert.revision if known else 0
        self._queue(message.alert(incident, kind, revision + 1, _iso(now)), known, now)

    def _queue(self, alert: Alert, known: Announced | None, now: float) -> None:
        if known and not message.is_news(alert, known.alert):
            return
        announced = Announced(alert, now, _past(known, alert, now))
        for courier in self._couriers:
            courier.put(announced)
        self._ledger.put(announced)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _past(known: Announced | None, alert: Alert, now: float) -> tuple[Past, ...]:
    """The earlier labels of an incident, as long as receivers should hear that they are over."""
    if known is None:
        return ()
    old = message.labels(known.alert, {})
    past = [one for one in known.past if now - one.ended < RESOLVED_S]
    if old != message.labels(alert, {}):
        past.append(Past(old, known.alert.onset, now))
    return tuple(past[-MAX_PAST:])


def _beat(alertmanager: Alertmanager, sender: str) -> Callable[[], None]:
    return lambda: alertmanager.beat(sender)


def _receivers(config: AlertsConfig) -> Sequence[Receiver]:
    """The receivers that have an address, with names for metrics. Raises HangdocError if a file is missing."""
    found: list[Receiver] = []
    for number, url in enumerate(config.alertmanager.urls, 1):
        found.append(Alertmanager(config.alertmanager, url, _name("alertmanager", number)))
    if config.webhook.address:
        found.append(Webhook(config.webhook, "webhook"))
    for number, url in enumerate(config.apprise.addresses() if config.apprise else (), 1):
        found.append(Apprise(config.apprise, url, _name("apprise", number)))
    return found


def _name(kind: str, number: int) -> str:
    return kind if number == 1 else f"{kind}-{number}"


class _Worker(threading.Thread):
    """A thread that waits for work until it is stopped, and says once that it fails, and once that it works again."""

    def __init__(self, place: str, say: Callable[[str], None]) -> None:
        super().__init__(name=f"hangdoc-{place}", daemon=True)  # a receiver that hangs must not keep us from ending
        self.place = place
        self._say = say
        self._condition = threading.Condition()
        self._stopped = False
        self._counts: Counter[str] = Counter()
        self._failures = 0  # in a row

    def outcomes(self) -> Mapping[str, int]:
        with self._condition:
            return dict(self._counts)

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def _where(self) -> str:
        return self.place

    def _count(self, outcome: str) -> None:
        with self._condition:
            self._counts[outcome] += 1

    def _worked(self, outcome: str) -> None:
        self._count(outcome)
        if self._failures:
            self._say(f"alerts: {self._where()} works again")
        self._failures = 0

    def _failed(self, why: str) -> None:
        self._count("retried")
        self._failures += 1
        if self._failures == 1:
            self._say(f"alerts: {self._where()}: {why}; hangdoc tries again")


class _Courier(_Worker):
    """Delivers the queue of one receiver."""

    def __init__(
        self, receiver: Receiver, queue: Queue, ledger: Ledger, say: Callable[[str], None], backoff: Backoff
    ) -> None:
        super().__init__(receiver.name, say)
        self._receiver = receiver
        self._queue = queue
        self._ledger = ledger
        self._backoff = backoff
        self._tries: Counter[str] = Counter()  # of the waiting incidents
        self._not_before_s = 0.0  # monotonic, as all times here
        self._refreshed_s: dict[str, float] = {}  # incident -> last time that the receiver heard of it

    @property
    def waiting(self) -> int:
        with self._condition:
            return len(self._queue)

    def outcomes(self) -> Mapping[str, int]:
        with self._condition:
            return {**self._counts, "dropped": self._queue.dropped} if self._queue.dropped else dict(self._counts)

    def _where(self) -> str:
        return f"{self.place} ({self._receiver.place})"

    def put(self, announced: Announced) -> None:
        """Queue an alert. Never blocks on the receiver."""
        with self._condition:
            self._queue.put(announced)
            self._condition.notify()

    def save(self) -> None:
        """Write to disk what waits in memory only."""
        with self._condition:
            self._queue.save()

    def run(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        """Waits for what is due: the next alert, else a refresh; None: stopped."""
        with self._condition:
            while not self._stopped:
                pause_s = self._not_before_s - time.monotonic()
                if pause_s <= 0:
                    if (waiting := self._waiting()) is not None:
                        return partial(self._deliver, *waiting)
                    due, pause_s = self._due()
                    if due is not None:
                        return partial(self._deliver, None, due)
                self._condition.wait(min(pause_s, threading.TIMEOUT_MAX))
            return None

    def _waiting(self) -> tuple[tuple[str, int], Announced] | None:
        """The oldest alert of the incident that failed least: one that is never taken must not hold up the rest."""
        while heads := self._queue.heads():
            key = min(heads, key=lambda head: (self._tries[head[0]], head))
            if (alert := self._queue.get(key)) is not None:
                return key, alert
        self._tries.clear()
        return None

    def _due(self) -> tuple[Announced | None, float]:
        """The incident that the receiver should hear of again, or the pause until there may be one."""
        every_s = self._receiver.resend_s
        if every_s is None:
            return None, threading.TIMEOUT_MAX
        now_s, wall = time.monotonic(), time.time()
        live = {one.alert.incident: one for one in self._ledger if not one.is_over or wall - one.at < RESOLVED_S}
        self._refreshed_s = {id: at_s for id, at_s in self._refreshed_s.items() if id in live}
        due = {id: self._refreshed_s.get(id, now_s - every_s) + every_s for id in live}
        if not due:
            return None, threading.TIMEOUT_MAX
        first = min(due, key=lambda id: due[id])
        return (live[first], 0.0) if due[first] <= now_s else (None, due[first] - now_s)

    def _deliver(self, key: tuple[str, int] | None, announced: Announced) -> None:
        """Deliver a waiting alert, or without a key refresh one that the receiver knows."""
        alert = announced.alert
        try:
            self._receiver.deliver(announced)
        except Refused as refused:
            self._say(f"alerts: {self._where()} refuses {alert.id}: {refused}")
            self._done(key, alert, "refused")
        except Later as later:
            self._later(later, alert.incident)
        except Exception as error:  # one receiver's failure is never the daemon's
            self._later(Later(type(error).__name__), alert.incident)
        else:
            self._done(key, alert, "delivered" if key else "refreshed")

    def _done(self, key: tuple[str, int] | None, alert: Alert, outcome: str) -> None:
        with self._condition:
            if key:
                self._queue.remove(key)
            del self._tries[alert.incident]
            self._refreshed_s[alert.incident] = time.monotonic()
        self._worked(outcome)

    def _later(self, later: Later, incident: str) -> None:
        self._tries[incident] += 1
        self._failed(str(later))
        pause_s = max(later.after_s or 0.0, self._backoff.pause_s(self._failures))
        self._not_before_s = time.monotonic() + pause_s


class _Beat(_Worker):
    """Sends a heartbeat, at most every so many seconds, and only after a round that was finished since the last one."""

    def __init__(self, place: str, every_s: float, send: Callable[[], None], say: Callable[[str], None]) -> None:
        super().__init__(place, say)
        self._every_s = every_s
        self._send = send
        self._fed = False

    def feed(self) -> None:
        """A round was finished."""
        with self._condition:
            self._fed = True
            self._condition.notify()

    def run(self) -> None:
        while self._ready():
            try:
                self._send()
            except (Later, Refused, HangdocError) as error:
                self._failed(str(error))
            else:
                self._worked("delivered")
            with self._condition:
                self._condition.wait_for(lambda: self._stopped, self._every_s)

    def _ready(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._fed or self._stopped)
            self._fed = False
            return not self._stopped
