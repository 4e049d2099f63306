"""Kept incidents on a terminal: a table, and one incident with its newest verdict first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hangdoc.formatting import seconds
from hangdoc.incident.record import IncidentRecord
from hangdoc.incident.store import Entry, parse_time
from hangdoc.recording.codec import BadRecord
from hangdoc.recording.verdict_json import from_json
from hangdoc.render.page import Page
from hangdoc.render.rank_groups import name
from hangdoc.render.sanitize import clean
from hangdoc.render.terminal import STYLES, lines
from hangdoc.render.verdict_text import job_name
from hangdoc.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console

HEADS = ("ID", "AGE", "JOB", "STATUS", "PLAYBOOK", "CULPRIT", "OUTCOME")
LONGEST = 24  # characters of a job's name in the table
LABEL = 9  # columns of the labels at the left


def table(entries: Sequence[Entry], now: datetime) -> str:
    """The incidents as aligned columns, one a line."""
    rows = [HEADS, *(_row(entry, now) for entry in entries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _row(entry: Entry, now: datetime) -> tuple[str, ...]:
    record = entry.record
    if record is None:
        return entry.id, "", "", "unreadable", "", "", ""
    verdict = newest(record)
    finding = verdict.findings[0] if verdict and verdict.findings else None
    begun = parse_time(record.onset)
    job = clean(record.label or job_name(record.job))
    return (
        entry.id,
        seconds((now - begun).total_seconds()) if begun else "",
        job if len(job) <= LONGEST else job[: LONGEST - 3] + "...",
        clean(record.status),
        clean(finding.playbook) if finding else "-",
        name((one.rank, one.pid) for one in finding.culprits) if finding and finding.culprits else "-",
        outcome_word(entry),
    )


def outcome_word(entry: Entry) -> str:
    """`open`, the kind of its outcome, or `lost` if its writer has gone."""
    record = entry.record
    if record is None:
        return ""
    if record.outcome is not None:
        return clean(record.outcome.kind.replace("_", " "))
    return "open" if entry.open else "lost"


def newest(record: IncidentRecord) -> Verdict | None:
    """The newest verdict of an incident; None: there is none, or it is damaged."""
    try:
        return from_json(dict(record.verdicts[-1])) if record.verdicts else None
    except BadRecord:
        return None


def show(entry: Entry, record: IncidentRecord, console: Console) -> None:
    """One incident: the first screen of its newest verdict, how that became known, and what came of it."""
    page = Page(console)
    verdict = newest(record)
    if verdict is not None:
        page.lines += lines(verdict, console)
    else:
        page.parts(
            [Text(clean(record.status).upper(), STYLES.get(record.status, "bold")), f"job {job_name(record.job)}"]
        )
        page.paragraph("hangdoc ended before a verdict; judge the evidence: " + f"hangdoc report {entry.id}", 2)
    page.blank()
    for label, text in _facts(entry, record):
        page.row(label, text, LABEL)
    page.print()


def _facts(entry: Entry, record: IncidentRecord) -> list[tuple[str, str]]:
    about = [clean(one) for one in (record.label, record.user and f"user {record.user}") if one]
    if record.slurm_job:
        about.append(f"Slurm job {clean(record.slurm_job)}")
    rows = [("incident", entry.id), ("of", ", ".join(about))] if about else [("incident", entry.id)]
    rows.append(("onset", clean(record.onset)))
    rows += [("" if i else "verdicts", _verdict_text(one)) for i, one in enumerate(record.verdicts)]
    if record.recurrence:
        rows.append(("again", clean(record.recurrence)))
    if record.outcome:
        rows.append(("outcome", f"{clean(record.outcome.at)}  {clean(record.outcome.text)}"))
    else:
        rows.append(("outcome", "none yet: it goes on" if entry.open else "unknown: hangdoc ended first"))
    rows.append(("more", f"hangdoc report {entry.id}"))
    return rows


def _verdict_text(verdict: Mapping[str, Any]) -> str:
    try:
        read = from_json(dict(verdict))
    except BadRecord:
        return "damaged"
    if not read.findings:
        return f"{clean(read.status)}, no cause"
    finding = read.findings[0]
    culprits = f", {name((one.rank, one.pid) for one in finding.culprits)}" if finding.culprits else ""
    return f"{clean(read.status)}, {clean(finding.playbook)}, {clean(finding.confidence)} confidence{culprits}"
