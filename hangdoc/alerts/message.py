"""What an alert says: everything that a receiver or a person needs of an incident, bounded, on disk as it is here."""

from __future__ import annotations

import io
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from hangdoc.evidence.record import Record
from hangdoc.formatting import fold_hosts
from hangdoc.recording import verdict_json
from hangdoc.recording.codec import BadRecord
from hangdoc.redaction.text import redact_text
from hangdoc.render.sanitize import clean
from hangdoc.verdict import CONFIDENCES

if TYPE_CHECKING:
    from hangdoc.incident.record import IncidentRecord
    from hangdoc.verdict import Finding, Verdict

WIDTH = 80  # columns of the text: mail and chat wrap beyond
MAX_LINES = 40  # of the text: a screen
MAX_TEXT = 6_000  # characters of the text
MAX_SENTENCE = 500  # characters of a sentence
MAX_NAME = 120  # characters of a name or label
MAX_FINDINGS = 4
MAX_CULPRITS = 16
MAX_HOSTS = 256  # folded

CRITICAL = ("stalled", "failed")
NO_CAUSE = "The cause is not known yet."
UNKNOWN = "unknown"  # playbook and class while no cause is known


class Blamed(Record, frozen=True):
    """A culprit."""

    rank: int | None
    host: str | None
    site: str | None = None


class Alert(Record, frozen=True):
    """One state of one incident. Texts are masked and safe for a terminal; times are ISO-8601."""

    incident: str
    revision: int  # from 1; the same change has the same one after a crash
    kind: str  # fired | updated | resolved
    at: str
    sender: str  # host of the daemon
    job: str
    label: str
    user: str | None
    slurm_job: str | None
    world_size: int | None
    hosts: str  # folded: node[01-16]
    host: str  # to blame, or the only one; "": several
    onset: str
    ended: str | None
    status: str
    playbook: str
    cls: str
    confidence: str
    severity: str  # critical | warning
    summary: str
    text: str  # the verdict's first screen
    culprits: tuple[Blamed, ...] = ()
    actions: tuple[str, ...] = ()
    recurrence: str = ""
    outcome: str = ""  # one sentence
    outcome_kind: str = ""

    @property
    def id(self) -> str:
        """The same each time this alert is sent."""
        return f"{self.incident}/{self.revision}"

    @property
    def title(self) -> str:
        """One line for people: `STALLED: job train.py (7f3a) on node17: dead-link`."""
        over = "RECOVERED" if self.outcome_kind == "recovered" else "OVER"  # a job that was killed is not well
        head = {"fired": self.status.upper(), "updated": f"{self.status.upper()}, update", "resolved": over}
        name = f"{self.label} ({self.job})" if self.label and self.label != self.job else self.job
        cause = "" if self.playbook == UNKNOWN else f": {self.playbook}"
        return f"{head[self.kind]}: job {name} on {self.host or self.hosts or self.sender}{cause}"


def alert(incident: IncidentRecord, kind: str, revision: int, at: str) -> Alert:
    """The alert of an incident as it is now."""
    value = incident.verdicts[-1] if incident.verdicts else None
    verdict = _verdict(value)
    finding = verdict.findings[0] if verdict and verdict.findings else None
    hosts = tuple(_name(host) for host in incident.hosts[:MAX_HOSTS])
    outcome = incident.outcome
    status = _name(incident.status)
    return Alert(
        incident=_name(incident.id),
        revision=revision,
        kind=kind,
        at=at,
        sender=_name(socket.gethostname()),
        job=_name(incident.job),
        label=_name(redact_text(clean(incident.label))),
        user=_name(incident.user) if incident.user else None,
        slurm_job=_name(incident.slurm_job) if incident.slurm_job else None,
        world_size=incident.world_size,
        hosts=_name(fold_hosts(hosts)) if hosts else "",
        host=_host(finding, hosts),
        onset=_name(incident.onset),
        ended=_name(incident.ended) if incident.ended else None,
        status=status,
        playbook=_name(finding.playbook) if finding else UNKNOWN,
        cls=_name(finding.cls) if finding else UNKNOWN,
        confidence=_name(finding.confidence) if finding else "low",
        severity="critical" if status in CRITICAL else "warning",
        summary=_sentence(finding.summary if finding else (verdict.note if verdict else "") or NO_CAUSE),
        text=_screen(verdict) if verdict else "",
        culprits=tuple(
            Blamed(one.rank, _name(one.host) if one.host else None, _sentence(one.site) if one.site else None)
            for one in (finding.culprits[:MAX_CULPRITS] if finding else ())
        ),
        actions=tuple(map(_sentence, finding.actions[:8])) if finding else (),
        recurrence=_masked(incident.recurrence),
        outcome=_masked(outcome.text) if outcome else "",
        outcome_kind=_name(outcome.kind) if outcome else "",
    )


