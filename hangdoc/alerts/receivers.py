"""Receivers: how an alert is put to Alertmanager, to a webhook, and to everything that Apprise knows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from hangdoc.alerts import message
from hangdoc.alerts.config import AlertmanagerConfig, AppriseConfig, HeartbeatConfig, WebhookConfig
from hangdoc.alerts.http import Client, Login, Reply, SendError
from hangdoc.alerts.spool import Announced
from hangdoc.errors import HangdocError

# The message itself is refused: to send it again is of no use.
REFUSED = frozenset({400, 406, 411, 413, 414, 415, 422, 431})
RESOLVED_S = 900.0  # a resolved alert is sent again for so long, as Prometheus does: an Alertmanager may restart
HEARTBEATS_MISSED = 4  # until Alertmanager ends the heartbeat: its alert then is missing
MAX_ERROR = 2_000  # bytes read of a child's errors


class Refused(Exception):
    """The receiver will never take this message: the end of a sentence."""


class Later(Exception):
    """The receiver may take it later: the end of a sentence, and the pause that it asks for."""

    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s


class Receiver(Protocol):
    """One address."""

    name: str  # in metrics: alertmanager, webhook, apprise, apprise-2
    place: str  # for people, without any secret
    resend_s: float | None  # how often it wants to hear of an open incident; None: once

    def deliver(self, announced: Announced) -> None:
        """Put an alert there. Raises Refused, Later."""


def _checked(reply: Reply) -> None:
    if 200 <= reply.status < 300:
        return
    why = f"HTTP {reply.status}"
    if 300 <= reply.status < 400:
        raise Later(f"{why}: it redirects; configure the final address")
    if reply.status in REFUSED:
        raise Refused(f"{why} {reply.text}".strip())
    raise Later(why, reply.retry_after_s)


def _sent(client: Client, url: str, value: Any, kind: str = "application/json", **headers: str) -> None:
    content = json.dumps(value, separators=(",", ":")).encode()
    try:
        _checked(client.send(url, content, {"Content-Type": kind, **headers}))
    except (SendError, HangdocError) as error:
        raise Later(str(error)) from None


# --- Alertmanager ---------------------------------------------------------------------------------


class Alertmanager:
    """One Alertmanager, API v2. An incident is there until it is resolved, or `expire_s` after the last refresh."""

    def __init__(self, config: AlertmanagerConfig, url: str, name: str) -> None:
        self.name, self.place = name, _host(url)
        self.resend_s: float | None = config.resend_s
        self._config = config
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        login = Login(config.username, config.password, config.token)
        self._client = Client(config.timeout_s, config.ca_file, login)

    def deliver(self, announced: Announced) -> None:
        alert = announced.alert
        labels = message.labels(alert, self._config.labels)
        ended = _seconds(alert.ended or alert.at) if alert.kind == "resolved" else None
        earlier = [({**self._config.labels, **past.labels}, past) for past in announced.past]
        replaced = [self._one(old, {}, past.onset, past.ended) for old, past in earlier if old != labels]
        said = {
            "summary": f"{alert.title}: {alert.outcome or alert.summary}",
            "description": alert.text,
            "runbook": f"hangdoc runbook {alert.playbook}" if alert.playbook != message.UNKNOWN else "hangdoc runbook",
            "recurrence": alert.recurrence,
            "label": alert.label,
            "user": alert.user or "",
            "slurm_job": alert.slurm_job or "",
            "confidence": alert.confidence,
        }
        _sent(self._client, self._url, [*replaced, self._one(labels, said, alert.onset, ended)])

    def beat(self, sender: str) -> None:
        """The heartbeat: an alert that always fires, until rounds stop."""
        now = time.time()
        found = {"alertname": "HangdocHeartbeat", "host": sender, "severity": "none"}
        said = {"summary": f"hangdoc on {sender} finishes its rounds."}
        end = now + HEARTBEATS_MISSED * self._config.resend_s
        value = {"labels": {**self._config.labels, **found}, "annotations": said, "endsAt": _iso(end)}
        _sent(self._client, self._url, [value])

    def _one(
        self, labels: Mapping[str, str], said: Mapping[str, str], onset: str, ended: float | None
    ) -> dict[str, Any]:
        """One alert; `ended`: when it ended, None: it goes on."""
        now = time.time()
        end = now + self._config.expire_s if ended is None else min(ended, now)
        return {
            "labels": labels,
            "annotations": {name: text for name, text in said.items() if text},
            "startsAt": _iso(min(_seconds(onset), end)),
            "endsAt": _iso(end),
        }


# --- webhook --------------------------------------------------------------------------------------


class Webhook:
    """An address that takes CloudEvents 1.0 in structured mode; `id` is the same each time an alert is sent."""

    resend_s: float | None = None

    def __init__(self, config: WebhookConfig, name: str) -> None:
        self.name, self.place = name, _host(config.url)
        self._address = config.address
        self._client = Client(config.timeout_s, config.ca_file, Login(config.username, config.password, config.token))

    def deliver(self, announced: Announced) -> None:
        alert = announced.alert
        event = {
            "specversion": "1.0",
            "id": alert.id,
            "source": f"/hangdoc/{quote(alert.sender)}",
            "type": f"hangdoc.incident.{alert.kind}",
            "subject": alert.incident,
            "time": alert.at,
            "datacontenttype": "application/json",
            "data": message.data(alert),
        }
        try:
            url = self._address.read()
        except HangdocError as error:
            raise Later(str(error)) from None
        self.place = _host(url)
        _sent(self._client, url, event, "application/cloudevents+json; charset=utf-8", **{"Idempotency-Key": alert.id})


# --- Apprise --------------------------------------------------------------------------------------


class Apprise:
    """One address of Apprise, in a child process: its services have no common deadline, and it takes 20 MiB."""

    resend_s: float | None = None

    def __init__(self, config: AppriseConfig, url: str, name: str) -> None:
        self.name, self.place = name, f"{urlsplit(url).scheme or 'address'}://"  # the rest may be a token
        self._url = url
        self._timeout_s = config.timeout_s

    def deliver(self, announced: Announced) -> None:
        alert = announced.alert
        over = "success" if alert.outcome_kind == "recovered" else "info"
        kind = over if alert.kind == "resolved" else "failure" if alert.severity == "critical" else "warning"
        asked = {"url": self._url, "title": alert.title, "body": message.body(alert), "type": kind}
        # In the root folder, because Python looks for modules in the current one first.
        command = [sys.executable, "-m", "hangdoc.alerts.apprise_child"]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(asked).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=self._timeout_s,
                cwd="/",
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise Later(f"no answer within {self._timeout_s:g} s") from None
        except OSError as error:
            raise Later(f"no process could be started for it ({error.strerror})") from None
        if done.returncode != 0:
            raise Later("Apprise could not deliver; check the address with `apprise -vv ADDRESS`")


# --- heartbeat ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """An address that is fetched."""

    config: HeartbeatConfig

    def beat(self) -> None:
        """Raises Refused, Later."""
        try:
            _checked(Client(self.config.timeout_s).send(self.config.address.read()))
        except (SendError, HangdocError) as error:
            raise Later(str(error)) from None


def _host(url: str) -> str:
    """Host and port of an address: the rest may be a secret."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _seconds(iso: str) -> float:
    """A time since the epoch; now where it is none, because it may come from a file."""
    try:
        found = datetime.fromisoformat(iso.replace("Z", "+00:00"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return time.time()
