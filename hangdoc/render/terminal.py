"""A verdict on a terminal: verdict first, evidence second, remedy third."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from hangdoc.evidence import Unseen
from hangdoc.formatting import seconds
from hangdoc.render.page import NARROW, Page, Part, Row
from hangdoc.render.rank_groups import WAITING, Group, culprit_groups, fold, name
from hangdoc.render.sanitize import clean
from hangdoc.render.verdict_text import files_text, job_name, job_text, link_texts, unseen_texts
from hangdoc.verdict import Finding, Job, Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from hangdoc.incident.incident import File

STYLES = {
    "stalled": "bold red",
    "failed": "bold red",
    "slow": "bold yellow",
    "diverging": "bold yellow",
    "healthy": "bold green",
    "unknown": "bold magenta",
}
CONFIDENCE = {"high": "green", "medium": "yellow", "low": "magenta"}
LABEL = 9  # columns of the labels at the left
MAX_GROUPS = 6  # groups of ranks shown before "and N more"
MAX_UNSEEN = 6


def show(verdicts: Sequence[Verdict], console: Console, files: Sequence[File] = ()) -> None:
    """Print verdicts one below the other, then the files that they are based on."""
    page = Page(console)
    for verdict in verdicts:
        if page.lines:
            page.blank()
        page.lines += lines(verdict, console)
    if files:
        page.blank()
        page.paragraph(f"based on {files_text(files)}", 2, "dim")
    page.print()


def lines(verdict: Verdict, console: Console) -> list[Text]:
    """The verdict as lines no wider than the console."""
    page = Page(console)
    _headline(page, verdict)
    if verdict.findings:
        _finding(page, verdict.findings[0], verdict.job)
        for other in verdict.findings[1:]:
            tie = other.confidence == verdict.findings[0].confidence
            _other(page, other, "equally likely" if tie else "also possible")
    elif verdict.status != "healthy":
        ranks(page, verdict.job)
    _families(page, verdict)
    _unseen(page, verdict.unseen)
    return page.lines


def status_text(status: str, stalled_for_s: float | None) -> Text:
    """`STALLED 41 s`, coloured."""
    age = f" {seconds(stalled_for_s)} " if stalled_for_s is not None else ""
    return Text(status.upper() + age, STYLES.get(status, "bold"))


def ranks(page: Page, job: Job) -> None:
    """The state of every rank; ranks in the same state share a row."""
    groups = fold(job.ranks)
    if not groups:
        return
    page.blank()
    rows = [(group.phase, (group.name, _operation(group), group.site)) for group in groups[:MAX_GROUPS]]
    page.table(_once(rows), max(LABEL, *(len(label) + 2 for label, _ in rows)))
    _more(page, len(groups) - MAX_GROUPS, "more groups of ranks")


def _operation(group: Group) -> str:
    return group.what if group.what != group.phase else ""


def _headline(page: Page, verdict: Verdict) -> None:
    job = verdict.job
    parts: list[Part] = [status_text(verdict.status, verdict.stalled_for_s), f"job {job_name(job.id)}", job_text(job)]
    note = clean(verdict.note)
    if verdict.status == "healthy":
        page.parts([*parts, note])
        return
    page.parts(parts)
    if note:
        page.paragraph(note, 2)
    _differences(page, verdict)


def _differences(page: Page, verdict: Verdict) -> None:
    """The settings that differ between ranks, if nothing explains the job."""
    if not verdict.differences:
        return
    if verdict.note:
        page.blank()
    for i, text in enumerate(verdict.differences):
        page.row("" if i else "differs", clean(text), LABEL)


def _finding(page: Page, finding: Finding, job: Job) -> None:
    page.blank()
    _title(page, finding, "bold")
    page.paragraph(clean(finding.summary), 2)
    page.blank()
    _links(page, finding)
    page.table(_who(finding, job), LABEL)
    shown = {f"{line.op} at {line.site}" for line in job.ranks}  # already in the rows above
    proofs = [clean(proof.text) for proof in finding.evidence if proof.text not in shown]
    for i, text in enumerate(proofs):
        page.row("" if i else "why", text, LABEL)
    if finding.reasons and finding.confidence != "high":
        page.row(
            "" if proofs else "why",
            Text(f"{finding.confidence} confidence: {'; '.join(map(clean, finding.reasons))}", "dim"),
            LABEL,
        )
    for i, action in enumerate(finding.actions):
        number = f"{i + 1}. " if len(finding.actions) > 1 else ""
        page.row("" if i else "do", number + clean(action), LABEL, hang=len(number))
    _runbook(page, finding)


def _other(page: Page, finding: Finding, label: str) -> None:
    page.blank()
    page.paragraph(label, 2, "italic")
    _title(page, finding, "")
    page.paragraph(clean(finding.summary), 2)
    _links(page, finding)
    if finding.culprits:
        page.row("culprit", name((c.rank, c.pid) for c in finding.culprits), LABEL)
    _runbook(page, finding)


def _families(page: Page, verdict: Verdict) -> None:
    """What is known of a job without a known culprit, and the classes of causes that may explain it."""
    if verdict.understood:
        page.blank()
    for i, text in enumerate(verdict.understood):
        page.row("" if i else "known", clean(text), LABEL)
    for i, family in enumerate(verdict.families):
        page.blank()
        page.row("or" if i else "likely", Text(f"{clean(family.cls)}: {clean(family.title)}", "bold"), LABEL)
        for label, texts in (("for: ", family.speaks_for), ("against: ", family.against)):
            for text in texts:
                page.row("", label + clean(text), LABEL, hang=_hang(page, label))
        if family.decides:
            page.row("", f"decide: {clean(family.decides)}", LABEL, hang=_hang(page, "decide: "))


def _hang(page: Page, label: str) -> int:
    """Indentation of the lines after the first, below the text beside a label."""
    return len(label) if page.console.width >= NARROW else 0


def _title(page: Page, finding: Finding, style: str) -> None:
    confidence = Text(f"{clean(finding.confidence)} confidence", CONFIDENCE.get(finding.confidence, ""))
    title = Text(clean(finding.playbook), style)
    parts = [title, Text(clean(finding.cls)), confidence]
    if 2 + 26 + 26 + confidence.cell_len <= page.console.width:
        for part in parts[:2]:
            part.pad_right(max(24 - part.cell_len, 0))
    page.parts(parts, 2)


def _who(finding: Finding, job: Job) -> list[Row]:
    """Rows of the culprits, then of all other ranks."""
    rows: list[Row] = []
    blamed = {(c.host, c.pid) for c in finding.culprits}
    for group in culprit_groups(finding.culprits, job):
        rows.append(("culprit", (Text(group.name, "bold red"), _operation(group), group.site, group.where)))
    groups = fold(line for line in job.ranks if (line.host, line.pid) not in blamed)
    for group in groups[:MAX_GROUPS]:
        rows.append(("waiting" if group.phase in WAITING else "others", (group.name, group.what, group.site)))
    if len(groups) > MAX_GROUPS:
        rows.append(("", (f"and {len(groups) - MAX_GROUPS} more groups of ranks",)))
    return _once(rows)


def _once(rows: Sequence[Row]) -> list[Row]:
    """Print a label only in the first of consecutive rows that share it."""
    return [("" if i and rows[i - 1][0] == label else label, parts) for i, (label, parts) in enumerate(rows)]


def _links(page: Page, finding: Finding) -> None:
    page.table(_once([("link", parts) for parts in link_texts(finding.links)]), LABEL)


def _runbook(page: Page, finding: Finding) -> None:
    page.row("more", f"hangdoc runbook {clean(finding.playbook)}", LABEL)


def _more(page: Page, count: int, what: str) -> None:
    if count > 0:
        page.paragraph(f"and {count} {what}", 2, "dim")


def _unseen(page: Page, unseen: Sequence[Unseen]) -> None:
    texts = unseen_texts(unseen)
    if not texts:
        return
    page.blank()
    for text in texts[:MAX_UNSEEN]:
        page.paragraph(f"could not see: {text}", 2, "yellow", hang=2)
    _more(page, len(texts) - MAX_UNSEEN, "more things that hangdoc could not see")