def is_news(new: Alert, old: Alert) -> bool:
    """True if people should hear of `new` after `old`: its age is no news, and neither is less confidence."""
    return _news(new) != _news(old) or _confidence(new) > _confidence(old)


def _confidence(alert: Alert) -> int:
    return CONFIDENCES.index(alert.confidence) if alert.confidence in CONFIDENCES else 0


def _news(alert: Alert) -> tuple[object, ...]:
    blamed = sorted({(one.rank or 0, one.host or "") for one in alert.culprits})
    return alert.kind == "resolved", alert.status, alert.playbook, alert.cls, alert.host, blamed, alert.recurrence


def body(alert: Alert) -> str:
    """The message for people: the outcome if there is one, the verdict's first screen, and where to read on."""
    parts = [alert.outcome, alert.recurrence, alert.text or alert.summary]
    return "\n\n".join([*(part for part in parts if part), f"more: hangdoc incidents show {alert.incident}"])


def labels(alert: Alert, more: Mapping[str, str]) -> dict[str, str]:
    """The labels in Alertmanager: they identify an alert there, so a new cause is a new alert of the same incident."""
    found = {
        "alertname": "HangdocIncident",
        "incident": alert.incident,
        "job": alert.job,
        "host": alert.host or alert.hosts,
        "playbook": alert.playbook,
        "class": alert.cls,
        "severity": alert.severity,
    }
    return {name: text for name, text in {**more, **found}.items() if text}


def data(alert: Alert) -> dict[str, Any]:
    """The alert as the data of an event; `class` under its own name."""
    fields: dict[str, Any] = msgspec.to_builtins(alert)
    fields["class"] = fields.pop("cls")
    return {**fields, "title": alert.title}


def _verdict(value: Mapping[str, Any] | None) -> Verdict | None:
    try:
        found = verdict_json.from_json(dict(value)) if value is not None else None
        return replace(found, findings=found.findings[:MAX_FINDINGS]) if found else None
    except (BadRecord, ValueError, TypeError, RecursionError):  # it may come from a file
        return None


def _host(finding: Finding | None, hosts: Sequence[str]) -> str:
    blamed = {one.host for one in finding.culprits if one.host} if finding else set()
    one = blamed or set(hosts)
    return _name(one.pop()) if len(one) == 1 else ""


def _screen(verdict: Verdict) -> str:
    """The first screen of a verdict, as `hangdoc watch` prints it, without colours."""
    from rich.console import Console

    from hangdoc.render.terminal import lines

    console = Console(file=io.StringIO(), color_system=None, width=WIDTH, markup=False, highlight=False, emoji=False)
    shown = [clean(line.plain.rstrip()) for line in lines(verdict, console)]
    more = len(shown) - MAX_LINES
    text = "\n".join([*shown[:MAX_LINES], *([f"... {more} more lines"] if more > 0 else [])])
    return text[:MAX_TEXT].encode(errors="replace").decode()


def _name(text: str) -> str:
    return _safe(text, MAX_NAME)


def _sentence(text: str) -> str:
    return _safe(text, MAX_SENTENCE)


def _masked(text: str) -> str:
    """For texts that are not of a verdict, which is masked already."""
    return _sentence(redact_text(clean(text)))


def _safe(text: str, limit: int) -> str:
    """On one line, without controls, and as UTF-8 can hold it."""
    return clean(text, limit).encode(errors="replace").decode()
